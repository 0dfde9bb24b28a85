//! What comes from outside is bounded: files that are none, sizes that nobody has memory
//! for, directories that do not exist.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(60);

fn outlive(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive"));
    command.args(line.split_whitespace());
    command
}

/// Waits for its end, not for ever.
fn ends(mut command: Command) -> Output {
    let pipes = (Stdio::piped(), Stdio::piped());
    let mut child = command.stdout(pipes.0).stderr(pipes.1).spawn().unwrap();
    wait(&format!("{command:?} ends"), || {
        child.try_wait().unwrap().is_some()
    });
    child.wait_with_output().unwrap()
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + BOUND;
    while !done() {
        assert!(Instant::now() < until, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn refused(line: &str, words: &[&str], status: i32) {
    let output = ends(outlive(line));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{line}: {said}");
    for word in words {
        assert!(said.contains(word), "{line}: {said}");
    }
}

#[test]
fn what_takes_more_memory_than_there_is_says_how_much() {
    let words = ["OL-100", "would take about", "of memory"];
    for line in [
        "simulate reduce --processes 260000000",
        "simulate allreduce --processes 2000000 --faults 50%",
        "simulate barrier --processes 260000000",
        "simulate broadcast --processes 8 --runs 999999999999",
        "simulate broadcast --processes 200000000 --dissemination spanning-trees:32",
        "simulate broadcast --processes 200000000 --threads 4096 --runs 5000",
        "bench recovery --mib 16000000",
    ] {
        refused(line, &words, 64);
    }
    refused(
        "simulate broadcast --processes 8 --threads 99999",
        &["OL-100"],
        64,
    );
}

#[test]
fn only_regular_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for path in [fifo.as_path(), Path::new("/dev/zero")] {
        let path = path.display();
        for (line, status) in [
            (format!("config explain --config {path}"), 78),
            (format!("run --config {path} -- true"), 78),
            (format!("balance --graph {path} --parts 2"), 64),
        ] {
            refused(&line, &["device, pipe"], status);
        }
    }
}

#[test]
fn a_mistyped_directory_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    for what in ["save", "skip", "recovery", "idle"] {
        let line = format!("bench {what} --mib 1 --dir {}", typo.display());
        refused(&line, &["OL-404", "--dir"], 74);
        assert!(!typo.exists(), "{what}");
    }
}

#[test]
fn a_number_has_the_noun_that_fits() {
    for (line, words) in [
        ("noise fwq --samples 1", "1 sample cannot be judged"),
        ("noise fwq --samples 0", "0 samples cannot be judged"),
    ] {
        refused(line, &["OL-100", words], 64);
    }
}

#[test]
fn a_mistyped_store_is_not_coordinated() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    std::fs::write(dir.path().join("file"), "").unwrap();
    for store in [typo.clone(), typo.join("below"), dir.path().join("file")] {
        let line = format!("coordinator --store {}", store.display());
        refused(&line, &["OL-404", "no such store", "--store", "mkdir"], 74);
    }
    assert!(!typo.exists());
}

#[test]
fn invitations_are_made_for_one_and_checked_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let (store, file) = (store.display(), dir.path().join("invitation"));
    let service = format!("coordinator --store {store}");
    let none = format!("{service} --withdraw guest");
    refused(&none, &["OL-404", ".coordinator/key"], 74);
    for (wrong, word) in [
        ("guest", "NAME=FILE"),
        ("guest=", "NAME=FILE"),
        ("../x=y", "name"),
    ] {
        refused(&format!("{service} --issue {wrong}"), &["OL-100", word], 64);
    }
    let issue = format!("{service} --issue guest={}", file.display());
    let output = ends(outlive(&issue));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty(), "the key is in the file alone");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    let meta = std::fs::metadata(&file).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&meta) & 0o777, 0o600);
    let before = std::fs::read(&file).unwrap();
    refused(&issue, &["OL-100", "is there already"], 64);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let run = |more: &str| {
        let (place, file) = (dir.path().join("own"), file.display());
        format!(
            "run --store {} --coordinator {file} {more} -- true",
            place.display()
        )
    };
    let words = ["OL-100", "option coordinator", "no turns"];
    refused(&run("--levels memory,disk"), &words, 64);
    refused(&run("--levels memory,shared --every 5"), &words, 64);
    std::fs::set_permissions(&file, mode(0o644)).unwrap();
    refused(&run("--levels memory,shared"), &["OL-402", "chmod 600"], 74);
    std::fs::set_permissions(&file, mode(0o600)).unwrap();
    std::fs::write(&file, "{}").unwrap();
    refused(&run("--levels memory,shared"), &["OL-406", "--issue"], 65);
    assert!(!dir.path().join("own").exists());
    // What is issued after a withdrawal is another key.
    for line in [&none, &issue] {
        std::fs::remove_file(&file).ok();
        assert_eq!(ends(outlive(line)).status.code(), Some(0), "{line}");
    }
    assert_ne!(std::fs::read(&file).unwrap(), before);
}

/// Processes whose command line names a directory.
fn naming(directory: &Path) -> usize {
    let name = directory.as_os_str().as_encoded_bytes();
    let names = |process: &std::fs::DirEntry| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.windows(name.len()).any(|part| part == name)
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(names).count()
}

#[test]
fn a_killed_benchmark_leaves_no_files() {
    for what in ["idle", "save"] {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("bench {what} --mib 1 --dir {}", dir.path().display());
        let mut command = outlive(&line);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        wait("the benchmark begins", || files() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        wait("its files are removed", || files() == 0);
        wait("its processes end", || naming(dir.path()) == 0);
    }
}

/// While hosts are asked, a file lies in the store that shows them which one it is.
#[test]
fn a_doctor_that_is_ended_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    std::fs::write(&hosts, "one\n").unwrap();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let files = || std::fs::read_dir(&store).unwrap().count();
    // A shell that never answers; it ends with its input.
    let line = format!(
        "doctor --store {} --hosts {} --remote-shell cat-without-words",
        store.display(),
        hosts.display()
    );
    let start = || {
        let shell = dir.path().join("cat-without-words");
        std::fs::write(&shell, "#!/bin/sh\nexec cat >/dev/null\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&shell, mode).unwrap();
        let line = line.replace("cat-without-words", shell.to_str().unwrap());
        let mut command = outlive(&line);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // Where the tests run in the background of a script, SIGINT is ignored.
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        command.spawn().unwrap()
    };
    for (signal, left) in [
        (rustix::process::Signal::INT, 0),
        (rustix::process::Signal::TERM, 0),
        (rustix::process::Signal::KILL, 1),
    ] {
        let mut child = start();
        wait("the file is there", || files() == 1);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = child.wait().unwrap();
        let ended = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(ended, Some(signal.as_raw()), "by the signal itself");
        assert_eq!(files(), left, "{signal:?}");
    }
    // The next one removes what was left.
    let mut child = start();
    wait("only its own is there", || {
        files() == 1 && {
            let own = format!(".outlive-doctor-{}", child.id());
            store.join(own).exists()
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Its ranks wait for each other, and some of them have heard its end: they would wait for ever.
#[test]
fn a_killed_benchmark_leaves_no_job_in_the_middle_of_its_work() {
    for (what, options, job) in [
        ("small", "--rounds 3", "small/bench"),
        ("save", "--mib 1 --rounds 3", "save/bench"),
        (
            "levels",
            "--levels disk --bytes 1MiB --versions 9",
            "level-0/bench",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("bench {what} {options} --dir {}", dir.path().display());
        let mut command = outlive(&line);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let scratch = dir.path().join(format!("outlive-bench-{}", child.id()));
        let stored = scratch.join(job).join("nodes/node-0/containers");
        wait("a checkpoint is stored", || {
            std::fs::read_dir(&stored).is_ok_and(|files| files.count() > 0)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        wait("its job ends", || naming(dir.path()) == 0);
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "no files of {what}");
    }
}
