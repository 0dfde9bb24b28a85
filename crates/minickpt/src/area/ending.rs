//! Threads that were ending when the kernel died.

use std::fs::File;
use std::os::unix::fs::FileExt;

use outlive_image::model::{Backing, Mapping};

use super::Bytes;
use crate::births;

/// Threads that were ending, and to all others have ended ([`births::has_ended`]).
pub(super) fn over(threads: &[&[u8]], mappings: &[Mapping]) -> Vec<i32> {
    const EXITING: u32 = 1 << 4;
    let all = threads.iter().map(|bytes| Bytes(bytes));
    let words: Vec<births::Ending> = all.clone().map(|t| (t.i32(4), t.u64(296))).collect();
    let ending = all.filter(|thread| thread.u32(8) & EXITING != 0);
    let ending = ending.map(|thread| (thread.i32(4), thread.u64(296)));
    ending
        .filter(|one| word_at(mappings, one.1).is_some_and(|w| births::has_ended(*one, w, &words)))
        .map(|(tid, _)| tid)
        .collect()
}

/// A word of a process's memory, which stands in files.
fn word_at(mappings: &[Mapping], at: u64) -> Option<u32> {
    let mapping = mappings.iter().find(|m| m.start <= at && at < m.end)?;
    let Backing::File { path, offset, .. } = &mapping.backing else {
        return None;
    };
    let regular = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let file = regular.then(|| File::open(path).ok()).flatten()?;
    let mut word = [0; 4];
    file.read_exact_at(&mut word, offset + (at - mapping.start))
        .ok()?;
    Some(u32::from_le_bytes(word))
}
