//! What must hold of a run, from its lines alone: knows nothing of trees, messages or
//! machines.
//!
//! The guarantee that is checked is that of a run in which nobody is wrongly called
//! dead: every process that is alive at the end has ended each call once, with the same
//! result as the others; each operand is in it at most once; all who are alive are in
//! it; whoever is not in it is on the list of the absent, and nobody else.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::machine::Peer;
use outlive_protocols::collective::{Call, CollectiveKind, Event};

use super::{Report, Value};

/// What the checker knows of the scenario.
#[derive(Clone, Debug)]
pub struct Expect<'a> {
    /// How many processes.
    pub processes: u32,
    /// The calls.
    pub calls: &'a [Call],
    /// True if operands must be in the order of ranks.
    pub ordered: bool,
    /// A process that was away, and need not be among the contributors.
    pub late: Option<Peer>,
}

/// How what [`check`] says of two results that met ends.
pub const DIFFERENT: &str = "have different results";

/// How what [`check`] says ends if one who was away has the data of a broadcast, and all
/// others an end without.
pub const LATE_ALONE: &str = "who was away alone has data";

/// The first violation found.
pub fn check(expect: &Expect, report: &Report) -> Result<(), String> {
    if let Some(violation) = report.violations.first() {
        return Err(violation.clone());
    }
    if report.outcome.cut_off {
        return Err("the run does not come to its end".into());
    }
    let dead: BTreeSet<Peer> = report.dead.iter().copied().collect();
    let mut ended: BTreeMap<(u32, Peer), Option<&Value>> = BTreeMap::new();
    for line in &report.lines {
        match line.said.event {
            Event::Done { seq, .. } => {
                let again = ended.insert((seq, line.who), line.said.value.as_ref());
                if again.is_some() {
                    return Err(format!("rank {} ended call {seq} twice", line.who));
                }
            }
            Event::Failed { .. } | Event::Diverged { .. } | Event::Mismatch { .. }
                if !dead.contains(&line.who) =>
            {
                return Err(format!("rank {}: {:?}", line.who, line.said.event));
            }
            Event::Silent { peer, .. } if !dead.contains(&peer) && expect.late != Some(peer) => {
                return Err(format!(
                    "rank {}: {peer} is alive and called silent",
                    line.who
                ));
            }
            _ => {}
        }
    }
    for (seq, call) in expect.calls.iter().enumerate() {
        let results: Vec<(Peer, Option<&Value>)> = (0..expect.processes)
            .filter(|rank| !dead.contains(rank))
            .map(|rank| match ended.get(&(seq as u32, rank)) {
                Some(&value) => Ok((rank, value)),
                None => Err(format!("rank {rank} is alive and never ended call {seq}")),
            })
            .collect::<Result<_, _>>()?;
        one_call(expect, &dead, call, &results).map_err(|what| format!("call {seq}: {what}"))?;
    }
    Ok(())
}

fn one_call(
    expect: &Expect,
    dead: &BTreeSet<Peer>,
    call: &Call,
    results: &[(Peer, Option<&Value>)],
) -> Result<(), String> {
    if call.kind == CollectiveKind::Bcast {
        return broadcast(expect, dead, call, results);
    }
    let everywhere = call.kind.down() || (call.ordered && call.root != 0);
    let mut first: Option<(Peer, &Value)> = None;
    for &(rank, value) in results {
        let Some(value) = value else {
            if everywhere || rank == call.root {
                return Err(format!("rank {rank} has no value"));
            }
            continue;
        };
        if !everywhere && rank != call.root {
            return Err(format!("rank {rank} has a value and is not the root"));
        }
        match first {
            Some((other, seen)) if seen != value => {
                return Err(format!("ranks {other} and {rank} {DIFFERENT}"));
            }
            _ => first = Some((rank, value)),
        }
    }
    match first {
        Some((_, value)) => contributors(expect, dead, value),
        None => Ok(()),
    }
}

fn broadcast(
    expect: &Expect,
    dead: &BTreeSet<Peer>,
    call: &Call,
    results: &[(Peer, Option<&Value>)],
) -> Result<(), String> {
    let lost = results.iter().filter(|(_, value)| value.is_none()).count();
    let excused = dead.contains(&call.root) || expect.late == Some(call.root);
    // All others were told that there are none; nobody told the one who was passed over.
    let alone =
        |late| move |&(rank, value): &(Peer, Option<&Value>)| value.is_some() == (rank == late);
    if lost > 0
        && expect
            .late
            .is_some_and(|late| results.iter().all(alone(late)))
    {
        return Err(LATE_ALONE.into());
    }
    if lost > 0 && (lost < results.len() || !excused) {
        return Err(format!("{lost} of {} have no data", results.len()));
    }
    for (rank, value) in results {
        if value.is_some_and(|value| value.ranks != [call.root]) {
            return Err(format!("rank {rank} has {value:?}"));
        }
    }
    Ok(())
}

fn contributors(expect: &Expect, dead: &BTreeSet<Peer>, value: &Value) -> Result<(), String> {
    if value.ranks.is_empty() {
        return counted(expect, dead, value);
    }
    let counted: BTreeSet<Peer> = value.ranks.iter().copied().collect();
    if counted.len() != value.ranks.len() {
        return Err(format!("counted more than once: {:?}", value.ranks));
    }
    if expect.ordered && !value.ranks.is_sorted() {
        return Err(format!("not in the order of ranks: {:?}", value.ranks));
    }
    let sum: u64 = counted.iter().map(|&rank| u64::from(rank) + 1).sum();
    if (value.count, value.sum) != (counted.len() as u64, sum) {
        return Err(format!(
            "{} operands, sum {}: {counted:?}",
            value.count, value.sum
        ));
    }
    for rank in 0..expect.processes {
        let (is_counted, is_absent) = (counted.contains(&rank), value.absent.contains(rank));
        if is_counted == is_absent {
            let lists = if is_counted { "both lists" } else { "no list" };
            return Err(format!("rank {rank} is on {lists}"));
        }
        if is_absent && !dead.contains(&rank) && expect.late != Some(rank) {
            return Err(format!("rank {rank} is alive and did not contribute"));
        }
    }
    Ok(())
}

/// Of a run that is not exact: numbers and sums, and the list of the absent.
fn counted(expect: &Expect, dead: &BTreeSet<Peer>, value: &Value) -> Result<(), String> {
    let absent = value.absent.as_slice();
    let of_all = u64::from(expect.processes) * (u64::from(expect.processes) + 1) / 2;
    let missing: u64 = absent.iter().map(|&rank| u64::from(rank) + 1).sum();
    let want = (
        u64::from(expect.processes) - absent.len() as u64,
        of_all - missing,
    );
    if (value.count, value.sum) != want {
        let (count, sum) = (value.count, value.sum);
        return Err(format!(
            "{count} operands, sum {sum}; {want:?} by the absent"
        ));
    }
    let alive = |rank: &&Peer| !dead.contains(rank) && expect.late != Some(**rank);
    match absent.iter().find(alive) {
        Some(rank) => Err(format!("rank {rank} is alive and did not contribute")),
        None => Ok(()),
    }
}
