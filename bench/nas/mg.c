/* MG, multigrid: V-cycles on the Poisson equation with periodic boundaries.
 * RNR-94-007, section 2.2.2; the norm of the residual is the published one.
 */
#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHARGES 10
#define LEVELS_MAX 10

static const double RESIDUAL[4] = {-8.0 / 3, 0, 1.0 / 6, 1.0 / 12};
static const double SMOOTHER[4] = {-3.0 / 8, 1.0 / 32, -1.0 / 64, 0};
static const double RESTRICTION[4] = {1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16};

static size_t at(size_t n, size_t i, size_t j, size_t k)
{
    return (k * n + j) * n + i;
}

/* The 27-point stencil with one weight for each distance. */
static double stencil(const double *u, size_t n, size_t i, size_t j, size_t k, const double *weight)
{
    size_t x[3] = {(i + n - 1) % n, i, (i + 1) % n};
    size_t y[3] = {(j + n - 1) % n, j, (j + 1) % n};
    size_t z[3] = {(k + n - 1) % n, k, (k + 1) % n};
    double sum[4] = {0, 0, 0, 0};

    for (int c = 0; c < 3; c++)
        for (int b = 0; b < 3; b++)
            for (int a = 0; a < 3; a++)
                sum[(a != 1) + (b != 1) + (c != 1)] += u[at(n, x[a], y[b], z[c])];
    return weight[0] * sum[0] + weight[1] * sum[1] + weight[2] * sum[2] + weight[3] * sum[3];
}

/* r = v - A u; r may be v. */
static void residual(const double *u, const double *v, double *r, size_t n)
{
#pragma omp parallel for
    for (size_t k = 0; k < n; k++)
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < n; i++)
                r[at(n, i, j, k)] = v[at(n, i, j, k)] - stencil(u, n, i, j, k, RESIDUAL);
}

/* u += S r */
static void smooth(double *u, const double *r, size_t n)
{
#pragma omp parallel for
    for (size_t k = 0; k < n; k++)
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < n; i++)
                u[at(n, i, j, k)] += stencil(r, n, i, j, k, SMOOTHER);
}

static void restrict_to(double *coarse, const double *fine, size_t n)
{
#pragma omp parallel for
    for (size_t k = 0; k < n; k++)
        for (size_t j = 0; j < n; j++)
            for (size_t i = 0; i < n; i++)
                coarse[at(n, i, j, k)] = stencil(fine, 2 * n, 2 * i + 1, 2 * j + 1, 2 * k + 1, RESTRICTION);
}

/* fine += the trilinear interpolation of coarse; coarse i lies on fine 2i + 1. */
static void interpolate(double *fine, const double *coarse, size_t n)
{
#pragma omp parallel for
    for (size_t k = 0; k < 2 * n; k++)
        for (size_t j = 0; j < 2 * n; j++)
            for (size_t i = 0; i < 2 * n; i++) {
                size_t x[2] = {(i + 2 * n - 1) / 2 % n, i / 2};
                size_t y[2] = {(j + 2 * n - 1) / 2 % n, j / 2};
                size_t z[2] = {(k + 2 * n - 1) / 2 % n, k / 2};
                double sum = 0;

                for (int c = 0; c < 8; c++)
                    sum += coarse[at(n, x[c & 1], y[c >> 1 & 1], z[c >> 2])];
                fine[at(2 * n, i, j, k)] += sum / 8;
            }
}

static void cycle(double **u, double **r, const double *v, int top)
{
    for (int level = top; level > 1; level--)
        restrict_to(r[level - 1], r[level], (size_t)1 << (level - 1));
    memset(u[1], 0, 8 * sizeof(double));
    smooth(u[1], r[1], 2);
    for (int level = 2; level <= top; level++) {
        size_t n = (size_t)1 << level;

        if (level < top)
            memset(u[level], 0, n * n * n * sizeof(double));
        interpolate(u[level], u[level - 1], n / 2);
        residual(u[level], level == top ? v : r[level], r[level], n);
        smooth(u[level], r[level], n);
    }
}

static double norm(const double *r, size_t n)
{
    double sum = 0;

#pragma omp parallel for reduction(+ : sum)
    for (size_t i = 0; i < n * n * n; i++)
        sum += r[i] * r[i];
    return sqrt(sum / (double)(n * n * n));
}

/* +1 where the ten largest random numbers fall, -1 where the ten smallest do. */
static void charge(double *v, size_t n)
{
    size_t all = n * n * n, where[2][CHARGES];
    double *random = reserve(all, sizeof *random);
    uint64_t x = SEED_DEFAULT;

    for (size_t i = 0; i < all; i++)
        random[i] = next_random(&x, MULTIPLIER);
    for (int side = 0; side < 2; side++)
        for (int c = 0; c < CHARGES; c++) {
            size_t best = all;

            for (size_t i = 0; i < all; i++) {
                int taken = 0;

                for (int b = 0; b < c; b++)
                    taken |= where[side][b] == i;
                if (!taken && (best == all || (side ? random[i] < random[best] : random[i] > random[best])))
                    best = i;
            }
            where[side][c] = best;
            v[best] = side ? -1 : 1;
        }
    free(random);
}

int main(int argc, char **argv)
{
    struct run run = begin("MG", "SWA", argc, argv);
    int top = run.class == 'S' ? 5 : run.class == 'W' ? 7 : 8;
    double expected = run.class == 'S' ? 0.5307707005734e-4 : run.class == 'W' ? 0.6467329375339e-5 : 0.2433365309069e-5;
    double *u[LEVELS_MAX], *r[LEVELS_MAX];
    size_t n = (size_t)1 << top;

    for (int level = 1; level <= top; level++) {
        size_t cells = (size_t)1 << 3 * level;

        u[level] = reserve(cells, sizeof(double));
        r[level] = reserve(cells, sizeof(double));
    }
    double *v = reserve(n * n * n, sizeof(double));

    charge(v, n);
    double start = now_seconds();

    residual(u[top], v, r[top], n);
    double before = norm(r[top], n);

    for (int step = 0; step < 4; step++) {
        cycle(u, r, v, top);
        residual(u[top], v, r[top], n);
    }
    double after = norm(r[top], n), seconds = now_seconds() - start;
    int good = close_to("residual", after, expected, 1e-8) & (after < before / 100);

    return finish(&run, seconds, good, after);
}
