/* State of an exchange, shared by exchange.c (connection, end) and exchange_steps.c (steps). */
#ifndef EXCHANGE_STEPS_H
#define EXCHANGE_STEPS_H

#include "endpoint.h"
#include "exchange.h"

#define NOTE_LEN 64
/* Notes that the peer may send before the first of them is read. */
#define NOTES_AHEAD 2
/* Messages start at unaligned offsets below this. */
#define OFFSET_MAX 64

struct note {
	uint32_t step;
	/* Ready: the STag to invalidate, and the address of its memory. */
	uint32_t stag;
	uint64_t address;
	/* Checked: number of wrong bytes. */
	uint64_t errors;
	/* The first note of each end: its regions. */
	uint64_t tx_address;
	uint64_t rx_address;
	uint64_t length;
	uint32_t tx_stag;
	uint32_t rx_stag;
};

/* Kind of a work request, its wr_id. */
enum kind { KIND_NOTE, KIND_STEP, KIND_SENT, KIND_DONE };

struct exchange {
	const struct exchange_options *options;
	struct endpoint endpoint;
	struct connection connection;
	bool initiator;
	struct memory tx;
	struct memory rx;
	/* A ring of received notes, and the note to send. */
	struct memory notes;
	uint64_t notes_due;
	uint64_t notes_posted;
	uint64_t notes_arrived;
	uint64_t notes_read;
	struct note peer;
	/* Completions so far. */
	uint64_t steps_arrived;
	uint32_t step_bytes;
	uint64_t sent;
	uint64_t sends_done;
	/* Status of the last request that failed; IBV_WC_SUCCESS is 0. */
	enum ibv_wc_status failure;
	uint64_t done;
	/* Of the last Send with Invalidate: the local memory, or the peer's STag, that it
	 * invalidated. */
	struct memory window;
	uint32_t stale_stag;
	uint64_t stale_address;
	uint64_t steps;
	uint64_t bytes;
	/* Completion events of messages with Solicited Event. */
	uint64_t events;
};

/* Expects `count` more notes: posts receives for them, at most NOTES_AHEAD + 1 at a time. */
void expect_notes(struct exchange *exchange, uint64_t count);
/* Number of notes that the active end receives. */
uint64_t notes_of_steps(const struct exchange_options *options);
struct note take_note(struct exchange *exchange);
void send_note(struct exchange *exchange, const struct note *note);
/* Polls until `*count` reaches `to`, waiting for completions `wait_ms` at a time. */
void exchange_await(struct exchange *exchange, const uint64_t *count, uint64_t to, int wait_ms);
/* All steps as the active end, and as the passive end. */
void exchange_active(struct exchange *exchange);
void exchange_passive(struct exchange *exchange);

#endif
