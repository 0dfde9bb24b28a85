// SPDX-License-Identifier: GPL-2.0
/*
 * A watchdog for machines without a performance counter that can raise NMIs
 * (emulators, many guests): each processor looks after the next one's ticks
 * and panics when it has been silent too long, as the kernel's own "buddy"
 * detector does since Linux 6.5. One timer a second, on each processor; off
 * unless watch_s= is given.
 */
#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/percpu.h>
#include <linux/smp.h>

#include "omk.h"

struct watch {
	struct hrtimer timer;
	u64 ticks;
	u64 seen;		/* of the next processor */
	u32 silent;		/* own ticks since it changed */
};

static DEFINE_PER_CPU(struct watch, watches);
static unsigned int limit_s;

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct watch *mine = container_of(timer, struct watch, timer);
	unsigned int self = smp_processor_id();
	unsigned int next = cpumask_next_wrap(self, cpu_online_mask, self, false);
	struct watch *other;

	WRITE_ONCE(mine->ticks, mine->ticks + 1);
	if (next < nr_cpu_ids && next != self) {
		other = per_cpu_ptr(&watches, next);
		if (READ_ONCE(other->ticks) != mine->seen || !mine->seen) {
			mine->seen = READ_ONCE(other->ticks);
			mine->silent = 0;
		} else if (++mine->silent >= limit_s) {
			panic("outlive-minickpt: silent processor %u", next);
		}
	}
	hrtimer_forward_now(timer, ms_to_ktime(MSEC_PER_SEC));
	return HRTIMER_RESTART;
}

static void start_here(void *unused)
{
	struct watch *w = this_cpu_ptr(&watches);

	hrtimer_init(&w->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	w->timer.function = tick;
	hrtimer_start(&w->timer, ms_to_ktime(MSEC_PER_SEC), HRTIMER_MODE_REL_PINNED_HARD);
}

int omk_watch_init(unsigned int seconds)
{
	limit_s = seconds;
	if (limit_s)
		on_each_cpu(start_here, NULL, true);
	return 0;
}

void omk_watch_exit(void)
{
	unsigned int cpu;

	if (!limit_s)
		return;
	for_each_online_cpu(cpu)
		hrtimer_cancel(&per_cpu_ptr(&watches, cpu)->timer);
}
