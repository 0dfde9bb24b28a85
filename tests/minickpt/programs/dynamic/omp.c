// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * OpenMP threads: an array that all update in turn between barriers, and a line
 * of its sum after each 20 sweeps (2 for many threads). The sum is made in order,
 * so it has one value.
 *
 *   omp THREADS FILE [LINES]     until FILE is there or so many lines are printed
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CELLS 4096

static double a[CELLS], b[CELLS];

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 8, i;
	int sweeps = threads > 64 ? 2 : 20;
	long lines = argc > 3 ? atol(argv[3]) : 1L << 40;

	omp_set_num_threads(threads);
	for (i = 0; i < CELLS; i++)
		a[i] = sin(i);
	for (long line = 1; line <= lines && (argc < 3 || access(argv[2], F_OK)); line++) {
		double sum = 0;
		int seen = 0;

#pragma omp parallel reduction(+ : seen)
		for (int sweep = 0; sweep < sweeps; sweep++) {
			seen += sweep == 0;
#pragma omp for schedule(static)
			for (int k = 0; k < CELLS; k++)
				b[k] = 0.4 * a[(k + CELLS - 1) % CELLS] + 0.35 * a[k] +
				       0.3 * sin(a[(k + 1) % CELLS]);
#pragma omp for schedule(static)
			for (int k = 0; k < CELLS; k++)
				a[k] = b[k] - 1e-3 * b[k] * b[k];
		}
		for (i = 0; i < CELLS; i++)
			sum += a[i];
		printf("line %ld %d %a end\n", line, seen, sum);
		fflush(stdout);
	}
	return 0;
}
