/* Gravity among N bodies, all pairs, by leapfrog steps on several threads of one
 * process. Protected by the five calls of Outlive, marked 1 to 5; its trajectory
 * file is protected by outlive_route, marked R.
 *
 *     ./nbody BODIES STEPS OUTPUT [--threads N] [--every K] [--trajectory FILE]
 *             [--sleep-us N]
 *
 * OUTPUT receives the final positions and velocities as doubles. FILE receives
 * the positions of all bodies every K steps, appended as the program runs: after
 * a restart it must hold what it held at the restored step and no more.
 *
 * A body's force is summed by one thread over all bodies in order, so the result
 * is the same, bit for bit, for any number of threads.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef NO_OUTLIVE
#include "../no-outlive.h"
#else
#include <outlive.h>
#endif

#define THREADS_MAX 64
#define BODIES_MAX 100000
#define DT 1e-3
#define SOFTENING 1e-2 /* keeps close pairs finite */

struct body {
    double x[3], v[3], mass;
};

struct world {
    struct body *bodies;
    double (*force)[3];
    long count, threads;
    pthread_barrier_t start, done;
    int leave; /* written before `start`, read after it */
};

struct worker {
    struct world *world;
    long index;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "nbody: %s: %s\n", what, why);
    exit(1);
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a double in [-1, 1). */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-52 - 1.0;
}

static void begin(struct world *w)
{
    uint64_t seed = 42;
    for (long i = 0; i < w->count; i++) {
        struct body *b = &w->bodies[i];
        for (int k = 0; k < 3; k++) b->x[k] = draw(&seed);
        /* A slow turn about the third axis. */
        b->v[0] = -0.5 * b->x[1];
        b->v[1] = 0.5 * b->x[0];
        b->v[2] = 0.0;
        b->mass = 1.0 / (double)w->count;
    }
}

static void forces(struct world *w, long from, long to)
{
    for (long i = from; i < to; i++) {
        double a[3] = {0.0, 0.0, 0.0};
        const struct body *b = &w->bodies[i];
        for (long j = 0; j < w->count; j++) {
            const struct body *c = &w->bodies[j];
            double d[3], r2 = SOFTENING * SOFTENING;
            for (int k = 0; k < 3; k++) {
                d[k] = c->x[k] - b->x[k];
                r2 += d[k] * d[k];
            }
            double s = c->mass / (r2 * sqrt(r2));
            for (int k = 0; k < 3; k++) a[k] += s * d[k];
        }
        for (int k = 0; k < 3; k++) w->force[i][k] = a[k];
    }
}

static void *work(void *argument)
{
    struct worker *me = argument;
    struct world *w = me->world;
    long from = w->count * me->index / w->threads, to = w->count * (me->index + 1) / w->threads;
    for (;;) {
        pthread_barrier_wait(&w->start);
        if (w->leave) return NULL;
        forces(w, from, to);
        pthread_barrier_wait(&w->done);
    }
}

static void kick_and_drift(struct world *w)
{
    for (long i = 0; i < w->count; i++) {
        struct body *b = &w->bodies[i];
        for (int k = 0; k < 3; k++) {
            b->v[k] += DT * w->force[i][k];
            b->x[k] += DT * b->v[k];
        }
    }
}

static uint64_t digest(const void *data, size_t bytes) /* FNV-1a, 64 bits */
{
    const unsigned char *at = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void append_positions(const struct world *w, const char *path)
{
    FILE *file = fopen(path, "ab");
    if (file == NULL) fail(path, strerror(errno));
    for (long i = 0; i < w->count; i++)
        if (fwrite(w->bodies[i].x, sizeof w->bodies[i].x, 1, file) != 1) fail(path, strerror(errno));
    if (fclose(file) != 0) fail(path, strerror(errno));
}

/* Copies a file; one that does not exist counts as empty. 0 if it worked. */
static int copy_file(const char *from, const char *to)
{
    char buffer[1 << 16];
    size_t got;
    FILE *out = fopen(to, "wb");
    if (out == NULL) return -1;
    FILE *in = fopen(from, "rb");
    int bad = in == NULL && errno != ENOENT;
    if (in != NULL) {
        while ((got = fread(buffer, 1, sizeof buffer, in)) > 0)
            if (fwrite(buffer, 1, got, out) != got) bad = 1;
        bad |= ferror(in);
        fclose(in);
    }
    return fclose(out) != 0 || bad ? -1 : 0;
}

static void write_result(const struct world *w, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) fail(path, strerror(errno));
    size_t count = (size_t)w->count;
    if (fwrite(w->bodies, sizeof *w->bodies, count, file) != count) fail(path, strerror(errno));
    if (fclose(file) != 0) fail(path, strerror(errno));
}

static long number(const char *text, long least, long most, const char *what)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value < least || value > most)
        fail(what, "not a number in its range");
    return value;
}

static void check(int code, outlive_job *job, const char *what)
{
    char text[512];
    if (code >= 0) return;
    outlive_last_error(job, text, sizeof text);
    fail(what, text);
}

int main(int argc, char **argv)
{
    struct world w = {.threads = 4};
    struct worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    const char *trajectory = NULL;
    long every = 100, sleep_us = 0;

    if (argc < 4 || argc % 2 != 0) {
        fprintf(stderr, "usage: nbody BODIES STEPS OUTPUT [--threads N] [--every K]\n"
                        "             [--trajectory FILE] [--sleep-us N]\n");
        return 64;
    }
    w.count = number(argv[1], 1, BODIES_MAX, "BODIES");
    uint64_t steps = (uint64_t)number(argv[2], 0, 1000000000, "STEPS");
    for (int i = 4; i < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            w.threads = number(argv[i + 1], 1, THREADS_MAX, "--threads");
        else if (strcmp(argv[i], "--every") == 0)
            every = number(argv[i + 1], 1, 1000000000, "--every");
        else if (strcmp(argv[i], "--trajectory") == 0)
            trajectory = argv[i + 1];
        else if (strcmp(argv[i], "--sleep-us") == 0)
            sleep_us = number(argv[i + 1], 0, 999999, "--sleep-us");
        else
            fail(argv[i], "unknown option");
    }
    size_t bytes = (size_t)w.count * sizeof *w.bodies;
    w.bodies = malloc(bytes);
    w.force = malloc((size_t)w.count * sizeof *w.force);
    if (w.bodies == NULL || w.force == NULL) fail("bodies", "no memory");
    begin(&w);

    char path[4096];
    outlive_job *job = NULL;
    uint64_t step = 0;
    check(outlive_open(NULL, &job), NULL, "outlive_open");                         /* 1 */
    check(outlive_protect(job, "bodies", w.bodies, bytes), job, "outlive_protect"); /* 2 */
    int restored = outlive_restore(job, &step);                                    /* 3 */
    check(restored, job, "outlive_restore");
    if (trajectory != NULL) {
        if (restored == OUTLIVE_RESTORED) {
            check(outlive_route(job, step, "trajectory", path, sizeof path), job,
                  "outlive_route"); /* R: the file as it was */
            if (copy_file(path, trajectory) != 0) fail(trajectory, strerror(errno));
        } else {
            remove(trajectory);
        }
    }

    pthread_barrier_init(&w.start, NULL, (unsigned)w.threads + 1);
    pthread_barrier_init(&w.done, NULL, (unsigned)w.threads + 1);
    for (long t = 0; t < w.threads; t++) {
        workers[t] = (struct worker){&w, t};
        int error = pthread_create(&threads[t], NULL, work, &workers[t]);
        if (error != 0) fail("thread", strerror(error));
    }

    for (; step < steps; step++) {
        /* R: the file is copied only when a checkpoint is wanted. A failure here
         * costs this checkpoint, not the run. */
        if (trajectory != NULL && outlive_wanted(job, step) &&
            outlive_route(job, step, "trajectory", path, sizeof path) == OUTLIVE_OK)
            copy_file(trajectory, path);
        outlive_checkpoint(job, step); /* 4 */
        pthread_barrier_wait(&w.start);
        pthread_barrier_wait(&w.done);
        kick_and_drift(&w);
        if (trajectory != NULL && (step + 1) % (uint64_t)every == 0) append_positions(&w, trajectory);
        if (sleep_us > 0) {
            struct timespec pause = {0, sleep_us * 1000};
            nanosleep(&pause, NULL);
        }
    }
    w.leave = 1;
    pthread_barrier_wait(&w.start);
    for (long t = 0; t < w.threads; t++) pthread_join(threads[t], NULL);

    write_result(&w, argv[3]);
    printf("nbody: %ld bodies, %" PRIu64 " steps, %ld threads, digest %016" PRIx64 "\n", w.count, steps,
           w.threads, digest(w.bodies, bytes));
    outlive_close(&job); /* 5 */
    pthread_barrier_destroy(&w.start);
    pthread_barrier_destroy(&w.done);
    free(w.force);
    free(w.bodies);
    return 0;
}
