/* The handler of SIGSYS: which call, and who makes it. Threads, children, and the begin of all. */
#include "decouple.h"

#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef SYS_USER_DISPATCH
#define SYS_USER_DISPATCH 2
#endif
#define SA_RESTORER_BIT 0x04000000UL
#define SLOT_BYTES 4096

struct common outlive_common = {.spin_us = 50, .prefault = 16 << 20, .ticks_us = 0};
struct thread *outlive_threads[THREADS_MAX];
_Static_assert(sizeof(struct thread) <= SLOT_BYTES, "a slot");

/* ---- registers of the program ---- */

static greg_t *at(ucontext_t *context, int which) { return &context->uc_mcontext.gregs[which]; }

static void answer(ucontext_t *context, long result) { *at(context, REG_RAX) = result; }

/* The kernel's own 8 bytes of it. */
static uint64_t *mask_of(ucontext_t *context) { return (uint64_t *)(void *)&context->uc_sigmask; }

/* Goes on at a gate, which makes the call and returns to where it was. */
static void replay(ucontext_t *context, const char *gate)
{
    greg_t back = *at(context, REG_RIP);
    *at(context, REG_RSP) -= BELOW;
    *(greg_t *)*at(context, REG_RSP) = back;
    *at(context, REG_RIP) = (greg_t)(uintptr_t)gate;
}

/* ---- slots ---- */

/* One that is free, or NULL: the thread is then not decoupled. */
struct thread *outlive_slot(void)
{
    for (int n = 0; n < THREADS_MAX; n++) {
        struct thread *one = __atomic_load_n(&outlive_threads[n], __ATOMIC_ACQUIRE);
        if (!one) {
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
            long got = raw6(SYS_mmap, 0, SLOT_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (got < 0 && got > -4096)
                return NULL;
            struct thread *made = (struct thread *)got;
            atomic_store(&made->used, true);
            if (__atomic_compare_exchange_n(&outlive_threads[n], &one, made, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return made;
            raw2(SYS_munmap, got, SLOT_BYTES);
        }
        if (!atomic_exchange(&one->used, true))
            return one;
    }
    return NULL;
}

static void count(struct thread *thread)
{
    atomic_fetch_add(&outlive_common.forwarded, thread->forwarded);
    atomic_fetch_add(&outlive_common.in_place, thread->in_place);
    thread->forwarded = thread->in_place = 0;
}

/* The calling thread is decoupled from here on. */
bool outlive_arm(struct thread *thread)
{
    thread->self = thread;
    thread->tid = (int)raw0(SYS_gettid);
    thread->calls = 0;
    thread->forwarded = thread->in_place = 0;
    thread->heap = 0;
    atomic_store(&thread->select, 1);
    if (raw2(SYS_arch_prctl, ARCH_SET_GS, thread) == 0 &&
        raw6(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, outlive_gate_begin,
             outlive_gate_end - outlive_gate_begin, &thread->select, 0) == 0)
        return true;
    raw2(SYS_arch_prctl, ARCH_SET_GS, 0);
    atomic_store(&thread->used, false);
    return false;
}

/* A program that wants the kernel's dispatch, or GS, has them; this thread is as any other then. */
static void disarm(struct thread *thread)
{
    outlive_partner_end(thread);
    raw6(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0, 0);
    raw2(SYS_arch_prctl, ARCH_SET_GS, 0);
    count(thread);
    atomic_store(&thread->used, false);
}

/* Called in a new thread, before any of its own code. */
void outlive_thread_begin(void)
{
    if (outlive_common.filtered)
        return;
    raw2(SYS_arch_prctl, ARCH_SET_GS, 0);
    struct thread *thread = outlive_slot();
    if (thread)
        outlive_arm(thread);
}

/* Called in the child of a fork: this thread is its only one. */
void outlive_child_begin(void)
{
    if (outlive_common.filtered)
        return;
    struct thread *self = outlive_self();
    outlive_common.pid = (int)raw0(SYS_getpid);
    outlive_common.forwarded = outlive_common.in_place = outlive_common.partners = 0;
    outlive_common.prefaulted = false;
    for (int n = 0; n < THREADS_MAX && outlive_threads[n]; n++) {
        struct thread *one = outlive_threads[n];
        atomic_store(&one->used, one == self);
        atomic_store(&one->partner, 0);
        atomic_store(&one->state, EMPTY);
    }
    outlive_arm(self);
}

/* ---- signals ---- */

/* The kernel reads and writes where the program says, with its errors, and changes nothing: all is
 * blocked already. */
static long probe(const void *set, void *old, size_t size)
{
    return raw4(SYS_rt_sigprocmask, SIG_BLOCK, set, old, size);
}

static long change_mask(ucontext_t *context, const long *call)
{
    const uint64_t *set = (const uint64_t *)call[2];
    uint64_t *old = (uint64_t *)call[3], *mask = mask_of(context), before = *mask;
    uint64_t wanted = 0;
    long result = probe(set, NULL, (size_t)call[4]);
    if (result == 0 && set) {
        wanted = *set & ~(SYS_BIT | 1UL << (SIGKILL - 1) | 1UL << (SIGSTOP - 1));
        if (call[1] == SIG_BLOCK)
            *mask |= wanted;
        else if (call[1] == SIG_UNBLOCK)
            *mask &= ~wanted;
        else if (call[1] == SIG_SETMASK)
            *mask = wanted;
        else
            result = -EINVAL;
    }
    if (result == 0 && old) {
        result = probe(NULL, old, (size_t)call[4]);
        if (result == 0)
            *old = before;
    }
    return result;
}

/* SIGSYS is ours; what the program wants of it is remembered. No handler runs with it blocked. */
static long change_action(const long *call)
{
    static struct kernel_action own;
    const struct kernel_action *action = (const struct kernel_action *)call[2];
    struct kernel_action *old = (struct kernel_action *)call[3], copy;
    if (!action && call[1] != SIGSYS)
        return raw4(SYS_rt_sigaction, call[1], 0, old, call[4]);
    long result = action ? probe(action, NULL, (size_t)call[4]) : 0;
    if (result == 0 && action)
        result = probe(&action->mask, NULL, (size_t)call[4]);
    if (result != 0)
        return result;
    if (action) {
        copy = *action;
        copy.mask &= ~SYS_BIT;
    }
    if (call[1] != SIGSYS)
        return raw4(SYS_rt_sigaction, call[1], &copy, old, call[4]);
    /* The kernel says whether it could write there. */
    if (old) {
        result = raw4(SYS_rt_sigaction, SIGSYS, 0, old, call[4]);
        if (result != 0)
            return result;
        *old = own;
    }
    if (action)
        own = copy;
    outlive_common.sigsys.sa_handler = (void (*)(int))own.handler;
    return 0;
}

/* A SIGSYS that is not ours: of a filter, or sent. */
static void pass_on(int signal, siginfo_t *info, ucontext_t *context)
{
    void (*handler)(int) = outlive_common.sigsys.sa_handler;
    if (handler == SIG_IGN)
        return;
    if (handler != SIG_DFL) {
        /* It makes calls too; the frame has the mask that comes afterwards. */
        raw4(SYS_rt_sigprocmask, SIG_SETMASK, mask_of(context), 0, 8);
        ((void (*)(int, siginfo_t *, void *))(uintptr_t)handler)(signal, info, context);
        return;
    }
    struct kernel_action none = {0, 0, 0, 0};
    uint64_t open = ~SYS_BIT;
    raw4(SYS_rt_sigaction, SIGSYS, &none, 0, 8);
    raw3(SYS_tgkill, outlive_common.pid, raw0(SYS_gettid), SIGSYS);
    raw4(SYS_rt_sigprocmask, SIG_SETMASK, &open, 0, 8);
}

/* Waits with a mask for the time of the call: the program's handlers run on top of this one, whose mailbox is
 * empty. A mask with SIGSYS in it is copied without. */
static long masked(const long *call)
{
    struct {
        const uint64_t *set;
        size_t bytes;
    } pair;
    uint64_t copy;
    long word[7];
    for (int n = 0; n < 7; n++)
        word[n] = call[n];
    int which = call[0] == SYS_rt_sigsuspend ? 1 : call[0] == SYS_ppoll ? 4 : 5;
    bool paired = call[0] == SYS_pselect6 || call[0] == SYS_io_pgetevents;
    const uint64_t *set = (const uint64_t *)call[which];
    if (paired) {
        const long *given = (const long *)call[6];
        if (probe(given, NULL, 8) != 0 || probe(given + 1, NULL, 8) != 0)
            return -EFAULT;
        set = (const uint64_t *)given[0];
        pair.bytes = (size_t)given[1];
    }
    if (set && probe(set, NULL, 8) == 0) {
        copy = *set & ~SYS_BIT;
        pair.set = &copy;
        word[paired ? 6 : which] = paired ? (long)&pair : (long)&copy;
    }
    return raw6(word[0], word[1], word[2], word[3], word[4], word[5], word[6]);
}

/* ---- threads and children ---- */

static void make_child(struct thread *thread, ucontext_t *context, const long *call)
{
    long flags = call[0] == SYS_vfork  ? CLONE_VM | CLONE_VFORK
                 : call[0] == SYS_fork ? 0
                                       : call[1];
    long stack = call[0] == SYS_clone ? call[2] : 0;
    if (stack == 0 && (flags & CLONE_VM)) {
        thread->back = (uintptr_t)*at(context, REG_RIP);
        replay(context, outlive_replay_vfork);
        return;
    }
    const char *gate = flags & CLONE_THREAD ? outlive_replay_thread
                       : flags & CLONE_VM   ? outlive_replay_child
                                            : outlive_replay_fork;
    if (stack != 0) {
        /* What the child pops. A stack that is none is an error here as there. */
        *(greg_t *)(stack - BELOW) = *at(context, REG_RIP);
        *at(context, REG_RSI) = stack - BELOW;
    }
    replay(context, gate);
}

static void put_number(char *line, size_t *length, uint64_t value)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    line[(*length)++] = ' ';
    while (count > 0)
        line[(*length)++] = digits[--count];
}

/* A line of the account: process, calls forwarded and made in place, partners. */
static void tell(void)
{
    struct common *c = &outlive_common;
    char line[128] = "end";
    size_t length = 3;
    long fd = c->report[0]
                  ? raw4(SYS_openat, AT_FDCWD, c->report, O_WRONLY | O_APPEND | O_CLOEXEC, 0)
                  : -1;
    if (fd < 0)
        return;
    for (int n = 0; n < THREADS_MAX && outlive_threads[n]; n++)
        count(outlive_threads[n]);
    put_number(line, &length, (uint64_t)c->pid);
    put_number(line, &length, c->forwarded);
    put_number(line, &length, c->in_place);
    put_number(line, &length, c->partners);
    line[length++] = '\n';
    raw3(SYS_write, fd, line, length);
    raw1(SYS_close, fd);
}

static void note_own(long fd)
{
    if (fd >= 0 && fd < 1024)
        outlive_common.own[fd / 64] |= 1UL << (fd % 64);
}

/* A call that is neither forwarded nor simply made again. */
static void special(struct thread *thread, ucontext_t *context, const long *call)
{
    switch (call[0]) {
    case SYS_rt_sigreturn:
        /* The frame lies at the stack pointer, and may have been edited. */
        *mask_of((ucontext_t *)*at(context, REG_RSP)) &= ~SYS_BIT;
        *at(context, REG_RIP) = (greg_t)(uintptr_t)outlive_restorer;
        return;
    case SYS_rt_sigprocmask:
        answer(context, change_mask(context, call));
        return;
    case SYS_rt_sigaction:
        answer(context, change_action(call));
        return;
    case SYS_fork:
    case SYS_vfork:
    case SYS_clone:
        make_child(thread, context, call);
        return;
    case SYS_clone3: /* the C library then uses clone, whose stack is an argument */
        answer(context, -ENOSYS);
        return;
    case SYS_exit:
        outlive_partner_end(thread);
        count(thread);
        atomic_store(&thread->used, false);
        raw1(SYS_exit, call[1]);
        return;
    case SYS_exit_group:
        tell();
        raw1(SYS_exit_group, call[1]);
        return;
    case SYS_arch_prctl:
        if (call[1] == ARCH_SET_GS)
            disarm(thread);
        replay(context, outlive_replay);
        return;
    case SYS_seccomp:
    case SYS_prctl:
        /* A filter knows the program's calls, and not ours: from here on there are none. */
        if (call[0] == SYS_seccomp || call[1] == PR_SET_SECCOMP)
            outlive_common.filtered = outlive_common.alone = true;
        disarm(thread);
        replay(context, outlive_replay);
        return;
    case SYS_pkey_alloc:
        outlive_common.alone = true;
        replay(context, outlive_replay);
        return;
    case SYS_signalfd:
    case SYS_signalfd4:
    case SYS_perf_event_open: {
        long fd = raw6(call[0], call[1], call[2], call[3], call[4], call[5], call[6]);
        note_own(fd);
        if (call[0] != SYS_perf_event_open)
            outlive_common.signalfd = true;
        answer(context, fd);
        return;
    }
    default:
        answer(context, masked(call));
    }
}

/* Forwards; false if there is no partner. */
static bool forward(struct thread *thread, ucontext_t *context, const long *call)
{
    if (thread->calls < CALLS_BEFORE && atomic_load(&thread->partner) == 0) {
        thread->calls++;
        return false;
    }
    if (!outlive_partner_begin(thread))
        return false;
    bool again = false;
    long result = outlive_forward(thread, call, *mask_of(context), &again);
    if (again) {
        /* As the kernel does it: the handler's frame is set up before the call, which follows it. */
        *at(context, REG_RIP) -= 2;
        answer(context, call[0]);
    } else {
        answer(context, result);
    }
    return true;
}

static void dispatch(struct thread *thread, const siginfo_t *info, ucontext_t *context)
{
    if (info->si_arch != AUDIT_ARCH_X86_64) {
        thread->in_place++;
        replay(context, outlive_replay_32);
        return;
    }
    const long call[7] = {info->si_syscall,       *at(context, REG_RDI), *at(context, REG_RSI),
                          *at(context, REG_RDX), *at(context, REG_R10), *at(context, REG_R8),
                          *at(context, REG_R9)};
    switch (outlive_how(call)) {
    case FORWARD:
        if (forward(thread, context, call)) {
            thread->forwarded++;
            return;
        }
        break;
    case RENEW:
        outlive_partner_end(thread);
        break;
    case SPECIAL:
        thread->in_place++;
        special(thread, context, call);
        return;
    case IN_PLACE:
        break;
    }
    thread->in_place++;
    *at(context, REG_RAX) = call[0];
    replay(context, outlive_replay);
}

/* In the partner: its call is to end. */
static void interrupted(struct thread *thread, ucontext_t *context)
{
    uintptr_t now = (uintptr_t)*at(context, REG_RIP), end = (uintptr_t)outlive_call_end;
    if (now >= (uintptr_t)outlive_call_begin && now <= (uintptr_t)outlive_call_at &&
        atomic_load(&thread->cancel)) {
        /* A call that began has left its end in RCX, and the kernel would begin it anew. */
        answer(context, *at(context, REG_RCX) == (greg_t)end ? AGAIN : NEVER);
        *at(context, REG_RIP) = (greg_t)end;
    }
    atomic_fetch_add(&thread->kicks_seen, 1);
}

void outlive_handler(int signal, siginfo_t *info, void *given)
{
    ucontext_t *context = given;
    struct thread *thread = NULL;
    if (info->si_code == SYS_USER_DISPATCH) {
        dispatch(outlive_self(), info, context);
        return;
    }
    if (info->si_code == CODE_WAKE)
        return;
    if (info->si_code == CODE_KICK) {
        interrupted(info->si_value.sival_ptr, context);
        return;
    }
    if (outlive_is_bare(info) && raw2(SYS_arch_prctl, ARCH_GET_GS, &thread) == 0 && thread) {
        if ((int)raw0(SYS_gettid) == atomic_load(&thread->partner))
            interrupted(thread, context);
        return;
    }
    pass_on(signal, info, context);
}

/* Our handler: all signals blocked, returns through the gate. */
void outlive_install(void)
{
    struct kernel_action action = {(uintptr_t)outlive_handler,
                                   SA_SIGINFO | SA_RESTART | SA_RESTORER_BIT,
                                   (uintptr_t)outlive_restorer, ~0UL};
    struct kernel_action before = {0, 0, 0, 0};
    uint64_t own = SYS_BIT;
    raw4(SYS_rt_sigaction, SIGSYS, &action, &before, 8);
    outlive_common.sigsys.sa_handler = (void (*)(int))before.handler;
    raw4(SYS_rt_sigprocmask, SIG_UNBLOCK, &own, 0, 8);
}
