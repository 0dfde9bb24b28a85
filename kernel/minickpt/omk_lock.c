// SPDX-License-Identifier: GPL-2.0
/*
 * Locks on files: those of an open file description (flock, OFD, leases) and those
 * of a process. Dying code: see omk.h.
 */
#include <linux/fs.h>
#include <linux/fdtable.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
#include <linux/filelock.h>
#endif

#include "omk.h"

#define STEPS_MAX	65536	/* of one list: bounds the walk of a broken one */

/* What the walk over one process has found: counted without records, then written. */
struct found {
	const struct omk_entry *e;
	struct omk_lock *out;
	u32 count, room;
	u32 flags;		/* OMK_REC_* */
};

static void __dying put_lock(struct found *w, u32 fd, const struct file *f,
			     const struct file_lock *lock, bool lease)
{
	struct omk_lock r = { .description = (u64)f, .fd = fd };
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
	const struct file *of = lock->fl_file;
	const void *owner = lock->fl_owner;
	unsigned int kind = lock->fl_flags;

	r.type = lock->fl_type;
#else
	const struct file *of = lock->c.flc_file;
	const void *owner = lock->c.flc_owner;
	unsigned int kind = lock->c.flc_flags;

	r.type = lock->c.flc_type;
#endif
	if (of != f)
		return;
	if (lease)
		r.kind = OMK_LOCK_LEASE;
	else if (kind & FL_FLOCK)
		r.kind = OMK_LOCK_FLOCK;
	else if (kind & FL_OFDLCK)
		r.kind = OMK_LOCK_OFD;
	else if (owner == w->e->files)
		r.kind = OMK_LOCK_POSIX;
	else
		return;		/* of another process that shares this description */
	r.start = lock->fl_start;
	r.end = lock->fl_end;
	if (w->count >= w->room)
		w->flags |= OMK_REC_TRUNCATED;
	else if (w->out)
		w->out[w->count++] = r;
	else
		w->count++;
}

static void __dying look(struct found *w, u32 fd, const struct file *f,
			 const struct list_head *head, bool lease)
{
	const struct list_head *at;
	struct file_lock lock;
	u32 i;

	if (omk_peek(&at, (const struct list_head *const *)&head->next)) {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	for (i = 0; at != head; i++) {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
		const size_t link = offsetof(struct file_lock, fl_list);
#else
		const size_t link = offsetof(struct file_lock, c.flc_list);
#endif
		const void *lies = (const u8 *)at - link;

		if (i == STEPS_MAX || omk_peek(&lock, (const struct file_lock *)lies) ||
		    omk_peek(&at, (const struct list_head *const *)&at->next)) {
			w->flags |= OMK_REC_DAMAGED;
			return;
		}
		put_lock(w, fd, f, &lock, lease);
	}
}

static void __dying look_at(const struct omk_entry *e, u32 fd, const struct file *f, void *to)
{
	struct file_lock_context *context;
	struct found *w = to;
	struct inode *inode;

	if (omk_peek(&inode, (struct inode *const *)&f->f_inode) ||
	    omk_peek(&context, (struct file_lock_context *const *)&inode->i_flctx)) {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	if (!context)
		return;
	look(w, fd, f, &context->flc_flock, false);
	look(w, fd, f, &context->flc_posix, false);
	look(w, fd, f, &context->flc_lease, true);
}

u32 __dying omk_save_locks(struct omk_writer *out, const struct omk_entry *e)
{
	struct found w = { .e = e, .room = OMK_LOCKS_MAX };

	omk_each_file(e, look_at, &w);
	w.room = w.count;
	w.count = 0;
	w.out = omk_rec_begin(out, OMK_REC_LOCKS, e->tgid, 0, w.room * sizeof(*w.out));
	if (!w.out)
		return 0;
	omk_each_file(e, look_at, &w);
	omk_rec_end(out, w.count, w.count * sizeof(*w.out), w.flags);
	return 1;
}
