/* Input of bindgen: the DPDK headers in use, and constants it cannot evaluate itself. */
#ifndef FERROWARP_DPDK_WRAPPER_H
#define FERROWARP_DPDK_WRAPPER_H

#include <rte_alarm.h>
#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

/* These expand function-like macros (RTE_BIT64). */
static const uint64_t FW_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t FW_TX_OFFLOAD_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t FW_TX_OFFLOAD_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t FW_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t FW_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t FW_RX_OFFLOAD_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t FW_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t FW_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t FW_RX_OFFLOAD_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t FW_RX_OFFLOAD_BUFFER_SPLIT = RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT;
static const uint64_t FW_TX_OFFLOAD_MBUF_FAST_FREE = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
static const uint64_t FW_RSS_IP = RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_FRAG_IPV4 |
				  RTE_ETH_RSS_IPV6 | RTE_ETH_RSS_FRAG_IPV6;
static const uint64_t FW_RSS_TCP_IPV4 = RTE_ETH_RSS_NONFRAG_IPV4_TCP;
static const uint64_t FW_RSS_TCP_IPV6 = RTE_ETH_RSS_NONFRAG_IPV6_TCP;

/* Offsets of the fields of an mbuf that Rust accesses, of the types in src/mbuf_field.rs. */
enum fw_mbuf_offset {
	FW_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	FW_MBUF_PORT = offsetof(struct rte_mbuf, port),
	FW_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	FW_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	FW_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	FW_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	FW_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	FW_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	FW_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	FW_MBUF_HASH_RSS = offsetof(struct rte_mbuf, hash.rss),
	FW_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	FW_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
};

/* Inline burst and bulk functions, compiled in shim.c. */
uint16_t fw_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);
uint16_t fw_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);
uint16_t fw_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);
int fw_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int count);
void fw_mbuf_free(struct rte_mbuf *frame);
void fw_mbuf_free_segment(struct rte_mbuf *segment);
unsigned int fw_ring_dequeue(struct rte_ring *ring, void **objects, unsigned int count);
void fw_mempool_flush_own_cache(struct rte_mempool *pool);
unsigned int fw_mempool_ops_get_count(const struct rte_mempool *pool);
unsigned int fw_lcore_id(void);
int fw_errno(void);
int fw_eal_init(int argc, char **argv, char **text, size_t *len);

/* Numbers with which a pool of mbufs was created. */
struct fw_pool_shape {
	uint32_t count;
	uint32_t cache;
	uint16_t data_room;
};

/* Fills shape; returns less than 0 if the objects of the pool are not mbufs. */
int fw_pktmbuf_pool_shape(struct rte_mempool *pool, struct fw_pool_shape *shape);
/* True if there is a mempool at this address. */
int fw_is_mempool(const void *address);

/* How a queue pair was set up, as far as its driver tells: 0 otherwise. */
struct fw_queue_setup {
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	const struct rte_mempool *rx_pool;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
};

/* True if the link of an attached port is up; does not wait for it to settle. */
int fw_link_is_up(uint16_t port);
/* True if an attached port is started. */
int fw_port_is_started(uint16_t port);
/* Fills setup; returns less than 0 if the queue of a started port was not set up. */
int fw_queue_setup(uint16_t port, uint16_t queue, struct fw_queue_setup *setup);

/*
 * Number of files that hold the memory of EAL; less than 0 if some of it is in none, so that no
 * other process can map it. Counts no further than max.
 */
int fw_memory_files(unsigned int max);

/*
 * A queue of net_memif, up to the last field in use. The layout is private to the driver
 * (drivers/net/memif/rte_eth_memif.h, struct memif_queue). A mend that the stable releases of each
 * branch take over from 26.07 puts a count of errors before the interrupt handle.
 */
struct fw_memif_queue {
	const struct rte_mempool *mempool;
	const void *pmd;
	int type;
	uint16_t region;
	uint16_t in_port;
	uint32_t ring_offset;
	uint16_t last_head;
	uint16_t last_tail;
	const void *buffers;
	uint64_t n_pkts;
	uint64_t n_bytes;
	/* Handle and binary logarithm of the ring's size, or errors and handle. */
	uintptr_t rest[2];
};

/* Returns the interrupt handle of a queue that is set up, or NULL if neither place has one. */
struct rte_intr_handle *fw_memif_intr_handle(const struct fw_memif_queue *queue);
/* A queue of a started net_memif port. */
const struct fw_memif_queue *fw_memif_rx_queue(uint16_t port, uint16_t queue);
const struct fw_memif_queue *fw_memif_tx_queue(uint16_t port, uint16_t queue);

/* Handler of a line of DPDK's log: text that is not NUL-terminated, log level and log type. */
typedef void fw_log_handler(const char *text, size_t len, uint32_t level, uint32_t type);
int fw_log_set_handler(fw_log_handler *line);
/* For a handler that waits: lets other threads print meanwhile. Only in pairs, and in a handler. */
void fw_log_unlock(void);
void fw_log_lock(void);
void fw_log_forward(const char *text, size_t len);

/* Layout values as C computes them, for the tests in Rust. */
enum fw_layout {
	FW_SIZEOF_ETH_CONF,
	FW_OFFSETOF_ETH_CONF_RXMODE,
	FW_OFFSETOF_ETH_CONF_TXMODE,
	FW_SIZEOF_ETH_DEV_INFO,
	FW_OFFSETOF_DEV_INFO_DEVICE,
	FW_OFFSETOF_DEV_INFO_RX_OFFLOAD_CAPA,
	FW_OFFSETOF_DEV_INFO_DEFAULT_TXCONF,
	FW_SIZEOF_ETH_RXCONF,
	FW_SIZEOF_ETH_TXCONF,
	FW_SIZEOF_ETHER_ADDR,
	FW_SIZEOF_DEVARGS,
	FW_LAYOUT_COUNT
};
uint64_t fw_layout_value(enum fw_layout which);
uint64_t fw_tx_offload_word(uint16_t l2_len, uint16_t l3_len, uint16_t l4_len, uint16_t segment);
uint64_t fw_constant(unsigned int which);
void *fw_mtod(struct rte_mbuf *frame);
uint16_t fw_tailroom(struct rte_mbuf *frame);

#endif
