//! What a rank leaves: 64 words of 8 bytes, little-endian, then readings of the counter, then a
//! check of all words before it. Written by `c/ranks.c`, which names the same places.

use outlive_base::wire::{Reader, WireError};
use outlive_base::{Code, Entity, Error, Result};

use super::Mode;
use crate::cycles::{Anchor, Scale};

/// The first word: "OMPIFWQ1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"OMPIFWQ1");
/// Words before the readings.
pub const HEAD: usize = 64;
/// The longest host name and library version, bytes.
const TEXT_BYTES: usize = 128;

/// A rank's quanta, and where they were made.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its number.
    pub rank: u32,
    /// How many ranks it saw.
    pub size: u32,
    /// When it waited for the others.
    pub mode: Mode,
    /// Steps of the chain in a quantum; the same in all ranks.
    pub work: u64,
    /// Cycles and the clock.
    pub scale: Scale,
    /// The core at the begin and at the end.
    pub cores: (u32, u32),
    /// The cores that it could run on, ascending.
    pub allowed: Vec<u32>,
    /// Whether its memory was locked.
    pub locked: bool,
    /// How often its daemon ran.
    pub bursts: u64,
    /// When its daemon woke up within the period, ns.
    pub phase_ns: u64,
    /// The name of the counter.
    pub counter: &'static str,
    /// Its host's name.
    pub host: String,
    /// The first line of what MPI_Get_library_version says.
    pub library: String,
    /// Time of each quantum, ns.
    pub quanta: Vec<f64>,
    /// Time of each step, ns; empty for [`Mode::Start`].
    pub steps: Vec<f64>,
}

/// The word that ends a file whose other words are these.
pub fn check(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |sum: u64, word| sum.rotate_left(1) ^ word)
}

/// Reads the file `name` of a run in `mode` with `steps` quanta.
///
/// # Errors
/// [`Code::FormatUnknown`] for another format or another byte order, [`Code::Corrupt`] for what
/// is not as the format says, or of another run; a counter that goes backwards or stands still.
pub fn parse(name: &str, bytes: &[u8], mode: Mode, steps: u64) -> Result<Record> {
    let entity = || Entity::File(name.to_owned());
    let refuse = |code, reason: &str, remedy: &str| Error::new(code, entity(), reason, remedy);
    let damaged = |reason: &str| {
        let remedy = "run it again; if it repeats, check the file system that --dir lies on";
        refuse(Code::Corrupt, reason, remedy)
    };
    let head = Head::read(bytes).map_err(|error| damaged(&error.to_string()))?;
    if head.words[0] != MAGIC {
        let remedy = "run ranks and tool on machines of the same byte order (little-endian)";
        return Err(refuse(Code::FormatUnknown, "is no result", remedy));
    }
    let readings = steps
        .checked_mul(if mode == Mode::Step { 2 } else { 1 })
        .and_then(|count| count.checked_add(1));
    if Some(head.marks.len() as u64) != readings
        || head.words[3] != u64::from(mode == Mode::Step)
        || head.words[4] != steps
    {
        return Err(damaged("is of another run"));
    }
    let all = head.words.iter().chain(&head.marks).copied();
    if check(all) != head.check {
        return Err(damaged("does not match its check"));
    }
    let word = |at: usize| u32::try_from(head.words[at]).ok();
    let (Some(rank), Some(size), Some(first), Some(last)) = (word(1), word(2), word(10), word(11))
    else {
        return Err(damaged("has a number that is too large"));
    };
    let anchor = |at: usize| Anchor {
        cycles: head.words[at],
        ns: head.words[at + 1],
    };
    let bind = "bind each rank to one core, with --cores or the launcher's own option";
    let scale = Scale::between(anchor(6), anchor(8)).ok_or_else(|| {
        let reason = "the cycle counter or the clock stood still";
        refuse(Code::Unsupported, reason, bind)
    })?;
    if head.marks.windows(2).any(|pair| pair[1] < pair[0]) {
        let reason = "the cycle counter went backwards: those of two cores differ";
        return Err(refuse(Code::Unsupported, reason, bind));
    }
    let counters = ["tsc", "cntvct", "clock"];
    let counter = counters.get(head.words[14] as usize);
    let (quanta, steps) = times(mode, &head.marks, &scale);
    Ok(Record {
        rank,
        size,
        mode,
        work: head.words[5],
        scale,
        cores: (first, last),
        allowed: mask(&head.words[16..32]),
        locked: head.words[12] != 0,
        bursts: head.words[13],
        phase_ns: head.words[15],
        counter: counter.ok_or_else(|| damaged("names no counter"))?,
        host: text(&head.words[32..48]),
        library: text(&head.words[48..64]),
        quanta,
        steps,
    })
}

/// The words of a file by their places.
struct Head {
    words: [u64; HEAD],
    marks: Vec<u64>,
    check: u64,
}

impl Head {
    fn read(bytes: &[u8]) -> std::result::Result<Head, WireError> {
        let mut reader = Reader::new(bytes);
        let mut words = [0; HEAD];
        for word in &mut words {
            *word = reader.u64()?;
        }
        let marks = reader.remaining().saturating_sub(8) / 8;
        let marks = (0..marks)
            .map(|_| reader.u64())
            .collect::<std::result::Result<_, _>>()?;
        let check = reader.u64()?;
        reader.finish()?;
        Ok(Head {
            words,
            marks,
            check,
        })
    }
}

/// Times of quanta and of steps.
fn times(mode: Mode, marks: &[u64], scale: &Scale) -> (Vec<f64>, Vec<f64>) {
    let span = |from: u64, to: u64| scale.ns(to - from);
    match mode {
        Mode::Start => {
            let quanta = marks.windows(2).map(|pair| span(pair[0], pair[1]));
            (quanta.collect(), Vec::new())
        }
        // Left a barrier, done, left the next one.
        Mode::Step => marks
            .windows(3)
            .step_by(2)
            .map(|of| (span(of[0], of[1]), span(of[0], of[2])))
            .unzip(),
    }
}

fn mask(words: &[u64]) -> Vec<u32> {
    let bits = (0..words.len() * 64).filter(|bit| words[bit / 64] >> (bit % 64) & 1 == 1);
    bits.map(|bit| bit as u32).collect()
}

/// Text that ends with a zero byte.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let bytes = &bytes[..bytes.len().min(TEXT_BYTES)];
    let end = bytes.iter().position(|&byte| byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    let clean = text.chars().filter(|letter| !letter.is_control());
    clean.collect::<String>().trim().to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    /// The bytes of a rank whose counter runs once a nanosecond.
    pub(crate) fn bytes(rank: u64, size: u64, mode: Mode, steps: u64, marks: &[u64]) -> Vec<u8> {
        let mut words = vec![0u64; HEAD];
        let step = u64::from(mode == Mode::Step);
        let (first, last) = (marks[0], marks[marks.len() - 1]);
        words[..5].copy_from_slice(&[MAGIC, rank, size, step, steps]);
        words[5..10].copy_from_slice(&[77, first, 1_000, last, last - first + 1_000]);
        words[12] = 1;
        words[16] = 1 << rank;
        words[32] = u64::from_le_bytes(*b"node\x00abc");
        words.extend_from_slice(marks);
        words.push(check(words.iter().copied()));
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn quanta_and_steps_are_those_between_the_readings() {
        let marks = [10, 15, 30, 36, 40];
        let read = parse("x", &bytes(3, 4, Mode::Step, 2, &marks), Mode::Step, 2).unwrap();
        assert_eq!(
            (&read.quanta[..], &read.steps[..]),
            (&[5.0, 6.0][..], &[20.0, 10.0][..])
        );
        assert_eq!((read.rank, read.size, &read.allowed[..]), (3, 4, &[3][..]));
        assert_eq!(
            (&*read.host, read.counter, read.locked),
            ("node", "tsc", true)
        );
        let read = parse("x", &bytes(0, 1, Mode::Start, 4, &marks), Mode::Start, 4).unwrap();
        assert_eq!(read.quanta, [5.0, 15.0, 6.0, 4.0]);
        assert!(read.steps.is_empty());
    }

    #[test]
    fn what_is_no_result_of_this_run_is_refused() {
        let good = bytes(0, 1, Mode::Step, 2, &[10, 15, 30, 36, 40]);
        let code = |bytes: &[u8], mode, steps| parse("x", bytes, mode, steps).unwrap_err().code();
        assert_eq!(code(&good, Mode::Step, 3), Code::Corrupt);
        assert_eq!(code(&good, Mode::Start, 4), Code::Corrupt);
        assert_eq!(code(&good, Mode::Step, u64::MAX), Code::Corrupt);
        assert_eq!(code(&[1; 600], Mode::Step, 2), Code::FormatUnknown);
        let backwards = bytes(0, 1, Mode::Start, 3, &[10, 30, 20, 40]);
        assert_eq!(code(&backwards, Mode::Start, 3), Code::Unsupported);
        let still = bytes(0, 1, Mode::Start, 2, &[10, 10, 10]);
        assert_eq!(code(&still, Mode::Start, 2), Code::Unsupported);
        for length in 0..good.len() {
            assert!(
                parse("x", &good[..length], Mode::Step, 2).is_err(),
                "{length}"
            );
        }
        // One bit that is wrong, anywhere.
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..500 {
            let mut bad = good.clone();
            let bit = random.below(8 * good.len() as u64) as usize;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse("x", &bad, Mode::Step, 2).is_err(), "bit {bit}");
        }
    }
}
