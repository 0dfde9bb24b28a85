//! `outlive pages`: huge pages for programs that were not changed. The work is in the crate `node`.

mod bench;
pub(crate) mod job;
pub(crate) mod library;
mod start;
mod status;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use outlive_base::{Code, Entity, Error, Result};
use outlive_node::pages::{LIBRARY, kernels};

use crate::output;

/// Groups of options.
const OUTPUT: &str = "Output";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive pages run -- ./app input
  outlive pages bench -- ./app input")]
pub struct PagesOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Run a program with its memory on huge pages, and say how much came to lie there
    Run(start::StartOptions),
    /// Tell what the machine offers, and what of a process lies on huge pages
    Status(status::StatusOptions),
    /// Measure random access, an integer sort and conjugate gradients, or a program of yours,
    /// with normal and with huge pages in turn
    Bench(bench::BenchOptions),
    /// Write the library that is preloaded, for launchers and settings of your own
    Library {
        /// Where to
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Runs a kernel of bench (started by it)
    #[command(hide = true)]
    Kernel {
        /// Which
        name: String,
        /// Its memory, MiB
        #[arg(long)]
        mib: u64,
        /// Calls
        #[arg(long)]
        calls: u32,
        /// Collapse all memory first
        #[arg(long)]
        collapse: bool,
    },
}

/// Runs the command; the exit status.
///
/// # Errors
/// Options out of bounds (OL-100); a program that is not there (OL-505); no reserved pages, no
/// such process (OL-404), or another user's (OL-402); results that differ (OL-403); files that
/// cannot be written.
pub fn run(options: &PagesOptions) -> Result<u8> {
    match &options.what {
        What::Run(options) => start::run(options),
        What::Status(options) => status::run(options),
        What::Bench(options) => bench::run(options),
        What::Library { file } => {
            library::write(file, LIBRARY)?;
            output::note(&format!(
                "to preload it: LD_PRELOAD={} GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
                std::path::absolute(file).unwrap_or(file.clone()).display()
            ));
            Ok(0)
        }
        What::Kernel {
            name,
            mib,
            calls,
            collapse,
        } => match kernels::run(name, *mib, *calls, *collapse) {
            Some(run) => output::json(&run),
            None => Err(unknown(name)),
        },
    }
}

fn refuse(option: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

fn unknown(name: &str) -> Error {
    let remedy = format!("choose among {}", kernels::NAMES.join(", "));
    refuse("kernels", format!("there is no kernel '{name}'"), remedy)
}
