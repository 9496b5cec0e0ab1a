/* Latency: a ping-pong in which each end acts on what was placed, or one RDMA Read at a time. The
 * initiator begins and measures. */
#include "session.h"

/* The last octet of each slot; message `n` writes `mark_of(n)` there. */
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
		session->rx.octets[mark_offset(session, n)] = 0;
}

void latency_start(struct session *session)
{
	session->table.best_ns = UINT64_MAX;
}

static void build(struct session *session, uint64_t number)
{
	uint8_t *slot = session->tx.octets + slot_offset(session, 0, number);

	if (session_has(session, FLAG_VERIFY))
		pattern_fill(session_pattern(session, 0, true, number), slot, session->run.size);
	if (session_test(session) == WRITE_LAT)
		session->tx.octets[mark_offset(session, number)] = mark_of(session, number);
}

/* Checks a message that came by RDMA Write or Read; of a Write all but the mark. */
static void check(struct session *session, uint64_t number)
{
	bool written = session_test(session) == WRITE_LAT;

	if (!session_has(session, FLAG_VERIFY))
		return;
	session->active.verified += session->run.size;
	session->active.errors +=
		run_errors(session, 0, number, session->run.size - written);
}

static bool has_landed(const struct session *session, uint64_t number)
{
	const uint8_t *mark = session->rx.octets + mark_offset(session, number);

	return __atomic_load_n(mark, __ATOMIC_ACQUIRE) == mark_of(session, number);
}

bool latency_spins(const struct session *session)
{
	return session_test(session) == WRITE_LAT && session->running;
}

/* The initiator: messages sent are `posted` of its flow, answers taken `completed`. */

static void ping(struct session *session)
{
	struct flow *flow = &session->active.flows[0];
	const struct run *run = &session->run;
	bool is_over = run->iterations
			       ? flow->posted == run->iterations
			       : now_ns() - session->active.began >= run->duration_ms * 1000000;

	if (is_over) {
		struct tally tally;

		session->active.said_done = true;
		session->active.ended = now_ns();
		tally = run_tally(session);
		session_say_tally(session, DONE, &tally);
		return;
	}
	/* Only the source of RDMA Reads has slots to rewrite. */
	if (is_read(session_test(session)) && flow->posted >= flow->allowed)
		return;
	if (!is_read(session_test(session)))
		build(session, flow->posted);
	if (is_send(session_test(session)))
		run_post_receive(session, 0, flow->completed);
	session->table.waiting = true;
	session->table.asked_at = now_ns();
	run_post_message(session, 0, flow->posted++);
}

static void answered(struct session *session)
{
	struct table *table = &session->table;
	/* A Read is a round trip in itself and counts in full. */
	uint64_t elapsed = (now_ns() - table->asked_at) / (is_read(session_test(session)) ? 1 : 2);
	uint64_t number = session->active.flows[0].completed++;

	if (!table->waiting)
		give_up("an answer to nothing");
	table->waiting = false;
	table->total_ns += elapsed;
	if (elapsed < table->best_ns)
		table->best_ns = elapsed;
	check(session, number);
	if (is_read(session_test(session)) && session_has(session, FLAG_VERIFY) &&
	    (number + 1) % credit_batch(&session->run) == 0)
		session_say_credit(session, CONSUMED, 0, number + 1);
}

/* The responder: answers sent are `posted` of its flow. */

static void answer(struct session *session)
{
	struct flow *flow = &session->active.flows[0];

	/* The queue has room for `tx_depth` of them. */
	if (flow->posted - flow->completed >= session->hello.tx_depth) {
		session->table.owed = true;
		return;
	}
	session->table.owed = false;
	build(session, flow->posted);
	run_post_message(session, 0, flow->posted++);
}

static void pong(struct session *session, const struct ibv_wc *completion)
{
	uint64_t number;

	if (!passive_arrived(session, 0, completion, &number))
		return;
	if (completion->byte_len != session->run.size)
		give_up("a ping of %u octets", completion->byte_len);
	run_post_receive(session, 0, number + session->run.credits);
	session->passive.intakes[0].receives++;
	answer(session);
}

void latency_pump(struct session *session)
{
	struct active *active = &session->active;
	struct tally *tally = &session->passive.tally;

	if (session->initiator) {
		if (session->table.waiting && session_test(session) == WRITE_LAT &&
		    has_landed(session, active->flows[0].completed))
			answered(session);
		if (!session->table.waiting && active->started && !active->said_done)
			ping(session);
		return;
	}
	if (session->table.owed)
		answer(session);
	if (session_test(session) != WRITE_LAT || session->table.owed ||
	    !has_landed(session, tally->messages))
		return;
	check(session, tally->messages);
	tally->messages++;
	tally->octets += session->run.size;
	answer(session);
}

void latency_complete(struct session *session, enum kind kind, const struct ibv_wc *completion)
{
	bool reads = is_read(session_test(session));

	if (kind == KIND_RECEIVE && session->initiator) {
		if (completion->byte_len != session->run.size)
			give_up("an answer of %u octets", completion->byte_len);
		answered(session);
	} else if (kind == KIND_RECEIVE) {
		pong(session, completion);
	} else if (kind == KIND_MESSAGE && reads) {
		answered(session);
	} else if (kind == KIND_MESSAGE && !session->initiator) {
		session->active.flows[0].completed++;
	}
}
