//! The processes that `outlive noise compare` starts: one that measures, one that disturbs.
//! Both end with their parent, however that ends.

use std::io::{Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use outlive_base::{Code, Entity, Error, Result};
use outlive_node::cpus::Cpus;
use outlive_node::{cores, interruptions, tracefs};

use super::disturb;
use crate::output;

#[derive(Args, Debug)]
pub(in crate::noise) struct PartOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Does the same work again and again
    Measure(MeasureOptions),
    /// Disturbs until its input ends
    Disturb(DisturbOptions),
}

#[derive(Args, Debug)]
struct MeasureOptions {
    /// Cores that it may use
    #[arg(long)]
    cores: String,
    /// Steps of work in a quantum
    #[arg(long)]
    steps: u64,
    /// Quanta
    #[arg(long)]
    samples: u64,
    /// Real time, with this priority
    #[arg(long)]
    fifo: Option<i32>,
    /// Who started it, where that is known
    #[arg(long)]
    parent: Option<u32>,
}

#[derive(Args, Debug)]
struct DisturbOptions {
    /// Cores that it works on
    #[arg(long)]
    cores: String,
    /// Where its file lies
    #[arg(long)]
    dir: PathBuf,
    /// Of its times
    #[arg(long)]
    seed: u64,
    /// It ends by itself after so many seconds
    #[arg(long)]
    seconds: u64,
    /// Who started it
    #[arg(long)]
    parent: u32,
}

/// Runs one of them.
///
/// # Errors
/// Cores that are refused (OL-100), real time that is not permitted (OL-402).
pub(in crate::noise) fn run(options: &PartOptions) -> Result<u8> {
    match &options.what {
        What::Measure(options) => measure(options),
        What::Disturb(options) => {
            tie(Some(options.parent))?;
            let cores = cores::parse(&options.cores)?;
            disturb::start(&cores, &options.dir, options.seed, options.seconds)?;
            output::text("ready")?;
            std::io::stdout()
                .flush()
                .map_err(|error| Error::io("stdout", "write", &error))?;
            // Its end is the word to stop.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            output::json(&disturb::done())
        }
    }
}

/// The kernel ends this process when the one that started it ends.
fn tie(parent: Option<u32>) -> Result<()> {
    // SAFETY: prctl with plain numbers.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_PDEATHSIG,
            libc::SIGKILL as u64,
            0_u64,
            0_u64,
            0_u64,
        )
    };
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    // It may have ended before.
    match parent {
        Some(_) if set != 0 => Err(Error::internal("PR_SET_PDEATHSIG")),
        Some(_) if now != parent => Err(Error::internal("who started it has ended")),
        _ => Ok(()),
    }
}

fn measure(options: &MeasureOptions) -> Result<u8> {
    tie(options.parent)?;
    let allowed = cores::parse(&options.cores)?;
    let bound: Cpus = allowed.iter().copied().collect();
    bound.affinity().apply(0).map_err(|error| {
        let entity = Entity::Option("core".into());
        let reason = format!(
            "cores {}: the kernel refuses to run there: {error}",
            options.cores
        );
        Error::new(Code::InvalidArgument, entity, reason, "choose other cores")
    })?;
    if let Some(priority) = options.fifo {
        // SAFETY: sched_param is plain data, for which all zeroes are valid.
        let mut wanted: libc::sched_param = unsafe { std::mem::zeroed() };
        wanted.sched_priority = priority;
        // SAFETY: the structure lives.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &wanted) } != 0 {
            let why = std::io::Error::last_os_error();
            let reason = format!("real time is refused: {why}");
            let remedy = "run it as root, or raise the limit (ulimit -r)";
            return Err(Error::new(Code::Permission, Entity::Call, reason, remedy));
        }
    }
    let samples = options.samples as usize;
    output::json(&interruptions::part(
        options.steps,
        samples,
        &allowed,
        &tracefs::ROOTS,
    )?)
}
