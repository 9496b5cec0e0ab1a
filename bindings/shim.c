/*
 * Symbols for DPDK's burst and bulk functions, which are static inline. A call costs about 1.5 ns,
 * so access to single fields of an mbuf does not belong here, but in src/mbuf.rs.
 */
/* For fopencookie. */
#define _GNU_SOURCE
#include "wrapper.h"

#include <stdio.h>

/* The types in src/mbuf_field.rs. */
#define ASSERT_FIELD(field, type) \
	_Static_assert(sizeof(((struct rte_mbuf *)NULL)->field) == sizeof(type), #field)
ASSERT_FIELD(buf_addr, void *);
ASSERT_FIELD(port, uint16_t);
ASSERT_FIELD(data_off, uint16_t);
ASSERT_FIELD(refcnt, uint16_t);
ASSERT_FIELD(nb_segs, uint16_t);
ASSERT_FIELD(ol_flags, uint64_t);
ASSERT_FIELD(pkt_len, uint32_t);
ASSERT_FIELD(data_len, uint16_t);
ASSERT_FIELD(buf_len, uint16_t);
ASSERT_FIELD(hash.rss, uint32_t);
ASSERT_FIELD(next, void *);
ASSERT_FIELD(tx_offload, uint64_t);

/*
 * Often another core has written the frames. Metadata and headers of all of them are prefetched
 * first, so that the cache misses overlap.
 */
uint16_t fw_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	uint16_t taken = rte_eth_rx_burst(port, queue, frames, count);
	uint16_t i;

	for (i = 0; i < taken; i++)
		rte_prefetch0(frames[i]);
	for (i = 0; i < taken; i++)
		rte_prefetch0(rte_pktmbuf_mtod(frames[i], void *));
	return taken;
}

uint16_t fw_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, frames, count);
}

uint16_t fw_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	return rte_eth_tx_prepare(port, queue, frames, count);
}

const struct fw_memif_queue *fw_memif_rx_queue(uint16_t port, uint16_t queue)
{
	return rte_eth_fp_ops[port].rxq.data[queue];
}

const struct fw_memif_queue *fw_memif_tx_queue(uint16_t port, uint16_t queue)
{
	return rte_eth_fp_ops[port].txq.data[queue];
}

struct rte_intr_handle *fw_memif_intr_handle(const struct fw_memif_queue *queue)
{
	/* No pointer is as small as the logarithm, or smaller than the first pages. */
	const uintptr_t pointer_min = 1 << 16;
	int later = queue->rest[1] >= pointer_min;

	return queue->rest[later] < pointer_min ? NULL :
						   (struct rte_intr_handle *)queue->rest[later];
}

int fw_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, frames, count);
}

void fw_mbuf_free(struct rte_mbuf *frame)
{
	rte_pktmbuf_free(frame);
}

void fw_mbuf_free_segment(struct rte_mbuf *segment)
{
	rte_pktmbuf_free_seg(segment);
}

unsigned int fw_ring_dequeue(struct rte_ring *ring, void **objects, unsigned int count)
{
	return rte_ring_dequeue_burst(ring, objects, count, NULL);
}

/* A cache belongs to the thread with its lcore ID: only that thread may flush it. */
void fw_mempool_flush_own_cache(struct rte_mempool *pool)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());

	if (cache != NULL)
		rte_mempool_cache_flush(cache, pool);
}

/* Excludes the caches: rte_mempool_avail_count() would walk those of all lcores. */
unsigned int fw_mempool_ops_get_count(const struct rte_mempool *pool)
{
	return rte_mempool_get_ops(pool->ops_index)->get_count(pool);
}

int fw_pktmbuf_pool_shape(struct rte_mempool *pool, struct fw_pool_shape *shape)
{
	const struct rte_pktmbuf_pool_private *private;

	if (pool->private_data_size < sizeof(*private))
		return -EINVAL;
	private = rte_mempool_get_priv(pool);
	if (private->mbuf_data_room_size < RTE_PKTMBUF_HEADROOM ||
	    pool->elt_size < sizeof(struct rte_mbuf) + private->mbuf_priv_size)
		return -EINVAL;
	/* The buffers are in the objects, unless they are of memory outside. */
	if (!(private->flags & RTE_PKTMBUF_POOL_F_PINNED_EXT_BUF) &&
	    pool->elt_size < sizeof(struct rte_mbuf) + private->mbuf_priv_size +
			     private->mbuf_data_room_size)
		return -EINVAL;
	shape->count = pool->size;
	shape->cache = pool->cache_size;
	shape->data_room = private->mbuf_data_room_size;
	return 0;
}

struct address {
	const void *wanted;
	int found;
};

static void compare_address(struct rte_mempool *pool, void *arg)
{
	struct address *address = arg;

	if (pool == address->wanted)
		address->found = 1;
}

int fw_is_mempool(const void *wanted)
{
	struct address address = { .wanted = wanted };

	rte_mempool_walk(compare_address, &address);
	return address.found;
}

int fw_link_is_up(uint16_t port)
{
	struct rte_eth_link link;

	memset(&link, 0, sizeof(link));
	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status != 0;
}

/*
 * No function tells whether a port is started. Until it is, and from when it is stopped, its burst
 * functions are those of a slot without a port, which only complain. Without such a slot the port
 * is taken for started.
 */
int fw_port_is_started(uint16_t port)
{
	uint16_t slot;

	for (slot = RTE_MAX_ETHPORTS; slot-- > 0;)
		if (!rte_eth_dev_is_valid_port(slot))
			return rte_eth_fp_ops[port].rx_pkt_burst !=
			       rte_eth_fp_ops[slot].rx_pkt_burst;
	return 1;
}

int fw_queue_setup(uint16_t port, uint16_t queue, struct fw_queue_setup *setup)
{
	struct rte_eth_rxq_info rx;
	struct rte_eth_txq_info tx;

	memset(setup, 0, sizeof(*setup));
	if (rte_eth_fp_ops[port].rxq.data[queue] == NULL ||
	    rte_eth_fp_ops[port].txq.data[queue] == NULL)
		return -ENOENT;
	if (rte_eth_rx_queue_info_get(port, queue, &rx) == 0) {
		setup->rx_offloads = rx.conf.offloads;
		setup->rx_pool = rx.mp;
		setup->rx_descriptors = rx.nb_desc;
	}
	if (rte_eth_tx_queue_info_get(port, queue, &tx) == 0) {
		setup->tx_offloads = tx.conf.offloads;
		setup->tx_descriptors = tx.nb_desc;
	}
	return 0;
}

unsigned int fw_lcore_id(void)
{
	return rte_lcore_id();
}

/* Output of the thread that starts EAL, while it does. */
static FILE *eal_text;
static char **eal_copy;
static size_t *eal_copy_len;
static _Thread_local int starts_eal;

/* Passes output of other threads on to the stream of the program. */
static ssize_t eal_write(void *stream, const char *text, size_t len)
{
	static const char panic[] = "PANIC in ";

	if (starts_eal && memmem(text, len, panic, sizeof(panic) - 1) != NULL) {
		/* EAL aborts the process next. */
		starts_eal = 0;
		fflush(eal_text);
		fwrite(*eal_copy, 1, *eal_copy_len, stream);
	}
	fwrite(text, 1, len, starts_eal ? eal_text : stream);
	return (ssize_t)len;
}

static FILE *eal_stream(FILE *stream)
{
	static const cookie_io_functions_t functions = { .write = eal_write };
	FILE *own = fopencookie(stream, "w", functions);

	/* With a buffer, one thread's text could be written by another. */
	if (own != NULL)
		setvbuf(own, NULL, _IONBF, 0);
	return own;
}

/*
 * rte_eal_init, with what it prints to the streams of C in `text`: of some failures it prints all of
 * its options. The streams are not closed: another thread may be printing to them.
 */
int fw_eal_init(int argc, char **argv, char **text, size_t *len)
{
	FILE *out = stdout, *err = stderr;
	FILE *own_out = eal_stream(out), *own_err = eal_stream(err);
	int parsed;

	eal_copy = text;
	eal_copy_len = len;
	eal_text = open_memstream(text, len);
	if (own_out == NULL || own_err == NULL || eal_text == NULL)
		return rte_eal_init(argc, argv);
	starts_eal = 1;
	stdout = own_out;
	stderr = own_err;
	parsed = rte_eal_init(argc, argv);
	stdout = out;
	stderr = err;
	starts_eal = 0;
	fclose(eal_text);
	return parsed;
}

int fw_errno(void)
{
	return rte_errno;
}

struct memory_files {
	unsigned int count;
	unsigned int max;
	int fds[64];
};

static int count_file(const struct rte_memseg_list *list, const struct rte_memseg *seg, void *arg)
{
	struct memory_files *files = arg;
	unsigned int i;
	int fd;

	if (list->external)
		return 0;
	fd = rte_memseg_get_fd_thread_unsafe(seg);
	if (fd < 0)
		return -1;
	/* The last one first: neighbors mostly share theirs. */
	for (i = files->count; i > 0; i--)
		if (files->fds[i - 1] == fd)
			return 0;
	files->fds[files->count++] = fd;
	return files->count >= files->max;
}

int fw_memory_files(unsigned int max)
{
	struct memory_files files = { .max = RTE_MIN(max, RTE_DIM(files.fds)) };

	/* The walk holds the lock that the thread-unsafe call needs. */
	return rte_memseg_walk(count_file, &files) < 0 ? -1 : (int)files.count;
}

/* DPDK's log stream before the hook was installed. */
static FILE *log_stream_before;
/* The hook's stream. */
static FILE *log_stream;

static ssize_t log_write(void *line, const char *text, size_t len)
{
	((fw_log_handler *)line)(text, len, (uint32_t)rte_log_cur_msg_loglevel(),
			      (uint32_t)rte_log_cur_msg_logtype());
	return (ssize_t)len;
}

/*
 * Hooks DPDK's log: passes each line to a function, in the thread that writes it. Returns 0, or
 * less than 0 if there is no memory for it.
 */
int fw_log_set_handler(fw_log_handler *line)
{
	static const cookie_io_functions_t functions = { .write = log_write };
	FILE *stream = fopencookie((void *)line, "w", functions);

	if (stream == NULL)
		return -ENOMEM;
	/* With a buffer, one thread's lines could be flushed by another. */
	setvbuf(stream, NULL, _IONBF, 0);
	log_stream_before = rte_log_get_stream();
	log_stream = stream;
	return rte_openlog_stream(stream);
}

/*
 * The function that prints a line holds the lock of the stream. Without a buffer there is nothing
 * left to protect when it calls the handler, so other threads may print meanwhile.
 */
void fw_log_unlock(void)
{
	funlockfile(log_stream);
}

void fw_log_lock(void)
{
	flockfile(log_stream);
}

void fw_log_forward(const char *text, size_t len)
{
	fwrite(text, 1, len, log_stream_before);
	fflush(log_stream_before);
}

uint64_t fw_layout_value(enum fw_layout which)
{
	switch (which) {
	case FW_SIZEOF_ETH_CONF: return sizeof(struct rte_eth_conf);
	case FW_OFFSETOF_ETH_CONF_RXMODE: return offsetof(struct rte_eth_conf, rxmode);
	case FW_OFFSETOF_ETH_CONF_TXMODE: return offsetof(struct rte_eth_conf, txmode);
	case FW_SIZEOF_ETH_DEV_INFO: return sizeof(struct rte_eth_dev_info);
	case FW_OFFSETOF_DEV_INFO_DEVICE: return offsetof(struct rte_eth_dev_info, device);
	case FW_OFFSETOF_DEV_INFO_RX_OFFLOAD_CAPA:
		return offsetof(struct rte_eth_dev_info, rx_offload_capa);
	case FW_OFFSETOF_DEV_INFO_DEFAULT_TXCONF:
		return offsetof(struct rte_eth_dev_info, default_txconf);
	case FW_SIZEOF_ETH_RXCONF: return sizeof(struct rte_eth_rxconf);
	case FW_SIZEOF_ETH_TXCONF: return sizeof(struct rte_eth_txconf);
	case FW_SIZEOF_ETHER_ADDR: return sizeof(struct rte_ether_addr);
	case FW_SIZEOF_DEVARGS: return sizeof(struct rte_devargs);
	case FW_LAYOUT_COUNT: break;
	}
	return UINT64_MAX;
}

uint64_t fw_tx_offload_word(uint16_t l2_len, uint16_t l3_len, uint16_t l4_len, uint16_t segment)
{
	struct rte_mbuf frame;

	memset(&frame, 0, sizeof(frame));
	frame.l2_len = l2_len;
	frame.l3_len = l3_len;
	frame.l4_len = l4_len;
	frame.tso_segsz = segment;
	return frame.tx_offload;
}

/* In the order of the test in src/layout_tests.rs. */
uint64_t fw_constant(unsigned int which)
{
	static const uint64_t values[] = {
		RTE_MBUF_F_RX_IP_CKSUM_BAD, RTE_MBUF_F_RX_IP_CKSUM_GOOD,
		RTE_MBUF_F_RX_L4_CKSUM_BAD, RTE_MBUF_F_RX_L4_CKSUM_GOOD,
		RTE_MBUF_F_TX_IPV4, RTE_MBUF_F_TX_IPV6,
		RTE_MBUF_F_TX_IP_CKSUM, RTE_MBUF_F_TX_TCP_CKSUM, RTE_MBUF_F_TX_TCP_SEG,
		RTE_PKTMBUF_HEADROOM,
		RTE_ETH_TX_OFFLOAD_IPV4_CKSUM, RTE_ETH_TX_OFFLOAD_TCP_CKSUM,
		RTE_ETH_TX_OFFLOAD_TCP_TSO, RTE_ETH_TX_OFFLOAD_MULTI_SEGS,
		RTE_ETH_RX_OFFLOAD_IPV4_CKSUM, RTE_ETH_RX_OFFLOAD_TCP_CKSUM,
		RTE_ETH_RX_OFFLOAD_SCATTER, RTE_ETH_RX_OFFLOAD_RSS_HASH,
		RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_IPV6 | RTE_ETH_RSS_FRAG_IPV6,
		RTE_ETH_RSS_NONFRAG_IPV4_TCP, RTE_ETH_RSS_NONFRAG_IPV6_TCP,
		RTE_ETH_MQ_RX_RSS, sizeof(struct rte_eth_rss_conf),
		sizeof(struct rte_eth_rss_reta_entry64),
	};

	return which < RTE_DIM(values) ? values[which] : UINT64_MAX;
}

void *fw_mtod(struct rte_mbuf *frame)
{
	return rte_pktmbuf_mtod(frame, void *);
}

uint16_t fw_tailroom(struct rte_mbuf *frame)
{
	return rte_pktmbuf_tailroom(frame);
}
