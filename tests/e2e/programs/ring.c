/* A job for tests: ranks as processes forked by a small launcher, as mpirun has
 * them, without MPI. In each step a rank mixes its cells with a number of its left
 * neighbour, so the result tells an inconsistent cut from a consistent one.
 *
 *   ring OUT RANKS STEPS CELLS [OPTION...]
 *
 *   --sleep-us N        pause in each step
 *   --busy              spin instead of sleeping
 *   --pause STEP FILE   rank 0 makes FILE.reached and waits until FILE is there
 *   --hold STEP SINCE WHAT  at STEP a version of SINCE or later survives this: the one taken
 *                       last is waited for; if there is none, STEP is forced
 *   --until FILE        past the last step versions are offered until FILE is there
 *   --force N           checkpoint_now at each N-th step
 *   --scale N           the version of a step is N times the step
 *   --irregular         offer at some steps only, without a pattern
 *   --unequal           ranks offer versions that others do not
 *   --wait WHAT         and wait until it survives this: process, node-crash, node-loss,
 *                       domain or all-nodes
 *   --grow              a region that grows from step to step
 *   --empty             a region of no bytes
 *   --only-empty        no other region
 *   --files             a file that grows by a line a step, routed when wanted
 *   --regions WHAT      more | larger | fewer: not as the checkpoint has them
 *   --forgive           go on from the beginning if restore fails
 *   --die STEP RANK N   in the first start, exit with status N
 *   --die-always N      exit with status N at once
 *   --hang STEP RANK HOW  in the first start, after STEP versions: loop, read or stop
 *   --no-close          end without outlive_close
 *
 * Ends with 0, with the status of the rank that failed, or 128 + its signal.
 * Writes 8 bytes a rank to OUT: a digest of everything. Says what happens on
 * standard output.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <outlive.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 256, LINE = 20, HOLDS_MAX = 8 };

static struct {
    const char *out, *pause_file, *until_file, *regions;
    uint64_t steps, cells, sleep_us, pause_step, force, die_step, scale;
    int irregular, unequal;
    int ranks, busy, wait, grow, empty, only_empty, files, forgive, no_close;
    int die_rank, die_status, die_always, holds, hang_rank;
    uint64_t hang_step;
    const char *hang;
    struct {
        uint64_t step, since;
        int survives;
    } hold[HOLDS_MAX];
} set = {.regions = "", .die_rank = -1, .hang_rank = -1, .scale = 1};

static struct {
    pthread_barrier_t barrier;
    volatile uint64_t posted[2][RANKS_MAX];
    volatile int lacks[HOLDS_MAX], enough;
} *shared;

static int rank;
static uint64_t *cells, mine, *grown, grown_cells;
static int64_t last_taken = -1, restored_step = -1;
static char *lines;

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void say(const char *what, long long number) {
    char text[128];
    int n = snprintf(text, sizeof text, "rank %d %s %lld\n", rank, what, number);
    if (write(1, text, (size_t)n) < 0) _exit(9);
}

/* An error of the library: said, with its one-line explanation. */
static void said(outlive_job *job, const char *what, int code) {
    char text[600], line[800];
    outlive_last_error(job, text, sizeof text);
    int n = snprintf(line, sizeof line, "rank %d %s %d %s\n", rank, what, code, text);
    if (write(1, line, (size_t)n) < 0) _exit(9);
}

static void *zeroed(uint64_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) _exit(8);
    return p;
}

static void passed(uint64_t us) {
    struct timespec begin, now, pause = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    if (!set.busy) {
        nanosleep(&pause, NULL);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((uint64_t)((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000) < us);
}

/* Steps decide the size, so that it is the same after a restart. */
static void grow(outlive_job *job, uint64_t step) {
    uint64_t wanted = 1000 * (step / 8 + 1);
    if (wanted == grown_cells) return;
    uint64_t *larger = realloc(grown, wanted * 8);
    if (!larger) _exit(8);
    for (uint64_t i = grown_cells; i < wanted; i++) larger[i] = mix(i + mine);
    grown = larger;
    grown_cells = wanted;
    outlive_protect(job, "grown", grown, grown_cells * 8);
}

static void make_file(outlive_job *job, uint64_t step, int held) {
    char path[4096];
    if (!set.files || (!held && outlive_wanted(job, step * set.scale) != 1)) return;
    int rc = outlive_route(job, step * set.scale, "lines", path, sizeof path);
    if (rc != OUTLIVE_OK) return said(job, "route", rc);
    FILE *file = fopen(path, "w");
    if (!file || fwrite(lines, LINE, step, file) != step || fclose(file)) say("file", errno);
}

static void get_file(outlive_job *job, uint64_t step) {
    char path[4096];
    if (!set.files) return;
    int rc = outlive_route(job, step * set.scale, "lines", path, sizeof path);
    FILE *file = rc == OUTLIVE_OK ? fopen(path, "r") : NULL;
    if (!file || fread(lines, LINE, step, file) != step || fgetc(file) != EOF) {
        said(job, "file lost", rc);
        _exit(7);
    }
    fclose(file);
}

static void protect(outlive_job *job) {
    static uint64_t extra[4];
    if (!set.only_empty) {
        uint64_t n = set.cells;
        if (!strcmp(set.regions, "larger")) n += 8;
        outlive_protect(job, "cells", cells, n * 8);
        if (strcmp(set.regions, "fewer")) outlive_protect(job, "mine", &mine, sizeof mine);
    }
    if (!strcmp(set.regions, "more")) outlive_protect(job, "extra", extra, sizeof extra);
    if (set.empty || set.only_empty) outlive_protect(job, "empty", NULL, 0);
    size_t bytes = 0;
    if (set.grow && outlive_query(job, "grown", &bytes) == OUTLIVE_OK && bytes) {
        grown = zeroed(bytes);
        grown_cells = bytes / 8;
        outlive_protect(job, "grown", grown, bytes);
    }
}

static uint64_t restore(outlive_job *job) {
    uint64_t step = 0;
    int rc = outlive_restore(job, &step);
    if (rc == OUTLIVE_RESTORED) {
        step /= set.scale;
        say("restored", (long long)step);
        restored_step = (int64_t)step;
        get_file(job, step < set.steps ? step : set.steps);
    } else if (rc == OUTLIVE_FRESH) {
        say("fresh", 0);
    } else {
        said(job, "restore", rc);
        if (!set.forgive) _exit(3);
        step = 0;
    }
    return step;
}

/* What this step, forced on all ranks, has to survive, because one of them has no version
 * that is new enough and does; 0: it need not be forced. */
static int is_held(outlive_job *job, uint64_t step) {
    int force = 0;
    for (int i = 0; i < set.holds; i++) {
        if (set.hold[i].step != step) continue;
        int64_t since = (int64_t)set.hold[i].since;
        int there = restored_step >= since;
        if (last_taken >= since)
            there = outlive_wait(job, (uint64_t)last_taken * set.scale, set.hold[i].survives,
                                 20000) == OUTLIVE_OK;
        if (!there) shared->lacks[i] = 1;
        pthread_barrier_wait(&shared->barrier);
        if (shared->lacks[i]) force = set.hold[i].survives;
    }
    return force;
}

static void offer(outlive_job *job, uint64_t step, uint64_t *taken) {
    int rc, held = is_held(job, step);
    uint64_t version = step * set.scale;
    if (set.irregular && step && mix(step) % 5 && !held) return;
    if (set.unequal && step) version += step % 3 == (uint64_t)rank % 3;
    if (step < set.steps) make_file(job, step, held);
    if (held) {
        rc = outlive_checkpoint_now(job, version);
        if (rc == OUTLIVE_TAKEN) rc = outlive_wait(job, version, held, 20000);
        if (rc != OUTLIVE_OK) said(job, "hold", rc);
        rc = OUTLIVE_TAKEN;
    } else if (set.force && step % set.force == 0) {
        rc = outlive_checkpoint_now(job, version);
        if (rc < 0) said(job, "force", rc);
        if (rc == OUTLIVE_TAKEN && set.wait) {
            int waited = outlive_wait(job, version, set.wait, 20000);
            if (waited == OUTLIVE_OK) say("committed", (long long)step);
            else said(job, "wait", waited);
        }
    } else {
        rc = outlive_checkpoint(job, version);
        if (rc < 0) said(job, "checkpoint", rc);
    }
    *taken += rc == OUTLIVE_TAKEN;
    if (rc == OUTLIVE_TAKEN) last_taken = (int64_t)step;
}

/* True if nothing is left to do after the last step. */
static int is_over(uint64_t step) {
    if (step < set.steps) return 0;
    if (!set.until_file) return 1;
    if (rank == 0) shared->enough = !access(set.until_file, F_OK);
    pthread_barrier_wait(&shared->barrier);
    return shared->enough;
}

static void pause_here(uint64_t step) {
    char path[4096];
    if (rank != 0 || !set.pause_file || step != set.pause_step) return;
    snprintf(path, sizeof path, "%s.reached", set.pause_file);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    for (int i = 0; i < 60000 && access(set.pause_file, F_OK); i++) passed(1000);
}

static volatile uint64_t turns;

static __attribute__((noinline)) void spins_for_ever(void) {
    for (;;) turns++;
}

static __attribute__((noinline)) void reads_for_ever(void) {
    int both[2];
    char byte;
    if (pipe(both) || read(both[0], &byte, 1) < 0) _exit(5);
    turns++;
}

static __attribute__((noinline)) void stops(void) {
    raise(SIGSTOP);
    turns++;
}

static void hang(void) {
    if (!strcmp(set.hang, "loop")) spins_for_ever();
    else if (!strcmp(set.hang, "read")) reads_for_ever();
    else stops();
}

static void compute(uint64_t step) {
    int left = (rank + set.ranks - 1) % set.ranks;
    uint64_t x = shared->posted[step % 2][left] + mine;
    uint64_t stride = set.cells / 1000 + 1;
    for (uint64_t i = step % stride; i < set.cells; i += stride) cells[i] = x = mix(cells[i] + x + i);
    if (grown) grown[step % grown_cells] = x = mix(x + grown[step % grown_cells]);
    mine = mix(x + step);
    if (set.files) {
        char line[LINE + 1];
        snprintf(line, sizeof line, "%019llu\n", (unsigned long long)mine % 1000000000000000000u);
        memcpy(lines + step * LINE, line, LINE);
    }
    shared->posted[(step + 1) % 2][rank] = mine;
}

static void write_digest(void) {
    uint64_t digest = mine;
    for (uint64_t i = 0; i < set.cells; i++) digest = mix(digest ^ cells[i]);
    for (uint64_t i = 0; i < grown_cells; i++) digest = mix(digest ^ grown[i]);
    if (set.files)
        for (uint64_t i = 0; i < set.steps * LINE; i++) digest = mix(digest ^ (uint8_t)lines[i]);
    int fd = open(set.out, O_CREAT | O_WRONLY, 0600);
    if (fd < 0 || pwrite(fd, &digest, 8, rank * 8) != 8 || close(fd)) _exit(6);
}

static int run_rank(void) {
    outlive_job *job = NULL;
    uint64_t taken = 0;
    outlive_options options = {.size = sizeof options, .rank = rank, .ranks = set.ranks};
    const char *start = getenv("OUTLIVE_INCARNATION");
    int rc = outlive_open(&options, &job);
    if (rc != OUTLIVE_OK) {
        said(NULL, "open", rc);
        return 4;
    }
    if (set.die_always) return set.die_always;
    cells = zeroed((set.cells + 8) * 8);
    lines = zeroed(set.files ? set.steps * LINE : 1);
    mine = (uint64_t)rank + 1;
    protect(job);
    uint64_t step = restore(job);
    shared->posted[step % 2][rank] = mine;
    pthread_barrier_wait(&shared->barrier);
    for (; !is_over(step); step++) {
        if (set.grow && step < set.steps) grow(job, step);
        offer(job, step, &taken);
        pause_here(step);
        if (rank == set.die_rank && step == set.die_step && start && !strcmp(start, "1"))
            return set.die_status;
        if (rank == set.hang_rank && step == set.hang_step && start && !strcmp(start, "1")) hang();
        if (step < set.steps) compute(step);
        if (set.sleep_us) passed(set.sleep_us);
        pthread_barrier_wait(&shared->barrier);
    }
    write_digest();
    say("taken", (long long)taken);
    if (!set.no_close) outlive_close(&job);
    return 0;
}

static int survives(const char *what) {
    static const char *const names[] = {"process", "node-crash", "node-loss", "domain", "all-nodes"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(what, names[i])) return OUTLIVE_SURVIVES_PROCESS + i;
    _exit(64);
}

static void parse(int argc, char **argv) {
    if (argc < 5) _exit(64);
    set.out = argv[1];
    set.ranks = atoi(argv[2]);
    set.steps = strtoull(argv[3], NULL, 10);
    set.cells = strtoull(argv[4], NULL, 10);
    if (set.ranks < 1 || set.ranks > RANKS_MAX) _exit(64);
    for (char **a = argv + 5; *a; a++) {
#define IS(name) (!strcmp(*a, "--" name))
        if (IS("busy")) set.busy = 1;
        else if (IS("grow")) set.grow = 1;
        else if (IS("empty")) set.empty = 1;
        else if (IS("only-empty")) set.only_empty = 1;
        else if (IS("files")) set.files = 1;
        else if (IS("irregular")) set.irregular = 1;
        else if (IS("unequal")) set.unequal = 1;
        else if (IS("forgive")) set.forgive = 1;
        else if (IS("no-close")) set.no_close = 1;
        else if (!a[1]) _exit(64);
        else if (IS("sleep-us")) set.sleep_us = strtoull(*++a, NULL, 10);
        else if (IS("scale")) set.scale = strtoull(*++a, NULL, 10);
        else if (IS("force")) set.force = strtoull(*++a, NULL, 10);
        else if (IS("wait")) set.wait = survives(*++a);
        else if (IS("regions")) set.regions = *++a;
        else if (IS("until")) set.until_file = *++a;
        else if (IS("die-always")) set.die_always = atoi(*++a);
        else if (!a[2]) _exit(64);
        else if (IS("pause")) set.pause_step = strtoull(*++a, NULL, 10), set.pause_file = *++a;
        else if (!a[3]) _exit(64);
        else if (IS("hold") && set.holds < HOLDS_MAX) {
            set.hold[set.holds].step = strtoull(*++a, NULL, 10);
            set.hold[set.holds].since = strtoull(*++a, NULL, 10);
            set.hold[set.holds++].survives = survives(*++a);
        } else if (IS("hang")) {
            set.hang_step = strtoull(*++a, NULL, 10);
            set.hang_rank = atoi(*++a);
            set.hang = *++a;
        } else if (IS("die")) {
            set.die_step = strtoull(*++a, NULL, 10);
            set.die_rank = atoi(*++a);
            set.die_status = atoi(*++a);
        } else _exit(64);
    }
}

int main(int argc, char **argv) {
    pid_t pids[RANKS_MAX];
    pthread_barrierattr_t attr;
    parse(argc, argv);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 8;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attr, (unsigned)set.ranks);
    for (rank = 0; rank < set.ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) return 8;
        if (pids[rank] == 0) _exit(run_rank());
    }
    int status, failed = 0;
    for (int left = set.ranks; left > 0; left--) {
        pid_t ended = wait(&status);
        for (int i = 0; i < set.ranks; i++)
            if (pids[i] == ended) pids[i] = 0;
        if (status == 0 || failed) continue;
        failed = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        for (int i = 0; i < set.ranks; i++)
            if (pids[i] > 0) kill(pids[i], SIGKILL);
    }
    return failed;
}
