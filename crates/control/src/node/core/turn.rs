//! What is carried out in this turn: wishes of the commit machine, what was done without the shell,
//! news for services, and whether a look around is due.

use std::collections::VecDeque;

use outlive_protocols::commit::Commit;

use super::News;
use crate::node::machines::Effect;
use crate::node::shell::Done;

/// See the module.
pub(super) struct Turn<Slab> {
    pub wishes: VecDeque<Effect<Commit>>,
    done: VecDeque<Done<Slab>>,
    news: VecDeque<News>,
    /// Something happened since the last look.
    is_stirred: bool,
    /// A slot may have become free, so that the next version can be wanted at once.
    is_look_due: bool,
}

impl<Slab> Default for Turn<Slab> {
    fn default() -> Turn<Slab> {
        Turn {
            wishes: VecDeque::new(),
            done: VecDeque::new(),
            news: VecDeque::new(),
            is_stirred: false,
            is_look_due: false,
        }
    }
}

impl<Slab> Turn<Slab> {
    /// Services are to hear of it.
    pub fn tell(&mut self, news: News) {
        self.news.push_back(news);
    }

    /// What they have not heard yet.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// It was done at once.
    pub fn is_done(&mut self, done: Done<Slab>) {
        self.done.push_back(done);
    }

    /// What was done at once.
    pub fn next_done(&mut self) -> Option<Done<Slab>> {
        self.done.pop_front()
    }

    /// Something happened, if `stirs`.
    pub const fn stir(&mut self, stirs: bool) {
        self.is_stirred |= stirs;
    }

    /// True if something happened since this was asked last.
    pub const fn take_stirred(&mut self) -> bool {
        std::mem::replace(&mut self.is_stirred, false)
    }

    /// A look is due at once, if `due`.
    pub const fn look(&mut self, due: bool) {
        self.is_look_due |= due;
    }

    /// True if a look is due at once; not any more then.
    pub const fn take_look(&mut self) -> bool {
        std::mem::replace(&mut self.is_look_due, false)
    }

    /// True if a look is due at once.
    pub const fn is_look_due(&self) -> bool {
        self.is_look_due
    }
}
