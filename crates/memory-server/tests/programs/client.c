/* Every call of outlive_memory.h: ADDRESS JOB KEY_FILE TRANSPORT. */
#include <outlive_memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 100000

static void check(int got, int want, int line) {
    if (got != want) {
        fprintf(stderr, "line %d: %d, not %d: %s\n", line, got, want, outlive_memory_error());
        exit(1);
    }
}
#define CHECK(got, want) check((got), (want), __LINE__)

int main(int argc, char **argv) {
    static unsigned char data[BYTES], again[BYTES];
    outlive_memory *memory = NULL;
    uint64_t bytes = 0, puts = 0;
    void *message = NULL;
    size_t length = 0;
    int transport;
    if (argc != 5)
        return 2;
    transport = atoi(argv[4]);
    CHECK(outlive_memory_open(&memory, argv[1], "stranger", argv[3], transport), -306);
    CHECK(memory == NULL, 1);
    CHECK(outlive_memory_open(&memory, argv[1], argv[2], argv[3], 9), -100);
    CHECK(outlive_memory_open(&memory, argv[1], argv[2], argv[3], transport), 0);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7);
    CHECK(outlive_memory_alloc(memory, "r", BYTES, 0), 0);
    CHECK(outlive_memory_put(memory, "r", 0, data, BYTES), 0);
    CHECK(outlive_memory_put(memory, "r", 1, data, BYTES), -100);
    CHECK(outlive_memory_get(memory, "r", 0, again, BYTES), 0);
    CHECK(memcmp(data, again, BYTES), 0);
    CHECK(outlive_memory_get(memory, "r", 0, NULL, 1), -100);
    CHECK(outlive_memory_get(memory, NULL, 0, again, 1), -100);
    CHECK(outlive_memory_get(NULL, "r", 0, again, 1), -100);
    CHECK(outlive_memory_stat(memory, "r", &bytes, NULL), 0);
    CHECK(bytes == BYTES, 1);
    CHECK(outlive_memory_wait(memory, "r", 0, 60000, &puts), 0);
    CHECK(puts == 1, 1);
    CHECK(outlive_memory_wait(memory, "r", 1, 1, &puts), -106);
    CHECK(outlive_memory_alloc(memory, "ring", 200000, 1), 0);
    CHECK(outlive_memory_push(memory, "ring", data, BYTES, 1000), 0);
    CHECK(outlive_memory_push(memory, "ring", NULL, 0, 1000), 0);
    CHECK(outlive_memory_pop(memory, "ring", &message, &length, 60000), 0);
    CHECK(length == BYTES && memcmp(message, data, BYTES) == 0, 1);
    outlive_memory_free(message, length);
    CHECK(outlive_memory_pop(memory, "ring", &message, &length, 60000), 0);
    CHECK(length == 0, 1);
    outlive_memory_free(message, length);
    CHECK(outlive_memory_delete(memory, "r"), 0);
    CHECK(outlive_memory_delete(memory, "r"), -404);
    CHECK(strstr(outlive_memory_error(), "OL-404") != NULL, 1);
    CHECK(outlive_memory_delete(memory, "ring"), 0);
    outlive_memory_close(memory);
    outlive_memory_close(NULL);
    return 0;
}
