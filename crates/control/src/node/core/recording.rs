//! Decisions of this coordinator that are still being recorded in shared storage, and may yet be refused.
//!
//! While its incarnation lasts, the commit machine waits for the answer. One that opens meanwhile must not count
//! them (P3): older copies would go for a decision that nobody finds again.

use std::collections::BTreeMap;

use outlive_base::machine::Op;
use outlive_base::{Incarnation, Level, Version};
use outlive_ledger::Record;

use super::{Core, Planted};
use crate::node::shell::Shell;

/// What is being written: true if an incarnation has opened without it.
#[derive(Default)]
pub(super) struct Recording(BTreeMap<Op, (Record, bool)>);

fn decided(record: &Record) -> Option<(Incarnation, Version, Level)> {
    match record {
        Record::Commit {
            incarnation,
            version,
            level,
            ..
        } => Some((*incarnation, *version, *level)),
        _ => None,
    }
}

impl<S: Shell> Core<S> {
    /// A record is about to be written. One that repeats a known decision is not in doubt.
    pub(super) fn records(&mut self, op: Op, record: &Record, shared: bool) {
        let new = |(source, version, level)| {
            let known = self.contents.levels_of(source, version);
            !known.contains(&level)
        };
        if shared && decided(record).is_some_and(new) {
            self.recording.0.insert(op, (record.clone(), false));
        }
    }

    /// A record was written, or refused.
    pub(super) fn was_recorded(&mut self, op: Op, durable: bool) {
        let Some((record, doubted)) = self.recording.0.remove(&op) else {
            return;
        };
        if durable && doubted {
            self.contents.learn(&record);
        } else if !durable {
            self.doubt(&record);
        }
    }

    /// What the commit machine of an incarnation does by itself as long as that is open.
    fn doubt(&mut self, record: &Record) {
        if let Some((source, version, level)) = decided(record)
            && source != self.open.incarnation()
            && !self.is_planted(Planted::CountUnrecorded)
        {
            self.contents.undecided(source, version, level);
        }
    }

    /// An incarnation opens: what is not written by now may never be.
    pub(super) fn doubt_unrecorded(&mut self) {
        let mut unwritten = core::mem::take(&mut self.recording);
        for (record, doubted) in unwritten.0.values_mut() {
            *doubted = true;
            self.doubt(record);
        }
        self.recording = unwritten;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outlive_base::{NodeId, Time};

    use super::super::Opening;
    use super::*;
    use crate::node::Node;
    use crate::node::still::{Still, alone_at};

    const OLD: Incarnation = Incarnation(1);
    const VERSION: Version = Version(7);
    const OP: Op = Op(3);

    /// The coordinator decides that a version is committed in shared storage, whose answer is awaited.
    fn deciding() -> Node<Still> {
        let mut agent = alone_at(0, Level::SHARED);
        agent.records(OP, &decision(), true);
        agent.contents.learn(&decision());
        agent
    }

    fn decision() -> Record {
        Record::Commit {
            incarnation: OLD,
            version: VERSION,
            level: Level::SHARED,
            ballot: 1,
            ranks: 1,
            parts: Vec::new().into(),
            groups: Vec::new(),
        }
    }

    /// The next incarnation opens with this version, from memory.
    fn opens(agent: &mut Node<Still>) {
        agent.open.close();
        agent.opening = Some(Opening {
            incarnation: Incarnation(2),
            since: Time::ZERO,
            replaced: Vec::<NodeId>::new(),
            level: None,
            bytes: 0,
            rejected: Vec::new(),
            checking: None,
            damaged: Default::default(),
            short: None,
        });
        agent.on_opened(Incarnation(2), Some((OLD, VERSION)), 0, false);
    }

    fn is_stable(agent: &Node<Still>) -> bool {
        let key = (OLD, VERSION, Level::SHARED);
        agent.line.stable.contains(&key)
    }

    fn is_known(agent: &Node<Still>) -> bool {
        let known = agent.contents.levels_of(OLD, VERSION);
        known.contains(&Level::SHARED)
    }

    #[test]
    fn what_may_still_be_refused_does_not_count_when_its_version_is_restored() {
        for durable in [true, false] {
            let mut agent = deciding();
            opens(&mut agent);
            assert!(!is_stable(&agent) && !is_known(&agent));
            agent.was_recorded(OP, durable);
            assert_eq!(is_known(&agent), durable, "it is found by those who look");
            assert!(!is_stable(&agent), "this incarnation has its own");
        }
    }

    #[test]
    fn what_was_written_counts_and_what_was_refused_while_it_opened_does_not() {
        for durable in [true, false] {
            let mut agent = deciding();
            agent.open.close();
            agent.was_recorded(OP, durable);
            opens(&mut agent);
            assert_eq!(is_stable(&agent), durable);
        }
    }

    /// One that stands already is written again where it may be missing.
    #[test]
    fn what_is_known_to_be_decided_is_not_in_doubt() {
        let mut agent = deciding();
        agent.was_recorded(OP, true);
        agent.records(OP, &decision(), true);
        opens(&mut agent);
        assert!(is_stable(&agent));
    }
}
