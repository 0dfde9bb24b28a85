/* outlive_memory.h: memory on the network, kept by an outlive memory-server.
 *
 * Every function that returns int gives 0, or the negative of a code of docs/errors.md (-310: the
 * server is lost); outlive_memory_error() says more. Calls may come from any thread; one at a time
 * is served. No call waits without a bound. Link with -loutlive_memory.
 */
#ifndef OUTLIVE_MEMORY_H
#define OUTLIVE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct outlive_memory outlive_memory;

/* How bytes reach the server: directly on its machine, else over TCP; or one of both. */
#define OUTLIVE_MEMORY_AUTO 0
#define OUTLIVE_MEMORY_SHARED 1
#define OUTLIVE_MEMORY_TCP 2

/* Connects to the server at address (host:port) as a client of job, whose key is in the file
 * key_file. On failure *memory is NULL. */
int outlive_memory_open(outlive_memory **memory, const char *address, const char *job,
                        const char *key_file, int transport);
/* Frees memory, also NULL, which no other call may be using. What was put stays. */
void outlive_memory_close(outlive_memory *memory);
/* The last error of this thread, never NULL; valid until its next call. */
const char *outlive_memory_error(void);

/* Makes a region of so many bytes, all zero; ring is not 0 for a ring. Fine if it is there with
 * that size already. */
int outlive_memory_alloc(outlive_memory *memory, const char *name, uint64_t bytes, int ring);
int outlive_memory_delete(outlive_memory *memory, const char *name);
/* The size of a region and how often it was put; either pointer may be NULL. */
int outlive_memory_stat(outlive_memory *memory, const char *name, uint64_t *bytes, uint64_t *puts);

/* Writes or reads a part of a region. Nobody reads half of a put. */
int outlive_memory_put(outlive_memory *memory, const char *name, uint64_t offset, const void *data,
                       size_t bytes);
int outlive_memory_get(outlive_memory *memory, const char *name, uint64_t offset, void *data,
                       size_t bytes);
/* Waits until the region had more puts than after; *puts, which may be NULL, is their number. */
int outlive_memory_wait(outlive_memory *memory, const char *name, uint64_t after,
                        uint32_t timeout_ms, uint64_t *puts);

/* Adds a message to a ring; takes the oldest, which outlive_memory_free() frees. */
int outlive_memory_push(outlive_memory *memory, const char *name, const void *data, size_t bytes,
                        uint32_t timeout_ms);
int outlive_memory_pop(outlive_memory *memory, const char *name, void **data, size_t *bytes,
                       uint32_t timeout_ms);
void outlive_memory_free(void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
