/* One killed rank: how long the survivors take until each communicator has its Allreduce,
 * with Outlive's collectives and with ULFM's revoke, shrink and retry, in one job.
 *
 *   one_fault COMMUNICATORS FIRST      FIRST: 0 Outlive first, 1 ULFM first
 *
 * As in figure 12 of the FFMK report (Weinhold et al., 2020, section 3.1): a rank is
 * killed, then the others call Allreduce on several communicators that it belonged to.
 * Each of the two has a victim and communicators of its own; the second starts from a
 * communicator that was shrunk after the first. The victim kills itself when all others are
 * ready; the clock of each runs from when it is, to its last result. The victim is rank 2 of those
 * that are left: in a binomial tree it has a child.
 *
 * Needs Open MPI with --with-ft ulfm. Rank 0 prints a line for each, `outlive MS` and
 * `ulfm MS`: the longest time of a survivor, in milliseconds. */
#include <mpi.h>
#include <mpi-ext.h>
#include <outlive_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COMMS_MAX = 64 };
static int rank;

#define MUST(condition)                                                                      \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "one_fault: rank %d, line %d: %s\n", rank, __LINE__, #condition); \
            _exit(3);                                                                        \
        }                                                                                    \
    } while (0)

static int failed(int code) {
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED;
}

/* Outlive: the call succeeds, without the dead. */
static void outlive(MPI_Comm comm, int want) {
    int one = 1, sum = 0;
    MUST(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
    MUST(sum == want && outlive_mpi_absent(comm, NULL, 0) == 1);
}

/* ULFM: the call fails, the communicator is revoked so that nobody waits in it, shrunk,
 * and the call made again. */
static void ulfm(MPI_Comm comm, int want) {
    int one = 1, sum = 0, code = PMPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    MUST(failed(code));
    MPI_Comm next;
    MPIX_Comm_revoke(comm);
    MUST(MPIX_Comm_shrink(comm, &next) == MPI_SUCCESS);
    MUST(PMPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, next) == MPI_SUCCESS);
    MUST(sum == want);
}

/* On duplicates of `world`, whose rank `victim` dies; the longest time of a survivor. */
static double measure(MPI_Comm world, int with_ulfm, int comms, int victim) {
    MPI_Comm comm[COMMS_MAX];
    int me, size, one = 1, sum = 0;
    MPI_Comm_rank(world, &me);
    MPI_Comm_size(world, &size);
    for (int c = 0; c < comms; c++) {
        MUST(MPI_Comm_dup(world, &comm[c]) == MPI_SUCCESS);
        MPI_Comm_set_errhandler(comm[c], MPI_ERRORS_RETURN);
        /* Both have used the communicator before. */
        MUST(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm[c]) == MPI_SUCCESS && sum == size);
        MUST(PMPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm[c]) == MPI_SUCCESS && sum == size);
    }
    /* Not a barrier: who is still in it when the victim dies may be told of the death. */
    if (me == victim) {
        for (int other = 1; other < size; other++)
            MUST(PMPI_Recv(&one, 1, MPI_INT, MPI_ANY_SOURCE, 1, world, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        raise(SIGKILL);
    }
    MUST(PMPI_Send(&one, 1, MPI_INT, victim, 1, world) == MPI_SUCCESS);
    double begin = MPI_Wtime();
    for (int c = 0; c < comms; c++) (with_ulfm ? ulfm : outlive)(comm[c], size - 1);
    return (MPI_Wtime() - begin) * 1e3;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int comms = atoi(argv[1]), first = atoi(argv[2]), size;
    MPI_Comm world = MPI_COMM_WORLD, next;
    double took, longest;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MUST(comms >= 1 && comms <= COMMS_MAX && size >= 4 && (first == 0 || first == 1));
    MUST(outlive_mpi_active() == 1);
    for (int turn = 0; turn < 2; turn++) {
        int which = turn == 0 ? first : 1 - first;
        took = measure(world, which, comms, 2);
        MUST(MPIX_Comm_shrink(world, &next) == MPI_SUCCESS);
        MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
        world = next;
        MUST(PMPI_Allreduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, world) == MPI_SUCCESS);
        if (rank == 0) {
            printf("%s %.3f\n", which ? "ulfm" : "outlive", longest);
            fflush(stdout);
        }
    }
    /* After a failure the native finalisation may hang (open-mpi/ompi#11404). The code does
     * not matter: all that was measured is said. */
    PMPI_Barrier(world);
    _exit(0);
}
