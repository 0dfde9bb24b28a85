//! How processes reach each other, as the balancing needs it, and a transport
//! between threads for tests.
//!
//! Invariants that an implementation keeps: messages between two processes with
//! one tag arrive in order and once; collectives are called by all in one order.

use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Condvar, Mutex};

use outlive_base::{Code, Entity, Error, Result};

/// Point-to-point messages and two collectives.
pub trait Transport {
    /// This process.
    fn rank(&self) -> u32;
    /// All processes.
    fn size(&self) -> u32;
    /// Sends; may return before the receiver has it.
    ///
    /// # Errors
    /// The medium's.
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()>;
    /// Waits for the next message with this tag, from `from` or from anyone.
    ///
    /// # Errors
    /// The medium's.
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)>;
    /// The value of every process, by rank.
    ///
    /// # Errors
    /// The medium's.
    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>>;
    /// Gives `bytes[p]` to process p; returns what each process gave. Unless the medium
    /// has a way of its own: a message to each.
    ///
    /// # Errors
    /// The medium's.
    fn all_to_all(&mut self, bytes: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        for (to, bytes) in bytes.iter().enumerate() {
            self.send(to as u32, ALL_TAG, bytes)?;
        }
        let from = 0..self.size();
        from.map(|from| Ok(self.receive(Some(from), ALL_TAG)?.1))
            .collect()
    }
}

/// The tag of an all-to-all by messages; the balancing's own are small.
const ALL_TAG: u32 = u32::MAX;

type Mail = VecDeque<(u32, u32, Vec<u8>)>;

/// A transport between threads of one process.
pub struct Threads {
    rank: u32,
    shared: Arc<Shared>,
}

struct Shared {
    boxes: Vec<(Mutex<Mail>, Condvar)>,
    values: Mutex<Vec<f64>>,
    barrier: Barrier,
}

impl Threads {
    /// One transport for each of `size` threads.
    pub fn all(size: u32) -> Vec<Threads> {
        let shared = Arc::new(Shared {
            boxes: (0..size).map(|_| Default::default()).collect(),
            values: Mutex::new(vec![0.0; size as usize]),
            barrier: Barrier::new(size as usize),
        });
        let one = |rank| Threads {
            rank,
            shared: Arc::clone(&shared),
        };
        (0..size).map(one).collect()
    }
}

impl Threads {
    /// Messages that nobody received: (sender, tag). Call it when all are done.
    pub fn left_over(&self) -> Vec<(u32, u32)> {
        let (mail, _) = &self.shared.boxes[self.rank as usize];
        let mail = mail
            .lock()
            .map(|mail| mail.iter().map(|m| (m.0, m.1)).collect());
        mail.unwrap_or_default()
    }
}

fn poisoned<T>(_: T) -> Error {
    Error::new(
        Code::RankLost,
        Entity::Call,
        "another thread ended",
        "see its message",
    )
}

impl Transport for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.shared.boxes.len() as u32
    }
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        let (mail, bell) = &self.shared.boxes[to as usize];
        mail.lock()
            .map_err(poisoned)?
            .push_back((self.rank, tag, bytes.to_vec()));
        bell.notify_all();
        Ok(())
    }
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
        let (mail, bell) = &self.shared.boxes[self.rank as usize];
        let mut mail = mail.lock().map_err(poisoned)?;
        loop {
            let fits = |entry: &(u32, u32, Vec<u8>)| {
                entry.1 == tag && from.is_none_or(|from| from == entry.0)
            };
            if let Some(place) = mail.iter().position(fits)
                && let Some((from, _, bytes)) = mail.remove(place)
            {
                return Ok((from, bytes));
            }
            mail = bell.wait(mail).map_err(poisoned)?;
        }
    }
    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>> {
        self.shared.values.lock().map_err(poisoned)?[self.rank as usize] = value;
        self.shared.barrier.wait();
        let all = self.shared.values.lock().map_err(poisoned)?.clone();
        self.shared.barrier.wait();
        Ok(all)
    }
}
