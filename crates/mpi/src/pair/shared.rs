//! A pair's data through shared memory.
//!
//! The giver's length decides how a message comes, and its head says so; the receiver
//! compares that with its own call. Long data go as MPI messages once both have seen that
//! they are the same, so nobody is left in MPI. Operands are combined in the order of
//! ranks, whatever the operator. While this side waits, MPI makes progress, the late are
//! answered, and the core is given up.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::meet::meet;
use super::{Met, Pair, Reduce, with_scratch};
use crate::body::Shape;
use crate::lane::way::{Counted, Way};
use crate::lane::{CallKind, Ended, Head, Lane, Over, Wait, ring};
use crate::native::Family;

/// Longer data are announced through the lane and sent as an MPI message: Open MPI copies
/// such data once, out of the other process; MPICH twice, as the lane does. Both sides of
/// an allreduce combine out of the lane at once, so there it pays longer.
fn long_bytes(family: Family, kind: CallKind) -> usize {
    match (family, kind) {
        (Family::OpenMpi, CallKind::Bcast | CallKind::Reduce) => 48 << 10,
        (Family::OpenMpi, _) => 256 << 10,
        (Family::Mpich | Family::Standard, _) => 4 << 20,
    }
}

/// Looks at the lane before anything else is looked at.
const SPINS: u32 = 300;
/// Looks after which the core is given up if the other needs it: it cannot answer before.
const SPINS_SHARED: u32 = 30;
/// Looks between two rounds of progress after that.
const SPINS_BETWEEN: u32 = 20;
/// Rounds of progress between two looks at the clock.
const ROUNDS: u32 = 64;
/// How long the core is kept while the other is on another one: it answers as soon as it
/// runs, and who gives a core up to strangers gets it back a time slice later. MPICH keeps it
/// for a thousand polls.
const KEEP: Duration = Duration::from_micros(200);
/// Calls that find the other there already, between two rounds of progress.
const CALLS: u32 = 16;

/// Waits for the other. See the module.
struct Patience<'a> {
    pair: &'a Pair<'a>,
    spins: u32,
    rounds: u32,
    begun: Option<Instant>,
    /// Since when nothing has moved; `None` at first.
    still: Option<Instant>,
    /// ... and that is less than [`KEEP`].
    keeping: bool,
}

impl<'a> Patience<'a> {
    fn of(pair: &'a Pair<'a>) -> Patience<'a> {
        Patience {
            pair,
            spins: 0,
            rounds: 0,
            begun: None,
            still: None,
            keeping: true,
        }
    }

    #[cold]
    fn look_around(&mut self, shares_core: bool) -> Option<Over> {
        self.spins = SPINS - SPINS_BETWEEN;
        let layer = self.pair.layer;
        layer.progress();
        if self.pair.other_dead() {
            return Some(Over::Dead);
        }
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds % ROUNDS == 1 {
            let begun = *self.begun.get_or_insert_with(Instant::now);
            if begun.elapsed() > Duration::from_nanos(layer.settings.bound.0) {
                return Some(Over::Bound);
            }
        }
        if self.keeping {
            let still = *self.still.get_or_insert_with(Instant::now);
            self.keeping = still.elapsed() < KEEP;
        }
        if shares_core {
            step_aside();
        } else if !self.keeping {
            std::thread::yield_now();
        }
        None
    }
}

impl Wait for Patience<'_> {
    #[inline]
    fn idle(&mut self, shares_core: impl FnOnce() -> bool) -> Option<Over> {
        self.spins += 1;
        if self.spins < SPINS && self.spins != SPINS_SHARED {
            std::hint::spin_loop();
            return None;
        }
        let shares_core = shares_core();
        if self.spins < SPINS && !shares_core {
            return None;
        }
        self.look_around(shares_core)
    }
    #[inline]
    fn moved(&mut self) {
        self.spins = 0;
        self.keeping = true;
        self.still = None;
    }
}

/// How long this process sleeps at a time where the other needs its core.
const ASIDE: Duration = Duration::from_micros(10);

/// Gives the core up by a short sleep: Linux gives one that is only yielded to nobody until
/// the time slice ends. The kernel may end a thread's sleeps 50 us late, to save wake-ups;
/// this one is to be exact, and the thread's setting stays as it was.
fn step_aside() {
    // SAFETY: both calls only read and set a number of this thread.
    unsafe {
        let slack = libc::prctl(libc::PR_GET_TIMERSLACK);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
        std::thread::sleep(ASIDE);
        if slack > 0 {
            libc::prctl(libc::PR_SET_TIMERSLACK, slack as libc::c_ulong);
        }
    }
}

/// Chunks of data of `bytes` in elements of `size`.
fn chunk(bytes: usize, size: usize) -> u32 {
    let most = ring::CHUNK.min(bytes);
    // An element longer than a slot is not combined in parts.
    (if size <= most && size > 0 {
        most / size * size
    } else {
        most
    }) as u32
}

/// The head of the message that the receiver of a long one answers with.
fn ready(head: &Head, bytes: usize) -> Head {
    Head {
        kind: CallKind::Ready,
        long: true,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        chunk: 0,
        ..*head
    }
}

/// Stands for data of no length, or to be thrown away.
const NOTHING: *const u8 = ptr::dangling();

impl Pair<'_> {
    /// The lane, for one call; an error where the other could not be met, or not any more.
    fn lane(&self) -> Option<Result<MutexGuard<'_, Counted>, Met>> {
        let lane = match self.comm.way.get_or_init(|| meet(self)) {
            Way::Messages => return None,
            Way::None => return Some(Err(Met::Failed(self.native.constants.err_other))),
            Way::Lane(lane) => lane.lock().unwrap_or_else(PoisonError::into_inner),
        };
        Some(match lane.lane.closed() {
            None => Ok(lane),
            Some(Over::Dead) => Err(Met::Alone),
            Some(Over::Bound) => Err(Met::Failed(self.native.constants.err_other)),
        })
    }

    fn head(
        &self,
        lane: &mut Lane,
        kind: CallKind,
        root: c_int,
        bytes: usize,
        size: usize,
    ) -> Head {
        let call = lane.begin();
        // Requests of the program make progress also where nobody ever waits here.
        if call.is_multiple_of(CALLS) || bytes >= ring::CHUNK {
            self.layer.progress();
        }
        let long = bytes > long_bytes(self.native.family, kind);
        Head {
            call,
            kind,
            root: root as u8,
            long,
            bytes: bytes as u32,
            chunk: if long { 0 } else { chunk(bytes, size) },
        }
    }

    /// What an exchange came to; `own` is what this side expected.
    fn came(&self, ended: Ended, own: &Head) -> Met {
        let constants = &self.native.constants;
        match ended {
            Ended::Done(_) => Met::Both,
            Ended::Alone => Met::Alone,
            Ended::Failed(code) => Met::Failed(code),
            Ended::Differs(Some(head)) if head.kind == own.kind && head.bytes > own.bytes => {
                Met::Failed(constants.err_truncate)
            }
            Ended::Differs(_) | Ended::Closed => Met::Failed(constants.err_other),
        }
    }

    /// Only gives.
    unsafe fn put(&self, lane: &mut Lane, own: Head, data: *const u8) -> Met {
        // SAFETY: the caller's: `data` has the bytes of the head.
        let ended = unsafe { lane.exchange(own, Some(data), None, false, &mut Patience::of(self)) };
        self.came(ended, &own)
    }

    /// Before a long message is sent: the receiver says that it waits for just that.
    fn put_long(&self, lane: &mut Lane, own: Head) -> Met {
        // SAFETY: of a long message no data are given.
        let met = unsafe { self.put(lane, own, NOTHING) };
        if !matches!(met, Met::Both) {
            return met;
        }
        let answer = ready(&own, own.bytes as usize);
        let mut nothing = |_, _: *mut u8, _| 0;
        let take: crate::lane::Take = &mut nothing;
        // SAFETY: nothing is given.
        let ended =
            unsafe { lane.exchange(answer, None, Some(take), false, &mut Patience::of(self)) };
        self.came(ended, &answer)
    }

    /// Only takes. True if what was expected comes as a message now.
    fn get(
        &self,
        lane: &mut Lane,
        own: Head,
        mut take: impl FnMut(usize, *mut u8, usize) -> c_int,
    ) -> Result<bool, Met> {
        let take: crate::lane::Take = &mut take;
        // SAFETY: nothing is given.
        let ended = unsafe { lane.exchange(own, None, Some(take), false, &mut Patience::of(self)) };
        let (head, wanted) = match ended {
            Ended::Done(Some(head)) => (head, true),
            Ended::Differs(Some(head)) => (head, false),
            _ => return Err(self.came(ended, &own)),
        };
        if head.long && head.kind == own.kind {
            // No length is that long: a refusal.
            let bytes = if wanted {
                head.bytes as usize
            } else {
                usize::MAX
            };
            // SAFETY: no data are given.
            let told = unsafe { self.put(lane, ready(&own, bytes), NOTHING) };
            if wanted {
                return if matches!(told, Met::Both) {
                    Ok(true)
                } else {
                    Err(told)
                };
            }
        }
        if wanted {
            Ok(false)
        } else {
            Err(self.came(ended, &own))
        }
    }

    /// MPI_Barrier; `None`: by messages.
    pub(super) fn barrier_by_lane(&self) -> Option<Met> {
        let mut lane = match self.lane()? {
            Ok(lane) => lane,
            Err(met) => return Some(met),
        };
        let own = self.head(&mut lane.lane, CallKind::Barrier, 0, 0, 1);
        // SAFETY: no data are given.
        Some(unsafe { self.swap_by_lane(&mut lane.lane, own, NOTHING, false, |_, _, _| 0) })
    }

    unsafe fn swap_by_lane(
        &self,
        lane: &mut Lane,
        own: Head,
        give: *const u8,
        after: bool,
        mut take: impl FnMut(usize, *mut u8, usize) -> c_int,
    ) -> Met {
        let take: crate::lane::Take = &mut take;
        let wait = &mut Patience::of(self);
        // SAFETY: the caller's: `give` has the bytes of the head.
        let ended = unsafe { lane.exchange(own, Some(give), Some(take), after, wait) };
        self.came(ended, &own)
    }

    /// MPI_Bcast; `None`: by messages.
    ///
    /// # Safety
    /// As MPI_Bcast.
    pub(super) unsafe fn bcast_by_lane(
        &self,
        data: *mut c_void,
        shape: &Shape,
        root: c_int,
    ) -> Option<Met> {
        let mut lane = match self.lane()? {
            Ok(lane) => lane,
            Err(met) => return Some(met),
        };
        let lane = &mut lane.lane;
        let own = self.head(lane, CallKind::Bcast, root, shape.data_bytes, 1);
        if root == self.comm.me as c_int {
            if self.other_dead() {
                return Some(Met::Alone);
            }
            // SAFETY: the caller's promise.
            return unsafe { self.bcast_from_here(lane, own, data, shape) };
        }
        // SAFETY: the caller's promise.
        let got = unsafe {
            if shape.is_dense() {
                let to = data.cast::<u8>();
                self.get(lane, own, |at, from, bytes| {
                    ptr::copy_nonoverlapping(from, to.add(at), bytes);
                    0
                })
            } else {
                self.get_sparse(lane, own, data, shape)
            }
        };
        match got {
            Ok(true) => None,
            Ok(false) => Some(Met::Both),
            Err(met) => Some(met),
        }
    }

    /// # Safety
    /// As MPI_Bcast.
    unsafe fn bcast_from_here(
        &self,
        lane: &mut Lane,
        own: Head,
        data: *const c_void,
        shape: &Shape,
    ) -> Option<Met> {
        if own.long {
            return match self.put_long(lane, own) {
                Met::Both => None,
                met => Some(met),
            };
        }
        if shape.is_dense() {
            // SAFETY: the caller's promise.
            return Some(unsafe { self.put(lane, own, data.cast()) });
        }
        // SAFETY: the caller's promise.
        let packed = match unsafe { shape.pack(data) } {
            Ok(content) => content.bytes,
            Err(code) => return Some(Met::Failed(code)),
        };
        if packed.len() == own.bytes as usize {
            // SAFETY: the packed data have that length.
            return Some(unsafe { self.put(lane, own, packed.as_ptr()) });
        }
        // MPI packs them with something else: it is to send them itself.
        let own = Head {
            long: true,
            chunk: 0,
            ..own
        };
        match self.put_long(lane, own) {
            Met::Both => None,
            met => Some(met),
        }
    }

    /// Data with gaps are put together first.
    ///
    /// # Safety
    /// As MPI_Bcast.
    unsafe fn get_sparse(
        &self,
        lane: &mut Lane,
        own: Head,
        data: *mut c_void,
        shape: &Shape,
    ) -> Result<bool, Met> {
        let room = if own.long { 0 } else { own.bytes as usize };
        with_scratch(room, |scratch| {
            let long = self.get(lane, own, |at, from, bytes| {
                // SAFETY: within the room: only what has the own length is taken.
                unsafe { ptr::copy_nonoverlapping(from, scratch.add(at), bytes) };
                0
            })?;
            // SAFETY: the room holds all of the packed data.
            let packed = unsafe { std::slice::from_raw_parts(scratch, room) };
            // SAFETY: the caller's promise.
            if long || room == 0 || unsafe { shape.unpack(packed, data) } {
                return Ok(long);
            }
            Err(Met::Failed(self.native.constants.err_other))
        })
    }

    /// MPI_Reduce and MPI_Allreduce of dense data; `None`: by messages.
    ///
    /// # Safety
    /// As MPI_Reduce.
    pub(super) unsafe fn reduce_by_lane(&self, what: &Reduce) -> Option<Met> {
        let mut lane = match self.lane()? {
            Ok(lane) => lane,
            Err(met) => return Some(met),
        };
        let lane = &mut lane.lane;
        let size = what.bytes / what.count.max(1) as usize;
        let (kind, root) = match what.root {
            None => (CallKind::Allreduce, 0),
            Some(root) => (CallKind::Reduce, root),
        };
        let own = self.head(lane, kind, root, what.bytes, size);
        if what.root.is_some_and(|root| root != self.comm.me as c_int) {
            if self.other_dead() {
                return Some(Met::Alone);
            }
            if !own.long {
                // SAFETY: the caller's promise.
                return Some(unsafe { self.put(lane, own, what.give.cast()) });
            }
            return match self.put_long(lane, own) {
                Met::Both => None,
                met => Some(met),
            };
        }
        if own.long {
            return match self.reduce_long(lane, own) {
                Met::Both => None,
                met => Some(met),
            };
        }
        // In place, a death in the middle must not leave half a result; and what does not
        // fit a slot is not combined in parts.
        let parts = own.bytes > own.chunk;
        let whole = parts && (size > ring::CHUNK || (self.layer.ulfm && what.in_place()));
        // SAFETY: the caller's promise.
        Some(unsafe {
            if whole {
                self.reduce_whole(lane, own, what)
            } else {
                self.reduce_parts(lane, own, what, size)
            }
        })
    }

    fn reduce_long(&self, lane: &mut Lane, own: Head) -> Met {
        if own.kind == CallKind::Allreduce {
            // Both send: it is enough that both see that they mean the same.
            // SAFETY: of a long message no data are given.
            return unsafe { self.swap_by_lane(lane, own, NOTHING, false, |_, _, _| 0) };
        }
        match self.get(lane, own, |_, _, _| 0) {
            Ok(_) => Met::Both,
            Err(met) => met,
        }
    }

    unsafe fn fetch_by_lane(
        &self,
        lane: &mut Lane,
        own: Head,
        what: &Reduce,
        after: bool,
        take: impl FnMut(usize, *mut u8, usize) -> c_int,
    ) -> Met {
        if what.root.is_none() {
            // SAFETY: the caller's promise.
            return unsafe { self.swap_by_lane(lane, own, what.give.cast(), after, take) };
        }
        match self.get(lane, own, take) {
            Ok(_) => Met::Both,
            Err(met) => met,
        }
    }

    /// Each chunk of the other's operand is combined where it lies.
    unsafe fn reduce_parts(&self, lane: &mut Lane, own: Head, what: &Reduce, size: usize) -> Met {
        let (give, result) = (what.give.cast::<u8>(), what.result.cast::<u8>());
        let (in_place, last) = (what.in_place(), self.comm.me == 1);
        let local = self.native.reduce_local;
        let (datatype, op) = (what.datatype, what.op);
        // SAFETY: chunks lie within the operands, in whole elements; right := left (op)
        // right (MPI 4.1, section 6.9.7), and rank 0 stands left.
        let take = |at: usize, from: *mut u8, bytes: usize| unsafe {
            let count = (bytes / size) as c_int;
            let (own, to) = (give.add(at), result.add(at));
            if last {
                if !in_place {
                    ptr::copy_nonoverlapping(own, to, bytes);
                }
                return local(from.cast(), to.cast(), count, datatype, op);
            }
            if !in_place {
                ptr::copy_nonoverlapping(from, to, bytes);
                return local(own.cast(), to.cast(), count, datatype, op);
            }
            let code = local(to.cast(), from.cast(), count, datatype, op);
            ptr::copy_nonoverlapping(from, to, bytes);
            code
        };
        // SAFETY: the caller's promise.
        unsafe { self.fetch_by_lane(lane, own, what, in_place, take) }
    }

    /// The other's operand is put together before anything is combined.
    unsafe fn reduce_whole(&self, lane: &mut Lane, own: Head, what: &Reduce) -> Met {
        with_scratch(what.bytes, |scratch| {
            let take = |at: usize, from: *mut u8, bytes: usize| {
                // SAFETY: only what has the own length is taken.
                unsafe { ptr::copy_nonoverlapping(from, scratch.add(at), bytes) };
                0
            };
            // SAFETY: the caller's promise.
            match unsafe { self.fetch_by_lane(lane, own, what, false, take) } {
                // SAFETY: the scratch holds the other's operand.
                Met::Both => unsafe { self.combine(what, scratch.cast()) },
                met => met,
            }
        })
    }
}
