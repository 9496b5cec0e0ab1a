/* A run: what bandwidth and latency have in common. */
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

bool gives_notice(const struct session *session)
{
	return session_test(session) == WRITE_BW && session_has(session, FLAG_VERIFY);
}

void run_build(struct session *session, unsigned connection, uint64_t number)
{
	pattern_fill(session_pattern(session, connection, true, number),
		     session->tx.octets + slot_offset(session, connection, number),
		     session->run.size);
}

uint64_t run_errors(const struct session *session, unsigned connection, uint64_t number,
		    size_t length)
{
	const uint8_t *octets = session->rx.octets + slot_offset(session, connection, number);

	return pattern_errors(session_pattern(session, connection, false, number), octets, length);
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
	struct connection *via = &session->data[connection];
	uint64_t wr_id = wr_id_of(session, KIND_MESSAGE, connection);
	size_t offset = slot_offset(session, connection, number);
	size_t size = session->run.size;

	if (is_write(session_test(session)))
		post_write(via, wr_id, &session->tx, offset, size, session->peer.rx.stag,
			   session->peer.rx.address + offset);
	else if (is_read(session_test(session)))
		post_read(via, wr_id, &session->rx, offset, size, session->peer.tx.stag,
			  session->peer.tx.address + offset);
	else
		post_send(via, wr_id, &session->tx, offset, size, false, 0);
	if (gives_notice(session))
		post_send(via, wr_id_of(session, KIND_NOTICE, connection), &session->tx, 0, 0,
			  false, 0);
}

void run_prepare(struct session *session, const struct run *run)
{
	bool both = session_has(session, FLAG_BIDIRECTIONAL);

	session->run = *run;
	session->running = true;
	session->told = now_ns();
	memset(&session->active, 0, sizeof(session->active));
	memset(&session->passive, 0, sizeof(session->passive));
	memset(&session->table, 0, sizeof(session->table));
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

void run_pump(struct session *session)
{
	if (is_latency(session_test(session)))
		latency_pump(session);
	else if (session->active.started)
		active_pump(session);
	if (session->active.started)
		for (unsigned i = 0; i < session->hello.qps; i++)
			active_post_rest(session, i);
	if (session->passive.exists)
		passive_pump(session);
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

/* `Consumed` of an end that reads asks for new messages; all other credits let this end go on. */
static void take_credit(struct session *session, const struct message *message)
{
	unsigned connection = message->credit.connection;
	bool asks = is_read(session_test(session)) && message->type == CONSUMED;

	if (connection >= session->hello.qps)
		give_up("a credit for a connection that is not there");
	if (asks && session->passive.exists)
		passive_refill(session, connection, message->credit.count);
	else if (!asks && session->active.exists)
		active_credit(session, connection, message->credit.count);
	else
		give_up("a credit for nothing");
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
	give_up("%s came out of turn", message_name(message->type));
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
