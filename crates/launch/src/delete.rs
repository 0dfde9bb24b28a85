//! Deleting a job: all that it keeps in the store and on its nodes.
//!
//! Invariants: nothing is removed before a mark that says so is durable in the job's
//! directory, and the mark goes last: a deletion that is cut off leaves a job that is
//! whole, or one that is plainly being deleted, is never run, and can be deleted again.
//! The launcher's lock is held: a job that runs is refused. Links are never followed:
//! where the job's own directories are links nothing is removed at all, and a link
//! further down goes by itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_memory::{Options, Parities};
use outlive_network::JobKey;
use outlive_objects::Objects;
use outlive_vault::Directory;

use crate::files;
use crate::job_file::{JobFile, job_hash, key_hash, own_nodes, remembered};
use crate::layout;
pub use crate::marks::{is_begun, refuse_begun};
use crate::owner;
use crate::pins;
use crate::shared::{self, At, OwnedStore};
use crate::store;

/// What goes last, in this order: where the nodes' storage lies must be known until that
/// is gone, and the lock is held until nothing is left.
const LAST: [&str; 7] = [
    layout::KEY,
    layout::IDENTITY,
    layout::JOB,
    layout::REMEMBERED,
    layout::NODES_LOCK,
    layout::LOCK,
    layout::DELETING,
];

/// What a deletion leaves.
#[derive(Debug, Default)]
pub struct Left {
    /// Files in the nodes' directory that are not the job's.
    pub files: Vec<PathBuf>,
    /// Why what it had at a memory server may still be there, until that server ends.
    pub served: Option<Error>,
}

/// A job that may be deleted: nobody runs it while this lives.
#[derive(Debug)]
pub struct Deletion {
    dir: PathBuf,
    name: JobName,
    /// Storage of the nodes outside the job's directory: `NODE/JOB`.
    outside: Option<PathBuf>,
    /// What all nodes share.
    shared: OwnedStore,
    /// Where a memory server may have parities of it.
    server: Option<String>,
    /// The newest start that this store knows of; 0 if it does not know.
    known: u32,
    _locks: (File, OwnedFd),
}

impl Deletion {
    /// Takes the job's lock and looks at what would be deleted; nothing is changed yet.
    /// `node_storage` is where the nodes' data lies if `job.json` cannot be read.
    ///
    /// # Errors
    /// [`Code::NotFound`]; [`Code::JobBusy`] if the job runs; [`Code::Permission`] if one
    /// of its directories is a link or another user's.
    pub fn prepare(store: &Path, name: &JobName, node_storage: Option<&Path>) -> Result<Deletion> {
        let store = fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
        let dir = store.join(name.as_str());
        if fs::symlink_metadata(&dir).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Err(Error::new(
                Code::NotFound,
                Entity::Job(name.to_string()),
                format!("no such job is stored in {}", store.display()),
                "check --store; outlive status lists the jobs",
            ));
        }
        store::check_owned(&dir, 0o022)?;
        let lock = store::take_lock(&dir.join(layout::LOCK), name)?;
        let nodes_lock = crate::leftovers::take(&dir, &dir, name, &|_| false)?;
        let job = store::read_job_of(&dir).ok();
        let base = job.as_ref().map(|job: &JobFile| job.node_storage.clone());
        let base = base.or_else(|| node_storage.map(Path::to_owned));
        let outside = base.filter(|base| *base != own_nodes(&dir));
        let url = match &job {
            Some(job) => job.object_store.clone(),
            None => remembered(&dir)?,
        };
        let deletion = Deletion {
            outside: outside.map(|base| base.join(name.as_str())),
            shared: shared::place_at(url.as_deref(), name, &dir)?,
            server: job.as_ref().and_then(|job| job.memory_server.clone()),
            known: job.as_ref().map_or(0, |job| job.incarnation),
            dir,
            name: name.clone(),
            _locks: (lock, nodes_lock),
        };
        deletion.refuse_links()?;
        let hash = job.and_then(|job| job.key_hash);
        let hash = hash.or_else(|| job_hash(name.as_str(), &deletion.dir.join(layout::KEY)).ok());
        if let (Some(outside), Some(hash)) = (&deletion.outside, hash)
            && owner::of(outside).is_some_and(|owner| owner != hash)
        {
            return Err(owner::of_another(outside));
        }
        Ok(deletion)
    }

    /// The directories that go: the job's own, and that of its nodes if it lies elsewhere.
    pub fn directories(&self) -> Vec<PathBuf> {
        let outside = self.outside.iter().filter(|path| path.exists());
        std::iter::once(&self.dir).chain(outside).cloned().collect()
    }

    /// What the job has in an object store, for people; `None` if that stays, or it has none.
    ///
    /// # Errors
    /// Those of the object store.
    pub fn objects_shown(&self) -> Result<Option<String>> {
        Ok(self.objects()?.map(|_| self.shared.at.shown()))
    }

    /// The objects that go. Another store may have run the job since, and then needs them.
    fn objects(&self) -> Result<Option<&Objects>> {
        let At::Objects(objects) = &self.shared.at else {
            return Ok(None);
        };
        let newest = shared::newest_start_at(&self.shared)?;
        Ok((newest <= self.known).then_some(objects))
    }

    /// An object store that keeps what the job has there, for another store has run it since.
    ///
    /// # Errors
    /// Those of the object store.
    pub fn objects_left(&self) -> Result<Option<String>> {
        match (&self.shared.at, self.objects()?) {
            (At::Objects(_), None) => Ok(Some(self.shared.at.shown())),
            _ => Ok(None),
        }
    }

    fn refuse_links(&self) -> Result<()> {
        let mut ours = vec![Directory::shared_in(&self.dir), own_nodes(&self.dir)];
        ours.extend(self.outside.clone());
        ours.extend(nodes_in(&own_nodes(&self.dir)));
        ours.extend(self.outside.iter().flat_map(|path| nodes_in(path)));
        for path in ours {
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_symlink() => {
                    return Err(Error::new(
                        Code::Permission,
                        Entity::File(path.display().to_string()),
                        "is a symbolic link, and links are not followed: nothing was deleted",
                        "remove the link, and what it points to, and delete the job again",
                    ));
                }
                Ok(_) => store::check_owned(&path, 0o022)?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Deletes the job.
    ///
    /// # Errors
    /// Those of the file system; the job is then being deleted, and can be deleted again.
    pub fn carry_out(self) -> Result<Left> {
        // Found out before the mark: a store that cannot be reached leaves the job as it is.
        let objects = self.objects()?;
        self.mark()?;
        if let Some(objects) = objects {
            objects.remove_all()?;
        }
        // A server that is lost has nothing any more.
        let served = self.forget_served().err();
        crate::segments::sweep(&self.dir);
        for path in self.steps() {
            files::remove(&path)?;
        }
        let files = self.finish()?;
        Ok(Left { files, served })
    }

    /// Removes its parities at a memory server. Regions that a program made there itself stay.
    fn forget_served(&self) -> Result<()> {
        let Some(address) = &self.server else {
            return Ok(());
        };
        let key = JobKey::load(self.dir.join(layout::KEY))?;
        let parities = Parities::new(address, self.name.as_str(), key, Options::default());
        parities.forget(&parities.found()?)
    }

    /// Deletes the job, unless one of its versions is pinned. True if it was deleted.
    ///
    /// # Errors
    /// Those of [`Deletion::carry_out`].
    pub(crate) fn carry_out_unless_pinned(self) -> Result<bool> {
        let hash = job_hash(self.name.as_str(), &self.dir.join(layout::KEY));
        let is_pinned = || {
            hash.as_ref()
                .is_ok_and(|hash| pins::any(&self.shared, *hash))
        };
        if is_pinned() {
            return Ok(false);
        }
        self.mark()?;
        // Who pins a version now finds the mark; who did so since has not seen it.
        if is_pinned() {
            files::remove(&self.dir.join(layout::DELETING))?;
            return Ok(false);
        }
        self.carry_out().map(|_| true)
    }

    fn mark(&self) -> Result<()> {
        store::write_atomic(&self.dir.join(layout::DELETING), b"")?;
        if let Ok(hash) = key_hash(self.name.as_str(), &self.dir.join(layout::KEY))
            && let Ok(sockets) = store::run_dir(hash)
        {
            // Of a launcher that was killed; in memory, so gone with the machine anyway.
            let _ = fs::remove_dir_all(sockets);
        }
        Ok(())
    }

    /// What goes, in order.
    fn steps(&self) -> Vec<PathBuf> {
        let mut steps: Vec<PathBuf> = self
            .outside
            .iter()
            .flat_map(|path| nodes_in(path))
            .collect();
        let inside = names_in(&self.dir);
        let late = |name: &&OsString| name.to_str().is_some_and(|name| LAST.contains(&name));
        let early = inside.iter().filter(|name| !late(name));
        steps.extend(early.map(|name| self.dir.join(name)));
        steps
    }

    /// The end: what the deletion itself needed until now.
    fn finish(self) -> Result<Vec<PathBuf>> {
        let mut left = Vec::new();
        if let Some(outside) = &self.outside {
            files::remove(&outside.join(owner::OWNER))?;
            left = names_in(outside)
                .iter()
                .map(|name| outside.join(name))
                .collect();
            if left.is_empty() {
                // Another job's node may be making it again at this moment.
                let _ = fs::remove_dir(outside);
            }
            if let Some(parent) = outside.parent().filter(|parent| parent.exists()) {
                sync(parent)?;
            }
        }
        for name in LAST {
            if name == layout::DELETING {
                sync(&self.dir)?;
            }
            files::remove(&self.dir.join(name))?;
        }
        match fs::remove_dir(&self.dir) {
            // Somebody began the job anew: the name was free.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(&self.dir, "remove", &error)),
            Ok(()) => {}
        }
        self.dir.parent().map_or(Ok(()), sync)?;
        Ok(left)
    }
}

/// Directories of nodes in `parent`: `node-2`, and `node-2.lost-...` of a lost node.
fn nodes_in(parent: &Path) -> Vec<PathBuf> {
    let is_node = |name: &OsString| {
        let number = name.to_str().and_then(|name| name.strip_prefix("node-"));
        let number = number.map(|rest| rest.split_once(".lost-").map_or(rest, |(n, _)| n));
        number.is_some_and(|n| n.parse::<u32>().is_ok())
    };
    let names = names_in(parent).into_iter().filter(is_node);
    names.map(|name| parent.join(name)).collect()
}

/// Names in a directory that is no link, in order; none if it cannot be read.
fn names_in(dir: &Path) -> Vec<OsString> {
    let linked = fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_symlink());
    let entries = (!linked).then(|| fs::read_dir(dir).ok()).flatten();
    let entries = entries.into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

fn sync(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io(dir, "sync", &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use outlive_base::NodeId;

    use super::*;
    use crate::store::{Store, prepare_node_dir};

    fn name() -> JobName {
        JobName::new("job").unwrap()
    }

    /// A job of two nodes with storage outside the store, and a neighbour.
    fn make(root: &Path, outside: bool) -> PathBuf {
        let (store, nodes) = (root.join("store"), root.join("nodes"));
        for name in ["job", "other"] {
            let name = JobName::new(name).unwrap();
            let mut store =
                Store::open_plain(&store, &name, 2, outside.then_some(&*nodes), false).unwrap();
            store.key(false, true).unwrap();
            for n in 0..2 {
                let dir = store.node_dir(NodeId(n));
                prepare_node_dir(&dir, false).unwrap();
                fs::write(dir.join("containers/c"), "x").unwrap();
            }
            fs::write(store.dir().join("shared/c"), "x").unwrap();
            fs::write(store.dir().join("report.json"), "{}").unwrap();
        }
        store
    }

    /// All files below, for comparison.
    fn files(root: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for name in names_in(root) {
            let path = root.join(name);
            found.push(path.clone());
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                found.extend(files(&path));
            }
        }
        found
    }

    #[test]
    fn a_deletion_cut_off_anywhere_can_be_repeated() {
        for outside in [false, true] {
            let mut cut = 0;
            loop {
                let dir = tempfile::tempdir().unwrap();
                let store = make(dir.path(), outside);
                let of_other = |all: Vec<PathBuf>| -> Vec<PathBuf> {
                    let mine = |path: &PathBuf| path.iter().any(|part| part == "other");
                    all.into_iter().filter(mine).collect()
                };
                let neighbour = of_other(files(dir.path()));
                // As a kill would: some steps, and then the locks are free.
                let first = Deletion::prepare(&store, &name(), None).unwrap();
                assert_eq!(first.directories().len(), if outside { 2 } else { 1 });
                let steps = first.steps();
                let whole = files(dir.path());
                if cut > 0 {
                    first.mark().unwrap();
                }
                for path in steps.iter().take(cut) {
                    files::remove(path).unwrap();
                }
                // Within the removal of the next directory, too.
                if cut > 0
                    && let Some(path) = steps.get(cut).and_then(|path| files(path).pop())
                {
                    files::remove(&path).unwrap();
                }
                drop(first);
                let opened = Store::open_plain(&store, &name(), 2, None, false);
                if cut == 0 {
                    drop(opened.expect("whole"));
                    assert_eq!(files(dir.path()), whole);
                } else {
                    assert_eq!(opened.unwrap_err().code(), Code::JobBusy);
                    assert!(is_begun(&store.join("job")));
                }
                let again = Deletion::prepare(&store, &name(), None);
                assert!(again.unwrap().carry_out().unwrap().files.is_empty());
                assert!(!store.join("job").exists());
                assert!(!dir.path().join("nodes/job").exists());
                assert_eq!(of_other(files(dir.path())), neighbour);
                let gone = Deletion::prepare(&store, &name(), None).unwrap_err();
                assert_eq!(gone.code(), Code::NotFound);
                // And the name is free.
                drop(Store::open_plain(&store, &name(), 3, None, false).unwrap());
                cut += 1;
                if cut > steps.len() {
                    break;
                }
            }
            assert!(cut > 3, "{cut}");
        }
    }

    #[test]
    fn the_end_of_a_deletion_cut_off_anywhere_can_be_repeated() {
        for cut in 0..=LAST.len() {
            let dir = tempfile::tempdir().unwrap();
            let store = make(dir.path(), true);
            let first = Deletion::prepare(&store, &name(), None).unwrap();
            first.mark().unwrap();
            for path in first.steps() {
                files::remove(&path).unwrap();
            }
            for last in LAST.iter().take(cut) {
                files::remove(&first.dir.join(last)).unwrap();
            }
            drop(first);
            assert_eq!(is_begun(&store.join("job")), cut < LAST.len());
            let again = Deletion::prepare(&store, &name(), None).unwrap();
            again.carry_out().unwrap();
            assert!(!store.join("job").exists(), "{cut}");
        }
    }

    #[test]
    fn the_storage_of_another_stores_job_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mine = make(dir.path(), true);
        let (theirs, nodes) = (dir.path().join("theirs"), dir.path().join("nodes"));
        let whole = files(&nodes);
        for fresh in [false, true] {
            let error = Store::open_plain(&theirs, &name(), 2, Some(&nodes), fresh).unwrap_err();
            assert_eq!(error.code(), Code::KeyMismatch);
        }
        // A job of another store that was run there before anybody asked whose it is.
        let aside = dir.path().join("aside");
        fs::rename(&nodes, &aside).unwrap();
        let mut other = Store::open_plain(&theirs, &name(), 2, Some(&nodes), false).unwrap();
        other.key(false, true).unwrap();
        drop(other);
        fs::remove_dir_all(&nodes).unwrap();
        fs::rename(&aside, &nodes).unwrap();
        let error = Deletion::prepare(&theirs, &name(), None).unwrap_err();
        assert_eq!(error.code(), Code::KeyMismatch);
        assert_eq!(files(&nodes), whole);
        let deletion = Deletion::prepare(&mine, &name(), None).unwrap();
        assert!(deletion.carry_out().unwrap().files.is_empty());
        Deletion::prepare(&theirs, &name(), None).unwrap();
    }

    #[test]
    fn a_job_that_runs_and_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = make(dir.path(), true);
        let held = Store::open_plain(&store, &name(), 2, None, false).unwrap();
        let error = Deletion::prepare(&store, &name(), None).unwrap_err();
        assert_eq!(error.code(), Code::JobBusy);
        drop(held);
        let safe = dir.path().join("safe");
        fs::create_dir(&safe).unwrap();
        fs::write(safe.join("thesis"), "x").unwrap();
        let whole = files(&dir.path().join("store"));
        for path in [
            store.join("job/shared"),
            dir.path().join("nodes/job/node-1"),
        ] {
            let aside = dir.path().join("aside");
            fs::rename(&path, &aside).unwrap();
            symlink(&safe, &path).unwrap();
            let error = Deletion::prepare(&store, &name(), None).unwrap_err();
            assert_eq!(error.code(), Code::Permission, "{}", path.display());
            fs::remove_file(&path).unwrap();
            fs::rename(&aside, &path).unwrap();
        }
        assert_eq!(files(&dir.path().join("store")), whole);
        // The job's directory itself, and a link further down.
        let link = JobName::new("link").unwrap();
        symlink(store.join("job"), store.join("link")).unwrap();
        let error = Deletion::prepare(&store, &link, None).unwrap_err();
        assert_eq!(error.code(), Code::Permission);
        fs::remove_file(store.join("link")).unwrap();
        symlink(&safe, store.join("job/shared/deep")).unwrap();
        symlink(&safe, dir.path().join("nodes/job/node-0/containers/deep")).unwrap();
        let own = dir.path().join("nodes/job/notes");
        fs::write(&own, "x").unwrap();
        let deletion = Deletion::prepare(&store, &name(), None).unwrap();
        assert_eq!(
            deletion.carry_out().unwrap().files,
            std::slice::from_ref(&own)
        );
        assert!(safe.join("thesis").exists() && own.exists());
        assert!(!store.join("job").exists());
    }
}
