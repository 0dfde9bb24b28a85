//! One direction of a lane: a ring of slots, written by one process and read by another.
//!
//! Invariants: a slot is written by the writer alone while the reader has taken what was
//! in it before, and read by the reader alone from when its number is published until it
//! is given back. Both hand-overs are a release store of one word that only one side
//! writes, and an acquire load of it by the other; there is no lock and no
//! read-modify-write. So a process that dies, wherever it is, leaves a slot whole or
//! unseen. Numbers only grow: nothing is ever reset.

use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a ring: how many messages, or chunks of one, a writer may be ahead.
pub const SLOTS: usize = 16;
/// Most bytes in a slot.
pub const CHUNK: usize = 8 << 10;
/// Words of one owner, apart from those of the other: processors fetch lines in pairs.
const APART: usize = 128;
/// Where short data begin in a slot's head: aligned for any basic type.
const INLINE_AT: usize = 32;
/// Data that travel with the head, without another line.
pub const INLINE: usize = APART - INLINE_AT;
/// Bytes of a ring.
pub const BYTES: usize = APART + SLOTS * (APART + CHUNK);

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

    /// Where `bytes` of data of `slot` are: beside its head if they are short.
    pub fn data(&self, slot: usize, bytes: usize) -> *mut u8 {
        if bytes <= INLINE {
            // SAFETY: within the head.
            return unsafe { self.head(slot).add(INLINE_AT) };
        }
        let at = APART + SLOTS * APART + (slot % SLOTS) * CHUNK;
        // SAFETY: within the ring's bytes.
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
}

impl<W: Words> Writer<W> {
    /// Of a fresh ring.
    pub fn new(ring: W) -> Writer<W> {
        Writer {
            ring,
            at: 0,
            returned: 0,
        }
    }

    /// The next slot, if the reader has given it back.
    #[inline]
    pub fn free(&mut self) -> Option<usize> {
        let slots = self.ring.slots();
        // The reader's word is only looked at when the ring seems full.
        if self.at - self.returned >= slots {
            self.returned = self.ring.returned();
            if self.at - self.returned >= slots {
                return None;
            }
        }
        Some((self.at % slots) as usize)
    }

    /// Publishes what was written into the slot of [`Writer::free`].
    #[inline]
    pub fn publish(&mut self) {
        let slot = (self.at % self.ring.slots()) as usize;
        self.at += 1;
        self.ring.publish(slot, self.at);
    }
}

/// The side that reads.
pub struct Reader<W> {
    /// The ring.
    pub ring: W,
    at: u64,
}

impl<W: Words> Reader<W> {
    /// Of a fresh ring.
    pub fn new(ring: W) -> Reader<W> {
        Reader { ring, at: 0 }
    }

    /// The next slot, if it was published.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        let slot = (self.at % self.ring.slots()) as usize;
        (self.ring.published(slot) == self.at + 1).then_some(slot)
    }

    /// Gives back the slot of [`Reader::next`].
    #[inline]
    pub fn give_back(&mut self) {
        self.at += 1;
        self.ring.give_back(self.at);
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving, and every order in which the memory model of C11 lets stores be
    //! seen, for rings of one and two slots (loom; CDSChecker: Norris and Demsky 2013).

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::{Reader, Words, Writer};

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
            if let Some(slot) = writer.free() {
                // SAFETY: loom checks that nobody reads it now.
                writer.ring.data[slot].with_mut(|data| unsafe { *data = value });
                writer.publish();
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
                reader.give_back();
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
                let slot = writer.free().expect("two slots");
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
}
