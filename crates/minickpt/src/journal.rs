//! The one call on memory that the supervisor is carrying out.
//!
//! While it does, the thread's registers are those of the gate. If the kernel dies then,
//! the thread must come back at its own call, which is made again. So registers and mask
//! stand in a file beside the memory, written in place: magic last before, first after.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use outlive_image::sys::WORDS;

const MAGIC: u64 = 0x0031_4c4e_4a4b_4d4f;
const BYTES: usize = 8 * (3 + WORDS);

/// A call that was being carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// The thread.
    pub tid: i32,
    /// Its registers at the call.
    pub registers: Vec<u64>,
    /// Its blocked signals.
    pub mask: u64,
}

/// The file.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Makes it empty, in the directory of the memory.
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
            .open(memory.join("journal"))?;
        file.write_all_at(&[0; BYTES], 0)?;
        file.sync_all()?;
        Ok(Journal(file))
    }

    /// A call begins.
    ///
    /// # Errors
    /// Of the file system.
    pub fn begin(&self, tid: i32, registers: &[u64], mask: u64) -> io::Result<()> {
        let words = [tid as u64, mask]
            .into_iter()
            .chain(registers.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.0.write_all_at(&bytes, 8)?;
        self.0.write_all_at(&MAGIC.to_le_bytes(), 0)
    }

    /// It is over: the thread has its registers back.
    ///
    /// # Errors
    /// Of the file system.
    pub fn end(&self) -> io::Result<()> {
        self.0.write_all_at(&[0; 8], 0)
    }

    /// What was going on when the kernel died.
    pub fn pending(memory: &Path) -> Option<Pending> {
        let bytes = std::fs::read(memory.join("journal")).ok()?;
        let words: Vec<u64> = bytes
            .get(..BYTES)?
            .chunks_exact(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word.copy_from_slice(chunk);
                u64::from_le_bytes(word)
            })
            .collect();
        (words[0] == MAGIC).then(|| Pending {
            tid: words[1] as i32,
            mask: words[2],
            registers: words[3..].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_pending_between_its_begin_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(Journal::pending(dir.path()), None);
        let registers: Vec<u64> = (0..WORDS as u64).collect();
        journal.begin(7, &registers, 5).unwrap();
        let pending = Journal::pending(dir.path()).unwrap();
        assert_eq!(
            pending,
            Pending {
                tid: 7,
                registers,
                mask: 5
            }
        );
        journal.end().unwrap();
        assert_eq!(Journal::pending(dir.path()), None);
    }
}
