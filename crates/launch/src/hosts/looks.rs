//! What a host of a job finds at home for `outlive doctor --hosts`, beside what any machine does.

use std::fs;
use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::path::Path;
use std::time::{Duration, Instant};

use outlive_control::units::{show_bytes, show_ms};
use rustix::fs::OFlags;
use rustix::process::Resource;

use super::clock::ClockOffset;
use super::preflight::Question;
use crate::site::{self, Check, Grade, check, existing, scratch};

/// What is written and synced to see how long that takes, in bytes.
const WRITTEN: usize = 4 << 20;
/// The same where all hosts write at once.
const WRITTEN_SHARED: usize = 1 << 20;
/// A sync that takes longer holds up each checkpoint.
const SYNC_SLOW: Duration = Duration::from_secs(1);
/// Locked memory that network libraries with direct access want, in bytes.
const LOCKED: u64 = 64 << 20;

/// Clocks that differ by more than this are told, in milliseconds.
const CLOCKS_APART_MS: f64 = 1_000.0;

/// A place where versions are kept: what it is called, and what helps if it takes nothing or is
/// slow.
type Place = (&'static str, &'static str, &'static str);

const NODE_STORAGE: Place = (
    "node storage",
    "choose another --node-storage, or make room and let this user write there",
    "free space there, or choose a faster --node-storage",
);
const SHARED_STORAGE: Place = (
    "shared writes",
    "choose another --store, or make room and let this user write there",
    "free space there; what the level shared costs then: outlive bench tiers; --shared-rate keeps \
     jobs from each other's way",
);

/// What a host finds at home.
pub fn look(question: &Question) -> Vec<Check> {
    let mut checks = vec![
        site::kernel(),
        site::memfd(),
        site::capture(),
        site::memory(),
        site::shared_memory(),
        site::descriptors(),
        locked(),
        name(),
        site::sockets(),
        storage(NODE_STORAGE, &question.node_storage, WRITTEN),
    ];
    let shared = same_store(question);
    if shared.grade == Grade::Ok {
        checks.extend([
            site::direct(&question.store),
            site::locks(&question.store),
            storage(SHARED_STORAGE, &question.store, WRITTEN_SHARED),
        ]);
    }
    checks.push(shared);
    checks
}

fn locked() -> Check {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let shown = limit.map_or_else(|| "unlimited".to_owned(), show_bytes);
    let grade = match limit {
        Some(limit) if limit < LOCKED => Grade::Warn,
        _ => Grade::Ok,
    };
    let remedy = "network libraries with direct access (UCX, libfabric) want it unlimited: ulimit \
                  -l, and the limits of sshd or slurmd";
    check("locked memory", grade, format!("limit {shown}"), remedy)
}

/// Debian lets a host's own name lead to 127.0.1.1.
fn name() -> Check {
    let own = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let remedy = "MPI libraries that go by the name reach nobody: correct /etc/hosts, or name the \
                  interface to the MPI library";
    match (own.as_str(), 0).to_socket_addrs() {
        Ok(found) => {
            let found: Vec<_> = found.map(|address| address.ip()).collect();
            let grade = match found.iter().all(|address| address.is_loopback()) {
                true => Grade::Warn,
                false => Grade::Ok,
            };
            let first = found.first().map_or_else(String::new, ToString::to_string);
            check("name", grade, format!("{own} is {first}"), remedy)
        }
        Err(error) => check("name", Grade::Warn, format!("{own}: {error}"), remedy),
    }
}

fn same_store(question: &Question) -> Check {
    let (path, text) = &question.token;
    let found = match fs::read_to_string(path) {
        Ok(found) if found == *text => {
            return check("shared store", Grade::Ok, "the same as here", "");
        }
        Ok(_) => "another one than here".to_owned(),
        Err(error) => format!("{} is not seen: {error}", path.display()),
    };
    match question.key_in_store {
        true => check(
            "shared store",
            Grade::Fail,
            found,
            "mount the directory of --store on all hosts",
        ),
        false => check(
            "shared store",
            Grade::Warn,
            found,
            "the level shared needs the directory of --store on all hosts; without that level it \
             may be this machine's own",
        ),
    }
}

/// A directory: room, and how long it takes until bytes are durable.
fn storage((name, if_refused, if_slow): Place, dir: &Path, bytes: usize) -> Check {
    let at = existing(dir);
    let begun = Instant::now();
    let written = scratch(&at, OFlags::empty())
        .map_err(io::Error::from)
        .and_then(|file| {
            let mut file = fs::File::from(file);
            file.write_all(&vec![0x5a; bytes])?;
            file.sync_all()
        });
    let took = begun.elapsed();
    if let Err(error) = written {
        let found = format!("{} takes nothing: {error}", at.display());
        return check(name, Grade::Fail, found, if_refused);
    }
    let free = rustix::fs::statvfs(&at).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let found = format!(
        "{}: {} free, {} written and synced in {}",
        at.display(),
        show_bytes(free),
        show_bytes(bytes as u64),
        show_ms(took.as_secs_f64() * 1e3)
    );
    let grade = match free < 1 << 30 || took > SYNC_SLOW {
        true => Grade::Warn,
        false => Grade::Ok,
    };
    check(name, grade, found, if_slow)
}

/// A host's clock beside this one's.
pub fn clock(offset: ClockOffset) -> Check {
    let ClockOffset { ms, error_ms } = offset;
    let apart = ms.abs() - error_ms > CLOCKS_APART_MS;
    let side = if ms < 0.0 { "behind" } else { "ahead" };
    let found = format!("{} {side}, within {}", show_ms(ms.abs()), show_ms(error_ms));
    let grade = if apart { Grade::Warn } else { Grade::Ok };
    let remedy = "Outlive goes by no common time, but people compare files and logs: let hosts \
                  take the time from one server";
    check("clock", grade, found, remedy)
}
