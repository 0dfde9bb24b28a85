/* Particles that gather around a wandering centre, in cells that ranks own.
 *
 * The work of a cell grows with the square of its particles, so the load drifts
 * through the ranks. Every few steps the ranks balance their cells by diffusion:
 * cells are the objects, the exchange of particles between neighbouring cells the
 * edges.
 *
 *   mpirun -n 4 ./particles [--balance EVERY] [--steps N] [--cells SIDE] [--particles N]
 *                           [--progress EVERY] [--sleep-us N]
 *
 * --balance 0 never balances. Rank 0 prints the time of the run, the time that the
 * slowest rank computed in each step, summed up (what a machine with a core a rank
 * would need), the time in the balancing and how much of it this rank had a core, and a
 * checksum that does not depend on who owned which cell.
 *
 * Protected by the calls of Outlive, marked 1 to 6. How many particles a rank has changes
 * with every step: they are packed, and declared anew, only when a checkpoint is wanted. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "outlive_balance_mpi.h"

#ifdef NO_OUTLIVE
#include "../no-outlive.h"
#else
#include <outlive.h>
#endif

struct particle {
    double x, y, energy;
    uint64_t number;
};

struct cell {
    struct particle *at;
    int count, room;
};

static int side = 48, rank, size;
static struct cell *cells; /* particles of own cells; others are empty */
static int *owner;         /* of every cell, known to all */

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void put(int cell, struct particle one) {
    struct cell *c = &cells[cell];
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 8;
        c->at = realloc(c->at, (size_t)c->room * sizeof *c->at);
        if (!c->at) fail("out of memory");
    }
    c->at[c->count++] = one;
}

static int cell_of(struct particle p) {
    int x = (int)(p.x * side), y = (int)(p.y * side);
    x = x < 0 ? 0 : x >= side ? side - 1 : x;
    y = y < 0 ? 0 : y >= side ? side - 1 : y;
    return y * side + x;
}

static double cpu(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The work: every particle meets every other of its cell, in order of number. */
static void meet(struct cell *cell) {
    for (int i = 0; i < cell->count; i++) {
        double sum = 0;
        for (int j = 0; j < cell->count; j++) {
            double dx = cell->at[i].x - cell->at[j].x, dy = cell->at[i].y - cell->at[j].y;
            sum += 1.0 / (1e-3 + sqrt(dx * dx + dy * dy));
        }
        cell->at[i].energy += 1e-6 * sum;
    }
}

static int by_number(const void *a, const void *b) {
    uint64_t x = ((const struct particle *)a)->number, y = ((const struct particle *)b)->number;
    return (x > y) - (x < y);
}

/* Sends listed particles to the ranks that own their cells. */
static void deliver(struct particle *out, int *to, int count) {
    int *counts = calloc(4 * (size_t)size, sizeof *counts);
    int *starts = counts + size, *in_counts = counts + 2 * size, *in_starts = counts + 3 * size;
    struct particle *sorted = malloc(((size_t)count + 1) * sizeof *sorted);
    if (!counts || !sorted) fail("out of memory");
    for (int i = 0; i < count; i++) counts[to[i]]++;
    for (int p = 1; p < size; p++) starts[p] = starts[p - 1] + counts[p - 1];
    for (int i = 0; i < count; i++) sorted[starts[to[i]]++] = out[i];
    for (int p = 0; p < size; p++) starts[p] -= counts[p];
    MPI_Alltoall(counts, 1, MPI_INT, in_counts, 1, MPI_INT, MPI_COMM_WORLD);
    int total = 0;
    for (int p = 0; p < size; p++) {
        in_starts[p] = total;
        total += in_counts[p];
    }
    struct particle *in = malloc(((size_t)total + 1) * sizeof *in);
    if (!in) fail("out of memory");
    MPI_Datatype type;
    MPI_Type_contiguous(sizeof *in, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    MPI_Alltoallv(sorted, counts, starts, type, in, in_counts, in_starts, type, MPI_COMM_WORLD);
    MPI_Type_free(&type);
    for (int i = 0; i < total; i++) put(cell_of(in[i]), in[i]);
    free(in), free(sorted), free(counts);
}

/* Particles follow a centre that circles; those that leave their cell travel. */
static void move(int step, int steps) {
    double angle = 6.283185307179586 * step / steps;
    double cx = 0.5 + 0.3 * cos(angle), cy = 0.5 + 0.3 * sin(angle);
    int room = 1024, count = 0, *to = malloc((size_t)room * sizeof *to);
    struct particle *out = malloc((size_t)room * sizeof *out);
    for (int c = 0; c < side * side; c++) {
        int kept = 0;
        for (int i = 0; i < cells[c].count; i++) {
            struct particle p = cells[c].at[i];
            double dx = cx - p.x, dy = cy - p.y, far = sqrt(dx * dx + dy * dy) + 0.05;
            p.x += 0.004 * dx / far - 0.006 * dy;
            p.y += 0.004 * dy / far + 0.006 * dx;
            if (cell_of(p) == c) {
                cells[c].at[kept++] = p;
                continue;
            }
            if (count == room) {
                room *= 2;
                out = realloc(out, (size_t)room * sizeof *out);
                to = realloc(to, (size_t)room * sizeof *to);
            }
            if (!out || !to) fail("out of memory");
            to[count] = owner[cell_of(p)];
            out[count++] = p;
        }
        cells[c].count = kept;
    }
    deliver(out, to, count);
    for (int c = 0; c < side * side; c++)
        if (owner[c] == rank && cells[c].count)
            qsort(cells[c].at, (size_t)cells[c].count, sizeof *cells[c].at, by_number);
    free(out), free(to);
}

/* ---- what the balancer asks ---- */
static int near_cells(int c, int *near) {
    int count = 0, x = c % side, y = c / side;
    if (y > 0) near[count++] = c - side;
    if (x > 0) near[count++] = c - 1;
    if (x + 1 < side) near[count++] = c + 1;
    if (y + 1 < side) near[count++] = c + side;
    return count;
}
static int objects_count(void *context, uint64_t *count) {
    (void)context;
    *count = 0;
    for (int c = 0; c < side * side; c++) *count += owner[c] == rank;
    return 0;
}
static int objects(void *context, uint64_t count, uint64_t *numbers, double *weights) {
    (void)context, (void)count;
    for (int c = 0, next = 0; c < side * side; c++)
        if (owner[c] == rank) {
            numbers[next] = (uint64_t)c;
            weights[next++] = 1.0 + cells[c].count + 0.2 * cells[c].count * cells[c].count;
        }
    return 0;
}
static int edges_count(void *context, uint64_t count, const uint64_t *numbers, uint32_t *degrees) {
    (void)context;
    int near[4];
    for (uint64_t i = 0; i < count; i++) degrees[i] = (uint32_t)near_cells((int)numbers[i], near);
    return 0;
}
static int edges(void *context, uint64_t count, const uint64_t *numbers, uint64_t *others, double *weights) {
    (void)context;
    int near[4];
    for (uint64_t i = 0, next = 0; i < count; i++) {
        int degree = near_cells((int)numbers[i], near);
        for (int d = 0; d < degree; d++) {
            weights[next] = 1.0;
            others[next++] = (uint64_t)near[d];
        }
    }
    return 0;
}
static int coordinates(void *context, uint64_t count, const uint64_t *numbers, double *xyz) {
    (void)context;
    for (uint64_t i = 0; i < count; i++) {
        xyz[3 * i] = (double)((int)numbers[i] % side);
        xyz[3 * i + 1] = (double)((int)numbers[i] / side);
        xyz[3 * i + 2] = 0;
    }
    return 0;
}

/* Balances, and sends the particles of the cells that go. Returns cells moved. */
static long balance(void) {
    outlive_balance_queries queries = {NULL, objects_count, objects, edges_count, edges, coordinates};
    outlive_balance_options options = {.tolerance = 0.05, .seed = 1};
    outlive_balance_result result;
    if (outlive_balance_mpi(MPI_COMM_WORLD, &queries, &options, &result)) fail(outlive_balance_error());
    int total = 0, next = 0;
    for (uint64_t i = 0; i < result.exports_count; i++) total += cells[result.exports[i]].count;
    struct particle *out = malloc(((size_t)total + 1) * sizeof *out);
    int *to = malloc(((size_t)total + 1) * sizeof *to), *now = malloc((size_t)(side * side) * sizeof *now);
    if (!out || !to || !now) fail("out of memory");
    for (int c = 0; c < side * side; c++) now[c] = owner[c] == rank ? rank : -1;
    for (uint64_t i = 0; i < result.exports_count; i++) {
        struct cell *cell = &cells[result.exports[i]];
        now[result.exports[i]] = -1;
        for (int p = 0; p < cell->count; p++) {
            out[next] = cell->at[p];
            to[next++] = (int)result.exports_to[i];
        }
        cell->count = 0;
    }
    for (uint64_t i = 0; i < result.imports_count; i++) now[result.imports[i]] = rank;
    MPI_Allreduce(now, owner, side * side, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    deliver(out, to, next);
    long moved = (long)result.exports_count, all;
    MPI_Allreduce(&moved, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    outlive_balance_free(&result);
    free(out), free(to), free(now);
    return all;
}

/* ---- what is saved ---- */
static struct progress {
    double slowest, average, balancing, busy;
    long moved;
} so_far;

static struct particle *packed; /* the own particles, for a checkpoint */
static size_t packed_room;

static void protect_particles(outlive_job *job, size_t count) {
    if (count > packed_room || !packed) {
        packed_room = count + count / 4 + 1;
        packed = realloc(packed, packed_room * sizeof *packed);
        if (!packed) fail("out of memory");
    }
    outlive_protect(job, "particles", packed, count * sizeof *packed); // 2
}

static void pack(outlive_job *job) {
    size_t count = 0;
    for (int c = 0; c < side * side; c++) count += (size_t)cells[c].count;
    protect_particles(job, count);
    count = 0;
    for (int c = 0; c < side * side; c++)
        for (int i = 0; i < cells[c].count; i++) packed[count++] = cells[c].at[i];
}

/* The step to go on with. */
static int restore(outlive_job *job) {
    size_t bytes = 0;
    uint64_t step = 0;
    outlive_protect(job, "progress", &so_far, sizeof so_far);
    outlive_protect(job, "owner", owner, (size_t)(side * side) * sizeof *owner);
    outlive_query(job, "particles", &bytes); // 3
    protect_particles(job, bytes / sizeof *packed);
    int found = outlive_restore(job, &step); // 4
    if (found < 0) {
        char why[512];
        outlive_last_error(job, why, sizeof why);
        fail(why);
    }
    if (found != OUTLIVE_RESTORED) return 0;
    for (int c = 0; c < side * side; c++) cells[c].count = 0;
    for (size_t i = 0; i < bytes / sizeof *packed; i++) put(cell_of(packed[i]), packed[i]);
    return (int)step;
}

static int number(int argc, char **argv, const char *name, int value) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) value = atoi(argv[i + 1]);
    return value;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int every = number(argc, argv, "--balance", 5), steps = number(argc, argv, "--steps", 120);
    int particles = number(argc, argv, "--particles", 150000);
    int progress = number(argc, argv, "--progress", 0), sleep_us = number(argc, argv, "--sleep-us", 0);
    side = number(argc, argv, "--cells", side);
    cells = calloc((size_t)(side * side), sizeof *cells);
    owner = malloc((size_t)(side * side) * sizeof *owner);
    if (!cells || !owner) fail("out of memory");
    for (int c = 0; c < side * side; c++) owner[c] = (int)((long)c * size / (side * side));
    uint64_t state = 1;
    for (int i = 0; i < particles; i++) {
        double xy[2];
        for (int axis = 0; axis < 2; axis++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            xy[axis] = (double)(state >> 11) / 9007199254740992.0;
        }
        struct particle p = {xy[0], xy[1], 0, (uint64_t)i};
        if (owner[cell_of(p)] == rank) put(cell_of(p), p);
    }
    outlive_job *job;
    outlive_open(NULL, &job); // 1
    int first = restore(job);
    double start = MPI_Wtime();
    for (int step = first; step < steps; step++) {
        if (outlive_wanted(job, (uint64_t)step) == 1) pack(job);
        outlive_checkpoint(job, (uint64_t)step); // 5
        double before = cpu(), took, most, sum;
        for (int c = 0; c < side * side; c++) meet(&cells[c]);
        took = cpu() - before;
        MPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        so_far.slowest += most;
        so_far.average += sum / size;
        move(step, steps);
        if (every > 0 && (step + 1) % every == 0) {
            before = MPI_Wtime(), took = cpu();
            so_far.moved += balance();
            so_far.balancing += MPI_Wtime() - before, so_far.busy += cpu() - took;
        }
        if (rank == 0 && progress > 0 && (step + 1) % progress == 0) {
            printf("step %d of %d\n", step + 1, steps);
            fflush(stdout);
        }
        struct timespec pause = {sleep_us / 1000000, sleep_us % 1000000 * 1000L};
        nanosleep(&pause, NULL);
    }
    outlive_close(&job); // 6
    double energy = 0, all, wall = MPI_Wtime() - start;
    unsigned long sum = 0, total;
    for (int c = 0; c < side * side; c++)
        for (int i = 0; i < cells[c].count; i++) {
            energy += cells[c].at[i].energy;
            sum += (unsigned long)(cells[c].at[i].energy * 1e12) ^ cells[c].at[i].number;
        }
    MPI_Allreduce(&sum, &total, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&energy, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ranks %d balance %d wall %.3f s slowest %.3f s average %.3f s balancing %.3f s busy %.3f s "
               "moved %ld energy %.9f checksum %lx\n",
               size, every, wall, so_far.slowest, so_far.average, so_far.balancing, so_far.busy,
               so_far.moved, all, total);
    for (int c = 0; c < side * side; c++) free(cells[c].at);
    free(cells), free(owner), free(packed);
    MPI_Finalize();
    return 0;
}
