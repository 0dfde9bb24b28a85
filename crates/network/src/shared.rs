//! What the callers' threads and the event loop share: queues, addresses,
//! wishes. One lock, held for moments; the loop is woken by an eventfd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outlive_base::NodeId;
use rustix::event::EventfdFlags;

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

    /// Takes whole messages of together about `bytes`, at least one.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<Vec<u8>> {
        let (mut taken, mut sum) = (Vec::new(), 0);
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
    /// Peers whose connections must close, unless they are with this epoch or a newer.
    pub(crate) forgotten: BTreeMap<NodeId, u64>,
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
        self.woken.store(false, Ordering::SeqCst);
    }
}
