//! Whether a job stands still: its ranks live and come no further.
//!
//! What counts as coming forward is a newer version than any before. The bound is learnt from the
//! job: many times the longest pause that it has made from one version to the next, and at least
//! a minute. Only time in which the ranks are at work counts, and no more between two looks than
//! looks are apart: a launcher that was stopped, or a clock that jumped, has seen nothing of what
//! lies between.
//!
//! Invariants: an alarm is given at most once for a standstill; a pause that was called a
//! standstill and was none makes the bound longer than it.

use outlive_base::{Code, Entity, Error, Result, Time};
use serde::{Deserialize, Serialize};

/// Pauses between versions that must be known before anything is learnt from them.
const ADVANCES_MIN: u32 = 3;
/// A pause is a standstill from so many times the longest one on.
const TIMES_LONGEST: u64 = 10;
/// The same of pauses that were called standstills by a bound that the owner has given.
const TIMES_OUTLIVED: u64 = 2;

/// What is done about a job that stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnHang {
    /// It is told, with the stacks of all ranks.
    #[default]
    Report,
    /// The ranks are ended, and the job goes on from its newest version.
    Restart,
    /// The job is ended.
    Kill,
}

impl OnHang {
    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            OnHang::Report => "report",
            OnHang::Restart => "restart",
            OnHang::Kill => "kill",
        }
    }
}

impl core::str::FromStr for OnHang {
    type Err = Error;
    fn from_str(text: &str) -> Result<OnHang> {
        let all = [OnHang::Report, OnHang::Restart, OnHang::Kill];
        let found = all.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                Entity::Option("on-hang".to_owned()),
                format!(
                    "'{}' is neither report, restart nor kill",
                    text.chars().take(60).collect::<String>()
                ),
                "give report, restart to go on from the newest version, or kill to end the job",
            )
        })
    }
}

/// When a job is said to stand still, and what follows. Times in milliseconds.
#[derive(Clone, Debug)]
pub struct HangRule {
    /// What follows.
    pub on: OnHang,
    /// The owner's bound; `None`: it is learnt.
    pub bound_ms: Option<u64>,
    /// What is learnt is never shorter.
    pub least_ms: u64,
    /// For how long no rank may join while the command runs and not all have.
    pub join_ms: u64,
    /// The owner has given that, so that what follows holds for it too. Else it is only told: who
    /// works for long before it joins, or never does, is no failure.
    pub join_given: bool,
    /// How long the stacks of the ranks are waited for.
    pub answer_ms: u64,
    /// Where they are written, for words.
    pub dir: String,
    /// The number of the last standstill of earlier runs of the job, 0 if none.
    pub before: u32,
}

impl Default for HangRule {
    fn default() -> HangRule {
        HangRule {
            on: OnHang::Report,
            bound_ms: None,
            least_ms: 60_000,
            join_ms: 120_000,
            join_given: false,
            answer_ms: 10_000,
            dir: String::new(),
            before: 0,
        }
    }
}

/// For how long ranks may come no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// So long.
    pub time: Time,
    /// From the job's own pace; else the owner has given it.
    pub learnt: bool,
}

/// Judges one job. Time comes with each call.
#[derive(Debug)]
pub struct Judge {
    /// When it looked last.
    seen: Time,
    /// The time at work since the ranks came forward last.
    still: Time,
    /// The longest such time from one version to the next.
    longest: Time,
    /// The longest one that was called a standstill and was none.
    outlived: Time,
    /// Versions that were newer than any before, since the ranks were started.
    advances: u32,
    /// This standstill was told.
    told: bool,
}

impl Judge {
    /// Of a job that begins now.
    pub const fn new(now: Time) -> Judge {
        Judge {
            seen: now,
            still: Time::ZERO,
            longest: Time::ZERO,
            outlived: Time::ZERO,
            advances: 0,
            told: false,
        }
    }

    /// Time has passed. It counts if the ranks were at work; of a longer gap than `most` only so
    /// much, for nobody was there to see them.
    pub fn pass(&mut self, now: Time, most: Time, at_work: bool) {
        let passed = now.since(self.seen).min(most);
        self.seen = self.seen.max(now);
        if at_work {
            self.still = self.still + passed;
        }
    }

    /// The ranks were started anew.
    pub const fn started(&mut self) {
        self.still = Time::ZERO;
        self.advances = 0;
        self.told = false;
    }

    /// Something else than a version shows that the job moves: a rank has joined or left. What
    /// was told to stand still has not: it may have been one rank of many.
    pub const fn moved(&mut self) {
        if !self.told {
            self.still = Time::ZERO;
        }
    }

    /// A newer version than any before is offered. If the job was told to stand still: for how
    /// long it did.
    pub fn advanced(&mut self) -> Option<Time> {
        let still = core::mem::replace(&mut self.still, Time::ZERO);
        // The way to the first version is the program's own beginning.
        if self.advances > 0 {
            self.longest = self.longest.max(still);
        }
        self.advances = self.advances.saturating_add(1);
        let told = core::mem::take(&mut self.told);
        if told {
            self.outlived = self.outlived.max(still);
        }
        told.then_some(still)
    }

    /// For how long the ranks have been at work and come no further.
    pub const fn still(&self) -> Time {
        self.still
    }

    /// The alarm was given, and they have not come forward since.
    pub const fn is_told(&self) -> bool {
        self.told
    }

    /// For how long they may; `None` while that is not known.
    pub fn bound(&self, rule: &HangRule) -> Option<Bound> {
        let times = |time: Time, factor: u64| Time(time.0.saturating_mul(factor));
        if let Some(ms) = rule.bound_ms {
            let time = Time::from_ms(ms).max(times(self.outlived, TIMES_OUTLIVED));
            let learnt = false;
            return Some(Bound { time, learnt });
        }
        let known = self.advances > ADVANCES_MIN;
        let longest = times(self.longest.max(self.outlived), TIMES_LONGEST);
        known.then(|| Bound {
            time: Time::from_ms(rule.least_ms).max(longest),
            learnt: true,
        })
    }

    /// Gives the alarm if the bound has passed and it was not given yet: the bound.
    pub fn alarm(&mut self, rule: &HangRule) -> Option<Bound> {
        let bound = self.bound(rule)?;
        self.over(bound.time).then_some(bound)
    }

    /// The same with this bound.
    pub fn over(&mut self, bound: Time) -> bool {
        let over = !self.told && self.still >= bound;
        self.told |= over;
        over
    }

    /// When the bound will have passed at the earliest.
    pub fn due(&self, rule: &HangRule) -> Option<Time> {
        self.due_by(self.bound(rule)?.time)
    }

    /// The same with this bound.
    pub fn due_by(&self, bound: Time) -> Option<Time> {
        (!self.told).then(|| self.seen + bound.since(self.still))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Time = Time::from_ms(500);

    struct Watched {
        judge: Judge,
        now: Time,
        rule: HangRule,
        alarms: Vec<Bound>,
    }

    impl Watched {
        fn new(rule: HangRule) -> Watched {
            Watched {
                judge: Judge::new(Time::ZERO),
                now: Time::ZERO,
                rule,
                alarms: Vec::new(),
            }
        }

        /// So many milliseconds, looked at four times a second.
        fn pass(&mut self, ms: u64, at_work: bool) {
            for _ in 0..ms / 250 {
                self.jump(250, at_work);
            }
        }

        /// One look after so many milliseconds.
        fn jump(&mut self, ms: u64, at_work: bool) {
            self.now = self.now + Time::from_ms(ms);
            self.judge.pass(self.now, LOOK, at_work);
            self.alarms.extend(self.judge.alarm(&self.rule));
        }

        fn steps(&mut self, number: u32, ms: u64) {
            for _ in 0..number {
                self.pass(ms, true);
                assert_eq!(self.judge.advanced(), None);
            }
        }
    }

    fn ms(time: Time) -> f64 {
        time.as_ms()
    }

    #[test]
    fn nothing_is_judged_before_its_pace_is_known() {
        let mut job = Watched::new(HangRule::default());
        job.pass(10_000_000, true);
        job.steps(3, 1_000);
        job.pass(10_000_000, true);
        assert!(job.alarms.is_empty(), "{:?}", job.alarms);
        assert_eq!(job.judge.due(&job.rule), None);
    }

    #[test]
    fn a_quick_job_has_a_minute_and_the_alarm_comes_once() {
        let mut job = Watched::new(HangRule::default());
        job.steps(10, 1_000);
        job.pass(59_750, true);
        assert!(job.alarms.is_empty());
        job.pass(250, true);
        assert_eq!(job.alarms.len(), 1);
        assert_eq!(
            (ms(job.alarms[0].time), job.alarms[0].learnt),
            (60_000.0, true)
        );
        job.pass(3_600_000, true);
        assert_eq!(job.alarms.len(), 1, "once");
    }

    #[test]
    fn a_slow_job_has_ten_of_its_longest_pauses() {
        let mut job = Watched::new(HangRule::default());
        // The first pause is the program's beginning, however long it takes.
        job.steps(1, 500_000);
        job.steps(3, 10_000);
        job.steps(1, 30_000);
        job.steps(3, 10_000);
        job.pass(299_750, true);
        assert!(job.alarms.is_empty(), "ten times slower is no standstill");
        job.pass(250, true);
        assert_eq!(ms(job.alarms[0].time), 300_000.0);
    }

    #[test]
    fn what_comes_forward_again_has_more_time_from_then_on() {
        let mut job = Watched::new(HangRule::default());
        job.steps(10, 1_000);
        job.pass(90_000, true);
        assert_eq!(job.judge.advanced().map(ms), Some(90_000.0));
        assert_eq!(job.judge.advanced(), None, "said once");
        job.pass(899_750, true);
        assert_eq!(job.alarms.len(), 1);
        job.pass(250, true);
        assert_eq!(job.alarms.len(), 2);
    }

    #[test]
    fn only_time_at_work_counts() {
        let mut job = Watched::new(HangRule::default());
        job.steps(10, 1_000);
        job.pass(50_000, true);
        // A long recovery, or ranks that wait for a version to be safe.
        job.pass(10_000_000, false);
        job.pass(9_750, true);
        assert!(job.alarms.is_empty());
        job.pass(250, true);
        assert_eq!(job.alarms.len(), 1);
    }

    #[test]
    fn a_launcher_that_stood_still_itself_accuses_nobody() {
        let mut job = Watched::new(HangRule::default());
        job.steps(10, 1_000);
        for _ in 0..10 {
            job.jump(86_400_000, true);
        }
        assert!(job.alarms.is_empty());
        assert_eq!(ms(job.judge.still()), 5_000.0, "half a second of each gap");
        // A clock that goes back is none that goes on.
        let before = job.judge.still();
        job.judge.pass(Time::ZERO, LOOK, true);
        assert_eq!(job.judge.still(), before);
    }

    #[test]
    fn a_bound_that_was_given_holds_without_versions_too() {
        let rule = HangRule {
            bound_ms: Some(2_000),
            ..HangRule::default()
        };
        let mut job = Watched::new(rule);
        job.pass(1_750, true);
        assert_eq!(job.judge.due(&job.rule), Some(Time::from_ms(2_000)));
        job.judge.moved();
        job.pass(1_750, true);
        assert!(job.alarms.is_empty(), "a rank has joined meanwhile");
        job.pass(2_250, true);
        assert_eq!(job.alarms.len(), 1);
        assert!(!job.alarms[0].learnt);
        // That a rank leaves does not mean that the others come forward.
        job.judge.moved();
        assert_eq!(job.judge.advanced().map(ms), Some(4_000.0));
        // Such a pause was none: the next alarm is later.
        job.pass(7_750, true);
        assert_eq!(job.alarms.len(), 1);
        job.pass(250, true);
        assert_eq!(ms(job.alarms[1].time), 8_000.0);
    }

    #[test]
    fn a_new_start_is_judged_by_its_own_versions_and_what_was_learnt() {
        let mut job = Watched::new(HangRule::default());
        job.steps(10, 30_000);
        job.judge.started();
        job.pass(10_000_000, true);
        assert!(job.alarms.is_empty(), "no version of this start is known");
        job.steps(4, 1_000);
        job.pass(299_750, true);
        assert!(job.alarms.is_empty());
        job.pass(250, true);
        assert_eq!(job.alarms.len(), 1);
    }

    #[test]
    fn what_is_done_is_written_in_one_word() {
        for on in [OnHang::Report, OnHang::Restart, OnHang::Kill] {
            assert_eq!(on.name().parse::<OnHang>().unwrap(), on);
        }
        assert_eq!(
            "end".parse::<OnHang>().unwrap_err().code(),
            Code::InvalidArgument
        );
    }
}
