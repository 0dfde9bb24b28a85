/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Outlive mini-checkpoints: what the files of the module share.
 *
 * Two kinds of code live here. *Calm* code runs in calls of the device and
 * may sleep, lock and allocate. *Dying* code runs in a panic, with the other
 * processors stopped anywhere: it allocates nothing, takes no lock, waits for
 * nothing without a bound, and reads what another part of the kernel owns only
 * through omk_peek(), which survives a wild pointer. Functions of the second
 * kind are marked __dying.
 */
#ifndef OMK_H
#define OMK_H

#include <linux/kernel.h>
#include <linux/mm_types.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/uaccess.h>

#include <uapi/outlive_minickpt.h>

#define __dying		notrace

#define OMK_THREADS_MAX	16384	/* of a process: bounds the walk of a broken list */
#define OMK_FDS_MAX	65536
#define OMK_VMAS_MAX	65536
#define OMK_CPUS_MAX	1024
#define OMK_XSTATE_MAX	16384	/* AVX-512 and AMX need 11008 bytes */

/* Reads *src, which may be a wild address, into *dst. 0 or -EFAULT. */
#define omk_peek(dst, src) copy_from_kernel_nofault((dst), (src), sizeof(*(dst)))

/* A protected process. The pointers are those it had when it was registered;
 * a dying kernel's task may hold others because they were overwritten.
 */
struct omk_entry {
	bool used;
	u32 tgid;
	u64 cookie;
	struct task_struct *leader;	/* a reference is held */
	struct signal_struct *signal;
	struct sighand_struct *sighand;
	struct files_struct *files;
	struct fs_struct *fs;
	struct mm_struct *mm;		/* mmgrab */
	const struct cred *cred;	/* a reference is held */
	u32 ppid, pgid, sid, tty;
};

/* Where records go: part of an image. */
struct omk_writer {
	u8 *base;
	size_t cap;
	size_t len;		/* whole records */
	u32 records;
	bool truncated;
};

/* State of a processor that was running a thread when it was stopped. */
struct omk_live {
	struct task_struct *task;
	u64 fs_base, gs_base;
	struct pt_regs regs;	/* of the program, if wound */
	u32 wound;		/* they are not on its stack: see omk_entry.c */
	u32 gs_other;		/* gs_base was found beside KERNEL_GS_BASE */
	u32 changing;		/* the processor was changing its thread */
	u32 in_task;		/* the bases are in the task */
	u32 fpu_in_task;	/* so is the vector state */
	u32 fpu_live;
	u32 done;		/* written last */
};

struct omk_module {
	phys_addr_t addr;
	size_t size;
	u8 *area;
	struct omk_super *super;
	struct omk_marks *marks;
	u32 armed;
	u32 state;		/* enum omk_state at load, then as acknowledged */
	u32 damage;
	u64 xcr0;
	u32 xstate_size;
	struct omk_entry entries[OMK_PROCESSES_MAX];
};

struct file;
struct path;

extern struct omk_module omk;

/* omk_area.c */
int omk_area_open(phys_addr_t addr, size_t size);
void omk_area_close(void);
void omk_area_format(void);
int omk_area_ack(u64 generation);
struct omk_image *omk_image_of(u64 generation);
size_t omk_image_size(void);
void omk_super_write(void);
u32 omk_crc(const void *data, size_t len);

/* omk_save.c */
int omk_save_init(void);
void omk_save_exit(void);
size_t omk_save_check(void);

/* omk_record.c */
void omk_records_begin(struct omk_writer *w, void *base, size_t cap);
void *omk_rec_begin(struct omk_writer *w, u32 type, u32 tgid, u32 id, size_t room);
void omk_rec_end(struct omk_writer *w, u32 count, size_t len, u32 flags);

/* omk_cpu.c */
int omk_cpu_init(void);
void omk_cpu_exit(void);
void omk_cpu_reset(void);
void omk_cpu_save_self(void);
bool omk_cpu_stopped(void);
bool omk_cpu_hooked(void);
void omk_cpu_wait(void);
bool omk_wait(bool (*done)(void), unsigned int ms);
bool omk_cpu_has(const struct task_struct *t);
u32 omk_cpu_missing(void);
const struct omk_live *omk_live_of(const struct task_struct *t, const void **xstate);
extern u64 omk_stop_tsc;
extern u64 omk_first_tsc;
void omk_first_notice(void);

/* omk_entry.c */
void omk_entry_init(void);
void omk_entry_look(struct omk_live *slot);

/* omk_task.c */
int omk_task_init(void);
u32 omk_save_thread(struct omk_writer *w, const struct omk_entry *e, struct task_struct *t);
u32 omk_save_process(struct omk_writer *w, const struct omk_entry *e, u32 nr_threads);
u32 omk_save_sigactions(struct omk_writer *w, const struct omk_entry *e);
struct task_struct *omk_next_thread(const struct omk_entry *e, struct task_struct *t);

/* omk_mm.c */
u32 omk_save_vmas(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_fds(struct omk_writer *w, const struct omk_entry *e);
void omk_each_file(const struct omk_entry *e,
		   void (*each)(const struct omk_entry *e, u32 fd, const struct file *f, void *to),
		   void *to);

/* omk_optional.c */
u32 omk_save_groups(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_timers(struct omk_writer *w, const struct omk_entry *e);
void omk_terminals_begin(void);
void omk_terminal_note(const struct omk_entry *e, const struct file *f, const struct file *file,
		       dev_t dev);
u32 omk_save_terminals(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_queued(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_posix_timers(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_ended(struct omk_writer *w, const struct omk_entry *e);

/* omk_lock.c */
u32 omk_save_locks(struct omk_writer *w, const struct omk_entry *e);

/* omk_special.c */
u32 omk_save_specials(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_watched(struct omk_writer *w, const struct omk_entry *e);
u32 omk_save_held(struct omk_writer *w, const struct omk_entry *e);
int omk_look(u32 fd, struct omk_special *r);

/* omk_path.c */
void omk_strings_begin(void);
u32 omk_path(const struct path *path);
u32 omk_save_strings(struct omk_writer *w, u32 tgid);
int omk_path_selftest(void);

/* omk_park.c */
void omk_park_init(void);
void omk_park_exit(void);

/* omk_watch.c */
int omk_watch_init(unsigned int seconds);
void omk_watch_exit(void);

#endif /* OMK_H */
