/* A call on its way to the partner and back, by the thread whose call it is. */
#include "decouple.h"

#include <linux/futex.h>
#include <time.h>

#define MORE_NS 10000000

static long self_queue(const struct thread *thread, int signal, siginfo_t *info)
{
    return raw4(SYS_rt_tgsigqueueinfo, outlive_common.pid, thread->tid, signal, info);
}

static void kick(struct thread *thread)
{
    siginfo_t info;
    outlive_clear(&info, sizeof info);
    info.si_signo = SIGSYS;
    info.si_code = CODE_KICK;
    info.si_value.sival_ptr = thread;
    atomic_store(&thread->cancel, 1);
    atomic_fetch_add(&thread->kicks_sent, 1);
    int partner = atomic_load(&thread->partner);
    raw4(SYS_rt_tgsigqueueinfo, outlive_common.pid, partner, SIGSYS, &info);
}

enum fate { IGNORED, DEFAULT, HANDLED, HANDLED_AGAIN };

/* What would become of a signal. */
static enum fate fate_of(int signal)
{
    struct kernel_action action = {0, 0, 0, 0};
    if (raw4(SYS_rt_sigaction, signal, 0, &action, 8) < 0)
        return IGNORED;
    if (action.handler == (uintptr_t)SIG_IGN)
        return IGNORED;
    if (action.handler != (uintptr_t)SIG_DFL)
        return action.flags & SA_RESTART ? HANDLED_AGAIN : HANDLED;
    bool ignored = signal == SIGCHLD || signal == SIGURG || signal == SIGWINCH || signal == SIGCONT;
    return ignored ? IGNORED : DEFAULT;
}

/* Waits in the kernel. A signal that the program would take interrupts the call first, and comes to the
 * program afterwards; true if the call is then to be made again. */
static bool wait_long(struct thread *thread, uint64_t mask)
{
    bool again = false, woken = false, cancelled = false;
    uint64_t set = ~mask | SYS_BIT;
    atomic_store(&thread->sleeping, 1);
    while (atomic_load(&thread->state) != DONE) {
        siginfo_t info;
        struct timespec bound = {0, MORE_NS};
        long signal = raw4(SYS_rt_sigtimedwait, &set, &info, cancelled ? &bound : 0, 8);
        if (signal < 0)
            continue; /* stopped and continued; or a bound has passed */
        if (signal == SIGSYS && (info.si_code == CODE_WAKE || outlive_is_bare(&info))) {
            woken = true;
            continue;
        }
        enum fate fate = fate_of((int)signal);
        if (fate == IGNORED)
            continue;
        self_queue(thread, (int)signal, &info);
        if (fate == DEFAULT) {
            /* Ends the process, or stops it, here; nothing else comes through. */
            uint64_t all = ~0UL, open = ~(1UL << (signal - 1));
            raw4(SYS_rt_sigprocmask, SIG_SETMASK, &open, 0, 8);
            raw4(SYS_rt_sigprocmask, SIG_SETMASK, &all, 0, 8);
            continue;
        }
        if (!cancelled) {
            cancelled = true;
            again = fate == HANDLED_AGAIN;
            set = SYS_BIT; /* what was put back stays there */
            kick(thread);
        }
    }
    if (atomic_exchange(&thread->sleeping, 0) == 0 && !woken) {
        /* The partner has sent, or is about to. */
        siginfo_t info;
        uint64_t own = SYS_BIT;
        struct timespec bound = {0, MORE_NS};
        raw4(SYS_rt_sigtimedwait, &own, &info, &bound, 8);
    }
    return again;
}

static bool spin(struct thread *thread)
{
    uint64_t begin = outlive_ticks(), bound = outlive_common.spin_us * outlive_common.ticks_us;
    do {
        for (int n = 0; n < 16; n++) {
            if (atomic_load_explicit(&thread->state, memory_order_acquire) == DONE)
                return true;
            outlive_pause();
        }
    } while (outlive_ticks() - begin < bound);
    return false;
}

/* Makes a call by the partner; all signals are blocked, `mask` is the program's. `again`: it was
 * interrupted for a handler that wants calls begun anew. */
long outlive_forward(struct thread *thread, const long *call, uint64_t mask, bool *again)
{
    for (int n = 0; n < 7; n++)
        thread->call[n] = call[n];
    if (outlive_common.groups > 0)
        thread->core = outlive_core();
    atomic_store_explicit(&thread->cancel, 0, memory_order_relaxed);
    atomic_store(&thread->state, POSTED);
    if (atomic_load(&thread->asleep))
        raw3(SYS_futex, &thread->state, FUTEX_WAKE_PRIVATE, 1);
    bool wanted = spin(thread) ? false : wait_long(thread, mask);
    long result = thread->result;
    if (thread->raise)
        raw3(SYS_tgkill, outlive_common.pid, thread->tid, thread->raise);
    atomic_store_explicit(&thread->state, EMPTY, memory_order_relaxed);
    *again = result == NEVER || (result == AGAIN && wanted);
    return result == AGAIN && !wanted ? -EINTR : result;
}
