/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every register but the stack pointer in a pattern that a seed decides: what
 * regstress and callstress share. All is thread-local, as the code that holds
 * the pattern can spare no register.
 */
#ifndef PATTERN_H
#define PATTERN_H

#include <stdint.h>
#include <string.h>

#define GPRS 15			/* rax rbx rcx rdx rsi rdi rbp r8..r15 */
#define VECS 16

struct bank {
	uint64_t gpr[GPRS + 1];
	uint64_t vec[VECS][4];
};

/* To be loaded, and as stored again. */
__thread struct bank in __attribute__((aligned(32), used)), out __attribute__((aligned(32), used));
__thread uint64_t spins_left __attribute__((used)), kept_sp __attribute__((used));

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

/* Loads `in`, spins, does what follows, and stores into `out`; below the red zone. */
#define HOLD_PATTERN(load, store, then) \
	asm volatile("sub $128, %%rsp\n push %%rbp\n push %%rbx\n movq %%rsp, %%fs:kept_sp@tpoff\n" \
		     ALL16(load) GPR(L) \
		     "1: decq %%fs:spins_left@tpoff\n jnz 1b\n" \
		     then \
		     GPR(S) ALL16(store) \
		     "movq %%fs:kept_sp@tpoff, %%rsp\n pop %%rbx\n pop %%rbp\n add $128, %%rsp\n" \
		     ::: "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", \
		     "r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", \
		     "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", \
		     "xmm15")

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

/* R15 is the seed: 0x5eed, the thread and the round. Vectors have two or four lanes. */
static uint64_t fill(uint64_t thread, uint64_t round, int lanes)
{
	uint64_t seed = 0x5eedULL << 48 | thread << 32 | (round & 0xffffffff);
	int i, j;

	memset(&in, 0, sizeof(in));
	for (i = 0; i < GPRS - 1; i++)
		in.gpr[i] = mix(seed + i);
	in.gpr[GPRS - 1] = seed;
	for (i = 0; i < VECS; i++)
		for (j = 0; j < lanes; j++)
			in.vec[i][j] = mix(seed + 100 + i * 4 + j);
	return seed;
}

#endif /* PATTERN_H */
