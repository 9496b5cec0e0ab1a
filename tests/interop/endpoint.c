#include "endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Connection requests that librdmacm keeps. */
#define BACKLOG 32
/* Address resolution may miss the neighbor's reply and then repeats only after its timeout: many
 * short attempts. */
#define RESOLVE_MS 1000
#define RESOLVE_TRIES 20

static void unblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		give_up("fcntl: %s", strerror(errno));
}

void endpoint_open(struct endpoint *endpoint)
{
	memset(endpoint, 0, sizeof(*endpoint));
	endpoint->events = rdma_create_event_channel();
	if (!endpoint->events)
		give_up("no RDMA connection manager: %s", strerror(errno));
	unblock(endpoint->events->fd);
}

/* Destroys what `endpoint_prepare` created. All connections were destroyed before. */
static void release(struct endpoint *endpoint)
{
	if (endpoint->cq)
		ibv_destroy_cq(endpoint->cq);
	if (endpoint->channel)
		ibv_destroy_comp_channel(endpoint->channel);
	if (endpoint->pd)
		ibv_dealloc_pd(endpoint->pd);
	endpoint->cq = NULL;
	endpoint->channel = NULL;
	endpoint->pd = NULL;
}

void endpoint_close(struct endpoint *endpoint)
{
	release(endpoint);
	if (endpoint->listener)
		rdma_destroy_id(endpoint->listener);
	rdma_destroy_event_channel(endpoint->events);
}

void endpoint_listen(struct endpoint *endpoint, uint16_t port, bool ipv6)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr *address = ipv6 ? (struct sockaddr *)&any6 : (struct sockaddr *)&any;

	if (rdma_create_id(endpoint->events, &endpoint->listener, NULL, RDMA_PS_TCP))
		give_up("rdma_create_id: %s", strerror(errno));
	if (rdma_bind_addr(endpoint->listener, address))
		give_up("cannot bind to port %u: %s", port, strerror(errno));
	if (rdma_listen(endpoint->listener, BACKLOG))
		give_up("cannot listen on port %u: %s", port, strerror(errno));
}

void endpoint_prepare(struct endpoint *endpoint, struct ibv_context *verbs, unsigned completions)
{
	release(endpoint);
	endpoint->verbs = verbs;
	endpoint->pd = ibv_alloc_pd(verbs);
	endpoint->channel = ibv_create_comp_channel(verbs);
	if (!endpoint->pd || !endpoint->channel)
		give_up("no protection domain or completion channel: %s", strerror(errno));
	unblock(endpoint->channel->fd);
	endpoint->cq = ibv_create_cq(verbs, (int)completions, NULL, endpoint->channel, 0);
	if (!endpoint->cq)
		give_up("no queue of %u completions: %s", completions, strerror(errno));
}

static size_t copy_private(uint8_t out[PRIVATE_LEN_MAX], const struct rdma_conn_param *param)
{
	if (!param->private_data)
		return 0;
	memcpy(out, param->private_data, param->private_data_len);
	return param->private_data_len;
}

static void queue_request(struct endpoint *endpoint, const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;
	struct request *request;

	if (endpoint->request_count == REQUESTS_MAX)
		give_up("too many connection requests at a time");
	request = &endpoint->requests[endpoint->request_count++];
	request->id = event->id;
	request->private_len = copy_private(request->private_data, param);
	request->ird = param->responder_resources;
	request->ord = param->initiator_depth;
}

static void on_connection_event(struct connection *connection, const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;

	switch (event->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		connection->state = CONNECTION_UP;
		connection->private_len = copy_private(connection->private_data, param);
		connection->ird = param->responder_resources;
		connection->ord = param->initiator_depth;
		break;
	case RDMA_CM_EVENT_REJECTED:
		connection->state = CONNECTION_REJECTED;
		connection->private_len = copy_private(connection->private_data, param);
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		connection->state = CONNECTION_FAILED;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		connection->state = CONNECTION_DOWN;
		break;
	default:
		break;
	}
}

/* Processes the events of the connection manager. */
static void process_events(struct endpoint *endpoint)
{
	struct rdma_cm_event *event;

	while (rdma_get_cm_event(endpoint->events, &event) == 0) {
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			queue_request(endpoint, event);
		else if (event->id->context)
			on_connection_event(event->id->context, event);
		rdma_ack_cm_event(event);
	}
	if (errno != EAGAIN && errno != EINTR)
		give_up("rdma_get_cm_event: %s", strerror(errno));
}

static unsigned take_completions(struct endpoint *endpoint, struct ibv_wc *out, unsigned max)
{
	int count = endpoint->cq ? ibv_poll_cq(endpoint->cq, (int)max, out) : 0;

	if (count < 0)
		give_up("the completion queue cannot be polled");
	return (unsigned)count;
}

/* Removes and counts all events of the completion channel. */
static void drain_channel(struct endpoint *endpoint)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(endpoint->channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		endpoint->notifications++;
	}
}

void endpoint_arm_solicited(struct endpoint *endpoint)
{
	drain_channel(endpoint);
	if (ibv_req_notify_cq(endpoint->cq, 1))
		give_up("the completion queue cannot be armed");
}

unsigned endpoint_poll(struct endpoint *endpoint, struct ibv_wc *completions, unsigned max,
		       int wait_ms)
{
	struct pollfd fds[2] = {
		{ .fd = endpoint->events->fd, .events = POLLIN },
		{ .fd = endpoint->channel ? endpoint->channel->fd : -1, .events = POLLIN },
	};
	unsigned count;

	count = take_completions(endpoint, completions, max);
	if (count == 0 && endpoint->cq && wait_ms > 0) {
		if (ibv_req_notify_cq(endpoint->cq, 0))
			give_up("the completion queue cannot be armed");
		/* Completions from before the queue was armed raise no event. */
		count = take_completions(endpoint, completions, max);
	}
	if (count > 0)
		wait_ms = 0;
	if (poll(fds, 2, wait_ms) < 0 && errno != EINTR)
		give_up("poll: %s", strerror(errno));
	if (fds[0].revents)
		process_events(endpoint);
	if (fds[1].revents)
		drain_channel(endpoint);
	if (count == 0)
		count = take_completions(endpoint, completions, max);
	return count;
}

bool endpoint_request(struct endpoint *endpoint, struct request *request)
{
	if (endpoint->request_count == 0)
		return false;
	*request = endpoint->requests[0];
	endpoint->request_count--;
	memmove(endpoint->requests, endpoint->requests + 1,
		endpoint->request_count * sizeof(endpoint->requests[0]));
	return true;
}

void endpoint_reject(struct request *request, const uint8_t *private_data, size_t length)
{
	/* Fails if the peer has closed the connection. */
	rdma_reject(request->id, private_data, (uint8_t)length);
	rdma_destroy_id(request->id);
}

void endpoint_wait_connected(struct endpoint *endpoint, struct connection *connection)
{
	uint64_t deadline = now_ns() + CONNECT_MS * 1000000ull;

	while (connection->state == CONNECTION_IDLE) {
		struct pollfd fd = { .fd = endpoint->events->fd, .events = POLLIN };

		if (now_ns() > deadline)
			give_up("no reply to a connection request");
		if (poll(&fd, 1, 100) > 0)
			process_events(endpoint);
	}
}

struct memory memory_register(struct endpoint *endpoint, size_t length)
{
	struct memory memory = { allocate(length), length, NULL };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

	memory.mr = ibv_reg_mr(endpoint->pd, memory.bytes, length, access);
	if (!memory.mr)
		give_up("cannot register %zu bytes: %s", length, strerror(errno));
	return memory;
}

void memory_release(struct memory *memory)
{
	if (memory->mr)
		ibv_dereg_mr(memory->mr);
	free(memory->bytes);
	memset(memory, 0, sizeof(*memory));
}

/* Waits for the next event of the address or route resolution. */
static enum rdma_cm_event_type next_event(struct endpoint *endpoint)
{
	struct pollfd fd = { .fd = endpoint->events->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type got;

	if (poll(&fd, 1, CONNECT_MS) <= 0 || rdma_get_cm_event(endpoint->events, &event))
		give_up("the address was not resolved");
	got = event->event;
	rdma_ack_cm_event(event);
	return got;
}

void connection_resolve(struct endpoint *endpoint, struct connection *connection, const char *host,
			uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found;
	enum rdma_cm_event_type got = RDMA_CM_EVENT_ADDR_ERROR;
	char service[8];

	memset(connection, 0, sizeof(*connection));
	snprintf(service, sizeof(service), "%u", port);
	if (rdma_getaddrinfo(host, service, &hints, &found))
		give_up("%s is no address", host);
	if (rdma_create_id(endpoint->events, &connection->id, connection, RDMA_PS_TCP))
		give_up("rdma_create_id: %s", strerror(errno));
	for (unsigned i = 0; got == RDMA_CM_EVENT_ADDR_ERROR && i < RESOLVE_TRIES; i++) {
		if (rdma_resolve_addr(connection->id, NULL, found->ai_dst_addr, RESOLVE_MS))
			give_up("no device with a route to %s: %s", host, strerror(errno));
		got = next_event(endpoint);
	}
	rdma_freeaddrinfo(found);
	if (got != RDMA_CM_EVENT_ADDR_RESOLVED)
		give_up("the address of %s was not resolved: %s", host, rdma_event_str(got));
	if (rdma_resolve_route(connection->id, CONNECT_MS))
		give_up("no route to %s: %s", host, strerror(errno));
	got = next_event(endpoint);
	if (got != RDMA_CM_EVENT_ROUTE_RESOLVED)
		give_up("no route to %s: %s", host, rdma_event_str(got));
}

void connection_create(struct endpoint *endpoint, struct connection *connection, unsigned sends,
		       unsigned receives)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = endpoint->cq,
		.recv_cq = endpoint->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = sends,
			.max_recv_wr = receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	connection->id->context = connection;
	if (rdma_create_qp(connection->id, endpoint->pd, &attr))
		give_up("no queue pair of %u and %u requests: %s", sends, receives,
			strerror(errno));
}

static struct rdma_conn_param param_of(const struct parameters *parameters)
{
	struct rdma_conn_param param = {
		.private_data = parameters->private_data,
		.private_data_len = (uint8_t)parameters->private_len,
		.responder_resources = (uint8_t)parameters->ird,
		.initiator_depth = (uint8_t)parameters->ord,
	};

	return param;
}

void connection_connect(struct connection *connection, const struct parameters *parameters)
{
	struct rdma_conn_param param = param_of(parameters);

	if (rdma_connect(connection->id, &param))
		give_up("cannot connect: %s", strerror(errno));
}

bool connection_accept(struct connection *connection, const struct parameters *parameters)
{
	struct rdma_conn_param param = param_of(parameters);

	return rdma_accept(connection->id, &param) == 0;
}

void connection_disconnect(struct connection *connection)
{
	/* Fails if the connection is down, which is no error here. */
	if (connection->id && connection->id->qp)
		rdma_disconnect(connection->id);
}

void connection_destroy(struct connection *connection)
{
	if (!connection->id)
		return;
	if (connection->id->qp)
		rdma_destroy_qp(connection->id);
	rdma_destroy_id(connection->id);
	connection->id = NULL;
}
