/*
 * Ways in which a client ends, or makes other processes: `ending server` prints what it receives
 * and when it is disconnected, `ending HOW ADDRESS` is the client.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "checklist.h"

#define PORT "7302"
#define LEN 65536
#define MESSAGES 16

/* One more than are sent: the end of the connection flushes it. */
#define RECEIVES (MESSAGES + 1)

static char memory[RECEIVES][LEN];

static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = RECEIVES, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	if (rdma_getaddrinfo(address, PORT, &hints, &found) || rdma_create_ep(&id, found, NULL, &attr))
		return NULL;
	rdma_freeaddrinfo(found);
	return id;
}

/* Receives until the connection ends, and prints the number of messages. */
static int serve(void)
{
	struct rdma_cm_id *listener = endpoint("198.18.0.1", RAI_PASSIVE), *id;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int received = 0;

	NEED(listener && rdma_listen(listener, 1) == 0);
	NEED(rdma_get_request(listener, &id) == 0);
	mr = rdma_reg_msgs(id, memory, sizeof memory);
	NEED(mr);
	for (int i = 0; i < RECEIVES; i++)
		NEED(rdma_post_recv(id, NULL, memory[i], LEN, mr) == 0);
	NEED(rdma_accept(id, &param) == 0);
	while (rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
		received++;
	printf("received %d, then disconnected\n", received);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	return 0;
}

static int send_one(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_wc wc;

	return rdma_post_send(id, NULL, memory[0], 64, mr, 0) == 0 &&
		rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS;
}

/* What a child does with the parent's objects: it fails, and harms nobody. */
static void in_child(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	int refused = ibv_alloc_pd(id->verbs) == NULL && errno != 0;

	refused &= ibv_dereg_mr(mr) != 0;
	exit(refused ? 0 : 3);
}

static int client(const char *how, const char *address)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	int status = -1;

	if (strcmp(how, "daemon") == 0)
		NEED(daemon(1, 1) == 0);
	id = endpoint(address, 0);
	NEED(id);
	mr = rdma_reg_msgs(id, memory, sizeof memory);
	NEED(mr && rdma_connect(id, &param) == 0);
	NEED(send_one(id, mr));
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	if (strcmp(how, "kill") == 0)
		raise(SIGKILL);
	if (strcmp(how, "abort") == 0)
		abort();
	if (strcmp(how, "fork") == 0) {
		pid_t child = fork();
		if (child == 0)
			in_child(id, mr);
		NEED(child > 0 && waitpid(child, &status, 0) == child);
		check(status == 0, "calls in a child are refused");
	}
	if (strcmp(how, "system") == 0)
		check(system("exit 0") == 0, "system");
	if (strcmp(how, "exit") == 0) {
		struct ibv_wc wc;

		/* Completed, but perhaps not sent yet: the end of the program delivers it. */
		for (int i = 1; i < MESSAGES; i++)
			NEED(rdma_post_send(id, NULL, memory[i], LEN, mr, 0) == 0);
		for (int i = 1; i < MESSAGES; i++)
			NEED(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		return 0;
	}
	check(send_one(id, mr), "another message");
	rdma_disconnect(id);
	check(rdma_dereg_mr(mr) == 0, "deregister");
	rdma_destroy_ep(id);
	return checklist_end();
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "server") == 0)
		return serve();
	if (argc == 3)
		return client(argv[1], argv[2]);
	printf("usage: ending server | ending HOW ADDRESS\n");
	return 2;
}
