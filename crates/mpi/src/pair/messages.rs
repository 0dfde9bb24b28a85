//! A pair's data as MPI messages: one each way, from the user's buffer into the user's.
//!
//! The tag names the communicator, messages of one tag arrive in order, and both call
//! collectives in one order, so no header travels and nothing is copied or allocated.

use std::ffi::{c_int, c_void};

use super::{Met, Pair, Reduce, with_scratch};
use crate::native::Handle;

/// Bytes above which an allreduce exchanges halves: each combines one.
const HALVES_BYTES: usize = 64 << 10;

impl Pair<'_> {
    /// Sends and receives at once.
    ///
    /// # Safety
    /// Both buffers hold `count` of `datatype` and do not overlap.
    unsafe fn swap(
        &self,
        give: *const c_void,
        take: *mut c_void,
        count: c_int,
        datatype: Handle,
    ) -> Met {
        if self.other_dead() {
            return Met::Alone;
        }
        let (tag, shadow, peer) = (self.comm.tag, self.layer.shadow, self.peer);
        // SAFETY: the caller's promise about the buffers.
        let result = unsafe {
            let ignore = self.native.constants.status_ignore as *mut c_void;
            let swap = self.native.sendrecv;
            swap(
                give, count, datatype, peer, tag, take, count, datatype, peer, tag, shadow, ignore,
            )
        };
        self.met(result)
    }

    /// MPI_Barrier.
    pub(super) fn barrier_by_messages(&self) -> Met {
        let byte = self.native.constants.byte;
        // SAFETY: messages without data touch no buffer.
        unsafe { self.swap(std::ptr::null(), std::ptr::null_mut(), 0, byte) }
    }

    /// MPI_Bcast.
    ///
    /// # Safety
    /// As MPI_Bcast.
    pub(super) unsafe fn bcast_by_messages(
        &self,
        data: *mut c_void,
        count: c_int,
        datatype: Handle,
        giving: bool,
    ) -> Met {
        if self.other_dead() {
            return Met::Alone;
        }
        let (tag, shadow, peer) = (self.comm.tag, self.layer.shadow, self.peer);
        // SAFETY: the caller's promise about the buffer.
        let result = unsafe {
            if giving {
                (self.native.send)(data, count, datatype, peer, tag, shadow)
            } else {
                let ignore = self.native.constants.status_ignore as *mut c_void;
                (self.native.recv)(data, count, datatype, peer, tag, shadow, ignore)
            }
        };
        self.met(result)
    }

    /// MPI_Reduce and MPI_Allreduce of dense data.
    ///
    /// # Safety
    /// As MPI_Reduce.
    pub(super) unsafe fn reduce_by_messages(&self, what: &Reduce) -> Met {
        let me = self.comm.me as c_int;
        if what.root.is_some_and(|root| root != me) {
            if self.other_dead() {
                return Met::Alone;
            }
            let (tag, shadow) = (self.comm.tag, self.layer.shadow);
            // SAFETY: the caller's promise about the operand.
            let sent = unsafe {
                let send = self.native.send;
                send(what.give, what.count, what.datatype, self.peer, tag, shadow)
            };
            return self.met(sent);
        }
        let in_place = what.in_place();
        // In place, a death between the two exchanges would leave half a result.
        let halves = what.root.is_none() && what.commutes && !(in_place && self.layer.ulfm);
        if halves && what.bytes >= HALVES_BYTES && what.count > 1 {
            // SAFETY: the caller's promise.
            unsafe { self.halves(what) }
        } else if in_place || (!what.commutes && me == 1) {
            // SAFETY: the scratch has `bytes`, which is what the datatype takes.
            with_scratch(what.bytes, |scratch| unsafe {
                self.through(what, scratch.cast())
            })
        } else {
            // SAFETY: operand and result do not overlap (MPI 4.1, section 6.9.1).
            unsafe { self.straight(what) }
        }
    }

    unsafe fn fetch(&self, what: &Reduce, into: *mut c_void) -> Met {
        let Reduce {
            give,
            count,
            datatype,
            root,
            ..
        } = *what;
        if root.is_none() {
            // SAFETY: the callers' promise.
            return unsafe { self.swap(give, into, count, datatype) };
        }
        if self.other_dead() {
            return Met::Alone;
        }
        let (tag, shadow) = (self.comm.tag, self.layer.shadow);
        // SAFETY: the callers' promise.
        let result = unsafe {
            let ignore = self.native.constants.status_ignore as *mut c_void;
            (self.native.recv)(into, count, datatype, self.peer, tag, shadow, ignore)
        };
        self.met(result)
    }

    pub(super) unsafe fn local(
        &self,
        what: &Reduce,
        left: *const c_void,
        right: *mut c_void,
        count: c_int,
    ) -> Met {
        // SAFETY: the callers' promise; right := left (op) right.
        match unsafe { (self.native.reduce_local)(left, right, count, what.datatype, what.op) } {
            0 => Met::Both,
            code => Met::Failed(code),
        }
    }

    /// The other's operand lands in the result and is combined there.
    unsafe fn straight(&self, what: &Reduce) -> Met {
        // SAFETY: the caller's promise. Rank 0 stands left; rank 1 comes here only if
        // the operator commutes.
        unsafe {
            match self.fetch(what, what.result) {
                Met::Both => self.local(what, what.give, what.result, what.count),
                met => met,
            }
        }
    }

    /// The other's operand lands in scratch memory.
    unsafe fn through(&self, what: &Reduce, scratch: *mut c_void) -> Met {
        // SAFETY: the caller's promise.
        unsafe {
            let met = self.fetch(what, scratch);
            if !matches!(met, Met::Both) {
                return met;
            }
            self.combine(what, scratch)
        }
    }

    /// The other's whole operand, in scratch memory, with the own.
    ///
    /// # Safety
    /// As MPI_Reduce; `scratch` holds the other's operand.
    pub(super) unsafe fn combine(&self, what: &Reduce, scratch: *mut c_void) -> Met {
        // SAFETY: the caller's promise.
        unsafe {
            if what.commutes || self.comm.me == 1 {
                // result := scratch (op) own
                if !what.in_place() {
                    std::ptr::copy_nonoverlapping(
                        what.give.cast::<u8>(),
                        what.result.cast(),
                        what.bytes,
                    );
                }
                return self.local(what, scratch, what.result, what.count);
            }
            // scratch := own (op) scratch
            let met = self.local(what, what.give, scratch, what.count);
            std::ptr::copy_nonoverlapping(scratch.cast::<u8>(), what.result.cast(), what.bytes);
            met
        }
    }

    /// Long allreduce: each gets one half of the other's operand, combines it, and gives
    /// the combined half back: the same bytes, half the arithmetic.
    unsafe fn halves(&self, what: &Reduce) -> Met {
        if self.other_dead() {
            return Met::Alone;
        }
        let size = what.bytes / what.count as usize;
        let low = what.count / 2;
        let high = what.count - low;
        let me = self.comm.me as usize;
        // Rank 0 combines the low half.
        let (own_at, own, other_at, other) = if me == 0 {
            (0, low, low, high)
        } else {
            (low, high, 0, low)
        };
        let in_place = what.in_place();
        let (tag, shadow, peer) = (self.comm.tag, self.layer.shadow, self.peer);
        let datatype = what.datatype;
        let (own_offset, other_offset) = (own_at as usize * size, other_at as usize * size);
        let exchange = |give: *const u8, gives: c_int, take: *mut u8, takes: c_int| {
            // SAFETY: the places below lie within the caller's buffers or the scratch, and
            // what is given and taken does not overlap.
            self.met(unsafe {
                let ignore = self.native.constants.status_ignore as *mut c_void;
                let (give, take) = (give.cast(), take.cast());
                let swap = self.native.sendrecv;
                swap(
                    give, gives, datatype, peer, tag, take, takes, datatype, peer, tag, shadow,
                    ignore,
                )
            })
        };
        let give = what.give.cast::<u8>();
        let result = what.result.cast::<u8>();
        let work = |take: *mut u8| {
            // SAFETY: offsets within the operand.
            let met = exchange(unsafe { give.add(other_offset) }, other, take, own);
            if !matches!(met, Met::Both) {
                return met;
            }
            // SAFETY: as above. In place, the own half of the result is the operand.
            unsafe {
                if in_place {
                    self.local(what, take.cast(), result.add(own_offset).cast(), own)
                } else {
                    self.local(what, give.add(own_offset).cast(), take.cast(), own)
                }
            }
        };
        let met = if in_place {
            with_scratch(own as usize * size, work)
        } else {
            // SAFETY: offset within the result.
            work(unsafe { result.add(own_offset) })
        };
        if !matches!(met, Met::Both) {
            return met;
        }
        // SAFETY: both halves lie within the result and do not overlap.
        let (mine, theirs) = unsafe { (result.add(own_offset), result.add(other_offset)) };
        exchange(mine, own, theirs, other)
    }
}
