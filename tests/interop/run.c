/* A run: the parts common to bandwidth and latency. */
#include "session.h"

#include <string.h>

bool uses_receives(const struct session *session)
{
	enum test test = session_test(session);

	return is_send(test) || (test == WRITE_BW && session_has(session, FLAG_VERIFY));
}

uint64_t credit_batch(const struct run *run)
{
	return run->credits / 4 > 1 ? run->credits / 4 : 1;
}

bool sends_notification(const struct session *session)
{
	return session_test(session) == WRITE_BW && session_has(session, FLAG_VERIFY);
}

void run_build(struct session *session, unsigned connection, uint64_t number)
{
	pattern_fill(session_pattern(session, connection, true, number),
		     session->tx.bytes + slot_offset(session, connection, number),
		     session->run.size);
}

uint64_t run_errors(const struct session *session, unsigned connection, uint64_t number,
		    size_t length)
{
	const uint8_t *bytes = session->rx.bytes + slot_offset(session, connection, number);

	return pattern_errors(session_pattern(session, connection, false, number), bytes, length);
}

void run_post_receive(struct session *session, unsigned connection, uint64_t number)
{
	bool has_memory = is_send(session_test(session));
	size_t offset = has_memory ? slot_offset(session, connection, number) : 0;

	post_receive(&session->data[connection], wr_id_of(session, KIND_RECEIVE, connection),
		     &session->rx, offset, has_memory ? session->run.size : 0);
}

void run_post_message(struct session *session, unsigned connection, uint64_t number)
{
	struct connection *conn = &session->data[connection];
	uint64_t wr_id = wr_id_of(session, KIND_MESSAGE, connection);
	size_t offset = slot_offset(session, connection, number);
	size_t size = session->run.size;

	if (is_write(session_test(session)))
		post_write(conn, wr_id, &session->tx, offset, size, session->peer.rx.stag,
			   session->peer.rx.address + offset);
	else if (is_read(session_test(session)))
		post_read(conn, wr_id, &session->rx, offset, size, session->peer.tx.stag,
			  session->peer.tx.address + offset);
	else
		post_send(conn, wr_id, &session->tx, offset, size, false, 0);
	if (sends_notification(session))
		post_send(conn, wr_id_of(session, KIND_NOTIFICATION, connection), &session->tx, 0,
			  0, false, 0);
}

void run_prepare(struct session *session, const struct run *run)
{
	bool both = session_has(session, FLAG_BIDIRECTIONAL);

	session->run = *run;
	session->running = true;
	session->last_alive_sent = now_ns();
	memset(&session->active, 0, sizeof(session->active));
	memset(&session->passive, 0, sizeof(session->passive));
	memset(&session->ping_pong, 0, sizeof(session->ping_pong));
	session->active.exists = both || session->initiator;
	if (both || !session->initiator)
		passive_prepare(session);
	if (is_latency(session_test(session)))
		latency_prepare(session);
}

void run_start(struct session *session)
{
	if (session->active.exists)
		active_start(session);
	if (session->active.exists && is_latency(session_test(session)))
		latency_start(session);
}

void run_progress(struct session *session)
{
	if (is_latency(session_test(session)))
		latency_progress(session);
	else if (session->active.started)
		active_progress(session);
	if (session->active.started)
		for (unsigned i = 0; i < session->hello.qps; i++)
			active_post_rest(session, i);
	if (session->passive.exists)
		passive_progress(session);
}

void run_complete(struct session *session, enum kind kind, unsigned connection,
		  const struct ibv_wc *completion)
{
	if (is_latency(session_test(session)))
		latency_complete(session, kind, completion);
	else if (kind == KIND_RECEIVE)
		passive_take(session, connection, completion);
	else
		active_complete(session, kind, connection);
}

/* `Consumed` of a reading peer requests new messages; all other credits allow this end to send. */
static void take_credit(struct session *session, const struct message *message)
{
	unsigned connection = message->credit.connection;
	bool asks = is_read(session_test(session)) && message->type == CONSUMED;

	if (connection >= session->hello.qps)
		give_up("a credit for a connection that does not exist");
	if (asks && session->passive.exists)
		passive_refill(session, connection, message->credit.count);
	else if (!asks && session->active.exists)
		active_credit(session, connection, message->credit.count);
	else
		give_up("an unexpected credit");
}

void run_message(struct session *session, const struct message *message)
{
	switch (message->type) {
	case CONSUMED:
	case REFILLED:
		take_credit(session, message);
		return;
	case DONE:
		if (!session->passive.exists || session->passive.announced)
			break;
		session->passive.announced = true;
		session->passive.announced_count = message->tally.messages;
		return;
	case COUNTED:
		if (!session->active.exists)
			break;
		active_counted(session, &message->tally);
		return;
	default:
		break;
	}
	give_up("unexpected %s", message_name(message->type));
}

bool run_is_finished(const struct session *session)
{
	return (!session->active.exists || active_is_finished(session)) &&
	       (!session->passive.exists || passive_is_finished(session));
}

struct tally run_tally(const struct session *session)
{
	struct tally tally = { 0 };

	if (session->active.exists)
		tally = active_tally(session);
	tally.verified = session->active.verified + session->passive.tally.verified;
	tally.errors = session->active.errors + session->passive.tally.errors;
	return tally;
}
