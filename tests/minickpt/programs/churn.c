// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Threads that are made and end all the time: each counts once and is joined.
 *
 *   churn ROUNDS FILE     ROUNDS 0: until FILE is there
 *
 * Prints "churn ok ROUND" now and then; "BAD ..." and ends with 1 if a thread was
 * lost or ran twice.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8

static long counted[THREADS];

static void *count(void *of)
{
	++*(long *)of;
	return of;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 0, round;
	pthread_t threads[THREADS];
	void *said;

	if (argc < 3)
		return 64;
	for (round = 1; (!rounds || round <= rounds) && access(argv[2], F_OK); round++) {
		for (int i = 0; i < THREADS; i++) {
			int why;

			/* There may be no memory for it at the moment. */
			do
				why = pthread_create(&threads[i], NULL, count, &counted[i]);
			while (why == EAGAIN);
			if (why) {
				printf("BAD round %ld thread %d: %s\n", round, i, strerror(why));
				return 1;
			}
		}
		for (int i = 0; i < THREADS; i++) {
			if (pthread_join(threads[i], &said) || said != &counted[i] || counted[i] != round) {
				printf("BAD round %ld thread %d counted %ld\n", round, i, counted[i]);
				return 1;
			}
		}
		if (round % 16 == 0) {
			printf("churn ok %ld\n", round);
			fflush(stdout);
		}
	}
	printf("churn done\n");
	return 0;
}
