/* An exchange in progress, for its two files: exchange.c sets it up, exchange_steps.c carries it
 * through. */
#ifndef EXCHANGE_STEPS_H
#define EXCHANGE_STEPS_H

#include "endpoint.h"
#include "exchange.h"

#define NOTE_LEN 64
/* Notes that the other end may send before the first of them is read. */
#define NOTES_AHEAD 2
/* Messages start at odd places up to this. */
#define OFFSET_MAX 64

struct note {
	uint32_t step;
	/* Ready: what is to be invalidated. */
	uint32_t stag;
	uint64_t address;
	/* Checked. */
	uint64_t errors;
	/* The first note of each end: its regions. */
	uint64_t tx_address;
	uint64_t rx_address;
	uint64_t length;
	uint32_t tx_stag;
	uint32_t rx_stag;
};

/* What completions are for. */
enum kind { KIND_NOTE, KIND_STEP, KIND_SENT, KIND_DONE };

struct exchange {
	const struct exchange_options *options;
	struct endpoint endpoint;
	struct connection connection;
	bool initiator;
	struct memory tx;
	struct memory rx;
	/* Notes that come, in turn, and the one that is sent. */
	struct memory notes;
	uint64_t notes_due;
	uint64_t notes_posted;
	uint64_t notes_arrived;
	uint64_t notes_read;
	struct note peer;
	/* Counted as completions come. */
	uint64_t steps_arrived;
	uint32_t step_octets;
	uint64_t sent;
	uint64_t sends_done;
	/* How the last request ended that did not succeed; IBV_WC_SUCCESS is 0. */
	enum ibv_wc_status failure;
	uint64_t done;
	/* Of the last Send with Invalidate: what it invalidated, here and at the other end. */
	struct memory window;
	uint32_t stale_stag;
	uint64_t stale_address;
	uint64_t steps;
	uint64_t octets;
	/* Notifications of messages that asked for an event. */
	uint64_t events;
};

/* Posts receives for `count` notes that come; a few at a time. */
void expect_notes(struct exchange *exchange, uint64_t count);
/* Notes that come to the end that acts. */
uint64_t notes_of_steps(const struct exchange_options *options);
struct note take_note(struct exchange *exchange);
void send_note(struct exchange *exchange, const struct note *note);
/* Polls until a count has come up to another, waiting for completions `wait_ms` at a time. */
void exchange_await(struct exchange *exchange, const uint64_t *count, uint64_t to, int wait_ms);
/* This end's turn to act, and the other's. */
void exchange_act(struct exchange *exchange);
void exchange_watch(struct exchange *exchange);

#endif
