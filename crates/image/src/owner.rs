//! Opening files again for programs of other users.
//!
//! Who restores is root and opens by name, and what a name means can have changed since the
//! image was made: a user can put a link to another's file there. Invariant: a program gets
//! nothing that its user could not open, except by a path that only root can change.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::model::Credentials;
use crate::rights;
use crate::sys;

/// A user other than root, as the file system sees one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Owner {
    /// The user of a process, if that is another than ours and we are root.
    pub fn of(own: &Credentials, process: &Credentials) -> Option<Owner> {
        let other = own.uid[3] == 0 && process.uid[3] != 0;
        other.then(|| Owner {
            uid: process.uid[3],
            gid: process.gid[3],
            groups: process.groups.clone(),
        })
    }

    /// Does something with the user's rights on files.
    fn act<T>(&self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let before = rights::take_file_rights(self.uid, self.gid, &self.groups)?;
        let done = what();
        before.put_back()?;
        done
    }
}

/// Opens a path with the flags that it had, with the rights of `owner` if there is one.
///
/// # Errors
/// As open(2); `PermissionDenied` also for what is of another kind than it can have been.
pub fn open(owner: Option<&Owner>, path: &str, flags: i32) -> io::Result<File> {
    let Some(owner) = owner else {
        return reopen(path, flags);
    };
    // A pipe that was put in its place must not hold the restore up.
    let opened = match owner.act(|| reopen(path, flags | libc::O_NONBLOCK)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_roots(path) => {
            reopen(path, flags | libc::O_NONBLOCK | libc::O_NOFOLLOW)
        }
        other => other,
    }?;
    let kind = opened.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
        let what = format!("open {path}: it is no longer what it was");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if flags & (libc::O_NONBLOCK | libc::O_PATH) == 0 {
        sys::set_status_flags(opened.as_raw_fd(), flags & libc::O_APPEND)?;
    }
    Ok(opened)
}

/// Opens a path with the flags that it had; nothing is created or cut off.
fn reopen(path: &str, flags: i32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    let keep = flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
    let opened = File::options()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(keep)
        .open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("open {path}: {error}")))
}

/// True if nobody but root can have changed what a path leads to. In a directory like /tmp
/// nobody can rename what is root's. Terminals have numbers that go to whoever asks next.
fn is_roots(path: &str) -> bool {
    const STICKY: u32 = 0o1000;
    let path = Path::new(path);
    if path.starts_with("/dev/pts") {
        return false;
    }
    let Ok(file) = std::fs::symlink_metadata(path) else {
        return false;
    };
    let mut below = file.uid();
    path.ancestors().skip(1).all(|dir| {
        std::fs::symlink_metadata(dir).is_ok_and(|meta| {
            let closed = meta.mode() & 0o022 == 0;
            let kept = meta.mode() & STICKY != 0 && below == 0;
            below = meta.uid();
            meta.is_dir() && meta.uid() == 0 && (closed || kept)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn user() -> (Credentials, Owner) {
        let own = std::process::id() as i32;
        let own = crate::procfs::status(own, own).unwrap().credentials;
        let other = Credentials {
            uid: [1000; 4],
            gid: [1000; 4],
            ..Credentials::default()
        };
        assert_eq!(Owner::of(&other, &Credentials::default()), None);
        (own, Owner::of(&Credentials::default(), &other).unwrap())
    }

    #[test]
    fn a_link_of_the_user_leads_nowhere() {
        let (own, owner) = user();
        if own.uid[1] != 0 {
            // Nobody's rights can be taken but one's own.
            assert!(open(Some(&owner), "/dev/null", libc::O_RDWR).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(at("secret"), "root's").unwrap();
        std::fs::set_permissions(at("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(at("secret"), at("mine")).unwrap();
        for name in ["mine", "secret"] {
            let error = open(Some(&owner), &at(name), libc::O_RDWR).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}");
            open(None, &at(name), libc::O_RDWR).unwrap();
        }
        // A directory that root alone can change, below one that all can.
        assert!(!is_roots(&at("secret")));
        assert!(is_roots("/etc/passwd") && !is_roots("/dev/pts/0"));
        let sticky = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(dir.path(), sticky).unwrap();
        assert!(is_roots(&at("secret")));
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), all).unwrap();
        std::fs::write(at("free"), "").unwrap();
        std::fs::set_permissions(at("free"), std::fs::Permissions::from_mode(0o666)).unwrap();
        open(Some(&owner), &at("free"), libc::O_RDWR).unwrap();
        // Our own rights are back.
        open(None, &at("secret"), libc::O_RDWR).unwrap();
        assert_eq!(own, user().0);
    }
}
