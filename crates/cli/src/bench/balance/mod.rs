//! `outlive bench balance`: diffusion against the partitioners that are installed,
//! on loads that change with time, in one run.
//!
//! All start from the same RCB partition, each goes on from its own result of the
//! step before, and the same code judges all. Ours is charged the modelled time of
//! `outlive balance`; a peer its sequential processor time over the number of
//! processes, as if it scaled perfectly and sent its messages for nothing.
//!
//! Migration is compared at equal imbalance: libraries that can be told what a
//! moved task costs run at four prices, and against each that ended less balanced
//! than asked, ours runs again with that imbalance as its tolerance.

use std::time::Duration;

use outlive_balance::command;
use outlive_balance::replay::{Figures, Method, Settings, replay};
use outlive_balance::scenario::{Pattern, Scenario};
use outlive_base::{Code, Entity, Error, Result};
use serde::Serialize;

use super::machine::Machine;
use super::session::Scratch;
use crate::args::{BalanceBench, BenchOptions};
use crate::balance::cpu_seconds;

mod goals;
pub mod hybrid;
mod peers;
mod table;

use peers::PEERS;

/// One method on one scenario and number of processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    scenario: &'static str,
    processes: usize,
    tasks: usize,
    steps: u32,
    who: String,
    ours: bool,
    repartitions: bool,
    /// What was asked for.
    tolerance: f64,
    /// Processor time of a step, peers only.
    seconds_sequential: Option<f64>,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    machine: Machine,
    lines: Vec<Line>,
    goals: Vec<goals::Goal>,
    skipped: Vec<String>,
}

/// Runs the benchmark; 0 even if a goal is missed.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let how = &options.balance;
    let kinds: Vec<Pattern> = match &how.scenario {
        Some(name) => vec![command::kind(name)?],
        None => vec![Pattern::Shock, Pattern::Cloud],
    };
    check(how, &kinds)?;
    let mut report = Report {
        schema: "outlive.bench.balance/1",
        machine: Machine::here(),
        lines: Vec::new(),
        goals: Vec::new(),
        skipped: Vec::new(),
    };
    let asked: Vec<(Pattern, usize, bool)> = match how.every_case {
        true => EVERY
            .iter()
            .copied()
            .filter(|c| kinds.contains(&c.0))
            .collect(),
        false => cases(&kinds, how.processes.as_deref()),
    };
    for (kind, processes, whole) in asked {
        let mut case = Case::new(options, kind, processes, whole)?;
        case.ours()?;
        case.others(&mut report.skipped)?;
        let goals = goals::of(&case.lines);
        if !options.json {
            table::case(&case.lines, case.range, &goals);
        }
        report.lines.append(&mut case.lines);
        report.goals.extend(goals);
    }
    if options.json {
        let text = serde_json::to_string(&report).map_err(|e| Error::internal(e.to_string()))?;
        println!("{text}");
    } else {
        table::summary(&report.goals);
        for line in &report.skipped {
            println!("skipped: {line}");
        }
    }
    Ok(0)
}

/// Refuses what would be left out without a word, or compared wrongly.
fn check(how: &BalanceBench, kinds: &[Pattern]) -> Result<()> {
    let refuse = |option: &str, reason: String, remedy: &str| {
        let entity = Entity::Option(option.into());
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    let names = PEERS.map(|peer| peer.name).join(", ");
    let known = |name: &&String| *name == "none" || PEERS.iter().any(|peer| peer.name == **name);
    if let Some(name) = how.peers.iter().flatten().find(|name| !known(name)) {
        let remedy = format!("use some of: {names}; or none");
        return refuse(
            "peers",
            format!("there is no partitioner '{name}'"),
            &remedy,
        );
    }
    let unequal = [Pattern::Drift, Pattern::NodeLoss, Pattern::Random];
    if let Some(kind) = kinds.iter().find(|kind| unequal.contains(kind)) {
        let reason = format!("partitioners know no {} loads", kind.name());
        return refuse(
            "scenario",
            reason,
            "use shock, cloud, hot-spot or one of the surges",
        );
    }
    let prices = how.prices.iter().chain(&how.peer_prices);
    match prices
        .copied()
        .find(|price| !(price.is_finite() && *price > 0.0))
    {
        Some(price) => refuse(
            "prices",
            format!("{price} is no price"),
            "use numbers above zero",
        ),
        None => Ok(()),
    }
}

/// Every case of docs/measured/balance.md; true: with all the steps of its scenario.
const EVERY: [(Pattern, usize, bool); 8] = [
    (Pattern::Cloud, 96, true),
    (Pattern::Cloud, 384, true),
    (Pattern::Cloud, 768, true),
    (Pattern::Shock, 384, false),
    (Pattern::Shock, 768, false),
    (Pattern::Shock, 1536, false),
    (Pattern::Shock, 6144, false),
    (Pattern::Shock, 96, true),
];

fn cases(kinds: &[Pattern], asked: Option<&[usize]>) -> Vec<(Pattern, usize, bool)> {
    let mut all = Vec::new();
    for &kind in kinds {
        let usual: &[usize] = match kind {
            Pattern::Shock => &[96, 768],
            _ => &[96],
        };
        all.extend(
            asked
                .unwrap_or(usual)
                .iter()
                .map(|&count| (kind, count, false)),
        );
    }
    all
}

struct Case<'a> {
    options: &'a BenchOptions,
    scenario: Scenario,
    range: (u32, u32),
    lines: Vec<Line>,
}

impl<'a> Case<'a> {
    fn new(
        options: &'a BenchOptions,
        kind: Pattern,
        processes: usize,
        whole: bool,
    ) -> Result<Case<'a>> {
        let how = &options.balance;
        let middle = kind.steps() / 2 / how.shrink.max(1) as u32;
        let first = match whole {
            true => 0,
            false => how.first.unwrap_or(middle),
        };
        let left = kind.steps().saturating_sub(first.saturating_add(1));
        let steps = if whole { left } else { how.steps.min(left) };
        Ok(Case {
            scenario: Scenario::new(kind, processes, how.shrink, how.seed)?,
            range: (first, steps),
            lines: Vec::new(),
            options,
        })
    }

    fn line(&self, who: String, tolerance: f64, figures: Figures) -> Line {
        Line {
            scenario: self.scenario.kind.name(),
            processes: self.scenario.processes.count(),
            tasks: self.scenario.graph.tasks(),
            steps: self.range.1,
            who,
            ours: true,
            repartitions: true,
            tolerance,
            seconds_sequential: None,
            figures,
        }
    }

    fn ours(&mut self) -> Result<()> {
        let how = &self.options.balance;
        for &price in &how.prices {
            for &(method, name) in self.methods() {
                let who = format!("ours{name}, price {price}");
                self.our(method, (price, how.tolerance), who)?;
            }
        }
        Ok(())
    }

    /// The methods of ours that are compared: what the others are for is a load that is large
    /// and in one place.
    fn methods(&self) -> &'static [(Method, &'static str)] {
        match self.scenario.kind.is_surge() {
            true => &[
                (Method::Auto, ", auto"),
                (Method::Diffusion, ", diffusion"),
                (Method::Scratch, ", scratch"),
            ],
            false => &[(Method::Diffusion, "")],
        }
    }

    fn our(&mut self, method: Method, (price, tolerance): (f64, f64), who: String) -> Result<()> {
        let mut settings = Settings::default();
        settings.diffusion.tolerance = tolerance;
        settings.diffusion.migration_price = price;
        settings.diffusion.ragged = self.options.balance.ragged;
        settings.diffusion.compact = self.options.balance.compact;
        let range = self.range;
        let scenario = &mut self.scenario;
        let steps = replay(
            method,
            scenario,
            range,
            &settings,
            &cpu_seconds,
            |_, _, _, _| {},
        )?;
        let line = self.line(who, tolerance, Figures::mean(&steps));
        self.lines.push(line);
        Ok(())
    }

    fn others(&mut self, skipped: &mut Vec<String>) -> Result<()> {
        let how = &self.options.balance;
        let scratch = Scratch::new(self.options.dir.as_deref())?;
        let mut skip = |error: &Error| {
            let text = error.to_string();
            if !skipped.contains(&text) {
                skipped.push(text);
            }
        };
        let mut exported = false;
        for peer in PEERS {
            let asked = how.peers.as_ref();
            if asked.is_some_and(|names| !names.iter().any(|name| name == peer.name)) {
                continue;
            }
            let program = match peer.build(scratch.path()) {
                Ok(program) => program,
                Err(error) => {
                    skip(&error);
                    continue;
                }
            };
            if !exported {
                peers::export(&mut self.scenario, self.range, scratch.path())?;
                exported = true;
            }
            // Names do not depend on a price.
            let prices = match peer.repartitions && !peer.is_renamed {
                true => &how.peer_prices[..],
                false => &[1.0],
            };
            for &price in prices {
                let count = self.scenario.processes.count();
                let what = (count, how.tolerance, price);
                let bound = Duration::from_secs(how.timeout);
                let seconds = match peer.run(&program, scratch.path(), self.range, what, bound) {
                    Ok(seconds) => seconds,
                    Err(error) => {
                        skip(&error);
                        break;
                    }
                };
                let mut figures = peers::judge(
                    &peer,
                    &mut self.scenario,
                    self.range,
                    (scratch.path(), how.tolerance),
                )?;
                figures.seconds_max_per_process = seconds / count as f64;
                let who = match peer.repartitions && !peer.is_renamed {
                    true => format!("{}, price {price}", peer.name),
                    false => peer.name.to_owned(),
                };
                self.lines.push(Line {
                    ours: false,
                    repartitions: peer.repartitions,
                    seconds_sequential: Some(seconds),
                    ..self.line(who, how.tolerance, figures)
                });
            }
        }
        self.equal_imbalance()
    }

    /// Ours once more at the imbalance of the repartitioning peer that moved least.
    fn equal_imbalance(&mut self) -> Result<()> {
        let Some(best) = goals::best_repartitioner(&self.lines) else {
            return Ok(());
        };
        let tolerance = best.figures.imbalance;
        if tolerance > self.options.balance.tolerance {
            for &price in &self.options.balance.prices {
                for &(method, name) in self.methods() {
                    let who = format!("ours{name}, price {price}, at {tolerance:.4}");
                    self.our(method, (price, tolerance), who)?;
                }
            }
        }
        Ok(())
    }
}
