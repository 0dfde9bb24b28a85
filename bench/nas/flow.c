/* See flow.h. */
#include "flow.h"

#include <math.h>
#include <string.h>

/* Coefficients of the exact solution: RNR-94-007, table 3.1. */
static const double EXACT[VARIABLES][13] = {
    {2, 0, 0, 4, 5, 3, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3},
    {1, 0, 0, 0, 1, 2, 3, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
    {2, 2, 0, 0, 0, 2, 3, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},
    {2, 2, 0, 0, 0, 2, 3, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
    {5, 4, 3, 2, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2},
};

static void exact(double x, double y, double z, vector u)
{
    for (int m = 0; m < VARIABLES; m++) {
        const double *c = EXACT[m];

        u[m] = c[0] + x * (c[1] + x * (c[4] + x * (c[7] + x * c[10]))) +
               y * (c[2] + y * (c[5] + y * (c[8] + y * c[11]))) +
               z * (c[3] + z * (c[6] + z * (c[9] + z * c[12])));
    }
}

static void exact_at(const struct flow *f, size_t i, size_t j, size_t k, vector u)
{
    double h = 1 / (double)(f->n - 1);

    exact((double)i * h, (double)j * h, (double)k * h, u);
}

static int on_face(const struct flow *f, size_t i, size_t j, size_t k)
{
    size_t last = f->n - 1;

    return i == 0 || j == 0 || k == 0 || i == last || j == last || k == last;
}

/* Transfinite interpolation of the boundary: section 3.3. */
static void start_at(const struct flow *f, size_t i, size_t j, size_t k, vector u)
{
    double h = 1 / (double)(f->n - 1), at[3] = {(double)i * h, (double)j * h, (double)k * h};
    vector p[3];

    if (on_face(f, i, j, k)) {
        exact_at(f, i, j, k, u);
        return;
    }
    for (int d = 0; d < 3; d++) {
        double low[3] = {at[0], at[1], at[2]}, high[3] = {at[0], at[1], at[2]};
        vector a, b;

        low[d] = 0;
        high[d] = 1;
        exact(low[0], low[1], low[2], a);
        exact(high[0], high[1], high[2], b);
        for (int m = 0; m < VARIABLES; m++)
            p[d][m] = at[d] * b[m] + (1 - at[d]) * a[m];
    }
    for (int m = 0; m < VARIABLES; m++)
        u[m] = p[0][m] + p[1][m] + p[2][m] - p[0][m] * p[1][m] - p[0][m] * p[2][m] -
               p[1][m] * p[2][m] + p[0][m] * p[1][m] * p[2][m];
}

static void fill(struct flow *f, void value(const struct flow *, size_t, size_t, size_t, vector))
{
#pragma omp parallel for
    for (size_t k = 0; k < f->n; k++)
        for (size_t j = 0; j < f->n; j++)
            for (size_t i = 0; i < f->n; i++)
                value(f, i, j, k, f->u[point(f, i, j, k)]);
}

void reset_flow(struct flow *f)
{
    fill(f, start_at);
}

struct flow make_flow(size_t n, double dt)
{
    size_t all = n * n * n;
    double h = 1 / (double)(n - 1);
    struct flow f = {.n = n, .last = n, .dt = dt, .t1 = 1 / (h * h), .t2 = 1 / (2 * h), .t3 = 1 / h};

    f.u = reserve(all, sizeof(vector));
    f.rhs = reserve(all, sizeof(vector));
    f.forcing = reserve(all, sizeof(vector));
    for (int d = 0; d < 3; d++)
        f.velocity[d] = reserve(all, sizeof(double));
    f.inverse = reserve(all, sizeof(double));
    f.square = reserve(all, sizeof(double));
    /* The forcing makes the exact solution a steady one of the discrete
     * equations: section 3.3.2. */
    fill(&f, exact_at);
    compute_rhs(&f);
    for (size_t p = 0; p < all; p++)
        for (int m = 0; m < VARIABLES; m++)
            f.forcing[p][m] = -f.rhs[p][m];
    reset_flow(&f);
    return f;
}

/* What compute_rhs needs of each point, for own rows and two beside them. */
static void prepare(struct flow *f)
{
    size_t low = f->first > 2 ? f->first - 2 : 0, high = f->last + 2 < f->n ? f->last + 2 : f->n;

#pragma omp parallel for
    for (size_t k = 0; k < f->n; k++)
        for (size_t j = low; j < high; j++)
            for (size_t i = 0; i < f->n; i++) {
                size_t p = point(f, i, j, k);
                const double *u = f->u[p];
                double inverse = 1 / u[0];

                f->inverse[p] = inverse;
                f->square[p] = 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * inverse;
                for (int d = 0; d < 3; d++)
                    f->velocity[d][p] = u[d + 1] * inverse;
            }
}

/* Convection and viscosity along an axis at p; neighbours are `stride` away. */
static void add_fluxes(const struct flow *f, int axis, size_t p, size_t stride, vector out)
{
    size_t a = p - stride, b = p + stride;
    const double *um = f->u[a], *u0 = f->u[p], *up = f->u[b];
    double vm = f->velocity[axis][a], v0 = f->velocity[axis][p], vp = f->velocity[axis][b];
    double viscous = C34 * f->t3 * f->t3, damping = dissipation_of(axis) * f->t1;
    double qm = f->square[a] * f->inverse[a], q0 = f->square[p] * f->inverse[p], qp = f->square[b] * f->inverse[b];

    for (int m = 0; m < VARIABLES; m++)
        out[m] += damping * (up[m] - 2 * u0[m] + um[m]);
    out[0] -= f->t2 * (up[axis + 1] - um[axis + 1]);
    for (int d = 0; d < 3; d++) {
        const double *w = f->velocity[d];
        double factor = d == axis ? 4.0 / 3 : 1, pressure = 0;

        if (d == axis)
            pressure = C2 * (up[4] - f->square[b] - um[4] + f->square[a]);
        out[d + 1] += factor * viscous * (w[b] - 2 * w[p] + w[a]) -
                      f->t2 * (up[d + 1] * vp - um[d + 1] * vm + pressure);
    }
    out[4] += (1 - C1 * C5) * viscous * (qp - 2 * q0 + qm) +
              viscous / 6 * (vp * vp - 2 * v0 * v0 + vm * vm) +
              C1 * C5 * viscous * (up[4] * f->inverse[b] - 2 * u0[4] * f->inverse[p] + um[4] * f->inverse[a]) -
              f->t2 * ((C1 * up[4] - C2 * f->square[b]) * vp - (C1 * um[4] - C2 * f->square[a]) * vm);
}

/* Fourth differences, one-sided beside the boundary: section 3.2.3. */
static void add_dissipation(const struct flow *f, size_t at, size_t p, size_t stride, vector out)
{
    size_t n = f->n;

    for (int m = 0; m < VARIABLES; m++) {
        double sum = (at == 1 || at == n - 2 ? 5 : 6) * f->u[p][m];

        if (at > 1)
            sum -= 4 * f->u[p - stride][m];
        if (at > 2)
            sum += f->u[p - 2 * stride][m];
        if (at < n - 2)
            sum -= 4 * f->u[p + stride][m];
        if (at < n - 3)
            sum += f->u[p + 2 * stride][m];
        out[m] -= DISSIPATION * sum;
    }
}

void compute_rhs(struct flow *f)
{
    size_t n = f->n, low = f->first ? f->first : 1, high = f->last < n ? f->last : n - 1;

    prepare(f);
#pragma omp parallel for
    for (size_t k = 1; k < n - 1; k++)
        for (size_t j = low; j < high; j++)
            for (size_t i = 1; i < n - 1; i++) {
                size_t p = point(f, i, j, k);
                double *out = f->rhs[p];

                memcpy(out, f->forcing[p], sizeof(vector));
                add_fluxes(f, 0, p, 1, out);
                add_fluxes(f, 1, p, n, out);
                add_fluxes(f, 2, p, n * n, out);
                add_dissipation(f, i, p, 1, out);
                add_dissipation(f, j, p, n, out);
                add_dissipation(f, k, p, n * n, out);
            }
}

void residual_squares(const struct flow *f, vector sums)
{
    size_t n = f->n, low = f->first ? f->first : 1, high = f->last < n ? f->last : n - 1;

    memset(sums, 0, sizeof(vector));
    for (size_t k = 1; k < n - 1; k++)
        for (size_t j = low; j < high; j++)
            for (size_t i = 1; i < n - 1; i++)
                for (int m = 0; m < VARIABLES; m++) {
                    double value = f->rhs[point(f, i, j, k)][m];

                    sums[m] += value * value;
                }
}

void error_squares(const struct flow *f, int inner, vector sums)
{
    size_t n = f->n;

    memset(sums, 0, sizeof(vector));
    for (size_t k = 0; k < n; k++)
        for (size_t j = f->first; j < f->last; j++)
            for (size_t i = 0; i < n; i++) {
                vector wanted;

                if (inner && on_face(f, i, j, k))
                    continue;
                exact_at(f, i, j, k, wanted);
                for (int m = 0; m < VARIABLES; m++) {
                    double value = f->u[point(f, i, j, k)][m] - wanted[m];

                    sums[m] += value * value;
                }
            }
}

/* Section 3.4, written for any axis: the momentum along it plays the part of
 * the first one. */
void jacobians(const double *u, int axis, block a, block v)
{
    int d = axis + 1;
    double t1 = 1 / u[0], t2 = t1 * t1, t3 = t1 * t2, all = u[1] * u[1] + u[2] * u[2] + u[3] * u[3];

    memset(a, 0, sizeof(block));
    memset(v, 0, sizeof(block));
    a[0][d] = 1;
    for (int m = 1; m < 4; m++) {
        double viscosity = m == d ? 4.0 / 3 * C34 : C34;

        a[m][0] = -u[d] * u[m] * t2;
        a[m][d] += u[m] * t1;
        a[m][m] += u[d] * t1;
        v[m][0] = -viscosity * t2 * u[m];
        v[m][m] = viscosity * t1;
        v[4][0] -= (viscosity - C1345) * t3 * u[m] * u[m];
        v[4][m] = (viscosity - C1345) * t2 * u[m];
        a[4][m] = -C2 * u[m] * u[d] * t2;
        a[d][m] -= C2 * u[m] * t1;
    }
    a[d][0] += C2 * 0.5 * all * t2;
    a[d][4] = C2;
    a[4][0] = (C2 * all * t2 - C1 * u[4] * t1) * u[d] * t1;
    a[4][d] += C1 * u[4] * t1 - C2 * 0.5 * all * t2;
    a[4][4] = C1 * u[d] * t1;
    v[4][0] -= C1345 * t2 * u[4];
    v[4][4] = C1345 * t1;
}

void factor(block a)
{
    for (int p = 0; p < VARIABLES; p++)
        for (int row = p + 1; row < VARIABLES; row++) {
            a[row][p] /= a[p][p];
            for (int column = p + 1; column < VARIABLES; column++)
                a[row][column] -= a[row][p] * a[p][column];
        }
}

void solve_vector(block a, vector b)
{
    for (int row = 1; row < VARIABLES; row++)
        for (int p = 0; p < row; p++)
            b[row] -= a[row][p] * b[p];
    for (int row = VARIABLES - 1; row >= 0; row--) {
        for (int p = row + 1; p < VARIABLES; p++)
            b[row] -= a[row][p] * b[p];
        b[row] /= a[row][row];
    }
}

void solve_block(block a, block b)
{
    for (int column = 0; column < VARIABLES; column++) {
        vector one;

        for (int row = 0; row < VARIABLES; row++)
            one[row] = b[row][column];
        solve_vector(a, one);
        for (int row = 0; row < VARIABLES; row++)
            b[row][column] = one[row];
    }
}
