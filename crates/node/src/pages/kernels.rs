//! Programs whose run time shows what normal pages cost: random access, an integer sort and
//! conjugate gradients as the NAS benchmarks have them (RNR-94-007), of our own writing. They know
//! nothing of huge pages: their memory is malloc's.
//!
//! Invariant: after the same number of calls a kernel's result is the same, wherever it runs.

use std::time::Instant;

use outlive_base::rng::Sequence;
use serde::{Deserialize, Serialize};

use crate::rows::{Matrix, solve};

use super::misses::Misses;
use super::process::sum_of;

/// The names of all kernels.
pub const NAMES: [&str; 4] = ["chase", "update", "is", "cg"];
/// The least and the most memory that one can be built for, MiB.
pub const MIB: (u64, u64) = (8, 1 << 20);

/// What a kernel does, in words, and what its time is given for.
pub fn about(name: &str) -> (&'static str, &'static str) {
    match name {
        "chase" => ("loads that each need the one before", "load"),
        "update" => ("updates at random places (as HPCC RandomAccess)", "update"),
        "is" => ("integer sort (as NPB IS)", "key"),
        _ => (
            "conjugate gradients on a random matrix (as NPB CG)",
            "entry",
        ),
    }
}

struct Kernel {
    /// What one call does so often.
    units: u64,
    call: Box<dyn FnMut() -> u64>,
}

/// Words of a line of most caches.
const LINE_WORDS: usize = 64 / 4;

/// One random circle through all lines (Sattolo), shuffled within the lines themselves so that
/// no second array lies beside.
fn circle(lines: usize) -> Vec<u32> {
    let mut next = vec![0u32; lines * LINE_WORDS];
    let mut random = Sequence::new(1, lines as u64);
    for line in 0..lines {
        next[line * LINE_WORDS] = line as u32;
    }
    for last in (1..lines).rev() {
        let other = random.below(last as u64) as usize;
        next.swap(last * LINE_WORDS, other * LINE_WORDS);
    }
    next
}

/// Walks on in the circle.
fn chase(bytes: usize) -> Kernel {
    /// Loads of a call; a prime number, so that calls end at different places.
    const STEPS: u64 = 2_000_003;
    let next = circle(bytes / 64);
    let mut at = 0;
    let call = move || {
        for _ in 0..STEPS {
            at = next[at as usize * LINE_WORDS];
        }
        u64::from(at)
    };
    Kernel {
        units: STEPS,
        call: Box::new(call),
    }
}

/// Exclusive-or at places that a random sequence names.
fn update(bytes: usize) -> Kernel {
    const UPDATES: u64 = 1 << 23;
    /// The polynomial of HPCC RandomAccess.
    const POLYNOMIAL: u64 = 7;
    let words = (bytes / 8 / 2 + 1).next_power_of_two();
    let mut table: Vec<u64> = (0..words as u64).collect();
    let mut value = 1u64;
    let call = move || {
        let mut sum = 0u64;
        for _ in 0..UPDATES {
            value = value << 1 ^ if (value as i64) < 0 { POLYNOMIAL } else { 0 };
            // Of the sequence alone consecutive values are too near to each other.
            let place = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let word = &mut table[place as usize & (words - 1)];
            *word ^= value;
            sum = sum.wrapping_add(*word);
        }
        sum
    };
    Kernel {
        units: UPDATES,
        call: Box::new(call),
    }
}

/// Keys below `values`: means of four draws, as in NPB, so that those in the middle are more
/// frequent.
fn draw_keys(keys: usize, values: usize) -> Vec<u32> {
    let mut random = Sequence::new(2, keys as u64);
    let draw = |_| {
        let sum: u64 = (0..4).map(|_| random.below(values as u64)).sum();
        (sum / 4) as u32
    };
    (0..keys).map(draw).collect()
}

/// Counts keys, adds the counts up and puts each key in its place.
fn integer_sort(bytes: usize) -> Kernel {
    // Keys, sorted keys, and a count for each of a fourth as many values.
    let keys = bytes / 9;
    let values = (keys / 4).max(1);
    let mut unsorted = draw_keys(keys, values);
    let mut sorted = vec![0u32; keys];
    let mut counts = vec![0u32; values];
    let mut iteration = 0u32;
    let call = move || {
        // Two keys differ in each iteration, as in NPB, so that none can be left out.
        iteration += 1;
        let at = iteration as usize % (keys / 2);
        unsorted[at] = iteration % values as u32;
        unsorted[at + keys / 2] = values as u32 - 1 - iteration % values as u32;
        counts.fill(0);
        for &key in &unsorted {
            counts[key as usize] += 1;
        }
        let mut before = 0;
        for count in &mut counts {
            before += std::mem::replace(count, before);
        }
        for &key in &unsorted {
            let place = &mut counts[key as usize];
            sorted[*place as usize] = key;
            *place += 1;
        }
        // Some places of the result; all of them would be one more pass.
        let places = sorted.iter().step_by(4_099).zip(1u64..);
        places.fold(0, |sum: u64, (key, n)| {
            sum.wrapping_add(n.wrapping_mul(u64::from(*key)))
        })
    };
    Kernel {
        units: keys as u64,
        call: Box::new(call),
    }
}

/// In each row so many entries on average beside the diagonal.
const ENTRIES: usize = 14;

/// Symmetric, with entries at random places, strictly dominated by its diagonal.
fn random(rows: usize) -> Matrix {
    let pairs = rows * ENTRIES / 2;
    let row_of = |random: &mut Sequence| random.below(rows as u64) as usize;
    // The same draws twice: first how long rows are, then what is in them.
    let mut lengths = vec![1u32; rows];
    let mut random = Sequence::new(3, rows as u64);
    for _ in 0..pairs {
        lengths[row_of(&mut random)] += 1;
        lengths[row_of(&mut random)] += 1;
    }
    let mut next: Vec<u32> = Vec::with_capacity(rows);
    let mut end = 0;
    for length in &lengths {
        next.push(end);
        end += length;
    }
    let mut places = vec![0; end as usize];
    let mut values = vec![0.0; end as usize];
    let mut put = |row: usize, place: usize, value: f64| {
        places[next[row] as usize] = place as u32;
        values[next[row] as usize] = value;
        next[row] += 1;
    };
    for (row, length) in lengths.iter().enumerate() {
        put(row, row, f64::from(*length));
    }
    let mut random = Sequence::new(3, rows as u64);
    for _ in 0..pairs {
        let (one, other) = (row_of(&mut random), row_of(&mut random));
        put(one, other, -0.5);
        put(other, one, -0.5);
    }
    Matrix {
        ends: next,
        places,
        values,
    }
}

fn conjugate_gradients(bytes: usize) -> Kernel {
    /// Products with the matrix in a call.
    const ITERATIONS: usize = 4;
    // Entries of 12 bytes, the end of the row, and four vectors.
    let rows = bytes / ((ENTRIES + 1) * 12 + 4 + 4 * 8);
    let matrix = random(rows);
    let mut vectors = [(); 4].map(|()| vec![0.0; rows]);
    Kernel {
        units: (matrix.values.len() * (ITERATIONS + 1)) as u64,
        call: Box::new(move || solve(&matrix, ITERATIONS, &mut vectors).to_bits()),
    }
}

fn build(name: &str, mib: u64) -> Option<Kernel> {
    let bytes = usize::try_from(mib.clamp(MIB.0, MIB.1) << 20).ok()?;
    match name {
        "chase" => Some(chase(bytes)),
        "update" => Some(update(bytes)),
        "is" => Some(integer_sort(bytes)),
        "cg" => Some(conjugate_gradients(bytes)),
        _ => None,
    }
}

/// What a process found that ran a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Processor time of each call over what it does, ns: others on the machine disturb it less
    /// than the clock's.
    pub unit_ns: Vec<f64>,
    /// The same by the clock.
    pub wall_ns: Vec<f64>,
    /// What was computed.
    pub result: u64,
    /// Memory, bytes, and what of it is huge.
    pub resident_bytes: u64,
    /// See above.
    pub huge_bytes: u64,
    /// Page faults during the calls.
    pub faults: u64,
    /// Misses of the TLB for a unit; null: they cannot be counted.
    pub misses: Option<f64>,
    /// Why they cannot.
    pub why: Option<String>,
}

/// Runs a kernel in this process: one call that touches everything and is not counted, then
/// `calls`. `collapse`: the process has all of its memory collapsed first, which is the most
/// that transparent huge pages can give. `None` for an unknown kernel.
pub fn run(name: &str, mib: u64, calls: u32, collapse: bool) -> Option<Run> {
    let mut kernel = build(name, mib)?;
    let mut result = (kernel.call)();
    if collapse {
        collapse_all();
    }
    let mut misses = Misses::open(false);
    let (mut unit_ns, mut wall_ns, mut counted) = (Vec::new(), Vec::new(), Some(0));
    let before = faults();
    for _ in 0..calls {
        let (start, used) = (Instant::now(), processor_ns());
        let (one, missed) = match &mut misses {
            Ok(misses) => misses.during(&mut kernel.call),
            Err(_) => ((kernel.call)(), None),
        };
        let units = kernel.units as f64;
        wall_ns.push(start.elapsed().as_nanos() as f64 / units);
        unit_ns.push(processor_ns().saturating_sub(used) as f64 / units);
        // The counter goes on counting from call to call.
        counted = missed;
        result = result.rotate_left(1) ^ one;
    }
    let faults = faults().saturating_sub(before);
    let amount = sum_of(std::process::id()).unwrap_or_default();
    let units = (kernel.units * u64::from(calls)).max(1) as f64;
    Some(Run {
        unit_ns,
        wall_ns,
        result,
        resident_bytes: amount.resident_bytes,
        huge_bytes: amount.huge_bytes,
        faults,
        misses: counted.map(|count| count as f64 / units),
        why: misses.err().map(|error| error.to_string()),
    })
}

/// Processor time of this thread so far, ns.
fn processor_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Page faults of this process so far.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |pair| pair.1);
    let words: Vec<&str> = rest.split_whitespace().collect();
    // Minor and major ones.
    [7, 9]
        .iter()
        .filter_map(|&n| words.get(n)?.parse::<u64>().ok())
        .sum()
}

/// Has the kernel collapse every private mapping that can be huge. What fails stays as it is.
fn collapse_all() {
    const COLLAPSE: libc::c_int = 25; // MADV_COLLAPSE, Linux 6.1
    const HUGE: usize = 2 << 20;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let Some((start, rest)) = line.split_once('-') else {
            continue;
        };
        let end = rest.split(' ').next().unwrap_or("");
        let address = |word| usize::from_str_radix(word, 16).ok();
        let (Some(start), Some(end)) = (address(start), address(end)) else {
            continue;
        };
        let (start, end) = (start.next_multiple_of(HUGE), end / HUGE * HUGE);
        if start < end {
            let at = std::ptr::without_provenance_mut(start);
            // SAFETY: neither advice changes what is read at any address; a range that is not
            // mapped any more is an error of the call.
            unsafe {
                libc::madvise(at, end - start, libc::MADV_HUGEPAGE);
                libc::madvise(at, end - start, COLLAPSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_same_each_time_within_the_memory_that_was_asked_for() {
        for name in NAMES {
            let (one, other) = (run(name, 8, 2, false), run(name, 8, 2, true));
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!((one.result, one.unit_ns.len()), (other.result, 2), "{name}");
            assert_ne!(one.result, run(name, 8, 3, false).unwrap().result, "{name}");
            assert_eq!(one.misses.is_some(), one.why.is_none());
        }
        assert!(run("linpack", 8, 1, false).is_none());
    }

    #[test]
    fn conjugate_gradients_find_the_solution_of_ones() {
        let matrix = random(500);
        let mut vectors = [(); 4].map(|()| vec![0.0; 500]);
        let mean = solve(&matrix, 200, &mut vectors);
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        assert!(vectors[0].iter().all(|x| (x - 1.0).abs() < 1e-6));
        let early = solve(&matrix, 1, &mut vectors);
        assert!(
            (early - 1.0).abs() > 1e-6,
            "one step is not enough: {early}"
        );
    }

    #[test]
    fn keys_come_in_order_and_the_walk_is_one_circle() {
        // Sums over the places of a sorted array tell whether it is sorted: see integer_sort;
        // here the sum is compared with that of a sort of the standard library.
        let mut kernel = integer_sort(9 * 50_000);
        let said = (kernel.call)();
        let (keys, values) = (50_000, 12_500);
        let mut all = draw_keys(keys, values);
        (all[1], all[1 + 25_000]) = (1, values as u32 - 2);
        all.sort_unstable();
        let places = all.iter().step_by(4_099).zip(1u64..);
        assert_eq!(
            said,
            places.map(|(key, n)| n * u64::from(*key)).sum::<u64>()
        );
        let (next, mut at) = (circle(1_000), 0);
        for step in 1..=1_000 {
            at = next[at * LINE_WORDS] as usize;
            assert_eq!(at == 0, step == 1_000);
        }
    }
}
