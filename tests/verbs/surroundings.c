/* What opening a device and using it leaves as it was in a process. */
#define _GNU_SOURCE
#include <fenv.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "checklist.h"

struct state {
	cpu_set_t cores;
	struct sigaction actions[NSIG];
	sigset_t mask;
	int rounding, slack, dumpable, nice;
	mode_t umask;
	struct rlimit files, stack, locked;
	char folder[4096];
};

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static char buffer[4096];

static void on_fault(int signal)
{
	(void)signal;
	faults++;
	siglongjmp(back, 1);
}

static struct state take(void)
{
	struct state now;

	memset(&now, 0, sizeof now);
	sched_getaffinity(0, sizeof now.cores, &now.cores);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &now.actions[i]);
	sigprocmask(SIG_BLOCK, NULL, &now.mask);
	now.rounding = fegetround();
	now.slack = prctl(PR_GET_TIMERSLACK);
	now.dumpable = prctl(PR_GET_DUMPABLE);
	now.nice = getpriority(PRIO_PROCESS, 0);
	now.umask = umask(0);
	umask(now.umask);
	getrlimit(RLIMIT_NOFILE, &now.files);
	getrlimit(RLIMIT_STACK, &now.stack);
	getrlimit(RLIMIT_MEMLOCK, &now.locked);
	if (getcwd(now.folder, sizeof now.folder) == NULL)
		now.folder[0] = '\0';
	return now;
}

/* Faults in registered memory are caught: those two may have another handler. */
static int same_actions(const struct state *a, const struct state *b)
{
	for (int i = 1; i < NSIG; i++) {
		if (i == SIGSEGV || i == SIGBUS)
			continue;
		if (a->actions[i].sa_handler != b->actions[i].sa_handler ||
		    a->actions[i].sa_flags != b->actions[i].sa_flags) {
			printf("signal %d has another action\n", i);
			return 0;
		}
	}
	return 1;
}

static void compare(const struct state *a, const struct state *b)
{
	check(CPU_EQUAL(&a->cores, &b->cores), "affinity");
	check(same_actions(a, b), "actions of signals");
	check(memcmp(&a->mask, &b->mask, sizeof a->mask) == 0, "blocked signals");
	check(a->rounding == b->rounding, "rounding mode");
	check(a->slack == b->slack, "timer slack");
	check(a->dumpable == b->dumpable, "dumpable");
	check(a->nice == b->nice, "priority");
	check(a->umask == b->umask, "umask");
	check(memcmp(&a->files, &b->files, sizeof a->files) == 0, "limit of descriptors");
	check(memcmp(&a->stack, &b->stack, sizeof a->stack) == 0, "limit of the stack");
	check(memcmp(&a->locked, &b->locked, sizeof a->locked) == 0, "limit of locked memory");
	check(strcmp(a->folder, b->folder) == 0, "working directory");
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_fault };
	struct state before, after;
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	volatile double third = 1.0, three = 3.0;
	double upward, again;

	sigaction(SIGSEGV, &action, NULL);
	fesetround(FE_UPWARD);
	upward = third / three;
	before = take();
	list = ibv_get_device_list(NULL);
	NEED(list && list[0]);
	errno = 77;
	context = ibv_open_device(list[0]);
	check(errno == 77, "errno after opening");
	NEED(context);
	after = take();
	compare(&before, &after);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	NEED(pd && mr && cq);
	errno = 78;
	for (int i = 0; i < 1000; i++)
		ibv_poll_cq(cq, 1, &wc);
	check(errno == 78, "errno after polling");
	again = third / three;
	check(upward == again, "divisions are rounded as before");
	after = take();
	compare(&before, &after);
	check(fegetround() == FE_UPWARD, "rounding mode");
	/* The program's own faults are still its own. */
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)8 = 1;
	check(faults == 1, "the program's handler of SIGSEGV");
	check(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "freed");
	check(ibv_close_device(context) == 0, "close");
	return checklist_end();
}
