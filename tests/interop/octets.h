/* Octets: big-endian fields, the pattern of verified messages, time, and how the program ends when
 * something is wrong. */
#ifndef OCTETS_H
#define OCTETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints one line and ends the program with status 1. Whatever goes wrong in a test makes it
 * fail, so nothing here recovers; `before_giving_up`, if set, is called once with the line first,
 * so that the other end can be told. */
_Noreturn void give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void (*before_giving_up)(const char *line);

/* Nanoseconds of a clock that only goes forward. */
uint64_t now_ns(void);

/* `calloc` that gives up; page-aligned, as memory to register should be. */
void *allocate(size_t length);

/* Takes fields off the front of a message; running past its end makes `failed` true and yields
 * zeros. */
struct reader {
	const uint8_t *next;
	size_t left;
	bool failed;
};

/* A number of `octets` octets, at most 8. */
uint64_t take(struct reader *reader, unsigned octets);

/* Appends fields; there has to be room. */
struct writer {
	uint8_t *next;
};

void put(struct writer *writer, uint64_t value, unsigned octets);

/* The octets of message `number` of `stream`: see apps/src/pattern.rs. */
struct pattern {
	uint64_t base;
};

struct pattern pattern_of(uint32_t stream, uint64_t number);
void pattern_fill(struct pattern pattern, uint8_t *out, size_t length);

/* How many of these octets are not those of the pattern. */
uint64_t pattern_errors(struct pattern pattern, const uint8_t *octets, size_t length);

#endif
