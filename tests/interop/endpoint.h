/* Endpoint on libibverbs and librdmacm: a device, one completion queue for all its queue pairs, and
 * the connections. Only `endpoint_poll` waits. */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

/* Maximum length of private data in librdmacm, whose length field is one byte. */
#define PRIVATE_LEN_MAX 255
/* Timeout of connecting and of closing, milliseconds. */
#define CONNECT_MS 20000
/* Maximum IRD and ORD of siw. */
#define READS_MAX 128

enum connection_state {
	CONNECTION_IDLE,
	CONNECTION_UP,
	CONNECTION_REJECTED,
	/* Not established, for another reason than a reject. */
	CONNECTION_FAILED,
	CONNECTION_DOWN,
};

struct connection {
	struct rdma_cm_id *id;
	enum connection_state state;
	/* Private data of the peer's MPA Reply or reject. */
	uint8_t private_data[PRIVATE_LEN_MAX];
	size_t private_len;
	/* Negotiated IRD and ORD of this end. */
	unsigned ird;
	unsigned ord;
};

/* Connection request that was neither accepted nor rejected yet. */
struct request {
	struct rdma_cm_id *id;
	uint8_t private_data[PRIVATE_LEN_MAX];
	size_t private_len;
	/* IRD and ORD of this end that match the request. */
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
	/* Pending requests, oldest first. */
	struct request requests[REQUESTS_MAX];
	unsigned request_count;
};

/* Parameters of a connection. */
struct parameters {
	unsigned ird;
	unsigned ord;
	const uint8_t *private_data;
	size_t private_len;
};

struct memory {
	uint8_t *bytes;
	size_t length;
	struct ibv_mr *mr;
};

void endpoint_open(struct endpoint *endpoint);
void endpoint_close(struct endpoint *endpoint);
/* Listens on all addresses of one family. */
void endpoint_listen(struct endpoint *endpoint, uint16_t port, bool ipv6);
/* Creates protection domain and completion queue on a device. */
void endpoint_prepare(struct endpoint *endpoint, struct ibv_context *verbs, unsigned completions);
/* Polls at most `max` completions. If there are none, waits at most `wait_ms` for a completion or a
 * connection event. Updates the states of connections. */
unsigned endpoint_poll(struct endpoint *endpoint, struct ibv_wc *completions, unsigned max,
		       int wait_ms);
/* Requests notification of the next solicited completion. Until it arrives `endpoint_poll` must not
 * wait. */
void endpoint_arm_solicited(struct endpoint *endpoint);
/* Removes the oldest pending connection request; false if there is none. */
bool endpoint_request(struct endpoint *endpoint, struct request *request);
void endpoint_reject(struct request *request, const uint8_t *private_data, size_t length);
/* Waits until a connection has left the state IDLE, without polling completions. */
void endpoint_wait_connected(struct endpoint *endpoint, struct connection *connection);

/* Registers zeroed memory with all access rights. */
struct memory memory_register(struct endpoint *endpoint, size_t length);
void memory_release(struct memory *memory);

/* Resolves address and route. Next: `connection_create`, posting receives, `connection_connect`. */
void connection_resolve(struct endpoint *endpoint, struct connection *connection, const char *host,
			uint16_t port);
void connection_create(struct endpoint *endpoint, struct connection *connection, unsigned sends,
		       unsigned receives);
void connection_connect(struct connection *connection, const struct parameters *parameters);
/* False if the request can no longer be accepted. */
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
