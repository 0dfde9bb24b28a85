// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Threads that wait for a time while signals without a handler come: the kernel goes on with
 * each wait by restart_syscall(2).
 *
 *   restarted FILE     until FILE is there
 *
 * Prints "restarted ok WAITS" now and then; "BAD ..." and ends with 1 if a wait ended otherwise
 * than by its time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KINDS 4

static volatile int stopped;
static long waits;
static const char *const names[KINDS] = { "nanosleep", "clock_nanosleep", "poll", "futex" };

static long wait_once(long kind)
{
	struct timespec time = { 1, 500000000 }, left;
	struct pollfd none = { .fd = -1 };
	int word = 0;

	switch (kind) {
	case 0:
		return syscall(SYS_nanosleep, &time, &left);
	case 1:
		return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, &left);
	case 2:
		return syscall(SYS_poll, &none, 1, 1500);
	default:
		return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
	}
}

static void *work(void *of)
{
	long kind = (long)of;

	while (!stopped) {
		long result = wait_once(kind);

		if (kind == 3 ? result != -1 || errno != ETIMEDOUT : result != 0) {
			printf("BAD %s: %ld %s\n", names[kind], result, strerror(errno));
			fflush(stdout);
			_exit(1);
		}
		if (__atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED) % KINDS == 0) {
			printf("restarted ok %ld\n", waits);
			fflush(stdout);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[KINDS];

	if (argc < 2)
		return 64;
	for (long kind = 0; kind < KINDS; kind++)
		if (pthread_create(&threads[kind], NULL, work, (void *)kind))
			return 71;
	while (access(argv[1], F_OK)) {
		usleep(100000);
		for (int kind = 0; kind < KINDS; kind++)
			pthread_kill(threads[kind], SIGURG);
	}
	stopped = 1;
	for (int kind = 0; kind < KINDS; kind++)
		pthread_join(threads[kind], NULL);
	printf("restarted done\n");
	return 0;
}
