// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Takes memory, 4 MiB at a time, until there is no more; lives on and says so.
 *
 *   eat
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define STEP (4L << 20)
#define MOST 1024

int main(void)
{
	int n, why = 0;

	for (n = 0; n < MOST; n++) {
		char *p = mmap(NULL, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED) {
			why = errno;
			break;
		}
		memset(p, 1 + n % 255, STEP);
	}
	printf("ATE %ld MiB, then %s\n", n * (STEP >> 20), why ? strerror(why) : "no end");
	return why == ENOMEM ? 0 : 1;
}
