// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory in many mappings, of which some come and go all the time: each holds its own number.
 *
 *   tree CPU MAPPINGS FILE     until FILE is there
 *
 * Prints "tree ok ROUND" now and then; "BAD ..." and ends with 1 if a mapping is gone or holds
 * something else.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static void on_fault(int number, siginfo_t *info, void *context)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "BAD tree: no memory at %p\n", info->si_addr);

	(void)number;
	(void)context;
	if (write(1, text, length) != length)
		_exit(2);
	_exit(1);
}

/* Neighbours have other rights, so that each is a mapping of its own. */
static void set(char *at, long i)
{
	char *page = mmap(at + i * PAGE, PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (page == MAP_FAILED)
		exit(71);
	*(long *)page = i;
	if (i % 2)
		mprotect(page, PAGE, PROT_READ);
}

int main(int argc, char **argv)
{
	struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	long mappings = argc > 2 ? atol(argv[2]) : 0;
	cpu_set_t cpus;
	char *at;

	if (argc < 4 || mappings < 2)
		return 64;
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[1]), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGBUS, &fault, NULL);
	at = mmap(NULL, mappings * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 71;
	for (long round = 1; access(argv[3], F_OK); round++) {
		/* Emptied and filled again, in one piece of the whole after the other. */
		munmap(at + round % 8 * (mappings / 8) * PAGE, mappings / 8 * PAGE);
		for (long i = 0; i < mappings; i++) {
			if (round == 1 || i / (mappings / 8) == round % 8)
				set(at, i);
			if (*(long *)(at + i * PAGE) != i) {
				printf("BAD tree: round %ld mapping %ld\n", round, i);
				return 1;
			}
		}
		printf("tree ok %ld\n", round);
		fflush(stdout);
	}
	printf("tree done\n");
	return 0;
}
