//! A lane: how the two members of a communicator on one host pass data through memory
//! that they share.
//!
//! A ring each way ([`ring`]). A message is a head, which says for which call it is, and
//! its data in chunks, one a slot; a longer one is announced by its head and then travels
//! as an MPI message. Invariants: who receives goes by the head and believes nothing else
//! of the other; nothing is copied beyond what this side asked for, and of a message that
//! is not the expected one nothing is used; a wait ends when the other is dead, at the
//! latest at the bound (P5).

pub mod ring;
pub mod segment;
pub mod way;

use std::sync::atomic::{AtomicU32, Ordering};

use ring::{Free, Reader, Shared, Writer};
use segment::Segment;

/// What a message is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CallKind {
    /// MPI_Barrier.
    Barrier = 1,
    /// MPI_Bcast.
    Bcast,
    /// MPI_Reduce.
    Reduce,
    /// MPI_Allreduce.
    Allreduce,
    /// The receiver of a long message is ready for it.
    Ready,
}

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Which call of this communicator's lane.
    pub call: u32,
    /// What it is part of.
    pub kind: CallKind,
    /// The root, or 0.
    pub root: u8,
    /// The data come as an MPI message.
    pub long: bool,
    /// Bytes of the data.
    pub bytes: u32,
    /// Bytes of each chunk but the last.
    pub chunk: u32,
}

impl Head {
    fn words(&self) -> [u64; 2] {
        let marks = u64::from(self.kind as u8) | u64::from(self.root) << 8;
        let marks = marks | u64::from(self.long) << 16;
        [
            u64::from(self.call) | marks << 32,
            u64::from(self.bytes) | u64::from(self.chunk) << 32,
        ]
    }

    /// Of these words, if they make sense.
    fn of(words: [u64; 2]) -> Option<Head> {
        let marks = words[0] >> 32;
        let kinds = [
            CallKind::Barrier,
            CallKind::Bcast,
            CallKind::Reduce,
            CallKind::Allreduce,
            CallKind::Ready,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == marks & 255)?;
        let head = Head {
            call: words[0] as u32,
            kind,
            root: (marks >> 8) as u8,
            long: marks >> 16 & 1 == 1,
            bytes: words[1] as u32,
            chunk: (words[1] >> 32) as u32,
        };
        let fits = head.chunk as usize <= ring::CHUNK;
        (fits && (head.chunk > 0 || head.inside() == 0)).then_some(head)
    }

    /// Bytes that travel through the lane.
    fn inside(&self) -> usize {
        if self.long { 0 } else { self.bytes as usize }
    }

    /// Bytes of the chunk that begins at `at`.
    fn next(&self, at: usize) -> usize {
        (self.inside() - at).min(self.chunk as usize)
    }
}

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The other is dead.
    Dead,
    /// The bound has passed, here or for the other, or the calls differ.
    Bound,
}

/// What is done while the other lets this side wait.
pub trait Wait {
    /// Nothing moved: one round of patience; `shares_core` is [`Lane::shares_core`].
    fn idle(&mut self, shares_core: impl FnOnce() -> bool) -> Option<Over>;
    /// Something moved.
    fn moved(&mut self);
}

/// How an exchange ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All was given and taken; with the other's head if something was taken.
    Done(Option<Head>),
    /// The other died, and what was to be taken is not whole.
    Alone,
    /// The other made another call; its head, if it is of this one.
    Differs(Option<Head>),
    /// The bound has passed, or had passed for the other: the lane is closed.
    Closed,
    /// The code of who took the data.
    Failed(i32),
}

/// What takes data: where they begin in the message, where they are (the taker's to
/// change), how many; a code other than 0 stops it.
pub type Take<'a> = &'a mut dyn FnMut(usize, *mut u8, usize) -> i32;

/// See the module.
pub struct Lane {
    out: Writer<Shared>,
    into: Reader<Shared>,
    calls: u32,
    /// Ended for good: by a death, or out of step.
    closed: Option<Over>,
    base: *mut u8,
    me: u32,
    _memory: Option<Segment>,
}

// SAFETY: the base is that of the mapping that the lane owns.
unsafe impl Send for Lane {}

/// Bytes of the memory of a lane.
pub const BYTES: usize = START + 2 * ring::BYTES;
/// Where the rings begin; before them stand the proof, and for each member whether it has
/// closed the lane.
const START: usize = 384;

/// What has come of the message that is arriving.
struct Arriving {
    head: Head,
    taken: usize,
    wanted: bool,
}

struct Taking<'a> {
    take: Option<Take<'a>>,
    arriving: Option<Arriving>,
    /// The message of this call, once it is whole.
    head: Option<Head>,
    /// Something came that this call does not expect.
    differs: bool,
    code: i32,
}

impl Lane {
    /// In `memory`, as the member of this number.
    pub fn new(memory: Segment, me: u32) -> Lane {
        let base = memory.base();
        // SAFETY: a page's start and room for both rings, zero but for the proof, mapped as
        // long as the lane lives.
        unsafe { Lane::at(base, me, Some(memory)) }
    }

    /// # Safety
    /// [`BYTES`] from `base` are aligned to 128, zero but for the first 128, and stay as
    /// long as the lane.
    unsafe fn at(base: *mut u8, me: u32, memory: Option<Segment>) -> Lane {
        // SAFETY: the caller's promise.
        let ring =
            |which: u32| unsafe { Shared::at(base.add(START + which as usize * ring::BYTES)) };
        Lane {
            out: Writer::new(ring(me)),
            into: Reader::new(ring(1 - me)),
            calls: 0,
            closed: None,
            base,
            me,
            _memory: memory,
        }
    }

    /// Where member `who` says that it has closed the lane.
    fn sign(&self, who: u32) -> &AtomicU32 {
        // SAFETY: before the rings, aligned, touched as an atomic only.
        unsafe { AtomicU32::from_ptr(self.base.add(128 * (1 + who as usize)).cast()) }
    }

    /// Where member `who` says on which core it last waited, plus 1.
    fn core(&self, who: u32) -> &AtomicU32 {
        // SAFETY: as above, in another line.
        unsafe { AtomicU32::from_ptr(self.base.add(128 * (1 + who as usize) + 64).cast()) }
    }

    /// Says where this side waits; true if the other one last waited on the same core, so
    /// that it can go on only if this core is given up.
    pub fn shares_core(&self) -> bool {
        // SAFETY: asks the kernel, by what it keeps in this thread's memory.
        let here = unsafe { libc::sched_getcpu() }.wrapping_add(1) as u32;
        self.core(self.me).store(here, Ordering::Relaxed);
        here != 0 && self.core(1 - self.me).load(Ordering::Relaxed) == here
    }

    /// The number of a call that begins now.
    pub fn begin(&mut self) -> u32 {
        self.calls = self.calls.wrapping_add(1);
        self.calls
    }

    /// Why it is used no more, if so.
    pub fn closed(&self) -> Option<Over> {
        self.closed
    }

    /// Used no more; the other is told.
    fn close(&mut self, why: Over) {
        self.closed.get_or_insert(why);
        self.sign(self.me).store(1, Ordering::Release);
    }

    /// Gives a message headed `own` with the data at `give`, and takes the other's of the
    /// same call, kind, root and length; either may be left out. `after`: of what is
    /// taken, a chunk is not touched before as many were given (give and take are one
    /// buffer).
    ///
    /// # Safety
    /// `give` points at the bytes that the head says.
    pub unsafe fn exchange(
        &mut self,
        own: Head,
        mut give: Option<*const u8>,
        take: Option<Take>,
        after: bool,
        wait: &mut impl Wait,
    ) -> Ended {
        let (mut given, mut over) = (0, None);
        let mut taking = Taking {
            head: None,
            arriving: None,
            differs: false,
            code: 0,
            take,
        };
        loop {
            let mut moved = false;
            if let Some(data) = give
                && let Some(free) = self.out.free(own.next(given))
            {
                // SAFETY: the caller's promise.
                unsafe { self.put(free, &own, data, given) };
                given += own.next(given);
                if given == own.inside() {
                    give = None;
                }
                moved = true;
            }
            let ahead = if after && give.is_some() {
                given
            } else {
                usize::MAX
            };
            if taking.take.is_some()
                && let Some(slot) = self.into.next()
            {
                let Some(used) = self.accept(slot, &own, &mut taking, ahead) else {
                    self.close(Over::Bound);
                    return Ended::Differs(None);
                };
                moved |= used;
            }
            if give.is_none() && taking.take.is_none() {
                // What a dead process did not take was not given.
                return if over == Some(Over::Dead) && taking.head.is_none() {
                    self.stop(over)
                } else {
                    taking.ended()
                };
            }
            if moved {
                wait.moved();
            } else if over.is_some() {
                return self.stop(over);
            } else {
                over = wait.idle(|| self.shares_core());
                if over.is_none() && self.sign(1 - self.me).load(Ordering::Acquire) != 0 {
                    over = Some(Over::Bound);
                }
                // What was published before counts: one look more. To the dead nothing is given.
                if over == Some(Over::Dead) {
                    give = None;
                }
            }
        }
    }

    fn stop(&mut self, over: Option<Over>) -> Ended {
        let why = over.unwrap_or(Over::Bound);
        self.close(why);
        match why {
            Over::Dead => Ended::Alone,
            Over::Bound => Ended::Closed,
        }
    }

    /// # Safety
    /// `data` points at the bytes of the message; `free` has room for the chunk at `given`.
    unsafe fn put(&mut self, free: Free, own: &Head, data: *const u8, given: usize) {
        let bytes = own.next(given);
        let ring = &self.out.ring;
        // SAFETY: the caller's promise; shared memory does not overlap the user's.
        unsafe {
            if given == 0 {
                ring.describe(free.slot, own.words());
            }
            if bytes > 0 {
                let to = ring.data(free.slot, free.at, bytes);
                std::ptr::copy_nonoverlapping(data.add(given), to, bytes);
            }
        }
        self.out.publish(free);
    }

    /// Takes a slot in: whether it was used up, or `None` if the other is out of step.
    fn accept(
        &mut self,
        slot: usize,
        own: &Head,
        taking: &mut Taking,
        ahead: usize,
    ) -> Option<bool> {
        if taking.arriving.is_none() {
            // SAFETY: the slot was published to this side.
            let head = Head::of(unsafe { self.into.ring.description(slot) })?;
            // Of a later call: the message of this one never comes. Of an earlier one: this
            // side made another call then.
            let behind = own.call.wrapping_sub(head.call);
            if behind > u32::MAX / 2 {
                return None;
            }
            let wanted = head == *own || (head.call == own.call && taking.suits(own, &head));
            taking.differs |= !wanted;
            taking.arriving = Some(Arriving {
                head,
                taken: 0,
                wanted,
            });
        }
        let arriving = taking.arriving.as_mut()?;
        let bytes = arriving.head.next(arriving.taken);
        if arriving.wanted && bytes > 0 {
            if arriving.taken + bytes > ahead {
                return Some(false);
            }
            let at = self.into.place(bytes);
            let data = self.into.ring.data(slot, at, bytes);
            if let Some(take) = &mut taking.take
                && taking.code == 0
            {
                taking.code = take(arriving.taken, data, bytes);
            }
        }
        arriving.taken += bytes;
        let head = arriving.head;
        if arriving.taken == head.inside() {
            taking.arriving = None;
            if head.call == own.call {
                taking.head = Some(head);
                taking.take = None;
            }
        }
        self.into.give_back(bytes);
        Some(true)
    }
}

impl Taking<'_> {
    /// The other's message differs in what it may: a Bcast's chunks, the way it comes.
    fn suits(&self, own: &Head, head: &Head) -> bool {
        let alike = Head {
            long: own.long,
            chunk: own.chunk,
            ..*head
        } == *own;
        alike && (own.kind == CallKind::Bcast || head.long == own.long && head.chunk == own.chunk)
    }

    fn ended(self) -> Ended {
        if self.differs {
            Ended::Differs(self.head)
        } else if self.code != 0 {
            Ended::Failed(self.code)
        } else {
            Ended::Done(self.head)
        }
    }
}

#[cfg(test)]
mod tests;
