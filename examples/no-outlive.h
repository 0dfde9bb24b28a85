/* The calls of Outlive as nothing at all: compile an example with -DNO_OUTLIVE to see
 * the program as it was before Outlive, without its library. */
#ifndef NO_OUTLIVE_H
#define NO_OUTLIVE_H

#include <stddef.h>
#include <stdint.h>

#define OUTLIVE_OK 0
#define OUTLIVE_FRESH 3
#define OUTLIVE_RESTORED 4

typedef struct outlive_job outlive_job;

static inline int outlive_open(const void *options, outlive_job **job)
{
    (void)options;
    *job = NULL;
    return OUTLIVE_OK;
}
static inline int outlive_protect(outlive_job *job, const char *name, void *data, size_t bytes)
{
    (void)job, (void)name, (void)data, (void)bytes;
    return OUTLIVE_OK;
}
static inline int outlive_query(outlive_job *job, const char *name, size_t *bytes)
{
    (void)job, (void)name, (void)bytes;
    return OUTLIVE_FRESH;
}
static inline int outlive_restore(outlive_job *job, uint64_t *version)
{
    (void)job, (void)version;
    return OUTLIVE_FRESH;
}
static inline int outlive_checkpoint(outlive_job *job, uint64_t version)
{
    (void)job, (void)version;
    return OUTLIVE_OK;
}
static inline int outlive_wanted(outlive_job *job, uint64_t version)
{
    (void)job, (void)version;
    return 0;
}
static inline int outlive_route(outlive_job *job, uint64_t version, const char *name, char *path,
                                size_t capacity)
{
    (void)job, (void)version, (void)name, (void)path, (void)capacity;
    return OUTLIVE_OK;
}
static inline int outlive_close(outlive_job **job)
{
    *job = NULL;
    return OUTLIVE_OK;
}
static inline size_t outlive_last_error(outlive_job *job, char *text, size_t capacity)
{
    (void)job;
    if (capacity > 0) text[0] = '\0';
    return 0;
}

#endif
