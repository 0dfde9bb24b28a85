/* CG, conjugate gradient: the smallest eigenvalue of a random sparse symmetric
 * positive definite matrix by inverse iteration. RNR-94-007, section 2.2.3; zeta
 * is the published one.
 */
#include "common.h"

#include <math.h>
#include <stdlib.h>

#define INNER 25
#define CONDITION 0.1

struct size {
    char class;
    size_t n;
    int nonzeroes, iterations;
    double shift, zeta;
};

static const struct size SIZES[] = {
    {'S', 1400, 7, 15, 10, 8.5971775078648},
    {'W', 7000, 8, 15, 12, 10.362595087124},
    {'A', 14000, 11, 15, 20, 17.130235054029},
    {'B', 75000, 13, 75, 60, 22.712745482631},
};

struct entry {
    size_t column;
    double value;
};

struct matrix {
    size_t n, *start, *column;
    double *value;
};

static int by_column(const void *left, const void *right)
{
    size_t a = ((const struct entry *)left)->column, b = ((const struct entry *)right)->column;

    return (a > b) - (a < b);
}

/* A sparse random vector with 0.5 at `own`; gives its length. */
static int sparse_vector(uint64_t *x, const struct size *size, size_t own, struct entry *out)
{
    int count = 0, has_own = 0;
    size_t power = 1;

    while (power < size->n)
        power *= 2;
    while (count < size->nonzeroes) {
        double value = next_random(x, MULTIPLIER);
        size_t place = (size_t)(next_random(x, MULTIPLIER) * (double)power);
        int known = place >= size->n;

        for (int k = 0; k < count && !known; k++)
            known = out[k].column == place;
        if (!known)
            out[count++] = (struct entry){place, value};
    }
    for (int k = 0; k < count; k++) {
        if (out[k].column == own) {
            out[k].value = 0.5;
            has_own = 1;
        }
    }
    if (!has_own)
        out[count++] = (struct entry){own, 0.5};
    return count;
}

/* The sum of weighted outer products of the vectors, plus a shifted diagonal. */
static struct matrix make_matrix(const struct size *size)
{
    size_t n = size->n, width = (size_t)size->nonzeroes + 1;
    struct entry *vectors = reserve(n * width, sizeof *vectors);
    int *lengths = reserve(n, sizeof *lengths);
    size_t *ends = reserve(n + 1, sizeof *ends);
    uint64_t x = SEED_DEFAULT;
    double weight = 1, ratio = pow(CONDITION, 1 / (double)n);

    (void)next_random(&x, MULTIPLIER);
    for (size_t k = 0; k < n; k++) {
        lengths[k] = sparse_vector(&x, size, k, vectors + k * width);
        for (int a = 0; a < lengths[k]; a++)
            ends[vectors[k * width + (size_t)a].column + 1] += (size_t)lengths[k];
    }
    for (size_t row = 0; row < n; row++)
        ends[row + 1] += ends[row];
    struct entry *all = reserve(ends[n], sizeof *all);
    size_t *fill = reserve(n, sizeof *fill);

    for (size_t k = 0; k < n; k++, weight *= ratio) {
        const struct entry *vector = vectors + k * width;

        for (int a = 0; a < lengths[k]; a++) {
            for (int b = 0; b < lengths[k]; b++) {
                size_t row = vector[a].column, column = vector[b].column;
                double value = vector[b].value * (weight * vector[a].value);

                if (row == column && row == k)
                    value += CONDITION - size->shift;
                all[ends[row] + fill[row]++] = (struct entry){column, value};
            }
        }
    }
    struct matrix matrix = {n, reserve(n + 1, sizeof(size_t)), reserve(ends[n], sizeof(size_t)),
                            reserve(ends[n], sizeof(double))};
    size_t at = 0;

    for (size_t row = 0; row < n; row++) {
        size_t begin = at;

        qsort(all + ends[row], fill[row], sizeof *all, by_column);
        for (size_t k = ends[row]; k < ends[row] + fill[row]; k++) {
            if (at > begin && matrix.column[at - 1] == all[k].column) {
                matrix.value[at - 1] += all[k].value;
            } else {
                matrix.column[at] = all[k].column;
                matrix.value[at++] = all[k].value;
            }
        }
        matrix.start[row + 1] = at;
    }
    free(vectors), free(lengths), free(ends), free(all), free(fill);
    return matrix;
}

struct work {
    struct run *run;
    size_t *offsets, low, high;
    double *x, *z, *p, *q, *r;
};

static double dot(const struct work *w, const double *a, const double *b)
{
    double sum = 0;

#pragma omp parallel for reduction(+ : sum)
    for (size_t i = w->low; i < w->high; i++)
        sum += a[i] * b[i];
    sum_all(w->run, &sum, 1);
    return sum;
}

/* q = A p for this rank's rows; p is gathered first. */
static void multiply(const struct work *w, const struct matrix *m, double *p, double *q)
{
    gather_rows(w->run, p, w->offsets);
#pragma omp parallel for
    for (size_t i = w->low; i < w->high; i++) {
        double sum = 0;

        for (size_t k = m->start[i]; k < m->start[i + 1]; k++)
            sum += m->value[k] * p[m->column[k]];
        q[i] = sum;
    }
}

/* z solves A z = x as far as 25 steps go; the norm of what is left. */
static double solve(const struct work *w, const struct matrix *m)
{
#pragma omp parallel for
    for (size_t i = w->low; i < w->high; i++) {
        w->z[i] = 0;
        w->r[i] = w->p[i] = w->x[i];
    }
    double rho = dot(w, w->r, w->r);

    for (int step = 0; step < INNER; step++) {
        multiply(w, m, w->p, w->q);
        double alpha = rho / dot(w, w->p, w->q), old = rho;

#pragma omp parallel for
        for (size_t i = w->low; i < w->high; i++) {
            w->z[i] += alpha * w->p[i];
            w->r[i] -= alpha * w->q[i];
        }
        rho = dot(w, w->r, w->r);
        double beta = rho / old;

#pragma omp parallel for
        for (size_t i = w->low; i < w->high; i++)
            w->p[i] = w->r[i] + beta * w->p[i];
    }
    multiply(w, m, w->z, w->q);
#pragma omp parallel for
    for (size_t i = w->low; i < w->high; i++)
        w->r[i] = w->x[i] - w->q[i];
    return sqrt(dot(w, w->r, w->r));
}

int main(int argc, char **argv)
{
    struct run run = begin("CG", "SWAB", argc, argv);
    const struct size *size = SIZES;

    while (size->class != run.class)
        size++;
    struct matrix matrix = make_matrix(size);
    struct work w = {&run, reserve((size_t)run.ranks + 1, sizeof(size_t)), 0, 0, NULL, NULL, NULL, NULL, NULL};
    double **vectors[] = {&w.x, &w.z, &w.p, &w.q, &w.r};

    for (int v = 0; v < 5; v++)
        *vectors[v] = reserve(size->n, sizeof(double));
    for (int rank = 0; rank <= run.ranks; rank++)
        w.offsets[rank] = share(size->n, rank, run.ranks);
    w.low = w.offsets[run.rank];
    w.high = w.offsets[run.rank + 1];

    double zeta = 0, left = 0, start = now_seconds();

    for (size_t i = 0; i < size->n; i++)
        w.x[i] = 1;
    for (int step = 0; step < size->iterations; step++) {
        left = solve(&w, &matrix);
        zeta = size->shift + 1 / dot(&w, w.x, w.z);
        double scale = 1 / sqrt(dot(&w, w.z, w.z));

#pragma omp parallel for
        for (size_t i = w.low; i < w.high; i++)
            w.x[i] = scale * w.z[i];
    }
    double seconds = now_seconds() - start;
    int good = close_to("zeta", zeta, size->zeta, 1e-10);

    good &= left < 1e-10; /* Independent of the published value: A z = x holds. */
    return finish(&run, seconds, good, zeta);
}
