//! An arming that waits for room.

use outlive_base::{Level, Time, Version};
use outlive_protocols::commit::Levels;

/// What waits: version, levels, until when.
#[derive(Default)]
pub(super) struct Deferred(Option<(Version, Levels, Time)>);

impl Deferred {
    /// It waits until then.
    pub const fn put(&mut self, version: Version, levels: Levels, until: Time) {
        self.0 = Some((version, levels, until));
    }

    /// What waits.
    pub const fn get(&self) -> Option<(Version, Levels, Time)> {
        self.0
    }

    pub const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub fn is(&self, version: Version) -> bool {
        self.0.is_some_and(|(waits, ..)| waits == version)
    }

    /// Nothing waits any more.
    pub const fn take(&mut self) -> Option<(Version, Levels, Time)> {
        self.0.take()
    }

    /// This version waits no more.
    pub fn forget(&mut self, version: Version) {
        self.0.take_if(|(waits, ..)| *waits == version);
    }

    /// A level of a version has ended before there was room: nobody would end it again.
    pub fn end(&mut self, version: Version, level: Level) {
        if let Some((waits, levels, _)) = &mut self.0
            && *waits == version
        {
            *levels = levels.without(level);
            self.0.take_if(|(_, levels, _)| levels.is_empty());
        }
    }
}
