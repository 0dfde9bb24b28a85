//! One process computes for all: the tasks are gathered at the lowest rank that stays, which
//! partitions them anew or chooses ([`outlive_balance::scratch`]), and each is told what goes
//! and what comes.
//!
//! Costs: one message of 29 bytes and 20 for each edge of every task to one rank, which holds
//! the whole graph and computes for it alone while the others wait; hence the bounds. One
//! message back, of 12 bytes for each task that moves, to either end.
//!
//! Invariants: nothing is gathered where nothing is to be done; what one rank refuses all do;
//! the gathered tasks have the digest that all had together.

use outlive_balance::diffusion::{Approach, Options};
use outlive_balance::{Processes, metrics, scratch};
use outlive_base::wire::{Reader, Writer};
use outlive_base::{Code, Entity, Error, Result};

use crate::outcome::Outcome;
use crate::tasks::{Local, damaged, together};
use crate::transport::Transport;

/// Most tasks that are gathered.
pub const TASKS_MAX: u64 = 1 << 20;
/// Most ends of edges that are gathered: two for each edge.
pub const ENDS_MAX: u64 = 1 << 24;

/// Balances where the graph is small enough; none if it is not and diffusion may do. `own` is
/// the speeds of all, this process's background, and the digest of all tasks. Collective.
///
/// # Errors
/// [`Approach::Scratch`] with too many tasks; those of [`scratch`]; the transport's.
pub(crate) fn balance(
    net: &mut dyn Transport,
    local: &Local,
    (speeds, background, digest): (&[f64], f64, u64),
    options: &Options,
) -> Result<Option<Outcome>> {
    let sum = |all: Vec<f64>| all.iter().sum::<f64>() as u64;
    let tasks = sum(net.all_gather(local.own.len() as f64)?);
    let ends = local
        .own
        .values()
        .map(|task| task.edges.len())
        .sum::<usize>();
    let ends = sum(net.all_gather(ends as f64)?);
    if tasks > TASKS_MAX || ends > ENDS_MAX {
        return match options.approach {
            Approach::Scratch => Err(too_large(tasks, ends)),
            _ => Ok(None),
        };
    }
    let loads = net.all_gather(background + local.load())?;
    let backgrounds = net.all_gather(background)?;
    let made = Processes::new(speeds.to_vec(), backgrounds);
    let processes = made.map_err(|error| error.at(Entity::Call))?;
    let before = metrics::imbalance(&processes, &loads);
    let mut outcome = Outcome {
        imbalance: (staying(&loads, speeds), before),
        ..Outcome::default()
    };
    if before <= options.tolerance {
        return Ok(Some(outcome));
    }
    let root = speeds.iter().position(|speed| *speed > 0.0).unwrap_or(0);
    let mut sent = vec![Vec::new(); speeds.len()];
    let own: Vec<_> = local
        .own
        .iter()
        .map(|(&name, task)| (name, task.clone()))
        .collect();
    sent[root] = local.write(&own);
    drop(own);
    let came = net.all_to_all(sent)?;
    let mut told = vec![Vec::new(); speeds.len()];
    let mut fault = None;
    if local.me as usize == root {
        match compute(local.me, &came, &processes, digest, options) {
            Ok(all) => told = all,
            Err(error) => fault = Some(error),
        }
    }
    drop(came);
    together(net, fault)?;
    let came = net.all_to_all(told)?;
    let list = came.get(root).map_or(&[][..], Vec::as_slice);
    read(list, local.me, &mut outcome).map_err(damaged)?;
    Ok(Some(outcome))
}

/// The imbalance of those who stay; what the others have counts for the average.
fn staying(loads: &[f64], speeds: &[f64]) -> f64 {
    let ideal = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
    let present = loads.iter().zip(speeds).filter(|(_, speed)| **speed > 0.0);
    let most = present
        .map(|(load, speed)| load / speed)
        .fold(0.0, f64::max);
    if ideal > 0.0 { most / ideal - 1.0 } else { 0.0 }
}

fn too_large(tasks: u64, ends: u64) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Call,
        format!(
            "{} with {ends} ends of edges: a fresh partition is computed by one rank, \
             for at most {TASKS_MAX} and {ENDS_MAX}",
            outlive_base::count(tasks, "task")
        ),
        "balance by diffusion, or by auto, which then takes it",
    )
}

/// What each process is told: the imbalance, whether the partition is fresh, and every task
/// that leaves it or comes to it with where from and where to.
fn compute(
    me: u32,
    came: &[Vec<u8>],
    processes: &Processes,
    digest: u64,
    options: &Options,
) -> Result<Vec<Vec<u8>>> {
    let mut whole = Local {
        me,
        ..Local::default()
    };
    for bytes in came {
        whole.read(bytes)?;
    }
    if whole.digest() != digest {
        return Err(Error::internal("a task was lost or doubled"));
    }
    let arrays = whole.arrays()?;
    let (graph, homes) = (&arrays.graph, &arrays.home);
    let chosen = match options.approach {
        Approach::Scratch => scratch::Choice {
            parts: scratch::balance(graph, processes, homes, options)?,
            is_fresh: true,
        },
        _ => scratch::choose(graph, processes, homes, options)?,
    };
    let loads = processes.loads(graph, &chosen.parts);
    let reached = metrics::imbalance(processes, &loads);
    let mut told: Vec<Writer> = (0..processes.count()).map(|_| Writer::new()).collect();
    for out in &mut told {
        out.u64(reached.to_bits()).u8(u8::from(chosen.is_fresh));
    }
    // Ascending by name: so are the names.
    for (place, (&from, &to)) in homes.iter().zip(&chosen.parts).enumerate() {
        if from != to {
            for end in [from, to] {
                told[end as usize]
                    .u64(arrays.names[place])
                    .u32(from)
                    .u32(to);
            }
        }
    }
    Ok(told.into_iter().map(Writer::into_vec).collect())
}

fn read(
    bytes: &[u8],
    me: u32,
    outcome: &mut Outcome,
) -> core::result::Result<(), outlive_base::wire::WireError> {
    let mut reader = Reader::new(bytes);
    outcome.imbalance.1 = f64::from_bits(reader.u64()?);
    outcome.is_fresh = reader.u8()? != 0;
    outcome.rounds = 1;
    while reader.remaining() > 0 {
        let (name, from, to) = (reader.u64()?, reader.u32()?, reader.u32()?);
        match from == me {
            true => outcome.exports.push((name, to)),
            false => outcome.imports.push((name, from)),
        }
    }
    Ok(())
}
