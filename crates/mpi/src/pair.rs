//! Communicators of two: one message each way, from the user's buffer into the user's.
//!
//! A pair needs no tree and no agreement: whoever is left is alone. The tag names the
//! communicator, messages of one tag arrive in order, and both call collectives in one
//! order, so no header travels and nothing is copied or allocated. If the other is dead
//! (ULFM says so), the own contribution is the result.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::comms::Comm;
use crate::layer::Layer;
use crate::native::{Handle, Native};

/// What a pair's message exchange came to.
enum Met {
    Both,
    /// The other is dead.
    Alone,
    /// MPI's code.
    Failed(c_int),
}

/// Bytes above which an allreduce exchanges halves: each combines one.
const HALVES_BYTES: usize = 64 << 10;

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
    layer: &'a Layer,
    native: &'static Native,
    comm: &'a Comm,
    peer: c_int,
}

impl<'a> Pair<'a> {
    /// The pair, if `comm` has two members and pairs talk by MPI messages.
    pub fn of(layer: &'a Layer, comm: &'a Comm) -> Option<Pair<'a>> {
        if comm.members.len() != 2 || !layer.pairs {
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

    fn other_dead(&self) -> bool {
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
    pub fn barrier(&self) -> c_int {
        let byte = self.native.constants.byte;
        // SAFETY: messages without data touch no buffer.
        let met = unsafe { self.swap(std::ptr::null(), std::ptr::null_mut(), 0, byte) };
        self.end(met)
    }

    fn end(&self, met: Met) -> c_int {
        self.note(matches!(met, Met::Alone));
        match met {
            Met::Failed(code) => code,
            _ => 0,
        }
    }

    /// MPI_Bcast; -1 if the root is dead.
    ///
    /// # Safety
    /// As MPI_Bcast.
    pub unsafe fn bcast(
        &self,
        data: *mut c_void,
        count: c_int,
        datatype: Handle,
        root: c_int,
    ) -> c_int {
        let giving = root == self.comm.me as c_int;
        if self.other_dead() {
            self.note(true);
            return if giving { 0 } else { -1 };
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
        let met = self.met(result);
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
        let Reduce {
            give,
            result,
            count,
            datatype,
            bytes,
            root,
            ..
        } = what;
        let me = self.comm.me as c_int;
        let in_place = std::ptr::eq(give, result);
        if root.is_some_and(|root| root != me) {
            if self.other_dead() {
                self.note(true);
                return 0;
            }
            let (tag, shadow) = (self.comm.tag, self.layer.shadow);
            // SAFETY: the caller's promise about the operand.
            let sent = unsafe { (self.native.send)(give, count, datatype, self.peer, tag, shadow) };
            return self.end(self.met(sent));
        }
        // In place, a death between the two exchanges would leave half a result.
        let halves = root.is_none() && what.commutes && !(in_place && self.layer.ulfm);
        let met = if halves && bytes >= HALVES_BYTES && count > 1 {
            // SAFETY: the caller's promise.
            unsafe { self.halves(&what) }
        } else if in_place || (!what.commutes && me == 1) {
            // SAFETY: the scratch has `bytes`, which is what the datatype takes.
            with_scratch(bytes, |scratch| unsafe {
                self.through(&what, scratch.cast())
            })
        } else {
            // SAFETY: operand and result do not overlap (MPI 4.1, section 6.9.1).
            unsafe { self.straight(&what) }
        };
        if matches!(met, Met::Alone) && !in_place {
            // SAFETY: both have `bytes` and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(give.cast::<u8>(), result.cast(), bytes) };
        }
        self.end(met)
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

    unsafe fn local(
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
            let in_place = std::ptr::eq(what.give, what.result);
            if what.commutes || self.comm.me == 1 {
                // result := scratch (op) own
                if !in_place {
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
        let in_place = std::ptr::eq(what.give, what.result);
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
