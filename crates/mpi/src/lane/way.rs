//! What the data of a communicator's two members go through, and how many lanes there are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Lane;

/// Most lanes of a process, so that many communicators do not eat its memory.
pub(crate) const LANES_MAX: usize = 64;

static LANES: AtomicUsize = AtomicUsize::new(0);

/// What a pair's data go through.
pub enum Way {
    /// MPI's messages.
    Messages,
    /// Shared memory.
    Lane(Mutex<Counted>),
    /// They could not agree within the bound: collectives fail.
    None,
}

/// A lane, and its place among the most that a process has.
pub struct Counted {
    /// The lane.
    pub lane: Lane,
    _place: Permit,
}

impl Counted {
    /// A lane that has its place until it is dropped.
    pub(crate) fn new(lane: Lane, place: Permit) -> Counted {
        Counted {
            lane,
            _place: place,
        }
    }
}

/// One of [`LANES_MAX`] places, given back when it is dropped.
pub(crate) struct Permit;

impl Permit {
    /// A place, if there is one left.
    pub fn take() -> Option<Permit> {
        let taken = LANES.fetch_add(1, Ordering::AcqRel);
        let place = Permit;
        (taken < LANES_MAX).then_some(place)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        LANES.fetch_sub(1, Ordering::AcqRel);
    }
}
