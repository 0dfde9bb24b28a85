/* Preloaded: kills the process before its KILL_AT-th act that changes a file or makes it durable.
 * The number of acts that passed is written to KILL_COUNT, if that is set, at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long acts;

static void act(void)
{
    const char *at = getenv("KILL_AT");
    if (at && __atomic_add_fetch(&acts, 1, __ATOMIC_SEQ_CST) == atol(at)) {
        kill(getpid(), SIGKILL);
    }
}

__attribute__((destructor)) static void count(void)
{
    const char *path = getenv("KILL_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", acts);
        fclose(file);
    }
}

/* Each calls what it hides. */
#define HIDE(result, name, parameters, arguments)                                                  \
    result name parameters                                                                         \
    {                                                                                              \
        static result(*real) parameters;                                                           \
        if (!real) {                                                                               \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        }                                                                                          \
        act();                                                                                     \
        return real arguments;                                                                     \
    }

HIDE(int, unlink, (const char *path), (path))
HIDE(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
HIDE(int, rmdir, (const char *path), (path))
HIDE(int, rename, (const char *from, const char *to), (from, to))
HIDE(int, fsync, (int fd), (fd))
HIDE(int, fdatasync, (int fd), (fd))
HIDE(int, ftruncate64, (int fd, off64_t length), (fd, length))
HIDE(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at),
     (fd, parts, count, at))
