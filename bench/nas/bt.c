/* BT: approximate factorization with block tridiagonal systems along each axis.
 * RNR-94-007, section 3.5.2; the norms are the published ones.
 */
#include "flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct size {
    char class;
    size_t n;
    int steps;
    double dt;
    vector residual, error;
};

static const struct size SIZES[] = {
    {'S', 12, 60, 0.01,
     {0.17034283709541312, 0.012975252070034096, 0.032527926989486054, 0.0264364212751668, 0.1921178413174443},
     {0.0004997691334581158, 4.519566678296193e-05, 7.397376517292135e-05, 7.382123863243973e-05, 0.0008926963098749145}},
    {'W', 24, 200, 0.0008,
     {112.5590409344, 11.80007595731, 27.10329767846, 24.69174937669, 263.8427874317},
     {4.419655736008, 0.4638531260002, 1.011551749967, 0.9235878729944, 10.18045837718}},
    {'A', 64, 200, 0.0008,
     {108.06346714637264, 11.319730901220813, 25.974354511582465, 23.66562254467891, 252.78963211748345},
     {4.2348416040525025, 0.443902824969957, 0.9669248013634565, 0.8830206303976548, 9.737990177082928}},
};

struct line {
    block *lower, *middle, *upper;
};

/* The rows of one line's system. */
static void set_up(const struct flow *f, int axis, size_t p, size_t stride, struct line *line)
{
    size_t n = f->n;
    double t1 = f->dt * f->t1, t2 = f->dt * f->t2, damping = dissipation_of(axis);

    for (size_t i = 0; i < n; i++) {
        memset(line->lower[i], 0, sizeof(block));
        memset(line->middle[i], 0, sizeof(block));
        memset(line->upper[i], 0, sizeof(block));
        for (int m = 0; m < VARIABLES; m++)
            line->middle[i][m][m] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        block a, v;

        jacobians(f->u[p + i * stride], axis, a, v);
        for (int r = 0; r < VARIABLES; r++)
            for (int c = 0; c < VARIABLES; c++) {
                double viscous = t1 * (v[r][c] + (r == c ? damping : 0)), convective = t2 * a[r][c];

                if (i > 0 && i < n - 1)
                    line->middle[i][r][c] += 2 * viscous;
                if (i + 1 < n - 1)
                    line->lower[i + 1][r][c] = -convective - viscous;
                if (i > 1)
                    line->upper[i - 1][r][c] = convective - viscous;
            }
    }
}

/* Block elimination without exchanging rows (Thomas). */
static void solve_line(const struct flow *f, size_t p, size_t stride, struct line *line)
{
    size_t n = f->n;

    for (size_t i = 0; i < n; i++) {
        double *b = f->rhs[p + i * stride];

        if (i > 0) {
            const double *before = f->rhs[p + (i - 1) * stride];

            for (int r = 0; r < VARIABLES; r++)
                for (int k = 0; k < VARIABLES; k++) {
                    double weight = line->lower[i][r][k];

                    b[r] -= weight * before[k];
                    for (int c = 0; c < VARIABLES; c++)
                        line->middle[i][r][c] -= weight * line->upper[i - 1][k][c];
                }
        }
        factor(line->middle[i]);
        solve_vector(line->middle[i], b);
        solve_block(line->middle[i], line->upper[i]);
    }
    for (size_t i = n - 1; i-- > 0;) {
        double *b = f->rhs[p + i * stride];
        const double *after = f->rhs[p + (i + 1) * stride];

        for (int r = 0; r < VARIABLES; r++)
            for (int k = 0; k < VARIABLES; k++)
                b[r] -= line->upper[i][r][k] * after[k];
    }
}

static void sweep(struct flow *f, int axis)
{
    size_t n = f->n, strides[3] = {1, n, n * n};
    size_t stride = strides[axis], s1 = strides[axis == 0], s2 = strides[axis == 2 ? 1 : 2];

#pragma omp parallel
    {
        struct line line = {reserve(n, sizeof(block)), reserve(n, sizeof(block)), reserve(n, sizeof(block))};

#pragma omp for
        for (size_t b = 1; b < n - 1; b++)
            for (size_t a = 1; a < n - 1; a++) {
                size_t p = a * s1 + b * s2;

                set_up(f, axis, p, stride, &line);
                solve_line(f, p, stride, &line);
            }
        free(line.lower), free(line.middle), free(line.upper);
    }
}

static void step(struct flow *f)
{
    size_t all = f->n * f->n * f->n;

    compute_rhs(f);
    for (size_t p = 0; p < all; p++)
        for (int m = 0; m < VARIABLES; m++)
            f->rhs[p][m] *= f->dt;
    for (int axis = 0; axis < 3; axis++)
        sweep(f, axis);
    for (size_t p = 0; p < all; p++)
        for (int m = 0; m < VARIABLES; m++)
            f->u[p][m] += f->rhs[p][m];
}

int main(int argc, char **argv)
{
    struct run run = begin("BT", "SWA", argc, argv);
    const struct size *size = SIZES;

    while (size->class != run.class)
        size++;
    struct flow f = make_flow(size->n, size->dt);
    double start = now_seconds(), inner = (double)((size->n - 2) * (size->n - 2) * (size->n - 2));
    vector residual, error;

    for (int n = 0; n < size->steps; n++)
        step(&f);
    double seconds = now_seconds() - start;
    int good = 1;

    compute_rhs(&f);
    residual_squares(&f, residual);
    error_squares(&f, 0, error);
    for (int m = 0; m < VARIABLES; m++) {
        residual[m] = sqrt(residual[m] / inner);
        error[m] = sqrt(error[m] / inner);
        good &= close_to("residual", residual[m], size->residual[m], 1e-8);
        good &= close_to("error", error[m], size->error[m], 1e-8);
    }
    return finish(&run, seconds, good, residual[0]);
}
