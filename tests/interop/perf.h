/* The two roles of iwperf's control exchange. */
#ifndef PERF_H
#define PERF_H

#include "control.h"

#define PERF_PORT 18515

struct server_options {
	uint16_t port;
	bool ipv6;
	/* Number of sessions to serve. */
	unsigned sessions;
};

struct client_options {
	const char *host;
	uint16_t port;
	enum test test;
	uint64_t size;
	uint64_t iterations;
	uint64_t duration_ms;
	uint16_t qps;
	uint32_t tx_depth;
	/* RDMA Reads outstanding per connection. */
	unsigned reads;
	bool bidirectional;
	bool verify;
};

/* Both print a line `result: ...` for each run, and give up on any error. */
void perf_server(const struct server_options *options);
void perf_client(const struct client_options *options);

#endif
