//! How the machine is, as the node's sensors have said.

use super::{Core, News};
use crate::health::NodeHealth;
use crate::node::shell::Shell;

impl<S: Shell> Core<S> {
    /// How this node's machine is, and how long ago that was read. [`News::Health`] tells when it
    /// has changed.
    pub(in crate::node) fn health(&self) -> NodeHealth {
        let (read, health) = &self.health;
        NodeHealth {
            age_ms: self.now.since(*read).as_ms() as u64,
            ..health.clone()
        }
    }

    /// It was read now.
    pub(in crate::node) fn set_health(&mut self, health: NodeHealth) {
        self.health = (self.now, health);
    }

    /// Services hear of it.
    pub(in crate::node) fn health_changed(&mut self) {
        self.news(News::Health);
    }

    /// For tests.
    #[cfg(test)]
    pub(in crate::node) fn set_health_interval(&mut self, ms: u64) {
        self.spec.health.interval_ms = ms;
    }
}
