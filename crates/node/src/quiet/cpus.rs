//! Sets of cores in the two forms that the kernel writes: lists (`0-2,5`) and masks (`f,00000001`).

use std::collections::BTreeSet;
use std::fmt;

use rustix::thread::CpuSet;

/// A set of cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cpus(BTreeSet<u32>);

/// Cores beyond what a mask of the kernel's holds are refused: nothing long is allocated.
const MOST: u32 = CpuSet::MAX_CPU as u32;

impl Cpus {
    /// Those of a list; `None` if it is none. An empty text is the empty set.
    pub fn of_list(text: &str) -> Option<Cpus> {
        let text = text.trim();
        let mut cores = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| word.parse::<u32>().ok().filter(|core| *core < MOST);
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

    /// As the kernel takes it.
    pub fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        self.iter().for_each(|core| set.set(core as usize));
        set
    }

    /// From what the kernel gave.
    pub fn of_set(set: &CpuSet) -> Cpus {
        Cpus(
            (0..MOST)
                .filter(|core| set.is_set(*core as usize))
                .collect(),
        )
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
            assert_eq!(Cpus::of_set(&cpus.set()), cpus);
        }
        assert_eq!(Cpus::of_mask("f").unwrap().to_string(), "0-3");
        for bad in ["a", "2-1", "1-", "-1", "0,,1", "99999999", "0-4294967295"] {
            assert_eq!(Cpus::of_list(bad), None, "{bad}");
        }
        assert_eq!(Cpus::of_mask("xyz"), None);
        assert_eq!(Cpus::of_mask(&"ffffffff,".repeat(90)), None);
    }
}
