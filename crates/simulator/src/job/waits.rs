//! Ranks that wait until a version survives something, as the library does
//! ([`outlive_wait`](outlive_base::ipc::ToAgent::Wait)): they look at their control block, ask their
//! agent, and ask again the one that is started in its place.

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::{ToAgent, VersionState};
use outlive_base::rng::draw;
use outlive_base::{Time, Version};

use super::program::{Program, Stage, Wait};
use super::*;

/// So long after the faults, at most, it is known what became of a version that ranks wait for:
/// longer than all bounds of a commit, but for what has no bound of its own.
const KNOWN: Time = Time::from_secs(6);
/// A wait that is to end with an answer.
const LONG: Time = Time::from_secs(100);
/// What an answer takes longer than it may.
const GRACE: Time = Time::from_ms(500);
/// Messages of the program keep a rank from going further ahead of one that waits.
const AHEAD: u64 = 8;

impl Job {
    /// A rank has captured a version: true if it waits for that now. Ranks wait together in half of
    /// the cases.
    pub(super) fn waits_for(&mut self, rank: u32, epoch: u32, version: Version) -> bool {
        let chance = u64::from(self.options.waits);
        if chance == 0 {
            return false;
        }
        let drawn = draw(self.seed, version.0 << 16 | u64::from(epoch), 0x7761);
        let together = drawn % 1_000_000 < chance / 2;
        if !together && !self.random.chance(self.options.waits / 2) {
            return false;
        }
        let most = self.options.levels.iter().count() as u64;
        let levels = &self.options.levels;
        let level = levels.iter().nth(((drawn >> 32) % most) as usize);
        let Some(level) = level else { return false };
        let lasts = match self.random.chance(250_000) {
            true => self.some_us(2_000_000),
            false => LONG,
        };
        let wait = Wait {
            version,
            survives: level.survives(),
            since: self.now,
            until: self.now + lasts,
        };
        let Some(program) = self.program(rank, epoch) else {
            return false;
        };
        match &mut program.stage {
            // It tells of the capture first, to an agent that it has to find again.
            Stage::Greeting(then) => **then = Stage::Awaiting(wait),
            stage => *stage = Stage::Awaiting(wait),
        }
        let known = program.block.as_ref();
        let known = known.and_then(|block| block.outcome(version, wait.survives));
        let greets = matches!(program.stage, Stage::Greeting(_));
        self.note(|| format!("rank {rank} waits: {wait:?}"));
        match known {
            Some(state) => self.wait_ends(rank, epoch, wait, state),
            None if greets => {}
            None => self.ask_wait(rank, epoch, wait),
        }
        true
    }

    pub(super) fn ask_wait(&mut self, rank: u32, epoch: u32, wait: Wait) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if program.token.is_none() {
            return self.reach(rank, epoch);
        }
        let asks = ToAgent::Wait {
            version: wait.version,
            survives: wait.survives,
            timeout_ms: wait.until.since(wait.since).as_ms().ceil() as u32,
        };
        self.say(rank, epoch, asks);
    }

    /// Nobody has answered for long: that ends a wait whose time is over.
    pub(super) fn wait_is_late(&mut self, rank: u32, epoch: u32, wait: Wait, sequence: u32) {
        if self.now >= wait.until + GRACE {
            return self.wait_ends(rank, epoch, wait, VersionState::Pending);
        }
        let late = Action::Late {
            rank,
            epoch,
            sequence,
        };
        self.after((wait.until + GRACE).since(self.now), late);
    }

    pub(super) fn wait_ends(&mut self, rank: u32, epoch: u32, wait: Wait, state: VersionState) {
        let decides = self.at(self.options.coordinator);
        let now = self.now;
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        program.stage = match &program.stage {
            Stage::Greeting(_) => Stage::Greeting(Box::new(Stage::Running)),
            _ => Stage::Running,
        };
        let Some(block) = program.block.clone() else {
            return;
        };
        let key = (block.identity().incarnation.0, wait.version.0);
        self.note(|| format!("rank {rank} hears of {key:?}: {state:?}"));
        self.waited += 1;
        match state {
            VersionState::Committed => {
                self.judge_block(&block, None);
                self.judge.hears_safe(now, key, wait.survives);
            }
            VersionState::Aborted => {
                self.judge.hears_ended(now, key, wait.survives, decides);
                self.is_ended(rank, epoch, wait.version);
            }
            VersionState::Pending if now < wait.until => {
                self.wrong(format!("P5: rank {rank} need not wait longer: {wait:?}"));
            }
            VersionState::Pending => {}
        }
        self.judge_wait(rank, wait);
        self.next_step(rank, epoch, wait.version.0);
    }

    fn judge_wait(&mut self, rank: u32, wait: Wait) {
        let since = wait.since.max(self.healed());
        let until = self.now.min(wait.until);
        // A copy that hangs is given up when a version's bound has passed.
        let given_up = Time::from_ms(self.options.commit_ms + 2_000);
        if until.since(since) > KNOWN.max(given_up) {
            self.wrong(format!(
                "P5: rank {rank} did not hear what became of {wait:?}"
            ));
        }
    }

    /// The history ends: nobody waits any more for what is decided.
    pub(super) fn judge_waits(&mut self) {
        let waits = |program: &Program| match &program.stage {
            Stage::Awaiting(wait) => Some((program.rank, *wait)),
            Stage::Greeting(then) => match **then {
                Stage::Awaiting(wait) => Some((program.rank, wait)),
                _ => None,
            },
            _ => None,
        };
        let waits: Vec<_> = self.programs.values().filter_map(waits).collect();
        for (rank, wait) in waits {
            self.judge_wait(rank, wait);
        }
    }

    /// True if a program that has come so far needs a rank that waits before it goes on.
    pub(super) fn is_held_by_waits(&self, version: u64) -> bool {
        let waits = |program: &Program| matches!(program.stage, Stage::Awaiting(_));
        let far = |program: &Program| {
            waits(program) && version > program.next + AHEAD * self.options.stride
        };
        self.options.waits > 0 && self.programs.values().any(far)
    }
}
