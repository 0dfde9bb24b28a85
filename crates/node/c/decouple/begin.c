/* The begin: what the environment says, and the first thread. */
#if defined __x86_64__ && defined __linux__
#include "decouple.h"

#include <asm/prctl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Cores of a list as 0,2-3; false if it is none. */
static bool cores(const char *text)
{
    while (*text) {
        char *rest;
        unsigned long from = strtoul(text, &rest, 10), to = from;
        if (rest == text)
            return false;
        if (*rest == '-') {
            text = rest + 1;
            to = strtoul(text, &rest, 10);
            if (rest == text)
                return false;
        }
        if (to < from || to >= CORES_MAX || (*rest != ',' && *rest != 0))
            return false;
        for (unsigned long n = from; n <= to; n++)
            outlive_common.service[n / 64] |= 1UL << (n % 64);
        text = *rest ? rest + 1 : rest;
    }
    return true;
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
    if (!service || !*service || !cores(service) ||
        raw2(SYS_arch_prctl, ARCH_GET_GS, &gs) != 0 || gs != 0)
        return;
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
