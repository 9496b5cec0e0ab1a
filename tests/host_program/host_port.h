/* What a host program owns: the EAL, mempools, ports, and traffic on a port's first queue pair. */
#ifndef FERROWARP_TESTS_HOST_PORT_H
#define FERROWARP_TESTS_HOST_PORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_ethdev.h>
#include <rte_mempool.h>

enum {
	OWN_COUNT = 1023,
	/* Enough for 64 windows of 256 KiB, of a server of iwperf. */
	STACK_COUNT = 16383,
};

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* Starts the EAL without hugepages and cards, with this device unless it is NULL. */
void start_eal(const char *vdev);
/* Starts the EAL in hugepages, with the card of this PCI address. */
void start_eal_with_card(const char *bdf);
/* Removes the folder that the EAL has made. */
void remove_eal_folder(void);
void end_eal(void);

/* Creates a mempool of so many mbufs, each with room for so many bytes of a frame. */
struct rte_mempool *create_pool(const char *name, unsigned int count, uint16_t room);
/* Checks that all mbufs are in the pool, and frees it. */
void free_complete_pool(struct rte_mempool *pool);

/* Configures a port, whose queues have so many descriptors. */
void set_up(uint16_t port, uint16_t queues, uint16_t descriptors, const struct rte_eth_conf *conf,
	    struct rte_mempool *rx_pool);
bool is_running(uint16_t port);
/* Checks that the port still runs, and closes it. */
void close_port(uint16_t port);

struct own_traffic {
	uint16_t port;
	struct rte_mempool *pool;
	uint32_t sent;
	uint32_t received;
	/* Number of the last frame received. */
	uint32_t last;
};

/* Sends a numbered frame; false if the port does not take it now. */
bool send_own(struct own_traffic *own);
/* Receives frames, of which all are of the program's own, and in order. */
void receive_own(struct own_traffic *own);

#endif
