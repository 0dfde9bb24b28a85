//! A record of failures, replayed under each plan and under the policy that learns.
//!
//! Failures that begin within a minute stop the job once. Each plan runs through the whole
//! record once; intervals come from [`PARTS`] parts of it, and those of differences are paired.

use outlive_base::{Code, Entity, Error, Result};
use outlive_planner::lifetime::{Pattern, Question};
use outlive_planner::machine::{Level, Machine};
use outlive_planner::methods;
use outlive_planner::online::{Adaptive, Settings};
use outlive_planner::train::{self, Stop};
use outlive_simulator::jobs::JobRun;
use outlive_simulator::jobs::failures::{Event, Recorded};
use serde::Serialize;

use super::Trace;
use crate::plan::Found;

/// Failures within so many seconds are one stop.
const TOGETHER: f64 = 60.0;
/// Parts of the record for the error of the time that is lost.
const PARTS: usize = 16;
/// Quantile 0.975 of Student's t with 15 degrees of freedom.
const STUDENT: f64 = 2.131;
/// The policy that learns begins with rates that are known as from so many failures.
const EVENTS: f64 = 4.0;
/// A program offers a checkpoint so many times in an interval of the plan.
const OFFERS: f64 = 20.0;

/// What a plan lost.
#[derive(Serialize)]
pub(in crate::plan) struct Replayed {
    pub name: &'static str,
    /// Node-hours that were not work that was kept, and half their 95 % interval.
    pub node_hours_lost: f64,
    pub half_width: f64,
    /// Of all node-hours.
    pub share: f64,
    /// More than this plan, as a share of what that lost, and half the 95 % interval.
    pub more: f64,
    pub more_half_width: f64,
}

fn stops(trace: &Trace, nodes: u32) -> Vec<Stop> {
    let of = trace.failures.iter();
    let of = of.filter(|failure| failure.1 < nodes);
    train::stops(of.map(|&(at, node, fatal, _)| (at, node, fatal)), TOGETHER)
}

/// The machine, failing as in the first part of the record: `share` of its time.
pub(in crate::plan) fn trained(machine: &Machine, trace: &Trace, share: f64) -> Result<Machine> {
    let span = trace.failures.last().map_or(0.0, |last| last.0);
    let all = stops(trace, machine.nodes.count);
    let until = all.partition_point(|stop| stop.at < share * span);
    if until == 0 || span <= 0.0 {
        return Err(Error::new(
            Code::Config,
            Entity::Option("--train".into()),
            "no failure in that part of the record",
            "give a larger share, or a longer record",
        ));
    }
    Ok(train::trained(machine, &all[..until], share * span))
}

/// Every plan and the policy that learns, over the record from `from` seconds on.
pub(in crate::plan) fn all(trace: &Trace, found: &Found, from: f64) -> Vec<Replayed> {
    let span = trace.failures.last().map_or(0.0, |last| last.0) - from;
    let event = |stop: &Stop| {
        let event = match stop.lost.is_empty() {
            true => Event::Light,
            false => Event::Nodes(stop.lost.clone()),
        };
        (stop.at - from, event)
    };
    let stops = stops(trace, found.job.nodes);
    let events: Vec<(f64, Event)> = stops
        .iter()
        .filter(|stop| stop.at >= from)
        .map(event)
        .collect();
    let part = span / PARTS as f64;
    let ends: Vec<f64> = (1..=PARTS).map(|number| part * number as f64).collect();
    let planned = |levels: &[usize], pattern: &Pattern| {
        let levels = of(found, levels);
        JobRun::new(&found.job, &levels, pattern, Recorded(&events)).kept_by(&ends)
    };
    let mut kept = vec![(
        "this plan",
        planned(&found.plan.levels, &found.plan.pattern),
    )];
    for other in &found.others {
        kept.push((other.method.name(), planned(&other.levels, &other.pattern)));
    }
    kept.push(("learning", learning(found, &events, &ends)));
    let hours = f64::from(found.job.nodes) / 3600.0;
    let lost: Vec<(&'static str, Vec<f64>)> = kept
        .into_iter()
        .map(|(name, kept)| {
            let before = [0.0].into_iter().chain(kept.iter().copied());
            let each = kept
                .iter()
                .zip(before)
                .map(|(now, before)| (part - (now - before)) * hours);
            (name, each.collect())
        })
        .collect();
    let first = lost[0].1.clone();
    let base: f64 = first.iter().sum();
    let row = |(name, lost): &(&'static str, Vec<f64>)| {
        let more: Vec<f64> = lost
            .iter()
            .zip(&first)
            .map(|(one, other)| one - other)
            .collect();
        let sum: f64 = lost.iter().sum();
        Replayed {
            name,
            node_hours_lost: sum,
            half_width: half_width(lost),
            share: sum / (span * hours),
            more: more.iter().sum::<f64>() / base,
            more_half_width: half_width(&more) / base,
        }
    };
    lost.iter().map(row).collect()
}

fn of(found: &Found, levels: &[usize]) -> Vec<Level> {
    levels
        .iter()
        .map(|&level| found.levels[level].clone())
        .collect()
}

/// The policy that decides while the job runs: it begins with what the machine says.
fn learning(found: &Found, events: &[(f64, Event)], ends: &[f64]) -> Vec<f64> {
    let all: Vec<usize> = (0..found.levels.len()).collect();
    let whole = Question::new(&found.job, &found.levels, &found.classes, &all);
    let rungs = methods::rungs(&whole);
    let question = Question::new(&found.job, &found.levels, &found.classes, &rungs);
    let policy = Adaptive::new(Settings::expected(&question, EVENTS));
    let step = found.plan.pattern.interval / OFFERS;
    let run = JobRun::steered(&found.job, &question.levels, step, policy, Recorded(events));
    run.kept_by(ends)
}

/// Half the 95 % interval of a sum of equal parts: its standard error is sqrt(n) times that
/// of a part.
fn half_width(parts: &[f64]) -> f64 {
    let n = parts.len() as f64;
    let mean = parts.iter().sum::<f64>() / n;
    let squares: f64 = parts.iter().map(|one| (one - mean) * (one - mean)).sum();
    STUDENT * (squares / (n - 1.0) * n).sqrt()
}
