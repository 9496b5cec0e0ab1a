/* librdmacm with wrong arguments and in the wrong order: errors as in its manual pages, no crash. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include "checklist.h"
#include "loopback.h"

static struct rdma_event_channel *channel;

static struct sockaddr_in address_of(const char *text, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, text, &address.sin_addr);
	return address;
}

/* Waits for an event, 15 seconds at most; returns its number, or -1. */
static int next_event(void)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int kind;

	if (poll(&ready, 1, 15000) != 1 || rdma_get_cm_event(channel, &event))
		return -1;
	kind = event->event;
	rdma_ack_cm_event(event);
	return kind;
}

static void creation(void)
{
	static const struct { enum rdma_port_space space; const char *name; } spaces[] = {
		{ RDMA_PS_UDP, "ID of UDP" }, { RDMA_PS_IPOIB, "ID of IPoIB" }, { RDMA_PS_IB, "ID of IB" },
		{ 0x1234, "ID of no port space" },
	};
	struct rdma_cm_id *id;

	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
		errno = 0;
		check(rdma_create_id(channel, &id, NULL, spaces[i].space) == -1 && errno != 0,
			spaces[i].name);
	}
	REFUSED(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL, EFAULT, "ID in no place");
	check(rdma_event_str(1234) != NULL, "name of an unknown event");
}

static void wrong_order(void)
{
	char *own = own_address();
	struct sockaddr_in mine = address_of(own, 0), foreign = address_of("203.0.113.9", 0);
	struct sockaddr_in nobody = address_of("198.18.0.99", 7000);
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id, *other;
	int kind;

	check(rdma_create_id(channel, &id, &id, RDMA_PS_TCP) == 0, "ID");
	check(id->context == &id && id->channel == channel && id->verbs == NULL, "a new ID");
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&foreign), EADDRNOTAVAIL, ENODEV,
		"bind to a foreign address");
	REFUSED(rdma_resolve_route(id, 100), EINVAL, EINVAL, "route before the address");
	REFUSED(rdma_connect(id, &param), EINVAL, EINVAL, "connect before the route");
	REFUSED(rdma_accept(id, &param), EINVAL, EINVAL, "accept without a request");
	REFUSED(rdma_reject(id, NULL, 0), EINVAL, EINVAL, "reject without a request");
	REFUSED(rdma_disconnect(id), EINVAL, ENOTCONN, "disconnect what is not connected");
	check(rdma_bind_addr(id, (struct sockaddr *)&mine) == 0, "bind to port 0");
	check(rdma_get_src_port(id) != 0, "a bound ID has a port");
	check(id->verbs != NULL, "a bound ID has a device");
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&mine), EINVAL, EINVAL, "bind twice");
	check(rdma_listen(id, 1) == 0, "listen");
	mine.sin_port = rdma_get_src_port(id);
	check(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0, "another ID");
	REFUSED(rdma_bind_addr(other, (struct sockaddr *)&mine), EADDRINUSE, EADDRINUSE,
		"bind to a port in use");
	check(rdma_resolve_addr(other, NULL, (struct sockaddr *)&nobody, 300) == 0, "resolve");
	kind = next_event();
	if (kind == RDMA_CM_EVENT_ADDR_RESOLVED && rdma_resolve_route(other, 300) == 0) {
		struct ibv_qp_init_attr reliable = {
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		}, datagram = reliable;
		check(next_event() == RDMA_CM_EVENT_ROUTE_RESOLVED, "route to nobody");
		datagram.qp_type = IBV_QPT_UD;
		errno = 0;
		check(rdma_create_qp(other, NULL, &datagram) == -1 && errno != 0, "UD queue pair of an ID");
		check(rdma_create_qp(other, NULL, &reliable) == 0, "queue pair of an ID");
		check(rdma_connect(other, &param) == 0, "connect to nobody");
		kind = next_event();
	}
	check(kind == RDMA_CM_EVENT_ADDR_ERROR || kind == RDMA_CM_EVENT_UNREACHABLE ||
		kind == RDMA_CM_EVENT_CONNECT_ERROR, "nobody is reported as unreachable");
	REFUSED(rdma_set_option(other, 77, 77, &kind, sizeof kind), ENOSYS, EINVAL, "unknown option");
	if (other->qp)
		rdma_destroy_qp(other);
	check(rdma_destroy_id(other) == 0, "destroy an ID");
	check(rdma_destroy_id(id) == 0, "destroy a listener");
	free(own);
}

static void addresses(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found;

	check(rdma_getaddrinfo("no.such.host.invalid", "1", &hints, &found) != 0, "a name of no host");
	check(rdma_getaddrinfo("198.18.0.1", "no-such-service", &hints, &found) != 0, "no service");
	check(rdma_getaddrinfo("198.18.0.1", "7", &hints, &found) == 0 &&
		found->ai_port_space == RDMA_PS_TCP && found->ai_qp_type == IBV_QPT_RC, "an address");
}

static void connections(void)
{
	struct loopback pair = { .depth = 4 };
	struct ibv_context **list;
	int count, first, second;

	check(loopback_connect(&pair, "7301") == 0, "connect to the own address");
	if (pair.client == NULL || pair.server == NULL)
		return;
	list = rdma_get_devices(&count);
	check(list && count == 1 && list[0] == pair.client->verbs, "the device of an ID is in the list");
	if (list)
		rdma_free_devices(list);
	check(pair.client->pd != NULL && pair.client->verbs == pair.server->verbs, "one device");
	check(rdma_get_dst_port(pair.client) == htons(7301), "port of the peer");
	first = rdma_disconnect(pair.client);
	second = rdma_disconnect(pair.client);
	check(first == 0 && second == 0, "disconnect twice");
	check(rdma_disconnect(pair.server) == 0, "disconnect what the peer has disconnected");
	/* In any order. */
	rdma_destroy_ep(pair.listener);
	rdma_destroy_ep(pair.client);
	rdma_destroy_ep(pair.server);
}

int main(void)
{
	struct rdma_cm_event *event;
	int flags;

	channel = rdma_create_event_channel();
	NEED(channel);
	creation();
	wrong_order();
	addresses();
	connections();
	flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN, EAGAIN, "no event, without waiting");
	rdma_destroy_event_channel(channel);
	return checklist_end();
}
