//! What `outlive status` shows of this node beside its versions, and what its user is warned of.

use outlive_base::{Entity, Error, Time};

use super::{Core, News};
use crate::health::NodeHealth;
use crate::node::copies::OnTheWay;
use crate::node::shell::Shell;
use crate::orders::{Notice, STATUS_WARNINGS_MAX};
use crate::scrubbing::ScrubStatus;
use crate::slots::Offset;
use crate::told::{Said, Told, is_of_connection};
use crate::transfers::TransferStatus;

/// See the module.
pub(super) struct Shown {
    /// What was warned of.
    told: Told,
    /// How the machine is, and when that was read.
    health: (Time, NodeHealth),
    /// What was read before it was needed.
    scrub: ScrubStatus,
    /// Copies on their way to shared storage.
    transfers: Vec<OnTheWay>,
    /// Service work may be done.
    serving: bool,
    /// How the coordinator's clock stands to this node's.
    clock: Option<Offset>,
}

impl Shown {
    pub fn new(troubles: Vec<Error>, now: Time) -> Shown {
        let unread = NodeHealth::unknown("the sensors have not been read yet");
        Shown {
            told: Told::of(troubles),
            health: (now, unread),
            scrub: ScrubStatus::default(),
            transfers: Vec::new(),
            serving: true,
            clock: None,
        }
    }

    /// Warnings: each kind with its count, the newest ones.
    pub fn warnings(&self) -> Vec<Error> {
        let entries = self.told.entries();
        let skipped = entries.len().saturating_sub(STATUS_WARNINGS_MAX);
        let newest = entries[skipped..].iter();
        newest.map(|entry| entry.error.clone()).collect()
    }

    pub const fn scrub(&self) -> &ScrubStatus {
        &self.scrub
    }

    pub const fn clock(&self) -> Option<Offset> {
        self.clock
    }

    pub fn transfers(&self, now: Time) -> Vec<TransferStatus> {
        self.transfers.iter().map(|it| it.status(now)).collect()
    }
}

impl<S: Shell> Core<S> {
    /// Something went wrong that does not stop the job (P4): remembered and reported.
    pub(in crate::node) fn warn(&mut self, error: Error) {
        // What the loss of a node would explain is told by the launcher, if nothing does.
        let other = matches!(error.entity(), Entity::Node(node) if *node != self.me.0);
        match self.shown.told.add(None, error.clone()) {
            _ if other && is_of_connection(&error) => {
                tracing::info!(node = self.me.0, %error, "a peer's connection");
            }
            Said::Again => tracing::info!(node = self.me.0, %error, "warning, again"),
            Said::New | Said::Grown(..) => tracing::warn!(node = self.me.0, %error, "warning"),
        }
        self.tell(&Notice::Warning(error));
    }

    /// Node storage refuses something: told once, until it works again; what that costs
    /// is told version by version by the coordinator.
    pub(super) fn warn_of_storage(&mut self, error: Error) {
        if !self.trouble.is_news(error.code()) {
            return tracing::info!(node = self.me.0, %error, "storage, again");
        }
        self.warn(error);
    }

    /// How this node's machine is, and how long ago that was read. [`News::Health`] tells when it
    /// has changed.
    pub(in crate::node) fn health(&self) -> NodeHealth {
        let (read, health) = &self.shown.health;
        NodeHealth {
            age_ms: self.now.since(*read).as_ms() as u64,
            ..health.clone()
        }
    }

    /// It was read now.
    pub(in crate::node) fn set_health(&mut self, health: NodeHealth) {
        self.shown.health = (self.now, health);
    }

    /// Services hear of it.
    pub(in crate::node) fn health_changed(&mut self) {
        self.news(News::Health);
    }

    /// True if work that need not be done at once may be done now.
    pub(in crate::node) const fn may_serve(&self) -> bool {
        self.shown.serving
    }

    /// It may be done from now on, or not.
    pub(in crate::node) fn set_serving(&mut self, may: bool) {
        self.shown.serving = may;
        self.news(News::Serving);
    }

    /// How the coordinator's clock stands to this node's, as `outlive status` says.
    pub(in crate::node) const fn note_clock(&mut self, clock: Option<Offset>) {
        self.shown.clock = clock;
    }

    /// What is said from now on of reading before it is needed.
    pub(in crate::node) fn note_scrub(&mut self, said: ScrubStatus) {
        self.shown.scrub = said;
    }

    /// What is said from now on of copies on their way to shared storage.
    pub(in crate::node) fn note_transfers(&mut self, transfers: Vec<OnTheWay>) {
        self.shown.transfers = transfers;
    }

    #[cfg(test)]
    pub(in crate::node) fn set_service(&mut self, service: crate::slots::ServiceSettings) {
        self.spec.service = service;
    }

    /// A rank is connected, as it says.
    #[cfg(test)]
    pub(in crate::node) fn connect_rank(
        &mut self,
        rank: outlive_base::Rank,
        link: crate::node::shell::Link,
    ) {
        self.ranks.entry(rank, 2).link = Some(link);
    }

    #[cfg(test)]
    pub(in crate::node) fn set_health_interval(&mut self, ms: u64) {
        self.spec.health.interval_ms = ms;
    }
}
