/* Lets the programs of the pages sleep a twentieth of what they ask for: preloaded, and
 * without effect on every other program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FACTOR = 20 };

static int hurried(void) {
    const char *names = getenv("PAGES_HURRIED");
    return names && strstr(names, program_invocation_short_name) != NULL;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *want, struct timespec *left) {
    int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "clock_nanosleep");
    if (!hurried()) return real(clock, flags, want, left);
    struct timespec until = *want;
    if (flags & TIMER_ABSTIME) { /* as Python does */
        struct timespec now;
        clock_gettime(clock, &now);
        long long ns = (want->tv_sec - now.tv_sec) * 1000000000LL + want->tv_nsec - now.tv_nsec;
        ns = ns < 0 ? 0 : ns / FACTOR;
        until = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
        return real(clock, 0, &until, NULL);
    }
    long long ns = (want->tv_sec * 1000000000LL + want->tv_nsec) / FACTOR;
    until = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return real(clock, flags, &until, left);
}

unsigned sleep(unsigned seconds) {
    struct timespec want = {.tv_sec = seconds};
    while (clock_nanosleep(CLOCK_REALTIME, 0, &want, &want) == EINTR) {}
    return 0;
}
