//! The launcher with real processes: keepers, ranks, commands, signals. The agents
//! are played by this program itself (`keeper`), so that supervision is tested
//! without checkpoints; `crates/cli/tests` has the real ones.
//!
//! Every process that is signalled was started here and is known by number.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use outlive_base::{Incarnation, JobName, NodeId, Rank, Version};
use outlive_control::inject;
use outlive_control::orders::{self, AgentSpec, Fault, Notice, Opened, Order, SPEC_VARIABLE};
use outlive_control::report::Report;
use outlive_control::supervisor::Settings;
use outlive_launch::Run;
use outlive_launch::process;
use outlive_launch::timeline::Timeline;
use outlive_launch::watch::{Seen, Watcher};
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("keeper") => Fake::start().serve(),
        Some("rank") => rank(&words[1..]),
        Some("exhausted") => exhausted(),
        Some("job") => job(&words[1..]),
        _ => tests(words.iter().find(|word| !word.starts_with('-'))),
    }
}

/// A keeper and agent in one that obeys without checkpoints.
struct Fake {
    spec: AgentSpec,
    endpoint: Endpoint,
    events: crossbeam_channel::Receiver<Event>,
    socket: UnixDatagram,
    waiting: Vec<(u32, Version)>,
}

impl Fake {
    fn start() -> Fake {
        let spec = std::env::var(SPEC_VARIABLE).unwrap();
        let spec: AgentSpec = serde_json::from_str(&spec).unwrap();
        let (to, events) = crossbeam_channel::unbounded();
        let (peer, epoch) = (spec.node, spec.epoch);
        let key = JobKey::load(&spec.key_file).unwrap();
        let identity = Identity { peer, epoch };
        let endpoint =
            Endpoint::bind(identity, spec.job_hash, key, Options::default(), to).unwrap();
        endpoint.set_address(NodeId::LAUNCHER, spec.launcher);
        let _ = std::fs::remove_file(&spec.socket);
        let socket = UnixDatagram::bind(&spec.socket).unwrap();
        socket.set_nonblocking(true).unwrap();
        Fake {
            spec,
            endpoint,
            events,
            socket,
            waiting: Vec::new(),
        }
    }

    fn say(&self, notice: &Notice) {
        let _ = self
            .endpoint
            .send(NodeId::LAUNCHER, &orders::encode(notice).unwrap());
    }

    fn serve(mut self) -> ExitCode {
        let pid = std::process::id();
        self.say(&Notice::Hello {
            address: self.endpoint.local_addr(),
            pid,
            keeper_pid: pid,
            restarts: 0,
            ranks: vec![],
            heard: None,
        });
        loop {
            self.take_ranks();
            let event = self.events.recv_timeout(Duration::from_millis(5));
            if let Ok(Event::Message { bytes, .. }) = event
                && !self.obey(orders::decode(&bytes).unwrap())
            {
                self.endpoint.shutdown();
                return ExitCode::SUCCESS;
            }
        }
    }

    fn take_ranks(&mut self) {
        let mut bytes = [0; 64];
        while let Ok(count) = self.socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let n: Vec<u32> = text.split(' ').map(|n| n.parse().unwrap()).collect();
            let (rank, ranks, pid) = (Rank(n[0]), n[1], n[2]);
            self.say(&Notice::RankUp { rank, ranks, pid });
            for (id, version) in std::mem::take(&mut self.waiting) {
                let version = Some(version);
                self.say(&Notice::InjectReached { id, version });
            }
        }
    }

    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Open { incarnation, .. } => self.open(incarnation),
            // Only the node of the rank comes to it; here every test has a rank a node.
            Order::Inject {
                id,
                fault: Fault::AtVersion { rank, version },
            } if rank.is_none_or(|rank| rank.0 == self.spec.node.0) => {
                self.waiting.push((id, version));
            }
            Order::Status => self.say(&Notice::Status(Default::default())),
            Order::Finish { .. } => {
                self.say(&Notice::Finished);
                return false;
            }
            _ => {}
        }
        true
    }

    fn open(&self, incarnation: Incarnation) {
        if self.spec.node == self.spec.coordinator {
            note_coordinator(self.spec.node);
            self.say(&Notice::Opened(Opened {
                incarnation,
                restored: None,
                level: None,
                ranks: 0,
                rebuild_ms: 1.0,
                rebuilt_bytes: 0,
                rejected: vec![],
                uncertain: false,
            }));
        }
        self.say(&Notice::NodeReady {
            incarnation,
            level: None,
            rebuilt_bytes: 0,
        });
    }
}

fn note_coordinator(node: NodeId) {
    let file = PathBuf::from(std::env::var_os("DIR").unwrap()).join("coordinators");
    let mut open = std::fs::File::options();
    let file = open.append(true).create(true).open(file).unwrap();
    writeln!(&file, "{}", node.0).unwrap();
}

/// `rank R N [STATUS]`: registers; in the first incarnation waits to be killed, unless
/// STATUS is given; else waits until the launcher knows all ranks, and ends.
fn rank(words: &[String]) -> ExitCode {
    let number = |word: &String| word.parse::<u32>().unwrap();
    let env_number = |name| number(&std::env::var(name).unwrap());
    let (rank, ranks) = (number(&words[0]), number(&words[1]));
    let node = rank * env_number("OUTLIVE_NODES") / ranks;
    let path = std::env::var("OUTLIVE_AGENT").unwrap();
    let path = path.replace("{node}", &node.to_string());
    let text = format!("{rank} {ranks} {}", std::process::id());
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(text.as_bytes(), path).unwrap();
    let incarnation = env_number("OUTLIVE_INCARNATION");
    while incarnation == 1 && words.get(2).is_none() {
        std::thread::park();
    }
    let log = PathBuf::from(std::env::var_os("DIR").unwrap()).join("log");
    until("the launcher knows all ranks", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let (_, here) = log.rsplit_once(&format!("{} started", Incarnation(incarnation)))?;
        here.contains(" joined").then_some(())
    });
    ExitCode::from(words.get(2).map_or(0, number) as u8)
}

/// `job DIR NODES INJECTIONS RESTARTS COMMAND...`
fn job(words: &[String]) -> ExitCode {
    let dir = PathBuf::from(&words[0]);
    let nodes = words[1].parse().unwrap();
    let mut settings = Settings::new(JobName::new("job").unwrap(), nodes);
    let specs = words[2].split_whitespace();
    settings.injections = specs
        .map(|text| inject::parse(text, nodes).unwrap())
        .collect();
    settings.max_restarts = words[3].parse().unwrap();
    settings.coordinator = NodeId(std::env::var("COORDINATOR").unwrap().parse().unwrap());
    settings.bounds.suspect_ms = 500;
    settings.bounds.dead_ms = 1_000;
    settings.kill_grace_ms = 500;
    let run = Run {
        environment: Vec::new(),
        prepare: None,
        settings,
        store: dir.join("store"),
        hosts: None,
        node_storage: None,
        object_store: None,
        coordinator: None,
        memory_server: None,
        unnamed: false,
        memory_bytes: 1 << 20,
        encrypt: false,
        health: Default::default(),
        service: Default::default(),
        report: Some(dir.join("report.json")),
        metrics: None,
        executable: std::env::current_exe().unwrap(),
        each: false,
        words: words[4..].iter().map(Into::into).collect(),
        timeline: Timeline::new(false, 1),
    };
    match outlive_launch::run(run) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.code().exit_status())
        }
    }
}

/// Longest wait of a test.
const BOUND: Duration = Duration::from_secs(30);

struct World {
    dir: tempfile::TempDir,
    coordinator: u32,
}

impl World {
    fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            coordinator: 0,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, nodes: u32, inject: &str, restarts: u32, command: &[&str]) -> Child {
        let mut line = Command::new(std::env::current_exe().unwrap());
        let words = [&nodes.to_string(), inject, &restarts.to_string()];
        self.begin(line.arg("job").arg(self.dir.path()).args(words), command)
    }

    /// Starts the launcher, which may not restart, from a shell that did this before
    /// (bash, for dash does not ignore SIGCHLD).
    fn after(&self, before: &str, command: &[&str]) -> Child {
        let mut line = Command::new("/bin/bash");
        line.args(["-c", &format!("{before}; exec \"$@\""), "sh"])
            .arg(std::env::current_exe().unwrap());
        let words = ["1", "", "0"];
        self.begin(line.arg("job").arg(self.dir.path()).args(words), command)
    }

    fn begin(&self, line: &mut Command, command: &[&str]) -> Child {
        let mut log = std::fs::File::options();
        let log = log
            .append(true)
            .create(true)
            .open(self.path("log"))
            .unwrap();
        line.args(command)
            .env("DIR", self.dir.path())
            .env("COORDINATOR", self.coordinator.to_string())
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn run(&self, nodes: u32, inject: &str, restarts: u32, command: &[&str]) -> (i32, Report) {
        let status = self.wait(self.start(nodes, inject, restarts, command));
        (status, self.report())
    }

    fn wait(&self, mut child: Child) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            if start.elapsed() > BOUND {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the launcher did not end\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn report(&self) -> Report {
        let text = std::fs::read(self.path("report.json"));
        serde_json::from_slice(&text.unwrap_or_else(|_| panic!("{}", self.log()))).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Numbers that processes of the command wrote to the file `pids`.
    fn pids(&self, count: usize) -> Vec<u32> {
        until("processes have started", || {
            let text = std::fs::read_to_string(self.path("pids")).unwrap_or_default();
            let pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            (pids.len() >= count).then_some(pids)
        })
    }
}

fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A script that starts ranks and waits for all.
fn ranks(count: u32, extra: &str) -> String {
    let me = std::env::current_exe().unwrap();
    let me = me.display();
    let start = |rank| format!("'{me}' rank {rank} {count} {extra} & p{rank}=$!; ");
    let wait = |rank| format!("wait $p{rank} || s=$?; ");
    let starts: String = (0..count).map(start).collect();
    let waits: String = (0..count).map(wait).collect();
    format!("s=0; {starts}{waits} exit $s")
}

/// How the loss of a node with all in it is seen.
const GONE: &str = "its keeper ended (signal 9 (SIGKILL)); its storage is gone";

fn recovers(inject: &str, place: &str, seen: &str) {
    recovers_in(&World::new(), inject, place, seen);
}

fn recovers_in(world: &World, inject: &str, place: &str, seen: &str) {
    let (status, report) = world.run(4, inject, 3, &["/bin/sh", "-c", &ranks(4, "")]);
    let log = world.log();
    assert_eq!(status, 0, "{log}");
    assert_eq!(report.result, "finished");
    assert_eq!(report.failures.len(), 1, "{log}");
    let failure = &report.failures[0];
    assert_eq!(failure.place, place, "{log}");
    assert!(failure.injected, "{log}");
    // By what it was seen: by the end of a process, which the kernel tells at once, or by silence.
    assert!(failure.cause.contains(seen), "{failure:?}");
    let times = [failure.detect_ms, failure.fence_ms, failure.relaunch_ms];
    assert!(times.iter().all(Option::is_some), "{failure:?}");
    assert_eq!((report.restarts, report.ranks), (1, Some(4)));
}

fn undisturbed() {
    let world = World::new();
    let script = format!("echo out; {}", ranks(4, "0"));
    let (status, report) = world.run(2, "", 0, &["/bin/sh", "-c", &script]);
    assert_eq!(status, 0, "{}", world.log());
    assert_eq!((report.ranks, report.failures.len()), (Some(4), 0));
    let sockets = std::fs::read_dir(world.path("outlive")).unwrap();
    assert_eq!(sockets.count(), 0, "no socket is left behind");
    assert!(world.log().contains("out\n"), "output passes through");
}

fn killed_rank() {
    recovers("rank:1@version=40", "rank:1", "SIGKILL");
}
fn killed_node() {
    recovers("node:2@300ms", "node:2", GONE);
}
fn killed_coordinator() {
    recovers("node:0@version=5", "node:0", GONE);
}
/// The part of the coordinator is that of the slot that the settings name, also of who holds it
/// after its node was lost.
fn killed_coordinator_of_another_slot() {
    let mut world = World::new();
    world.coordinator = 2;
    recovers_in(&world, "node:2@version=5", "node:2", GONE);
    let coordinators = std::fs::read_to_string(world.path("coordinators")).unwrap();
    let starts = coordinators.lines().count();
    assert!(starts >= 2, "one of each start: {coordinators}");
    assert!(
        coordinators.lines().all(|line| line == "2"),
        "{coordinators}"
    );
}
fn killed_keeper() {
    recovers(
        "keeper:3@300ms",
        "node:3",
        "its keeper ended (signal 9 (SIGKILL)); its storage is kept",
    );
}
fn frozen_node() {
    recovers("freeze:node:1@300ms", "node:1", "silent for ");
}

fn the_commands_status() {
    let world = World::new();
    let (status, report) = world.run(1, "", 0, &["/bin/sh", "-c", "exit 7"]);
    assert_eq!((status, report.exit_status), (7, 7));
    let (status, report) = world.run(1, "", 0, &["/bin/sh", "-c", "kill -SEGV $$"]);
    assert_eq!(status, 139);
    assert!(report.failures[0].cause.contains("SIGSEGV"));
    assert_eq!(report.incarnations, [2], "the same job goes on counting");
}

/// A rank is killed and seen before the command says by its own end why: its status is
/// the job's. The command waits until the launcher has found the killed rank.
fn the_commands_status_after_a_killed_rank() {
    let world = World::new();
    let me = std::env::current_exe().unwrap();
    let script = format!(
        r#"'{}' rank 0 1 & p=$!; until grep -q "rank joined" "$DIR/log"; do :; done
        kill -9 $p; until grep -q "rank:0 lost" "$DIR/log"; do :; done; exit 7"#,
        me.display()
    );
    let (status, report) = world.run(1, "", 0, &["/bin/sh", "-c", &script]);
    assert_eq!((status, report.exit_status), (7, 7), "{}", world.log());
    let cause = &report.failures[0].cause;
    assert!(
        cause.contains("SIGKILL") && cause.contains("exit code 7"),
        "{cause}"
    );
}

/// As under nohup: a signal that the user has made ignored ends nothing.
fn ignored_signals() {
    let world = World::new();
    let script = "echo $$ >> \"$DIR/pids\"; exec sleep 1000";
    let child = world.after("trap '' HUP INT", &["/bin/sh", "-c", script]);
    world.pids(1);
    let launcher = process::open_pid(child.id()).unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        process::signal(&launcher, signal);
    }
    let status = world.wait(child);
    let log = world.log();
    assert_eq!(status, 143, "{log}");
    assert!(!log.contains("SIGHUP") && !log.contains("SIGINT"), "{log}");
}

/// A parent that ignores its children's ends passes that on to the launcher.
fn ignored_children() {
    let world = World::new();
    let child = world.after("trap '' CHLD", &["/bin/sh", "-c", "exit 7"]);
    assert_eq!(world.wait(child), 7, "{}", world.log());
}

/// Out of descriptors, the launcher does not take a rank that lives for one that is
/// gone, nor processes that it cannot see for none.
fn no_descriptor_is_left() {
    let me = std::env::current_exe().unwrap();
    let out = Command::new(me).arg("exhausted").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

fn exhausted() -> ExitCode {
    let (to, _seen) = crossbeam_channel::unbounded::<Seen>();
    let watcher = Watcher::start(to).unwrap();
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let files = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(64),
        maximum: files.maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let watched = watcher.add(Rank(0), child.id());
    let (me, nobody) = (std::process::id(), Default::default());
    let known = process::descendants(me, &nobody).is_ok()
        || process::signal_descendants(me, &nobody, Signal::KILL).is_ok();
    drop(held);
    setrlimit(Resource::Nofile, files).unwrap();
    child.kill().unwrap();
    // The watcher may have reaped it.
    let _ = child.wait();
    eprintln!("watched {watched}, known {known}");
    ExitCode::from(u8::from(!watched || known))
}

/// The limit of open files is the user's, though the launcher raises its own.
fn the_commands_limits() {
    let world = World::new();
    let script = "ulimit -Sn > \"$DIR/limit\"";
    let child = world.after("ulimit -Sn 200", &["/bin/sh", "-c", script]);
    assert_eq!(world.wait(child), 0, "{}", world.log());
    let limit = std::fs::read_to_string(world.path("limit")).unwrap();
    assert_eq!(limit.trim(), "200");
}

fn dies_at_once() {
    let world = World::new();
    let (status, report) = world.run(1, "", 10, &["/bin/sh", "-c", "exit 9"]);
    assert_eq!((status, report.errors[0].code.as_str()), (9, "OL-506"));
}

fn no_such_command() {
    let world = World::new();
    let child = world.start(1, "", 3, &["/no/such/program"]);
    assert_eq!(world.wait(child), 127);
    assert!(!world.path("store").exists(), "a mistake makes nothing");
}

/// Processes that try to get away: a new session, a double fork, ignored SIGTERM.
const FUGITIVES: &str = r#"
    echo $$ >> "$DIR/pids"
    setsid sh -c 'echo $$ >> "$DIR/pids"; exec sleep 1000' &
    (setsid sh -c 'sh -c "trap \"\" TERM HUP INT; echo \$\$ >> \"$DIR/pids\"
        while :; do sleep 1000; done" &' &)
    trap '' TERM
    while :; do sleep 1; done
"#;

fn fugitives() {
    let world = World::new();
    let child = world.start(1, "", 3, &["/bin/sh", "-c", FUGITIVES]);
    let pids = world.pids(3);
    let dead: Vec<_> = pids.iter().filter(|pid| !alive(**pid)).collect();
    assert!(dead.is_empty(), "{dead:?} of {pids:?}\n{}", world.log());
    let launcher = process::open_pid(child.id()).unwrap();
    process::signal(&launcher, Signal::TERM);
    assert_eq!(world.wait(child), 143, "{}", world.log());
    let left: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
    assert!(left.is_empty(), "{left:?} got away\n{}", world.log());
    assert_eq!(world.report().result, "interrupted");
}

fn a_killed_launcher_leaves_nothing() {
    let world = World::new();
    let script = "echo $$ >> \"$DIR/pids\"; exec sleep 1000";
    let mut child = world.start(2, "", 3, &["/bin/sh", "-c", script]);
    let mut pids = world.pids(1);
    pids.extend(process::descendants(child.id(), &Default::default()).unwrap());
    assert!(pids.len() >= 3, "two keepers and the command: {pids:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    until("everything has ended", || {
        (!pids.iter().any(|pid| alive(*pid))).then_some(())
    });
}

fn two_launchers() {
    let world = World::new();
    let script = "echo $$ >> \"$DIR/pids\"; exec sleep 1000";
    let mut first = world.start(1, "", 3, &["/bin/sh", "-c", script]);
    world.pids(1);
    let second = world.start(1, "", 3, &["/bin/true"]);
    assert_eq!(world.wait(second), 75);
    let log = world.log();
    let holder = format!("process {} runs it", first.id());
    assert!(log.contains("OL-502") && log.contains(&holder), "{log}");
    let launcher = process::open_pid(first.id()).unwrap();
    for _ in 0..2 {
        process::signal(&launcher, Signal::INT);
    }
    until("it ended", || first.try_wait().unwrap());
}

/// A killed node's storage is gone, the others' is not.
fn wiped() {
    let world = World::new();
    let nodes = world.path("store/job/nodes");
    let script = format!(
        "for n in 0 1; do touch {}/node-$n/records/$OUTLIVE_INCARNATION; done; {}",
        nodes.display(),
        ranks(2, "")
    );
    let (status, _) = world.run(2, "node:1@version=3", 3, &["/bin/sh", "-c", &script]);
    assert_eq!(status, 0, "{}", world.log());
    let of = |n: u32, i: u32| nodes.join(format!("node-{n}/records/{i}")).exists();
    let log = world.log();
    assert!(of(0, 1) && of(0, 2), "node 0 keeps everything\n{log}");
    assert!(
        !of(1, 1) && of(1, 2),
        "node 1 lost what it had before\n{log}"
    );
}

fn tests(filter: Option<&String>) -> ExitCode {
    let all: [(&str, fn()); 19] = [
        ("undisturbed", undisturbed),
        ("killed_rank", killed_rank),
        ("killed_node", killed_node),
        ("killed_coordinator", killed_coordinator),
        (
            "killed_coordinator_of_another_slot",
            killed_coordinator_of_another_slot,
        ),
        ("killed_keeper", killed_keeper),
        ("frozen_node", frozen_node),
        ("the_commands_status", the_commands_status),
        (
            "the_commands_status_after_a_killed_rank",
            the_commands_status_after_a_killed_rank,
        ),
        ("ignored_signals", ignored_signals),
        ("ignored_children", ignored_children),
        ("no_descriptor_is_left", no_descriptor_is_left),
        ("the_commands_limits", the_commands_limits),
        ("dies_at_once", dies_at_once),
        ("no_such_command", no_such_command),
        ("fugitives", fugitives),
        (
            "a_killed_launcher_leaves_nothing",
            a_killed_launcher_leaves_nothing,
        ),
        ("two_launchers", two_launchers),
        ("wiped", wiped),
    ];
    let mut failed = 0u32;
    for (name, test) in all {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        let good = std::panic::catch_unwind(test).is_ok();
        failed += u32::from(!good);
        let word = if good { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {word} ({:.1} s)",
            start.elapsed().as_secs_f64()
        );
    }
    ExitCode::from(u8::from(failed > 0))
}
