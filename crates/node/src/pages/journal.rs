//! What the preloaded library told of the processes it was in; the head of `c/pages.c` has
//! who writes, `tell_begin` and `tell_end` in it have the form.

use std::collections::BTreeMap;

use serde::Serialize;

use super::process::Amount;

/// What became of one kind of memory, bytes, over all processes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Fate {
    /// There was at the begin.
    pub bytes: u64,
    /// In whole huge pages.
    pub fits_bytes: u64,
    /// Advised, collapsed or copied.
    pub done_bytes: u64,
    /// Why the rest of what fits was not, each reason once.
    pub reasons: Vec<String>,
}

/// All that was told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Programs that began with the library.
    pub begun: u64,
    /// Text of programs.
    pub text: Fate,
    /// Initialised data of programs and libraries.
    pub data: Fate,
    /// What of theirs is zero at the start.
    pub bss: Fate,
    /// What each process had when it ended by `exit`.
    pub ends: Vec<(u32, Amount)>,
    /// Names of programs, and how often each began; at most 40 names.
    pub programs: Vec<(String, u64)>,
}

/// The most names that are kept.
const NAMES_MAX: usize = 40;

/// A reason in words, from the error that the kernel gave for `kind`.
fn reason(kind: &str, error: i32) -> String {
    use rustix::io::Errno;
    let errno = Errno::from_raw_os_error(error);
    match (kind, errno) {
        (_, Errno::BUSY) => "the program had threads before it began".to_owned(),
        ("text", Errno::INVAL) => {
            "the kernel makes no huge pages of files on this file system; --text copy does without"
                .to_owned()
        }
        (_, Errno::INVAL) => "transparent huge pages are switched off or forbidden".to_owned(),
        (_, Errno::NOMEM) => "no memory: no huge page is free, or a limit is reached".to_owned(),
        (_, Errno::AGAIN) => "no huge page could be had at that moment".to_owned(),
        (_, Errno::ACCESS | Errno::PERM) => "the system forbids it".to_owned(),
        _ => std::io::Error::from(errno).to_string(),
    }
}

impl Fate {
    fn add(&mut self, kind: &str, numbers: &[u64]) {
        let [bytes, fits, done, error] = *numbers else {
            return;
        };
        self.bytes = self.bytes.saturating_add(bytes);
        self.fits_bytes = self.fits_bytes.saturating_add(fits);
        self.done_bytes = self.done_bytes.saturating_add(done);
        let error = i32::try_from(error).unwrap_or(0);
        if (1..4096).contains(&error) {
            let reason = reason(kind, error);
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
        }
    }
}

/// Reads what was told; lines that are none of the library's are left out.
pub fn read(text: &str) -> Told {
    let mut told = Told::default();
    let mut programs = BTreeMap::<String, u64>::new();
    for line in text.lines() {
        let mut words = line.splitn(15, ' ');
        let kind = words.next().unwrap_or("");
        let rest: Vec<&str> = words.collect();
        let numbers = |from: usize, to: usize| -> Option<Vec<u64>> {
            let words = rest.get(from..to)?;
            words.iter().map(|word| word.parse().ok()).collect()
        };
        match kind {
            "begin" => {
                let Some(all) = numbers(1, 13) else { continue };
                told.begun += 1;
                told.text.add("text", &all[..4]);
                told.data.add("data", &all[4..8]);
                told.bss.add("bss", &all[8..]);
                let name = rest.get(13).copied().unwrap_or("?");
                if programs.len() < NAMES_MAX || programs.contains_key(name) {
                    *programs.entry(name.to_owned()).or_default() += 1;
                }
            }
            "end" => {
                let pid = rest.first().and_then(|word| word.parse().ok());
                let (Some(pid), Some(all)) = (pid, numbers(1, 7)) else {
                    continue;
                };
                let bytes = |n: usize| all[n].saturating_mul(1024);
                let hugetlbfs = bytes(4).saturating_add(bytes(5));
                let parts = [bytes(1), bytes(2), bytes(3), hugetlbfs];
                let amount = Amount {
                    resident_bytes: bytes(0).saturating_add(hugetlbfs),
                    huge_bytes: parts.into_iter().fold(0, u64::saturating_add),
                    anonymous_bytes: parts[0],
                    shared_bytes: parts[1],
                    file_bytes: parts[2],
                    hugetlbfs_bytes: hugetlbfs,
                };
                told.ends.push((pid, amount));
            }
            _ => {}
        }
    }
    told.programs = programs.into_iter().collect();
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
begin 7 4096 0 0 0 9000000 8388608 8388608 0 100 0 0 0 a b
end 7 2048 1024 0 0 0 512
nonsense
begin 8 9000000 8388608 0 22 9000000 8388608 0 16 0 0 0 0 a b
";

    #[test]
    fn what_the_library_writes_is_read_and_damage_does_no_harm() {
        let told = read(TEXT);
        assert_eq!(told.begun, 2);
        assert_eq!(told.programs, [("a b".to_owned(), 2)]);
        assert_eq!(
            (told.data.bytes, told.data.done_bytes),
            (18_000_000, 8 << 20)
        );
        assert!(told.data.reasons[0].contains("threads"), "{told:?}");
        assert!(told.text.reasons[0].contains("--text copy"), "{told:?}");
        let (pid, amount) = told.ends[0];
        assert_eq!(pid, 7);
        assert_eq!(amount.resident_bytes, 2560 << 10);
        assert_eq!(amount.huge_bytes, 1536 << 10);
        for cut in 0..TEXT.len() {
            read(&TEXT[..cut]);
        }
        read(&TEXT.replace("8388608", "18446744073709551615"));
    }
}
