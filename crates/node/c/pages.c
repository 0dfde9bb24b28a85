/* liboutlive_pages.so: huge pages for a program that knows nothing of them.
 *
 * Loaded ahead of a program (LD_PRELOAD), it
 *   - advises large anonymous mappings to be huge, as the program makes them: the arenas of
 *     allocators other than glibc's, whose heap the tunable glibc.malloc.hugetlb serves;
 *   - advises what is zero at the start (bss) of the program and its libraries;
 *   - puts initialised data into anonymous memory that can be huge;
 *   - has the kernel collapse the text of the program where it lies, or, if told so, copies it.
 *
 * Invariants. What a program reads at an address is the same before and after, whatever fails:
 * a copy takes its place by one mremap, or not at all. Memory is copied only while this is the
 * only thread, with signals blocked. No memory is allocated and no lock is taken, so that the
 * hooks may be called in signal handlers and between vfork and exec; errno is what the real
 * call left. Nothing is ever printed; an account is appended to a file that was named.
 *
 * Variables (docs/reference/environment.md): OUTLIVE_PAGES_TEXT, OUTLIVE_PAGES_DATA,
 * OUTLIVE_PAGES_LEAST, OUTLIVE_PAGES_REPORT.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

#define EXPORTED __attribute__((visibility("default")))
#define SEGMENTS_MAX 256
#define PIECES_MAX 128
#define MINCORE_PAGES 4096
#define REPORT_BYTES_MAX (1 << 20)

/* A huge page; a guess until the kernel was asked, as hooks may be called before that. */
static size_t huge = (size_t)2 << 20;
static size_t page = 4096;
/* Shorter mappings of the program are left alone. */
static size_t least = (size_t)2 << 20;
static char report[4096];

enum kind { TEXT, DATA, BSS, KINDS };

/* What became of the memory of one kind. */
struct account {
    size_t bytes; /* there is */
    size_t fits;  /* in whole huge pages */
    size_t done;  /* advised, collapsed or copied */
    int error;    /* of the last attempt that failed */
};
static struct account accounts[KINDS];

/* A segment of a loaded object. */
struct segment {
    uintptr_t start, end;
    bool text;
};
/* A part of one that is one mapping. */
struct piece {
    uintptr_t start, end;
    enum kind kind;
};

/* ---- the program's own mappings ---- */

#ifdef __LP64__ /* elsewhere off_t and the system call have other forms: no hooks */
EXPORTED void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    void *got = (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
    const int never = MAP_HUGETLB | MAP_GROWSDOWN | MAP_STACK;
    if (got != MAP_FAILED && bytes >= least && (flags & MAP_ANONYMOUS) && !(flags & never)) {
        int before = errno;
        /* Of memory without access too: allocators reserve first, and the advice stays. */
        syscall(SYS_madvise, got, bytes, MADV_HUGEPAGE);
        errno = before;
    }
    return got;
}

EXPORTED void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));
#endif

/* ---- reading what the kernel says ---- */

static int open_file(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

/* The beginning of a file as text; its length, 0 if it cannot be read. */
static size_t read_start(const char *path, char *to, size_t room)
{
    size_t length = 0;
    int fd = open_file(path, O_RDONLY);
    if (fd >= 0) {
        ssize_t got;
        while (length + 1 < room && (got = read(fd, to + length, room - 1 - length)) > 0)
            length += (size_t)got;
        close(fd);
    }
    to[length] = 0;
    return length;
}

static void sizes(void)
{
    char text[64];
    long said = sysconf(_SC_PAGESIZE);
    if (said > 0)
        page = (size_t)said;
    const char *path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    if (read_start(path, text, sizeof text) > 0) {
        unsigned long long bytes = strtoull(text, NULL, 10);
        /* A power of two, and no less than a page: all rounding here relies on it. */
        if (bytes > page && (bytes & (bytes - 1)) == 0)
            huge = (size_t)bytes;
    }
    const char *given = getenv("OUTLIVE_PAGES_LEAST");
    unsigned long long bytes = given ? strtoull(given, NULL, 10) : 0;
    least = bytes >= page ? (size_t)bytes : huge;
}

/* True if no other thread could write what is being copied. */
static bool alone(void)
{
    struct stat state;
    return stat("/proc/self/task", &state) == 0 && state.st_nlink == 3;
}

/* ---- moving memory ---- */

static void copy_resident(char *to, const char *from, size_t bytes)
{
    /* What was never touched is zero there as well, and need not be touched for that. */
    unsigned char resident[MINCORE_PAGES];
    for (size_t at = 0; at < bytes; at += MINCORE_PAGES * page) {
        size_t part = bytes - at < MINCORE_PAGES * page ? bytes - at : MINCORE_PAGES * page;
        bool known = mincore((void *)(uintptr_t)(from + at), part, resident) == 0;
        for (size_t n = 0; n < part / page; n++)
            if (!known || (resident[n] & 1))
                memcpy(to + at + n * page, from + at + n * page, page);
    }
}

/* Memory of whole huge pages at a boundary of them; NULL if there is none. */
static char *area_of(size_t bytes, bool hugetlb)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (hugetlb) {
        long got = syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0L);
        return got == -1 ? NULL : (char *)got;
    }
    long got = syscall(SYS_mmap, NULL, bytes + huge, PROT_READ | PROT_WRITE, flags, -1, 0L);
    if (got == -1)
        return NULL;
    uintptr_t start = ((uintptr_t)got + huge - 1) & ~(huge - 1);
    size_t before = start - (uintptr_t)got, after = huge - before;
    if (before > 0)
        munmap((void *)(uintptr_t)got, before);
    if (after > 0)
        munmap((void *)(start + bytes), after);
    madvise((void *)start, bytes, MADV_HUGEPAGE);
    return (char *)start;
}

/* Puts the content of whole huge pages into memory that can be huge; 0 or the error. */
static int move(uintptr_t start, size_t bytes, enum kind kind, bool hugetlb)
{
    char *area = area_of(bytes, hugetlb);
    if (!area)
        return errno;
    sigset_t all, before;
    sigfillset(&all);
    if (sigprocmask(SIG_SETMASK, &all, &before) != 0) {
        munmap(area, bytes);
        return EINVAL;
    }
    if (kind == BSS)
        copy_resident(area, (const char *)start, bytes);
    else
        memcpy(area, (const void *)start, bytes);
    if (!hugetlb)
        madvise(area, bytes, MADV_COLLAPSE); /* where no huge page was to be had at once */
    int error = 0;
    if (kind == TEXT) {
        __builtin___clear_cache(area, area + bytes);
        if (mprotect(area, bytes, PROT_READ | PROT_EXEC) != 0)
            error = errno;
    }
    const int how = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (!error && mremap(area, bytes, bytes, how, (void *)start) == MAP_FAILED)
        error = errno;
    if (error)
        munmap(area, bytes);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- what was loaded ---- */

struct found {
    struct segment of[SEGMENTS_MAX];
    int count;
};

static int note_segments(struct dl_phdr_info *object, size_t size, void *to)
{
    (void)size;
    struct found *found = to;
    bool program = object->dlpi_name[0] == 0;
    for (int n = 0; n < object->dlpi_phnum; n++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[n];
        uintptr_t start = object->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        bool text = part->p_flags & PF_X, written = part->p_flags & PF_W;
        if (part->p_type != PT_LOAD || text == written || (text && !program))
            continue;
        if ((uintptr_t)&huge >= start && (uintptr_t)&huge < end)
            continue; /* ours */
        if (found->count < SEGMENTS_MAX) {
            struct segment one = {start & ~(page - 1), (end + page - 1) & ~(page - 1), text};
            found->of[found->count++] = one;
        }
    }
    return 0;
}

struct pieces {
    struct piece of[PIECES_MAX];
    int count;
};

/* One line of maps: what of it belongs to a segment. */
static void note_mapping(const char *line, const struct found *found, struct pieces *pieces)
{
    char *rest;
    uintptr_t start = strtoul(line, &rest, 16);
    if (*rest != '-')
        return;
    uintptr_t end = strtoul(rest + 1, &rest, 16);
    bool written = strncmp(rest, " rw-p ", 6) == 0, text = strncmp(rest, " r-xp ", 6) == 0;
    if (!written && !text)
        return;
    const char *inode = rest + 6;
    for (int word = 0; word < 2; word++) { /* over offset and device */
        inode = strchr(inode, ' ');
        if (!inode)
            return;
        inode++;
    }
    bool file = strtoul(inode, NULL, 10) != 0;
    for (int n = 0; n < found->count && pieces->count < PIECES_MAX; n++) {
        const struct segment *segment = &found->of[n];
        uintptr_t from = start > segment->start ? start : segment->start;
        uintptr_t to = end < segment->end ? end : segment->end;
        if (from >= to || segment->text != text || (text && !file))
            continue;
        struct piece piece = {from, to, text ? TEXT : file ? DATA : BSS};
        pieces->of[pieces->count++] = piece;
    }
}

static bool find_pieces(struct pieces *pieces)
{
    static struct found found;
    dl_iterate_phdr(note_segments, &found);
    /* All is read before anything changes. A line is longer than this only by its path. */
    static char text[16384];
    size_t held = 0;
    int fd = open_file("/proc/self/maps", O_RDONLY);
    if (fd < 0)
        return false;
    for (;;) {
        ssize_t got = read(fd, text + held, sizeof text - 1 - held);
        if (got <= 0)
            break;
        held += (size_t)got;
        text[held] = 0;
        char *line = text, *end;
        while ((end = strchr(line, '\n'))) {
            *end = 0;
            note_mapping(line, &found, pieces);
            line = end + 1;
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
    }
    close(fd);
    return true;
}

/* ---- what is done with it ---- */

enum how { NO, THP, HUGETLB, COLLAPSE, COPY };

static enum how told(const char *name, enum how otherwise)
{
    static const char *const words[] = {"no", "thp", "hugetlbfs", "collapse", "copy"};
    const char *value = getenv(name);
    for (int n = 0; value && n < 5; n++)
        if (strcmp(value, words[n]) == 0)
            return (enum how)n;
    return otherwise;
}

static int treat(uintptr_t start, size_t bytes, enum kind kind, enum how how)
{
    bool copied = how == COPY || how == HUGETLB || kind == DATA;
    if (copied)
        return alone() ? move(start, bytes, kind, how == HUGETLB) : EBUSY;
    if (madvise((void *)start, bytes, MADV_HUGEPAGE) != 0)
        return errno;
    if (kind == TEXT && madvise((void *)start, bytes, MADV_COLLAPSE) != 0)
        return errno;
    return 0;
}

static void treat_pieces(void)
{
    static struct pieces pieces;
    enum how text = told("OUTLIVE_PAGES_TEXT", COLLAPSE), data = told("OUTLIVE_PAGES_DATA", THP);
    if (!find_pieces(&pieces))
        return;
    for (int n = 0; n < pieces.count; n++) {
        const struct piece *piece = &pieces.of[n];
        struct account *account = &accounts[piece->kind];
        uintptr_t start = (piece->start + huge - 1) & ~(huge - 1), end = piece->end & ~(huge - 1);
        account->bytes += piece->end - piece->start;
        enum how how = piece->kind == TEXT ? text : data;
        if (start >= end || how == NO)
            continue;
        account->fits += end - start;
        int error = treat(start, end - start, piece->kind, how);
        if (error)
            account->error = error;
        else
            account->done += end - start;
    }
}

/* ---- the account ---- */

static void append(const char *line, size_t length)
{
    struct stat state;
    int fd = open_file(report, O_WRONLY | O_APPEND);
    if (fd < 0)
        return;
    /* A build starts a hundred thousand processes: the first ones tell enough. */
    if (fstat(fd, &state) == 0 && state.st_size < REPORT_BYTES_MAX) {
        /* One write is one line, whoever else writes. */
        ssize_t put = write(fd, line, length);
        (void)put;
    }
    close(fd);
}

static void tell_begin(void)
{
    char line[512], name[64];
    size_t length = read_start("/proc/self/comm", name, sizeof name);
    while (length > 0 && name[length - 1] == '\n')
        name[--length] = 0;
    const struct account *t = &accounts[TEXT], *d = &accounts[DATA], *b = &accounts[BSS];
    int count = snprintf(line, sizeof line,
                         "begin %d %zu %zu %zu %d %zu %zu %zu %d %zu %zu %zu %d %s\n",
                         (int)getpid(), t->bytes, t->fits, t->done, t->error, d->bytes, d->fits,
                         d->done, d->error, b->bytes, b->fits, b->done, b->error, name);
    if (count > 0 && (size_t)count < sizeof line)
        append(line, (size_t)count);
}

static unsigned long long kib_of(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

__attribute__((destructor)) static void tell_end(void)
{
    if (!report[0])
        return;
    static char text[4096];
    char line[256];
    int before = errno;
    if (read_start("/proc/self/smaps_rollup", text, sizeof text) > 0) {
        int count = snprintf(line, sizeof line, "end %d %llu %llu %llu %llu %llu %llu\n",
                             (int)getpid(), kib_of(text, "\nRss:"), kib_of(text, "\nAnonHugePages:"),
                             kib_of(text, "\nShmemPmdMapped:"), kib_of(text, "\nFilePmdMapped:"),
                             kib_of(text, "\nShared_Hugetlb:"), kib_of(text, "\nPrivate_Hugetlb:"));
        if (count > 0 && (size_t)count < sizeof line)
            append(line, (size_t)count);
    }
    errno = before;
}

__attribute__((constructor)) static void begin(void)
{
    int before = errno;
    sizes();
    treat_pieces();
    const char *path = getenv("OUTLIVE_PAGES_REPORT");
    if (path && strlen(path) < sizeof report) {
        strcpy(report, path);
        if (report[0])
            tell_begin();
    }
    errno = before;
}
