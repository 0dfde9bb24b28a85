// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A family of which two cannot be brought back: the lock of one and the number of another are
 * somebody else's by then. Both are children that were killed, for their parent; a third goes on.
 *
 *   partial DIR FILE     writes DIR/number, kills the kernel once; until FILE is there
 *   partial lock FILE    takes the lock, and keeps it
 *
 * Prints "partial ok"; "BAD ..." and ends with 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uapi/outlive_inject.h>

static volatile sig_atomic_t told;

static void on_child(int signal)
{
	(void)signal;
	told = 1;
}

static void bad(const char *what)
{
	printf("BAD partial: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static int there[2];

/* One that says that it is there, and answers on a pair of pipes until its parent is gone. */
static pid_t child(const char *locked, int from, int to)
{
	pid_t pid = fork();
	char byte;

	if (pid < 0)
		bad("fork");
	if (pid)
		return pid;
	signal(SIGCHLD, SIG_DFL);
	if (locked && flock(open(locked, O_RDWR | O_CREAT, 0600), LOCK_EX))
		bad("lock");
	if (write(there[1], "x", 1) != 1)
		bad("there");
	if (from < 0)
		for (;;)
			pause();
	while (read(from, &byte, 1) == 1)
		if (write(to, &byte, 1) != 1)
			break;
	_exit(0);
}

int main(int argc, char **argv)
{
	struct omi_inject in = { .version = OMI_VERSION, .kind = OMI_PANIC, .cpu = OMI_ANY_CPU };
	int out[2], back[2], device, status, i;
	pid_t locked, numbered, lives;
	FILE *number;
	char byte;

	if (argc == 3 && !strcmp(argv[1], "lock")) {
		if (flock(open(argv[2], O_RDWR | O_CREAT, 0600), LOCK_EX))
			bad("lock");
		for (;;)
			pause();
	}
	if (argc < 3 || chdir(argv[1]) || pipe(there) || pipe(out) || pipe(back))
		return 64;
	signal(SIGCHLD, on_child);
	locked = child("locked", -1, -1);
	numbered = child(NULL, -1, -1);
	lives = child(NULL, out[0], back[1]);
	for (i = 0; i < 3; i++)
		if (read(there[0], &byte, 1) != 1)
			bad("there");
	number = fopen("number", "w");
	fprintf(number, "%d\n", numbered);
	fclose(number);
	told = 0;
	device = open(OMI_DEVICE, O_RDWR);
	if (!ioctl(device, OMI_IOC_INJECT, &in) || errno != EINTR)
		bad("not dead");
	for (i = 0; i < 100 && !told; i++)
		usleep(20000);
	if (!told)
		bad("no SIGCHLD");
	if (waitpid(locked, &status, 0) != locked || status != SIGKILL)
		bad("one whose lock another has");
	/* Its number is another's: there can be no child of it. */
	if (waitpid(numbered, &status, 0) != -1 || errno != ECHILD)
		bad("one whose number another has");
	if (write(out[1], "y", 1) != 1 || read(back[0], &byte, 1) != 1 || byte != 'y')
		bad("one that lives");
	printf("partial ok\n");
	fflush(stdout);
	while (access(argv[2], F_OK))
		usleep(20000);
	kill(lives, SIGKILL);
	return 0;
}
