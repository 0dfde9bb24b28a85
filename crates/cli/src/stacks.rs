//! `outlive stacks`: what the ranks of a job, or other processes, are doing.

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_stacks::Process;
use serde::Serialize;

use crate::options::JobChoice;
use crate::output;
use crate::status::choose;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive stacks --job heat
  outlive stacks 4711 4712")]
pub struct StacksOptions {
    /// Processes, by number [default: the ranks of a job on this machine]
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    processes: Vec<i32>,
    #[command(flatten)]
    choice: JobChoice,
}

#[derive(Serialize)]
struct Stacks {
    schema: &'static str,
    processes: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    /// Its rank; `None` if it is none.
    rank: Option<u32>,
    /// The node that the rank lives on.
    node: Option<u32>,
    #[serde(flatten)]
    process: Process,
}

/// `outlive stacks`.
///
/// # Errors
/// [`Code::NotFound`] if a process is not there, or the job has no rank on this machine.
pub fn run(options: &StacksOptions) -> Result<u8> {
    let pids = match options.processes.is_empty() {
        true => ranks_here(&options.choice)?,
        false => options.processes.clone(),
    };
    let mut processes = Vec::new();
    for pid in pids {
        let identity = outlive_stacks::rank_of(pid);
        let process = match outlive_stacks::of(pid) {
            // One that ends meanwhile is no reason to say nothing of the others.
            Err(_) if options.processes.is_empty() => continue,
            looked => looked?,
        };
        processes.push(Entry {
            rank: identity.map(|it| it.rank.0),
            node: identity.map(|it| it.node.0),
            process,
        });
    }
    processes.sort_by_key(|entry| entry.rank);
    if options.choice.json {
        return output::json(&Stacks {
            schema: "outlive.stacks/1",
            processes,
        });
    }
    let texts = processes.iter().map(|entry| {
        let said = outlive_stacks::describe(&entry.process);
        match (entry.rank, entry.node) {
            (Some(rank), Some(node)) => format!("rank {rank} on node {node}: {said}"),
            _ => said,
        }
    });
    output::text(texts.collect::<Vec<_>>().join("\n").trim_end())
}

fn ranks_here(choice: &JobChoice) -> Result<Vec<i32>> {
    let job = choose(choice)?;
    let nobody = |reason: &str, remedy: &str| {
        let entity = Entity::Job(job.name.to_string());
        Error::new(Code::NotFound, entity, reason, remedy)
    };
    let Some(launcher) = job.pid.and_then(|pid| i32::try_from(pid).ok()) else {
        return Err(nobody(
            "does not run on this machine",
            "run the command on the machine of its launcher, or give process numbers",
        ));
    };
    let mut pids = outlive_stacks::below(launcher);
    pids.retain(|pid| outlive_stacks::rank_of(*pid).is_some());
    if pids.is_empty() {
        return Err(nobody(
            "has no rank on this machine, or none that may be looked at",
            "ranks on other machines: run outlive stacks PID there; ranks of another user: run \
             as that user",
        ));
    }
    Ok(pids)
}
