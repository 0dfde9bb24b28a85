//! Writes to shared storage that outlast who began them. A process ends, or its node is lost, while
//! what it writes is on its way: it appears there all the same, whole, up to seconds later, when
//! others have opened incarnations without it.

use outlive_base::{Level, Time};
use outlive_control::node::shell::Target;
use outlive_ledger::Record;

use super::node::Process;
use super::storage::Container;
use super::*;

/// Most time until it appears, and in half of the cases.
const LATE_MAX: Time = Time::from_secs(4);
const SOON: Time = Time::from_ms(400);

/// What appears late.
pub enum Late {
    Container(Key, u32, Container),
    Record(u32, Record),
}

impl Job {
    fn is_late(&mut self) -> bool {
        let late = self.options.late;
        late > 0 && self.random.chance(late)
    }

    fn comes(&mut self, late: Late) {
        let soon = self.random.chance(500_000);
        let most = if soon { SOON } else { LATE_MAX };
        let delay = Time(1 + self.random.below(most.0));
        let late = Box::new(late);
        self.after(delay, Action::Lands { late });
    }

    /// Who writes a container has ended.
    pub(super) fn outlasts(&mut self, who: Process, key: Key, target: Target, good: Container) {
        if target == Target::Shared && self.is_late() {
            let owner = self.home(who).node;
            self.comes(Late::Container(key, owner, good));
        }
    }

    /// The node that made these decisions durable is lost; it may have sent them to shared storage.
    pub(super) fn records_outlast(&mut self, who: Process, records: &[Record]) {
        let home = self.home(who);
        let (node, lost) = (home.node, home.lost);
        if !lost || node != self.options.coordinator || !self.options.levels.contains(Level::SHARED)
        {
            return;
        }
        for record in records {
            let shared = match record {
                Record::Commit { level, .. } => *level == Level::SHARED,
                record => matches!(record, Record::Incarnation { .. }),
            };
            if shared && self.is_late() {
                self.comes(Late::Record(node, record.clone()));
            }
        }
    }

    /// It appears, if shared storage takes anything now.
    pub(super) fn lands(&mut self, late: Late) {
        match late {
            Late::Container(key, owner, container) => {
                if self.shared_refuses(owner).is_ok() {
                    self.note(|| format!("the container of {key:?} of n{owner} appears late"));
                    self.stored(Level::SHARED, key, owner, &container.bare());
                    self.shared.containers.insert((key, owner), container);
                    self.late += 1;
                }
            }
            Late::Record(node, record) => {
                self.note(|| format!("a record of n{node} appears late: {record:?}"));
                let taken = self.persist_shared(node, record);
                self.late += u64::from(taken.is_ok());
                // The next opening finds it, perhaps before there is a newer version.
                if taken.is_ok() && !self.calm && self.random.chance(700_000) {
                    self.rank_fails();
                }
            }
        }
    }
}

impl Options {
    /// Draws in which histories writes outlast their processes: half of those that have shared storage.
    pub(super) fn with_late_writes(mut self, seed: u64) -> Options {
        let mut random = Sequence::new(seed, 0x6c61_6e64);
        if self.levels.contains(Level::SHARED) && random.chance(500_000) {
            self.late = 1 + random.below(1_000_000) as u32;
        }
        self
    }
}
