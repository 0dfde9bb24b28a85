// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Signals that interrupt a pattern in every register, and signals that are counted.
 *
 *   signals CPU SPINS FILE     until FILE is there
 *
 * A timer's signal comes while the registers hold the pattern; its handler overwrites all
 * vector registers. Then the program sends itself one signal, which must arrive once. Prints
 * "signals ok ROUND" now and then; "BAD ..." and ends with 1 if a register has changed, or a
 * signal was lost or came twice.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "pattern.h"

static volatile long alarms, sent;

__attribute__((noinline, target("avx"))) static void hold(void)
{
	HOLD_PATTERN(VL, VS, "");
}

__attribute__((target("avx"))) static void on_alarm(int number)
{
	(void)number;
	asm volatile("vzeroall" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
		     "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
	alarms++;
}

static void on_sent(int number)
{
	(void)number;
	sent++;
}

int main(int argc, char **argv)
{
	struct sigaction alarmed = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct sigaction counted = { .sa_handler = on_sent, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 5000 }, { 0, 5000 } };
	cpu_set_t cpus;
	long told = 0;

	if (argc < 4 || !__builtin_cpu_supports("avx"))
		return 64;
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[1]), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	sigaction(SIGALRM, &alarmed, NULL);
	sigaction(SIGRTMIN, &counted, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	for (long round = 1; access(argv[3], F_OK); round++) {
		fill(0, round, 4);
		memset(&out, 0, sizeof(out));
		spins_left = strtoul(argv[2], NULL, 0);
		hold();
		if (memcmp(&in, &out, sizeof(in))) {
			printf("BAD round %ld: a register has changed\n", round);
			return 1;
		}
		if (sigqueue(getpid(), SIGRTMIN, (union sigval) { 0 }) || sent != round) {
			printf("BAD round %ld: %ld signals came\n", round, sent);
			return 1;
		}
		if (alarms - told >= 20) {
			told = alarms;
			printf("signals ok %ld alarms %ld\n", round, alarms);
			fflush(stdout);
		}
	}
	printf("signals done\n");
	return 0;
}
