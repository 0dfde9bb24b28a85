//! Starts a command on every node at once, and stands for all of them: it ends when the last has
//! ended, with the status of the first that failed; then the others are ended too.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use outlive_base::{Error, Result};
use outlive_control::ended::{Ended, SIGTERM};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use super::words::{GRACE, Start, ToMember};
use super::{Plan, VARIABLE, Way, own};
use crate::process::{self, Group, Process};
use crate::watch::{Seen, Watcher};
use crate::{input, sys, threads};

/// Words that may wait for a member, which ends if none comes.
const QUEUE: usize = 64;
/// How long ways to other machines may take to end when their members were given up.
const WAYS_END: Duration = Duration::from_secs(3);
/// Longest plan: a line for each node.
const PLAN_BYTES_MAX: u64 = 1 << 26;

/// Variables that mean this machine or this session, and nothing elsewhere.
const OF_THIS_MACHINE: [&str; 9] = [
    "HOSTNAME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "DISPLAY",
    "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS",
    VARIABLE,
];

/// The same of which the names begin so.
const KINDS_OF_THIS_MACHINE: [&str; 2] = ["SSH_", "XDG_"];

/// Runs `words` on each node of the job; the status.
///
/// # Errors
/// If it was not started by `outlive run`, or a way to a node cannot be begun.
pub fn run(words: &[OsString]) -> Result<u8> {
    let plan = plan()?;
    let (to, woken) = unbounded::<Seen>();
    Watcher::start(to)?;
    sys::raise_limit();
    let mut runner = Runner {
        members: BTreeMap::new(),
        status: 0,
        ending: None,
    };
    for (node, way) in plan.ways.iter().enumerate() {
        let member = begin(&plan, node, way, words)?;
        runner.members.insert(member.process.pid, member);
    }
    let alive = Duration::from_millis((plan.lease_ms / 4).clamp(10, 500));
    Ok(runner.follow(&woken, alive))
}

fn plan() -> Result<Plan> {
    let refuse = |reason: &str| {
        outlive_base::Error::new(
            outlive_base::Code::InvalidArgument,
            outlive_base::Entity::Call,
            format!("each: {reason}"),
            "start it by outlive run --start each -- COMMAND",
        )
    };
    let path = std::env::var_os(VARIABLE).ok_or_else(|| refuse("no run has started this"))?;
    let bytes = input::read(Path::new(&path), PLAN_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| refuse(&error.to_string()))
}

struct Member {
    name: String,
    process: Process,
    /// To a member on another machine; `None`: it is let go, or it is here.
    to: Option<Sender<String>>,
    here: bool,
}

fn begin(plan: &Plan, node: usize, way: &Way, words: &[OsString]) -> Result<Member> {
    let shared = plan.variables.iter();
    let shared = shared.map(|(name, value)| (name.clone(), value.clone()));
    let variables = shared.chain(own(node));
    let here = way.words.is_empty();
    let program = way.words.first().or(words.first());
    let mut command = Command::new(program.cloned().unwrap_or_default());
    if here {
        command
            .args(words.iter().skip(1))
            .env_remove(VARIABLE)
            .envs(variables);
        let process = process::spawn(quiet(command), Group::Own, true)?;
        let (name, to) = (way.name.clone(), None);
        return Ok(Member {
            name,
            process,
            to,
            here,
        });
    }
    command.args(way.words.iter().skip(1)).env_remove(VARIABLE);
    for (name, value) in &way.variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| Error::internal(format!("pipe to a node: {error}")))?;
    command.stdin(Stdio::from(theirs));
    // Of a session of its own: a signal for the group would cut the way before it is told.
    let process = process::spawn(command, Group::Session, true)?;
    let (to, says) = bounded::<String>(QUEUE);
    threads::start("to a node", move || write_all(ours, &says))?;
    let own_variables = variables.map(|(name, value)| (name.into(), value.into()));
    let elsewhere = std::env::vars_os().filter(|(name, _)| means_something_elsewhere(name));
    let sent = elsewhere.filter(|_| way.keeps_secrets).chain(own_variables);
    let start = Start {
        words: words.to_vec(),
        variables: sent.collect(),
        dir: std::env::current_dir().ok().map(OsString::from),
        host: way.host.clone(),
        lease_ms: plan.lease_ms,
    };
    let member = Member {
        name: way.name.clone(),
        process,
        to: Some(to),
        here,
    };
    member.say(&ToMember::Start(Box::new(start)));
    Ok(member)
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    command
}

fn means_something_elsewhere(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let kinds = KINDS_OF_THIS_MACHINE;
    !OF_THIS_MACHINE.contains(&&*name) && !kinds.iter().any(|kind| name.starts_with(kind))
}

fn write_all(to: OwnedFd, says: &Receiver<String>) {
    let mut to = std::fs::File::from(to);
    for line in says {
        if to.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

impl Member {
    /// One that takes no more words is given up by its lease.
    fn say(&self, word: &ToMember) {
        let (Some(to), Ok(line)) = (&self.to, serde_json::to_string(word)) else {
            return;
        };
        let _ = to.try_send(line + "\n");
    }

    fn signal(&self, number: i32) {
        self.say(&ToMember::Signal(number));
        let group = i32::try_from(self.process.pid).ok();
        let group = group.and_then(rustix::process::Pid::from_raw);
        // Not waited for yet: the number is still the group's.
        if let (true, Some(group), Some(signal)) =
            (self.here, group, Signal::from_named_raw(number))
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

struct Runner {
    /// By the number of the process that is, or leads to, the member.
    members: BTreeMap<u32, Member>,
    /// Of the first that failed.
    status: u8,
    /// Since when all are being ended, and whether they were let go.
    ending: Option<(Instant, bool)>,
}

impl Runner {
    fn follow(&mut self, woken: &Receiver<Seen>, alive: Duration) -> u8 {
        while !self.members.is_empty() {
            match woken.recv_timeout(alive) {
                Ok(Seen::Child { pid, ended }) => self.ended(pid, ended),
                Ok(Seen::Signal(caught)) => {
                    for member in self.members.values() {
                        member.signal(caught.signal);
                    }
                }
                Ok(Seen::Rank { .. }) => {}
                Err(_) => {
                    for member in self.members.values() {
                        member.say(&ToMember::Alive);
                    }
                }
            }
            self.press(Instant::now());
        }
        self.status
    }

    fn ended(&mut self, pid: u32, ended: Ended) {
        let Some(member) = self.members.remove(&pid) else {
            return;
        };
        if ended.is_success() || self.ending.is_some() {
            return;
        }
        // One machine's name says little; of several it is what is looked for first.
        if !member.here {
            eprintln!("outlive: {}: the command ended with {ended}", member.name);
        }
        self.status = ended.exit_status();
        self.ending = Some((Instant::now(), false));
        for member in self.members.values() {
            member.signal(SIGTERM);
        }
    }

    /// Those that are asked to end have some time; then they are let go, which ends them, or
    /// killed; ways that lead nowhere are not waited for.
    fn press(&mut self, now: Instant) {
        match self.ending {
            Some((since, false)) if now >= since + GRACE => {
                self.ending = Some((now, true));
                for member in self.members.values_mut() {
                    member.to = None;
                    if member.here {
                        process::signal(&member.process.fd, Signal::KILL);
                    }
                }
            }
            Some((since, true)) if now >= since + WAYS_END => {
                for member in self.members.values() {
                    process::signal(&member.process.fd, Signal::KILL);
                }
            }
            _ => {}
        }
    }
}
