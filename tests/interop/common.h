/* Common parts: big-endian fields, the pattern of verified messages, the clock, and the exit on an
 * error. */
#ifndef COMMON_H
#define COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints one line and exits with status 1. Every error fails the test, so none is recovered from.
 * `on_give_up`, if set, is called once with the line before the exit, to report it to the peer. */
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void (*on_give_up)(const char *line);

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/* Zeroed, page-aligned memory, suitable for registration; gives up if there is none. */
void *allocate(size_t length);

/* Reads the fields of a message. A read beyond its end sets `failed` and returns 0. */
struct reader {
	const uint8_t *next;
	size_t left;
	bool failed;
};

/* Reads an unsigned number of `length` bytes, at most 8. */
uint64_t take(struct reader *reader, unsigned length);

/* Appends fields; the caller provides the capacity. */
struct writer {
	uint8_t *next;
};

void put(struct writer *writer, uint64_t value, unsigned length);

/* Pattern of message `number` of `stream`: see apps/src/pattern.rs. */
struct pattern {
	uint64_t base;
};

struct pattern pattern_of(uint32_t stream, uint64_t number);
void pattern_fill(struct pattern pattern, uint8_t *out, size_t length);

/* Returns the number of bytes that differ from the pattern. */
uint64_t pattern_errors(struct pattern pattern, const uint8_t *bytes, size_t length);

#endif
