// SPDX-License-Identifier: GPL-2.0
/*
 * What a process can lose and still go on: supplementary groups, timers, the
 * settings of its terminals, the data of its queued signals. Each is a step of
 * its own, so that one that dies takes nothing else with it.
 * Dying code: see omk.h.
 */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/major.h>
#include <linux/posix-timers.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>
#include <linux/tty.h>
#include <linux/version.h>

#include "omk.h"

#define TERMINALS_MAX	64
#define QUEUED_MAX	4096
#define POSIX_TIMERS_MAX	4096

static struct omk_terminal terminals[TERMINALS_MAX];
static u32 nr_terminals;

u32 __dying omk_save_groups(struct omk_writer *w, const struct omk_entry *e)
{
	const struct cred *cred;
	struct group_info *info;
	int n;
	u32 *r;

	if (omk_peek(&cred, &e->leader->cred) || omk_peek(&info, &cred->group_info) ||
	    omk_peek(&n, &info->ngroups) || n < 0 || n > NGROUPS_MAX) {
		info = e->cred->group_info;
		n = clamp(info->ngroups, 0, NGROUPS_MAX);
	}
	r = omk_rec_begin(w, OMK_REC_GROUPS, e->tgid, 0, ALIGN(n * sizeof(*r), 8));
	if (!r)
		return 0;
	/* A kgid_t is its number in the initial name space. */
	if (copy_from_kernel_nofault(r, info->gid, n * sizeof(*r)))
		omk_rec_end(w, 0, 0, OMK_REC_DAMAGED);
	else
		omk_rec_end(w, n, n * sizeof(*r), 0);
	return 1;
}

/* What is left of a timer that was to go off at `at`, on a clock that says `now`. */
static u64 __dying left_of(u64 at, u64 now)
{
	return at > now ? at - now : 1;
}

u32 __dying omk_save_timers(struct omk_writer *w, const struct omk_entry *e)
{
	const struct signal_struct *s = e->signal;
	const struct task_cputime_atomic *used = &s->cputimer.cputime_atomic;
	u64 user = atomic64_read(&used->utime);
	u64 all = user + atomic64_read(&used->stime);
	struct omk_timer *r;

	r = omk_rec_begin(w, OMK_REC_TIMERS, e->tgid, 0, 3 * sizeof(*r));
	if (!r)
		return 0;
	r[0].interval_ns = s->it_real_incr;
	if (s->real_timer.state & HRTIMER_STATE_ENQUEUED)
		r[0].left_ns = left_of(s->real_timer.node.expires, ktime_get_mono_fast_ns());
	else
		/* Its signal is pending; when that is taken, it begins anew. */
		r[0].left_ns = s->it_real_incr;
	r[1].interval_ns = s->it[CPUCLOCK_VIRT].incr;
	if (s->it[CPUCLOCK_VIRT].expires)
		r[1].left_ns = left_of(s->it[CPUCLOCK_VIRT].expires, user);
	r[2].interval_ns = s->it[CPUCLOCK_PROF].incr;
	if (s->it[CPUCLOCK_PROF].expires)
		r[2].left_ns = left_of(s->it[CPUCLOCK_PROF].expires, all);
	omk_rec_end(w, 3, 3 * sizeof(*r), 0);
	return 1;
}

/* The task of a thread's own number, as the dying kernel knows it. */
static struct task_struct * __dying thread_of(const struct omk_entry *e, struct pid *pid)
{
	struct task_struct *t = NULL;
	int i, nr;

	if (omk_peek(&nr, &pid->numbers[0].nr))
		return NULL;
	for (i = 0; i < OMK_THREADS_MAX; i++) {
		t = omk_next_thread(e, t);
		if (!t || t->pid == nr)
			break;
	}
	return t;
}

/* What a clock of processor time says; U64_MAX if it cannot be told. */
static u64 __dying used_of(const struct omk_entry *e, const struct k_itimer *k)
{
	const struct task_cputime_atomic *all = &e->signal->cputimer.cputime_atomic;
	struct task_struct *t = NULL;
	u64 user, system, sum;

	if (CPUCLOCK_PERTHREAD(k->it_clock)) {
		t = thread_of(e, k->it.cpu.pid);
		if (!t)
			return U64_MAX;
	}
	user = t ? t->utime : atomic64_read(&all->utime);
	system = t ? t->stime : atomic64_read(&all->stime);
	sum = t ? t->se.sum_exec_runtime : atomic64_read(&all->sum_exec_runtime);
	switch (CPUCLOCK_WHICH(k->it_clock)) {
	case CPUCLOCK_PROF:
		return user + system;
	case CPUCLOCK_VIRT:
		return user;
	default:
		return sum;
	}
}

/* Interval and value; false for a clock whose timers are not kept. */
static bool __dying times_of(struct omk_posix_timer *r, const struct omk_entry *e,
			     const struct k_itimer *k)
{
	const struct hrtimer *timer = &k->it.real.timer;
	clockid_t base;
	u64 now;

	r->interval_ns = k->it_interval;
	if (k->it_clock < 0) {
		now = used_of(e, k);
		if (now == U64_MAX || (k->it_clock & CPUCLOCK_CLOCK_MASK) == CLOCKFD)
			return false;
		if (k->it.cpu.node.expires)
			r->value_ns = left_of(k->it.cpu.node.expires, now);
		return true;
	}
	if (k->it_clock == CLOCK_REALTIME_ALARM || k->it_clock == CLOCK_BOOTTIME_ALARM ||
	    omk_peek(&base, &timer->base->clockid))
		return false;
	if (!(timer->state & HRTIMER_STATE_ENQUEUED) &&
	    (k->it_sigev_notify & ~SIGEV_THREAD_ID) != SIGEV_NONE) {
		/* Its signal is pending, as above; or it is not set. */
		r->value_ns = k->it_interval;
		return true;
	}
	if (!timer->node.expires)
		return true;
	/* One that was set by what is to pass runs on CLOCK_MONOTONIC. */
	r->absolute = base == CLOCK_REALTIME || base == CLOCK_TAI;
	now = base == CLOCK_BOOTTIME ? ktime_get_boot_fast_ns() : ktime_get_mono_fast_ns();
	r->value_ns = r->absolute ? timer->node.expires : left_of(timer->node.expires, now);
	return true;
}

static bool __dying posix_timer(struct omk_posix_timer *r, const struct omk_entry *e,
				const struct k_itimer *at)
{
	struct kernel_siginfo info;
	struct k_itimer k;
	int nr;

	memset(r, 0, sizeof(*r));
	if (omk_peek(&k, at) ||
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
	    omk_peek(&info, &k.sigq->info) ||
#else
	    omk_peek(&info, &at->sigq.info) ||
#endif
	    !times_of(r, e, &k))
		return false;
	r->id = k.it_id;
	r->clock = k.it_clock;
	r->notify = k.it_sigev_notify;
	r->signal = info.si_signo;
	r->value = (unsigned long)info.si_value.sival_ptr;
	if (r->notify & SIGEV_THREAD_ID) {
		if (omk_peek(&nr, &k.it_pid->numbers[0].nr))
			return false;
		r->tid = nr;
	}
	return true;
}

/* Counts without `r`. The list is a list_head or, in newer kernels, an
 * hlist_head; of both, and of their nodes, the first word leads on.
 */
static u32 __dying posix_timers_of(struct omk_posix_timer *r, u32 room, const struct omk_entry *e)
{
	const void *head = &e->signal->posix_timers, *at;
	struct omk_posix_timer one;
	u32 n = 0, i;

	if (omk_peek(&at, (const void *const *)head))
		return 0;
	for (i = 0; at && at != head && n < room && i < POSIX_TIMERS_MAX; i++) {
		if (posix_timer(r ? &r[n] : &one, e, at - offsetof(struct k_itimer, list)))
			n++;
		if (omk_peek(&at, (const void *const *)at))
			break;
	}
	return n;
}

u32 __dying omk_save_posix_timers(struct omk_writer *w, const struct omk_entry *e)
{
	struct omk_posix_timer *r;
	u32 n = posix_timers_of(NULL, POSIX_TIMERS_MAX, e);

	r = omk_rec_begin(w, OMK_REC_POSIX_TIMERS, e->tgid, 0, n * sizeof(*r));
	if (!r)
		return 0;
	n = posix_timers_of(r, n, e);
	omk_rec_end(w, n, n * sizeof(*r), n == POSIX_TIMERS_MAX ? OMK_REC_TRUNCATED : 0);
	return 1;
}

void __dying omk_terminals_begin(void)
{
	nr_terminals = 0;
}

static bool __dying is_terminal(dev_t dev)
{
	switch (MAJOR(dev)) {
	case TTY_MAJOR:
	case TTYAUX_MAJOR:
	case UNIX98_PTY_SLAVE_MAJOR ... UNIX98_PTY_SLAVE_MAJOR + UNIX98_PTY_MAJOR_COUNT - 1:
	case 204:	/* serial lines of small series */
	case 229:	/* hypervisor consoles */
		return true;
	default:
		return false;
	}
}

/* A file that is open; `f` is where it lies, `file` a copy of it. */
void __dying omk_terminal_note(const struct omk_entry *e, const struct file *f,
			       const struct file *file, dev_t dev)
{
	struct tty_file_private private;
	struct omk_terminal *r;
	struct tty_struct *own;
	struct ktermios set;
	struct winsize size;
	struct pid *group;
	int nr;
	u32 i;

	if (!is_terminal(dev) || omk_peek(&private, file->private_data) || private.file != f)
		return;
	for (i = 0; i < nr_terminals; i++)
		if (terminals[i].description == (u64)f)
			return;
	if (i == TERMINALS_MAX || omk_peek(&set, &private.tty->termios) ||
	    omk_peek(&size, &private.tty->winsize))
		return;
	r = &terminals[nr_terminals++];
	memset(r, 0, sizeof(*r));
	r->description = (u64)f;
	r->iflag = set.c_iflag;
	r->oflag = set.c_oflag;
	r->cflag = set.c_cflag;
	r->lflag = set.c_lflag;
	r->line = set.c_line;
	memcpy(r->cc, set.c_cc, sizeof(r->cc));
	r->rows = size.ws_row;
	r->columns = size.ws_col;
	if (!omk_peek(&own, &e->signal->tty) && own == private.tty &&
	    !omk_peek(&group, &own->ctrl.pgrp) && !omk_peek(&nr, &group->numbers[0].nr) && nr > 0)
		r->foreground = nr;
}

u32 __dying omk_save_terminals(struct omk_writer *w, const struct omk_entry *e)
{
	size_t len = nr_terminals * sizeof(*terminals);
	void *r = omk_rec_begin(w, OMK_REC_TERMINALS, e->tgid, 0, len);

	if (!r)
		return 0;
	memcpy(r, terminals, len);
	omk_rec_end(w, nr_terminals, len, 0);
	return 1;
}

/* The queue of a thread, or of the process (tid 0), from record `n` on. */
static u32 __dying queue_of(struct omk_queued *r, u32 n, u32 room, u32 tid,
			    const struct sigpending *of)
{
	const struct list_head *head = &of->list, *at;
	struct kernel_siginfo info;
	struct sigqueue *q;

	if (omk_peek(&at, &head->next))
		return n;
	for (; at != head && n < room; n++) {
		q = container_of(at, struct sigqueue, list);
		if (omk_peek(&info, &q->info) || omk_peek(&at, &q->list.next))
			return n;
		if (!r)
			continue;
		r[n].tid = tid;
		r[n].signal = info.si_signo;
		BUILD_BUG_ON(sizeof(info) > sizeof(r->info));
		memcpy(r[n].info, &info, sizeof(info));
	}
	return n;
}

static u32 __dying queues_of(struct omk_queued *r, u32 room, const struct omk_entry *e)
{
	u32 i, n = queue_of(r, 0, room, 0, &e->signal->shared_pending);
	struct task_struct *t = NULL;

	for (i = 0; i < OMK_THREADS_MAX; i++) {
		t = omk_next_thread(e, t);
		if (!t)
			break;
		n = queue_of(r, n, room, t->pid, &t->pending);
	}
	return n;
}

u32 __dying omk_save_queued(struct omk_writer *w, const struct omk_entry *e)
{
	struct omk_queued *r;
	u32 n = queues_of(NULL, QUEUED_MAX, e);

	r = omk_rec_begin(w, OMK_REC_QUEUED, e->tgid, 0, n * sizeof(*r));
	if (!r)
		return 0;
	/* A processor that never stopped may have changed a queue since. */
	n = queues_of(r, n, e);
	omk_rec_end(w, n, n * sizeof(*r), n == QUEUED_MAX ? OMK_REC_TRUNCATED : 0);
	return 1;
}

#define CHILDREN_MAX	4096	/* of a thread: bounds the walk of a broken list */
#define ENDED_MAX	256	/* that are kept of a process */

/* True if a child has ended and waits for its parent; as wait4() would tell it. */
static bool __dying put_ended(struct omk_ended *r, const struct task_struct *child)
{
	struct signal_struct *signal;
	int state, code, group, pid, exit_signal;
	unsigned int flags;

	if (omk_peek(&state, &child->exit_state) || !(state & EXIT_ZOMBIE) ||
	    omk_peek(&code, &child->exit_code) || omk_peek(&pid, &child->tgid) ||
	    omk_peek(&exit_signal, &child->exit_signal) || omk_peek(&signal, &child->signal) ||
	    omk_peek(&flags, &signal->flags) || omk_peek(&group, &signal->group_exit_code))
		return false;
	r->pid = pid;
	r->status = flags & SIGNAL_GROUP_EXIT ? group : code;
	r->exit_signal = exit_signal;
	return true;
}

u32 __dying omk_save_ended(struct omk_writer *w, const struct omk_entry *e)
{
	struct task_struct *t = NULL;
	struct omk_ended *r;
	u32 threads, steps, count = 0;

	r = omk_rec_begin(w, OMK_REC_ENDED, e->tgid, 0, ENDED_MAX * sizeof(*r));
	if (!r)
		return 0;
	for (threads = 0; threads < OMK_THREADS_MAX; threads++) {
		struct list_head *head, *at;

		t = omk_next_thread(e, t);
		if (!t)
			break;
		head = &t->children;
		if (omk_peek(&at, &head->next))
			continue;
		for (steps = 0; at != head && steps < CHILDREN_MAX && count < ENDED_MAX; steps++) {
			if (put_ended(&r[count], list_entry(at, struct task_struct, sibling)))
				count++;
			if (omk_peek(&at, &at->next))
				break;
		}
	}
	omk_rec_end(w, count, count * sizeof(*r), 0);
	return 1;
}
