//! Files and directories of a job: private to the user, complete or absent.
//!
//! Invariants: directories are private (P7); a file that others read is complete or
//! absent (temporary name, fsync, rename, directory fsync).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::layout;
use outlive_base::{Code, Entity, Error, Result};
use outlive_vault::Directory;

/// Longest path of a Unix socket on Linux, without the final zero.
const SOCKET_PATH_MAX: usize = 107;
/// What the name of an unfinished file has in it, before its process and number.
const UNFINISHED: &str = ".new-";

/// The number of the standstill whose file this is called.
pub(crate) fn hang_of(name: &str) -> Option<u32> {
    name.strip_prefix("hang-")?
        .strip_suffix(".txt")?
        .parse()
        .ok()
}

/// Makes the directory of a slot, empty if `fresh`: an old one is moved aside first,
/// so that a removal that is cut off never leaves half of it in place.
///
/// # Errors
/// Those of the file system.
pub fn prepare_node_dir(path: &Path, fresh: bool) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_private(parent)?;
    }
    if fresh {
        wipe(path)?;
    }
    make_private(path)?;
    for sub in Directory::parts(path) {
        match make_private(&sub) {
            // A node whose disk is full, or may not be written to, serves all the same:
            // its agent makes what it can, and says what it cannot.
            Err(error) if !sub.exists() && is_refusal(&error) => {
                tracing::info!(%error, "left to the agent");
            }
            made => made?,
        }
        must_list(&sub)?;
    }
    Ok(())
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.code(), Code::NoSpace | Code::Permission)
}

/// Refuses a directory that this user cannot list: what lies there would be taken for
/// nothing.
///
/// # Errors
/// Those of the file system; a directory that does not exist is none.
pub(crate) fn must_list(path: &Path) -> Result<()> {
    match fs::read_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path, "list", &error))
        }
        _ => Ok(()),
    }
}

/// Removes the unfinished files that killed launchers left in a job's directory.
pub(crate) fn sweep_unfinished(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = [layout::JOB, layout::REPORT, layout::KEY, layout::SEGMENTS];
        let is_ours = |whole: &str| {
            let rest = name.strip_prefix(whole);
            rest.is_some_and(|rest| rest.starts_with(UNFINISHED))
        };
        let of_hang = name
            .split_once(UNFINISHED)
            .and_then(|(whole, _)| hang_of(whole));
        if ours.iter().any(|whole| is_ours(whole)) || of_hang.is_some() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes what is there, a link by itself. What is gone already is no error.
///
/// # Errors
/// Those of the file system.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove", &error))
        }
        _ => Ok(()),
    }
}

/// Removes what killed launchers left of [`replace`] at this path.
pub(crate) fn sweep_replaced(path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let begins = format!("{}{UNFINISHED}", name.to_string_lossy());
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begins) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Moves a slot's directory aside and deletes it.
///
/// # Errors
/// Those of the file system; a directory that does not exist is none.
pub fn wipe(path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".lost-{}-{}", std::process::id(), unique()));
    let aside = PathBuf::from(aside);
    match fs::rename(path, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        // A file system of its own stays where it is mounted.
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => return empty(path),
        Err(error) => return Err(Error::io(path, "move aside", &error)),
    }
    // Deleting may take long; whoever comes next need not wait for it.
    let remove = move || {
        if let Err(error) = fs::remove_dir_all(&aside) {
            tracing::warn!(path = %aside.display(), %error, "cannot remove a lost node's storage");
        }
    };
    drop(std::thread::spawn(remove));
    Ok(())
}

/// Removes what is in a directory, records first: without them nothing else is offered.
fn empty(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(path, "remove what is in it", &error);
    let [records, ..] = Directory::parts(path);
    if records.is_dir() {
        fs::remove_dir_all(&records).map_err(failed)?;
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let removed = match entry.file_type().map_err(failed)?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.map_err(failed)?;
    }
    Ok(())
}

/// Makes a directory of mode 0700 with all its parents; one that exists must be a
/// directory of this user that nobody else can write to.
///
/// # Errors
/// [`Code::Permission`] and those of the file system.
pub fn make_private(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| Error::io(parent, "create", &error))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => check_owned(path, 0o022),
        Err(error) => Err(Error::io(path, "create", &error)),
    }
}

/// Refuses links, other users' directories and those with a forbidden mode bit.
pub(crate) fn check_owned(path: &Path, forbidden: u32) -> Result<()> {
    let meta = fs::symlink_metadata(path).map_err(|error| Error::io(path, "look at", &error))?;
    let me = rustix::process::geteuid().as_raw();
    let reason = if meta.file_type().is_symlink() {
        // The user's own link, for example to a scratch file system, is fine where
        // the caller resolved it; what is left here may be anybody's.
        "is a symbolic link"
    } else if !meta.is_dir() {
        "is not a directory"
    } else if meta.uid() != me {
        "belongs to another user"
    } else if meta.permissions().mode() & forbidden != 0 {
        "can be changed by others"
    } else {
        return Ok(());
    };
    Err(Error::new(
        Code::Permission,
        Entity::File(path.display().to_string()),
        reason,
        "choose another directory, or: chmod 700",
    ))
}

/// The directory of the agents' sockets of a job, checked to be this user's alone:
/// `$XDG_RUNTIME_DIR/outlive/HASH`, else `/tmp/outlive-UID/HASH`.
///
/// # Errors
/// [`Code::Permission`] if somebody else's directory or a link is in the way.
pub fn run_dir(job_hash: u64) -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let hash = format!("{job_hash:016x}");
    let longest = |base: &Path| {
        base.join(&hash)
            .join("agent-4294967295.sock")
            .as_os_str()
            .len()
    };
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let xdg = xdg.filter(|path| path.is_absolute() && check_owned(path, 0o022).is_ok());
    let xdg = xdg.map(|path| path.join("outlive"));
    let base = xdg
        .filter(|base| longest(base) <= SOCKET_PATH_MAX)
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/outlive-{uid}")));
    let dir = base.join(hash);
    make_run_dir(&dir)?;
    Ok(dir)
}

/// The same on other hosts, which may have no `$XDG_RUNTIME_DIR`: one path for all.
pub(crate) fn run_dir_of_hosts(job_hash: u64) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    PathBuf::from(format!("/tmp/outlive-{uid}/{job_hash:016x}"))
}

/// Makes the directory of sockets and the one that it lies in, for this user alone.
///
/// # Errors
/// [`Code::Permission`] if somebody else's directory or a link is in the way.
pub(crate) fn make_run_dir(dir: &Path) -> Result<()> {
    for path in dir.parent().into_iter().chain([dir]) {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                check_owned(path, 0o077)?;
            }
            Err(error) => return Err(Error::io(path, "create", &error)),
        }
    }
    Ok(())
}

/// True if the file is the one that the path names.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let held = file.metadata().map(number).ok();
    held.is_some() && held == fs::metadata(path).map(number).ok()
}

/// Writes a file that the user named: as [`write_atomic`], through links; what is no
/// regular file (`/dev/null`, a pipe) is written to and not replaced.
///
/// # Errors
/// Those of the file system.
pub fn write_named(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&target) {
        Ok(meta) if !meta.is_file() && !meta.is_dir() => OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&target)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|error| Error::io(path, "write", &error)),
        _ => write_atomic(&target, bytes),
    }
}

/// Writes a file so that readers see the old or the new one, never half.
///
/// # Errors
/// Those of the file system.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}{}-{}", std::process::id(), unique()));
    let temporary = PathBuf::from(name);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io(path, "write", &error)
    })
}

/// The same for what is renewed often and may be lost with the machine: nothing is synced. `mode`
/// says who reads it.
///
/// # Errors
/// Those of the file system.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        // A device would be gone, for whoever may do that.
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::File(path.display().to_string()),
            "is not a regular file, and would be replaced by one",
            "give the name of a file",
        ));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}{}", std::process::id()));
    let temporary = PathBuf::from(name);
    let write = || {
        // One of a launcher that was killed, if process numbers came round.
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io(path, "write", &error)
    })
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The path from the root, with links resolved as far as it exists.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(path).map_err(|error| Error::io(path, "resolve", &error))?;
    Ok(fs::canonicalize(&full).unwrap_or(full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn links_and_open_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(make_private(&target).unwrap_err().code(), Code::Permission);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().code(), Code::Permission);
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert_eq!(make_private(&file).unwrap_err().code(), Code::Permission);
    }

    #[test]
    fn a_named_file_is_written_through_links_and_a_pipe_is_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_named(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        // Nobody reads: an error, not a wait.
        assert!(write_named(&pipe, b"unread").is_err());
        let flags = libc::O_NONBLOCK;
        let mut open = OpenOptions::new();
        let mut reader = open.read(true).custom_flags(flags).open(&pipe).unwrap();
        write_named(&pipe, b"text").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        write_named(&dir.path().join("fresh"), b"x").unwrap();
        assert_eq!(fs::read(dir.path().join("fresh")).unwrap(), b"x");
    }

    #[test]
    fn what_is_renewed_is_whole_readable_as_said_and_replaces_no_device() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::write(dir.path().join("file.new-7"), "half").unwrap();
        sweep_replaced(&file);
        replace(&file, b"1", 0o644).unwrap();
        replace(&link, b"2", 0o644).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"2");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        for other in [dir.path(), Path::new("/dev/null")] {
            let error = replace(other, b"3", 0o644).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        assert!(replace(&dir.path().join("none/file"), b"4", 0o644).is_err());
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "nothing is left"
        );
    }

    #[test]
    fn a_wiped_directory_is_empty_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("node-0");
        prepare_node_dir(&node, true).unwrap();
        fs::write(node.join("records/x"), "x").unwrap();
        prepare_node_dir(&node, false).unwrap();
        assert!(node.join("records/x").exists());
        prepare_node_dir(&node, true).unwrap();
        assert!(!node.join("records/x").exists() && node.join("records").exists());
    }
}
