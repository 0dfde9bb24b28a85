/* A program as a user writes it, run by tests/c.rs: with "first" it captures and
 * is left there, with "second" it restores and checks; "alone" is unprotected, and so
 * is "zeros". */
#include <outlive.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            char why[1024];                                                          \
            outlive_last_error(job, why, sizeof why);                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, why); \
            return 1;                                                                \
        }                                                                            \
    } while (0)

static int null_handles(void) {
    outlive_job *job = NULL;
    uint64_t     version = 7;
    size_t       bytes = 9;
    char         path[8];
    CHECK(outlive_protect(NULL, "x", path, 1) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_describe(NULL, "x", OUTLIVE_FLOAT64) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_unprotect(NULL, "x") == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_restore(NULL, &version) == -OUTLIVE_E_NOT_OPEN && version == 7);
    CHECK(outlive_query(NULL, "x", &bytes) == -OUTLIVE_E_NOT_OPEN && bytes == 9);
    CHECK(outlive_checkpoint(NULL, 1) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_checkpoint_now(NULL, 1) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_wanted(NULL, 1) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_wait(NULL, 1, OUTLIVE_SURVIVES_DOMAIN, 1) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_route(NULL, 1, "x", path, sizeof path) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_status(NULL, NULL) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_level(NULL, 0, NULL) == -OUTLIVE_E_NOT_OPEN);
    CHECK(outlive_close(NULL) == OUTLIVE_OK && outlive_close(&job) == OUTLIVE_OK);
    CHECK(outlive_open(NULL, NULL) == -OUTLIVE_E_INVALID_ARGUMENT);
    return 0;
}

static int bad_arguments(outlive_job *job) {
    char             small[4];
    size_t           bytes;
    outlive_status_t status;
    outlive_level_t  level;
    CHECK(outlive_protect(job, NULL, small, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_protect(job, "", small, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_protect(job, "\xff", small, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_protect(job, "null", NULL, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_describe(job, "nobody", OUTLIVE_FLOAT64) == -OUTLIVE_E_REGION_MISSING);
    CHECK(outlive_protect(job, "small", small, 2) == OUTLIVE_OK);
    CHECK(outlive_describe(job, "small", OUTLIVE_FLOAT64) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_describe(job, "small", 0) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_describe(job, "small", -1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_describe(job, NULL, OUTLIVE_FLOAT16) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_describe(job, "small", OUTLIVE_FLOAT16) == OUTLIVE_OK);
    CHECK(outlive_unprotect(job, "small") == OUTLIVE_OK);
    CHECK(outlive_restore(job, NULL) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_query(job, "x", NULL) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_wait(job, 1, 0, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_wait(job, 1, 6, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_wait(job, 1, -1, 1) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_route(job, 99, "x", small, sizeof small) == -OUTLIVE_E_INVALID_ARGUMENT);
    status.size = 3;
    CHECK(outlive_status(job, &status) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_status(job, NULL) == -OUTLIVE_E_INVALID_ARGUMENT);
    level.size = 5000;
    CHECK(outlive_level(job, 0, &level) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_level(job, 0, NULL) == -OUTLIVE_E_INVALID_ARGUMENT);
    bytes = outlive_last_error(job, small, sizeof small);
    CHECK(bytes > 20 && strlen(small) == 3 && memcmp(small, "OL-", 3) == 0);
    CHECK(outlive_last_error(job, NULL, 0) == bytes);
    return 0;
}

static int texts(void) {
    outlive_job    *job = NULL;
    outlive_options options = {0};
    CHECK(strcmp(outlive_strerror(OUTLIVE_OK), "success") == 0);
    CHECK(strcmp(outlive_strerror(-OUTLIVE_E_NO_SPACE), "no space left") == 0);
    CHECK(outlive_strerror(12345) && outlive_strerror(-2147483647 - 1));
    CHECK(strcmp(outlive_version(), "0.1.0") == 0);
    CHECK(outlive_open(&options, &job) == -OUTLIVE_E_INVALID_ARGUMENT && job == NULL);
    options.size = sizeof options;
    options.flags = 1;
    CHECK(outlive_open(&options, &job) == -OUTLIVE_E_INVALID_ARGUMENT);
    CHECK(outlive_last_error(NULL, NULL, 0) > 0);
    options.flags = 0;
    options.rank = 5;
    options.ranks = 2;
    CHECK(outlive_open(&options, &job) == -OUTLIVE_E_RANK_UNKNOWN);
    return 0;
}

/* Options that are zero but for their size ask for nothing: rank 2 of 3 comes from the
 * environment that the test has set. */
static int zeros(void) {
    outlive_job     *job = NULL;
    outlive_options  options = {0};
    outlive_status_t status = {0};
    options.size = sizeof options;
    status.size = sizeof status;
    CHECK(outlive_open(&options, &job) == OUTLIVE_OK);
    CHECK(outlive_status(job, &status) == OUTLIVE_OK);
    CHECK(status.rank == 2 && status.ranks == 3);
    CHECK(outlive_close(&job) == OUTLIVE_OK);
    options.ranks = 7;
    CHECK(outlive_open(&options, &job) == OUTLIVE_OK);
    CHECK(outlive_status(job, &status) == OUTLIVE_OK);
    CHECK(status.rank == 0 && status.ranks == 7);
    CHECK(outlive_close(&job) == OUTLIVE_OK);
    return 0;
}

/* The test agent has the levels memory and xor:4, and commits at the first. */
static int levels(outlive_job *job, int is_protected, uint64_t version) {
    outlive_status_t status = {0};
    outlive_level_t  level = {0}, older = {0};
    size_t           bytes = outlive_last_error(job, NULL, 0);
    status.size = sizeof status;
    level.size = sizeof level;
    CHECK(outlive_status(job, &status) == OUTLIVE_OK);
    CHECK(status.version_surviving[OUTLIVE_SURVIVES_PROCESS - 1] == version);
    CHECK(status.version_surviving[OUTLIVE_SURVIVES_ALL_NODES - 1] == UINT64_MAX);
    if (!is_protected) {
        CHECK(outlive_level(job, 0, &level) == -OUTLIVE_E_NOT_FOUND);
        return 0;
    }
    CHECK(outlive_level(job, 0, &level) == OUTLIVE_OK && strcmp(level.name, "memory") == 0);
    CHECK(level.survives == OUTLIVE_SURVIVES_PROCESS && level.version == version);
    CHECK(outlive_level(job, 1, &level) == OUTLIVE_OK && strcmp(level.name, "xor:4") == 0);
    CHECK(level.survives == OUTLIVE_SURVIVES_DOMAIN && level.version == UINT64_MAX);
    CHECK(level.size == sizeof level);
    /* A program that was built when the structure ended with the name. */
    older.size = offsetof(outlive_level_t, survives);
    older.survives = 77;
    CHECK(outlive_level(job, 1, &older) == OUTLIVE_OK && older.survives == 77);
    CHECK(strcmp(older.name, "xor:4") == 0);
    CHECK(outlive_level(job, 2, &level) == -OUTLIVE_E_NOT_FOUND);
    CHECK(outlive_level(job, UINT32_MAX, &level) == -OUTLIVE_E_NOT_FOUND);
    CHECK(outlive_last_error(job, NULL, 0) == bytes);
    CHECK(outlive_wait(job, 3, OUTLIVE_SURVIVES_ALL_NODES, 60000) == -OUTLIVE_E_COMMIT_ABORTED);
    return 0;
}

int main(int argc, char **argv) {
    outlive_job     *job = NULL;
    outlive_options  options = {0};
    outlive_status_t status = {0};
    const char      *mode = argc > 1 ? argv[1] : "alone";
    static double    field[20000];
    size_t           bytes = 0, i;
    uint64_t         step = 0;
    int              told, taken = 0;
    if (strcmp(mode, "zeros") == 0) return zeros();
    if (null_handles() || texts()) return 1;
    options.size = sizeof options;
    options.rank = -1;
    CHECK(outlive_open(&options, &job) == OUTLIVE_OK);
    CHECK(outlive_protect(job, "field", field, sizeof field) == OUTLIVE_OK);
    CHECK(outlive_protect(job, "nothing", NULL, 0) == OUTLIVE_OK);
    told = outlive_query(job, "field", &bytes);
    CHECK(strcmp(mode, "second") ? told == OUTLIVE_FRESH : bytes == sizeof field);
    told = outlive_restore(job, &step);
    if (strcmp(mode, "second") == 0) {
        CHECK(told == OUTLIVE_RESTORED && step == 3);
        for (i = 0; i < 20000; i++) CHECK(field[i] == (double)i * 3);
    } else {
        CHECK(told == OUTLIVE_FRESH && step == 0);
    }
    if (bad_arguments(job)) return 1;
    for (; step < 6; step++) {
        for (i = 0; i < 20000; i++) field[i] = (double)i * (double)step;
        told = outlive_checkpoint(job, step);
        CHECK(told == OUTLIVE_TAKEN || told == OUTLIVE_SKIPPED);
        if (told == OUTLIVE_TAKEN) {
            taken++;
            CHECK(outlive_wait(job, step, OUTLIVE_SURVIVES_PROCESS, 10000) == OUTLIVE_OK);
        }
    }
    CHECK(outlive_checkpoint(job, 5) == -OUTLIVE_E_VERSION_ORDER);
    if (levels(job, strcmp(mode, "alone") != 0, taken ? 3 : UINT64_MAX)) return 1;
    status.size = sizeof status;
    CHECK(outlive_status(job, &status) == OUTLIVE_OK);
    CHECK(status.regions == 2 && status.bytes == sizeof field);
    CHECK(status.is_protected == (strcmp(mode, "alone") != 0));
    CHECK((int)status.taken == taken && taken == (strcmp(mode, "first") == 0));
    CHECK(outlive_close(&job) == OUTLIVE_OK && job == NULL);
    return 0;
}
