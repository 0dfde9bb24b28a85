/* What a partner cannot do for its thread, and why. Everything else is forwarded, whatever it is. */
#include "decouple.h"

#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#ifndef SYS_futex_waitv /* Linux 5.16 */
#define SYS_futex_waitv 449
#endif
#define NUMBERS 512

enum kind {
    NO,    /* forwarded */
    ID,    /* answers, or changes, what belongs to the calling thread */
    MASK,  /* its signal mask, alternate stack, or queue of signals */
    SEND,  /* a signal to itself is there before the call returns; the sender is checked */
    WAITS, /* only waits: nothing is computed meanwhile, and no hop wakes up sooner */
    TASK,  /* state of the kernel that is bound to the thread that set it up */
    CREDS, /* credentials, name spaces, policy: a partner has a copy of them */
    OWN,   /* depends on arguments, below */
    ODD    /* emulated, or made at a gate of its own */
};

static const unsigned char kinds[NUMBERS] = {
    [SYS_gettid] = ID, [SYS_set_tid_address] = ID, [SYS_set_robust_list] = ID,
    [SYS_get_robust_list] = ID, [SYS_rseq] = ID, [SYS_getcpu] = ID, [SYS_getrusage] = ID,
    [SYS_clock_gettime] = ID, [SYS_clock_getres] = ID, [SYS_timer_create] = ID,
    [SYS_sched_yield] = ID, [SYS_sched_setaffinity] = ID, [SYS_sched_getaffinity] = ID,
    [SYS_sched_setscheduler] = ID, [SYS_sched_getscheduler] = ID, [SYS_sched_setparam] = ID,
    [SYS_sched_getparam] = ID, [SYS_sched_setattr] = ID, [SYS_sched_getattr] = ID,
    [SYS_sched_rr_get_interval] = ID, [SYS_getpriority] = ID, [SYS_setpriority] = ID,
    [SYS_ioprio_get] = ID, [SYS_ioprio_set] = ID, [SYS_get_mempolicy] = ID, [SYS_capget] = ID,
    [SYS_iopl] = ID, [SYS_ioperm] = ID, [SYS_modify_ldt] = ID, [SYS_set_thread_area] = ID,
    [SYS_get_thread_area] = ID, [SYS_membarrier] = ID, [SYS_restart_syscall] = ID,
    [SYS_sigaltstack] = MASK, [SYS_rt_sigpending] = MASK, [SYS_rt_sigtimedwait] = MASK,
    [SYS_kill] = SEND, [SYS_tkill] = SEND, [SYS_tgkill] = SEND, [SYS_rt_sigqueueinfo] = SEND,
    [SYS_rt_tgsigqueueinfo] = SEND, [SYS_pidfd_send_signal] = SEND,
    [SYS_pause] = WAITS, [SYS_nanosleep] = WAITS, [SYS_clock_nanosleep] = WAITS,
    [SYS_futex_waitv] = WAITS,
    [SYS_ptrace] = TASK, [SYS_io_uring_setup] = TASK, [SYS_io_uring_enter] = TASK,
    [SYS_io_uring_register] = TASK, [SYS_execve] = TASK, [SYS_execveat] = TASK,
    [SYS_setuid] = CREDS, [SYS_setgid] = CREDS, [SYS_setreuid] = CREDS, [SYS_setregid] = CREDS,
    [SYS_setgroups] = CREDS, [SYS_setresuid] = CREDS, [SYS_setresgid] = CREDS,
    [SYS_setfsuid] = CREDS, [SYS_setfsgid] = CREDS, [SYS_capset] = CREDS, [SYS_keyctl] = CREDS,
    [SYS_add_key] = CREDS, [SYS_request_key] = CREDS, [SYS_personality] = CREDS,
    [SYS_unshare] = CREDS, [SYS_setns] = CREDS, [SYS_seccomp] = OWN,
    [SYS_set_mempolicy] = CREDS, [SYS_landlock_restrict_self] = CREDS,
    [SYS_prctl] = OWN, [SYS_futex] = OWN, [SYS_wait4] = OWN, [SYS_waitid] = OWN,
    [SYS_read] = OWN, [SYS_readv] = OWN, [SYS_ioctl] = OWN, [SYS_poll] = OWN, [SYS_select] = OWN,
    [SYS_epoll_wait] = OWN, [SYS_ppoll] = OWN, [SYS_pselect6] = OWN, [SYS_epoll_pwait] = OWN,
    [SYS_epoll_pwait2] = OWN, [SYS_io_pgetevents] = OWN,
    [SYS_open] = OWN, [SYS_openat] = OWN, [SYS_openat2] = OWN, [SYS_readlink] = OWN,
    [SYS_readlinkat] = OWN,
    [SYS_rt_sigaction] = ODD, [SYS_rt_sigprocmask] = ODD, [SYS_rt_sigsuspend] = ODD,
    [SYS_rt_sigreturn] = ODD, [SYS_fork] = ODD, [SYS_vfork] = ODD, [SYS_clone] = ODD,
    [SYS_clone3] = ODD, [SYS_exit] = ODD, [SYS_exit_group] = ODD, [SYS_arch_prctl] = ODD,
    [SYS_perf_event_open] = ODD, [SYS_signalfd] = ODD, [SYS_signalfd4] = ODD,
    [SYS_pkey_alloc] = ODD,
};

/* A file whose reading is the thread's own: of perf, whose counters run where the thread does (to read them
 * from elsewhere would interrupt it), and of signals. */
static bool is_own(long fd)
{
    return fd >= 0 && fd < 1024 && (outlive_common.own[fd / 64] >> (fd % 64) & 1);
}

/* /proc/thread-self, which would be the partner's. The kernel looks at the address first: it reads a mask there,
 * and all signals are blocked already. */
static bool is_of_thread(long path)
{
    static const char begin[8] = "/proc/th";
    if (raw4(SYS_rt_sigprocmask, SIG_BLOCK, path, 0, 8) != 0)
        return false;
    for (int n = 0; n < 8; n++)
        if (((const char *)path)[n] != begin[n])
            return false;
    return true;
}

static enum how of_futex(long operation)
{
    switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAKE:
    case FUTEX_REQUEUE:
    case FUTEX_CMP_REQUEUE:
    case FUTEX_WAKE_OP:
    case FUTEX_WAKE_BITSET:
        return FORWARD;
    default: /* waits; or a lock whose owner is the thread */
        return IN_PLACE;
    }
}

static enum how of_prctl(long option)
{
    switch (option) {
    case PR_SET_SYSCALL_USER_DISPATCH:
    case PR_SET_SECCOMP:
        return SPECIAL;
    case PR_SET_NAME:
    case PR_GET_NAME:
    case PR_SET_PDEATHSIG:
    case PR_GET_PDEATHSIG:
    case PR_SET_TIMERSLACK:
    case PR_GET_TIMERSLACK:
    case PR_SET_VMA:
        return IN_PLACE;
    default:
        return RENEW;
    }
}

static enum how of_arguments(const long *call)
{
    bool signals = outlive_common.signalfd;
    switch (call[0]) {
    case SYS_futex:
        return of_futex(call[2]);
    case SYS_prctl:
        return of_prctl(call[1]);
    case SYS_seccomp:
        return call[1] == SECCOMP_SET_MODE_STRICT || call[1] == SECCOMP_SET_MODE_FILTER ? SPECIAL
                                                                                        : IN_PLACE;
    case SYS_wait4:
        return call[3] & __WNOTHREAD ? IN_PLACE : FORWARD;
    case SYS_waitid:
        return call[4] & __WNOTHREAD ? IN_PLACE : FORWARD;
    case SYS_open:
    case SYS_readlink:
        return is_of_thread(call[1]) ? IN_PLACE : FORWARD;
    case SYS_openat:
    case SYS_openat2:
    case SYS_readlinkat:
        return is_of_thread(call[2]) ? IN_PLACE : FORWARD;
    case SYS_read:
    case SYS_readv:
    case SYS_ioctl:
        return is_own(call[1]) ? IN_PLACE : FORWARD;
    /* With a mask of signals for the time of the call: the thread's. */
    case SYS_ppoll:
        return call[4] ? SPECIAL : signals ? IN_PLACE : FORWARD;
    case SYS_epoll_pwait:
    case SYS_epoll_pwait2:
        return call[5] ? SPECIAL : signals ? IN_PLACE : FORWARD;
    case SYS_pselect6:
    case SYS_io_pgetevents:
        return call[6] ? SPECIAL : signals ? IN_PLACE : FORWARD;
    default:
        return signals ? IN_PLACE : FORWARD;
    }
}

enum how outlive_how(const long *call)
{
    long number = call[0];
    switch (number >= 0 && number < NUMBERS ? kinds[number] : NO) {
    case NO:
        return outlive_common.alone ? IN_PLACE : FORWARD;
    case CREDS:
        return RENEW;
    case OWN: {
        enum how how = of_arguments(call);
        return how == FORWARD && outlive_common.alone ? IN_PLACE : how;
    }
    case ODD:
        return SPECIAL;
    default:
        return IN_PLACE;
    }
}
