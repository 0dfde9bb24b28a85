// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The module's calls from the command line, and the saved image as text: what
 * the tests look at when a kernel died. Independent of the product's own
 * reader on purpose.
 *
 *   omkctl query | format | ack | check | clock | dump | times | ticks
 *   omkctl register PID | unregister PID | arm 0|1 | mark N
 *   omkctl kload KERNEL INITRD LINE
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <uapi/outlive_minickpt.h>

static const char *const states[] = { "empty", "ready", "acked", "damaged", "foreign", "given-up" };

static void fail(const char *what)
{
	printf("omkctl: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int device(void)
{
	int fd = open(OMK_DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		fail(OMK_DEVICE);
	return fd;
}

static void query(struct omk_query *q)
{
	int fd = device();

	if (ioctl(fd, OMK_IOC_QUERY, q))
		fail("query");
	close(fd);
}

static void print_query(void)
{
	struct omk_query q;

	query(&q);
	printf("omk state %s generation %llu registered %u armed %u retries %u panics %u damage %u "
	       "xcr0 %llx xstate %u\n",
	       states[q.state], q.generation, q.registered, q.armed, q.retries, q.panics, q.damage,
	       q.xcr0, q.xstate_size);
}

static uint8_t *image(size_t *len)
{
	struct omk_query q;
	uint8_t *data;
	size_t got = 0;
	int fd = device();

	query(&q);
	if (q.state != OMK_STATE_READY && q.state != OMK_STATE_ACKED &&
	    q.state != OMK_STATE_FOREIGN && q.state != OMK_STATE_GIVEN_UP) {
		printf("omk no image: %s\n", states[q.state]);
		exit(1);
	}
	data = malloc(q.image_len);
	while (data && got < q.image_len) {
		ssize_t n = pread(fd, data + got, q.image_len - got, (off_t)(q.image_off + got));

		if (n <= 0)
			fail("read");
		got += (size_t)n;
	}
	close(fd);
	*len = q.image_len;
	return data;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

/* 1: all registers hold regstress's pattern; 0: a register differs; -1: the
 * thread was not inside of the pattern.
 */
static int pattern(const struct omk_thread *t, const uint8_t *xstate)
{
	const struct omk_regs *r = &t->regs;
	const uint64_t got[15] = { r->ax, r->bx, r->cx, r->dx, r->si, r->di, r->bp, r->r8,
				   r->r9, r->r10, r->r11, r->r12, r->r13, r->r14, r->r15 };
	uint64_t bv;
	uint64_t lane;
	int i, j;

	if (got[14] >> 48 != 0x5eed || !(t->flags & OMK_THREAD_USER))
		return -1;
	for (i = 0; i < 14; i++) {
		if (got[i] != mix(got[14] + (uint64_t)i)) {
			printf("gpr %d is %llx\n", i, (unsigned long long)got[i]);
			return 0;
		}
	}
	if (!t->xstate_len)
		return 0;
	memcpy(&bv, xstate + 512, 8);
	for (i = 0; i < 16; i++) {
		for (j = 0; j < (t->xcr0 & 4 ? 4 : 2); j++) {
			memcpy(&lane, j < 2 ? xstate + 160 + i * 16 + j * 8 :
					      xstate + 576 + i * 16 + (j - 2) * 8, 8);
			if (lane != mix(got[14] + 100 + (uint64_t)(i * 4 + j))) {
				printf("vector %d lane %d is %llx, xstate_bv %llx\n", i, j,
				       (unsigned long long)lane, (unsigned long long)bv);
				return 0;
			}
		}
	}
	return 1;
}

static void print_thread(const struct omk_thread *t, const uint8_t *xstate)
{
	static const char *const verdict[] = { "outside", "WRONG", "right" };

	printf("THREAD %u of %u %s cpu %d flags %x ip %llx orig_ax %lld ax %lld fs %llx gs %llx mask %llx "
	       "xstate %u pattern %s\n",
	       t->tid, t->tgid, t->comm, t->cpu, t->flags, t->regs.ip, (long long)t->regs.orig_ax,
	       (long long)t->regs.ax, t->regs.fs_base, t->regs.gs_base, t->sigmask, t->xstate_len,
	       verdict[pattern(t, xstate) + 1]);
}

static const char *string(const char *strings, size_t len, uint32_t at)
{
	return at < len ? strings + at : "-";
}

struct cursor {
	const struct omk_rec *rec;
	const uint8_t *payload;
};

static int next_rec(const uint8_t *data, size_t len, size_t *at, struct cursor *c)
{
	if (*at + OMK_ALIGN > len)
		return 0;
	c->rec = (const struct omk_rec *)(data + *at);
	c->payload = data + *at + OMK_ALIGN;
	if (c->rec->magic != OMK_REC_MAGIC || c->rec->len > len - *at - OMK_ALIGN) {
		printf("omk bad record at %zu\n", *at);
		exit(1);
	}
	*at += OMK_ALIGN + (c->rec->len + OMK_ALIGN - 1) / OMK_ALIGN * OMK_ALIGN;
	return c->rec->type != OMK_REC_END;
}

static void print_process(const struct omk_process *p, const char *strings, size_t slen)
{
	printf("PROCESS %u %s ppid %u pgid %u sid %u uid %u threads %u flags %x tty %x umask %o "
	       "brk %llx cwd %s exe %s\n",
	       p->tgid, p->comm, p->ppid, p->pgid, p->sid, p->uid, p->nr_threads, p->flags, p->tty,
	       p->umask, p->brk, string(strings, slen, p->cwd_path),
	       string(strings, slen, p->exe_path));
}

static void print_arrays(const struct cursor *c, const char *strings, size_t slen)
{
	const struct omk_vma *v = (const void *)c->payload;
	const struct omk_fd *f = (const void *)c->payload;
	const struct omk_sigaction *s = (const void *)c->payload;
	uint32_t i;

	for (i = 0; c->rec->type == OMK_REC_VMAS && i < c->rec->count; i++)
		printf("VMA %llx-%llx flags %x offset %llx dev %x ino %llu %s\n", v[i].start,
		       v[i].end, v[i].flags, v[i].offset, v[i].dev, v[i].ino,
		       string(strings, slen, v[i].path));
	for (i = 0; c->rec->type == OMK_REC_FDS && i < c->rec->count; i++)
		printf("FD %u cloexec %u pos %llu flags %o mode %o dev %x ino %llu rdev %x %s\n",
		       f[i].fd, f[i].flags & OMK_FD_CLOEXEC, f[i].pos, f[i].f_flags, f[i].mode, f[i].dev, f[i].ino,
		       f[i].rdev, string(strings, slen, f[i].path));
	for (i = 0; c->rec->type == OMK_REC_SIGACTIONS && i < c->rec->count; i++)
		if (s[i].handler)
			printf("SIGNAL %u handler %llx flags %llx mask %llx\n", i + 1, s[i].handler,
			       s[i].flags, s[i].mask);
}

static void dump(void)
{
	size_t len, at = OMK_IMAGE_HEADER, end;
	uint8_t *data = image(&len);
	const struct omk_image *h = (const void *)data;
	struct cursor c, s;

	printf("IMAGE %llu cause %u flags %x processes %u threads %u bytes %llu cpu %u of %u missing "
	       "%u save_us %llu stop_us %llu message %s\n",
	       h->generation, h->cause, h->flags, h->nr_processes, h->nr_threads, h->body_len, h->cpu,
	       h->nr_cpus, h->cpus_missing, (h->saved_tsc - h->panic_tsc) * 1000 / h->tsc_khz,
	       h->stop_tsc ? (h->stop_tsc - h->panic_tsc) * 1000 / h->tsc_khz : 0, h->message);
	while (next_rec(data, len, &at, &c)) {
		const char *strings = "";
		size_t slen = 0;

		if (c.rec->type == OMK_REC_STRINGS)
			continue;
		if (c.rec->flags)
			printf("RECORD type %u of %u flags %x\n", c.rec->type, c.rec->tgid,
			       c.rec->flags);
		end = at;
		while (next_rec(data, len, &end, &s)) {
			if (s.rec->type == OMK_REC_STRINGS && s.rec->tgid == c.rec->tgid) {
				strings = (const char *)s.payload;
				slen = s.rec->len;
				break;
			}
		}
		if (c.rec->type == OMK_REC_THREAD) {
			const struct omk_thread *t = (const void *)c.payload;

			print_thread(t, c.payload + t->xstate_off);
		} else if (c.rec->type == OMK_REC_PROCESS) {
			print_process((const void *)c.payload, strings, slen);
		} else {
			print_arrays(&c, strings, slen);
		}
	}
	free(data);
}

static void times(void)
{
	struct omk_marks m;
	int fd = device(), i;
	static const char *const names[] = { "panic", "saved", "kernel", "module", "files",
					     "restored", "armed", "resumed" };

	if (pread(fd, &m, sizeof(m), OMK_MARKS_OFF) != sizeof(m) || !m.tsc_khz)
		fail("marks");
	printf("TIMES generation %llu khz %llu", m.generation, m.tsc_khz);
	for (i = 0; i < 8; i++)
		if (m.tsc[i])
			printf(" %s %.3f", names[i],
			       (double)(m.tsc[i] - m.tsc[0]) / (double)m.tsc_khz / 1e3);
	printf("\n");
	close(fd);
}

static void kload(const char *kernel, const char *initrd, const char *line)
{
	int k = open(kernel, O_RDONLY | O_CLOEXEC), i = open(initrd, O_RDONLY | O_CLOEXEC);

	if (k < 0 || i < 0)
		fail("kernel or initrd");
	if (syscall(SYS_kexec_file_load, k, i, strlen(line) + 1, line, KEXEC_FILE_ON_CRASH))
		fail("kexec_file_load");
	printf("omk next kernel loaded\n");
}

static void number_call(unsigned long call, const char *what, uint32_t number)
{
	int fd = device();

	if (ioctl(fd, call, &number))
		fail(what);
	printf("omk %s %u\n", what, number);
	close(fd);
}

static void ack(void)
{
	struct omk_query q;
	uint64_t generation;
	int fd = device();

	query(&q);
	generation = q.generation;
	if (ioctl(fd, OMK_IOC_ACK, &generation))
		fail("ack");
	close(fd);
	print_query();
}

static void add(uint32_t pid)
{
	struct omk_register r = { .version = OMK_ABI_VERSION, .tgid = pid, .cookie = pid * 3ULL };
	int fd = device();

	if (ioctl(fd, OMK_IOC_REGISTER, &r))
		fail("register");
	printf("omk registered %u\n", pid);
	close(fd);
}

/* kHz of the time stamp counter. */
static void print_clock(void)
{
	uint32_t khz;
	int fd = device();

	if (ioctl(fd, OMK_IOC_CLOCK, &khz))
		fail("clock");
	printf("%u\n", khz);
	close(fd);
}

static void mark(uint32_t which)
{
	struct omk_mark_set m = { .mark = which };
	int fd = device();

	if (ioctl(fd, OMK_IOC_MARK, &m))
		fail("mark");
	close(fd);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	uint32_t number = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 0;

	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	if (!strcmp(what, "query"))
		print_query();
	else if (!strcmp(what, "dump"))
		dump();
	else if (!strcmp(what, "times"))
		times();
	else if (!strcmp(what, "ticks"))
		printf("%llu\n", (unsigned long long)__builtin_ia32_rdtsc());
	else if (!strcmp(what, "clock"))
		print_clock();
	else if (!strcmp(what, "ack"))
		ack();
	else if (!strcmp(what, "format"))
		number_call(OMK_IOC_FORMAT, what, OMK_ABI_VERSION);
	else if (!strcmp(what, "check"))
		number_call(OMK_IOC_CHECK, what, 0);
	else if (!strcmp(what, "arm") && argc == 3)
		number_call(OMK_IOC_ARM, what, number);
	else if (!strcmp(what, "unregister") && argc == 3)
		number_call(OMK_IOC_UNREGISTER, what, number);
	else if (!strcmp(what, "register") && argc == 3)
		add(number);
	else if (!strcmp(what, "mark") && argc == 3)
		mark(number);
	else if (!strcmp(what, "kload") && argc == 5)
		kload(argv[2], argv[3], argv[4]);
	else
		return 64;
	return 0;
}
