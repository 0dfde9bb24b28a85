/* Threads that compute, wait for each other, and print what they found: the same at
 * every run. Arguments: threads, steps, work per step. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 8;
	int steps = argc > 2 ? atoi(argv[2]) : 40;
	long work = argc > 3 ? atol(argv[3]) : 100000;
	double *found = calloc((size_t)threads, sizeof *found);

	if (!found)
		return 1;
	for (int step = 0; step < steps; step++) {
		double sum = 0;
#pragma omp parallel num_threads(threads)
		{
			int me = omp_get_thread_num();
			double x = found[me] + 1.0 / (me + 1);

			for (long i = 0; i < work; i++)
				x = x * 1.0000001 + 1e-9 * (double)(i % 7);
			found[me] = x;
#pragma omp barrier
		}
		for (int i = 0; i < threads; i++)
			sum += found[i];
		printf("%d %.17g\n", step, sum);
		fflush(stdout);
	}
	free(found);
	return 0;
}
