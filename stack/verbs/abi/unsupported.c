/*
 * Functions of libibverbs and librdmacm that iWARP or the stack does not have: multicast, address
 * handles, ECE, imported objects, device memory, completion counters, rsockets.
 *
 * Programs are linked to all functions that they name, called or not. Each of these sets errno to
 * EOPNOTSUPP and returns what its manual page documents for a failure. The arguments do not matter,
 * and the headers of older releases do not declare all: none is declared here.
 */
#include <errno.h>
#include <poll.h>
#include <sys/select.h>

/* Return NULL. */
#define POINTERS(X) \
	X(ibv_alloc_buf) \
	X(ibv_alloc_dmah) \
	X(ibv_create_ah) \
	X(ibv_create_ah_from_wc) \
	X(ibv_create_comp_cntr) \
	X(ibv_import_device) \
	X(ibv_import_dm) \
	X(ibv_import_mr) \
	X(ibv_import_pd) \
	X(ibv_reg_buf_mr) \
	X(ibv_reg_dmabuf_mr) \
	X(ibv_reg_mr_ex)

/* Return the value of errno. */
#define ERRNOS(X) \
	X(_ibv_query_comp_cntr_caps) \
	X(ibv_attach_mcast) \
	X(ibv_dealloc_dmah) \
	X(ibv_destroy_ah) \
	X(ibv_destroy_comp_cntr) \
	X(ibv_detach_mcast) \
	X(ibv_inc_comp_cntr) \
	X(ibv_inc_err_comp_cntr) \
	X(ibv_qp_attach_comp_cntr) \
	X(ibv_query_ece) \
	X(ibv_query_port_speed) \
	X(ibv_read_comp_cntr) \
	X(ibv_read_err_comp_cntr) \
	X(ibv_set_comp_cntr) \
	X(ibv_set_ece) \
	X(ibv_set_err_comp_cntr)

/* Return -1, as an int or as the larger signed type of some rsocket calls. */
#define MINUS_ONES(X) \
	X(ibv_dm_export_dmabuf_fd) \
	X(ibv_export_buf_dmabuf_fd) \
	X(ibv_init_ah_from_wc) \
	X(ibv_resolve_eth_l2_from_gid) \
	X(raccept) \
	X(rbind) \
	X(rclose) \
	X(rconnect) \
	X(rdma_get_remote_ece) \
	X(rdma_join_multicast) \
	X(rdma_join_multicast_ex) \
	X(rdma_leave_multicast) \
	X(rdma_query_addrinfo) \
	X(rdma_reject_ece) \
	X(rdma_resolve_addrinfo) \
	X(rdma_set_local_ece) \
	X(rdma_write_cm_event) \
	X(repoll_create) \
	X(repoll_ctl) \
	X(repoll_wait) \
	X(rfcntl) \
	X(rgetpeername) \
	X(rgetsockname) \
	X(rgetsockopt) \
	X(riomap) \
	X(riounmap) \
	X(riowrite) \
	X(rlisten) \
	X(rread) \
	X(rreadv) \
	X(rrecv) \
	X(rrecvfrom) \
	X(rrecvmsg) \
	X(rsend) \
	X(rsendmsg) \
	X(rsendto) \
	X(rsetsockopt) \
	X(rshutdown) \
	X(rsocket) \
	X(rwrite) \
	X(rwritev)

/* Return nothing. */
#define VOIDS(X) \
	X(ibv_copy_ah_attr_from_kern) \
	X(ibv_copy_path_rec_from_kern) \
	X(ibv_copy_path_rec_to_kern) \
	X(ibv_copy_qp_attr_from_kern) \
	X(ibv_free_buf) \
	X(ibv_unimport_dm) \
	X(ibv_unimport_mr) \
	X(ibv_unimport_pd)

#define RETURN_NULL(name) void *name(void); void *name(void) { errno = EOPNOTSUPP; return 0; }
#define RETURN_ERRNO(name) int name(void); int name(void) { return errno = EOPNOTSUPP; }
#define RETURN_MINUS_ONE(name) long name(void); long name(void) { errno = EOPNOTSUPP; return -1; }
#define RETURN_NOTHING(name) void name(void); void name(void) { errno = EOPNOTSUPP; }

POINTERS(RETURN_NULL)
ERRNOS(RETURN_ERRNO)
MINUS_ONES(RETURN_MINUS_ONE)
VOIDS(RETURN_NOTHING)

/*
 * These take other descriptors besides those of rsockets, and there are no rsockets. rping and
 * ucmatose call rpoll.
 */
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	return poll(fds, nfds, timeout);
}

int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
	    struct timeval *timeout);
int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
	    struct timeval *timeout)
{
	return select(nfds, readfds, writefds, exceptfds, timeout);
}
