//! Stacks of this program itself, run again as a child that does one thing.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use outlive_base::Code;
use outlive_stacks::{Process, Thread, describe, of};

static COUNT: AtomicU64 = AtomicU64::new(0);
const WHAT: &str = "OUTLIVE_TEST_STACKS";

#[inline(never)]
fn spins_for_ever(depth: u32) {
    if depth > 0 {
        spins_for_ever(depth - 1);
    }
    loop {
        COUNT.store(black_box(1), Relaxed);
    }
}

#[inline(never)]
fn waits_for_a_byte(input: &mut dyn Read) {
    let _ = input.read_exact(&mut [0]);
    COUNT.fetch_add(1, Relaxed);
}

extern "C" fn handles(_: i32) {
    spins_for_ever(0);
    // Else the call is the end of this function, and leaves no frame of it.
    COUNT.fetch_add(1, Relaxed);
}

extern "C" fn counts(_: i32) {
    COUNT.fetch_add(1, Relaxed);
}

#[inline(never)]
fn is_interrupted() {
    // SAFETY: a signal to this process itself.
    unsafe { libc::raise(libc::SIGUSR1) };
    COUNT.fetch_add(1, Relaxed);
}

fn catch(signal: i32, by: extern "C" fn(i32)) {
    // SAFETY: the handlers use atomics alone.
    unsafe { libc::signal(signal, by as *const () as usize) };
}

/// Not a test: what the child does.
#[test]
fn child() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let ready = || {
        println!("\nready");
        std::io::stdout().flush().unwrap();
    };
    match what.as_str() {
        "spin" => {
            std::thread::Builder::new()
                .name("reader".into())
                .spawn(|| waits_for_a_byte(&mut std::io::stdin()))
                .unwrap();
            ready();
            spins_for_ever(3);
        }
        "handler" => {
            catch(libc::SIGUSR1, handles);
            ready();
            is_interrupted();
        }
        "count" => {
            catch(libc::SIGUSR2, counts);
            ready();
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            println!("{}", COUNT.load(Relaxed));
        }
        other => panic!("{other}"),
    }
}

struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(what: &str) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(WHAT, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it has ended");
        }
        Running { child, output }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Looks until a thread is in that function: it may be on its way there.
    fn until(&self, function: &str) -> (Process, Thread) {
        for _ in 0..500 {
            let process = of(self.pid()).unwrap();
            let found = process.threads.iter().find(|it| names(it, function));
            if let Some(thread) = found.cloned() {
                return (process, thread);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{}", describe(&of(self.pid()).unwrap()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names(thread: &Thread, function: &str) -> bool {
    functions(thread).iter().any(|it| it.contains(function))
}

fn functions(thread: &Thread) -> Vec<&str> {
    let named = thread.frames.iter();
    named
        .filter_map(|frame| frame.function.as_deref())
        .collect()
}

#[test]
fn a_loop_and_a_blocked_read_are_named_with_their_lines() {
    let running = Running::start("spin");
    let (process, thread) = running.until("spins_for_ever");
    assert_eq!(process.incomplete, [""; 0]);
    assert!(process.command.contains("--nocapture"), "{process:?}");
    assert_eq!(
        (thread.call.as_deref(), thread.state),
        (None, 'R'),
        "{thread:?}"
    );
    let deep = functions(&thread);
    let deep = deep.iter().filter(|it| it.contains("spins_for_ever"));
    assert_eq!(deep.count(), 4, "{}", describe(&process));
    assert!(names(&thread, "stacks::child"), "{}", describe(&process));
    let inner = thread.frames.iter().find(|it| {
        let function = it.function.as_deref();
        function.is_some_and(|name| name.contains("spins_for_ever"))
    });
    let source = inner.unwrap().source.clone().unwrap();
    assert!(
        source.file.ends_with("stacks.rs") && source.line > 0,
        "{source:?}"
    );
    let (process, reader) = running.until("waits_for_a_byte");
    assert_eq!(reader.name, "reader");
    let call = reader.call.clone().unwrap();
    assert!(call.starts_with("read(0: pipe:["), "{call}");
    let text = describe(&process);
    assert!(text.contains("reader, in read(0: pipe:["), "{text}");
    assert!(text.contains("stacks.rs:"), "{text}");
}

#[test]
fn what_a_signal_has_interrupted_is_told_too() {
    let running = Running::start("handler");
    let (process, thread) = running.until("stacks::handles");
    assert!(names(&thread, "is_interrupted"), "{}", describe(&process));
    assert!(names(&thread, "stacks::child"), "{}", describe(&process));
}

#[test]
fn a_program_that_was_looked_at_goes_on_and_gets_its_signals() {
    let mut running = Running::start("count");
    let pid = running.pid();
    let waits = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let pending = status.lines().filter(|line| line.contains("Pnd:"));
        pending
            .clone()
            .any(|line| !line.ends_with("0000000000000000"))
    };
    for _ in 0..50 {
        // SAFETY: a signal that the child catches.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGUSR2) }, 0);
        let process = of(pid).unwrap();
        assert_eq!(process.incomplete, [""; 0], "{}", describe(&process));
        // The next of the same number would be merged with it.
        while waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let input = running.child.stdin.as_mut().unwrap();
    input.write_all(b"\n").unwrap();
    let mut said = String::new();
    running.output.read_line(&mut said).unwrap();
    let counted: u32 = said.trim().parse().unwrap();
    assert_eq!(counted, 50);
}

#[test]
fn what_has_ended_is_not_there() {
    // It may be looked at at any moment of its end. That this process heard of it as its tracer
    // must not take it from this process as its parent.
    for _ in 0..50 {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while of(pid).unwrap().threads.iter().any(|it| it.state != 'Z') {
            std::thread::sleep(Duration::from_micros(50));
        }
        let process = of(pid).unwrap();
        assert!(process.threads.iter().all(|it| it.frames.is_empty()));
        assert!(child.wait().unwrap().success());
        assert_eq!(of(pid).unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(of(i32::MAX).unwrap_err().code(), Code::NotFound);
}
