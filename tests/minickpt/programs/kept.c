// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * kept STOP: sets supplementary groups, interval timers, timers of timer_create, a
 * controlling terminal and its settings, and queues signals with values. When STOP is there, all must be as it was,
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

/* Numbers 0, 2, 3 and 4: the one between is deleted. */
static timer_t ticks, far, used, thread_used;

static void make(timer_t *timer, clockid_t clock, int flags, long s, long interval_ns)
{
	struct sigevent event = { .sigev_notify = interval_ns ? SIGEV_SIGNAL : SIGEV_NONE,
				  .sigev_signo = SIGRTMIN + 2,
				  .sigev_value = { .sival_int = 5 } };
	struct itimerspec times = { .it_interval = { .tv_nsec = interval_ns },
				    .it_value = { .tv_sec = s, .tv_nsec = interval_ns } };

	if (timer_create(clock, &event, timer) || timer_settime(*timer, flags, &times, NULL)) {
		perror("timer");
		exit(71);
	}
}

static void make_timers(void)
{
	timer_t between;

	make(&ticks, CLOCK_MONOTONIC, 0, 0, 50000000);
	make(&between, CLOCK_MONOTONIC, 0, 1, 0);
	make(&far, CLOCK_REALTIME, TIMER_ABSTIME, time(NULL) + 3600, 0);
	make(&used, CLOCK_PROCESS_CPUTIME_ID, 0, 3600, 0);
	make(&thread_used, CLOCK_THREAD_CPUTIME_ID, 0, 3600, 0);
	timer_delete(between);
}

static void check_timers(void)
{
	const timer_t all[] = { far, used, thread_used };
	const struct timespec bound = { .tv_sec = BOUND_S };
	struct itimerspec is;
	siginfo_t info;
	sigset_t set;
	int i;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 2);
	for (i = 0; i < 3; i++)
		if (sigtimedwait(&set, &info, &bound) < 0 || info.si_code != SI_TIMER ||
		    info.si_value.sival_int != 5)
			wrong("a timer does not tick");
	if (timer_gettime(ticks, &is) || is.it_interval.tv_nsec != 50000000 ||
	    is.it_interval.tv_sec)
		wrong("interval of a timer");
	for (i = 0; i < 3; i++)
		if (timer_gettime(all[i], &is) || is.it_value.tv_sec < 3000 ||
		    is.it_value.tv_sec >= 3600 || is.it_interval.tv_nsec)
			wrong("what is left of a timer");
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
	sigset_t queued, blocked;
	siginfo_t info;
	time_t end;
	int tty, i;

	if (argc != 2)
		return 64;
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigemptyset(&queued);
	sigaddset(&queued, SIGRTMIN);
	sigaddset(&queued, SIGRTMIN + 1);
	blocked = queued;
	sigaddset(&blocked, SIGRTMIN + 2);
	if (setgroups(3, groups) || setsid() < 0 || sigprocmask(SIG_BLOCK, &blocked, NULL) ||
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
	make_timers();
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
	check_timers();
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
	/* The terminal hangs up when its leader ends, and drops what it has not sent. */
	tcdrain(STDOUT_FILENO);
	return bad;
}
