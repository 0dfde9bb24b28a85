/* Of two ranks that do nothing but collectives, rank 1 is killed by SIGKILL after so many
 * microseconds, wherever it is then. The other must go on: of each call it has both
 * operands or its own only, never a part, says which, and once alone stays alone.
 *
 *   pair_killed MICROSECONDS
 *   pair_killed -CALLS            rank 1 dies within its operator, in that call of it:
 *                                 with long data that is in the middle of a message */
#include <mpi.h>
#include <outlive_mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static int rank, round_;

#define MUST(condition)                                                                     \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "rank %d, round %d, line %d: %s\n", rank, round_, __LINE__, #condition); \
            _exit(3);                                                                       \
        }                                                                                   \
    } while (0)

static void die(int number) {
    (void)number;
    raise(SIGKILL);
}

static int calls;

static void add(void *in, void *inout, int *count, MPI_Datatype *type) {
    long *a = in, *b = inout;
    (void)type;
    if (rank == 1 && --calls == 0) raise(SIGKILL);
    for (int i = 0; i < *count; i++) b[i] += a[i];
}

static long value(int who, int at) { return (long)who * 1000003 + at * 3L + round_ + 1; }

int main(int argc, char **argv) {
    static const int counts[] = {1, 512, 2500, 25000, 125000};
    static long own[125000], got[125000];
    int more = 40, alone = 0;
    MPI_Op op = MPI_SUM;
    if (argc < 2) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(outlive_mpi_active() == 1);
    if (atoi(argv[1]) < 0) {
        calls = -atoi(argv[1]);
        MPI_Op_create(add, 1, &op);
    } else if (rank == 1) {
        struct itimerval then = {{0, 0}, {atoi(argv[1]) / 1000000, atoi(argv[1]) % 1000000}};
        signal(SIGALRM, die);
        setitimer(ITIMER_REAL, &then, NULL);
    }
    for (round_ = 0; more > 0; round_++) {
        int n = counts[round_ / 5 % 5], kind = round_ % 5, code, due = 1;
        for (int i = 0; i < n; i++) own[i] = value(rank, i), got[i] = kind == 4 ? -1 : own[i];
        switch (kind) {
        case 0: code = MPI_Allreduce(own, got, n, MPI_LONG, op, MPI_COMM_WORLD); break;
        case 1: code = MPI_Allreduce(MPI_IN_PLACE, got, n, MPI_LONG, op, MPI_COMM_WORLD); break;
        case 2: code = MPI_Reduce(rank == 0 ? MPI_IN_PLACE : own, got, n, MPI_LONG, op, 0, MPI_COMM_WORLD); break;
        case 3: code = MPI_Barrier(MPI_COMM_WORLD), due = 0; break;
        default: code = MPI_Bcast(rank == 1 ? own : got, n, MPI_LONG, 1, MPI_COMM_WORLD);
        }
        if (rank == 1) continue;
        int gone = outlive_mpi_absent(MPI_COMM_WORLD, NULL, 0);
        MUST(gone == 0 || gone == 1);
        MUST(!alone || gone);
        alone = gone;
        /* A broadcast of the dead fails, all else goes on. */
        MUST((code == MPI_SUCCESS) == !(kind == 4 && gone));
        for (int i = 0; due && code == MPI_SUCCESS && i < n; i++)
            MUST(got[i] == (kind == 4 ? value(1, i) : gone ? value(0, i) : value(0, i) + value(1, i)));
        if (alone) more--;
    }
    int dead = outlive_mpi_dead(NULL, 0);
    MUST(dead == 1);
    char line[80];
    int length = snprintf(line, sizeof line, "alone at the end of %d rounds\n", round_);
    if (write(1, line, (size_t)length) != length) return 4;
    MPI_Finalize();
    return 0;
}
