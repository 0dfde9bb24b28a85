use super::*;

#[test]
fn sizes_are_bounded() {
    assert!(
        size_of::<Msg>() <= outlive_base::machine::MESSAGE_BYTES_MAX,
        "{}",
        size_of::<Msg>()
    );
    assert!(size_of::<Event>() <= 24, "{}", size_of::<Event>());
}

const ME: Peer = 1;
/// Who leads, as by default.
const LEADER: Peer = 0;
const VERSION: Version = Version(7);
const BALLOT: Ballot = Ballot {
    incarnation: Incarnation(1),
    term: 0,
};

mod leading;
mod starting;

/// One node that is no coordinator, in incarnation 1, with its durable records.
struct Node {
    me: Peer,
    config: Config,
    now: Time,
    commit: Commit,
    records: Vec<Record>,
    /// Requests to persist that are not answered yet.
    open: Vec<(Op, Record)>,
    events: Vec<Event>,
    said: Vec<MsgKind>,
}

impl Node {
    fn new() -> Node {
        let config = Config {
            nodes: 2,
            levels: Levels::NONE.with(Level::DISK).with(Level::PARTNER),
            ..Config::default()
        };
        let records = vec![
            Record::Promise { ballot: BALLOT },
            Record::Incarnation {
                number: BALLOT.incarnation,
                source: Incarnation(0),
                version: Version(0),
            },
        ];
        let mut node = Node {
            me: ME,
            commit: Commit::new(&cx(ME, &config, Time::ZERO)),
            config,
            now: Time::from_ms(1),
            records,
            open: Vec::new(),
            events: Vec::new(),
            said: Vec::new(),
        };
        node.restart();
        node
    }

    /// The agent ends and is started anew: what was not durable is gone.
    fn restart(&mut self) {
        self.open.clear();
        let records = self.records.iter().copied();
        self.commit = Commit::recover(&cx(self.me, &self.config, self.now), records);
        self.pull();
    }

    fn pull(&mut self) {
        let cx = cx(self.me, &self.config, self.now);
        while let Some(output) = self.commit.poll(&cx, Ready::ALL) {
            match output {
                Output::Send { msg, .. } => self.said.push(msg.kind),
                Output::Persist { op, record } => self.open.push((op, record)),
                Output::Event(event) => self.events.push(event),
                _ => unreachable!("no bodies here"),
            }
        }
    }

    /// The coordinator, back in the incarnation after the other node has shown its log.
    fn coordinator() -> Node {
        let mut node = Node::new();
        node.me = LEADER;
        node.restart();
        node.all_durable();
        node.hear_from(1, items::end(&[]));
        assert!(node.commit.running(), "{:?}", node.said);
        node
    }

    fn hear(&mut self, kind: MsgKind) {
        self.hear_from(LEADER, kind);
    }

    fn hear_from(&mut self, from: Peer, kind: MsgKind) {
        let msg = Msg {
            ballot: self.commit.ballot,
            kind,
        };
        let cx = cx(self.me, &self.config, self.now);
        self.commit.on_message(&cx, from, msg, None);
        self.pull();
    }

    fn told(&mut self, command: Command) {
        self.commit
            .on_command(&cx(self.me, &self.config, self.now), command);
        self.pull();
    }

    fn all_durable(&mut self) {
        while !self.open.is_empty() {
            let (op, record) = self.open.remove(0);
            self.records.push(record);
            let cx = cx(self.me, &self.config, self.now);
            self.commit.on_done(&cx, op, Ok(()));
            self.pull();
        }
    }

    /// Time passes in which nothing is heard.
    fn wait_in_vain(&mut self) {
        for _ in 0..10_000 {
            let Some(next) = self.commit.deadline(&cx(self.me, &self.config, self.now)) else {
                return;
            };
            if next == Time::NEVER || !self.aborted().is_empty() || !self.open.is_empty() {
                return;
            }
            self.now = self.now.max(next);
            self.commit.on_timeout(&cx(self.me, &self.config, self.now));
            self.pull();
        }
        panic!("no end after {} s", self.now.as_ms() / 1000.0);
    }

    fn aborted(&self) -> Vec<Option<Level>> {
        let level = |event: &Event| match event {
            Event::Aborted { level, .. } => Some(*level),
            _ => None,
        };
        self.events.iter().filter_map(level).collect()
    }

    fn armed_and_captured(&mut self) {
        let (version, levels) = (VERSION, self.config.levels);
        self.hear(MsgKind::Arm { version, levels });
        self.told(Command::Captured { version });
        self.hear(MsgKind::Go { version, levels });
    }
}

fn cx(me: Peer, config: &Config, now: Time) -> Cx<'_, Commit> {
    Cx {
        me,
        now,
        config,
        seed: 0,
    }
}

/// The opening's question may be on its way for longer than the opening takes.
#[test]
fn a_late_question_of_the_opening_ends_no_round() {
    let mut node = Node::new();
    node.armed_and_captured();
    node.hear(MsgKind::Fetch { index: 3 });
    node.all_durable();
    assert_eq!(node.aborted(), []);
    let (version, level) = (VERSION, Level::DISK);
    node.told(Command::Prepared { version, level });
    node.all_durable();
    assert!(node.said.contains(&MsgKind::Prepared { version, level }));
}

#[test]
fn what_was_called_aborted_stays_so_when_the_agent_is_started_anew() {
    let mut node = Node::new();
    node.armed_and_captured();
    node.wait_in_vain();
    assert_eq!(node.aborted(), [], "said before it is durable");
    // An agent that ends here has told nobody.
    node.all_durable();
    assert_eq!(node.aborted(), [None]);

    node.restart();
    (node.said, node.events) = (Vec::new(), Vec::new());
    let (version, levels) = (VERSION, node.config.levels);
    node.hear(MsgKind::Join { version, levels });
    let joined = node
        .events
        .iter()
        .any(|it| matches!(it, Event::Join { .. }));
    assert!(!joined, "{:?}", node.events);
    let refused = |kind: &MsgKind| matches!(kind, MsgKind::Failed { version, level: None, .. } if *version == VERSION);
    assert!(node.said.iter().any(refused), "{:?}", node.said);

    // The driver finds the bytes in memory: it is told once more, and nothing is prepared.
    node.told(Command::Captured { version });
    let level = Level::DISK;
    node.told(Command::Prepared { version, level });
    assert!(node.aborted().contains(&None));
    assert!(node.open.is_empty(), "{:?}", node.open);
}

/// Else the coordinator takes the node for armed, and the round for one that may still be
/// captured, until its bound.
#[test]
fn a_version_that_cannot_be_captured_is_given_up_though_a_level_ended_before() {
    let mut node = Node::new();
    let (version, levels) = (VERSION, node.config.levels);
    node.hear(MsgKind::Arm { version, levels });
    let (ok, max_called) = (true, None);
    node.told(Command::Armed {
        version,
        ok,
        max_called,
    });
    node.hear(MsgKind::Go { version, levels });
    node.hear(MsgKind::Abort {
        version,
        level: Some(Level::DISK),
        why: Why::Storage,
        culprit: 2,
    });
    node.said.clear();
    let why = Why::Passed;
    node.told(Command::CaptureFailed { version, why });
    let failed = MsgKind::Failed {
        version,
        level: None,
        why,
    };
    assert!(node.said.contains(&failed), "{:?}", node.said);
    // Found again at each look, it is said again by the clock alone.
    node.said.clear();
    node.told(Command::CaptureFailed { version, why });
    assert_eq!(node.said, []);
    node.now = node
        .commit
        .deadline(&cx(node.me, &node.config, node.now))
        .unwrap();
    node.commit.on_timeout(&cx(node.me, &node.config, node.now));
    node.pull();
    assert!(node.said.contains(&failed), "{:?}", node.said);
}

/// The driver begins the round only now: it would wait for that level for ever.
#[test]
fn a_forced_version_is_told_of_levels_that_ended_while_it_waited_for_room() {
    let mut node = Node::new();
    let (version, levels) = (VERSION, node.config.levels);
    node.hear(MsgKind::Arm { version, levels });
    node.hear(MsgKind::Abort {
        version,
        level: Some(Level::DISK),
        why: Why::Storage,
        culprit: 2,
    });
    node.events.clear();
    node.told(Command::Force { version, levels });
    assert_eq!(node.aborted(), [Some(Level::DISK)]);
}

#[test]
fn a_level_that_was_called_aborted_is_not_prepared_by_the_next_agent() {
    let mut node = Node::new();
    node.armed_and_captured();
    let (version, level) = (VERSION, Level::PARTNER);
    node.told(Command::Prepared { version, level });
    node.all_durable();
    node.wait_in_vain();
    node.all_durable();
    assert_eq!(node.aborted(), [Some(Level::DISK)]);

    node.restart();
    let level = Level::DISK;
    node.told(Command::Captured { version });
    node.told(Command::Prepared { version, level });
    assert!(node.open.is_empty(), "{:?}", node.open);
}

/// A node's part stayed open for ever where the levels that were left became known last, and
/// with it all copies of the version.
#[test]
fn a_round_of_which_all_has_ended_is_over_when_its_levels_are_known() {
    let mut node = Node::new();
    let (version, level) = (VERSION, Level::DISK);
    node.records.push(Record::Prepared {
        incarnation: BALLOT.incarnation,
        version,
        level,
    });
    node.restart();
    node.told(Command::Captured { version });
    node.hear(MsgKind::Commit { version, level });
    node.all_durable();
    node.hear(MsgKind::Stable { version, level });
    assert!(!node.commit.may_forget(BALLOT.incarnation, version));
    let levels = Levels::NONE.with(level);
    node.hear(MsgKind::Go { version, levels });
    assert!(node.commit.may_forget(BALLOT.incarnation, version));
}

/// What is written in the background is waited for a day: a node that took the coordinator for
/// lost, and ended it, must say so when the coordinator asks.
#[test]
fn what_a_node_ended_alone_it_says_when_it_is_asked() {
    let mut node = Node::new();
    node.armed_and_captured();
    let (version, level) = (VERSION, Level::PARTNER);
    node.told(Command::Prepared { version, level });
    node.all_durable();
    node.hear(MsgKind::Commit { version, level });
    node.all_durable();
    node.told(Command::Lost {
        node: NodeId(LEADER),
    });
    node.hear(MsgKind::Stable { version, level });
    node.all_durable();
    assert_eq!(node.aborted(), [Some(Level::DISK)]);
    assert!(node.commit.may_forget(BALLOT.incarnation, version));
    node.said.clear();
    let levels = node.config.levels;
    node.hear(MsgKind::Join { version, levels });
    let failed = MsgKind::Failed {
        version,
        level: Some(Level::DISK),
        why: Why::Timeout,
    };
    assert_eq!(node.said, [failed]);
    // Also once newer versions have replaced it, and nothing is recorded of it any more.
    let newer = Version(VERSION.0 + 1);
    node.hear(MsgKind::Commit {
        version: newer,
        level,
    });
    node.all_durable();
    node.told(Command::Forget {
        source: BALLOT.incarnation,
        version,
    });
    node.said.clear();
    node.hear(MsgKind::Join { version, levels });
    assert!(node.said.contains(&failed), "{:?}", node.said);
}

/// The coordinator of three nodes that opens incarnation 2, and what its own inventory says.
fn opening(inventory: &[Command]) -> Node {
    let mut node = Node::new();
    node.me = LEADER;
    node.config.nodes = 3;
    node.config.levels = Levels::of(&[Level::DISK, xor()]);
    node.restart();
    node.all_durable();
    node.told(Command::Open {
        incarnation: Incarnation(2),
        replaced: NodeSet::of(3, [2]),
        fenced: true,
        fresh: false,
        history: Incarnation(0),
    });
    node.all_durable();
    for command in inventory {
        node.told(command.clone());
    }
    node.told(Command::InventoryDone {
        incarnation: Incarnation(2),
    });
    node.all_durable();
    node
}

fn xor() -> Level {
    Level::xor(3).unwrap()
}

/// Node 1 has its own bytes of two versions, its parity of the newer, and their decisions; node 2
/// has nothing.
fn they_answer(node: &mut Node) {
    let (source, by) = (Incarnation(1), BALLOT);
    let copy = |index, version, node| MsgKind::ItemCopy {
        index,
        source,
        version: Version(version),
        node,
    };
    let commit = |index, version, level| MsgKind::ItemCommit {
        index,
        level,
        source,
        version: Version(version),
        by,
    };
    let piece = MsgKind::ItemPiece {
        index: 5,
        level: xor(),
        source,
        version: Version(20),
    };
    let items = [
        copy(0, 10, 1),
        copy(1, 10, 2),
        copy(2, 20, 1),
        commit(3, 10, Level::DISK),
        commit(4, 20, xor()),
        piece,
    ];
    for item in items {
        node.hear_from(1, item);
    }
    node.hear_from(1, items::end(&items));
    node.hear_from(2, items::end(&[]));
}

fn own_copies() -> Vec<Command> {
    let source = Incarnation(1);
    let copy = |version| Command::Available {
        source,
        version: Version(version),
        node: NodeId(0),
    };
    let piece = Command::Piece {
        source,
        version: Version(20),
        level: xor(),
    };
    vec![copy(10), copy(20), piece]
}

fn rebuilt(node: &Node) -> Vec<u64> {
    let version = |event: &Event| match event {
        Event::Rebuild { version, .. } => Some(version.0),
        _ => None,
    };
    node.events.iter().filter_map(version).collect()
}

fn refused(node: &Node) -> Vec<(Why, Option<NodeId>)> {
    let refused = |event: &Event| match event {
        Event::OpenFailed { why, culprit, .. } => Some((*why, *culprit)),
        _ => None,
    };
    node.events.iter().filter_map(refused).collect()
}

/// A version of which a node's bytes are gone is chosen if the driver says that they can be
/// made; else the next one.
#[test]
fn what_parity_makes_good_is_chosen_by_the_drivers_word() {
    for ok in [true, false] {
        let mut node = opening(&own_copies());
        they_answer(&mut node);
        let (source, version) = (Incarnation(1), Version(20));
        let plan = Event::Plan { source, version };
        assert_eq!(node.events.iter().filter(|it| **it == plan).count(), 1);
        assert!(rebuilt(&node).is_empty(), "before the word");
        let pieces = node.commit.pieces(source, version);
        assert_eq!(pieces.whole, BTreeSet::from([NodeId(0), NodeId(1)]));
        let parity = [(xor(), NodeId(0)), (xor(), NodeId(1))];
        assert_eq!(pieces.parity, BTreeSet::from(parity));
        // A word about another version is none.
        node.told(Command::Planned {
            source,
            version: Version(10),
            ok,
        });
        assert!(rebuilt(&node).is_empty());
        node.told(Command::Planned {
            source,
            version,
            ok,
        });
        assert_eq!(rebuilt(&node), [if ok { 20 } else { 10 }]);
    }
}

/// Nobody has a copy of the newest version any more, or one node has: an opening before this one
/// has put an older version in its place. It is the lost node that is named.
#[test]
fn a_lost_node_is_named_before_those_that_let_go_of_their_copies() {
    let (source, version, index) = (Incarnation(1), Version(20), 0);
    let commit = MsgKind::ItemCommit {
        index,
        level: Level::DISK,
        source,
        version,
        by: BALLOT,
    };
    let copy = MsgKind::ItemCopy {
        index,
        source,
        version,
        node: 1,
    };
    for known in [&[commit][..], &[commit, copy]] {
        let mut node = opening(&[]);
        for (index, item) in (0..).zip(known) {
            node.hear_from(1, items::numbered(*item, index));
        }
        node.hear_from(1, items::end(known));
        node.hear_from(2, items::end(&[]));
        assert_eq!(refused(&node), [(Why::NothingUsable, Some(NodeId(2)))]);
    }
}

/// A log keeps so many marks. A round that was found in it after a restart may outlive its own:
/// to be told that it is stable must end it, not be answered for ever.
#[test]
fn a_round_whose_mark_is_gone_ends_when_it_is_stable() {
    let mut node = Node::new();
    let old = Version(1);
    let commit = |version: u64, level| Record::Commit {
        incarnation: BALLOT.incarnation,
        version: Version(version),
        level,
        ballot: BALLOT,
    };
    node.records.push(commit(old.0, Level::DISK));
    node.restart();
    let key = (BALLOT.incarnation, old, Level::DISK);
    // Versions that came after it.
    for version in 2..3000 {
        node.commit.log.apply(commit(version, Level::PARTNER));
    }
    assert!(node.commit.log.committed(key).is_none(), "its mark is gone");
    node.said.clear();
    let level = Level::DISK;
    node.hear(MsgKind::Stable {
        version: old,
        level,
    });
    assert_eq!(node.said, []);
    let stable = Event::Stable {
        version: old,
        level,
    };
    assert!(node.events.contains(&stable));
}

/// It answered itself without end: STABLE asked for a record, which was acknowledged from what
/// the agent remembered, and that was answered with STABLE.
#[test]
fn a_commit_whose_record_was_collected_is_not_asked_for_again() {
    let mut node = Node::new();
    node.me = LEADER;
    let (version, level) = (VERSION, Level::DISK);
    node.records.push(Record::Commit {
        incarnation: BALLOT.incarnation,
        version,
        level,
        ballot: BALLOT,
    });
    node.restart();
    node.all_durable();
    node.told(Command::Forget {
        source: BALLOT.incarnation,
        version,
    });
    node.hear_from(1, items::end(&[]));
    node.hear_from(1, MsgKind::CommitAck { version, level });
    assert!(node.events.contains(&Event::Stable { version, level }));
}

/// The agent before may have ended between the node's record and the one in shared storage, which
/// cannot be read: all of the decision is there but what makes it safe.
#[test]
fn a_decision_that_may_not_stand_in_shared_storage_is_stable_when_it_is_written_again() {
    let mut node = Node::new();
    node.me = LEADER;
    let (version, level) = (VERSION, Level::SHARED);
    node.config.levels = node.config.levels.with(level);
    let commit = |version, level| Record::Commit {
        incarnation: BALLOT.incarnation,
        version,
        level,
        ballot: BALLOT,
    };
    node.records.push(commit(version, level));
    node.restart();
    node.told(Command::Doubt);
    node.all_durable();
    node.hear_from(1, items::end(&[]));
    node.hear_from(1, MsgKind::CommitAck { version, level });
    let stable = Event::Stable { version, level };
    assert!(!node.events.contains(&stable), "told of what may be lost");
    let tries = |node: &Node| {
        node.open
            .iter()
            .filter(|(_, it)| *it == commit(version, level))
            .count()
    };
    assert_eq!(tries(&node), 1);
    // It is out of reach still.
    let (op, _) = node.open.pop().unwrap();
    let cx = cx(LEADER, &node.config, node.now);
    node.commit.on_done(&cx, op, Err(Fault::Storage));
    assert!(!node.events.contains(&stable));
    for other in [8, 9] {
        node.commit.lead_adopt(&cx, 1, Version(other), level);
        let key = (BALLOT.incarnation, Version(other), level);
        node.commit.doubts.insert(key);
    }
    node.told(Command::Want {
        at_least: Version(10),
        levels: Levels::NONE.with(Level::DISK),
        any: true,
    });
    let armed = |event: &Event| matches!(event, Event::Arm { .. });
    assert!(node.events.iter().any(armed), "others are taken meanwhile");
    node.wait_in_vain();
    assert_eq!(tries(&node), 1, "asked again");
    node.all_durable();
    assert!(node.events.contains(&stable));
}

/// Node 1 knows that version 20 is at `shared`, where node 2's part may lie, and has all of 10.
#[test]
fn an_older_version_than_may_lie_where_nobody_sees_is_not_taken() {
    let (source, by) = (Incarnation(1), BALLOT);
    let copy = |version, node| MsgKind::ItemCopy {
        index: 0,
        source,
        version: Version(version),
        node,
    };
    let commit = |version, level| MsgKind::ItemCommit {
        index: 0,
        level,
        source,
        version: Version(version),
        by,
    };
    let known = [
        copy(10, 1),
        copy(10, 2),
        copy(20, 1),
        commit(10, Level::DISK),
        commit(20, Level::SHARED),
    ];
    let opened = |of_two: &[MsgKind]| {
        let mut node = opening(&own_copies()[..2]);
        for (from, items) in [(1, &known[..]), (2, of_two)] {
            for (index, item) in (0..).zip(items) {
                node.hear_from(from, items::numbered(*item, index));
            }
            node.hear_from(from, items::end(items));
        }
        node
    };
    let blinded =
        |node: &Node, culprit| refused(node) == [(Why::Unreadable, Some(NodeId(culprit)))];
    let blind = MsgKind::ItemBlind { index: 0 };
    assert_eq!(rebuilt(&opened(&[])), [10], "it is not there");
    let node = opened(&[blind]);
    assert!(blinded(&node, 2) && rebuilt(&node).is_empty());
    // A copy elsewhere will do, if it is one.
    let mut node = opened(&[blind, copy(20, 2)]);
    assert_eq!(rebuilt(&node), [20]);
    node.hear_from(
        2,
        MsgKind::Rebuilt {
            source,
            version: Version(20),
            outcome: Rebuilding::Unusable,
        },
    );
    assert!(blinded(&node, 2) && rebuilt(&node) == [20]);
    // A node that has a copy and cannot be reached may be reached again.
    let mut node = opened(&[copy(20, 2)]);
    let (version, outcome) = (Version(20), Rebuilding::OutOfReach);
    let said = MsgKind::Rebuilt {
        source,
        version,
        outcome,
    };
    node.hear_from(2, said);
    let out_of_reach = [(Why::OutOfReach, Some(NodeId(2)))];
    assert!(refused(&node) == out_of_reach && rebuilt(&node) == [20]);
    // Where the decisions may lie, nobody else sees for the coordinator.
    let mut inventory = own_copies();
    inventory.insert(0, Command::Blind);
    let mut node = opening(&inventory);
    they_answer(&mut node);
    assert!(blinded(&node, 0) && rebuilt(&node).is_empty());
}
