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

/// The copies that were asked for so far, to be read or to be looked at: version, place, whose.
fn all_asked(node: &mut Node<Still>, whole: bool) -> Vec<(u64, CopySource, u32)> {
    let reading = |ask: &Ask<_>| match ask {
        Ask::Scrub(reading) if reading.whole == whole => {
            let copy = reading.copy;
            Some((copy.id.version.0, copy.place, copy.id.node.0))
        }
        _ => None,
    };
    node.core.shell().asked.iter().filter_map(reading).collect()
}

/// Those that were to be read.
fn asked(node: &mut Node<Still>) -> Vec<(u64, CopySource, u32)> {
    all_asked(node, true)
}

fn brake(node: &Node<Still>) -> Brake {
    let under_way = node.services.scrub.under_way.as_ref();
    under_way.unwrap().brake.clone()
}

/// Time passes until something more is to be read; what is only looked at is there.
fn passes(node: &mut Node<Still>) -> Time {
    let before = asked(node).len();
    for _ in 0..1000 {
        let at = node.services.scrub.deadline(&node.core).unwrap();
        node.on_time(at.max(node.core.now()));
        if asked(node).len() > before {
            return node.core.now();
        }
        if node.services.scrub.under_way.is_some() {
            comes_of_it(node, Scrubbed::There);
        }
    }
    panic!("nothing is read");
}

/// Time passes until something more is asked for.
fn looks(node: &mut Node<Still>) -> Time {
    for _ in 0..100 {
        let at = node.services.scrub.deadline(&node.core).unwrap();
        node.on_time(at.max(node.core.now()));
        if node.services.scrub.under_way.is_some() {
            return node.core.now();
        }
    }
    panic!("nothing is looked at");
}

/// What is under way ends.
fn comes_of_it(node: &mut Node<Still>, outcome: Scrubbed) {
    let copy = node.services.scrub.under_way.clone().unwrap().copy;
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

#[test]
fn a_loss_is_found_long_before_the_next_reading_and_told_once() {
    let mut node = node(&[Level::DISK]);
    let first = looks(&mut node);
    assert!(first <= LOOKED_EVERY + LOOKED_EVERY, "{first:?}");
    assert!(asked(&mut node).is_empty());
    let lost = || {
        let entity = Entity::File("node/containers/x".into());
        Error::new(Code::NotFound, entity, "it is gone", "see")
    };
    let is_gone = |why| Scrubbed::Damaged {
        damage: lost(),
        why,
    };
    comes_of_it(&mut node, is_gone(Vec::new()));
    assert_eq!(warnings(&mut node).len(), 1);
    assert!(warnings(&mut node)[0].contains("it is gone; it could not be mended"));
    let copy = all_asked(&mut node, false)[0];
    // The other one is there; the lost one is tried again, and not told again.
    let mut again = Vec::new();
    while again.len() < 2 {
        let at = looks(&mut node);
        assert!(at <= first + LOOKED_EVERY + LOOKED_EVERY + LOOKED_EVERY);
        let last = *all_asked(&mut node, false).last().unwrap();
        let outcome = match last == copy {
            true => is_gone(Vec::new()),
            false => Scrubbed::There,
        };
        again.extend((last == copy).then_some(at));
        comes_of_it(&mut node, outcome);
    }
    assert_eq!(warnings(&mut node).len(), 1);
    let read = |node: &mut Node<Still>| {
        let versions = status(node).versions;
        let read = |it: &ReadAt| (it.version.0, it.ago_ms.is_some());
        versions.iter().map(read).collect::<Vec<_>>()
    };
    assert!(read(&mut node).contains(&(copy.0, false)));
    while *all_asked(&mut node, false).last().unwrap() != copy
        || node.services.scrub.under_way.is_none()
    {
        if node.services.scrub.under_way.is_some() {
            comes_of_it(&mut node, Scrubbed::There);
        }
        looks(&mut node);
    }
    let made = Scrubbed::Mended {
        damage: lost(),
        from: Level::PARTNER,
    };
    comes_of_it(&mut node, made);
    assert!(warnings(&mut node)[1].contains("it was made again of what is kept at partner"));
    // What was made was read back.
    assert!(read(&mut node).contains(&(copy.0, true)));
    assert!(asked(&mut node).is_empty());
}

#[test]
fn the_parity_at_a_memory_server_is_read_by_the_node_that_it_is_named_after() {
    let level = Level::memory_server(3).unwrap();
    let mut node = alone_at(1, Level::PARTNER);
    for (version, named) in [(20, 1), (21, 0)] {
        let parts = (0..3).map(|owner| {
            let mut part = part_of((SOURCE, Version(version)), owner);
            let parity = outlive_ledger::Parity {
                length: 4096,
                digest: 7,
            };
            part.parity = (owner == named).then_some(parity);
            part
        });
        node.core.learn(&Record::Commit {
            incarnation: SOURCE,
            version: Version(version),
            level,
            ballot: 1,
            ranks: 3,
            parts: parts.collect(),
            groups: vec![(0..3).map(NodeId).collect()],
        });
    }
    for _ in 0..3 {
        passes(&mut node);
        comes_of_it(&mut node, Scrubbed::Whole(100));
    }
    let all: std::collections::BTreeSet<_> = asked(&mut node).into_iter().collect();
    let want = [
        (20, CopySource::Own, 1),
        (20, CopySource::Parity(level), 1),
        (21, CopySource::Own, 1),
    ];
    assert_eq!(all, want.into_iter().collect());
}
