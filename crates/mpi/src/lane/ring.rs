//! One direction of a lane: a ring of slots, written by one process and read by another.
//!
//! Invariants: a slot is written by the writer alone while the reader has taken what was
//! in it before, and read by the reader alone from when its number is published until it
//! is given back. Both hand-overs are a release store of one word that only one side
//! writes, and an acquire load of it by the other; there is no lock and no
//! read-modify-write. So a process that dies, wherever it is, leaves a slot whole or
//! unseen. Numbers only grow: nothing is ever reset.
//!
//! Data too long for a slot's head lie in an area, one piece after the other. Where a piece
//! lies follows from the lengths of all before it, which both sides count (`place`); a
//! piece is free again when its slot is. So many short messages are under way at once, or
//! as many long ones as the area holds: two processes on one core change places once for all
//! of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a ring: how many messages, or chunks of one, a writer may be ahead at most.
pub const SLOTS: usize = 128;
/// Most bytes in a slot.
pub const CHUNK: usize = 8 << 10;
/// Bytes of the area: how many a writer may be ahead at most.
pub const AREA: usize = 16 * CHUNK;
/// Words of one owner, apart from those of the other: processors fetch lines in pairs.
const APART: usize = 128;
/// Where short data begin in a slot's head: aligned for any basic type.
const INLINE_AT: usize = 32;
/// Data that travel with the head, without another line.
pub const INLINE: usize = APART - INLINE_AT;
/// Pieces begin at multiples of this many bytes: a processor's line.
const LINE: u64 = 64;
/// Bytes of a ring.
pub const BYTES: usize = APART + SLOTS * APART + AREA;

/// Where in the area a piece of at most [`CHUNK`] bytes lies after pieces that end at `after`,
/// and where it ends, both counted from the first piece ever. No piece crosses the area's end.
#[inline]
fn place(after: u64, bytes: usize) -> (u64, u64) {
    if bytes <= INLINE {
        return (after, after);
    }
    let (area, bytes) = (AREA as u64, bytes as u64);
    let left = area - after % area;
    let begin = if bytes <= left { after } else { after + left };
    (begin, begin + bytes.next_multiple_of(LINE))
}

/// A slot that is free, and the place of its data.
#[derive(Clone, Copy, Debug)]
pub struct Free {
    /// The slot.
    pub slot: usize,
    /// Where its data begin in the area.
    pub at: u64,
    end: u64,
}

/// The words of a ring, wherever they are: shared memory, or the model of a checker.
pub trait Words {
    /// How many slots.
    fn slots(&self) -> u64;
    /// The number that `slot` was last published under (acquire).
    fn published(&self, slot: usize) -> u64;
    /// Publishes `slot` (release).
    fn publish(&self, slot: usize, number: u64);
    /// How many the reader has given back (acquire).
    fn returned(&self) -> u64;
    /// Gives back all before `number` (release).
    fn give_back(&self, number: u64);
}

/// A ring in memory that is shared.
#[derive(Clone, Copy)]
pub struct Shared {
    base: *mut u8,
}

// SAFETY: the address of memory that both processes map; who touches what when is the
// protocol's (see the module).
unsafe impl Send for Shared {}

impl Shared {
    /// A ring at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 128 bytes, and [`BYTES`] from there stay mapped, and were zero
    /// before either side began, for as long as the ring is used.
    pub unsafe fn at(base: *mut u8) -> Shared {
        Shared { base }
    }

    fn head(&self, slot: usize) -> *mut u8 {
        // SAFETY: within the ring's bytes, for slots below SLOTS.
        unsafe { self.base.add(APART + (slot % SLOTS) * APART) }
    }

    fn word(&self, at: *mut u8) -> &AtomicU64 {
        // SAFETY: aligned, mapped, and touched as an atomic only.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// What describes the data of `slot`.
    ///
    /// # Safety
    /// The slot is this side's now.
    pub unsafe fn describe(&self, slot: usize, words: [u64; 2]) {
        // SAFETY: within the head, behind its number.
        unsafe { self.head(slot).add(8).cast::<[u64; 2]>().write(words) }
    }

    /// See [`Shared::describe`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn description(&self, slot: usize) -> [u64; 2] {
        // SAFETY: as in `describe`.
        unsafe { self.head(slot).add(8).cast::<[u64; 2]>().read() }
    }

    /// Where `bytes` of data of `slot` are: beside its head if they are short, else at this
    /// place of the area.
    pub fn data(&self, slot: usize, at: u64, bytes: usize) -> *mut u8 {
        if bytes <= INLINE {
            // SAFETY: within the head.
            return unsafe { self.head(slot).add(INLINE_AT) };
        }
        let at = APART + SLOTS * APART + (at % AREA as u64) as usize;
        // SAFETY: within the ring's bytes, up to the end of the piece too (see `place`).
        unsafe { self.base.add(at) }
    }
}

impl Words for Shared {
    fn slots(&self) -> u64 {
        SLOTS as u64
    }
    #[inline]
    fn published(&self, slot: usize) -> u64 {
        self.word(self.head(slot)).load(Ordering::Acquire)
    }
    #[inline]
    fn publish(&self, slot: usize, number: u64) {
        self.word(self.head(slot)).store(number, Ordering::Release);
    }
    #[inline]
    fn returned(&self) -> u64 {
        self.word(self.base).load(Ordering::Acquire)
    }
    #[inline]
    fn give_back(&self, number: u64) {
        self.word(self.base).store(number, Ordering::Release);
    }
}

/// The side that writes.
pub struct Writer<W> {
    /// The ring.
    pub ring: W,
    at: u64,
    returned: u64,
    /// Where the last piece ends.
    data: u64,
    /// Where the piece before each slot's own ends: all from there on are under way while
    /// that slot is.
    before: Box<[u64]>,
}

impl<W: Words> Writer<W> {
    /// Of a fresh ring.
    pub fn new(ring: W) -> Writer<W> {
        Writer {
            at: 0,
            returned: 0,
            data: 0,
            before: vec![0; ring.slots() as usize].into(),
            ring,
        }
    }

    /// The next slot with room for `bytes`, if the reader has given back enough.
    #[inline]
    pub fn free(&mut self, bytes: usize) -> Option<Free> {
        let (at, end) = place(self.data, bytes);
        // The reader's word is only looked at when the ring seems full.
        if !self.fits(end) {
            self.returned = self.ring.returned();
            if !self.fits(end) {
                return None;
            }
        }
        let slot = (self.at % self.ring.slots()) as usize;
        Some(Free { slot, at, end })
    }

    /// A slot is free, and all pieces up to `end` have room.
    #[inline]
    fn fits(&self, end: u64) -> bool {
        let slots = self.ring.slots();
        match self.at.checked_sub(self.returned) {
            Some(0) => true,
            Some(ahead) if ahead < slots => {
                let oldest = self.before[(self.returned % slots) as usize];
                end - oldest <= AREA as u64
            }
            // More was given back than there was: the other is out of order.
            _ => false,
        }
    }

    /// Publishes what was written into the slot of [`Writer::free`].
    #[inline]
    pub fn publish(&mut self, free: Free) {
        self.before[free.slot] = self.data;
        self.data = free.end;
        self.at += 1;
        self.ring.publish(free.slot, self.at);
    }
}

/// The side that reads.
pub struct Reader<W> {
    /// The ring.
    pub ring: W,
    at: u64,
    /// Where the last piece ends.
    data: u64,
}

impl<W: Words> Reader<W> {
    /// Of a fresh ring.
    pub fn new(ring: W) -> Reader<W> {
        Reader {
            ring,
            at: 0,
            data: 0,
        }
    }

    /// The next slot, if it was published.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        let slot = (self.at % self.ring.slots()) as usize;
        (self.ring.published(slot) == self.at + 1).then_some(slot)
    }

    /// Where the data of the slot of [`Reader::next`] begin in the area, if they are so many.
    #[inline]
    pub fn place(&self, bytes: usize) -> u64 {
        place(self.data, bytes).0
    }

    /// Gives back the slot of [`Reader::next`], which held so many bytes.
    #[inline]
    pub fn give_back(&mut self, bytes: usize) {
        self.data = place(self.data, bytes).1;
        self.at += 1;
        self.ring.give_back(self.at);
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving, and every order in which the memory model of C11 lets stores be
    //! seen, for rings of one and two slots (loom; CDSChecker: Norris and Demsky 2013).

    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use outlive_base::rng::Sequence;
    use outlive_base::seed;

    use super::{AREA, CHUNK, INLINE, Reader, SLOTS, Words, Writer};

    /// A ring whose slots loom watches: a read beside a write is an error.
    struct Model {
        numbers: Vec<AtomicU64>,
        data: Vec<UnsafeCell<u64>>,
        returned: AtomicU64,
        release: Ordering,
        acquire: Ordering,
    }

    impl Words for Arc<Model> {
        fn slots(&self) -> u64 {
            self.numbers.len() as u64
        }
        fn published(&self, slot: usize) -> u64 {
            self.numbers[slot].load(self.acquire)
        }
        fn publish(&self, slot: usize, number: u64) {
            self.numbers[slot].store(number, self.release);
        }
        fn returned(&self) -> u64 {
            self.returned.load(self.acquire)
        }
        fn give_back(&self, number: u64) {
            self.returned.store(number, self.release);
        }
    }

    fn model(slots: usize, release: Ordering, acquire: Ordering) -> Arc<Model> {
        Arc::new(Model {
            numbers: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            data: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
            returned: AtomicU64::new(0),
            release,
            acquire,
        })
    }

    fn write(writer: &mut Writer<Arc<Model>>, value: u64) {
        loop {
            if let Some(free) = writer.free(0) {
                // SAFETY: loom checks that nobody reads it now.
                writer.ring.data[free.slot].with_mut(|data| unsafe { *data = value });
                writer.publish(free);
                return;
            }
            loom::thread::yield_now();
        }
    }

    fn read(reader: &mut Reader<Arc<Model>>) -> u64 {
        loop {
            if let Some(slot) = reader.next() {
                // SAFETY: loom checks that nobody writes it now.
                let value = reader.ring.data[slot].with(|data| unsafe { *data });
                reader.give_back(0);
                return value;
            }
            loom::thread::yield_now();
        }
    }

    fn passes(slots: usize, values: u64, release: Ordering, acquire: Ordering) {
        loom::model(move || {
            let ring = model(slots, release, acquire);
            let other = Arc::clone(&ring);
            let wrote = loom::thread::spawn(move || {
                let mut writer = Writer::new(other);
                (1..=values).for_each(|value| write(&mut writer, value));
            });
            let mut reader = Reader::new(ring);
            for value in 1..=values {
                assert_eq!(read(&mut reader), value);
            }
            wrote.join().expect("it wrote all");
        });
    }

    #[test]
    fn every_value_arrives_once_and_in_order() {
        passes(1, 3, Ordering::Release, Ordering::Acquire);
        passes(2, 3, Ordering::Release, Ordering::Acquire);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_weaker_store_is_caught() {
        passes(2, 3, Ordering::Relaxed, Ordering::Acquire);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_weaker_load_is_caught() {
        passes(2, 3, Ordering::Release, Ordering::Relaxed);
    }

    /// A writer that stops between data and number, or after it: the reader sees all of a
    /// value or nothing, and never waits for more than was published.
    #[test]
    fn a_writer_that_stops_leaves_whole_values() {
        loom::model(|| {
            let ring = model(2, Ordering::Release, Ordering::Acquire);
            let other = Arc::clone(&ring);
            let died = loom::thread::spawn(move || {
                let mut writer = Writer::new(other);
                write(&mut writer, 7);
                let slot = writer.free(0).expect("two slots").slot;
                // SAFETY: loom checks that nobody reads it now.
                writer.ring.data[slot].with_mut(|data| unsafe { *data = 666 });
            });
            let mut reader = Reader::new(ring);
            let mut seen = Vec::new();
            let mut look = |reader: &mut Reader<Arc<Model>>| {
                while reader.next().is_some() {
                    seen.push(read(reader));
                }
            };
            look(&mut reader);
            died.join().expect("dead");
            // Death is known: one look more, as a survivor takes it.
            look(&mut reader);
            assert_eq!(seen, [7]);
        });
    }

    /// A ring of one thread: numbers alone.
    struct Counted {
        numbers: Vec<Cell<u64>>,
        returned: Cell<u64>,
    }

    impl Words for Rc<Counted> {
        fn slots(&self) -> u64 {
            self.numbers.len() as u64
        }
        fn published(&self, slot: usize) -> u64 {
            self.numbers[slot].get()
        }
        fn publish(&self, slot: usize, number: u64) {
            self.numbers[slot].set(number);
        }
        fn returned(&self) -> u64 {
            self.returned.get()
        }
        fn give_back(&self, number: u64) {
            self.returned.set(number);
        }
    }

    /// Whatever the lengths, and whoever is quicker: both sides mean the same place, no piece
    /// touches another that is under way or leaves the area, and the ring fills only when it
    /// is full.
    #[test]
    fn pieces_under_way_lie_apart_and_where_the_reader_looks() {
        let mut random = Sequence::new(seed!(), 0);
        let ring = Rc::new(Counted {
            numbers: (0..SLOTS).map(|_| Cell::new(0)).collect(),
            returned: Cell::new(0),
        });
        let (mut writer, mut reader) = (Writer::new(Rc::clone(&ring)), Reader::new(ring));
        let mut under_way: VecDeque<(u64, usize)> = VecDeque::new();
        let mut filled = [false; 2];
        for _ in 0..20_000 {
            let most = [INLINE, 600, CHUNK][random.below(3) as usize];
            let bytes = random.below(most as u64 + 1) as usize;
            for _ in 0..random.below(40) {
                let Some(free) = writer.free(bytes) else {
                    let held: u64 = under_way.iter().map(|(_, bytes)| *bytes as u64).sum();
                    let full = [under_way.len() == SLOTS, held as usize > AREA / 2];
                    assert!(full[0] || full[1], "{} of {held}", under_way.len());
                    filled = [filled[0] | full[0], filled[1] | full[1]];
                    break;
                };
                let piece = |at: u64, bytes: usize| {
                    let at = at as usize % AREA;
                    at..at + if bytes > INLINE { bytes } else { 0 }
                };
                let new = piece(free.at, bytes);
                assert!(new.end <= AREA);
                for (at, bytes) in &under_way {
                    let old = piece(*at, *bytes);
                    assert!(new.is_empty() || new.end <= old.start || old.end <= new.start);
                }
                writer.publish(free);
                under_way.push_back((free.at, bytes));
            }
            for _ in 0..random.below(40) {
                let Some((at, bytes)) = under_way.pop_front() else {
                    break;
                };
                assert!(reader.next().is_some());
                assert!(bytes <= INLINE || reader.place(bytes) == at);
                reader.give_back(bytes);
            }
        }
        assert_eq!(filled, [true; 2], "it was never full");
    }
}
