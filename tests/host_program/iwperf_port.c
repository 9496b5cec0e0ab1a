#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_mbuf.h>

#include "host_port.h"
#include "host_stack.h"
#include "iwperf_port.h"

enum {
	MEMIF_DESCRIPTORS = 64,
	CARD_DESCRIPTORS = 512,
	/* Windows of 256 KiB in frames of 9,000 bytes. */
	JUMBO_COUNT = 4095,
	/* Longer than any transfer takes in an emulated guest on a busy machine. */
	PATIENCE_S = 240,
};

struct iwperf_job {
	int count;
	const char *const *arguments;
	int status;
	atomic_bool done;
};

static void *run_iwperf(void *arg)
{
	struct iwperf_job *job = arg;

	job->status = host_stack_iwperf(job->count, job->arguments);
	job->done = true;
	return NULL;
}

/* Runs iwperf to its end, while the program has traffic of its own unless that is NULL. */
static void run_beside(struct own_traffic *traffic, int count, const char *const *arguments)
{
	struct iwperf_job job = { .count = count, .arguments = arguments };
	uint64_t deadline, next = 0;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, run_iwperf, &job) == 0);
	deadline = rte_get_timer_cycles() + PATIENCE_S * rte_get_timer_hz();
	while (!job.done) {
		CHECK(rte_get_timer_cycles() < deadline);
		if (traffic != NULL) {
			receive_own(traffic);
			if (rte_get_timer_cycles() > next) {
				send_own(traffic);
				next = rte_get_timer_cycles() + rte_get_timer_hz() / 1000;
			}
		}
		usleep(50);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(job.status == 0);
}

void run_memif(const char *role, const char *socket, uint16_t queues, int count,
	       const char *const *arguments)
{
	static const struct rte_eth_conf conf;
	struct own_traffic traffic;
	struct rte_mempool *own, *pool;
	char vdev[256];

	snprintf(vdev, sizeof(vdev), "--vdev=net_memif0,role=%s,socket=%s,socket-abstract=no", role,
		 socket);
	start_eal(vdev);
	own = create_pool("own", OWN_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	pool = create_pool("stack", STACK_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	traffic = (struct own_traffic){ .port = 0, .pool = own };
	set_up(0, queues, MEMIF_DESCRIPTORS, &conf, own);
	CHECK(rte_eth_dev_start(0) == 0);
	/* With one queue pair, it is lent. */
	run_beside(queues > 1 ? &traffic : NULL, count, arguments);
	printf("host: %" PRIu32 " frames of its own\n", traffic.received);
	CHECK(queues == 1 || traffic.received > 0);
	close_port(0);
	free_complete_pool(own);
	free_complete_pool(pool);
	/*
	 * No rte_eal_cleanup(): in DPDK 22.11 net_memif leaves the handler of its listening socket
	 * registered when its port is closed, and the interrupt thread reads the handle, in memory
	 * that rte_eal_cleanup() unmaps.
	 */
	remove_eal_folder();
}

/* Called by rte_eth_rx_burst(): counts the frames that lie in several buffers. */
static uint16_t count_scattered(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs,
				uint16_t count, uint16_t room, void *arg)
{
	atomic_uint *scattered = arg;
	uint16_t i;

	RTE_SET_USED(port);
	RTE_SET_USED(queue);
	RTE_SET_USED(room);
	for (i = 0; i < count; i++)
		*scattered += mbufs[i]->nb_segs > 1;
	return count;
}

void run_card(const char *bdf, uint16_t mtu, int count, const char *const *arguments)
{
	struct rte_eth_conf conf = { .rxmode.mtu = mtu };
	static atomic_uint scattered;
	struct rte_mempool *own, *pool;
	struct rte_eth_dev_info info;

	start_eal_with_card(bdf);
	CHECK(rte_eth_dev_info_get(0, &info) == 0);
	conf.rxmode.offloads = info.rx_offload_capa &
			       (RTE_ETH_RX_OFFLOAD_SCATTER | RTE_ETH_RX_OFFLOAD_CHECKSUM);
	conf.txmode.offloads = info.tx_offload_capa &
			       (RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM |
				RTE_ETH_TX_OFFLOAD_TCP_CKSUM);
	/* A mempool for what the card receives, and another one for what the stack sends. */
	own = create_pool("own", STACK_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	pool = create_pool("stack", JUMBO_COUNT, mtu + 64);
	set_up(0, 1, CARD_DESCRIPTORS, &conf, own);
	CHECK(rte_eth_add_rx_callback(0, 0, count_scattered, &scattered) != NULL);
	CHECK(rte_eth_dev_start(0) == 0);
	run_beside(NULL, count, arguments);
	printf("host: %u frames in several buffers\n", scattered);
	CHECK(scattered > 0);
	close_port(0);
	free_complete_pool(own);
	free_complete_pool(pool);
	end_eal();
}
