//! A run that was told that it will be ended: how long it may go on, and what that says of the
//! next runs.
//!
//! A preemption is no failure. That it comes is told ahead, so that it takes only what cannot be
//! saved within the notice; how often it comes is learned apart. A warning shortly before an end
//! that was known anyway, a time limit, is no preemption.

use outlive_base::level::StoreKind;
use outlive_base::{Level, Time};
use outlive_planner::classes::Mask;
use outlive_planner::online::learned::Lost;
use outlive_planner::online::rate::{EVENTS, RatePrior};
use outlive_planner::online::{Notice, Policy as _, Seen};

use super::{Steering, Wishes, survivors};

/// Preemptions before one is seen: one a day, known as badly as failures are.
const PREEMPTED_SECONDS: f64 = 86_400.0;
/// Batch systems send a warning up to so much earlier than asked (sbatch(1), `--signal`).
const EARLY: Time = Time::from_secs(60);
/// A machine that is lost so long after the end that was announced was still lost by it.
const LATE: Time = Time::from_secs(60);

/// What was announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// When it was announced, and when the run is ended.
    announced: Time,
    ends: Time,
    /// This run ends itself before.
    in_order: bool,
    /// A version that was captured since lies at a level that outlasts the run.
    saved: bool,
}

/// What preemptions are expected, if anything is known of their notice.
pub(super) fn notice(wishes: &Wishes) -> Option<Notice> {
    Some(Notice {
        seconds: wishes.notice_ms? as f64 / 1e3,
        rate: RatePrior {
            events: EVENTS,
            seconds: EVENTS * PREEMPTED_SECONDS,
        },
    })
}

/// Levels that outlast a run. A preemption takes the machines with their storage: then those
/// that lie elsewhere, or on several of them, if there are any.
pub(super) fn outlasting(levels: &[Level], preempts: bool) -> Mask {
    let of = |which: &dyn Fn(&Level) -> bool| -> Mask {
        let places = levels.iter().enumerate();
        let places = places.filter(|(_, level)| which(level));
        places.map(|(place, _)| 1 << place).sum()
    };
    let elsewhere = of(&|level| level.store() == StoreKind::Shared);
    let several = of(&|level| level.outlives_a_node());
    match (preempts, elsewhere, several) {
        (true, 1.., _) => elsewhere,
        (true, 0, 1..) => several,
        _ => of(&|level| level.store() != StoreKind::Keeper),
    }
}

impl Steering {
    /// The run was warned that it will be ended. Of several warnings the earliest end counts, and
    /// nothing follows where nobody has said how long after them it comes. `reserve`: the run ends
    /// itself, in order, so long before.
    pub fn warned(&mut self, now: Time, reserve: Option<Time>) {
        let Some(notice) = self.notice else {
            return;
        };
        let in_order = reserve.is_some();
        let reserve = reserve.unwrap_or(Time::ZERO).min(Time(notice.0 / 4));
        let ends = now + Time(notice.0 - reserve.0);
        let known = self.ends.is_some_and(|end| end <= now + notice + EARLY);
        let again = self.leaving.is_some_and(|it| now <= it.ends + LATE);
        let at = self.at(now);
        if !known && !again {
            self.policy.see(at, Seen::Preempted);
            self.learned.preempt(at + self.zero);
            self.kept = None;
            self.looked = None;
        }
        let until = self.at(ends);
        self.policy.see(at, Seen::EndsBy { at: until });
        if !again {
            self.leaving = Some(Leaving {
                announced: now,
                ends,
                in_order,
                saved: false,
            });
        }
    }

    /// True if the run is to be ended in order now: its time is over, or all that can be saved of
    /// it is.
    pub fn is_time_to_leave(&self, now: Time) -> bool {
        let Some(leaving) = self.leaving.filter(|it| it.in_order) else {
            return false;
        };
        let busy: Mask = self.flying.keys().map(|place| 1 << place).sum();
        let spent = || self.asked.is_none() && self.policy.is_spent(self.at(now), busy);
        now >= leaving.ends || (leaving.saved && spent())
    }

    /// When it is to be looked at whether the run ends itself.
    pub(super) fn leaves(&self) -> Option<Time> {
        let leaving = self.leaving.filter(|it| it.in_order)?;
        Some(leaving.ends)
    }

    /// True while what is written is the last: it waits for no turn.
    pub(super) fn is_leaving(&self, now: Time) -> bool {
        self.leaving.is_some_and(|it| now <= it.ends)
    }

    /// A version that was captured at `since` is kept at a level.
    pub(super) fn saved(&mut self, since: Time, place: usize) {
        let outlasts = self.outlasting & (1 << place) != 0;
        if let Some(it) = &mut self.leaving {
            it.saved |= outlasts && since >= it.announced;
        }
    }

    /// True if what was lost is what was announced: then it counts as no failure, and the job,
    /// which went on, is threatened no more.
    pub(super) fn was_announced(&mut self, since: Time, lost: Lost) -> bool {
        let gone = |it: &mut Leaving| lost >= Lost::Memory && since <= it.ends + LATE;
        if self.leaving.take_if(gone).is_none() {
            return false;
        }
        let survive = survivors(&self.levels, lost);
        self.policy.see(self.at(since), Seen::Ended { survive });
        true
    }
}
