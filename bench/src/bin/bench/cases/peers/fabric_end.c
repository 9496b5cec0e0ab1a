/* RDMA Writes over libfabric's provider `tcp`, as `iwperf write-bw` and `iwperf write-lat`. Debian
 * has no package of fabtests, and fi_pingpong has one message outstanding and reports a mean.
 *
 *   fabric_end server ADDRESS PORT
 *   fabric_end client ADDRESS PORT bw|lat SIZE CONNECTIONS SECONDS
 *
 * Endpoints of type FI_EP_MSG, the provider's own, without a layer above it; one completion queue,
 * polled. Bandwidth ends when the server has confirmed the last byte: a message on each connection
 * follows the writes, and the server answers it. Latency is half the round trip of a ping-pong in
 * which each end polls the last byte of the message. The client prints JSON as iwperf does. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CONNECTIONS_MAX = 1024,
    /* Outstanding writes per connection, as in iwperf; fewer if the provider queues fewer. */
    DEPTH = 128,
    SAMPLES_MAX = 1 << 22,
    /* Round trips before the measurement, and the part of the time that they may take. */
    WARM_UP = 1000,
    WARM_UP_PART = 10,
    CONNECT_TIMEOUT_MS = 20000,
};

/* Parameters of a run, and where the peer may write: private data of the connection. */
struct hello {
    uint64_t addr;
    uint64_t key;
    uint64_t size;
    uint32_t connections;
    uint32_t is_latency;
};

struct connection {
    struct fid_ep *ep;
    struct hello peer;
    size_t outstanding;
    int confirmed;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_mr *mr;
static struct connection connections[CONNECTIONS_MAX];
/* A page for the messages that end a run, then the source of the writes, then their sink. */
static uint8_t *memory;
static size_t span;
static size_t depth;

static void check(const char *what, long result)
{
    if (result < 0) {
        fprintf(stderr, "fabric_end: %s: %s\n", what, fi_strerror((int)-result));
        exit(1);
    }
}

static void fail(const char *why)
{
    fprintf(stderr, "fabric_end: %s\n", why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint8_t *source(void) { return memory + 4096; }
static uint8_t *sink(void) { return memory + 4096 + span; }

static void get_info(const char *address, const char *port, uint64_t flags)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        fail("out of memory");
    hints->caps = FI_MSG | FI_RMA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("tcp");
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 9), address, port, flags, hints, &info));
    fi_freeinfo(hints);
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
    check("fi_eq_open", fi_eq_open(fabric, &attr, &eq, NULL));
    depth = info->tx_attr->size > 2 ? info->tx_attr->size - 2 : 1;
    if (depth > DEPTH)
        depth = DEPTH;
}

/* Opens domain, completion queue and memory for messages of `size` bytes. */
static void open_domain(struct fi_info *from, size_t size, size_t count)
{
    check("fi_domain", fi_domain(fabric, from, &domain, NULL));
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = count * (depth + 2) + 64};
    check("fi_cq_open", fi_cq_open(domain, &attr, &cq, NULL));
    span = (size + 4095) / 4096 * 4096;
    memory = aligned_alloc(4096, 4096 + 2 * span);
    if (!memory)
        fail("out of memory");
    memset(memory, 0, 4096 + 2 * span);
    uint64_t access = FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE;
    check("fi_mr_reg", fi_mr_reg(domain, memory, 4096 + 2 * span, access, 0, 1, 0, &mr, NULL));
}

static struct hello hello(size_t size, size_t count, int is_latency)
{
    int by_address = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    struct hello hello = {
        .addr = by_address ? (uintptr_t)sink() : (uint64_t)(sink() - memory),
        .key = fi_mr_key(mr),
        .size = size,
        .connections = (uint32_t)count,
        .is_latency = (uint32_t)is_latency,
    };
    return hello;
}

/* Creates an endpoint; the receive is that of the message that ends the run. */
static void open_endpoint(struct fi_info *from, struct connection *connection)
{
    check("fi_endpoint", fi_endpoint(domain, from, &connection->ep, connection));
    check("fi_ep_bind", fi_ep_bind(connection->ep, &eq->fid, 0));
    check("fi_ep_bind", fi_ep_bind(connection->ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(connection->ep));
    check("fi_recv", fi_recv(connection->ep, memory, 1, fi_mr_desc(mr), 0, &connection->confirmed));
}

/* Waits for an event of a connection; returns the length of its private data. */
static size_t wait_event(uint32_t wanted, struct fi_eq_cm_entry *entry, size_t len)
{
    uint32_t event = 0;
    ssize_t got = fi_eq_sread(eq, &event, entry, len, CONNECT_TIMEOUT_MS, 0);
    check("fi_eq_sread", got);
    if (event != wanted)
        fail("another event of the connection");
    return (size_t)got - sizeof(*entry);
}

/* Takes completions: of writes, and of the messages that end a run. */
static void progress(void)
{
    struct fi_cq_entry entries[64];
    ssize_t got = fi_cq_read(cq, entries, 64);
    if (got == -FI_EAGAIN)
        return;
    check("fi_cq_read", got);
    for (ssize_t i = 0; i < got; i++) {
        size_t offset = (size_t)((uint8_t *)entries[i].op_context - (uint8_t *)connections);
        if (!entries[i].op_context || offset >= sizeof(connections))
            continue;
        struct connection *connection = &connections[offset / sizeof(*connections)];
        if (entries[i].op_context == &connection->confirmed)
            connection->confirmed = 1;
        else
            connection->outstanding--;
    }
}

static void send_end(struct connection *connection)
{
    ssize_t sent;
    while ((sent = fi_send(connection->ep, memory + 64, 1, fi_mr_desc(mr), 0, NULL)) == -FI_EAGAIN)
        progress();
    check("fi_send", sent);
}

static int write_to(struct connection *connection, size_t size)
{
    ssize_t posted = fi_write(connection->ep, source(), size, fi_mr_desc(mr), 0,
                              connection->peer.addr, connection->peer.key,
                              &connection->outstanding);
    if (posted == -FI_EAGAIN)
        return 0;
    check("fi_write", posted);
    connection->outstanding++;
    return 1;
}

/* Sends the ping or pong `number`, whose last byte is that number. */
static void ping(struct connection *connection, size_t size, uint8_t number)
{
    source()[size - 1] = number;
    while (!write_to(connection, size))
        progress();
}

/* Waits for the pong or ping `number`. */
static void await(size_t size, uint8_t number)
{
    volatile uint8_t *last = sink() + size - 1;
    while (*last != number)
        progress();
}

static int by_size(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static void latency(size_t size, double seconds)
{
    uint64_t *samples = malloc(SAMPLES_MAX * sizeof(*samples));
    if (!samples)
        fail("out of memory");
    size_t count = 0, rounds = 0;
    uint64_t start = now_ns(), before = start, sum = 0;
    while (count < SAMPLES_MAX && (double)(before - start) < seconds * 1e9) {
        /* 0 ends the run, and is what memory holds at first. */
        uint8_t number = (uint8_t)(rounds % 255 + 1);
        ping(&connections[0], size, number);
        await(size, number);
        uint64_t after = now_ns();
        if (rounds++ >= WARM_UP || (double)(after - start) * WARM_UP_PART > seconds * 1e9) {
            samples[count++] = after - before;
            sum += after - before;
        }
        before = after;
    }
    if (!count)
        fail("too short for one round trip");
    qsort(samples, count, sizeof(*samples), by_size);
    double p[4] = {0.5, 0.9, 0.99, 0.999};
    for (int i = 0; i < 4; i++)
        p[i] = (double)samples[(size_t)(p[i] * (double)(count - 1))] / 2e3;
    printf("{\"results\": [{\"errors\": 0, \"iterations\": %zu, \"duration_s\": %.6f, "
           "\"bw_gbit_s\": 0, \"msg_rate_mops\": 0, \"lat_us\": {\"p50\": %.3f, \"p90\": %.3f, "
           "\"p99\": %.3f, \"p999\": %.3f}}]}\n",
           count, (double)sum / 1e9, p[0], p[1], p[2], p[3]);
    free(samples);
}

static void bandwidth(size_t size, size_t count, double seconds)
{
    uint64_t writes = 0, start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    while (now_ns() < end) {
        for (size_t c = 0; c < count; c++) {
            while (connections[c].outstanding < depth && write_to(&connections[c], size))
                writes++;
        }
        progress();
    }
    for (size_t c = 0; c < count; c++)
        send_end(&connections[c]);
    for (size_t c = 0; c < count; c++) {
        while (!connections[c].confirmed)
            progress();
    }
    double elapsed = (double)(now_ns() - start);
    printf("{\"results\": [{\"errors\": 0, \"iterations\": %lu, \"duration_s\": %.6f, "
           "\"bw_gbit_s\": %.6f, \"msg_rate_mops\": %.6f, \"lat_us\": null}]}\n",
           (unsigned long)writes, elapsed / 1e9, (double)writes * (double)size * 8 / elapsed,
           (double)writes * 1e3 / elapsed);
}

static void client(char **argv)
{
    int is_latency = strcmp(argv[4], "lat") == 0;
    size_t size = strtoul(argv[5], NULL, 10), count = strtoul(argv[6], NULL, 10);
    double seconds = strtod(argv[7], NULL);
    if (size < 1 || count < 1 || count > CONNECTIONS_MAX || (is_latency && count > 1))
        fail("SIZE from 1, CONNECTIONS from 1 to 1024, 1 for latency");
    get_info(argv[2], argv[3], 0);
    open_domain(info, size, count);
    struct hello own = hello(size, count, is_latency);
    for (size_t c = 0; c < count; c++) {
        open_endpoint(info, &connections[c]);
        check("fi_connect", fi_connect(connections[c].ep, info->dest_addr, &own, sizeof(own)));
        uint8_t buffer[sizeof(struct fi_eq_cm_entry) + sizeof(struct hello)];
        struct fi_eq_cm_entry *entry = (struct fi_eq_cm_entry *)buffer;
        if (wait_event(FI_CONNECTED, entry, sizeof(buffer)) < sizeof(own))
            fail("no address in the answer");
        memcpy(&connections[c].peer, entry->data, sizeof(own));
    }
    if (!is_latency) {
        bandwidth(size, count, seconds);
        return;
    }
    latency(size, seconds);
    send_end(&connections[0]);
    while (!connections[0].confirmed || connections[0].outstanding)
        progress();
}

static void server(char **argv)
{
    get_info(argv[2], argv[3], FI_SOURCE);
    struct fid_pep *pep;
    check("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
    check("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
    check("fi_listen", fi_listen(pep));
    struct hello theirs = {.connections = 1};
    for (size_t c = 0; c < theirs.connections; c++) {
        uint8_t buffer[sizeof(struct fi_eq_cm_entry) + sizeof(struct hello)];
        struct fi_eq_cm_entry *entry = (struct fi_eq_cm_entry *)buffer;
        if (wait_event(FI_CONNREQ, entry, sizeof(buffer)) < sizeof(theirs))
            fail("no parameters in the request");
        memcpy(&theirs, entry->data, sizeof(theirs));
        if (theirs.connections > CONNECTIONS_MAX)
            fail("too many connections");
        if (c == 0)
            open_domain(entry->info, theirs.size, theirs.connections);
        open_endpoint(entry->info, &connections[c]);
        connections[c].peer = theirs;
        struct hello own = hello(theirs.size, theirs.connections, (int)theirs.is_latency);
        check("fi_accept", fi_accept(connections[c].ep, &own, sizeof(own)));
        wait_event(FI_CONNECTED, entry, sizeof(buffer));
        fi_freeinfo(entry->info);
    }
    volatile uint8_t *last = sink() + theirs.size - 1;
    uint8_t seen = 0;
    while (theirs.is_latency && !connections[0].confirmed) {
        progress();
        if (*last != seen) {
            seen = *last;
            ping(&connections[0], theirs.size, seen);
        }
    }
    for (size_t c = 0; c < theirs.connections; c++) {
        while (!connections[c].confirmed)
            progress();
        send_end(&connections[c]);
    }
    /* Until the client has closed the connections, so that what was sent arrives. */
    for (;;) {
        struct fi_eq_cm_entry entry;
        uint32_t event = 0;
        progress();
        if (fi_eq_read(eq, &event, &entry, sizeof(entry), 0) > 0 && event == FI_SHUTDOWN)
            return;
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "server") == 0)
        server(argv);
    else if (argc == 8 && strcmp(argv[1], "client") == 0)
        client(argv);
    else
        fail("server ADDRESS PORT | client ADDRESS PORT bw|lat SIZE CONNECTIONS SECONDS");
    return 0;
}
