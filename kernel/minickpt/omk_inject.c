// SPDX-License-Identifier: GPL-2.0
/*
 * Kills this kernel on request, in the ways of the mini-ckpts study (null
 * pointer, overwritten task members, direct panic, hangs, exhausted memory).
 * A test tool: never load it on a machine that matters.
 */
#include <linux/capability.h>
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/smp.h>
#include <linux/timer.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include <uapi/outlive_inject.h>

#define WILD	((void *)0xdead4ead00000000UL)	/* not canonical: any use faults */

static struct omi_inject pending;
static struct delayed_work work;
static atomic_long_t refused;

/* Entries of the allocators, replaced by a refusal: "exhausted memory". */
static void *refuse(void)
{
	atomic_long_inc(&refused);
	return NULL;
}

/* Its name until Linux 6.1. */
#ifndef ftrace_regs_set_instruction_pointer
#define ftrace_regs_set_instruction_pointer ftrace_instruction_pointer_set
#endif

static void notrace on_allocate(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				struct ftrace_regs *fregs)
{
	ftrace_regs_set_instruction_pointer(fregs, (unsigned long)refuse);
}

static struct ftrace_ops allocators = {
	.func = on_allocate,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY,
};

static void no_memory(void)
{
	static const char * const names[] = { "__alloc_pages", "__kmalloc", "kmem_cache_alloc",
					      "__kmalloc_node", "kmem_cache_alloc_node" };
	struct kprobe probe;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		memset(&probe, 0, sizeof(probe));
		probe.symbol_name = names[i];
		if (register_kprobe(&probe))
			continue;
		if (ftrace_set_filter_ip(&allocators, (unsigned long)probe.addr, 0, 0))
			pr_warn("outlive-inject: %s stays usable\n", names[i]);
		unregister_kprobe(&probe);
	}
	if (register_ftrace_function(&allocators))
		pr_warn("outlive-inject: allocators cannot be replaced\n");
	panic("outlive-inject: no memory (%ld allocations refused)", atomic_long_read(&refused));
}

static void spin_irqs_off(void *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	for (;;)
		cpu_relax();
}

static void overwrite(const struct omi_inject *in)
{
	struct task_struct *t = current;

	if (in->pid) {
		struct pid *pid = find_get_pid(in->pid);

		t = get_pid_task(pid, PIDTYPE_PID);
		put_pid(pid);
		if (!t)
			return;
	}
	switch (in->kind) {
	case OMI_FS:
		WRITE_ONCE(t->fs, WILD);
		break;
	case OMI_SIGHAND:
		RCU_INIT_POINTER(t->sighand, WILD);
		break;
	case OMI_PARENT:
		RCU_INIT_POINTER(t->real_parent, WILD);
		RCU_INIT_POINTER(t->parent, WILD);
		break;
	case OMI_FILES:
		WRITE_ONCE(t->files, WILD);
		break;
	}
	/* Not put: the task is wrong now and the machine will not last. */
}

static void act(const struct omi_inject *in)
{
	pr_emerg("outlive-inject: kind %u on processor %u\n", in->kind, raw_smp_processor_id());
	switch (in->kind) {
	case OMI_PANIC:
		panic("outlive-inject: asked to");
		break;
	case OMI_NULL:
		READ_ONCE(*(volatile int *)NULL);
		break;
	case OMI_FS:
	case OMI_SIGHAND:
	case OMI_PARENT:
	case OMI_FILES:
		overwrite(in);
		break;
	case OMI_LOCKUP:
		spin_irqs_off(NULL);
		break;
	case OMI_SOFT_LOCKUP:
		preempt_disable();
		for (;;)
			cpu_relax();
		break;
	case OMI_HUNG:
		for (;;) {
			set_current_state(TASK_UNINTERRUPTIBLE);
			schedule();
		}
		break;
	case OMI_NO_MEMORY:
		no_memory();
		break;
	}
}

static void act_later(struct work_struct *unused)
{
	act(&pending);
}

static bool spins;	/* the processor that asked, with interrupts off */

static void panic_there(void *unused)
{
	while (!READ_ONCE(spins))
		cpu_relax();
	panic("outlive-inject: while another processor spins");
}

static long spin_panic(u32 cpu)
{
	static call_single_data_t csd;
	unsigned long flags;

	INIT_CSD(&csd, panic_there, NULL);
	local_irq_save(flags);
	if (cpu == OMI_ANY_CPU || cpu == smp_processor_id())
		cpu = cpumask_any_but(cpu_online_mask, smp_processor_id());
	if (cpu >= nr_cpu_ids) {
		local_irq_restore(flags);
		return -ENXIO;
	}
	smp_call_function_single_async(cpu, &csd);
	WRITE_ONCE(spins, true);
	for (;;)
		cpu_relax();
}

static long inject_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct omi_inject in;

	if (cmd != OMI_IOC_INJECT)
		return -ENOTTY;
	if (copy_from_user(&in, (void __user *)arg, sizeof(in)))
		return -EFAULT;
	if (in.version != OMI_VERSION || in.reserved || in.kind < OMI_PANIC ||
	    in.kind > OMI_SPIN_PANIC || in.delay_ms > 600 * MSEC_PER_SEC)
		return -EINVAL;
	if (in.cpu != OMI_ANY_CPU && !cpu_online(in.cpu))
		return -ENXIO;
	if (in.kind == OMI_SPIN_PANIC) {
		msleep(in.delay_ms);
		return spin_panic(in.cpu);
	}
	if (in.cpu == OMI_ANY_CPU && !in.delay_ms) {
		act(&in);
		return 0;
	}
	if (!in.pid)
		in.pid = current->pid;
	pending = in;
	if (in.cpu == OMI_ANY_CPU)
		schedule_delayed_work(&work, msecs_to_jiffies(in.delay_ms));
	else
		schedule_delayed_work_on(in.cpu, &work, msecs_to_jiffies(in.delay_ms));
	return 0;
}

static int inject_open(struct inode *inode, struct file *file)
{
	return capable(CAP_SYS_ADMIN) ? 0 : -EPERM;
}

static const struct file_operations inject_ops = {
	.owner = THIS_MODULE,
	.open = inject_open,
	.unlocked_ioctl = inject_ioctl,
};

static struct miscdevice inject_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "outlive-inject",
	.mode = 0600,
	.fops = &inject_ops,
};

static int __init inject_init(void)
{
	INIT_DELAYED_WORK(&work, act_later);
	return misc_register(&inject_device);
}

static void __exit inject_exit(void)
{
	misc_deregister(&inject_device);
	cancel_delayed_work_sync(&work);
}

module_init(inject_init);
module_exit(inject_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Kills the kernel on request, for tests");
MODULE_VERSION("0.1.0");
