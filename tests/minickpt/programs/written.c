// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Files of each kind: what a call gave before the kernel died is so after it, or was refused.
 *
 *   written DIR FILE     in a directory of a disk; until FILE is there
 *
 * Each round appends a line, replaces a file by rename, removes one and makes a directory, and
 * writes the number of the round last; then it compares all with the number. It has no calls in
 * flight that the comparison could not tell: what is made again is allowed for.
 * Prints "written refused NAME" at the start for what may not be opened, "written ok ROUND";
 * "BAD ..." and ends with 1 where something is gone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void bad(const char *what, long round)
{
	printf("BAD written: %s in round %ld: %s\n", what, round, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void refused(const char *what, int result)
{
	if (result >= 0) {
		printf("BAD written: %s was given\n", what);
		exit(1);
	}
	printf("written refused %s: %s\n", what, strerror(errno));
	fflush(stdout);
}

static void refuse_all(void)
{
	int disk = open("map", O_RDWR | O_CREAT, 0600);
	void *at;

	refused("a pseudo-terminal", posix_openpt(O_RDWR | O_NOCTTY));
	refused("a namespace", unshare(CLONE_NEWNS));

	refused("a file of tmpfs", open("/tmp/volatile", O_RDWR | O_CREAT, 0600));
	mkdir("/dev/shm", 0777);
	refused("shared memory", shm_open("/volatile", O_RDWR | O_CREAT, 0600));
	if (disk < 0 || ftruncate(disk, 4096))
		bad("map", 0);
	at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, disk, 0);
	refused("a shared mapping", at == MAP_FAILED ? -1 : 0);
	close(disk);
}

/* A call that was in flight may have been made, or not, or be told EINTR. */
#define AGAIN(call)                                                                              \
	do                                                                                       \
		errno = 0;                                                                       \
	while ((call) < 0 && errno == EINTR)

static void replace(long round)
{
	char text[32];
	int fd;

	AGAIN(fd = open("next", O_WRONLY | O_CREAT | O_TRUNC, 0600));
	if (fd < 0)
		bad("open next", round);
	snprintf(text, sizeof(text), "%ld\n", round);
	if (write(fd, text, strlen(text)) < 0)
		bad("write next", round);
	close(fd);
	AGAIN(rename("next", "replaced"));
	if (errno && errno != ENOENT)
		bad("rename", round);
}

static long number(const char *name)
{
	char text[32] = "";
	int fd = open(name, O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		return -1;
	close(fd);
	return atol(text);
}

static int empty[2], full[2];

static void pipes(void)
{
	if (pipe(empty) || pipe(full) || write(full[1], "kept", 4) != 4)
		bad("pipe", 0);
}

/* One that was empty goes on, the other still holds what it held. */
static void look_at_pipes(long round)
{
	char byte = 'x';
	int held = 0;

	if (write(empty[1], &byte, 1) != 1 || read(empty[0], &byte, 1) != 1 || byte != 'x')
		bad("an empty pipe does not go on", round);
	if (ioctl(full[0], FIONREAD, &held) || held != 4)
		bad("what a pipe held is gone", round);
}

int main(int argc, char **argv)
{
	char name[32];
	long round;
	int log;

	if (argc < 3 || chdir(argv[1]))
		return 64;
	refuse_all();
	pipes();
	log = open("log", O_RDWR | O_CREAT, 0600);
	if (log < 0)
		bad("open log", 0);
	for (round = 1; access(argv[2], F_OK); round++) {
		char line[32];
		struct stat s;

		look_at_pipes(round);

		snprintf(line, sizeof(line), "%08ld\n", round);
		if (pwrite(log, line, 9, (round - 1) * 9) != 9)
			bad("write", round);
		replace(round);
		snprintf(name, sizeof(name), "d%ld", round);
		AGAIN(mkdir(name, 0700));
		if (errno && errno != EEXIST)
			bad("mkdir", round);
		snprintf(name, sizeof(name), "d%ld", round - 1);
		AGAIN(rmdir(name));
		if (errno && errno != ENOENT)
			bad("rmdir", round);
		/* Nothing of this may be gone, whenever the kernel died. */
		for (int again = 0; again < 20; again++) {
			snprintf(name, sizeof(name), "d%ld", round);
			if (fstat(log, &s) || s.st_size < round * 9)
				bad("what was written is gone", round);
			if (number("replaced") != round)
				bad("what was renamed is gone", round);
			if (access(name, F_OK))
				bad("the directory is gone", round);
			snprintf(name, sizeof(name), "d%ld", round - 1);
			if (!access(name, F_OK))
				bad("what was removed is back", round);
		}
		if (round % 4 == 0) {
			printf("written ok %ld\n", round);
			fflush(stdout);
		}
	}
	return 0;
}
