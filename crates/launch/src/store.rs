//! Where a job lives: `STORE/JOB`, the nodes' directories and the run directory.
//!
//! Invariants: one launcher a job at a time, by `flock` on `lock` (it ends with the
//! process, so no stale lock is ever left); directories are private to the user
//! (P7); files that others read are complete or absent (temporary name, fsync,
//! rename, directory fsync); incarnation numbers only grow.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, JobName, NodeId, Result, count};
use outlive_network::JobKey;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::driver::job_hash;
use crate::input;

/// The schema of `job.json`.
pub const JOB_SCHEMA: &str = "outlive.job/1";
/// Most nodes that a job can have.
const NODES_MAX: u32 = 1 << 16;
/// Longest path of a Unix socket on Linux, without the final zero.
const SOCKET_PATH_MAX: usize = 107;

/// What `job.json` says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobFile {
    /// [`JOB_SCHEMA`].
    pub schema: String,
    /// The job's name.
    pub name: JobName,
    /// Number of slots, fixed for the job's life.
    pub nodes: u32,
    /// Number of ranks, once known.
    pub ranks: Option<u32>,
    /// When the job was made, in UTC.
    pub created: String,
    /// Directory that holds the nodes' directories.
    pub node_storage: PathBuf,
    /// The last incarnation that was opened, 0 if none.
    pub incarnation: u32,
    /// The largest epoch that was used.
    pub epoch: u64,
    /// The number that the key and the name give ([`crate::driver::job_hash`]): under
    /// another key the checkpoints are not this job's.
    #[serde(default, alias = "key", skip_serializing_if = "Option::is_none")]
    pub key_hash: Option<u64>,
}

/// A job's directory, held by this process.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    job: JobFile,
    // Held for its lock.
    _lock: File,
    nodes_lock: Arc<OwnedFd>,
}

impl Store {
    /// Opens or makes `store/name` for `nodes` slots and takes its lock.
    /// `node_storage` is where the nodes' directories go; by default `nodes/` in
    /// the job's directory.
    ///
    /// # Errors
    /// [`Code::JobBusy`] with the holder's process if another launcher runs the job;
    /// [`Code::InvalidArgument`] if the job has another number of nodes or another
    /// node storage; those of the file system.
    pub fn open(
        store: &Path,
        name: &JobName,
        nodes: u32,
        node_storage: Option<&Path>,
    ) -> Result<Store> {
        let store = absolute(store)?;
        let dir = store.join(name.as_str());
        crate::delete::refuse_begun(&dir, name)?;
        make_private(&store)?;
        make_private(&dir)?;
        let lock = take_lock(&dir.join("lock"), name)?;
        // It may have been begun before the lock was ours.
        crate::delete::refuse_begun(&dir, name)?;
        let nodes_lock = Arc::new(crate::leftovers::take(&dir, name)?);
        for sub in ["shared", "nodes"] {
            make_private(&dir.join(sub))?;
        }
        let path = dir.join("job.json");
        let job = match read_job(&path)? {
            Some(job) => check_same(job, nodes, node_storage)?,
            None => JobFile {
                schema: JOB_SCHEMA.to_owned(),
                name: name.clone(),
                nodes,
                ranks: None,
                created: jiff::Timestamp::now().to_string(),
                node_storage: match node_storage {
                    Some(path) => absolute(path)?,
                    None => dir.join("nodes"),
                },
                incarnation: 0,
                epoch: 0,
                key_hash: None,
            },
        };
        let store = Store {
            dir,
            job,
            _lock: lock,
            nodes_lock,
        };
        store.write_job()?;
        store.sweep();
        Ok(store)
    }

    /// `STORE/JOB`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// A lock that this process shares with all keepers and agents of the run: it is
    /// free again when the last of them has ended.
    pub fn nodes_lock(&self) -> &Arc<OwnedFd> {
        &self.nodes_lock
    }
    /// What is known of the job.
    pub const fn job(&self) -> &JobFile {
        &self.job
    }
    /// The file of the job's key.
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("key")
    }
    /// The job's key: that of the file, or a new one if the job was never run, or if it
    /// begins anew (`fresh`). Returned with what stands for it in containers and records.
    ///
    /// # Errors
    /// [`Code::KeyMismatch`] if the job was run with another key, or its key is gone: its
    /// checkpoints would be taken for another job's, and a new start for the first. Those
    /// of reading and writing the file.
    pub fn key(&mut self, fresh: bool) -> Result<(JobKey, u64)> {
        let file = self.key_file();
        let was_run = self.job.incarnation > 0 || self.job.key_hash.is_some();
        let refuse = |reason: &str| {
            Err(Error::new(
                Code::KeyMismatch,
                Entity::File(file.display().to_string()),
                reason,
                "put the job's key back, or begin anew with --fresh, which leaves the \
                 checkpoints of the other key where they are",
            ))
        };
        let key = match file.exists() {
            true => JobKey::load(&file)?,
            false if was_run && !fresh => {
                return refuse("the key of the job's checkpoints is gone");
            }
            false => JobKey::create(&file)?,
        };
        let hash = job_hash(self.job.name.as_str(), &file)?;
        if self.job.key_hash.is_some_and(|known| known != hash) && !fresh {
            return refuse("the job's checkpoints were made with another key");
        }
        if self.job.node_storage != self.dir.join("nodes") {
            let nodes = self.job.node_storage.join(self.job.name.as_str());
            crate::owner::claim(&nodes, self.job.key_hash, hash)?;
        }
        if self.job.key_hash.replace(hash) != Some(hash) {
            self.write_job()?;
        }
        Ok((key, hash))
    }
    /// Remembers durably that an incarnation is being opened.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn record(&mut self, incarnation: u32, epoch: u64, ranks: Option<u32>) -> Result<()> {
        self.job.incarnation = self.job.incarnation.max(incarnation);
        self.job.epoch = self.job.epoch.max(epoch);
        self.job.ranks = ranks.or(self.job.ranks);
        self.write_job()
    }

    /// The directory of a slot.
    pub fn node_dir(&self, node: NodeId) -> PathBuf {
        node_dir(&self.job, &self.dir, node)
    }

    /// Removes what a launcher that was killed had moved aside and not yet deleted.
    fn sweep(&self) {
        let node = self.node_dir(NodeId(0));
        let parent = node.parent().map(fs::read_dir);
        for entry in parent.into_iter().flatten().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("node-") && name.contains(".lost-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn write_job(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.job)
            .map_err(|error| Error::internal(format!("job.json: {error}")))?;
        write_atomic(&self.dir.join("job.json"), &text)
    }
}

/// The directory of a slot: in the job's own directory by default, else
/// `NODE/JOB/node-N`.
pub fn node_dir(job: &JobFile, dir: &Path, node: NodeId) -> PathBuf {
    let name = format!("node-{}", node.0);
    match job.node_storage == dir.join("nodes") {
        true => job.node_storage.join(name),
        false => job.node_storage.join(job.name.as_str()).join(name),
    }
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
    for sub in ["containers", "partner", "records", "files"] {
        make_private(&path.join(sub))?;
    }
    Ok(())
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

/// Reads `job.json` of a job's directory without taking its lock.
///
/// # Errors
/// [`Code::NotFound`] if there is none; [`Code::FormatUnknown`].
pub fn read_job_of(dir: &Path) -> Result<JobFile> {
    read_job(&dir.join("job.json"))?.ok_or_else(|| {
        Error::new(
            Code::NotFound,
            Entity::File(dir.display().to_string()),
            "no job is stored there",
            "check --job and --store; outlive status without --job lists the jobs",
        )
    })
}

/// The process that runs the job now, if one does: its number, 0 if unknown.
pub fn running(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join("lock")).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(_) => Some(read_pid(&mut file)),
    }
}

pub(crate) fn take_lock(path: &Path, name: &JobName) -> Result<File> {
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| Error::io(path, "open", &error))
    };
    let mut file = open()?;
    // A reader (status) holds a shared lock for microseconds: try a few times.
    for attempt in 0..20 {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // The job was deleted while this waited: the lock is another file now.
            Ok(()) if !is_at(&file, path) => file = open()?,
            Ok(()) => {
                let pid = format!("{}\n", std::process::id());
                file.set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| file.write_all(pid.as_bytes()))
                    .map_err(|error| Error::io(path, "write", &error))?;
                return Ok(file);
            }
            Err(rustix::io::Errno::AGAIN) if attempt < 19 => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => return Err(Error::io(path, "lock", &error.into())),
        }
    }
    let holder = read_pid(&mut file);
    Err(Error::new(
        Code::JobBusy,
        Entity::Job(name.to_string()),
        format!("process {holder} runs it"),
        "wait for its end, end it, or choose another --job",
    ))
}

/// True if the file is the one that the path names.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let held = file.metadata().map(number).ok();
    held.is_some() && held == fs::metadata(path).map(number).ok()
}

fn read_pid(file: &mut File) -> u32 {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(20).read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

fn read_job(path: &Path) -> Result<Option<JobFile>> {
    let text = match input::read(path, input::TEXT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let unknown = |reason: String| {
        Error::new(
            Code::FormatUnknown,
            Entity::File(path.display().to_string()),
            reason,
            "use the version of outlive that wrote it, or choose another --job",
        )
    };
    let job: JobFile = serde_json::from_slice(&text).map_err(|error| unknown(error.to_string()))?;
    if job.schema != JOB_SCHEMA {
        return Err(unknown(format!("schema {}", job.schema)));
    }
    // What is counted up must not overflow, and nodes are listed one by one.
    let counted = job.incarnation < u32::MAX / 2 && job.epoch < u64::MAX / 2;
    if !counted || !(1..=NODES_MAX).contains(&job.nodes) {
        return Err(unknown("a number is out of range".to_owned()));
    }
    Ok(Some(job))
}

fn check_same(job: JobFile, nodes: u32, node_storage: Option<&Path>) -> Result<JobFile> {
    if job.nodes != nodes {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("emulate-nodes".into()),
            format!("the job has {}, not {nodes}", count(job.nodes, "node")),
            format!("use --emulate-nodes {} or another --job", job.nodes),
        ));
    }
    match node_storage.map(absolute).transpose()? {
        Some(path) if path != job.node_storage => Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("node-storage".into()),
            format!(
                "the job's nodes keep their data in {}",
                job.node_storage.display()
            ),
            "leave the option out, or use another --job",
        )),
        _ => Ok(job),
    }
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
    for path in [base.clone(), base.join(&hash)] {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                check_owned(&path, 0o077)?;
            }
            Err(error) => return Err(Error::io(&path, "create", &error)),
        }
    }
    Ok(base.join(hash))
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
    name.push(format!(".new-{}-{}", std::process::id(), unique()));
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

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The path from the root, with links resolved as far as it exists.
fn absolute(path: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(path).map_err(|error| Error::io(path, "resolve", &error))?;
    Ok(fs::canonicalize(&full).unwrap_or(full))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> JobName {
        JobName::new("job").unwrap()
    }

    #[test]
    fn a_job_is_the_same_job_later_and_only_once_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path(), &name(), 4, None).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(store.dir()), 0o700);
        store.record(3, 77, Some(8)).unwrap();
        let job_dir = store.dir().to_owned();
        assert_eq!(running(&job_dir), Some(std::process::id()));
        let error = Store::open(dir.path(), &name(), 4, None).unwrap_err();
        assert_eq!(error.code(), Code::JobBusy);
        assert!(error.reason().contains(&std::process::id().to_string()));
        drop(store);
        assert_eq!(running(&job_dir), None);
        let error = Store::open(dir.path(), &name(), 2, None).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let store = Store::open(dir.path(), &name(), 4, None).unwrap();
        assert_eq!((store.job().incarnation, store.job().epoch), (3, 77));
        assert_eq!(store.job().ranks, Some(8));
    }

    #[test]
    fn a_job_that_was_run_is_not_begun_anew_under_another_key() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(dir.path(), &name(), 1, None).unwrap();
        let hash = open().key(false).unwrap().1;
        assert_eq!(open().key(false).unwrap().1, hash);
        let file = open().key_file();
        let kept = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(open().key(false).unwrap_err().code(), Code::KeyMismatch);
        assert!(!file.exists(), "nothing is put in its place");
        let other = open().key(true).unwrap().1;
        assert_ne!(other, hash);
        assert_eq!(open().key(false).unwrap().1, other);
        fs::write(&file, &kept).unwrap();
        assert_eq!(open().key(false).unwrap_err().code(), Code::KeyMismatch);
        assert_eq!(open().key(true).unwrap().1, hash);
        // As versions before this one left it: the number alone tells that it was run.
        let mut old = open();
        old.job.key_hash = None;
        old.record(3, 1, None).unwrap();
        drop(old);
        fs::remove_file(&file).unwrap();
        assert_eq!(open().key(false).unwrap_err().code(), Code::KeyMismatch);
        fs::write(&file, &kept).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(open().key(false).unwrap().1, hash);
    }

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
    fn a_damaged_job_file_is_a_coded_error() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path(), &name(), 1, None).unwrap());
        let other = JobName::new("good").unwrap();
        drop(Store::open(dir.path(), &other, 1, None).unwrap());
        for text in ["", "{", "{\"schema\":\"outlive.job/9\"}"] {
            fs::write(dir.path().join("job/job.json"), text).unwrap();
            let error = Store::open(dir.path(), &name(), 1, None).unwrap_err();
            assert_eq!(error.code(), Code::FormatUnknown, "{text}");
        }
        let good = fs::read_to_string(dir.path().join("good/job.json")).unwrap();
        for (number, bad) in [
            ("\"nodes\": 1", "\"nodes\": 4294967295"),
            ("\"nodes\": 1", "\"nodes\": 0"),
            ("\"incarnation\": 0", "\"incarnation\": 4294967295"),
            ("\"epoch\": 0", "\"epoch\": 18446744073709551615"),
        ] {
            let text = good.replace(number, bad);
            assert_ne!(text, good);
            fs::write(dir.path().join("job/job.json"), text).unwrap();
            let error = read_job_of(&dir.path().join("job")).unwrap_err();
            assert_eq!(error.code(), Code::FormatUnknown, "{bad}");
        }
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
    fn what_a_killed_launcher_left_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path(), &name(), 1, None).unwrap());
        let nodes = dir.path().join("job/nodes");
        for name in ["node-0", "node-0.lost-12-3"] {
            fs::create_dir(nodes.join(name)).unwrap();
        }
        drop(Store::open(dir.path(), &name(), 1, None).unwrap());
        let left = |name: &str| nodes.join(name).exists();
        assert!(left("node-0") && !left("node-0.lost-12-3"));
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
