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
mod doctor;
mod minickpt;
mod output;
mod reproducible;
mod run;
mod service;
mod simulate;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};
use outlive_base::{Code, Entity, Error, Result};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    // Children get their own view of a closed pipe; ours ends quietly (see output).
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
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
        Command::Doctor(options) => doctor::run(&options),
        Command::Config(options) => config::explain(options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Balance(options) => balance::run(&options).map(|()| 0),
        Command::Minickpt(options) => minickpt::run(*options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "outlive", &mut bytes);
            output::bytes(&bytes)
        }
        Command::Man {
            out_dir: Some(directory),
        } => {
            let pages = std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory));
            pages.map_err(|error| Error::io(&directory, "write the manual", &error))?;
            Ok(0)
        }
        Command::Man { out_dir: None } => {
            let mut bytes = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut bytes)
                .map_err(|error| Error::internal(format!("manual: {error}")))?;
            output::bytes(&bytes)
        }
        Command::Keeper => service::keeper(),
        Command::Agent => service::agent(),
    }
}

/// Usage errors in our own form; help and version as they are.
fn usage(error: &clap::Error) -> ExitCode {
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
    let text = error.render().to_string();
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let of_interest = |line: &&&str| !line.starts_with("Usage") && !line.starts_with("For more");
    let said: Vec<&str> = lines.iter().filter(of_interest).copied().collect();
    let first = said
        .first()
        .map_or("", |line| line.trim_start_matches("error: "));
    let (tips, details): (Vec<&str>, Vec<&str>) = said
        .get(1..)
        .unwrap_or_default()
        .iter()
        .copied()
        .partition(|line| line.starts_with("tip:"));
    let reason = std::iter::once(first)
        .chain(details)
        .collect::<Vec<_>>()
        .join(" ");
    let help = "see outlive --help and outlive COMMAND --help".to_owned();
    let remedy = tips
        .first()
        .map_or(help, |tip| tip.trim_start_matches("tip: ").to_owned());
    let coded = Error::new(Code::InvalidArgument, Entity::Call, reason, remedy);
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
