/* A program of one process that joins a job without saying who it is, as a script does that
 * starts several of them and sets no rank variables.
 *
 *   unranked OUT START STEPS
 *
 * Writes START, changed STEPS times, to OUT. Ends with 1 if it may not join.
 */
#include <outlive.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void complain(outlive_job *job, const char *what) {
    char why[512];
    outlive_last_error(job, why, sizeof why);
    fprintf(stderr, "unranked: %s: %s\n", what, why);
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    uint64_t     value = strtoull(argv[2], NULL, 10), step = 0, steps = strtoull(argv[3], NULL, 10);
    outlive_job *job = NULL;
    if (outlive_open(NULL, &job) < 0) {
        complain(NULL, "open");
        return 1;
    }
    outlive_protect(job, "value", &value, sizeof value);
    if (outlive_restore(job, &step) < 0) {
        complain(job, "restore");
        return 1;
    }
    for (; step < steps; step++) {
        outlive_checkpoint(job, step);
        value = value * 3 + step;
        usleep(10000);
    }
    FILE *out = fopen(argv[1], "w");
    if (!out || fprintf(out, "%llu\n", (unsigned long long)value) < 0 || fclose(out)) return 2;
    outlive_close(&job);
    return 0;
}
