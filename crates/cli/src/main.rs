//! The command `outlive`.
//!
//! Data goes to standard output, everything else to standard error. An error is one
//! line with its code, entity and reason, and one with the remedy; the exit status
//! is that of the code (see docs/errors.md), or the job's own.

mod args;
mod balance;
mod bench;
mod checkpoints;
mod collectives;
mod config;
mod coordinator;
mod copies;
mod doctor;
mod explain;
#[cfg(test)]
mod fuzzed;
mod health;
mod jobs;
mod machines;
mod memory;
mod memory_server;
mod minickpt;
mod network_memory;
mod noise;
mod objects;
mod options;
mod output;
mod pages;
mod plan;
mod quiet;
mod reproducible;
mod run;
mod scrub;
mod service;
mod simulate;
mod slots;
mod stacks;
mod status;
mod transfers;
mod usage;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{FromArgMatches, error::ErrorKind};
use outlive_base::{Code, Error, Result};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    // Children get their own view of a closed pipe; ours ends quietly (see output).
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = args::command();
    let matches = command.clone().try_get_matches_from(&words);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &command, &words),
    };
    start_log();
    match dispatch(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            output::error(&error);
            ExitCode::from(error.code().exit_status())
        }
    }
}

fn dispatch(cli: Cli) -> Result<u8> {
    match cli.command {
        Command::Run(options) => run::run(*options),
        Command::Checkpoints(options) => checkpoints::run(options),
        Command::Status(options) => status::run(&options),
        Command::Top(options) => view::top::run(&options),
        Command::Logs(options) => view::logs::run(&options),
        Command::Report(options) => view::report::run(&options),
        Command::Trace(options) => view::trace::run(&options),
        Command::Stacks(options) => stacks::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Health(options) => health::run(&options),
        Command::Config(options) => explain::explain(options),
        Command::Plan(options) => plan::run(&options),
        Command::Coordinator(options) => coordinator::coordinator(&options),
        Command::MemoryServer(options) => memory_server::run(&options),
        Command::Memory(options) => network_memory::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Balance(options) => balance::run(&options).map(|()| 0),
        Command::Minickpt(options) => minickpt::run(*options),
        Command::Noise(options) => noise::run(&options),
        Command::Pages(options) => pages::run(&options),
        Command::Quiet(options) => quiet::run(*options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "outlive", &mut bytes);
            output::bytes(&bytes)
        }
        Command::Man {
            out_dir: Some(directory),
        } => {
            let pages = std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(args::command(), &directory));
            pages.map_err(|error| Error::io(&directory, "write the manual", &error))?;
            Ok(0)
        }
        Command::Man { out_dir: None } => {
            let mut bytes = Vec::new();
            clap_mangen::Man::new(args::command())
                .render(&mut bytes)
                .map_err(|error| Error::internal(format!("manual: {error}")))?;
            output::bytes(&bytes)
        }
        Command::Keeper { .. } => service::keeper(),
        Command::Host { .. } => outlive_launch::hosts::serve::serve(),
        Command::Each { words } => outlive_launch::each::runner::run(&words),
        Command::Member { .. } => outlive_launch::each::member::serve(),
        Command::Relay { dir } => outlive_launch::hosts::relay::serve(&dir),
        Command::Look { processes } => outlive_launch::look::answer(&processes),
        Command::Agent { .. } => service::agent(),
    }
}

/// Usage errors in our own form; help and version as they are.
fn refuse(error: &clap::Error, command: &clap::Command, words: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(Code::InvalidArgument.exit_status());
        }
        _ => {}
    }
    let coded = usage::explain(error, command, words);
    output::error(&coded);
    ExitCode::from(coded.code().exit_status())
}

/// Diagnostics of our own, off unless `OUTLIVE_LOG` says what is wanted.
fn start_log() {
    let Ok(filter) = std::env::var("OUTLIVE_LOG") else {
        return;
    };
    let filter = tracing_subscriber::EnvFilter::new(filter);
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}
