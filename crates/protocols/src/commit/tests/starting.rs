//! An incarnation that opens while agents end.

use super::*;

const NEXT: Ballot = Ballot {
    incarnation: Incarnation(2),
    term: 0,
};

/// A node that has the record of the next incarnation, and has not heard that all have.
fn begun() -> Node {
    let mut node = Node::new();
    node.told(Command::Open {
        incarnation: NEXT.incarnation,
        replaced: NodeSet::new(2),
        fenced: true,
        fresh: false,
        history: BALLOT.incarnation,
    });
    node.all_durable();
    node.told(Command::InventoryDone {
        incarnation: NEXT.incarnation,
    });
    node.hear(MsgKind::Begin {
        source: Incarnation(0),
        version: Version(0),
        commits: 0,
    });
    node
}

fn asked_in_a_term_of_its_own(node: &mut Node) {
    let msg = Msg {
        ballot: Ballot { term: 1, ..NEXT },
        kind: MsgKind::Fetch { index: 0 },
    };
    let cx = cx(node.me, &node.config, node.now);
    node.commit.on_message(&cx, LEADER, msg, None);
    node.pull();
}

/// It records last and takes part again by its record: that all may begin was lost with its agent, and
/// what it asks was not heard. Both waited for their bounds.
#[test]
fn a_coordinator_that_asks_in_a_term_of_its_own_has_begun() {
    let mut node = begun();
    node.all_durable();
    assert!(node.said.contains(&MsgKind::Begun), "{:?}", node.said);
    assert!(!node.commit.running());
    node.said.clear();
    asked_in_a_term_of_its_own(&mut node);
    assert!(node.commit.running());
    let opened = |it: &Event| matches!(it, Event::Opened { incarnation, .. } if *incarnation == NEXT.incarnation);
    assert!(node.events.iter().any(opened), "{:?}", node.events);
    node.all_durable();
    let ended = |it: &MsgKind| matches!(it, MsgKind::ItemEnd { .. });
    assert!(node.said.iter().any(ended), "{:?}", node.said);
}

/// What it has not recorded nobody can have begun.
#[test]
fn a_node_without_the_record_begins_nothing() {
    let mut node = begun();
    assert!(!node.open.is_empty());
    asked_in_a_term_of_its_own(&mut node);
    assert!(!node.commit.running());
}
