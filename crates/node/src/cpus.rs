//! Sets of cores in the forms that the kernel has for them: lists (`0-2,5`), masks (`f,00000001`) and
//! the words of affinities.

use std::collections::BTreeSet;
use std::{fmt, io};

/// A set of cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cpus(BTreeSet<u32>);

/// The kernel's own bound for cores and NUMA nodes (NR_CPUS_RANGE_END, MAX_NUMNODES): a larger
/// number is none, and nothing long is allocated.
pub const MOST: u32 = 8192;
/// Bits of a word of an affinity.
const WORD_BITS: u32 = 64;

/// Cores as the kernel takes them for the affinity of a thread: made before a fork, it is used after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Affinity(Vec<u64>);

impl Affinity {
    /// The bytes of it, as sched_setaffinity(2) takes them.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Binds a thread to the cores; 0 is the calling one. Allocates nothing.
    ///
    /// # Errors
    /// What the kernel has against it.
    pub fn apply(&self, tid: u32) -> io::Result<()> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| io::ErrorKind::NotFound)?;
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the words live, and are only read.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, bytes, self.0.as_ptr()) };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Cpus {
    /// Those of a list; `None` if it is none. An empty text is the empty set.
    pub fn of_list(text: &str) -> Option<Cpus> {
        let text = text.trim();
        let mut cores = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| word.trim().parse::<u32>().ok().filter(|core| *core < MOST);
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            cores.extend(first..=last);
        }
        Some(Cpus(cores))
    }

    /// Those of a mask: hexadecimal digits, in groups of 32 bits; `None` if it is none.
    pub fn of_mask(text: &str) -> Option<Cpus> {
        let mut cores = BTreeSet::new();
        for (n, group) in text.trim().rsplit(',').enumerate() {
            let bits = u32::from_str_radix(group, 16).ok()?;
            let first = u32::try_from(n).ok()?.checked_mul(32)?;
            let set = (0..32).filter(|bit| bits & (1 << bit) != 0);
            for core in set {
                cores.insert(Some(first + core).filter(|core| *core < MOST)?);
            }
        }
        Some(Cpus(cores))
    }

    /// As a mask of the kernel's.
    pub fn mask(&self) -> String {
        let groups = self.0.last().map_or(1, |last| last / 32 + 1);
        let bits = |group: u32| {
            let of_it = self.0.iter().filter(|core| **core / 32 == group);
            of_it.fold(0_u32, |bits, core| bits | 1 << (core % 32))
        };
        let words: Vec<String> = (0..groups)
            .rev()
            .map(|group| format!("{:08x}", bits(group)))
            .collect();
        words.join(",")
    }

    /// In both.
    pub fn and(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.intersection(&other.0).copied().collect())
    }

    /// Without those of the other.
    pub fn without(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.difference(&other.0).copied().collect())
    }

    /// In one or both.
    pub fn or(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.union(&other.0).copied().collect())
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cores, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it is one of them.
    pub fn contains(&self, core: u32) -> bool {
        self.0.contains(&core)
    }

    /// True if none is in both.
    pub fn is_disjoint(&self, other: &Cpus) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// As the kernel takes it.
    pub fn affinity(&self) -> Affinity {
        let words = self.0.last().map_or(1, |last| last / WORD_BITS + 1);
        let mut set = vec![0; words as usize];
        for core in &self.0 {
            set[(core / WORD_BITS) as usize] |= 1 << (core % WORD_BITS);
        }
        Affinity(set)
    }

    /// Those on which a thread may run; 0 is the calling one.
    ///
    /// # Errors
    /// What the kernel has against it.
    pub fn of_thread(tid: u32) -> io::Result<Cpus> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| io::ErrorKind::NotFound)?;
        let mut words = [0_u64; (MOST / WORD_BITS) as usize];
        let bytes = size_of_val(&words);
        // SAFETY: the words live, and have so many bytes.
        let got =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, bytes, words.as_mut_ptr()) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let set = |core: &u32| words[(core / WORD_BITS) as usize] >> (core % WORD_BITS) & 1 == 1;
        Ok((0..MOST).filter(set).collect())
    }
}

impl FromIterator<u32> for Cpus {
    fn from_iter<T: IntoIterator<Item = u32>>(cores: T) -> Cpus {
        Cpus(cores.into_iter().collect())
    }
}

/// As a list of the kernel's.
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.iter().peekable();
        let mut begun = false;
        while let Some(first) = cores.next() {
            let mut last = first;
            while cores.peek() == Some(&(last + 1)) {
                last += 1;
                cores.next();
            }
            let comma = if begun { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            begun = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_come_back() {
        for (list, mask) in [
            ("0", "00000001"),
            ("0-1", "00000003"),
            ("1,3-5", "0000003a"),
            ("0,32", "00000001,00000001"),
            ("64", "00000001,00000000,00000000"),
            ("", "00000000"),
        ] {
            let cpus = Cpus::of_list(list).unwrap();
            assert_eq!((cpus.to_string(), cpus.mask()), (list.into(), mask.into()));
            assert_eq!(Cpus::of_mask(mask).unwrap(), cpus);
            let bits = cpus.affinity().bytes();
            assert_eq!(bits.len() % 8, 0, "whole words");
            let set = |core: &u32| {
                let byte = bits.get(*core as usize / 8).copied().unwrap_or_default();
                byte >> (core % 8) & 1 == 1
            };
            assert_eq!((0..MOST).filter(set).collect::<Cpus>(), cpus);
        }
        assert_eq!(Cpus::of_mask("f").unwrap().to_string(), "0-3");
        for bad in [
            "a",
            "2-1",
            "1-",
            "-1",
            "0,,1",
            "99999999",
            "0-4294967295",
            "0-8192",
            "0-3:1/2",
        ] {
            assert_eq!(Cpus::of_list(bad), None, "{bad}");
        }
        assert_eq!(Cpus::of_list(" 0-1\n"), Cpus::of_list("0,1"));
        assert_eq!(Cpus::of_list("0-8191").map(|all| all.len()), Some(8192));
        assert_eq!(Cpus::of_mask("xyz"), None);
        assert_eq!(Cpus::of_mask(&"ffffffff,".repeat(300)), None);
    }

    #[test]
    fn a_thread_is_bound_to_what_it_is_told() {
        let here = Cpus::of_thread(0).unwrap();
        let first: Cpus = here.iter().take(1).collect();
        let bound = std::thread::spawn({
            let first = first.clone();
            move || {
                first.affinity().apply(0).unwrap();
                Cpus::of_thread(0).unwrap()
            }
        });
        assert_eq!(bound.join().unwrap(), first);
        assert_eq!(Cpus::of_thread(0).unwrap(), here, "another thread");
        assert!(Cpus::default().affinity().apply(0).is_err());
        assert!(here.affinity().apply(u32::MAX).is_err());
    }
}
