use outlive_base::{Entity, Incarnation, NodeId, Version};
use outlive_ledger::Record;

use super::super::Input;
use super::super::still::{Still, alone_at, part_of};
use super::*;
use crate::node::Node;
use crate::orders::Notice;

const HOUR: Time = Time::from_secs(3_600);
const SOURCE: Incarnation = Incarnation(1);

/// Node 1 of two, which keeps the other's copies.
fn node(levels: &[Level]) -> Node<Still> {
    let mut node = alone_at(1, Level::PARTNER);
    for version in [20, 21] {
        for &level in levels {
            commit(&mut node, Version(version), level);
        }
    }
    node
}

fn commit(node: &mut Node<Still>, version: Version, level: Level) {
    let parts = (0..2).map(|owner| {
        let mut part = part_of((SOURCE, version), owner);
        if level == Level::PARTNER {
            part.holder = NodeId(1 - owner);
        }
        part
    });
    node.core.learn(&Record::Commit {
        incarnation: SOURCE,
        version,
        level,
        ballot: 1,
        ranks: 2,
        parts: parts.collect(),
        groups: Vec::new(),
    });
}

/// The copies that were asked for so far: version, place, whose.
fn asked(node: &mut Node<Still>) -> Vec<(u64, CopySource, u32)> {
    let reading = |ask: &Ask<_>| match ask {
        Ask::Scrub(reading) => {
            let copy = reading.copy;
            Some((copy.id.version.0, copy.place, copy.id.node.0))
        }
        _ => None,
    };
    node.core.shell().asked.iter().filter_map(reading).collect()
}

fn brake(node: &Node<Still>) -> Brake {
    let under_way = node.services.scrub.under_way.as_ref();
    under_way.unwrap().1.clone()
}

/// Time passes until something more is asked for.
fn passes(node: &mut Node<Still>) -> Time {
    let before = asked(node).len();
    for _ in 0..100 {
        let at = node.services.scrub.deadline(&node.core).unwrap();
        node.on_time(at.max(node.core.now()));
        if asked(node).len() > before {
            return node.core.now();
        }
    }
    panic!("nothing is read");
}

/// What is under way ends.
fn comes_of_it(node: &mut Node<Still>, outcome: Scrubbed) {
    let (copy, _) = node.services.scrub.under_way.clone().unwrap();
    let done = Done::Scrubbed { copy, outcome };
    node.on(node.core.now(), Input::Done(done));
}

fn status(node: &mut Node<Still>) -> ScrubStatus {
    node.on(node.core.now(), Input::Order(Order::Status));
    let told = node.core.shell().told.iter().rev();
    let mut statuses = told.filter_map(|notice| match notice {
        Notice::Status(status) => Some((*status.scrub).clone()),
        _ => None,
    });
    statuses.next().unwrap()
}

fn warnings(node: &mut Node<Still>) -> Vec<String> {
    let told = node.core.shell().told.iter();
    let warnings = told.filter_map(|notice| match notice {
        Notice::Warning(error) => Some(error.reason().to_owned()),
        _ => None,
    });
    warnings.collect()
}

fn rotten() -> Error {
    let entity = Entity::File("node/containers/x".into());
    Error::new(Code::Corrupt, entity, "a frame has rotted", "see")
}

#[test]
fn each_copy_is_read_once_in_a_period_one_at_a_time() {
    let mut node = node(&[Level::MEMORY, Level::PARTNER]);
    let mut first = None;
    for read in 1..=4 {
        let at = passes(&mut node);
        first = first.or(Some(at));
        assert_eq!(asked(&mut node).len(), read);
        // Nothing more while it is read, whatever time passes.
        let later = at + HOUR + HOUR;
        assert_eq!(node.services.scrub.deadline(&node.core), None);
        node.on_time(at + Time(1));
        assert_eq!(asked(&mut node).len(), read);
        assert!(later > at);
        comes_of_it(&mut node, Scrubbed::Whole(100));
    }
    let first = first.unwrap();
    assert!(
        first >= HOUR,
        "it was read back when it was written: {first:?}"
    );
    let all: std::collections::BTreeSet<_> = asked(&mut node).into_iter().collect();
    let want = [20, 21].map(|version| {
        [
            (version, CopySource::Own, 1),
            (version, CopySource::Kept, 0),
        ]
    });
    assert_eq!(all, want.into_iter().flatten().collect());
    let said = status(&mut node);
    assert_eq!((said.read, said.read_bytes, said.damaged), (4, 400, 0));
    let read = |at: &ReadAt| (at.version.0, at.level, at.ago_ms.is_some());
    let versions: Vec<_> = said.versions.iter().map(read).collect();
    let partner = Level::PARTNER;
    assert_eq!(versions, [(21, partner, true), (20, partner, true)]);
    // Again, but a period later.
    let again = passes(&mut node);
    assert!(again >= first + HOUR);
    // What is removed is not read.
    node.core.forget(SOURCE, Version(20));
    comes_of_it(&mut node, Scrubbed::Gone);
    for _ in 0..2 {
        passes(&mut node);
        let last = asked(&mut node).pop().unwrap();
        assert_eq!(last.0, 21);
        comes_of_it(&mut node, Scrubbed::Whole(100));
    }
}

#[test]
fn what_is_damaged_is_told_once_and_what_is_mended_too() {
    let mut node = node(&[Level::DISK]);
    passes(&mut node);
    let mended = Scrubbed::Mended {
        damage: rotten(),
        from: Level::PARTNER,
    };
    comes_of_it(&mut node, mended);
    assert!(warnings(&mut node)[0].contains("mended from the copy at partner"));
    passes(&mut node);
    let other = asked(&mut node)[1];
    let lost = || Scrubbed::Damaged {
        damage: rotten(),
        why: Vec::new(),
    };
    comes_of_it(&mut node, lost());
    let said = status(&mut node);
    assert_eq!((said.read, said.damaged, said.mended), (0, 2, 1));
    let unread: Vec<_> = said
        .versions
        .iter()
        .filter(|it| it.ago_ms.is_none())
        .collect();
    assert_eq!(unread.len(), 1, "one is whole again");
    assert_eq!(unread[0].version.0, other.0);
    // It stays damaged, which is no news.
    let before = warnings(&mut node).len();
    for _ in 0..2 {
        passes(&mut node);
        comes_of_it(&mut node, lost());
    }
    assert!(warnings(&mut node).len() <= before + 1);
}

#[test]
fn what_opens_or_ends_stops_it() {
    let mut node = node(&[Level::DISK]);
    passes(&mut node);
    let reading = brake(&node);
    node.on(
        node.core.now(),
        Input::Order(Order::Finish { success: true }),
    );
    assert!(reading.is_stopped());
    comes_of_it(&mut node, Scrubbed::Stopped);
    let count = asked(&mut node).len();
    node.on_time(node.core.now() + HOUR);
    assert_eq!(asked(&mut node).len(), count, "the job ends");
}

#[test]
fn it_can_be_switched_off() {
    let mut node = node(&[Level::DISK]);
    let mut config = node.core.config().unwrap().clone();
    config.scrub.every_ms = None;
    node.on(Time::from_secs(1), Input::Order(Order::Configure(config)));
    assert_eq!(node.services.scrub.deadline(&node.core), None);
    node.on_time(HOUR + HOUR);
    assert!(asked(&mut node).is_empty());
}
