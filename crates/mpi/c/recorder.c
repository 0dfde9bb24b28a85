/* Records the task graph of a running MPI job: who computes how long, and who
 * sends how much to whom, by phase.
 *
 *   mpicc -shared -fPIC -O2 recorder.c -o librecorder.so
 *   OUTLIVE_RECORD=run mpirun -n 8 env LD_PRELOAD=$PWD/librecorder.so ./program
 *   outlive balance --graph run.graph --parts 4
 *
 * It stands between the program and MPI by the profiling interface (MPI 4.1,
 * chapter 15) and changes nothing. At MPI_Finalize rank 0 writes
 *
 *   PREFIX.graph          METIS: a vertex a rank, its weight the microseconds that
 *                         it computed (the time between MPI calls), an edge's
 *                         weight the bytes in both directions
 *   PREFIX-phase-K.graph  the same for phase K, if there are several
 *   PREFIX.json           the figures a rank, a phase and a pair
 *
 * A phase is begun by MPI_Pcontrol(k), 0 <= k < 16; before that it is phase 0.
 * Counted are the point-to-point sends of every mode, persistent ones excepted, and
 * the parts of MPI_Alltoall and MPI_Alltoallv; other collectives end a stretch of
 * computing, their bytes have no single peer. Fortran programs are seen where
 * their MPI library's Fortran layer calls the C functions of the same name.
 * Memory: 24 bytes a peer, phase and rank that messages go to. */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 16 };

struct sums {
    uint64_t bytes, messages;
};

static struct sums *sent[PHASES]; /* by world rank; NULL until used */
static double computing[PHASES], left; /* when MPI was left last */
static int rank, size, phase, running;

static void begin(void) {
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    running = 1;
    left = PMPI_Wtime();
}

/* Nested calls (an MPI library may call itself by the public names) count once. */
static _Thread_local int depth;
static void enter(void) {
    if (depth++ == 0 && running) computing[phase] += PMPI_Wtime() - left;
}
static void leave(void) {
    if (--depth == 0 && running) left = PMPI_Wtime();
}

static void count(int to, uint64_t bytes) {
    if (to < 0 || to >= size || to == rank) return;
    if (!sent[phase]) sent[phase] = calloc((size_t)size, sizeof *sent[phase]);
    if (!sent[phase]) return;
    sent[phase][to].bytes += bytes;
    sent[phase][to].messages++;
}

static int world_rank(MPI_Comm comm, int peer) {
    int same = MPI_UNEQUAL, inter = 0, found = -1;
    MPI_Group all, group;
    if (peer < 0) return -1;
    if (comm == MPI_COMM_WORLD) return peer;
    PMPI_Comm_test_inter(comm, &inter);
    if (!inter && PMPI_Comm_compare(comm, MPI_COMM_WORLD, &same) == MPI_SUCCESS && same == MPI_CONGRUENT)
        return peer;
    if (inter)
        PMPI_Comm_remote_group(comm, &group);
    else
        PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &all);
    PMPI_Group_translate_ranks(group, 1, &peer, all, &found);
    PMPI_Group_free(&group);
    PMPI_Group_free(&all);
    return found == MPI_UNDEFINED ? -1 : found;
}

static void count_send(MPI_Comm comm, int to, int items, MPI_Datatype type) {
    int bytes = 0;
    if (depth != 1 || !running || to == MPI_PROC_NULL) return;
    PMPI_Type_size(type, &bytes);
    count(world_rank(comm, to), (uint64_t)items * (uint64_t)bytes);
}

/* ---- writing ---- */

struct edge {
    uint64_t from, to, bytes, messages;
};

static int by_pair(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* All edges of a phase (or of all) at rank 0, in both directions; sorted. */
static struct edge *gather(int which, int *total) {
    int own = 0, *counts = NULL, *starts = NULL;
    struct edge *mine = malloc(((size_t)size + 1) * sizeof *mine), *all = NULL;
    for (int to = 0; mine && to < size; to++) {
        struct edge one = {(uint64_t)rank, (uint64_t)to, 0, 0};
        for (int p = 0; p < PHASES; p++)
            if ((which < 0 || which == p) && sent[p]) {
                one.bytes += sent[p][to].bytes;
                one.messages += sent[p][to].messages;
            }
        if (one.messages) mine[own++] = one;
    }
    own *= 4;
    counts = calloc(2 * (size_t)size, sizeof *counts);
    starts = counts ? counts + size : NULL;
    PMPI_Gather(&own, 1, MPI_INT, counts, 1, MPI_INT, 0, MPI_COMM_WORLD);
    *total = 0;
    for (int p = 0; rank == 0 && counts && p < size; p++) {
        starts[p] = *total;
        *total += counts[p];
    }
    /* Room for every edge and its opposite. */
    all = malloc(((size_t)*total * 2 + 4) * sizeof(uint64_t));
    PMPI_Gatherv(mine, own, MPI_UINT64_T, all, counts, starts, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    *total /= 4;
    free(mine);
    free(counts);
    return all;
}

static void write_graph(const char *prefix, int which, const double *seconds) {
    int total;
    struct edge *all = gather(which, &total);
    if (rank != 0 || !all) {
        free(all);
        return;
    }
    for (int e = 0; e < total; e++) {
        struct edge back = {all[e].to, all[e].from, all[e].bytes, all[e].messages};
        all[total + e] = back;
    }
    qsort(all, 2 * (size_t)total, sizeof *all, by_pair);
    int kept = 0;
    for (int e = 0; e < 2 * total; e++) {
        if (kept && all[kept - 1].from == all[e].from && all[kept - 1].to == all[e].to) {
            all[kept - 1].bytes += all[e].bytes;
            all[kept - 1].messages += all[e].messages;
        } else {
            all[kept++] = all[e];
        }
    }
    char path[4096];
    if (which < 0)
        snprintf(path, sizeof path, "%s.graph", prefix);
    else
        snprintf(path, sizeof path, "%s-phase-%d.graph", prefix, which);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        free(all);
        return;
    }
    fprintf(file, "%d %d 011\n", size, kept / 2);
    for (int r = 0, e = 0; r < size; r++) {
        uint64_t micros = (uint64_t)(seconds[r] * 1e6);
        fprintf(file, "%llu", (unsigned long long)(micros ? micros : 1));
        for (; e < kept && all[e].from == (uint64_t)r; e++)
            fprintf(file, " %llu %llu", (unsigned long long)all[e].to + 1,
                    (unsigned long long)(all[e].bytes ? all[e].bytes : 1));
        fprintf(file, "\n");
    }
    if (fclose(file)) perror(path);
    free(all);
}

static void write_json(const char *prefix, const double *seconds, int used) {
    int total;
    struct edge *all = gather(-1, &total);
    char path[4096];
    snprintf(path, sizeof path, "%s.json", prefix);
    FILE *file = rank == 0 && all ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "{\"schema\":1,\"ranks\":%d,\"phases\":%d,\"computing_seconds\":[", size, used);
        for (int r = 0; r < size; r++) {
            fprintf(file, "%s[", r ? "," : "");
            for (int p = 0; p < used; p++) fprintf(file, "%s%.6f", p ? "," : "", seconds[r * PHASES + p]);
            fprintf(file, "]");
        }
        fprintf(file, "],\"sent\":[");
        for (int e = 0; e < total; e++)
            fprintf(file, "%s{\"from\":%llu,\"to\":%llu,\"bytes\":%llu,\"messages\":%llu}", e ? "," : "",
                    (unsigned long long)all[e].from, (unsigned long long)all[e].to,
                    (unsigned long long)all[e].bytes, (unsigned long long)all[e].messages);
        fprintf(file, "]}\n");
        if (fclose(file)) perror(path);
    }
    free(all);
}

static void write_all(void) {
    const char *prefix = getenv("OUTLIVE_RECORD");
    int last = 0, used;
    for (int p = 0; p < PHASES; p++)
        if (sent[p] || computing[p] > 0) last = p;
    PMPI_Allreduce(&last, &used, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    used++;
    double *seconds = calloc((size_t)size * (PHASES + 1), sizeof *seconds), *sums = seconds;
    if (!seconds) return;
    PMPI_Gather(computing, PHASES, MPI_DOUBLE, seconds, PHASES, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    sums = seconds + (size_t)size * PHASES;
    if (!prefix || !*prefix) prefix = "outlive-tasks";
    for (int which = used > 1 ? used - 1 : -1; which >= -1; which--) {
        for (int r = 0; r < size; r++) {
            sums[r] = 0;
            for (int p = 0; p < PHASES; p++)
                if (which < 0 || which == p) sums[r] += seconds[r * PHASES + p];
        }
        write_graph(prefix, which, sums);
    }
    write_json(prefix, seconds, used);
    free(seconds);
}

/* ---- the profiled calls ---- */

int MPI_Init(int *argc, char ***argv) {
    int status = PMPI_Init(argc, argv);
    begin();
    return status;
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int status = PMPI_Init_thread(argc, argv, required, provided);
    begin();
    return status;
}
int MPI_Finalize(void) {
    enter();
    running = 0;
    write_all();
    for (int p = 0; p < PHASES; p++) free(sent[p]);
    return PMPI_Finalize();
}
int MPI_Pcontrol(const int level, ...) {
    enter();
    if (level >= 0 && level < PHASES) phase = level;
    leave();
    return MPI_SUCCESS;
}

#define SEND(name, parameters, arguments)       \
    int MPI_##name parameters {                 \
        enter();                                \
        count_send(comm, to, items, type);      \
        int status = PMPI_##name arguments;     \
        leave();                                \
        return status;                          \
    }
#define BLOCKING (const void *data, int items, MPI_Datatype type, int to, int tag, MPI_Comm comm)
#define STARTING \
    (const void *data, int items, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
SEND(Send, BLOCKING, (data, items, type, to, tag, comm))
SEND(Ssend, BLOCKING, (data, items, type, to, tag, comm))
SEND(Bsend, BLOCKING, (data, items, type, to, tag, comm))
SEND(Rsend, BLOCKING, (data, items, type, to, tag, comm))
SEND(Isend, STARTING, (data, items, type, to, tag, comm, request))
SEND(Issend, STARTING, (data, items, type, to, tag, comm, request))
SEND(Ibsend, STARTING, (data, items, type, to, tag, comm, request))
SEND(Irsend, STARTING, (data, items, type, to, tag, comm, request))
SEND(Sendrecv,
     (const void *data, int items, MPI_Datatype type, int to, int tag, void *in, int in_items,
      MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *found),
     (data, items, type, to, tag, in, in_items, in_type, from, in_tag, comm, found))
SEND(Sendrecv_replace,
     (void *data, int items, MPI_Datatype type, int to, int tag, int from, int in_tag, MPI_Comm comm,
      MPI_Status *found),
     (data, items, type, to, tag, from, in_tag, comm, found))

int MPI_Alltoall(const void *data, int items, MPI_Datatype type, void *in, int in_items,
                 MPI_Datatype in_type, MPI_Comm comm) {
    int peers = 0;
    enter();
    PMPI_Comm_size(comm, &peers);
    for (int p = 0; p < peers && data != MPI_IN_PLACE; p++) count_send(comm, p, items, type);
    int status = PMPI_Alltoall(data, items, type, in, in_items, in_type, comm);
    leave();
    return status;
}
int MPI_Alltoallv(const void *data, const int *items, const int *starts, MPI_Datatype type, void *in,
                  const int *in_items, const int *in_starts, MPI_Datatype in_type, MPI_Comm comm) {
    int peers = 0;
    enter();
    PMPI_Comm_size(comm, &peers);
    for (int p = 0; p < peers && data != MPI_IN_PLACE; p++)
        if (items[p]) count_send(comm, p, items[p], type);
    int status = PMPI_Alltoallv(data, items, starts, type, in, in_items, in_starts, in_type, comm);
    leave();
    return status;
}

/* Calls that only end a stretch of computing. */
#define WAIT(name, parameters, arguments)   \
    int MPI_##name parameters {             \
        enter();                            \
        int status = PMPI_##name arguments; \
        leave();                            \
        return status;                      \
    }
WAIT(Recv, (void *d, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s),
     (d, n, t, from, tag, c, s))
WAIT(Irecv, (void *d, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r),
     (d, n, t, from, tag, c, r))
WAIT(Probe, (int from, int tag, MPI_Comm c, MPI_Status *s), (from, tag, c, s))
WAIT(Iprobe, (int from, int tag, MPI_Comm c, int *f, MPI_Status *s), (from, tag, c, f, s))
WAIT(Wait, (MPI_Request * r, MPI_Status *s), (r, s))
WAIT(Waitall, (int n, MPI_Request *r, MPI_Status *s), (n, r, s))
WAIT(Waitany, (int n, MPI_Request *r, int *i, MPI_Status *s), (n, r, i, s))
WAIT(Waitsome, (int n, MPI_Request *r, int *m, int *i, MPI_Status *s), (n, r, m, i, s))
WAIT(Test, (MPI_Request * r, int *f, MPI_Status *s), (r, f, s))
WAIT(Testall, (int n, MPI_Request *r, int *f, MPI_Status *s), (n, r, f, s))
WAIT(Barrier, (MPI_Comm c), (c))
WAIT(Bcast, (void *d, int n, MPI_Datatype t, int root, MPI_Comm c), (d, n, t, root, c))
WAIT(Reduce, (const void *d, void *o, int n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm c),
     (d, o, n, t, op, root, c))
WAIT(Allreduce, (const void *d, void *o, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), (d, o, n, t, op, c))
WAIT(Scan, (const void *d, void *o, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c), (d, o, n, t, op, c))
WAIT(Gather, (const void *d, int n, MPI_Datatype t, void *o, int m, MPI_Datatype u, int root, MPI_Comm c),
     (d, n, t, o, m, u, root, c))
WAIT(Scatter, (const void *d, int n, MPI_Datatype t, void *o, int m, MPI_Datatype u, int root, MPI_Comm c),
     (d, n, t, o, m, u, root, c))
WAIT(Allgather, (const void *d, int n, MPI_Datatype t, void *o, int m, MPI_Datatype u, MPI_Comm c),
     (d, n, t, o, m, u, c))
WAIT(Allgatherv,
     (const void *d, int n, MPI_Datatype t, void *o, const int *m, const int *at, MPI_Datatype u, MPI_Comm c),
     (d, n, t, o, m, at, u, c))
