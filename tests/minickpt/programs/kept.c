// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * kept STOP: sets supplementary groups, interval timers, a controlling terminal and its
 * settings, and queues signals with values. When STOP is there, all must be as it was,
 * however often the kernel died in between: "KEPT", else "BAD" and what is not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define VALUES 5
#define BOUND_S 60

static volatile sig_atomic_t alarms[2];
static int bad;

static void wrong(const char *what)
{
	printf("BAD %s\n", what);
	bad = 1;
}

static void on_alarm(int number)
{
	alarms[number == SIGVTALRM]++;
}

static void set_timer(int which, long interval_us, long value_s, long value_us)
{
	struct itimerval timer = { .it_interval = { .tv_usec = interval_us },
				   .it_value = { .tv_sec = value_s, .tv_usec = value_us } };

	if (setitimer(which, &timer, NULL)) {
		perror("setitimer");
		exit(71);
	}
}

static void take(const sigset_t *set, int number, int value)
{
	const struct timespec now = { 0 };
	siginfo_t info;

	if (sigtimedwait(set, &info, &now) < 0)
		return wrong("a queued signal is gone");
	if (info.si_signo != number || info.si_value.sival_int != value ||
	    info.si_code != SI_QUEUE || info.si_pid != getpid())
		wrong("a queued signal is another");
}

int main(int argc, char **argv)
{
	const gid_t groups[] = { 7, 1234, 70000 };
	const struct winsize size = { .ws_row = 33, .ws_col = 77 };
	const struct timespec pause = { .tv_nsec = 20000000 }, now = { 0 };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct termios set, is;
	struct winsize size_is;
	struct itimerval left;
	gid_t groups_are[8];
	sigset_t queued;
	siginfo_t info;
	time_t end;
	int tty, i;

	if (argc != 2)
		return 64;
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigemptyset(&queued);
	sigaddset(&queued, SIGRTMIN);
	sigaddset(&queued, SIGRTMIN + 1);
	if (setgroups(3, groups) || setsid() < 0 || sigprocmask(SIG_BLOCK, &queued, NULL) ||
	    sigaction(SIGALRM, &action, NULL) || sigaction(SIGVTALRM, &action, NULL)) {
		perror("kept");
		return 71;
	}
	/* The leader of a session gets the terminal that it opens. */
	tty = open("/dev/ttyS0", O_RDWR);
	if (tty < 0 || tcgetattr(tty, &set)) {
		perror("/dev/ttyS0");
		return 71;
	}
	set.c_lflag &= ~(ICANON | ECHO);
	set.c_cc[VMIN] = 3;
	set.c_cc[VINTR] = 7;
	if (tcsetattr(tty, TCSANOW, &set) || tcgetattr(tty, &set) ||
	    ioctl(tty, TIOCSWINSZ, &size) || tcgetpgrp(tty) != getpgrp()) {
		perror("terminal");
		return 71;
	}
	for (i = 1; i <= VALUES; i++)
		if (sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = i }))
			return 71;
	if (pthread_sigqueue(pthread_self(), SIGRTMIN + 1, (union sigval){ .sival_int = 9 }))
		return 71;
	set_timer(ITIMER_PROF, 0, 3600, 0);
	set_timer(ITIMER_VIRTUAL, 50000, 0, 50000);
	set_timer(ITIMER_REAL, 300000, 0, 300000);
	printf("kept start\n");
	while (access(argv[1], F_OK))
		nanosleep(&pause, NULL);

	alarms[0] = alarms[1] = 0;
	end = time(NULL) + BOUND_S;
	while ((alarms[0] < 2 || alarms[1] < 2) && time(NULL) < end)
		;
	if (alarms[0] < 2)
		wrong("ITIMER_REAL");
	if (alarms[1] < 2)
		wrong("ITIMER_VIRTUAL");
	if (getitimer(ITIMER_PROF, &left) || left.it_value.tv_sec < 3000 ||
	    left.it_value.tv_sec >= 3600 || left.it_interval.tv_sec)
		wrong("ITIMER_PROF");
	if (getgroups(8, groups_are) != 3 || memcmp(groups_are, groups, sizeof(groups)))
		wrong("supplementary groups");
	if (tcgetattr(tty, &is) || memcmp(&is, &set, sizeof(is)))
		wrong("settings of the terminal");
	if (ioctl(tty, TIOCGWINSZ, &size_is) || size_is.ws_row != 33 || size_is.ws_col != 77)
		wrong("size of the terminal");
	if (tcgetpgrp(tty) != getpgrp() || tcgetsid(tty) != getpid())
		wrong("process group in the foreground");
	sigdelset(&queued, SIGRTMIN + 1);
	for (i = 1; i <= VALUES; i++)
		take(&queued, SIGRTMIN, i);
	sigdelset(&queued, SIGRTMIN);
	sigaddset(&queued, SIGRTMIN + 1);
	take(&queued, SIGRTMIN + 1, 9);
	sigaddset(&queued, SIGRTMIN);
	if (sigtimedwait(&queued, &info, &now) >= 0 || errno != EAGAIN)
		wrong("a queued signal came twice");
	if (!bad)
		printf("KEPT\n");
	return bad;
}
