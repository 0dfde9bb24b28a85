// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * One thread in each state that a dying kernel can find: st-spin in user mode,
 * st-sleep and st-read in calls that wait, st-calls in and out of short calls
 * that use every task member which the injector overwrites. A registered
 * handler, an alternate stack, a file at a position and a directory make the
 * rest of the state worth looking at.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int ends[2];
static char stack[16384];

static void handler(int number)
{
	(void)number;
}

static void *spin(void *unused)
{
	prctl(PR_SET_NAME, "st-spin");
	for (volatile unsigned long i = 0;; i++)
		;
	return unused;
}

static void *sleeper(void *unused)
{
	struct timespec long_time = { .tv_sec = 100000 };

	prctl(PR_SET_NAME, "st-sleep");
	nanosleep(&long_time, NULL);
	return unused;
}

static void *reader(void *unused)
{
	char c;

	prctl(PR_SET_NAME, "st-read");
	if (read(ends[0], &c, 1) < 0)
		perror("read");
	return unused;
}

int main(void)
{
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK };
	struct timespec pause = { .tv_nsec = 2000000 };
	sigset_t set;
	pthread_t id;
	int file;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	umask(027);
	if (pipe(ends) || chdir("/tmp") || sigaltstack(&alternate, NULL) ||
	    sigaction(SIGUSR1, &action, NULL) || sigprocmask(SIG_BLOCK, &set, NULL))
		return 71;
	file = open("/dax/states.txt", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0 || write(file, "0123456789", 10) != 10 || lseek(file, 7, SEEK_SET) != 7)
		return 71;
	if (pthread_create(&id, NULL, spin, NULL) || pthread_create(&id, NULL, sleeper, NULL) ||
	    pthread_create(&id, NULL, reader, NULL))
		return 71;
	prctl(PR_SET_NAME, "st-calls");
	printf("states start\n");
	fflush(stdout);
	for (;;) {
		getppid();
		close(dup(file));
		access("/", F_OK);
		sigaction(SIGUSR1, &action, NULL);
		nanosleep(&pause, NULL);
	}
}
