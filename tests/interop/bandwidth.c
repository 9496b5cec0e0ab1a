/* Bandwidth: the sending (active) and the receiving (passive) half of a run. */
#include "session.h"

/* Length of the RDMA Read that confirms the Writes before it. */
#define CONFIRM_LEN 8

/* Passive half. */

void passive_prepare(struct session *session)
{
	struct passive *passive = &session->passive;
	const struct run *run = &session->run;
	bool serves_reads = is_read(session_test(session)) && session_has(session, FLAG_VERIFY);

	passive->exists = true;
	for (unsigned i = 0; i < session->hello.qps; i++) {
		for (uint64_t n = 0; uses_receives(session) && n < run->credits; n++)
			run_post_receive(session, i, n);
		if (uses_receives(session))
			passive->recv_flows[i].receives = run->credits;
		for (uint64_t n = 0; serves_reads && n < run->slots; n++)
			run_build(session, i, n);
	}
}

static void check_message(struct session *session, unsigned connection, uint64_t number)
{
	struct tally *tally = &session->passive.tally;

	tally->errors += run_errors(session, connection, number, session->run.size);
	tally->verified += session->run.size;
}

bool passive_arrived(struct session *session, unsigned connection, const struct ibv_wc *completion,
		     uint64_t *number)
{
	struct passive *passive = &session->passive;
	struct recv_flow *recv_flow = &passive->recv_flows[connection];

	recv_flow->receives--;
	if (passive->counted_sent) {
		if (completion->byte_len != 0)
			give_up("received a message after the last one");
		return false;
	}
	*number = recv_flow->taken++;
	passive->tally.messages++;
	passive->tally.bytes += is_send(session_test(session)) ? completion->byte_len
								: session->run.size;
	if (session_has(session, FLAG_VERIFY))
		check_message(session, connection, *number);
	return true;
}

void passive_take(struct session *session, unsigned connection, const struct ibv_wc *completion)
{
	uint64_t number;

	if (!passive_arrived(session, connection, completion, &number))
		return;
	run_post_receive(session, connection, number + session->run.credits);
	session->passive.recv_flows[connection].receives++;
	if ((number + 1) % credit_batch(&session->run) == 0)
		session_send_credit(session, CONSUMED, connection, number + 1);
}

void passive_refill(struct session *session, unsigned connection, uint64_t count)
{
	struct recv_flow *recv_flow = &session->passive.recv_flows[connection];

	if (count < recv_flow->taken || count - recv_flow->taken > session->run.slots)
		give_up("the peer claims to have read more than was offered");
	while (recv_flow->taken < count)
		run_build(session, connection, recv_flow->taken++ + session->run.slots);
	session_send_credit(session, REFILLED, connection, count);
}

void passive_progress(struct session *session)
{
	struct passive *passive = &session->passive;
	bool spins = session_test(session) == WRITE_LAT;
	bool counts = uses_receives(session) || spins;

	if (!passive->announced || passive->counted_sent)
		return;
	if (counts && passive->tally.messages < passive->announced_count)
		return;
	if (session->ping_pong.answer_pending)
		return;
	if (passive->tally.messages > passive->announced_count)
		give_up("received more messages than were sent");
	passive->counted_sent = true;
	session_send_tally(session, COUNTED, &passive->tally);
}

bool passive_is_finished(const struct session *session)
{
	const struct passive *passive = &session->passive;

	for (unsigned i = 0; i < session->hello.qps; i++)
		if (passive->recv_flows[i].receives > 0)
			return false;
	return passive->counted_sent;
}

/* Active half. */

void active_start(struct session *session)
{
	struct active *active = &session->active;
	const struct run *run = &session->run;

	active->started = true;
	active->began = now_ns();
	for (unsigned i = 0; i < session->hello.qps; i++) {
		active->flows[i].allowed = run->credits ? run->credits : UINT64_MAX;
		active->flows[i].limit = run->iterations ? run->iterations : UINT64_MAX;
	}
}

static uint64_t posted_by_all(const struct session *session)
{
	uint64_t posted = 0;

	for (unsigned i = 0; i < session->hello.qps; i++)
		posted += session->active.flows[i].posted;
	return posted;
}

static void post_messages(struct session *session, unsigned connection)
{
	struct flow *flow = &session->active.flows[connection];
	bool fills = session_has(session, FLAG_VERIFY) && !is_read(session_test(session));

	while (flow->posted < flow->limit && flow->posted < flow->allowed &&
	       flow->posted - flow->completed < session->hello.tx_depth) {
		if (fills)
			run_build(session, connection, flow->posted);
		run_post_message(session, connection, flow->posted++);
	}
}

void active_post_rest(struct session *session, unsigned connection)
{
	struct flow *flow = &session->active.flows[connection];
	struct connection *conn = &session->data[connection];

	if (session_test(session) == WRITE_BW && flow->posted == flow->limit &&
	    !flow->confirm_posted) {
		/* Its sink is a slot of messages that have arrived. */
		post_read(conn, wr_id_of(session, KIND_CONFIRM, connection), &session->tx,
			  connection * session->hello.span, CONFIRM_LEN, session->peer.rx.stag,
			  session->peer.rx.address);
		flow->confirm_posted = true;
	}
	for (; flow->drain > 0; flow->drain--)
		post_send(conn, wr_id_of(session, KIND_DRAIN, connection), &session->tx, 0, 0,
			  false, 0);
}

/* True if all is posted and, except for Sends, confirmed. */
static bool active_is_through(const struct session *session)
{
	for (unsigned i = 0; i < session->hello.qps; i++) {
		const struct flow *flow = &session->active.flows[i];

		if (flow->posted != flow->limit)
			return false;
		if (session_test(session) == WRITE_BW && !flow->confirmed)
			return false;
		if (session_test(session) == READ_BW && flow->completed != flow->posted)
			return false;
	}
	return true;
}

struct tally active_tally(const struct session *session)
{
	const struct active *active = &session->active;
	struct tally tally = {
		.messages = posted_by_all(session),
		.bytes = posted_by_all(session) * session->run.size,
		.duration_ns = (active->ended ? active->ended : now_ns()) - active->began,
	};

	return tally;
}

void active_progress(struct session *session)
{
	struct active *active = &session->active;
	const struct run *run = &session->run;
	bool is_over = run->iterations == 0 &&
		       now_ns() - active->began >= run->duration_ms * 1000000;

	for (unsigned i = 0; i < session->hello.qps; i++) {
		if (is_over && active->flows[i].limit == UINT64_MAX)
			active->flows[i].limit = active->flows[i].posted;
		post_messages(session, i);
		active_post_rest(session, i);
	}
	if (!active->done_sent && active_is_through(session)) {
		struct tally tally;

		active->done_sent = true;
		/* Sends are confirmed by the peer's Counted. */
		if (!is_send(session_test(session)))
			active->ended = now_ns();
		tally = run_tally(session);
		session_send_tally(session, DONE, &tally);
	}
}

/* Checks the data of an RDMA Read, and credits the source: the slot may be rewritten. */
static void check_read(struct session *session, unsigned connection, uint64_t number)
{
	struct active *active = &session->active;

	active->errors += run_errors(session, connection, number, session->run.size);
	active->verified += session->run.size;
	if ((number + 1) % credit_batch(&session->run) == 0)
		session_send_credit(session, CONSUMED, connection, number + 1);
}

void active_complete(struct session *session, enum kind kind, unsigned connection)
{
	struct flow *flow = &session->active.flows[connection];

	if (kind == KIND_CONFIRM)
		flow->confirmed = true;
	else if (kind == (sends_notification(session) ? KIND_NOTIFICATION : KIND_MESSAGE))
		flow->completed++;
	if (kind == KIND_MESSAGE && is_read(session_test(session)) &&
	    session_has(session, FLAG_VERIFY))
		check_read(session, connection, flow->completed - 1);
}

void active_credit(struct session *session, unsigned connection, uint64_t count)
{
	struct flow *flow = &session->active.flows[connection];

	if (count > flow->posted || session->run.credits == 0)
		give_up("a credit for messages that were not sent");
	if (flow->allowed < count + session->run.credits)
		flow->allowed = count + session->run.credits;
}

void active_counted(struct session *session, const struct tally *tally)
{
	struct active *active = &session->active;

	if (!active->done_sent || active->counted)
		give_up("unexpected Counted");
	active->counted = true;
	if (active->ended == 0)
		active->ended = now_ns();
	if (is_send(session_test(session)) &&
	    (tally->messages != posted_by_all(session) ||
	     tally->bytes != tally->messages * session->run.size))
		give_up("the peer counted %llu messages, %llu were sent",
			(unsigned long long)tally->messages,
			(unsigned long long)posted_by_all(session));
	for (unsigned i = 0; uses_receives(session) && i < session->hello.qps; i++)
		active->flows[i].drain = session->run.credits;
}

bool active_is_finished(const struct session *session)
{
	for (unsigned i = 0; i < session->hello.qps; i++)
		if (session->active.flows[i].drain > 0)
			return false;
	return session->active.counted;
}
