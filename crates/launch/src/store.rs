//! Where a job lives: `STORE/JOB`, the nodes' directories and the run directory.
//!
//! Invariants: one launcher a job at a time, by `flock` on `lock` (it ends with the
//! process, so no stale lock is ever left); directories are private to the user
//! (P7); files that others read are complete or absent (temporary name, fsync,
//! rename, directory fsync); incarnation numbers only grow.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, Incarnation, JobName, NodeId, Result, Version, count};
use outlive_control::steering::Powers;
use outlive_network::JobKey;
use outlive_objects::ObjectStoreUrl;
use outlive_planner::online::learned::Learned;
use outlive_vault::Directory;
use rustix::fs::FlockOperation;

pub(crate) use crate::files::check_owned;
use crate::files::{absolute, must_list};
pub use crate::files::{make_private, prepare_node_dir, run_dir, wipe, write_atomic, write_named};
use crate::history;
pub use crate::job_file::{JobFile, Known, node_dir, read_job_of};
use crate::job_file::{
    adopted, check_name, elsewhere, job_hash, nodes_dir, nodes_outside, own_nodes, read_job,
    renamed,
};
use crate::job_writer::JobWriter;
use crate::layout;
use crate::shared;

/// What a run wants of its job's store.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Number of slots.
    pub nodes: u32,
    /// Directory for the nodes' data, if not in the job's own.
    pub node_storage: Option<&'a Path>,
    /// Where the level shared lies, if not in the job's directory.
    pub object_store: Option<&'a ObjectStoreUrl>,
    /// Where the memory server is, if the user says it.
    pub memory_server: Option<&'a str>,
    /// What the user says of the powers of its nodes.
    pub powers: Powers,
    /// The owner's word that the job begins anew.
    pub fresh: bool,
}

/// A job's directory, held by this process.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    job: JobFile,
    // Before the lock: all is written before another may hold it.
    writer: JobWriter,
    // Held for its lock.
    lock: File,
    nodes_lock: Arc<OwnedFd>,
    /// What the user should know of how it was opened.
    notes: Vec<Error>,
}

impl Store {
    /// Opens or makes `store/name` for `nodes` slots and takes its lock.
    /// `node_storage` is where the nodes' directories go; by default `nodes/` in
    /// the job's directory. `fresh`: the owner's word to begin anew.
    ///
    /// # Errors
    /// [`Code::JobBusy`] with the holder's process if another launcher runs the job;
    /// [`Code::InvalidArgument`] if the job has another number of nodes or another
    /// node storage; [`Code::NoValidCheckpoint`] if what is there is another job's, or
    /// this one's without anything that can be read; those of the file system.
    pub fn open(store: &Path, name: &JobName, wanted: &Wanted<'_>) -> Result<Store> {
        let Wanted { nodes, fresh, .. } = *wanted;
        let store = absolute(store)?;
        let dir = store.join(name.as_str());
        crate::marks::refuse_begun(&dir, name)?;
        // Before anything is made, which would be in the way of what was renamed.
        if let Some(other) = elsewhere(&dir).filter(|_| !fresh) {
            return Err(renamed(&dir, &other));
        }
        make_private(&store)?;
        make_private(&dir)?;
        let lock = take_lock(&dir.join(layout::LOCK), name)?;
        // It may have been begun before the lock was ours.
        crate::marks::refuse_begun(&dir, name)?;
        let nodes_lock = Arc::new(crate::leftovers::take(&dir, &dir, name, &|_| false)?);
        let known = read_job(&dir)?;
        let object_store = shared::choose(known.as_ref(), wanted.object_store, &dir)?;
        let shared = object_store.is_none().then(|| Directory::shared_in(&dir));
        for sub in shared.iter().chain([&own_nodes(&dir)]) {
            make_private(sub)?;
            must_list(sub)?;
        }
        for part in shared.iter().flat_map(|it| Directory::parts(it)) {
            must_list(&part)?;
        }
        let storage = wanted.node_storage.map(absolute).transpose()?;
        let mut notes = Vec::new();
        let mut job = match known {
            Some(job) if job.name != *name && fresh => JobFile {
                // The directory is this job's now; numbers go on, for what is in it.
                key_hash: None,
                node_storage: storage.clone().unwrap_or_else(|| own_nodes(&dir)),
                nodes,
                ..job
            },
            Some(job) => check_same(check_name(job, &dir)?, nodes, storage.as_deref())?,
            None => {
                let storage = storage.clone().unwrap_or_else(|| own_nodes(&dir));
                let mut new = JobFile::new(name.clone(), nodes, storage);
                new.object_store.clone_from(&object_store);
                let (job, note) = without_job_file(new, &dir, fresh)?;
                notes.extend(note);
                check_same(job, nodes, None)?
            }
        };
        job.object_store = object_store;
        if let Some(address) = wanted.memory_server {
            job.memory_server = Some(address.to_owned());
        }
        match wanted.powers {
            Powers::AsBefore => {}
            Powers::Given(powers) => job.powers = Some(powers),
            Powers::Off => job.powers = None,
        }
        job.incarnation = job.incarnation.max(shared::newest_start(&job, &dir)?);
        job.name = name.clone();
        job.directory = Some(dir.clone());
        let store = Store {
            writer: JobWriter::start(dir.join(layout::JOB))?,
            dir,
            job,
            lock,
            nodes_lock,
            notes,
        };
        store.write_job()?;
        store.sweep();
        Ok(store)
    }

    /// What the user should know of how it was opened; given once.
    pub fn take_notes(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.notes)
    }

    /// Makes sure that what a node needs to start is there still: somebody may have
    /// removed it while the job runs. A key that is missing is written again, and told.
    ///
    /// # Errors
    /// [`Code::NotFound`] if the job's directory is gone; [`Code::KeyMismatch`] if
    /// another key is in its place.
    pub fn ensure(&self, key: &JobKey) -> Result<Option<Error>> {
        let held = self.lock.metadata().map(|it| it.ino()).ok();
        let found = fs::metadata(self.dir.join(layout::LOCK))
            .map(|it| it.ino())
            .ok();
        if found.is_none() || found != held {
            return Err(Error::new(
                Code::NotFound,
                Entity::File(self.dir.display().to_string()),
                "the job's directory was removed or replaced while the job ran",
                "bring it back, with what lay in it; the next run goes on from there",
            ));
        }
        let file = self.key_file();
        if !file.exists() {
            key.save(&file)?;
            return Ok(Some(Error::new(
                Code::NotFound,
                Entity::File(file.display().to_string()),
                "the job's key was removed while the job ran; it was written again",
                "nothing: but see who removes files there",
            )));
        }
        let hash = job_hash(self.job.name.as_str(), &file)?;
        match self.job.key_hash == Some(hash) {
            true => Ok(None),
            false => Err(Error::new(
                Code::KeyMismatch,
                Entity::File(file.display().to_string()),
                "the job's key was replaced while the job ran",
                "put the job's key back, then run again",
            )),
        }
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
        self.dir.join(layout::KEY)
    }
    /// The job's key: that of the file, or a new one if the job was never run, or if it
    /// begins anew (`fresh`). Returned with what stands for it in containers and records.
    ///
    /// # Errors
    /// [`Code::KeyMismatch`] if the job was run with another key, or its key is gone: its
    /// checkpoints would be taken for another job's, and a new start for the first. Those
    /// of reading and writing the file.
    ///
    /// `here`: the nodes' storage is on this machine, and is to be this job's.
    pub fn key(&mut self, fresh: bool, here: bool) -> Result<(JobKey, u64)> {
        let file = self.key_file();
        let was_run = self.job.incarnation > 0 || self.job.key_hash.is_some();
        let found = adopted(&file)?.is_some();
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
            false if was_run && !fresh && !found => {
                return refuse("the key of the job's checkpoints is gone");
            }
            false => JobKey::create(&file)?,
        };
        let hash = job_hash(self.job.name.as_str(), &file)?;
        if self.job.key_hash.is_some_and(|known| known != hash) && !fresh {
            return refuse("the job's checkpoints were made with another key");
        }
        if let Some(nodes) = nodes_outside(&self.job, &self.dir).filter(|_| here) {
            crate::owner::claim(&nodes, self.job.key_hash, hash)?;
        }
        if self.job.key_hash.replace(hash) != Some(hash) {
            self.write_job()?;
        }
        shared::begin(&self.job, hash)?;
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

    /// Remembers the newest version that is known to have been stable; `None`: the owner began
    /// anew. This, and what follows, is written by a thread of its own: a disk that is slow
    /// holds up nobody, and what could not be written is told by [`Store::not_recorded`].
    pub fn record_history(&mut self, history: Option<(Incarnation, Version)>) {
        let history = history.map(|(incarnation, version)| Known {
            incarnation,
            version,
        });
        if self.job.history != history {
            self.job.history = history;
            self.writer.later(self.job.clone());
        }
    }

    /// Remembers on which host each slot is.
    pub fn record_hosts(&mut self, hosts: Vec<String>) {
        if self.job.hosts != hosts {
            self.job.hosts = hosts;
            self.writer.later(self.job.clone());
        }
    }

    /// Remembers what was learned of costs and failures.
    pub fn record_learned(&mut self, learned: Learned) {
        self.job.learned = Some(learned);
        self.writer.later(self.job.clone());
    }

    /// Why something could not be remembered for which nobody waited; told once.
    pub fn not_recorded(&self) -> Option<Error> {
        self.writer.failed()
    }

    /// As [`Store::not_recorded`], of all that was to be remembered: it waits for the disk.
    pub fn settle(&self) -> Option<Error> {
        self.writer.settle()
    }

    /// Removes the unfinished files of agents that were killed. Only while no agent of the
    /// job lives. The launcher's own stay: its threads may be writing one, the report for
    /// example.
    pub fn tidy(&self) {
        if self.job.object_store.is_none() {
            Directory::sweep(&Directory::shared_in(&self.dir));
        }
        for node in (0..self.job.nodes).map(NodeId) {
            Directory::sweep(&self.node_dir(node));
        }
    }

    /// The directory of a slot.
    pub fn node_dir(&self, node: NodeId) -> PathBuf {
        node_dir(&self.job, &self.dir, node)
    }

    /// Removes what launchers that were killed had begun to write, or had moved aside and not
    /// yet deleted. Only before this one writes.
    fn sweep(&self) {
        crate::files::sweep_unfinished(&self.dir);
        self.tidy();
        let entries = fs::read_dir(nodes_dir(&self.job, &self.dir));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("node-") && name.contains(".lost-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn write_job(&self) -> Result<()> {
        self.writer.now(self.job.clone())
    }
}

/// The process that runs the job now, if one does: its number, 0 if unknown.
pub fn running(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join(layout::LOCK)).ok()?;
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
            Ok(()) if !crate::files::is_at(&file, path) => file = open()?,
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

fn read_pid(file: &mut File) -> u32 {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(20).read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

/// What stands in for a job file that is not there: of a job that its object store knows what that
/// says, and of one whose file is gone what its records say.
fn without_job_file(new: JobFile, dir: &Path, fresh: bool) -> Result<(JobFile, Option<Error>)> {
    let found = shared::adopt(&new, dir)?;
    let (job, note) = history::without_job_file(new, dir, fresh)?;
    Ok(match found && job.incarnation > 0 {
        true => {
            let note = shared::found(&job);
            (job, Some(note))
        }
        false => (job, note),
    })
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
    match node_storage {
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

#[cfg(test)]
impl Store {
    /// [`Store::open`] of a job without an object store.
    pub(crate) fn open_plain(
        store: &Path,
        name: &JobName,
        nodes: u32,
        node_storage: Option<&Path>,
        fresh: bool,
    ) -> Result<Store> {
        let wanted = Wanted {
            nodes,
            node_storage,
            object_store: None,
            memory_server: None,
            powers: Powers::AsBefore,
            fresh,
        };
        Store::open(store, name, &wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_control::steering::Energy;
    use std::os::unix::fs::PermissionsExt;

    fn name() -> JobName {
        JobName::new("job").unwrap()
    }

    #[test]
    fn a_job_is_the_same_job_later_and_only_once_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open_plain(dir.path(), &name(), 4, None, false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(store.dir()), 0o700);
        store.record(3, 77, Some(8)).unwrap();
        let job_dir = store.dir().to_owned();
        assert_eq!(running(&job_dir), Some(std::process::id()));
        let error = Store::open_plain(dir.path(), &name(), 4, None, false).unwrap_err();
        assert_eq!(error.code(), Code::JobBusy);
        assert!(error.reason().contains(&std::process::id().to_string()));
        drop(store);
        assert_eq!(running(&job_dir), None);
        let error = Store::open_plain(dir.path(), &name(), 2, None, false).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let store = Store::open_plain(dir.path(), &name(), 4, None, false).unwrap();
        assert_eq!((store.job().incarnation, store.job().epoch), (3, 77));
        assert_eq!(store.job().ranks, Some(8));
    }

    #[test]
    fn a_job_that_was_run_is_not_begun_anew_under_another_key() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open_plain(dir.path(), &name(), 1, None, false).unwrap();
        let hash = open().key(false, true).unwrap().1;
        assert_eq!(open().key(false, true).unwrap().1, hash);
        let file = open().key_file();
        let kept = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(
            open().key(false, true).unwrap_err().code(),
            Code::KeyMismatch
        );
        assert!(!file.exists(), "nothing is put in its place");
        let other = open().key(true, true).unwrap().1;
        assert_ne!(other, hash);
        assert_eq!(open().key(false, true).unwrap().1, other);
        fs::write(&file, &kept).unwrap();
        assert_eq!(
            open().key(false, true).unwrap_err().code(),
            Code::KeyMismatch
        );
        assert_eq!(open().key(true, true).unwrap().1, hash);
        // As versions before this one left it: the number alone tells that it was run.
        let mut old = open();
        old.job.key_hash = None;
        old.record(3, 1, None).unwrap();
        drop(old);
        fs::remove_file(&file).unwrap();
        assert_eq!(
            open().key(false, true).unwrap_err().code(),
            Code::KeyMismatch
        );
        fs::write(&file, &kept).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(open().key(false, true).unwrap().1, hash);
    }

    #[test]
    fn powers_are_kept_until_others_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let run = |powers| {
            let wanted = Wanted {
                nodes: 2,
                node_storage: None,
                object_store: None,
                memory_server: None,
                powers,
                fresh: false,
            };
            Store::open(dir.path(), &name(), &wanted)
                .unwrap()
                .job
                .powers
        };
        let watts = |compute| Energy {
            compute,
            checkpoint: 200.0,
        };
        assert_eq!(run(Powers::AsBefore), None);
        assert_eq!(run(Powers::Given(watts(350.0))), Some(watts(350.0)));
        assert_eq!(run(Powers::AsBefore), Some(watts(350.0)));
        assert_eq!(run(Powers::Given(watts(0.1))), Some(watts(0.1)));
        // Bit for bit, or the checksum would not fit.
        let odd = watts(1.0 / 3.0);
        run(Powers::Given(odd));
        assert_eq!(run(Powers::AsBefore), Some(odd));
        assert_eq!(run(Powers::Off), None);
        assert_eq!(run(Powers::AsBefore), None);
    }

    fn without_sum(text: &str) -> String {
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        value.as_object_mut().unwrap().remove("checksum");
        value.to_string()
    }

    #[test]
    fn a_flipped_bit_in_the_job_file_is_no_other_number() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open_plain(dir.path(), &name(), 3, None, false).unwrap());
        let path = dir.path().join("job/job.json");
        let good = fs::read(&path).unwrap();
        assert_eq!(read_job(&dir.path().join("job")).unwrap().unwrap().nodes, 3);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            // White space and the name of the last field aside.
            if let Ok(job) = read_job_of(&dir.path().join("job")) {
                assert_eq!((job.nodes, job.incarnation), (3, 0), "byte {at}");
            }
        }
    }

    #[test]
    fn a_damaged_job_file_is_a_coded_error() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open_plain(dir.path(), &name(), 1, None, false).unwrap());
        let other = JobName::new("good").unwrap();
        drop(Store::open_plain(dir.path(), &other, 1, None, false).unwrap());
        for text in ["", "{", "{\"schema\":\"outlive.job/9\"}"] {
            fs::write(dir.path().join("job/job.json"), text).unwrap();
            let error = Store::open_plain(dir.path(), &name(), 1, None, false).unwrap_err();
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
            let text = without_sum(&text);
            fs::write(dir.path().join("job/job.json"), text).unwrap();
            let error = read_job_of(&dir.path().join("job")).unwrap_err();
            assert_eq!(error.code(), Code::FormatUnknown, "{bad}");
        }
    }

    #[test]
    fn what_a_killed_launcher_left_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open_plain(dir.path(), &name(), 1, None, false).unwrap());
        let nodes = dir.path().join("job/nodes");
        for name in ["node-0", "node-0.lost-12-3"] {
            fs::create_dir(nodes.join(name)).unwrap();
        }
        drop(Store::open_plain(dir.path(), &name(), 1, None, false).unwrap());
        let left = |name: &str| nodes.join(name).exists();
        assert!(left("node-0") && !left("node-0.lost-12-3"));
    }

    /// The report's thread may be between creating and renaming when the job ends.
    #[test]
    fn what_this_launcher_is_writing_is_not_swept_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_plain(dir.path(), &name(), 1, None, false).unwrap();
        let writing = dir.path().join("job/report.json.new-1-7");
        fs::write(&writing, "half").unwrap();
        store.tidy();
        assert!(writing.exists());
        drop(store);
        drop(Store::open_plain(dir.path(), &name(), 1, None, false).unwrap());
        assert!(!writing.exists(), "the next launcher's rubbish");
    }
}
