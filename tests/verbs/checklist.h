/*
 * A list of checks: each has a name, and a failure prints a line. main() ends with
 * `return checklist_end()`.
 */
#ifndef CHECKLIST_H
#define CHECKLIST_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int checks, failures;

/* Expects that something holds. */
static inline void check(int holds, const char *name)
{
	checks++;
	if (!holds) {
		failures++;
		printf("FAILED: %s (errno %d, %s)\n", name, errno, strerror(errno));
	}
}

/* Expects a failure with one of two error numbers; they may be the same. */
static inline void check_refused(int is_failure, int error, int first, int second, const char *name)
{
	checks++;
	if (!is_failure) {
		failures++;
		printf("FAILED: %s: it succeeds\n", name);
	} else if (error != first && error != second) {
		failures++;
		printf("FAILED: %s: %d (%s), not %s\n", name, error, strerror(error), strerror(first));
	}
}

/* Expects NULL and errno. */
#define REFUSED_POINTER(call, first, second, name) do { \
	errno = 0; \
	int is_null_ = (call) == NULL; \
	check_refused(is_null_, errno, first, second, name); \
} while (0)

/* Expects an error number: most calls of verbs. */
#define REFUSED_CODE(call, first, second, name) do { \
	int code_ = (call); \
	check_refused(code_ != 0, code_, first, second, name); \
} while (0)

/* Expects -1 and errno: most calls of librdmacm. */
#define REFUSED(call, first, second, name) do { \
	errno = 0; \
	int is_minus_one_ = (call) == -1; \
	check_refused(is_minus_one_, errno, first, second, name); \
} while (0)

/* Ends the program if something that the checks need has failed. */
#define NEED(holds) do { \
	if (!(holds)) { \
		printf("FAILED: %s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #holds, errno, \
			strerror(errno)); \
		return 1; \
	} \
} while (0)

/* Returns the exit status. */
static inline int checklist_end(void)
{
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}

#endif
