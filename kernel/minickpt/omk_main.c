// SPDX-License-Identifier: GPL-2.0
/*
 * Outlive mini-checkpoints: /dev/outlive-minickpt. Calm code, see omk.h.
 *
 * The idea, a process that lives in memory that a reboot keeps and whose
 * registers are saved when the kernel dies, is that of mini-ckpts (Fiala,
 * Mueller, Ferreira, Engelmann), which changed the kernel for it.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fdtable.h>
#include <linux/fs_struct.h>
#include <linux/kdev_t.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/tracepoint.h>
#include <linux/tty.h>
#include <asm/tsc.h>

#include "omk.h"

struct omk_module omk;
static DEFINE_MUTEX(lock);		/* entries; never taken in dying code */

static ulong area_addr;
module_param(area_addr, ulong, 0444);
MODULE_PARM_DESC(area_addr, "physical address of the area, memmap=SIZE$ADDR");
static ulong area_size;
module_param(area_size, ulong, 0444);
MODULE_PARM_DESC(area_size, "its size in bytes");
static uint watch_s;
module_param(watch_s, uint, 0444);
MODULE_PARM_DESC(watch_s, "panic when a processor is silent for so many seconds (0: off)");

static struct omk_entry *entry_of(u32 tgid)
{
	int i;

	for (i = 0; i < OMK_PROCESSES_MAX; i++)
		if (omk.entries[i].used && omk.entries[i].tgid == tgid)
			return &omk.entries[i];
	return NULL;
}

static void entry_drop(struct omk_entry *e)
{
	WRITE_ONCE(e->used, false);
	/* A panic on another processor may be reading it: it then finds valid
	 * memory, as nothing is freed by a kernel that has stopped us.
	 */
	smp_wmb();
	mmdrop(e->mm);
	put_cred(e->cred);
	put_task_struct(e->leader);
}

/* What is left of processes that ended. */
static void entries_sweep(void)
{
	int i;

	for (i = 0; i < OMK_PROCESSES_MAX; i++) {
		struct omk_entry *e = &omk.entries[i];

		/* Ended, or runs another program now. */
		if (e->used && (!READ_ONCE(e->leader->signal->live.counter) ||
				(READ_ONCE(e->leader->mm) && e->leader->mm != e->mm)))
			entry_drop(e);
	}
}

static int entry_fill(struct omk_entry *e, struct task_struct *t, u64 cookie)
{
	struct sighand_struct *sighand;
	struct tty_struct *tty;

	e->tgid = t->tgid;
	e->cookie = cookie;
	e->tty = 0;
	task_lock(t);
	e->mm = t->mm;
	e->files = t->files;
	e->fs = t->fs;
	if (e->mm)
		mmgrab(e->mm);
	task_unlock(t);
	if (!e->mm)
		return -ESRCH;
	rcu_read_lock();
	sighand = rcu_dereference(t->sighand);
	if (!sighand) {		/* it ended meanwhile */
		rcu_read_unlock();
		mmdrop(e->mm);
		return -ESRCH;
	}
	e->leader = get_task_struct(t);
	e->signal = t->signal;
	e->sighand = sighand;
	e->cred = get_task_cred(t);
	e->ppid = task_tgid_nr(rcu_dereference(t->real_parent));
	e->pgid = pid_nr(task_pgrp(t));
	e->sid = pid_nr(task_session(t));
	spin_lock_irq(&sighand->siglock);
	tty = tty_kref_get(t->signal->tty);
	spin_unlock_irq(&sighand->siglock);
	rcu_read_unlock();
	if (tty) {
		e->tty = new_encode_dev(tty_devnum(tty));
		tty_kref_put(tty);
	}
	return 0;
}

static long do_register(const struct omk_register *r)
{
	struct omk_entry *e = NULL;
	struct task_struct *t;
	struct pid *pid;
	int i, err;

	if (r->version != OMK_ABI_VERSION || r->flags)
		return -EINVAL;
	pid = find_get_pid(r->tgid);
	t = get_pid_task(pid, PIDTYPE_TGID);
	put_pid(pid);
	if (!t)
		return -ESRCH;
	mutex_lock(&lock);
	entries_sweep();
	err = -EEXIST;
	if (entry_of(t->tgid))
		goto out;
	err = -ENOSPC;
	for (i = 0; i < OMK_PROCESSES_MAX && !e; i++)
		if (!omk.entries[i].used)
			e = &omk.entries[i];
	if (!e)
		goto out;
	err = entry_fill(e, t, r->cookie);
	if (!err)
		/* An entry is whole before a panic elsewhere may use it. */
		smp_store_release(&e->used, true);
out:
	mutex_unlock(&lock);
	put_task_struct(t);
	return err;
}

static long do_unregister(u32 tgid)
{
	struct task_struct *t;
	struct omk_entry *e;
	struct pid *pid = find_get_pid(tgid);

	t = get_pid_task(pid, PIDTYPE_TGID);
	put_pid(pid);
	mutex_lock(&lock);
	e = entry_of(t ? t->tgid : tgid);
	if (e)
		entry_drop(e);
	mutex_unlock(&lock);
	if (t)
		put_task_struct(t);
	return e ? 0 : -ESRCH;
}

static void do_query(struct omk_query *q)
{
	const struct omk_image *image;
	int i;

	memset(q, 0, sizeof(*q));
	mutex_lock(&lock);
	entries_sweep();
	for (i = 0; i < OMK_PROCESSES_MAX; i++)
		q->registered += omk.entries[i].used;
	q->version = OMK_ABI_VERSION;
	q->state = omk.state;
	q->damage = omk.damage;
	q->generation = omk.super->generation;
	q->area_addr = omk.addr;
	q->area_size = omk.size;
	q->armed = omk.armed ? OMK_ARMED_SAVES : 0;
	if (!omk_cpu_hooked())
		q->armed |= OMK_ARMED_BLIND;
	q->retries = omk.marks->retries;
	q->panics = omk.marks->panics;
	q->xcr0 = omk.xcr0;
	q->xstate_size = omk.xstate_size;
	if (q->generation && omk.state != OMK_STATE_DAMAGED) {
		image = omk_image_of(q->generation);
		q->image_off = (u8 *)image - omk.area;
		q->image_len = OMK_IMAGE_HEADER + image->body_len;
	}
	mutex_unlock(&lock);
}

static long do_mark(const struct omk_mark_set *m)
{
	if (m->mark >= OMK_MARK_MAX || m->reserved)
		return -EINVAL;
	omk.marks->tsc[m->mark] = m->tsc ?: rdtsc();
	return 0;
}

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	struct omk_register reg;
	struct omk_mark_set mark;
	struct omk_query query;
	struct omk_look look;
	u64 generation;
	u32 number;
	long err = 0;

	switch (cmd) {
	case OMK_IOC_QUERY:
		do_query(&query);
		return copy_to_user(user, &query, sizeof(query)) ? -EFAULT : 0;
	case OMK_IOC_REGISTER:
		if (copy_from_user(&reg, user, sizeof(reg)))
			return -EFAULT;
		return do_register(&reg);
	case OMK_IOC_MARK:
		if (copy_from_user(&mark, user, sizeof(mark)))
			return -EFAULT;
		return do_mark(&mark);
	case OMK_IOC_ACK:
		if (get_user(generation, (u64 __user *)user))
			return -EFAULT;
		mutex_lock(&lock);
		err = omk_area_ack(generation);
		mutex_unlock(&lock);
		return err;
	case OMK_IOC_ATTEMPT:
		mutex_lock(&lock);
		number = omk.state == OMK_STATE_READY ? ++omk.marks->attempts : 0;
		mutex_unlock(&lock);
		return number ? put_user(number, (u32 __user *)user) : -ENODATA;
	case OMK_IOC_CLOCK:
		return put_user((u32)tsc_khz, (u32 __user *)user);
	case OMK_IOC_CHECK:
		mutex_lock(&lock);
		number = omk.state == OMK_STATE_READY ? 0 : omk_save_check();
		mutex_unlock(&lock);
		return number ? put_user(number, (u32 __user *)user) : -EBUSY;
	case OMK_IOC_LOOK:
		if (copy_from_user(&look, user, sizeof(look)))
			return -EFAULT;
		err = omk_look(look.fd, &look.special);
		return err ?: copy_to_user(user, &look, sizeof(look)) ? -EFAULT : 0;
	case OMK_IOC_UNREGISTER:
	case OMK_IOC_ARM:
	case OMK_IOC_FORMAT:
		break;
	default:
		return -ENOTTY;
	}
	if (get_user(number, (u32 __user *)user))
		return -EFAULT;
	if (cmd == OMK_IOC_UNREGISTER)
		return do_unregister(number);
	if (number != (cmd == OMK_IOC_FORMAT ? OMK_ABI_VERSION : !!number))
		return -EINVAL;
	mutex_lock(&lock);
	if (cmd == OMK_IOC_ARM)
		WRITE_ONCE(omk.armed, number);
	else
		omk_area_format();
	mutex_unlock(&lock);
	return 0;
}

static ssize_t device_read(struct file *file, char __user *to, size_t len, loff_t *pos)
{
	return simple_read_from_buffer(to, len, pos, omk.area, omk.size);
}

static loff_t device_llseek(struct file *file, loff_t offset, int whence)
{
	return fixed_size_llseek(file, offset, whence, omk.size);
}

static int device_open(struct inode *inode, struct file *file)
{
	return capable(CAP_SYS_ADMIN) ? 0 : -EPERM;
}

static const struct file_operations device_ops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.read = device_read,
	.llseek = device_llseek,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "outlive-minickpt",
	.mode = 0600,
	.fops = &device_ops,
};

/* When this kernel's clock was zero, in ticks; and that we are here. */
static void mark_boot(void)
{
	u64 now = rdtsc();

	if (omk.state != OMK_STATE_READY)
		return;
	omk.marks->tsc[OMK_MARK_MODULE] = now;
	omk.marks->tsc[OMK_MARK_KERNEL] =
		now - mul_u64_u64_div_u64(ktime_get_boottime_ns(), tsc_khz, NSEC_PER_MSEC);
}

static int __init omk_init(void)
{
	int err = omk_cpu_init();

	if (err)
		return err;
	err = omk_area_open(area_addr, area_size);
	if (err)
		goto no_area;
	mark_boot();
	omk_task_init();
	omk_path_selftest();
	err = omk_save_init();
	if (err)
		goto no_save;
	err = misc_register(&device);
	if (err)
		goto no_device;
	omk_park_init();
	WRITE_ONCE(omk.armed, 1);
	return omk_watch_init(watch_s);
no_device:
	omk_save_exit();
no_save:
	omk_area_close();
no_area:
	omk_cpu_exit();
	return err;
}

static void __exit omk_exit(void)
{
	int i;

	omk_watch_exit();
	WRITE_ONCE(omk.armed, 0);
	misc_deregister(&device);
	omk_park_exit();
	omk_save_exit();
	for (i = 0; i < OMK_PROCESSES_MAX; i++)
		if (omk.entries[i].used)
			entry_drop(&omk.entries[i]);
	omk_area_close();
	omk_cpu_exit();
}

module_init(omk_init);
module_exit(omk_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Saves registered processes when the kernel dies");
MODULE_VERSION("0.1.0");
