/* Steps of an exchange: first the initiator is active, then the responder. For each size the active
 * end does one step of each kind:
 *
 *   passive end                       active end
 *   posts the receive of the step
 *   Ready, with an STag to invalidate
 *                                     the step: a Send; or a Write or Reads, and an empty Send
 *   checks every byte
 *   Checked, with the number of errors
 *
 * Both derive the steps from the options, so each receive is posted for the next message. */
#include "exchange_steps.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

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
	/* Small Reads, twice as many at a time as ORD allows. */
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

/* Returns step `index` of the active end; false if there is none. */
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

/* Pattern of a step: stream 0 is built by the initiator, stream 1 by the responder. */
static struct pattern pattern_by(const struct exchange *exchange, bool built_here,
				 const struct step *step)
{
	return pattern_of(exchange->initiator != built_here, step->number);
}

/* Completions. */

static void poll_completions(struct exchange *exchange, int wait_ms)
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
			exchange->step_bytes = completion->byte_len;
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
		poll_completions(exchange, wait_ms);
		if (*count >= to)
			break;
		/* After the count: the connection may end with the message awaited. */
		if (exchange->failure != IBV_WC_SUCCESS)
			give_up("a request of step %" PRIu64 ": %s", exchange->steps,
				ibv_wc_status_str(exchange->failure));
		if (exchange->connection.state == CONNECTION_DOWN)
			give_up("the connection has ended");
		if (wait_ms == 0)
			usleep(100);
		if (now_ns() > deadline)
			give_up("timeout in step %" PRIu64, exchange->steps);
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
	struct reader reader = { exchange->notes.bytes + slot * NOTE_LEN, NOTE_LEN, false };
	struct note note;

	exchange_await(exchange, &exchange->notes_arrived, exchange->notes_read + 1, 100);
	exchange->notes_read++;
	if (take(&reader, 4) != NOTE_MAGIC)
		give_up("received something else than a note");
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
	struct writer writer = { exchange->notes.bytes + (NOTES_AHEAD + 1) * NOTE_LEN };

	/* The buffer is free once the previous note was sent. */
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

/* True if a note receive is needed after all steps: for the responder's final note, or for the Send
 * that invalidates a wrong STag. */
static bool has_final_note(const struct exchange *exchange, bool by_initiator)
{
	const struct exchange_options *options = exchange->options;

	if (options->fault == FAULT_NONE)
		return !by_initiator;
	return options->fault == FAULT_INVALIDATE && options->fault_by_initiator == by_initiator;
}

/* Active end. */

static size_t step_length(const struct exchange *exchange, const struct step *step)
{
	size_t burst = 2 * exchange->connection.ord;

	if (step->kind != STEP_BURST)
		return step->size;
	return (burst < 2 * READS_MAX ? burst : 2 * READS_MAX) * BURST_PIECE;
}

/* Posts the last request of a step; Checked confirms it. Its completion is not awaited: siw
 * completes a sent request in error if the connection ends before. */
static void active_send(struct exchange *exchange, const struct step *step,
			const struct note *ready)
{
	exchange->sent++;
	post_send(&exchange->connection, KIND_SENT, &exchange->tx, step->source, step->size,
		  is_solicited(step->kind), ready->stag);
	if (is_invalidating(step->kind)) {
		exchange->stale_stag = ready->stag;
		exchange->stale_address = ready->address;
	}
}

/* Reads a step's bytes with concurrent RDMA Reads of `piece` bytes each, and checks them. */
static uint64_t active_read(struct exchange *exchange, const struct step *step, size_t piece)
{
	size_t length = step_length(exchange, step);
	uint64_t count = 0;

	for (size_t at = 0; at < length; at += piece, count++)
		post_read(&exchange->connection, KIND_DONE, &exchange->rx, step->sink + at, piece,
			  exchange->peer.tx_stag, exchange->peer.tx_address + step->source + at);
	exchange_await(exchange, &exchange->done, exchange->done + count, 100);
	return pattern_errors(pattern_by(exchange, false, step), exchange->rx.bytes + step->sink,
			      length);
}

static void active_step(struct exchange *exchange, const struct step *step,
			const struct note *ready)
{
	uint64_t errors = 0;

	pattern_fill(pattern_by(exchange, true, step), exchange->tx.bytes + step->source,
		     step->size);
	switch (step->kind) {
	case STEP_WRITE:
		post_write(&exchange->connection, KIND_DONE, &exchange->tx, step->source,
			   step->size, exchange->peer.rx_stag,
			   exchange->peer.rx_address + step->sink);
		exchange_await(exchange, &exchange->done, exchange->done + 1, 100);
		break;
	case STEP_READ:
		errors = active_read(exchange, step, step->size);
		break;
	case STEP_BURST:
		errors = active_read(exchange, step, BURST_PIECE);
		break;
	default:
		active_send(exchange, step, ready);
		return;
	}
	if (errors > 0)
		give_up("%" PRIu64 " bytes read are wrong", errors);
	exchange->sent++;
	post_send(&exchange->connection, KIND_SENT, &exchange->tx, 0, 0, false, 0);
}

void exchange_active(struct exchange *exchange)
{
	uint32_t count = step_count(exchange->options);
	struct step step;

	for (uint32_t i = 0; step_at(exchange->options, i, &step); i++) {
		struct note ready = take_note(exchange);
		struct note checked;

		if (ready.step != i)
			give_up("the peer is ready for step %u, not %u", ready.step, i);
		if (i + 1 == count && !exchange->initiator)
			expect_notes(exchange, has_final_note(exchange, true));
		active_step(exchange, &step, &ready);
		checked = take_note(exchange);
		if (checked.errors > 0)
			give_up("the peer found %" PRIu64 " errors in step %u",
				checked.errors, i);
		exchange->steps++;
		exchange->bytes += step_length(exchange, &step);
	}
}

/* Passive end. */

/* Waits for a step's message; the queue was armed for solicited completions only. A message without
 * Solicited Event must not raise an event. One with it should, but siw raises none (it checks the
 * flags of the local request, not of the message), so the events are only counted. */
static void await_step(struct exchange *exchange, const struct step *step)
{
	unsigned notified = exchange->endpoint.notifications;

	exchange_await(exchange, &exchange->steps_arrived, exchange->steps_arrived + 1, 0);
	poll_completions(exchange, 0);
	if (exchange->endpoint.notifications == notified)
		return;
	if (!is_solicited(step->kind))
		give_up("step %u raised an event", step->number);
	exchange->events++;
}

static void passive_step(struct exchange *exchange, const struct step *step, bool last)
{
	bool is_send = step->kind <= STEP_SEND_SE_INVALIDATE;
	bool is_checked_here = step->kind <= STEP_WRITE;
	struct note note = { .step = step->number };

	if (is_invalidating(step->kind)) {
		memory_release(&exchange->window);
		exchange->window = memory_register(&exchange->endpoint, WINDOW_LEN);
		note.stag = exchange->window.mr->rkey;
		note.address = (uintptr_t)exchange->window.bytes;
	}
	memset(exchange->rx.bytes, 0xA5, exchange->rx.length);
	if (!is_checked_here)
		pattern_fill(pattern_by(exchange, true, step), exchange->tx.bytes + step->source,
			     exchange->tx.length - OFFSET_MAX);
	post_receive(&exchange->connection, KIND_STEP, &exchange->rx, step->sink,
		     is_send ? step->size : 0);
	endpoint_arm_solicited(&exchange->endpoint);
	send_note(exchange, &note);
	await_step(exchange, step);
	if (exchange->step_bytes != (is_send ? step->size : 0))
		give_up("received a message of %u bytes in step %u", exchange->step_bytes,
			step->number);
	memset(&note, 0, sizeof(note));
	note.step = step->number;
	if (is_checked_here) {
		const uint8_t *sink = exchange->rx.bytes + step->sink;

		note.errors = pattern_errors(pattern_by(exchange, false, step), sink, step->size);
		/* The bytes next to the sink are unchanged. */
		note.errors += sink[-1] != 0xA5;
		note.errors += sink[step->size] != 0xA5;
	}
	if (last)
		expect_notes(exchange, exchange->initiator ? has_final_note(exchange, false)
							   : notes_of_steps(exchange->options));
	send_note(exchange, &note);
	if (note.errors > 0)
		give_up("%" PRIu64 " bytes of step %u are wrong", note.errors, step->number);
	exchange->steps++;
}

void exchange_passive(struct exchange *exchange)
{
	uint32_t count = step_count(exchange->options);
	struct step step;

	for (uint32_t i = 0; step_at(exchange->options, i, &step); i++)
		passive_step(exchange, &step, i + 1 == count);
}
