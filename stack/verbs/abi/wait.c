/*
 * The wait of ibv_get_cq_event, ibv_get_async_event and rdma_get_cm_event.
 *
 * A thread may be cancelled here: recv is a cancellation point. glibc then unwinds the stack, which
 * no Rust frame with something to drop survives, and no catch_unwind. So the wait is a leaf in C.
 */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Waits until the descriptor is readable. Returns at least 0; or -1 and errno, as a read of the
 * descriptor would: EAGAIN if the program has set O_NONBLOCK, EINTR after a signal whose handler
 * was installed without SA_RESTART.
 */
int ferrowarp_wait_readable(int fd)
{
	char byte;

	return (int)recv(fd, &byte, 1, MSG_PEEK);
}

/* Waits until the process has ended. */
void ferrowarp_wait_for_ever(void)
{
	for (;;)
		pause();
}

/* From now on the thread is not cancelled. Returns what ferrowarp_restore_cancel takes. */
int ferrowarp_disable_cancel(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

void ferrowarp_restore_cancel(int before)
{
	pthread_setcancelstate(before, NULL);
}
