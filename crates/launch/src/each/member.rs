//! One process of a command that is started on each node: starts it on this one, hands its output
//! and status on, and ends it with all that it started when it is told to, when nobody tells it
//! anything any more, and when the process that stands for the launcher here ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use outlive_base::{Code, Entity, Error, Result};
use rustix::process::Signal;

use super::words::{GRACE, MEMBER_GONE, Start, ToMember};
use crate::process::{self, Group};
use crate::watch::{Seen, Watcher};
use crate::{input, layout, threads};

/// Longest line that may come: variables of an environment, most of all.
const LINE_BYTES_MAX: u64 = 1 << 24;
/// Between two looks at what is being killed.
const LOOK: Duration = Duration::from_millis(5);
/// How long processes may take to end after SIGKILL before this one ends without them.
const KILLED: Duration = Duration::from_secs(10);

enum Woken {
    Seen(Seen),
    Told(ToMember),
    /// Nobody tells anything any more, or the host's process has ended.
    End(&'static str),
}

impl From<Seen> for Woken {
    fn from(seen: Seen) -> Woken {
        Woken::Seen(seen)
    }
}

/// Serves one start, over standard input; its status.
///
/// # Errors
/// If nothing is understood, or the command cannot be started.
pub fn serve() -> Result<u8> {
    let (to, woken) = unbounded::<Woken>();
    Watcher::start(to.clone())?;
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))
        .map_err(|error| Error::internal(format!("subreaper: {error}")))?;
    threads::start("from runner", {
        let to = to.clone();
        move || hear(&to)
    })?;
    let Some(start) = first(&woken)? else {
        return Ok(MEMBER_GONE);
    };
    if let Some(path) = &start.host {
        let host = living(path)?;
        threads::start("host", move || {
            wait(&host);
            let _ = to.send(Woken::End("the node of the job here has ended"));
        })?;
    }
    let lease = Duration::from_millis(start.lease_ms);
    let process = process::spawn(command(*start), Group::Own, true)?;
    Ok(follow(&woken, process.pid, lease))
}

fn hear(to: &Sender<Woken>) {
    let mut from = BufReader::new(std::io::stdin());
    loop {
        let mut bytes = Vec::new();
        let read = std::io::Read::take(&mut from, LINE_BYTES_MAX).read_until(b'\n', &mut bytes);
        if !matches!(read, Ok(count) if count > 0) {
            let _ = to.send(Woken::End(""));
            return;
        }
        let woken = match serde_json::from_slice(&bytes) {
            Ok(told) => Woken::Told(told),
            Err(_) => Woken::End("what the launcher says is not understood"),
        };
        if to.send(woken).is_err() {
            return;
        }
    }
}

/// The first thing that is said; `None` if nothing is.
fn first(woken: &Receiver<Woken>) -> Result<Option<Box<Start>>> {
    loop {
        match woken.recv() {
            Ok(Woken::Told(ToMember::Start(start))) => return Ok(Some(start)),
            Ok(Woken::Told(_) | Woken::Seen(Seen::Child { .. } | Seen::Rank { .. })) => {}
            Ok(Woken::End("")) | Ok(Woken::Seen(Seen::Signal(_))) | Err(_) => return Ok(None),
            Ok(Woken::End(why)) => {
                let remedy = "use the same version of outlive on all hosts";
                return Err(Error::new(Code::PeerVersion, Entity::Call, why, remedy));
            }
        }
    }
}

/// What the way to this node says of itself: a step of one process. A rank would take it for the job.
const OF_THE_WAY: [&str; 8] = [
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
    "PMI_JOBID",
    "PMIX_RANK",
];

fn command(start: Start) -> Command {
    let mut words = start.words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    for name in OF_THE_WAY {
        command.env_remove(name);
    }
    command
        .args(words)
        .envs(start.variables)
        .stdin(Stdio::null());
    if let Some(dir) = start.dir {
        command.current_dir(dir);
    }
    command
}

/// The process that stands for the launcher on this host, as its file says.
fn living(path: &Path) -> Result<OwnedFd> {
    let missing = |reason: String| {
        Error::new(
            Code::CommandFailed,
            Entity::File(path.display().to_string()),
            reason,
            "nothing: the next start has another node",
        )
    };
    let text = input::read_text(path, input::TEXT_BYTES_MAX)
        .map_err(|error| missing(format!("no node of the job lives here: {}", error.reason())))?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(started))) = (numbers.next(), numbers.next()) else {
        return Err(missing("is not understood".to_owned()));
    };
    let fd = u32::try_from(pid).ok();
    let fd = fd.and_then(|pid| process::open_same(pid, Some(started)));
    fd.ok_or_else(|| missing("the node of the job here has ended".to_owned()))
}

/// Says where this process is found, for [`living`].
///
/// # Errors
/// Those of the file system.
pub(crate) fn announce(run_dir: &Path) -> Result<()> {
    let pid = std::process::id();
    let started = process::started(pid).unwrap_or_default();
    let path = run_dir.join(layout::HOST);
    crate::files::write_atomic(&path, format!("{pid} {started}\n").as_bytes())
}

/// Until a process has ended.
fn wait(fd: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags};
    while rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], None).is_err() {}
}

/// Until the command has ended, or is to: its status.
fn follow(woken: &Receiver<Woken>, pid: u32, lease: Duration) -> u8 {
    let mut heard = Instant::now();
    let mut asked: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let lease_over = heard + lease;
        let until = asked.map_or(lease_over, |at| lease_over.min(at + GRACE));
        match woken.recv_timeout(until.saturating_duration_since(now)) {
            Ok(Woken::Seen(Seen::Child {
                pid: ended,
                ended: how,
            })) if ended == pid => {
                end_all();
                return how.exit_status();
            }
            Ok(Woken::Seen(Seen::Signal(caught))) => {
                asked.get_or_insert_with(Instant::now);
                signal(pid, caught.signal);
            }
            Ok(Woken::Told(ToMember::Signal(number))) => {
                heard = Instant::now();
                signal(pid, number);
            }
            Ok(Woken::Told(ToMember::Alive)) => heard = Instant::now(),
            Ok(Woken::Told(ToMember::Start(_)) | Woken::Seen(_)) => {}
            Ok(Woken::End(why)) => return given_up(why),
            Err(_) if Instant::now() < until => {}
            Err(_) => return given_up("the launcher has been silent"),
        }
    }
}

fn given_up(why: &str) -> u8 {
    if !why.is_empty() {
        eprintln!("outlive: {why}: what was started here is ended");
    }
    end_all();
    MEMBER_GONE
}

/// To the group of the command, which is not waited for yet.
fn signal(pid: u32, number: i32) {
    let group = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(number)) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// SIGKILL to all that is left below this process.
fn end_all() {
    let until = Instant::now() + KILLED;
    let mut quiet = 0;
    // A process that forks while it is looked for is found by the next look.
    while quiet < 2 && Instant::now() < until {
        let me = std::process::id();
        match process::signal_descendants(me, &BTreeSet::new(), Signal::KILL) {
            Ok(0) => quiet += 1,
            _ => {
                quiet = 0;
                std::thread::sleep(LOOK);
            }
        }
    }
}
