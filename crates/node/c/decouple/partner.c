/* A partner: waits for calls of its thread, and makes them. It has no state of the C library. */
#include "decouple.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define JOIN_NS 1000000

static uint64_t now_us(void)
{
    struct timespec now = {0, 0};
    raw2(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* How fast the time-stamp counter runs, to some percent: it bounds how long one spins. */
static void calibrate(void)
{
    uint64_t from = now_us(), ticks = outlive_ticks(), to;
    do
        to = now_us();
    while (to < from + 100);
    outlive_common.ticks_us = (outlive_ticks() - ticks) / (to - from);
}

/* ---- pages before they are touched ---- */

static uint64_t hexadecimal(const char **at)
{
    uint64_t value = 0;
    for (;; (*at)++) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (uint64_t)(c - 'a' + 10);
        else
            return value;
    }
}

static void populate(uintptr_t start, uint64_t bytes, bool write)
{
    if (bytes > 0 && bytes <= outlive_common.prefault)
        raw3(SYS_madvise, start, bytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

/* One line of maps. Only private memory is touched for writing: of a shared file that would be a change. */
static void populate_line(const char *line)
{
    uint64_t start = hexadecimal(&line);
    if (*line++ != '-')
        return;
    uint64_t end = hexadecimal(&line);
    if (line[0] != ' ' || line[1] != 'r' || end <= start)
        return;
    populate(start, end - start, line[2] == 'w' && line[4] == 'p');
}

/* What the program has already: its data, heap, stack and libraries. */
static void populate_all(void)
{
    char text[4096];
    size_t held = 0;
    if (outlive_common.prefault == 0)
        return;
    long fd = raw4(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    for (;;) {
        long got = raw3(SYS_read, fd, text + held, sizeof text - held);
        if (got <= 0)
            break;
        held += (size_t)got;
        size_t from = 0;
        for (size_t at = 0; at < held; at++)
            if (text[at] == '\n') {
                text[at] = 0;
                populate_line(text + from);
                from = at + 1;
            }
        if (from == 0 && held == sizeof text)
            break; /* a path that is longer than all this */
        for (size_t at = from; at < held; at++)
            text[at - from] = text[at];
        held -= from;
    }
    raw1(SYS_close, fd);
}

/* What a call has added. */
static void populate_new(struct thread *thread, long result)
{
    const long *call = thread->call;
    const long never = MAP_NORESERVE | MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB;
    if (call[0] == SYS_mmap) {
        bool own = (call[4] & (MAP_PRIVATE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS);
        if (own && (call[3] & PROT_WRITE) && !(call[4] & never))
            populate((uintptr_t)result, (uint64_t)call[2], true);
    } else if (call[0] == SYS_brk) {
        uintptr_t end = (uintptr_t)result & ~(uintptr_t)4095;
        if (thread->heap != 0 && end > thread->heap)
            populate(thread->heap, end - thread->heap, true);
        thread->heap = end;
    }
}

/* ---- the loop ---- */

/* A signal that the call sent to its thread, as a write into a closed pipe does. */
static int sent(int signal)
{
    uint64_t set = 1UL << (signal - 1);
    struct timespec none = {0, 0};
    siginfo_t info;
    return raw4(SYS_rt_sigtimedwait, &set, &info, &none, 8) == signal ? signal : 0;
}

static void wait_for_call(struct thread *thread)
{
    uint64_t begin = outlive_ticks(), bound = outlive_common.spin_us * outlive_common.ticks_us;
    for (uint32_t n = 1;; n++) {
        uint32_t state = atomic_load_explicit(&thread->state, memory_order_acquire);
        if (state == POSTED || state == QUIT)
            return;
        outlive_pause();
        /* Others share the service cores. */
        if (n % 64 == 0)
            raw0(SYS_sched_yield);
        if (outlive_ticks() - begin < bound)
            continue;
        atomic_store(&thread->asleep, 1);
        state = atomic_load(&thread->state);
        if (state == EMPTY || state == DONE)
            raw4(SYS_futex, &thread->state, FUTEX_WAIT_PRIVATE, state, 0);
        atomic_store(&thread->asleep, 0);
        begin = outlive_ticks();
    }
}

static long make(struct thread *thread)
{
    for (;;) {
        /* An interruption of the call before may still be on its way. */
        while (atomic_load(&thread->kicks_seen) != atomic_load(&thread->kicks_sent))
            outlive_pause();
        long result = outlive_call(thread->call, &thread->cancel);
        if ((result != -EINTR && result != AGAIN && result != NEVER) || atomic_load(&thread->cancel))
            return result;
    }
}

/* Goes where it is near its thread, which may have moved since the last call. `at`: its group. */
static void settle(const struct thread *thread, unsigned *at)
{
    const struct common *c = &outlive_common;
    unsigned group = thread->core < CORES_MAX ? c->group[thread->core] : 0;
    if (c->groups == 0 || group == *at)
        return;
    raw3(SYS_sched_setaffinity, 0, sizeof c->service, group == 0 ? c->service : c->near[group - 1]);
    *at = group;
}

void outlive_partner(struct thread *thread)
{
    unsigned at = 0;
    uint64_t set = ~SYS_BIT;
    raw4(SYS_rt_sigprocmask, SIG_SETMASK, &set, 0, 8);
    raw3(SYS_sched_setaffinity, 0, sizeof outlive_common.service, outlive_common.service);
    raw2(SYS_prctl, PR_SET_NAME, "outlive-partner");
    if (outlive_common.ticks_us == 0)
        calibrate();
    if (!atomic_exchange(&outlive_common.prefaulted, true))
        populate_all();
    for (;;) {
        wait_for_call(thread);
        if (atomic_load(&thread->state) == QUIT)
            return;
        settle(thread, &at);
        thread->raise = 0;
        long result = make(thread);
        if (result == -EPIPE)
            thread->raise = sent(SIGPIPE);
        else if (result == -EFBIG)
            thread->raise = sent(SIGXFSZ);
        else if (result > 0 && outlive_common.prefault > 0)
            populate_new(thread, result);
        thread->result = result;
        atomic_store(&thread->state, DONE);
        if (atomic_exchange(&thread->sleeping, 0)) {
            siginfo_t info;
            outlive_clear(&info, sizeof info);
            info.si_code = CODE_WAKE;
            info.si_signo = SIGSYS;
            raw4(SYS_rt_tgsigqueueinfo, outlive_common.pid, thread->tid, SIGSYS, &info);
        }
    }
}

/* By the thread itself, with all signals blocked: false if there is none to be had. */
bool outlive_partner_begin(struct thread *thread)
{
    if (atomic_load(&thread->partner) != 0)
        return true;
    if (!thread->stack) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        long got = raw6(SYS_mmap, 0, PARTNER_STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (got < 0 && got > -4096)
            return false;
        thread->stack = (char *)got;
    }
    atomic_store(&thread->state, EMPTY);
    atomic_store(&thread->asleep, 0);
    atomic_store(&thread->sleeping, 0);
    atomic_store(&thread->kicks_sent, 0);
    atomic_store(&thread->kicks_seen, 0);
    const long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                       CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    char *top = thread->stack + PARTNER_STACK;
    if (outlive_start(flags, top, &thread->partner, thread) < 0)
        return false;
    atomic_fetch_add(&outlive_common.partners, 1);
    return true;
}

/* Ends it, and waits until it has gone: a process of one thread has one thread. */
void outlive_partner_end(struct thread *thread)
{
    int tid = atomic_load(&thread->partner);
    if (tid == 0)
        return;
    atomic_store(&thread->state, QUIT);
    raw3(SYS_futex, &thread->state, FUTEX_WAKE_PRIVATE, 1);
    while ((tid = atomic_load(&thread->partner)) != 0) {
        struct timespec bound = {0, JOIN_NS};
        /* The kernel wakes with a futex that is not private. */
        raw4(SYS_futex, &thread->partner, FUTEX_WAIT, tid, &bound);
    }
    atomic_store(&thread->state, EMPTY);
}
