// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Calls from registers that all hold a pattern, again and again: nothing may be
 * different after a call but its result, RCX and R11. The base of GS is set by
 * the instruction, so that the kernel learns of it only when it looks.
 *
 *   callstress THREADS CPU FILE        until FILE is there
 *
 * The threads share the processor CPU and give way to each other. Prints
 * "calls ok ROUND" now and then, "CALLS BAD ..." and ends with 1 at the first
 * difference. While it spins and while it calls, R15 begins with 0x5eed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pattern.h"

static volatile int stopped;
static const char *stop;
static long own;

__attribute__((noinline)) static void call(void)
{
	HOLD_PATTERN(XL, XS, "syscall\n");
}

static uint64_t gs_base(void)
{
	uint64_t base;

	asm volatile("rdgsbase %0" : "=r" (base));
	return base;
}

static void bad(uint64_t thread, uint64_t round, const char *what, uint64_t want, uint64_t is)
{
	printf("CALLS BAD thread %lu round %lu %s %016lx is %016lx\n", thread, round, what, want, is);
	fflush(stdout);
	_exit(1);
}

static void *work(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, round, seed, gs;
	long number;
	char name[16];
	int i;

	snprintf(name, sizeof(name), "cs-%lu", thread);
	prctl(PR_SET_NAME, name);
	for (round = 1; !stopped; round++) {
		seed = fill(thread, round, 2);
		gs = 0x10000000 + (mix(seed) & 0xffffff0);
		asm volatile("wrgsbase %0" : : "r" (gs));
		number = round % 2 ? SYS_getpid : SYS_sched_yield;
		in.gpr[0] = (uint64_t)number;
		memset(&out, 0, sizeof(out));
		spins_left = 1 + mix(seed) % 20000;
		call();
		if (out.gpr[0] != (uint64_t)(round % 2 ? own : 0))
			bad(thread, round, "result", (uint64_t)own, out.gpr[0]);
		if (gs_base() != gs)
			bad(thread, round, "gs", gs, gs_base());
		out.gpr[0] = in.gpr[0];
		out.gpr[2] = in.gpr[2];
		out.gpr[10] = in.gpr[10];
		for (i = 0; i < GPRS; i++)
			if (in.gpr[i] != out.gpr[i])
				bad(thread, round, "register", in.gpr[i], out.gpr[i]);
		for (i = 0; i < VECS; i++)
			if (memcmp(in.vec[i], out.vec[i], sizeof(in.vec[i])))
				bad(thread, round, "vector", in.vec[i][0], out.vec[i][0]);
		if (!thread && round % 1024 == 0) {
			printf("calls ok %lu\n", round);
			fflush(stdout);
		}
		if (!thread && round % 64 == 0)
			stopped = !access(stop, F_OK);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1, i;
	pthread_t ids[16];
	cpu_set_t set;

	if (argc != 4 || threads < 1 || threads > 16)
		return 64;
	CPU_ZERO(&set);
	CPU_SET(atol(argv[2]), &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		return 71;
	stop = argv[3];
	own = syscall(SYS_getpid);
	printf("calls start threads %ld\n", threads);
	fflush(stdout);
	for (i = 1; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, (void *)i))
			return 71;
	work(NULL);
	for (i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("calls done\n");
	return 0;
}
