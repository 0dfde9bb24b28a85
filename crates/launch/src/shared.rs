//! Where the level `shared` of a job lies: in a directory of its own, or in an object store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, JobName, NodeId, Result};
pub use outlive_objects::ObjectStoreUrl;
use outlive_objects::Objects;
use outlive_vault::{Directory, Part, Store, Vault};

use crate::job_file::{JobFile, remember, remembered};
use crate::layout;

/// A place where a job keeps containers and records.
#[derive(Clone, Debug)]
pub(crate) enum At {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A job's objects.
    Objects(Objects),
}

/// A store of the job, and whose it is: a node's, or [`Part::SHARED`].
#[derive(Clone, Debug)]
pub(crate) struct OwnedStore {
    pub node: NodeId,
    pub at: At,
}

impl At {
    /// The directory, if it is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            At::Directory(dir) => Some(dir),
            At::Objects(_) => None,
        }
    }

    /// What people find it by.
    pub fn shown(&self) -> String {
        match self {
            At::Directory(dir) => dir.display().to_string(),
            At::Objects(objects) => objects.name(),
        }
    }

    /// Its store, for any reader.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            At::Directory(dir) => Arc::new(Directory::at(dir)),
            At::Objects(objects) => Arc::new(objects.clone()),
        }
    }
}

impl OwnedStore {
    /// What is kept there, for any reader.
    pub fn vault(&self, job_hash: u64) -> Vault {
        match self.node {
            Part::SHARED => Vault::shared(self.at.store(), job_hash),
            _ => Vault::of_node(self.at.store(), job_hash),
        }
    }
}

/// The place that all nodes of the job in `dir` share.
///
/// # Errors
/// If the job's object store is no such, or the environment does not say enough.
pub(crate) fn place(job: &JobFile, dir: &Path) -> Result<OwnedStore> {
    place_at(job.object_store.as_deref(), &job.name, dir)
}

/// [`place`] of a job whose file need not be there.
///
/// # Errors
/// Those of [`place`].
pub(crate) fn place_at(url: Option<&str>, name: &JobName, dir: &Path) -> Result<OwnedStore> {
    let objects = url
        .map(|url| Objects::open(&url.parse()?, name))
        .transpose()?;
    Ok(OwnedStore {
        node: Part::SHARED,
        at: objects.map_or_else(|| At::Directory(Directory::shared_in(dir)), At::Objects),
    })
}

/// The job's objects, if it has an object store.
///
/// # Errors
/// Those of [`place`].
fn objects(job: &JobFile) -> Result<Option<Objects>> {
    let url = job.object_store.as_deref();
    url.map(|url| Objects::open(&url.parse()?, &job.name))
        .transpose()
}

/// Which object store the job has, of what is known of it and what is wanted now. It is
/// remembered beside the key, too: without `job.json` it is the same job.
///
/// # Errors
/// [`Code::InvalidArgument`] if these are two places.
pub(crate) fn choose(
    known: Option<&JobFile>,
    wanted: Option<&ObjectStoreUrl>,
    dir: &Path,
) -> Result<Option<String>> {
    let there = match known {
        Some(job) => job.object_store.clone(),
        None => remembered(dir)?,
    };
    let mut records = std::fs::read_dir(dir.join("shared/records"))
        .into_iter()
        .flatten();
    let begun = known.is_some() || there.is_some() || records.next().is_some();
    let wanted = wanted.map(ToString::to_string);
    let chosen = match (there, wanted) {
        (there, None) => there,
        (there, Some(wanted)) if !begun || there.as_ref() == Some(&wanted) => Some(wanted),
        (there, Some(_)) => {
            let lies = there.unwrap_or_else(|| Directory::shared_in(dir).display().to_string());
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("object-store".into()),
                format!("what the job's nodes share lies in {lies}"),
                "leave the option out, or use another --job",
            ));
        }
    };
    if let Some(url) = &chosen {
        remember(dir, url)?;
    }
    Ok(chosen)
}

/// Finds a job that this store does not know in its object store, and takes its number from
/// there. True if it was there.
///
/// # Errors
/// Those of the object store.
pub(crate) fn adopt(job: &JobFile, dir: &Path) -> Result<bool> {
    let begun = [layout::KEY, layout::IDENTITY]
        .iter()
        .any(|file| dir.join(file).exists());
    let objects = objects(job)?.filter(|_| !begun);
    let Some(identity) = objects.map(|it| it.identity()).transpose()?.flatten() else {
        return Ok(false);
    };
    let text = format!("{}\n", identity.number);
    crate::files::write_atomic(&dir.join(layout::IDENTITY), text.as_bytes())?;
    Ok(true)
}

/// The newest start of the job that shared storage has a record of: another cluster may have run the
/// job meanwhile, and numbers go on from there.
///
/// # Errors
/// Those of an object store. A directory that cannot be read is found out when it is used.
pub(crate) fn newest_start(job: &JobFile, dir: &Path) -> Result<u32> {
    newest_start_at(&place(job, dir)?)
}

/// [`newest_start`] at a place.
///
/// # Errors
/// Those of [`newest_start`].
pub(crate) fn newest_start_at(place: &OwnedStore) -> Result<u32> {
    let newest = place.vault(0).records().newest_opened();
    let newest = match (newest, &place.at) {
        (Err(error), At::Objects(objects)) => return Err(objects.with_remedy(&error.into())),
        (newest, _) => newest.ok().flatten(),
    };
    // What is counted up must not overflow, whatever a name says.
    let sound = newest.filter(|newest| newest.0 < u32::MAX / 2);
    Ok(sound.map_or(0, |newest| newest.0))
}

/// What is said of a job that was found.
pub(crate) fn found(job: &JobFile) -> Error {
    Error::new(
        Code::NotFound,
        Entity::Job(job.name.to_string()),
        format!(
            "this store does not know it; it goes on from what lies in {}/{}: start {}",
            job.object_store.as_deref().unwrap_or_default(),
            job.name,
            job.incarnation + 1
        ),
        "nothing, if it runs nowhere else; whoever else runs it commits nothing there any more",
    )
}

/// Makes sure that the job may use its object store, before anything starts: that it keeps to
/// conditional puts, and is nobody else's. Removes what killed agents have left there.
///
/// # Errors
/// Those of the object store.
pub(crate) fn begin(job: &JobFile, job_hash: u64) -> Result<()> {
    let Some(objects) = objects(job)? else {
        return Ok(());
    };
    objects.probe()?;
    objects.claim(job.name.as_str(), job_hash)?;
    objects.sweep()
}

/// The variables of this process that hold credentials and endpoints of object stores.
pub(crate) fn credentials(job: &JobFile) -> Vec<(String, String)> {
    if job.object_store.is_none() {
        return Vec::new();
    }
    let ours = |name: &str| {
        outlive_objects::VARIABLES
            .iter()
            .any(|it| name.starts_with(it))
    };
    std::env::vars().filter(|(name, _)| ours(name)).collect()
}

/// Whether an object store can be used with what the environment says: for `outlive doctor`.
///
/// # Errors
/// Why not.
pub fn try_out(place: &ObjectStoreUrl) -> Result<()> {
    let name = JobName::new("outlive-doctor").map_err(|_| Error::internal("a name"))?;
    Objects::open(place, &name)?.probe()
}
