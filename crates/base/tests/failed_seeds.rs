//! The seed of a test that failed is kept, and run before others until it is removed: the
//! tests at the end, which fail when they are told to, run in a process of their own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use outlive_base::seed::{FAILED, FRESH_BELOW, FROM, VARIABLE};

/// The variable that tells one of the tests at the end how to fail.
const HOW: &str = "OUTLIVE_TEST_FAILS";

/// A directory that is not there yet.
fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    directory
}

/// Runs one of them; gives whether it passed, and what was said.
fn run(directory: &Path, test: &str, how: &str, seed: Option<u64>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--test-threads=2"]);
    command.env(HOW, how).env(FAILED, directory);
    command.env_remove(VARIABLE).env_remove(FROM);
    if let Some(seed) = seed {
        command.env(VARIABLE, seed.to_string());
    }
    let done = command.output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let ran = said.contains("1 passed") || said.contains("1 failed");
    assert!(ran, "{said}");
    (done.status.success(), said)
}

fn file(directory: &Path, test: &str) -> PathBuf {
    directory.join(format!("outlive-base.failed_seeds.{test}"))
}

/// What is kept for one of them.
fn kept(directory: &Path, test: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(file(directory, test)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_seed_that_failed_is_run_until_it_is_removed() {
    let all = directory("one");
    assert!(run(&all, "one", "never", None).0);
    assert!(!all.exists(), "nothing is kept of a test that passes");
    let (passed, said) = run(&all, "one", "always", None);
    let seeds = kept(&all, "one");
    assert!(!passed && seeds.len() == 1, "{said}");
    let seed = seeds[0];
    assert!(seed < FRESH_BELOW);
    for words in [
        format!("seed {seed} is kept in {}", all.display()),
        format!("repeat: {VARIABLE}={seed} cargo test"),
    ] {
        assert!(said.contains(&words), "{words}: {said}");
    }
    // It fails again with the same, which stays there once.
    let (passed, said) = run(&all, "one", "always", None);
    assert!(!passed && kept(&all, "one") == seeds, "{said}");
    // It is still run when it passes, and that is said though the test passes.
    let right = format!("unless {seed}");
    let (passed, said) = run(&all, "one", &right, None);
    assert!(passed && said.contains("which failed before"), "{said}");
    // The variable goes before it.
    assert!(run(&all, "one", "unless 7", Some(7)).0);
    assert_eq!(kept(&all, "one"), seeds);
    std::fs::remove_dir_all(&all).unwrap();
    assert!(!run(&all, "one", &right, None).0, "not fresh again");
}

#[test]
fn of_a_row_the_seed_that_failed_is_kept() {
    let all = directory("row");
    let (passed, said) = run(&all, "row", "at 1007", Some(1000));
    assert!(!passed && kept(&all, "row") == [1007], "{said}");
    // The row begins with it now; another one of this row is kept beside it.
    let (passed, said) = run(&all, "row", "at 1009", None);
    assert!(!passed && kept(&all, "row") == [1007, 1009], "{said}");
    // All are run, however far they are from each other.
    std::fs::write(file(&all, "row"), "1007\n55\n").unwrap();
    let (passed, said) = run(&all, "row", "at 55", None);
    assert!(!passed && kept(&all, "row") == [1007, 55], "{said}");
    // What is wrong after the row is wrong with the row.
    std::fs::remove_file(file(&all, "row")).unwrap();
    let (passed, said) = run(&all, "row", "after", Some(2000));
    assert!(!passed && kept(&all, "row") == [2000], "{said}");
    std::fs::write(file(&all, "row"), "many\n").unwrap();
    let (passed, said) = run(&all, "row", "never", None);
    assert!(!passed && said.contains("'many' is not a seed"), "{said}");
}

/// How the tests below are to fail; they do not when nothing runs them but the test runner.
fn how() -> String {
    std::env::var(HOW).unwrap_or_default()
}

#[test]
fn one() {
    let seed = outlive_base::seed!();
    let how = how();
    assert_ne!(how, "always");
    if let Some(right) = how.strip_prefix("unless ") {
        assert_eq!(seed.to_string(), right);
    }
}

#[test]
fn row() {
    for seed in outlive_base::seeds!(10) {
        assert_ne!(how(), format!("at {seed}"));
    }
    assert_ne!(how(), "after");
}
