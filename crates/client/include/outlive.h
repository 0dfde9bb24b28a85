/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Outlive: a parallel program that goes on after a node dies.
 *
 * Five calls make a program survive:
 *
 *     outlive_job *job;
 *     uint64_t     step = 0;
 *     outlive_open(NULL, &job);                             // 1
 *     outlive_protect(job, "field", field, n * sizeof *field);  // 2
 *     outlive_restore(job, &step);                          // 3
 *     for (; step < steps; step++) {
 *         outlive_checkpoint(job, step);                    // 4
 *         compute(field);
 *     }
 *     outlive_close(&job);                                  // 5
 *
 * and `outlive run -- mpirun -n 8 ./program` starts it. Without `outlive run`
 * the same program runs as ever: every call succeeds and saves nothing.
 *
 * Returns. Every function returns OUTLIVE_OK (0), a positive information, or a
 * negative error: minus one of the numbers below. outlive_strerror() names it,
 * outlive_last_error() says what was affected, why, and what to do. The library
 * never exits, aborts, prints or installs a signal handler (promise P6), and a
 * failed save never stops the program (P4): going on after any error is safe.
 *
 * Threads. A job handle may be used by any thread, by one at a time. Several
 * handles (ranks as threads) are independent.
 *
 * Quiescence. At outlive_checkpoint() no message of the program may be in
 * flight that another rank would receive after its own call with the same
 * version: the usual place is the end of an iteration.
 */
#ifndef OUTLIVE_H
#define OUTLIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTLIVE_ABI 2 /* rises when a declaration below changes its meaning */

/* Success and information. */
#define OUTLIVE_OK 0
#define OUTLIVE_TAKEN 1   /* checkpoint: captured; see outlive_wait() for commitment */
#define OUTLIVE_SKIPPED 2 /* checkpoint: not wanted now (the usual answer) */
#define OUTLIVE_FRESH 3   /* restore: nothing to restore, the job starts anew */
#define OUTLIVE_RESTORED 4 /* restore: the regions hold the version reported */

/* Errors, returned negated: -OUTLIVE_E_REGION_SIZE and so on. */
#define OUTLIVE_E_INVALID_ARGUMENT 100
#define OUTLIVE_E_NOT_OPEN 101
#define OUTLIVE_E_VERSION_ORDER 102
#define OUTLIVE_E_REGION_MISSING 103
#define OUTLIVE_E_REGION_SIZE 104
#define OUTLIVE_E_REGION_UNCLAIMED 105
#define OUTLIVE_E_TIMED_OUT 106
#define OUTLIVE_E_ROUTE_MISSING 107
#define OUTLIVE_E_UNPROTECTED 108
#define OUTLIVE_E_UNSERIALIZABLE 109
#define OUTLIVE_E_UNSUPPORTED 110
#define OUTLIVE_E_RANK_UNKNOWN 200
#define OUTLIVE_E_RANK_COUNT 201
#define OUTLIVE_E_RANK_LOST 202
#define OUTLIVE_E_RANK_HUNG 203
#define OUTLIVE_E_SHARED_MEMORY 204
#define OUTLIVE_E_REGION_UNCHANGED 205
#define OUTLIVE_E_REGION_NOT_FINITE 206
#define OUTLIVE_E_REGION_TORN 207
#define OUTLIVE_E_AGENT_UNREACHABLE 300
#define OUTLIVE_E_AGENT_TIMEOUT 301
#define OUTLIVE_E_MEMORY_BUDGET 302
#define OUTLIVE_E_NODE_LOST 303
#define OUTLIVE_E_NODE_SILENT 304
#define OUTLIVE_E_PEER_VERSION 305
#define OUTLIVE_E_KEY_MISMATCH 306
#define OUTLIVE_E_ADDRESS_IN_USE 307
#define OUTLIVE_E_NETWORK 308
#define OUTLIVE_E_KERNEL_UNREADY 309
#define OUTLIVE_E_SERVER_LOST 310
#define OUTLIVE_E_MACHINE_SHORT 311
#define OUTLIVE_E_IO 400
#define OUTLIVE_E_NO_SPACE 401
#define OUTLIVE_E_PERMISSION 402
#define OUTLIVE_E_CORRUPT 403
#define OUTLIVE_E_NOT_FOUND 404
#define OUTLIVE_E_TRUNCATED 405
#define OUTLIVE_E_FORMAT_UNKNOWN 406
#define OUTLIVE_E_IMAGE_FOREIGN 407
#define OUTLIVE_E_STORE_UNFIT 408
#define OUTLIVE_E_INCOMPLETE 409
#define OUTLIVE_E_NO_VALID_CHECKPOINT 500
#define OUTLIVE_E_COMMIT_ABORTED 501
#define OUTLIVE_E_JOB_BUSY 502
#define OUTLIVE_E_RESTARTS_EXHAUSTED 503
#define OUTLIVE_E_NO_SPARE 504
#define OUTLIVE_E_COMMAND_FAILED 505
#define OUTLIVE_E_DIES_AT_ONCE 506
#define OUTLIVE_E_NO_QUORUM 507
#define OUTLIVE_E_NO_PROGRESS 508
#define OUTLIVE_E_NOT_JOINED 509
#define OUTLIVE_E_CONFIG 600
#define OUTLIVE_E_INTERNAL 900

/* What a version is to survive. Each includes those before it. A program says this; where
 * versions are kept, the levels, is said where the job is started (--levels). */
enum {
    OUTLIVE_SURVIVES_PROCESS = 1,    /* the end of ranks and agents: `memory` does */
    OUTLIVE_SURVIVES_NODE_CRASH = 2, /* a node that starts again with its storage: `disk` */
    OUTLIVE_SURVIVES_NODE_LOSS = 3,  /* a node that does not come back: `partner`, `xor`, `rs` */
    OUTLIVE_SURVIVES_DOMAIN = 4,     /* a whole failure domain: `partner`, `xor`, `rs` */
    OUTLIVE_SURVIVES_ALL_NODES = 5   /* all nodes: `shared` */
};

/* What numbers a region consists of: outlive_describe(). */
enum {
    OUTLIVE_FLOAT16 = 1,  /* IEEE 754 binary16 */
    OUTLIVE_BFLOAT16 = 2, /* the upper half of a binary32 */
    OUTLIVE_FLOAT32 = 3,  /* float */
    OUTLIVE_FLOAT64 = 4   /* double */
};

typedef struct outlive_job outlive_job;

/* How to join. Zero-initialise, set `size`, change what is needed. */
typedef struct outlive_options {
    size_t   size;       /* sizeof(outlive_options); must be set */
    int32_t  rank;       /* -1, or 0 while ranks is 0: from the launcher's environment */
    int32_t  ranks;      /* number of ranks; 0: from the launcher's environment */
    uint32_t timeout_ms; /* bound of every wait on the agent; 0: 10000 */
    uint32_t flags;      /* 0 */
} outlive_options;

/* What outlive_status() tells. */
typedef struct outlive_status_t {
    size_t   size;            /* sizeof(outlive_status_t); must be set */
    int32_t  is_protected;    /* 1 under `outlive run`, else 0 */
    int32_t  rank, ranks, node;
    uint32_t incarnation;     /* which start of the job this is, from 1; 0 if not protected */
    uint64_t regions;         /* protected regions */
    uint64_t bytes;           /* their bytes */
    uint64_t taken;           /* captures since outlive_open() */
    uint64_t failed;          /* captures that failed since outlive_open() */
    uint64_t blocked_ns;      /* time spent inside outlive_checkpoint() for the last capture */
    uint64_t version_taken;   /* last version captured, UINT64_MAX if none */
    /* By OUTLIVE_SURVIVES_... - 1: newest version, committed and stable, that survives at
     * least this; UINT64_MAX if none. */
    uint64_t version_surviving[5];
    uint64_t version_restored; /* UINT64_MAX if fresh */
} outlive_status_t;

/* What outlive_level() tells. */
typedef struct outlive_level_t {
    size_t   size;     /* sizeof(outlive_level_t); must be set */
    char     name[16]; /* as --levels names it: "memory", "rs:4+2"; zero-terminated */
    int32_t  survives; /* the most that its versions survive: OUTLIVE_SURVIVES_... */
    uint64_t version;  /* newest version committed and stable there, UINT64_MAX if none */
} outlive_level_t;

/* Joins the job. Finds rank and number of ranks in the environment of the
 * launcher (PMIx, PMI, Slurm, Open MPI, MPICH, PALS, Flux, torchrun) unless
 * `options` (may be NULL) gives them. Call it after MPI_Init or before, once a
 * rank. Not started under `outlive run`: OK, and the job is unprotected. */
int outlive_open(const outlive_options *options, outlive_job **job);

/* Declares a region of memory under a name (1 to 255 bytes of UTF-8, unique in
 * the rank). The same name again replaces address and size: regions may move,
 * grow and shrink between versions. Zero bytes are allowed. */
int outlive_protect(outlive_job *job, const char *name, void *data, size_t bytes);

/* Says what floating-point numbers a region consists of (of complex numbers: their parts), until
 * it is protected anew. Versions with NaN or infinity in it are told of (206), and given up under
 * `outlive run --refuse nan,inf`. -OUTLIVE_E_REGION_MISSING: protect it first;
 * -OUTLIVE_E_INVALID_ARGUMENT: its size is no multiple of the element's, or no such type. */
int outlive_describe(outlive_job *job, const char *name, int element);

/* Forgets a region; versions already captured keep it. */
int outlive_unprotect(outlive_job *job, const char *name);

/* After a failure, fills all protected regions with the newest version that can
 * be rebuilt, and stores its number: OUTLIVE_RESTORED. At the first start:
 * OUTLIVE_FRESH, and *version stays as it is. All or nothing: unless every region
 * of the checkpoint is protected with the same size and the other way round, an
 * error names the region and nothing is changed. */
int outlive_restore(outlive_job *job, uint64_t *version);

/* Bytes that region `name` has in the version that outlive_restore() will fill,
 * so that memory can be allocated and protected first. -OUTLIVE_E_REGION_MISSING
 * if it is not there; OUTLIVE_FRESH if there is nothing to restore. */
int outlive_query(outlive_job *job, const char *name, size_t *bytes);

/* Offers a checkpoint; collective in the sense that all ranks offer the same
 * versions, without synchronising. Versions rise strictly within a start; every
 * iteration may be offered, for a skipped call costs some nanoseconds, or only some.
 * OUTLIVE_SKIPPED, or OUTLIVE_TAKEN when the regions were captured: they may be
 * changed again at once. Taken is not committed: outlive_wait(). */
int outlive_checkpoint(outlive_job *job, uint64_t version);

/* A checkpoint that is taken whatever the policy says, at all levels of the job,
 * unless memory is short: -OUTLIVE_E_AGENT_TIMEOUT or -OUTLIVE_E_MEMORY_BUDGET. All
 * ranks must force the same version. */
int outlive_checkpoint_now(outlive_job *job, uint64_t version);

/* 1 if outlive_checkpoint(job, version) will capture, 0 if it will skip; the
 * call that follows with the same version keeps the answer. For programs that
 * prepare something costly (files, serialised objects) only when it is wanted. */
int outlive_wanted(outlive_job *job, uint64_t version);

/* Waits until `version`, or a newer one that takes its place, is committed and stable at a
 * level that survives `survives` (OUTLIVE_SURVIVES_...): OUTLIVE_OK. Before that, if it was
 * given up there or does not go so far, or was offered here and neither it nor a newer one
 * was captured: -OUTLIVE_E_COMMIT_ABORTED. The bound passed (0: the job's own bound):
 * -OUTLIVE_E_TIMED_OUT. Unprotected: OUTLIVE_SKIPPED, at once, for nothing is saved and OK
 * would be a lie. */
int outlive_wait(outlive_job *job, uint64_t version, int survives, uint32_t timeout_ms);

/* A path in node storage for a file of `version` that the program writes by
 * itself (LAMMPS, HDF5, torch.save). Write and close it before
 * outlive_checkpoint(version): then it is protected like a region. After that call,
 * captured or skipped, the file itself may be gone: it is removed to free the space.
 * `name`: 1 to 255 bytes without '/', unique in the rank.
 * After a restore, with the restored version, the path of the file as it was.
 * `path` receives a zero-terminated path of at most `capacity` bytes;
 * -OUTLIVE_E_INVALID_ARGUMENT if it does not fit. */
int outlive_route(outlive_job *job, uint64_t version, const char *name,
                  char *path, size_t capacity);

/* What is known without waiting. `status->size` must be set. */
int outlive_status(outlive_job *job, outlive_status_t *status);

/* A level of the job, without waiting: `index` counts from 0, the nearest copies first.
 * `level->size` must be set. -OUTLIVE_E_NOT_FOUND past the last one, which ends a list and
 * is no error to outlive_last_error(); a job that is not protected has no level. */
int outlive_level(outlive_job *job, uint32_t index, outlive_level_t *level);

/* Leaves the job after the last iteration, so that no further checkpoint waits
 * for this rank. Frees the handle and sets it to NULL; closing NULL is OK. */
int outlive_close(outlive_job **job);

/* A short text for a return value of any function here; never NULL. */
const char *outlive_strerror(int code);

/* The last error on this handle (NULL: of this thread's last outlive_open or
 * outlive_close that failed): one line
 * with code, what is affected, the reason and the remedy. Returns its length;
 * writes at most `capacity` bytes, zero-terminated; "" if there was none. */
size_t outlive_last_error(outlive_job *job, char *text, size_t capacity);

/* "0.1.0" */
const char *outlive_version(void);

#ifdef __cplusplus
}
#endif
#endif /* OUTLIVE_H */
