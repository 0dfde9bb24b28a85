/* A program that knows nothing of huge pages: memory of every kind, and what programs do with
 * it. It prints what it computed; waits for a line where it is told to, so that it can be
 * looked at. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BSS (32 * MIB)
#define DATA (16 * MIB)
#define HEAP (32 * MIB)
#define MAPPED (32 * MIB)
#define THREADS 4

static unsigned char zero[BSS];
static unsigned data[DATA / sizeof(unsigned)] = {3, 1, 4, 1, 5};
static unsigned *const last = &data[DATA / sizeof(unsigned) - 1];

/* Eight MiB of text that does nothing. */
#if defined(__x86_64__)
__asm__(".text\n.globl sled\n.type sled,@function\nsled:\n.fill 8388608,1,0x90\nret\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl sled\n.type sled,@function\nsled:\n.fill 2097152,4,0xd503201f\nret\n");
#endif
extern void sled(void);

static unsigned long sum(const unsigned char *at, size_t bytes)
{
    unsigned long value = 5381;
    for (size_t n = 0; n < bytes; n += 61)
        value = value * 33 + at[n];
    return value;
}

static void say(const char *what, unsigned long value)
{
    printf("%s %lu\n", what, value);
    fflush(stdout);
}

static void *fill(void *part)
{
    size_t n = (size_t)(unsigned char *)part - (size_t)zero;
    memset(part, (int)(n / (BSS / THREADS) + 1), BSS / THREADS);
    return NULL;
}

static void die(const char *what)
{
    perror(what);
    exit(9);
}

static void forks(unsigned char *heap)
{
    unsigned long before = sum(heap, HEAP);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        memset(heap, 77, HEAP);
        memset(zero, 78, BSS);
        data[0] = 9;
        say("child", sum(heap, HEAP) + sum(zero, BSS) + data[0]);
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("parent", sum(heap, HEAP) == before && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void moves(unsigned char *mapped)
{
    if (madvise(mapped + 5 * MIB + 4096, 3 * MIB, MADV_DONTNEED) != 0)
        die("madvise");
    say("dropped", sum(mapped, MAPPED));
    unsigned char *moved = mremap(mapped, MAPPED, 2 * MAPPED, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        die("mremap");
    memset(moved + MAPPED, 6, MAPPED);
    say("moved", sum(moved, 2 * MAPPED));
    if (mprotect(moved + 4096, 4096, PROT_READ) != 0 || munmap(moved + 3 * MIB, 4096) != 0)
        die("mprotect, munmap");
    say("parted", sum(moved, 3 * MIB));
    munmap(moved, 2 * MAPPED);
}

int main(int count, char **words)
{
    const char *how = count > 1 ? words[1] : "";
    /* With write access, so that the pointer is not known before. */
    unsigned char *heap = malloc(HEAP);
    unsigned char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!heap || mapped == MAP_FAILED)
        die("memory");
    say("begin", data[0] + data[4] + *last + sum(zero, BSS));
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, fill, zero + n * (BSS / THREADS)) != 0)
            die("thread");
    for (size_t n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    for (size_t n = 0; n < DATA / sizeof *data; n++)
        data[n] += (unsigned)n;
    memset(heap, 1, HEAP);
    memset(mapped, 2, MAPPED);
    sled();
    say("filled", sum(zero, BSS) + sum((unsigned char *)data, DATA) + sum(heap, HEAP) + sum(mapped, MAPPED));
    if (strcmp(how, "wait") == 0) {
        say("pid", (unsigned long)getpid());
        int got = getchar();
        (void)got;
        return 0;
    }
    forks(heap);
    moves(mapped);
    if (strcmp(how, "again") != 0) {
        execl("/proc/self/exe", words[0], "again", (char *)NULL);
        die("exec");
    }
    free(heap);
    return 7;
}
