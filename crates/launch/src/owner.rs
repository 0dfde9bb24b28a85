//! Whose the storage of nodes outside the store is (`NODE/JOB`): two stores may be given
//! one directory for it, and then jobs of one name would write into, wipe and delete each
//! other's. A file there holds the number that stands in the job's records.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};

use crate::files;

/// The file's name.
pub(crate) const OWNER: &str = "owner";

/// The number of the job whose storage this is; `None` if it is not told.
pub(crate) fn of(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join(OWNER)).ok()?;
    u64::from_str_radix(text.trim(), 16).ok()
}

/// Makes `dir` the storage of the job `hash`, which was `known` under an earlier key.
///
/// # Errors
/// [`Code::KeyMismatch`] if it is another job's; those of the file system.
pub(crate) fn claim(dir: &Path, known: Option<u64>, hash: u64) -> Result<()> {
    files::make_private(dir)?;
    let path = dir.join(OWNER);
    let text = format!("{hash:016x}\n");
    let mut open = OpenOptions::new();
    match open.write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|error| Error::io(&path, "write", &error)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => match of(dir) {
            Some(owner) if owner == hash => Ok(()),
            Some(owner) if Some(owner) != known => Err(of_another(dir)),
            // Ours under the key before, or cut off while it was written.
            _ => files::write_atomic(&path, text.as_bytes()),
        },
        Err(error) => Err(Error::io(&path, "write", &error)),
    }
}

/// What is said of a directory that is another job's.
pub(crate) fn of_another(dir: &Path) -> Error {
    Error::new(
        Code::KeyMismatch,
        Entity::File(dir.display().to_string()),
        "nodes of a job of this name with another key keep their data there: a job of another \
         store, or this one before its directory in the store was lost",
        "bring that directory back, or choose another --job or --node-storage; if that job is \
         no more, remove this directory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = dir.path().join("job");
        claim(&nodes, None, 7).unwrap();
        claim(&nodes, Some(7), 7).unwrap();
        assert_eq!(of(&nodes), Some(7));
        for known in [None, Some(9)] {
            let error = claim(&nodes, known, 8).unwrap_err();
            assert_eq!(error.code(), Code::KeyMismatch);
        }
        // The same job under a new key.
        claim(&nodes, Some(7), 8).unwrap();
        assert_eq!(of(&nodes), Some(8));
        fs::write(nodes.join(OWNER), "").unwrap();
        claim(&nodes, None, 9).unwrap();
        assert_eq!(of(&nodes), Some(9));
    }
}
