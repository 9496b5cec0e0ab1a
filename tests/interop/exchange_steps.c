/* The two ends take turns: first the initiator acts, then the responder. For each size the end that
 * acts does one step of each kind:
 *
 *   passive end                       acting end
 *   posts the receive of the step
 *   Ready, with an STag to invalidate
 *                                     the step: a Send; or a Write or Reads, and an empty Send
 *   checks every octet
 *   Checked, with what was wrong
 *
 * Both know the steps, so each receive is posted for the message that comes next. */
#include "exchange_steps.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "octets.h"

#define NOTE_MAGIC 0x4E4F5445u
#define WINDOW_LEN 64
#define BURST_PIECE 64
#define WAIT_NS 20000000000ull

enum step_kind {
	STEP_SEND,
	STEP_SEND_SE,
	STEP_SEND_INVALIDATE,
	STEP_SEND_SE_INVALIDATE,
	STEP_WRITE,
	STEP_READ,
	/* Twice as many small Reads at a time as may be outstanding. */
	STEP_BURST,
	STEP_KINDS,
};

struct step {
	enum step_kind kind;
	uint32_t number;
	size_t size;
	size_t source;
	size_t sink;
};

static bool is_invalidating(enum step_kind kind)
{
	return kind == STEP_SEND_INVALIDATE || kind == STEP_SEND_SE_INVALIDATE;
}

static bool is_solicited(enum step_kind kind)
{
	return kind == STEP_SEND_SE || kind == STEP_SEND_SE_INVALIDATE;
}

/* Step `index` of an end that acts; false if there is no such step. */
static bool step_at(const struct exchange_options *options, uint32_t index, struct step *step)
{
	unsigned kinds = options->no_reads ? STEP_READ : STEP_KINDS;

	step->number = index;
	step->kind = (enum step_kind)(index % kinds);
	if (index / kinds >= options->size_count)
		return false;
	step->size = options->sizes[index / kinds];
	step->source = 1 + index * 5 % (OFFSET_MAX - 1);
	step->sink = 1 + index * 7 % (OFFSET_MAX - 1);
	return true;
}

static uint32_t step_count(const struct exchange_options *options)
{
	return options->size_count * (options->no_reads ? STEP_READ : (unsigned)STEP_KINDS);
}

uint64_t notes_of_steps(const struct exchange_options *options)
{
	return 2 * step_count(options);
}

/* Octets of a step: built by the initiator for stream 0, by the responder for stream 1. */
static struct pattern pattern_by(const struct exchange *exchange, bool built_here,
				 const struct step *step)
{
	return pattern_of(exchange->initiator != built_here, step->number);
}

/* Completions. */

static void pump(struct exchange *exchange, int wait_ms)
{
	struct ibv_wc completions[16];
	unsigned count = endpoint_poll(&exchange->endpoint, completions, 16, wait_ms);

	for (unsigned i = 0; i < count; i++) {
		const struct ibv_wc *completion = &completions[i];

		if (completion->status != IBV_WC_SUCCESS) {
			exchange->failure = completion->status;
			continue;
		}
		switch ((enum kind)completion->wr_id) {
		case KIND_NOTE:
			exchange->notes_arrived++;
			break;
		case KIND_STEP:
			exchange->steps_arrived++;
			exchange->step_octets = completion->byte_len;
			break;
		case KIND_SENT:
			exchange->sends_done++;
			break;
		case KIND_DONE:
			exchange->done++;
			break;
		}
	}
}

void exchange_await(struct exchange *exchange, const uint64_t *count, uint64_t to, int wait_ms)
{
	uint64_t deadline = now_ns() + WAIT_NS;

	while (*count < to) {
		pump(exchange, wait_ms);
		if (*count >= to)
			break;
		/* What was waited for may have come with the end right behind it. */
		if (exchange->failure != IBV_WC_SUCCESS)
			give_up("a request of step %" PRIu64 ": %s", exchange->steps,
				ibv_wc_status_str(exchange->failure));
		if (exchange->connection.state == CONNECTION_DOWN)
			give_up("the connection has ended");
		if (wait_ms == 0)
			usleep(100);
		if (now_ns() > deadline)
			give_up("nothing came in step %" PRIu64, exchange->steps);
	}
}

void expect_notes(struct exchange *exchange, uint64_t count)
{
	exchange->notes_due += count;
	while (exchange->notes_posted < exchange->notes_due &&
	       exchange->notes_posted - exchange->notes_read < NOTES_AHEAD + 1) {
		size_t slot = exchange->notes_posted++ % (NOTES_AHEAD + 1);

		post_receive(&exchange->connection, KIND_NOTE, &exchange->notes, slot * NOTE_LEN,
			     NOTE_LEN);
	}
}

struct note take_note(struct exchange *exchange)
{
	size_t slot = exchange->notes_read % (NOTES_AHEAD + 1);
	struct reader reader = { exchange->notes.octets + slot * NOTE_LEN, NOTE_LEN, false };
	struct note note;

	exchange_await(exchange, &exchange->notes_arrived, exchange->notes_read + 1, 100);
	exchange->notes_read++;
	if (take(&reader, 4) != NOTE_MAGIC)
		give_up("something else came in place of a note");
	note.step = (uint32_t)take(&reader, 4);
	note.stag = (uint32_t)take(&reader, 4);
	note.address = take(&reader, 8);
	note.errors = take(&reader, 8);
	note.tx_address = take(&reader, 8);
	note.rx_address = take(&reader, 8);
	note.length = take(&reader, 8);
	note.tx_stag = (uint32_t)take(&reader, 4);
	note.rx_stag = (uint32_t)take(&reader, 4);
	expect_notes(exchange, 0);
	return note;
}

void send_note(struct exchange *exchange, const struct note *note)
{
	struct writer writer = { exchange->notes.octets + (NOTES_AHEAD + 1) * NOTE_LEN };

	/* Its buffer is free again when the last one was sent. */
	exchange_await(exchange, &exchange->sends_done, exchange->sent, 0);
	put(&writer, NOTE_MAGIC, 4);
	put(&writer, note->step, 4);
	put(&writer, note->stag, 4);
	put(&writer, note->address, 8);
	put(&writer, note->errors, 8);
	put(&writer, note->tx_address, 8);
	put(&writer, note->rx_address, 8);
	put(&writer, note->length, 8);
	put(&writer, note->tx_stag, 4);
	put(&writer, note->rx_stag, 4);
	exchange->sent++;
	post_send(&exchange->connection, KIND_SENT, &exchange->notes, (NOTES_AHEAD + 1) * NOTE_LEN,
		  NOTE_LEN, false, 0);
}

/* Messages for which there is a receive behind all steps: the responder's last note, which says
 * that all is over, or the Send whose fault is the STag. */
static unsigned note_behind(const struct exchange *exchange, bool by_initiator)
{
	const struct exchange_options *options = exchange->options;

	if (options->fault == FAULT_NONE)
		return !by_initiator;
	return options->fault == FAULT_INVALIDATE && options->fault_by_initiator == by_initiator;
}

/* The end that acts. */

static size_t step_length(const struct exchange *exchange, const struct step *step)
{
	size_t burst = 2 * exchange->connection.ord;

	if (step->kind != STEP_BURST)
		return step->size;
	return (burst < 2 * READS_MAX ? burst : 2 * READS_MAX) * BURST_PIECE;
}

/* The last request of a step; Checked says that it has arrived. Its own completion is not awaited:
 * siw says of what it has sent that it failed, when the connection ends at that moment. */
static void act_send(struct exchange *exchange, const struct step *step, const struct note *ready)
{
	exchange->sent++;
	post_send(&exchange->connection, KIND_SENT, &exchange->tx, step->source, step->size,
		  is_solicited(step->kind), ready->stag);
	if (is_invalidating(step->kind)) {
		exchange->stale_stag = ready->stag;
		exchange->stale_address = ready->address;
	}
}

/* Reads a step's octets in pieces of one length, all at a time, and checks them. */
static uint64_t act_read(struct exchange *exchange, const struct step *step, size_t piece)
{
	size_t length = step_length(exchange, step);
	uint64_t count = 0;

	for (size_t at = 0; at < length; at += piece, count++)
		post_read(&exchange->connection, KIND_DONE, &exchange->rx, step->sink + at, piece,
			  exchange->peer.tx_stag, exchange->peer.tx_address + step->source + at);
	exchange_await(exchange, &exchange->done, exchange->done + count, 100);
	return pattern_errors(pattern_by(exchange, false, step), exchange->rx.octets + step->sink,
			      length);
}

static void act_step(struct exchange *exchange, const struct step *step, const struct note *ready)
{
	uint64_t errors = 0;

	pattern_fill(pattern_by(exchange, true, step), exchange->tx.octets + step->source,
		     step->size);
	switch (step->kind) {
	case STEP_WRITE:
		post_write(&exchange->connection, KIND_DONE, &exchange->tx, step->source,
			   step->size, exchange->peer.rx_stag,
			   exchange->peer.rx_address + step->sink);
		exchange_await(exchange, &exchange->done, exchange->done + 1, 100);
		break;
	case STEP_READ:
		errors = act_read(exchange, step, step->size);
		break;
	case STEP_BURST:
		errors = act_read(exchange, step, BURST_PIECE);
		break;
	default:
		act_send(exchange, step, ready);
		return;
	}
	if (errors > 0)
		give_up("%" PRIu64 " octets of what was read are wrong", errors);
	exchange->sent++;
	post_send(&exchange->connection, KIND_SENT, &exchange->tx, 0, 0, false, 0);
}

void exchange_act(struct exchange *exchange)
{
	uint32_t count = step_count(exchange->options);
	struct step step;

	for (uint32_t i = 0; step_at(exchange->options, i, &step); i++) {
		struct note ready = take_note(exchange);
		struct note checked;

		if (ready.step != i)
			give_up("the other end is ready for step %u, not %u", ready.step, i);
		if (i + 1 == count && !exchange->initiator)
			expect_notes(exchange, note_behind(exchange, true));
		act_step(exchange, &step, &ready);
		checked = take_note(exchange);
		if (checked.errors > 0)
			give_up("the other end found %" PRIu64 " errors in step %u",
				checked.errors, i);
		exchange->steps++;
		exchange->octets += step_length(exchange, &step);
	}
}

/* The passive end. */

/* Waits for a step's message; the queue was armed for solicited events only. A message that asks
 * for none must not give one. One that does should; siw gives none for any message then (it looks
 * at the request's flags, not at the message's), so they are counted. */
static void await_step(struct exchange *exchange, const struct step *step)
{
	unsigned notified = exchange->endpoint.notifications;

	exchange_await(exchange, &exchange->steps_arrived, exchange->steps_arrived + 1, 0);
	pump(exchange, 0);
	if (exchange->endpoint.notifications == notified)
		return;
	if (!is_solicited(step->kind))
		give_up("step %u came with an event", step->number);
	exchange->events++;
}

static void watch_step(struct exchange *exchange, const struct step *step, bool last)
{
	bool is_send = step->kind <= STEP_SEND_SE_INVALIDATE;
	bool is_checked_here = step->kind <= STEP_WRITE;
	struct note note = { .step = step->number };

	if (is_invalidating(step->kind)) {
		memory_release(&exchange->window);
		exchange->window = memory_register(&exchange->endpoint, WINDOW_LEN);
		note.stag = exchange->window.mr->rkey;
		note.address = (uintptr_t)exchange->window.octets;
	}
	memset(exchange->rx.octets, 0xA5, exchange->rx.length);
	if (!is_checked_here)
		pattern_fill(pattern_by(exchange, true, step), exchange->tx.octets + step->source,
			     exchange->tx.length - OFFSET_MAX);
	post_receive(&exchange->connection, KIND_STEP, &exchange->rx, step->sink,
		     is_send ? step->size : 0);
	endpoint_arm_solicited(&exchange->endpoint);
	send_note(exchange, &note);
	await_step(exchange, step);
	if (exchange->step_octets != (is_send ? step->size : 0))
		give_up("a message of %u octets came in step %u", exchange->step_octets,
			step->number);
	memset(&note, 0, sizeof(note));
	note.step = step->number;
	if (is_checked_here) {
		const uint8_t *sink = exchange->rx.octets + step->sink;

		note.errors = pattern_errors(pattern_by(exchange, false, step), sink, step->size);
		/* Nothing beside it was touched. */
		note.errors += sink[-1] != 0xA5;
		note.errors += sink[step->size] != 0xA5;
	}
	if (last)
		expect_notes(exchange, exchange->initiator ? note_behind(exchange, false)
							   : notes_of_steps(exchange->options));
	send_note(exchange, &note);
	if (note.errors > 0)
		give_up("%" PRIu64 " octets of step %u are wrong", note.errors, step->number);
	exchange->steps++;
}

void exchange_watch(struct exchange *exchange)
{
	uint32_t count = step_count(exchange->options);
	struct step step;

	for (uint32_t i = 0; step_at(exchange->options, i, &step); i++)
		watch_step(exchange, &step, i + 1 == count);
}
