// SPDX-License-Identifier: GPL-2.0
/*
 * A thread that an NMI met on its way into the kernel or out of it.
 *
 * Its registers are then not at the top of its stack, or not yet: at a system
 * call they are still in the processor, with the program's stack pointer in a
 * word beside; at an interrupt or a fault they are on the way through the
 * entry stack. On both ways there are instructions where the base of GS is on
 * the other side of swapgs. And a processor that changes from one thread to
 * another has the bases, and then the vector registers, of both.
 *
 * Only what runs with interrupts off is met there: an interrupt finds either
 * the program or a kernel that has put everything away. So this is about NMIs
 * (and machine checks), which come on stacks of their own.
 *
 * What is known of the kernel's code is found in it when the module is loaded,
 * see omk_entry_init(). No address is assumed.
 */
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/sched/task_stack.h>
#include <asm/cpufeature.h>
#include <asm/msr.h>
#include <asm/processor.h>

#include "omk.h"

#define STACKS		5		/* of interrupts: see IST_INDEX_* */
#define STACK_NMI	1
#define STACK_BYTES	8192
#define ENTRY_BYTES	4096
#define CODE_MAX	1024
/* The frames of the NMI that stand above its registers, in words: that of the
 * processor, two of its own, one for its return and one that others may change.
 */
#define NMI_ABOVE	12
#define SYSCALL_BYTES	2		/* 0f 05 */

/* Where the ways in and out are, all as [begin, end). */
static struct {
	unsigned long entry, entry_end;	/* all of it but what is in C */
	unsigned long call, call_end;	/* entry_SYSCALL_64 */
	unsigned long sp_kept;		/* in it: the program's stack pointer is in sp_word */
	unsigned long whole;		/* in it: all registers are on the stack */
	unsigned long sp_word;		/* per processor */
	unsigned long out, out_end;	/* the way out by iretq */
	unsigned long change, change_end;	/* __switch_to() */
	int bx_slot;			/* words below the registers of an NMI, or 0 */
} code;

static bool __dying within(unsigned long at, unsigned long begin, unsigned long end)
{
	return at >= begin && at < end;
}

static bool __dying from_program(const struct pt_regs *regs)
{
	return regs->cs & 3;
}

/* The highest address of the stack of its own that sp is on, or 0. */
static unsigned long __dying own_stack(unsigned long sp, int *which)
{
	const struct tss_struct *tss = this_cpu_ptr(&cpu_tss_rw);
	unsigned long top;

	for (*which = 0; *which < STACKS; (*which)++) {
		top = tss->x86_tss.ist[*which];
		if (top && sp < top && sp >= top - STACK_BYTES)
			return top;
	}
	return 0;
}

/* The registers of what was interrupted last before anything of a stack of its
 * own ran, or NULL if nothing does; *bx is where that entry kept RBX, if it is
 * known. *top is set if the last entry came from the program and is not yet
 * on the thread's stack.
 */
static const struct pt_regs __dying *interrupted(unsigned long sp, const u64 **bx,
						  unsigned long *top)
{
	const struct pt_regs *last = NULL, *regs;
	unsigned long stack;
	int which, depth;

	for (depth = 0; depth < STACKS; depth++) {
		stack = own_stack(sp, &which);
		if (!stack)
			return last;
		regs = (struct pt_regs *)(stack - (which == STACK_NMI ? NMI_ABOVE * 8 : 0)) - 1;
		if (from_program(regs)) {
			if (which != STACK_NMI)
				*top = stack;
			return last;
		}
		if (regs->cs != __KERNEL_CS)
			return last;
		*bx = which == STACK_NMI && code.bx_slot ? (u64 *)regs - code.bx_slot : NULL;
		last = regs;
		sp = regs->sp;
	}
	return last;
}

/* On the way into a call: back to the program, before the call. */
static void __dying before_call(struct omk_live *slot, const struct pt_regs *irq)
{
	struct pt_regs *regs = &slot->regs;
	unsigned long sp = irq->sp;

	if (irq->ip >= code.sp_kept &&
	    omk_peek(&sp, (unsigned long *)(per_cpu_offset(raw_smp_processor_id()) + code.sp_word)))
		return;
	*regs = *irq;
	regs->sp = sp;
	regs->ip = irq->cx - SYSCALL_BYTES;
	regs->flags = irq->r11;
	regs->cs = __USER_CS;
	regs->ss = __USER_DS;
	regs->orig_ax = -1;
	slot->wound = 1;
}

/* On the way in by an interrupt or a fault, on the stack that ends at top: the
 * processor's frame is there, and the registers below it, as far as they came.
 */
static void __dying before_fault(struct omk_live *slot, const struct pt_regs *irq,
				 unsigned long top)
{
	const struct pt_regs *entry = (struct pt_regs *)top - 1;
	struct pt_regs *regs = &slot->regs;

	if (!from_program(entry))
		return;
	*regs = *irq;
	if (irq->sp <= (unsigned long)entry)
		*regs = *entry;
	else if (irq->sp <= (unsigned long)&entry->si)
		/* RSI is put away first: it then holds where the entry goes on. */
		regs->si = entry->si;
	regs->ip = entry->ip;
	regs->cs = entry->cs;
	regs->flags = entry->flags;
	regs->sp = entry->sp;
	regs->ss = entry->ss;
	/* There may be an error or the number of an interrupt. */
	regs->orig_ax = -1;
	slot->wound = 1;
}

/* From one thread to another: the stack is the next one's as soon as this code
 * runs, `current` changes later. First the bases of what was current are put
 * into its task, then come those of the next one, FS before GS, whose vector
 * registers stay in its task. What the base of FS is says how far it came: the
 * task knows it, unless the program set it by the instruction since it came to
 * run. True if the bases are in the task.
 */
static bool __dying changes(struct omk_live *slot, const struct pt_regs *irq)
{
	unsigned long stack = (unsigned long)task_stack_page(current), at = irq->ip;
	bool mine = within(irq->sp, stack, stack + THREAD_SIZE);
	u64 fs_base;

	if (!within(at, code.change, code.change_end)) {
		/* In what it calls: a leaf, so the way back is the first word. */
		if (mine || omk_peek(&at, (unsigned long *)irq->sp) ||
		    !within(at, code.change, code.change_end))
			return false;
	}
	slot->changing = 1;
	rdmsrl(MSR_FS_BASE, fs_base);
	slot->in_task = mine || fs_base != current->thread.fsbase;
	slot->fpu_in_task = mine;
	return slot->in_task;
}

/* Before anything else is saved of this processor. */
void __dying omk_entry_look(struct omk_live *slot)
{
	const struct pt_regs *irq, *regs = task_pt_regs(current);
	unsigned long top = 0, entry;
	const u64 *bx = NULL;
	u64 base, other;

	irq = interrupted(current_stack_pointer, &bx, &top);
	if (!irq || from_program(irq))
		return;
	if (changes(slot, irq))
		return;
	rdmsrl(MSR_GS_BASE, base);
	rdmsrl(MSR_KERNEL_GS_BASE, other);
	if (base == other) {
		/* The NMI found the program's base in GS and keeps it in RBX. */
		slot->gs_base = current->thread.gsbase;
		if (boot_cpu_has(X86_FEATURE_FSGSBASE) && bx && !omk_peek(&other, bx) &&
		    other != base)
			slot->gs_base = other;
		slot->gs_other = 1;
	}
	entry = this_cpu_read(cpu_tss_rw.x86_tss.sp0);
	if (within(irq->ip, code.call, code.whole)) {
		before_call(slot, irq);
	} else if (!within(irq->ip, code.call, code.call_end) &&
		   !within(irq->ip, code.out, code.out_end)) {
		if (!top && within(irq->sp, entry - ENTRY_BYTES, entry))
			top = entry;
		if (top) {
			before_fault(slot, irq, top);
		} else if (irq->sp == (unsigned long)regs && from_program(regs) &&
			   within(irq->ip, code.entry, code.entry_end)) {
			/* All is there, but what is no number of a call. */
			slot->regs = *regs;
			slot->regs.orig_ax = -1;
			slot->wound = 1;
		}
	}
}

/* Its address, although no probe may be set there. */
static unsigned long address_of(const char *symbol)
{
	struct kprobe probe = { .symbol_name = symbol, .flags = KPROBE_FLAG_DISABLED };

	if (!register_kprobe(&probe))
		unregister_kprobe(&probe);
	return (unsigned long)probe.addr;
}

static unsigned long find(unsigned long from, const u8 *bytes, size_t len, size_t max)
{
	size_t i;

	for (i = 0; i + len <= max; i++)
		if (!memcmp((u8 *)from + i, bytes, len))
			return from + i;
	return 0;
}

/* Behind the end of a function, as the kernel's table of symbols has it. */
static unsigned long end_of(unsigned long function)
{
	char name[KSYM_SYMBOL_LEN], *size;
	unsigned long bytes;

	sprint_symbol(name, function);
	size = strchr(name, '/');
	return size && sscanf(size, "/%lx", &bytes) == 1 ? function + bytes : 0;
}

/* How many words below the registers that exc_nmi() is given it keeps RBX: one
 * for the way back, then what it pushes. 0 if that cannot be told.
 */
static int slot_of_bx(const u8 *at)
{
	int pushed = 1, i;

	if (!at)
		return 0;
	for (i = 0; i < 8; i++) {
		if (at[0] == 0x53)
			return pushed + 1;
		if ((at[0] & 0xf8) == 0x50) {
			at += 1;
			pushed++;
		} else if (at[0] == 0x41 && (at[1] & 0xf8) == 0x50) {
			at += 2;
			pushed++;
		} else if ((at[0] & 0xfa) == 0x48 && at[1] == 0x89 && at[2] >= 0xc0 &&
			   ((at[0] & 1) || (at[2] & 7) != 3)) {
			at += 3;	/* mov between registers, not to RBX */
		} else if (at[0] == 0xf3 && at[1] == 0x0f && at[2] == 0x1e && at[3] == 0xfa) {
			at += 4;	/* endbr64 */
		} else {
			return 0;
		}
	}
	return 0;
}

/* Where the program's stack pointer is kept: mov %rsp, %gs:WORD. */
static bool find_sp_word(void)
{
	static const u8 absolute[] = { 0x65, 0x48, 0x89, 0x24, 0x25 };
	static const u8 relative[] = { 0x65, 0x48, 0x89, 0x25 };
	unsigned long at = find(code.call, absolute, sizeof(absolute), 16);
	s32 word;

	if (at) {
		code.sp_kept = at + sizeof(absolute) + sizeof(word);
		memcpy(&word, (u8 *)at + sizeof(absolute), sizeof(word));
		code.sp_word = word;
		return true;
	}
	at = find(code.call, relative, sizeof(relative), 16);
	if (!at)
		return false;
	code.sp_kept = at + sizeof(relative) + sizeof(word);
	memcpy(&word, (u8 *)at + sizeof(relative), sizeof(word));
	code.sp_word = code.sp_kept + word;
	return true;
}

/* Looks at the code of this kernel. What is not found is not handled, and said. */
void omk_entry_init(void)
{
	/* push %rax and PUSH_REGS with -ENOSYS for RAX */
	static const u8 pushes[] = { 0x50, 0x57, 0x56, 0x52, 0x51, 0x6a, 0xda, 0x41, 0x50,
				     0x41, 0x51, 0x41, 0x52, 0x41, 0x53, 0x53, 0x55, 0x41,
				     0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57 };
	static const u8 sysretq[] = { 0x48, 0x0f, 0x07 };
	unsigned long end;

	rdmsrl(MSR_LSTAR, code.call);
	code.whole = find(code.call, pushes, sizeof(pushes), CODE_MAX);
	end = find(code.call, sysretq, sizeof(sysretq), CODE_MAX);
	code.call_end = end + sizeof(sysretq);
	if (!code.whole || !end || !find_sp_word()) {
		pr_warn("outlive-minickpt: the entry of calls is not known: a thread that an NMI meets there may not come back\n");
		code.call = 0;
		code.whole = 0;
		code.call_end = 0;
	} else {
		code.whole += sizeof(pushes);
	}
	code.out = address_of("swapgs_restore_regs_and_return_to_usermode");
	code.out_end = address_of("native_irq_return_iret");
	/* iretq itself */
	code.out_end += code.out_end ? 2 : 0;
	code.entry = address_of("__entry_text_start");
	code.entry_end = address_of("__entry_text_end");
	code.change = address_of("__switch_to");
	code.change_end = code.change ? end_of(code.change) : 0;
	code.bx_slot = slot_of_bx((u8 *)address_of("exc_nmi"));
	if (!code.out || !code.out_end || !code.entry_end || !code.change_end || !code.bx_slot)
		pr_warn("outlive-minickpt: the ways in and out of this kernel are known in part (%d%d%d%d): a thread that an NMI meets there may not come back\n",
			!!code.out_end, !!code.entry_end, !!code.change_end, code.bx_slot);
}
