/* One scenario of crates/collectives/tests/conformance.rs as an MPI job:
 *
 *   conform KIND ROOT CALLS DEAD LATE DIES [AT LEAVES]
 *
 * DEAD: ranks that kill themselves before the first call, or -; LATE: a rank that enters
 * the call AT (0) half a second after the others, or -1; DIES: a rank that kills itself a
 * quarter of a second after it entered it, or -1; LEAVES: one that does so after it, or -1. The operand of rank r is r + 1. Each live rank prints
 * a line a call: "got RANK CALL SUM ABSENT...", with - for the sum where none is due. */
#include <mpi.h>
#include <outlive_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void die(int number) {
    (void)number;
    raise(SIGKILL);
}

static void nap(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&time, &time) != 0) {
    }
}

/* Waits until the ranks of the list are known to be dead; ends the process if it is one. */
static int bury(const char *list, int rank) {
    int want = 0;
    if (strcmp(list, "-") == 0) return 1;
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL, want++)
        if (atoi(at) == rank) raise(SIGKILL);
    for (double end = MPI_Wtime() + 30; MPI_Wtime() < end; nap(1))
        if (outlive_mpi_dead(NULL, 0) == want) return 1;
    return 0;
}

int main(int argc, char **argv) {
    int rank;
    if (argc < 7) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int root = atoi(argv[2]), calls = atoi(argv[3]), late = atoi(argv[5]), dies = atoi(argv[6]);
    int at = argc > 8 ? atoi(argv[7]) : 0, leaves = argc > 8 ? atoi(argv[8]) : -1;
    /* MPI_Init is over everywhere: a death in it is not survived. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (outlive_mpi_active() != 1 || !bury(argv[4], rank)) return 3;
    for (int call = 0; call < calls; call++) {
        if (call == at && rank == late) nap(500);
        if (call == at && rank == dies) {
            struct itimerval quarter = {{0, 0}, {0, 250000}};
            signal(SIGALRM, die);
            setitimer(ITIMER_REAL, &quarter, NULL);
        }
        long own = rank + 1, sum = 0;
        int due = 1, good = 0, barrier = 0;
        switch (argv[1][0]) {
        case 'A': good = MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD); break;
        case 'R':
            good = MPI_Reduce(&own, &sum, 1, MPI_LONG, MPI_SUM, root, MPI_COMM_WORLD);
            due = rank == root;
            break;
        case 'B':
            barrier = argv[1][1] == 'a';
            if (barrier) good = MPI_Barrier(MPI_COMM_WORLD);
            else good = MPI_Bcast(rank == root ? &own : &sum, 1, MPI_LONG, root, MPI_COMM_WORLD);
            if (!barrier && rank == root) sum = own;
            break;
        default: return 2;
        }
        if (good != MPI_SUCCESS) return 4;
        if (call == at && rank == dies) pause();
        char line[512];
        int missing[16], absent = due ? outlive_mpi_absent(MPI_COMM_WORLD, missing, 16) : 0;
        int length = snprintf(line, sizeof line, "got %d %d ", rank, call);
        if (due) length += snprintf(line + length, sizeof line - (size_t)length, "%ld", sum);
        else length += snprintf(line + length, sizeof line - (size_t)length, "-");
        for (int i = 0; i < absent && i < 16; i++)
            length += snprintf(line + length, sizeof line - (size_t)length, " %d", missing[i]);
        line[length++] = '\n';
        if (write(1, line, (size_t)length) != length) return 5;
        if (call == at && rank == leaves) raise(SIGKILL);
    }
    MPI_Finalize();
    return 0;
}
