/* One call of MPI while a member is dead: what becomes of it.
 *
 *   table CALL      four ranks; rank 3 kills itself before the call, the others make it
 *
 * Each survivor prints "rank R CALL result" or "... error CLASS" when the call has ended;
 * who prints nothing hangs. Nothing is finalised. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

static int call(const char *name, MPI_Comm comm) {
    int one = 1, from[8] = {0}, other = rank == 0 ? 1 : 0, code;
    MPI_Request request;
    MPI_Comm made;
    if (!strcmp(name, "Barrier")) return MPI_Barrier(comm);
    if (!strcmp(name, "Bcast")) return MPI_Bcast(&one, 1, MPI_INT, 0, comm);
    if (!strcmp(name, "Bcast-dead-root")) return MPI_Bcast(&one, 1, MPI_INT, 3, comm);
    if (!strcmp(name, "Reduce")) return MPI_Reduce(&one, from, 1, MPI_INT, MPI_SUM, 0, comm);
    if (!strcmp(name, "Reduce-dead-root")) return MPI_Reduce(&one, from, 1, MPI_INT, MPI_SUM, 3, comm);
    if (!strcmp(name, "Allreduce")) return MPI_Allreduce(&one, from, 1, MPI_INT, MPI_SUM, comm);
    if (!strcmp(name, "Allgather")) return MPI_Allgather(&one, 1, MPI_INT, from, 1, MPI_INT, comm);
    if (!strcmp(name, "Alltoall")) {
        int to[8] = {0};
        return MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, comm);
    }
    if (!strcmp(name, "Gather")) return MPI_Gather(&one, 1, MPI_INT, from, 1, MPI_INT, 0, comm);
    if (!strcmp(name, "Gather-dead-root")) return MPI_Gather(&one, 1, MPI_INT, from, 1, MPI_INT, 3, comm);
    int counts[] = {1, 1, 1, 1}, places[] = {0, 1, 2, 3};
    if (!strcmp(name, "Gatherv")) return MPI_Gatherv(&one, 1, MPI_INT, from, counts, places, MPI_INT, 0, comm);
    if (!strcmp(name, "Allgatherv")) return MPI_Allgatherv(&one, 1, MPI_INT, from, counts, places, MPI_INT, comm);
    if (!strcmp(name, "Scan")) return MPI_Scan(&one, from, 1, MPI_INT, MPI_SUM, comm);
    if (!strcmp(name, "Iallreduce")) {
        code = MPI_Iallreduce(&one, from, 1, MPI_INT, MPI_SUM, comm, &request);
        return code ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (!strcmp(name, "Comm_dup")) return MPI_Comm_dup(comm, &made);
    if (!strcmp(name, "Comm_split")) return MPI_Comm_split(comm, 0, rank, &made);
    if (!strcmp(name, "Sendrecv-living"))
        return rank == 2 ? MPI_SUCCESS : MPI_Sendrecv(&one, 1, MPI_INT, other, 5, from, 1, MPI_INT, other, 5, comm, MPI_STATUS_IGNORE);
    if (!strcmp(name, "Send-to-dead")) return MPI_Ssend(&one, 1, MPI_INT, 3, 5, comm);
    if (!strcmp(name, "Recv-from-dead")) return MPI_Recv(from, 1, MPI_INT, 3, 5, comm, MPI_STATUS_IGNORE);
    if (!strcmp(name, "Recv-any-source")) return MPI_Recv(from, 1, MPI_INT, MPI_ANY_SOURCE, 5, comm, MPI_STATUS_IGNORE);
    if (!strcmp(name, "Finalize")) return MPI_Finalize();
    fprintf(stderr, "no call %s\n", name);
    _exit(2);
}

int main(int argc, char **argv) {
    char line[120];
    if (argc < 2) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 3) raise(SIGKILL);
    int code = call(argv[1], MPI_COMM_WORLD);
    /* After MPI_Finalize no other call is allowed. */
    int length = code == MPI_SUCCESS ? snprintf(line, sizeof line, "rank %d %s result\n", rank, argv[1])
                                     : snprintf(line, sizeof line, "rank %d %s error\n", rank, argv[1]);
    if (write(1, line, (size_t)length) != length) return 4;
    /* The others may still be in the call: this process goes on making progress, as a
     * program does, until the launcher ends it. */
    if (strcmp(argv[1], "Finalize")) {
        for (;;) {
            int flag;
            struct timespec nap = {0, 1000000};
            MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
            nanosleep(&nap, NULL);
        }
    }
    return 0;
}
