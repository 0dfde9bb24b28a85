/* A rank kills itself while the others gather: before one of its calls, or after some
 * microseconds, in whatever phase the others' calls and its own then are.
 *
 *   gathers_killed VICTIM AT ROUNDS MICROSECONDS
 *
 * AT: before its collective of this number, or -1: MICROSECONDS after the first. Each round has
 * an Allgather, a Gather, an Allgatherv and a Gatherv, to a root that lives. Who lives is in
 * every result; the victim's part is right, or as it was before, and then the victim is named
 * as absent. Each survivor prints one line. */
#include <mpi.h>
#include <outlive_mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "rank %d, round %d, line %d: %s\n", rank, round, __LINE__, #condition); \
            _exit(3);                                                                               \
        }                                                                                           \
    } while (0)

enum { RANKS_MAX = 32, MOST = 40, UNTOUCHED = -7 };
static long delay_us;

static void *killer(void *unused) {
    (void)unused;
    struct timespec wait = {delay_us / 1000000, delay_us % 1000000 * 1000};
    nanosleep(&wait, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

int main(int argc, char **argv) {
    int rank, size, round = -1, given;
    if (argc < 5) return 2;
    int victim = atoi(argv[1]), at = atoi(argv[2]), rounds = atoi(argv[3]);
    delay_us = atol(argv[4]);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(outlive_mpi_active() == 1 && size <= RANKS_MAX);
    int root = victim == 0 ? 1 : 0, missed = 0, seen = 0;
    int counts[RANKS_MAX], places[RANKS_MAX], total = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = (r * 5 + 1) % MOST, places[r] = total + 1;
        total += counts[r] + 2;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    pthread_t thread;
    if (rank == victim && at < 0) pthread_create(&thread, NULL, killer, NULL);
    for (round = 0; at < 0 ? !seen : round < rounds; round++)
        for (int call = 0; call < 4; call++) {
            if (rank == victim && round * 4 + call == at) raise(SIGKILL);
            int own[MOST], got[RANKS_MAX * (MOST + 2)], absent[4];
            int each = call >= 2, due = call % 2 == 0 || rank == root;
            for (int i = 0; i < MOST; i++) own[i] = round * 1000 + rank * MOST + i;
            for (int i = 0; i < RANKS_MAX * (MOST + 2); i++) got[i] = UNTOUCHED;
            int code = MPI_SUCCESS;
            switch (call) {
            case 0: code = MPI_Allgather(own, MOST, MPI_INT, got, MOST, MPI_INT, MPI_COMM_WORLD); break;
            case 1: code = MPI_Gather(own, MOST, MPI_INT, got, MOST, MPI_INT, root, MPI_COMM_WORLD); break;
            case 2: code = MPI_Allgatherv(own, counts[rank], MPI_INT, got, counts, places, MPI_INT, MPI_COMM_WORLD); break;
            default: code = MPI_Gatherv(own, counts[rank], MPI_INT, got, counts, places, MPI_INT, root, MPI_COMM_WORLD);
            }
            MUST(code == MPI_SUCCESS);
            int named = outlive_mpi_absent(MPI_COMM_WORLD, absent, 4);
            if (!due) continue;
            MUST(named == 0 || (named == 1 && absent[0] == victim));
            if (at >= 0) MUST(named == (round * 4 + call >= at));
            /* Once it is missing it stays so. */
            MUST(named >= missed);
            missed = named;
            /* All survivors see it in the same call that all get a result of. */
            if (call % 2 == 0) seen = named;
            int to = 0;
            for (int r = 0; r < size; r++) {
                int begins = each ? places[r] : r * MOST, some = each ? counts[r] : MOST;
                for (; each && to < begins; to++) MUST(got[to] == UNTOUCHED);
                for (int i = 0; i < some; i++)
                    MUST(got[begins + i] == (named && r == victim ? UNTOUCHED : round * 1000 + r * MOST + i));
                to = begins + some;
            }
            for (; to < RANKS_MAX * (MOST + 2); to++) MUST(got[to] == UNTOUCHED);
        }
    char line[100];
    int length = snprintf(line, sizeof line, "rank %d: %d rounds\n", rank, at < 0 ? rounds : round);
    if (write(1, line, (size_t)length) != length) return 4;
    MPI_Finalize();
    return 0;
}
