/* Peer of ferrowarp's interoperability tests, on libibverbs and librdmacm, for Linux's siw in a
 * guest: both roles of iwperf's control exchange (apps/CONTROL.md), and exchanges of what that does
 * not test. Prints lines of `key=value`; the exit status is 0 only if all checks passed. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "endpoint.h"
#include "exchange.h"
#include "common.h"
#include "perf.h"

static const char USAGE[] =
	"usage: siw_peer perf-server [--port N] [--ipv6] [--sessions N]\n"
	"       siw_peer perf-client HOST TEST [--port N] [--size N] [--qps N] [--tx-depth N]\n"
	"                [--iters N | --duration-ms N] [--reads N] [--bidirectional] [--verify]\n"
	"         TEST: write-bw read-bw send-bw write-lat read-lat send-lat\n"
	"       siw_peer exchange [HOST] [--port N] [--ipv6] [--ird N] [--ord N] [--private N]\n"
	"                [--expect-private N] [--reject] [--no-reads] [--sizes N,N...]\n"
	"                [--fault KIND] [--fault-by initiator|responder]\n"
	"         KIND: write read invalidate send bounds stale; without HOST it listens\n";

static _Noreturn void usage(void)
{
	fputs(USAGE, stderr);
	exit(2);
}

enum option_name {
	OPTION_PORT,
	OPTION_IPV6,
	OPTION_SESSIONS,
	OPTION_SIZE,
	OPTION_ITERS,
	OPTION_DURATION,
	OPTION_QPS,
	OPTION_TX_DEPTH,
	OPTION_READS,
	OPTION_BIDIRECTIONAL,
	OPTION_VERIFY,
	OPTION_IRD,
	OPTION_ORD,
	OPTION_PRIVATE,
	OPTION_EXPECT_PRIVATE,
	OPTION_REJECT,
	OPTION_NO_READS,
	OPTION_SIZES,
	OPTION_FAULT,
	OPTION_FAULT_BY,
};

static const struct option OPTIONS[] = {
	{ "port", required_argument, NULL, OPTION_PORT },
	{ "ipv6", no_argument, NULL, OPTION_IPV6 },
	{ "sessions", required_argument, NULL, OPTION_SESSIONS },
	{ "size", required_argument, NULL, OPTION_SIZE },
	{ "iters", required_argument, NULL, OPTION_ITERS },
	{ "duration-ms", required_argument, NULL, OPTION_DURATION },
	{ "qps", required_argument, NULL, OPTION_QPS },
	{ "tx-depth", required_argument, NULL, OPTION_TX_DEPTH },
	{ "reads", required_argument, NULL, OPTION_READS },
	{ "bidirectional", no_argument, NULL, OPTION_BIDIRECTIONAL },
	{ "verify", no_argument, NULL, OPTION_VERIFY },
	{ "ird", required_argument, NULL, OPTION_IRD },
	{ "ord", required_argument, NULL, OPTION_ORD },
	{ "private", required_argument, NULL, OPTION_PRIVATE },
	{ "expect-private", required_argument, NULL, OPTION_EXPECT_PRIVATE },
	{ "reject", no_argument, NULL, OPTION_REJECT },
	{ "no-reads", no_argument, NULL, OPTION_NO_READS },
	{ "sizes", required_argument, NULL, OPTION_SIZES },
	{ "fault", required_argument, NULL, OPTION_FAULT },
	{ "fault-by", required_argument, NULL, OPTION_FAULT_BY },
	{ NULL, 0, NULL, 0 },
};

/* Options of all subcommands; each uses its own. */
struct options {
	struct server_options server;
	struct client_options client;
	struct exchange_options exchange;
};

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	if (*text == 0 || *end != 0 || value < least || value > most) {
		fprintf(stderr, "%s: give a number from %llu to %llu\n", text,
			(unsigned long long)least, (unsigned long long)most);
		usage();
	}
	return value;
}

static void take_sizes(struct exchange_options *exchange, char *text)
{
	exchange->size_count = 0;
	for (char *size = strtok(text, ","); size; size = strtok(NULL, ",")) {
		if (exchange->size_count == SIZES_MAX)
			usage();
		exchange->sizes[exchange->size_count++] = number(size, 0, 16 << 20);
	}
}

static void take_perf_option(struct options *options, int name, const char *value)
{
	struct client_options *client = &options->client;

	switch (name) {
	case OPTION_SESSIONS:
		options->server.sessions = (unsigned)number(value, 1, UINT32_MAX);
		break;
	case OPTION_SIZE:
		client->size = number(value, 1, 1 << 30);
		break;
	case OPTION_ITERS:
		client->iterations = number(value, 1, UINT64_MAX);
		break;
	case OPTION_DURATION:
		client->iterations = 0;
		client->duration_ms = number(value, 1, 3600000);
		break;
	case OPTION_QPS:
		client->qps = (uint16_t)number(value, 1, 16);
		break;
	case OPTION_TX_DEPTH:
		client->tx_depth = (uint32_t)number(value, 1, 4096);
		break;
	case OPTION_READS:
		client->reads = (unsigned)number(value, 1, READS_MAX);
		break;
	case OPTION_BIDIRECTIONAL:
		client->bidirectional = true;
		break;
	case OPTION_VERIFY:
		client->verify = true;
		break;
	default:
		usage();
	}
}

static void take_exchange_option(struct exchange_options *exchange, int name, char *value)
{
	switch (name) {
	case OPTION_IRD:
		exchange->ird = (unsigned)number(value, 0, 255);
		break;
	case OPTION_ORD:
		exchange->ord = (unsigned)number(value, 0, 255);
		break;
	case OPTION_PRIVATE:
		exchange->private_len = number(value, 0, PRIVATE_LEN_MAX);
		break;
	case OPTION_EXPECT_PRIVATE:
		exchange->private_expected = number(value, 0, PRIVATE_LEN_MAX);
		break;
	case OPTION_REJECT:
		exchange->reject = true;
		break;
	case OPTION_NO_READS:
		exchange->no_reads = true;
		break;
	case OPTION_SIZES:
		take_sizes(exchange, value);
		break;
	case OPTION_FAULT:
		if (!fault_from_name(value, &exchange->fault))
			usage();
		break;
	case OPTION_FAULT_BY:
		exchange->fault_by_initiator = strcmp(value, "initiator") == 0;
		break;
	default:
		usage();
	}
}

static void take_options(struct options *options, int count, char **words)
{
	int name;

	while ((name = getopt_long(count, words, "", OPTIONS, NULL)) >= 0) {
		if (name == OPTION_PORT) {
			uint16_t port = (uint16_t)number(optarg, 1, UINT16_MAX);

			options->server.port = options->client.port = options->exchange.port = port;
		} else if (name == OPTION_IPV6) {
			options->server.ipv6 = options->exchange.ipv6 = true;
		} else if (name <= OPTION_VERIFY) {
			take_perf_option(options, name, optarg);
		} else {
			take_exchange_option(&options->exchange, name, optarg);
		}
	}
}

static const struct options DEFAULTS = {
	.server = { .port = PERF_PORT, .sessions = UINT32_MAX },
	.client = {
		.port = PERF_PORT,
		.size = 65536,
		.iterations = 100,
		.qps = 1,
		.tx_depth = 16,
		.reads = 16,
	},
	.exchange = {
		.port = EXCHANGE_PORT,
		.ird = 16,
		.ord = 16,
		.sizes = { 1, 1000, 65536 },
		.size_count = 3,
	},
};

int main(int count, char **words)
{
	struct options options = DEFAULTS;
	const char *command = count > 1 ? words[1] : "";
	int left;

	if (count < 2)
		usage();
	take_options(&options, count - 1, words + 1);
	/* `getopt_long` has moved the positional arguments to the end. */
	left = count - 1 - optind;
	words += 1 + optind;
	if (strcmp(command, "perf-server") == 0 && left == 0) {
		perf_server(&options.server);
	} else if (strcmp(command, "perf-client") == 0 && left == 2) {
		options.client.host = words[0];
		options.client.test = test_from_name(words[1]);
		if (!options.client.test)
			usage();
		perf_client(&options.client);
	} else if (strcmp(command, "exchange") == 0 && left <= 1) {
		options.exchange.host = left ? words[0] : NULL;
		exchange(&options.exchange);
	} else {
		usage();
	}
	return EXIT_SUCCESS;
}
