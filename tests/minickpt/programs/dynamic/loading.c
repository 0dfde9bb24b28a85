// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs that start, and libraries that are loaded, all the time. Whoever has one mapped
 * compares what cannot be written to with the file that it came from, and memory that was
 * given back with zeroes.
 *
 *   loading FILE LIBRARY...     until FILE is there: a thread for each library
 *   loading FILE die LIBRARY    kills the kernel three times, behind calls on memory
 *   loading                     a started one: a few rounds, then it ends with 7
 *
 * Prints "loading ok ROUNDS lost CHILDREN" now and then; "BAD ..." and ends with 1 at a
 * difference. A child that was in the middle of exec when its kernel died is lost, as the
 * reference says: that is counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uapi/outlive_inject.h>

#define CHUNK	65536
#define SCRATCH	(256 << 10)

extern char **environ;
static const char *self, *stop;
static long rounds, lost;

static void bad(const char *what, const char *name, unsigned long at)
{
	printf("BAD %d %s: %s at %lx\n", getpid(), name, what, at);
	fflush(stdout);
	_exit(1);
}

/* One segment of a file that was mapped without write permission. */
static void compare(const char *name, int fd, const char *at, size_t length, off_t offset)
{
	static __thread char bytes[CHUNK];

	while (length) {
		ssize_t part = pread(fd, bytes, length < CHUNK ? length : CHUNK, offset);

		if (part <= 0)
			bad("cannot be read", name, offset);
		if (memcmp(bytes, at, part))
			bad("memory is not the file", name, (unsigned long)at);
		at += part;
		offset += part;
		length -= part;
	}
}

static int object(struct dl_phdr_info *info, size_t size, void *unused)
{
	const char *name = info->dlpi_name[0] ? info->dlpi_name : self;
	int fd = open(name, O_RDONLY | O_CLOEXEC);

	(void)size;
	(void)unused;
	if (fd < 0)	/* the vdso */
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && !(p->p_flags & PF_W))
			compare(name, fd, (char *)info->dlpi_addr + p->p_vaddr, p->p_filesz,
				p->p_offset);
	}
	close(fd);
	return 0;
}

/* Memory that held something, was given back and mapped anew holds zeroes. */
static void zeroes(void)
{
	static __thread char *last;
	char *now = mmap(last, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (now == MAP_FAILED)
		return;
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < SCRATCH; i++)
			if (now[i])
				bad("not zero", turn ? "dropped memory" : "new memory",
				    (unsigned long)&now[i]);
		memset(now, 0xa5, SCRATCH);
		if (!turn)
			madvise(now, SCRATCH, MADV_DONTNEED);
	}
	munmap(now, SCRATCH);
	last = now;
}

/* Starts this program again, without arguments. */
static void start(void)
{
	char *words[] = { (char *)self, NULL };
	int status;
	pid_t pid;

	if (posix_spawn(&pid, self, NULL, NULL, words, environ))
		return;
	while (waitpid(pid, &status, 0) < 0) {
		if (errno == ECHILD) {
			__atomic_add_fetch(&lost, 1, __ATOMIC_RELAXED);
			return;
		}
	}
	/* It was in the middle of exec: its parent is told as of a kill. */
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		__atomic_add_fetch(&lost, 1, __ATOMIC_RELAXED);
		return;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
		bad("a started program ended wrongly", self, status);
}

static void *work(void *of)
{
	const char *library = of;

	while (access(stop, F_OK)) {
		void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);

		if (!loaded)
			bad(dlerror(), library, 0);
		dl_iterate_phdr(object, NULL);
		dlclose(loaded);
		zeroes();
		start();
		if (__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED) % 4 == 0) {
			printf("loading ok %ld lost %ld\n", rounds, lost);
			fflush(stdout);
		}
	}
	return NULL;
}

/* Makes a call, and the kernel dies before the program wrote to any memory: such a write can
 * commit what is open. What comes back goes on behind both. The call's result.
 */
static long die_behind(int device, long number, void *at, long a2, long a3, long a4, long a5,
		       long a6)
{
	struct omi_inject in = { .version = OMI_VERSION, .kind = OMI_PANIC, .cpu = OMI_ANY_CPU };
	register long r10 asm("r10") = a4, r8 asm("r8") = a5, r9 asm("r9") = a6;
	register long r12 asm("r12") = device, r13 asm("r13") = (long)&in;
	register long r14 asm("r14") = OMI_IOC_INJECT, r15 asm("r15");
	long died = number;

	asm volatile("syscall\n\t"
		     "mov %%rax, %%r15\n\t"
		     "mov $16, %%eax\n\t" /* ioctl */
		     "mov %%r12, %%rdi\n\t"
		     "mov %%r14, %%rsi\n\t"
		     "mov %%r13, %%rdx\n\t"
		     "syscall"
		     : "+a"(died), "+D"(at), "+S"(a2), "+d"(a3), "=r"(r15)
		     : "r"(r10), "r"(r8), "r"(r9), "r"(r12), "r"(r13), "r"(r14)
		     : "rcx", "r11", "memory");
	if (died != -EINTR)
		bad("not dead", "the kernel", died);
	return r15;
}

static void check(const char *what, const char *at, size_t length, char value)
{
	for (size_t i = 0; i < length; i++)
		if (at[i] != value)
			bad("not as it was", what, (unsigned long)&at[i]);
}

/* Dies behind each kind of call that makes the system hold other contents, before anything
 * else could have been committed. What is there comes to lie where other contents lay.
 */
static void die_at_each(const char *name)
{
	int fd = open(name, O_RDONLY), device = open(OMI_DEVICE, O_RDWR);
	off_t length = (lseek(fd, 0, SEEK_END) & -4096) - 64 * 4096;
	char *at, *other;

	at = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		bad(strerror(errno), name, length);
	compare(name, fd, at, length, 0);
	munmap(at, length);
	at = (char *)die_behind(device, SYS_mmap, NULL, length, PROT_READ, MAP_PRIVATE, fd,
				64 * 4096);
	compare(name, fd, at, length, 64 * 4096);
	munmap(at, length);
	at = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(at, 0xa5, SCRATCH);
	if (die_behind(device, SYS_madvise, at, SCRATCH / 2, MADV_DONTNEED, 0, 0, 0))
		bad("madvise", "memory", (unsigned long)at);
	check("dropped memory", at, SCRATCH / 2, 0);
	check("memory beside it", at + SCRATCH / 2, SCRATCH / 2, '\xa5');
	/* In the way, so that the next one has to move. */
	other = mmap(at + SCRATCH, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	memset(at, 0x5a, SCRATCH);
	at = (char *)die_behind(device, SYS_mremap, at, SCRATCH, 2 * SCRATCH, MREMAP_MAYMOVE, 0, 0);
	check("moved memory", at, SCRATCH, 0x5a);
	check("memory behind it", at + SCRATCH, SCRATCH, 0);
	munmap(other, 4096);
	printf("loading ok 3 lost 0\n");
	fflush(stdout);
	while (access(stop, F_OK))
		usleep(50000);
}

int main(int argc, char **argv)
{
	pthread_t threads[8];

	self = argv[0];
	if (argc < 3) {
		for (int i = 0; i < 3; i++) {
			dl_iterate_phdr(object, NULL);
			zeroes();
		}
		return 7;
	}
	stop = argv[1];
	if (argc == 4 && !strcmp(argv[2], "die")) {
		die_at_each(argv[3]);
		return 0;
	}
	for (int i = 2; i < argc && i < 10; i++)
		if (pthread_create(&threads[i - 2], NULL, work, argv[i]))
			bad("no thread", self, i);
	for (int i = 2; i < argc && i < 10; i++)
		pthread_join(threads[i - 2], NULL);
	printf("loading done %ld lost %ld\n", rounds, lost);
	return 0;
}
