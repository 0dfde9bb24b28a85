/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Outlive mini-checkpoints: records of what open files hold in the kernel, as
 * outlive_minickpt.h names them.
 */
#ifndef _UAPI_OUTLIVE_MINICKPT_FILES_H
#define _UAPI_OUTLIVE_MINICKPT_FILES_H

#include <linux/types.h>

#define OMK_LOCKS_MAX	4096	/* of a process */

/* lock.kind */
#define OMK_LOCK_FLOCK	1
#define OMK_LOCK_OFD	2	/* fcntl(F_OFD_SETLK) */
#define OMK_LOCK_POSIX	3	/* fcntl(F_SETLK) */
#define OMK_LOCK_LEASE	4	/* fcntl(F_SETLEASE) */

/* A lock that is held; a description that is shared is named by each that has it. */
struct omk_lock {
	__u64 description;	/* as in struct omk_fd */
	__u32 fd;
	__u16 kind;		/* OMK_LOCK_* */
	__u16 type;		/* F_RDLCK, F_WRLCK */
	__u64 start, end;	/* first and last byte */
};

/* special.kind */
#define OMK_SPECIAL_OTHER	0	/* its name says which */
#define OMK_SPECIAL_EVENT	1	/* value: count, whether a semaphore */
#define OMK_SPECIAL_TIMER	2	/* clock and TFD_* of settime (high half), interval,
					 * what is left (0: not set), expirations not read
					 */
#define OMK_SPECIAL_EPOLL	3	/* how many files it watches; events, data and fd of the
					 * last
					 */
#define OMK_SPECIAL_UNIX	4	/* itself, its peer (both numbers without meaning),
					 * SOCK_* and what is shut down (high half),
					 * messages that wait
					 */
#define OMK_SPECIAL_SIGNAL	5	/* signals that it does not take */

/* special.flags */
#define OMK_SPECIAL_DAMAGED	(1U << 0)	/* could not be read, or was being changed */
#define OMK_SPECIAL_ABSOLUTE	(1U << 1)	/* the time is one of its clock */
#define OMK_SPECIAL_NAMED	(1U << 2)	/* a socket that others can find */

/* A descriptor with a state of its own. */
struct omk_special {
	__u64 description;	/* as in struct omk_fd */
	__u32 kind;
	__u32 flags;
	__u64 value[4];
	char name[16];
};

/* What an epoll watches. */
struct omk_watched {
	__u64 description;	/* of the epoll */
	__u64 target;		/* description of the file */
	__u32 fd;		/* as which it was added */
	__u32 events;
	__u64 data;
};

#define OMK_CHUNK_LOST	(1U << 0)	/* there was more, or it could not be read */

/* A piece of what a pipe or a socket holds, in their order; len bytes follow, and are
 * filled up to a multiple of 8.
 */
struct omk_chunk {
	__u64 description;	/* of the end that reads */
	__u32 len;
	__u32 flags;		/* OMK_CHUNK_* */
};

#endif /* _UAPI_OUTLIVE_MINICKPT_FILES_H */
