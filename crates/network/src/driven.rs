//! An endpoint without a thread: its caller's own thread drives it.
//!
//! A message then costs one waking of that thread, and an answer none: with a thread
//! between them each costs two. For services that wait for the network most of the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::reactor::Reactor;
use crate::shared::Shared;

/// What drives an endpoint. All that the endpoint does, but for its streams, happens in
/// calls of this; none of them but [`Driver::wait`] blocks.
pub struct Driver {
    reactor: Reactor,
}

/// Ends a [`Driver::wait`], from any thread. Copies cost little.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// Whoever waits looks again; also if it begins to wait only now. What was written
    /// before this call is seen by who looks after the wait.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl Driver {
    pub(crate) fn new(reactor: Reactor) -> Driver {
        Driver { reactor }
    }

    /// What ends a wait.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(self.reactor.shared()))
    }

    /// The next event, if there is one.
    pub fn next_event(&mut self) -> Option<Event> {
        self.reactor.take_event()
    }

    /// True if an event waits.
    pub fn has_event(&self) -> bool {
        self.reactor.has_event()
    }

    /// Lets what was posted leave, and does what else the endpoint was asked for.
    pub fn flush(&mut self) {
        self.reactor.on_desk();
    }

    /// Does what is due, and waits until something happens, for at most `timeout`. Does not
    /// wait while an event is there.
    pub fn wait(&mut self, timeout: Duration) {
        self.reactor.on_desk();
        self.reactor.turn(timeout);
    }

    /// Waits for an event until `until`.
    pub fn event_until(&mut self, until: Instant) -> Option<Event> {
        loop {
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.wait(left);
        }
    }
}
