//! Versions that the ranks take whatever the policy says.

use outlive_base::{Code, Time, Version};

use super::*;

impl Job {
    /// A checkpoint that all ranks take by themselves, at a version that none has reached.
    pub(super) fn force(&mut self) {
        let pause = Time::from_ms(200 + self.random.below(1_500));
        self.after(pause, Action::Force);
        let furthest = self.programs.values().map(|program| program.next).max();
        if let (Some(_), Some(furthest)) = (self.launcher.running(), furthest) {
            let stride = self.options.stride;
            let version = (furthest + 5 * stride).next_multiple_of(stride);
            self.forced.insert((self.epoch, version));
        }
    }

    pub(super) fn is_forced(&self, epoch: u32, version: u64) -> bool {
        let each = self.options.forces * self.options.stride;
        self.forced.contains(&(epoch, version)) || (each > 0 && version.is_multiple_of(each))
    }

    /// Nothing fails, and no bound passes: what the program forces is taken.
    fn is_peace(&self) -> bool {
        self.options.peace && self.now < self.healed()
    }

    /// A rank hears that nothing comes of a version that it waits for. What it forces goes to all levels,
    /// whatever it was armed for.
    pub(super) fn is_ended(&mut self, rank: u32, epoch: u32, version: Version) {
        if self.is_forced(epoch, version.0) && self.is_peace() {
            let version = version.0;
            self.wrong(format!(
                "rank {rank} forces version {version}, which does not go where it is waited for"
            ));
        }
    }

    /// A rank has entered a version and is not to capture it. What it forces is taken, unless
    /// something fails or there is no room for it.
    pub(super) fn is_refused(&mut self, rank: u32, epoch: u32, version: Version, code: Code) {
        if code == Code::CommitAborted && self.is_forced(epoch, version.0) && self.is_peace() {
            let version = version.0;
            self.wrong(format!(
                "rank {rank} forces version {version}, which was given up"
            ));
        }
    }
}
