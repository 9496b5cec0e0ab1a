#include "session.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define ALIVE_NS 1000000000ull
#define BATCH 64

/* Session whose peer is sent a Failure message when this end gives up. */
static struct session *failing_session;

unsigned control_depth(unsigned qps)
{
	return 32 + 24 * qps;
}

/* Requests of a data connection: an RDMA Write and an empty Send for each message, the empty Sends
 * at the end of a run, the confirming Read. */
static unsigned send_depth(const struct hello *hello)
{
	return 2 * hello->tx_depth + hello->rx_depth + 8;
}

unsigned session_completions(const struct hello *hello)
{
	unsigned each = send_depth(hello) + hello->rx_depth;

	return hello->qps * each + 2 * control_depth(hello->qps) + 16;
}

uint64_t wr_id_of(const struct session *session, enum kind kind, unsigned connection)
{
	return (uint64_t)kind << 48 | (uint64_t)connection << 32 | session->number;
}

size_t slot_offset(const struct session *session, unsigned connection, uint64_t number)
{
	const struct run *run = &session->run;

	return connection * session->hello.span + number % run->slots * run->stride;
}

struct pattern session_pattern(const struct session *session, unsigned connection, bool built_here,
			       uint64_t number)
{
	return pattern_of(2 * connection + (session->initiator != built_here), number);
}

static void post_control_receive(struct session *session, unsigned slot)
{
	post_receive(&session->control, wr_id_of(session, KIND_CONTROL_RECEIVE, slot),
		     &session->control_rx, (size_t)slot * CONTROL_RECEIVE_LEN, CONTROL_RECEIVE_LEN);
}

/* Sends the peer the reason as a Failure message, and waits up to a second for its completion. */
static void send_failure(const char *line)
{
	struct session *session = failing_session;
	struct message message = { .type = FAILURE };
	uint64_t deadline = now_ns() + ALIVE_NS;
	struct ibv_wc done[BATCH];

	if (!session || session->control.state != CONNECTION_UP)
		return;
	snprintf(message.text, sizeof(message.text), "%.64s", line);
	session_send(session, &message);
	while (session->control.state == CONNECTION_UP && now_ns() < deadline &&
	       session->control_completed < session->control_queued) {
		unsigned count = endpoint_poll(session->endpoint, done, BATCH, 50);

		for (unsigned i = 0; i < count; i++)
			if (done[i].wr_id >> 48 == KIND_CONTROL_SEND)
				session->control_completed++;
	}
	connection_disconnect(&session->control);
}

void session_open_control(struct session *session)
{
	unsigned depth = control_depth(session->hello.qps);

	session->control_rx =
		memory_register(session->endpoint, (size_t)depth * CONTROL_RECEIVE_LEN);
	session->control_tx = memory_register(session->endpoint,
					      (size_t)CONTROL_QUEUE_LEN * CONTROL_SEND_LEN);
	connection_create(session->endpoint, &session->control, depth, depth);
	for (unsigned slot = 0; slot < depth; slot++)
		post_control_receive(session, slot);
	session->last_rx_at = now_ns();
	failing_session = session;
	on_give_up = send_failure;
}

void session_open_data(struct session *session, unsigned index)
{
	connection_create(session->endpoint, &session->data[index], send_depth(&session->hello),
			  session->hello.rx_depth);
}

void session_make_regions(struct session *session)
{
	enum test test = session_test(session);
	size_t whole = session->hello.span * session->hello.qps;
	bool both = is_latency(test) || session_has(session, FLAG_BIDIRECTIONAL);
	/* A message is built at the active end, unless it is fetched. */
	bool builds = both || session->initiator != is_read(test);
	bool takes = both || !builds;

	session->tx = memory_register(session->endpoint, builds ? whole : 64);
	session->rx = memory_register(session->endpoint, takes ? whole : 64);
}

struct region session_region(const struct memory *memory)
{
	struct region region = { (uintptr_t)memory->bytes, memory->length, memory->mr->rkey };

	return region;
}

/* Posts queued messages while the send queue has free slots. */
static void post_control(struct session *session)
{
	unsigned depth = control_depth(session->hello.qps);

	while (session->control_posted < session->control_queued &&
	       session->control_posted - session->control_completed < depth) {
		size_t slot = session->control_posted++ % CONTROL_QUEUE_LEN;

		post_send(&session->control, wr_id_of(session, KIND_CONTROL_SEND, 0),
			  &session->control_tx, slot * CONTROL_SEND_LEN,
			  session->control_tx_lengths[slot], false, 0);
	}
}

void session_send(struct session *session, const struct message *message)
{
	struct message numbered = *message;
	size_t slot = session->control_queued % CONTROL_QUEUE_LEN;

	if (session->control_queued - session->control_completed == CONTROL_QUEUE_LEN)
		give_up("the peer receives no messages");
	numbered.run = session->number;
	session->control_tx_lengths[slot] =
		message_emit(&numbered, session->control_tx.bytes + slot * CONTROL_SEND_LEN);
	session->control_queued++;
	post_control(session);
}

void session_send_plain(struct session *session, enum message_type type)
{
	struct message message = { .type = type };

	session_send(session, &message);
}

void session_send_tally(struct session *session, enum message_type type, const struct tally *tally)
{
	struct message message = { .type = type, .tally = *tally };

	session_send(session, &message);
}

void session_send_credit(struct session *session, enum message_type type, unsigned connection,
			uint64_t count)
{
	struct message message = { .type = type, .credit = { connection, count } };

	session_send(session, &message);
}

static bool is_of_run(enum message_type type)
{
	return type == CONSUMED || type == REFILLED || type == DONE || type == COUNTED;
}

static void take_message(struct session *session, const uint8_t *bytes, size_t length)
{
	struct message message;

	if (!message_parse(bytes, length, &message))
		give_up("received something else than a control message");
	if (message.type == ALIVE)
		return;
	if (message.type == FAILURE) {
		/* The peer needs no report. */
		on_give_up = NULL;
		give_up("the peer failed: %s", message.text);
	}
	if (message.run != session->number)
		give_up("received a message of run %u in run %u", message.run, session->number);
	if (session->running && is_of_run(message.type))
		run_message(session, &message);
	else if (session->last.type == 0 && !is_of_run(message.type))
		session->last = message;
	else
		give_up("unexpected %s", message_name(message.type));
}

struct message session_await(struct session *session)
{
	struct message message;

	while (session->last.type == 0)
		session_poll(session, 100);
	message = session->last;
	session->last.type = 0;
	return message;
}

struct message session_await_type(struct session *session, enum message_type type)
{
	struct message message = session_await(session);

	if (message.type != type)
		give_up("received %s instead of %s", message_name(message.type),
			message_name(type));
	return message;
}

static void take_control(struct session *session, enum kind kind, const struct ibv_wc *completion)
{
	unsigned slot = completion->wr_id >> 32 & 0xFFFF;

	if (kind == KIND_CONTROL_SEND) {
		session->control_completed++;
		post_control(session);
		return;
	}
	take_message(session, session->control_rx.bytes + (size_t)slot * CONTROL_RECEIVE_LEN,
		     completion->byte_len);
	post_control_receive(session, slot);
}

static void take_completion(struct session *session, const struct ibv_wc *completion)
{
	enum kind kind = (enum kind)(completion->wr_id >> 48);
	unsigned connection = completion->wr_id >> 32 & 0xFFFF;

	if (completion->status != IBV_WC_SUCCESS) {
		if (session->closing)
			return;
		give_up("request of kind %d on connection %u: %s", kind, connection,
			ibv_wc_status_str(completion->status));
	}
	if (kind == KIND_CONTROL_SEND || kind == KIND_CONTROL_RECEIVE)
		take_control(session, kind, completion);
	else if (session->running && (uint32_t)completion->wr_id == session->number)
		run_complete(session, kind, connection, completion);
}

static void check_connections(struct session *session)
{
	if (session->closing)
		return;
	if (session->control.state == CONNECTION_DOWN)
		give_up("the control connection has ended");
	for (unsigned i = 0; i < session->hello.qps; i++)
		if (session->data[i].state == CONNECTION_DOWN)
			give_up("data connection %u has ended", i);
}

void session_poll(struct session *session, int wait_ms)
{
	struct ibv_wc done[BATCH];
	unsigned count = endpoint_poll(session->endpoint, done, BATCH, wait_ms);
	uint64_t now = now_ns();

	if (count > 0)
		session->last_rx_at = now;
	for (unsigned i = 0; i < count; i++)
		take_completion(session, &done[i]);
	if (count == 0)
		check_connections(session);
	if (now - session->last_rx_at > PEER_TIMEOUT_NS)
		give_up("nothing received from the peer for %llu s", PEER_TIMEOUT_NS / 1000000000);
	if (session->running && now - session->last_alive_sent > ALIVE_NS) {
		session->last_alive_sent = now;
		session_send_plain(session, ALIVE);
	}
}

void session_run(struct session *session)
{
	run_start(session);
	run_progress(session);
	while (!run_is_finished(session)) {
		session_poll(session, latency_spins(session) ? 0 : 20);
		run_progress(session);
		if (latency_spins(session))
			sched_yield();
	}
}

void session_flush(struct session *session)
{
	while (session->control_completed < session->control_queued)
		session_poll(session, 100);
}

static bool is_down(const struct session *session)
{
	for (unsigned i = 0; i < session->hello.qps; i++)
		if (session->data[i].state == CONNECTION_UP)
			return false;
	return session->control.state != CONNECTION_UP;
}

void session_close(struct session *session)
{
	uint64_t deadline = now_ns() + 5000000000ull;

	session->closing = true;
	on_give_up = NULL;
	/* The initiator disconnects. */
	for (unsigned i = 0; session->initiator && i < session->hello.qps; i++)
		connection_disconnect(&session->data[i]);
	if (session->initiator)
		connection_disconnect(&session->control);
	while (!is_down(session) && now_ns() < deadline)
		session_poll(session, 100);
	for (unsigned i = 0; i < session->hello.qps; i++) {
		connection_disconnect(&session->data[i]);
		connection_destroy(&session->data[i]);
	}
	connection_disconnect(&session->control);
	connection_destroy(&session->control);
	memory_release(&session->tx);
	memory_release(&session->rx);
	memory_release(&session->control_rx);
	memory_release(&session->control_tx);
}
