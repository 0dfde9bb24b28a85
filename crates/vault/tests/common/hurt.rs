//! What may become of a file.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;

use outlive_base::rng::Sequence;
use outlive_codec::crc64;
use outlive_vault::{Key, Put, Space, Store};

const PAGE: usize = 4096;

#[derive(Clone, Debug)]
pub enum Harm {
    /// One bit of a byte.
    Flip(usize, u8),
    /// It ends here.
    Cut(usize),
    /// Nothing is in it.
    Empty,
    /// A block is zero.
    Zero(usize, usize),
    /// All from here on is zero: it was never written.
    Half(usize),
    /// There is more, zeroes or not.
    More(usize, u8),
    /// Another file stands in its place.
    Swap(Vec<u8>),
}

impl Harm {
    /// The file afterwards.
    pub fn of(&self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        match self {
            Harm::Flip(at, bit) => bytes[*at] ^= 1 << bit,
            Harm::Cut(at) => bytes.truncate(*at),
            Harm::Empty => bytes.clear(),
            Harm::Zero(from, to) => bytes[*from..*to].fill(0),
            Harm::Half(from) => bytes[*from..].fill(0),
            Harm::More(count, byte) => bytes.extend(std::iter::repeat_n(*byte, *count)),
            Harm::Swap(other) => bytes.clone_from(other),
        }
        bytes
    }

    /// One that changes it.
    pub fn some(good: &[u8], random: &mut Sequence) -> Harm {
        loop {
            let at = random.below(good.len() as u64) as usize;
            let harm = match random.below(6) {
                0 => Harm::Flip(at, random.below(8) as u8),
                1 => Harm::Cut(at),
                2 => Harm::Zero(at, (at + PAGE).min(good.len())),
                3 => Harm::Half(at),
                4 => Harm::More(1 + at % 9000, random.below(256) as u8),
                _ => Harm::Empty,
            };
            if harm.of(good) != good {
                return harm;
            }
        }
    }
}

/// A flip in each of these places, and each other way at each border and at some places between.
pub fn all_harms(
    good: &[u8],
    places: &BTreeSet<usize>,
    others: &[Vec<u8>],
    random: &mut Sequence,
) -> Vec<Harm> {
    let end = good.len();
    let mut harms: Vec<Harm> = places
        .iter()
        .map(|at| Harm::Flip(*at, random.below(8) as u8))
        .collect();
    let mut any = |count: u64| -> Vec<usize> {
        (0..count)
            .map(|_| random.below(end as u64) as usize)
            .collect()
    };
    harms.extend(any(60).into_iter().map(|at| Harm::Flip(at, (at % 8) as u8)));
    let borders = (0..end).step_by(PAGE).chain([end - 1]);
    for at in borders.chain(any(12)) {
        harms.extend([Harm::Cut(at), Harm::Half(at)]);
        harms.push(Harm::Zero(at, (at + PAGE).min(end)));
    }
    harms.push(Harm::Empty);
    for (count, byte) in [(1, 0), (8, 0), (PAGE, 0), (PAGE, 0x5a), (3, 1)] {
        harms.push(Harm::More(count, byte));
    }
    harms.extend(others.iter().cloned().map(Harm::Swap));
    harms.retain(|harm| harm.of(good) != good);
    harms
}

pub fn get(store: &dyn Store, key: &Key) -> Vec<u8> {
    store.get(key, u64::MAX).unwrap()
}

/// Changes the object, whatever its kind; a file in its place.
pub fn put(store: &dyn Store, key: &Key, bytes: &[u8]) {
    let path = store.locate(key);
    if std::path::Path::new(&path).is_file() {
        return std::fs::write(path, bytes).unwrap();
    }
    let put = [Put {
        key: key.clone(),
        bytes,
        space: Space::Free,
    }];
    store.put_all(&put).pop().unwrap().unwrap();
}

fn reseal(bytes: &mut [u8], from: usize, at: usize) {
    if from <= at && at.checked_add(8).is_some_and(|end| end <= bytes.len()) {
        let checksum = crc64(&bytes[from..at]);
        bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize, count: usize) -> usize {
    let bytes = bytes.get(at..at + count).unwrap_or_default();
    let bytes = bytes.iter().rev();
    bytes.fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Puts the checksums of header, frame pages, index and footer right.
pub fn reseal_container(bytes: &mut [u8]) {
    reseal(bytes, 0, 120);
    let header = number(bytes, 12, 4);
    reseal(bytes, 128, header.saturating_sub(8));
    for start in (0..bytes.len()).step_by(PAGE) {
        let page = &bytes[start..];
        if page.starts_with(b"OLFRAME1") || page.starts_with(b"OLFOOT1\0") {
            reseal(bytes, start, start + PAGE - 8);
        } else if page.starts_with(b"OLINDEX1") {
            let length = number(page, 24, 8);
            reseal(bytes, start, start.saturating_add(length.saturating_sub(8)));
        }
    }
}
