/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Killing a kernel on purpose, to test what outlives it: /dev/outlive-inject.
 */
#ifndef _UAPI_OUTLIVE_INJECT_H
#define _UAPI_OUTLIVE_INJECT_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define OMI_DEVICE	"/dev/outlive-inject"
#define OMI_VERSION	1

enum omi_kind {
	OMI_PANIC = 1,		/* call panic() */
	OMI_NULL = 2,		/* read through a null pointer: an oops */
	OMI_FS = 3,		/* overwrite task->fs */
	OMI_SIGHAND = 4,	/* overwrite task->sighand */
	OMI_PARENT = 5,		/* overwrite task->real_parent and ->parent */
	OMI_FILES = 6,		/* overwrite task->files */
	OMI_LOCKUP = 7,		/* spin with interrupts off, for ever */
	OMI_SOFT_LOCKUP = 8,	/* spin without preemption, for ever */
	OMI_HUNG = 9,		/* sleep uninterruptibly, for ever */
	OMI_NO_MEMORY = 10,	/* every allocation fails from now on; panic */
	OMI_SPIN_PANIC = 11,	/* after the delay the caller spins with interrupts
				 * off and another processor (cpu, if not its own)
				 * panics
				 */
};

#define OMI_ANY_CPU	0xffffffffU

struct omi_inject {
	__u32 version;		/* OMI_VERSION */
	__u32 kind;
	__u32 cpu;		/* where it happens, or OMI_ANY_CPU: where the caller is */
	__u32 pid;		/* whose task is overwritten; 0: the caller's */
	__u32 delay_ms;		/* the call returns and it happens later; 0: at once */
	__u32 reserved;
};

#define OMI_IOC_INJECT	_IOW('K', 0x80, struct omi_inject)

#endif /* _UAPI_OUTLIVE_INJECT_H */
