/* Two ranks: what the lane of a pair must do beside correct.c, against values that are
 * computed here without MPI.
 *
 *   pair WHAT [ARGUMENT]
 *
 * data       lengths around the lane's bounds, operators, gaps, IN_PLACE, ranks that run ahead
 * comms N    N communicators at once, freed again: no memory and no descriptor is kept
 * full RANK  rank RANK has no descriptor left when the two meet
 * threads    two threads, each with a communicator
 * requests   a long message under way while collectives run
 * differs    calls that differ between the ranks
 * bound      a rank that comes after the bound (OUTLIVE_COLLECTIVES_BOUND_MS)
 *
 * Prints "right" at rank 0; any difference ends the job. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int rank;

#define MUST(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "pair: rank %d, line %d: %s\n", rank, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                \
        }                                                                                \
    } while (0)

static long value(int who, int at, int round) { return (long)who * 1000003 + (long)at * 17 + round * 5 + 1; }

/* x, y -> the affine maps composed: associative, not commutative. Two longs an element. */
static void compose(void *in, void *inout, int *count, MPI_Datatype *type) {
    unsigned long *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *count; i++, a += 2, b += 2) b[1] = a[0] * b[1] + a[1], b[0] = a[0] * b[0];
}

static void lengths(MPI_Comm comm) {
    /* Around the head's line, a slot, the whole ring, and what goes as a message. */
    static const int bytes[] = {0, 8, 88, 96, 104, 128, 4096, 8184, 8192, 8200, 65536, 131072, 131080, 262144, 262152, 3000000, 4194304, 4194312};
    MPI_Op op;
    MPI_Datatype map;
    int me;
    MPI_Comm_rank(comm, &me);
    MPI_Op_create(compose, 0, &op);
    MPI_Type_contiguous(2, MPI_UNSIGNED_LONG, &map);
    MPI_Type_commit(&map);
    for (int s = 0; s < (int)(sizeof bytes / sizeof *bytes); s++) {
        int n = bytes[s] / 8;
        long *own = malloc((size_t)(n + 1) * 8), *got = malloc((size_t)(n + 1) * 8);
        for (int root = 0; root < 2; root++) {
            for (int i = 0; i < n; i++) own[i] = me == root ? value(7, i, s) : -1;
            own[n] = 42;
            MUST(MPI_Bcast(own, n, MPI_LONG, root, comm) == MPI_SUCCESS);
            for (int i = 0; i < n; i++) MUST(own[i] == value(7, i, s));
            MUST(own[n] == 42);
            for (int in_place = 0; in_place < 2; in_place++) {
                for (int i = 0; i < n; i++) own[i] = value(me, i, s), got[i] = in_place ? own[i] : -1;
                const void *give = in_place && me == root ? MPI_IN_PLACE : (void *)own;
                MUST(MPI_Reduce(give, got, n, MPI_LONG, MPI_SUM, root, comm) == MPI_SUCCESS);
                for (int i = 0; i < n && me == root; i++) MUST(got[i] == value(0, i, s) + value(1, i, s));
                for (int i = 0; i < n; i++) got[i] = in_place ? own[i] : -1;
                give = in_place ? MPI_IN_PLACE : (void *)own;
                MUST(MPI_Allreduce(give, got, n, MPI_LONG, MPI_SUM, comm) == MPI_SUCCESS);
                for (int i = 0; i < n; i++) MUST(got[i] == value(0, i, s) + value(1, i, s));
                /* In the order of ranks. */
                int m = n / 2;
                for (int i = 0; i < 2 * m; i++) got[i] = in_place ? own[i] : -1;
                MUST(MPI_Allreduce(give, got, m, map, op, comm) == MPI_SUCCESS);
                for (int i = 0; i < m; i++) {
                    unsigned long a = (unsigned long)value(0, 2 * i, s), b = (unsigned long)value(0, 2 * i + 1, s);
                    unsigned long c = (unsigned long)value(1, 2 * i, s), d = (unsigned long)value(1, 2 * i + 1, s);
                    MUST((unsigned long)got[2 * i] == a * c && (unsigned long)got[2 * i + 1] == a * d + b);
                }
            }
        }
        free(own), free(got);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&map);
}

/* Rows of 1200 longs are an element: they do not fit a slot. */
enum { ROW = 1200 };
static void add_rows(void *in, void *inout, int *count, MPI_Datatype *type) {
    long *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *count * ROW; i++) b[i] = 2 * a[i] + b[i];
}

static void rows(MPI_Comm comm) {
    MPI_Op op;
    MPI_Datatype row;
    static long own[ROW * 5], got[ROW * 5];
    MPI_Op_create(add_rows, 0, &op);
    MPI_Type_contiguous(ROW, MPI_LONG, &row);
    MPI_Type_commit(&row);
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int i = 0; i < 5 * ROW; i++) own[i] = value(rank, i, 0), got[i] = own[i];
        MUST(MPI_Allreduce(in_place ? MPI_IN_PLACE : (void *)own, got, 5, row, op, comm) == MPI_SUCCESS);
        for (int i = 0; i < 5 * ROW; i++) MUST(got[i] == 2 * value(0, i, 0) + value(1, i, 0));
    }
    MPI_Type_free(&row);
    MPI_Op_free(&op);
}

/* Blocks of 3 of every 5 longs at one rank, dense at the other. */
static void gaps(MPI_Comm comm) {
    static const int blocks[] = {1, 10, 333, 5000, 50000};
    for (int s = 0; s < 5; s++)
        for (int root = 0; root < 2; root++)
            for (int sparse = 0; sparse < 2; sparse++) {
                int n = blocks[s];
                MPI_Datatype type;
                MPI_Type_vector(n, 3, 5, MPI_LONG, &type);
                MPI_Type_commit(&type);
                int mine = rank == sparse, span = mine ? n * 5 : n * 3;
                long *data = malloc((size_t)span * 8);
                for (int i = 0; i < span; i++) data[i] = -1;
                for (int k = 0; rank == root && k < n * 3; k++) data[mine ? k / 3 * 5 + k % 3 : k] = value(9, k, s);
                if (mine) MUST(MPI_Bcast(data, 1, type, root, comm) == MPI_SUCCESS);
                else MUST(MPI_Bcast(data, n * 3, MPI_LONG, root, comm) == MPI_SUCCESS);
                for (int k = 0; k < n * 3; k++) MUST(data[mine ? k / 3 * 5 + k % 3 : k] == value(9, k, s));
                for (int k = 0; mine && k < n * 5; k++)
                    if (k % 5 > 2) MUST(data[k] == -1);
                free(data);
                MPI_Type_free(&type);
            }
}

/* One side runs ahead of the other, by more than there are slots. */
static void ahead(MPI_Comm comm) {
    int me;
    MPI_Comm_rank(comm, &me);
    for (int round = 0; round < 500; round++) {
        int from = round / 100 % 2;
        long x = me == from ? value(2, round, 0) : -1, sum = 0, own = value(me, round, 0);
        MUST(MPI_Bcast(&x, 1, MPI_LONG, from, comm) == MPI_SUCCESS);
        MUST(x == value(2, round, 0));
        MUST(MPI_Reduce(&own, &sum, 1, MPI_LONG, MPI_SUM, round / 50 % 2, comm) == MPI_SUCCESS);
        if (me == round / 50 % 2) MUST(sum == value(0, round, 0) + value(1, round, 0));
    }
    MUST(MPI_Barrier(comm) == MPI_SUCCESS);
}

static void data(void) {
    MPI_Comm turned;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
    lengths(MPI_COMM_WORLD);
    lengths(turned);
    rows(MPI_COMM_WORLD);
    gaps(MPI_COMM_WORLD);
    ahead(MPI_COMM_WORLD);
    ahead(turned);
    MPI_Comm_free(&turned);
}

static int mapped(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    while (fgets(line, sizeof line, maps)) found += strstr(line, "memfd:outlive") != NULL;
    fclose(maps);
    return found;
}

static int lowest(void) {
    int file = open("/dev/null", O_RDONLY);
    MUST(file >= 0);
    close(file);
    return file;
}

static void comms(int many) {
    MPI_Comm *comm = malloc((size_t)many * sizeof *comm);
    MUST(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    int before = mapped(), file = lowest();
    for (int turn = 0; turn < 2; turn++) {
        for (int c = 0; c < many; c++) {
            MPI_Comm_dup(MPI_COMM_WORLD, &comm[c]);
            long own = value(rank, c, turn), sum = 0;
            MUST(MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, comm[c]) == MPI_SUCCESS);
            MUST(sum == value(0, c, turn) + value(1, c, turn));
        }
        MUST(mapped() <= 64 && lowest() == file);
        for (int c = 0; c < many; c++) MPI_Comm_free(&comm[c]);
        MUST(mapped() == before);
    }
    free(comm);
}

static void full(int who) {
    struct rlimit old, none;
    getrlimit(RLIMIT_NOFILE, &old);
    none = old;
    none.rlim_cur = (rlim_t)lowest();
    if (rank == who) setrlimit(RLIMIT_NOFILE, &none);
    long own = value(rank, 0, 0), sum = 0;
    MUST(MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
    MUST(sum == value(0, 0, 0) + value(1, 0, 0));
    setrlimit(RLIMIT_NOFILE, &old);
    lengths(MPI_COMM_WORLD);
    MUST(mapped() == 0);
}

static void *thread(void *comm) {
    for (int round = 0; round < 2000; round++) {
        long own[40], sum[40];
        for (int i = 0; i < 40; i++) own[i] = value(rank, i, round);
        MUST(MPI_Allreduce(own, sum, 40, MPI_LONG, MPI_SUM, *(MPI_Comm *)comm) == MPI_SUCCESS);
        for (int i = 0; i < 40; i++) MUST(sum[i] == value(0, i, round) + value(1, i, round));
    }
    return NULL;
}

static void threads(void) {
    pthread_t other;
    MPI_Comm comm[2];
    for (int c = 0; c < 2; c++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[c]);
        MPI_Barrier(comm[c]);
    }
    MUST(pthread_create(&other, NULL, thread, &comm[1]) == 0);
    thread(&comm[0]);
    pthread_join(other, NULL);
    for (int c = 0; c < 2; c++) MPI_Comm_free(&comm[c]);
}

static void requests(void) {
    enum { LONG = 1 << 20 };
    long *give = malloc(LONG * 8), *take = malloc(LONG * 8);
    MPI_Request request[2];
    for (int i = 0; i < LONG; i++) give[i] = value(rank, i, 0);
    MPI_Irecv(take, LONG, MPI_LONG, 1 - rank, 1, MPI_COMM_WORLD, &request[0]);
    MPI_Isend(give, LONG, MPI_LONG, 1 - rank, 1, MPI_COMM_WORLD, &request[1]);
    /* Only collectives are called until it has come: they must drive it. */
    int done = 0, all = 0, calls = 0;
    for (; !all && calls < 10000000; calls++) {
        MUST(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
        if (calls % 64 == 0) {
            MPI_Request_get_status(request[0], &done, MPI_STATUS_IGNORE);
            MUST(MPI_Allreduce(&done, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD) == MPI_SUCCESS);
        }
    }
    MUST(all);
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
    for (int i = 0; i < LONG; i++) MUST(take[i] == value(1 - rank, i, 0));
    free(give), free(take);
}

static int class_of(int code) {
    int class = -1;
    if (code == MPI_SUCCESS) return MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class;
}

static void agreed(void) {
    long own = rank + 1, sum = 0;
    MUST(MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == 3);
}

static void differs(void) {
    enum { MANY = 1200000 };
    static long many[MANY];
    int long_ones[2] = {1000, MANY};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    agreed();
    for (int k = 0; k < 2; k++) {
        /* The root gives more than the other has room for. */
        for (int i = 0; i < MANY; i++) many[i] = -1;
        int code = MPI_Bcast(many, rank == 0 ? long_ones[k] : 8, MPI_LONG, 0, MPI_COMM_WORLD);
        if (rank == 1) MUST(class_of(code) == MPI_ERR_TRUNCATE);
        for (int i = 8; i < MANY; i++) MUST(many[i] == -1);
        agreed();
        /* Less. */
        code = MPI_Bcast(many, rank == 0 ? 8 : long_ones[k], MPI_LONG, 0, MPI_COMM_WORLD);
        if (rank == 1) MUST(code != MPI_SUCCESS);
        agreed();
        code = MPI_Reduce(many, many + MANY / 2, rank == 1 ? long_ones[k] / 2 : 8, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) MUST(class_of(code) == MPI_ERR_TRUNCATE);
        agreed();
        code = MPI_Allreduce(MPI_IN_PLACE, many, rank == 0 ? long_ones[k] : 8, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        MUST(code != MPI_SUCCESS);
        agreed();
    }
    /* Other collectives: an error, and in step again. */
    long x = rank;
    int code = rank == 0 ? MPI_Bcast(&x, 1, MPI_LONG, 0, MPI_COMM_WORLD)
                         : MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 1) MUST(code != MPI_SUCCESS && x == 1);
    code = MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) MUST(code != MPI_SUCCESS);
    agreed();
}

static void bound(void) {
    int word = 0;
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MUST(MPI_Barrier(comm) == MPI_SUCCESS);
    if (rank == 0) {
        MUST(MPI_Barrier(comm) != MPI_SUCCESS);
        MPI_Send(&word, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
    } else {
        /* Comes when the other has given up. */
        MPI_Recv(&word, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        long x = 1;
        MUST(MPI_Bcast(&x, 1, MPI_LONG, 0, comm) != MPI_SUCCESS);
    }
    /* From now on it fails at once, on both; other communicators do not. */
    long x = 1;
    MUST(MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_LONG, MPI_SUM, comm) != MPI_SUCCESS);
    MPI_Comm_free(&comm);
    agreed();
}

int main(int argc, char **argv) {
    int size, given;
    if (argc < 2) return 2;
    const char *what = argv[1];
    int number = argc > 2 ? atoi(argv[2]) : 0;
    MPI_Init_thread(&argc, &argv, strcmp(what, "threads") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(size == 2);
    if (!strcmp(what, "data")) data();
    else if (!strcmp(what, "comms")) comms(number);
    else if (!strcmp(what, "full")) full(number);
    else if (!strcmp(what, "threads") && given == MPI_THREAD_MULTIPLE) threads();
    else if (!strcmp(what, "requests")) requests();
    else if (!strcmp(what, "differs")) differs();
    else if (!strcmp(what, "bound")) bound();
    else if (strcmp(what, "threads")) MUST(!"a known test");
    if (rank == 0) printf("right\n");
    MPI_Finalize();
    return 0;
}
