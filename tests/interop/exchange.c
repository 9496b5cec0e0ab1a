#include "exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_steps.h"
#include "octets.h"

/* How long the end of a connection may take. */
#define WAIT_NS 20000000000ull
#define REGION_LEN_MIN (64u << 10)
/* Requests outstanding: a burst of RDMA Reads, and some. */
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
static uint8_t private_octet(unsigned seed, size_t i)
{
	return (uint8_t)(seed + 7 * i);
}

static void check_private(const struct exchange_options *options, const uint8_t *octets,
			  size_t length, unsigned seed)
{
	if (length != options->private_expected)
		give_up("%zu octets of private data came, not %zu", length,
			options->private_expected);
	for (size_t i = 0; i < length; i++)
		if (octets[i] != private_octet(seed, i))
			give_up("octet %zu of the private data is wrong", i);
}

static size_t region_length(const struct exchange_options *options)
{
	size_t longest = REGION_LEN_MIN;

	for (unsigned i = 0; i < options->size_count; i++)
		if (options->sizes[i] > longest)
			longest = options->sizes[i];
	return longest + OFFSET_MAX;
}

/* The fault, and the end. */

static void commit_fault(struct exchange *exchange)
{
	struct connection *via = &exchange->connection;
	const struct note *peer = &exchange->peer;
	/* Another slot than any of the STags that are in use. */
	uint32_t wrong = peer->rx_stag ^ 0x00FFFF00u;

	switch (exchange->options->fault) {
	case FAULT_WRITE:
		post_write(via, KIND_DONE, &exchange->tx, 0, 64, wrong, peer->rx_address);
		break;
	case FAULT_READ:
		post_read(via, KIND_DONE, &exchange->rx, 0, 64, wrong, peer->tx_address);
		break;
	case FAULT_INVALIDATE:
		post_send(via, KIND_DONE, &exchange->tx, 0, 64, false, wrong);
		break;
	case FAULT_SEND:
		post_send(via, KIND_DONE, &exchange->tx, 0, 64, false, 0);
		break;
	case FAULT_BOUNDS:
		post_write(via, KIND_DONE, &exchange->tx, 0, 64, peer->rx_stag,
			   peer->rx_address + peer->length - 32);
		break;
	case FAULT_STALE:
		post_write(via, KIND_DONE, &exchange->tx, 0, 32, exchange->stale_stag,
			   exchange->stale_address);
		break;
	case FAULT_NONE:
		break;
	}
}

/* Waits until the connection is down, and prints how requests ended meanwhile. */
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
		/* How it ends does not matter: siw says of what it has sent that it failed, when
		 * the other end closes at that moment. */
		send_note(exchange, &over);
	} else if (options->fault_by_initiator == exchange->initiator) {
		commit_fault(exchange);
	}
	await_end(exchange);
}

/* From the first note on. */
static void converse(struct exchange *exchange)
{
	struct note offer = {
		.tx_address = (uintptr_t)exchange->tx.octets,
		.rx_address = (uintptr_t)exchange->rx.octets,
		.length = exchange->rx.length,
		.tx_stag = exchange->tx.mr->rkey,
		.rx_stag = exchange->rx.mr->rkey,
	};

	if (exchange->initiator) {
		send_note(exchange, &offer);
		exchange->peer = take_note(exchange);
		exchange_act(exchange);
		exchange_watch(exchange);
	} else {
		exchange->peer = take_note(exchange);
		send_note(exchange, &offer);
		exchange_watch(exchange);
		exchange_act(exchange);
	}
	finish(exchange);
	printf("result: steps=%" PRIu64 " octets=%" PRIu64 " events=%" PRIu64 "\n", exchange->steps,
	       exchange->octets, exchange->events);
}

/* Set-up. */

static void prepare(struct exchange *exchange)
{
	size_t length = region_length(exchange->options);

	endpoint_prepare(&exchange->endpoint, exchange->connection.id->verbs, 3 * DEPTH);
	exchange->tx = memory_register(&exchange->endpoint, length);
	exchange->rx = memory_register(&exchange->endpoint, length);
	exchange->notes = memory_register(&exchange->endpoint, (NOTES_AHEAD + 2) * NOTE_LEN);
	connection_create(&exchange->endpoint, &exchange->connection, DEPTH, DEPTH);
	/* The first note, and those of the end that acts first. */
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
	connection_call(connection, parameters);
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
	/* Its event does not say what was agreed: no more than both asked for. */
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
		private_data[i] = private_octet(seed, i);
	state->options = options;
	state->initiator = options->host != NULL;
	endpoint_open(&state->endpoint);
	connected = state->initiator ? connect_to(state, &parameters)
				     : wait_for(state, &parameters);
	if (connected) {
		print_agreed(state);
		converse(state);
	}
	release(state);
	free(state);
}
