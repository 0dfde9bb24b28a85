//! Versions that newer ones have replaced, and what killed processes left, removed at their owner's
//! word: `outlive checkpoints prune`.
//!
//! Invariants: nobody runs the job meanwhile; what goes is decided by the rules that nodes follow
//! (`outlive_ledger::retention`, P3), and a version takes the place of another only if all that it
//! promises can be opened here; copies go as nodes remove them, under durable tombstones, so that a
//! command that is killed leaves whole versions and buried ones, and the next one goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Error, Incarnation, Level, Levels, Result, Version};
use outlive_vault::{
    Catalogue, Checkpoint, Directory, Entry, Found, GcPolicy, Part, Removal, Vault,
};

use serde::Serialize;

use crate::jobs::{self, Job, hash};
use crate::layout;
use crate::shared::OwnedStore;
use crate::{files, leftovers, marks, store, versions};

/// A directory of a rehearsal, before the process that carries it out.
pub const REHEARSAL: &str = "rehearsal-";

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Newest versions to keep, each with what it promises; at least one is kept.
    pub keep: usize,
    /// Only what lies at this level.
    pub level: Option<Level>,
    /// Only files that were written before this.
    pub before: Option<SystemTime>,
}

/// Why a version goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Enough newer ones promise as much.
    Replaced,
    /// A later start went on from an older version.
    Void,
    /// It was given up.
    NotCommitted,
}

impl Why {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Why::Replaced => "replaced",
            Why::Void => "void",
            Why::NotCommitted => "not committed",
        }
    }
}

/// Copies of one version that go, or have gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Freed {
    /// The version's incarnation.
    pub incarnation: Incarnation,
    /// Its number.
    pub version: Version,
    /// Why they go.
    pub why: Why,
    /// Where its copies lay.
    pub levels: BTreeSet<Level>,
    /// So many files.
    pub copies: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What would go, while nobody runs the job.
#[derive(Debug)]
pub struct Prune {
    removals: Vec<(OwnedStore, Removal)>,
    rubbish: Vec<(PathBuf, u64)>,
    freed: Vec<Freed>,
    /// What could not be looked at, and is left.
    pub errors: Vec<Error>,
    job_hash: u64,
    _locks: (File, OwnedFd),
}

impl Prune {
    /// Finds out what would go; nothing is changed yet.
    ///
    /// # Errors
    /// [`Code::JobBusy`] if the job runs; [`Code::Permission`] if a directory of it is a link or
    /// another user's; [`Code::NotFound`] if its nodes are other machines; those of the file
    /// system.
    pub fn prepare(job: &Job, wanted: &Wanted) -> Result<Prune> {
        versions::refuse_hosts(job)?;
        store::check_owned(&job.dir, 0o022)?;
        let locks = lock(job)?;
        marks::refuse_begun(&job.dir, &job.name)?;
        let places = versions::places(job)?;
        let directories = places.iter().filter_map(|place| place.at.directory());
        for dir in directories.filter(|dir| dir.exists()) {
            store::check_owned(dir, 0o022)?;
        }
        let job_hash = hash(job)?;
        let catalogue = versions::on_this_machine(job)?;
        let policy = policy(&catalogue, wanted.keep);
        let mut removals = Vec::new();
        for place in places {
            let vault = place.vault(job_hash);
            let mut removal = vault.removal(vault.found()?, policy.clone())?;
            removal.keep_to(|copy| wanted.level.is_none_or(|level| level == copy.level));
            removals.push((place, removal));
        }
        if let Some(before) = wanted.before {
            keep_young(&mut removals, before);
        }
        let rubbish = match wanted.level {
            Some(_) => Vec::new(),
            None => {
                let places = removals.iter();
                rubbish(job, places.filter_map(|(place, _)| place.at.directory()))
            }
        };
        Ok(Prune {
            freed: freed(&removals, &catalogue),
            removals,
            rubbish,
            errors: catalogue.errors,
            job_hash,
            _locks: locks,
        })
    }

    /// Versions of which copies go, newest first.
    pub fn freed(&self) -> &[Freed] {
        &self.freed
    }

    /// What killed processes have left: how many files and directories, and their bytes.
    pub fn rubbish(&self) -> (usize, u64) {
        let bytes = self.rubbish.iter().map(|(_, bytes)| bytes).sum();
        (self.rubbish.len(), bytes)
    }

    /// Removes it.
    ///
    /// # Errors
    /// Those of the file system; what is left then goes the next time.
    pub fn carry_out(self) -> Result<()> {
        for (place, removal) in &self.removals {
            if removal.doomed().is_empty() {
                continue;
            }
            let vault = match (place.node, place.at.directory()) {
                (Part::SHARED, _) | (_, None) => place.vault(self.job_hash),
                (_, Some(dir)) => Vault::own(Arc::new(Directory::own(dir)?), self.job_hash),
            };
            vault.remove(removal)?;
            // What makes removals durable; files that were kept for the next containers go too.
            vault.settle()?;
            if let Some(dir) = place.at.directory() {
                Directory::sweep(dir);
            }
        }
        for (path, _) in &self.rubbish {
            files::remove(path)?;
        }
        Ok(())
    }
}

/// Takes the locks by which one process at a time has a job.
fn lock(job: &Job) -> Result<(File, OwnedFd)> {
    let busy = |error: Error| match error.code() {
        Code::JobBusy => Error::new(
            Code::JobBusy,
            error.entity().clone(),
            error.reason(),
            "while it runs it removes what newer versions replace by itself (outlive run --keep); \
             prune it when it has ended",
        ),
        _ => error,
    };
    let lock = store::take_lock(&job.dir.join(layout::LOCK), &job.name).map_err(busy)?;
    let nodes = leftovers::take(&job.dir, &job.dir, &job.name, &|_| false).map_err(busy)?;
    Ok((lock, nodes))
}

/// What nodes are told too, of a job that nobody runs: nothing is in use, and nothing more will
/// become stable. A version whose copies cannot all be opened replaces none.
fn policy(catalogue: &Catalogue, keep: usize) -> GcPolicy {
    let mut stable = BTreeSet::new();
    let mut levels: BTreeMap<Checkpoint, BTreeSet<Level>> = BTreeMap::new();
    let mut used = Levels::default();
    for entry in &catalogue.entries {
        let at = (entry.incarnation, entry.version);
        let committed = entry.levels.iter().filter(|it| it.committed.is_some());
        for state in committed {
            used = used.with(state.level);
            levels.entry(at).or_default().insert(state.level);
            let safe = state.stable && !entry.void && !entry.unproven;
            if safe && catalogue.keeps(entry, state.level) {
                stable.insert((at.0, at.1, state.level));
            }
        }
    }
    // A record that cannot be read may say that a version is at any level.
    if !catalogue.damaged.is_empty() || !catalogue.errors.is_empty() {
        levels.clear();
    }
    GcPolicy {
        stable,
        keep,
        in_use: BTreeSet::new(),
        levels,
        used,
    }
}

/// Keeps versions of which anything was written since `before`, or is of unknown age.
fn keep_young(removals: &mut [(OwnedStore, Removal)], before: SystemTime) {
    let mut young: BTreeSet<Checkpoint> = BTreeSet::new();
    for (place, removal) in &*removals {
        let store = place.at.store();
        let is_young = |copy: &&Found| {
            let written = store.written(&copy.key);
            written.map_or(true, |written| written >= before)
        };
        let found = removal.doomed().iter().filter(is_young);
        young.extend(found.map(|copy| (copy.id.incarnation, copy.id.version)));
    }
    for (_, removal) in removals {
        removal.keep_to(|copy| !young.contains(&(copy.id.incarnation, copy.id.version)));
    }
}

fn freed(removals: &[(OwnedStore, Removal)], catalogue: &Catalogue) -> Vec<Freed> {
    let mut found: BTreeMap<Checkpoint, Freed> = BTreeMap::new();
    for copy in removals.iter().flat_map(|(_, removal)| removal.doomed()) {
        let at = (copy.id.incarnation, copy.id.version);
        let mut entries = catalogue.entries.iter();
        let entry = entries.find(|entry| (entry.incarnation, entry.version) == at);
        let freed = found.entry(at).or_insert_with(|| Freed {
            incarnation: at.0,
            version: at.1,
            why: why(entry),
            levels: BTreeSet::new(),
            copies: 0,
            bytes: 0,
        });
        freed.levels.insert(copy.level);
        freed.copies += 1;
        freed.bytes += copy.length;
    }
    found.into_values().rev().collect()
}

fn why(entry: Option<&Entry>) -> Why {
    match entry {
        Some(entry) if entry.void => Why::Void,
        Some(entry) if entry.committed().is_some() => Why::Replaced,
        _ => Why::NotCommitted,
    }
}

/// Unfinished files, storage of lost nodes that was moved aside, scratch directories of rehearsals
/// that were killed.
fn rubbish<'a>(job: &Job, places: impl Iterator<Item = &'a Path>) -> Vec<(PathBuf, u64)> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut parents = BTreeSet::from([job.dir.clone()]);
    for dir in places {
        found.extend(Directory::unfinished(dir));
        parents.extend(dir.parent().map(Path::to_owned));
    }
    for parent in parents {
        let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(is_left_over)
        });
        found.extend(ours.map(|entry| entry.path()));
    }
    let sized = found.into_iter().map(|path| {
        let bytes = jobs::disk_bytes(&path, 0);
        (path, bytes)
    });
    sized.collect()
}

/// True for the name of what a process has left that lives no more.
fn is_left_over(name: &str) -> bool {
    if let Some(pid) = name.strip_prefix(REHEARSAL) {
        let pid = pid.parse::<u32>();
        return pid.is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    }
    name.starts_with("node-") && name.contains(".lost-")
}

/// True if a removal at this level can be asked for.
pub fn is_prunable(level: Level) -> bool {
    level.store() != StoreKind::Keeper
}
