/* One end of a session of iwperf's control exchange, and its runs. The terms are those of
 * apps/CONTROL.md. */
#ifndef SESSION_H
#define SESSION_H

#include "control.h"
#include "endpoint.h"

/* Limits of this end. */
#define QPS_MAX 16
#define DEPTH_MAX 4096
#define REGIONS_LEN_MAX (400ull << 20)

/* Idle timeout of the peer. */
#define PEER_TIMEOUT_NS 10000000000ull

/* Maximum number of queued control messages; more means that the peer receives none. */
#define CONTROL_QUEUE_LEN 4096

/* Kind of a work request. */
enum kind {
	KIND_CONTROL_RECEIVE,
	KIND_CONTROL_SEND,
	/* A message of a run, and the empty Send that announces an RDMA Write. */
	KIND_MESSAGE,
	KIND_NOTIFICATION,
	KIND_RECEIVE,
	/* The RDMA Read that confirms the Writes before it. */
	KIND_CONFIRM,
	/* An empty Send that consumes a receive. */
	KIND_DRAIN,
};

/* Messages of one data connection that this end sends (active). */
struct flow {
	uint64_t posted;
	uint64_t completed;
	/* Messages allowed by credits, and messages of the run. */
	uint64_t allowed;
	uint64_t limit;
	bool confirm_posted;
	bool confirmed;
	/* Empty Sends still to be posted at the end of the run. */
	uint32_t drain;
};

/* Messages of one data connection that this end receives (passive). */
struct recv_flow {
	/* Messages received; of RDMA Reads: slots rewritten. */
	uint64_t taken;
	/* Receives posted and not consumed. */
	uint64_t receives;
};

struct active {
	bool exists;
	bool started;
	struct flow flows[QPS_MAX];
	uint64_t began;
	/* Time when the last byte was confirmed; 0 before. */
	uint64_t ended;
	bool done_sent;
	bool counted;
	uint64_t verified;
	uint64_t errors;
};

struct passive {
	bool exists;
	struct recv_flow recv_flows[QPS_MAX];
	/* The peer has sent Done, with the number of its messages. */
	bool announced;
	uint64_t announced_count;
	bool counted_sent;
	struct tally tally;
};

/* State of a ping-pong, begun by the initiator. Reads, receives and counts are in flow 0 of
 * `active` and `passive`. */
struct ping_pong {
	/* A ping was sent and its answer not received. */
	bool waiting;
	/* A ping was received and its answer not posted. */
	bool answer_pending;
	uint64_t sent_at;
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
	struct memory control_rx;
	struct memory control_tx;
	size_t control_tx_lengths[CONTROL_QUEUE_LEN];
	uint64_t control_queued;
	uint64_t control_posted;
	uint64_t control_completed;
	/* Last message that is not part of a run; type 0 once it was processed. */
	struct message last;
	/* The session is being closed: failures are expected. */
	bool closing;
	/* Time of the last message received, and of the last Alive sent. */
	uint64_t last_rx_at;
	uint64_t last_alive_sent;
	/* Number and parameters of the run. */
	uint32_t number;
	struct run run;
	bool running;
	struct active active;
	struct passive passive;
	struct ping_pong ping_pong;
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
/* Creates buffers and queue pair of the control connection, whose rdma_cm_id exists. */
void session_open_control(struct session *session);
/* Creates the queue pair of a data connection, whose rdma_cm_id exists. */
void session_open_data(struct session *session, unsigned index);
/* Registers the two regions, as the test uses them. */
void session_make_regions(struct session *session);
struct region session_region(const struct memory *memory);
void session_send(struct session *session, const struct message *message);
void session_send_plain(struct session *session, enum message_type type);
void session_send_tally(struct session *session, enum message_type type, const struct tally *tally);
void session_send_credit(struct session *session, enum message_type type, unsigned connection,
			uint64_t count);
/* Processes completions and events, waiting `wait_ms` at most. Gives up if the peer did. */
void session_poll(struct session *session, int wait_ms);
/* Polls until a message that is not part of a run arrives. */
struct message session_await(struct session *session);
/* As `session_await`; gives up if the message is of another type. */
struct message session_await_type(struct session *session, enum message_type type);
/* Polls until all messages have been sent. */
void session_flush(struct session *session);
/* Closes all connections and frees all memory. */
void session_close(struct session *session);
uint64_t wr_id_of(const struct session *session, enum kind kind, unsigned connection);
/* Offset in a region of message `number` of a data connection. */
size_t slot_offset(const struct session *session, unsigned connection, uint64_t number);
struct pattern session_pattern(const struct session *session, unsigned connection, bool built_here,
			       uint64_t number);

/* Runs this end's part of a run that both ends have prepared. */
void session_run(struct session *session);

/* run.c: the parts common to bandwidth and latency. */

void run_prepare(struct session *session, const struct run *run);
void run_start(struct session *session);
/* Posts due requests and control messages. */
void run_progress(struct session *session);
bool run_is_finished(const struct session *session);
struct tally run_tally(const struct session *session);
void run_message(struct session *session, const struct message *message);
void run_complete(struct session *session, enum kind kind, unsigned connection,
		  const struct ibv_wc *completion);
bool uses_receives(const struct session *session);
/* True if an empty Send follows each RDMA Write: its receipt means that the Write is placed. */
bool sends_notification(const struct session *session);
/* Messages per credit. */
uint64_t credit_batch(const struct run *run);
/* Writes message `number` to its slot of `tx`. */
void run_build(struct session *session, unsigned connection, uint64_t number);
/* Returns the number of wrong bytes of a message in its slot of `rx`. */
uint64_t run_errors(const struct session *session, unsigned connection, uint64_t number,
		    size_t length);
void run_post_receive(struct session *session, unsigned connection, uint64_t number);
void run_post_message(struct session *session, unsigned connection, uint64_t number);

/* bandwidth.c: the two halves of a run at one end. The messages of a latency test that consume
 * receives are counted there, too. */

void passive_prepare(struct session *session);
/* Stores the number of the message that consumed a receive; false if it was an empty Send. */
bool passive_arrived(struct session *session, unsigned connection, const struct ibv_wc *completion,
		     uint64_t *number);
void passive_take(struct session *session, unsigned connection, const struct ibv_wc *completion);
/* The peer has read the messages before `count`: writes new ones to their slots. */
void passive_refill(struct session *session, unsigned connection, uint64_t count);
void passive_progress(struct session *session);
bool passive_is_finished(const struct session *session);
void active_start(struct session *session);
void active_progress(struct session *session);
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
void latency_progress(struct session *session);
void latency_complete(struct session *session, enum kind kind, const struct ibv_wc *completion);
/* True while this end polls memory instead of waiting for a completion. */
bool latency_spins(const struct session *session);

#endif
