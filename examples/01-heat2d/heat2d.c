/* Heat in a plate: the equation u_t = u_xx + u_yy by Jacobi steps on nx x ny
 * cells, split over the ranks in two dimensions, ghost cells exchanged by
 * messages. Protected by the five calls of Outlive, marked 1 to 5.
 *
 *     mpirun -n 8 ./heat2d NX NY STEPS OUTPUT [--residuals FILE] [--sleep-us N] [--progress N]
 *
 * OUTPUT receives the final field as doubles, row by row. Every cell is computed
 * by the same expression from the same neighbours however the field is split, so
 * the file is the same, bit for bit, for any number of ranks and however often
 * the job was restarted. --sleep-us makes steps last; --progress N says every N
 * steps on standard error how far rank 0 is.
 *
 * FILE receives two doubles: the last residual and the sum of all of them. A residual
 * is added up over the ranks by MPI_Allreduce, so its last bits depend on the number
 * of ranks and on the order in which the MPI library adds. That order is the same
 * after a restart only under `outlive run --reproducible`.
 *
 * Compiled with -DNO_OUTLIVE it is the program as it was before.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef NO_OUTLIVE
#include "../no-outlive.h"
#else
#include <outlive.h>
#endif

#define ALPHA 0.2          /* dt/dx^2: stable up to 0.25 */
#define HOT 100.0          /* temperature of the edge i = 0; the other edges are at 0 */
#define CELLS_MAX (1 << 15) /* per side */
#define RESIDUAL_EVERY 10   /* steps */

/* The part of the plate that one rank holds: rows x columns cells from
 * (row, column), inside an array with one ghost cell around. */
struct part {
    int row, rows, column, columns;
};

struct grid {
    int nx, ny;           /* cells of the plate */
    int px, py;           /* ranks by rows and by columns; px * py <= ranks */
    int rank, ranks;
    int up, down, left, right; /* neighbours or MPI_PROC_NULL */
    struct part mine;
    MPI_Datatype column;  /* one column of my part */
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "heat2d: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* The most ranks that fit as px x py with no part empty, and among equals the
 * shape with the shortest ghost edges. Ranks beyond px * py hold no cells. */
static void shape(struct grid *g)
{
    for (int used = g->ranks; used >= 1; used--) {
        long best = -1;
        for (int px = 1; px <= used; px++) {
            int py = used / px;
            if (px * py != used || px > g->nx || py > g->ny) continue;
            long edge = (long)(px - 1) * g->ny + (long)(py - 1) * g->nx;
            if (best < 0 || edge < best) {
                best = edge;
                g->px = px;
                g->py = py;
            }
        }
        if (best >= 0) return;
    }
}

static struct part part_of(const struct grid *g, int rank)
{
    struct part p = {0, 0, 0, 0};
    if (rank >= g->px * g->py) return p;
    int i = rank / g->py, j = rank % g->py;
    p.row = (int)((long)g->nx * i / g->px);
    p.rows = (int)((long)g->nx * (i + 1) / g->px) - p.row;
    p.column = (int)((long)g->ny * j / g->py);
    p.columns = (int)((long)g->ny * (j + 1) / g->py) - p.column;
    return p;
}

static void place(struct grid *g)
{
    shape(g);
    g->mine = part_of(g, g->rank);
    g->up = g->down = g->left = g->right = MPI_PROC_NULL;
    if (g->mine.rows > 0) {
        int i = g->rank / g->py, j = g->rank % g->py;
        if (i > 0) g->up = g->rank - g->py;
        if (i < g->px - 1) g->down = g->rank + g->py;
        if (j > 0) g->left = g->rank - 1;
        if (j < g->py - 1) g->right = g->rank + 1;
    }
    MPI_Type_vector(g->mine.rows, 1, g->mine.columns + 2, MPI_DOUBLE, &g->column);
    MPI_Type_commit(&g->column);
}

/* The start: a hot square in the middle, the hot edge in the ghost cells. */
static void begin(const struct grid *g, double *u)
{
    const struct part *p = &g->mine;
    size_t width = (size_t)p->columns + 2;
    for (int i = 0; i < p->rows + 2; i++) {
        for (int j = 0; j < p->columns + 2; j++) {
            int x = p->row + i - 1, y = p->column + j - 1;
            int inside = x >= g->nx / 3 && x < 2 * g->nx / 3 && y >= g->ny / 3 && y < 2 * g->ny / 3;
            u[(size_t)i * width + (size_t)j] = x < 0 ? HOT : inside ? HOT / 2 : 0.0;
        }
    }
}

static void exchange(const struct grid *g, double *u)
{
    const struct part *p = &g->mine;
    size_t width = (size_t)p->columns + 2;
    double *first = u + width + 1, *last = u + (size_t)p->rows * width + 1;
    MPI_Sendrecv(first, p->columns, MPI_DOUBLE, g->up, 0, last + width, p->columns, MPI_DOUBLE,
                 g->down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(last, p->columns, MPI_DOUBLE, g->down, 1, first - width, p->columns, MPI_DOUBLE,
                 g->up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double *west = first, *east = first + p->columns - 1;
    MPI_Sendrecv(west, 1, g->column, g->left, 2, east + 1, 1, g->column, g->right, 2,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(east, 1, g->column, g->right, 3, west - 1, 1, g->column, g->left, 3,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* One Jacobi step of my part into `next`, whose ghost cells are set by the edges
 * of the plate here and by the next exchange elsewhere. */
static void step_once(const struct grid *g, const double *u, double *next)
{
    const struct part *p = &g->mine;
    size_t width = (size_t)p->columns + 2;
    for (int i = 1; i <= p->rows; i++) {
        const double *row = u + (size_t)i * width;
        double *out = next + (size_t)i * width;
        for (int j = 1; j <= p->columns; j++) {
            double around = (row[j - (int)width] + row[j + (int)width]) + (row[j - 1] + row[j + 1]);
            out[j] = row[j] + ALPHA * (around - 4.0 * row[j]);
        }
    }
}

/* Residuals: the squared change of all cells in a step. */
struct residuals {
    double last, sum;
};

static void measure(const struct grid *g, const double *u, const double *next, struct residuals *r)
{
    const struct part *p = &g->mine;
    size_t width = (size_t)p->columns + 2;
    double mine = 0.0;
    for (int i = 1; i <= p->rows; i++) {
        for (int j = 1; j <= p->columns; j++) {
            size_t at = (size_t)i * width + (size_t)j;
            mine += (next[at] - u[at]) * (next[at] - u[at]);
        }
    }
    MPI_Allreduce(&mine, &r->last, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    r->sum += r->last;
}

/* FNV-1a, 64 bits. */
static uint64_t digest(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void write_file(const char *path, const double *data, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) fail(path, strerror(errno));
    if (fwrite(data, sizeof *data, count, file) != count) fail(path, strerror(errno));
    if (fclose(file) != 0) fail(path, strerror(errno));
}

/* Rank 0 collects the parts in rank order, writes the file and prints. */
static void finish(const struct grid *g, const double *u, uint64_t steps, const char *path)
{
    const struct part *p = &g->mine;
    size_t count = (size_t)p->rows * (size_t)p->columns;
    double *packed = malloc((count + 1) * sizeof *packed);
    if (packed == NULL) fail("final field", "no memory");
    for (int i = 0; i < p->rows; i++)
        memcpy(packed + (size_t)i * (size_t)p->columns,
               u + (size_t)(i + 1) * ((size_t)p->columns + 2) + 1,
               (size_t)p->columns * sizeof *packed);
    if (g->rank != 0) {
        if (count > 0) MPI_Send(packed, (int)count, MPI_DOUBLE, 0, 4, MPI_COMM_WORLD);
        free(packed);
        return;
    }
    size_t cells = (size_t)g->nx * (size_t)g->ny;
    double *field = malloc(cells * sizeof *field);
    if (field == NULL) fail("final field", "no memory");
    for (int r = 0; r < g->px * g->py; r++) {
        struct part q = part_of(g, r);
        double *from = packed;
        if (r > 0) {
            size_t theirs = (size_t)q.rows * (size_t)q.columns;
            from = malloc(theirs * sizeof *from);
            if (from == NULL) fail("final field", "no memory");
            MPI_Recv(from, (int)theirs, MPI_DOUBLE, r, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < q.rows; i++)
            memcpy(field + (size_t)(q.row + i) * (size_t)g->ny + (size_t)q.column,
                   from + (size_t)i * (size_t)q.columns, (size_t)q.columns * sizeof *field);
        if (r > 0) free(from);
    }
    write_file(path, field, cells);
    double sum = 0.0;
    for (size_t i = 0; i < cells; i++) sum += field[i];
    printf("heat2d: %d x %d cells, %" PRIu64 " steps, %d ranks as %d x %d, mean %.6f, digest %016" PRIx64
           "\n",
           g->nx, g->ny, steps, g->ranks, g->px, g->py, sum / (double)cells,
           digest(field, cells * sizeof *field));
    free(field);
    free(packed);
}

static long number(const char *text, long least, long most, const char *what)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value < least || value > most)
        fail(what, "not a number in its range");
    return value;
}

static void check(int code, outlive_job *job, const char *what)
{
    char text[512];
    if (code >= 0) return;
    outlive_last_error(job, text, sizeof text);
    fail(what, text);
}

int main(int argc, char **argv)
{
    struct grid g = {0};
    long sleep_us = 0, progress = 0;
    const char *residuals_path = NULL;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &g.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &g.ranks);
    if (argc < 5 || argc % 2 == 0) {
        if (g.rank == 0)
            fprintf(stderr, "usage: heat2d NX NY STEPS OUTPUT [--residuals FILE] [--sleep-us N] "
                            "[--progress N]\n");
        MPI_Finalize();
        return 64;
    }
    g.nx = (int)number(argv[1], 1, CELLS_MAX, "NX");
    g.ny = (int)number(argv[2], 1, CELLS_MAX, "NY");
    uint64_t steps = (uint64_t)number(argv[3], 0, 1000000000, "STEPS");
    for (int i = 5; i < argc; i += 2) {
        if (strcmp(argv[i], "--sleep-us") == 0)
            sleep_us = number(argv[i + 1], 0, 999999, "--sleep-us");
        else if (strcmp(argv[i], "--progress") == 0)
            progress = number(argv[i + 1], 0, 1000000000, "--progress");
        else if (strcmp(argv[i], "--residuals") == 0)
            residuals_path = argv[i + 1];
        else
            fail(argv[i], "unknown option");
    }
    place(&g);

    size_t cells = ((size_t)g.mine.rows + 2) * ((size_t)g.mine.columns + 2);
    double *u = malloc(cells * sizeof *u), *next = malloc(cells * sizeof *next);
    if (u == NULL || next == NULL) fail("field", "no memory");
    begin(&g, u);
    begin(&g, next);

    struct residuals residuals = {0.0, 0.0};
    outlive_job *job = NULL;
    uint64_t step = 0;
    check(outlive_open(NULL, &job), NULL, "outlive_open"); /* 1 */
    /* A rank without cells protects no bytes under the same name. */
    check(outlive_protect(job, "field", u, g.mine.rows > 0 ? cells * sizeof *u : 0), job,
          "outlive_protect"); /* 2 */
    check(outlive_protect(job, "residuals", &residuals, sizeof residuals), job, "outlive_protect");
    check(outlive_restore(job, &step), job, "outlive_restore"); /* 3 */

    for (; step < steps; step++) {
        outlive_checkpoint(job, step); /* 4; a failed save does not stop the program */
        if (progress > 0 && g.rank == 0 && step % (uint64_t)progress == 0)
            fprintf(stderr, "heat2d: step %" PRIu64 " of %" PRIu64 "\n", step, steps);
        if (g.mine.rows > 0) {
            exchange(&g, u);
            step_once(&g, u, next);
        }
        if (step % RESIDUAL_EVERY == 0) measure(&g, u, next, &residuals);
        if (g.mine.rows > 0) {
            double *swap = u;
            u = next;
            next = swap;
            outlive_protect(job, "field", u, cells * sizeof *u); /* it moved */
        }
        if (sleep_us > 0) {
            struct timespec pause = {0, sleep_us * 1000};
            nanosleep(&pause, NULL);
        }
    }
    finish(&g, u, steps, argv[4]);
    if (g.rank == 0 && residuals_path != NULL)
        write_file(residuals_path, (double[]){residuals.last, residuals.sum}, 2);
    outlive_close(&job); /* 5 */

    MPI_Type_free(&g.column);
    free(u);
    free(next);
    MPI_Finalize();
    return 0;
}
