/* IS, integer sort: ranks of small integers, ten times with two keys changed
 * each. RNR-94-007, section 2.2.6; the five ranks that are checked in each
 * iteration are the published ones, and the last order is checked whole.
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITERATIONS 10
#define PROBES 5

struct size {
    char class;
    unsigned keys_bits, max_bits;
    size_t place[PROBES], rank[PROBES];
    int rising, lag_rising, lag_falling;
};

/* The first `rising` ranks grow by one with each iteration, the rest shrink. */
static const struct size SIZES[] = {
    {'S', 16, 11, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, 3, 0, 0},
    {'W', 20, 16, {357773, 934767, 875723, 898999, 404505}, {1249, 11698, 1039987, 1043896, 1048018}, 2, 2, 0},
    {'A', 23, 19, {2112377, 662041, 5336171, 3642833, 4250760}, {104, 17523, 123928, 8288932, 8388264}, 3, 1, 1},
};

struct work {
    struct run *run;
    size_t low, high, max;   /* this rank's keys; all keys are below max */
    size_t first, last;      /* the values that this rank counts */
    uint32_t *keys, *mine;   /* own keys in order; keys with own values */
    size_t mine_count;
    size_t *counts;          /* below[v] at the end: keys smaller than first + v */
};

/* Sends each key to the rank that counts its value. */
static void exchange(struct work *w)
{
    int ranks = w->run->ranks;
    size_t bytes = (size_t)ranks * sizeof(size_t), n = w->high - w->low;
    size_t *lengths = reserve((size_t)ranks * 7, sizeof(size_t));
    size_t *offsets = lengths + ranks, *in_lengths = offsets + ranks, *in_offsets = in_lengths + ranks;
    size_t *fill = in_offsets + ranks, *eights = fill + ranks, *places = eights + ranks;
    uint32_t *sorted = reserve(n, sizeof *sorted);

    for (size_t i = 0; i < n; i++)
        lengths[(size_t)w->keys[i] * (size_t)ranks / w->max] += sizeof(uint32_t);
    for (int r = 0; r < ranks; r++) {
        offsets[r] = r ? offsets[r - 1] + lengths[r - 1] : 0;
        fill[r] = offsets[r] / sizeof(uint32_t);
        eights[r] = sizeof(size_t);
        places[r] = (size_t)r * sizeof(size_t);
    }
    for (size_t i = 0; i < n; i++)
        sorted[fill[(size_t)w->keys[i] * (size_t)ranks / w->max]++] = w->keys[i];
    all_to_all(w->run, lengths, eights, places, in_lengths, eights, places);
    size_t total = 0;

    for (int r = 0; r < ranks; r++) {
        in_offsets[r] = total;
        total += in_lengths[r];
    }
    free(w->mine);
    w->mine = reserve(total / sizeof(uint32_t), sizeof(uint32_t));
    w->mine_count = total / sizeof(uint32_t);
    all_to_all(w->run, sorted, lengths, offsets, w->mine, in_lengths, in_offsets);
    free(sorted), free(lengths);
    (void)bytes;
}

/* How many of all keys are smaller than each own value. */
static void rank_keys(struct work *w)
{
    size_t values = w->last - w->first;

    exchange(w);
    memset(w->counts, 0, (values + 1) * sizeof(size_t));
#pragma omp parallel
    {
        size_t *local = reserve(values, sizeof *local);

#pragma omp for nowait
        for (size_t i = 0; i < w->mine_count; i++)
            local[w->mine[i] - w->first]++;
#pragma omp critical
        for (size_t v = 0; v < values; v++)
            w->counts[v + 1] += local[v];
        free(local);
    }
    double *held = reserve((size_t)w->run->ranks, sizeof *held);
    size_t below = 0;

    held[w->run->rank] = (double)w->mine_count;
    sum_all(w->run, held, (size_t)w->run->ranks);
    for (int r = 0; r < w->run->rank; r++)
        below += (size_t)held[r];
    free(held);
    w->counts[0] = below;
    for (size_t v = 0; v < values; v++)
        w->counts[v + 1] += w->counts[v];
}

/* The key at a place of the whole sequence, known to all ranks. */
static size_t key_at(const struct work *w, size_t place)
{
    double key = place >= w->low && place < w->high ? w->keys[place - w->low] : 0;

    sum_all(w->run, &key, 1);
    return (size_t)key;
}

static int check_probes(const struct work *w, const struct size *size, int iteration)
{
    int good = 1;

    for (int p = 0; p < PROBES; p++) {
        size_t key = key_at(w, size->place[p]);
        long expected = (long)size->rank[p];

        expected += p < size->rising ? iteration - size->lag_rising : size->lag_falling - iteration;
        if (key >= w->first && key < w->last && (long)w->counts[key - w->first] != expected) {
            fprintf(stderr, "iteration %d: rank of key %zu is %zu, expected %ld\n", iteration, key,
                    w->counts[key - w->first], expected);
            good = 0;
        }
    }
    return good;
}

/* Puts the keys in order by their ranks, and looks at all of them. */
static int check_order(const struct work *w, size_t all)
{
    size_t base = w->counts[0];
    uint32_t *out = reserve(w->mine_count, sizeof *out);
    size_t values = w->last - w->first, *next = reserve(values, sizeof *next);
    double sums[2] = {(double)w->mine_count, 0};
    int good = 1;

    for (size_t v = 0; v < values; v++)
        next[v] = w->counts[v] - base;
    for (size_t i = 0; i < w->mine_count; i++)
        out[next[w->mine[i] - w->first]++] = w->mine[i];
    for (size_t i = 1; i < w->mine_count; i++)
        good &= out[i - 1] <= out[i];
    for (size_t i = 0; i < w->mine_count; i++)
        sums[1] += out[i];
    for (size_t i = 0; i < w->high - w->low; i++)
        sums[1] -= w->keys[i]; /* Nothing lost, nothing made up. */
    sum_all(w->run, sums, 2);
    free(out), free(next);
    return good && sums[0] == (double)all && sums[1] == 0;
}

int main(int argc, char **argv)
{
    struct run run = begin("IS", "SWA", argc, argv);
    const struct size *size = SIZES;

    while (size->class != run.class)
        size++;
    size_t all = (size_t)1 << size->keys_bits, max = (size_t)1 << size->max_bits;
    struct work w = {.run = &run, .max = max};

    w.low = share(all, run.rank, run.ranks);
    w.high = share(all, run.rank + 1, run.ranks);
    /* Value v belongs to rank v * ranks / max. */
    w.first = (max * (size_t)run.rank + (size_t)run.ranks - 1) / (size_t)run.ranks;
    w.last = (max * ((size_t)run.rank + 1) + (size_t)run.ranks - 1) / (size_t)run.ranks;
    w.keys = reserve(w.high - w.low, sizeof(uint32_t));
    w.counts = reserve(w.last - w.first + 1, sizeof(size_t));
    uint64_t x = skip_ahead(SEED_DEFAULT, 4 * (uint64_t)w.low);

    for (size_t i = 0; i < w.high - w.low; i++) {
        double sum = 0;

        for (int k = 0; k < 4; k++)
            sum += next_random(&x, MULTIPLIER);
        w.keys[i] = (uint32_t)((double)(max / 4) * sum);
    }
    double start = now_seconds(), ranks = 0;
    int good = 1;

    for (int iteration = 1; iteration <= ITERATIONS; iteration++) {
        size_t places[2] = {(size_t)iteration, (size_t)iteration + ITERATIONS};

        for (int p = 0; p < 2; p++)
            if (places[p] >= w.low && places[p] < w.high)
                w.keys[places[p] - w.low] = p ? (uint32_t)max - (uint32_t)iteration : (uint32_t)iteration;
        rank_keys(&w);
        good &= check_probes(&w, size, iteration);
    }
    double seconds = now_seconds() - start;

    good &= check_order(&w, all);
    for (size_t v = 0; v < w.last - w.first; v++)
        ranks += (double)w.counts[v];
    sum_all(&run, &ranks, 1);
    return finish(&run, seconds, good, ranks);
}
