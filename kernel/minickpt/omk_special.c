// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors with a state in the kernel: eventfd, timerfd, epoll, pairs of Unix
 * sockets; and what these and pipes hold. Dying code: see omk.h.
 *
 * eventfd, timerfd and epoll are private to fs/. Their structures here begin as the
 * kernel's do from 6.1 on; whether that is so in the kernel that runs is found out by
 * who protects a program: it makes some, and compares what OMK_IOC_LOOK reads of them.
 */
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/alarmtimer.h>
#include <linux/eventpoll.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/pipe_fs_i.h>
#include <linux/rbtree.h>
#include <linux/skbuff.h>
#include <linux/timekeeping.h>
#include <net/af_unix.h>

#include "omk.h"

#define WATCHED_MAX	65536	/* by one epoll */
#define WATCHED_DEPTH	40
#define HELD_MAX	(1 << 20)	/* bytes in one pipe or socket */
#define CHUNKS_MAX	4096

struct eventfd_head {
	struct kref kref;
	wait_queue_head_t wqh;
	u64 count;
	unsigned int flags;
};

struct timerfd_head {
	union {
		struct hrtimer tmr;
		struct alarm alarm;
	} t;
	ktime_t tintv;
	ktime_t moffs;
	wait_queue_head_t wqh;
	u64 ticks;
	int clockid;
	unsigned short expired;
	unsigned short settime_flags;
};

struct epoll_head {
	struct mutex mtx;
	wait_queue_head_t wq;
	wait_queue_head_t poll_wait;
	struct list_head rdllist;
	rwlock_t lock;
	struct rb_root_cached rbr;
};

struct epoll_item {
	struct rb_node rbn;
	struct list_head rdllink;
	struct epoll_item *next;
	struct {
		struct file *file;
		int fd;
	} __packed ffd;
	void *pwqlist;
	void *ep;
	struct hlist_node fllink;
	void *ws;
	struct {
		u32 events;
		u64 data;
	} __packed event;
};

/* Counted without records, then written. */
struct found {
	const struct omk_entry *e;
	u8 *out;
	size_t len, room;
	u32 count;
	u32 flags;		/* OMK_REC_* */
	u64 description;	/* of the epoll whose tree is walked */
	struct omk_watched last;	/* of it */
};

static bool __dying name_of(char to[16], const struct file *f)
{
	const unsigned char *name;
	struct dentry *dentry;
	struct inode *inode;
	struct super_block *sb;
	unsigned long magic;

	if (omk_peek(&inode, (struct inode *const *)&f->f_inode) ||
	    omk_peek(&sb, (struct super_block *const *)&inode->i_sb) ||
	    omk_peek(&magic, &sb->s_magic) || magic != ANON_INODE_FS_MAGIC ||
	    omk_peek(&dentry, (struct dentry *const *)&f->f_path.dentry) ||
	    omk_peek(&name, (const unsigned char *const *)&dentry->d_name.name))
		return false;
	/* They are constants of the kernel: what follows a short one can be read. */
	if (copy_from_kernel_nofault(to, name, 15))
		return false;
	to[15] = 0;
	memset(to + strlen(to), 0, 16 - strlen(to));
	return true;
}

static u64 __dying left_of(ktime_t at, u64 now)
{
	return at > now ? at - now : 1;
}

static bool __dying put_timer(struct omk_special *r, const void *private)
{
	struct timerfd_head t;
	clockid_t base;
	u64 now, at;

	if (omk_peek(&t, (const struct timerfd_head *)private))
		return false;
	r->value[0] = (u32)t.clockid | (u64)t.settime_flags << 32;
	r->value[1] = t.tintv;
	r->value[3] = t.ticks;
	if (t.clockid == CLOCK_REALTIME_ALARM || t.clockid == CLOCK_BOOTTIME_ALARM)
		return false;
	if (!(t.t.tmr.state & HRTIMER_STATE_ENQUEUED)) {
		/* Not set; or a period that has passed: it begins anew when it is read. */
		r->value[2] = t.expired && t.tintv ? t.tintv : 0;
		return true;
	}
	if (omk_peek(&base, &t.t.tmr.base->clockid))
		return false;
	at = t.t.tmr.node.expires;
	if (base == CLOCK_REALTIME || base == CLOCK_TAI) {
		r->flags |= OMK_SPECIAL_ABSOLUTE;
		r->value[2] = at;
		return true;
	}
	now = base == CLOCK_BOOTTIME ? ktime_get_boot_fast_ns() : ktime_get_mono_fast_ns();
	r->value[2] = left_of(at, now);
	return true;
}

static void __dying put_item(struct found *w, const struct epoll_item *item)
{
	struct omk_watched *r = (void *)(w->out + w->len);

	w->last.fd = item->ffd.fd;
	w->last.events = item->event.events;
	w->last.data = item->event.data;
	w->count++;
	if (!w->out) {
		w->len += sizeof(*r);
		return;
	}
	if (w->len + sizeof(*r) > w->room) {
		w->flags |= OMK_REC_TRUNCATED;
		return;
	}
	w->len += sizeof(*r);
	r->description = w->description;
	r->target = (u64)item->ffd.file;
	r->fd = item->ffd.fd;
	r->events = item->event.events;
	r->data = item->event.data;
}

/* A tree that is being changed has other links or heights: its black height, or -1. */
static int __dying walk(struct found *w, const struct rb_node *at, const struct rb_node *parent,
			int depth)
{
	static struct epoll_item item;
	struct rb_node node;
	int left;

	if (!at)
		return 0;
	if (depth > WATCHED_DEPTH || w->count > WATCHED_MAX || omk_peek(&node, at) ||
	    rb_parent(&node) != parent)
		return -1;
	left = walk(w, node.rb_left, at, depth + 1);
	if (left < 0 || omk_peek(&item, (const struct epoll_item *)at))
		return -1;
	put_item(w, &item);
	if (walk(w, node.rb_right, at, depth + 1) != left)
		return -1;
	return left + (node.__rb_parent_color & 1);
}

static bool __dying walk_epoll(struct found *w, const void *private)
{
	const struct epoll_head *ep = private;
	struct rb_root root;

	return !omk_peek(&root, &ep->rbr.rb_root) && walk(w, root.rb_node, NULL, 0) >= 0;
}

static struct sock * __dying unix_of(const struct file *f, struct unix_sock *copy)
{
	struct socket socket;

	if (omk_peek(&socket, (struct socket *)f->private_data) || !socket.sk ||
	    omk_peek(copy, (struct unix_sock *)socket.sk) || copy->sk.sk_family != AF_UNIX)
		return NULL;
	return socket.sk;
}

static bool __dying put_unix(struct omk_special *r, const struct file *f)
{
	static struct unix_sock own;
	struct sock *sk = unix_of(f, &own);
	struct socket *socket;

	if (!sk)
		return false;
	r->value[0] = (u64)sk;
	/* A peer that was closed is held by this end, and has no file any more. */
	if (own.peer && !omk_peek(&socket, (struct socket *const *)&own.peer->sk_socket) && socket)
		r->value[1] = (u64)own.peer;
	r->value[2] = own.sk.sk_type | (u64)own.sk.sk_shutdown << 32;
	r->value[3] = READ_ONCE(own.sk.sk_receive_queue.qlen);
	if (own.addr || own.listener)
		r->flags |= OMK_SPECIAL_NAMED;
	return true;
}

/* What is known of a file that is neither a file, a pipe, nor a device. */
static bool __dying describe(struct omk_special *r, const struct file *f, umode_t mode)
{
	struct eventfd_head event;
	struct found none = { };
	bool whole = true;

	memset(r, 0, sizeof(*r));
	r->description = (u64)f;
	if (S_ISSOCK(mode)) {
		r->kind = OMK_SPECIAL_UNIX;
		return put_unix(r, f);
	}
	if (!name_of(r->name, f))
		return false;
	if (!strcmp(r->name, "[eventfd]")) {
		r->kind = OMK_SPECIAL_EVENT;
		whole = !omk_peek(&event, (struct eventfd_head *)f->private_data);
		if (whole) {
			r->value[0] = event.count;
			r->value[1] = event.flags & 1;
		}
	} else if (!strcmp(r->name, "[timerfd]")) {
		r->kind = OMK_SPECIAL_TIMER;
		whole = put_timer(r, f->private_data);
	} else if (!strcmp(r->name, "[eventpoll]")) {
		r->kind = OMK_SPECIAL_EPOLL;
		whole = walk_epoll(&none, f->private_data);
		r->value[0] = none.count;
		r->value[1] = none.last.events;
		r->value[2] = none.last.data;
		r->value[3] = none.last.fd;
	} else if (!strcmp(r->name, "[signalfd]")) {
		r->kind = OMK_SPECIAL_SIGNAL;
		whole = !omk_peek(&r->value[0], (u64 *)f->private_data);
	}
	if (!whole)
		r->flags |= OMK_SPECIAL_DAMAGED;
	return true;
}

static umode_t __dying mode_of(const struct file *f)
{
	struct inode *inode;
	umode_t mode;

	if (omk_peek(&inode, (struct inode *const *)&f->f_inode) ||
	    omk_peek(&mode, &inode->i_mode))
		return S_IFREG;
	return mode;
}

static void __dying put_special(const struct omk_entry *e, u32 fd, const struct file *f, void *to)
{
	struct omk_special one;
	struct found *w = to;
	umode_t mode = mode_of(f);
	struct file file;

	if (((mode & S_IFMT) && !S_ISSOCK(mode)) || omk_peek(&file, f) ||
	    !describe(&one, &file, mode))
		return;
	one.description = (u64)f;
	if (w->out && w->len + sizeof(one) <= w->room)
		memcpy(w->out + w->len, &one, sizeof(one));
	w->len += sizeof(one);
	w->count++;
}

static void __dying put_watched(const struct omk_entry *e, u32 fd, const struct file *f, void *to)
{
	struct found *w = to;
	struct file file;
	char name[16];

	if (mode_of(f) & S_IFMT || omk_peek(&file, f) || !name_of(name, &file) ||
	    strcmp(name, "[eventpoll]"))
		return;
	w->description = (u64)f;
	/* One that is broken is told by its record of OMK_REC_SPECIALS. */
	walk_epoll(w, file.private_data);
}

/* One piece of what a pipe or a socket holds. */
static void __dying put_chunk(struct found *w, u64 description, const void *from, u32 len)
{
	struct omk_chunk *r = (void *)(w->out + w->len);
	size_t room = sizeof(*r) + ALIGN(len, 8);

	w->len += room;
	w->count++;
	if (!w->out)
		return;
	if (w->len > w->room) {
		w->len -= room;
		w->count--;
		w->flags |= OMK_REC_TRUNCATED;
		return;
	}
	r->description = description;
	r->len = len;
	if (copy_from_kernel_nofault(r + 1, from, len))
		r->flags = OMK_CHUNK_LOST;
}

static void __dying lost_chunk(struct found *w, u64 description)
{
	put_chunk(w, description, NULL, 0);
	if (w->out && w->len <= w->room)
		((struct omk_chunk *)(w->out + w->len) - 1)->flags = OMK_CHUNK_LOST;
}

static void __dying held_by_pipe(struct found *w, u64 description, const void *private)
{
	struct pipe_inode_info pipe;
	struct pipe_buffer buffer;
	size_t held = 0;
	u32 at;

	if (omk_peek(&pipe, (const struct pipe_inode_info *)private) || !pipe.ring_size ||
	    pipe.head - pipe.tail > pipe.ring_size || pipe.ring_size & (pipe.ring_size - 1)) {
		lost_chunk(w, description);
		return;
	}
	for (at = pipe.tail; at != pipe.head; at++) {
		if (omk_peek(&buffer, &pipe.bufs[at & (pipe.ring_size - 1)])) {
			lost_chunk(w, description);
			return;
		}
		/* Not yet filled, or given back. */
		if (!buffer.ops || !buffer.len)
			continue;
		held += buffer.len;
		if (held > HELD_MAX || buffer.offset + buffer.len > PAGE_SIZE ||
		    buffer.flags & PIPE_BUF_FLAG_PACKET) {
			lost_chunk(w, description);
			return;
		}
		put_chunk(w, description, page_address(buffer.page) + buffer.offset, buffer.len);
	}
}

static void __dying held_by_socket(struct found *w, u64 description, const struct file *f)
{
	static struct unix_sock own;
	static struct sk_buff skb;
	struct sock *sk = unix_of(f, &own);
	const struct sk_buff *at, *head;
	size_t held = 0;
	u32 i, taken;

	if (!sk)
		return;
	head = (const struct sk_buff *)&sk->sk_receive_queue;
	at = own.sk.sk_receive_queue.next;
	for (i = 0; at && at != head; i++) {
		if (i == CHUNKS_MAX || omk_peek(&skb, at)) {
			lost_chunk(w, description);
			return;
		}
		taken = own.sk.sk_type == SOCK_STREAM ? UNIXCB(&skb).consumed : 0;
		held += skb.len;
		/* What carries descriptors, or lies in several pieces, is not kept. */
		if (UNIXCB(&skb).fp || skb.data_len || taken > skb.len || held > HELD_MAX) {
			lost_chunk(w, description);
			return;
		}
		put_chunk(w, description, skb.data + taken, skb.len - taken);
		at = skb.next;
	}
}

static void __dying put_held(const struct omk_entry *e, u32 fd, const struct file *f, void *to)
{
	umode_t mode = mode_of(f);
	struct file file;

	if (omk_peek(&file, f))
		return;
	if (S_ISFIFO(mode) && file.f_mode & FMODE_READ)
		held_by_pipe(to, (u64)f, file.private_data);
	else if (S_ISSOCK(mode))
		held_by_socket(to, (u64)f, &file);
}

static u32 __dying save(struct omk_writer *out, const struct omk_entry *e, u32 type,
			void (*each)(const struct omk_entry *, u32, const struct file *, void *))
{
	struct found w = { .e = e };

	omk_each_file(e, each, &w);
	w.room = w.len;
	w.len = w.count = 0;
	w.out = omk_rec_begin(out, type, e->tgid, 0, w.room);
	if (!w.out)
		return 0;
	omk_each_file(e, each, &w);
	if (w.len > w.room) {	/* a processor that never stopped made more */
		w.len = w.room;
		w.flags |= OMK_REC_TRUNCATED;
	}
	omk_rec_end(out, w.count, w.len, w.flags);
	return 1;
}

u32 __dying omk_save_specials(struct omk_writer *w, const struct omk_entry *e)
{
	return save(w, e, OMK_REC_SPECIALS, put_special);
}

u32 __dying omk_save_watched(struct omk_writer *w, const struct omk_entry *e)
{
	return save(w, e, OMK_REC_WATCHED, put_watched);
}

u32 __dying omk_save_held(struct omk_writer *w, const struct omk_entry *e)
{
	return save(w, e, OMK_REC_HELD, put_held);
}

/* What is read of a file of the caller; calm code. */
int omk_look(u32 fd, struct omk_special *r)
{
	struct file *f = fget(fd);
	int err = 0;

	if (!f)
		return -EBADF;
	if (!describe(r, f, mode_of(f)))
		err = -ENODATA;
	r->description = 0;
	fput(f);
	return err;
}
