/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Outlive mini-checkpoints: what survives a kernel panic, and the calls of
 * /dev/outlive-minickpt.
 *
 * The area is a range of physical memory that no kernel uses (memmap=SIZE$ADDR).
 * All numbers are little-endian; every structure is a multiple of 8 bytes and
 * has no padding of the compiler's; reserved fields are zero.
 *
 *   0                superblock, struct omk_super      (4096 bytes)
 *   4096             marks, struct omk_marks           (4096 bytes)
 *   image_off[0]     image of odd generations
 *   image_off[1]     image of even generations
 *
 * An image is struct omk_image (OMK_IMAGE_HEADER bytes) and then records. Each
 * record is struct omk_rec and its payload, and begins at a multiple of 64.
 * The header is written after all the records, so an image whose header is
 * whole (magic, header_crc, generation) is whole, and body_crc proves it.
 *
 * At a panic the module writes generation = super.generation + 1, unless the
 * newest image was not yet acknowledged (OMK_IOC_ACK): then a restore was
 * going on, and the old image is kept so that it can be tried again;
 * marks.retries counts that.
 */
#ifndef _UAPI_OUTLIVE_MINICKPT_H
#define _UAPI_OUTLIVE_MINICKPT_H

#include <linux/ioctl.h>
#include <linux/types.h>

#include <uapi/outlive_minickpt_files.h>

#define OMK_ABI_VERSION		1
#define OMK_DEVICE		"/dev/outlive-minickpt"

#define OMK_SUPER_MAGIC		0x315250534b4d4fULL	/* "OMKSPR1" */
#define OMK_IMAGE_MAGIC		0x31474d494b4d4fULL	/* "OMKIMG1" */
#define OMK_MARKS_MAGIC		0x314b524d4b4d4fULL	/* "OMKMRK1" */
#define OMK_REC_MAGIC		0x43524d4fU		/* "OMRC" */

#define OMK_SUPER_SIZE		4096
#define OMK_MARKS_OFF		4096
#define OMK_IMAGES_OFF		8192
#define OMK_IMAGE_HEADER	4096
#define OMK_ALIGN		64
#define OMK_AREA_MIN		(256 * 1024)
#define OMK_RETRIES_MAX		3	/* panics during one restore: give up */

/* crc32c-free on purpose: CRC-32 of IEEE 802.3 (zlib's), as crc32() of zlib. */

struct omk_super {
	__u64 magic;
	__u32 version;
	__u32 size;		/* of this structure */
	__u64 area_addr;	/* physical */
	__u64 area_size;
	__u64 image_off[2];	/* from the start of the area */
	__u64 image_size;	/* each, with its header */
	__u64 generation;	/* of the newest image; 0: none yet */
	__u64 acked;		/* newest generation that was restored or given up */
	__u64 boots;		/* module loads since the area was formatted */
	__u32 reserved;
	__u32 crc;		/* of all bytes before it */
};

/* Why the kernel died: the event that came first. */
enum omk_cause {
	OMK_CAUSE_PANIC = 1,	/* panic() called */
	OMK_CAUSE_OOPS = 2,	/* die notifier: oops */
	OMK_CAUSE_NMI_WATCHDOG = 3,
	OMK_CAUSE_SOFT_LOCKUP = 4,
	OMK_CAUSE_HUNG_TASK = 5,
	OMK_CAUSE_NO_MEMORY = 6,
};

/* image.flags */
#define OMK_IMAGE_TRUNCATED	(1U << 0)	/* a record did not fit */
#define OMK_IMAGE_FAULTED	(1U << 1)	/* a step died and was left out */
#define OMK_IMAGE_CPU_MISSING	(1U << 2)	/* a processor never answered */

struct omk_image {
	__u64 magic;
	__u32 version;
	__u32 size;		/* of this structure */
	__u64 generation;
	__u32 flags;
	__u32 cause;		/* enum omk_cause */
	__u64 body_len;		/* bytes of records after OMK_IMAGE_HEADER */
	__u32 body_crc;
	__u32 nr_processes;
	__u32 nr_threads;
	__u32 nr_records;
	__u64 panic_tsc;	/* at the first notice of the panic */
	__u64 panic_mono_ns;	/* CLOCK_MONOTONIC of the dying kernel */
	__u64 panic_boot_ns;	/* CLOCK_BOOTTIME */
	__u64 panic_real_ns;	/* CLOCK_REALTIME */
	__u64 saved_tsc;	/* when the image was complete */
	__u64 stop_tsc;		/* when the other processors had stopped */
	__u64 tsc_khz;
	__u64 xcr0;
	__u32 xstate_size;	/* bytes of the uncompacted XSAVE area */
	__u32 cpu;		/* that panicked */
	__u32 nr_cpus;
	__u32 cpus_missing;
	char release[72];	/* uname -r */
	char build[104];	/* uname -v */
	char message[256];	/* of panic() */
	__u32 reserved;
	__u32 header_crc;	/* of all bytes before it */
};

enum omk_rec_type {
	OMK_REC_PROCESS = 1,	/* struct omk_process */
	OMK_REC_THREAD = 2,	/* struct omk_thread, then xstate_len bytes */
	OMK_REC_VMAS = 3,	/* struct omk_vma[] */
	OMK_REC_FDS = 4,	/* struct omk_fd[] */
	OMK_REC_SIGACTIONS = 5,	/* struct omk_sigaction[64] */
	OMK_REC_STRINGS = 6,	/* zero-terminated paths, see *_path */
	OMK_REC_END = 7,	/* empty */
	OMK_REC_GROUPS = 8,	/* __u32[]: supplementary groups */
	OMK_REC_TIMERS = 9,	/* struct omk_timer[3]: real, virtual, profiling */
	OMK_REC_TERMINALS = 10,	/* struct omk_terminal[] */
	OMK_REC_QUEUED = 11,	/* struct omk_queued[] */
	OMK_REC_POSIX_TIMERS = 12,	/* struct omk_posix_timer[] */
	OMK_REC_ENDED = 13,	/* struct omk_ended[] */
	OMK_REC_LOCKS = 14,	/* struct omk_lock[] */
	OMK_REC_SPECIALS = 15,	/* struct omk_special[] */
	OMK_REC_WATCHED = 16,	/* struct omk_watched[] */
	OMK_REC_HELD = 17,	/* struct omk_chunk with its bytes, one behind the other */
};

/* rec.flags */
#define OMK_REC_TRUNCATED	(1U << 0)	/* more was there than fitted */
#define OMK_REC_DAMAGED		(1U << 1)	/* a pointer could not be read */

struct omk_rec {
	__u32 magic;
	__u32 type;
	__u32 flags;
	__u32 count;		/* elements of an array, else 1 */
	__u64 len;		/* of the payload, without what aligns the next */
	__u32 tgid;
	__u32 id;		/* tid of OMK_REC_THREAD, else 0 */
};

/* process.flags, and what was found broken in the dying kernel */
#define OMK_PROC_FILES_REPLACED	(1U << 0)	/* task->files was not what it had been */
#define OMK_PROC_FS_REPLACED	(1U << 1)
#define OMK_PROC_SIGHAND_REPLACED (1U << 2)
#define OMK_PROC_PARENT_REPLACED (1U << 3)
#define OMK_PROC_MMAP_LOCKED	(1U << 4)	/* a thread was changing the memory map */
#define OMK_PROC_EXITING	(1U << 5)
#define OMK_PROC_MM_REPLACED	(1U << 6)	/* it ran another program (execve): its memory
						 * is not what was registered
						 */
#define OMK_PROC_UNDUMPABLE	(1U << 7)	/* PR_SET_DUMPABLE is not 1 */
#define OMK_PROC_SECUREBITS	16		/* shift of 8 bits: PR_SET_SECUREBITS */

#define OMK_NO_PATH		0xffffffffU	/* *_path: not recorded */

struct omk_process {
	__u32 tgid;		/* in the initial pid name space, as all numbers here */
	__u32 ppid;
	__u32 pgid;
	__u32 sid;
	__u32 flags;		/* OMK_PROC_* */
	__u32 nr_threads;	/* that records follow for */
	__u32 uid, euid, suid, fsuid;
	__u32 gid, egid, sgid, fsgid;
	__u32 umask;
	__u32 cwd_path;		/* offset in the payload of OMK_REC_STRINGS */
	__u32 root_path;
	__u32 exe_path;
	__u32 tty;		/* device of the controlling terminal, or 0 */
	__s32 exit_signal;
	__u64 cookie;		/* of OMK_IOC_REGISTER */
	__u64 shared_pending;	/* signals */
	__u64 start_code, end_code, start_data, end_data;
	__u64 start_brk, brk, start_stack;
	__u64 arg_start, arg_end, env_start, env_end;
	__u64 cap_effective, cap_permitted, cap_inheritable, cap_bset, cap_ambient;
	__u64 rlimits[32];	/* soft, hard of RLIMIT_0..15 */
	__u64 auxv[64];
	char comm[16];
};

/* thread.flags */
#define OMK_THREAD_LIVE		(1U << 0)	/* was on a processor */
#define OMK_THREAD_IN_CALL	(1U << 1)	/* orig_ax is a call in flight */
#define OMK_THREAD_FPU_LIVE	(1U << 2)	/* xstate came from a processor */
#define OMK_THREAD_NO_XSTATE	(1U << 3)	/* could not be saved */
#define OMK_THREAD_EXITING	(1U << 4)	/* not to be restored */
#define OMK_THREAD_SAVED_MASK	(1U << 5)	/* saved_sigmask is to be put back */
#define OMK_THREAD_USER		(1U << 6)	/* was stopped in user mode */
#define OMK_THREAD_TRACED	(1U << 7)
#define OMK_THREAD_DIED_IN_CALL	(1U << 8)	/* this thread's call killed the kernel */
#define OMK_THREAD_WOUND	(1U << 9)	/* met on its way in, is back before it */
#define OMK_THREAD_GS_OTHER	(1U << 10)	/* met where GS has the base of the program */
#define OMK_THREAD_CHANGING	(1U << 11)	/* met while a processor changed its thread */
#define OMK_THREAD_UNSEEN	(1U << 12)	/* its processor never answered: not as it was */

/* struct user_regs_struct of <sys/user.h>, in its order */
struct omk_regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	__u64 ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
	__u64 fs_base, gs_base, ds, es, fs, gs;
};

struct omk_thread {
	__u32 tgid;
	__u32 tid;
	__u32 flags;		/* OMK_THREAD_* */
	__s32 cpu;		/* last processor */
	struct omk_regs regs;
	__u64 sigmask;
	__u64 saved_sigmask;
	__u64 pending;
	__u64 sas_sp, sas_size;
	__u32 sas_flags;
	__u32 state;		/* task state bits */
	__u64 robust_list, robust_len;
	__u64 clear_child_tid, set_child_tid;
	__u64 rseq, rseq_len_sig;	/* len in the low, signature in the high half */
	__u64 restart_kind;	/* OMK_RESTART_* */
	__u64 restart_arg[4];
	__u32 policy;
	__s32 nice;
	__u32 rt_priority;
	__u32 no_new_privs;
	__u64 affinity[16];	/* allowed processors, bit by bit */
	__u64 cpu_time_ns;
	char comm[16];
	__u64 xcr0;
	__u32 xstate_off;	/* from the start of this structure; a multiple of 64 */
	__u32 xstate_len;	/* an uncompacted XSAVE area */
};

/* restart_kind: what -ERESTART_RESTARTBLOCK would have run */
#define OMK_RESTART_NONE	0
#define OMK_RESTART_NANOSLEEP	1	/* arg: clock, expires ns, 0, rmtp */
#define OMK_RESTART_FUTEX	2	/* arg: uaddr, val, time ns, flags|bitset<<32 */
#define OMK_RESTART_POLL	3	/* arg: ufds, nfds, has timeout, tv_sec */
#define OMK_RESTART_OTHER	4

/* vma.flags */
#define OMK_VMA_READ		(1U << 0)
#define OMK_VMA_WRITE		(1U << 1)
#define OMK_VMA_EXEC		(1U << 2)
#define OMK_VMA_SHARED		(1U << 3)
#define OMK_VMA_FILE		(1U << 4)
#define OMK_VMA_DAX		(1U << 5)	/* file on a DAX file system */
#define OMK_VMA_SYNC		(1U << 6)	/* MAP_SYNC */
#define OMK_VMA_GROWSDOWN	(1U << 7)
#define OMK_VMA_SPECIAL		(1U << 8)	/* vdso, vvar */

struct omk_vma {
	__u64 start, end;
	__u64 vm_flags;		/* as in that kernel */
	__u64 offset;		/* in the file, bytes */
	__u64 ino;
	__u32 dev;		/* makedev as in stat.st_dev's low 32 bits */
	__u32 flags;		/* OMK_VMA_* */
	__u32 path;		/* in OMK_REC_STRINGS, or OMK_NO_PATH */
	__u32 reserved;
};

/* fd.flags */
#define OMK_FD_CLOEXEC		(1U << 0)
#define OMK_FD_VOLATILE		(1U << 1)	/* its file system was in memory */
#define OMK_FD_UNLINKED		(1U << 2)	/* its file has no name any more */

struct omk_fd {
	__u32 fd;
	__u32 flags;		/* OMK_FD_* */
	__u64 description;	/* equal for descriptors that share a position */
	__u64 pos;
	__u64 ino;
	__u32 dev;
	__u32 rdev;
	__u32 f_flags;		/* O_* */
	__u32 mode;		/* st_mode */
	__u64 size;		/* of a regular file, as that kernel knew it; of a pipe, 0 if
				 * it was empty
				 */
	__u32 path;
	__u32 f_mode;
};

struct omk_sigaction {
	__u64 handler;
	__u64 flags;
	__u64 restorer;
	__u64 mask;
};

/* As setitimer(2). left_ns 0: it is not set. */
struct omk_timer {
	__u64 interval_ns;
	__u64 left_ns;
};

/* As timer_create(2) and timer_settime(2). value_ns 0: it is not set. */
struct omk_posix_timer {
	__s32 id;
	__s32 clock;
	__s32 notify;		/* SIGEV_* */
	__s32 signal;
	__u64 value;		/* sigev_value */
	__u32 tid;		/* of SIGEV_THREAD_ID */
	__u32 absolute;		/* value_ns is a time on its clock, not what is left */
	__u64 interval_ns;
	__u64 value_ns;
};

/* A terminal that is open; iflag to cc are struct termios of TCGETS. */
struct omk_terminal {
	__u64 description;	/* as in struct omk_fd */
	__u32 iflag, oflag, cflag, lflag;
	__u8 line;
	__u8 cc[19];
	__u16 rows, columns;
	__u32 foreground;	/* process group, 0: not the controlling terminal */
	__u32 reserved;
};

/* A child that ended and was not yet waited for. */
struct omk_ended {
	__u32 pid;
	__u32 status;		/* as wait4(2) gives it */
	__u32 exit_signal;
	__u32 reserved;
};

/* In and out: how a descriptor of the caller would be saved. */
struct omk_look {
	__u32 fd;
	__u32 reserved;
	struct omk_special special;
};

/* A signal that is pending, with what came with it. */
struct omk_queued {
	__u32 tid;		/* 0: of the process */
	__u32 signal;
	__u8 info[48];		/* siginfo_t; what follows is zero */
};

/* Times of the last survival, in ticks of the TSC, which a warm reboot does
 * not reset. Slots 8..15 are free for user space.
 */
enum omk_mark {
	OMK_MARK_PANIC = 0,	/* first notice */
	OMK_MARK_SAVED = 1,	/* image complete */
	OMK_MARK_KERNEL = 2,	/* the next kernel's clock was zero */
	OMK_MARK_MODULE = 3,	/* module loaded in it */
	OMK_MARK_FILES = 4,	/* protected file system mounted */
	OMK_MARK_RESTORED = 5,	/* all processes rebuilt */
	OMK_MARK_ARMED = 6,	/* next kernel loaded, processes registered */
	OMK_MARK_RESUMED = 7,	/* first thread runs */
	OMK_MARK_MAX = 16,
};

struct omk_marks {
	__u64 magic;
	__u64 generation;	/* that the marks belong to */
	__u64 tsc[OMK_MARK_MAX];
	__u64 tsc_khz;
	__u32 retries;		/* panics before the image was acknowledged */
	__u32 panics;		/* since the area was formatted */
	char retry_message[256];	/* of the newest panic during a restore */
	__u32 attempts;		/* of OMK_IOC_ATTEMPT, for this generation */
	__u32 reserved;
};

/* query.state */
enum omk_state {
	OMK_STATE_EMPTY = 0,	/* no image */
	OMK_STATE_READY = 1,	/* an image that is to be restored */
	OMK_STATE_ACKED = 2,	/* the newest image was dealt with */
	OMK_STATE_DAMAGED = 3,	/* the newest image is not whole */
	OMK_STATE_FOREIGN = 4,	/* whole, of another kernel build */
	OMK_STATE_GIVEN_UP = 5,	/* OMK_RETRIES_MAX panics during its restore */
};

struct omk_query {
	__u32 version;		/* OMK_ABI_VERSION of the module */
	__u32 state;		/* enum omk_state */
	__u64 generation;
	__u64 area_addr, area_size;
	__u64 image_off;	/* of the newest image in the area */
	__u64 image_len;	/* header and records */
	__u32 registered;	/* processes */
	__u32 armed;		/* OMK_ARMED_* (whether a next kernel is loaded:
				 * /sys/kernel/kexec_crash_loaded)
				 */
	__u32 retries;
	__u32 panics;
	__u64 xcr0;
	__u32 xstate_size;
	__u32 damage;		/* why OMK_STATE_DAMAGED: OMK_DAMAGE_* */
};

#define OMK_ARMED_SAVES		(1U << 0)	/* a panic saves */
#define OMK_ARMED_BLIND		(1U << 1)	/* kprobes do not fire: threads that run at
						 * the panic are OMK_THREAD_UNSEEN
						 */

#define OMK_DAMAGE_SUPER	1
#define OMK_DAMAGE_HEADER	2
#define OMK_DAMAGE_BODY		3

struct omk_register {
	__u32 version;		/* OMK_ABI_VERSION */
	__u32 tgid;		/* as the caller sees it */
	__u64 cookie;		/* given back in struct omk_process */
	__u64 flags;		/* zero */
};

struct omk_mark_set {
	__u32 mark;		/* enum omk_mark */
	__u32 reserved;
	__u64 tsc;		/* 0: now */
};

/*
 * read(), pread() and lseek() on the device give the area's bytes. All calls
 * need CAP_SYS_ADMIN, as does open(). Numbers begin at 0x40: the VFS takes
 * some of the low ones.
 *
 * Errors: EINVAL wrong version or reserved bits; ESRCH no such process;
 * ENOSPC OMK_PROCESSES_MAX are registered; EEXIST registered already;
 * ENODATA no image; ESTALE another generation; EBUSY not acknowledged.
 */
#define OMK_PROCESSES_MAX	64

#define OMK_IOC_QUERY		_IOR('K', 0x40, struct omk_query)
#define OMK_IOC_REGISTER	_IOW('K', 0x41, struct omk_register)
#define OMK_IOC_UNREGISTER	_IOW('K', 0x42, __u32)
#define OMK_IOC_ACK		_IOW('K', 0x43, __u64)	/* generation */
#define OMK_IOC_ARM		_IOW('K', 0x44, __u32)	/* 1 save at panic, 0 do not */
#define OMK_IOC_MARK		_IOW('K', 0x45, struct omk_mark_set)
#define OMK_IOC_FORMAT		_IOW('K', 0x46, __u32)	/* version; forgets all images */
#define OMK_IOC_CHECK		_IOR('K', 0x47, __u32)	/* save all now, as at a panic, into
							 * the spare image without its header;
							 * gives the bytes that it took
							 */
#define OMK_IOC_ATTEMPT		_IOR('K', 0x48, __u32)	/* one more restore failed and left
							 * the image; gives how many have
							 */
#define OMK_IOC_CLOCK		_IOR('K', 0x49, __u32)	/* kHz of the time stamp counter as
							 * this kernel knows it; 0: unknown
							 */
#define OMK_IOC_LOOK		_IOWR('K', 0x4a, struct omk_look)

#endif /* _UAPI_OUTLIVE_MINICKPT_H */
