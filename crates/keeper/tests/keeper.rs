//! Keepers and agents as real processes. The test program starts itself in
//! other roles: `helper` is the keeper, the launcher or the agent, by its
//! environment. Lines that begin with `@` are what they tell the test.
#![allow(missing_docs, clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use outlive_base::Code;
use outlive_keeper::{Deposit, KEEPER_FD, KeeperOptions, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const ROLE: &str = "OUTLIVE_TEST_ROLE";
const SCENARIO: &str = "OUTLIVE_TEST_SCENARIO";
const SEED: &str = "KEEPER_TEST_SEED";
/// More than two batches.
const MANY: usize = 100;
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

// ---- the other processes ---------------------------------------------------

#[test]
fn helper() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let scenario = std::env::var(SCENARIO).unwrap_or_default();
    let code = match &*role {
        _ if std::env::var_os(KEEPER_FD).is_some() => agent(&scenario),
        "keeper" => keeper(&scenario),
        "launcher" => launcher(&scenario),
        other => panic!("unknown role {other}"),
    };
    std::process::exit(code);
}

fn myself() -> Vec<OsString> {
    let program = std::env::current_exe().unwrap().into_os_string();
    let arguments = ["--exact", "helper", "--nocapture", "--test-threads=1"];
    [program]
        .into_iter()
        .chain(arguments.map(OsString::from))
        .collect()
}

fn tell(text: impl std::fmt::Display) {
    println!("\n@{text}");
    std::io::stdout().flush().unwrap();
}

fn shell(script: &str) -> Vec<OsString> {
    ["/bin/sh", "-c", script].map(OsString::from).to_vec()
}

fn keeper(scenario: &str) -> i32 {
    let mut options = KeeperOptions::new(match scenario {
        "stay" => shell("echo; echo @$$; while :; do sleep 1; done"),
        "stubborn" => shell("trap '' TERM; echo; echo @$$; while :; do sleep 1; done"),
        "last" => shell("exit 0"),
        "missing" => vec!["/nonexistent/agent".into()],
        _ => myself(),
    });
    options.restart_backoff = Duration::from_millis(20);
    options.restart_backoff_max = Duration::from_millis(60);
    options.max_restarts = 4;
    options.stop_timeout = Duration::from_millis(300);
    if scenario == "orphan" {
        options.parent = Some(1);
    }
    if scenario == "bounds" {
        options.descriptors_max = 10;
    }
    let last = || {
        // As a parent does whose threads die one after the other.
        for _ in 0..3 {
            let own = rustix::process::getpid();
            kill_process(own, Signal::TERM).unwrap();
        }
        tell("last");
    };
    match run(options, || {
        if scenario == "last" {
            last();
        }
    }) {
        Ok(reason) => {
            tell(format_args!("{reason:?}"));
            0
        }
        Err(error) => {
            tell(format_args!("{}", error.code()));
            i32::from(error.code().exit_status())
        }
    }
}

/// Starts a keeper and waits for it.
fn launcher(scenario: &str) -> i32 {
    let mut child = role("keeper", scenario).spawn().unwrap();
    child.wait().unwrap().code().unwrap_or(1)
}

fn memory(content: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("test", flags).unwrap());
    file.write_all(content).unwrap();
    file
}

fn agent(scenario: &str) -> i32 {
    // A copy of the line, to misbehave on.
    let number = std::env::var(KEEPER_FD).unwrap().parse().unwrap();
    // SAFETY: the keeper's socket is open at least until Deposit takes it.
    let line = unsafe { BorrowedFd::borrow_raw(number) }
        .try_clone_to_owned()
        .unwrap();
    let deposit = Deposit::from_env().unwrap().expect("started by a keeper");
    assert_eq!(
        Deposit::from_env().unwrap_err().code(),
        Code::InvalidArgument
    );
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let life = deposit.agent_restarts();
    match (scenario, life) {
        ("adopt", 0) => deposit_and_die(&deposit),
        ("adopt", _) => adopt(&deposit),
        ("bounds", _) => bounds(&deposit),
        ("garbage", _) => {
            let mut random = outlive_base::rng::Sequence::new(inherited_seed(), 0);
            for _ in 0..500 {
                let bytes: Vec<u8> = (0..=random.below(300))
                    .map(|_| random.u64() as u8)
                    .collect();
                while rustix::io::write(&line, &bytes) == Err(rustix::io::Errno::AGAIN) {
                    std::thread::yield_now();
                }
            }
            deposit.keep("after", memory(b"x").as_fd()).unwrap();
            assert_eq!(deposit.adopt().unwrap().len(), 1);
            0
        }
        ("crash", _) => {
            tell(format_args!(
                "start {}",
                now.tv_sec * 1000 + now.tv_nsec / 1_000_000
            ));
            3
        }
        other => panic!("unknown scenario {other:?}"),
    }
}

fn deposit_and_die(deposit: &Deposit) -> i32 {
    deposit.keep("slab/0", memory(b"old").as_fd()).unwrap();
    deposit
        .keep("slab/0", memory(b"known content").as_fd())
        .unwrap();
    for n in 0..MANY {
        deposit
            .keep(&format!("many/{n:03}"), memory(&[n as u8]).as_fd())
            .unwrap();
    }
    deposit.drop("many/007").unwrap();
    assert_eq!(deposit.drop("many/007").unwrap_err().code(), Code::NotFound);
    tell("deposited");
    kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    unreachable!("killed");
}

fn adopt(deposit: &Deposit) -> i32 {
    let mut kept = deposit.adopt().unwrap();
    assert_eq!(kept.len(), MANY);
    let (tag, descriptor) = kept.pop().unwrap();
    let flags = rustix::io::fcntl_getfd(&descriptor).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let mut file = File::from(descriptor);
    let mut content = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut content).unwrap();
    for (n, (tag, _)) in (0..MANY).filter(|n| *n != 7).zip(&kept) {
        assert_eq!(*tag, format!("many/{n:03}"));
    }
    let status = std::fs::read_to_string(format!(
        "/proc/{}/status",
        rustix::process::getppid().unwrap()
    ));
    for line in status
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("Rss"))
    {
        tell(line);
    }
    tell(format_args!(
        "{tag}={content}, restarts {}",
        deposit.agent_restarts()
    ));
    0
}

fn bounds(deposit: &Deposit) -> i32 {
    let file = memory(b"x");
    for n in 0..10 {
        deposit.keep(&n.to_string(), file.as_fd()).unwrap();
    }
    let full = deposit.keep("10", file.as_fd()).unwrap_err();
    assert_eq!(full.code(), Code::MemoryBudget);
    deposit.keep("3", file.as_fd()).unwrap();
    deposit.drop("4").unwrap();
    let longest = "x".repeat(255);
    deposit.keep(&longest, file.as_fd()).unwrap();
    for tag in ["", &"x".repeat(256)] {
        let bad = deposit.keep(tag, file.as_fd()).unwrap_err();
        assert_eq!(bad.code(), Code::InvalidArgument);
    }
    assert_eq!(deposit.adopt().unwrap().len(), 10);
    0
}

// ---- the tests --------------------------------------------------------------

/// The seed of the test that started this role.
fn inherited_seed() -> u64 {
    std::env::var(SEED).unwrap().parse().unwrap()
}

fn role(role: &str, scenario: &str) -> Command {
    let line = myself();
    let mut command = Command::new(&line[0]);
    command
        .args(&line[1..])
        .env(ROLE, role)
        .env(SCENARIO, scenario);
    if std::env::var_os(SEED).is_none() {
        command.env(SEED, outlive_base::seed!().to_string());
    }
    command
}

/// What a role and its children tell.
struct Told(Receiver<String>);

impl Iterator for Told {
    type Item = String;
    /// The next line; None at the end of all of them.
    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => panic!("nothing told in time"),
            line => line.ok(),
        }
    }
}

fn start(name: &str, scenario: &str) -> (Child, Told) {
    let mut command = role(name, scenario);
    // The test harness has a thread more than a keeper may have: with SIGTERM
    // blocked from the start it waits for the keeper's.
    // SAFETY: system calls on local memory only, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, told) = unbounded();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if let Some(text) = line.strip_prefix('@') {
                let _ = sender.send(text.to_owned());
            }
        }
    });
    (child, Told(told))
}

/// Runs a keeper to its end.
fn finish(scenario: &str) -> (i32, Vec<String>) {
    let (mut child, told) = start("keeper", scenario);
    let told = told.collect();
    (child.wait().unwrap().code().unwrap(), told)
}

/// Waits until the process is gone or dead.
fn ends(pid: Pid) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let patience = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut source = [PollFd::new(&pidfd, PollFlags::IN)];
    assert_eq!(
        poll(&mut source, Some(&patience)),
        Ok(1),
        "{pid:?} lives on"
    );
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().unwrap()).unwrap()
}

#[test]
fn a_killed_agent_is_started_again_and_adopts_what_it_left() {
    let (code, told) = finish("adopt");
    assert_eq!(code, 0, "{told:?}");
    assert_eq!(told.first().unwrap(), "deposited");
    assert_eq!(
        told[told.len() - 2..],
        ["slab/0=known content, restarts 1", "AgentDone"]
    );
    // The keeper's own memory; its program text is the whole test's here.
    let anonymous = told
        .iter()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let kib: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 4096, "{kib} KiB");
}

#[test]
fn restarts_are_delayed_bounded_and_then_an_error() {
    let (code, told) = finish("crash");
    assert_eq!(code, 79);
    assert_eq!(told.last().unwrap(), "OL-503");
    let starts: Vec<i64> = told
        .iter()
        .filter_map(|line| line.strip_prefix("start ")?.parse().ok())
        .collect();
    assert_eq!(starts.len(), 5, "the first start and four more: {told:?}");
    for (pair, least) in starts.windows(2).zip([20, 40, 60, 60]) {
        assert!(pair[1] - pair[0] >= least, "{starts:?}");
    }
}

#[test]
fn the_agent_ends_with_a_killed_keeper() {
    let (mut keeper, mut told) = start("keeper", "stay");
    let agent = pid(&told.next().unwrap());
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    ends(agent);
}

#[test]
fn sigterm_ends_both_in_good_order_and_a_stubborn_agent_is_killed() {
    for scenario in ["stay", "stubborn"] {
        let (mut keeper, mut told) = start("keeper", scenario);
        let agent = pid(&told.next().unwrap());
        let before = Instant::now();
        kill_process(Pid::from_child(&keeper), Signal::TERM).unwrap();
        assert_eq!(keeper.wait().unwrap().code(), Some(0));
        assert!(before.elapsed() < Duration::from_secs(10));
        ends(agent);
        assert_eq!(told.next().unwrap(), "Terminated");
    }
}

#[test]
fn keeper_and_agent_end_with_the_launcher() {
    let (mut launcher, mut told) = start("launcher", "stubborn");
    let agent = pid(&told.next().unwrap());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    ends(agent);
    assert_eq!(told.next().unwrap(), "ParentGone");
    // A launcher that died before its keeper began.
    assert_eq!(finish("orphan"), (0, vec!["ParentGone".to_owned()]));
}

#[test]
fn what_a_keeper_does_last_is_not_ended_by_its_parents_threads() {
    let said = ["last", "AgentDone"].map(str::to_owned).to_vec();
    assert_eq!(finish("last"), (0, said));
}

#[test]
fn bounds_hold_and_garbage_is_survived() {
    for scenario in ["bounds", "garbage"] {
        assert_eq!(
            finish(scenario),
            (0, vec!["AgentDone".to_owned()]),
            "{scenario}"
        );
    }
    assert_eq!(finish("missing"), (127, vec!["OL-505".to_owned()]));
}
