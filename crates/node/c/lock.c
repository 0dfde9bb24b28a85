/* Loaded ahead of a program: its memory stays in memory, of the program itself and of what it forks.
 *
 * What is touched stays; what is only reserved is not made for it (MCL_ONFAULT), since programs
 * reserve more than a machine has. Whoever starts the program has lifted the limit: under one, the
 * program's own mappings would fail.
 *
 * OUTLIVE_LOCK_REPORT: a file that is there; a line is appended for each process: "lock PID ERRNO".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MCL_ONFAULT /* Linux 4.4 */
#define MCL_ONFAULT 4
#endif

static void tell(int error)
{
    char line[64];
    const char *path = getenv("OUTLIVE_LOCK_REPORT");
    int fd = path && *path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY) : -1;
    if (fd < 0)
        return;
    int length = snprintf(line, sizeof line, "lock %ld %d\n", (long)getpid(), error);
    /* Nobody could be told. */
    if (length > 0 && write(fd, line, (size_t)length) != length) {
    }
    close(fd);
}

static void lock(void)
{
    int before = errno;
    tell(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0 ? 0 : errno);
    errno = before;
}

__attribute__((constructor)) static void begin(void)
{
    int before = errno;
    lock();
    /* A child of fork has nothing locked. One that has no memory for this is not locked. */
    pthread_atfork(NULL, NULL, lock);
    errno = before;
}
