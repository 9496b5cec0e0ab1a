#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORD 8

void (*on_give_up)(const char *line);

_Noreturn void give_up(const char *format, ...)
{
	char line[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	fprintf(stderr, "error: %s\n", line);
	fflush(NULL);
	if (on_give_up) {
		void (*report)(const char *) = on_give_up;

		on_give_up = NULL;
		report(line);
	}
	exit(EXIT_FAILURE);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void *allocate(size_t length)
{
	void *memory;

	if (length == 0)
		length = 1;
	if (posix_memalign(&memory, 4096, length) != 0)
		give_up("cannot allocate %zu bytes", length);
	memset(memory, 0, length);
	return memory;
}

uint64_t take(struct reader *reader, unsigned length)
{
	uint64_t value = 0;

	if (reader->left < length) {
		reader->failed = true;
		reader->left = 0;
		return 0;
	}
	reader->left -= length;
	while (length-- > 0)
		value = value << 8 | *reader->next++;
	return value;
}

void put(struct writer *writer, uint64_t value, unsigned length)
{
	while (length-- > 0)
		*writer->next++ = (uint8_t)(value >> (8 * length));
}

struct pattern pattern_of(uint32_t stream, uint64_t number)
{
	struct pattern pattern = {
		number * 0x9E3779B97F4A7C15u + stream * 0xD6E8FEB86659FD93u,
	};

	return pattern;
}

/* Word `k` of a message, little-endian in memory. */
static void word_of(struct pattern pattern, uint64_t k, uint8_t out[WORD])
{
	uint64_t x = (pattern.base + k) * 0xBF58476D1CE4E5B9u;

	x ^= x >> 32;
	for (unsigned i = 0; i < WORD; i++)
		out[i] = (uint8_t)(x >> (8 * i));
}

void pattern_fill(struct pattern pattern, uint8_t *out, size_t length)
{
	uint8_t word[WORD];

	for (size_t at = 0; at < length; at += WORD) {
		word_of(pattern, at / WORD, word);
		memcpy(out + at, word, length - at < WORD ? length - at : WORD);
	}
}

uint64_t pattern_errors(struct pattern pattern, const uint8_t *bytes, size_t length)
{
	uint8_t word[WORD];
	uint64_t errors = 0;

	for (size_t at = 0; at < length; at += WORD) {
		size_t count = length - at < WORD ? length - at : WORD;

		word_of(pattern, at / WORD, word);
		if (memcmp(bytes + at, word, count) == 0)
			continue;
		for (size_t i = 0; i < count; i++)
			errors += bytes[at + i] != word[i];
	}
	return errors;
}
