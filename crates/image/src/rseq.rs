//! Restartable sequences of a restored thread.
//!
//! If the thread was stopped inside of a sequence, the kernel would have moved it to the
//! abort handler before it ran again; a restore must do the same, since the sequence's
//! assumption (still on the same CPU, not preempted) no longer holds.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::calls::reg;
use crate::model::Thread;

/// Offset of `rseq_cs` in `struct rseq` (linux/rseq.h).
const DESCRIPTOR: u64 = 8;

/// Moves a thread out of a restartable sequence.
pub fn settle(memory: &File, thread: &Thread, registers: &mut [u64]) -> io::Result<()> {
    let (area, _, _) = thread.rseq;
    if area == 0 {
        return Ok(());
    }
    let mut pointer = [0; 8];
    memory.read_exact_at(&mut pointer, area + DESCRIPTOR)?;
    let at = u64::from_le_bytes(pointer);
    if at == 0 {
        return Ok(());
    }
    // version u32, flags u32, start, length behind the start, abort handler.
    let mut bytes = [0; 32];
    memory.read_exact_at(&mut bytes, at)?;
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
        u64::from_le_bytes(word)
    };
    let (start, length, abort) = (word(1), word(2), word(3));
    if registers[reg::RIP].wrapping_sub(start) < length {
        registers[reg::RIP] = abort;
    }
    memory.write_all_at(&[0; 8], area + DESCRIPTOR)
}
