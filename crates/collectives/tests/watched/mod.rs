//! A rail seen from outside, for the tests of the drivers.

use std::time::Duration;

use outlive_base::Time;
use outlive_network::rail::{Can, Frame, News, Rail};

/// A rail that counts what leaves.
pub struct Watched<'a, R> {
    pub rail: &'a mut R,
    /// Frames with a body.
    pub given: u64,
    /// Those down trees that are kept.
    pub branches: u64,
    /// Processes whose deaths were told.
    pub deaths: usize,
    /// True of a frame down such a tree.
    pub branch: fn(&Frame) -> bool,
}

impl<R: Rail> Rail for Watched<'_, R> {
    fn me(&self) -> u32 {
        self.rail.me()
    }
    fn size(&self) -> u32 {
        self.rail.size()
    }
    fn name(&self) -> &'static str {
        self.rail.name()
    }
    fn can(&self) -> Can {
        self.rail.can()
    }
    fn now(&self) -> Time {
        self.rail.now()
    }
    fn ready(&self) -> bool {
        self.rail.ready()
    }
    fn waiting(&self) -> usize {
        self.rail.waiting()
    }
    fn send(&mut self, to: u32, frame: Frame) {
        self.given += u64::from(frame.body.is_some());
        self.branches += u64::from((self.branch)(&frame));
        self.rail.send(to, frame);
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        self.rail.receive()
    }
    fn news(&mut self) -> Option<News> {
        let news = self.rail.news();
        self.deaths += usize::from(matches!(news, Some(News::Dead(_))));
        news
    }
    fn leave(&mut self, bound: Duration) {
        self.rail.leave(bound);
    }
    fn wait(&mut self, until: Time) {
        self.rail.wait(until);
    }
    fn flushed(&mut self) -> bool {
        self.rail.flushed()
    }
}
