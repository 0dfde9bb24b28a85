// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Threads that end, and whose word is used again as soon as the kernel has cleared it.
 *
 *   ended CPU FILE     until FILE is there; threads end on CPU
 *
 * Prints "ended ok ROUND" now and then; "BAD ..." and ends with 1 if a word was cleared twice.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FLAGS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | \
	       CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)
#define OURS 77

static char stack[65536] __attribute__((aligned(16)));
static volatile int word;
static cpu_set_t cpus;

/* It has the maker's thread-local storage: nothing of the C library. */
static int thread(void *unused)
{
	long result;

	(void)unused;
	asm volatile("syscall" : "=a"(result)
		     : "a"(SYS_sched_setaffinity), "D"(0), "S"(sizeof(cpus)), "d"(&cpus)
		     : "rcx", "r11", "memory");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 64;
	CPU_SET(atoi(argv[1]), &cpus);
	for (long round = 1; access(argv[2], F_OK); round++) {
		int *at = (int *)&word;

		if (clone(thread, stack + sizeof(stack), FLAGS, NULL, at, NULL, at) < 0)
			return 71;
		while (word)
			;
		word = OURS;
		usleep(50000);
		if (word != OURS) {
			printf("BAD round %ld: the word is %d\n", round, word);
			return 1;
		}
		if (round % 8 == 0) {
			printf("ended ok %ld\n", round);
			fflush(stdout);
		}
	}
	printf("ended done\n");
	return 0;
}
