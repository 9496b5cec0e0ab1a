/* What a host program in C calls of the stack: tests/tools/host_stack.rs. */
#ifndef FERROWARP_TESTS_HOST_STACK_H
#define FERROWARP_TESTS_HOST_STACK_H

#include <stdint.h>

struct host_stack;

/*
 * Opens a context on a device, with an address as 198.18.0.1. If it cannot be opened, writes a line
 * "refused: WHY" to standard output and returns NULL. It is driven by host_stack_poll() and by the
 * waiting calls below, or by a helper thread.
 */
struct host_stack *host_stack_open(const char *device, const char *address, int is_polled);
/* Returns nonzero if there was anything to do. For one thread at a time, or several. */
int host_stack_poll(const struct host_stack *stack);
/* Writes how the port spreads frames over the queues of the device. */
void host_stack_print_steering(const char *device);
/*
 * Connects two contexts, of which the first has the address 198.18.0.N and the second the given
 * one, transfers len bytes each way, and compares. Returns 0. From any thread.
 */
int host_stack_transfer(const struct host_stack *from, const struct host_stack *to,
			const char *address, uint32_t len);
/* Closes the context: nothing of the program is in use any more. */
void host_stack_close(struct host_stack *stack);

/* Runs iwperf with these arguments, the program's name first. Returns its exit status. */
int host_stack_iwperf(int count, const char *const *arguments);

#endif
