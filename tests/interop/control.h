/* Messages of iwperf's control exchange, and their encoding: see apps/CONTROL.md. */
#ifndef CONTROL_H
#define CONTROL_H

#include "common.h"

#define CONTROL_MAGIC 0x46575046u
#define CONTROL_VERSION 1
/* Maximum length of a message received, and of one sent, in bytes. */
#define CONTROL_RECEIVE_LEN 256
#define CONTROL_SEND_LEN 96
/* Length of the private data that names a connection, in bytes. */
#define PURPOSE_LEN 24

enum test {
	WRITE_BW = 1,
	READ_BW,
	SEND_BW,
	WRITE_LAT,
	READ_LAT,
	SEND_LAT,
	TEST_COUNT = SEND_LAT,
};

enum flag {
	FLAG_VERIFY = 1,
	FLAG_BIDIRECTIONAL = 2,
	FLAG_CRC = 4,
};

/* Role of a connection. */
enum role {
	ROLE_CONTROL = 0,
	ROLE_DATA = 1,
};

struct purpose {
	enum role role;
	uint32_t token;
	/* Data connections of the session; or the index of this one. */
	uint32_t number;
	uint32_t tx_depth;
	uint32_t rx_depth;
};

void purpose_emit(const struct purpose *purpose, uint8_t out[PURPOSE_LEN]);
/* False, with the reason, if the bytes are no valid purpose. */
bool purpose_parse(const uint8_t *bytes, size_t length, struct purpose *purpose,
		   const char **reason);

struct region {
	uint64_t address;
	uint64_t length;
	uint32_t stag;
};

enum message_type {
	HELLO = 1,
	WELCOME,
	RUN,
	READY,
	GO,
	CONSUMED,
	DONE,
	COUNTED,
	REPORT,
	BYE,
	FAILURE,
	REFILLED,
	ALIVE,
};

struct hello {
	uint8_t test;
	uint8_t flags;
	uint16_t qps;
	uint32_t tx_depth;
	uint32_t rx_depth;
	uint32_t token;
	uint64_t span;
	struct region tx;
	struct region rx;
};

struct welcome {
	struct region tx;
	struct region rx;
};

struct run {
	uint64_t size;
	uint64_t iterations;
	uint64_t duration_ms;
	uint64_t stride;
	uint32_t slots;
	uint32_t credits;
};

struct credit {
	uint32_t connection;
	uint64_t count;
};

struct tally {
	uint64_t messages;
	uint64_t bytes;
	uint64_t verified;
	uint64_t errors;
	uint64_t duration_ns;
};

struct message {
	enum message_type type;
	uint32_t run;
	union {
		struct hello hello;
		struct welcome welcome;
		struct run plan;
		struct credit credit;
		struct tally tally;
		/* Zero-terminated. */
		char text[CONTROL_SEND_LEN];
	};
};

/* Writes a message; returns its length. */
size_t message_emit(const struct message *message, uint8_t out[CONTROL_SEND_LEN]);
/* False if the bytes are no message of this version. */
bool message_parse(const uint8_t *bytes, size_t length, struct message *message);
const char *message_name(enum message_type type);
/* 0 if no test has this name. */
enum test test_from_name(const char *name);
const char *test_name(enum test test);

#endif
