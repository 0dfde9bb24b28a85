// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Ends while all its threads, the first among them too, change the memory map.
 *
 *   leave exit      the second thread ends the process, with 3
 *   leave exec      it executes a shell that ends with 3
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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

static void begin(void *(*what)(void *), void *with)
{
	pthread_t thread;
	int error;

	/* A kernel makes no thread while another one executes a program (copy_fs). */
	while ((error = pthread_create(&thread, 0, what, with)) == EAGAIN)
		usleep(100);
	if (error) {
		printf("pthread_create: %s\n", strerror(error));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	begin(leave, argv[1]);
	for (int n = 0; n < 3; n++)
		begin(change, 0);
	change(0);
}
