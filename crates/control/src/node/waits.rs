//! Ranks that wait until a version survives something (`outlive_wait`).

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::{ToAgent, ToRank, VersionState};
use outlive_base::{Rank, Survives, Time, Version};

use super::Planted;
use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::Shell;

/// A rank's `wait` that cannot be answered yet.
struct Waiting {
    rank: Rank,
    sequence: u32,
    version: Version,
    survives: Survives,
    until: Time,
}

/// Who waits: each rank for one thing at a time.
pub struct Waits(Vec<Waiting>);

impl Service for Waits {
    type Word = Silent;

    fn new(_: Time) -> Waits {
        Waits(Vec::new())
    }

    fn on_rank<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        (rank, sequence): (Rank, u32),
        message: ToAgent,
    ) -> Option<ToAgent> {
        let ToAgent::Wait {
            version,
            survives,
            timeout_ms,
        } = message
        else {
            return Some(message);
        };
        self.0.retain(|waiting| waiting.rank != rank);
        self.0.push(Waiting {
            rank,
            sequence,
            version,
            survives,
            until: core.now() + Time::from_ms(u64::from(timeout_ms)),
        });
        self.answer(core);
        None
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Opening => self.0.clear(),
            News::Gone(rank) => self.0.retain(|waiting| waiting.rank != *rank),
            News::Stable { .. } | News::Disarmed(_) | News::Aborted(_) => self.answer(core),
            _ => {}
        }
        core.note_waiting(self.0.len());
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        self.answer(core);
    }

    fn look_at<S: Shell>(&self, _: &Core<S>) -> Option<Time> {
        self.0.iter().map(|waiting| waiting.until).min()
    }
}

impl Waits {
    /// Answers those that are decided or whose time has passed.
    fn answer<S: Shell>(&mut self, core: &mut Core<S>) {
        for waiting in std::mem::take(&mut self.0) {
            let Some(state) = waiting.state(core) else {
                core.ask_how_it_ended(waiting.rank, waiting.version);
                self.0.push(waiting);
                continue;
            };
            let message = ToRank::State {
                version: waiting.version,
                survives: waiting.survives,
                state,
            };
            core.answer(waiting.rank, waiting.sequence, message);
        }
        core.note_waiting(self.0.len());
    }
}

impl Waiting {
    /// What became of the version, or that its time is over; else nothing is to be said.
    fn state<S: Shell>(&self, core: &Core<S>) -> Option<VersionState> {
        let any = core.has_planted(Planted::AnyLevelIsSafe);
        let stable = core.stable().iter().any(|(level, (_, version))| {
            (any || level.survives() >= self.survives) && *version >= self.version
        });
        let entry = core.ranks().get(self.rank);
        let aborted = entry.and_then(|entry| entry.block()?.aborted());
        let ended = aborted == Some(self.version) || self.is_hopeless(core);
        if stable {
            Some(VersionState::Committed)
        } else if ended && !core.has_planted(Planted::KeepWaiting) {
            Some(VersionState::Aborted)
        } else {
            (core.now() >= self.until).then_some(VersionState::Pending)
        }
    }

    /// True if the version is known here, and no level is left to it that survives this: given
    /// up there, or by the policy not meant to go so far.
    fn is_hopeless<S: Shell>(&self, core: &Core<S>) -> bool {
        // After a restart of this agent the levels come later.
        let round = core.rounds().get(&self.version);
        if round.is_some_and(|round| !round.void && (round.levels.is_empty() || round.unsure)) {
            return false;
        }
        let left = core.line().levels.get(&(core.incarnation(), self.version));
        left.is_some_and(|left| !left.iter().any(|level| level.survives() >= self.survives))
    }
}
