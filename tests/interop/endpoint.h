/* One end on top of libibverbs and librdmacm: a device, one completion queue for everything, and
 * connections. Waiting is done in one place, `endpoint_poll`. */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

/* Most private data that librdmacm carries: their length is one octet. */
#define PRIVATE_LEN_MAX 255
/* Milliseconds that setting up or closing a connection may take. */
#define CONNECT_MS 20000
/* Most RDMA Reads outstanding on a connection that siw takes. */
#define READS_MAX 128

enum connection_state {
	CONNECTION_IDLE,
	CONNECTION_UP,
	CONNECTION_REJECTED,
	/* It could not be set up, for another reason. */
	CONNECTION_FAILED,
	CONNECTION_DOWN,
};

struct connection {
	struct rdma_cm_id *id;
	enum connection_state state;
	/* What the other end said with its reply, or reject. */
	uint8_t private_data[PRIVATE_LEN_MAX];
	size_t private_len;
	/* RDMA Reads that the other end may have outstanding here, and we there. */
	unsigned ird;
	unsigned ord;
};

/* A connection request that waits for an answer. */
struct request {
	struct rdma_cm_id *id;
	uint8_t private_data[PRIVATE_LEN_MAX];
	size_t private_len;
	/* What the request asks for, from our point of view. */
	unsigned ird;
	unsigned ord;
};

#define REQUESTS_MAX 32

struct endpoint {
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	/* Notifications of the completion channel so far. */
	unsigned notifications;
	/* Requests not yet answered, oldest first. */
	struct request requests[REQUESTS_MAX];
	unsigned request_count;
};

/* What a connection is set up with. */
struct parameters {
	unsigned ird;
	unsigned ord;
	const uint8_t *private_data;
	size_t private_len;
};

struct memory {
	uint8_t *octets;
	size_t length;
	struct ibv_mr *mr;
};

void endpoint_open(struct endpoint *endpoint);
void endpoint_close(struct endpoint *endpoint);
/* Listens on all addresses of one family. */
void endpoint_listen(struct endpoint *endpoint, uint16_t port, bool ipv6);
/* Makes protection domain and completion queue on a device, once one is known. */
void endpoint_prepare(struct endpoint *endpoint, struct ibv_context *verbs, unsigned completions);
/* Takes completions, at most `max`; without any waits for one, or for something about a connection,
 * `wait_ms` at most. Keeps the states of connections up to date. */
unsigned endpoint_poll(struct endpoint *endpoint, struct ibv_wc *completions, unsigned max,
		       int wait_ms);
/* Asks for one notification when a message comes whose sender asked for an event. Until then
 * `endpoint_poll` is not to wait. */
void endpoint_arm_solicited(struct endpoint *endpoint);
/* Takes the oldest connection request off the queue, if there is one. */
bool endpoint_request(struct endpoint *endpoint, struct request *request);
void endpoint_reject(struct request *request, const uint8_t *private_data, size_t length);
/* Waits until a connection has left the state IDLE. Completions must not be due meanwhile. */
void endpoint_wait_connected(struct endpoint *endpoint, struct connection *connection);

/* Registers zeroed memory for all kinds of access. */
struct memory memory_register(struct endpoint *endpoint, size_t length);
void memory_release(struct memory *memory);

/* Finds the way to a host. What follows is `connection_create`, receives, `connection_call`. */
void connection_resolve(struct endpoint *endpoint, struct connection *connection, const char *host,
			uint16_t port);
void connection_create(struct endpoint *endpoint, struct connection *connection, unsigned sends,
		       unsigned receives);
void connection_call(struct connection *connection, const struct parameters *parameters);
/* False if the request can no longer be answered. */
bool connection_accept(struct connection *connection, const struct parameters *parameters);
void connection_disconnect(struct connection *connection);
void connection_destroy(struct connection *connection);

/* requests.c: work requests. */

void post_receive(struct connection *connection, uint64_t wr_id, const struct memory *memory,
		  size_t offset, size_t length);
/* `invalidate` 0: a Send without Invalidate. These three are always signaled. */
void post_send(struct connection *connection, uint64_t wr_id, const struct memory *memory,
	       size_t offset, size_t length, bool solicited, uint32_t invalidate);
void post_write(struct connection *connection, uint64_t wr_id, const struct memory *memory,
		size_t offset, size_t length, uint32_t stag, uint64_t remote);
void post_read(struct connection *connection, uint64_t wr_id, const struct memory *memory,
	       size_t offset, size_t length, uint32_t stag, uint64_t remote);

#endif
