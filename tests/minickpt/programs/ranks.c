// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Starts ranks of a job by posix_spawn and waits for all of them.
 *
 *   ranks FIRST COUNT PROGRAM ARGUMENT...     ends with the first status that is not 0
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
	long first = argc > 3 ? atol(argv[1]) : 0, count = argc > 3 ? atol(argv[2]) : 0;
	int status, worst = 0;
	char name[32];
	pid_t pid;

	if (count < 1 || count > 64)
		return 64;
	for (long rank = first; rank < first + count; rank++) {
		snprintf(name, sizeof(name), "%ld", rank);
		setenv("OUTLIVE_COMM_RANK", name, 1);
		if (posix_spawn(&pid, argv[3], NULL, NULL, argv + 3, environ))
			return 71;
	}
	while (wait(&status) > 0)
		if (!worst && status)
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 70;
	return worst;
}
