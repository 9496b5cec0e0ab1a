/*
 * Behavior of librdmacm that programs rely on, and its answers to bad input.
 *
 *   rdma_cm ADDRESS
 *
 * Both ends of each connection are in this process: ADDRESS is the IPv4 address of the device.
 * Prints each expectation that is not met; exit status: 0 if there is none.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { PORT = 7301, ENDPOINT_PORT = 7302, TIMEOUT_MS = 5000 };

static int failures;
static const char *address;
static struct rdma_event_channel *active, *passive;

static void check(int holds, const char *text, int line)
{
	if (!holds) {
		printf("line %d: not %s (errno %d)\n", line, text, errno);
		failures++;
	}
}

#define EXPECT(condition) check(!!(condition), #condition, __LINE__)
#define FAILS(call, error) (errno = 0, EXPECT((call) == -1 && errno == (error)))

static struct sockaddr_storage at(const char *ip, int port)
{
	struct sockaddr_storage storage = { 0 };
	struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;

	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	}
	return storage;
}

static int bind_to(struct rdma_cm_id *id, const char *ip, int port)
{
	struct sockaddr_storage to = at(ip, port);

	return rdma_bind_addr(id, (struct sockaddr *)&to);
}

static int resolve(struct rdma_cm_id *id, const char *ip, int port)
{
	struct sockaddr_storage to = at(ip, port);

	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, TIMEOUT_MS);
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = NULL;

	EXPECT(rdma_create_id(channel, &id, channel, RDMA_PS_TCP) == 0);
	return id;
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel,
					enum rdma_cm_event_type type, int line)
{
	static struct rdma_cm_id none;
	static struct rdma_cm_event missing = { .id = &none };
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event = &missing;

	if (poll(&fd, 1, TIMEOUT_MS) != 1 || rdma_get_cm_event(channel, &event) != 0)
		printf("line %d: no event\n", line);
	else if (event->event == type)
		return event;
	else
		printf("line %d: %s with status %d\n", line, rdma_event_str(event->event),
		       event->status);
	failures++;
	return event;
}

#define NEXT(channel, type) next_event(channel, RDMA_CM_EVENT_##type, __LINE__)
#define TAKE(channel, type) EXPECT(rdma_ack_cm_event(NEXT(channel, type)) == 0)

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

	EXPECT(rdma_create_qp(id, NULL, &attr) == 0);
}

static void destroy(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	EXPECT(rdma_destroy_id(id) == 0);
}

static struct rdma_cm_id *new_listener(void)
{
	struct rdma_cm_id *id = new_id(passive);

	EXPECT(bind_to(id, "0.0.0.0", PORT) == 0);
	EXPECT(rdma_listen(id, 3) == 0);
	return id;
}

/* An ID that is about to connect to the listener. */
static struct rdma_cm_id *new_active(const char *ip)
{
	struct rdma_cm_id *id = new_id(active);

	EXPECT(resolve(id, ip, PORT) == 0);
	TAKE(active, ADDR_RESOLVED);
	EXPECT(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	TAKE(active, ROUTE_RESOLVED);
	create_qp(id);
	return id;
}

static struct rdma_conn_param request = {
	.private_data = "request", .private_data_len = 7,
	.responder_resources = 2, .initiator_depth = 8,
};

/* Connects two IDs. */
static void establish(struct rdma_cm_id **client, struct rdma_cm_id **server, const char *ip)
{
	struct rdma_conn_param reply = {
		.private_data = "reply", .private_data_len = 5,
		.responder_resources = 4, .initiator_depth = 1,
	};
	struct rdma_cm_event *event;

	*client = new_active(ip);
	EXPECT(rdma_connect(*client, &request) == 0);
	event = NEXT(passive, CONNECT_REQUEST);
	*server = event->id;
	EXPECT(rdma_ack_cm_event(event) == 0);
	create_qp(*server);
	EXPECT(rdma_accept(*server, &reply) == 0);
	event = NEXT(active, ESTABLISHED);
	EXPECT(event->param.conn.private_data_len >= 5);
	EXPECT(memcmp(event->param.conn.private_data, "reply", 5) == 0);
	EXPECT(event->param.conn.initiator_depth == 4);
	EXPECT(rdma_ack_cm_event(event) == 0);
	TAKE(passive, ESTABLISHED);
}

static void bad_pointers(void)
{
	char junk[1024] = { 0 };
	void *wrong[] = { NULL, junk };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	FAILS(rdma_create_id(active, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_create_id((void *)junk, &id, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_get_cm_event(active, NULL), EINVAL);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, (void *)&junk), EINVAL);
	FAILS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	for (int i = 0; i < 2; i++) {
		id = wrong[i];
		FAILS(rdma_destroy_id(id), EINVAL);
		FAILS(rdma_bind_addr(id, NULL), EINVAL);
		FAILS(rdma_resolve_addr(id, NULL, NULL, 0), EINVAL);
		FAILS(rdma_resolve_route(id, 0), EINVAL);
		FAILS(rdma_create_qp(id, NULL, NULL), EINVAL);
		FAILS(rdma_connect(id, NULL), EINVAL);
		FAILS(rdma_listen(id, 1), EINVAL);
		FAILS(rdma_get_request(id, &id), EINVAL);
		FAILS(rdma_accept(id, NULL), EINVAL);
		FAILS(rdma_reject(id, NULL, 0), EINVAL);
		FAILS(rdma_disconnect(id), EINVAL);
		FAILS(rdma_migrate_id(id, active), EINVAL);
		FAILS(rdma_set_option(id, RDMA_OPTION_ID, 0, junk, 1), EINVAL);
		FAILS(rdma_get_cm_event(wrong[i], &event), EINVAL);
		FAILS(rdma_ack_cm_event(wrong[i]), EINVAL);
		EXPECT(rdma_get_src_port(id) == 0);
		rdma_destroy_qp(id);
		rdma_destroy_ep(id);
		rdma_destroy_event_channel(wrong[i]);
		rdma_freeaddrinfo(wrong[i]);
	}
}

static void other_states(void)
{
	struct rdma_cm_id *id;

	FAILS(rdma_create_id(active, &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
	id = new_id(active);
	EXPECT(id->channel == active && id->context == active && !id->verbs);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_resolve_route(id, 0), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_get_request(id, &id), EINVAL);
	FAILS(resolve(id, "203.0.113.9", 1), ENETUNREACH);
	EXPECT(rdma_destroy_id(id) == 0);
	FAILS(rdma_destroy_id(id), EINVAL);
}

static void local_addresses(void)
{
	struct rdma_cm_id *listener = new_listener(), *id = new_id(active);
	int count = 0;
	struct ibv_context **devices = rdma_get_devices(&count);

	FAILS(bind_to(id, "198.51.100.1", 0), ENODEV);
	FAILS(bind_to(id, "0.0.0.0", PORT), EADDRINUSE);
	FAILS(bind_to(id, address, PORT), EADDRINUSE);
	EXPECT(bind_to(id, "127.0.0.1", 0) == 0);
	EXPECT(!id->verbs && rdma_get_src_port(id) != 0);
	FAILS(bind_to(id, "0.0.0.0", 0), EINVAL);
	EXPECT(rdma_destroy_id(id) == 0);

	id = new_id(active);
	EXPECT(bind_to(id, address, 0) == 0);
	EXPECT(count == 1 && id->verbs == devices[0]);
	EXPECT(rdma_destroy_id(id) == 0);
	rdma_free_devices(devices);

	/* Each family has its own wildcard. */
	id = new_id(passive);
	EXPECT(bind_to(id, "::", PORT) == 0);
	EXPECT(rdma_listen(id, 3) == 0);
	EXPECT(rdma_destroy_id(id) == 0);
	EXPECT(rdma_destroy_id(listener) == 0);
}

static void options(void)
{
	struct rdma_cm_id *id = new_id(active);
	uint8_t tos = 0x10;
	int on = 1;

	EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) == 0);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof(on)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof(on)), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, 1, &on, sizeof(on)), EOPNOTSUPP);
	EXPECT(rdma_destroy_id(id) == 0);
}

static void rejected(void)
{
	struct rdma_cm_id *listener = new_listener(), *id = new_active(address);
	struct rdma_cm_event *event;

	EXPECT(rdma_connect(id, &request) == 0);
	FAILS(rdma_connect(id, &request), EINVAL);
	event = NEXT(passive, CONNECT_REQUEST);
	EXPECT(event->listen_id == listener && event->id->context == passive);
	EXPECT(event->param.conn.private_data_len == 7);
	EXPECT(memcmp(event->param.conn.private_data, "request", 7) == 0);
	EXPECT(event->param.conn.responder_resources == 8);
	EXPECT(event->param.conn.initiator_depth == 2);
	EXPECT(rdma_get_dst_port(event->id) == rdma_get_src_port(id));
	EXPECT(rdma_reject(event->id, "no", 2) == 0);
	FAILS(rdma_reject(event->id, "no", 2), EINVAL);
	EXPECT(rdma_destroy_id(event->id) == 0);
	EXPECT(rdma_ack_cm_event(event) == 0);
	FAILS(rdma_ack_cm_event(event), EINVAL);
	event = NEXT(active, REJECTED);
	EXPECT(event->status == -ECONNREFUSED);
	EXPECT(event->param.conn.private_data_len >= 2);
	EXPECT(memcmp(event->param.conn.private_data, "no", 2) == 0);
	EXPECT(rdma_ack_cm_event(event) == 0);
	destroy(id);

	/* Nobody gets the request before the listener is destroyed. */
	id = new_active(address);
	EXPECT(rdma_connect(id, NULL) == 0);
	EXPECT(poll(&(struct pollfd){ passive->fd, POLLIN, 0 }, 1, TIMEOUT_MS) == 1);
	EXPECT(rdma_destroy_id(listener) == 0);
	EXPECT(poll(&(struct pollfd){ passive->fd, POLLIN, 0 }, 1, 0) == 0);
	TAKE(active, REJECTED);
	destroy(id);

	/* Nobody listens. */
	id = new_active(address);
	EXPECT(rdma_connect(id, NULL) == 0);
	TAKE(active, REJECTED);
	destroy(id);
}

static void *acknowledge_later(void *event)
{
	usleep(100000);
	rdma_ack_cm_event(event);
	return NULL;
}

static void disconnected(void)
{
	struct rdma_cm_id *listener = new_listener(), *client, *server;
	struct rdma_cm_event *event;
	pthread_t thread;

	establish(&client, &server, "127.0.0.1");
	EXPECT(rdma_disconnect(client) == 0);
	EXPECT(rdma_disconnect(client) == 0);
	event = NEXT(active, DISCONNECTED);
	TAKE(passive, DISCONNECTED);
	EXPECT(rdma_disconnect(server) == 0);
	TAKE(passive, TIMEWAIT_EXIT);
	TAKE(active, TIMEWAIT_EXIT);
	destroy(server);
	/* Waits for the acknowledgment. */
	EXPECT(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
	destroy(client);
	FAILS(rdma_ack_cm_event(event), EINVAL);
	EXPECT(pthread_join(thread, NULL) == 0);

	/* The queue pair goes first: the event comes none the less. */
	establish(&client, &server, address);
	EXPECT(rdma_disconnect(client) == 0);
	rdma_destroy_qp(client);
	EXPECT(!client->qp && !client->send_cq);
	TAKE(active, DISCONNECTED);
	TAKE(passive, DISCONNECTED);
	EXPECT(rdma_destroy_id(client) == 0);
	destroy(server);

	/* Events of a destroyed ID are gone. */
	establish(&client, &server, address);
	EXPECT(rdma_disconnect(server) == 0);
	EXPECT(poll(&(struct pollfd){ active->fd, POLLIN, 0 }, 1, TIMEOUT_MS) == 1);
	destroy(client);
	EXPECT(poll(&(struct pollfd){ active->fd, POLLIN, 0 }, 1, 0) == 0);
	TAKE(passive, DISCONNECTED);
	destroy(server);
	EXPECT(rdma_destroy_id(listener) == 0);
}

static void channels(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(other);
	struct rdma_cm_event *event;

	EXPECT(resolve(id, address, PORT) == 0);
	EXPECT(rdma_migrate_id(id, active) == 0 && id->channel == active);
	TAKE(active, ADDR_RESOLVED);
	EXPECT(fcntl(other->fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rdma_get_cm_event(other, &event), EAGAIN);
	rdma_destroy_event_channel(other);
	FAILS(rdma_get_cm_event(other, &event), EINVAL);
	EXPECT(rdma_migrate_id(id, NULL) == 0 && id->channel != active);
	EXPECT(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	EXPECT(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	EXPECT(rdma_destroy_id(id) == 0);
}

static void *serve(void *listener)
{
	struct rdma_cm_id *id = NULL;
	struct ibv_mr *region;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	char text[8] = "";

	EXPECT(rdma_get_request(listener, &id) == 0);
	EXPECT(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	region = rdma_reg_msgs(id, text, sizeof(text));
	EXPECT(region && rdma_post_recv(id, NULL, text, sizeof(text), region) == 0);
	EXPECT(rdma_accept(id, NULL) == 0);
	EXPECT(rdma_get_recv_comp(id, &wc) == 1);
	EXPECT(wc.status == IBV_WC_SUCCESS && strcmp(text, "hello") == 0);
	EXPECT(rdma_disconnect(id) == 0);
	EXPECT(rdma_dereg_mr(region) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static struct rdma_cm_id *new_endpoint(const char *node, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1,
	};
	struct rdma_addrinfo *info, *copy;
	struct rdma_cm_id *id = NULL;
	char service[8];

	snprintf(service, sizeof(service), "%d", ENDPOINT_PORT);
	EXPECT(rdma_getaddrinfo(node, service, &hints, &info) == 0);
	hints.ai_src_addr = info->ai_src_addr;
	hints.ai_src_len = info->ai_src_len;
	hints.ai_dst_addr = info->ai_dst_addr;
	hints.ai_dst_len = info->ai_dst_len;
	EXPECT(rdma_getaddrinfo(NULL, NULL, &hints, &copy) == 0);
	rdma_freeaddrinfo(info);
	EXPECT(copy->ai_family == AF_INET && copy->ai_qp_type == IBV_QPT_RC);
	EXPECT(rdma_create_ep(&id, copy, NULL, &attr) == 0);
	rdma_freeaddrinfo(copy);
	return id;
}

static void endpoints(void)
{
	struct rdma_cm_id *listener = new_endpoint("0.0.0.0", RAI_PASSIVE);
	struct rdma_cm_id *id = new_endpoint(address, 0);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	struct rdma_addrinfo numeric = { .ai_flags = RAI_NUMERICHOST }, *info;
	char text[] = "hello";
	struct ibv_mr *region = rdma_reg_msgs(id, text, sizeof(text));
	pthread_t thread;

	EXPECT(rdma_listen(listener, 0) == 0);
	EXPECT(pthread_create(&thread, NULL, serve, listener) == 0);
	EXPECT(rdma_connect(id, NULL) == 0);
	EXPECT(rdma_post_send(id, NULL, text, sizeof(text), region, 0) == 0);
	EXPECT(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	EXPECT(rdma_disconnect(id) == 0);
	EXPECT(rdma_disconnect(id) == 0);
	EXPECT(rdma_dereg_mr(region) == 0);
	rdma_destroy_ep(id);
	EXPECT(pthread_join(thread, NULL) == 0);
	rdma_destroy_ep(listener);
	EXPECT(rdma_getaddrinfo("name", "1", &numeric, &info) == EAI_NONAME);
}

static void *wait_for_event(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void cancelled(void)
{
	pthread_t thread;
	void *result = NULL;

	EXPECT(pthread_create(&thread, NULL, wait_for_event, active) == 0);
	usleep(100000);
	EXPECT(pthread_cancel(thread) == 0);
	EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: rdma_cm ADDRESS\n");
		return 2;
	}
	address = argv[1];
	active = rdma_create_event_channel();
	passive = rdma_create_event_channel();
	if (!active || !passive) {
		perror("rdma_create_event_channel");
		return 1;
	}
	bad_pointers();
	other_states();
	local_addresses();
	options();
	rejected();
	disconnected();
	channels();
	endpoints();
	cancelled();
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
	printf("%d failures\n", failures);
	return failures != 0;
}
