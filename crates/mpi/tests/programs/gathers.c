/* MPI_Gather, MPI_Gatherv, MPI_Allgather and MPI_Allgatherv, in both forms of their counts,
 * against the native library's (PMPI_*): random counts, zeros among them, places with gaps and
 * in any order, datatypes with and without gaps, roots, communicators and MPI_IN_PLACE.
 *
 *   gathers SEED ROUNDS
 *
 * All bytes of the buffers are compared, those too that belong to no part. Prints "checks N"
 * at rank 0; any difference ends the job. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks, rank_of_world;
#define MUST(condition)                                                                           \
    do {                                                                                          \
        checks++;                                                                                 \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "rank %d, line %d: %s\n", rank_of_world, __LINE__, #condition);       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                         \
        }                                                                                         \
    } while (0)

/* The same draws on all ranks (splitmix64). */
static uint64_t state;
static uint64_t draw(uint64_t below) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

enum { RANKS_MAX = 64, GAPS = 3 };
static int counts[RANKS_MAX], places[RANKS_MAX];
#ifdef LARGE_COUNTS
static MPI_Count large_counts[RANKS_MAX];
static MPI_Aint large_places[RANKS_MAX];
#endif

/* One call, twice: natively and through the layer. */
static void once(MPI_Comm comm, MPI_Datatype type) {
    int me, size, most = draw(3) == 0 ? 5000 : draw(2) ? 40 : 2;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    int what = (int)draw(4), root = (int)draw((uint64_t)size), all = what >= 2, each = what % 2;
    int in_place = draw(3) == 0, large = (int)draw(2), total = 0, alike = (int)draw((uint64_t)most);
    int order[RANKS_MAX];
    for (int r = 0; r < size; r++) order[r] = r;
    for (int r = size - 1; r > 0; r--) {
        int other = (int)draw((uint64_t)r + 1), kept = order[r];
        order[r] = order[other], order[other] = kept;
    }
    /* The parts lie in a random order, some elements apart. */
    for (int r = 0; r < size; r++) {
        int one = each ? order[r] : r;
        counts[one] = each ? (draw(3) == 0 ? 0 : (int)draw((uint64_t)most)) : alike;
        if (each) total += (int)draw(GAPS);
        places[one] = total;
        total += counts[one];
    }
    MPI_Aint lower, extent;
    MPI_Type_get_extent(type, &lower, &extent);
    size_t room = (size_t)(total + GAPS) * (size_t)extent + 64;
    size_t own_bytes = (size_t)counts[me] * (size_t)extent + 64;
    unsigned char *own = malloc(own_bytes), *want = malloc(room), *got = malloc(room);
    for (size_t i = 0; i < own_bytes; i++) own[i] = (unsigned char)(rank_of_world * 31 + i * 7 + 1);
    for (size_t i = 0; i < room; i++) want[i] = got[i] = (unsigned char)(i * 13 + 5 + (size_t)me);
    int due = all || me == root;
    /* In place: everywhere, or at the root alone. */
    const void *give = in_place && due ? MPI_IN_PLACE : own;
    int own_count = counts[me];
    int code = 0, native = 0;
    switch (what) {
    case 0: native = PMPI_Gather(give, own_count, type, want, alike, type, root, comm); break;
    case 1: native = PMPI_Gatherv(give, own_count, type, want, counts, places, type, root, comm); break;
    case 2: native = PMPI_Allgather(give, own_count, type, want, alike, type, comm); break;
    default: native = PMPI_Allgatherv(give, own_count, type, want, counts, places, type, comm);
    }
    MUST(native == MPI_SUCCESS);
#ifdef LARGE_COUNTS
    for (int r = 0; r < size; r++) large_counts[r] = counts[r], large_places[r] = places[r];
    if (large) switch (what) {
        case 0: code = MPI_Gather_c(give, own_count, type, got, alike, type, root, comm); break;
        case 1: code = MPI_Gatherv_c(give, own_count, type, got, large_counts, large_places, type, root, comm); break;
        case 2: code = MPI_Allgather_c(give, own_count, type, got, alike, type, comm); break;
        default: code = MPI_Allgatherv_c(give, own_count, type, got, large_counts, large_places, type, comm);
        }
    else
#endif
        switch (what) {
        case 0: code = MPI_Gather(give, own_count, type, due ? got : NULL, alike, due ? type : MPI_DATATYPE_NULL, root, comm); break;
        case 1: code = MPI_Gatherv(give, own_count, type, due ? got : NULL, due ? counts : NULL, due ? places : NULL, due ? type : MPI_DATATYPE_NULL, root, comm); break;
        case 2: code = MPI_Allgather(give, own_count, type, got, alike, type, comm); break;
        default: code = MPI_Allgatherv(give, own_count, type, got, counts, places, type, comm);
        }
    MUST(code == MPI_SUCCESS);
    MUST(memcmp(want, got, room) == 0);
    (void)large;
    free(own), free(want), free(got);
}

int main(int argc, char **argv) {
    int size;
    if (argc < 3) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_of_world);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    state = (uint64_t)strtoull(argv[1], NULL, 10);
    int rounds = atoi(argv[2]);
    MPI_Comm dup, turned;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank_of_world, &turned);
    /* Every second of two ints; two doubles; a struct with a gap at its end. */
    MPI_Datatype strided, pair, padded, odd;
    MPI_Type_vector(2, 1, 2, MPI_INT, &strided);
    MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
    MPI_Type_vector(1, 1, 1, MPI_CHAR, &odd);
    MPI_Type_create_resized(odd, 0, 3, &padded);
    MPI_Type_commit(&strided), MPI_Type_commit(&pair), MPI_Type_commit(&padded);
    MPI_Datatype types[] = {MPI_INT, MPI_DOUBLE, MPI_CHAR, strided, pair, padded};
    MPI_Comm comms[] = {MPI_COMM_WORLD, dup, turned};
    for (int round = 0; round < rounds; round++) {
        MPI_Comm comm = comms[draw(3)];
        once(comm, types[draw(6)]);
        /* The same data as other datatypes here and there. */
        if (draw(4) == 0) {
            int me, n;
            MPI_Comm_rank(comm, &me), MPI_Comm_size(comm, &n);
            double own[6], want[6 * RANKS_MAX], got[6 * RANKS_MAX];
            for (int i = 0; i < 6; i++) own[i] = rank_of_world * 100 + i;
            memset(want, 0, sizeof want), memset(got, 0, sizeof got);
            MUST(PMPI_Allgather(own, 3, pair, want, 6, MPI_DOUBLE, comm) == MPI_SUCCESS);
            MUST(MPI_Allgather(own, 3, pair, got, 6, MPI_DOUBLE, comm) == MPI_SUCCESS);
            MUST(memcmp(want, got, sizeof want) == 0);
        }
    }
    /* What is wrong is an error, here as there. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int value = rank_of_world, from[RANKS_MAX];
    MUST(MPI_Gather(&value, 1, MPI_INT, from, 1, MPI_INT, size, MPI_COMM_WORLD) != MPI_SUCCESS);
    MUST(MPI_Allgather(&value, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS);
    for (int r = 0; r < size; r++) MUST(from[r] == r);
    if (rank_of_world == 0) printf("checks %d\n", checks);
    MPI_Finalize();
    return 0;
}
