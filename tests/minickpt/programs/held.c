// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What open files hold in the kernel, over one death: locks of each kind, counters, timers,
 * signals, what an epoll watches, and what pipes and pairs of sockets hold.
 *
 *   held DIR FILE     kills the kernel once; until FILE is there
 *
 * Prints "held ok"; "BAD ..." and ends with 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uapi/outlive_inject.h>

static void bad(const char *what)
{
	printf("BAD held: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static int opened(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	if (fd < 0)
		bad(name);
	return fd;
}

static struct flock range(short type, off_t start, off_t length)
{
	return (struct flock){ .l_type = type, .l_start = start, .l_len = length };
}

static int whole, process, description, reads;

static void lock(void)
{
	struct flock one = range(F_WRLCK, 10, 10), rest = range(F_WRLCK, 100, 0);
	struct flock shared = range(F_RDLCK, 0, 5);

	whole = opened("whole");
	process = opened("process");
	description = opened("description");
	reads = opened("reads");
	if (flock(whole, LOCK_EX) || fcntl(process, F_SETLK, &one) ||
	    fcntl(process, F_SETLK, &rest) || fcntl(description, F_OFD_SETLK, &one) ||
	    flock(reads, LOCK_SH) || fcntl(reads, F_SETLK, &shared))
		bad("lock");
}

/* In a child, which has none of its parent's: others meet what is locked, and nothing more. */
static void look(void)
{
	const struct {
		const char *name;
		off_t start, length;
		short type;
	} all[] = {
		{ "process", 10, 10, F_WRLCK },	    { "process", 100, 0, F_WRLCK },
		{ "process", 20, 80, F_UNLCK },	    { "description", 10, 10, F_WRLCK },
		{ "description", 0, 10, F_UNLCK }, { "reads", 0, 5, F_RDLCK },
	};
	int status;
	pid_t pid = fork();

	if (pid < 0)
		bad("fork");
	if (pid) {
		if (waitpid(pid, &status, 0) != pid || status)
			bad("a lock is not there");
		return;
	}
	if (!flock(opened("whole"), LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
		bad("flock");
	if (flock(opened("reads"), LOCK_SH | LOCK_NB) || !flock(opened("reads"), LOCK_EX | LOCK_NB))
		bad("shared flock");
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct flock is = range(F_WRLCK, all[i].start, all[i].length);

		if (fcntl(opened(all[i].name), F_GETLK, &is) || is.l_type != all[i].type ||
		    (is.l_type != F_UNLCK && (is.l_start != all[i].start || is.l_len != all[i].length)))
			bad(all[i].name);
	}
	_exit(0);
}

static int count, one, ticks, later, signals, poller, holds[2], stream[2], messages[2], shut[2];

static void watch(int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event))
		bad("epoll_ctl");
}

static void make(void)
{
	const struct itimerspec soon = { .it_value.tv_nsec = 1, .it_interval.tv_sec = 3600 };
	const struct itimerspec far = { .it_value.tv_sec = 3600 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	count = eventfd(7, EFD_NONBLOCK);
	one = eventfd(3, EFD_SEMAPHORE);
	ticks = timerfd_create(CLOCK_MONOTONIC, 0);
	later = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
	signals = signalfd(-1, &set, 0);
	poller = epoll_create1(EPOLL_CLOEXEC);
	if (count < 0 || one < 0 || signals < 0 || poller < 0 || sigprocmask(SIG_BLOCK, &set, NULL) ||
	    timerfd_settime(ticks, 0, &soon, NULL) || timerfd_settime(later, 0, &far, NULL) ||
	    pipe(holds) || socketpair(AF_UNIX, SOCK_STREAM, 0, stream) ||
	    socketpair(AF_UNIX, SOCK_DGRAM, 0, messages) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, shut))
		bad("make");
	watch(count, EPOLLIN | EPOLLET, 0x123456789abcdef0);
	watch(holds[0], EPOLLIN, 2);
	watch(later, EPOLLIN, 3);
	watch(stream[0], EPOLLIN | EPOLLONESHOT, 4);
	if (write(holds[1], "in a pipe", 9) != 9 || write(stream[1], "tostart", 7) != 7 ||
	    write(stream[0], "back", 4) != 4 || read(stream[0], (char[2]){ 0 }, 2) != 2 ||
	    write(messages[0], "first", 5) != 5 || write(messages[0], "2nd", 3) != 3 ||
	    write(shut[0], "last", 4) != 4 || close(shut[0]))
		bad("write");
	usleep(20000); /* the timer goes off */
}

static void meet(int fd, const char *want)
{
	char text[64] = "";
	ssize_t got = read(fd, text, sizeof(text));

	if (got != (ssize_t)strlen(want) || memcmp(text, want, strlen(want))) {
		printf("want %s, got %zd %s\n", want, got, text);
		bad("what was held");
	}
}

static uint64_t number(int fd)
{
	uint64_t value = 0;

	if (read(fd, &value, 8) != 8)
		bad("a counter");
	return value;
}

static void check(void)
{
	struct signalfd_siginfo info;
	struct epoll_event events[8];
	struct itimerspec left;
	uint64_t seen = 0;
	int i, n = epoll_wait(poller, events, 8, 0);

	for (i = 0; i < n; i++)
		seen |= events[i].data.u64 == 0x123456789abcdef0 ? 1 : 1 << events[i].data.u64;
	if (n != 3 || seen != (1 | 1 << 2 | 1 << 4))
		bad("events of the epoll");
	if (epoll_ctl(poller, EPOLL_CTL_DEL, later, NULL))
		bad("what the epoll watches");
	if (number(count) != 7 || number(one) != 1 || number(one) != 1 || number(ticks) != 1)
		bad("numbers");
	if (read(count, &seen, 8) != -1 || errno != EAGAIN)
		bad("flags");
	if (timerfd_gettime(later, &left) || left.it_value.tv_sec < 3000 ||
	    timerfd_gettime(ticks, &left) || left.it_interval.tv_sec != 3600)
		bad("what is left of a timer");
	raise(SIGUSR1);
	if (read(signals, &info, sizeof(info)) != sizeof(info) || info.ssi_signo != SIGUSR1)
		bad("signalfd");
	meet(holds[0], "in a pipe");
	meet(stream[0], "start");
	meet(stream[1], "back");
	meet(messages[1], "first");
	meet(messages[1], "2nd");
	meet(shut[1], "last");
	meet(shut[1], "");
	if (write(stream[0], "on", 2) != 2)
		bad("stream");
	meet(stream[1], "on");
}

int main(int argc, char **argv)
{
	struct omi_inject in = { .version = OMI_VERSION, .kind = OMI_PANIC, .cpu = OMI_ANY_CPU };
	int device;

	if (argc < 3 || chdir(argv[1]))
		return 64;
	lock();
	look();
	make();
	device = open(OMI_DEVICE, O_RDWR);
	if (!ioctl(device, OMI_IOC_INJECT, &in) || errno != EINTR)
		bad("not dead");
	look();
	check();
	printf("held ok\n");
	fflush(stdout);
	while (access(argv[2], F_OK))
		usleep(20000);
	return 0;
}
