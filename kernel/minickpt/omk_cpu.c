// SPDX-License-Identifier: GPL-2.0
/*
 * Stopping the other processors, and the registers that only they hold.
 *
 * First softly: an interrupt to each, so that none stops inside a section with
 * interrupts off. Each saves itself and halts. A processor that does not
 * answer within SOFT_MS spins with interrupts off; the kernel's own crash NMI
 * reaches it, and the hook on kdump_nmi_callback saves it.
 */
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <asm/fpu/api.h>
#include <asm/fpu/xcr.h>
#include <asm/msr.h>
#include <asm/tsc.h>

#include "omk.h"

#define SOFT_MS		100
#define LATE_MS		5000	/* for processors that a hypervisor does not let run */

static struct omk_live *live;		/* [nr_cpu_ids] */
static u8 *xstates;			/* [nr_cpu_ids][xstate_size], 64-byte aligned */
static size_t xstate_stride;
static DEFINE_PER_CPU(call_single_data_t, stop_csd);
static atomic_t stopped;
static int asked;			/* to stop; written by the dying processor alone */
static bool stopping;
u64 omk_stop_tsc;
u64 omk_first_tsc;

/* Whatever the user's FPU state of this processor is: in its registers when
 * TIF_NEED_FPU_LOAD is clear, else in the task's buffer already.
 */
static void __dying save_fpu(struct omk_live *slot, u8 *to)
{
	if (test_thread_flag(TIF_NEED_FPU_LOAD) || (current->flags & PF_KTHREAD))
		return;
	/* XSAVE writes of its header only XSTATE_BV; the rest must be zero. */
	memset(to + 512, 0, 64);
	asm volatile("xsave64 %0" : "+m" (*(u8 (*)[OMK_XSTATE_MAX])to)
		     : "a" ((u32)omk.xcr0), "d" ((u32)(omk.xcr0 >> 32)) : "memory");
	slot->fpu_live = 1;
}

/* Whoever meets the death first keeps its time. */
void __dying omk_first_notice(void)
{
	if (!omk_first_tsc)
		omk_first_tsc = rdtsc();
}

void __dying omk_cpu_save_self(void)
{
	int cpu = raw_smp_processor_id();
	struct omk_live *slot = &live[cpu];

	if (READ_ONCE(slot->done))
		return;
	slot->task = current;
	omk_entry_look(slot);
	if (slot->in_task) {
		slot->fs_base = current->thread.fsbase;
		slot->gs_base = current->thread.gsbase;
	} else {
		rdmsrl(MSR_FS_BASE, slot->fs_base);
		if (!slot->gs_other)
			rdmsrl(MSR_KERNEL_GS_BASE, slot->gs_base);
	}
	if (slot->fpu_in_task)
		/* The registers are still another's: nobody may take them for its own. */
		set_thread_flag(TIF_NEED_FPU_LOAD);
	save_fpu(slot, xstates + cpu * xstate_stride);
	/* The slot before the word that says it is whole; read by omk_live_of(). */
	smp_store_release(&slot->done, 1);
}

static void __dying stop_here(void *unused)
{
	omk_cpu_save_self();
	atomic_inc(&stopped);
	/* The crash NMI comes here and ends this processor's work. */
	for (;;)
		cpu_relax();
}

/* Waits until done() or for that long, by the time stamp counter: udelay() goes by a
 * count that each processor made when it came up, unless the counter is known to be
 * constant, and in a virtual machine the count may be wrong by any factor. The pause is
 * for hosts that then let another processor run.
 */
bool __dying omk_wait(bool (*done)(void), unsigned int ms)
{
	u64 start = rdtsc(), ticks = (u64)ms * tsc_khz;
	unsigned int n;

	for (n = 0; !done(); n++) {
		if (tsc_khz ? rdtsc() - start >= ticks : n >= ms * 10)
			return false;
		cpu_relax();
		udelay(100);
	}
	return true;
}

static bool __dying all_stopped(void)
{
	return atomic_read(&stopped) >= asked;
}

/* Entry of crash_smp_send_stop(): on the dying processor, interrupts off. */
static int __dying before_stop(struct kprobe *p, struct pt_regs *regs)
{
	unsigned int cpu, self = raw_smp_processor_id();

	if (!omk.armed || xchg(&stopping, true))
		return 0;
	omk_first_notice();
	omk_cpu_save_self();
	for_each_online_cpu(cpu) {
		if (cpu != self &&
		    !smp_call_function_single_async(cpu, per_cpu_ptr(&stop_csd, cpu)))
			asked++;
	}
	omk_wait(all_stopped, SOFT_MS);
	omk_stop_tsc = rdtsc();
	return 0;
}

/* Entry of kdump_nmi_callback(): on each of the others, in an NMI. */
static int __dying in_crash_nmi(struct kprobe *p, struct pt_regs *regs)
{
	if (omk.armed)
		omk_cpu_save_self();
	return 0;
}

static struct kprobe on_stop = {
	.symbol_name = "crash_smp_send_stop",
	.pre_handler = before_stop,
};

static struct kprobe on_nmi = {
	.symbol_name = "kdump_nmi_callback",
	.pre_handler = in_crash_nmi,
};

/* True once the others were asked to stop. */
bool __dying omk_cpu_stopped(void)
{
	return READ_ONCE(stopping);
}

/* Online processors that saved nothing. */
u32 __dying omk_cpu_missing(void)
{
	u32 cpu, missing = 0;

	for_each_online_cpu(cpu)
		/* Pairs with the release in omk_cpu_save_self(). */
		missing += !smp_load_acquire(&live[cpu].done);
	return missing;
}

static bool __dying none_missing(void)
{
	return !omk_cpu_missing();
}

/* The kernel waits a second for its NMIs, by udelay(). A processor that answers none of
 * them is broken, or does not run because of its host: it has the NMI when it does.
 */
void __dying omk_cpu_wait(void)
{
	if (READ_ONCE(stopping))
		omk_wait(none_missing, LATE_MS);
}

/* True for a thread that runs on a processor that saved nothing, be it that none was
 * asked because the hooks are switched off: what is known of it is of its last way into
 * the kernel.
 */
bool __dying omk_cpu_has(const struct task_struct *t)
{
	unsigned int cpu = task_cpu(t);

	/* Pairs with the release in omk_cpu_save_self(). */
	return READ_ONCE(t->on_cpu) && cpu < nr_cpu_ids && cpu_online(cpu) &&
	       !smp_load_acquire(&live[cpu].done);
}

const struct omk_live __dying *omk_live_of(const struct task_struct *t, const void **xstate)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		/* Pairs with the release in omk_cpu_save_self(). */
		if (smp_load_acquire(&live[cpu].done) && live[cpu].task == t) {
			*xstate = live[cpu].fpu_live ? xstates + cpu * xstate_stride : NULL;
			return &live[cpu];
		}
	}
	return NULL;
}

/* For a check outside of a panic: this processor only. */
void omk_cpu_reset(void)
{
	if (!stopping)
		memset(live, 0, nr_cpu_ids * sizeof(*live));
}

/* Whether hooks fire: all of them can be switched off while they are registered
 * (debugfs, kprobes/enabled; kernel.ftrace_enabled). This one is on a function of ours.
 */
static u32 canary_seen;

static noinline u32 canary(void)
{
	return READ_ONCE(canary_seen);
}

static int in_canary(struct kprobe *p, struct pt_regs *regs)
{
	WRITE_ONCE(canary_seen, canary_seen + 1);
	return 0;
}

static struct kprobe on_canary = {
	.addr = (kprobe_opcode_t *)canary,
	.pre_handler = in_canary,
};

bool omk_cpu_hooked(void)
{
	u32 before = READ_ONCE(canary_seen);

	return canary() != before;
}

int omk_cpu_init(void)
{
	unsigned int eax, ebx, ecx, edx, cpu;
	int err;

	if (!boot_cpu_has(X86_FEATURE_XSAVE))
		return -ENODEV;
	omk.xcr0 = xgetbv(XCR_XFEATURE_ENABLED_MASK);
	cpuid_count(0xd, 0, &eax, &ebx, &ecx, &edx);
	omk.xstate_size = ebx;
	if (ebx < 576 || ebx > OMK_XSTATE_MAX || nr_cpu_ids > OMK_CPUS_MAX)
		return -ENODEV;
	xstate_stride = ALIGN(omk.xstate_size, OMK_ALIGN);
	live = kcalloc(nr_cpu_ids, sizeof(*live), GFP_KERNEL);
	xstates = alloc_pages_exact(nr_cpu_ids * xstate_stride, GFP_KERNEL | __GFP_ZERO);
	if (!live || !xstates) {
		err = -ENOMEM;
		goto no_memory;
	}
	for_each_possible_cpu(cpu)
		INIT_CSD(per_cpu_ptr(&stop_csd, cpu), stop_here, NULL);
	omk_entry_init();
	err = register_kprobe(&on_stop);
	if (err)
		goto no_memory;
	err = register_kprobe(&on_nmi);
	if (err)
		goto no_nmi;
	err = register_kprobe(&on_canary);
	if (err)
		goto no_canary;
	return 0;
no_canary:
	unregister_kprobe(&on_nmi);
no_nmi:
	unregister_kprobe(&on_stop);
no_memory:
	if (xstates)
		free_pages_exact(xstates, nr_cpu_ids * xstate_stride);
	kfree(live);
	return err;
}

void omk_cpu_exit(void)
{
	unregister_kprobe(&on_canary);
	unregister_kprobe(&on_nmi);
	unregister_kprobe(&on_stop);
	free_pages_exact(xstates, nr_cpu_ids * xstate_stride);
	kfree(live);
}
