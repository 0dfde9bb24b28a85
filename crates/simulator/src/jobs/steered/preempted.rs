//! Jobs that are preempted: what it is worth to hear the notice, and to count preemptions apart
//! from failures.
//!
//! Machines that may be taken away at any time, some of them announced long before, some hardly.
//! After a preemption the job goes on at once, from shared storage: for how long it waits for
//! machines is the same for all policies.

use outlive_base::Result;
use outlive_planner::classes::Mask;
use outlive_planner::machine;
use outlive_planner::online::rate::RatePrior;
use outlive_planner::online::{Adaptive, Decision, Policy, Seen, Settings};

use super::{Add, Change, DAYS, EVENTS, Scenario, WRONG};

const LEVELS: &str = "[[levels]]\nkind = \"local\"\ncost = \"2 s\"\nrestart = \"30 s\"\n\
    [[levels]]\nkind = \"shared\"\nservers = \"files\"\ncost = \"60 s\"\nrestart = \"120 s\"\n";
const NODES: &str = "[nodes]\ncount = 64\nmtbf = \"6144 h\"\nlight-mtbf = \"1536 h\"\n\
    [[servers]]\nname = \"files\"\ncount = 1\n";
/// Seconds between two preemptions.
const EVERY: f64 = 6.0 * 3_600.0;
/// Seconds of notice: less than a write takes, about as much as a cloud gives, a batch system's.
const NOTICES: [f64; 3] = [30.0, 120.0, 600.0];

/// What is believed of preemptions before one is seen: as in a running job, one a day.
pub(super) const PRIOR: RatePrior = RatePrior {
    events: EVENTS,
    seconds: EVENTS * 86_400.0,
};

/// One for each notice.
pub(super) fn scenarios() -> Result<Vec<Scenario>> {
    let of = |notice: f64| {
        let name = format!("preempted, {notice:.0} s of notice");
        let machine = machine::machine(&format!("{NODES}{LEVELS}"), &name)?;
        let text = "nodes = 64\nwork = \"1000 h\"\ncheckpoint = \"1 GB\"\ncapture = \"1 s\"";
        let job = machine::job(text, &name, &machine)?;
        let levels = machine::priced(&machine, &job);
        Ok(Scenario {
            name,
            later: machine.clone(),
            machine,
            job,
            levels,
            change: Change {
                failures: 1.0,
                costs: 1.0,
            },
            seconds: DAYS * 86_400.0,
            step: 20.0,
            preempted: Some((EVERY, notice)),
        })
    };
    NOTICES.into_iter().map(of).collect()
}

/// What a policy takes a preemption for that does not know of any.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Takes {
    /// A failure.
    Failure,
    /// Nothing: the run ended.
    Nothing,
}

/// A policy that hears no announcement.
struct Deaf {
    inner: Adaptive,
    takes: Takes,
}

impl Policy for Deaf {
    fn see(&mut self, at: f64, seen: Seen) {
        let heard = match seen {
            Seen::Preempted | Seen::EndsBy { .. } => return,
            Seen::Ended { survive } if self.takes == Takes::Failure => Seen::Stopped { survive },
            other => other,
        };
        self.inner.see(at, heard);
    }
    fn decide(&mut self, at: f64, busy: Mask) -> Decision {
        self.inner.decide(at, busy)
    }
    fn due(&mut self, at: f64) -> Option<f64> {
        self.inner.due(at)
    }
}

impl Scenario {
    /// Policies on machines that are taken away.
    pub(super) fn preempting(&self, seed: u64, add: &mut Add<'_>) {
        let of = |settings: Settings| Adaptive::new(settings);
        add("knows", &|run| {
            self.waste(of(self.settings(None)), seed, run)
        });
        for (words, wrong) in [("x 4", WRONG), ("/ 4", 1.0 / WRONG)] {
            add(&format!("learns, guesses {words}"), &|run| {
                self.waste(of(self.settings(Some(wrong))), seed, run)
            });
        }
        let deaf = |takes| Deaf {
            inner: of(Settings {
                notice: None,
                ..self.settings(Some(WRONG))
            }),
            takes,
        };
        add("takes preemptions for failures", &|run| {
            self.waste(deaf(Takes::Failure), seed, run)
        });
        add("knows of no preemptions", &|run| {
            self.waste(deaf(Takes::Nothing), seed, run)
        });
        add("fixed, best for failures alone", &|run| {
            self.waste(self.fixed(1.0), seed, run)
        });
    }
}
