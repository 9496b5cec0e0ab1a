#include <string.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#include "host_port.h"

enum {
	FRAME_LEN = 60,
	CACHE = 32,
	/* Ethertype for local experiments (IEEE 802). */
	OWN_ETHERTYPE = 0x88b5,
};

/* Starts the EAL with these arguments, and those that all have. */
static void start_eal_with(int count, const char *const *arguments)
{
	static char prefix[32];
	char *all[16] = {
		"host", "--no-shconf", "--no-telemetry", "--iova-mode=va", "--log-level=critical",
		"--lcores=0@0", prefix,
	};
	int first = 7, i;

	CHECK(first + count <= (int)RTE_DIM(all));
	snprintf(prefix, sizeof(prefix), "--file-prefix=host-%d", getpid());
	for (i = 0; i < count; i++)
		all[first + i] = (char *)arguments[i];
	CHECK(rte_eal_init(first + count, all) >= 0);
}

void start_eal(const char *vdev)
{
	const char *arguments[] = { "--no-huge", "-m", "256", "--no-pci", vdev };

	start_eal_with(RTE_DIM(arguments) - (vdev == NULL), arguments);
}

void start_eal_with_card(const char *bdf)
{
	const char *arguments[] = { "--in-memory", "-m", "128", "-a", bdf };

	start_eal_with(RTE_DIM(arguments), arguments);
}

void remove_eal_folder(void)
{
	char folder[64];

	snprintf(folder, sizeof(folder), "/var/run/dpdk/host-%d", getpid());
	rmdir(folder);
}

void end_eal(void)
{
	CHECK(rte_eal_cleanup() == 0);
	remove_eal_folder();
}

struct rte_mempool *create_pool(const char *name, unsigned int count, uint16_t room)
{
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, CACHE, 0,
		RTE_PKTMBUF_HEADROOM + room, SOCKET_ID_ANY);

	CHECK(pool != NULL);
	return pool;
}

void free_complete_pool(struct rte_mempool *pool)
{
	unsigned int available = rte_mempool_avail_count(pool);

	if (available != pool->size) {
		fprintf(stderr, "%s: %u of %u mbufs are back\n", pool->name, available, pool->size);
		exit(1);
	}
	rte_mempool_free(pool);
}

void set_up(uint16_t port, uint16_t queues, uint16_t descriptors, const struct rte_eth_conf *conf,
	    struct rte_mempool *rx_pool)
{
	uint16_t queue;

	CHECK(rte_eth_dev_configure(port, queues, queues, conf) == 0);
	for (queue = 0; queue < queues; queue++) {
		CHECK(rte_eth_rx_queue_setup(port, queue, descriptors, 0, NULL, rx_pool) == 0);
		CHECK(rte_eth_tx_queue_setup(port, queue, descriptors, 0, NULL) == 0);
	}
}

/* A port that runs cannot be configured; nor does one that the stack has closed return this. */
bool is_running(uint16_t port)
{
	static const struct rte_eth_conf conf;

	return rte_eth_dev_is_valid_port(port) &&
	       rte_eth_dev_configure(port, 1, 1, &conf) == -EBUSY;
}

void close_port(uint16_t port)
{
	CHECK(is_running(port));
	CHECK(rte_eth_dev_stop(port) == 0);
	CHECK(rte_eth_dev_close(port) == 0);
}

struct own_frame {
	struct rte_ether_hdr ether;
	uint32_t number;
};

bool send_own(struct own_traffic *own)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(own->pool);
	struct own_frame *frame;

	CHECK(mbuf != NULL);
	frame = (struct own_frame *)rte_pktmbuf_append(mbuf, FRAME_LEN);
	CHECK(frame != NULL);
	memset(frame, 0, FRAME_LEN);
	memset(&frame->ether.dst_addr, 0xff, sizeof(frame->ether.dst_addr));
	frame->ether.ether_type = rte_cpu_to_be_16(OWN_ETHERTYPE);
	frame->number = own->sent + 1;
	if (rte_eth_tx_burst(own->port, 0, &mbuf, 1) != 1) {
		rte_pktmbuf_free(mbuf);
		return false;
	}
	own->sent++;
	return true;
}

void receive_own(struct own_traffic *own)
{
	struct rte_mbuf *mbufs[32];
	uint16_t count = rte_eth_rx_burst(own->port, 0, mbufs, RTE_DIM(mbufs)), i;

	for (i = 0; i < count; i++) {
		const struct own_frame *frame = rte_pktmbuf_mtod(mbufs[i], const struct own_frame *);

		CHECK(frame->ether.ether_type == rte_cpu_to_be_16(OWN_ETHERTYPE));
		CHECK(frame->number > own->last);
		own->last = frame->number;
		own->received++;
		rte_pktmbuf_free(mbufs[i]);
	}
}
