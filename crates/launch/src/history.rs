//! A job's directory without `job.json`: what else there is tells whether the job has a
//! history, and the records build the file again.
//!
//! Invariant: what is missing is never taken for what never was. A job that has left
//! anything but empty directories begins anew only on its owner's word.

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, JobName, NodeId, Result};
use outlive_vault::{Catalogue, Inventory, Mark, OfJob, Part, Trace};

use crate::job_file::{
    JobFile, Known, job_hash, nodes_dir, nodes_outside, own_nodes, read_job_of, remembered,
};
use crate::layout;
use crate::owner;
use crate::shared;

/// What stands in for a job file that is gone: `new` with what the records say. With what
/// the user should know.
///
/// # Errors
/// [`Code::NoValidCheckpoint`] if the job was run, no record can be read, and the owner
/// has not said `fresh`.
pub(crate) fn without_job_file(
    new: JobFile,
    dir: &Path,
    fresh: bool,
) -> Result<(JobFile, Option<Error>)> {
    let key = dir.join(layout::KEY);
    let hash = job_hash(new.name.as_str(), &key).unwrap_or(0);
    if let Some(nodes) = nodes_outside(&new, dir) {
        // Nothing is made before it is known whose that is.
        if owner::of(&nodes).is_some_and(|owner| owner != hash) {
            return Err(owner::of_another(&nodes));
        }
    }
    let places = places(&new, dir, hash)?;
    let entity = Entity::File(dir.join(layout::JOB).display().to_string());
    if let Some(job) = from_records(&new, &places) {
        let reason = format!(
            "it was gone; what it said was read from the records of {}: start {}",
            outlive_base::count(job.nodes, "node"),
            job.incarnation
        );
        let remedy = "nothing: but see who removes files there";
        return Ok((
            job,
            Some(Error::new(Code::NotFound, entity, reason, remedy)),
        ));
    }
    let mut there: Vec<String> = [layout::KEY, layout::REPORT]
        .iter()
        .filter(|name| dir.join(name).exists())
        .map(|name| dir.join(name).display().to_string())
        .collect();
    there.extend(Trace::all(&places).iter().map(ToString::to_string));
    if there.is_empty() || fresh {
        return Ok((new, None));
    }
    Err(Error::new(
        Code::NoValidCheckpoint,
        Entity::Job(new.name.to_string()),
        format!(
            "the job was run before, and neither {} nor a record of it can be read; what is \
             left: {}",
            dir.join(layout::JOB).display(),
            there.join("; ")
        ),
        "bring back what was removed (and give the job's --node-storage, if it has one), or \
         begin anew with --fresh",
    ))
}

/// What is known of a job, for those who only look: its file, else what the next run would
/// build of the records.
///
/// # Errors
/// Those of [`read_job_of`]; [`Code::NoValidCheckpoint`] where the next run would be refused.
pub fn job_of(dir: &Path, name: &JobName) -> Result<JobFile> {
    let is_there = |file: &str| dir.join(file).exists();
    match read_job_of(dir) {
        Err(error)
            if error.code() == Code::NotFound
                && is_there(layout::KEY)
                && !is_there(layout::JOB) => {}
        read => return read,
    }
    // The records say how many nodes there are.
    let mut new = JobFile::new(name.clone(), 1, own_nodes(dir));
    new.object_store = remembered(dir)?;
    // The key is as old as the job.
    let made = std::fs::metadata(dir.join(layout::KEY)).and_then(|it| it.modified());
    if let Some(made) = made.ok().and_then(|at| jiff::Timestamp::try_from(at).ok()) {
        new.created = made.to_string();
    }
    without_job_file(new, dir, false).map(|(job, _)| job)
}

/// The shared directory and the nodes' that are there, however many.
fn places(job: &JobFile, dir: &Path, hash: u64) -> Result<Vec<Inventory>> {
    let entries = std::fs::read_dir(nodes_dir(job, dir));
    let entries = entries.into_iter().flatten().flatten();
    let node = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("node-")?.parse().ok()?;
        Some((NodeId(number), entry.path()))
    };
    let mut nodes: Vec<(NodeId, PathBuf)> = entries.filter_map(node).collect();
    nodes.sort();
    let nodes = nodes
        .iter()
        .map(|(node, root)| Inventory::of_node(*node, root, hash));
    let shared = shared::place(job, dir)?.vault(hash);
    let shared = Inventory::of(Part::SHARED, &shared);
    // A directory that is not read is found out when it is used; of an object store nobody knows
    // whether it holds the job.
    match shared.errors.first().filter(|_| job.object_store.is_some()) {
        Some(error) => Err(error.clone()),
        None => Ok(std::iter::once(shared).chain(nodes).collect()),
    }
}

/// The job file that the records tell; `None` if none of them says that the job was run.
fn from_records(new: &JobFile, places: &[Inventory]) -> Option<JobFile> {
    let records = places.iter().flat_map(|place| &place.records);
    let marks = places.iter().filter_map(|place| match place.mark {
        Mark::Sound(incarnation, version) => Some((incarnation, version)),
        _ => None,
    });
    let told = OfJob::of(records, marks)?;
    let mut job = new.clone();
    job.nodes = told.nodes.unwrap_or(job.nodes);
    job.ranks = told.ranks.or(job.ranks);
    job.incarnation = job.incarnation.max(told.incarnation);
    job.history = told.newest.map(|(incarnation, version)| Known {
        incarnation,
        version,
    });
    Some(job)
}

/// Why the next `outlive run` of the job would end with OL-500, as far as records and the
/// names of files tell: `status`, `list` and `rehearse` say what `run` does.
pub fn would_refuse(job: &JobFile, catalogue: &Catalogue) -> Option<Error> {
    let offered = |entry: &&outlive_vault::Entry| entry.committed().is_some() && !entry.void;
    let mut left = catalogue.entries.iter().filter(offered).peekable();
    let entity = Entity::Job(job.name.to_string());
    if left.peek().is_some() {
        let can = |entry: &outlive_vault::Entry| {
            let has = |part: &outlive_vault::PartState| {
                part.part.ranks.is_empty() || part.copies.iter().any(|copy| copy.path.is_some())
            };
            !entry.unproven && entry.parts.iter().all(has)
        };
        return (!left.any(can)).then(|| {
            Error::new(
                Code::NoValidCheckpoint,
                entity,
                "versions were committed, and of none are copies of all parts left",
                "outlive checkpoints verify lists what is missing; --fresh begins anew",
            )
        });
    }
    let anew = catalogue.begun_anew();
    let known = job.history.filter(|known| known.incarnation >= anew);
    let mut there: Vec<String> = known
        .iter()
        .map(|known| format!("{} of {} was stable", known.version, known.incarnation))
        .collect();
    there.extend(catalogue.traces().iter().map(ToString::to_string));
    (!there.is_empty()).then(|| {
        Error::new(
            Code::NoValidCheckpoint,
            entity,
            format!(
                "versions of this job were committed, and no record of one can be read: {}",
                there.join("; ")
            ),
            "bring back what was removed or damaged, or begin anew with outlive run --fresh",
        )
    })
}
