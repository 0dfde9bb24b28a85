/* MPI-FWQ: what runs in each rank of `outlive noise mpi`, which compiles it with the MPI's own
 * mpicc: only standard calls are used, so it runs under any MPI.
 *
 *   PROGRAM DIR start|step QUANTUM_NS STEPS SECONDS CORES|- BURST_NS PERIOD_NS same|SEED
 *
 * start: one barrier, then every rank works through all quanta alone. step: a barrier before
 * each quantum and one after the last. A quantum is the same chain of integer steps in every
 * rank (the `work` of measure.rs), sized on the quickest rank. Between the first and the last
 * reading of the counter a rank makes no call but MPI_Barrier.
 *
 * DIR/rank-R.begun is made when a rank begins, DIR/rank-R.done when its result is whole, and
 * DIR/twice when two processes have the same rank: program and launcher are then of different
 * MPIs. What is in a result: src/ranks/record.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 64, MASK_AT = 16, HOST_AT = 32, LIBRARY_AT = 48, TEXT_BYTES = 128, MASK_BITS = 1024 };
enum { TRIALS = 64, TRIAL_STEPS = 20000, READINGS = 64, WARM_UP = 10 };
#define SECOND UINT64_C(1000000000)
#define MAGIC UINT64_C(0x3151574649504d4f) /* "OMPIFWQ1" */

static int rank, size;

static void fail(const char *what, const char *of) {
    fprintf(stderr, "outlive: rank %d: %s %s: %s\n", rank, what, of, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* As cycles.rs reads it. */
#if defined(__x86_64__)
enum { COUNTER = 0 };
static inline uint64_t counter(void) { return __builtin_ia32_rdtsc(); }
#elif defined(__aarch64__)
enum { COUNTER = 1 };
static inline uint64_t counter(void) {
    uint64_t value;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
}
#else
enum { COUNTER = 2 };
static inline uint64_t counter(void) { return clock_ns(CLOCK_MONOTONIC); }
#endif

static uint64_t result;

__attribute__((noinline)) static void work(uint64_t count) {
    uint64_t word = UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t at = 0; at < count; at++) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
    }
    *(volatile uint64_t *)&result = word;
}

/* Counter and clock at one moment: the reading during which the least time passed. */
static void anchor(uint64_t *cycles, uint64_t *ns) {
    uint64_t best = UINT64_MAX;
    for (int at = 0; at < READINGS; at++) {
        uint64_t before = counter(), now = clock_ns(CLOCK_MONOTONIC), took = counter() - before;
        if (took >= best) continue;
        best = took;
        *cycles = before + took / 2;
        *ns = now;
    }
}

/* Steps of work that take the quantum on the quickest rank when nothing disturbs it. */
static uint64_t steps_of(uint64_t quantum_ns) {
    uint64_t cycles, ns, later_cycles, later_ns, least = UINT64_MAX, most;
    anchor(&cycles, &ns);
    while (clock_ns(CLOCK_MONOTONIC) < ns + 20000000)
        ;
    anchor(&later_cycles, &later_ns);
    for (int at = 0; at < TRIALS; at++) {
        uint64_t before = counter();
        work(TRIAL_STEPS);
        uint64_t took = counter() - before;
        if (took < least) least = took;
    }
    double per_cycle = (double)(later_ns - ns) / (double)(later_cycles - cycles);
    double steps = (double)quantum_ns / ((double)(least ? least : 1) * per_cycle) * TRIAL_STEPS;
    uint64_t mine = steps < 1 ? 1 : (uint64_t)steps;
    MPI_Allreduce(&mine, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* The ranks of a host take the cores of a list, as in 0-2,5, in turn. */
static void pin(const char *list) {
    MPI_Comm host;
    int local, count = 0, cores[MASK_BITS];
    if (strcmp(list, "-") == 0) return;
    for (const char *at = list; *at;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long core = first; core <= last && count < MASK_BITS; core++) cores[count++] = (int)core;
        if (*end && *end != ',') break;
        at = *end ? end + 1 : end;
    }
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    MPI_Comm_free(&host);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(count ? cores[local % count] : 0, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot run on its core of --cores", list);
}

/* A process that wakes up now and then, as a daemon of the system does. */
static struct {
    uint64_t burst_ns, period_ns, phase_ns;
    int core;
    atomic_uint_fast64_t bursts;
    pthread_t thread;
} daemon_of;

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mixed(uint64_t word) {
    word += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

static void *disturb(void *unused) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(daemon_of.core, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (;;) {
        /* Hosts agree on the time of day; a burst that took too long leaves one out. */
        uint64_t since = clock_ns(CLOCK_REALTIME) - daemon_of.phase_ns;
        uint64_t next = (since / daemon_of.period_ns + 1) * daemon_of.period_ns + daemon_of.phase_ns;
        struct timespec until = {(time_t)(next / SECOND), (long)(next % SECOND)};
        while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + daemon_of.burst_ns;
        while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
            ;
        atomic_fetch_add(&daemon_of.bursts, 1);
    }
    return unused;
}

static void begin_daemon(char **words, int core) {
    daemon_of.burst_ns = strtoull(words[0], NULL, 10);
    daemon_of.period_ns = strtoull(words[1], NULL, 10);
    if (daemon_of.period_ns == 0) return;
    if (strcmp(words[2], "same") != 0) {
        uint64_t seed = mixed(strtoull(words[2], NULL, 10));
        daemon_of.phase_ns = mixed(seed + (uint64_t)rank) % daemon_of.period_ns;
    }
    daemon_of.core = core;
    errno = pthread_create(&daemon_of.thread, NULL, disturb, NULL);
    if (errno) fail("cannot start", "a daemon");
}

static void end_daemon(void) {
    if (daemon_of.period_ns == 0) return;
    pthread_cancel(daemon_of.thread);
    pthread_join(daemon_of.thread, NULL);
}

/* Names this rank's own; a second process of the same number is told of. */
static void begin(const char *dir) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%d.begun", dir, rank);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) {
        snprintf(path, sizeof path, "%s/twice", dir);
        file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        MPI_Abort(MPI_COMM_WORLD, 3);
        exit(3);
    }
    if (file < 0) fail("cannot write", path);
    close(file);
}

static void end(const char *dir, const uint64_t *words, size_t count) {
    char path[4096], whole[4096];
    snprintf(path, sizeof path, "%s/rank-%d.part", dir, rank);
    snprintf(whole, sizeof whole, "%s/rank-%d.done", dir, rank);
    FILE *file = fopen(path, "wb");
    if (!file) fail("cannot write", path);
    size_t written = fwrite(words, sizeof *words, count, file);
    if (fclose(file) != 0 || written != count || rename(path, whole) != 0) fail("cannot write", path);
}

/* The quanta: each barrier and reading of the counter where it belongs. */
static void measure(int step, uint64_t steps, uint64_t count, uint64_t *marks) {
    for (int at = 0; at < WARM_UP; at++) MPI_Barrier(MPI_COMM_WORLD);
    if (!step) {
        MPI_Barrier(MPI_COMM_WORLD);
        *marks++ = counter();
        for (uint64_t at = 0; at < steps; at++) {
            work(count);
            *marks++ = counter();
        }
        return;
    }
    for (uint64_t at = 0; at < steps; at++) {
        MPI_Barrier(MPI_COMM_WORLD);
        *marks++ = counter();
        work(count);
        *marks++ = counter();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    *marks = counter();
}

static void describe(uint64_t *head) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (int core = 0; core < MASK_BITS; core++)
        if (CPU_ISSET(core, &set)) head[MASK_AT + core / 64] |= UINT64_C(1) << (core % 64);
    gethostname((char *)(head + HOST_AT), TEXT_BYTES - 1);
    MPI_Get_library_version(library, &length);
    snprintf((char *)(head + LIBRARY_AT), TEXT_BYTES, "%.*s", (int)strcspn(library, "\n"), library);
}

int main(int argc, char **argv) {
    int given;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 10) {
        fprintf(stderr, "outlive: %d words for the program of outlive noise mpi\n", argc);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    /* Whoever waits for a rank that is gone ends by itself. */
    alarm((unsigned)strtoul(argv[5], NULL, 10));
    begin(argv[1]);
    int step = strcmp(argv[2], "step") == 0;
    uint64_t steps = strtoull(argv[4], NULL, 10);
    size_t count = HEAD + (step ? 2 : 1) * steps + 2;
    uint64_t *words = malloc(count * sizeof *words);
    if (!words) fail("no memory for", argv[4]);
    memset(words, 1, count * sizeof *words);
    memset(words, 0, HEAD * sizeof *words);
    words[12] = mlock(words, count * sizeof *words) == 0;
    pin(argv[6]);
    words[10] = (uint64_t)sched_getcpu();
    describe(words);
    words[5] = steps_of(strtoull(argv[3], NULL, 10));
    begin_daemon(argv + 7, (int)words[10]);
    anchor(words + 6, words + 7);
    measure(step, steps, words[5], words + HEAD);
    anchor(words + 8, words + 9);
    words[11] = (uint64_t)sched_getcpu();
    end_daemon();
    words[0] = MAGIC;
    words[1] = (uint64_t)rank;
    words[2] = (uint64_t)size;
    words[3] = (uint64_t)step;
    words[4] = steps;
    words[13] = atomic_load(&daemon_of.bursts);
    words[14] = COUNTER;
    words[15] = daemon_of.phase_ns;
    uint64_t sum = 0;
    for (size_t at = 0; at + 1 < count; at++) sum = (sum << 1 | sum >> 63) ^ words[at];
    words[count - 1] = sum;
    end(argv[1], words, count);
    MPI_Finalize();
    return 0;
}
