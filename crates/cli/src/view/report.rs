//! `outlive report`: a run as one page.

use std::path::PathBuf;

use clap::Args;
use outlive_base::Result;

use super::{Which, page};
use crate::output;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive report --job heat --html heat.html
  outlive report report.json --html - > report.html")]
pub struct ReportOptions {
    /// A report that outlive run --report wrote [default: that of a job]
    #[arg(value_name = "FILE", conflicts_with_all = ["job", "store"])]
    file: Option<PathBuf>,
    /// Write the page there; -: to standard output
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    #[command(flatten)]
    which: Which,
}

/// `outlive report`.
///
/// # Errors
/// Those of reading the job or the file, and of writing the page.
pub fn run(options: &ReportOptions) -> Result<u8> {
    let seen = match &options.file {
        Some(file) => super::of_file(file)?,
        None => super::of_job(&options.which)?,
    };
    output::to(&options.html, page::html(&seen).as_bytes())
}
