//! `outlive checkpoints`: what is stored, whether it is sound, what a loss would cost.

use outlive_base::{Error, Result};

use crate::args::CheckpointsOptions;

/// Runs a subcommand.
pub fn run(_options: CheckpointsOptions) -> Result<u8> {
    Err(Error::internal("this build has no catalogue"))
}
