// SPDX-License-Identifier: GPL-2.0
/*
 * Where the other processors wait for the next kernel.
 *
 * The crash NMI halts them in code, stacks and page tables of the dead kernel,
 * which the next one overwrites long before it takes them over by INIT. One
 * that wakes up there runs into anything, up to a triple fault. So they get an
 * INIT now: an application processor then waits for its start without any
 * memory. The boot processor runs the firmware instead, which goes on at the
 * vector in 40:67 (shutdown code 0x0a, as in the kernel's own start of
 * processors): a loop in the first megabyte, which kernels leave alone.
 */
#include <linux/efi.h>
#include <linux/io.h>
#include <linux/kexec.h>
#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <asm/apic.h>
#include <asm/msr.h>
#include <asm/x86_init.h>

#include "omk.h"

/* Where firmware once put the boot sector: 0000:7c00. */
#define PARK_AT		0x7c00
#define PARKED_AT	0x7c10
#define VECTOR_AT	0x467
#define CMOS_INDEX	0x70
#define CMOS_DATA	0x71
#define CMOS_SHUTDOWN	0x0f
#define SHUTDOWN_JUMP	0x0a
#define PARK_MS		20

static const u8 park_code[] = {
	0xfa,					/* cli */
	0x2e, 0xc6, 0x06, 0x10, 0x7c, 0x01,	/* movb $1, %cs:0x7c10 */
	0xf4,					/* hlt */
	0xeb, 0xfd,				/* jmp to the hlt */
};

/* The firmware's way to the loop. CMOS without its lock: nobody else runs. */
static void __dying set_vector(void)
{
	memcpy(phys_to_virt(PARK_AT), park_code, sizeof(park_code));
	*(volatile u8 *)phys_to_virt(PARKED_AT) = 0;
	*(volatile u16 *)phys_to_virt(VECTOR_AT) = PARK_AT;
	*(volatile u16 *)phys_to_virt(VECTOR_AT + 2) = 0;
	outb(CMOS_SHUTDOWN, CMOS_INDEX);
	outb(SHUTDOWN_JUMP, CMOS_DATA);
	mb();
}

static bool __dying parked(void)
{
	return *(volatile u8 *)phys_to_virt(PARKED_AT);
}

/* Last in the chain: the others have halted, and nothing of them is needed. */
static int __dying on_panic_end(struct notifier_block *nb, unsigned long unused, void *message)
{
	bool boot_waits;
	u64 base;

	if (!omk.armed || !omk_cpu_stopped() || num_online_cpus() == 1 || !kexec_crash_loaded())
		return NOTIFY_DONE;
	rdmsrl(MSR_IA32_APICBASE, base);
	boot_waits = !(base & MSR_IA32_APICBASE_BSP);
	/* Firmware without the vector must not see the boot processor. */
	if (boot_waits && (efi_enabled(EFI_BOOT) || !x86_platform.legacy.warm_reset))
		return NOTIFY_DONE;
	if (boot_waits)
		set_vector();
	/* Not apic_icr_write(): newer kernels make that a call which modules do not have. */
	apic->icr_write(APIC_DEST_ALLBUT | APIC_INT_LEVELTRIG | APIC_INT_ASSERT | APIC_DM_INIT, 0);
	if (boot_waits)
		omk_wait(parked, PARK_MS);
	return NOTIFY_DONE;
}

static struct notifier_block park_block = {
	.notifier_call = on_panic_end,
	.priority = INT_MIN,
};

void omk_park_init(void)
{
	atomic_notifier_chain_register(&panic_notifier_list, &park_block);
}

void omk_park_exit(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &park_block);
}
