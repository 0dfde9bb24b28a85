//! `outlive doctor --hosts`: what each host of a job offers, whether all are one cluster, and
//! whether they reach each other.

use std::fs;
use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outlive_base::{Error, Result, count};
use outlive_control::units::{duration_ms, show_bytes, show_ms};
use outlive_launch::hosts::preflight::{self, Answer, ClockOffset, PEERS, Question, Request};
use outlive_launch::sys;
use rustix::fs::OFlags;
use rustix::process::Resource;
use serde::Serialize;

use super::DoctorOptions;
use super::{Check, Grade, check, existing, scratch, status, word, worst};
use crate::config::Config;
use crate::{machines, output};

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

/// Names of hosts that stand beside a finding; the others are counted.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Findings {
    schema: &'static str,
    grade: Grade,
    hosts: Vec<OfHost>,
    /// What was found on this machine for all of them.
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct OfHost {
    host: String,
    grade: Grade,
    checks: Vec<Check>,
}

/// A file that shows each host whether it sees this store; removed at the end, also by a signal.
/// What SIGKILL leaves goes the next time.
struct Token(PathBuf, String);

const TOKEN: &str = ".outlive-doctor-";

impl Token {
    fn leave(store: &Path) -> Result<Token> {
        let dir = existing(store);
        Token::sweep(&dir);
        let path = dir.join(format!("{TOKEN}{}", std::process::id()));
        sys::remove_when_ended(&path).map_err(|error| Error::io(&path, "name", &error))?;
        let mut bytes = [0_u8; 16];
        let random = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        random.map_err(|error| Error::internal(format!("random bytes: {error}")))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = fs::File::create_new(&path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let token = Token(path, text);
        match written {
            Ok(()) => Ok(token),
            Err(error) => Err(Error::io(&token.0, "write", &error)),
        }
    }
}

impl Token {
    /// Removes those of processes of this machine that live no more.
    fn sweep(dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(TOKEN));
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Asks all hosts: 0 if nothing fails, else 69.
pub fn run(options: &DoctorOptions, config: &Config) -> Result<u8> {
    let within = Duration::from_millis(duration_ms("within", &options.within)?);
    let source = machines::source(config, config.get("hosts"))?;
    let store = std::path::absolute(config.get("store"))
        .map_err(|error| Error::io(config.get("store"), "find", &error))?;
    let node_storage = match config.get("node-storage") {
        "" => machines::storage(),
        given => given.to_owned(),
    };
    let token = Token::leave(&store)?;
    let request = Request {
        source: &*source,
        executable: machines::executable(config),
        network: machines::network(config)?,
        ports: machines::ports(config)?,
        store,
        node_storage: node_storage.into(),
        token: (token.0.clone(), token.1.clone()),
        within,
    };
    let answers = preflight::examine::<Vec<Check>>(&request)?;
    let names = source.hosts().iter().map(|host| host.name.clone());
    let hosts: Vec<OfHost> = names.zip(answers).map(OfHost::new).collect();
    // Agents have their credentials from this machine.
    let checks: Vec<Check> = super::object_store(config).into_iter().collect();
    let grade = hosts.iter().map(|host| host.grade).max();
    let grade = grade.unwrap_or(Grade::Ok).max(worst(&checks));
    if options.json {
        output::json(&Findings {
            schema: "outlive.doctor-hosts/1",
            grade,
            hosts,
            checks,
        })?;
    } else {
        output::text(&text(&hosts, &checks))?;
    }
    Ok(status(grade))
}

/// What asks for a remedy, each with the hosts where it was found; then how many hosts there are.
fn text(hosts: &[OfHost], here: &[Check]) -> String {
    let bad_here = here.iter().filter(|check| check.grade != Grade::Ok);
    let mut found: Vec<(&Check, Vec<&str>)> = bad_here
        .map(|check| (check, vec!["this machine"]))
        .collect();
    for host in hosts {
        for bad in host.checks.iter().filter(|check| check.grade != Grade::Ok) {
            let same = |known: &&mut (&Check, Vec<&str>)| *known.0 == *bad;
            match found.iter_mut().find(same) {
                Some((_, names)) => names.push(&host.host),
                None => found.push((bad, vec![&host.host])),
            }
        }
    }
    // The worst first.
    found.sort_by_key(|(check, _)| std::cmp::Reverse(check.grade));
    let mut lines = Vec::new();
    for (check, names) in found {
        let Check { name, found, .. } = check;
        lines.push(format!(
            "{}  {name:<14} {}: {found}",
            word(check.grade),
            some(&names)
        ));
        lines.push(format!("      {:<14} remedy: {}", "", check.remedy));
    }
    let of = |grade| hosts.iter().filter(|host| host.grade == grade).count();
    lines.push(format!(
        "{}: {} well, {} with warnings, {} that cannot be used so",
        count(hosts.len() as u64, "host"),
        of(Grade::Ok),
        of(Grade::Warn),
        of(Grade::Fail)
    ));
    lines.join("\n")
}

fn some(names: &[&str]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    match more {
        0 => shown,
        _ => format!("{shown} and {more} more"),
    }
}

impl OfHost {
    fn new((host, answer): (String, std::result::Result<Answer<Vec<Check>>, String>)) -> OfHost {
        let checks = match answer {
            Err(why) => vec![check(
                "answer",
                Grade::Fail,
                why,
                "see that the command that connects works without a question (ssh HOST true, srun \
                 -w HOST true) and finds outlive there (to a job's hosts outlive run brings it over \
                 ssh; this command changes nothing there); --within gives more time",
            )],
            Ok(answer) => all(answer),
        };
        OfHost {
            host,
            grade: worst(&checks),
            checks,
        }
    }
}

fn all(answer: Answer<Vec<Check>>) -> Vec<Check> {
    let mut checks = vec![build(&answer), way(&answer), others(&answer)];
    checks.extend(answer.clock.map(clock));
    checks.extend(answer.what);
    checks
}

fn build(answer: &Answer<Vec<Check>>) -> Check {
    let version = &answer.version;
    match answer.same_build {
        true => check(
            "program",
            Grade::Ok,
            format!("version {version}, this build"),
            "",
        ),
        false => check(
            "program",
            Grade::Fail,
            format!("version {version}, another build than here"),
            "install the same build on all hosts, or give --remote-executable",
        ),
    }
}

fn way(answer: &Answer<Vec<Check>>) -> Check {
    match &answer.way {
        Ok((here, own)) => check(
            "way here",
            Grade::Ok,
            format!("from {own} to {}", here.ip()),
            "",
        ),
        Err(why) => check(
            "way here",
            Grade::Warn,
            why,
            "outlive speaks to this host over the connection that starts it there; mpirun, which does \
             not, wants hosts to connect to this machine, at any port or at those of --ports, or \
             another way by --network",
        ),
    }
}

fn others(answer: &Answer<Vec<Check>>) -> Check {
    let remedy = "let hosts connect to each other by TCP, at any port or at those of --ports, or \
                  choose the network that does by --network";
    match (&answer.unreached, answer.tried) {
        (None, 0) => check("other hosts", Grade::Ok, "not tried", ""),
        (None, _) => check("other hosts", Grade::Fail, "no answer in time", remedy),
        (Some(none), tried) if none.is_empty() => {
            let found = format!(
                "reaches {} (of those that follow, at most {PEERS})",
                count(tried as u64, "other")
            );
            check("other hosts", Grade::Ok, found, "")
        }
        (Some(unreached), _) => {
            let words = unreached
                .iter()
                .map(|(name, why)| format!("{name} ({why})"));
            let found = format!("does not reach {}", words.collect::<Vec<_>>().join(", "));
            check("other hosts", Grade::Fail, found, remedy)
        }
    }
}

fn clock(offset: ClockOffset) -> Check {
    let ClockOffset { ms, error_ms } = offset;
    let apart = ms.abs() - error_ms > CLOCKS_APART_MS;
    let side = if ms < 0.0 { "behind" } else { "ahead" };
    let found = format!("{} {side}, within {}", show_ms(ms.abs()), show_ms(error_ms));
    let grade = if apart { Grade::Warn } else { Grade::Ok };
    let remedy = "Outlive goes by no common time, but people compare files and logs: let hosts \
                  take the time from one server";
    check("clock", grade, found, remedy)
}

/// What a host finds at home.
pub fn look(question: &Question) -> Vec<Check> {
    let mut checks = vec![
        super::kernel(),
        super::memfd(),
        super::capture(),
        super::memory(),
        super::shared_memory(),
        super::descriptors(),
        locked(),
        name(),
        super::sockets(),
        storage(NODE_STORAGE, &question.node_storage, WRITTEN),
    ];
    let shared = same_store(question);
    if shared.grade == Grade::Ok {
        checks.extend([
            super::direct(&question.store),
            super::locks(&question.store),
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
