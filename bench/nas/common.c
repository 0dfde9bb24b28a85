/* See common.h. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef RANKS
#include <outlive_sessions.h>
#endif

uint64_t power_of(uint64_t a, uint64_t n)
{
    const uint64_t mask = (UINT64_C(1) << MODULUS_BITS) - 1;
    uint64_t result = 1;

    for (; n > 0; n /= 2) {
        if (n % 2)
            result = (uint64_t)((unsigned __int128)result * a) & mask;
        a = (uint64_t)((unsigned __int128)a * a) & mask;
    }
    return result;
}

double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void *reserve(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);

    if (!memory) {
        fprintf(stderr, "no memory for %zu elements of %zu bytes\n", count, bytes);
        exit(70);
    }
    return memory;
}

int close_to(const char *what, double value, double expected, double tolerance)
{
    if (fabs(value - expected) <= tolerance * fabs(expected))
        return 1;
    fprintf(stderr, "%s: %.15e, expected %.15e\n", what, value, expected);
    return 0;
}

struct run begin(const char *name, const char *classes, int argc, char **argv)
{
    struct run run = {name, 'S', 0, 1, 0, NULL};

    if (argc > 2 || (argc == 2 && (strlen(argv[1]) != 1 || !strchr(classes, argv[1][0])))) {
        fprintf(stderr, "usage: %s [CLASS], one of %s\n", argv[0], classes);
        exit(64);
    }
    if (argc == 2)
        run.class = argv[1][0];
    double start = now_seconds();
    int there = 0; /* An empty region would be left out. */

#pragma omp parallel
#pragma omp atomic
    there++;
    run.team = there > 0 ? now_seconds() - start : 0;
#ifdef RANKS
    outlive_comm *comm;

    if (outlive_comm_open(&comm) != 0) {
        fprintf(stderr, "%s: %s\n", name, outlive_comm_error(NULL));
        exit(69);
    }
    run.comm = comm;
    run.rank = outlive_comm_rank(comm);
    run.ranks = outlive_comm_size(comm);
#endif
    return run;
}

#ifdef RANKS
static void must(struct run *run, int code)
{
    if (code != 0) {
        fprintf(stderr, "%s, rank %d: %s\n", run->name, run->rank, outlive_comm_error(run->comm));
        exit(69);
    }
}
#endif

int finish(struct run *run, double seconds, int verified, double value)
{
    int threads = 1;

#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
#ifdef RANKS
    outlive_comm_counts counts;
    double wrong = !verified;

    sum_all(run, &wrong, 1);
    verified = wrong == 0;
    must(run, outlive_comm_count(run->comm, &counts));
    fprintf(stderr, "rank %d: links %llu again %llu silences %llu absences %llu rebirths %llu alive %llu\n",
            run->rank, (unsigned long long)counts.links, (unsigned long long)counts.again,
            (unsigned long long)counts.silences, (unsigned long long)counts.absences,
            (unsigned long long)counts.rebirths, (unsigned long long)counts.alive);
#endif
    char text[40] = "null"; /* JSON has no word for what is not a number. */

    if (isfinite(value))
        snprintf(text, sizeof text, "%.15e", value);
    if (run->rank == 0)
        printf("{\"kernel\": \"%s\", \"class\": \"%c\", \"threads\": %d, \"ranks\": %d, "
               "\"seconds\": %.6f, \"team_s\": %.6f, \"verified\": %s, \"value\": %s}\n",
               run->name, run->class, threads, run->ranks, seconds, run->team,
               verified ? "true" : "false", text);
    fflush(stdout);
#ifdef RANKS
    must(run, outlive_comm_close(run->comm));
#endif
    return verified ? 0 : 1;
}

#ifdef RANKS
void sum_all(struct run *run, double *values, size_t count)
{
    must(run, outlive_comm_allreduce(run->comm, values, count, OUTLIVE_COMM_DOUBLE,
                                     OUTLIVE_COMM_SUM));
}

void gather_rows(struct run *run, double *values, const size_t *offsets)
{
    int right = (run->rank + 1) % run->ranks, left = (run->rank + run->ranks - 1) % run->ranks;

    for (int step = 0; step < run->ranks - 1; step++) {
        int mine = (run->rank - step + run->ranks) % run->ranks;
        int theirs = (left - step + run->ranks) % run->ranks;

        must(run, outlive_comm_sendrecv(run->comm, values + offsets[mine],
                                        (offsets[mine + 1] - offsets[mine]) * sizeof(double), right,
                                        values + offsets[theirs],
                                        (offsets[theirs + 1] - offsets[theirs]) * sizeof(double),
                                        left, 1, NULL));
    }
}

void send_to(struct run *run, const double *values, size_t count, int to, int tag)
{
    must(run, outlive_comm_send(run->comm, values, count * sizeof(double), to, tag));
}

void recv_from(struct run *run, double *values, size_t count, int from, int tag)
{
    must(run, outlive_comm_recv(run->comm, values, count * sizeof(double), from, tag, NULL));
}

void swap_with(struct run *run, const double *out, double *in, size_t count, int with, int tag)
{
    must(run, outlive_comm_sendrecv(run->comm, out, count * sizeof(double), with, in,
                                    count * sizeof(double), with, tag, NULL));
}

void all_to_all(struct run *run, const void *data, const size_t *lengths, const size_t *offsets,
                void *out, const size_t *out_lengths, const size_t *out_offsets)
{
    must(run, outlive_comm_alltoallv(run->comm, data, lengths, offsets, out, out_lengths,
                                     out_offsets));
}
#else
void sum_all(struct run *run, double *values, size_t count)
{
    (void)run, (void)values, (void)count;
}

void gather_rows(struct run *run, double *values, const size_t *offsets)
{
    (void)run, (void)values, (void)offsets;
}

void send_to(struct run *run, const double *values, size_t count, int to, int tag)
{
    (void)run, (void)values, (void)count, (void)to, (void)tag;
}

void recv_from(struct run *run, double *values, size_t count, int from, int tag)
{
    (void)run, (void)values, (void)count, (void)from, (void)tag;
}

void swap_with(struct run *run, const double *out, double *in, size_t count, int with, int tag)
{
    (void)run, (void)out, (void)in, (void)count, (void)with, (void)tag;
}

void all_to_all(struct run *run, const void *data, const size_t *lengths, const size_t *offsets,
                void *out, const size_t *out_lengths, const size_t *out_offsets)
{
    (void)run, (void)offsets, (void)out_lengths;
    memcpy((char *)out + out_offsets[0], data, lengths[0]);
}
#endif
