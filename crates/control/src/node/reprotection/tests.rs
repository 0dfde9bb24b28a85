use outlive_ledger::Record;

use super::super::Input;
use super::super::still::{Still, one_of, part_of};
use super::*;
use crate::node::Node;

const SOURCE: Incarnation = Incarnation(1);
const AT: (Incarnation, Version) = (SOURCE, Version(20));

/// Node 1 of three, that keeps node 0's copies, in groups of three. Its own lie at node 2.
fn node(levels: &[Level], versions: &[u64]) -> Node<Still> {
    let mut node = one_of(3, 1, Level::PARTNER);
    for version in versions {
        for level in levels {
            commit(&mut node, Version(*version), *level);
        }
    }
    node
}

fn xor() -> Level {
    Level::xor(3).unwrap()
}

fn commit(node: &mut Node<Still>, version: Version, level: Level) {
    let parts = (0..3).map(|owner| {
        let mut part = part_of((SOURCE, version), owner);
        if level.has_partner() {
            part.holder = NodeId((owner + 1) % 3);
        }
        if level.members().is_some() {
            part.parity = Some(outlive_ledger::Parity {
                length: 4096,
                digest: 5,
            });
        }
        part
    });
    let groups = match level.members() {
        Some(_) => vec![(0..3).map(NodeId).collect()],
        None => Vec::new(),
    };
    node.core.learn(&Record::Commit {
        incarnation: SOURCE,
        version,
        level,
        ballot: 1,
        ranks: 3,
        parts: parts.collect(),
        groups,
    });
}

/// An incarnation opens, with which the node took the place of a lost one; its container is written.
fn opens(node: &mut Node<Still>, replaced: &[u32]) -> Progress {
    let progress = Progress::default();
    node.core.open_with(Some(AT));
    let news = News::Opened {
        restored: Some(AT),
        replaced: replaced.iter().copied().map(NodeId).collect(),
        again: Some(progress.clone()),
    };
    node.services.reprotection.on_news(&mut node.core, &news);
    progress
}

fn said(node: &mut Node<Still>) -> Option<Reprotection> {
    let told = node.core.shell().told.iter().rev();
    let mut said = told.filter_map(|notice| match notice {
        Notice::Reprotection(said) => Some((**said).clone()),
        _ => None,
    });
    said.next()
}

fn done(node: &mut Node<Still>, done: Done<<Still as Shell>::Slab>) {
    node.on(node.core.now(), Input::Done(done));
}

fn protected(parity: Option<Level>, fails: bool) -> Done<<Still as Shell>::Slab> {
    let entity = outlive_base::Entity::Node(0);
    let error = outlive_base::Error::new(outlive_base::Code::Network, entity, "away", "look");
    Done::Protected {
        source: AT.0,
        version: AT.1,
        parity,
        result: if fails { Err(error) } else { Ok(()) },
    }
}

/// The copies that were looked for: version, place, whose.
fn looked(node: &mut Node<Still>) -> Vec<(u64, CopySource, u32)> {
    let reading = |ask: &Ask<_>| match ask {
        Ask::Scrub(reading) => {
            assert!(!reading.whole);
            let copy = reading.copy;
            Some((copy.id.version.0, copy.place, copy.id.node.0))
        }
        _ => None,
    };
    node.core.shell().asked.iter().filter_map(reading).collect()
}

/// Time passes until something is looked for; what comes of it.
fn looks(node: &mut Node<Still>, outcome: Scrubbed) -> Time {
    let at = node.services.reprotection.deadline(&node.core).unwrap();
    node.core.at(at.max(node.core.now()), false);
    node.services.reprotection.on_time(&mut node.core);
    let (copy, _) = node.services.reprotection.under_way.clone().unwrap();
    done(node, Done::Scrubbed { copy, outcome });
    at
}

fn counts(node: &mut Node<Still>) -> (u64, u64, u64, u64) {
    let said = said(node).unwrap();
    (said.copies, said.copies_total, said.bytes, said.bytes_total)
}

#[test]
fn what_a_lost_node_had_kept_is_told_until_it_is_there() {
    let mut node = node(&[Level::PARTNER, xor()], &[20]);
    let progress = opens(&mut node, &[1]);
    let begun = said(&mut node).unwrap();
    assert_eq!((begun.incarnation, begun.version), AT);
    let lost = [Lost::Own, Lost::Kept(NodeId(0)), Lost::Parity(xor())];
    assert_eq!(begun.lost, lost.into());
    assert_eq!(counts(&mut node), (0, 3, 0, 8192 + 4096 + 4096));
    // All three depend on it, by the group; each names both its ways.
    assert_eq!(begun.ways.nodes.len(), 3);
    assert_eq!((begun.ways.copies.len(), begun.ways.groups.len()), (3, 1));
    assert!(!begun.ways.shared);
    // The parity is asked for; nothing else has to be looked for yet.
    let asked = node.core.shell().asked.iter();
    let parities = asked.filter(|it| matches!(it, Ask::Parity(making) if making.quiet));
    assert_eq!(parities.count(), 1);
    progress.hand_on(100);
    done(&mut node, protected(Some(xor()), false));
    assert_eq!(counts(&mut node), (1, 3, 4196, 16384));
    done(&mut node, protected(None, false));
    let id = part_of(AT, 0).id;
    let kept = Done::Kept {
        id: Some(id),
        result: Ok(()),
    };
    assert_eq!(
        said(&mut node).unwrap().lost,
        [Lost::Kept(NodeId(0))].into()
    );
    done(&mut node, kept);
    assert_eq!(counts(&mut node), (3, 3, 16384, 16384));
    let last = said(&mut node).unwrap();
    assert!(last.is_done() && last.lost.is_empty() && last.ways.nodes.is_empty());
    assert_eq!(node.services.reprotection.deadline(&node.core), None);
    assert!(looked(&mut node).is_empty());
}

#[test]
fn what_does_not_come_is_looked_for_and_older_versions_are_made_of_others() {
    let mut node = node(&[Level::PARTNER], &[20, 10, 5]);
    // Of version 5 the node does not know that it is stable: it may have been removed.
    node.core.open_with(Some((SOURCE, Version(10))));
    opens(&mut node, &[1]);
    assert_eq!(counts(&mut node).1, 4);
    done(&mut node, protected(None, true));
    // Of the older version both are due, then its own is looked for again, then what node 0 sends.
    looks(&mut node, Scrubbed::There);
    looks(&mut node, Scrubbed::Gone);
    assert_eq!(counts(&mut node), (1, 3, 8192, 8192 + 8192 + 4096));
    assert_eq!(looks(&mut node, Scrubbed::There), AGAIN_AFTER);
    let damage = || outlive_base::Error::internal("away");
    let fails = || Scrubbed::Damaged {
        damage: damage(),
        why: vec![damage()],
    };
    let first = looks(&mut node, fails());
    assert_eq!(first, COMES_WITHIN);
    let second = looks(&mut node, Scrubbed::Unreadable(damage()));
    assert_eq!(second, first + AGAIN_AFTER);
    let third = looks(&mut node, fails());
    assert_eq!(third, second + Time(2 * AGAIN_AFTER.0));
    let warned = node.core.shell().told.iter();
    let warned = warned.filter(|it| matches!(it, Notice::Warning(_))).count();
    assert_eq!(warned, 2, "that its own was not written, and this, once");
    looks(&mut node, Scrubbed::Stopped);
    looks(
        &mut node,
        Scrubbed::Mended {
            damage: damage(),
            from: Level::DISK,
        },
    );
    assert!(said(&mut node).unwrap().is_done());
    let (own, kept) = (CopySource::Own, CopySource::Kept);
    assert_eq!(
        looked(&mut node)[..4],
        [(10, own, 1), (10, kept, 0), (20, own, 1), (20, kept, 0)]
    );
}

#[test]
fn what_nobody_wants_any_more_is_no_longer_lacking() {
    let mut node = node(&[Level::PARTNER], &[20]);
    opens(&mut node, &[1]);
    assert!(!said(&mut node).unwrap().is_done());
    node.core.forget(AT.0, AT.1);
    node.on(node.core.now(), Input::Order(Order::Status));
    let said = said(&mut node).unwrap();
    assert!(said.is_done());
    assert_eq!((said.copies, said.bytes_total), (0, 0));
}

#[test]
fn a_node_that_was_not_lost_lacks_nothing_unless_it_is_told_so() {
    let mut node = node(&[Level::PARTNER], &[20]);
    opens(&mut node, &[0]);
    assert_eq!(said(&mut node), None);
    node.core.open_with(Some(AT));
    for _ in 0..2 {
        // Said again it is the same.
        node.on(node.core.now(), Input::Order(Order::LookForLost));
        assert_eq!(counts(&mut node).1, 2);
    }
    let told = node.core.shell().told.iter();
    let told = told.filter(|it| matches!(it, Notice::Reprotection(_)));
    assert_eq!(told.count(), 1);
    looks(&mut node, Scrubbed::There);
    looks(&mut node, Scrubbed::There);
    assert!(said(&mut node).unwrap().is_done());
}
