//! The versions of a job as its store and this machine's nodes have them.

use std::path::PathBuf;
use std::sync::Arc;

use outlive_base::{Code, Entity, Error, NodeId, Result, Version};
use outlive_memory::{Options, Parities};
use outlive_network::JobKey;
use outlive_vault::{Catalogue, Directory, Entry, Inventory, Part, Vault};

use crate::job_file::node_dir;
use crate::jobs::{Job, hash};
use crate::layout;
use crate::shared::{self, At, OwnedStore};

/// Reads the versions of a job.
///
/// # Errors
/// If `job.json` or the key cannot be read; [`Code::NotFound`] if its nodes are other
/// machines: what lies there is not seen from here.
pub fn all(job: &Job) -> Result<Catalogue> {
    refuse_hosts(job)?;
    on_this_machine(job)
}

/// The same of what this machine keeps, whatever others do.
///
/// # Errors
/// If `job.json` or the key cannot be read.
pub fn on_this_machine(job: &Job) -> Result<Catalogue> {
    let hash = hash(job)?;
    let nodes = nodes(job)?;
    let nodes = nodes
        .iter()
        .map(|(node, dir)| Inventory::of_node(*node, dir, hash));
    let shared = Inventory::of(Part::SHARED, &shared(job)?.vault(hash));
    let all = std::iter::once(shared).chain(nodes);
    Ok(Catalogue::new(all.chain(served(job, hash)?).collect()))
}

/// What the job's memory server has, if the job was given one.
fn served(job: &Job, hash: u64) -> Result<Option<Inventory>> {
    let file = job.file.as_ref().map_err(Clone::clone)?;
    let Some(address) = &file.memory_server else {
        return Ok(None);
    };
    let key = JobKey::load(job.dir.join(layout::KEY))?;
    let parities = Parities::new(address, file.name.as_str(), key, Options::default());
    let vault = Vault::of_server(Arc::new(parities), hash);
    Ok(Some(Inventory::of(NodeId::SERVER, &vault)))
}

/// Refuses a job whose nodes are other machines.
pub(crate) fn refuse_hosts(job: &Job) -> Result<()> {
    let file = job.file.as_ref().map_err(Clone::clone)?;
    if file.hosts.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Code::NotFound,
        Entity::Job(job.name.to_string()),
        format!(
            "its nodes are other machines ({}): what they keep is not seen from here",
            some(&file.hosts)
        ),
        "outlive status --job tells what its last run said; the next run looks there itself",
    ))
}

fn shared(job: &Job) -> Result<OwnedStore> {
    shared::place(job.file.as_ref().map_err(Clone::clone)?, &job.dir)
}

fn nodes(job: &Job) -> Result<Vec<(NodeId, PathBuf)>> {
    let file = job.file.as_ref().map_err(Clone::clone)?;
    let node = |n| (NodeId(n), node_dir(file, &job.dir, NodeId(n)));
    Ok((0..file.nodes).map(node).collect())
}

/// Where something is kept: the shared directory, which comes first, and the nodes that have
/// recorded anything.
pub(crate) fn places(job: &Job) -> Result<Vec<OwnedStore>> {
    let shared = shared(job)?;
    let used = nodes(job)?;
    // Of one that cannot be listed what follows says why.
    let used = used.into_iter();
    let used = used.filter(|(_, dir)| Directory::may_have_records(dir));
    let used = used.map(|(node, dir)| OwnedStore {
        node,
        at: At::Directory(dir),
    });
    Ok(std::iter::once(shared).chain(used).collect())
}

/// The version of this number that is not void, else the newest.
///
/// # Errors
/// [`Code::NotFound`].
pub fn find(catalogue: &Catalogue, version: Version) -> Result<&Entry> {
    let mut named = catalogue.entries.iter().filter(|it| it.version == version);
    let live = named.clone().find(|entry| !entry.void);
    let found = live.or_else(|| named.next());
    found.ok_or_else(|| no_record(version))
}

/// There is no such version.
pub fn no_record(version: Version) -> Error {
    Error::new(
        Code::NotFound,
        Entity::Version(version.0),
        "there is no record of it",
        "outlive checkpoints list shows what there is",
    )
}

/// The first names of a list.
pub fn some(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    match more {
        0 => shown,
        _ => format!("{shown} and {more} more"),
    }
}
