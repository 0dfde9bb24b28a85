//! Unmodified programs of the distribution run protected, are ended in the middle, and
//! come back from their memory files: the way over a panic, without the panic.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outlive_image::restore::{Options, restore};
use outlive_image::source::Contents;
use outlive_image::{dump, procfs, sys};
use outlive_minickpt::filter::{self, Special};
use outlive_minickpt::journal::Journal;
use outlive_minickpt::launch;
use outlive_minickpt::supervisor::files::Files;
use outlive_minickpt::supervisor::{Counts, Fork, Native, Policy, Register, Supervisor};

const BOUND: Duration = Duration::from_secs(100);

fn privileged() -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIP minickpt-numbers: old process numbers need CAP_CHECKPOINT_RESTORE");
    }
    root
}

/// The programs write to files: their own redirection, so that nothing leads outside.
/// One launcher at a time: a program inherits the descriptors of the whole process, and
/// those of another test's program are no part of it.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Scene {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let base = if Path::new("/dev/shm").is_dir() {
            "/dev/shm"
        } else {
            "/tmp"
        };
        let dir = tempfile::tempdir_in(base).expect("directory");
        let path = dir.path().to_owned();
        Scene { _dir: dir, path }
    }

    fn policy(&self, fork: Fork) -> Policy {
        Policy {
            memory: self.path.join("memory"),
            dax: false,
            fork,
            special: Special::Refuse,
            files: Files::Lose,
        }
    }

    /// `program` is a line of sh without processes of its own.
    fn words(&self, program: &str, output: &str) -> Vec<String> {
        let line = format!(
            "exec {program} >{}/{output} 2>&1 </dev/null",
            self.path.display()
        );
        ["/bin/sh", "-c", &line].map(str::to_owned).to_vec()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }

    fn calm(&self, program: &str) -> String {
        let words = self.words(program, "calm");
        let status = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .env("OMP_NUM_THREADS", "8")
            .status()
            .expect("calm run");
        assert!(status.success(), "{}", self.text("calm"));
        self.text("calm")
    }
}

/// Runs a program protected to its end; status and counts.
fn protected(scene: &Scene, fork: Fork, program: &str) -> (i32, Counts) {
    let _alone = alone();
    let mut native = Native;
    let policy = scene.policy(fork);
    let mut supervisor = Supervisor::new(policy.clone(), &mut native).expect("supervisor");
    launch::start(&mut supervisor, &policy, &scene.words(program, "hit")).expect("start");
    let status = supervisor.run().expect("run");
    (status, supervisor.counts)
}

/// Runs a program protected, ends it when its output has `lines`, and brings it back.
fn survives(fork: Fork, program: &str, lines: usize) {
    if !privileged() {
        return;
    }
    let _alone = alone();
    let scene = Scene::new();
    let calm = scene.calm(program);
    let policy = scene.policy(fork);
    let mut native = Native;
    let mut supervisor = Supervisor::new(policy.clone(), &mut native).expect("supervisor");
    launch::start(&mut supervisor, &policy, &scene.words(program, "hit")).expect("start");
    let start = Instant::now();
    let ended = supervisor.run_polled(|_| {
        assert!(start.elapsed() < BOUND, "{}", scene.text("hit"));
        scene.text("hit").lines().count() >= lines
    });
    assert_eq!(
        ended.expect("run"),
        None,
        "it ended before: {}",
        scene.text("hit")
    );
    let frozen = supervisor.freeze().expect("freeze");
    let pages = File::create_new(scene.path.join("pages")).expect("pages");
    let image = dump::dump(&frozen, &pages).expect("dump");
    assert_eq!(
        image.contents_bytes(),
        0,
        "memory that is not in files: {image:?}"
    );
    supervisor.abandon();
    frozen.kill();
    reap(&image.processes.iter().map(|p| p.pid).collect::<Vec<_>>());
    let options = Options {
        numbers: true,
        filter: filter::program(Special::Refuse, Files::Lose),
        keep_gate: true,
        ..Options::default()
    };
    let restored = restore(&image, &Contents::none(), &options).expect("restore");
    let mut native = Native;
    let mut second = Supervisor::new(policy, &mut native).expect("supervisor");
    second.resume(&image, &restored).expect("resume");
    second.start().expect("start");
    let status = second.run().expect("second run");
    assert_eq!(status, 0, "{}", scene.text("hit"));
    assert_eq!(scene.text("hit"), calm);
}

/// Until none of them is there: a child comes to this process only when its parent is gone.
fn reap(pids: &[i32]) {
    let start = Instant::now();
    let is_there = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
    while pids.iter().any(is_there) {
        assert!(start.elapsed() < BOUND, "still there: {pids:?}");
        for orphan in procfs::children(std::process::id() as i32).expect("children") {
            if pids.contains(&orphan) {
                let _ = sys::wait(orphan, true);
            }
        }
        std::thread::yield_now();
    }
}

const PYTHON: &str = r#"/usr/bin/python3 -c '
import threading, hashlib, time
def work(n, out):
    d = hashlib.sha256()
    for i in range(100000): d.update(i.to_bytes(4, "little"))
    out[n] = d.hexdigest()
out = {}
threads = [threading.Thread(target=work, args=(n, out)) for n in range(4)]
[t.start() for t in threads]
data = []
for step in range(60):
    data.append(bytearray(step * 40000))
    if step % 7 == 0: del data[: len(data) // 2]
    print(step, sum(len(d) + sum(d[:100]) for d in data), flush=True)
    x = sum(i * i for i in range(150000))
[t.join() for t in threads]
print(sorted(out.items()))
'"#;

#[test]
fn a_protected_program_ends_as_ever_and_leaves_no_files() {
    let scene = Scene::new();
    let calm = scene.calm(PYTHON);
    let (status, counts) = protected(&scene, Fork::Refuse, PYTHON);
    assert_eq!(status, 0, "{}", scene.text("hit"));
    assert_eq!(scene.text("hit"), calm);
    assert!(counts.map > 10 && counts.threads == 4, "{counts:?}");
    let left = std::fs::read_dir(scene.path.join("memory")).expect("memory");
    let names: Vec<_> = left
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    assert_eq!(names, ["journal"]);
}

#[test]
fn python_with_threads_survives() {
    survives(Fork::Refuse, PYTHON, 10);
}

/// Threads with stacks of two lengths, deep in them, that come, wait and go.
const STACKS: &str = r#"/usr/bin/python3 -c '
import sys, threading
sys.setrecursionlimit(100000)
def deep(n): return 0 if n == 0 else n + deep(n - 1)
go = threading.Event()
def work(n, out):
    low = deep(2000)
    go.wait()
    out[n] = low + deep(8000 + n)
for step in range(4):
    out, threads = {}, []
    go.clear()
    for n in range(40):
        threading.stack_size((8 if n % 3 else 5) << 20)
        threads.append(threading.Thread(target=work, args=(n, out)))
        threads[-1].start()
        if n % 10 == 0: print(step, n, sum(i * i for i in range(200000)), flush=True)
    go.set()
    [t.join() for t in threads]
    print(step, sorted(out.items()), flush=True)
'"#;

#[test]
fn stacks_that_were_mapped_ahead_are_stacks() {
    let scene = Scene::new();
    let calm = scene.calm(STACKS);
    let (status, counts) = protected(&scene, Fork::Refuse, STACKS);
    assert_eq!(status, 0, "{}", scene.text("hit"));
    assert_eq!(scene.text("hit"), calm);
    assert_eq!(counts.threads, 160);
}

#[test]
fn where_addresses_are_limited_no_stacks_wait() {
    // Eight stacks and 24 MiB; sixteen would leave no room for these.
    let program = r#"env MALLOC_ARENA_MAX=1 /usr/bin/python3 -c '
import re, resource, threading
threading.stack_size(8 << 20)
used = int(re.search("VmSize:\s+(\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
go = threading.Event()
threads = [threading.Thread(target=go.wait, daemon=True) for n in range(8)]
[t.start() for t in threads]
print(len(bytearray(24 << 20)))
go.set()
[t.join() for t in threads]
'"#;
    let scene = Scene::new();
    let calm = scene.calm(program);
    let (status, _) = protected(&scene, Fork::Refuse, program);
    assert_eq!(status, 0, "{}", scene.text("hit"));
    assert_eq!(scene.text("hit"), calm);
}

#[test]
fn threads_survive_with_stacks_in_wait() {
    // In the second step, with some of its threads there.
    survives(Fork::Refuse, STACKS, 8);
}

/// A program beside these tests; `None`, with a line, if this machine cannot build it.
fn built(scene: &Scene, name: &str, flag: &str) -> Option<PathBuf> {
    let program = scene.path.join(name);
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
    let built = Command::new("gcc")
        .args(["-O2", flag, "-o"])
        .args([
            &program,
            &Path::new(programs).join(name).with_extension("c"),
        ])
        .status();
    if built.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    println!("SKIP minickpt-{name}: no gcc with {flag}");
    None
}

fn open_mp(scene: &Scene) -> Option<PathBuf> {
    built(scene, "omp", "-fopenmp")
}

#[test]
fn a_program_may_end_while_its_threads_change_the_map() {
    let scene = Scene::new();
    let Some(program) = built(&scene, "leave", "-pthread") else {
        return;
    };
    for how in ["exit", "exec"] {
        for round in 0..10 {
            let line = format!("{} {how}", program.display());
            let (status, _) = protected(&scene, Fork::Refuse, &line);
            let text = scene.text("hit");
            assert_eq!(status, 3 << 8, "{how}, {round}: {status:x}: {text}");
        }
    }
}

#[test]
fn open_mp_with_8_threads_survives() {
    let scene = Scene::new();
    if let Some(program) = open_mp(&scene) {
        let line = format!(
            "env OMP_WAIT_POLICY=passive {} 8 40 200000",
            program.display()
        );
        survives(Fork::Refuse, &line, 8);
    }
}

#[test]
fn open_mp_with_512_threads_survives() {
    let scene = Scene::new();
    if let Some(program) = open_mp(&scene) {
        let words = "env OMP_WAIT_POLICY=passive OMP_STACKSIZE=256k";
        let line = format!("{words} {} 512 12 3000", program.display());
        survives(Fork::Refuse, &line, 3);
    }
}

#[test]
fn a_shell_with_children_survives() {
    let script = "/bin/bash -c 'i=0; while [ $i -lt 20 ]; do echo $i $(expr $i \\* $i); \
                  i=$((i+1)); done; echo end'";
    survives(Fork::Copy, script, 4);
}

/// Looks into the journal at the moment from which a process is kept.
struct Watch {
    memory: PathBuf,
    /// A process, and whether the journal then said whose call made it.
    seen: Vec<(i32, bool)>,
}

impl Register for Watch {
    fn add(&mut self, pid: i32) -> outlive_base::Result<()> {
        let noted = Journal::noted(&self.memory);
        let maker = noted.children.iter().find(|(_, child)| **child == pid);
        // In its call, as the kernel would find it.
        let in_call = maker.is_some_and(|(tid, _)| {
            let registers = sys::registers(*tid).expect("the maker is stopped");
            outlive_minickpt::births::Fork::of(*tid, &registers).is_some()
        });
        self.seen.push((pid, in_call));
        Ok(())
    }
    fn remove(&mut self, _pid: i32) {}
}

/// A kernel that dies while the maker has not come back from its call finds the child
/// already: the call must not make it again. And a call that has made none yet must not
/// end with the child of the one before.
#[test]
fn who_made_a_process_is_noted_before_it_is_kept() {
    let scene = Scene::new();
    let _alone = alone();
    let policy = scene.policy(Fork::Copy);
    let mut watch = Watch {
        memory: policy.memory.clone(),
        seen: Vec::new(),
    };
    let script = "/usr/bin/python3 -c '\nimport os\nfor n in range(3):\n p = os.fork()\n \
                  if p == 0: os._exit(n)\n print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))'";
    let mut supervisor = Supervisor::new(policy.clone(), &mut watch).expect("supervisor");
    launch::start(&mut supervisor, &policy, &scene.words(script, "hit")).expect("start");
    assert_eq!(supervisor.run().expect("run"), 0, "{}", scene.text("hit"));
    drop(supervisor);
    assert_eq!(scene.text("hit"), "0\n1\n2\n");
    // The shell and Python by exec, then three children, of which each was noted.
    let forked: Vec<bool> = watch.seen.iter().skip(2).map(|(_, noted)| *noted).collect();
    assert_eq!(forked, [true, true, true], "{:?}", watch.seen);
    // All have ended, so nothing is left that an image could be taken for.
    assert_eq!(Journal::noted(&policy.memory).children.len(), 0);
}

#[test]
fn the_allocator_is_told_to_keep_what_it_has() {
    let scene = Scene::new();
    let (status, _) = protected(&scene, Fork::Refuse, "/usr/bin/env");
    assert_eq!(status, 0);
    for name in ["MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"] {
        assert!(scene.text("hit").contains(&format!("{name}=")), "{name}");
    }
}

#[test]
fn a_fork_without_policy_fails_with_a_message() {
    let scene = Scene::new();
    let mut said = Vec::new();
    {
        let mut native = Native;
        let policy = scene.policy(Fork::Refuse);
        let mut supervisor = Supervisor::new(policy.clone(), &mut native).expect("supervisor");
        supervisor.say = Box::new(|error| said.push(error.code()));
        let program =
            "/usr/bin/python3 -c 'import os\ntry: os.fork()\nexcept OSError as e: print(e.errno)'";
        launch::start(&mut supervisor, &policy, &scene.words(program, "hit")).expect("start");
        assert_eq!(supervisor.run().expect("run"), 0);
    }
    assert_eq!(scene.text("hit"), format!("{}\n", libc::ENOSYS));
    assert_eq!(said, [outlive_base::Code::Unsupported]);
}
