//! Which members there are, and which one this process is.
//!
//! Each member has a directory, which a process holds by a lock as long as it lives: who is
//! started takes the first that is free. So the same command is started on each machine, and a
//! member goes on wherever it is started next.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result, count};
use outlive_launch::{files, input, layout};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "outlive.coordinator-group/1";

#[derive(Serialize, Deserialize)]
struct Group {
    schema: String,
    members: u8,
}

/// A member that this process is, as long as this lives.
pub(crate) struct Member {
    /// From 1 on.
    pub(crate) number: u64,
    pub(crate) dir: PathBuf,
    /// The directories of the others.
    pub(crate) others: BTreeMap<u64, PathBuf>,
    _lock: File,
}

/// Fixes how many members there are, or checks it.
fn settle(dir: &Path, members: u8) -> Result<()> {
    let path = dir.join("group.json");
    let unknown = |reason: String| {
        Error::new(
            Code::FormatUnknown,
            Entity::File(path.display().to_string()),
            reason,
            format!(
                "start the version that wrote it, or end all coordinators and remove {}",
                dir.display()
            ),
        )
    };
    let text = match input::read(&path, input::TEXT_BYTES_MAX) {
        Err(error) if error.code() == Code::NotFound => {
            let group = Group {
                schema: SCHEMA.to_owned(),
                members,
            };
            let text = serde_json::to_vec_pretty(&group)
                .map_err(|error| Error::internal(error.to_string()))?;
            // Of several that begin at the same time, whoever links first decides.
            let own = dir.join(format!("group.json.{}", std::process::id()));
            files::write_atomic(&own, &text)?;
            let linked = std::fs::hard_link(&own, &path);
            let _ = std::fs::remove_file(&own);
            match linked {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Error::io(&path, "link", &error));
                }
                _ => input::read(&path, input::TEXT_BYTES_MAX)?,
            }
        }
        read => read?,
    };
    let group: Group = serde_json::from_slice(&text).map_err(|error| unknown(error.to_string()))?;
    if group.schema != SCHEMA {
        return Err(unknown(format!("schema {}", group.schema)));
    }
    if group.members != members {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("--members".into()),
            format!(
                "{members}, but this store's coordinator has {}",
                count(u64::from(group.members), "member")
            ),
            format!(
                "start it with --members {}; for another number end all coordinators and remove {}",
                group.members,
                dir.display()
            ),
        ));
    }
    Ok(())
}

/// Takes the first member that nobody is. `dir` is that of all members.
///
/// # Errors
/// [`Code::JobBusy`] if all are running; [`Code::InvalidArgument`] if the store's coordinator has
/// another number of members; those of the file system.
pub(crate) fn join(dir: &Path, members: u8) -> Result<Member> {
    files::make_private(dir)?;
    settle(dir, members)?;
    let path = |number: u64| dir.join(number.to_string());
    let all = 1..=u64::from(members);
    for number in all.clone() {
        let own = path(number);
        files::make_private(&own)?;
        let lock = own.join(layout::LOCK);
        let mut open = OpenOptions::new();
        let open = open.create(true).write(true).truncate(false).mode(0o600);
        let file = open
            .open(&lock)
            .map_err(|error| Error::io(&lock, "open", &error))?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            let others = all.filter(|other| *other != number);
            return Ok(Member {
                number,
                dir: own,
                others: others.map(|other| (other, path(other))).collect(),
                _lock: file,
            });
        }
    }
    let store = dir.parent().and_then(Path::parent).unwrap_or(dir);
    let (reason, remedy) = match members {
        1 => (
            "another coordinator serves this store".to_owned(),
            "one is enough; end it first, if this one shall take its place",
        ),
        _ => (
            format!("another coordinator serves this store: all {members} members run"),
            "they are enough; end one first, if this one shall take its place",
        ),
    };
    Err(Error::new(
        Code::JobBusy,
        Entity::File(store.display().to_string()),
        reason,
        remedy,
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_a_member_of_its_own_and_the_number_is_fixed() {
        let store = tempfile::tempdir().unwrap();
        let dir = store.path().join("members");
        let held: Vec<Member> = (0..3).map(|_| join(&dir, 3).unwrap()).collect();
        let numbers: Vec<u64> = held.iter().map(|member| member.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(held[1].others.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(join(&dir, 3).err().unwrap().code(), Code::JobBusy);
        let mut held = held;
        drop(held.remove(1));
        assert_eq!(join(&dir, 3).unwrap().number, 2);
        let error = join(&dir, 1).err().unwrap();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("--members 3"), "{error}");
        std::fs::write(dir.join("group.json"), b"{}").unwrap();
        assert_eq!(join(&dir, 3).err().unwrap().code(), Code::FormatUnknown);
    }
}
