/* outlive_sessions.h: messages between the ranks of a job that arrive exactly
 * once although connections break and kernels below the ranks are replaced.
 *
 * Every function that returns int gives 0, or the negative of a code of
 * docs/errors.md (-204 would be OL-204); outlive_comm_error() says more.
 * One thread at a time may be in a call. A rank joins by OUTLIVE_COMM_RANK,
 * OUTLIVE_COMM_HOSTS (a file, host:port a line) and OUTLIVE_COMM_KEY (a file of
 * 32 secret bytes, mode 0600); docs/sessions.md has the rest.
 */
#ifndef OUTLIVE_SESSIONS_H
#define OUTLIVE_SESSIONS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct outlive_comm outlive_comm;
/* A nonblocking operation; 0 is none. */
typedef uint64_t outlive_comm_request;

typedef struct {
    int source;
    int tag;
    size_t bytes;
} outlive_comm_status;

/* Counts since outlive_comm_open. */
typedef struct {
    uint64_t links;    /* connections that stood */
    uint64_t again;    /* frames that came twice and were dropped */
    uint64_t silences; /* connections cut because the peer was silent */
    uint64_t absences; /* times this process was stopped or its clock jumped */
    uint64_t rebirths; /* times all descriptors were found dead */
    uint64_t alive;    /* acknowledgements sent alone */
} outlive_comm_counts;

#define OUTLIVE_COMM_ANY (-1)

/* Kinds of elements, and operators. */
#define OUTLIVE_COMM_DOUBLE 1
#define OUTLIVE_COMM_INT32 2
#define OUTLIVE_COMM_INT64 3
#define OUTLIVE_COMM_SUM 1
#define OUTLIVE_COMM_MAX 2
#define OUTLIVE_COMM_MIN 3

/* Joins the job and waits for all ranks. Later two ranks are connected from their
 * first message on. On failure *comm is NULL, and outlive_comm_error(NULL) tells
 * this thread why. */
int outlive_comm_open(outlive_comm **comm);
/* Waits for all ranks, leaves the job and frees comm, also on failure. */
int outlive_comm_close(outlive_comm *comm);
int outlive_comm_rank(const outlive_comm *comm);
int outlive_comm_size(const outlive_comm *comm);
/* The last error of this thread, never NULL; valid until its next call. */
const char *outlive_comm_error(const outlive_comm *comm);
int outlive_comm_count(const outlive_comm *comm, outlive_comm_counts *counts);

/* Tags are 0 or above. A receive takes any source or tag with OUTLIVE_COMM_ANY; one
 * of any source fails if a rank is given up that this one has talked with, and does
 * not miss one that it never talked with. status may be NULL. A message that is longer than the buffer is an error. */
int outlive_comm_send(outlive_comm *comm, const void *data, size_t bytes, int to, int tag);
int outlive_comm_recv(outlive_comm *comm, void *data, size_t bytes, int from, int tag,
                      outlive_comm_status *status);
int outlive_comm_sendrecv(outlive_comm *comm, const void *data, size_t bytes, int to, void *out,
                          size_t out_bytes, int from, int tag, outlive_comm_status *status);
/* The bytes belong to the library until the request is complete. */
int outlive_comm_isend(outlive_comm *comm, const void *data, size_t bytes, int to, int tag,
                       outlive_comm_request *request);
int outlive_comm_irecv(outlive_comm *comm, void *data, size_t bytes, int from, int tag,
                       outlive_comm_request *request);
/* Sets *request to 0. A request of 0 is complete. */
int outlive_comm_wait(outlive_comm *comm, outlive_comm_request *request,
                      outlive_comm_status *status);
int outlive_comm_waitall(outlive_comm *comm, size_t count, outlive_comm_request *requests);
int outlive_comm_test(outlive_comm *comm, outlive_comm_request *request, int *done,
                      outlive_comm_status *status);

/* Collectives: every rank calls them in the same order with fitting counts. */
int outlive_comm_barrier(outlive_comm *comm);
int outlive_comm_bcast(outlive_comm *comm, void *data, size_t bytes, int root);
/* In place; data of other ranks than root is undefined afterwards. */
int outlive_comm_reduce(outlive_comm *comm, void *data, size_t count, int kind, int op, int root);
/* In place, the same bits on every rank. */
int outlive_comm_allreduce(outlive_comm *comm, void *data, size_t count, int kind, int op);
/* bytes to and from every rank. */
int outlive_comm_alltoall(outlive_comm *comm, const void *data, void *out, size_t bytes);
/* Offsets and lengths in bytes, one for each rank. */
int outlive_comm_alltoallv(outlive_comm *comm, const void *data, const size_t *lengths,
                           const size_t *offsets, void *out, const size_t *out_lengths,
                           const size_t *out_offsets);

/* Fault injection: breaks the connection with peer; loses every descriptor, as a
 * process does whose kernel was replaced. */
int outlive_comm_break(outlive_comm *comm, int peer);
int outlive_comm_lose_descriptors(outlive_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
