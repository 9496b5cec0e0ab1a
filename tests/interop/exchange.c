#include "exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_steps.h"
#include "common.h"

/* Timeout of the connection's end. */
#define WAIT_NS 20000000000ull
#define REGION_LEN_MIN (64u << 10)
/* Outstanding requests: a burst of RDMA Reads, and others. */
#define DEPTH (2 * READS_MAX + 16)

bool fault_from_name(const char *name, enum fault *fault)
{
	static const char *const names[] = {
		[FAULT_NONE] = "none",     [FAULT_WRITE] = "write",
		[FAULT_READ] = "read",     [FAULT_INVALIDATE] = "invalidate",
		[FAULT_SEND] = "send",     [FAULT_BOUNDS] = "bounds",
		[FAULT_STALE] = "stale",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], name) == 0) {
			*fault = (enum fault)i;
			return true;
		}
	}
	return false;
}

/* Private data: request 1, reply 2, reject 3. */
static uint8_t private_byte(unsigned seed, size_t i)
{
	return (uint8_t)(seed + 7 * i);
}

static void check_private(const struct exchange_options *options, const uint8_t *bytes,
			  size_t length, unsigned seed)
{
	if (length != options->private_expected)
		give_up("%zu bytes of private data received, not %zu", length,
			options->private_expected);
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != private_byte(seed, i))
			give_up("byte %zu of the private data is wrong", i);
}

static size_t region_length(const struct exchange_options *options)
{
	size_t longest = REGION_LEN_MIN;

	for (unsigned i = 0; i < options->size_count; i++)
		if (options->sizes[i] > longest)
			longest = options->sizes[i];
	return longest + OFFSET_MAX;
}

/* Fault and end of the connection. */

static void commit_fault(struct exchange *exchange)
{
	struct connection *connection = &exchange->connection;
	const struct note *peer = &exchange->peer;
	/* Another index than those of the STags in use. */
	uint32_t wrong = peer->rx_stag ^ 0x00FFFF00u;

	switch (exchange->options->fault) {
	case FAULT_WRITE:
		post_write(connection, KIND_DONE, &exchange->tx, 0, 64, wrong, peer->rx_address);
		break;
	case FAULT_READ:
		post_read(connection, KIND_DONE, &exchange->rx, 0, 64, wrong, peer->tx_address);
		break;
	case FAULT_INVALIDATE:
		post_send(connection, KIND_DONE, &exchange->tx, 0, 64, false, wrong);
		break;
	case FAULT_SEND:
		post_send(connection, KIND_DONE, &exchange->tx, 0, 64, false, 0);
		break;
	case FAULT_BOUNDS:
		post_write(connection, KIND_DONE, &exchange->tx, 0, 64, peer->rx_stag,
			   peer->rx_address + peer->length - 32);
		break;
	case FAULT_STALE:
		post_write(connection, KIND_DONE, &exchange->tx, 0, 32, exchange->stale_stag,
			   exchange->stale_address);
		break;
	case FAULT_NONE:
		break;
	}
}

/* Waits until the connection is down, and prints the statuses of requests that fail. */
static void await_end(struct exchange *exchange)
{
	uint64_t deadline = now_ns() + WAIT_NS;
	struct ibv_wc completion;

	while (exchange->connection.state != CONNECTION_DOWN) {
		if (now_ns() > deadline)
			give_up("the connection does not end");
		while (endpoint_poll(&exchange->endpoint, &completion, 1, 20) > 0)
			if (completion.status != IBV_WC_SUCCESS)
				printf("status=%s\n", ibv_wc_status_str(completion.status));
	}
}

static void finish(struct exchange *exchange)
{
	const struct exchange_options *options = exchange->options;
	struct note over = { 0 };

	if (options->fault == FAULT_NONE && exchange->initiator) {
		take_note(exchange);
		connection_disconnect(&exchange->connection);
	} else if (options->fault == FAULT_NONE) {
		/* Its status does not matter: siw completes a sent request in error if the peer
		 * closes before the completion. */
		send_note(exchange, &over);
	} else if (options->fault_by_initiator == exchange->initiator) {
		commit_fault(exchange);
	}
	await_end(exchange);
}

/* Exchanges the regions, runs the steps of both ends, and ends the connection. */
static void run_exchange(struct exchange *exchange)
{
	struct note offer = {
		.tx_address = (uintptr_t)exchange->tx.bytes,
		.rx_address = (uintptr_t)exchange->rx.bytes,
		.length = exchange->rx.length,
		.tx_stag = exchange->tx.mr->rkey,
		.rx_stag = exchange->rx.mr->rkey,
	};

	if (exchange->initiator) {
		send_note(exchange, &offer);
		exchange->peer = take_note(exchange);
		exchange_active(exchange);
		exchange_passive(exchange);
	} else {
		exchange->peer = take_note(exchange);
		send_note(exchange, &offer);
		exchange_passive(exchange);
		exchange_active(exchange);
	}
	finish(exchange);
	printf("result: steps=%" PRIu64 " bytes=%" PRIu64 " events=%" PRIu64 "\n", exchange->steps,
	       exchange->bytes, exchange->events);
}

/* Connecting. */

static void prepare(struct exchange *exchange)
{
	size_t length = region_length(exchange->options);

	endpoint_prepare(&exchange->endpoint, exchange->connection.id->verbs, 3 * DEPTH);
	exchange->tx = memory_register(&exchange->endpoint, length);
	exchange->rx = memory_register(&exchange->endpoint, length);
	exchange->notes = memory_register(&exchange->endpoint, (NOTES_AHEAD + 2) * NOTE_LEN);
	connection_create(&exchange->endpoint, &exchange->connection, DEPTH, DEPTH);
	/* The first note, and those for the end that is active first. */
	expect_notes(exchange, 1);
	if (exchange->initiator)
		expect_notes(exchange, notes_of_steps(exchange->options));
}

static void release(struct exchange *exchange)
{
	connection_destroy(&exchange->connection);
	memory_release(&exchange->tx);
	memory_release(&exchange->rx);
	memory_release(&exchange->notes);
	memory_release(&exchange->window);
	endpoint_close(&exchange->endpoint);
}

static void print_agreed(const struct exchange *exchange)
{
	printf("established: ird=%u ord=%u private=%zu\n", exchange->connection.ird,
	       exchange->connection.ord, exchange->connection.private_len);
	fflush(stdout);
}

static bool connect_to(struct exchange *exchange, const struct parameters *parameters)
{
	const struct exchange_options *options = exchange->options;
	struct connection *connection = &exchange->connection;

	connection_resolve(&exchange->endpoint, connection, options->host, options->port);
	prepare(exchange);
	connection_connect(connection, parameters);
	endpoint_wait_connected(&exchange->endpoint, connection);
	if (connection->state == CONNECTION_REJECTED && options->reject) {
		check_private(options, connection->private_data, connection->private_len, 3);
		printf("rejected: private=%zu\n", connection->private_len);
		return false;
	}
	if (connection->state != CONNECTION_UP || options->reject)
		give_up("the connection %s", connection->state == CONNECTION_UP
							  ? "was not rejected"
							  : "was rejected, or failed");
	check_private(options, connection->private_data, connection->private_len, 2);
	return true;
}

static bool wait_for(struct exchange *exchange, const struct parameters *parameters)
{
	const struct exchange_options *options = exchange->options;
	struct connection *connection = &exchange->connection;
	struct request request;

	endpoint_listen(&exchange->endpoint, options->port, options->ipv6);
	printf("listening on port %u\n", options->port);
	fflush(stdout);
	while (!endpoint_request(&exchange->endpoint, &request))
		endpoint_poll(&exchange->endpoint, NULL, 0, 1000);
	printf("asked: ird=%u ord=%u private=%zu\n", request.ird, request.ord,
	       request.private_len);
	check_private(options, request.private_data, request.private_len, 1);
	if (options->reject) {
		endpoint_reject(&request, parameters->private_data, parameters->private_len);
		printf("rejected\n");
		return false;
	}
	connection->id = request.id;
	prepare(exchange);
	if (!connection_accept(connection, parameters))
		give_up("the connection cannot be accepted");
	endpoint_wait_connected(&exchange->endpoint, connection);
	if (connection->state != CONNECTION_UP)
		give_up("the connection failed");
	/* The responder's event has no negotiated values: the minimum of both ends. */
	connection->ird = request.ird < options->ird ? request.ird : options->ird;
	connection->ord = request.ord < options->ord ? request.ord : options->ord;
	return true;
}

void exchange(const struct exchange_options *options)
{
	struct exchange *state = allocate(sizeof(*state));
	uint8_t private_data[PRIVATE_LEN_MAX];
	struct parameters parameters = {
		.ird = options->ird,
		.ord = options->ord,
		.private_data = private_data,
		.private_len = options->private_len,
	};
	unsigned seed = options->host ? 1 : options->reject ? 3 : 2;
	bool connected;

	for (size_t i = 0; i < options->private_len; i++)
		private_data[i] = private_byte(seed, i);
	state->options = options;
	state->initiator = options->host != NULL;
	endpoint_open(&state->endpoint);
	connected = state->initiator ? connect_to(state, &parameters)
				     : wait_for(state, &parameters);
	if (connected) {
		print_agreed(state);
		run_exchange(state);
	}
	release(state);
	free(state);
}
