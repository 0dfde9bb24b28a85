//! The coordinator, and nodes that were away.

use super::*;

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
    let (mut node, version) = (Node::coordinator(), VERSION);
    let (levels, at_least, any) = (node.config.levels, version, true);
    node.told(Command::Want {
        at_least,
        levels,
        any,
    });
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
    let (mut node, version) = (Node::coordinator(), VERSION);
    let (levels, at_least, any) = (node.config.levels, version, true);
    let none = MsgKind::ArmAck {
        version,
        ok: false,
        max_called: None,
    };
    node.told(Command::Want {
        at_least,
        levels,
        any,
    });
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
    let (mut node, version) = (Node::coordinator(), VERSION);
    let (levels, at_least, any) = (node.config.levels, version, true);
    node.told(Command::Want {
        at_least,
        levels,
        any,
    });
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

/// Some of it is written here already when it turns out that it was not armed everywhere: it has ended,
/// for good.
#[test]
fn what_is_prepared_ends_for_good_if_it_was_not_armed_everywhere() {
    let (version, level) = (VERSION, Level::DISK);
    let levels = Levels::NONE.with(level);
    let mut node = Node::new();
    node.hear(MsgKind::Arm { version, levels });
    node.told(Command::Armed {
        version,
        ok: true,
        max_called: None,
    });
    node.told(Command::Captured { version });
    node.told(Command::Prepared { version, level });
    node.hear(MsgKind::Abort {
        version,
        level: None,
        why: Why::Unarmed,
        culprit: LEADER,
    });
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    let forced = MsgKind::Forced { version, levels };
    assert!(!node.said.contains(&forced), "{:?}", node.said);
}

/// The same at a node that leads nothing: what it has begun does not end by a word that is late.
#[test]
fn what_is_forced_does_not_end_because_it_was_not_armed_before() {
    let (version, levels) = (VERSION, Levels::NONE.with(Level::DISK));
    let unarmed = MsgKind::Abort {
        version,
        level: None,
        why: Why::Unarmed,
        culprit: LEADER,
    };
    let armed = || {
        let mut node = Node::new();
        node.hear(MsgKind::Arm { version, levels });
        node.told(Command::Armed {
            version,
            ok: true,
            max_called: None,
        });
        node
    };
    let mut node = armed();
    node.hear(unarmed);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    let forced = MsgKind::Forced { version, levels };
    assert!(node.said.contains(&forced), "{:?}", node.said);
    node.hear(unarmed);
    assert_eq!(node.aborted(), [None], "not again");

    // Captured while it was armed here, and said so: it is begun if it was forced.
    let mut node = armed();
    node.told(Command::Captured { version });
    node.hear(unarmed);
    assert_eq!(node.aborted(), [None]);
    node.said.clear();
    node.told(Command::Force { version, levels });
    node.told(Command::Captured { version });
    assert!(node.said.contains(&forced), "{:?}", node.said);
    node.hear(MsgKind::Go { version, levels });
    let captured = MsgKind::Captured { version };
    assert!(node.said.contains(&captured), "{:?}", node.said);
    node.hear(unarmed);
    assert_eq!(node.aborted(), [None], "not again");
}
