// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Ends while all its threads, the first among them too, change the memory map.
 *
 *   leave exit      the second thread ends the process, with 3
 *   leave exec      it executes a shell that ends with 3
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *change(void *unused)
{
	for (;;) {
		void *at = mmap(0, 1 << 16, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(at, 1 << 16);
	}
	return unused;
}

static void *leave(void *how)
{
	usleep(5000);
	if (strcmp(how, "exec") == 0)
		execl("/bin/sh", "sh", "-c", "exit 3", (char *)0);
	_exit(3);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc != 2 || pthread_create(&thread, 0, leave, argv[1]))
		return 1;
	for (int n = 0; n < 3; n++)
		if (pthread_create(&thread, 0, change, 0))
			return 1;
	change(0);
}
