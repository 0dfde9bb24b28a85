/* A program of several ranks whose result depends on every byte that they send:
 * rings, reductions and exchanges of random blocks.
 *
 *   ring ROUNDS BYTES [PAUSE_MS]
 *
 * Rank 0 prints one line a round and a last line "digest HEX", which depends on
 * ROUNDS, BYTES and the number of ranks alone.
 */
#define _POSIX_C_SOURCE 200809L
#include <outlive_sessions.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t digest_of(uint64_t digest, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ data[i]) * UINT64_C(0x100000001b3);
    return digest;
}

static void must(int code)
{
    if (code != 0) {
        fprintf(stderr, "%s\n", outlive_comm_error(NULL));
        exit(69);
    }
}

static void pause_for(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static uint64_t round_of(outlive_comm *comm, long round, size_t bytes, uint64_t digest)
{
    int me = outlive_comm_rank(comm), ranks = outlive_comm_size(comm);
    size_t part = bytes / (size_t)ranks, parts[64], places[64];
    unsigned char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    double value = 1.0 / (double)(me + 3 + round % 7);
    outlive_comm_request requests[2];

    if (!out || !in)
        exit(70);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)mix((uint64_t)round * 1000003 + (uint64_t)me * 7919 + i);
    must(outlive_comm_irecv(comm, in, bytes, (me + ranks - 1) % ranks, 3, &requests[0]));
    must(outlive_comm_isend(comm, out, bytes, (me + 1) % ranks, 3, &requests[1]));
    must(outlive_comm_waitall(comm, 2, requests));
    digest = digest_of(digest, in, bytes);
    must(outlive_comm_allreduce(comm, &value, 1, OUTLIVE_COMM_DOUBLE, OUTLIVE_COMM_SUM));
    digest = digest_of(digest, (unsigned char *)&value, sizeof value);
    for (int r = 0; r < ranks; r++) {
        parts[r] = part;
        places[r] = part * (size_t)r;
    }
    must(outlive_comm_alltoallv(comm, out, parts, places, in, parts, places));
    digest = digest_of(digest, in, part * (size_t)ranks);
    free(out), free(in);
    return digest;
}

int main(int argc, char **argv)
{
    outlive_comm *comm;
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    outlive_comm_counts counts;

    if (argc < 3) {
        fprintf(stderr, "usage: %s ROUNDS BYTES [PAUSE_MS]\n", argv[0]);
        return 64;
    }
    long rounds = atol(argv[1]), pause = argc > 3 ? atol(argv[3]) : 0;
    size_t bytes = (size_t)atol(argv[2]);

    must(outlive_comm_open(&comm));
    if (outlive_comm_size(comm) > 64)
        return 64;
    for (long round = 0; round < rounds; round++) {
        digest = round_of(comm, round, bytes, digest);
        if (outlive_comm_rank(comm) == 0) {
            printf("round %ld\n", round);
            fflush(stdout);
        }
        if (pause > 0)
            pause_for(pause);
    }
    int64_t folded = (int64_t)(digest >> 1);

    must(outlive_comm_allreduce(comm, &folded, 1, OUTLIVE_COMM_INT64, OUTLIVE_COMM_SUM));
    must(outlive_comm_count(comm, &counts));
    fprintf(stderr, "rank %d: links %" PRIu64 " again %" PRIu64 " silences %" PRIu64
            " absences %" PRIu64 " rebirths %" PRIu64 "\n",
            outlive_comm_rank(comm), counts.links, counts.again, counts.silences, counts.absences,
            counts.rebirths);
    if (outlive_comm_rank(comm) == 0)
        printf("digest %016" PRIx64 "\n", (uint64_t)folded);
    fflush(stdout);
    must(outlive_comm_close(comm));
    return 0;
}
