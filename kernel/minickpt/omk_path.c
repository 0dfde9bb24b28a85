// SPDX-License-Identifier: GPL-2.0
/*
 * Paths without locks: d_path() takes rename_lock and mount_lock, which may be
 * held by the part of the kernel that died. Here every step is a checked read
 * and the number of steps is bounded.
 *
 * struct mount is private to fs/, but the three members before its vfsmount
 * have been the same since Linux 3.3; omk_path_selftest() compares with
 * d_path() when the module is loaded, and paths are left out if they differ.
 */
#include <linux/dcache.h>
#include <linux/fs_struct.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/path.h>
#include <linux/slab.h>

#include "omk.h"

#define STRINGS_MAX	(128 * 1024)
#define DEPTH_MAX	256

struct mount_head {
	struct hlist_node hash;
	struct mount_head *parent;
	struct dentry *mountpoint;
	struct vfsmount mnt;
};

/* Most mappings of a process are of a few files: their paths are held once. */
#define KNOWN_MAX	64

static struct {
	const struct dentry *dentry;
	const struct vfsmount *mnt;
	u32 offset;
} known[KNOWN_MAX];
static u32 known_next;
static char strings[STRINGS_MAX];
static u32 strings_len;
static bool strings_full;
static bool usable;

void __dying omk_strings_begin(void)
{
	strings_len = 0;
	strings_full = false;
	memset(known, 0, sizeof(known));
	known_next = 0;
}

static int __dying prepend(char *buf, u32 *at, const struct dentry *d)
{
	const unsigned char *name;
	u32 len;

	if (omk_peek(&len, &d->d_name.len) || omk_peek(&name, &d->d_name.name))
		return -EFAULT;
	if (!len || len > NAME_MAX || len + 1 > *at)
		return -ENAMETOOLONG;
	*at -= len + 1;
	buf[*at] = '/';
	return copy_from_kernel_nofault(buf + *at + 1, name, len) ? -EFAULT : 0;
}

static int __dying walk(char *buf, u32 *at, const struct path *path)
{
	struct mount_head *m = container_of(path->mnt, struct mount_head, mnt);
	struct dentry *d = path->dentry, *root, *up;
	struct mount_head *parent;
	int steps;

	for (steps = 0; steps < DEPTH_MAX; steps++) {
		if (omk_peek(&root, &m->mnt.mnt_root) || omk_peek(&up, &d->d_parent) ||
		    omk_peek(&parent, &m->parent))
			return -EFAULT;
		if (d == root) {
			if (parent == m)
				return 0;
			if (omk_peek(&d, &m->mountpoint))
				return -EFAULT;
			m = parent;
			continue;
		}
		if (up == d)
			return -ENOENT;	/* unreachable, or has no path at all */
		if (prepend(buf, at, d))
			return -EFAULT;
		d = up;
	}
	return -ELOOP;
}

/* Adds a path to the strings; its offset, or OMK_NO_PATH. */
u32 __dying omk_path(const struct path *path)
{
	static char buf[PATH_MAX];
	u32 at = sizeof(buf) - 1, len, offset = strings_len, i;

	if (!usable || !path->dentry || !path->mnt)
		return OMK_NO_PATH;
	for (i = 0; i < KNOWN_MAX; i++)
		if (known[i].dentry == path->dentry && known[i].mnt == path->mnt)
			return known[i].offset;
	buf[at] = 0;
	if (walk(buf, &at, path))
		return OMK_NO_PATH;
	if (at == sizeof(buf) - 1)
		buf[--at] = '/';
	len = sizeof(buf) - at;
	if (strings_len + len > sizeof(strings)) {
		strings_full = true;
		return OMK_NO_PATH;
	}
	memcpy(strings + strings_len, buf + at, len);
	strings_len += len;
	known[known_next].dentry = path->dentry;
	known[known_next].mnt = path->mnt;
	known[known_next].offset = offset;
	known_next = (known_next + 1) % KNOWN_MAX;
	return offset;
}

u32 __dying omk_save_strings(struct omk_writer *w, u32 tgid)
{
	void *r = omk_rec_begin(w, OMK_REC_STRINGS, tgid, 0, strings_len);

	if (!r)
		return 0;
	memcpy(r, strings, strings_len);
	omk_rec_end(w, 1, strings_len, strings_full ? OMK_REC_TRUNCATED : 0);
	return 1;
}

static bool same(const char *name)
{
	struct path path;
	char *buf, *want;
	bool ok = false;
	u32 got;

	buf = kmalloc(PATH_MAX, GFP_KERNEL);
	if (!buf)
		return false;
	if (!kern_path(name, LOOKUP_FOLLOW, &path)) {
		want = d_path(&path, buf, PATH_MAX);
		omk_strings_begin();
		got = omk_path(&path);
		ok = !IS_ERR(want) && got != OMK_NO_PATH && !strcmp(strings + got, want);
		path_put(&path);
	}
	kfree(buf);
	return ok;
}

/* Whether the layout above is this kernel's. Not fatal: paths are a comfort. */
int omk_path_selftest(void)
{
	usable = true;
	if (!same("/") || !same("/proc/self/net") || !same("/dev/null")) {
		usable = false;
		pr_warn("outlive-minickpt: paths cannot be read in this kernel; they are left out\n");
		return -ENOENT;
	}
	return 0;
}
