//! What the next kernel must know of calls that the supervisor had a hand in.
//!
//! *The one call on memory that it is carrying out.* While it does, the thread's registers
//! are those of the gate. If the kernel dies then, the thread must come back at its own
//! call, which is made again. So registers and mask stand in a file beside the memory,
//! written in place: magic last before, first after.
//!
//! *The processes that were made.* A process is kept from the moment when it has its own
//! memory; whoever made it may then still be in its call, which must not make it again. So
//! the pair of both stands in the same file, one word, from before the child is kept until
//! its maker makes another or ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use outlive_image::calls::reg;
use outlive_image::gate::{GATE, GATE_BYTES};
use outlive_image::sys::WORDS;

const MAGIC: u64 = 0x0031_4c4e_4a4b_4d4f;
const BYTES: usize = 8 * (3 + WORDS);
/// Where it stands whether the call has its result, and the result.
const DECIDED: usize = BYTES;
/// Where the pairs begin, and the length of the file: one block.
const PAIRS: usize = 512;
const LENGTH: usize = 4096;
const PAIRS_MAX: usize = (LENGTH - PAIRS) / 8;

/// A call that was being carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The thread.
    pub tid: i32,
    /// Its registers at the call.
    pub registers: Vec<u64>,
    /// Its blocked signals.
    pub mask: u64,
    /// What it gives, once that is known: then it must not be made again.
    pub result: Option<i64>,
}

impl Pending {
    /// Registers and mask with which the thread comes back: at its call, or behind it.
    pub fn state(&self) -> (Vec<u64>, u64) {
        let mut registers = self.registers.clone();
        if let Some(result) = self.result {
            registers[reg::RAX] = result as u64;
            registers[reg::ORIG_RAX] = u64::MAX;
        }
        (registers, self.mask)
    }

    /// True if the thread with these registers has not got its result yet: it is in the
    /// gate, or still at its call, perhaps with the signals blocked as in the gate.
    pub fn holds(&self, registers: &[u64]) -> bool {
        (GATE..GATE + GATE_BYTES).contains(&registers[reg::RIP])
            || [reg::RIP, reg::ORIG_RAX, reg::RAX, reg::RSP]
                .iter()
                .all(|word| registers[*word] == self.registers[*word])
    }
}

/// What a dead kernel left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Noted {
    /// The call that was being carried out.
    pub pending: Option<Pending>,
    /// Threads and the process that each made last.
    pub children: BTreeMap<i32, i32>,
}

/// The file.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// The threads whose pairs stand there, each at its place.
    makers: Vec<i32>,
    /// Where the next one goes if none is free: the place of the oldest.
    oldest: usize,
}

impl Journal {
    /// The file in the directory of the memory, as it is: an image that waits needs it.
    ///
    /// # Errors
    /// Of the file system.
    pub fn open(memory: &Path) -> io::Result<Journal> {
        std::fs::create_dir_all(memory)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // It holds registers.
            .mode(0o600)
            .open(memory.join("journal"))?;
        if file.metadata()?.len() != LENGTH as u64 {
            file.set_len(0)?;
            file.write_all_at(&[0; LENGTH], 0)?;
            file.sync_all()?;
        }
        Ok(Journal {
            file,
            makers: Vec::new(),
            oldest: 0,
        })
    }

    /// Makes it empty: nothing waits that could need it.
    ///
    /// # Errors
    /// Of the file system.
    pub fn clear(&mut self) -> io::Result<()> {
        self.makers.clear();
        self.file.write_all_at(&[0; LENGTH], 0)?;
        self.file.sync_all()
    }

    /// Thread `maker` has made process `child`, and may still be in its call.
    ///
    /// # Errors
    /// Of the file system.
    pub fn bore(&mut self, maker: i32, child: i32) -> io::Result<()> {
        let place = self.place(maker).or_else(|| self.place(0));
        let place = place.unwrap_or_else(|| {
            if self.makers.len() < PAIRS_MAX {
                self.makers.push(0);
                return self.makers.len() - 1;
            }
            self.oldest = (self.oldest + 1) % PAIRS_MAX;
            self.oldest
        });
        self.makers[place] = maker;
        self.pair(
            place,
            u64::from(maker as u32) | u64::from(child as u32) << 32,
        )
    }

    /// Thread `maker` is no longer in a call that made a process.
    ///
    /// # Errors
    /// Of the file system.
    pub fn forget(&mut self, maker: i32) -> io::Result<()> {
        let Some(place) = self.place(maker) else {
            return Ok(());
        };
        self.makers[place] = 0;
        self.pair(place, 0)
    }

    fn place(&self, maker: i32) -> Option<usize> {
        self.makers.iter().position(|other| *other == maker)
    }

    fn pair(&self, place: usize, word: u64) -> io::Result<()> {
        let at = (PAIRS + place * 8) as u64;
        self.file.write_all_at(&word.to_le_bytes(), at)
    }

    /// A call begins.
    ///
    /// # Errors
    /// Of the file system.
    pub fn begin(&self, tid: i32, registers: &[u64], mask: u64) -> io::Result<()> {
        let words = [tid as u64, mask]
            .into_iter()
            .chain(registers.iter().copied());
        // Its result is not known.
        let words = words.chain([0, 0]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.file.write_all_at(&bytes, 8)?;
        self.file.write_all_at(&MAGIC.to_le_bytes(), 0)
    }

    /// What it gives is known, and what is left to do may stay undone.
    ///
    /// # Errors
    /// Of the file system.
    pub fn decided(&self, result: i64) -> io::Result<()> {
        let at = DECIDED as u64;
        self.file.write_all_at(&result.to_le_bytes(), at + 8)?;
        self.file.write_all_at(&1u64.to_le_bytes(), at)
    }

    /// It is over: the thread has its registers back.
    ///
    /// # Errors
    /// Of the file system.
    pub fn end(&self) -> io::Result<()> {
        self.file.write_all_at(&[0; 8], 0)
    }

    /// What was going on when the kernel died.
    pub fn noted(memory: &Path) -> Noted {
        let Ok(bytes) = std::fs::read(memory.join("journal")) else {
            return Noted::default();
        };
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word.copy_from_slice(chunk);
                u64::from_le_bytes(word)
            })
            .collect();
        let pending = words.get(..BYTES / 8 + 2).filter(|words| words[0] == MAGIC);
        let pairs = words.get(PAIRS / 8..).unwrap_or_default();
        Noted {
            pending: pending.map(|words| Pending {
                tid: words[1] as i32,
                mask: words[2],
                registers: words[3..BYTES / 8].to_vec(),
                result: (words[BYTES / 8] != 0).then_some(words[BYTES / 8 + 1] as i64),
            }),
            children: pairs
                .iter()
                .filter(|pair| **pair != 0)
                .map(|pair| (*pair as i32, (*pair >> 32) as i32))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_pending_between_its_begin_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!(Journal::noted(dir.path()), Noted::default());
        let registers: Vec<u64> = (0..WORDS as u64).collect();
        journal.begin(7, &registers, 5).unwrap();
        let pending = Pending {
            tid: 7,
            registers,
            mask: 5,
            result: None,
        };
        // A restore that fails opens it, and must leave it to the next attempt.
        drop(Journal::open(dir.path()).unwrap());
        assert_eq!(Journal::noted(dir.path()).pending, Some(pending.clone()));
        assert_eq!(pending.state(), (pending.registers.clone(), 5));
        journal.decided(-12).unwrap();
        let decided = Journal::noted(dir.path()).pending.unwrap();
        assert_eq!(decided.result, Some(-12));
        let (registers, mask) = decided.state();
        assert_eq!((registers[reg::RAX] as i64, mask), (-12, 5));
        assert_eq!(registers[reg::ORIG_RAX], u64::MAX);
        // The next call has none.
        journal.begin(7, &pending.registers, 5).unwrap();
        assert_eq!(Journal::noted(dir.path()).pending, Some(pending.clone()));
        journal.end().unwrap();
        assert_eq!(Journal::noted(dir.path()).pending, None);
        journal.begin(7, &pending.registers, 5).unwrap();
        journal.bore(7, 8).unwrap();
        journal.clear().unwrap();
        assert_eq!(Journal::noted(dir.path()), Noted::default());
    }

    #[test]
    fn the_last_child_of_a_thread_is_known_until_it_makes_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        let children = || Journal::noted(dir.path()).children;
        journal.bore(7, 8).unwrap();
        journal.bore(9, 10).unwrap();
        assert_eq!(children(), BTreeMap::from([(7, 8), (9, 10)]));
        journal.forget(7).unwrap();
        journal.forget(77).unwrap();
        assert_eq!(children(), BTreeMap::from([(9, 10)]));
        journal.bore(9, 11).unwrap();
        assert_eq!(children(), BTreeMap::from([(9, 11)]));
        // More than there is room for: the oldest go.
        for maker in 100..100 + 2 * PAIRS_MAX as i32 {
            journal.bore(maker, maker + 1).unwrap();
        }
        let kept = children();
        assert_eq!(kept.len(), PAIRS_MAX);
        let newest = 100 + 2 * PAIRS_MAX as i32 - 1;
        assert_eq!(kept.get(&newest), Some(&(newest + 1)));
        assert_eq!(
            std::fs::metadata(dir.path().join("journal")).unwrap().len(),
            4096
        );
    }
}
