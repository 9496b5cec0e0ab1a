#include "control.h"

#include <string.h>

#define HEADER_LEN 12
#define TEXT_LEN (CONTROL_SEND_LEN - HEADER_LEN - 4)

static const char *const TEST_NAMES[TEST_COUNT + 1] = {
	[WRITE_BW] = "write-bw",   [READ_BW] = "read-bw",   [SEND_BW] = "send-bw",
	[WRITE_LAT] = "write-lat", [READ_LAT] = "read-lat", [SEND_LAT] = "send-lat",
};

enum test test_from_name(const char *name)
{
	for (int test = WRITE_BW; test <= TEST_COUNT; test++)
		if (strcmp(TEST_NAMES[test], name) == 0)
			return (enum test)test;
	return 0;
}

const char *test_name(enum test test)
{
	return TEST_NAMES[test];
}

const char *message_name(enum message_type type)
{
	static const char *const names[] = {
		[HELLO] = "Hello",   [WELCOME] = "Welcome",   [RUN] = "Run",
		[READY] = "Ready",   [GO] = "Go",             [CONSUMED] = "Consumed",
		[DONE] = "Done",     [COUNTED] = "Counted",   [REPORT] = "Report",
		[BYE] = "Bye",       [FAILURE] = "Failure",   [REFILLED] = "Refilled",
		[ALIVE] = "Alive",
	};

	return names[type];
}

void purpose_emit(const struct purpose *purpose, uint8_t out[PURPOSE_LEN])
{
	struct writer writer = { out };

	put(&writer, CONTROL_MAGIC, 4);
	put(&writer, CONTROL_VERSION, 2);
	put(&writer, purpose->role, 2);
	put(&writer, purpose->token, 4);
	put(&writer, purpose->number, 4);
	put(&writer, purpose->tx_depth, 4);
	put(&writer, purpose->rx_depth, 4);
}

bool purpose_parse(const uint8_t *bytes, size_t length, struct purpose *purpose,
		   const char **reason)
{
	struct reader reader = { bytes, length, false };
	uint64_t magic = take(&reader, 4);
	uint64_t version = take(&reader, 2);
	uint64_t role = take(&reader, 2);

	purpose->role = role == ROLE_DATA ? ROLE_DATA : ROLE_CONTROL;
	purpose->token = (uint32_t)take(&reader, 4);
	purpose->number = (uint32_t)take(&reader, 4);
	purpose->tx_depth = (uint32_t)take(&reader, 4);
	purpose->rx_depth = (uint32_t)take(&reader, 4);
	if (reader.failed || magic != CONTROL_MAGIC)
		*reason = "this is a server of iwperf's control exchange";
	else if (version != CONTROL_VERSION)
		*reason = "another version of the control exchange";
	else if (role != ROLE_CONTROL && role != ROLE_DATA)
		*reason = "a connection of unknown purpose";
	else
		return true;
	return false;
}

static void put_region(struct writer *writer, const struct region *region)
{
	put(writer, region->address, 8);
	put(writer, region->length, 8);
	put(writer, region->stag, 4);
}

static struct region take_region(struct reader *reader)
{
	struct region region;

	region.address = take(reader, 8);
	region.length = take(reader, 8);
	region.stag = (uint32_t)take(reader, 4);
	return region;
}

static void put_hello(struct writer *writer, const struct hello *hello)
{
	put(writer, hello->test, 1);
	put(writer, hello->flags, 1);
	put(writer, hello->qps, 2);
	put(writer, hello->tx_depth, 4);
	put(writer, hello->rx_depth, 4);
	put(writer, hello->token, 4);
	put(writer, hello->span, 8);
	put_region(writer, &hello->tx);
	put_region(writer, &hello->rx);
}

static void take_hello(struct reader *reader, struct hello *hello)
{
	hello->test = (uint8_t)take(reader, 1);
	hello->flags = (uint8_t)take(reader, 1);
	hello->qps = (uint16_t)take(reader, 2);
	hello->tx_depth = (uint32_t)take(reader, 4);
	hello->rx_depth = (uint32_t)take(reader, 4);
	hello->token = (uint32_t)take(reader, 4);
	hello->span = take(reader, 8);
	hello->tx = take_region(reader);
	hello->rx = take_region(reader);
}

static void put_run(struct writer *writer, const struct run *run)
{
	put(writer, run->size, 8);
	put(writer, run->iterations, 8);
	put(writer, run->duration_ms, 8);
	put(writer, run->stride, 8);
	put(writer, run->slots, 4);
	put(writer, run->credits, 4);
}

static void take_run(struct reader *reader, struct run *run)
{
	run->size = take(reader, 8);
	run->iterations = take(reader, 8);
	run->duration_ms = take(reader, 8);
	run->stride = take(reader, 8);
	run->slots = (uint32_t)take(reader, 4);
	run->credits = (uint32_t)take(reader, 4);
}

static void put_tally(struct writer *writer, const struct tally *tally)
{
	put(writer, tally->messages, 8);
	put(writer, tally->bytes, 8);
	put(writer, tally->verified, 8);
	put(writer, tally->errors, 8);
	put(writer, tally->duration_ns, 8);
}

static void take_tally(struct reader *reader, struct tally *tally)
{
	tally->messages = take(reader, 8);
	tally->bytes = take(reader, 8);
	tally->verified = take(reader, 8);
	tally->errors = take(reader, 8);
	tally->duration_ns = take(reader, 8);
}

static void put_text(struct writer *writer, const char *text)
{
	size_t length = strlen(text);

	if (length > TEXT_LEN)
		length = TEXT_LEN;
	put(writer, length, 4);
	memcpy(writer->next, text, length);
	writer->next += length;
}

/* Truncates the text, and replaces control characters: it is printed to the terminal. */
static void take_text(struct reader *reader, char text[CONTROL_SEND_LEN])
{
	uint64_t length = take(reader, 4);

	if (length > reader->left) {
		reader->failed = true;
		return;
	}
	if (length >= CONTROL_SEND_LEN)
		length = CONTROL_SEND_LEN - 1;
	for (size_t i = 0; i < length; i++)
		text[i] = reader->next[i] < 0x20 ? ' ' : (char)reader->next[i];
	text[length] = 0;
}

size_t message_emit(const struct message *message, uint8_t out[CONTROL_SEND_LEN])
{
	struct writer writer = { out };

	put(&writer, CONTROL_MAGIC, 4);
	put(&writer, CONTROL_VERSION, 2);
	put(&writer, message->type, 2);
	put(&writer, message->run, 4);
	switch (message->type) {
	case HELLO:
		put_hello(&writer, &message->hello);
		break;
	case WELCOME:
		put_region(&writer, &message->welcome.tx);
		put_region(&writer, &message->welcome.rx);
		break;
	case RUN:
		put_run(&writer, &message->plan);
		break;
	case CONSUMED:
	case REFILLED:
		put(&writer, message->credit.connection, 4);
		put(&writer, 0, 4);
		put(&writer, message->credit.count, 8);
		break;
	case DONE:
	case COUNTED:
	case REPORT:
		put_tally(&writer, &message->tally);
		break;
	case FAILURE:
		put_text(&writer, message->text);
		break;
	case READY:
	case GO:
	case BYE:
	case ALIVE:
		break;
	}
	return (size_t)(writer.next - out);
}

bool message_parse(const uint8_t *bytes, size_t length, struct message *message)
{
	struct reader reader = { bytes, length, false };
	uint64_t magic = take(&reader, 4);
	uint64_t version = take(&reader, 2);
	uint64_t type = take(&reader, 2);

	if (magic != CONTROL_MAGIC || version != CONTROL_VERSION || type < HELLO || type > ALIVE)
		return false;
	memset(message, 0, sizeof(*message));
	message->type = (enum message_type)type;
	message->run = (uint32_t)take(&reader, 4);
	switch (message->type) {
	case HELLO:
		take_hello(&reader, &message->hello);
		break;
	case WELCOME:
		message->welcome.tx = take_region(&reader);
		message->welcome.rx = take_region(&reader);
		break;
	case RUN:
		take_run(&reader, &message->plan);
		break;
	case CONSUMED:
	case REFILLED:
		message->credit.connection = (uint32_t)take(&reader, 4);
		take(&reader, 4);
		message->credit.count = take(&reader, 8);
		break;
	case DONE:
	case COUNTED:
	case REPORT:
		take_tally(&reader, &message->tally);
		break;
	case FAILURE:
		take_text(&reader, message->text);
		break;
	case READY:
	case GO:
	case BYE:
	case ALIVE:
		break;
	}
	return !reader.failed;
}
