/*
 * Symbols of the private nodes of libibverbs.
 *
 * perftest, libfabric and others are linked to libmlx5 and libefa, which import these and register
 * themselves in constructors. Nothing calls a registered provider, so only three functions do
 * something. Private names change with the releases of rdma-core and the node with them: every node
 * has the names of all.
 */
#include <stdbool.h>

/* Alias in one node. */
#define IN_NODE(symbol, name, node) \
	__asm__(".symver " #symbol ", " #name "@IBVERBS_PRIVATE_" #node);

/* Alias in each node of a release. */
#define IN_NODES(symbol, name) \
	IN_NODE(symbol, name, 34) \
	IN_NODE(symbol, name, 57) \
	IN_NODE(symbol, name, 59) \
	IN_NODE(symbol, name, 64) \
	IN_NODE(symbol, name, 65)

#define NAMES(X) \
	X(__ioctl_final_num_attrs) \
	X(__verbs_log) \
	X(_verbs_init_and_alloc_context) \
	X(execute_ioctl) \
	X(ibv_cmd_advise_mr) \
	X(ibv_cmd_alloc_dm) \
	X(ibv_cmd_alloc_dmah) \
	X(ibv_cmd_alloc_mw) \
	X(ibv_cmd_alloc_pd) \
	X(ibv_cmd_attach_mcast) \
	X(ibv_cmd_close_xrcd) \
	X(ibv_cmd_create_ah) \
	X(ibv_cmd_create_comp_cntr) \
	X(ibv_cmd_create_counters) \
	X(ibv_cmd_create_cq) \
	X(ibv_cmd_create_cq_ex) \
	X(ibv_cmd_create_cq_ex2) \
	X(ibv_cmd_create_flow) \
	X(ibv_cmd_create_flow_action_esp) \
	X(ibv_cmd_create_qp) \
	X(ibv_cmd_create_qp_ex) \
	X(ibv_cmd_create_qp_ex2) \
	X(ibv_cmd_create_rwq_ind_table) \
	X(ibv_cmd_create_srq) \
	X(ibv_cmd_create_srq_ex) \
	X(ibv_cmd_create_wq) \
	X(ibv_cmd_dealloc_mw) \
	X(ibv_cmd_dealloc_pd) \
	X(ibv_cmd_dereg_mr) \
	X(ibv_cmd_destroy_ah) \
	X(ibv_cmd_destroy_comp_cntr) \
	X(ibv_cmd_destroy_counters) \
	X(ibv_cmd_destroy_cq) \
	X(ibv_cmd_destroy_flow) \
	X(ibv_cmd_destroy_flow_action) \
	X(ibv_cmd_destroy_qp) \
	X(ibv_cmd_destroy_rwq_ind_table) \
	X(ibv_cmd_destroy_srq) \
	X(ibv_cmd_destroy_wq) \
	X(ibv_cmd_detach_mcast) \
	X(ibv_cmd_export_dmabuf_fd) \
	X(ibv_cmd_free_dm) \
	X(ibv_cmd_free_dmah) \
	X(ibv_cmd_get_context) \
	X(ibv_cmd_inc_comp_cntr) \
	X(ibv_cmd_inc_err_comp_cntr) \
	X(ibv_cmd_modify_cq) \
	X(ibv_cmd_modify_flow_action_esp) \
	X(ibv_cmd_modify_qp) \
	X(ibv_cmd_modify_qp_ex) \
	X(ibv_cmd_modify_srq) \
	X(ibv_cmd_modify_wq) \
	X(ibv_cmd_open_qp) \
	X(ibv_cmd_open_xrcd) \
	X(ibv_cmd_poll_cq) \
	X(ibv_cmd_post_recv) \
	X(ibv_cmd_post_send) \
	X(ibv_cmd_post_srq_recv) \
	X(ibv_cmd_qp_attach_comp_cntr) \
	X(ibv_cmd_query_comp_cntr_caps) \
	X(ibv_cmd_query_context) \
	X(ibv_cmd_query_device_any) \
	X(ibv_cmd_query_mr) \
	X(ibv_cmd_query_port) \
	X(ibv_cmd_query_port_speed) \
	X(ibv_cmd_query_qp) \
	X(ibv_cmd_query_srq) \
	X(ibv_cmd_read_comp_cntr) \
	X(ibv_cmd_read_counters) \
	X(ibv_cmd_read_err_comp_cntr) \
	X(ibv_cmd_reg_dm_mr) \
	X(ibv_cmd_reg_dmabuf_mr) \
	X(ibv_cmd_reg_mr) \
	X(ibv_cmd_reg_mr_ex) \
	X(ibv_cmd_req_notify_cq) \
	X(ibv_cmd_rereg_mr) \
	X(ibv_cmd_resize_cq) \
	X(ibv_cmd_set_comp_cntr) \
	X(ibv_cmd_set_err_comp_cntr) \
	X(ibv_dmabuf_heap_alloc) \
	X(ibv_dmabuf_heap_cc_shared_init) \
	X(ibv_dmabuf_heap_destroy) \
	X(ibv_dmabuf_heap_free) \
	X(ibv_read_ibdev_sysfs_file) \
	X(verbs_init_cq) \
	X(verbs_open_device) \
	X(verbs_set_ops) \
	X(verbs_uninit_context)

/* Of the libraries that import it none calls it. A pointer and an error code at once: none. */
void *ferrowarp_private(void);
void *ferrowarp_private(void)
{
	return 0;
}

#define STUB(name) IN_NODES(ferrowarp_private, name)
NAMES(STUB)

/* Constructors of providers. */
IN_NODE(ferrowarp_private, verbs_register_driver_34, 34)
IN_NODE(ferrowarp_private, verbs_register_driver_57, 57)
IN_NODE(ferrowarp_private, verbs_register_driver_59, 59)
IN_NODE(ferrowarp_private, verbs_register_driver_64, 64)
IN_NODE(ferrowarp_private, verbs_register_driver_65, 65)

/* A variable of providers. */
bool ferrowarp_allow_disassociate_destroy;
IN_NODES(ferrowarp_allow_disassociate_destroy, verbs_allow_disassociate_destroy)

/* ibv_devinfo and pyverbs call it. */
struct ibv_context;
int ferrowarp_query_gid_type(struct ibv_context *context, unsigned char port, unsigned int index,
			     unsigned int *type);
int ferrowarp_private_query_gid_type(struct ibv_context *context, unsigned char port,
				     unsigned int index, unsigned int *type);
int ferrowarp_private_query_gid_type(struct ibv_context *context, unsigned char port,
				     unsigned int index, unsigned int *type)
{
	return ferrowarp_query_gid_type(context, port, index, type);
}
IN_NODES(ferrowarp_private_query_gid_type, ibv_query_gid_type)

/* The public headers of rdma-core 56 declare it, and those of 44 do not. */
const char *ferrowarp_wr_opcode_str(unsigned int opcode);
const char *ferrowarp_private_wr_opcode_str(unsigned int opcode);
const char *ferrowarp_private_wr_opcode_str(unsigned int opcode)
{
	return ferrowarp_wr_opcode_str(opcode);
}
IN_NODES(ferrowarp_private_wr_opcode_str, ibv_wr_opcode_str)
