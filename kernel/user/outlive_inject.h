/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Killing the kernel at a chosen rank and iteration: a program calls
 * outlive_inject_step(rank, iteration) once an iteration, and the environment
 * says where the kernel dies:
 *
 *   OUTLIVE_INJECT=RANK:ITERATION:KIND[:CPU][,...]
 *
 * KIND is a word of outlive_inject_kinds; CPU a number or "any". A step that
 * was injected is not injected again after the program resumed, as the counter
 * lives in the program's memory. Needs the module outlive_inject and
 * CAP_SYS_ADMIN; without the variable a step costs one comparison.
 */
#ifndef OUTLIVE_INJECT_USER_H
#define OUTLIVE_INJECT_USER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <uapi/outlive_inject.h>

static const struct {
	const char *word;
	unsigned int kind;
} outlive_inject_kinds[] = {
	{ "panic", OMI_PANIC },		{ "null", OMI_NULL },
	{ "fs", OMI_FS },		{ "sighand", OMI_SIGHAND },
	{ "parent", OMI_PARENT },	{ "files", OMI_FILES },
	{ "lockup", OMI_LOCKUP },	{ "soft-lockup", OMI_SOFT_LOCKUP },
	{ "hung", OMI_HUNG },		{ "no-memory", OMI_NO_MEMORY },
	{ "spin-panic", OMI_SPIN_PANIC },
};

/* The kind of a word of len letters, or 0. */
static inline unsigned int outlive_inject_kind(const char *word, size_t len)
{
	size_t i;

	for (i = 0; i < sizeof(outlive_inject_kinds) / sizeof(*outlive_inject_kinds); i++)
		if (strlen(outlive_inject_kinds[i].word) == len &&
		    !memcmp(outlive_inject_kinds[i].word, word, len))
			return outlive_inject_kinds[i].kind;
	return 0;
}

/* 0, or -errno. Most kinds do not return. */
static inline int outlive_inject(unsigned int kind, unsigned int cpu, unsigned int pid,
				 unsigned int delay_ms)
{
	struct omi_inject in = {
		.version = OMI_VERSION, .kind = kind, .cpu = cpu, .pid = pid, .delay_ms = delay_ms,
	};
	int fd = open(OMI_DEVICE, O_RDWR | O_CLOEXEC), err = 0;

	if (fd < 0)
		return -errno;
	if (ioctl(fd, OMI_IOC_INJECT, &in))
		err = -errno;
	close(fd);
	/* An overwritten member kills at its next use. */
	if (!err && kind >= OMI_FS && kind <= OMI_FILES && !pid) {
		switch (kind) {
		case OMI_FS:
		case OMI_FILES:
			(void)!access("/", F_OK);
			(void)!dup(0);
			break;
		case OMI_SIGHAND:
			(void)!kill(getpid(), SIGURG);
			break;
		case OMI_PARENT:
			(void)!getppid();
			break;
		}
	}
	return err;
}

/* One entry RANK:ITERATION:KIND[:CPU]; -EINVAL if it is none. */
static inline int outlive_inject_entry(const char *at, long rank, long iteration)
{
	char *end;
	long r = strtol(at, &end, 10), i;
	unsigned int kind, cpu = OMI_ANY_CPU;
	size_t len;

	if (end == at || *end != ':')
		return -EINVAL;
	at = end + 1;
	i = strtol(at, &end, 10);
	if (end == at || *end != ':')
		return -EINVAL;
	at = end + 1;
	len = strcspn(at, ":,");
	kind = outlive_inject_kind(at, len);
	if (!kind)
		return -EINVAL;
	if (at[len] == ':' && strncmp(at + len + 1, "any", 3))
		cpu = (unsigned int)strtoul(at + len + 1, NULL, 10);
	return r == rank && i == iteration ? outlive_inject(kind, cpu, 0, 0) : 0;
}

/* 0, -EINVAL for a variable that makes no sense, or -errno of the device. */
static inline int outlive_inject_step(long rank, long iteration)
{
	const char *at = getenv("OUTLIVE_INJECT");
	int err = 0;

	while (at && *at && !err) {
		err = outlive_inject_entry(at, rank, iteration);
		at += strcspn(at, ",");
		at += *at == ',';
	}
	return err;
}

#endif /* OUTLIVE_INJECT_USER_H */
