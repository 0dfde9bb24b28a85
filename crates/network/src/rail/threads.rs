//! A rail between threads of one process: frames by reference, no copies.
//!
//! A thread's death is known at once here: it is a rail that is dropped and has not left.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outlive_base::Time;

use crate::rail::frame::Frame;
use crate::rail::{Can, News, Rail};

#[derive(Default)]
struct Inbox {
    mail: VecDeque<(u32, Frame)>,
    news: VecDeque<News>,
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

    fn tell(&self, news: News) {
        for (inbox, bell) in &self.shared.boxes {
            open(inbox).news.push_back(news);
            bell.notify_all();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let own = &self.shared.boxes[self.me as usize].0;
        *open(own) = Inbox {
            closed: true,
            ..Inbox::default()
        };
        if !self.left {
            self.tell(News::Dead(self.me));
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
    fn name(&self) -> &'static str {
        "threads"
    }
    fn can(&self) -> Can {
        Can {
            tells_deaths: true,
            ..Can::default()
        }
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
    fn news(&mut self) -> Option<News> {
        open(&self.shared.boxes[self.me as usize].0)
            .news
            .pop_front()
    }
    fn wait(&mut self, until: Time) {
        let (inbox, bell) = &self.shared.boxes[self.me as usize];
        let left = Duration::from_nanos(until.since(self.now()).0);
        let idle = |inbox: &mut Inbox| inbox.mail.is_empty() && inbox.news.is_empty();
        // Woken or late: the caller looks either way.
        let _ = bell.wait_timeout_while(open(inbox), left, idle);
    }
    fn flushed(&mut self) -> bool {
        true
    }
    fn leave(&mut self, _bound: Duration) {
        if !std::mem::replace(&mut self.left, true) {
            self.tell(News::Left(self.me));
        }
    }
}
