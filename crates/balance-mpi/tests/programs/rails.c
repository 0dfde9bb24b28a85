/* A process of the test in rails.rs: a ring of objects in runs, balanced again and again.
 * Prints a line a call: the failed ones, then the objects that it has. From the call of
 * the fifth argument on it ends each without objects. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "outlive_balance.h"

#define OBJECTS 120

static uint64_t own[OBJECTS];
static uint64_t count;
static unsigned call;

static int objects_count(void *context, uint64_t *out) {
    (void)context;
    *out = count;
    return 0;
}

/* A heavy tenth that wanders. */
static int objects(void *context, uint64_t n, uint64_t *numbers, double *weights) {
    (void)context;
    for (uint64_t i = 0; i < n; i++) {
        numbers[i] = own[i];
        weights[i] = (own[i] / 12 + OBJECTS - call) % 10 == 0 ? 5.0 : 1.0;
    }
    return 0;
}

static int edges_count(void *context, uint64_t n, const uint64_t *numbers, uint32_t *degrees) {
    (void)context;
    (void)numbers;
    for (uint64_t i = 0; i < n; i++) degrees[i] = 2;
    return 0;
}

static int edges(void *context, uint64_t n, const uint64_t *numbers, uint64_t *others, double *weights) {
    (void)context;
    for (uint64_t i = 0; i < n; i++) {
        others[2 * i] = (numbers[i] + OBJECTS - 1) % OBJECTS;
        others[2 * i + 1] = (numbers[i] + 1) % OBJECTS;
        weights[2 * i] = weights[2 * i + 1] = 1.0;
    }
    return 0;
}

static void move(const outlive_balance_result *result) {
    for (uint64_t e = 0; e < result->exports_count; e++)
        for (uint64_t i = 0; i < count; i++)
            if (own[i] == result->exports[e]) own[i--] = own[--count];
    for (uint64_t i = 0; i < result->imports_count; i++) own[count++] = result->imports[i];
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    uint32_t rank = (uint32_t)atoi(argv[2]), size = (uint32_t)atoi(argv[3]), failed[64];
    unsigned calls = (unsigned)atoi(argv[4]), leaves = argc > 5 ? (unsigned)atoi(argv[5]) : calls;
    outlive_balance_queries queries = {NULL, objects_count, objects, edges_count, edges, NULL};
    outlive_balance_rails *rails;
    for (uint64_t object = 0; object < OBJECTS; object++)
        if (object * size / OBJECTS == rank) own[count++] = object;
    if (outlive_balance_meet(argv[1], NULL, rank, size, 20000, &rails)) {
        fprintf(stderr, "%s\n", outlive_balance_error());
        return 1;
    }
    for (call = 0; call < calls; call++) {
        outlive_balance_result result;
        outlive_balance_options options = {0};
        options.leaving = call >= leaves;
        if (outlive_balance_on_rails(rails, &queries, &options, &result)) {
            fprintf(stderr, "%s\n", outlive_balance_error());
            return 1;
        }
        move(&result);
        outlive_balance_free(&result);
        uint32_t gone = outlive_balance_failed(rails, failed, 64);
        printf("%u failed", call);
        for (uint32_t i = 0; i < gone; i++) printf(" %u", failed[i]);
        printf(" objects");
        for (uint64_t i = 0; i < count; i++) printf(" %llu", (unsigned long long)own[i]);
        printf("\n");
        fflush(stdout);
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    outlive_balance_leave(rails);
    return 0;
}
