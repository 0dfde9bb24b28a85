/* What the layer costs without failures: native and Outlive's collectives in one run.
 *
 * Both run on MPI_COMM_WORLD of one job, in turns of short blocks, so that a change of
 * the machine's speed hits both: natively by the profiled names PMPI_*, through the
 * preloaded library by MPI_*. Prints a line a collective and size: medians of blocks in
 * nanoseconds, their ratio and difference, at rank 0.
 *
 *   pair PIN BLOCKS      PIN: 1 binds each rank to a core, 2 all to one, 0 none;
 *                        BLOCKS: how many of each kind */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS_MAX = 401 };
static double *in, *out;

static double block(int call, int ours, int count, int times) {
    PMPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int t = 0; t < times; t++) switch (call * 2 + ours) {
        case 0: PMPI_Bcast(in, count, MPI_DOUBLE, 0, MPI_COMM_WORLD); break;
        case 1: MPI_Bcast(in, count, MPI_DOUBLE, 0, MPI_COMM_WORLD); break;
        case 2: PMPI_Reduce(in, out, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD); break;
        case 3: MPI_Reduce(in, out, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD); break;
        case 4: PMPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); break;
        case 5: MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); break;
        case 6: PMPI_Barrier(MPI_COMM_WORLD); break;
        default: MPI_Barrier(MPI_COMM_WORLD);
        }
    double mine = (MPI_Wtime() - begin) / times * 1e9, longest;
    PMPI_Allreduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return longest;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static const char *names[] = {"bcast", "reduce", "allreduce", "barrier"};
    static const int sizes[] = {8, 64, 512, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20};
    int rank, size, pin = argc > 1 ? atoi(argv[1]) : 1, blocks = argc > 2 ? atoi(argv[2]) : 41;
    if (blocks < 1 || blocks > BLOCKS_MAX) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(pin == 2 ? 0 : rank % 2, &one);
    if (pin) sched_setaffinity(0, sizeof one, &one);
    size_t most = 1 << 20;
    in = malloc(most), out = malloc(most);
    memset(in, 0, most), memset(out, 0, most);
    for (int call = 0; call < 4; call++)
        for (int s = 0; s < (call == 3 ? 1 : (int)(sizeof sizes / sizeof *sizes)); s++) {
            static double native[BLOCKS_MAX], ours[BLOCKS_MAX];
            int bytes = sizes[s], count = bytes / 8;
            /* Blocks of like duration: a single call would be as long as the barrier before it
             * takes to let go of a core that is shared. */
            int times[2], agreed[2];
            for (int kind = 0; kind < 2; kind++) {
                double guess = block(call, kind, count, 3);
                times[kind] = (int)((size > 2 ? 4e6 : 2e6) / (guess + 100)) + 1;
                if (pin == 2 && kind == 1) times[kind] = times[kind] < 500 ? 500 : times[kind];
                if (times[kind] > 2000) times[kind] = 2000;
            }
            PMPI_Allreduce(times, agreed, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
            /* In turns of who is first and of changing length: where the scheduler takes a core
             * away at regular times, it would else take it from one kind always. */
            for (int b = 0; b < 2 * blocks; b++) {
                int kind = (b + b / 2) % 2;
                long part = 75 + (long)b * 37 % 51;
                double took = block(call, kind, count, (int)(agreed[kind] * part / 100) + 1);
                (kind ? ours : native)[b / 2] = took;
            }
            qsort(native, (size_t)blocks, sizeof *native, ascending);
            qsort(ours, (size_t)blocks, sizeof *ours, ascending);
            double n = native[blocks / 2], o = ours[blocks / 2];
            if (rank == 0)
                printf("%-9s %7d B  native %10.0f ns  outlive %10.0f ns  ratio %.3f  added %8.0f ns\n", names[call],
                       call == 3 ? 0 : bytes, n, o, o / n, o - n);
        }
    MPI_Finalize();
    return 0;
}
