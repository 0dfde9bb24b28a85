//! Mutations of good inputs, from a seed: what the tests run for a moment on stable Rust, and
//! `make soak` for as long as it is told.
//!
//! `OUTLIVE_FUZZ_SECONDS`: so long for each target. Else so many inputs as `run` is told.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::time::{Duration, Instant};

use outlive_base::rng::Sequence;

use super::allocated;

/// Numbers at which parsers go wrong, as bytes.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];

/// The same as words, and words that stand for others.
const WORDS: [&str; 22] = [
    "0",
    "-1",
    "1",
    "4294967296",
    "18446744073709551616",
    "1e400",
    "-0.0",
    "NaN",
    "inf",
    "1.5.2",
    "",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "[[[[[[[[",
    "\"",
    "\\u0000",
    "\n\n",
    ",,,",
    "=",
    "%",
];

/// A copy with a few changes.
pub fn mutate(random: &mut Sequence, good: &[Vec<u8>]) -> Vec<u8> {
    let mut below = |bound: usize| random.below(bound.max(1) as u64) as usize;
    let mut bytes = good[below(good.len())].clone();
    for _ in 0..=below(4) {
        // Most changes go to what leads: structures do.
        let at = match below(3) {
            0 => below(bytes.len() + 1),
            1 => below(bytes.len().min(32) + 1),
            _ => below(bytes.len().min(300) + 1),
        };
        let to = (at + 1 + below(16)).min(bytes.len());
        match below(9) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|it| *it ^= 1),
            1 => {
                let bit = below(8);
                bytes
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|it| *it ^= 1 << bit);
            }
            2 => {
                let width = [1, 2, 4, 8][below(4)];
                let edge = EDGES[below(EDGES.len())].to_le_bytes();
                let into = bytes.iter_mut().skip(at).take(width);
                into.zip(edge).for_each(|(byte, edge)| *byte = edge);
            }
            3 => drop(bytes.drain(at..to)),
            4 => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => bytes.truncate(at),
            6 => {
                let other = &good[below(good.len())];
                let from = below(other.len() + 1);
                let end = (from + below(64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            7 => {
                // A number that stands there, or what begins here.
                let digits = |byte: &u8| byte.is_ascii_digit();
                let start = (at..bytes.len())
                    .find(|at| digits(&bytes[*at]))
                    .unwrap_or(at);
                let end = (start..bytes.len()).find(|at| !digits(&bytes[*at]));
                let word = WORDS[below(WORDS.len())].bytes();
                bytes.splice(start..end.unwrap_or(start), word);
            }
            _ => {
                let word = WORDS[below(WORDS.len())].bytes();
                bytes.splice(at..at, word);
            }
        }
    }
    bytes
}

/// The inputs of a target that are kept in `fuzz/seeds`.
pub fn kept(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut found = root.map(|root| root.join("fuzz/seeds").join(target));
    let Some(directory) = found.find(|directory| directory.is_dir()) else {
        return Vec::new();
    };
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Says which input it was, if it does not come to its end.
struct Input<'a>(&'a str, &'a [u8]);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.1[..self.1.len().min(2000)].escape_ascii();
            eprintln!("{} panics at {} bytes: {shown}", self.0, self.1.len());
        }
    }
}

/// Gives a target what is kept for it, these good inputs, and `count` mutations of both. None may
/// panic, or take more memory at a time than `fixed` bytes and `each` for every byte of input.
pub fn run(
    target: &str,
    good: Vec<Vec<u8>>,
    count: usize,
    (fixed, each): (usize, usize),
    entry: impl Fn(&[u8]),
) {
    let mut inputs = kept(target);
    inputs.extend(good);
    let random = Sequence::new(outlive_base::seed!(), 0);
    run_with(random, target, &inputs, count, (fixed, each), entry);
}

/// The same with these numbers, and these inputs alone.
pub fn run_with(
    mut random: Sequence,
    target: &str,
    inputs: &[Vec<u8>],
    count: usize,
    (fixed, each): (usize, usize),
    entry: impl Fn(&[u8]),
) {
    assert!(!inputs.is_empty(), "nothing to begin with");
    let one = |bytes: &[u8]| {
        let _said = Input(target, bytes);
        let most = allocated::most(|| entry(bytes));
        let bound = fixed + each * bytes.len();
        assert!(
            most <= bound,
            "{most} bytes for an input of {}",
            bytes.len()
        );
    };
    one(&[]);
    inputs.iter().for_each(|bytes| one(bytes));
    let long = std::env::var("OUTLIVE_FUZZ_SECONDS").ok();
    let long = long.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let (begun, mut done) = (Instant::now(), 0);
    while long.map_or(done < count, |long| begun.elapsed() < long) {
        one(&mutate(&mut random, inputs));
        done += 1;
    }
    println!("{target}: {done} mutations of {} inputs", inputs.len());
}
