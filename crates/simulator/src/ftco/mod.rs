//! Fault-tolerant collectives simulated: who gets which result when, at what cost.
//!
//! Processes enter their calls when the scenario says, may be away for a while, and die
//! at a time or between any two sends. The operator appends lists of ranks, so that the
//! [`check`] can tell from a result alone who was counted, how often and in which order.

mod arena;
mod caller;
pub mod check;
pub mod corrected;
pub mod kept;
pub mod sweep;

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use outlive_base::machine::{Body, Peer};
use outlive_base::{Result, Time};
use outlive_protocols::collective::{Call, Event};
use outlive_protocols::ftco;

pub use arena::{Arena, Value};
pub use caller::{Caller, Planted, Said, Shared, Subject};

use crate::logp::{Death, Host, Model, Outcome, World};
use crate::plot::{self, Arrow, Picture};

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Scenario<C = ftco::Config> {
    /// Tree, time-outs and bounds; times in ticks of the model.
    pub config: C,
    /// What the network costs.
    pub model: Model,
    /// The calls that every process makes, one after the other.
    pub calls: Vec<Call>,
    /// When each process enters its first call; those beyond the end at time 0.
    pub enters: Vec<Time>,
    /// Time from entering one call to entering the next.
    pub interval: Time,
    /// A process that does nothing from the first time to the second.
    pub away: Option<(Peer, Time, Time)>,
    /// A process whose calls are others.
    pub other: Option<(Peer, Vec<Call>)>,
    /// Who dies when.
    pub deaths: Vec<(Peer, Death)>,
    /// So long after a death at a time everybody is told of it; `None`: nobody ever is.
    pub told: Option<Time>,
    /// Whether results name who contributed, or only how many.
    pub exact: bool,
    /// Bytes of an operand (LogGP); other messages have 1.
    pub bytes: u64,
    /// A fault to try the checker on.
    pub planted: Option<Planted>,
    /// Every message is kept for a picture.
    pub trace: bool,
    /// When the run is cut off.
    pub end: Time,
}

impl<C> Scenario<C> {
    /// One call by all processes at time 0, nobody fails.
    pub fn new(config: C, model: Model, call: Call) -> Scenario<C> {
        Scenario {
            config,
            model,
            calls: vec![call],
            enters: Vec::new(),
            interval: Time::ZERO,
            away: None,
            other: None,
            deaths: Vec::new(),
            told: None,
            exact: true,
            bytes: 1,
            planted: None,
            trace: false,
            end: Time::NEVER,
        }
    }
}

/// What one process said at some time.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its rank.
    pub who: Peer,
    /// The time.
    pub at: Time,
    /// The event, and what a result holds.
    pub said: Said,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All that was said, in the order of time.
    pub lines: Vec<Line>,
    /// Who is dead at the end, ascending.
    pub dead: Vec<Peer>,
    /// Messages, quiescence, events.
    pub outcome: Outcome,
    /// Rules for bodies that the machines broke.
    pub violations: Vec<String>,
    /// Bodies held at the end.
    pub held: usize,
    /// Messages that asked where a result or an operand stays.
    pub asked: u64,
    /// Messages that took a result down trees that are kept.
    pub branches: u64,
    arrows: Option<Vec<Arrow>>,
}

impl Report {
    /// The lines in which calls ended: (rank, time, sequence number, the event's value).
    pub fn results(&self) -> impl Iterator<Item = (Peer, Time, u32, Option<&Value>)> {
        self.lines.iter().filter_map(|line| match line.said.event {
            Event::Done { seq, .. } => Some((line.who, line.at, seq, line.said.value.as_ref())),
            _ => None,
        })
    }

    /// When the last process that is alive at the end had its result of the last call.
    pub fn completion(&self) -> Time {
        let live = self
            .results()
            .filter(|(who, ..)| self.dead.binary_search(who).is_err());
        live.map(|(_, at, ..)| at).max().unwrap_or(Time::ZERO)
    }

    /// A picture as SVG: of a run with [`Scenario::trace`] every message in space and time,
    /// else how many have their first result. There is a row for each of `processes`.
    pub fn plot(&self, processes: u32) -> String {
        let mut reached = vec![u64::MAX; processes as usize];
        for (who, at, ..) in self.results() {
            let first = &mut reached[who as usize];
            *first = (*first).min(at.0);
        }
        let picture = Picture {
            title: format!(
                "{processes} processes, {} dead: finished at {}, quiescent at {}, {} messages",
                self.dead.len(),
                self.completion().0,
                self.outcome.quiescence.0,
                self.outcome.messages
            ),
            legend: &LEGEND,
            dead: &self.dead,
            quiescence: self.outcome.quiescence.0,
            reached: &reached,
        };
        match &self.arrows {
            Some(arrows) => plot::space_time(&picture, arrows),
            None => plot::curve(&picture),
        }
    }
}

struct Trace {
    lines: Vec<Line>,
    bytes: u64,
    asked: u64,
    branches: u64,
    arrows: Option<Vec<Arrow>>,
}

/// Colour and meaning of the messages in a picture.
const LEGEND: [(&str, &str); 3] = [
    ("#1f6fb4", "contributions"),
    ("#d1610d", "claims"),
    ("#2a8f3c", "results, questions and answers"),
];

fn kind<S: Subject>(msg: &S::Msg) -> usize {
    match (S::gives(msg), S::claims(msg)) {
        (true, _) => 0,
        (_, true) => 1,
        _ => 2,
    }
}

impl<S: Subject> Host<Caller<S>> for Trace {
    fn on_event(&mut self, who: Peer, at: Time, said: Said) {
        self.lines.push(Line { who, at, said });
    }
    fn on_send(&mut self, from: Peer, to: Peer, msg: &S::Msg, now: Time) {
        self.asked += u64::from(S::asks(msg));
        self.branches += u64::from(S::branches(msg));
        if let Some(arrows) = &mut self.arrows {
            arrows.push(Arrow {
                from,
                to,
                kind: kind::<S>(msg),
                start: now.0,
                end: None,
            });
        }
    }
    fn on_receive(&mut self, from: Peer, to: Peer, msg: &S::Msg, now: Time) {
        if let Some(arrows) = &mut self.arrows {
            plot::received(arrows, from, to, kind::<S>(msg), now.0);
        }
    }
    fn bytes(&self, _msg: &S::Msg, body: Option<Body>) -> u64 {
        if body.is_some() { self.bytes } else { 1 }
    }
}

/// Runs a scenario.
///
/// # Errors
/// If the network's parameters are not valid.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Report> {
    run_any::<ftco::Machine>(scenario, seed)
}

/// Runs a scenario with any machine of this kind.
///
/// # Errors
/// If the network's parameters are not valid.
pub fn run_any<S: Subject>(scenario: &Scenario<S::Config>, seed: u64) -> Result<Report>
where
    S::Config: Clone,
{
    let processes = S::processes(&scenario.config);
    let shared = Shared {
        config: scenario.config.clone(),
        arena: RefCell::default(),
        exact: scenario.exact,
        planted: scenario.planted,
        violations: RefCell::default(),
    };
    let caller = |rank: Peer| {
        let calls = match &scenario.other {
            Some((other, calls)) if *other == rank => calls,
            _ => &scenario.calls,
        };
        let enters = scenario.enters.get(rank as usize);
        let mut at = enters.copied().unwrap_or(Time::ZERO);
        let mut timed = Vec::with_capacity(calls.len());
        for &call in calls {
            timed.push((at, call));
            at = at + scenario.interval;
        }
        let away = match scenario.away {
            Some((who, from, until)) if who == rank => (from, until),
            _ => (Time::ZERO, Time::ZERO),
        };
        let heard = scenario.told.map(|delay| {
            let at_a_time = scenario
                .deaths
                .iter()
                .filter_map(|&(who, death)| match death {
                    Death::At(at) if who != rank => Some((at + delay, who)),
                    _ => None,
                });
            at_a_time.collect()
        });
        Caller::new(timed, away).hears(heard.unwrap_or_default())
    };
    let callers: Vec<Caller<S>> = (0..processes).map(caller).collect();
    let recorder = Trace {
        lines: Vec::new(),
        bytes: scenario.bytes,
        asked: 0,
        branches: 0,
        arrows: scenario.trace.then(Vec::new),
    };
    let mut world = World::new(scenario.model, &shared, seed, callers, recorder)?;
    for &(who, death) in &scenario.deaths {
        if who < processes {
            world.kill(who, death);
        }
    }
    for who in 0..processes {
        world.command(who, ());
    }
    let outcome = world.run(scenario.end);
    let dead = (0..processes).filter(|&who| world.dead(who)).collect();
    let lines = std::mem::take(&mut world.host.lines);
    let arrows = world.host.arrows.take();
    let (asked, branches) = (world.host.asked, world.host.branches);
    drop(world);
    let held = shared.arena.borrow().held();
    Ok(Report {
        lines,
        dead,
        outcome,
        violations: shared.violations.take(),
        held,
        asked,
        branches,
        arrows,
    })
}
