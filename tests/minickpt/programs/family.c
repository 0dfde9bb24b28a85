// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Children that have ended when the kernel dies, and one that has left its family: their
 * parent, which had not waited for them, is told how they ended; the other one goes on.
 *
 *   family FILE     kills the kernel once; until FILE is there
 *
 * Prints "family ok"; "BAD ..." and ends with 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uapi/outlive_inject.h>

static void bad(const char *what, int number)
{
	printf("BAD family: %s: %d: %s\n", what, number, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static pid_t child(int signal)
{
	pid_t pid = fork();

	if (pid < 0)
		bad("fork", 0);
	if (!pid) {
		if (signal)
			raise(signal);
		_exit(3);
	}
	return pid;
}

/* Waits until a child has ended, and leaves it. */
static void ended(pid_t pid)
{
	siginfo_t info;

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT))
		bad("waitid", pid);
}

int main(int argc, char **argv)
{
	struct omi_inject in = { .version = OMI_VERSION, .kind = OMI_PANIC, .cpu = OMI_ANY_CPU };
	int status, device, signals[] = { 0, SIGTERM, SIGKILL };
	pid_t pids[3], between;

	if (argc < 2)
		return 64;
	/* Its parent ends: it belongs to nobody here. */
	between = fork();
	if (!between) {
		if (fork())
			_exit(0);
		while (access(argv[1], F_OK))
			usleep(20000);
		printf("family: the one that left\n");
		return 0;
	}
	if (waitpid(between, &status, 0) != between || status)
		bad("the one between", status);
	for (int i = 0; i < 3; i++) {
		pids[i] = child(signals[i]);
		ended(pids[i]);
	}
	device = open(OMI_DEVICE, O_RDWR);
	if (!ioctl(device, OMI_IOC_INJECT, &in) || errno != EINTR)
		bad("not dead", 0);
	for (int i = 0; i < 3; i++) {
		int want = signals[i] ? signals[i] : 3 << 8;

		if (waitpid(pids[i], &status, 0) != pids[i])
			bad("nobody ended", i);
		if (status != want)
			bad("another status", status);
	}
	if (waitpid(-1, &status, 0) != -1 || errno != ECHILD)
		bad("one child too many", status);
	printf("family ok\n");
	fflush(stdout);
	while (access(argv[1], F_OK))
		usleep(20000);
	return 0;
}
