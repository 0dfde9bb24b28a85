/* liboutlive_decouple.so: threads of an unmodified program compute on their cores; their system
 * calls are carried out by partners on others.
 *
 * Loaded ahead of a program (LD_PRELOAD), it has the kernel turn each system call of each thread into
 * SIGSYS (syscall user dispatch, Linux 5.11). The handler gives the call, whatever it is, to the thread's
 * partner: a thread of the same process, with its memory, files and credentials, bound to the service
 * cores. FFMK, final report (2020), section 2.3: one mechanism, not a table of proxies. The table of
 * calls.c holds only what belongs to the calling thread itself.
 *
 * Invariants.
 *   - The handler runs with all signals blocked, so a mailbox has one user. While a call waits, signals
 *     are taken from the queue, put back, and the call interrupted first: the program's handlers run where
 *     they would have run, after the call, and may leave by longjmp.
 *   - What must be done by the thread itself is done after the handler has returned, at a gate that the
 *     kernel does not dispatch: with the program's own registers, stack and signal mask.
 *   - SIGSYS is never blocked in a thread that is decoupled: the kernel would end the process.
 *   - A partner blocks all signals but SIGSYS, which interrupts its call, and ends before its thread.
 *   - Nothing is allocated, no lock is taken, nothing of the C library is called in a handler.
 *
 * Variables (docs/reference/environment.md): OUTLIVE_DECOUPLE_SERVICE, OUTLIVE_DECOUPLE_NEAR,
 * OUTLIVE_DECOUPLE_SPIN_US, OUTLIVE_DECOUPLE_PREFAULT, OUTLIVE_DECOUPLE_REPORT.
 */
#ifndef OUTLIVE_DECOUPLE_H
#define OUTLIVE_DECOUPLE_H

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define THREADS_MAX 1024
#define CORES_MAX 1024
#define GROUPS_MAX 64
#define PARTNER_STACK (64 << 10)
/* Calls that a thread does for itself before it gets a partner: most processes of a script end
 * before they would have gained by one. */
#define CALLS_BEFORE 32
/* What the kernel says within itself for "interrupted, and may be begun again" (ERESTARTSYS). */
#define AGAIN (-512L)
/* Ours, for a call that was interrupted before it began: the signal came before it. */
#define NEVER (-513L)
/* Between the stack pointer and what the handler may write: the red zone of the ABI, and a word. */
#define RED 128
#define BELOW (RED + 8)
/* si_code of the signals that caller and partner send each other; the kernel uses none of them. */
#define CODE_KICK (-7070)
#define CODE_WAKE (-7071)
#define SYS_BIT (1UL << (SIGSYS - 1))

enum state { EMPTY, POSTED, DONE, QUIT };

/* A decoupled thread and its mailbox. GS points here; the gate knows the first three. */
struct thread {
    struct thread *self;
    uintptr_t back;     /* where a vfork returns to */
    atomic_char select; /* read by the kernel at each call: 0 lets it pass, 1 dispatches it */
    atomic_bool used;
    int tid;
    uint32_t calls; /* before it had a partner */
    uintptr_t heap; /* the last end of brk that was seen */
    uint64_t forwarded, in_place;

    /* A call on its way, and back. */
    _Alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t asleep;   /* the partner waits in the kernel for a call */
    _Atomic uint32_t sleeping; /* the caller waits in the kernel for the result */
    _Atomic uint32_t cancel;   /* the call is to be interrupted */
    unsigned core;             /* where the caller was */
    long call[7];              /* number, six arguments */
    long result;
    int raise; /* a signal that the call sent to its thread, the partner */

    _Alignas(64) _Atomic uint32_t kicks_sent;
    _Atomic uint32_t kicks_seen;
    _Atomic int partner; /* its number; 0: there is none. The kernel clears it */
    char *stack;
};

/* What is the same for all threads. */
struct common {
    int pid;
    unsigned long service[CORES_MAX / 64];
    /* Where partners are close to their threads (NUMA): one more than the place in `near`; 0: anywhere. */
    unsigned char group[CORES_MAX];
    unsigned long near[GROUPS_MAX][CORES_MAX / 64];
    unsigned groups;
    uint64_t spin_us, prefault;
    _Atomic uint64_t ticks_us; /* of the time-stamp counter */
    atomic_bool prefaulted;
    atomic_bool alone;    /* nothing is forwarded any more: memory has protection keys, or: */
    atomic_bool filtered; /* a filter may forbid what partners and their makers do */
    atomic_bool signalfd; /* reads and polls may ask for signals of the thread */
    _Atomic uint64_t own[16]; /* files below 1024 that count or hold what is the thread's */
    struct sigaction sigsys; /* the program's own */
    bool armed;
    char report[4096];
    _Atomic uint64_t forwarded, in_place, partners;
};
extern struct common outlive_common;
extern struct thread *outlive_threads[THREADS_MAX];

/* As the kernel has it. */
struct kernel_action {
    uintptr_t handler;
    unsigned long flags;
    uintptr_t restorer;
    uint64_t mask;
};

/* ---- gate.c: the code whose calls the kernel does not dispatch ---- */
extern char outlive_gate_begin[], outlive_gate_end[];
extern char outlive_replay[], outlive_replay_32[], outlive_replay_vfork[], outlive_replay_fork[];
extern char outlive_replay_thread[], outlive_replay_child[], outlive_return[], outlive_restorer[];
extern char outlive_call_begin[], outlive_call_at[], outlive_call_end[];
long outlive_raw(long number, long, long, long, long, long, long);
long outlive_call(const long *call, _Atomic uint32_t *cancel);
long outlive_start(long flags, char *stack, _Atomic int *tid, struct thread *thread);

#define raw0(n) outlive_raw(n, 0, 0, 0, 0, 0, 0)
#define raw1(n, a) outlive_raw(n, (long)(a), 0, 0, 0, 0, 0)
#define raw2(n, a, b) outlive_raw(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define raw3(n, a, b, c) outlive_raw(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define raw4(n, a, b, c, d) outlive_raw(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define raw6(n, a, b, c, d, e, f) \
    outlive_raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* ---- calls.c ---- */
enum how {
    FORWARD,
    IN_PLACE, /* by the thread itself */
    RENEW,    /* too; a partner is a copy of its thread, and is made anew afterwards */
    SPECIAL   /* caller.c knows */
};
enum how outlive_how(const long *call);

/* ---- partner.c ---- */
bool outlive_partner_begin(struct thread *thread);
void outlive_partner_end(struct thread *thread);
void outlive_partner(struct thread *thread);
static inline void outlive_pause(void) { __builtin_ia32_pause(); }
static inline uint64_t outlive_ticks(void) { return __builtin_ia32_rdtsc(); }

/* The core this runs on, as Linux keeps it beside the time-stamp counter. */
static inline unsigned outlive_core(void)
{
    unsigned beside;
    (void)__builtin_ia32_rdtscp(&beside);
    return beside & 0xfff;
}

/* ---- forward.c ---- */
long outlive_forward(struct thread *thread, const long *call, uint64_t mask, bool *again);

/* ---- caller.c ---- */
void outlive_handler(int signal, siginfo_t *info, void *context);
void outlive_thread_begin(void);
void outlive_child_begin(void);
struct thread *outlive_slot(void);
bool outlive_arm(struct thread *thread);
void outlive_install(void);

/* GS of this thread: set while it is decoupled, and in those that it started by vfork. */
static inline struct thread *outlive_self(void)
{
    struct thread *self;
    __asm__ volatile("movq %%gs:0, %0" : "=r"(self));
    return self;
}

/* A signal whose words the kernel could not keep (RLIMIT_SIGPENDING): ours are told by who gets them. */
static inline bool outlive_is_bare(const siginfo_t *info)
{
    return info->si_code == SI_USER && info->si_pid == 0;
}

static inline void outlive_clear(void *at, size_t bytes)
{
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(0) : "memory");
}

#endif
