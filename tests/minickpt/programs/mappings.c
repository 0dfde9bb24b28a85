// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory in many mappings: every second page can only be read.
 *
 *   mappings COUNT FILE READY     makes READY, and waits until FILE is there; then all pages
 *                                 are compared
 *
 * Prints "mappings ok"; "BAD ..." and ends with 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1000;
	char *at = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (argc < 4 || at == MAP_FAILED)
		return 64;
	for (long i = 0; i < count; i++)
		at[i * PAGE] = (char)i;
	for (long i = 0; i < count; i += 2) {
		if (mprotect(at + i * PAGE, PAGE, PROT_READ)) {
			perror("BAD mappings");
			return 1;
		}
	}
	if (!fopen(argv[3], "w"))
		return 1;
	while (access(argv[2], F_OK))
		usleep(20000);
	for (long i = 0; i < count; i++) {
		if (at[i * PAGE] != (char)i) {
			printf("BAD mappings: page %ld\n", i);
			return 1;
		}
	}
	printf("mappings ok\n");
	return 0;
}
