/* Small and frequent checkpoints of a program that keeps all cores busy: with nothing,
 * with Outlive, with FTI or with VeloC. Which one is chosen when it is compiled, so that
 * none is needed for another: -DWITH_OUTLIVE, -DWITH_FTI, -DWITH_VELOC.
 *
 *     small STEPS EVERY BYTES UNIT_US [CONFIG]
 *
 * Each rank computes for UNIT_US microseconds of processor time and then meets its
 * neighbours, STEPS times; BYTES are protected, a version is due after every EVERY steps.
 * Rank 0 prints the seconds of the loop, the longest wait for one checkpoint call of any rank
 * in milliseconds, and the seconds until the last version was saved. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(WITH_OUTLIVE)
#include <outlive.h>
#elif defined(WITH_FTI)
#include <fti.h>
#elif defined(WITH_VELOC)
#include <veloc.h>
#endif

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void work(double until_us) {
    double end = seconds(CLOCK_THREAD_CPUTIME_ID) + until_us * 1e-6;
    volatile double x = 1.0;
    while (seconds(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int i = 0; i < 1000; i++) x = x * 0.9999999 + 1e-7;
}

static void must(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "small: %s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    must(argc >= 5, "reading the arguments");
    long steps = atol(argv[1]), every = atol(argv[2]);
    size_t bytes = (size_t)atol(argv[3]);
    double unit = atof(argv[4]);
    MPI_Comm world = MPI_COMM_WORLD;
#if defined(WITH_FTI)
    must(argc > 5 && FTI_Init(argv[5], MPI_COMM_WORLD) == FTI_SCES, "FTI_Init");
    world = FTI_COMM_WORLD;
#elif defined(WITH_VELOC)
    must(argc > 5 && VELOC_Init(MPI_COMM_WORLD, argv[5]) == VELOC_SUCCESS, "VELOC_Init");
#elif defined(WITH_OUTLIVE)
    outlive_job *job = NULL;
    must(outlive_open(NULL, &job) == OUTLIVE_OK, "outlive_open");
#endif
    int rank, size;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    char *state = malloc(bytes);
    memset(state, rank + 1, bytes);
#if defined(WITH_FTI)
    must(FTI_Protect(0, state, (int64_t)bytes, FTI_CHAR) == FTI_SCES, "FTI_Protect");
#elif defined(WITH_VELOC)
    must(VELOC_Mem_protect(0, state, bytes, 1) == VELOC_SUCCESS, "VELOC_Mem_protect");
#elif defined(WITH_OUTLIVE)
    must(outlive_protect(job, "state", state, bytes) == OUTLIVE_OK, "outlive_protect");
    uint64_t saved = 0;
    must(outlive_restore(job, &saved) >= 0, "outlive_restore");
#endif
    double longest = 0;
    MPI_Barrier(world);
    double begin = seconds(CLOCK_MONOTONIC);
    for (long step = 1; step <= steps; step++) {
        work(unit);
        int left = (rank + size - 1) % size, right = (rank + 1) % size;
        long token = 0;
        MPI_Sendrecv(&step, 1, MPI_LONG, right, 0, &token, 1, MPI_LONG, left, 0, world,
                     MPI_STATUS_IGNORE);
        state[(size_t)step * 4096 % bytes] ^= 1;
        double before = seconds(CLOCK_MONOTONIC);
#if defined(WITH_FTI)
        if (step % every == 0) must(FTI_Checkpoint((int)(step / every), 2) == FTI_DONE, "FTI");
#elif defined(WITH_VELOC)
        if (step % every == 0)
            must(VELOC_Checkpoint("small", (int)(step / every)) == VELOC_SUCCESS, "VELOC");
#elif defined(WITH_OUTLIVE)
        must(outlive_checkpoint(job, (uint64_t)step) >= 0, "outlive_checkpoint");
#endif
        double took = seconds(CLOCK_MONOTONIC) - before;
        longest = took > longest ? took : longest;
    }
    double looped = seconds(CLOCK_MONOTONIC) - begin;
#if defined(WITH_VELOC)
    VELOC_Checkpoint_wait();
#endif
    double worst[2], mine[2] = {looped, longest * 1e3};
    MPI_Reduce(mine, worst, 2, MPI_DOUBLE, MPI_MAX, 0, world);
    if (rank == 0) printf("%.4f %.3f\n", worst[0], worst[1]);
    fflush(stdout);
#if defined(WITH_FTI)
    FTI_Finalize();
#elif defined(WITH_VELOC)
    VELOC_Finalize(0);
#elif defined(WITH_OUTLIVE)
    outlive_close(&job);
#endif
    MPI_Finalize();
    return 0;
}
