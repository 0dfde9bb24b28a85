//! Communicators of two.
//!
//! A pair needs no tree and no agreement: whoever is left is alone. On one host its data
//! go through memory that both share ([`crate::lane`]), else as MPI messages. If the other
//! is dead (ULFM says so), the own contribution is the result.

mod meet;
mod messages;
mod shared;

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::body::Shape;
use crate::comms::Comm;
use crate::layer::Layer;
use crate::native::{Handle, Native};

/// What a pair's exchange came to.
pub(crate) enum Met {
    Both,
    /// The other is dead.
    Alone,
    /// MPI's code.
    Failed(c_int),
}

thread_local! {
    static SPARE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Scratch memory of at least `bytes`, aligned for any basic type, kept for the next call.
fn with_scratch<T>(bytes: usize, work: impl FnOnce(*mut u8) -> T) -> T {
    SPARE.with(|spare| {
        // An operator that calls a collective itself finds the memory taken.
        let mut own = Vec::new();
        let mut borrowed = spare.try_borrow_mut();
        let memory = match &mut borrowed {
            Ok(memory) => &mut **memory,
            Err(_) => &mut own,
        };
        let words = bytes.div_ceil(8);
        if memory.len() < words {
            memory.resize(words, 0);
        }
        work(memory.as_mut_ptr().cast())
    })
}

/// A pair at work.
pub struct Pair<'a> {
    pub(crate) layer: &'a Layer,
    pub(crate) native: &'static Native,
    pub(crate) comm: &'a Comm,
    pub(crate) peer: c_int,
}

impl<'a> Pair<'a> {
    /// The pair, if `comm` has two members and pairs talk by MPI messages.
    pub fn of(layer: &'a Layer, comm: &'a Comm) -> Option<Pair<'a>> {
        if comm.members.len() != 2 || !layer.can.native_pairs {
            return None;
        }
        let peer = comm.members[1 - comm.me as usize] as c_int;
        let native = layer.native;
        Some(Pair {
            layer,
            native,
            comm,
            peer,
        })
    }

    /// Of messages between the two: tag, communicator, datatype of bytes.
    pub(crate) fn address(&self) -> (c_int, Handle, Handle) {
        let byte = self.native.constants.byte;
        (self.comm.tag, self.layer.shadow, byte)
    }

    pub(crate) fn other_dead(&self) -> bool {
        self.layer.wounded.load(Ordering::Acquire)
            && self.layer.dead().contains(&(self.peer as u32))
    }

    fn met(&self, result: c_int) -> Met {
        if result == 0 {
            return Met::Both;
        }
        if self.layer.ulfm {
            self.layer.ask_failures();
            if self.other_dead() {
                return Met::Alone;
            }
        }
        Met::Failed(result)
    }

    fn note(&self, alone: bool) {
        if !alone && !self.layer.wounded.load(Ordering::Relaxed) {
            return;
        }
        let absent = if alone {
            vec![1 - self.comm.me]
        } else {
            Vec::new()
        };
        *self
            .comm
            .absent
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(absent);
    }

    fn end(&self, met: Met) -> c_int {
        self.note(matches!(met, Met::Alone));
        match met {
            Met::Failed(code) => code,
            _ => 0,
        }
    }

    /// MPI_Barrier.
    pub fn barrier(&self) -> c_int {
        let met = self.barrier_by_lane();
        self.end(met.unwrap_or_else(|| self.barrier_by_messages()))
    }

    /// MPI_Bcast of what `shape` says; -1 if the root is dead.
    ///
    /// # Safety
    /// As MPI_Bcast.
    pub unsafe fn bcast(&self, data: *mut c_void, shape: &Shape, root: c_int) -> c_int {
        let giving = root == self.comm.me as c_int;
        // SAFETY: the caller's promise.
        let met = unsafe { self.bcast_by_lane(data, shape, root) }.unwrap_or_else(|| {
            let (count, datatype) = shape.what();
            // SAFETY: as above.
            unsafe { self.bcast_by_messages(data, count, datatype, giving) }
        });
        if !giving && matches!(met, Met::Alone) {
            self.note(true);
            return -1;
        }
        self.end(met)
    }

    /// MPI_Reduce and MPI_Allreduce of dense data; `root` of an allreduce is `None`.
    /// `give` is the operand also where the call was in place.
    ///
    /// # Safety
    /// As MPI_Reduce; `bytes` is what `count` of the dense `datatype` take.
    pub unsafe fn reduce(&self, what: Reduce) -> c_int {
        // SAFETY: the caller's promise.
        let met = unsafe { self.reduce_by_lane(&what) };
        // SAFETY: as above.
        let met = met.unwrap_or_else(|| unsafe { self.reduce_by_messages(&what) });
        let due = what.root.is_none_or(|root| root == self.comm.me as c_int);
        if due && matches!(met, Met::Alone) && !what.in_place() && what.bytes > 0 {
            let result = what.result.cast::<u8>();
            // SAFETY: both have `bytes` and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(what.give.cast(), result, what.bytes) };
        }
        self.end(met)
    }
}

/// A reduction of a pair.
#[derive(Clone, Copy)]
pub struct Reduce {
    /// The operand.
    pub give: *const c_void,
    /// Where the result goes.
    pub result: *mut c_void,
    /// How many.
    pub count: c_int,
    /// Of which dense datatype.
    pub datatype: Handle,
    /// Their bytes.
    pub bytes: usize,
    /// The operator.
    pub op: Handle,
    /// True if it commutes.
    pub commutes: bool,
    /// The root of a reduce.
    pub root: Option<c_int>,
}

impl Reduce {
    fn in_place(&self) -> bool {
        std::ptr::eq(self.give, self.result)
    }
}
