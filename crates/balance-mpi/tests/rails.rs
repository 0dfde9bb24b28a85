//! Processes that meet over TCP, and real deaths: a process that kills itself before a
//! chosen frame, and one that is killed from outside while it balances.

#![allow(clippy::unwrap_used)] // a panic is how a test reports

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outlive_balance::diffusion;
use outlive_balance_mpi::rails::{Options, Rails, meet};
use outlive_balance_mpi::tasks::{Local, Task};
use outlive_base::Time;
use outlive_network::rail::tcp::Tcp;
use outlive_network::rail::{Can, Frame, News, Rail};
use rustix::process::{Pid, Signal, getpid, kill_process};

const TASKS: u64 = 96;

/// Dies instead of sending its n-th frame.
struct Mortal(Tcp, u64);

impl Rail for Mortal {
    fn me(&self) -> u32 {
        self.0.me()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn can(&self) -> Can {
        self.0.can()
    }
    fn now(&self) -> Time {
        self.0.now()
    }
    fn ready(&self) -> bool {
        self.0.ready()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if self.1 == 0 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        self.1 -= 1;
        self.0.send(to, frame);
    }
    fn waiting(&self) -> usize {
        self.0.waiting()
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        self.0.receive()
    }
    fn news(&mut self) -> Option<News> {
        self.0.news()
    }
    fn leave(&mut self, bound: Duration) {
        self.0.leave(bound);
    }
    fn wait(&mut self, until: Time) {
        self.0.wait(until);
    }
    fn flushed(&mut self) -> bool {
        self.0.flushed()
    }
}

/// The tasks of a path, the first eighth heavy.
fn describe(own: &BTreeSet<u64>) -> Local {
    let mut local = Local::default();
    for &task in own {
        let ends = [task.checked_sub(1), Some(task + 1)].into_iter().flatten();
        let described = Task {
            weight: if task < TASKS / 8 { 6.0 } else { 1.0 },
            home: 0,
            at: None,
            edges: ends.filter(|&t| t < TASKS).map(|t| (t, 1.0)).collect(),
        };
        local.own.insert(task, described);
    }
    local
}

/// Not a test: a process of one, told by its environment.
#[test]
#[ignore = "a process of the other tests"]
fn process() {
    let Ok(told) = std::env::var("OUTLIVE_TEST_RAILS") else {
        return;
    };
    let told: Vec<&str> = told.split(' ').collect();
    let number = |at: usize| told[at].parse::<u64>().unwrap();
    let (me, size, frames) = (number(0) as u32, number(1) as u32, number(2));
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bounds = (Duration::from_secs(20), Duration::from_secs(5));
    let rail = meet(Path::new(told[3]), here, (me, size), bounds).unwrap();
    let bound = Duration::from_secs(30);
    let mut rails = Rails::new(Mortal(rail, frames), Options { bound }).unwrap();
    let all = 0..TASKS;
    let mut own: BTreeSet<u64> = all
        .filter(|t| t * u64::from(size) / TASKS == u64::from(me))
        .collect();
    for _ in 0..2 {
        let options = diffusion::Options::default();
        let done = rails
            .balance(&describe(&own), (1.0, 0.0), &options)
            .unwrap();
        for (task, _) in &done.outcome.exports {
            assert!(own.remove(task));
        }
        for (task, from) in &done.outcome.imports {
            assert!(own.insert(*task) && !done.failed.contains(from));
        }
        let words = |all: Vec<String>| all.join(" ");
        let failed = words(done.failed.iter().map(u32::to_string).collect());
        let tasks = words(own.iter().map(u64::to_string).collect());
        println!("\nhas {:.4} [{failed}] [{tasks}]", done.outcome.imbalance.1);
    }
    rails.leave(Duration::from_secs(5));
}

struct Ended {
    lived: bool,
    /// Imbalance, failed ones, tasks, of each balancing that returned.
    calls: Vec<(f64, String, Vec<u64>)>,
}

fn start(place: (u32, u32), frames: u64, folder: &Path) -> Child {
    let told = format!("{} {} {frames} {}", place.0, place.1, folder.display());
    Command::new(std::env::current_exe().unwrap())
        .args(["process", "--exact", "--ignored", "--nocapture"])
        .env("OUTLIVE_TEST_RAILS", told)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn list(text: &str) -> Vec<u64> {
    let words = text.split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

fn end(child: Child) -> Ended {
    let done = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let mut calls = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("has ")) {
        let parts: Vec<&str> = line.split(['[', ']']).collect();
        let imbalance = parts[0].trim().parse().unwrap();
        calls.push((imbalance, parts[1].to_owned(), list(parts[3])));
    }
    if !done.status.success() {
        use std::os::unix::process::ExitStatusExt as _;
        let error = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.signal(), Some(9), "{error}");
    }
    Ended {
        lived: done.status.success(),
        calls,
    }
}

#[test]
fn a_process_killed_within_a_balancing_is_left_out_and_nothing_else_is_lost() {
    let mut within = 0;
    for (turn, frames) in [0, 3, 20, 47, 90, 141, 260, u64::MAX]
        .into_iter()
        .enumerate()
    {
        let folder = tempfile::tempdir().unwrap();
        let victim = turn as u32 % 4;
        let frames_of = |me| if me == victim { frames } else { u64::MAX };
        let all: Vec<Child> = (0..4)
            .map(|me| start((me, 4), frames_of(me), folder.path()))
            .collect();
        let all: Vec<Ended> = all.into_iter().map(end).collect();
        assert!(frames != u64::MAX || all.iter().all(|one| one.lived));
        let mut had: Vec<Vec<u64>> = (0..4)
            .map(|me| (0..TASKS).filter(|t| t * 4 / TASKS == me).collect())
            .collect();
        for call in 0..2 {
            let live: Vec<usize> = (0..4).filter(|&me| all[me].lived).collect();
            let (imbalance, failed, _) = all[live[0]].calls[call].clone();
            let gone: Vec<u64> = list(&failed);
            let mut after = Vec::new();
            for one in all.iter().filter_map(|one| one.calls.get(call)) {
                assert_eq!(one.1, failed, "frame {frames}, call {call}");
                after.extend(one.2.clone());
            }
            let stayed = (0..4).filter(|me| !gone.contains(&(*me as u64)));
            let mut before: Vec<u64> = stayed.flat_map(|me| had[me].clone()).collect();
            before.sort_unstable();
            after.sort_unstable();
            // A victim that finished this call but died before it said so took its
            // share along; everyone else's is there, once.
            let silent =
                (0..4).any(|me| !gone.contains(&me) && all[me as usize].calls.len() <= call);
            if silent {
                assert!(after.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(after.iter().all(|task| before.contains(task)));
            } else {
                assert_eq!(after, before, "frame {frames}, call {call}");
            }
            assert!(imbalance < 0.6, "{imbalance}");
            within += u32::from(!gone.is_empty());
            let ended = all.iter().map(|one| one.calls.get(call));
            let had_now = ended.map(|one| one.map_or(Vec::new(), |one| one.2.clone()));
            had = had_now.collect();
        }
    }
    assert!(within >= 8, "{within}");
}

fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().join(name)
}

/// The C interface without MPI, and a death from outside.
#[test]
fn a_c_program_goes_on_when_one_of_its_processes_is_killed_and_another_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = beside("liboutlive_balance_mpi.so");
    assert!(library.exists(), "{}", library.display());
    let program = folder.path().join("rails");
    for compiler in ["cc", "gcc", "clang"] {
        let made = Command::new(compiler)
            .args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2"])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(here.join("include"))
            .arg(here.join("tests/programs/rails.c"))
            .arg("-o")
            .arg(&program)
            .arg(&library)
            .arg(format!(
                "-Wl,-rpath,{}",
                library.parent().unwrap().display()
            ))
            .status();
        match made {
            Ok(status) => assert!(status.success(), "{compiler}"),
            Err(_) => eprintln!("{compiler} is not installed: not tested with it"),
        }
    }
    let meeting = folder.path().join("meeting");
    let mut all: Vec<Child> = (0..4)
        .map(|rank: u32| {
            Command::new(&program)
                .arg(&meeting)
                .args([rank.to_string(), "4".into(), "60".into()])
                // The second of those that are left hands over all in the last five.
                .args((rank == 1).then_some("55"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut victim = all.remove(2);
    let mut said = BufReader::new(victim.stdout.take().unwrap()).lines();
    // All have met, and ten of its sixty calls have returned.
    let tenth = said.nth(9).unwrap().unwrap();
    assert!(tenth.starts_with("9 failed objects"), "{tenth}");
    kill_process(Pid::from_child(&victim), Signal::KILL).unwrap();
    victim.wait().unwrap();
    let mut calls = BTreeSet::new();
    // What the three have together, call by call.
    let mut together = vec![Vec::new(); 60];
    for (place, child) in all.into_iter().enumerate() {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{place}");
        let text = String::from_utf8(done.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 60);
        let mut first = None;
        for (call, line) in lines.iter().enumerate() {
            let (failed, objects) = line.split_once(" objects").unwrap();
            if failed.ends_with(" failed 2") && first.is_none() {
                first = Some(call);
            }
            together[call].extend(list(objects));
            let leaves = place == 1 && call >= 55;
            assert_eq!(objects.trim().is_empty(), leaves, "{place} {line}");
        }
        calls.insert(first);
    }
    // All learned of it in the same call, and from the call before on nothing that
    // they had was lost or doubled.
    assert_eq!(calls.len(), 1, "{calls:?}");
    let first = calls.first().unwrap().unwrap();
    together.iter_mut().for_each(|all| all.sort_unstable());
    assert!(together[first].windows(2).all(|pair| pair[0] < pair[1]));
    assert!(together[first].len() >= 30 && together[first].len() < 120);
    for later in &together[first.saturating_sub(1)..] {
        assert_eq!(*later, together[first]);
    }
}
