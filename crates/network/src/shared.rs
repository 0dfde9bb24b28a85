//! What the callers' threads and the event loop share: queues, addresses,
//! wishes. One lock, held for moments; the loop is woken by an eventfd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outlive_base::NodeId;
use rustix::event::EventfdFlags;

use crate::stream::Stream;

/// One peer, as callers see it.
#[derive(Debug, Default)]
pub(crate) struct PeerDesk {
    pub(crate) address: Option<SocketAddr>,
    /// The address came from the caller, not from the peer itself.
    pub(crate) address_given: bool,
    /// Somebody sent something: keep a connection.
    pub(crate) wanted: bool,
    /// A connection stands, with this epoch of the peer.
    pub(crate) linked: Option<u64>,
    /// The queue was emptied for a newer holder of the place: what was queued since
    /// is for it.
    pub(crate) renewed: bool,
    /// What is queued is for this epoch of the peer and newer ones: the caller named
    /// it when it announced the newer holder of the place.
    pub(crate) meant_for: u64,
    /// [`crate::Endpoint::forget`] was called and no newer epoch came since.
    pub(crate) forgotten: bool,
    pub(crate) queue: VecDeque<Vec<u8>>,
    pub(crate) queued_bytes: usize,
}

impl PeerDesk {
    pub(crate) fn clear_queue(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// Takes whole messages of together about `bytes`, at least one, for a connection
    /// with epoch `epoch` of the peer. None for one that the caller has given up: the
    /// loop may not have heard of that yet, and what was queued since is for another.
    pub(crate) fn take(&mut self, bytes: usize, epoch: u64) -> Vec<Vec<u8>> {
        let (mut taken, mut sum) = (Vec::new(), 0);
        if self.linked != Some(epoch) || epoch < self.meant_for {
            return taken;
        }
        while sum < bytes {
            let Some(message) = self.queue.pop_front() else {
                break;
            };
            sum += message.len();
            taken.push(message);
        }
        self.queued_bytes -= sum;
        taken
    }
}

#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) peers: BTreeMap<NodeId, PeerDesk>,
    /// Peers with something new for the loop.
    pub(crate) dirty: BTreeSet<NodeId>,
    /// Something waits for the next wake.
    pub(crate) posted: bool,
    /// Peers whose connections must close, unless they are with this epoch or a newer.
    pub(crate) forgotten: BTreeMap<NodeId, u64>,
    /// Streams to be watched until something comes.
    pub(crate) parked: Vec<Stream>,
    /// The loop is asked to end; true: after sending what is queued.
    pub(crate) stop: Option<bool>,
    /// `isolate` changed.
    pub(crate) isolation_changed: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    desk: Mutex<Desk>,
    wake: OwnedFd,
    woken: AtomicBool,
}

impl Shared {
    pub(crate) fn new() -> std::io::Result<Shared> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        Ok(Shared {
            desk: Mutex::default(),
            wake,
            woken: AtomicBool::new(false),
        })
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        // No code panics while it holds the lock; if it did, the desk is still whole.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// Wakes the loop; many wakes before it looks cost one write.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // The counter of an eventfd cannot overflow by one write a wake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// The loop looked; called before it reads the desk.
    pub(crate) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        // Reads what the wakers have written: what they did before is seen from now on.
        self.woken.swap(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_given_up_takes_nothing() {
        let queue = || VecDeque::from([vec![1], vec![2]]);
        let mut desk = PeerDesk {
            linked: Some(1),
            queue: queue(),
            queued_bytes: 2,
            ..PeerDesk::default()
        };
        assert_eq!(desk.take(1, 1), [vec![1]], "it stands");
        // The caller has announced epoch 2; the loop still holds epoch 1's connection.
        (desk.linked, desk.meant_for) = (None, 2);
        assert!(desk.take(9, 1).is_empty());
        // Epoch 1 has even connected again meanwhile.
        desk.linked = Some(1);
        assert!(desk.take(9, 1).is_empty());
        desk.linked = Some(3);
        assert_eq!(desk.take(9, 3), [vec![2]], "a newer one still");
        assert_eq!(desk.queued_bytes, 0);
    }
}
