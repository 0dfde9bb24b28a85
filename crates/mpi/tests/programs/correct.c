/* Collectives over datatypes, operators, communicators and MPI_IN_PLACE, against
 * values that are computed here without MPI. Prints "checks N" at rank 0; any
 * difference ends the job. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks;
#define MUST(condition)                                                        \
    do {                                                                       \
        checks++;                                                              \
        if (!(condition)) {                                                    \
            int r_;                                                            \
            MPI_Comm_rank(MPI_COMM_WORLD, &r_);                                \
            fprintf(stderr, "rank %d, line %d: %s\n", r_, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                      \
        }                                                                      \
    } while (0)

/* 2x2 matrices of longs modulo a prime: associative, not commutative. */
static void matmul(void *in, void *inout, int *count, MPI_Datatype *type) {
    long *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *count; i++, a += 4, b += 4) {
        long c[4] = {(a[0] * b[0] + a[1] * b[2]) % 10007, (a[0] * b[1] + a[1] * b[3]) % 10007,
                     (a[2] * b[0] + a[3] * b[2]) % 10007, (a[2] * b[1] + a[3] * b[3]) % 10007};
        memcpy(b, c, sizeof c);
    }
}

static void matrices(MPI_Comm comm) {
    int rank, size, count = 3;
    MPI_Datatype matrix;
    MPI_Op op;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Type_contiguous(4, MPI_LONG, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Op_create(matmul, 0, &op);
    long own[12], want[12], got[12];
    for (int r = size - 1; r >= 0; r--) {
        long m[12];
        for (int i = 0; i < 12; i++) m[i] = (r * 7 + i * 3 + 1) % 11;
        if (r == rank) memcpy(own, m, sizeof m);
        if (r == size - 1)
            memcpy(want, m, sizeof m);
        else
            matmul(m, want, &count, &matrix);
    }
    MUST(MPI_Allreduce(own, got, 3, matrix, op, comm) == MPI_SUCCESS);
    MUST(memcmp(got, want, sizeof got) == 0);
    for (int root = 0; root < size; root++) {
        memcpy(got, own, sizeof own);
        if (rank == root)
            MPI_Reduce(MPI_IN_PLACE, got, 3, matrix, op, root, comm);
        else
            MPI_Reduce(own, NULL, 3, matrix, op, root, comm);
        if (rank == root) MUST(memcmp(got, want, sizeof got) == 0);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&matrix);
}

#define NUMBERS(type, mpi, op, first, fold)                                    \
    do {                                                                       \
        for (int n = 0; n <= 40000; n = n * 17 + 1) {                          \
            type *own = malloc((size_t)(n + 1) * sizeof *own), *got = malloc((size_t)(n + 1) * sizeof *got); \
            for (int i = 0; i < n; i++) own[i] = (type)((rank * 5 + i) % 7 + 1), got[i] = 0; \
            MUST(MPI_Allreduce(own, got, n, mpi, op, comm) == MPI_SUCCESS);    \
            for (int i = 0; i < n; i++) {                                      \
                type want = (type)((i) % 7 + 1);                               \
                for (int r = 1; r < size; r++) {                               \
                    type x = (type)((r * 5 + i) % 7 + 1);                      \
                    want = (type)(fold);                                       \
                }                                                              \
                if (got[i] != want) MUST(got[i] == want);                      \
            }                                                                  \
            memcpy(got, own, (size_t)n * sizeof *own);                         \
            MUST(MPI_Allreduce(MPI_IN_PLACE, got, n, mpi, op, comm) == MPI_SUCCESS); \
            for (int root = 0; root < size; root += size - 1 > 0 ? size - 1 : 1) { \
                type *at = calloc((size_t)(n + 1), sizeof *at);                \
                MPI_Reduce(own, at, n, mpi, op, root, comm);                   \
                if (rank == root) MUST(memcmp(at, got, (size_t)n * sizeof *at) == 0); \
                MUST(MPI_Bcast(at, n, mpi, root, comm) == MPI_SUCCESS);        \
                MUST(memcmp(at, got, (size_t)n * sizeof *at) == 0);            \
                free(at);                                                      \
            }                                                                  \
            free(own);                                                         \
            free(got);                                                         \
        }                                                                      \
    } while (0)

static void numbers(MPI_Comm comm) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    NUMBERS(int, MPI_INT, MPI_SUM, 0, want + x);
    NUMBERS(double, MPI_DOUBLE, MPI_SUM, 0, want + x);
    NUMBERS(double, MPI_DOUBLE, MPI_MAX, 0, x > want ? x : want);
    NUMBERS(float, MPI_FLOAT, MPI_MIN, 0, x < want ? x : want);
    NUMBERS(unsigned short, MPI_UNSIGNED_SHORT, MPI_BXOR, 0, want ^ x);
    NUMBERS(long long, MPI_LONG_LONG, MPI_PROD, 0, want * x % 1000003 == 0 ? want * x : want * x);
    NUMBERS(unsigned char, MPI_BYTE, MPI_BOR, 0, want | x);
    NUMBERS(int, MPI_INT, MPI_LAND, 0, want && x);
    struct {
        double value;
        int rank;
    } own = {(rank * 3) % size, rank}, got;
    MUST(MPI_Allreduce(&own, &got, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm) == MPI_SUCCESS);
    int best = 0;
    for (int r = 1; r < size; r++)
        if ((r * 3) % size > (best * 3) % size) best = r;
    MUST(got.rank == best && got.value == (best * 3) % size);
}

static void strided(MPI_Comm comm) {
    int rank, size;
    MPI_Datatype column;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Type_vector(5, 2, 3, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int root = 0; root < size; root++) {
        int data[45], dense[20];
        for (int i = 0; i < 45; i++) data[i] = rank == root ? i + root : -1;
        for (int i = 0; i < 20; i++) dense[i] = -1;
        /* Different datatypes with one signature: the root sends columns. */
        if (rank == root || rank % 2)
            MPI_Bcast(data, 2, column, root, comm);
        else
            MPI_Bcast(dense, 20, MPI_INT, root, comm);
        for (int k = 0; k < 20; k++) {
            int block = k / 2 % 5, at = k / 10 * 14 + block * 3 + k % 2;
            if (rank == root || rank % 2)
                MUST(data[at] == at + root);
            else
                MUST(dense[k] == at + root);
        }
        if (rank != root && rank % 2) MUST(data[2] == -1);
    }
    MPI_Type_free(&column);
}

static void all(MPI_Comm comm) {
    numbers(comm);
    matrices(comm);
    strided(comm);
    MUST(MPI_Barrier(comm) == MPI_SUCCESS);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Comm dup, half, turned, self, graph;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    all(MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_split(dup, 0, -rank, &turned);
    MPI_Comm_dup(MPI_COMM_SELF, &self);
    int dims[1] = {size}, periods[1] = {1};
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 1, &graph);
    all(dup);
    all(half);
    all(turned);
    all(self);
    all(graph);
    /* Handles are used again: what was known of the old one must be gone. */
    for (int i = 0; i < 20; i++) {
        MPI_Comm few;
        MPI_Comm_split(MPI_COMM_WORLD, rank < 1 + i % size, rank, &few);
        int one = 1, sum = 0;
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, few);
        MUST(sum == (rank < 1 + i % size ? 1 + i % size : size - 1 - i % size));
        MPI_Comm_free(&few);
    }
    /* Between two halves: passed through. */
    if (size >= 2) {
        MPI_Comm inter;
        int value = rank % 2 == 0 && rank == 0 ? 42 : 0;
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &inter);
        MPI_Bcast(&value, 1, MPI_INT, rank % 2 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, inter);
        if (rank % 2 || rank == 0) MUST(value == 42);
        MPI_Comm_free(&inter);
    }
    MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN);
    int x = 0;
    MUST(MPI_Bcast(&x, 1, MPI_INT, size, dup) != MPI_SUCCESS);
    MUST(MPI_Bcast(&x, 1, MPI_INT, -1, dup) != MPI_SUCCESS);
    MPI_Comm_free(&dup);
    MPI_Comm_free(&half);
    MPI_Comm_free(&turned);
    MPI_Comm_free(&self);
    MPI_Comm_free(&graph);
    int sum = 0;
    MPI_Reduce(&checks, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("checks %d\n", sum);
    MPI_Finalize();
    return 0;
}
