/* A rank calls MPI_Abort while the others are in collectives and messages.
 *
 *   abort SEED
 *
 * Who, when and on which communicator is drawn from SEED. A rank that crashes says so. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* In one write: the launcher's SIGKILL may come at any time, and half a stack tells nothing. */
static void crashed(int number) {
    static const char text[] = "a rank crashed:\n";
    static char whole[1 << 15];
    void *frames[64];
    int file = memfd_create("stack", 0);
    if (file >= 0 && write(file, text, sizeof text - 1) > 0) {
        backtrace_symbols_fd(frames, backtrace(frames, 64), file);
        ssize_t length = pread(file, whole, sizeof whole, 0);
        if (length <= 0 || write(2, whole, (size_t)length) != length) _exit(127);
    }
    _exit(128 + number);
}

int main(int argc, char **argv) {
    int rank, size;
    void *first[1];
    if (argc < 2) return 2;
    MPI_Init(&argc, &argv);
    backtrace(first, 1); /* loads what it needs */
    struct sigaction act = {.sa_handler = crashed};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    sigaction(SIGABRT, &act, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    srand((unsigned)strtoul(argv[1], NULL, 10));
    int who = rand() % size, at = rand() % 400, whole = rand() % 2;
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    static double give[4096], take[4096];
    for (int call = 0;; call++) {
        int count = 1 << call % 13, next = (rank + 1) % size, before = (rank + size - 1) % size;
        if (call == at && rank == who) MPI_Abort(whole ? MPI_COMM_WORLD : half, 7);
        switch (call % 5) {
        case 0: MPI_Allreduce(give, take, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); break;
        case 1: MPI_Bcast(give, count, MPI_DOUBLE, call % size, MPI_COMM_WORLD); break;
        case 2: MPI_Barrier(half); break;
        case 3: MPI_Allreduce(give, take, count, MPI_DOUBLE, MPI_SUM, half); break;
        default:
            MPI_Sendrecv(give, count, MPI_DOUBLE, next, 0, take, count, MPI_DOUBLE, before, 0, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        }
    }
}
