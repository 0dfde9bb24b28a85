// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Every register in a deterministic pattern, from each of THREADS threads:
 * load all general registers (but the stack pointer) and all vector registers
 * with values made of (thread, round), spin in user mode, store and compare.
 *
 *   regstress THREADS ROUNDS SPINS [FILE]     ROUNDS 0: until FILE is there
 *
 * Prints "regs ok ROUND" now and then, "REGS BAD ..." and ends with 1 at the
 * first difference. The seeds' register r15 says whose pattern it is: bits
 * 63..48 are 0x5eed, 47..32 the thread, 31..0 the round.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pattern.h"

static long rounds, spins;
static const char *stop;
static volatile int stopped;
static int avx;

__attribute__((noinline, target("avx"))) static void run_avx(void)
{
	HOLD_PATTERN(VL, VS, "");
}

__attribute__((noinline)) static void run_sse(void)
{
	HOLD_PATTERN(XL, XS, "");
}

static void *work(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, round;

	for (round = 1; !stopped && (!rounds || round <= (uint64_t)rounds); round++) {
		fill(thread, round, avx ? 4 : 2);
		memset(&out, 0, sizeof(out));
		spins_left = (uint64_t)spins;
		if (avx)
			run_avx();
		else
			run_sse();
		if (memcmp(&in, &out, sizeof(in))) {
			printf("REGS BAD thread %lu round %lu\n", thread, round);
			for (int i = 0; i < GPRS; i++)
				if (in.gpr[i] != out.gpr[i])
					printf("REGS BAD gpr %d %016lx is %016lx\n", i, in.gpr[i],
					       out.gpr[i]);
			exit(1);
		}
		if (!thread && round % 16 == 0) {
			printf("regs ok %lu\n", round);
			fflush(stdout);
			stopped = stop && !access(stop, F_OK);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1, i;
	pthread_t ids[256];

	rounds = argc > 2 ? atol(argv[2]) : 64;
	spins = argc > 3 ? atol(argv[3]) : 1000000;
	stop = argc > 4 ? argv[4] : NULL;
	avx = __builtin_cpu_supports("avx") != 0;
	if (threads < 1 || threads > 256 || spins < 1)
		return 64;
	printf("regs start threads %ld avx %d\n", threads, avx);
	fflush(stdout);
	for (i = 1; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, (void *)i))
			return 71;
	work(NULL);
	for (i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("regs done\n");
	return 0;
}
