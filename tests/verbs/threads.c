/* Two threads post to one queue pair, and two threads poll its one completion queue. */
#include <sched.h>

#include "checklist.h"
#include "loopback.h"

#define POSTERS 2
#define POLLERS 2
#define EACH 20000
#define DEPTH 64
#define LEN 32

static struct loopback pair = { .depth = POSTERS * DEPTH };
static char sent[LEN], received[LEN];
static struct ibv_mr *source, *sink;
/* Completions by request, and requests in flight of each poster. */
static unsigned char seen[POSTERS][EACH];
static int in_flight[POSTERS], completed, bad;

static void *post(void *argument)
{
	int poster = (int)(intptr_t)argument;

	for (int i = 0; i < EACH; i++) {
		while (__atomic_load_n(&in_flight[poster], __ATOMIC_ACQUIRE) >= DEPTH - 1)
			sched_yield();
		__atomic_add_fetch(&in_flight[poster], 1, __ATOMIC_ACQ_REL);
		struct ibv_sge sge = { .addr = (uintptr_t)sent, .length = LEN, .lkey = source->lkey };
		struct ibv_send_wr wr = {
			.wr_id = (uint64_t)poster << 32 | i, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)received, .rkey = sink->rkey },
		}, *bad_wr;
		int code = ibv_post_send(pair.client->qp, &wr, &bad_wr);
		if (code) {
			printf("FAILED: post: %s\n", strerror(code));
			__atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
			break;
		}
	}
	return NULL;
}

static void *poll_cq(void *argument)
{
	struct ibv_wc wc[8];

	(void)argument;
	while (__atomic_load_n(&completed, __ATOMIC_ACQUIRE) < POSTERS * EACH &&
	       !__atomic_load_n(&bad, __ATOMIC_ACQUIRE)) {
		int count = ibv_poll_cq(pair.client->send_cq, 8, wc);
		if (count == 0)
			sched_yield();
		for (int i = 0; i < count; i++) {
			int poster = (int)(wc[i].wr_id >> 32), number = (int)wc[i].wr_id;
			if (wc[i].status != IBV_WC_SUCCESS ||
			    __atomic_add_fetch(&seen[poster][number], 1, __ATOMIC_RELAXED) != 1)
				__atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
			__atomic_sub_fetch(&in_flight[poster], 1, __ATOMIC_ACQ_REL);
			__atomic_add_fetch(&completed, 1, __ATOMIC_ACQ_REL);
		}
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[POSTERS + POLLERS];

	memset(sent, 'x', LEN);
	NEED(loopback_connect(&pair, "7300") == 0);
	source = rdma_reg_msgs(pair.client, sent, LEN);
	sink = rdma_reg_write(pair.server, received, LEN);
	NEED(source && sink);
	for (intptr_t i = 0; i < POSTERS; i++)
		pthread_create(&threads[i], NULL, post, (void *)i);
	for (int i = 0; i < POLLERS; i++)
		pthread_create(&threads[POSTERS + i], NULL, poll_cq, NULL);
	for (int i = 0; i < POSTERS + POLLERS; i++)
		pthread_join(threads[i], NULL);
	check(bad == 0, "each request completes once, with success");
	check(completed == POSTERS * EACH, "all requests complete");
	check(memcmp(sent, received, LEN) == 0, "the data has arrived");
	check(rdma_dereg_mr(source) == 0 && rdma_dereg_mr(sink) == 0, "deregister");
	loopback_close(&pair);
	return checklist_end();
}
