/* Ranks that need no launcher and no library but liboutlive: each mixes numbers of its own, and
 * says where it began. With --start each there is one on every node.
 *
 *   walk OUT STEPS SLEEP_US
 *
 * Writes OUT.RANK: a digest. Ends with 0.
 */
#include <outlive.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CELLS = 1 << 14 };

static uint64_t cells[CELLS];

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    return x ^ x >> 31;
}

int main(int argc, char **argv) {
    outlive_job *job = NULL;
    if (argc < 4 || outlive_open(NULL, &job) != OUTLIVE_OK) return 2;
    outlive_status_t status = {.size = sizeof status};
    if (outlive_status(job, &status) != OUTLIVE_OK) return 3;
    int rank = status.rank;
    uint64_t version = 0, steps = strtoull(argv[2], NULL, 10);
    long long pause = atoll(argv[3]);
    for (int i = 0; i < CELLS; i++) cells[i] = mix((uint64_t)(rank * CELLS + i + 1));
    if (outlive_protect(job, "cells", cells, sizeof cells) != OUTLIVE_OK) return 3;
    if (outlive_restore(job, &version) < 0) return 4;
    printf("rank %d from %llu\n", rank, (unsigned long long)version);
    fflush(stdout);
    for (uint64_t step = version; step < steps; step++) {
        if (outlive_checkpoint(job, step) < 0) return 5;
        for (int i = 0; i < CELLS; i++) cells[i] = mix(cells[i] + cells[(i + 1) % CELLS]);
        struct timespec time = {pause / 1000000, pause % 1000000 * 1000};
        nanosleep(&time, NULL);
    }
    uint64_t digest = 0;
    for (int i = 0; i < CELLS; i++) digest = mix(digest + cells[i]);
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[1], rank);
    FILE *out = fopen(name, "w");
    if (!out || fprintf(out, "%llx\n", (unsigned long long)digest) < 0 || fclose(out) != 0) return 6;
    outlive_close(&job);
    return 0;
}
