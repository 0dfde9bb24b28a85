// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Adds, subtracts, multiplies and divides on the x87 stack and in SSE for
 * ever; the result of a round is known and must stay within 1e-5 of it, the
 * bound of the mini-ckpts study.
 *
 *   fpustress ROUNDS STEPS [FILE]     ROUNDS 0: until FILE is there
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static double rounds_of_sse(long steps)
{
	volatile double scale = 1.000001;
	double x = 1.0;

	for (long i = 0; i < steps; i++) {
		x = (x * scale + 3.25) / scale;
		x = x - 3.25 / scale;
	}
	return x;
}

static long double rounds_of_x87(long steps)
{
	volatile long double scale = 1.000001L;
	long double x = 1.0L;

	for (long i = 0; i < steps; i++) {
		x = (x * scale + 3.25L) / scale;
		x = x - 3.25L / scale;
	}
	return x;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 64, steps = argc > 2 ? atol(argv[2]) : 100000;

	printf("fpu start\n");
	fflush(stdout);
	for (long round = 1; !rounds || round <= rounds; round++) {
		double a = rounds_of_sse(steps);
		double b = (double)rounds_of_x87(steps);

		if (!(fabs(a - 1.0) < 1e-5) || !(fabs(b - 1.0) < 1e-5)) {
			printf("FPU BAD round %ld: %.17g %.17g\n", round, a, b);
			return 1;
		}
		if (round % 8 == 0) {
			printf("fpu ok %ld\n", round);
			fflush(stdout);
			if (argc > 3 && !access(argv[3], F_OK))
				break;
		}
	}
	printf("fpu done\n");
	return 0;
}
