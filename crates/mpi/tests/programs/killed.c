/* Rank `victim` kills itself with SIGKILL before its collective number `at`; the others
 * go through all rounds, each with an Allreduce, a Reduce, a Barrier and a Bcast from a
 * living root, on `comms` communicators.
 *
 *   killed VICTIM AT ROUNDS COMMS SLOW_RANK [MILLISECONDS]
 *
 * Each survivor prints one line with what it got; the results of the rounds after the
 * death must lack exactly the victim. SLOW_RANK (or -1) sleeps before each round: late,
 * not dead, it must never be missing. */
#include <mpi.h>
#include <outlive_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MUST(condition)                                                               \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "rank %d, round %d, line %d: %s\n", rank, round, __LINE__, #condition); \
            _exit(3);                                                                 \
        }                                                                             \
    } while (0)

enum { COMMS_MAX = 64 };

int main(int argc, char **argv) {
    int rank, size, round = -1;
    if (argc < 6) return 2;
    int victim = atoi(argv[1]), at = atoi(argv[2]), rounds = atoi(argv[3]), comms = atoi(argv[4]),
        slow = atoi(argv[5]), milliseconds = argc > 6 ? atoi(argv[6]) : 0;
    MPI_Comm comm[COMMS_MAX];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(outlive_mpi_active() == 1);
    MUST(comms >= 1 && comms <= COMMS_MAX);
    comm[0] = MPI_COMM_WORLD;
    for (int c = 1; c < comms; c++) MPI_Comm_dup(MPI_COMM_WORLD, &comm[c]);
    int all = size * (size + 1) / 2, root = victim == 0 ? 1 : 0, last = victim == size - 1 ? size - 2 : size - 1;
    double worst = 0;
    for (round = 0; round < rounds; round++) {
        struct timespec nap = {0, milliseconds * 1000000L};
        if (rank == slow) nanosleep(&nap, NULL);
        int missing[4], got = 0;
        for (int c = 0; c < comms; c++) {
            double begin = MPI_Wtime();
            int gone = round * 4 > at || (round * 4 == at && 1);
            for (int call = 0; call < 4; call++) {
                if (c == 0 && rank == victim && round * 4 + call == at) raise(SIGKILL);
                int value = rank + 1, sum = 0, data[3] = {round, c, rank == last ? 77 : 0};
                int dead = c > 0 ? gone || round * 4 + 3 >= at : round * 4 + call >= at;
                int want = dead ? all - victim - 1 : all;
                switch (call) {
                case 0:
                    MUST(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm[c]) == MPI_SUCCESS);
                    MUST(sum == want);
                    got = outlive_mpi_absent(comm[c], missing, 4);
                    MUST(got == (dead ? 1 : 0) && (!dead || missing[0] == victim));
                    break;
                case 1:
                    MUST(MPI_Reduce(&value, &sum, 1, MPI_INT, MPI_SUM, root, comm[c]) == MPI_SUCCESS);
                    if (rank == root) MUST(sum == want);
                    break;
                case 2: MUST(MPI_Barrier(comm[c]) == MPI_SUCCESS); break;
                default:
                    MUST(MPI_Bcast(data, 3, MPI_INT, last, comm[c]) == MPI_SUCCESS);
                    MUST(data[0] == round && data[1] == c && data[2] == 77);
                }
            }
            double took = MPI_Wtime() - begin;
            if (took > worst) worst = took;
        }
    }
    int dead[4], known = outlive_mpi_dead(dead, 4);
    if (at < rounds * 4) {
        /* The news of a death may be later than the results without it. */
        for (double end = MPI_Wtime() + 20; known == 0 && MPI_Wtime() < end;) known = outlive_mpi_dead(dead, 4);
        MUST(known == 1 && dead[0] == victim);
    }
    /* What a library's end looks like from outside: mpi4py asks, and ends it if it must. */
    int ended = 0;
    MPI_Finalized(&ended);
    MUST(!ended && MPI_Finalize() == MPI_SUCCESS);
    MPI_Finalized(&ended);
    MUST(ended);
    if (known > 0) MUST(MPI_Finalize() != MPI_SUCCESS);
    char line[100];
    int length = snprintf(line, sizeof line, "rank %d: %d rounds, longest %.1f ms\n", rank, round, worst * 1e3);
    if (write(1, line, (size_t)length) != length) return 4;
    return 0;
}
