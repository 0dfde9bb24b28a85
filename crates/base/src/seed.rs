//! Seeds of randomised tests: a fresh one for every run, said with the line that repeats it.
//!
//! Only tests use this module: it reads the environment and files of the tests.
//! [`seed!`](crate::seed!) is one seed, [`seeds!`](crate::seeds!) so many one after the
//! other. The line that repeats a run is printed when the test begins, and shown by the
//! test runner if the test fails. `OUTLIVE_SEED` sets the seed.
//!
//! `OUTLIVE_SEEDS_FROM` is a text that the fresh seeds of all tests follow from, each test's
//! of its own. `make test` sets it to a hash of the sources where `CI=true`: what is changed is
//! tried with other seeds, and what has failed there fails again, here too.
//!
//! A test that panics writes its seed to a file of its own in `tests/failed-seeds` of the
//! workspace, and says so. As long as the file is there, its first seed is the test's: it is
//! run instead of a fresh one, and a row begins with it. Nothing but the developer removes
//! it. Not kept: the seed of a process that is killed or aborts, and of a test without a
//! name (`--test-threads=1` runs tests in the main thread).
//!
//! Seeds that found a defect are kept for good in the crate's file `tests/seeds`, as lines
//! `TEST SEED WHAT IT FOUND`, and `seeds!` runs them before all others.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// The variable that repeats a run.
pub const VARIABLE: &str = "OUTLIVE_SEED";
/// The variable that the fresh seeds of all tests follow from, if it is set.
pub const FROM: &str = "OUTLIVE_SEEDS_FROM";
/// The variable that names another directory for the seeds that failed.
pub const FAILED: &str = "OUTLIVE_FAILED_SEEDS";
/// Fresh seeds are below this, so that they are short to type and a test can calculate
/// with them.
pub const FRESH_BELOW: u64 = 1_000_000_000;

thread_local! {
    /// A test has one seed however often it asks, so that one line repeats it.
    static DRAWN: Cell<Option<u64>> = const { Cell::new(None) };
    /// What is kept if the test panics now, and where.
    static TRIED: Cell<Option<u64>> = const { Cell::new(None) };
    static FILE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// A seed for the test that runs: that of [`VARIABLE`], or one with which it failed, or a
/// fresh one; prints how to repeat it.
///
/// # Panics
/// If the variable, or a line of the file of seeds that failed, is not a number.
#[allow(clippy::print_stdout)]
pub fn fresh(package: &str, directory: &str) -> u64 {
    if let Some(seed) = DRAWN.get() {
        return seed;
    }
    let file = file(package, directory);
    let failed = file.as_deref().map(failed).unwrap_or_default();
    let seed = match (set(), failed.first(), &file) {
        (Some(seed), _, _) => seed,
        (None, Some(&seed), Some(file)) => {
            // Not `println!`: the test runner would hide it as long as the test passes.
            let _ = writeln!(
                std::io::stderr(),
                "{}: seed {seed}, which failed before, is run and no fresh one; \
                 remove {} when that is mended",
                test(),
                file.display()
            );
            seed
        }
        _ => {
            let chance = match std::env::var(FROM).ok().filter(|from| !from.is_empty()) {
                Some(from) => following(&[&from, package, &test()]),
                None => std::hash::RandomState::new().build_hasher().finish(),
            };
            crate::rng::below(crate::rng::draw(chance, 0, 0), FRESH_BELOW)
        }
    };
    DRAWN.set(Some(seed));
    TRIED.set(Some(seed));
    FILE.set(file);
    watch();
    println!(
        "repeat: {VARIABLE}={seed} cargo test -p {package} {}",
        test()
    );
    seed
}

/// The seeds kept for the test that runs, then those with which it failed, then `count` in
/// a row from its seed on; only the row if [`VARIABLE`] is set.
///
/// # Panics
/// If the variable or a line of the files is not as it should be.
pub fn several(package: &str, directory: &str, count: u64) -> impl Iterator<Item = u64> + use<> {
    let lines = std::fs::read_to_string(Path::new(directory).join("tests/seeds"));
    let test = test();
    let name = test.rsplit("::").next().unwrap_or_default();
    let first = fresh(package, directory);
    let row = first..first.saturating_add(count);
    let (kept, failed) = match set() {
        None => (
            kept(&lines.unwrap_or_default(), name),
            FILE.with_borrow(|file| file.as_deref().map(failed).unwrap_or_default()),
        ),
        Some(_) => (Vec::new(), Vec::new()),
    };
    let failed = failed.into_iter().filter(|seed| !row.contains(seed));
    let failed = failed.collect::<Vec<u64>>();
    // A test that panics in the row failed with this seed, one that panics after it with
    // the row. A seed that is kept for good need not be kept once more.
    let kept = kept.into_iter().inspect(|_| TRIED.set(None));
    let others = failed.into_iter().chain(row);
    kept.chain(others.inspect(|&seed| TRIED.set(Some(seed))))
        .chain(std::iter::from_fn(move || {
            TRIED.set(Some(first));
            None
        }))
}

/// Has each panic of a test keep the test's seed. One in a thread of the test is the test's
/// when the test's own thread joins it.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            let _ = FILE.try_with(|file| keep(file, TRIED.get()));
        }));
    });
}

/// Writes the seed down and says where. Never panics: it runs while another panic does.
#[allow(clippy::print_stdout)]
fn keep(file: &RefCell<Option<PathBuf>>, seed: Option<u64>) {
    let (Ok(file), Some(seed)) = (file.try_borrow(), seed) else {
        return;
    };
    let Some(file) = &*file else {
        if DRAWN.get().is_some() {
            println!("seed {seed} is not kept: the test has no name in this thread");
        }
        return;
    };
    let so_far = std::fs::read_to_string(file).unwrap_or_default();
    let known = so_far.lines().any(|line| line == seed.to_string());
    let append = || {
        std::fs::create_dir_all(file.parent().unwrap_or(file))?;
        let mut options = std::fs::File::options();
        let mut file = options.create(true).append(true).open(file)?;
        file.write_all(format!("{seed}\n").as_bytes())
    };
    match if known { Ok(()) } else { append() } {
        Ok(()) => println!("seed {seed} is kept in {}", file.display()),
        Err(error) => println!("seed {seed} is not kept in {}: {error}", file.display()),
    }
}

/// Where the seeds with which the running test failed are; nowhere if it has no name.
fn file(package: &str, directory: &str) -> Option<PathBuf> {
    let test = Some(test()).filter(|test| !matches!(test.as_str(), "" | "main"))?;
    // Tests of one package may have the same name in two programs.
    let program = std::env::current_exe().ok()?;
    let program = program.file_stem()?.to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let here = Path::new(directory);
    let root = here.ancestors().find(|dir| dir.join("Cargo.lock").exists());
    let all = match std::env::var_os(FAILED) {
        Some(all) => all.into(),
        None => root.unwrap_or(here).join("tests/failed-seeds"),
    };
    Some(all.join(format!("{package}.{program}.{test}")))
}

/// The seeds of such a file; none if it is not there.
fn failed(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let number = |line: &str| {
        let wrong = |_| panic!("{}: '{line}' is not a seed", file.display());
        line.parse().unwrap_or_else(wrong)
    };
    text.lines().map(number).collect()
}

/// The same number for the same words on every machine (FNV-1a).
fn following(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
        $crate::seed::fresh(env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR"))
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
        let other = || std::thread::spawn(|| crate::seed!()).join().unwrap_or(0);
        let drawn: std::collections::BTreeSet<u64> = (0..20).map(|_| other()).collect();
        let follow = std::env::var(FROM).is_ok_and(|from| !from.is_empty());
        match set() {
            Some(seed) => assert_eq!(drawn, [seed].into()),
            None if follow => assert_eq!(drawn.len(), 1, "for threads of one name"),
            None => assert!(drawn.len() > 15 && drawn.iter().all(|&seed| seed < FRESH_BELOW)),
        }
        let seed = crate::seed!();
        let row: Vec<u64> = crate::seeds!(3).collect();
        assert_eq!(row, [seed, seed + 1, seed + 2]);
    }

    #[test]
    fn seeds_that_follow_are_each_tests_own() {
        let one = following(&["sources", "crate", "test"]);
        assert_eq!(one, following(&["sources", "crate", "test"]));
        for other in [["changed", "crate", "test"], ["sources", "crat", "etest"]] {
            assert_ne!(one, following(&other));
        }
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
