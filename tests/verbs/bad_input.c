/* libibverbs with wrong arguments: errors as in rdma-core's manual pages, and no crash. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "checklist.h"

#define PAGE 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_device_attr device;
static char memory[2 * PAGE] __attribute__((aligned(PAGE)));

static struct ibv_qp_init_attr usual(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	return attr;
}

static void devices(void)
{
	union ibv_gid gid;
	__be16 pkey;
	struct ibv_port_attr port;

	REFUSED_POINTER(ibv_open_device(NULL), EINVAL, EINVAL, "open no device");
	REFUSED_POINTER(ibv_open_device((void *)memory), EINVAL, EINVAL, "open a foreign device");
	REFUSED_CODE(ibv_query_port(context, 0, &port), EINVAL, EINVAL, "query port 0");
	REFUSED_CODE(ibv_query_port(context, 2, &port), EINVAL, EINVAL, "query port 2");
	check(ibv_query_gid(context, 1, 99, &gid) != 0, "query GID 99");
	check(ibv_query_gid(context, 1, -1, &gid) != 0, "query GID -1");
	check(ibv_query_pkey(context, 1, 1, &pkey) != 0, "query P_Key 1");
	check(ibv_fork_init() == 0, "ibv_fork_init");
	check(ibv_get_device_name(context->device) != NULL, "name of the device");
	check(ibv_wc_status_str(12345) != NULL, "name of an unknown status");
	check(ibv_event_type_str(12345) != NULL, "name of an unknown event");
}

static void memory_regions(void)
{
	char *hole = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int full = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr;

	munmap(hole + PAGE, PAGE);
	REFUSED_POINTER(ibv_reg_mr(NULL, memory, PAGE, 0), EINVAL, EINVAL, "register in no domain");
	REFUSED_POINTER(ibv_reg_mr((void *)memory, memory, PAGE, 0), EINVAL, EINVAL,
		"register in a foreign domain");
	REFUSED_POINTER(ibv_reg_mr(pd, memory, PAGE, 1 << 15), EINVAL, EOPNOTSUPP,
		"register with unknown rights");
	REFUSED_POINTER(ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL, EINVAL,
		"register remote write without local write");
	REFUSED_POINTER(ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_REMOTE_ATOMIC), EINVAL, EINVAL,
		"register remote atomics without local write");
	REFUSED_POINTER(ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_ON_DEMAND), EINVAL, EOPNOTSUPP,
		"register with on-demand paging");
	REFUSED_POINTER(ibv_reg_mr(pd, hole, 2 * PAGE, full), EFAULT, ENOMEM, "register a hole");
	REFUSED_POINTER(ibv_reg_mr(pd, NULL, PAGE, full), EFAULT, EINVAL, "register at NULL");
	REFUSED_POINTER(ibv_reg_mr(pd, constant, PAGE, full), EFAULT, EFAULT,
		"register read-only memory for writing");
	REFUSED_POINTER(ibv_reg_mr(pd, memory, SIZE_MAX, full), EINVAL, EFAULT,
		"register beyond the address space");
	mr = ibv_reg_mr(pd, constant, PAGE, IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "register read-only memory for reading");
	check(mr && ibv_dereg_mr(mr) == 0, "deregister");
	mr = ibv_reg_mr(pd, memory, PAGE, full | IBV_ACCESS_RELAXED_ORDERING);
	check(mr != NULL, "register with an optional right");
	if (mr) {
		check(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT,
			"register again without a change");
		check(ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT,
			"register again with an unknown change");
		check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + PAGE, PAGE, 0) == 0,
			"register other memory");
		check(ibv_dereg_mr(mr) == 0, "deregister what was registered again");
		REFUSED_CODE(ibv_dereg_mr(mr), EINVAL, EINVAL, "deregister twice");
	}
	REFUSED_CODE(ibv_dereg_mr((void *)memory), EINVAL, EINVAL, "deregister a foreign region");
	REFUSED_POINTER(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, 0), EOPNOTSUPP, EBADF,
		"register a dma-buf");
	munmap(hole, PAGE);
	munmap(constant, PAGE);
}

static void completion_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *own, *found;
	struct ibv_wc wc[4];
	void *found_context;

	REFUSED_POINTER(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL, EINVAL, "CQ of no entry");
	REFUSED_POINTER(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL, EINVAL, "CQ of -1 entries");
	REFUSED_POINTER(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL, ENOMEM,
		"CQ beyond max_cqe");
	REFUSED_POINTER(ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL,
		EINVAL, "CQ of a vector that is none");
	REFUSED_POINTER(ibv_create_cq(context, 4, NULL, (void *)memory, 0), EINVAL, EINVAL,
		"CQ of a foreign channel");
	REFUSED_POINTER(ibv_create_cq(NULL, 4, NULL, NULL, 0), EINVAL, EINVAL, "CQ of no context");
	own = ibv_create_cq(context, 4, memory, channel, 0);
	check(own != NULL, "CQ with a channel");
	if (own == NULL)
		return;
	check(own->cqe >= 4, "entries of a CQ");
	check(ibv_poll_cq(own, 4, wc) == 0, "poll an empty CQ");
	check(ibv_poll_cq(own, 0, wc) == 0, "poll for nothing");
	check(ibv_req_notify_cq(own, 0) == 0, "arm a CQ");
	check(ibv_req_notify_cq(cq, 0) == 0, "arm a CQ without a channel");
	REFUSED_CODE(ibv_resize_cq(own, 0), EINVAL, EINVAL, "resize to no entry");
	REFUSED_CODE(ibv_resize_cq(own, device.max_cqe + 1), EINVAL, ENOMEM, "resize beyond max_cqe");
	check(ibv_resize_cq(own, 64) == 0 && own->cqe >= 64, "resize a CQ");
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	REFUSED(ibv_get_cq_event(channel, &found, &found_context), EAGAIN, EAGAIN,
		"no event of a CQ, without waiting");
	REFUSED_CODE(ibv_destroy_comp_channel(channel), EBUSY, EBUSY, "destroy a channel in use");
	check(ibv_destroy_cq(own) == 0, "destroy a CQ");
	check(ibv_poll_cq(own, 4, wc) < 0, "poll a CQ that is gone");
	REFUSED_CODE(ibv_destroy_cq(own), EINVAL, EINVAL, "destroy a CQ twice");
	check(ibv_destroy_comp_channel(channel) == 0, "destroy a channel");
	REFUSED_CODE(ibv_destroy_comp_channel(channel), EINVAL, EINVAL, "destroy a channel twice");
}

static void other_kinds(void)
{
	static const struct { enum ibv_qp_type type; const char *name; } kinds[] = {
		{ IBV_QPT_UD, "UD queue pair" }, { IBV_QPT_UC, "UC queue pair" },
		{ IBV_QPT_RAW_PACKET, "raw packet queue pair" },
		{ IBV_QPT_XRC_SEND, "XRC send queue pair" },
		{ IBV_QPT_XRC_RECV, "XRC receive queue pair" },
		{ IBV_QPT_DRIVER, "queue pair of a driver" }, { 0x77, "queue pair of no kind" },
	};
	struct ibv_ah_attr ah = { .port_num = 1 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = 3, .fd = -1, .oflags = O_CREAT };
	struct ibv_cq_init_attr_ex cq_ex = { .cqe = 4 };
	struct ibv_alloc_dm_attr dm = { .length = 64 };

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		struct ibv_qp_init_attr attr = usual();
		attr.qp_type = kinds[i].type;
		REFUSED_POINTER(ibv_create_qp(pd, &attr), EOPNOTSUPP, EINVAL, kinds[i].name);
	}
	REFUSED_POINTER(ibv_create_ah(pd, &ah), EOPNOTSUPP, EOPNOTSUPP, "address handle");
	REFUSED_POINTER(ibv_open_xrcd(context, &xrcd), EOPNOTSUPP, EOPNOTSUPP, "XRC domain");
	REFUSED_POINTER(ibv_create_cq_ex(context, &cq_ex), EOPNOTSUPP, EOPNOTSUPP, "extended CQ");
	REFUSED_POINTER(ibv_alloc_dm(context, &dm), EOPNOTSUPP, EOPNOTSUPP, "device memory");
	REFUSED_POINTER(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP, EOPNOTSUPP, "memory window");
	REFUSED_POINTER(ibv_alloc_td(context, NULL), EOPNOTSUPP, EOPNOTSUPP, "thread domain");
}

static void queue_pairs(void)
{
	static const struct { struct ibv_qp_cap cap; const char *name; } beyond[] = {
		{ { .max_send_wr = 1 << 30 }, "send requests beyond the limit" },
		{ { .max_recv_wr = 1 << 30 }, "receive requests beyond the limit" },
		{ { .max_send_sge = 1 << 20 }, "send SGEs beyond the limit" },
		{ { .max_recv_sge = 1 << 20 }, "receive SGEs beyond the limit" },
		{ { .max_inline_data = 1 << 20 }, "inline bytes beyond the limit" },
	};
	struct ibv_qp_init_attr attr = usual(), found_init;
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_RTS }, found;
	struct ibv_qp *qp;

	for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
		attr = usual();
		attr.cap = beyond[i].cap;
		REFUSED_POINTER(ibv_create_qp(pd, &attr), EINVAL, ENOMEM, beyond[i].name);
	}
	REFUSED_POINTER(ibv_create_qp(pd, NULL), EINVAL, EINVAL, "queue pair of nothing");
	attr = usual();
	REFUSED_POINTER(ibv_create_qp(NULL, &attr), EINVAL, EINVAL, "queue pair of no domain");
	attr.send_cq = NULL;
	REFUSED_POINTER(ibv_create_qp(pd, &attr), EINVAL, EINVAL, "queue pair without a CQ");
	attr = usual();
	attr.recv_cq = (void *)memory;
	REFUSED_POINTER(ibv_create_qp(pd, &attr), EINVAL, EINVAL, "queue pair with a foreign CQ");
	attr = usual();
	qp = ibv_create_qp(pd, &attr);
	check(qp != NULL, "queue pair");
	if (qp == NULL)
		return;
	check(attr.cap.max_send_wr >= 4 && attr.cap.max_recv_wr >= 4, "granted capacities");
	check(ibv_query_qp(qp, &found, IBV_QP_STATE, &found_init) == 0, "query a queue pair");
	check(found_init.send_cq == cq && found_init.qp_type == IBV_QPT_RC, "attributes of a queue pair");
	REFUSED_CODE(ibv_modify_qp(qp, &change, IBV_QP_STATE), EINVAL, EOPNOTSUPP,
		"to RTS without a connection");
	change.qp_state = 77;
	REFUSED_CODE(ibv_modify_qp(qp, &change, IBV_QP_STATE), EINVAL, EOPNOTSUPP, "to no state");
	REFUSED_CODE(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL, EINVAL, "to nothing");
	REFUSED_CODE(ibv_destroy_cq(cq), EBUSY, EBUSY, "destroy a CQ in use");
	REFUSED_CODE(ibv_dealloc_pd(pd), EBUSY, EBUSY, "deallocate a domain in use");
	REFUSED_CODE(ibv_attach_mcast(qp, NULL, 0), EOPNOTSUPP, EINVAL, "join a multicast group");
	check(ibv_destroy_qp(qp) == 0, "destroy a queue pair");
	REFUSED_CODE(ibv_destroy_qp(qp), EINVAL, EINVAL, "destroy a queue pair twice");
	check(ibv_query_qp(qp, &found, IBV_QP_STATE, &found_init) != 0, "query a queue pair that is gone");
}

/* Requests that the queue refuses; `bad` is the first of them. */
static void requests(void)
{
	struct ibv_qp_init_attr attr = usual();
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge[64];
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = sge, .num_sge = 1 }, *bad_recv;
	struct ibv_recv_wr chain[2000];
	struct ibv_send_wr send = { .sg_list = sge, .num_sge = 1 }, *bad_send;
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;
	int code, flushed = 0;

	check(qp != NULL && mr != NULL, "queue pair and region");
	if (qp == NULL || mr == NULL)
		return;
	for (int i = 0; i < 64; i++)
		sge[i] = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	recv.num_sge = 64;
	bad_recv = NULL;
	REFUSED_CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL, EINVAL, "receive with 64 SGEs");
	check(bad_recv == &recv, "the receive that was refused");
	recv.num_sge = -1;
	REFUSED_CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL, EINVAL, "receive with -1 SGEs");
	recv.num_sge = 1;
	recv.sg_list = NULL;
	REFUSED_CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL, EINVAL, "receive without its SGE");
	for (int i = 0; i < 2000; i++)
		chain[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = sge, .num_sge = 1,
			.next = i < 1999 ? &chain[i + 1] : NULL };
	bad_recv = NULL;
	code = ibv_post_recv(qp, chain, &bad_recv);
	check_refused(code != 0, code, ENOMEM, ENOMEM, "more receives than the queue holds");
	check(bad_recv >= &chain[4] && bad_recv <= &chain[1999], "the first receive that did not fit");
	send.opcode = 77;
	bad_send = NULL;
	REFUSED_CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, EOPNOTSUPP, "no operation");
	check(bad_send == &send, "the request that was refused");
	send.opcode = IBV_WR_SEND_WITH_IMM;
	REFUSED_CODE(ibv_post_send(qp, &send, &bad_send), EOPNOTSUPP, EINVAL, "send with immediate");
	send.opcode = IBV_WR_SEND;
	send.num_sge = 64;
	REFUSED_CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, EINVAL, "send with 64 SGEs");
	send.num_sge = 1;
	send.send_flags = IBV_SEND_INLINE;
	sge[0].length = PAGE;
	REFUSED_CODE(ibv_post_send(qp, &send, &bad_send), EINVAL, ENOMEM, "more inline bytes than granted");
	check(ibv_modify_qp(qp, &change, IBV_QP_STATE) == 0, "to the error state");
	for (int i = 0; i < 1000 && flushed < 4; i++) {
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			flushed += wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == (uint64_t)flushed;
		else
			usleep(1000);
	}
	check(flushed == 4, "receives are flushed in order");
	check(ibv_destroy_qp(qp) == 0, "destroy a queue pair in error");
	check(ibv_dereg_mr(mr) == 0, "deregister");
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 0, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = usual();
	struct ibv_srq_attr change = { .srq_limit = 1 << 20, .max_wr = 8 };
	struct ibv_srq *srq;
	struct ibv_qp *qp;

	REFUSED_POINTER(ibv_create_srq(pd, &init), EINVAL, EINVAL, "SRQ of no request");
	init.attr.max_wr = 1 << 30;
	REFUSED_POINTER(ibv_create_srq(pd, &init), EINVAL, ENOMEM, "SRQ beyond the limit");
	init.attr.max_wr = 8;
	init.attr.max_sge = 1 << 20;
	REFUSED_POINTER(ibv_create_srq(pd, &init), EINVAL, ENOMEM, "SGEs of an SRQ beyond the limit");
	init.attr.max_sge = 1;
	srq = ibv_create_srq(pd, &init);
	check(srq != NULL, "SRQ");
	if (srq == NULL)
		return;
	REFUSED_CODE(ibv_modify_srq(srq, &change, IBV_SRQ_LIMIT), EINVAL, EINVAL,
		"SRQ limit beyond its length");
	REFUSED_CODE(ibv_modify_srq(srq, &change, IBV_SRQ_MAX_WR), EOPNOTSUPP, EINVAL, "resize an SRQ");
	attr.srq = srq;
	qp = ibv_create_qp(pd, &attr);
	check(qp != NULL, "queue pair with an SRQ");
	REFUSED_CODE(ibv_destroy_srq(srq), EBUSY, EBUSY, "destroy an SRQ in use");
	check(qp && ibv_destroy_qp(qp) == 0, "destroy a queue pair with an SRQ");
	check(ibv_destroy_srq(srq) == 0, "destroy an SRQ");
	REFUSED_CODE(ibv_destroy_srq(srq), EINVAL, EINVAL, "destroy an SRQ twice");
}

static void events(void)
{
	struct ibv_async_event event;

	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
	check(errno == EAGAIN, "no asynchronous event, without waiting");
}

int main(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	NEED(list && count == 1 && list[1] == NULL);
	errno = 1234;
	context = ibv_open_device(list[0]);
	NEED(context);
	check(errno == 1234, "errno stays after success");
	ibv_free_device_list(list);
	NEED(ibv_query_device(context, &device) == 0);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(pd && cq);
	devices();
	memory_regions();
	completion_queues();
	other_kinds();
	queue_pairs();
	requests();
	shared_receive_queues();
	events();
	check(ibv_destroy_cq(cq) == 0, "destroy the CQ");
	check(ibv_dealloc_pd(pd) == 0, "deallocate the domain");
	REFUSED_CODE(ibv_dealloc_pd(pd), EINVAL, EINVAL, "deallocate a domain twice");
	check(ibv_close_device(context) == 0, "close the device");
	return checklist_end();
}
