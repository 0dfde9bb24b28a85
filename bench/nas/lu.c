/* LU: symmetric successive over-relaxation, pipelined over rows. RNR-94-007,
 * section 3.5.4; the norms are the published ones. Ranks share the rows of j: in
 * every plane the row before one's own comes from the neighbour, which makes
 * many short messages. Threads share the planes of constant i + j + k.
 */
#include "flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OMEGA 1.2

struct size {
    char class;
    size_t n;
    int steps;
    double dt;
    vector residual, error;
};

static const struct size SIZES[] = {
    {'S', 12, 50, 0.5,
     {0.016196343210976703, 0.002197674516482132, 0.0015179927653399185, 0.0015029584435994323, 0.03426407315589646},
     {0.0006422331995796092, 8.414434204734792e-05, 5.8588269616485187e-05, 5.847422259515735e-05, 0.0013103347914111294}},
    {'W', 33, 300, 0.0015,
     {12.36511638192, 1.317228477799, 2.550120713095, 2.326187750252, 28.26799444189},
     {0.4867877144216, 0.05064652880982, 0.0928181810196, 0.08570126542733, 1.084277417792}},
    {'A', 64, 250, 2.0,
     {779.0210760668937, 63.40276525969287, 194.9924972729248, 178.45301160418538, 1838.4760349464248},
     {29.964085685471943, 2.819457636500335, 7.347341269877474, 6.713922568777705, 70.71531568839258}},
};

enum { TAG_LOWER = 1, TAG_UPPER, TAG_GHOSTS };

/* The diagonal block at a point, as its factors. */
static void diagonal(const struct flow *f, size_t p, block d)
{
    memset(d, 0, sizeof(block));
    for (int axis = 0; axis < 3; axis++) {
        block a, v;

        jacobians(f->u[p], axis, a, v);
        for (int r = 0; r < VARIABLES; r++) {
            for (int c = 0; c < VARIABLES; c++)
                d[r][c] += 2 * f->dt * f->t1 * v[r][c];
            d[r][r] += 2 * f->dt * f->t1 * dissipation_of(axis);
        }
    }
    for (int r = 0; r < VARIABLES; r++)
        d[r][r] += 1;
    factor(d);
}

/* sum += block(q) * v(q), for the neighbour q below (sign -1) or above (+1). */
static void add_neighbour(const struct flow *f, int axis, size_t q, double sign, vector sum)
{
    block a, v;
    const double *x = f->rhs[q];
    double convective = sign * f->dt * f->t2, viscous = f->dt * f->t1;

    jacobians(f->u[q], axis, a, v);
    for (int r = 0; r < VARIABLES; r++) {
        for (int c = 0; c < VARIABLES; c++)
            sum[r] += (convective * a[r][c] - viscous * v[r][c]) * x[c];
        sum[r] -= viscous * dissipation_of(axis) * x[r];
    }
}

static void relax(struct flow *f, size_t p, int upper)
{
    size_t n = f->n, strides[3] = {1, n, n * n};
    vector sum = {0};
    block d;

    for (int axis = 0; axis < 3; axis++)
        add_neighbour(f, axis, upper ? p + strides[axis] : p - strides[axis], upper ? 1 : -1, sum);
    diagonal(f, p, d);
    if (upper) {
        for (int m = 0; m < VARIABLES; m++)
            sum[m] *= OMEGA;
        solve_vector(d, sum);
        for (int m = 0; m < VARIABLES; m++)
            f->rhs[p][m] -= sum[m];
    } else {
        for (int m = 0; m < VARIABLES; m++)
            f->rhs[p][m] -= OMEGA * sum[m];
        solve_vector(d, f->rhs[p]);
    }
}

/* Wavefronts i + j + k = s: all points of one are independent. */
static void sweep_threads(struct flow *f, int upper)
{
    size_t n = f->n, last = 3 * (n - 2);

#pragma omp parallel
    for (size_t w = 3; w <= last; w++) {
        size_t s = upper ? last + 3 - w : w;

#pragma omp for schedule(static)
        for (size_t k = 1; k < n - 1; k++)
            for (size_t j = 1; j < n - 1; j++)
                if (s >= k + j + 1 && s - k - j < n - 1)
                    relax(f, point(f, s - k - j, j, k), upper);
    }
}

static void sweep_ranks(struct flow *f, struct run *run, int upper)
{
    size_t n = f->n, low = f->first ? f->first : 1, high = f->last < n ? f->last : n - 1;
    size_t row = n * VARIABLES;
    int before = upper ? run->rank + 1 : run->rank - 1, after = upper ? run->rank - 1 : run->rank + 1;
    int tag = upper ? TAG_UPPER : TAG_LOWER;

    for (size_t step = 1; step < n - 1; step++) {
        size_t k = upper ? n - 1 - step : step;

        if (before >= 0 && before < run->ranks)
            recv_from(run, f->rhs[point(f, 0, upper ? high : low - 1, k)], row, before, tag);
        for (size_t a = low; a < high; a++)
            for (size_t b = 1; b < n - 1; b++) {
                size_t j = upper ? high - 1 - (a - low) : a, i = upper ? n - 1 - b : b;

                relax(f, point(f, i, j, k), upper);
            }
        if (after >= 0 && after < run->ranks)
            send_to(run, f->rhs[point(f, 0, upper ? low : high - 1, k)], row, after, tag);
    }
}

/* Two rows of u from each neighbour, all planes in one message. */
static void swap_ghosts(struct flow *f, struct run *run)
{
    size_t n = f->n, row = n * VARIABLES, count = 2 * n * row;
    double *out = reserve(2 * count, sizeof *out), *in = out + count;

    /* Even ranks begin to the right, odd ones to the left. */
    for (int turn = 0; turn < 2; turn++) {
        int right = (run->rank + turn) % 2 == 0, with = right ? run->rank + 1 : run->rank - 1;

        if (with < 0 || with >= run->ranks)
            continue;
        size_t mine = right ? f->last - 2 : f->first, theirs = right ? f->last : f->first - 2;

        for (size_t k = 0; k < n; k++)
            memcpy(out + 2 * k * row, f->u[point(f, 0, mine, k)], 2 * row * sizeof(double));
        swap_with(run, out, in, count, with, TAG_GHOSTS);
        for (size_t k = 0; k < n; k++)
            memcpy(f->u[point(f, 0, theirs, k)], in + 2 * k * row, 2 * row * sizeof(double));
    }
    free(out);
}

static void step(struct flow *f, struct run *run)
{
    size_t n = f->n, low = f->first ? f->first : 1, high = f->last < n ? f->last : n - 1;
    double scale = 1 / (OMEGA * (2 - OMEGA));

#pragma omp parallel for
    for (size_t k = 1; k < n - 1; k++)
        for (size_t p = point(f, 0, low, k); p < point(f, 0, high, k); p++)
            for (int m = 0; m < VARIABLES; m++)
                f->rhs[p][m] *= f->dt;
    for (int upper = 0; upper < 2; upper++) {
        if (run->ranks > 1)
            sweep_ranks(f, run, upper);
        else
            sweep_threads(f, upper);
    }
#pragma omp parallel for
    for (size_t k = 1; k < n - 1; k++)
        for (size_t j = low; j < high; j++)
            for (size_t i = 1; i < n - 1; i++)
                for (int m = 0; m < VARIABLES; m++)
                    f->u[point(f, i, j, k)][m] += scale * f->rhs[point(f, i, j, k)][m];
    swap_ghosts(f, run);
    compute_rhs(f);
}

int main(int argc, char **argv)
{
    struct run run = begin("LU", "SWA", argc, argv);
    const struct size *size = SIZES;

    while (size->class != run.class)
        size++;
    struct flow f = make_flow(size->n, size->dt);

    f.first = share(size->n, run.rank, run.ranks);
    f.last = share(size->n, run.rank + 1, run.ranks);
    memset(f.rhs, 0, size->n * size->n * size->n * sizeof(vector));
    compute_rhs(&f);
    double start = now_seconds(), inner = (double)((size->n - 2) * (size->n - 2) * (size->n - 2));
    vector residual, error;

    for (int n = 0; n < size->steps; n++)
        step(&f, &run);
    double seconds = now_seconds() - start;
    int good = 1;

    residual_squares(&f, residual);
    error_squares(&f, 1, error);
    sum_all(&run, residual, VARIABLES);
    sum_all(&run, error, VARIABLES);
    for (int m = 0; m < VARIABLES; m++) {
        residual[m] = sqrt(residual[m] / inner);
        error[m] = sqrt(error[m] / inner);
        good &= close_to("residual", residual[m], size->residual[m], 1e-8);
        good &= close_to("error", error[m], size->error[m], 1e-8);
    }
    return finish(&run, seconds, good, residual[0]);
}
