//! Which incarnation is open, and with what.

use outlive_base::{Incarnation, Time, Version};

use crate::orders::Notice;

/// See the module.
pub(super) struct Open {
    /// 0: none.
    incarnation: Incarnation,
    restored: Option<(Incarnation, Version)>,
    /// When this agent began, or the incarnation was opened.
    since: Time,
    /// Ranks of the job, as the launcher heard.
    ranks: Option<u32>,
    /// What the launcher was told then.
    told: Vec<Notice>,
}

impl Open {
    pub const fn none(now: Time) -> Open {
        Open {
            incarnation: Incarnation(0),
            restored: None,
            since: now,
            ranks: None,
            told: Vec::new(),
        }
    }

    /// The open incarnation; 0: none.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub const fn is_any(&self) -> bool {
        self.incarnation.0 != 0
    }

    /// What it restored.
    pub const fn restored(&self) -> Option<(Incarnation, Version)> {
        self.restored
    }

    /// When this agent began, or the incarnation was opened.
    pub const fn since(&self) -> Time {
        self.since
    }

    /// How many ranks the job has, if the launcher has said.
    pub const fn ranks(&self) -> Option<u32> {
        self.ranks
    }

    /// The launcher has heard how many ranks the job has.
    pub const fn note_ranks(&mut self, ranks: u32) {
        self.ranks = Some(ranks);
    }

    /// Another is being opened.
    pub fn close(&mut self) {
        *self = Open::none(self.since);
    }

    /// It is open from now on.
    pub fn begin(
        &mut self,
        incarnation: Incarnation,
        restored: Option<(Incarnation, Version)>,
        now: Time,
    ) {
        self.take_up(incarnation, restored);
        self.since = now;
    }

    /// It was opened before this agent began.
    pub fn take_up(&mut self, incarnation: Incarnation, restored: Option<(Incarnation, Version)>) {
        if incarnation != self.incarnation {
            self.told.clear();
        }
        self.incarnation = incarnation;
        self.restored = restored;
    }

    /// The launcher was told this of it.
    pub fn was_told(&mut self, notice: Notice) {
        self.told.push(notice);
    }

    /// What the launcher was told of it.
    pub fn told(&self) -> &[Notice] {
        &self.told
    }
}
