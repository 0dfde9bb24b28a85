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
