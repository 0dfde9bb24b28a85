/* Counts above INT_MAX: two ranks, bytes, the large-count forms of what the layer serves.
 *
 *   large
 *
 * Every byte is compared near the places where a count of 32 bits or a part of 2^30 ends, and
 * one of 61 elsewhere. Takes 5 GB of memory. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef OPEN_MPI /* Open MPI 5 has no such forms: the layer's own. */
int MPI_Bcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Reduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, int, MPI_Comm);
int MPI_Allreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Send_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
int MPI_Recv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
#endif

static const MPI_Count COUNT = (1LL << 31) + (4LL << 20) + 3;
static int rank;
static unsigned char *data;

/* What `who` has at `at`. */
static unsigned char own(int who, MPI_Count at) { return (unsigned char)((at * 2654435761u >> 13) + 37 * who); }

static void fill(void) {
    for (MPI_Count at = 0; at < COUNT; at++) data[at] = own(rank, at);
}

static void check(const char *what, unsigned char (*want)(MPI_Count)) {
    for (MPI_Count at = 0; at < COUNT;) {
        if (data[at] != want(at)) {
            fprintf(stderr, "rank %d: %s: byte %lld is %d, not %d\n", rank, what, (long long)at, data[at], want(at));
            exit(3);
        }
        MPI_Count edge = at % (1 << 30);
        at += edge < 4096 || edge > (1 << 30) - 4096 || COUNT - at < 8192 ? 1 : 61;
    }
}

static unsigned char of_one(MPI_Count at) { return own(1, at); }
static unsigned char either(MPI_Count at) { return own(0, at) ^ own(1, at); }
static unsigned char larger(MPI_Count at) { return own(0, at) > own(1, at) ? own(0, at) : own(1, at); }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    data = mmap(NULL, (size_t)COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return 2;
    fill();
    if (MPI_Bcast_c(data, COUNT, MPI_BYTE, 1, MPI_COMM_WORLD)) return 4;
    check("bcast", of_one);
    fill();
    if (MPI_Allreduce_c(MPI_IN_PLACE, data, COUNT, MPI_BYTE, MPI_BXOR, MPI_COMM_WORLD)) return 5;
    check("allreduce", either);
    fill();
    void *give = rank == 0 ? MPI_IN_PLACE : data;
    /* Not a sum: Open MPI 5.0 adds bytes with saturation where it uses AVX. */
    if (MPI_Reduce_c(give, data, COUNT, MPI_UNSIGNED_CHAR, MPI_MAX, 0, MPI_COMM_WORLD)) return 6;
    if (rank == 0) check("reduce", larger);
    fill();
    if (rank == 1) {
        if (MPI_Send_c(data, COUNT, MPI_BYTE, 0, 5, MPI_COMM_WORLD)) return 7;
    } else {
        MPI_Status status;
        MPI_Count got;
        if (MPI_Recv_c(data, COUNT, MPI_BYTE, 1, 5, MPI_COMM_WORLD, &status)) return 8;
        check("recv", of_one);
        MPI_Get_elements_x(&status, MPI_BYTE, &got);
        if (got != COUNT || status.MPI_SOURCE != 1 || status.MPI_TAG != 5) return 9;
    }
    MPI_Finalize();
    if (rank == 0) printf("all of %lld bytes are right\n", (long long)COUNT);
    return 0;
}
