#include "perf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session.h"

/* Memory for slots of verified messages, per region. */
#define SLOT_MEMORY (64ull << 20)
#define STRIDE_UNIT 64

/* Prints the result of a run, from both ends' counts. */
static void print_result(const struct session *session, const struct tally *own,
			 const struct tally *other)
{
	uint64_t bytes = own->bytes + other->bytes;
	uint64_t ns = own->duration_ns > other->duration_ns ? own->duration_ns : other->duration_ns;
	const struct active *active = &session->active;

	printf("result: test=%s size=%" PRIu64 " qps=%u messages=%" PRIu64 " bytes=%" PRIu64
	       " verified=%" PRIu64 " errors=%" PRIu64 " mbit_s=%.1f",
	       test_name(session_test(session)), session->run.size, session->hello.qps,
	       own->messages + other->messages, bytes, own->verified + other->verified,
	       own->errors + other->errors, ns ? (double)bytes * 8000 / (double)ns : 0);
	if (is_latency(session_test(session)) && session->initiator && active->flows[0].completed)
		printf(" best_us=%.1f mean_us=%.1f", (double)session->ping_pong.best_ns / 1000,
		       (double)session->ping_pong.total_ns / 1000 /
			       (double)active->flows[0].completed);
	printf("\n");
	fflush(stdout);
	if (own->errors + other->errors > 0)
		give_up("received bytes differ from those sent");
}

/* The responder. */

static void refuse(struct request *request, const char *reason)
{
	endpoint_reject(request, (const uint8_t *)reason, strlen(reason));
}

static void check_purpose(const struct purpose *purpose)
{
	if (purpose->number < 1 || purpose->number > QPS_MAX)
		give_up("1 to %d data connections are served", QPS_MAX);
	if (purpose->tx_depth < 1 || purpose->tx_depth > DEPTH_MAX || purpose->rx_depth < 1 ||
	    purpose->rx_depth > DEPTH_MAX)
		give_up("depths of 1 to %d are served", DEPTH_MAX);
}

static void check_hello(const struct session *session, const struct hello *hello)
{
	const struct hello *expected = &session->hello;

	if (hello->token != expected->token || hello->qps != expected->qps ||
	    hello->tx_depth != expected->tx_depth || hello->rx_depth != expected->rx_depth)
		give_up("Hello differs from the private data of the connection");
	if (hello->test < WRITE_BW || hello->test > TEST_COUNT ||
	    hello->flags & ~(FLAG_VERIFY | FLAG_BIDIRECTIONAL | FLAG_CRC))
		give_up("this test, or a flag of it, is not served");
	if (is_latency((enum test)hello->test) &&
	    (hello->qps != 1 || hello->flags & FLAG_BIDIRECTIONAL))
		give_up("latency tests have one data connection and one direction");
	if (hello->span == 0 || hello->span % 8 || hello->span > REGIONS_LEN_MAX / 2 / hello->qps)
		give_up("regions of this size are not served");
}

static void check_run(const struct session *session, const struct run *run)
{
	const struct hello *hello = &session->hello;

	if (run->size == 0 || run->stride < run->size || run->stride % 8 || run->slots == 0 ||
	    run->stride > hello->span / run->slots)
		give_up("the slots do not fit the region");
	if (run->credits > hello->rx_depth || (run->iterations == 0 && run->duration_ms == 0))
		give_up("the run is unbounded, or has more credits than receives");
	if (hello->flags & FLAG_VERIFY && run->credits > run->slots)
		give_up("more credits than slots to verify in");
}

static struct parameters reply_parameters(const struct request *request)
{
	unsigned reads = request->ird > request->ord ? request->ird : request->ord;
	struct parameters parameters = { .ird = reads, .ord = reads };

	if (reads > READS_MAX)
		parameters.ird = parameters.ord = READS_MAX;
	return parameters;
}

/* Accepts or rejects the request of a data connection. */
static void accept_data(struct session *session, struct request *request)
{
	struct parameters parameters = reply_parameters(request);
	struct purpose purpose;
	const char *reason = "busy with another client";

	if (!purpose_parse(request->private_data, request->private_len, &purpose, &reason) ||
	    purpose.role != ROLE_DATA) {
		refuse(request, reason);
		return;
	}
	if (purpose.token != session->hello.token || purpose.number >= session->hello.qps ||
	    session->data[purpose.number].id) {
		refuse(request, "no such data connection was announced");
		return;
	}
	session->data[purpose.number].id = request->id;
	session_open_data(session, purpose.number);
	if (!connection_accept(&session->data[purpose.number], &parameters))
		give_up("data connection %u cannot be accepted", purpose.number);
}

static unsigned connections_up(const struct session *session)
{
	unsigned count = 0;

	for (unsigned i = 0; i < session->hello.qps; i++)
		count += session->data[i].state == CONNECTION_UP;
	return count;
}

/* Waits for a request of a control connection, and accepts it. */
static void accept_control(struct session *session)
{
	struct request request;
	struct purpose purpose;
	struct parameters parameters;
	const char *reason;

	for (;;) {
		while (!endpoint_request(session->endpoint, &request))
			endpoint_poll(session->endpoint, NULL, 0, 1000);
		if (!purpose_parse(request.private_data, request.private_len, &purpose, &reason))
			refuse(&request, reason);
		else if (purpose.role == ROLE_DATA)
			refuse(&request, "no such session: it may have failed");
		else
			break;
	}
	check_purpose(&purpose);
	session->hello.token = purpose.token;
	session->hello.qps = (uint16_t)purpose.number;
	session->hello.tx_depth = purpose.tx_depth;
	session->hello.rx_depth = purpose.rx_depth;
	endpoint_prepare(session->endpoint, request.id->verbs,
			 session_completions(&session->hello));
	session->control.id = request.id;
	session_open_control(session);
	parameters = reply_parameters(&request);
	if (!connection_accept(&session->control, &parameters))
		give_up("the control connection cannot be accepted");
}

static void exchange_hello(struct session *session)
{
	struct hello hello = session_await_type(session, HELLO).hello;
	struct message welcome = { .type = WELCOME };
	struct request request;

	check_hello(session, &hello);
	session->hello = hello;
	session->peer.tx = hello.tx;
	session->peer.rx = hello.rx;
	session_make_regions(session);
	welcome.welcome.tx = session_region(&session->tx);
	welcome.welcome.rx = session_region(&session->rx);
	session_send(session, &welcome);
	/* All data connections are established before the first Run. */
	while (connections_up(session) < session->hello.qps && session->last.type == 0) {
		session_poll(session, 100);
		while (endpoint_request(session->endpoint, &request))
			accept_data(session, &request);
	}
}

static void serve(struct endpoint *endpoint)
{
	struct session *session = allocate(sizeof(*session));
	struct message message;

	session->endpoint = endpoint;
	accept_control(session);
	exchange_hello(session);
	while ((message = session_await(session)).type == RUN) {
		struct tally none = { 0 };
		struct tally tally;

		check_run(session, &message.plan);
		run_prepare(session, &message.plan);
		session_send_plain(session, READY);
		session_await_type(session, GO);
		session_run(session);
		tally = run_tally(session);
		session_send_tally(session, REPORT, &tally);
		session->number++;
		session->running = false;
		print_result(session, &tally, &none);
	}
	if (message.type != BYE)
		give_up("unexpected %s between runs", message_name(message.type));
	session_send_plain(session, BYE);
	session->closing = true;
	session_close(session);
	free(session);
}

void perf_server(const struct server_options *options)
{
	struct endpoint endpoint;

	endpoint_open(&endpoint);
	endpoint_listen(&endpoint, options->port, options->ipv6);
	printf("waiting for clients on port %u\n", options->port);
	fflush(stdout);
	for (unsigned i = 0; i < options->sessions; i++)
		serve(&endpoint);
	endpoint_close(&endpoint);
}

/* The initiator. */

static struct run plan(const struct client_options *options)
{
	struct run run = {
		.size = options->size,
		.iterations = options->iterations,
		.duration_ms = options->iterations ? 0 : options->duration_ms,
		.stride = (options->size + STRIDE_UNIT - 1) / STRIDE_UNIT * STRIDE_UNIT,
		.slots = 1,
	};

	if (options->verify) {
		uint64_t room = SLOT_MEMORY / options->qps / run.stride;

		run.slots = room < options->tx_depth ? (uint32_t)room : options->tx_depth;
		if (run.slots == 0)
			run.slots = 1;
	}
	if (options->test == WRITE_LAT)
		run.credits = 0;
	else if (options->verify)
		run.credits = run.slots;
	else if (is_send(options->test))
		run.credits = options->tx_depth;
	return run;
}

static void connect_with(struct session *session, struct connection *connection,
		 const struct client_options *options, const struct purpose *purpose)
{
	uint8_t private_data[PURPOSE_LEN];
	struct parameters parameters = {
		.ird = options->reads,
		.ord = options->reads,
		.private_data = private_data,
		.private_len = PURPOSE_LEN,
	};

	purpose_emit(purpose, private_data);
	connection_connect(connection, &parameters);
	endpoint_wait_connected(session->endpoint, connection);
	if (connection->state == CONNECTION_REJECTED)
		give_up("rejected by the peer: %.*s", (int)connection->private_len,
			(const char *)connection->private_data);
	if (connection->state != CONNECTION_UP)
		give_up("cannot connect");
}

static void connect_control(struct session *session, const struct client_options *options)
{
	const struct hello *hello = &session->hello;
	struct purpose purpose = {
		.role = ROLE_CONTROL,
		.token = hello->token,
		.number = hello->qps,
		.tx_depth = hello->tx_depth,
		.rx_depth = hello->rx_depth,
	};

	connection_resolve(session->endpoint, &session->control, options->host, options->port);
	endpoint_prepare(session->endpoint, session->control.id->verbs,
			 session_completions(hello));
	session_open_control(session);
	connect_with(session, &session->control, options, &purpose);
}

static void connect_data(struct session *session, const struct client_options *options)
{
	struct purpose purpose = { .role = ROLE_DATA, .token = session->hello.token };

	for (unsigned i = 0; i < session->hello.qps; i++) {
		purpose.number = i;
		connection_resolve(session->endpoint, &session->data[i], options->host,
				   options->port);
		session_open_data(session, i);
		connect_with(session, &session->data[i], options, &purpose);
		session->last_rx_at = now_ns();
	}
}

static void send_hello(struct session *session)
{
	struct message message = { .type = HELLO };

	session_make_regions(session);
	session->hello.tx = session_region(&session->tx);
	session->hello.rx = session_region(&session->rx);
	message.hello = session->hello;
	session_send(session, &message);
	session->peer = session_await_type(session, WELCOME).welcome;
}

static void run_as_initiator(struct session *session, const struct run *run)
{
	struct message message = { .type = RUN, .plan = *run };
	struct tally own;
	struct tally report;

	run_prepare(session, run);
	session_send(session, &message);
	session_await_type(session, READY);
	session_send_plain(session, GO);
	session_run(session);
	own = run_tally(session);
	report = session_await_type(session, REPORT).tally;
	session->number++;
	session->running = false;
	print_result(session, &own, &report);
}

void perf_client(const struct client_options *options)
{
	struct session *session = allocate(sizeof(*session));
	struct endpoint endpoint;
	struct run run = plan(options);

	endpoint_open(&endpoint);
	session->endpoint = &endpoint;
	session->initiator = true;
	session->hello.test = (uint8_t)options->test;
	session->hello.flags = (uint8_t)(FLAG_CRC | (options->verify ? FLAG_VERIFY : 0) |
					 (options->bidirectional ? FLAG_BIDIRECTIONAL : 0));
	session->hello.qps = options->qps;
	session->hello.tx_depth = options->tx_depth;
	session->hello.rx_depth = options->tx_depth;
	session->hello.token = (uint32_t)(now_ns() ^ (uint64_t)getpid() << 20);
	session->hello.span = run.stride * run.slots;
	connect_control(session, options);
	send_hello(session);
	connect_data(session, options);
	run_as_initiator(session, &run);
	session_send_plain(session, BYE);
	session_await_type(session, BYE);
	session_close(session);
	free(session);
	endpoint_close(&endpoint);
}
