//! The mark that a job is being deleted, which outlives whoever deletes it.

use std::fs;
use std::path::Path;

use crate::layout;
use outlive_base::{Code, Entity, Error, JobName, Result};

/// True if the deletion of the job in `dir` (`STORE/JOB`) was begun.
pub fn is_begun(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(layout::DELETING)).is_ok()
}

/// Refuses a job that is being deleted.
///
/// # Errors
/// [`Code::JobBusy`].
pub fn refuse_begun(dir: &Path, name: &JobName) -> Result<()> {
    if !is_begun(dir) {
        return Ok(());
    }
    Err(Error::new(
        Code::JobBusy,
        Entity::Job(name.to_string()),
        "it is being deleted, or its deletion was cut off",
        format!("end that by outlive checkpoints delete {name}, or choose another --job"),
    ))
}
