// SPDX-License-Identifier: GPL-2.0
/*
 * The panic notifier: writes every registered process into the spare image.
 *
 * If a step of it dies (an oops in the notifier makes the kernel panic again,
 * on the same processor, and call the notifier again), the second entry leaves
 * that step out and goes on with the next, at most REENTRIES_MAX times. A
 * header is written only after everything else, so a machine that stops half
 * way leaves the older image valid.
 */
#include <linux/kdebug.h>
#include <linux/ktime.h>
#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <linux/timekeeping.h>
#include <linux/utsname.h>
#include <asm/cacheflush.h>
#include <asm/tsc.h>

#include "omk.h"

#define REENTRIES_MAX	8

enum step {
	STEP_THREADS,
	STEP_VMAS,
	STEP_FDS,
	STEP_SIGACTIONS,
	STEP_PROCESS,
	STEP_STRINGS,
	STEP_GROUPS,
	STEP_TIMERS,
	STEP_TERMINALS,
	STEP_QUEUED,
	STEP_POSIX_TIMERS,
	STEP_ENDED,
	STEP_LOCKS,
	STEP_SPECIALS,
	STEP_WATCHED,
	STEP_HELD,
	STEPS,
};

/* Where the saving is: survives a nested panic. */
static struct {
	bool begun, finished;
	u32 entries;		/* of the notifier */
	u32 process;		/* index in omk.entries */
	enum step step;
	u32 thread;		/* threads begun */
	u32 restorable;		/* threads of this process written */
	bool in_step;
	u32 flags;		/* OMK_IMAGE_* */
	u32 processes, threads;
	u32 cause;
	struct omk_writer w;
	struct omk_image head;
} st;

static void __dying save_threads(const struct omk_entry *e)
{
	struct task_struct *t = NULL;
	u32 i;

	for (i = 0; i < OMK_THREADS_MAX; i++) {
		t = omk_next_thread(e, t);
		if (!t)
			return;
		if (i < st.thread)
			continue;	/* written, or died while being written */
		st.thread = i + 1;
		if (omk_save_thread(&st.w, e, t)) {
			st.restorable++;
			st.threads++;
		}
	}
	st.flags |= OMK_IMAGE_TRUNCATED;
}

static void __dying run_step(const struct omk_entry *e)
{
	switch (st.step) {
	case STEP_THREADS:
		omk_strings_begin();
		omk_terminals_begin();
		save_threads(e);
		break;
	case STEP_VMAS:
		omk_save_vmas(&st.w, e);
		break;
	case STEP_FDS:
		omk_save_fds(&st.w, e);
		break;
	case STEP_SIGACTIONS:
		omk_save_sigactions(&st.w, e);
		break;
	case STEP_PROCESS:
		st.processes += omk_save_process(&st.w, e, st.restorable);
		break;
	case STEP_STRINGS:
		omk_save_strings(&st.w, e->tgid);
		break;
	case STEP_GROUPS:
		omk_save_groups(&st.w, e);
		break;
	case STEP_TIMERS:
		omk_save_timers(&st.w, e);
		break;
	case STEP_TERMINALS:
		omk_save_terminals(&st.w, e);
		break;
	case STEP_QUEUED:
		omk_save_queued(&st.w, e);
		break;
	case STEP_POSIX_TIMERS:
		omk_save_posix_timers(&st.w, e);
		break;
	case STEP_ENDED:
		omk_save_ended(&st.w, e);
		break;
	case STEP_LOCKS:
		omk_save_locks(&st.w, e);
		break;
	case STEP_SPECIALS:
		omk_save_specials(&st.w, e);
		break;
	case STEP_WATCHED:
		omk_save_watched(&st.w, e);
		break;
	case STEP_HELD:
		omk_save_held(&st.w, e);
		break;
	case STEPS:
		break;
	}
}

static void __dying save_all(void)
{
	if (st.in_step) {
		st.flags |= OMK_IMAGE_FAULTED;
		if (st.step != STEP_THREADS)
			st.step++;
	}
	for (; st.process < OMK_PROCESSES_MAX; st.process++, st.step = 0) {
		const struct omk_entry *e = &omk.entries[st.process];

		if (!READ_ONCE(e->used))
			continue;
		if (st.step == STEP_THREADS && !st.in_step) {
			st.thread = 0;
			st.restorable = 0;
		}
		for (; st.step < STEPS; st.step++) {
			st.in_step = true;
			run_step(e);
			st.in_step = false;
		}
	}
	if (omk_rec_begin(&st.w, OMK_REC_END, 0, 0, 0))
		omk_rec_end(&st.w, 0, 0, 0);
	if (st.w.truncated)
		st.flags |= OMK_IMAGE_TRUNCATED;
}

static u32 __dying cause_of(const char *message)
{
	static const struct {
		const char *words;
		u32 cause;
	} table[] = {
		{ "softlockup", OMK_CAUSE_SOFT_LOCKUP },
		{ "Hard LOCKUP", OMK_CAUSE_NMI_WATCHDOG },
		{ "NMI", OMK_CAUSE_NMI_WATCHDOG },
		{ "silent processor", OMK_CAUSE_NMI_WATCHDOG },
		{ "hung_task", OMK_CAUSE_HUNG_TASK },
		{ "ut of memory", OMK_CAUSE_NO_MEMORY },
		{ "System is deadlocked on memory", OMK_CAUSE_NO_MEMORY },
	};
	size_t i;

	if (st.cause)
		return st.cause;
	for (i = 0; message && i < ARRAY_SIZE(table); i++)
		if (strstr(message, table[i].words))
			return table[i].cause;
	return OMK_CAUSE_PANIC;
}

static void __dying fill_head(struct omk_image *h, u64 generation, const char *message)
{
	memset(h, 0, sizeof(*h));
	h->magic = OMK_IMAGE_MAGIC;
	h->version = OMK_ABI_VERSION;
	h->size = sizeof(*h);
	h->generation = generation;
	h->cause = cause_of(message);
	h->panic_tsc = omk_first_tsc;
	/* The fast accessors take no lock. */
	h->panic_mono_ns = ktime_get_mono_fast_ns();
	h->panic_boot_ns = ktime_get_boot_fast_ns();
	h->panic_real_ns = ktime_get_real_fast_ns();
	h->tsc_khz = tsc_khz;
	h->xcr0 = omk.xcr0;
	h->xstate_size = omk.xstate_size;
	h->cpu = raw_smp_processor_id();
	h->nr_cpus = num_online_cpus();
	h->stop_tsc = omk_stop_tsc;
	strscpy(h->release, init_utsname()->release, sizeof(h->release));
	strscpy(h->build, init_utsname()->version, sizeof(h->build));
	if (message)
		strscpy(h->message, message, sizeof(h->message));
}

static void __dying finish_head(struct omk_image *h)
{
	h->body_len = st.w.len;
	h->body_crc = omk_crc(st.w.base, st.w.len);
	h->nr_processes = st.processes;
	h->nr_threads = st.threads;
	h->nr_records = st.w.records;
	h->cpus_missing = omk_cpu_missing();
	h->flags = st.flags | (h->cpus_missing ? OMK_IMAGE_CPU_MISSING : 0);
	h->saved_tsc = rdtsc();
	h->header_crc = omk_crc(h, offsetof(struct omk_image, header_crc));
}

static void __dying marks_of(u64 generation)
{
	omk.marks->generation = generation;
	omk.marks->attempts = 0;
	memset(omk.marks->tsc, 0, sizeof(omk.marks->tsc));
	omk.marks->tsc_khz = tsc_khz;
	omk.marks->tsc[OMK_MARK_PANIC] = omk_first_tsc;
	omk.marks->tsc[OMK_MARK_SAVED] = rdtsc();
}

/* A panic while an image waits to be restored: it stays as it is. */
static void __dying note_retry(const char *message)
{
	omk.marks->retries++;
	omk.marks->panics++;
	strscpy(omk.marks->retry_message, message ?: "", sizeof(omk.marks->retry_message));
	st.finished = true;
	pr_emerg("outlive-minickpt: panic during a restore, %u of %u: image %llu stays\n",
		 omk.marks->retries, OMK_RETRIES_MAX, omk.super->generation);
}

static bool __dying any_registered(void)
{
	int i;

	for (i = 0; i < OMK_PROCESSES_MAX; i++)
		if (READ_ONCE(omk.entries[i].used))
			return true;
	return false;
}

static int __dying on_panic(struct notifier_block *nb, unsigned long unused, void *message)
{
	struct omk_image *image;
	u64 generation;

	if (!omk.armed || st.finished || ++st.entries > REENTRIES_MAX)
		return NOTIFY_DONE;
	omk_first_notice();
	if (omk.state == OMK_STATE_READY) {
		note_retry(message);
		return NOTIFY_DONE;
	}
	if (!any_registered())
		return NOTIFY_DONE;
	generation = omk.super->generation + 1;
	image = omk_image_of(generation);
	omk_cpu_save_self();
	if (!st.begun) {
		st.begun = true;
		/* A check may have been going on (OMK_IOC_CHECK), and ends where it is. */
		st.process = st.thread = st.restorable = st.processes = st.threads = st.flags = 0;
		st.step = STEP_THREADS;
		st.in_step = false;
		omk_cpu_wait();
		fill_head(&st.head, generation, message);
		/* From here to the end the image is not whole. */
		memset(image, 0, sizeof(*image));
		omk_records_begin(&st.w, (u8 *)image + OMK_IMAGE_HEADER,
				  omk_image_size() - OMK_IMAGE_HEADER);
	}
	save_all();
	finish_head(&st.head);
	/* Bytes before the header before the superblock. */
	wmb();
	memcpy(image, &st.head, sizeof(*image));
	/* The same order again, see above. */
	wmb();
	omk.super->generation = generation;
	omk_super_write();
	omk.marks->panics++;
	omk.marks->retries = 0;
	marks_of(generation);
	clflush_cache_range(omk.area, OMK_IMAGES_OFF);
	clflush_cache_range(image, OMK_IMAGE_HEADER + st.w.len);
	st.finished = true;
	pr_emerg("outlive-minickpt: saved %u processes, %u threads, %zu KiB, generation %llu\n",
		 st.processes, st.threads, st.w.len / 1024, generation);
	return NOTIFY_DONE;
}

static int __dying on_die(struct notifier_block *nb, unsigned long what, void *data)
{
	if (what == DIE_OOPS && !st.cause) {
		st.cause = OMK_CAUSE_OOPS;
		omk_first_notice();
	}
	return NOTIFY_DONE;
}

static struct notifier_block panic_block = {
	.notifier_call = on_panic,
	/* Before all others: they may hang, and that is theirs. */
	.priority = INT_MAX,
};

static struct notifier_block die_block = {
	.notifier_call = on_die,
	.priority = INT_MAX,
};

/* Everything as at a panic but the stop and the header: the bytes it took. */
size_t omk_save_check(void)
{
	size_t len;

	omk_cpu_reset();
	omk_records_begin(&st.w, (u8 *)omk_image_of(omk.super->generation + 1) + OMK_IMAGE_HEADER,
			  omk_image_size() - OMK_IMAGE_HEADER);
	memset(omk_image_of(omk.super->generation + 1), 0, sizeof(struct omk_image));
	preempt_disable();
	save_all();
	preempt_enable();
	len = OMK_IMAGE_HEADER + st.w.len;
	memset(&st, 0, sizeof(st));
	omk_first_tsc = 0;
	return len;
}

int omk_save_init(void)
{
	int err = register_die_notifier(&die_block);

	if (err)
		return err;
	err = atomic_notifier_chain_register(&panic_notifier_list, &panic_block);
	if (err)
		unregister_die_notifier(&die_block);
	return err;
}

void omk_save_exit(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	unregister_die_notifier(&die_block);
}
