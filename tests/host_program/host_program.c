/*
 * A host program, in the manner of SPDK: it owns the EAL, its mempools and its ports, and lends
 * queue pairs to the stack. On a port with several it has traffic of its own on the first. In the
 * end it checks that its ports still run and that all mbufs are back, and only then closes all of
 * it.
 *
 * It prints "host: done" and exits with status 0 if everything was as it should be.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <rte_eth_ring.h>
#include <rte_mbuf.h>

#include "host_port.h"
#include "host_stack.h"
#include "iwperf_port.h"

static const char usage[] =
	"usage: host_program rings\n"
	"       host_program rss\n"
	"       host_program memif server|client SOCKET QUEUES -- ARGUMENTS\n"
	"       host_program card BDF MTU -- ARGUMENTS\n";

/* --- Two ports, connected to each other by rings. --- */

enum { RING_QUEUES = 3, DESCRIPTORS = 64 };

struct job {
	const struct host_stack *from;
	const struct host_stack *to;
	const char *address;
	atomic_bool done;
};

static void *run_job(void *arg)
{
	struct job *job = arg;

	CHECK(host_stack_transfer(job->from, job->to, job->address, 2000000) == 0);
	job->done = true;
	return NULL;
}

static void create_ring_ports(uint16_t *ports, struct rte_mempool *pool)
{
	static const struct rte_eth_conf conf;
	struct rte_ring *rings[2][RING_QUEUES];
	char name[32];
	int way, queue;

	for (way = 0; way < 2; way++) {
		for (queue = 0; queue < RING_QUEUES; queue++) {
			snprintf(name, sizeof(name), "ring_%d_%d", way, queue);
			rings[way][queue] = rte_ring_create(name, 256, SOCKET_ID_ANY,
							    RING_F_SP_ENQ | RING_F_SC_DEQ);
			CHECK(rings[way][queue] != NULL);
		}
	}
	for (way = 0; way < 2; way++) {
		int port = rte_eth_from_rings(way == 0 ? "left" : "right", rings[way], RING_QUEUES,
					      rings[!way], RING_QUEUES, 0);

		CHECK(port >= 0);
		ports[way] = port;
		set_up(port, RING_QUEUES, DESCRIPTORS, &conf, pool);
	}
}

/* Takes back what the stack has left in the rings of a queue. */
static void drain(uint16_t port, uint16_t queue)
{
	struct rte_mbuf *mbuf;

	while (rte_eth_rx_burst(port, queue, &mbuf, 1) == 1)
		rte_pktmbuf_free(mbuf);
}

static struct host_stack *open_on(uint16_t port, uint16_t queue, const char *pool,
				  const char *address, bool is_polled)
{
	char device[128], name[RTE_ETH_NAME_MAX_LEN];
	struct host_stack *stack;

	CHECK(rte_eth_dev_get_name_by_port(port, name) == 0);
	snprintf(device, sizeof(device), "port:%s,queues=%u,mempool=%s", name, queue, pool);
	stack = host_stack_open(device, address, is_polled);
	CHECK(stack != NULL);
	return stack;
}

static void run_rings(void)
{
	struct host_stack *stacks[4];
	struct rte_mempool *own_pool, *left, *right, *no_mbufs;
	struct own_traffic traffic[2];
	struct job jobs[2];
	pthread_t threads[2];
	uint16_t ports[2];
	uint32_t before;
	int i;

	CHECK(host_stack_open("port:0,queues=1,mempool=left", "198.18.0.1", true) == NULL);
	start_eal(NULL);
	own_pool = create_pool("own", OWN_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	left = create_pool("left", STACK_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	right = create_pool("right", STACK_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	no_mbufs = rte_mempool_create("no_mbufs", STACK_COUNT, 2304, 0, 0, NULL, NULL, NULL, NULL,
				      SOCKET_ID_ANY, 0);
	CHECK(no_mbufs != NULL);
	create_ring_ports(ports, own_pool);
	CHECK(host_stack_open("port:0,queues=1,mempool=left", "198.18.0.1", true) == NULL);
	for (i = 0; i < 2; i++) {
		CHECK(rte_eth_dev_start(ports[i]) == 0);
		traffic[i] = (struct own_traffic){ .port = ports[i], .pool = own_pool };
	}
	CHECK(host_stack_open("port:0,queues=3,mempool=left", "198.18.0.1", true) == NULL);
	CHECK(host_stack_open("port:0,queues=1,mempool=no_mbufs", "198.18.0.1", true) == NULL);

	/* Two contexts at each port: this lcore polls the first, helper threads the others. */
	stacks[0] = open_on(ports[0], 1, "left", "198.18.0.1", true);
	stacks[1] = open_on(ports[1], 1, "right", "198.18.0.2", true);
	stacks[2] = open_on(ports[0], 2, "left", "198.18.1.1", false);
	stacks[3] = open_on(ports[1], 2, "right", "198.18.1.2", false);
	CHECK(host_stack_open("port:0,queues=2,mempool=left", "198.18.0.9", true) == NULL);
	jobs[0] = (struct job){ stacks[0], stacks[1], "198.18.0.2", false };
	jobs[1] = (struct job){ stacks[2], stacks[3], "198.18.1.2", false };
	for (i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0);
	while (!jobs[0].done || !jobs[1].done) {
		for (i = 0; i < 2; i++) {
			CHECK(send_own(&traffic[i]));
			receive_own(&traffic[!i]);
		}
		host_stack_poll(stacks[0]);
		host_stack_poll(stacks[1]);
	}
	for (i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	host_stack_close(stacks[0]);
	host_stack_close(stacks[1]);

	/* The queues are the program's again, and it lends them anew. */
	stacks[0] = open_on(ports[0], 1, "right", "198.18.0.1", true);
	stacks[1] = open_on(ports[1], 1, "left", "198.18.0.2", true);
	CHECK(host_stack_transfer(stacks[0], stacks[1], "198.18.0.2", 100000) == 0);
	for (i = 0; i < 4; i++)
		host_stack_close(stacks[i]);

	before = traffic[0].received + traffic[1].received;
	for (i = 0; i < 2; i++) {
		CHECK(is_running(ports[i]));
		CHECK(send_own(&traffic[i]));
		receive_own(&traffic[!i]);
		CHECK(traffic[i].sent == traffic[!i].received);
		drain(ports[i], 1);
		drain(ports[i], 2);
	}
	CHECK(traffic[0].received + traffic[1].received == before + 2);
	printf("host: %" PRIu32 " frames of its own\n", before);
	for (i = 0; i < 2; i++)
		close_port(ports[i]);
	free_complete_pool(own_pool);
	free_complete_pool(left);
	free_complete_pool(right);
	rte_mempool_free(no_mbufs);
	end_eal();
}

/* --- A port whose redirection table has the queues that are lent, or others as well. --- */

static void set_table(uint16_t port, uint16_t size, uint16_t first, uint16_t count)
{
	struct rte_eth_rss_reta_entry64 groups[8];
	uint16_t i;

	CHECK(size <= RTE_DIM(groups) * RTE_ETH_RETA_GROUP_SIZE);
	memset(groups, 0, sizeof(groups));
	for (i = 0; i < size; i++) {
		struct rte_eth_rss_reta_entry64 *group = &groups[i / RTE_ETH_RETA_GROUP_SIZE];

		group->mask = UINT64_MAX;
		group->reta[i % RTE_ETH_RETA_GROUP_SIZE] = first + i % count;
	}
	CHECK(rte_eth_dev_rss_reta_update(port, groups, size) == 0);
}

static void run_rss(void)
{
	struct rte_eth_conf conf = { .rxmode.mq_mode = RTE_ETH_MQ_RX_RSS };
	struct rte_eth_dev_info info;
	struct rte_mempool *own, *pool;

	start_eal("--vdev=net_null0");
	own = create_pool("own", OWN_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	pool = create_pool("stack", STACK_COUNT, RTE_MBUF_DEFAULT_DATAROOM);
	CHECK(rte_eth_dev_info_get(0, &info) == 0);
	conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads;
	set_up(0, 4, DESCRIPTORS, &conf, own);
	CHECK(rte_eth_dev_start(0) == 0);
	set_table(0, info.reta_size, 2, 2);
	host_stack_print_steering("port:net_null0,queues=2-3,mempool=stack");
	set_table(0, info.reta_size, 1, 3);
	host_stack_print_steering("port:net_null0,queues=2-3,mempool=stack");
	close_port(0);
	free_complete_pool(own);
	free_complete_pool(pool);
	end_eal();
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "rings") == 0) {
		run_rings();
	} else if (argc == 2 && strcmp(argv[1], "rss") == 0) {
		run_rss();
	} else if (argc > 6 && strcmp(argv[1], "memif") == 0 && strcmp(argv[5], "--") == 0) {
		run_memif(argv[2], argv[3], atoi(argv[4]), argc - 6,
			  (const char *const *)argv + 6);
	} else if (argc > 5 && strcmp(argv[1], "card") == 0 && strcmp(argv[4], "--") == 0) {
		run_card(argv[2], atoi(argv[3]), argc - 5, (const char *const *)argv + 5);
	} else {
		fputs(usage, stderr);
		return 2;
	}
	puts("host: done");
	return 0;
}
