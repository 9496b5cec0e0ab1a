/* Exchange of what iwperf does not test: MPA startup with private data, IRD and ORD, each form of
 * Send, unaligned memory, and errors. tests/tools/interop_end.rs is the peer. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXCHANGE_PORT 4796
#define SIZES_MAX 32

/* Error made by one end after the exchange; the peer has to end the connection. */
enum fault {
	FAULT_NONE,
	/* RDMA Write, RDMA Read, Send with Invalidate of an STag that was never advertised. */
	FAULT_WRITE,
	FAULT_READ,
	FAULT_INVALIDATE,
	/* A Send for which no receive is posted. */
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
	/* Length of the private data sent, and expected. */
	size_t private_len;
	size_t private_expected;
	/* The listener rejects the request. */
	bool reject;
	/* Omits RDMA Reads: with MPA revision 1 the ORD is 0. */
	bool no_reads;
	size_t sizes[SIZES_MAX];
	unsigned size_count;
	enum fault fault;
	/* The initiator makes the error. */
	bool fault_by_initiator;
};

/* False if no fault has this name. */
bool fault_from_name(const char *name, enum fault *fault);
/* Prints lines of `key=value`, and gives up on any error. */
void exchange(const struct exchange_options *options);

#endif
