/* What a skipped checkpoint costs from C: prints nanoseconds per call. Run by the
 * example bench_capture, under an agent and without. */
#include <outlive.h>

#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    enum { CALLS = 20000000, ROUNDS = 5 };
    outlive_job *job;
    uint64_t     version = 0;
    double       best = 1e30;
    if (outlive_open(NULL, &job) != OUTLIVE_OK) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < CALLS; i++) {
            if (outlive_checkpoint(job, version++) != OUTLIVE_SKIPPED) return 2;
        }
        double took = (now() - start) / CALLS;
        if (took < best) best = took;
    }
    printf("%.2f\n", best);
    return outlive_close(&job) == OUTLIVE_OK ? 0 : 3;
}
