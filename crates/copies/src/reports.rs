//! What other threads tell the agent's thread. That one waits for the network; whoever has
//! something for it wakes it.

use std::time::Duration;

use crossbeam_channel::{SendError, SendTimeoutError, Sender};
use outlive_network::Waker;

/// The end of a queue at which other threads are.
pub struct Reports<T> {
    queue: Sender<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Reports<T> {
    fn clone(&self) -> Reports<T> {
        Reports {
            queue: self.queue.clone(),
            waker: self.waker.clone(),
        }
    }
}

impl<T> Reports<T> {
    /// Over a queue of which the reader waits with this waker's driver.
    pub fn new(queue: Sender<T>, waker: Waker) -> Reports<T> {
        Reports {
            queue,
            waker: Some(waker),
        }
    }

    /// Over a queue of which the reader waits for it alone.
    pub fn unwatched(queue: Sender<T>) -> Reports<T> {
        Reports { queue, waker: None }
    }

    /// Tells something.
    ///
    /// # Errors
    /// If nobody is left to hear it.
    pub fn send(&self, what: T) -> Result<(), SendError<T>> {
        let sent = self.queue.send(what);
        self.wake();
        sent
    }

    /// Leaves something for the reader's next turn, which is not worth one of its own. It comes
    /// with the next heartbeat at the latest.
    ///
    /// # Errors
    /// If nobody is left to hear it.
    pub fn leave(&self, what: T) -> Result<(), SendError<T>> {
        self.queue.send(what)
    }

    /// Tells something, where the queue is bounded.
    ///
    /// # Errors
    /// If there was no room in this time, or nobody is left to hear it.
    pub fn send_timeout(&self, what: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        let sent = self.queue.send_timeout(what, timeout);
        self.wake();
        sent
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}
