//! Seeds of randomised tests: a fresh one for every run, said with the line that repeats it.
//!
//! Only tests use this module: it reads the environment and a file of the crate's tests.
//! [`seed!`](crate::seed!) is one seed, [`seeds!`](crate::seeds!) so many one after the
//! other. The line that repeats a run is printed when the test begins, and shown by the
//! test runner if the test fails. `OUTLIVE_SEED` sets the seed. Seeds that found a defect
//! are kept in the crate's file `tests/seeds`, as lines `TEST SEED WHAT IT FOUND`, and are
//! run before the fresh ones.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};

/// The variable that repeats a run.
pub const VARIABLE: &str = "OUTLIVE_SEED";
/// Fresh seeds are below this, so that they are short to type and a test can calculate
/// with them.
pub const FRESH_BELOW: u64 = 1_000_000_000;

thread_local! {
    /// A test has one seed however often it asks, so that one line repeats it.
    static DRAWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A fresh seed for the test that runs, or that of [`VARIABLE`]; prints how to repeat it.
///
/// # Panics
/// If the variable is not a number.
#[allow(clippy::print_stdout)]
pub fn fresh(package: &str) -> u64 {
    if let Some(seed) = DRAWN.get() {
        return seed;
    }
    let seed = set().unwrap_or_else(|| {
        let chance = std::hash::RandomState::new().build_hasher().finish();
        crate::rng::below(crate::rng::draw(chance, 0, 0), FRESH_BELOW)
    });
    DRAWN.set(Some(seed));
    println!(
        "repeat: {VARIABLE}={seed} cargo test -p {package} {}",
        test()
    );
    seed
}

/// The seeds kept for the test that runs, then `count` from a fresh one on; only the latter
/// if [`VARIABLE`] is set.
///
/// # Panics
/// If the variable or a line of the file is not as it should be.
pub fn several(package: &str, directory: &str, count: u64) -> impl Iterator<Item = u64> + use<> {
    let file = std::path::Path::new(directory).join("tests/seeds");
    let lines = std::fs::read_to_string(file).unwrap_or_default();
    let test = test();
    let name = test.rsplit("::").next().unwrap_or_default();
    let kept = match set() {
        None => kept(&lines, name),
        Some(_) => Vec::new(),
    };
    let first = fresh(package);
    kept.into_iter().chain(first..first.saturating_add(count))
}

fn set() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a number")),
    )
}

/// The test runner names a test's thread after the test.
fn test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

fn kept(lines: &str, test: &str) -> Vec<u64> {
    let lines = lines
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let of = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, seed, why) = (words.next()?, words.next(), words.next());
        let seed = seed.and_then(|seed| seed.parse().ok());
        match (seed, why) {
            (Some(seed), Some(_)) => (name == test).then_some(seed),
            _ => panic!("tests/seeds: '{line}' is not TEST SEED WHAT IT FOUND"),
        }
    });
    of.collect()
}

/// One seed for the test that runs; see [`seed`](mod@crate::seed).
#[macro_export]
macro_rules! seed {
    () => {
        $crate::seed::fresh(env!("CARGO_PKG_NAME"))
    };
}

/// So many seeds for the test that runs, after those that are kept for it; see
/// [`seed`](mod@crate::seed).
#[macro_export]
macro_rules! seeds {
    ($count:expr) => {
        $crate::seed::several(env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR"), $count)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_fresh_and_in_a_row() {
        if set().is_some() {
            return; // Then they are not fresh.
        }
        let other = || std::thread::spawn(|| crate::seed!()).join().unwrap_or(0);
        let drawn: std::collections::BTreeSet<u64> = (0..20).map(|_| other()).collect();
        assert!(drawn.len() > 15 && drawn.iter().all(|&seed| seed < FRESH_BELOW));
        let seed = crate::seed!();
        let row: Vec<u64> = crate::seeds!(3).collect();
        assert_eq!(row, [seed, seed + 1, seed + 2]);
    }

    #[test]
    fn kept_seeds_are_those_of_the_test() {
        let lines = "# comment\nfirst 7 lost a message\nsecond 8 hung\nfirst 9 again\n";
        assert_eq!(kept(lines, "first"), [7, 9]);
        assert_eq!(kept(lines, "third"), []);
    }

    #[test]
    #[should_panic(expected = "is not TEST SEED")]
    fn a_kept_seed_says_what_it_found() {
        kept("first 7\n", "first");
    }
}
