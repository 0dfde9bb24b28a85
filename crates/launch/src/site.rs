//! What a machine offers to a job: memory, room, locks, what the kernel allows. Each check is small
//! and changes nothing that lasts.
//!
//! `outlive doctor` makes all of them and prints what it finds; `outlive run` makes those that cost
//! nothing ([`short`]) on each machine, beside its start, and tells what falls short.

use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, NodeId};
use outlive_control::units::show_bytes;
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};

use crate::sys::available_memory;
use crate::{process, store};

/// How well a machine does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Well.
    Ok,
    /// Worth a look.
    Warn,
    /// A job fails there.
    Fail,
}

/// What was looked at, and what was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// In a word or two.
    pub name: String,
    /// How well it does.
    pub grade: Grade,
    /// What was seen.
    pub found: String,
    /// What helps; empty if nothing has to.
    pub remedy: String,
}

/// The worst of them.
pub fn worst(checks: &[Check]) -> Grade {
    let grades = checks.iter().map(|check| check.grade);
    grades.max().unwrap_or(Grade::Ok)
}

/// One that was made; a remedy is kept where it is needed.
pub fn check(name: &str, grade: Grade, found: impl Into<String>, remedy: &str) -> Check {
    Check {
        name: name.to_owned(),
        grade,
        found: found.into(),
        remedy: if grade == Grade::Ok {
            String::new()
        } else {
            remedy.to_owned()
        },
    }
}

/// The kernel, and descriptors of processes.
pub fn kernel() -> Check {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let me = std::process::id();
    let (grade, what) = match process::open_pid(me) {
        Some(_) => (Grade::Ok, "process descriptors work"),
        None => (Grade::Fail, "no process descriptors (pidfd)"),
    };
    let remedy = "use Linux 5.4 or later, or allow pidfd_open in the container";
    check("kernel", grade, format!("Linux {release}; {what}"), remedy)
}

/// Memory files, in which versions are staged.
pub fn memfd() -> Check {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("outlive-doctor", flags) {
        Ok(_) => check("staging", Grade::Ok, "sealed memory files work", ""),
        Err(error) => check(
            "staging",
            Grade::Fail,
            format!("no memory files: {error}"),
            "use Linux 3.17 or later, or allow memfd_create in the container",
        ),
    }
}

/// Whether memory can be captured while the program goes on.
pub fn capture() -> Check {
    let root = rustix::process::geteuid().is_root();
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
        .is_ok_and(|text| text.trim() == "1");
    let device = rustix::fs::access(
        "/dev/userfaultfd",
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
    );
    if root || allowed || device.is_ok() {
        return check(
            "capture",
            Grade::Ok,
            "write-protected capture is possible",
            "",
        );
    }
    check(
        "capture",
        Grade::Warn,
        "eager copy only: the kernel's own writes into protected pages would fail",
        "for shorter pauses: sysctl vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd",
    )
}

/// Memory for staging.
pub fn memory() -> Check {
    let Some(available) = available_memory() else {
        let remedy = "mount /proc, or give --memory";
        return check("memory", Grade::Warn, "unknown", remedy);
    };
    let found = format!(
        "{} available: staging may take {}, so a job's state up to {} has its two slots",
        show_bytes(available),
        show_bytes(available / 2),
        show_bytes(available / 4)
    );
    let grade = if available < 256 << 20 {
        Grade::Warn
    } else {
        Grade::Ok
    };
    check(
        "memory",
        grade,
        found,
        "free memory, or give --memory with what two slots need",
    )
}

/// Room in /dev/shm.
pub fn shared_memory() -> Check {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let grade = if free < 64 << 20 {
                Grade::Warn
            } else {
                Grade::Ok
            };
            let remedy = "MPI libraries need it; remove old files there or mount it larger";
            check(
                "/dev/shm",
                grade,
                format!("{} free", show_bytes(free)),
                remedy,
            )
        }
        Err(error) => {
            let remedy = "MPI libraries need it: mount a tmpfs there";
            check("/dev/shm", Grade::Warn, error.to_string(), remedy)
        }
    }
}

/// The nearest directory that exists, for checks before the store is made.
pub fn existing(path: &Path) -> PathBuf {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = full.ancestors().find(|path| path.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

/// Room for versions.
pub fn space(store: &Path) -> Check {
    let dir = existing(store);
    match rustix::fs::statvfs(&dir) {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let grade = if free < 1 << 30 {
                Grade::Warn
            } else {
                Grade::Ok
            };
            let found = format!("{} free in {}", show_bytes(free), dir.display());
            check(
                "space",
                grade,
                found,
                "free space or choose another --store",
            )
        }
        Err(error) => {
            let remedy = "choose another --store";
            check(
                "space",
                Grade::Fail,
                format!("{}: {error}", dir.display()),
                remedy,
            )
        }
    }
}

/// A file in the store's directory that has no name and so leaves nothing behind,
/// or a named one that is removed at once.
pub fn scratch(dir: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = flags | OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, unnamed, mode).or_else(|_| {
        let name = dir.join(format!(".outlive-doctor-{}", std::process::id()));
        let named = flags | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&name, named, mode);
        let _ = std::fs::remove_file(&name);
        file
    })
}

/// Whether the store can be written, and past the page cache.
pub fn direct(store: &Path) -> Check {
    let dir = existing(store);
    if let Err(error) = scratch(&dir, OFlags::empty()) {
        let found = format!("{} cannot be written: {error}", dir.display());
        let remedy = "make it writable for this user, or choose another --store";
        return check("store", Grade::Fail, found, remedy);
    }
    match scratch(&dir, OFlags::DIRECT) {
        Ok(_) => check(
            "store",
            Grade::Ok,
            "writable, past the page cache (O_DIRECT)",
            "",
        ),
        Err(_) => check(
            "store",
            Grade::Warn,
            "writable, but not past the page cache (O_DIRECT)",
            "checkpoints work; a local ext4 or xfs writes them faster",
        ),
    }
}

/// Whether files of the store can be locked.
pub fn locks(store: &Path) -> Check {
    let locked = scratch(&existing(store), OFlags::empty())
        .and_then(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive));
    match locked {
        Ok(()) => check("locks", Grade::Ok, "file locks work", ""),
        Err(error) => check(
            "locks",
            Grade::Fail,
            format!("no file locks in the store: {error}"),
            "choose a --store whose file system has flock",
        ),
    }
}

/// Where ranks find their agent.
pub fn sockets() -> Check {
    match store::run_dir(0) {
        Ok(dir) => {
            // Only made for this check.
            let _ = std::fs::remove_dir(&dir);
            let socket = dir.join(format!("agent-{}.sock", NodeId(0).0));
            let base = socket
                .ancestors()
                .nth(2)
                .unwrap_or(&dir)
                .display()
                .to_string();
            check("sockets", Grade::Ok, format!("in {base}"), "")
        }
        Err(error) => check("sockets", Grade::Fail, error.to_string(), error.remedy()),
    }
}

/// How many files may be open.
pub fn descriptors() -> Check {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let enough = limit.is_none_or(|limit| limit >= 1_024);
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let grade = if enough { Grade::Ok } else { Grade::Warn };
    check(
        "descriptors",
        grade,
        format!("limit {shown}"),
        "ulimit -n 4096",
    )
}

/// Less room than this takes no job's versions, in bytes.
const ROOM_MIN: u64 = 64 << 20;

/// Where a job's data will be on a machine.
#[derive(Debug)]
pub struct Places<'a> {
    /// The job's directory, if it is to be seen there.
    pub job_dir: Option<&'a Path>,
    /// Above the directories of its nodes there.
    pub node_storage: &'a Path,
    /// What all staging there may take, in bytes; 0: half of what is available.
    pub memory_bytes: u64,
}

/// What falls short on this machine, of all that is known without writing and without waiting
/// for another.
pub fn short(places: &Places<'_>) -> Vec<Check> {
    let mut checks = vec![memory(), shared_memory(), descriptors()];
    checks.extend(staging(places.memory_bytes, available_memory()));
    let dirs: Vec<PathBuf> = (places.job_dir.into_iter())
        .chain([places.node_storage])
        .map(existing)
        .collect();
    for (nth, dir) in dirs.iter().enumerate() {
        if !dirs[..nth].contains(dir) {
            checks.extend(room(dir));
        }
    }
    checks.retain(|check| check.grade != Grade::Ok);
    checks
}

fn staging(wanted: u64, available: Option<u64>) -> Option<Check> {
    let available = available.filter(|available| wanted > *available)?;
    let found = format!(
        "staging may take {}, {} are available",
        show_bytes(wanted),
        show_bytes(available)
    );
    let remedy = "free memory, or give less to --memory: what it cannot hold ends programs there";
    Some(check("memory", Grade::Warn, found, remedy))
}

fn room(dir: &Path) -> Option<Check> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    let free = stat.f_bavail * stat.f_frsize;
    let found = format!("{}: {} free", dir.display(), show_bytes(free));
    let remedy = "free space there, or choose another --store or --node-storage";
    (free < ROOM_MIN).then(|| check("space", Grade::Warn, found, remedy))
}

/// The job's directory is not seen on a host, or another one in its place.
pub(crate) fn store_unseen() -> Check {
    check(
        "shared store",
        Grade::Warn,
        "the job's directory is not seen, so that the level shared takes nothing there",
        "mount the directory of --store on all hosts, or choose levels without shared",
    )
}

/// What is told of a check by a run.
pub(crate) fn told(machine: &str, check: &Check) -> Error {
    Error::new(
        Code::MachineShort,
        Entity::Address(machine.to_owned()),
        format!("{}: {}", check.name, check.found),
        check.remedy.clone(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_staging_than_there_is_falls_short() {
        let found = staging(4 << 30, Some(1 << 30)).unwrap();
        assert_eq!(found.grade, Grade::Warn);
        assert_eq!(
            found.found,
            "staging may take 4.0 GiB, 1.0 GiB are available"
        );
        for enough in [0, 1 << 30] {
            assert_eq!(staging(enough, Some(1 << 30)), None);
        }
        assert_eq!(staging(4 << 30, None), None, "unknown");
    }

    #[test]
    fn what_is_told_names_the_machine_and_helps() {
        let error = told("n7", &store_unseen());
        assert_eq!(error.code(), Code::MachineShort);
        assert!(error.to_string().contains("n7: shared store: "), "{error}");
        assert!(error.remedy().contains("levels without shared"));
    }

    /// A directory that is not there yet is made in one that is.
    #[test]
    fn only_what_falls_short_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let places = |memory_bytes| Places {
            job_dir: Some(dir.path()),
            node_storage: Path::new("/proc/none/such"),
            memory_bytes,
        };
        // /proc has no room at all.
        let of = |places: &Places<'_>| -> Vec<String> {
            let named = short(places).into_iter();
            named
                .filter(|check| check.name == "space" && check.found.starts_with("/proc"))
                .map(|check| check.found)
                .collect()
        };
        assert_eq!(of(&places(0)), ["/proc: 0 B free"]);
        let memory = |check: &Check| check.found.starts_with("staging may");
        assert!(short(&places(u64::MAX / 2)).iter().any(memory));
        assert!(!short(&places(1)).iter().any(memory));
    }
}
