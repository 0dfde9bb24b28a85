//! Real programs are dumped, killed and restored, and must end as if nothing had been.
//!
//! Old numbers need CAP_CHECKPOINT_RESTORE: as an ordinary user these tests are skipped
//! by name.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outlive_image::freeze::freeze;
use outlive_image::gate::GATE;
use outlive_image::model::{Image, Process};
use outlive_image::restore::{Options, restore};
use outlive_image::source::{self, Contents};
use outlive_image::sys::{self, Change};
use outlive_image::{dump, procfs};

/// Every wait of these tests ends then.
const BOUND: Duration = Duration::from_secs(60);

fn privileged() -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIP image-numbers: old process numbers need CAP_CHECKPOINT_RESTORE");
    }
    root
}

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Scene {
            dir: tempfile::tempdir().expect("directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a program in a session of its own, its output in a file.
    fn start(&self, words: &[&str], output: &str) -> std::process::Child {
        let to = File::create(self.path(output)).expect("output");
        Command::new("setsid")
            .args(words)
            .current_dir(self.dir.path())
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(to.try_clone().expect("output"))
            .stderr(to)
            .spawn()
            .expect("start")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Programs wait for this half way, so that none ends before it is stopped.
    fn go(&self) {
        File::create(self.path("go")).expect("go");
    }

    fn wait_for(&self, name: &str, lines: usize) {
        let start = Instant::now();
        while self.text(name).lines().count() < lines {
            assert!(start.elapsed() < BOUND, "{name}: {}", self.text(name));
            std::thread::yield_now();
        }
    }

    /// Dumps a process tree, ends it, brings it up again and waits for its end: status.
    fn over(&self, child: &mut std::process::Child) -> i32 {
        let (image, contents) = self.dumped(child);
        self.go();
        self.up(&image, &contents)
    }

    /// Brings an image up and waits for its end: status.
    fn up(&self, image: &Image, contents: &Contents) -> i32 {
        let options = Options {
            numbers: true,
            // Not for files that are on no DAX, as all of these.
            synchronous: true,
            ..Options::default()
        };
        let start = Instant::now();
        let restored = restore(image, contents, &options).expect("restore");
        let threads: usize = restored.processes.iter().map(|p| p.1.len()).sum();
        println!(
            "{} processes, {threads} threads restored in {:.1} ms",
            restored.processes.len(),
            start.elapsed().as_secs_f64() * 1e3
        );
        let root = restored.processes[0].0;
        assert_eq!(root, image.processes[0].pid, "the old number");
        restored.release().expect("release");
        end_of(root)
    }

    fn dumped(&self, child: &mut std::process::Child) -> (Image, Contents) {
        let pid = child.id() as i32;
        let frozen = freeze(pid, &BTreeSet::new()).expect("freeze");
        let pages = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path("pages"))
            .expect("pages");
        let image = dump::dump(&frozen, &pages).expect("dump");
        frozen.kill();
        reap_session(pid);
        // Through the container, as a store or a socket would carry it.
        let path = self.path("image");
        let mut file = File::create(&path).expect("image");
        source::send(&mut file, "image", &image, &pages).expect("send");
        let (back, contents) = source::open(&path).expect("open");
        assert_eq!(back, image);
        (back, contents)
    }
}

/// Orphans come to us: their session's number is free once all are reaped.
fn reap_session(session: i32) {
    let own = std::process::id() as i32;
    let start = Instant::now();
    let of_session = |pid: &i32| procfs::stat(*pid).is_ok_and(|stat| stat.sid == session);
    loop {
        let all = std::fs::read_dir("/proc").expect("/proc");
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let left: Vec<i32> = numbers.filter(of_session).collect();
        if left.is_empty() {
            return;
        }
        assert!(
            start.elapsed() < BOUND,
            "{left:?} of session {session} stay"
        );
        for orphan in left {
            if procfs::stat(orphan).is_ok_and(|stat| stat.ppid == own) {
                let _ = sys::wait(orphan, true);
            }
        }
        std::thread::yield_now();
    }
}

fn end_of(pid: i32) -> i32 {
    let start = Instant::now();
    loop {
        match sys::wait(pid, false) {
            Ok(Some((_, Change::Ended(status)))) => return status,
            Ok(_) => {}
            Err(error) => panic!("wait for {pid}: {error}"),
        }
        assert!(start.elapsed() < BOUND, "{pid} does not end");
        std::thread::yield_now();
    }
}

/// What is opened for one restore would go to the programs of another.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program undisturbed and over a dump; both outputs must be the same.
fn survives(words: &[&str], lines: usize) {
    if !privileged() {
        return;
    }
    let _one = alone();
    let scene = Scene::new();
    scene.go();
    let status = scene.start(words, "calm").wait().expect("calm run");
    std::fs::remove_file(scene.path("go")).expect("go");
    assert!(status.success(), "{}", scene.text("calm"));
    let mut child = scene.start(words, "hit");
    scene.wait_for("hit", lines);
    assert_eq!(scene.over(&mut child), 0, "{}", scene.text("hit"));
    assert_eq!(scene.text("hit"), scene.text("calm"));
}

const PYTHON: &str = r#"
import hashlib, mmap, os, signal, sys, threading, time
shared = mmap.mmap(os.open(sys.executable, os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
class Count(threading.Thread):
    def run(self):
        self.digest = hashlib.sha256()
        for i in range(300000): self.digest.update(i.to_bytes(4, "little"))
threads = [Count() for _ in range(3)]
for t in threads: t.start()
alarms = []
signal.signal(signal.SIGUSR1, lambda *_: alarms.append(1))
start = time.monotonic()
value = 1.0
for step in range(40):
    for _ in range(20000): value = (value * 1.0000001) % 7.0
    value += shared[step]
    print(step, value, flush=True)
    while step == 20 and not os.path.exists("go"): pass
for t in threads: t.join(); print(t.digest.hexdigest())
os.kill(os.getpid(), signal.SIGUSR1)
print(len(alarms), os.getcwd() != "", time.monotonic() >= start)
"#;

#[test]
fn python_with_threads_and_signals() {
    survives(&["/usr/bin/python3", "-c", PYTHON], 5);
}

#[test]
fn a_shell_with_its_children() {
    let script = "i=0; while [ $i -lt 30 ]; do echo $i $(expr $i \\* $i); i=$((i+1)); \
                  while [ $i = 20 ] && [ ! -e go ]; do x=$(expr $i + 1); done; done; \
                  (sleep 0.2; echo child) & wait; echo end";
    survives(&["/bin/bash", "-c", script], 5);
}

const QUEUED: &str = r#"
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
wanted = {signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
for value in range(40): libc.sigqueue(os.getpid(), signal.SIGRTMIN + value % 2, value)
os.kill(os.getpid(), signal.SIGUSR2)
for step in range(5): print(step, flush=True)
while not os.path.exists("go"): time.sleep(0.001)
while info := signal.sigtimedwait(wanted, 0):
    print(info.si_signo, info.si_code, info.si_pid == os.getpid(), info.si_uid)
"#;

const MANY: &str = r#"
import os, threading, time
ends = [os.pipe() for _ in range(64)]
def child(place):
    threads = [threading.Thread(target=lambda: time.sleep(0.01)) for _ in range(3)]
    while not os.path.exists("go"): time.sleep(0.002)
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    os.write(ends[place][1], bytes([place]))
    os._exit(place)
children = []
for place in range(64):
    children.append(os.fork())
    if not children[-1]: child(place)
for step in range(5): print(step, flush=True)
print(*(os.read(end[0], 1)[0] for end in ends))
print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"#;

/// Each child has its number, its pipe and its parent.
#[test]
fn many_processes() {
    survives(&["/usr/bin/python3", "-c", MANY], 5);
}

const MANY_THREADS: &str = r#"
import ctypes, hashlib, os, threading, time
gettid = lambda: ctypes.CDLL(None).syscall(186)
ends = [os.pipe() for _ in range(24)]
ready = os.pipe()
def child(place):
    found = {}
    def work(which):
        before, digest = gettid(), hashlib.sha256(bytes([place, which]))
        started.wait()
        while not os.path.exists("go"): time.sleep(0.002)
        for i in range(1000): digest.update(i.to_bytes(4, "little"))
        found[which] = (before == gettid(), digest.hexdigest()[:8])
    started = threading.Barrier(5)
    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads: thread.start()
    started.wait()
    os.write(ready[1], b".")
    for thread in threads: thread.join()
    os.write(ends[place][1], repr(sorted(found.items())).encode())
    os._exit(place)
children = []
for place in range(24):
    children.append(os.fork())
    if not children[-1]: child(place)
for _ in children: os.read(ready[0], 1)
for step in range(5): print(step, flush=True)
for end in ends: print(os.read(end[0], 4096).decode())
print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"#;

/// Each thread has its number and its memory.
#[test]
fn many_processes_with_threads() {
    survives(&["/usr/bin/python3", "-c", MANY_THREADS], 5);
}

/// Whatever call fails in one of many processes, all are ended, and their numbers are free.
#[test]
fn a_failure_in_one_of_many_leaves_none() {
    if !privileged() {
        return;
    }
    let _one = alone();
    let scene = Scene::new();
    let mut child = scene.start(&["/usr/bin/python3", "-c", MANY_THREADS], "hit");
    scene.wait_for("hit", 5);
    let (image, contents) = scene.dumped(&mut child);
    scene.go();
    // A number that is not free.
    let taken = std::process::id() as i32;
    type Damage = fn(&mut Process, i32);
    let damages: [(&str, Damage); 5] = [
        ("a birth", |process, taken| {
            (process.pid, process.threads[0].tid) = (taken, taken);
        }),
        ("a mapping", |process, _| {
            // Where its gate is.
            let mut mapping = process.mappings[0].clone();
            (mapping.start, mapping.end) = (GATE, GATE + 4096);
            mapping.runs.clear();
            process.mappings.push(mapping);
            process.mappings.sort_by_key(|mapping| mapping.start);
        }),
        ("a directory", |process, _| process.cwd = "/nowhere".into()),
        ("the birth of a thread", |process, taken| {
            process.threads[2].tid = taken;
        }),
        ("the end of a thread", |process, _| {
            process.threads[3].rseq = (8, 32, 0);
        }),
    ];
    let options = Options {
        numbers: true,
        ..Options::default()
    };
    for (what, damage) in damages {
        let mut broken = image.clone();
        damage(&mut broken.processes[12], taken);
        let error = restore(&broken, &contents, &options).expect_err(what);
        println!("{what}: {error}");
        for process in &image.processes {
            let status = procfs::status(process.pid, process.pid);
            let state = status.map_or('X', |status| status.state);
            assert!("XZ".contains(state), "{what}: {} is {state}", process.pid);
        }
        reap_session(image.processes[0].pid);
    }
    assert_eq!(scene.up(&image, &contents), 0, "{}", scene.text("hit"));
}

const TIMERS: &str = r#"
import ctypes, os, signal, struct, threading, time
call = ctypes.CDLL(None, use_errno=True).syscall
CREATE, SET, GET, DELETE = 222, 223, 224, 226
def create(clock, number, how=0, thread=0):
    event = struct.pack("Qiii44x", 7, number, how, thread)
    at = ctypes.c_int(-1)
    assert call(CREATE, clock, event, ctypes.byref(at)) == 0, ctypes.get_errno()
    return at.value
def arm(timer, interval_ms, first_ms, absolute=0):
    ms = lambda ms: (ms // 1000, ms % 1000 * 1000000)
    assert call(SET, timer, absolute, struct.pack("4q", *ms(interval_ms), *ms(first_ms)), None) == 0
def left(timer):
    times = ctypes.create_string_buffer(32)
    assert call(GET, timer, times) == 0, timer
    return struct.unpack("4q", times.raw)
first, second = signal.SIGRTMIN, signal.SIGRTMIN + 1
signal.pthread_sigmask(signal.SIG_BLOCK, {first, second})
ids = []
thread = threading.Thread(target=lambda: (ids.append(threading.get_native_id()), got.append(
    signal.sigtimedwait({second}, 60)), over.wait()))
got, over = [], threading.Event()
thread.start()
while not ids: pass
timers = [create(time.CLOCK_MONOTONIC, first) for _ in range(130)]
for timer in timers[1:-1]: assert call(DELETE, timer) == 0
last = timers[-1]
never = create(time.CLOCK_REALTIME, 0, how=1)
cpu = create(time.CLOCK_PROCESS_CPUTIME_ID, first)
own = create(time.CLOCK_BOOTTIME, second, how=4, thread=ids[0])
arm(last, 50, 50)
arm(never, 0, 3600000)
arm(cpu, 0, 3600000)
arm(own, 0, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 500000000) // 1000000, absolute=1)
for step in range(5): print(step, flush=True)
while not os.path.exists("go"): time.sleep(0.001)
for _ in range(3): print(signal.sigtimedwait({first}, 60).si_code)
while not got: time.sleep(0.001)
print(got[0].si_signo == second, got[0].si_code)
print(timers[0], last, never, cpu, own, left(timers[0]), left(last)[:2])
print(*(0 < left(timer)[2] < 3600 for timer in (never, cpu)), left(own))
print(create(time.CLOCK_MONOTONIC, first))
over.set()
"#;

/// Timers of timer_create have their numbers, clocks, threads and what was left.
#[test]
fn timers_go_on() {
    survives(&["/usr/bin/python3", "-c", TIMERS], 5);
}

/// Real-time signals queue, each with its value and its sender; in their order.
#[test]
fn queued_signals_keep_their_number_and_their_sender() {
    survives(&["/usr/bin/python3", "-c", QUEUED], 5);
}
