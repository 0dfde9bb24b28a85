// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Every register in a deterministic pattern, from each of THREADS threads:
 * load all general registers (but the stack pointer) and all vector registers
 * with values made of (thread, round), spin in user mode, store and compare.
 *
 *   regstress THREADS ROUNDS SPINS [FILE]     ROUNDS 0: until FILE is there
 *
 * Prints "regs ok ROUND" now and then, "REGS BAD ..." and ends with 1 at the
 * first difference. The seeds' register r15 says whose pattern it is: bits
 * 63..48 are 0x5eed, 47..32 the thread, 31..0 the round.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPRS 15			/* rax rbx rcx rdx rsi rdi rbp r8..r15 */
#define VECS 16

struct bank {
	uint64_t gpr[GPRS + 1];
	uint64_t vec[VECS][4];
};

/* The loop can spare no register: all it needs is thread-local. */
__thread struct bank in __attribute__((aligned(32), used)), out __attribute__((aligned(32), used));
__thread uint64_t spins_left __attribute__((used)), kept_sp __attribute__((used));
static long rounds, spins;
static const char *stop;
static volatile int stopped;
static int avx;

#define L(n, r) "movq %%fs:in@tpoff+" #n "*8, %%" #r "\n"
#define S(n, r) "movq %%" #r ", %%fs:out@tpoff+" #n "*8\n"
#define VL(n) "vmovdqu %%fs:in@tpoff+128+" #n "*32, %%ymm" #n "\n"
#define VS(n) "vmovdqu %%ymm" #n ", %%fs:out@tpoff+128+" #n "*32\n"
#define XL(n) "movdqu %%fs:in@tpoff+128+" #n "*32, %%xmm" #n "\n"
#define XS(n) "movdqu %%xmm" #n ", %%fs:out@tpoff+128+" #n "*32\n"
#define ALL16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) \
	X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define GPR(X) X(0, rax) X(1, rbx) X(2, rcx) X(3, rdx) X(4, rsi) X(5, rdi) X(6, rbp) \
	X(7, r8) X(8, r9) X(9, r10) X(10, r11) X(11, r12) X(12, r13) X(13, r14) X(14, r15)
#define BODY(load, store) \
	"push %%rbp\n push %%rbx\n movq %%rsp, %%fs:kept_sp@tpoff\n" \
	ALL16(load) GPR(L) \
	"1: decq %%fs:spins_left@tpoff\n jnz 1b\n" \
	GPR(S) ALL16(store) \
	"movq %%fs:kept_sp@tpoff, %%rsp\n pop %%rbx\n pop %%rbp\n"
#define CLOBBERS "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", \
	"r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", \
	"xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

__attribute__((noinline, target("avx"))) static void run_avx(void)
{
	asm volatile("sub $128, %%rsp\n" BODY(VL, VS) "add $128, %%rsp\n" ::: CLOBBERS);
}

__attribute__((noinline)) static void run_sse(void)
{
	asm volatile("sub $128, %%rsp\n" BODY(XL, XS) "add $128, %%rsp\n" ::: CLOBBERS);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static void fill(uint64_t thread, uint64_t round)
{
	uint64_t seed = 0x5eedULL << 48 | thread << 32 | (round & 0xffffffff);
	int i, j;

	memset(&in, 0, sizeof(in));
	for (i = 0; i < GPRS - 1; i++)
		in.gpr[i] = mix(seed + i);
	in.gpr[GPRS - 1] = seed;
	for (i = 0; i < VECS; i++)
		for (j = 0; j < (avx ? 4 : 2); j++)
			in.vec[i][j] = mix(seed + 100 + i * 4 + j);
}

static void *work(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, round;

	for (round = 1; !stopped && (!rounds || round <= (uint64_t)rounds); round++) {
		fill(thread, round);
		memset(&out, 0, sizeof(out));
		spins_left = (uint64_t)spins;
		if (avx)
			run_avx();
		else
			run_sse();
		if (memcmp(&in, &out, sizeof(in))) {
			printf("REGS BAD thread %lu round %lu\n", thread, round);
			for (int i = 0; i < GPRS; i++)
				if (in.gpr[i] != out.gpr[i])
					printf("REGS BAD gpr %d %016lx is %016lx\n", i, in.gpr[i],
					       out.gpr[i]);
			exit(1);
		}
		if (!thread && round % 16 == 0) {
			printf("regs ok %lu\n", round);
			fflush(stdout);
			stopped = stop && !access(stop, F_OK);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1, i;
	pthread_t ids[256];

	rounds = argc > 2 ? atol(argv[2]) : 64;
	spins = argc > 3 ? atol(argv[3]) : 1000000;
	stop = argc > 4 ? argv[4] : NULL;
	avx = __builtin_cpu_supports("avx") != 0;
	if (threads < 1 || threads > 256 || spins < 1)
		return 64;
	printf("regs start threads %ld avx %d\n", threads, avx);
	fflush(stdout);
	for (i = 1; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, (void *)i))
			return 71;
	work(NULL);
	for (i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("regs done\n");
	return 0;
}
