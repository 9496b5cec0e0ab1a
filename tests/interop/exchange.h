/* What iwperf does not try: start-up with its private data and credits for RDMA Reads, each form of
 * Send, unaligned memory, and errors. tests/examples/interop_end.rs is the other end. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXCHANGE_PORT 4796
#define SIZES_MAX 32

/* What one end does wrong after everything else; the other end has to end the connection. */
enum fault {
	FAULT_NONE,
	/* RDMA Write, RDMA Read, Send with Invalidate of an STag that was never given out. */
	FAULT_WRITE,
	FAULT_READ,
	FAULT_INVALIDATE,
	/* A Send for which there is no receive. */
	FAULT_SEND,
	/* An RDMA Write beyond the end of the region. */
	FAULT_BOUNDS,
	/* An RDMA Write to the STag that the last Send with Invalidate invalidated. */
	FAULT_STALE,
};

struct exchange_options {
	/* NULL: listens. */
	const char *host;
	uint16_t port;
	bool ipv6;
	unsigned ird;
	unsigned ord;
	/* Octets of private data sent, and expected. */
	size_t private_len;
	size_t private_expected;
	/* The end that listens rejects. */
	bool reject;
	/* Leaves RDMA Reads away: with MPA revision 1 none are granted. */
	bool no_reads;
	size_t sizes[SIZES_MAX];
	unsigned size_count;
	enum fault fault;
	/* The end that connected does it. */
	bool fault_by_initiator;
};

/* False for a name of no fault. */
bool fault_from_name(const char *name, enum fault *fault);
/* Prints lines of `key=value`, and gives up when anything is wrong. */
void exchange(const struct exchange_options *options);

#endif
