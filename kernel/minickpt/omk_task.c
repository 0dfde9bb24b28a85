// SPDX-License-Identifier: GPL-2.0
/*
 * A thread and a process as records. Dying code: see omk.h.
 */
#include <linux/cred.h>
#include <linux/elf.h>
#include <linux/fdtable.h>
#include <linux/fs_struct.h>
#include <linux/futex.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/regset.h>
#include <linux/restart_block.h>
#include <linux/sched/coredump.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/tty.h>
#include <linux/tty_driver.h>
#include <linux/version.h>

#include "omk.h"

#define NO_CALL(regs)	((s64)(regs)->orig_ax < 0)

static void *restart_nanosleep, *restart_futex, *restart_poll;
/* Of one record at a time, by one processor. */
static struct pt_regs scratch_regs;
static struct cred scratch_cred;

static void *address_of(const char *symbol)
{
	struct kprobe probe = { .symbol_name = symbol };
	void *address;

	if (register_kprobe(&probe))
		return NULL;
	address = probe.addr;
	unregister_kprobe(&probe);
	return address;
}

int omk_task_init(void)
{
	/* A restart function that cannot be found is reported as "other". */
	restart_nanosleep = address_of("hrtimer_nanosleep_restart");
	restart_futex = address_of("futex_wait_restart");
	restart_poll = address_of("do_restart_poll");
	return 0;
}

/* The thread after t (NULL: the first), or NULL at the end or at a broken link. */
struct task_struct __dying *omk_next_thread(const struct omk_entry *e, struct task_struct *t)
{
	struct list_head *head = &e->signal->thread_head, *next;
	struct signal_struct *owner;

	if (omk_peek(&next, t ? &t->thread_node.next : &head->next) || next == head)
		return NULL;
	t = container_of(next, struct task_struct, thread_node);
	if (omk_peek(&owner, &t->signal) || owner != e->signal)
		return NULL;
	return t;
}

static void __dying put_regs(struct omk_thread *r, struct task_struct *t, const struct pt_regs *p)
{
	struct omk_regs *u = &r->regs;

	u->r15 = p->r15;
	u->r14 = p->r14;
	u->r13 = p->r13;
	u->r12 = p->r12;
	u->bp = p->bp;
	u->bx = p->bx;
	u->r11 = p->r11;
	u->r10 = p->r10;
	u->r9 = p->r9;
	u->r8 = p->r8;
	u->ax = p->ax;
	u->cx = p->cx;
	u->dx = p->dx;
	u->si = p->si;
	u->di = p->di;
	u->orig_ax = p->orig_ax;
	u->ip = p->ip;
	u->cs = p->cs & 0xffff;
	u->flags = p->flags;
	u->sp = p->sp;
	u->ss = p->ss & 0xffff;
	u->fs_base = t->thread.fsbase;
	u->gs_base = t->thread.gsbase;
	u->ds = t->thread.ds;
	u->es = t->thread.es;
	u->fs = t->thread.fsindex;
	u->gs = t->thread.gsindex;
}

static void __dying put_restart(struct omk_thread *r, const struct task_struct *t)
{
	const struct restart_block *b = &t->restart_block;
	void *fn = b->fn;

	r->restart_kind = OMK_RESTART_NONE;
	if (!fn || (s64)r->regs.ax != -ERESTART_RESTARTBLOCK)
		return;
	r->restart_kind = OMK_RESTART_OTHER;
	if (fn == restart_nanosleep) {
		r->restart_kind = OMK_RESTART_NANOSLEEP;
		r->restart_arg[0] = b->nanosleep.clockid;
		r->restart_arg[1] = b->nanosleep.expires;
		r->restart_arg[3] = (unsigned long)b->nanosleep.rmtp;
	} else if (fn == restart_futex) {
		r->restart_kind = OMK_RESTART_FUTEX;
		r->restart_arg[0] = (unsigned long)b->futex.uaddr;
		r->restart_arg[1] = b->futex.val;
		r->restart_arg[2] = b->futex.time;
		r->restart_arg[3] = b->futex.flags | (u64)b->futex.bitset << 32;
	} else if (fn == restart_poll) {
		r->restart_kind = OMK_RESTART_POLL;
		r->restart_arg[0] = (unsigned long)b->poll.ufds;
		r->restart_arg[1] = b->poll.nfds;
		r->restart_arg[2] = b->poll.has_timeout;
		r->restart_arg[3] = b->poll.tv_sec;
	}
}

static void __dying put_sched(struct omk_thread *r, struct task_struct *t)
{
	r->policy = t->policy;
	r->nice = task_nice(t);
	r->rt_priority = t->rt_priority;
	r->no_new_privs = task_no_new_privs(t);
	r->cpu_time_ns = t->se.sum_exec_runtime;
	memcpy(r->affinity, cpumask_bits(&t->cpus_mask),
	       min(sizeof(r->affinity), (size_t)cpumask_size()));
	memcpy(r->comm, t->comm, sizeof(r->comm));
}

static void __dying put_signals(struct omk_thread *r, struct task_struct *t)
{
	r->sigmask = t->blocked.sig[0];
	if (t->restore_sigmask) {
		r->saved_sigmask = t->saved_sigmask.sig[0];
		r->flags |= OMK_THREAD_SAVED_MASK;
	}
	r->pending = t->pending.signal.sig[0];
	r->sas_sp = t->sas_ss_sp;
	r->sas_size = t->sas_ss_size;
	/* After execve the size is 0 and the flags are what they were. */
	r->sas_flags = t->sas_ss_size ? t->sas_ss_flags : SS_DISABLE;
	r->robust_list = (unsigned long)t->robust_list;
	r->robust_len = sizeof(struct robust_list_head);
	r->clear_child_tid = (unsigned long)t->clear_child_tid;
	r->set_child_tid = (unsigned long)t->set_child_tid;
	r->rseq = (unsigned long)t->rseq;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	/* It takes no other length. */
	r->rseq_len_sig = t->rseq ? 32 | (u64)t->rseq_sig << 32 : 0;
#else
	r->rseq_len_sig = t->rseq ? t->rseq_len | (u64)t->rseq_sig << 32 : 0;
#endif
}

/* The uncompacted XSAVE area of a thread that runs nowhere. */
static u32 __dying put_saved_xstate(void *to, struct task_struct *t)
{
	const struct user_regset_view *view = task_user_regset_view(t);
	struct membuf buf = { .p = to, .left = omk.xstate_size };
	unsigned int i;
	int err;

	for (i = 0; i < view->n; i++) {
		const struct user_regset *set = &view->regsets[i];

		if (set->core_note_type != NT_X86_XSTATE)
			continue;
		/* Of `current` it blocks softirqs and lets them run again when it is done: not
		 * those of a kernel that is dying, for which they are blocked here as well.
		 */
		__preempt_count_add(SOFTIRQ_DISABLE_OFFSET);
		err = set->regset_get(t, set, buf);
		__preempt_count_sub(SOFTIRQ_DISABLE_OFFSET);
		return err < 0 ? 0 : omk.xstate_size;
	}
	return 0;
}

static void __dying put_xstate(struct omk_thread *r, u8 *to, struct task_struct *t,
			       const void *live_xstate)
{
	r->xcr0 = omk.xcr0;
	memset(to, 0, omk.xstate_size);
	if (live_xstate) {
		memcpy(to, live_xstate, omk.xstate_size);
		/* As the kernel's own uncompacted copies: XCR0 at byte 464. */
		memcpy(to + 464, &omk.xcr0, sizeof(omk.xcr0));
		r->xstate_len = omk.xstate_size;
		r->flags |= OMK_THREAD_FPU_LIVE;
	} else {
		r->xstate_len = put_saved_xstate(to, t);
	}
	if (!r->xstate_len)
		r->flags |= OMK_THREAD_NO_XSTATE;
}

static bool __dying in_call(const struct omk_regs *regs)
{
	s64 ax = regs->ax;

	/* The kernel puts -ENOSYS into ax at the entry of a call; -512 to -516
	 * are restarts that never reach the user.
	 */
	return (s64)regs->orig_ax >= 0 && (ax == -ENOSYS || (ax <= -512 && ax >= -516));
}

u32 __dying omk_save_thread(struct omk_writer *w, const struct omk_entry *e, struct task_struct *t)
{
	size_t head = ALIGN(sizeof(struct omk_thread), OMK_ALIGN);
	const struct omk_live *live;
	const void *live_xstate = NULL;
	struct omk_thread *r;
	u32 damaged = 0;

	/* Dead, and not yet waited for by its tracer: its stack is gone. */
	if (t->exit_state && !READ_ONCE(t->stack))
		return 0;
	r = omk_rec_begin(w, OMK_REC_THREAD, e->tgid, t->pid, head + omk.xstate_size);
	if (!r)
		return 0;
	r->tgid = e->tgid;
	r->tid = t->pid;
	r->cpu = task_cpu(t);
	r->state = READ_ONCE(t->__state);
	if (t->flags & PF_EXITING || t->exit_state)
		r->flags |= OMK_THREAD_EXITING;
	if (t->ptrace)
		r->flags |= OMK_THREAD_TRACED;
	if (omk_peek(&scratch_regs, task_pt_regs(t)))
		damaged = OMK_REC_DAMAGED;
	else
		put_regs(r, t, &scratch_regs);
	live = omk_live_of(t, &live_xstate);
	if (live) {
		r->flags |= OMK_THREAD_LIVE;
		if (live->wound) {
			put_regs(r, t, &live->regs);
			r->flags |= OMK_THREAD_WOUND;
			damaged = 0;
		}
		r->flags |= live->gs_other ? OMK_THREAD_GS_OTHER : 0;
		r->flags |= live->changing ? OMK_THREAD_CHANGING : 0;
		r->regs.fs_base = live->fs_base;
		r->regs.gs_base = live->gs_base;
	}
	if (!live && omk_cpu_has(t))
		r->flags |= OMK_THREAD_UNSEEN;
	if (in_call(&r->regs)) {
		r->flags |= OMK_THREAD_IN_CALL;
		if (t == current)
			r->flags |= OMK_THREAD_DIED_IN_CALL;
	} else if (NO_CALL(&r->regs)) {
		r->flags |= OMK_THREAD_USER;
	}
	put_signals(r, t);
	put_sched(r, t);
	put_restart(r, t);
	r->xstate_off = head;
	put_xstate(r, (u8 *)r + head, t, live_xstate);
	omk_rec_end(w, 1, head + r->xstate_len, damaged);
	return !(r->flags & OMK_THREAD_EXITING);
}

static u32 __dying pid_nr_of(const struct signal_struct *sig, enum pid_type type, u32 old)
{
	struct pid *pid;
	int nr;

	if (omk_peek(&pid, &sig->pids[type]) || omk_peek(&nr, &pid->numbers[0].nr) || nr < 0)
		return old;
	return nr;
}

static void __dying put_ids(struct omk_process *r, const struct omk_entry *e)
{
	struct task_struct *parent;
	const struct cred *cred;
	pid_t nr;

	r->pgid = pid_nr_of(e->signal, PIDTYPE_PGID, e->pgid);
	r->sid = pid_nr_of(e->signal, PIDTYPE_SID, e->sid);
	r->ppid = e->ppid;
	if (!omk_peek(&parent, &e->leader->real_parent) && !omk_peek(&nr, &parent->tgid) &&
	    nr >= 0)
		r->ppid = nr;
	else
		r->flags |= OMK_PROC_PARENT_REPLACED;
	r->exit_signal = e->leader->exit_signal;

	if (omk_peek(&cred, &e->leader->cred) || omk_peek(&scratch_cred, cred))
		memcpy(&scratch_cred, e->cred, sizeof(scratch_cred));
	cred = &scratch_cred;
	r->uid = cred->uid.val;
	r->euid = cred->euid.val;
	r->suid = cred->suid.val;
	r->fsuid = cred->fsuid.val;
	r->gid = cred->gid.val;
	r->egid = cred->egid.val;
	r->sgid = cred->sgid.val;
	r->fsgid = cred->fsgid.val;
	memcpy(&r->cap_effective, &cred->cap_effective, 8);
	memcpy(&r->cap_permitted, &cred->cap_permitted, 8);
	memcpy(&r->cap_inheritable, &cred->cap_inheritable, 8);
	memcpy(&r->cap_bset, &cred->cap_bset, 8);
	memcpy(&r->cap_ambient, &cred->cap_ambient, 8);
	r->flags |= (cred->securebits & 0xff) << OMK_PROC_SECUREBITS;
}

static void __dying put_tty(struct omk_process *r, const struct omk_entry *e)
{
	struct tty_struct *tty;
	struct tty_driver *driver;
	int index, major, minor;

	r->tty = e->tty;
	if (omk_peek(&tty, &e->signal->tty))
		return;
	if (!tty) {
		r->tty = 0;
		return;
	}
	if (omk_peek(&index, &tty->index) || omk_peek(&driver, &tty->driver) ||
	    omk_peek(&major, &driver->major) || omk_peek(&minor, &driver->minor_start))
		return;
	r->tty = new_encode_dev(MKDEV(major, minor + index));
}

static void __dying put_mm(struct omk_process *r, const struct omk_entry *e)
{
	const struct mm_struct *mm = e->mm;
	struct file *exe;
	struct path path;
	size_t i;

	r->start_code = mm->start_code;
	r->end_code = mm->end_code;
	r->start_data = mm->start_data;
	r->end_data = mm->end_data;
	r->start_brk = mm->start_brk;
	r->brk = mm->brk;
	r->start_stack = mm->start_stack;
	r->arg_start = mm->arg_start;
	r->arg_end = mm->arg_end;
	r->env_start = mm->env_start;
	r->env_end = mm->env_end;
	for (i = 0; i < min_t(size_t, ARRAY_SIZE(r->auxv), AT_VECTOR_SIZE); i++)
		r->auxv[i] = mm->saved_auxv[i];
	if ((mm->flags & MMF_DUMPABLE_MASK) != SUID_DUMP_USER)
		r->flags |= OMK_PROC_UNDUMPABLE;
	/* A writer holds the lock, or its owner died with it. */
	if (atomic_long_read(&mm->mmap_lock.count) & 1)
		r->flags |= OMK_PROC_MMAP_LOCKED;
	r->exe_path = OMK_NO_PATH;
	if (!omk_peek(&exe, &mm->exe_file) && exe && !omk_peek(&path, &exe->f_path))
		r->exe_path = omk_path(&path);
}

static void __dying put_fs(struct omk_process *r, const struct omk_entry *e)
{
	struct fs_struct *fs;
	struct path path;

	if (omk_peek(&fs, &e->leader->fs) || fs != e->fs) {
		r->flags |= OMK_PROC_FS_REPLACED;
		fs = e->fs;
	}
	r->cwd_path = OMK_NO_PATH;
	r->root_path = OMK_NO_PATH;
	if (omk_peek(&r->umask, (u32 *)&fs->umask))
		return;
	if (!omk_peek(&path, &fs->pwd))
		r->cwd_path = omk_path(&path);
	if (!omk_peek(&path, &fs->root))
		r->root_path = omk_path(&path);
}

u32 __dying omk_save_process(struct omk_writer *w, const struct omk_entry *e, u32 nr_threads)
{
	struct omk_process *r;
	struct files_struct *files;
	struct sighand_struct *sighand;
	struct mm_struct *mm;
	int i;

	r = omk_rec_begin(w, OMK_REC_PROCESS, e->tgid, 0, sizeof(*r));
	if (!r)
		return 0;
	r->tgid = e->tgid;
	r->cookie = e->cookie;
	r->nr_threads = nr_threads;
	put_ids(r, e);
	put_tty(r, e);
	put_mm(r, e);
	put_fs(r, e);
	if (omk_peek(&files, &e->leader->files) || files != e->files)
		r->flags |= OMK_PROC_FILES_REPLACED;
	if (omk_peek(&sighand, &e->leader->sighand) || sighand != e->sighand)
		r->flags |= OMK_PROC_SIGHAND_REPLACED;
	/* A leader that ended before its threads has none. */
	if (!omk_peek(&mm, &e->leader->mm) && mm && mm != e->mm)
		r->flags |= OMK_PROC_MM_REPLACED;
	if (e->signal->flags & SIGNAL_GROUP_EXIT)
		r->flags |= OMK_PROC_EXITING;
	r->shared_pending = e->signal->shared_pending.signal.sig[0];
	for (i = 0; i < 16 && i < RLIM_NLIMITS; i++) {
		r->rlimits[2 * i] = e->signal->rlim[i].rlim_cur;
		r->rlimits[2 * i + 1] = e->signal->rlim[i].rlim_max;
	}
	memcpy(r->comm, e->leader->comm, sizeof(r->comm));
	omk_rec_end(w, 1, sizeof(*r), 0);
	return 1;
}

u32 __dying omk_save_sigactions(struct omk_writer *w, const struct omk_entry *e)
{
	struct omk_sigaction *r;
	struct k_sigaction one;
	u32 damaged = 0;
	int i;

	r = omk_rec_begin(w, OMK_REC_SIGACTIONS, e->tgid, 0, 64 * sizeof(*r));
	if (!r)
		return 0;
	for (i = 0; i < 64; i++) {
		if (omk_peek(&one, &e->sighand->action[i])) {
			damaged = OMK_REC_DAMAGED;
			continue;
		}
		r[i].handler = (unsigned long)one.sa.sa_handler;
		r[i].flags = one.sa.sa_flags;
		r[i].restorer = (unsigned long)one.sa.sa_restorer;
		r[i].mask = one.sa.sa_mask.sig[0];
	}
	omk_rec_end(w, 64, 64 * sizeof(*r), damaged);
	return 1;
}
