//! A rail between threads of one process: frames by reference, no copies.
//!
//! A thread's death is known at once here: [`Threads::kill`] (or dropping a rail
//! without [`Threads::leave`]) is what the others are told.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::Time;

use crate::rail::Rail;
use crate::rail::frame::Frame;

#[derive(Default)]
struct Inbox {
    mail: VecDeque<(u32, Frame)>,
    deaths: VecDeque<u32>,
    closed: bool,
}

struct Shared {
    boxes: Vec<(Mutex<Inbox>, Condvar)>,
    start: Instant,
}

/// See the module.
pub struct Threads {
    me: u32,
    shared: Arc<Shared>,
    left: bool,
}

fn open(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    // A thread that panicked between two lines here left a whole queue behind.
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// One rail for each of `size` threads.
    pub fn all(size: u32) -> Vec<Threads> {
        let shared = Arc::new(Shared {
            boxes: (0..size).map(|_| Default::default()).collect(),
            start: Instant::now(),
        });
        let one = |me| Threads {
            me,
            shared: Arc::clone(&shared),
            left: false,
        };
        (0..size).map(one).collect()
    }
    /// Ends well: the others are not told of a death.
    pub fn leave(mut self) {
        self.left = true;
    }
    /// Dies: the others are told.
    pub fn kill(self) {}
}

impl Drop for Threads {
    fn drop(&mut self) {
        let shared = &self.shared;
        let own = &shared.boxes[self.me as usize].0;
        *open(own) = Inbox {
            closed: true,
            ..Inbox::default()
        };
        if self.left {
            return;
        }
        for (inbox, bell) in &shared.boxes {
            open(inbox).deaths.push_back(self.me);
            bell.notify_all();
        }
    }
}

impl Rail for Threads {
    fn me(&self) -> u32 {
        self.me
    }
    fn size(&self) -> u32 {
        self.shared.boxes.len() as u32
    }
    fn now(&self) -> Time {
        Time::from(self.shared.start.elapsed())
    }
    fn ready(&self) -> bool {
        true
    }
    fn waiting(&self) -> usize {
        0
    }
    fn send(&mut self, to: u32, frame: Frame) {
        if let Some((inbox, bell)) = self.shared.boxes.get(to as usize) {
            let mut inbox = open(inbox);
            if !inbox.closed {
                inbox.mail.push_back((self.me, frame));
                bell.notify_all();
            }
        }
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        open(&self.shared.boxes[self.me as usize].0)
            .mail
            .pop_front()
    }
    fn death(&mut self) -> Option<u32> {
        open(&self.shared.boxes[self.me as usize].0)
            .deaths
            .pop_front()
    }
    fn wait(&mut self, until: Time) {
        let (inbox, bell) = &self.shared.boxes[self.me as usize];
        let left = Duration::from_nanos(until.since(self.now()).0);
        let idle = |inbox: &mut Inbox| inbox.mail.is_empty() && inbox.deaths.is_empty();
        // Woken or late: the caller looks either way.
        let _ = bell.wait_timeout_while(open(inbox), left, idle);
    }
    fn flushed(&mut self) -> bool {
        true
    }
}
