//! Records: how they become durable, at a node and in the directory that all share.

use outlive_base::machine::Op;
use outlive_base::{Code, Entity, Error, Result, Survives};
use outlive_control::node::Input as NodeInput;
use outlive_control::node::shell::Done;
use outlive_ledger::{Record, overlooked, unfinished};

use super::*;

impl Job {
    /// A rank begins with a version, or with nothing, in an incarnation that restored this or another.
    pub(super) fn judge_start(&mut self, rank: u32, incarnation: u32, from: Key) {
        let source = self.sources.get(&incarnation).copied();
        if source.is_some_and(|source| source != from) {
            self.judge.starts_apart(self.now, rank, incarnation, from);
        }
    }

    /// Records become durable in the order in which they were asked for.
    pub(super) fn persist(
        &mut self,
        who: Process,
        life: u32,
        op: Op,
        record: Record,
        shared: bool,
    ) {
        let most = self.options.faults.sync_max.0 / 1_000;
        let mut delay = self.some_us(if self.calm { 2_000 } else { most });
        let now = self.now;
        // Syncs queue up: not for so long that the faults' end is not their end.
        if self.home(who).last_sync < now + chaos::SLOW_MAX {
            delay = delay + self.slowness(who);
        }
        let home = self.home(who);
        home.storage.records.write(op, record);
        home.last_sync = home.last_sync.max(now) + delay;
        let at = home.last_sync.since(now);
        self.after(
            at,
            Action::Synced {
                who,
                life,
                op,
                shared,
            },
        );
    }

    pub(super) fn synced(&mut self, who: Process, life: u32, op: Op, shared: bool) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            return;
        }
        let decides = self.homes[who as usize].storage.records.is(op, |record| {
            matches!(record, Record::Commit { level, .. } if level.survives() >= Survives::NodeLoss)
        });
        let met = decides && shared;
        let met = met && (self.meets(who, Occasion::Shares) || self.meets(who, Occasion::Sends));
        if met {
            self.strike(who, life);
            if self.home(who).life != life || self.home(who).agent.is_none() {
                return;
            }
        }
        let leads = self.home(who).node == self.options.coordinator;
        let records = &self.homes[who as usize].storage.records;
        let begins = leads && records.is(op, |it| matches!(it, Record::Incarnation { .. }));
        let occasion = match (leads && decides, begins) {
            (true, _) => Some(Occasion::Decides),
            (_, true) => Some(Occasion::Begins),
            _ => None,
        };
        let refuse = self.refusals(who);
        let full = || {
            let entity = Entity::File("records".into());
            Err(Error::new(Code::NoSpace, entity, "no space", "make room"))
        };
        let refused = self.random.chance(refuse);
        let result = if refused {
            self.home(who).storage.records.refuse(op);
            full()
        } else {
            self.durable(who, op, shared).map(|()| None)
        };
        let met = occasion.filter(|_| result.is_ok());
        if met.is_some_and(|occasion| self.meets(who, occasion)) {
            self.strike(who, life);
            if self.home(who).life != life || self.home(who).agent.is_none() {
                return;
            }
        }
        let by_shared = !refused && result.is_err();
        let done = Done::Persisted {
            op,
            result,
            by_shared,
        };
        self.input(who, life, NodeInput::Done(done));
    }

    /// A record has become durable; then it goes to the shared directory, if it belongs there too.
    fn durable(&mut self, who: Process, op: Op, shared: bool) -> Result<()> {
        let records = &mut self.home(who).storage.records;
        let again = shared && records.is(op, |it| records.readable().any(|known| known == it));
        let Some(record) = records.sync(op) else {
            return Ok(());
        };
        self.on_durable(who, &record);
        if !shared {
            return Ok(());
        }
        let node = self.home(who).node;
        let there = self.persist_shared(node, record.clone());
        // A decision that was reported nowhere is taken back.
        if there.is_err() && !again {
            self.takes_back(who, &record);
        }
        there
    }

    /// What the agent before this one had decided and recorded here alone is written to the
    /// shared directory; what that does not take is decided anew. True if it cannot be read.
    pub(super) fn finish_shared(&mut self, who: Process, found: &mut Vec<Record>) -> bool {
        let node = self.options.coordinator;
        if self.shared_is_hidden(node) {
            return !unfinished(found, &[]).is_empty();
        }
        found.extend(overlooked(found, &self.shared.records));
        let missing = unfinished(found, &self.shared.records);
        let mut refused = false;
        for record in missing.into_iter().cloned().collect::<Vec<_>>() {
            refused = refused || self.persist_shared(node, record.clone()).is_err();
            if refused {
                found.retain(|other| *other != record);
                self.takes_back(who, &record);
            }
        }
        false
    }

    /// A decision that shared storage refused, and that nobody was told of, is none.
    pub(super) fn takes_back(&mut self, who: Process, record: &Record) {
        if let Record::Commit {
            incarnation,
            version,
            level,
            ..
        } = record
        {
            let home = self.home(who);
            home.storage.records.remove(|it| it == record);
            let node = home.node;
            let key = (incarnation.0, version.0);
            self.judge.takes_back(node, key, *level);
        }
    }

    /// Created exclusively: what another run has decided stands.
    pub(super) fn persist_shared(&mut self, node: u32, record: Record) -> Result<()> {
        self.shared_refuses(node)?;
        let name = |record: &Record| match *record {
            Record::Commit {
                incarnation,
                version,
                level,
                ..
            } => Some((incarnation.0, Some((version.0, level)))),
            Record::Incarnation { number, .. } => Some((number.0, None)),
            _ => None,
        };
        let stands = self
            .shared
            .records
            .iter()
            .find(|it| name(it) == name(&record));
        let same = |found: &Record| match (found, &record) {
            (Record::Commit { parts: found, .. }, Record::Commit { parts, .. }) => found == parts,
            _ => *found == record,
        };
        match stands.map(same) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::new(
                Code::JobBusy,
                Entity::File("shared".into()),
                "another run of the job has written a different decision there",
                "let one run at a time use a job's store",
            )),
            None => {
                self.shared.records.push(record);
                Ok(())
            }
        }
    }
}
