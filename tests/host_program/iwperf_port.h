/* The stack's iwperf on a queue pair that the program lends it. */
#ifndef FERROWARP_TESTS_IWPERF_PORT_H
#define FERROWARP_TESTS_IWPERF_PORT_H

#include <stdint.h>

/*
 * On the last queue pair of a memif port, whose peer is another process. With several, the first
 * carries the program's own traffic.
 */
void run_memif(const char *role, const char *socket, uint16_t queues, int count,
	       const char *const *arguments);
/*
 * On the only queue pair of a card, with this MTU. Received frames lie in buffers of the usual
 * 2 KiB, so that a long one takes several: there has to be one.
 */
void run_card(const char *bdf, uint16_t mtu, int count, const char *const *arguments);

#endif
