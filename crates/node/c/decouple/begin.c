/* The begin: what the environment says, and the first thread. */
#if defined __x86_64__ && defined __linux__
#include "decouple.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Reads cores of a list as 0,2-3, up to `end`, into a set; returns what follows, null if it is none. */
static const char *cores(const char *text, char end, unsigned long *set)
{
    for (;;) {
        char *rest;
        unsigned long from = strtoul(text, &rest, 10), to = from;
        if (rest == text)
            return NULL;
        if (*rest == '-') {
            text = rest + 1;
            to = strtoul(text, &rest, 10);
            if (rest == text)
                return NULL;
        }
        if (to < from || to >= CORES_MAX)
            return NULL;
        for (unsigned long n = from; n <= to; n++)
            set[n / 64] |= 1UL << (n % 64);
        if (*rest == end || *rest == 0)
            return rest;
        if (*rest != ',')
            return NULL;
        text = rest + 1;
    }
}

/* Groups as 1-3:0;5-7:4, cores and those of partners near them; what cannot be read is none. */
static unsigned groups(const char *text)
{
    struct common *c = &outlive_common;
    unsigned a, b, features, d, found = 0;
    /* Where a thread is, is known at each call without another one. */
    if (!__get_cpuid(0x80000001, &a, &b, &features, &d) || !(d & (1U << 27)))
        return 0;
    while (text && *text && found < GROUPS_MAX) {
        unsigned long here[CORES_MAX / 64] = {0};
        text = cores(text, ':', here);
        if (!text || *text++ != ':')
            return 0;
        text = cores(text, ';', c->near[found]);
        if (!text)
            return 0;
        text += *text == ';';
        found++;
        for (unsigned n = 0; n < CORES_MAX; n++)
            if (here[n / 64] >> (n % 64) & 1)
                c->group[n] = (unsigned char)found;
    }
    return found;
}

static uint64_t number(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = getenv(name);
    char *rest;
    if (!text || !*text)
        return otherwise;
    uint64_t value = strtoull(text, &rest, 10);
    return *rest || value > most ? otherwise : value;
}

__attribute__((constructor)) static void begin(void)
{
    int before = errno;
    struct common *c = &outlive_common;
    const char *service = getenv("OUTLIVE_DECOUPLE_SERVICE");
    const char *report = getenv("OUTLIVE_DECOUPLE_REPORT");
    unsigned long gs = 1;
    /* A program that has GS for itself keeps it. */
    if (!service || !*service || !cores(service, 0, c->service) ||
        raw2(SYS_arch_prctl, ARCH_GET_GS, &gs) != 0 || gs != 0)
        return;
    c->groups = groups(getenv("OUTLIVE_DECOUPLE_NEAR"));
    c->spin_us = number("OUTLIVE_DECOUPLE_SPIN_US", c->spin_us, 1000000);
    c->prefault = number("OUTLIVE_DECOUPLE_PREFAULT", c->prefault, UINT64_MAX);
    if (report && strlen(report) < sizeof c->report)
        strcpy(c->report, report);
    c->pid = (int)raw0(SYS_getpid);
    struct thread *thread = outlive_slot();
    if (thread) {
        outlive_install();
        outlive_arm(thread);
    }
    errno = before;
}
#else
typedef int outlive_nothing_is_decoupled_here;
#endif
