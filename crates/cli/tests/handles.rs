//! One living process is a rank, in Rust: a second handle and a forked child that opens
//! anew are refused at once. `tests/e2e/test_ranks.py` has the other languages.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::process::Command;

use outlive::{Code, Job, Options};

/// Set where this test is the program that `outlive run` starts.
const PROGRAM: &str = "TEST_HANDLES_PROGRAM";

fn open() -> outlive::Result<Job> {
    Job::open(&Options::default())
}

/// What the program finds, as it says at its end.
fn program() {
    let first = open().unwrap();
    let mine = std::process::id();
    let refused = open().unwrap_err();
    assert_eq!(refused.code(), Code::RankUnknown);
    assert!(
        refused.reason().contains("open in this process"),
        "{refused}"
    );
    // SAFETY: the child opens a job, which starts no thread, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let error = open().err();
        let holder = format!("process {mine},");
        let named = error.is_some_and(|error| {
            error.code() == Code::RankUnknown && error.reason().contains(&holder)
        });
        // SAFETY: ends this process, whose parent runs the tests.
        unsafe { libc::_exit(if named { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(
        status, 0,
        "the child was not refused by the holder's number"
    );
    first.close().unwrap();
    open().unwrap().close().unwrap();
    println!("all handles are as they should be");
}

#[test]
fn a_second_handle_and_a_forked_child_are_refused() {
    if std::env::var_os(PROGRAM).is_some() {
        return program();
    }
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_outlive"))
        .args(["run", "--max-restarts", "0", "--store"])
        .arg(dir.path().join("store"))
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["a_second_handle_and_a_forked_child_are_refused", "--exact"])
        .arg("--nocapture")
        .env("XDG_RUNTIME_DIR", dir.path())
        .env(PROGRAM, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("all handles are as they should be"), "{said}");
    assert!(said.contains("OL-200"), "{said}");
}
