// SPDX-License-Identifier: GPL-2.0
/*
 * The memory map and the file descriptors of a process. Dying code: the maple
 * tree of a process may be caught in the middle of a change, so it is read
 * node by node with checked reads, never by the kernel's own walk, which may
 * retry for ever on a node that is being replaced.
 */
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/magic.h>
#include <linux/maple_tree.h>
#include <linux/mm.h>
#include <linux/pipe_fs_i.h>
#include <linux/sched/mm.h>

#include "omk.h"

#define TREE_DEPTH_MAX	12

struct vma_walk {
	const struct omk_entry *e;
	struct omk_vma *out;
	u32 count, room;
	u64 end;		/* of the last one */
	u32 flags;		/* OMK_REC_* */
};

static u32 __dying vma_flags(const struct vm_area_struct *v)
{
	u32 flags = 0;

	if (v->vm_flags & VM_READ)
		flags |= OMK_VMA_READ;
	if (v->vm_flags & VM_WRITE)
		flags |= OMK_VMA_WRITE;
	if (v->vm_flags & VM_EXEC)
		flags |= OMK_VMA_EXEC;
	if (v->vm_flags & VM_MAYSHARE)
		flags |= OMK_VMA_SHARED;
	if (v->vm_flags & VM_SYNC)
		flags |= OMK_VMA_SYNC;
	if (v->vm_flags & VM_GROWSDOWN)
		flags |= OMK_VMA_GROWSDOWN;
	return flags;
}

static void __dying put_vma(struct vma_walk *w, const struct vm_area_struct *v)
{
	struct omk_vma *r = &w->out[w->count];
	struct inode *inode;
	struct super_block *sb;
	struct path path;
	unsigned int iflags;
	dev_t dev;

	r->start = v->vm_start;
	r->end = v->vm_end;
	r->vm_flags = v->vm_flags;
	r->offset = (u64)v->vm_pgoff << PAGE_SHIFT;
	r->flags = vma_flags(v);
	r->path = OMK_NO_PATH;
	w->end = v->vm_end;
	w->count++;
	if (!v->vm_file) {
		/* vdso and vvar: [VM_PFNMAP] or no pages to expand, and ops of their own */
		if (v->vm_ops && v->vm_flags & VM_DONTEXPAND)
			r->flags |= OMK_VMA_SPECIAL;
		return;
	}
	r->flags |= OMK_VMA_FILE;
	if (omk_peek(&inode, &v->vm_file->f_inode) || omk_peek(&r->ino, (u64 *)&inode->i_ino) ||
	    omk_peek(&sb, &inode->i_sb) || omk_peek(&dev, &sb->s_dev) ||
	    omk_peek(&iflags, &inode->i_flags)) {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	r->dev = new_encode_dev(dev);
	if (iflags & S_DAX)
		r->flags |= OMK_VMA_DAX;
	if (!omk_peek(&path, &v->vm_file->f_path))
		r->path = omk_path(&path);
}

static void __dying visit(struct vma_walk *w, void *entry)
{
	static struct vm_area_struct v;

	/* Tagged entries are the tree's own. */
	if ((unsigned long)entry & 3)
		return;
	if (omk_peek(&v, (struct vm_area_struct *)entry) || v.vm_mm != w->e->mm ||
	    v.vm_start < w->end || v.vm_end <= v.vm_start) {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	if (w->count >= w->room) {
		w->flags |= OMK_REC_TRUNCATED;
		return;
	}
	put_vma(w, &v);
}

/* One node: its type says where pivots and slots are. max: of its range. */
static void __dying walk_node(struct vma_walk *w, unsigned long enode, unsigned long max, int depth)
{
	const struct maple_node *node = (void *)(enode & ~255UL);
	unsigned int type = (enode >> 3) & 15, slots, i;
	const unsigned long *pivots;
	void __rcu * const *slot;

	if (depth > TREE_DEPTH_MAX) {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	if (type == maple_arange_64) {
		slots = MAPLE_ARANGE64_SLOTS;
		pivots = node->ma64.pivot;
		slot = node->ma64.slot;
	} else if (type == maple_leaf_64 || type == maple_range_64) {
		slots = MAPLE_RANGE64_SLOTS;
		pivots = node->mr64.pivot;
		slot = node->mr64.slot;
	} else {
		w->flags |= OMK_REC_DAMAGED;
		return;
	}
	for (i = 0; i < slots; i++) {
		unsigned long last = max;
		void *child;

		if (i < slots - 1 && omk_peek(&last, &pivots[i]))
			goto damaged;
		if (i && !last)	/* beyond the node's end */
			last = max;
		if (omk_peek(&child, (void **)&slot[i]))
			goto damaged;
		if (!child) {
			if (type != maple_leaf_64)
				goto damaged;
		} else if (type == maple_leaf_64) {
			visit(w, child);
		} else {
			walk_node(w, (unsigned long)child, last, depth + 1);
		}
		if (last >= max)
			return;
	}
	return;
damaged:
	w->flags |= OMK_REC_DAMAGED;
}

u32 __dying omk_save_vmas(struct omk_writer *out, const struct omk_entry *e)
{
	struct vma_walk w = { .e = e };
	unsigned long root;
	int mapped;

	if (omk_peek(&mapped, &e->mm->map_count) || mapped < 0 || mapped > OMK_VMAS_MAX)
		mapped = OMK_VMAS_MAX;
	/* One is being split, at most, by each thread: room for some more. */
	w.room = mapped + 64;
	w.out = omk_rec_begin(out, OMK_REC_VMAS, e->tgid, 0, w.room * sizeof(struct omk_vma));
	if (!w.out)
		return 0;
	if (omk_peek(&root, (unsigned long *)&e->mm->mm_mt.ma_root))
		w.flags |= OMK_REC_DAMAGED;
	else if ((root & 3) == 2 && root > 4096)
		walk_node(&w, root, ULONG_MAX, 0);
	else if (root && !(root & 3))
		visit(&w, (void *)root);
	omk_rec_end(out, w.count, w.count * sizeof(struct omk_vma), w.flags);
	return 1;
}

/* Whether a pipe holds something: how many buffers. What cannot be read counts as one. */
static u64 __dying held(const struct pipe_inode_info *pipe)
{
	unsigned int head, tail;

	if (omk_peek(&head, &pipe->head) || omk_peek(&tail, &pipe->tail))
		return 1;
	return head - tail;
}

static bool __dying put_fd(struct omk_fd *r, const struct omk_entry *e, u32 fd, bool cloexec,
			   const struct file *f)
{
	static struct file file;
	static struct inode inode;
	unsigned long magic;
	dev_t dev;

	if (omk_peek(&file, f) || omk_peek(&inode, file.f_inode) ||
	    omk_peek(&dev, &inode.i_sb->s_dev) || omk_peek(&magic, &inode.i_sb->s_magic))
		return false;
	r->fd = fd;
	r->flags = cloexec ? OMK_FD_CLOEXEC : 0;
	if (magic == TMPFS_MAGIC || magic == RAMFS_MAGIC || magic == HUGETLBFS_MAGIC)
		r->flags |= OMK_FD_VOLATILE;
	if (S_ISREG(inode.i_mode) && !inode.i_nlink)
		r->flags |= OMK_FD_UNLINKED;
	r->description = (u64)f;
	r->pos = file.f_pos;
	r->ino = inode.i_ino;
	r->dev = new_encode_dev(dev);
	r->rdev = new_encode_dev(inode.i_rdev);
	r->f_flags = file.f_flags;
	r->f_mode = (__force u32)file.f_mode;
	r->mode = inode.i_mode;
	r->size = inode.i_size;
	if (S_ISFIFO(inode.i_mode))
		r->size = held(file.private_data);
	if (S_ISCHR(inode.i_mode))
		omk_terminal_note(e, f, &file, inode.i_rdev);
	r->path = S_ISSOCK(inode.i_mode) ? OMK_NO_PATH : omk_path(&file.f_path);
	return true;
}

u32 __dying omk_save_fds(struct omk_writer *w, const struct omk_entry *e)
{
	struct fdtable *table, t;
	struct omk_fd *r;
	u32 fd, count = 0, open = 0, flags = 0;
	unsigned long bits = 0, cloexec = 0;
	struct file *f;

	if (omk_peek(&table, (struct fdtable **)&e->files->fdt) || omk_peek(&t, table))
		t.max_fds = 0;
	t.max_fds = min_t(u32, t.max_fds, OMK_FDS_MAX);
	/* Counted first, so that the record takes no more room than it needs. */
	for (fd = 0; fd < t.max_fds; fd += BITS_PER_LONG)
		if (!omk_peek(&bits, &t.open_fds[fd / BITS_PER_LONG]))
			open += hweight_long(bits);
	r = omk_rec_begin(w, OMK_REC_FDS, e->tgid, 0, open * sizeof(*r));
	if (!r)
		return 0;
	if (!t.max_fds)
		flags |= OMK_REC_DAMAGED;
	for (fd = 0; fd < t.max_fds && count < open; fd++) {
		if (!(fd % BITS_PER_LONG) &&
		    (omk_peek(&bits, &t.open_fds[fd / BITS_PER_LONG]) ||
		     omk_peek(&cloexec, &t.close_on_exec[fd / BITS_PER_LONG]))) {
			flags |= OMK_REC_DAMAGED;
			bits = 0;
		}
		if (!(bits >> (fd % BITS_PER_LONG) & 1))
			continue;
		if (omk_peek(&f, (struct file **)&t.fd[fd])) {
			flags |= OMK_REC_DAMAGED;
			continue;
		}
		if (!f)		/* reserved by an open() that goes on */
			continue;
		if (put_fd(&r[count], e, fd, cloexec >> (fd % BITS_PER_LONG) & 1, f))
			count++;
		else
			flags |= OMK_REC_DAMAGED;
	}
	omk_rec_end(w, count, count * sizeof(*r), flags);
	return 1;
}

/* Each open file, as often as there are descriptors of it. */
void __dying omk_each_file(const struct omk_entry *e,
			   void (*each)(const struct omk_entry *e, u32 fd, const struct file *f,
					void *to),
			   void *to)
{
	struct fdtable *table, t;
	unsigned long bits = 0;
	struct file *f;
	u32 fd;

	if (omk_peek(&table, (struct fdtable **)&e->files->fdt) || omk_peek(&t, table))
		return;
	t.max_fds = min_t(u32, t.max_fds, OMK_FDS_MAX);
	for (fd = 0; fd < t.max_fds; fd++) {
		if (!(fd % BITS_PER_LONG) && omk_peek(&bits, &t.open_fds[fd / BITS_PER_LONG]))
			bits = 0;
		if (bits >> (fd % BITS_PER_LONG) & 1 &&
		    !omk_peek(&f, (struct file **)&t.fd[fd]) && f)
			each(e, fd, f, to);
	}
}
