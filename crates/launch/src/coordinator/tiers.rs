//! What a job writes to that other jobs may write to as well: names of tiers that each job makes by
//! itself, and that are the same where what they name is ([`Tier`]).
//!
//! A directory is named by its file system, for that is what two directories have in common: a
//! network file system by its server or its own name, whatever it is mounted as and wherever; one
//! of this machine by the machine's start and its device. A bucket is named by its address, a
//! memory server by the number of its start, which it says to those who hold a job's key.
//!
//! Invariants: a name holds no secret, no user's name and no path of a job; in doubt two jobs have
//! the same name, for who waits for nothing loses little; nobody waits for a file system or server
//! that does not answer but a thread of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use outlive_base::level::StoreKind;
use outlive_base::{Error, JobName, Result};
use outlive_control::supervisor::Settings;
use outlive_control::turns::{Tier, Tiers};
use outlive_memory::{Client, Options, Transport};
use outlive_network::JobKey;
use outlive_vault::Directory;
use rustix::fs::{AtFlags, CWD, StatxFlags, statvfs, statx};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::input;
use crate::shared::ObjectStoreUrl;
use crate::store::Store;

/// A server that was started anew is another: it is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The file systems of this process's view.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Differs between any two starts of any two machines; containers on one have the same.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";
/// File systems whose bytes are this machine's.
const LOCAL: [&str; 19] = [
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "fuseblk",
    "hugetlbfs",
    "jfs",
    "ntfs3",
    "overlay",
    "ramfs",
    "reiserfs",
    "tmpfs",
    "vfat",
    "xfs",
];

fn named(kind: &str, what: &str) -> Tier {
    Tier::of(&format!("{kind}:{what}"))
}

fn hashed(kind: &str, parts: &[&str]) -> Tier {
    let text = parts.join("\0");
    named(kind, &format!("{:016x}", xxh3_64(text.as_bytes())))
}

/// A line of [`MOUNTS`].
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    id: u64,
    /// Of the file system, whichever part of it is mounted: `MAJOR:MINOR`.
    device: String,
    kind: String,
    source: String,
    /// Of the file system.
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (own, of_all) = line.split_once(" - ")?;
        let mut own = own.split(' ');
        let (id, device) = (own.next()?.parse().ok()?, own.nth(1)?);
        let mut of_all = of_all.split(' ');
        let (kind, source) = (of_all.next()?, of_all.next()?);
        Some(Mount {
            id,
            device: device.to_owned(),
            kind: kind.to_owned(),
            source: source.replace("\\040", " "),
            options: of_all.next().unwrap_or_default().to_owned(),
        })
    }

    /// The value of an option.
    fn option(&self, name: &str) -> Option<&str> {
        let mut options = self.options.split(',').filter_map(|it| it.split_once('='));
        options.find(|it| it.0 == name).map(|it| it.1)
    }

    /// What it is for all who mount it; `number`: what it says of itself (`f_fsid`).
    fn tier(&self, machine: &str, number: u64) -> Tier {
        let kind = self.kind.strip_prefix("fuse.").unwrap_or(&self.kind);
        let source = self.source.as_str();
        // Of `SERVER:/DIRECTORY`; servers may have colons of their own.
        let (servers, directory) = source.rsplit_once(":/").unwrap_or((source, ""));
        let first = |path: &str| {
            let mut parts = path.split('/').filter(|part| !part.is_empty());
            parts.next().unwrap_or_default().to_owned()
        };
        match kind {
            kind if LOCAL.contains(&kind) => hashed(kind, &[machine, &self.device]),
            // Data sets of a pool share its devices.
            "zfs" => hashed(kind, &[machine, &first(source)]),
            // Of all versions and all that it exports.
            "nfs" | "nfs3" | "nfs4" => {
                let server = self.option("addr").unwrap_or(servers);
                named("nfs", &server.to_ascii_lowercase())
            }
            "cifs" | "smb3" | "smbfs" => {
                let share = source.replace('\\', "/");
                let server = self
                    .option("addr")
                    .map_or_else(|| first(&share), str::to_owned);
                named("smb", &server.to_ascii_lowercase())
            }
            // Servers can be named in many ways, the file system in one.
            "lustre" | "glusterfs" => named(kind, &first(directory)),
            "gpfs" | "mmfs" => {
                let name = source.rsplit('/').next().unwrap_or_default();
                named("gpfs", name)
            }
            "ceph" => named(kind, &format!("{number:016x}")),
            // A name of a user may stand there. What it mounts is not known better.
            kind => hashed(kind, &[source.rsplit('@').next().unwrap_or_default()]),
        }
    }
}

/// The tier of a directory: that of its file system.
///
/// # Errors
/// Those of the file system.
pub fn of_directory(path: &Path) -> Result<Tier> {
    let wrong = |error: rustix::io::Errno| Error::io(path, "stat", &error.into());
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).map_err(wrong)?;
    let number = statvfs(path).map_err(wrong)?.f_fsid;
    let mounts = input::read(Path::new(MOUNTS), input::TEXT_BYTES_MAX)?;
    let mounts = String::from_utf8_lossy(&mounts);
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let machine = input::read(Path::new(MACHINE), input::TEXT_BYTES_MAX).unwrap_or_default();
    let machine = String::from_utf8_lossy(&machine);
    let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
    let has_id = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let by_id = mounts.iter().find(|it| has_id && it.id == found.stx_mnt_id);
    let mount = by_id.or_else(|| mounts.iter().find(|it| it.device == device));
    Ok(match mount {
        Some(mount) => mount.tier(machine.trim(), number),
        None => hashed("files", &[machine.trim(), &device]),
    })
}

/// The tier of what all nodes share in an object store.
pub fn of_bucket(url: &ObjectStoreUrl) -> Tier {
    Tier::of(&url.bucket())
}

/// A memory server, and by what it tells who it is.
#[derive(Clone, Debug)]
struct Server {
    address: String,
    job: JobName,
    key: PathBuf,
}

impl Server {
    /// # Errors
    /// Those of [`Client::connect`]; if the job's key cannot be read.
    fn tier(&self) -> Result<Tier> {
        let options = Options {
            transport: Transport::Tcp,
            ..Options::default()
        };
        let key = JobKey::load(&self.key)?;
        let client = Client::connect(&self.address, self.job.as_str(), &key, options)?;
        // The number itself is for those who hold a key.
        let number = client.about()?.instance.to_le_bytes();
        let hash = (xxh3_128(&number) >> 64) as u64;
        Ok(named("memory-server", &format!("{hash:016x}")))
    }
}

#[derive(Clone, Debug)]
enum Shared {
    Directory(PathBuf),
    Bucket(ObjectStoreUrl),
}

/// Where a job writes what others may write to as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    shared: Option<Shared>,
    server: Option<Server>,
}

impl Sources {
    /// Those of a run; none: it writes to nothing that others do.
    ///
    /// # Errors
    /// If what is known of its object store is no such.
    pub fn of(store: &Store, settings: &Settings) -> Result<Option<Sources>> {
        let uses = |kind| settings.levels.iter().any(|it| it.level.store() == kind);
        let mut sources = Sources::default();
        if uses(StoreKind::Shared) {
            sources.shared = Some(match &store.job().object_store {
                Some(url) => Shared::Bucket(url.parse()?),
                None => Shared::Directory(Directory::shared_in(store.dir())),
            });
        }
        if let (true, Some(address)) = (uses(StoreKind::Server), &store.job().memory_server) {
            sources.server = Some(Server {
                address: address.clone(),
                job: settings.job.clone(),
                key: store.key_file(),
            });
        }
        let any = sources.shared.is_some() || sources.server.is_some();
        Ok(any.then_some(sources))
    }

    /// What they are now. What cannot be looked at is what it was.
    fn look(&self, before: &Tiers) -> Tiers {
        let shared = self.shared.as_ref().map(|shared| match shared {
            Shared::Directory(path) => of_directory(path),
            Shared::Bucket(url) => Ok(of_bucket(url)),
        });
        let server = self.server.as_ref().map(Server::tier);
        let mut found = before.clone();
        for (kind, looked) in [(StoreKind::Shared, shared), (StoreKind::Server, server)] {
            match looked {
                Some(Ok(tier)) => drop(found.insert(kind, tier)),
                Some(Err(error)) => tracing::info!(%error, ?kind, "which tier is not known"),
                None => {}
            }
        }
        found
    }
}

/// Looks at them again and again, in a thread of its own, as long as this lives.
pub(crate) struct Looks {
    again: Sender<()>,
    found: Receiver<Tiers>,
}

impl Looks {
    /// # Errors
    /// If there is no thread.
    pub fn start(sources: Sources) -> Result<Looks> {
        let (again, asked) = bounded(1);
        let (to, found) = unbounded();
        let look = move || {
            let mut known = Tiers::new();
            loop {
                let now = sources.look(&known);
                if now != known {
                    known.clone_from(&now);
                    if to.send(now).is_err() {
                        return;
                    }
                }
                if asked.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tiers".to_owned());
        let started = thread.spawn(look);
        started.map_err(|error| Error::internal(format!("no thread: {error}")))?;
        Ok(Looks { again, found })
    }

    /// Asks for a look now.
    pub fn again(&self) {
        // One that is asked for already is enough.
        let _ = self.again.try_send(());
    }

    /// What was found last, if that is news.
    pub fn news(&self) -> Option<Tiers> {
        self.found.try_iter().last()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
