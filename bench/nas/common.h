/* What all kernels share: the linear congruential generator of the NAS
 * specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section
 * 2.3), time, the report, and messages when built with -DRANKS.
 */
#ifndef NAS_COMMON_H
#define NAS_COMMON_H

#include <stddef.h>
#include <stdint.h>

#define SEED_DEFAULT 314159265u
#define MULTIPLIER 1220703125u /* 5^13 */
#define MODULUS_BITS 46

/* x <- a x mod 2^46, as a number in (0, 1). */
static inline double next_random(uint64_t *x, uint64_t a)
{
    const uint64_t mask = (UINT64_C(1) << MODULUS_BITS) - 1;
    *x = (uint64_t)((unsigned __int128)*x * a) & mask;
    return (double)*x * 0x1p-46;
}

/* a^n mod 2^46. */
uint64_t power_of(uint64_t a, uint64_t n);

/* The seed after n numbers. */
static inline uint64_t skip_ahead(uint64_t seed, uint64_t n)
{
    const uint64_t mask = (UINT64_C(1) << MODULUS_BITS) - 1;
    return (uint64_t)((unsigned __int128)seed * power_of(MULTIPLIER, n)) & mask;
}

double now_seconds(void);
/* malloc of zeroes that ends the program with a message if there is no memory. */
void *reserve(size_t count, size_t bytes);
/* |value - expected| <= tolerance * |expected|, and says so on stderr if not. */
int close_to(const char *what, double value, double expected, double tolerance);

/* One run of one kernel. */
struct run {
    const char *name;
    char class;
    int rank, ranks;
    double team; /* Seconds in which the threads were made. */
    void *comm;
};

/* Reads the class from the command line, joins the job if there is one, and makes the
 * threads: as in the NAS benchmarks, whose first iteration is not timed, they are there
 * when the clock starts. What they cost is told beside. */
struct run begin(const char *name, const char *classes, int argc, char **argv);
/* Prints one line of JSON on rank 0, leaves, and gives the exit status. */
int finish(struct run *run, double seconds, int verified, double value);

/* Messages; without -DRANKS there is one rank and they do nothing. A failure
 * ends the program with its message. */
void sum_all(struct run *run, double *values, size_t count);
void gather_rows(struct run *run, double *values, const size_t *offsets); /* ranks + 1 offsets */
void send_to(struct run *run, const double *values, size_t count, int to, int tag);
void recv_from(struct run *run, double *values, size_t count, int from, int tag);
void swap_with(struct run *run, const double *out, double *in, size_t count, int with, int tag);
void all_to_all(struct run *run, const void *data, const size_t *lengths, const size_t *offsets,
                void *out, const size_t *out_lengths, const size_t *out_offsets);
/* First row of `rank` when `rows` are shared out. */
static inline size_t share(size_t rows, int rank, int ranks)
{
    return rows * (size_t)rank / (size_t)ranks;
}

#endif
