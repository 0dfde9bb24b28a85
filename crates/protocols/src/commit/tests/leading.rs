//! The coordinator, and nodes that were away.

use super::*;

/// The word that the version was not armed everywhere.
const UNARMED: MsgKind = MsgKind::Abort {
    version: VERSION,
    level: None,
    why: Why::Unarmed,
    culprit: LEADER,
};

/// A coordinator whose policy wants the version at all levels: it is being armed.
fn wanting() -> Node {
    let mut node = Node::coordinator();
    node.told(Command::Want {
        at_least: VERSION,
        levels: node.config.levels,
        any: true,
    });
    node
}

/// A node that leads nothing, on which the version is armed.
fn armed(levels: Levels) -> Node {
    let (mut node, version) = (Node::new(), VERSION);
    node.hear(MsgKind::Arm { version, levels });
    node.told(Command::Armed {
        version,
        ok: true,
        max_called: None,
    });
    node
}

/// The decision about a version is kept until every node has it: one that was called lost may
/// be heard again, and asks.
#[test]
fn a_lost_node_that_is_heard_again_is_told_the_decision() {
    let (mut node, level) = (Node::coordinator(), Level::DISK);
    let (version, levels) = (VERSION, Levels::NONE.with(level));
    node.told(Command::Force { version, levels });
    let from_peer = |node: &mut Node, kind| node.hear_from(1, kind);
    from_peer(&mut node, MsgKind::Captured { version });
    node.told(Command::Captured { version });
    node.told(Command::Prepared { version, level });
    node.all_durable();
    from_peer(&mut node, MsgKind::Prepared { version, level });
    node.all_durable();
    let committed = |event: &Event| matches!(event, Event::Committed { .. });
    assert!(node.events.iter().any(committed), "{:?}", node.events);

    let lost = NodeId(1);
    node.told(Command::Lost { node: lost });
    node.told(Command::Heard { node: lost });
    node.all_durable();
    assert!(!node.commit.may_forget(BALLOT.incarnation, version));
    node.said.clear();
    from_peer(&mut node, MsgKind::Prepared { version, level });
    let decision = |kind: &MsgKind| matches!(kind, MsgKind::Commit { .. });
    assert!(node.said.iter().any(decision), "{:?}", node.said);
    from_peer(&mut node, MsgKind::CommitAck { version, level });
    assert!(node.commit.may_forget(BALLOT.incarnation, version));
}

/// Its agent was started anew, no rank lives there, and nothing else tells it of the round.
#[test]
fn a_node_that_was_armed_and_captures_nothing_is_asked() {
    let (mut node, version) = (wanting(), VERSION);
    let levels = node.config.levels;
    let ok = true;
    node.told(Command::Armed {
        version,
        ok,
        max_called: None,
    });
    node.hear_from(
        1,
        MsgKind::ArmAck {
            version,
            ok,
            max_called: None,
        },
    );
    node.said.clear();
    node.wait_in_vain();
    let join = MsgKind::Join { version, levels };
    assert!(node.said.contains(&join), "{:?}", node.said);
}

/// A node has no room for what the policy wants. Whoever forces that version begins it.
#[test]
fn a_version_that_no_node_has_captured_can_be_forced_after_it_was_not_armed() {
    let (mut node, version) = (wanting(), VERSION);
    let levels = node.config.levels;
    let none = MsgKind::ArmAck {
        version,
        ok: false,
        max_called: None,
    };
    node.said.clear();
    node.hear_from(1, none);
    let unarmed = |kind: &MsgKind| match kind {
        MsgKind::Abort { level, why, .. } => (*level, *why) == (None, Why::Unarmed),
        _ => false,
    };
    assert!(node.said.iter().any(unarmed), "{:?}", node.said);
    assert_eq!(node.aborted(), [None]);
    // It had not heard of that.
    node.said.clear();
    node.hear_from(1, none);
    assert!(node.said.iter().all(unarmed), "{:?}", node.said);
    node.hear_from(1, MsgKind::Forced { version, levels });
    let go = MsgKind::Go { version, levels };
    assert!(node.said.contains(&go), "{:?}", node.said);
    // What has been captured meanwhile has begun.
    assert!(node.events.contains(&Event::Join { version, levels }));
}

/// A node has captured what another has yet to arm, and says so again. It is not told that the version
/// goes: it would take no word any more that it was not armed, and wait for ever.
#[test]
fn who_captures_before_all_are_armed_is_not_told_that_it_goes() {
    let (mut node, version) = (wanting(), VERSION);
    let levels = node.config.levels;
    for _ in 0..2 {
        node.hear_from(1, MsgKind::Captured { version });
    }
    let go = MsgKind::Go { version, levels };
    assert!(!node.said.contains(&go), "{:?}", node.said);
    let none = MsgKind::ArmAck {
        version,
        ok: false,
        max_called: None,
    };
    node.hear_from(1, none);
    let ends = |kind: &MsgKind| {
        matches!(
            kind,
            MsgKind::Abort {
                why: Why::Unarmed,
                ..
            }
        )
    };
    assert!(node.said.iter().any(ends), "{:?}", node.said);
}

/// It is written here before all are armed: it is prepared when it goes, so that it can be forgotten, and
/// begun again by whoever forces it, if not all are.
#[test]
fn what_is_written_before_all_are_armed_is_not_prepared() {
    let (version, level) = (VERSION, Level::DISK);
    let levels = Levels::NONE.with(level);
    let written = || {
        let mut node = armed(levels);
        node.told(Command::Captured { version });
        node.told(Command::Prepared { version, level });
        assert!(node.open.is_empty(), "{:?}", node.open);
        node
    };
    let prepared = MsgKind::Prepared { version, level };
    let mut node = written();
    node.hear(MsgKind::Go { version, levels });
    node.all_durable();
    assert!(node.said.contains(&prepared), "{:?}", node.said);

    let mut node = written();
    node.hear(UNARMED);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    let forced = MsgKind::Forced { version, levels };
    assert_eq!(node.said, [forced]);
    node.hear(MsgKind::Go { version, levels });
    assert!(node.open.is_empty(), "written by another capture, perhaps");
    node.told(Command::Captured { version });
    node.told(Command::Prepared { version, level });
    node.all_durable();
    assert!(node.said.contains(&prepared), "{:?}", node.said);
}

/// The same at a node that leads nothing: what it has begun does not end by a word that is late.
#[test]
fn what_is_forced_does_not_end_because_it_was_not_armed_before() {
    let (version, levels) = (VERSION, Levels::NONE.with(Level::DISK));
    let mut node = armed(levels);
    node.hear(UNARMED);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    let forced = MsgKind::Forced { version, levels };
    assert!(node.said.contains(&forced), "{:?}", node.said);
    node.hear(UNARMED);
    assert_eq!(node.aborted(), [None], "not again");

    // Captured while it was armed here, and said so: it is begun if it was forced.
    let mut node = armed(levels);
    node.told(Command::Captured { version });
    node.hear(UNARMED);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    node.told(Command::Captured { version });
    assert!(node.said.contains(&forced), "{:?}", node.said);
    node.hear(MsgKind::Go { version, levels });
    let captured = MsgKind::Captured { version };
    assert!(node.said.contains(&captured), "{:?}", node.said);
    node.hear(UNARMED);
    assert_eq!(node.aborted(), [None], "not again");
}

/// A node is not ready within the bound, for its ranks wait for slow storage. Whoever comes to that
/// version later, and forces it, begins it.
#[test]
fn what_was_not_armed_in_time_can_be_forced() {
    let (mut node, version) = (wanting(), VERSION);
    let levels = node.config.levels;
    node.told(Command::Armed {
        version,
        ok: true,
        max_called: None,
    });
    node.wait_in_vain();
    let culprit = Some(NodeId(1));
    let unready = Event::Unready { version, culprit };
    assert!(node.events.contains(&unready), "{:?}", node.events);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.hear_from(1, MsgKind::Forced { version, levels });
    let go = MsgKind::Go { version, levels };
    assert!(node.said.contains(&go), "{:?}", node.said);
    assert!(node.events.contains(&Event::Join { version, levels }));
}

/// One has forced it before the bound has passed: it is not told that it goes, and goes on by itself
/// when it hears that not all were armed.
#[test]
fn what_is_forced_while_it_is_armed_begins_anew_when_the_bound_has_passed() {
    let (mut node, version) = (wanting(), VERSION);
    let levels = node.config.levels;
    let (forced, go) = (
        MsgKind::Forced { version, levels },
        MsgKind::Go { version, levels },
    );
    node.hear_from(1, forced);
    assert!(!node.said.contains(&go), "{:?}", node.said);
    node.wait_in_vain();
    assert_eq!(node.aborted(), [None]);
    node.hear_from(1, forced);
    assert!(node.said.contains(&go), "{:?}", node.said);

    let mut node = Node::new();
    node.hear(MsgKind::Arm { version, levels });
    node.told(Command::Force { version, levels });
    node.said.clear();
    node.hear(UNARMED);
    assert_eq!(node.said, [forced]);
    assert_eq!(node.aborted(), []);
}

/// A node's agent is started anew while its list is being asked for, and has another one: what stands in
/// neither part that was heard would count as lost.
#[test]
fn a_list_that_is_another_one_half_way_is_asked_for_again() {
    let (source, mut node) = (Incarnation(1), opening(&[]));
    let copy = |version: u64| MsgKind::ItemCopy {
        index: 0,
        source,
        version: Version(version),
        node: 1,
    };
    let (before, after) = ([copy(10), copy(20)], [copy(30), copy(10), copy(20)]);
    let fetches = |node: &Node, from: u16| {
        let last = node.said.iter().rev();
        let mut asked = last.filter(|kind| matches!(kind, MsgKind::Fetch { .. }));
        asked.next() == Some(&MsgKind::Fetch { index: from })
    };
    node.hear_from(1, items::numbered(before[0], 0));
    for (index, item) in (1..).zip(&after[1..]) {
        node.hear_from(1, items::numbered(*item, index));
    }
    node.hear_from(1, items::end(&after));
    assert!(fetches(&node, 0), "{:?}", node.said);
    // A shorter one than what was heard: nothing would come any more.
    node.hear_from(1, items::numbered(after[0], 0));
    node.hear_from(1, items::end(&[]));
    assert!(fetches(&node, 0), "{:?}", node.said);
    for (index, item) in (0..).zip(&after) {
        node.hear_from(1, items::numbered(*item, index));
    }
    // A word of the list before it that is late.
    node.hear_from(1, items::end(&[after[0], after[1], after[2], copy(40)]));
    assert!(fetches(&node, 3), "{:?}", node.said);
}

/// Both levels that nodes here have, and the one that the policy has armed.
fn both() -> (Levels, Levels) {
    let few = Levels::NONE.with(Level::DISK);
    (few.with(Level::PARTNER), few)
}

/// The program waits for more than the policy wanted.
#[test]
fn what_is_forced_where_it_was_armed_at_fewer_levels_is_asked_for_until_it_is_granted() {
    let ((levels, few), version) = (both(), VERSION);
    let mut node = armed(few);
    node.hear(MsgKind::Go {
        version,
        levels: few,
    });
    node.told(Command::Force { version, levels });
    let forced = MsgKind::Forced { version, levels };
    assert_eq!(node.said.last(), Some(&forced));
    // This was on its way before.
    node.hear(MsgKind::Go {
        version,
        levels: few,
    });
    node.said.clear();
    node.told(Command::Captured { version });
    assert_eq!(
        node.said,
        [forced],
        "the round may be over without them else"
    );
    node.hear(MsgKind::Go { version, levels });
    let captured = MsgKind::Captured { version };
    assert_eq!(node.said.last(), Some(&captured));
    assert_eq!(node.aborted(), []);
}

#[test]
fn a_round_that_gets_more_levels_is_widened_where_nobody_forces_it() {
    let ((levels, few), version) = (both(), VERSION);
    let go = |levels| MsgKind::Go { version, levels };
    let join = |levels| MsgKind::Join { version, levels };
    for last in [go(levels), join(levels)] {
        let mut node = armed(few);
        node.hear(go(few));
        node.told(Command::Captured { version });
        node.hear(last);
        let widened = Event::Resumed { version, levels };
        assert_eq!(node.events.last(), Some(&widened));
        // What was said first does not take it back.
        node.hear(go(few));
        node.told(Command::Prepared {
            version,
            level: Level::PARTNER,
        });
        assert!(!node.open.is_empty(), "it is prepared there");
    }
}

#[test]
fn the_coordinator_widens_a_round_until_all_have_captured() {
    let ((levels, few), version) = (both(), VERSION);
    let forced = MsgKind::Forced { version, levels };
    for (late, granted) in [(false, levels), (true, few)] {
        let mut node = Node::coordinator();
        node.told(Command::Want {
            at_least: version,
            levels: few,
            any: true,
        });
        let (ok, max_called) = (true, None);
        node.told(Command::Armed {
            version,
            ok,
            max_called,
        });
        node.hear_from(
            1,
            MsgKind::ArmAck {
                version,
                ok,
                max_called: None,
            },
        );
        node.told(Command::Captured { version });
        if late {
            node.hear_from(1, MsgKind::Captured { version });
        }
        node.said.clear();
        node.hear_from(1, forced);
        let goes = MsgKind::Go {
            version,
            levels: granted,
        };
        assert!(node.said.contains(&goes), "{:?}", node.said);
        let ended = |kind: &MsgKind| {
            let partner = Some(Level::PARTNER);
            matches!(kind, MsgKind::Abort { level, .. } if *level == partner)
        };
        assert_eq!(node.said.iter().any(ended), late, "{:?}", node.said);
        node.hear_from(1, MsgKind::Captured { version });
        let levels = granted;
        let all = Event::AllCaptured { version, levels };
        assert!(node.events.contains(&all), "{:?}", node.events);
    }
}
