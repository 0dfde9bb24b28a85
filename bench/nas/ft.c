/* FT, a partial differential equation by fast Fourier transforms. RNR-94-007,
 * section 2.2.4; the checksums are the published ones. Beside them, Parseval's
 * theorem is checked on the first transform.
 */
#include "common.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef CMPLX /* An older clang does not define it. */
#define CMPLX(re, im) __builtin_complex((double)(re), (double)(im))
#endif

#define STEPS 6
#define SAMPLES 1024
#define ALPHA 1e-6
#define PI 3.14159265358979323846

static const double complex EXPECTED_S[STEPS] = {
    5.546087004964e2 + 4.845363331978e2 * I, 5.546385409189e2 + 4.865304269511e2 * I,
    5.546148406171e2 + 4.883910722336e2 * I, 5.545423607415e2 + 4.901273169046e2 * I,
    5.544255039624e2 + 4.917475857993e2 * I, 5.542683411902e2 + 4.932597244941e2 * I,
};
static const double complex EXPECTED_W[STEPS] = {
    5.673612178944e2 + 5.293246849175e2 * I, 5.631436885271e2 + 5.282149986629e2 * I,
    5.594024089970e2 + 5.270996558037e2 * I, 5.560698047020e2 + 5.260027904925e2 * I,
    5.530898991250e2 + 5.249400845633e2 * I, 5.504159734538e2 + 5.239212247086e2 * I,
};

/* One transform in place: bit reversal, then radix-2 butterflies. */
static void transform(double complex *data, size_t n, const double complex *roots, int inverse)
{
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n / 2;

        for (; j & bit; bit /= 2)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            double complex other = data[i];

            data[i] = data[j];
            data[j] = other;
        }
    }
    for (size_t half = 1; half < n; half *= 2)
        for (size_t base = 0; base < n; base += 2 * half)
            for (size_t k = 0; k < half; k++) {
                double complex root = roots[k * (n / (2 * half))];
                double re, im, wr = creal(root), wi = inverse ? -cimag(root) : cimag(root);
                double complex other = data[base + half + k], first = data[base + k];

                /* By hand: the library's product looks for infinities. */
                re = wr * creal(other) - wi * cimag(other);
                im = wr * cimag(other) + wi * creal(other);
                data[base + k] = first + CMPLX(re, im);
                data[base + half + k] = first - CMPLX(re, im);
            }
}

/* All lines along one axis: `lines` begin at outer + inner. */
static void axis(double complex *data, size_t n, size_t stride, size_t outer, size_t outer_stride, size_t inner, size_t inner_stride, int inverse)
{
    double complex *roots = reserve(n, sizeof *roots);

    for (size_t k = 0; k < n; k++)
        roots[k] = CMPLX(cos(2 * PI * (double)k / (double)n), -sin(2 * PI * (double)k / (double)n));
#pragma omp parallel
    {
        double complex *line = reserve(n, sizeof *line);

#pragma omp for
        for (size_t a = 0; a < outer; a++)
            for (size_t b = 0; b < inner; b++) {
                double complex *from = data + a * outer_stride + b * inner_stride;

                for (size_t i = 0; i < n; i++)
                    line[i] = from[i * stride];
                transform(line, n, roots, inverse);
                for (size_t i = 0; i < n; i++)
                    from[i * stride] = line[i];
            }
        free(line);
    }
    free(roots);
}

static void transform_3d(double complex *data, size_t nx, size_t ny, size_t nz, int inverse)
{
    axis(data, nx, 1, nz, nx * ny, ny, nx, inverse);
    axis(data, ny, nx, nz, nx * ny, nx, 1, inverse);
    axis(data, nz, nx * ny, ny, nx, nx, 1, inverse);
}

static double wave(size_t index, size_t n)
{
    return index >= n / 2 ? (double)index - (double)n : (double)index;
}

static double energy(const double complex *data, size_t count)
{
    double sum = 0;

#pragma omp parallel for reduction(+ : sum)
    for (size_t i = 0; i < count; i++)
        sum += creal(data[i]) * creal(data[i]) + cimag(data[i]) * cimag(data[i]);
    return sum;
}

int main(int argc, char **argv)
{
    struct run run = begin("FT", "SW", argc, argv);
    size_t nx = run.class == 'S' ? 64 : 128, ny = nx, nz = run.class == 'S' ? 64 : 32;
    const double complex *expected = run.class == 'S' ? EXPECTED_S : EXPECTED_W;
    size_t all = nx * ny * nz;
    double complex *spectrum = reserve(all, sizeof *spectrum), *field = reserve(all, sizeof *field);
    uint64_t x = SEED_DEFAULT;

    for (size_t i = 0; i < all; i++) {
        double re = next_random(&x, MULTIPLIER);

        spectrum[i] = CMPLX(re, next_random(&x, MULTIPLIER));
    }
    double start = now_seconds(), before = energy(spectrum, all);
    double complex sum = 0;

    transform_3d(spectrum, nx, ny, nz, 0);
    int good = close_to("energy (Parseval)", energy(spectrum, all), before * (double)all, 1e-12);

    for (int step = 1; step <= STEPS; step++) {
#pragma omp parallel for
        for (size_t k = 0; k < nz; k++)
            for (size_t j = 0; j < ny; j++)
                for (size_t i = 0; i < nx; i++) {
                    double kx = wave(i, nx), ky = wave(j, ny), kz = wave(k, nz);
                    double square = kx * kx + ky * ky + kz * kz;
                    size_t place = (k * ny + j) * nx + i;

                    field[place] = spectrum[place] * exp(-4 * ALPHA * PI * PI * square * step);
                }
        transform_3d(field, nx, ny, nz, 1);
        sum = 0;
        for (size_t s = 1; s <= SAMPLES; s++)
            sum += field[((5 * s % nz) * ny + 3 * s % ny) * nx + s % nx];
        sum /= (double)all;
        good &= close_to("checksum, real part", creal(sum), creal(expected[step - 1]), 1e-11);
        good &= close_to("checksum, imaginary part", cimag(sum), cimag(expected[step - 1]), 1e-11);
    }
    return finish(&run, now_seconds() - start, good, creal(sum));
}
