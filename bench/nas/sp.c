/* SP: approximate factorization, diagonalized, with scalar pentadiagonal systems
 * along each axis. RNR-94-007, section 3.5.3; the norms are the published ones.
 */
#include "flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HALF_ROOT 0.70710678118654752440 /* sqrt(1/2) */

struct size {
    char class;
    size_t n;
    int steps;
    double dt;
    vector residual, error;
};

static const struct size SIZES[] = {
    {'S', 12, 100, 0.015,
     {0.02747031545133948, 0.010360746705285417, 0.016235745065095532, 0.015840557224455615, 0.03484904060936246},
     {2.7289258557377225e-05, 1.0364446640837285e-05, 1.615479828716647e-05, 1.57507049944801e-05, 3.417766618339053e-05}},
    {'W', 36, 400, 0.0015,
     {0.001893253733584, 0.0001717075447775, 0.0002778153350936, 0.0002887475409984, 0.003143611161242},
     {7.542088599534e-05, 6.512852253086e-06, 1.049092285688e-05, 1.128838671535e-05, 0.0001212845639773}},
    {'A', 64, 400, 0.0015,
     {2.4799822399300195, 1.1276337964368832, 1.5028977888770492, 1.421781621169518, 2.129211303513828},
     {0.0001090014029782055, 3.734395176928209e-05, 5.009278540654163e-05, 4.767109393952825e-05, 0.00013621613399213}},
};

typedef double band[5];

static double sound(const struct flow *f, size_t p)
{
    return sqrt(C1 * C2 * f->inverse[p] * (f->u[p][4] - f->square[p]));
}

/* Pentadiagonal rows for the eigenvalue v + direction * c. */
static void set_up(const struct flow *f, int axis, size_t p, size_t stride, double direction, band *rows)
{
    size_t n = f->n;
    double t1 = f->dt * f->t1, t2 = f->dt * f->t2, z = f->dt * DISSIPATION, damping = dissipation_of(axis);

    memset(rows, 0, n * sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        size_t q = p + i * stride;
        double viscous = C34 * f->inverse[q], speed = f->velocity[axis][q] + direction * sound(f, q);
        /* The largest viscous eigenvalue along the axis. */
        double rho = fmax(fmax(damping + 4.0 / 3 * viscous, damping + C1 * C5 * viscous), damping + viscous);

        if (i == 0 || i == n - 1)
            rows[i][2] = 1;
        else
            rows[i][2] = 1 + 2 * t1 * rho + (i == 1 || i == n - 2 ? 5 : 6) * z;
        if (i + 1 < n - 1)
            rows[i + 1][1] = -t2 * speed - t1 * rho - (i + 1 > 1 ? 4 * z : 0);
        if (i > 1)
            rows[i - 1][3] = t2 * speed - t1 * rho - (i - 1 < n - 2 ? 4 * z : 0);
        if (i > 2 && i < n - 1)
            rows[i][0] = z;
        if (i > 0 && i < n - 3)
            rows[i][4] = z;
    }
}

/* Elimination for the variables from..to-1. */
static void solve(const struct flow *f, size_t p, size_t stride, band *rows, int from, int to)
{
    size_t n = f->n;

    for (size_t i = 0; i < n; i++) {
        double pivot = 1 / rows[i][2];
        double *b = f->rhs[p + i * stride];

        rows[i][3] *= pivot;
        rows[i][4] *= pivot;
        for (int m = from; m < to; m++)
            b[m] *= pivot;
        for (size_t next = i + 1; next < n && next <= i + 2; next++) {
            int column = next == i + 1 ? 1 : 0;
            double weight = rows[next][column];
            double *c = f->rhs[p + next * stride];

            rows[next][column + 1] -= weight * rows[i][3];
            rows[next][column + 2] -= weight * rows[i][4];
            for (int m = from; m < to; m++)
                c[m] -= weight * b[m];
        }
    }
    for (size_t i = n - 1; i-- > 0;)
        for (int m = from; m < to; m++) {
            double *b = &f->rhs[p + i * stride][m];

            *b -= rows[i][3] * f->rhs[p + (i + 1) * stride][m];
            if (i + 2 < n)
                *b -= rows[i][4] * f->rhs[p + (i + 2) * stride][m];
        }
}

static void sweep(struct flow *f, int axis)
{
    size_t n = f->n, strides[3] = {1, n, n * n};
    size_t stride = strides[axis], s1 = strides[axis == 0], s2 = strides[axis == 2 ? 1 : 2];

#pragma omp parallel
    {
        band *rows = reserve(n, sizeof *rows);

#pragma omp for
        for (size_t b = 1; b < n - 1; b++)
            for (size_t a = 1; a < n - 1; a++) {
                size_t p = a * s1 + b * s2;

                set_up(f, axis, p, stride, 0, rows);
                solve(f, p, stride, rows, 0, 3);
                set_up(f, axis, p, stride, 1, rows);
                solve(f, p, stride, rows, 3, 4);
                set_up(f, axis, p, stride, -1, rows);
                solve(f, p, stride, rows, 4, 5);
            }
        free(rows);
    }
}

/* To the eigenvectors of the first axis: T_xi inverse. */
static void enter(const struct flow *f, size_t p, vector r)
{
    double inverse = f->inverse[p], c = sound(f, p), r1 = r[0];
    double u = f->velocity[0][p], v = f->velocity[1][p], w = f->velocity[2][p];
    double q = f->square[p] * inverse;
    double t1 = C2 / (c * c) * (q * r1 - u * r[1] - v * r[2] - w * r[3] + r[4]);
    double t2 = HALF_ROOT * inverse * (u * r1 - r[1]), t3 = HALF_ROOT * inverse * c * t1;
    vector out = {r1 - t1, -inverse * (w * r1 - r[3]), inverse * (v * r1 - r[2]), -t2 + t3, t2 + t3};

    memcpy(r, out, sizeof(vector));
}

/* From the first axis to the second: T_xi inverse times T_eta, and so on. */
static void turn_to_second(vector r)
{
    double t1 = HALF_ROOT * r[2], t2 = 0.5 * (r[3] + r[4]);
    vector out = {-r[1], r[0], HALF_ROOT * (r[3] - r[4]), -t1 + t2, t1 + t2};

    memcpy(r, out, sizeof(vector));
}

static void turn_to_third(vector r)
{
    double t1 = HALF_ROOT * r[0], t2 = 0.5 * (r[3] + r[4]);
    vector out = {HALF_ROOT * (r[3] - r[4]), -r[2], r[1], -t1 + t2, t1 + t2};

    memcpy(r, out, sizeof(vector));
}

/* Back from the eigenvectors of the third axis: T_zeta. */
static void leave(const struct flow *f, size_t p, vector r)
{
    double rho = f->u[p][0], c = sound(f, p), scaled = HALF_ROOT * rho;
    double u = f->velocity[0][p], v = f->velocity[1][p], w = f->velocity[2][p];
    double t1 = scaled / c * (r[3] + r[4]), t2 = r[2] + t1, t3 = scaled * (r[3] - r[4]);
    double energy = rho * (v * r[0] - u * r[1]) + f->square[p] / rho * t2 + c * c / C2 * t1 + w * t3;
    vector out = {t2, -rho * r[1] + u * t2, rho * r[0] + v * t2, w * t2 + t3, energy};

    memcpy(r, out, sizeof(vector));
}

static void each_inside(struct flow *f, int what)
{
    size_t n = f->n;

#pragma omp parallel for
    for (size_t k = 1; k < n - 1; k++)
        for (size_t j = 1; j < n - 1; j++)
            for (size_t i = 1; i < n - 1; i++) {
                size_t p = point(f, i, j, k);
                double *r = f->rhs[p];

                if (what == 0) {
                    for (int m = 0; m < VARIABLES; m++)
                        r[m] *= f->dt;
                    enter(f, p, r);
                } else if (what == 1) {
                    turn_to_second(r);
                } else if (what == 2) {
                    turn_to_third(r);
                } else {
                    leave(f, p, r);
                    for (int m = 0; m < VARIABLES; m++)
                        f->u[p][m] += r[m];
                }
            }
}

int main(int argc, char **argv)
{
    struct run run = begin("SP", "SWA", argc, argv);
    const struct size *size = SIZES;

    while (size->class != run.class)
        size++;
    struct flow f = make_flow(size->n, size->dt);
    double start = now_seconds(), inner = (double)((size->n - 2) * (size->n - 2) * (size->n - 2));
    vector residual, error;

    for (int n = 0; n < size->steps; n++) {
        compute_rhs(&f);
        each_inside(&f, 0);
        for (int axis = 0; axis < 3; axis++) {
            sweep(&f, axis);
            each_inside(&f, axis + 1);
        }
    }
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
