/* The gate: the only instructions whose system calls the kernel does not dispatch. */
#include "decouple.h"

/* The handler lets a thread go on at a replay with the number and arguments of its call in their registers
 * and the address behind the call at the stack pointer, which is BELOW under the program's: so `ret` with
 * RED leaves all as the call itself would have. */
_Static_assert(RED == 128 && BELOW == 136, "the gate has them as numbers");
_Static_assert(offsetof(struct thread, self) == 0 && offsetof(struct thread, back) == 8, "GS");

__asm__(
    ".pushsection .text\n"
    ".balign 64\n"
    ".globl outlive_gate_begin, outlive_gate_end, outlive_raw, outlive_restorer\n"
    ".globl outlive_replay, outlive_replay_32, outlive_replay_vfork, outlive_replay_fork\n"
    ".globl outlive_replay_thread, outlive_replay_child, outlive_return\n"
    ".globl outlive_call, outlive_call_begin, outlive_call_at, outlive_call_end\n"
    ".globl outlive_start\n"
    ".hidden outlive_gate_begin, outlive_gate_end, outlive_raw, outlive_restorer\n"
    ".hidden outlive_replay, outlive_replay_32, outlive_replay_vfork, outlive_replay_fork\n"
    ".hidden outlive_replay_thread, outlive_replay_child, outlive_return\n"
    ".hidden outlive_call, outlive_call_begin, outlive_call_at, outlive_call_end\n"
    ".hidden outlive_start\n"
    "outlive_gate_begin:\n"

    /* long outlive_raw(number, six arguments) */
    ".type outlive_raw, @function\n"
    "outlive_raw:\n"
    "  mov %rdi, %rax\n  mov %rsi, %rdi\n  mov %rdx, %rsi\n  mov %rcx, %rdx\n"
    "  mov %r8, %r10\n  mov %r9, %r8\n  mov 8(%rsp), %r9\n"
    "  syscall\n  ret\n"

    /* Return from a handler: RSP is at the frame. */
    "outlive_restorer:\n"
    "  mov $15, %rax\n  syscall\n"

    "outlive_replay:\n  syscall\n  ret $128\n"
    "outlive_replay_32:\n  int $0x80\n  ret $128\n"
    /* The call was done; here only to go on without a word on the stack of another. */
    "outlive_return:\n  ret $128\n"

    /* The child runs on this stack, over the word, before this thread goes on. */
    "outlive_replay_vfork:\n  syscall\n  mov %gs:8, %rcx\n  lea 136(%rsp), %rsp\n  jmp *%rcx\n"

    /* fork: the child has a copy of all. */
    "outlive_replay_fork:\n  syscall\n  test %rax, %rax\n  je 1f\n  ret $128\n"
    "1:\n  lea outlive_child_begin(%rip), %rax\n  jmp 3f\n"
    /* A thread: its stack has the word too. */
    "outlive_replay_thread:\n  syscall\n  test %rax, %rax\n  je 2f\n  ret $128\n"
    "2:\n  lea outlive_thread_begin(%rip), %rax\n"
    "3:\n  push %rbp\n  mov %rsp, %rbp\n"
    "  push %rdi\n  push %rsi\n  push %rdx\n  push %r8\n  push %r9\n  push %r10\n"
    "  and $-16, %rsp\n  call *%rax\n"
    "  lea -48(%rbp), %rsp\n"
    "  pop %r10\n  pop %r9\n  pop %r8\n  pop %rdx\n  pop %rsi\n  pop %rdi\n  pop %rbp\n"
    "  xor %eax, %eax\n  ret $128\n"
    /* A process that shares memory and has a stack of its own (posix_spawn). */
    "outlive_replay_child:\n  syscall\n  ret $128\n"

    /* long outlive_call(call, cancel): by the partner. A signal between the look at cancel and
     * the call finds the program counter here, and moves it. */
    ".type outlive_call, @function\n"
    "outlive_call:\n"
    "  push %rbx\n  mov %rdi, %rbx\n  mov %rsi, %rcx\n"
    "  mov 0(%rbx), %rax\n  mov 8(%rbx), %rdi\n  mov 16(%rbx), %rsi\n  mov 24(%rbx), %rdx\n"
    "  mov 32(%rbx), %r10\n  mov 40(%rbx), %r8\n  mov 48(%rbx), %r9\n"
    "outlive_call_begin:\n"
    "  cmpl $0, (%rcx)\n  jne 4f\n"
    "outlive_call_at:\n  syscall\n"
    "outlive_call_end:\n  pop %rbx\n  ret\n"
    "4:\n  mov $-513, %rax\n  jmp outlive_call_end\n"

    /* long outlive_start(flags, stack, tid, thread): clone; the new one never returns. */
    ".type outlive_start, @function\n"
    "outlive_start:\n"
    "  mov %rcx, %r9\n  mov %rdx, %r10\n  xor %r8d, %r8d\n"
    "  mov $56, %eax\n  syscall\n"
    "  test %rax, %rax\n  je 5f\n  ret\n"
    "5:\n  xor %ebp, %ebp\n  mov %r9, %rdi\n  and $-16, %rsp\n  call outlive_partner\n"
    "  mov $60, %eax\n  xor %edi, %edi\n  syscall\n  hlt\n"
    "outlive_gate_end:\n"
    ".popsection\n");
