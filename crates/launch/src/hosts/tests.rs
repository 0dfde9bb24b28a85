//! What follows from the ends of lines, without any host: the test says what happened.

use std::sync::{Arc, Mutex};

use outlive_base::{JobName, Ports};

use super::*;

/// Commands that end at once; what was to be run where.
#[derive(Debug)]
struct Fake {
    hosts: Vec<Host>,
    installs: bool,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Source for Fake {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn shell(&self, host: &Host, words: &[String]) -> std::process::Command {
        let mut asked = self.asked.lock().unwrap();
        asked.push((host.name.clone(), words[0].clone()));
        std::process::Command::new("true")
    }

    fn may_install(&self) -> bool {
        self.installs
    }

    fn keeps_secrets(&self) -> bool {
        false
    }

    fn environment(
        &self,
        _: &[&Host],
        _: &[String],
        _: &Path,
    ) -> Result<Vec<(OsString, OsString)>> {
        Ok(Vec::new())
    }
}

struct World {
    hosts: Hosts,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

const NODE: NodeId = NodeId(0);
const PROGRAM: &str = "/opt/outlive";

impl World {
    fn new(names: &[&str], installs: bool) -> World {
        let host = |name: &&str| Host {
            domain: None,
            name: (*name).to_owned(),
            slots: None,
        };
        let asked = Arc::default();
        let source = Fake {
            hosts: names.iter().map(host).collect(),
            installs,
            asked: Arc::clone(&asked),
        };
        let common = Common {
            job: JobName::new("job").unwrap(),
            job_hash: 7,
            coordinator: NodeId(1),
            known: None,
            launchers: vec!["127.0.0.1:1".parse().unwrap()],
            job_dir: "/nowhere/job".into(),
            object_store: None,
            memory_server: None,
            credentials: Vec::new(),
            ports: Ports::ANY,
            key_file: "/nowhere/key".into(),
            memory_bytes: 0,
            encrypt: false,
            health: Default::default(),
            service: Default::default(),
            executable: PROGRAM.into(),
            passed: Vec::new(),
            lease: Duration::from_secs(600),
            shared: false,
        };
        let (to, _) = crossbeam_channel::unbounded();
        let hosts = Hosts::new(common, Box::new(source), 1, &[], to).unwrap();
        World { hosts, asked }
    }

    fn start(&mut self, epoch: u64, storage: Storage) {
        let dir = Path::new("/nowhere/node");
        self.hosts.start(NODE, epoch, dir, storage).unwrap();
    }

    fn newest(&self) -> u64 {
        *self.hosts.calls.last_key_value().unwrap().0
    }

    /// The newest line ends so.
    fn line_ends(&mut self, code: i32) -> Vec<Input> {
        let number = self.newest();
        let pid = self.hosts.calls[&number].line.process.pid;
        let mut inputs = self.hosts.child_ended(pid, Ended::Code(code)).unwrap();
        inputs.extend(self.hosts.heard(number, Heard::End));
        inputs
    }

    fn word(&mut self, word: FromHost) -> Vec<Input> {
        let number = self.newest();
        self.hosts.heard(number, Heard::Word(word))
    }

    fn meet(&mut self) {
        let program = self.hosts.program;
        let version = "1".to_owned();
        assert!(self.word(FromHost::Hello { version, program }).is_empty());
    }

    fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn gone(inputs: &[Input], wanted: Storage) -> String {
    match inputs {
        [Input::NodeGone { cause, storage, .. }] if *storage == wanted => cause.clone(),
        other => panic!("{other:?}"),
    }
}

fn asked(what: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(host, program): &(&str, &str)| ((*host).to_owned(), (*program).to_owned());
    what.iter().map(owned).collect()
}

#[test]
fn a_host_that_cannot_be_reached_is_gone_and_another_takes_the_slot() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    let cause = gone(&world.line_ends(255), Storage::Empty);
    assert!(cause.starts_with("a cannot be reached"), "{cause}");
    world.hosts.fence(NODE, 1, &[]);
    // Nothing was ever started there.
    assert!(matches!(
        world.hosts.press(Time::ZERO)[..],
        [Input::Fenced { epoch: 1, .. }]
    ));
    world.start(2, Storage::Empty);
    assert_eq!(world.asked(), asked(&[("a", PROGRAM), ("b", PROGRAM)]));
    assert_eq!(world.hosts.hosts(), ["b"]);
}

#[test]
fn a_program_is_brought_only_where_that_may_be_and_once() {
    let mut world = World::new(&["a", "b"], false);
    world.start(1, Storage::Keep);
    let cause = gone(&world.line_ends(127), Storage::Empty);
    assert!(cause.contains("has no program /opt/outlive"), "{cause}");
    assert_eq!(
        world.asked(),
        asked(&[("a", PROGRAM)]),
        "nothing was brought"
    );

    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    assert!(world.line_ends(127).is_empty());
    let pid = *world.hosts.installs.keys().next().unwrap();
    assert_eq!(
        world.hosts.child_ended(pid, Ended::Code(0)).unwrap().len(),
        0
    );
    let brought = install::path(world.hosts.program);
    let expected = [("a", PROGRAM), ("a", "sh"), ("a", brought.as_str())];
    assert_eq!(world.asked(), asked(&expected));
    gone(&world.line_ends(127), Storage::Empty);
    assert_eq!(world.asked(), [], "it is not brought twice");
}

#[test]
fn a_slot_that_was_given_up_while_a_program_was_brought_starts_no_old_holder() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    assert!(world.line_ends(127).is_empty());
    let pid = *world.hosts.installs.keys().next().unwrap();
    world.hosts.fence(NODE, 1, &[]);
    world.start(2, Storage::Empty);
    let before = world.asked();
    assert_eq!(
        world.hosts.child_ended(pid, Ended::Code(0)).unwrap().len(),
        0
    );
    assert_eq!((before.len(), world.asked()), (3, Vec::new()));
}

#[test]
fn a_line_that_breaks_is_looked_after_and_keeps_the_storage_if_the_host_answers() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    world.meet();
    assert!(world.word(FromHost::Up).is_empty());
    let cause = gone(&world.line_ends(255), Storage::Keep);
    assert!(cause.starts_with("the connection to a ended"), "{cause}");
    world.hosts.fence(NODE, 1, &[]);
    assert!(
        world.hosts.press(Time::ZERO).is_empty(),
        "its lease is not over"
    );
    // The second line, which ends what is left.
    world.meet();
    let fenced = world.word(FromHost::Fenced);
    assert!(matches!(
        fenced[..],
        [Input::Fenced {
            epoch: 1,
            complete: true,
            ..
        }]
    ));
    world.start(2, Storage::Keep);
    assert_eq!(world.hosts.hosts(), ["a"]);
}

#[test]
fn a_host_that_does_not_answer_the_second_time_is_gone_but_not_yet_fenced() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    world.meet();
    gone(&world.line_ends(255), Storage::Keep);
    world.hosts.fence(NODE, 1, &[]);
    gone(&world.line_ends(255), Storage::Empty);
    assert!(
        world.hosts.press(Time::ZERO).is_empty(),
        "it may run on for its lease"
    );
    let over = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    world.hosts.fencing.insert((NODE, 1), over);
    assert_eq!(world.hosts.press(Time::ZERO).len(), 1);
}

/// Whoever holds the slots: not the first of the hosts by that alone.
#[test]
fn a_host_is_told_which_slot_coordinates() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    let call = &world.hosts.calls[&world.newest()];
    let spec = world.hosts.common.spec(call, "/nowhere/socket".into());
    assert_eq!((spec.node, spec.coordinator), (NODE, NodeId(1)));
}

#[test]
fn another_build_is_refused_and_one_that_is_to_end_begins_nothing() {
    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    let (version, program) = ("9.9".to_owned(), world.hosts.program ^ 1);
    let cause = gone(
        &world.word(FromHost::Hello { version, program }),
        Storage::Empty,
    );
    assert!(cause.contains("another build of outlive (9.9"), "{cause}");

    let mut world = World::new(&["a", "b"], true);
    world.start(1, Storage::Keep);
    world.hosts.stop(NODE, Time::ZERO, Time::from_ms(1));
    world.meet();
    let call = &world.hosts.calls[&world.newest()];
    assert_eq!((call.stage, call.leased), (Stage::Stopping, None));
    assert!(matches!(
        world.line_ends(0)[..],
        [Input::KeeperEnded { epoch: 1, .. }]
    ));
}
