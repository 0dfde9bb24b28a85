/* Outlive: load balancing, by diffusion or by a fresh partition, inside a parallel program.
 *
 * The caller describes its objects by query functions, as for Zoltan, and gets
 * back which to send and which to receive. The library has no MPI in it: compile
 * c/outlive_balance_mpi.c with your own mpicc and call outlive_balance_mpi().
 *
 *   outlive_balance_result result;
 *   if (outlive_balance_mpi(MPI_COMM_WORLD, &queries, NULL, &result))
 *       fprintf(stderr, "%s\n", outlive_balance_error());
 *   ... send result.exports[i] to rank result.exports_to[i] ...
 *   outlive_balance_free(&result);
 *
 * All calls are collective. An error on one rank is an error on all.
 *
 * Without MPI, and so that a process that fails does not end the others, the same over
 * TCP between the processes:
 *
 *   outlive_balance_rails *rails;
 *   outlive_balance_meet(folder, NULL, rank, size, 0, &rails);
 *   ... outlive_balance_on_rails(rails, &queries, NULL, &result) every few steps ...
 *   outlive_balance_leave(rails);
 */
#ifndef OUTLIVE_BALANCE_H
#define OUTLIVE_BALANCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the caller has. Functions return 0, or a positive number of their own. */
typedef struct outlive_balance_queries {
    void *context; /* handed to every function */
    int (*objects_count)(void *context, uint64_t *count);
    /* Global numbers, unique over all ranks, and weights (finite, above zero). */
    int (*objects)(void *context, uint64_t count, uint64_t *numbers, double *weights);
    int (*edges_count)(void *context, uint64_t count, const uint64_t *numbers, uint32_t *degrees);
    /* Other ends and weights, object by object. Each edge is listed at both ends
     * with one weight; an object does not list itself, nor an end twice. */
    int (*edges)(void *context, uint64_t count, const uint64_t *numbers, uint64_t *others, double *weights);
    /* Three coordinates an object; NULL if there are none. They only break ties. */
    int (*coordinates)(void *context, uint64_t count, const uint64_t *numbers, double *xyz);
} outlive_balance_queries;

enum outlive_balance_method {
    OUTLIVE_BALANCE_DIFFUSION = 0, /* between neighbours, on all ranks */
    /* A fresh partition under names that keep objects where they are, by one rank that holds
     * the whole graph: at most 2^20 objects with 2^24 ends of edges. */
    OUTLIVE_BALANCE_SCRATCH = 1,
    /* Both, by one rank, and the better is taken; diffusion alone on all ranks where the graph
     * is larger than that. */
    OUTLIVE_BALANCE_AUTO = 2
};

/* Zero everywhere means the defaults; so does NULL. tolerance, migration_price, seed and
 * method must be the same on all ranks. */
typedef struct outlive_balance_options {
    double tolerance;       /* max / average - 1 that is good enough; 0: 0.02 */
    double migration_price; /* edges that keeping an object is worth; 0: 0.1 */
    double speed;           /* of this rank, relative to others; 0: 1 */
    double background;      /* load of this rank that cannot move */
    uint64_t seed;          /* chooses the order of pairs */
    int leaving;            /* not 0: this rank ends without objects; one rank must stay */
    int method;             /* enum outlive_balance_method */
} outlive_balance_options;

typedef struct outlive_balance_result {
    double imbalance_before, imbalance; /* the same on all ranks */
    uint32_t rounds, iterations;
    uint64_t exports_count; /* own objects that go */
    uint64_t *exports;
    uint32_t *exports_to;
    uint64_t imports_count; /* objects that come */
    uint64_t *imports;
    uint32_t *imports_from;
    int fresh; /* not 0: the partition is a fresh one */
} outlive_balance_result;

/* How to reach other processes: MPI's is in c/outlive_balance_mpi.c. */
typedef struct outlive_balance_transport {
    void *context;
    uint32_t rank, size;
    int (*send)(void *context, uint32_t to, uint32_t tag, const uint8_t *bytes, uint64_t length);
    /* Waits for a message with the tag from *from (UINT32_MAX: anyone). */
    int (*wait)(void *context, uint32_t *from, uint32_t tag, uint64_t *length);
    int (*take)(void *context, uint8_t *bytes, uint64_t length);
    int (*all_gather)(void *context, double value, double *values);
    /* Called twice: with in == NULL it sets in_lengths; then it fills in. */
    int (*all_to_all)(void *context, const uint8_t *out, const uint64_t *out_lengths, uint8_t *in,
                      uint64_t *in_lengths);
} outlive_balance_transport;

/* Returns 0, or minus the number of an Outlive error code. */
int outlive_balance_over(const outlive_balance_transport *transport, const outlive_balance_queries *queries,
                         const outlive_balance_options *options, outlive_balance_result *result);

/* The processes of a job without MPI. */
typedef struct outlive_balance_rails outlive_balance_rails;

/* Meets the others: all ranks from 0 to size - 1 give one folder, on storage that all
 * reach, not used by an earlier run. interface: an IP address of this process that the
 * others reach; NULL is 127.0.0.1. patience_ms bounds this wait and every later one for
 * a process that is not known to be dead; 0: ten minutes. Returns 0 and the rails, or
 * minus the number of an Outlive error code and NULL. Rails are for one thread at a
 * time. */
int outlive_balance_meet(const char *folder, const char *interface, uint32_t rank, uint32_t size,
                         uint64_t patience_ms, outlive_balance_rails **rails);
/* As outlive_balance_over. If processes fail, also within the call, the others balance
 * what they have among themselves; the objects of those that failed are gone, and edges
 * to them are dropped. All that return 0 know the same failed ones, and no list names
 * one of them. */
int outlive_balance_on_rails(outlive_balance_rails *rails, const outlive_balance_queries *queries,
                             const outlive_balance_options *options, outlive_balance_result *result);
/* How many have failed or left, as of the last call; the first room of them in ranks. */
uint32_t outlive_balance_failed(const outlive_balance_rails *rails, uint32_t *ranks, uint32_t room);
/* The others go on without this process. NULL is fine. */
void outlive_balance_leave(outlive_balance_rails *rails);

/* Frees the lists of a result; all zero and NULL are fine. */
void outlive_balance_free(outlive_balance_result *result);
/* The text of this thread's last error. */
const char *outlive_balance_error(void);

#ifdef __cplusplus
}
#endif
#endif
