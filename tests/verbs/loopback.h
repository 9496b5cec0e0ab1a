/* Connections between two IDs of one process, over the device's own address. */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

struct loopback {
	struct rdma_cm_id *listener, *server, *client;
	int depth;
};

/* Waits for the request and accepts it. */
static inline void *loopback_accept(void *argument)
{
	struct loopback *pair = argument;
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };

	if (rdma_get_request(pair->listener, &pair->server) == 0 &&
	    rdma_accept(pair->server, &param) != 0) {
		rdma_destroy_ep(pair->server);
		pair->server = NULL;
	}
	return NULL;
}

/* Address of the device, from the environment that iwarp-run has set: the first one. */
static inline char *own_address(void)
{
	char *address = strdup(getenv("FERROWARP_ADDRESS"));

	address[strcspn(address, "/,")] = '\0';
	return address;
}

/* Connects both ends on a port; returns 0 on success. */
static inline int loopback_connect(struct loopback *pair, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = pair->depth, .max_recv_wr = pair->depth, .max_send_sge = 1,
			.max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	}, again = attr;
	struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };
	char *address = own_address();
	pthread_t thread;
	int failed;

	if (rdma_getaddrinfo(address, port, &hints, &found) ||
	    rdma_create_ep(&pair->listener, found, NULL, &attr) || rdma_listen(pair->listener, 4))
		return -1;
	rdma_freeaddrinfo(found);
	pthread_create(&thread, NULL, loopback_accept, pair);
	hints.ai_flags = 0;
	failed = rdma_getaddrinfo(address, port, &hints, &found) ||
		rdma_create_ep(&pair->client, found, NULL, &again) || rdma_connect(pair->client, &param);
	pthread_join(thread, NULL);
	free(address);
	if (failed || pair->server == NULL)
		return -1;
	rdma_freeaddrinfo(found);
	return 0;
}

static inline void loopback_close(struct loopback *pair)
{
	rdma_disconnect(pair->client);
	rdma_disconnect(pair->server);
	rdma_destroy_ep(pair->client);
	rdma_destroy_ep(pair->server);
	rdma_destroy_ep(pair->listener);
}

#endif
