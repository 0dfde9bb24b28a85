/* The transport of outlive_balance.h on an MPI communicator. Compile it with the
 * program's own mpicc: only standard calls are used. */
#define _POSIX_C_SOURCE 200809L
#include "outlive_balance_mpi.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct pending {
    MPI_Request request;
    struct pending *next;
};

struct world {
    MPI_Comm comm;
    int size;
    MPI_Message message;
    struct pending *sends;
};

/* A balancing is hundreds of small messages in a row. Where ranks share a core, who
 * waits for one must let its sender run: MPI libraries keep the core while they wait, up
 * to the scheduler's time slice, which is thousands of times what the message takes.
 * Where each rank has a core, the message is there within the first looks. */
enum { LOOKS = 50 };
static void pause_after(int *looks) {
    if (++*looks > LOOKS) sched_yield();
}

static int finish(MPI_Request *request) {
    int done = 0, looks = 0, status;
    while ((status = MPI_Test(request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done) pause_after(&looks);
    return status;
}

/* Frees what has been sent; with `all`, waits for the rest. */
static int reap(struct world *world, int all) {
    struct pending **at = &world->sends;
    while (*at) {
        struct pending *one = *at;
        int done = 0;
        int status = all ? finish(&one->request) : MPI_Test(&one->request, &done, MPI_STATUS_IGNORE);
        if (status != MPI_SUCCESS) return status;
        if (all || done) {
            *at = one->next;
            free(one);
        } else {
            at = &one->next;
        }
    }
    return MPI_SUCCESS;
}

static int send_copy(void *context, uint32_t to, uint32_t tag, const uint8_t *bytes, uint64_t length) {
    struct world *world = context;
    if (length > INT_MAX) return MPI_ERR_COUNT;
    int status = reap(world, 0);
    if (status != MPI_SUCCESS) return status;
    struct pending *one = malloc(sizeof *one + length);
    if (!one) return MPI_ERR_NO_MEM;
    if (length) memcpy(one + 1, bytes, length);
    status = MPI_Isend(one + 1, (int)length, MPI_BYTE, (int)to, (int)tag, world->comm, &one->request);
    if (status != MPI_SUCCESS) {
        free(one);
        return status;
    }
    one->next = world->sends;
    world->sends = one;
    return MPI_SUCCESS;
}

static int wait_for(void *context, uint32_t *from, uint32_t tag, uint64_t *length) {
    struct world *world = context;
    MPI_Status found;
    int count, here = 0, looks = 0, status, source = *from == UINT32_MAX ? MPI_ANY_SOURCE : (int)*from;
    while ((status = MPI_Improbe(source, (int)tag, world->comm, &here, &world->message, &found)) == MPI_SUCCESS &&
           !here)
        pause_after(&looks);
    if (status == MPI_SUCCESS) status = MPI_Get_count(&found, MPI_BYTE, &count);
    if (status != MPI_SUCCESS) return status;
    *from = (uint32_t)found.MPI_SOURCE;
    *length = (uint64_t)count;
    return MPI_SUCCESS;
}

static int take(void *context, uint8_t *bytes, uint64_t length) {
    struct world *world = context;
    return MPI_Mrecv(bytes, (int)length, MPI_BYTE, &world->message, MPI_STATUS_IGNORE);
}

static int all_gather(void *context, double value, double *values) {
    struct world *world = context;
    MPI_Request request;
    int status = MPI_Iallgather(&value, 1, MPI_DOUBLE, values, 1, MPI_DOUBLE, world->comm, &request);
    return status == MPI_SUCCESS ? finish(&request) : status;
}

static int all_to_all(void *context, const uint8_t *out, const uint64_t *out_lengths, uint8_t *in,
                      uint64_t *in_lengths) {
    struct world *world = context;
    MPI_Request request;
    if (!in) {
        int status =
            MPI_Ialltoall(out_lengths, 1, MPI_UINT64_T, in_lengths, 1, MPI_UINT64_T, world->comm, &request);
        return status == MPI_SUCCESS ? finish(&request) : status;
    }
    size_t size = (size_t)world->size;
    int *numbers = malloc(4 * size * sizeof *numbers), status = MPI_SUCCESS;
    if (!numbers) return MPI_ERR_NO_MEM;
    uint64_t out_next = 0, in_next = 0;
    for (size_t p = 0; p < size; p++) {
        numbers[p] = (int)out_lengths[p];
        numbers[size + p] = (int)out_next;
        numbers[2 * size + p] = (int)in_lengths[p];
        numbers[3 * size + p] = (int)in_next;
        out_next += out_lengths[p];
        in_next += in_lengths[p];
    }
    /* Where nothing goes, the caller's pointer may be anything, MPI_IN_PLACE too. */
    uint8_t nothing = 0;
    if (!out_next) out = &nothing;
    if (!in_next) in = &nothing;
    if (out_next > INT_MAX || in_next > INT_MAX) status = MPI_ERR_COUNT;
    if (status == MPI_SUCCESS)
        status = MPI_Ialltoallv(out, numbers, numbers + size, MPI_BYTE, in, numbers + 2 * size,
                                numbers + 3 * size, MPI_BYTE, world->comm, &request);
    if (status == MPI_SUCCESS) status = finish(&request);
    free(numbers);
    return status;
}

/* After a failure messages may be left that nobody waits for any more; a
 * communicator must not be freed over them. */
static void discard(struct world *world) {
    int found = 1;
    MPI_Barrier(world->comm);
    while (found) {
        MPI_Message message;
        MPI_Status status;
        int count;
        if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, world->comm, &found, &message, &status) || !found) return;
        MPI_Get_count(&status, MPI_BYTE, &count);
        uint8_t *bytes = malloc(count > 0 ? (size_t)count : 1);
        if (!bytes) return;
        MPI_Mrecv(bytes, count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        free(bytes);
    }
}

int outlive_balance_mpi(MPI_Comm comm, const outlive_balance_queries *queries,
                        const outlive_balance_options *options, outlive_balance_result *result) {
    struct world world = {MPI_COMM_NULL, 0, MPI_MESSAGE_NULL, NULL};
    MPI_Request request;
    int rank, code;
    if (MPI_Comm_idup(comm, &world.comm, &request) != MPI_SUCCESS || finish(&request) != MPI_SUCCESS) return -308;
    MPI_Comm_rank(world.comm, &rank);
    MPI_Comm_size(world.comm, &world.size);
    outlive_balance_transport transport = {
        &world, (uint32_t)rank, (uint32_t)world.size, send_copy, wait_for, take, all_gather, all_to_all,
    };
    code = outlive_balance_over(&transport, queries, options, result);
    /* An error is one on all ranks; without one every message was received. */
    if (code) discard(&world);
    reap(&world, 1);
    MPI_Comm_free(&world.comm);
    return code;
}
