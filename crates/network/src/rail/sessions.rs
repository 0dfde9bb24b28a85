//! A rail over sessions: a frame arrives although connections break, kernels below the
//! processes are replaced, or a process is stopped for a while.
//!
//! How a death is known: a session was given up ([`Config::give_up`]), or the other one came
//! back without its memory. No kernel is asked, as on the rail over TCP: one that refuses may be
//! the new kernel below a process that lives. So a death is known late here, and a process that
//! is stopped for longer than `give_up` counts as dead. Who had not met a process before it came
//! back without its memory cannot tell, and takes it for the first one.
//!
//! Invariants: a frame is a message of one context; what a session's window has no room for
//! waits in order; a session that failed holds up no other.
//!
//! [`Config::give_up`]: crate::session::Config::give_up

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outlive_base::{Error, Time};

use crate::key::JobKey;
use crate::rail::{Can, Frame, News, Rail, STALL};
use crate::session::{Mesh, MeshOptions};

/// The traffic of rails; those of programs and of their collectives are 0 and 1.
const CONTEXT: u32 = 2;
/// Most bytes that wait for windows before machines are no longer pulled.
const QUEUE_BYTES: usize = 64 << 20;

/// What waits for one process.
#[derive(Default)]
struct Waiting {
    /// Frames that its session has not taken whole, and how much of the first one it has.
    frames: VecDeque<Vec<u8>>,
    queued: usize,
    offset: usize,
    /// Bytes of these and of what the session took and no link yet.
    bytes: usize,
    /// When that last became less, or began to wait.
    moved: Time,
}

/// See the module.
pub struct Sessions {
    mesh: Mesh,
    step: Time,
    /// The kernel's clock when it was last read, and what this rail made of it.
    clock: Cell<(Time, Time)>,
    waiting: BTreeMap<u32, Waiting>,
    arrived: VecDeque<(u32, Frame)>,
    gone: BTreeSet<u32>,
    news: VecDeque<News>,
}

impl Sessions {
    /// The rail of process `options.rank`, which listens at its address. `job_hash` keeps jobs
    /// apart that share a key. [`MeshOptions::reliable`] is not looked at: it always is.
    ///
    /// # Errors
    /// Those of [`Mesh::new`].
    pub fn new(options: MeshOptions, key: JobKey, job_hash: u64) -> Result<Sessions, Error> {
        let step = Time(options.session.heartbeat.0 / 2);
        let reliable = true;
        let mesh = Mesh::new(
            MeshOptions {
                reliable,
                ..options
            },
            key,
            job_hash,
        )?;
        Ok(Sessions {
            mesh,
            step,
            clock: Cell::new((Time::NEVER, Time::ZERO)),
            waiting: BTreeMap::new(),
            arrived: VecDeque::new(),
            gone: BTreeSet::new(),
            news: VecDeque::new(),
        })
    }

    /// Meets every other process now, so that a death is noticed also of those that nothing is
    /// sent to.
    pub fn call_all(&mut self) {
        self.mesh.meet_all();
    }

    /// Fault injection: breaks the connection with `peer`.
    pub fn break_link(&mut self, peer: u32) {
        self.mesh.break_link(peer);
    }

    /// Fault injection: all descriptors vanish, as with a new kernel.
    pub fn lose_descriptors(&mut self) {
        self.mesh.lose_descriptors();
    }

    /// Gives the session of `to` what it takes.
    fn offer(&mut self, to: u32) {
        let Some(waiting) = self.waiting.get_mut(&to) else {
            return;
        };
        while let Some(frame) = waiting.frames.front() {
            let offset = &mut waiting.offset;
            match self.mesh.offer(to, CONTEXT, 0, frame, offset) {
                Ok(true) => {
                    waiting.queued -= frame.len();
                    waiting.frames.pop_front();
                    waiting.offset = 0;
                }
                // Not now, or a session that failed, which the next turn finds.
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// One turn of all sessions, at most `wait` long, and what it brought.
    fn turn(&mut self, wait: Time) {
        self.mesh.go_on(wait);
        let met: Vec<u32> = self.mesh.met().collect();
        for peer in met {
            while let Some(message) = self.mesh.take(peer, 0) {
                // Another context or half a frame: nothing that a rail sent.
                if let (CONTEXT, Ok(frame)) = (message.context(), Frame::parse(message.body())) {
                    self.arrived.push_back((peer, frame));
                }
            }
            if self.gone.contains(&peer) {
                continue;
            }
            if self.mesh.parted(peer) {
                self.mesh.part(peer);
                self.bury(peer, News::Left(peer));
            } else if self.mesh.check(peer).is_err() {
                self.bury(peer, News::Dead(peer));
            } else {
                self.offer(peer);
                self.note(peer);
            }
        }
    }

    fn bury(&mut self, peer: u32, news: News) {
        self.gone.insert(peer);
        self.waiting.remove(&peer);
        self.news.push_back(news);
    }

    /// Notes how much waits for `peer`.
    fn note(&mut self, peer: u32) {
        let now = self.now();
        let Some(waiting) = self.waiting.get_mut(&peer) else {
            return;
        };
        let queued = waiting.queued - waiting.offset.min(waiting.queued);
        let bytes = queued + self.mesh.unsent_bytes(peer);
        if bytes < waiting.bytes {
            waiting.moved = now;
        }
        waiting.bytes = bytes;
        if bytes == 0 {
            self.waiting.remove(&peer);
        }
    }
}

impl Rail for Sessions {
    fn me(&self) -> u32 {
        self.mesh.rank()
    }
    fn size(&self) -> u32 {
        self.mesh.size()
    }
    fn name(&self) -> &'static str {
        "sessions"
    }
    fn can(&self) -> Can {
        Can {
            tells_deaths: true,
            reliable: true,
            ..Can::default()
        }
    }
    fn now(&self) -> Time {
        // A new kernel's clock begins anew; this one stands still meanwhile.
        let (read, (last, given)) = (self.mesh.clock(), self.clock.get());
        let given = given + Time(read.0.saturating_sub(last.0));
        self.clock.set((read, given));
        given
    }
    fn ready(&self) -> bool {
        let queued = self.waiting.values().map(|one| one.bytes);
        queued.sum::<usize>() < QUEUE_BYTES
    }
    fn waiting(&self) -> usize {
        let now = self.now();
        let moving = |one: &&Waiting| now.since(one.moved) <= Time::from(STALL);
        self.waiting
            .values()
            .filter(moving)
            .map(|one| one.bytes)
            .sum()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if to == self.me() || to >= self.size() || self.gone.contains(&to) {
            return;
        }
        let moved = self.now();
        let bytes = frame.bytes();
        let waiting = self.waiting.entry(to).or_insert_with(|| Waiting {
            moved,
            ..Waiting::default()
        });
        waiting.queued += bytes.len();
        waiting.bytes += bytes.len();
        waiting.frames.push_back(bytes);
        self.offer(to);
        self.note(to);
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        if self.arrived.is_empty() {
            self.turn(Time::ZERO);
        }
        self.arrived.pop_front()
    }
    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }
    fn look(&mut self) {
        self.turn(Time::ZERO);
    }
    fn wait(&mut self, until: Time) {
        if self.arrived.is_empty() && self.news.is_empty() {
            self.turn(until.since(self.now()).min(self.step));
        }
    }
    fn flushed(&mut self) -> bool {
        if !self.waiting.is_empty() {
            self.turn(Time::ZERO);
        }
        self.waiting.is_empty()
    }
    fn leave(&mut self, bound: Duration) {
        let end = self.now() + Time::from(bound);
        while !self.flushed() && self.now() < end {
            self.turn(self.step);
        }
        let left = end.since(self.now());
        self.mesh.finish(left.max(Time(Time::from(bound).0 / 2)));
    }
}
