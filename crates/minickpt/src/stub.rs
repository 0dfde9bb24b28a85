//! The code between the dying kernel and the next: it takes memory away from all PCI
//! devices, checks that the segments are whole and enters the kernel, or resets the
//! machine, which then boots as usual.
//!
//! Devices: a kernel for dumps runs in memory that no device knows. Ours takes all memory
//! back, where network cards of the dead kernel still have buffers to write to.
//!
//! The digest is a multiplicative one over words of 8 bytes: `h = rotl((h ^ w) * P, 29)`
//! with an odd P (the prime of FNV-1a, 64 bits). Each step is a bijection of `h` and of
//! `w`, so a change of any one word is found for certain, and others with 2^-64. It finds
//! damage (a wild store, a device that still writes); it is no defence against an enemy,
//! who could replace the stub as well.

use core::arch::global_asm;

use crate::sys::Segment;

const SEED: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
const ROTATE: u32 = 29;
const WORD: usize = 8;
/// In front of the code: what it reads. See [`make`].
const HEADER: usize = 144;
const RANGES_AT: usize = 24;
const RANGES_MAX: usize = 4;
const GDTR_AT: usize = 96;
const GDT_AT: usize = 112;

// Position-independent; the header of 144 bytes lies before it. Entered in 64-bit mode
// with paging by identity and interrupts off, as kexec leaves the processor.
global_asm!(
    ".pushsection .text.outlive_stub,\"ax\",@progbits",
    ".balign 16",
    ".globl outlive_stub_code",
    ".hidden outlive_stub_code",
    "outlive_stub_code:",
    "lea rbx, [rip + outlive_stub_code - 144]",
    // The stack is the page behind this one.
    "lea rsp, [rbx + 0x1ff0]",
    // Devices must not write any more into memory that the next kernel takes: no PCI
    // function stays bus master, as after an ordinary kexec. r9: its configuration address.
    "mov r9d, 0x80000000",
    "2:",
    "mov eax, r9d",
    "mov dx, 0xcf8",
    "out dx, eax",
    "mov dx, 0xcfc",
    "in eax, dx",
    "cmp ax, 0xffff",
    "je 4f",
    "lea eax, [r9 + 4]",
    "mov dx, 0xcf8",
    "out dx, eax",
    "mov dx, 0xcfc",
    "in ax, dx",
    "test al, 4",
    "jz 3f",
    "and al, 0xfb",
    "out dx, ax",
    // The read waits for what is on its way.
    "in ax, dx",
    "3:",
    // More functions, if this is the first and says so, or if this is another.
    "test r9d, 0x700",
    "jnz 4f",
    "lea eax, [r9 + 0xc]",
    "mov dx, 0xcf8",
    "out dx, eax",
    "mov dx, 0xcfe",
    "in al, dx",
    "add r9d, 0x100",
    "test al, 0x80",
    "jnz 7f",
    "add r9d, 0x700",
    "jmp 7f",
    "4:",
    "test r9d, 0x700",
    "lea r9d, [r9 + 0x100]",
    "jnz 7f",
    "add r9d, 0x700",
    "7:",
    // 256 buses.
    "test r9d, 0x1000000",
    "jz 2b",
    "lea rdi, [rbx + 24]",
    "call outlive_stub_digest",
    "cmp rax, [rbx + 16]",
    "jne 5f",
    "lgdt [rbx + 96]",
    "mov eax, 0x18",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "mov fs, eax",
    "mov gs, eax",
    "mov rsi, [rbx]",
    "push 0x10",
    "push qword ptr [rbx + 8]",
    // A far return of 64 bits: the code segment of the boot protocol.
    ".byte 0x48, 0xcb",
    // Damaged: reset by the chip set, by the keyboard controller, by a triple fault.
    "5:",
    "mov dx, 0xcf9",
    "mov al, 0x06",
    "out dx, al",
    "mov al, 0xfe",
    "out 0x64, al",
    "push 0",
    "push 0",
    "lidt [rsp]",
    "int3",
    "6:",
    "hlt",
    "jmp 6b",
    // u64 outlive_stub_digest(const u64 (*ranges)[2]): start and words of each; no words
    // end the list.
    ".globl outlive_stub_digest",
    ".hidden outlive_stub_digest",
    "outlive_stub_digest:",
    "movabs rax, 0xcbf29ce484222325",
    "movabs r8, 0x100000001b3",
    "2:",
    "mov rsi, [rdi]",
    "mov rcx, [rdi + 8]",
    "test rcx, rcx",
    "jz 4f",
    "3:",
    "xor rax, [rsi]",
    "imul rax, r8",
    "rol rax, 29",
    "add rsi, 8",
    "dec rcx",
    "jnz 3b",
    "add rdi, 16",
    "jmp 2b",
    "4:",
    "ret",
    ".globl outlive_stub_end",
    ".hidden outlive_stub_end",
    "outlive_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static outlive_stub_code: u8;
    static outlive_stub_end: u8;
}

fn code() -> &'static [u8] {
    let (start, end) = (&raw const outlive_stub_code, &raw const outlive_stub_end);
    // SAFETY: both labels stand in one section, which is mapped readable for ever.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// The digest of segments; the last word of each is filled up by zeroes, as its page is.
fn digest<'a>(segments: impl Iterator<Item = &'a [u8]>) -> u64 {
    let step = |h: u64, w: u64| (h ^ w).wrapping_mul(PRIME).rotate_left(ROTATE);
    let mut h = SEED;
    for bytes in segments {
        let (words, rest) = bytes.as_chunks::<WORD>();
        for word in words {
            h = step(h, u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            h = step(h, u64::from_le_bytes(last));
        }
    }
    h
}

/// The stub for address `at` (one page), and its entry. It checks `segments`, then enters
/// the kernel at `kernel` with the boot parameters `params`; all are physical addresses.
pub(crate) fn make(at: u64, params: u64, kernel: u64, segments: &[Segment<'_>]) -> (Vec<u8>, u64) {
    assert!(segments.len() < RANGES_MAX, "the last one ends the list");
    let mut stub = vec![0; HEADER];
    let mut put = |place: usize, value: u64| {
        stub[place..place + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(0, params);
    put(8, kernel);
    put(16, digest(segments.iter().map(|segment| segment.bytes)));
    for (n, segment) in segments.iter().enumerate() {
        put(RANGES_AT + n * 16, segment.at);
        put(
            RANGES_AT + n * 16 + 8,
            segment.bytes.len().div_ceil(WORD) as u64,
        );
    }
    // Limit and base, then the descriptors 0x10 (code, 64 bits) and 0x18 (data).
    put(GDTR_AT, 31);
    put(GDTR_AT + 2, at + GDT_AT as u64);
    put(GDT_AT + 0x10, 0x00af_9b00_0000_ffff);
    put(GDT_AT + 0x18, 0x00cf_9300_0000_ffff);
    stub.extend_from_slice(code());
    (stub, at + HEADER as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn outlive_stub_digest(ranges: *const [u64; 2]) -> u64;
    }

    /// What the stub itself computes of the ranges in its header.
    fn checked(stub: &[u8]) -> u64 {
        let mut ranges = [[0u64; 2]; RANGES_MAX];
        for (n, range) in ranges.iter_mut().enumerate() {
            for (half, value) in range.iter_mut().enumerate() {
                let at = RANGES_AT + n * 16 + half * 8;
                *value = u64::from_le_bytes(stub[at..at + 8].try_into().unwrap());
            }
        }
        // SAFETY: the ranges lie in vectors of the test, whole words each.
        unsafe { outlive_stub_digest(ranges.as_ptr()) }
    }

    #[test]
    fn the_stub_finds_every_flipped_bit() {
        // Words, so that addresses are real and the bytes behind the end are zeroes.
        let mut first: Vec<u64> = (0..999u64).map(|n| n.wrapping_mul(SEED)).collect();
        let second = [7u64, 0xff];
        let view = |words: &[u64], short: usize| {
            // SAFETY: the bytes of the slice, without the last ones.
            let bytes = unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8 - short)
            };
            Segment {
                bytes,
                at: words.as_ptr() as u64,
            }
        };
        let segments = [view(&first, 0), view(&second, 7)];
        let (stub, entry) = make(0x10_0000, 0x1000, 0x20_0200, &segments);
        assert_eq!(entry, 0x10_0000 + HEADER as u64);
        assert!(stub.len() < 4096);
        let wanted = u64::from_le_bytes(stub[16..24].try_into().unwrap());
        assert_eq!(checked(&stub), wanted);
        for bit in (0..999 * 64).step_by(61) {
            first[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(checked(&stub), wanted, "bit {bit}");
            first[bit / 64] ^= 1 << (bit % 64);
        }
        assert_eq!(checked(&stub), wanted);
    }
}
