/* Latency: a ping-pong of Sends or RDMA Writes, or one RDMA Read at a time. The initiator begins
 * and measures. */
#include "session.h"

/* Offset of the last byte of a slot, where message `n` writes `mark_of(n)`. */
static size_t mark_offset(const struct session *session, uint64_t number)
{
	return slot_offset(session, 0, number) + session->run.size - 1;
}

static uint8_t mark_of(const struct session *session, uint64_t number)
{
	return (uint8_t)(number / session->run.slots + 1);
}

void latency_prepare(struct session *session)
{
	if (session_test(session) != WRITE_LAT)
		return;
	for (uint64_t n = 0; n < session->run.slots; n++)
		session->rx.bytes[mark_offset(session, n)] = 0;
}

void latency_start(struct session *session)
{
	session->ping_pong.best_ns = UINT64_MAX;
}

static void build(struct session *session, uint64_t number)
{
	uint8_t *slot = session->tx.bytes + slot_offset(session, 0, number);

	if (session_has(session, FLAG_VERIFY))
		pattern_fill(session_pattern(session, 0, true, number), slot, session->run.size);
	if (session_test(session) == WRITE_LAT)
		session->tx.bytes[mark_offset(session, number)] = mark_of(session, number);
}

/* Checks a message received by RDMA Write or Read; of a Write all but the mark. */
static void check(struct session *session, uint64_t number)
{
	bool written = session_test(session) == WRITE_LAT;

	if (!session_has(session, FLAG_VERIFY))
		return;
	session->active.verified += session->run.size;
	session->active.errors +=
		run_errors(session, 0, number, session->run.size - written);
}

static bool is_placed(const struct session *session, uint64_t number)
{
	const uint8_t *mark = session->rx.bytes + mark_offset(session, number);

	return __atomic_load_n(mark, __ATOMIC_ACQUIRE) == mark_of(session, number);
}

bool latency_spins(const struct session *session)
{
	return session_test(session) == WRITE_LAT && session->running;
}

/* The initiator: `posted` of its flow counts messages sent, `completed` answers received. */

static void ping(struct session *session)
{
	struct flow *flow = &session->active.flows[0];
	const struct run *run = &session->run;
	bool is_over = run->iterations
			       ? flow->posted == run->iterations
			       : now_ns() - session->active.began >= run->duration_ms * 1000000;

	if (is_over) {
		struct tally tally;

		session->active.done_sent = true;
		session->active.ended = now_ns();
		tally = run_tally(session);
		session_send_tally(session, DONE, &tally);
		return;
	}
	/* Only the source of RDMA Reads rewrites slots. */
	if (is_read(session_test(session)) && flow->posted >= flow->allowed)
		return;
	if (!is_read(session_test(session)))
		build(session, flow->posted);
	if (is_send(session_test(session)))
		run_post_receive(session, 0, flow->completed);
	session->ping_pong.waiting = true;
	session->ping_pong.sent_at = now_ns();
	run_post_message(session, 0, flow->posted++);
}

static void on_answer(struct session *session)
{
	struct ping_pong *ping_pong = &session->ping_pong;
	/* A Read counts as a whole round trip, a ping-pong as half of one. */
	uint64_t divisor = is_read(session_test(session)) ? 1 : 2;
	uint64_t elapsed = (now_ns() - ping_pong->sent_at) / divisor;
	uint64_t number = session->active.flows[0].completed++;

	if (!ping_pong->waiting)
		give_up("an answer without a ping");
	ping_pong->waiting = false;
	ping_pong->total_ns += elapsed;
	if (elapsed < ping_pong->best_ns)
		ping_pong->best_ns = elapsed;
	check(session, number);
	if (is_read(session_test(session)) && session_has(session, FLAG_VERIFY) &&
	    (number + 1) % credit_batch(&session->run) == 0)
		session_send_credit(session, CONSUMED, 0, number + 1);
}

/* The responder: `posted` of its flow counts answers sent. */

static void post_answer(struct session *session)
{
	struct flow *flow = &session->active.flows[0];

	/* The send queue has capacity for `tx_depth` answers. */
	if (flow->posted - flow->completed >= session->hello.tx_depth) {
		session->ping_pong.answer_pending = true;
		return;
	}
	session->ping_pong.answer_pending = false;
	build(session, flow->posted);
	run_post_message(session, 0, flow->posted++);
}

static void pong(struct session *session, const struct ibv_wc *completion)
{
	uint64_t number;

	if (!passive_arrived(session, 0, completion, &number))
		return;
	if (completion->byte_len != session->run.size)
		give_up("a ping of %u bytes", completion->byte_len);
	run_post_receive(session, 0, number + session->run.credits);
	session->passive.recv_flows[0].receives++;
	post_answer(session);
}

void latency_progress(struct session *session)
{
	struct active *active = &session->active;
	struct tally *tally = &session->passive.tally;

	if (session->initiator) {
		if (session->ping_pong.waiting && session_test(session) == WRITE_LAT &&
		    is_placed(session, active->flows[0].completed))
			on_answer(session);
		if (!session->ping_pong.waiting && active->started && !active->done_sent)
			ping(session);
		return;
	}
	if (session->ping_pong.answer_pending)
		post_answer(session);
	if (session_test(session) != WRITE_LAT || session->ping_pong.answer_pending ||
	    !is_placed(session, tally->messages))
		return;
	check(session, tally->messages);
	tally->messages++;
	tally->bytes += session->run.size;
	post_answer(session);
}

void latency_complete(struct session *session, enum kind kind, const struct ibv_wc *completion)
{
	bool reads = is_read(session_test(session));

	if (kind == KIND_RECEIVE && session->initiator) {
		if (completion->byte_len != session->run.size)
			give_up("an answer of %u bytes", completion->byte_len);
		on_answer(session);
	} else if (kind == KIND_RECEIVE) {
		pong(session, completion);
	} else if (kind == KIND_MESSAGE && reads) {
		on_answer(session);
	} else if (kind == KIND_MESSAGE && !session->initiator) {
		session->active.flows[0].completed++;
	}
}
