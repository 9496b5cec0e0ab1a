/* A session of iwperf's control exchange at one end, and its runs: see apps/CONTROL.md, whose terms
 * are used here. */
#ifndef SESSION_H
#define SESSION_H

#include "control.h"
#include "endpoint.h"

/* Limits of this end. */
#define QPS_MAX 16
#define DEPTH_MAX 4096
#define REGIONS_LEN_MAX (400ull << 20)

/* Without anything from the other end for this long it is given up. */
#define SILENCE_NS 10000000000ull

/* Control messages that wait to be sent; more means that the other end takes none. */
#define OUTBOX_MAX 4096

/* What a work request was for. */
enum kind {
	KIND_CONTROL_RECEIVE,
	KIND_CONTROL_SEND,
	/* A message of a run, and the empty Send that tells of an RDMA Write. */
	KIND_MESSAGE,
	KIND_NOTICE,
	KIND_RECEIVE,
	/* The RDMA Read that confirms the Writes before it. */
	KIND_CONFIRM,
	/* An empty Send that uses up a receive. */
	KIND_DRAIN,
};

/* Messages of one data connection that this end sends (active). */
struct flow {
	uint64_t posted;
	uint64_t completed;
	/* Messages that credits admit; and that the run has. */
	uint64_t allowed;
	uint64_t limit;
	bool confirm_posted;
	bool confirmed;
	/* Empty Sends still to be posted at the end of the run. */
	uint32_t drain;
};

/* Messages of one data connection that come to this end (passive). */
struct intake {
	/* Messages taken; of RDMA Reads: slots rewritten. */
	uint64_t taken;
	/* Receives posted and not used up. */
	uint64_t receives;
};

struct active {
	bool exists;
	bool started;
	struct flow flows[QPS_MAX];
	uint64_t began;
	/* When the last octet was confirmed; 0 until then. */
	uint64_t ended;
	bool said_done;
	bool counted;
	uint64_t verified;
	uint64_t errors;
};

struct passive {
	bool exists;
	struct intake intakes[QPS_MAX];
	/* The other end has said how many messages it sent. */
	bool announced;
	uint64_t announced_count;
	bool said_counted;
	struct tally tally;
};

/* A ping-pong: the initiator begins. Its Reads, receives and counts are those of `active` and
 * `passive`, flow and intake 0. */
struct table {
	/* A ping was sent and its answer has not come. */
	bool waiting;
	/* An answer is due. */
	bool owed;
	uint64_t asked_at;
	uint64_t best_ns;
	uint64_t total_ns;
};

struct session {
	struct endpoint *endpoint;
	bool initiator;
	struct hello hello;
	struct connection control;
	struct connection data[QPS_MAX];
	struct memory tx;
	struct memory rx;
	struct welcome peer;
	/* Control messages: a buffer for each receive, and those to be sent in order. */
	struct memory inbox;
	struct memory outbox;
	size_t outbox_lengths[OUTBOX_MAX];
	uint64_t outbox_queued;
	uint64_t outbox_posted;
	uint64_t outbox_completed;
	/* The last message that none of a run's parts takes; type 0 when it was taken. */
	struct message last;
	/* The session is being closed: what fails now is expected. */
	bool closing;
	/* When the other end was last heard, and told that we are there. */
	uint64_t heard;
	uint64_t told;
	/* Number and terms of the run. */
	uint32_t number;
	struct run run;
	bool running;
	struct active active;
	struct passive passive;
	struct table table;
};

static inline enum test session_test(const struct session *session)
{
	return (enum test)session->hello.test;
}

static inline bool is_latency(enum test test)
{
	return test >= WRITE_LAT;
}

static inline bool is_write(enum test test)
{
	return test == WRITE_BW || test == WRITE_LAT;
}

static inline bool is_read(enum test test)
{
	return test == READ_BW || test == READ_LAT;
}

static inline bool is_send(enum test test)
{
	return test == SEND_BW || test == SEND_LAT;
}

static inline bool session_has(const struct session *session, enum flag flag)
{
	return session->hello.flags & flag;
}

/* session.c: connections, regions and control messages. */

/* Receives that each end posts for control messages. */
unsigned control_depth(unsigned qps);
unsigned session_completions(const struct hello *hello);
/* Makes buffers and queue pair of the control connection, whose id is known. */
void session_open_control(struct session *session);
/* Makes the queue pair of a data connection, whose id is known. */
void session_open_data(struct session *session, unsigned index);
/* Makes the two regions, as the test uses them. */
void session_make_regions(struct session *session);
struct region session_region(const struct memory *memory);
void session_say(struct session *session, const struct message *message);
void session_say_plain(struct session *session, enum message_type type);
void session_say_tally(struct session *session, enum message_type type, const struct tally *tally);
void session_say_credit(struct session *session, enum message_type type, unsigned connection,
			uint64_t count);
/* Handles what is there, waiting for it `wait_ms` at most, and gives up if the other end did. */
void session_turn(struct session *session, int wait_ms);
/* Turns until a message has come that leads from one step of the session to the next. */
struct message session_await(struct session *session);
/* Gives up if it is of another type. */
struct message session_await_type(struct session *session, enum message_type type);
/* Turns until all messages have been sent. */
void session_flush(struct session *session);
/* Ends all connections and frees everything. */
void session_close(struct session *session);
uint64_t wr_id_of(const struct session *session, enum kind kind, unsigned connection);
/* Where message `number` of a data connection lies in a region. */
size_t slot_offset(const struct session *session, unsigned connection, uint64_t number);
struct pattern session_pattern(const struct session *session, unsigned connection, bool built_here,
			       uint64_t number);

/* Carries a run that both ends have prepared to the end of this end's part. */
void session_run(struct session *session);

/* run.c: what bandwidth and latency have in common. */

void run_prepare(struct session *session, const struct run *run);
void run_start(struct session *session);
/* Posts and says what is due. */
void run_pump(struct session *session);
bool run_is_finished(const struct session *session);
struct tally run_tally(const struct session *session);
void run_message(struct session *session, const struct message *message);
void run_complete(struct session *session, enum kind kind, unsigned connection,
		  const struct ibv_wc *completion);
bool uses_receives(const struct session *session);
/* An empty Send follows each RDMA Write: it says that the Write is in place. */
bool gives_notice(const struct session *session);
/* Messages per credit. */
uint64_t credit_batch(const struct run *run);
/* Writes the message that lies in a slot of `tx` next. */
void run_build(struct session *session, unsigned connection, uint64_t number);
/* How many octets of a message that lies in its slot of `rx` are wrong. */
uint64_t run_errors(const struct session *session, unsigned connection, uint64_t number,
		    size_t length);
void run_post_receive(struct session *session, unsigned connection, uint64_t number);
void run_post_message(struct session *session, unsigned connection, uint64_t number);

/* bandwidth.c: the two halves of a run at one end. The messages of a latency test that use up
 * receives are counted there, too. */

void passive_prepare(struct session *session);
/* The number of the message that used up a receive; false if it does nothing else. */
bool passive_arrived(struct session *session, unsigned connection, const struct ibv_wc *completion,
		     uint64_t *number);
void passive_take(struct session *session, unsigned connection, const struct ibv_wc *completion);
/* The other end has read the messages before `count`: their slots get new ones. */
void passive_refill(struct session *session, unsigned connection, uint64_t count);
void passive_pump(struct session *session);
bool passive_is_finished(const struct session *session);
void active_start(struct session *session);
void active_pump(struct session *session);
/* Posts the empty Sends at the end of a run, and the Read that confirms Writes. */
void active_post_rest(struct session *session, unsigned connection);
void active_complete(struct session *session, enum kind kind, unsigned connection);
void active_credit(struct session *session, unsigned connection, uint64_t count);
void active_counted(struct session *session, const struct tally *tally);
bool active_is_finished(const struct session *session);
struct tally active_tally(const struct session *session);

/* latency.c: ping-pong. */

void latency_prepare(struct session *session);
void latency_start(struct session *session);
void latency_pump(struct session *session);
void latency_complete(struct session *session, enum kind kind, const struct ibv_wc *completion);
/* True while this end should look at memory rather than wait for a completion. */
bool latency_spins(const struct session *session);

#endif
