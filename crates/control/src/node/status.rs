//! What `outlive status` is told. Listing directories is no business of every second: what lies in
//! node storage is counted by a worker, and holds for a while.

use outlive_base::Time;

use super::core::Core;
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};
use crate::orders::{Notice, Order};

/// How long what was found holds.
const HOLDS: Time = Time::from_secs(10);

/// Bytes in node storage and free bytes there, and when they were last asked for.
pub struct Status {
    asked: Time,
    disk: (u64, u64),
}

impl Service for Status {
    type Word = Silent;

    fn new(now: Time) -> Status {
        Status {
            asked: now,
            disk: (0, 0),
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        if !matches!(order, Order::Status) {
            return Some(order);
        }
        let status = core.status(self.disk);
        if core.now().since(self.asked) >= HOLDS {
            core.begin(Ask::DiskUsage);
            self.asked = core.now();
        }
        core.tell(&Notice::Status(status));
        core.tell_spans();
        None
    }

    fn on_done<S: Shell>(&mut self, _: &mut Core<S>, done: Done<S::Slab>) -> Option<Done<S::Slab>> {
        match done {
            Done::DiskUsage(found) => {
                self.disk = found;
                None
            }
            done => Some(done),
        }
    }
}
