//! Nodes on machines of their own: a host for each slot, and more hosts for those that die.
//!
//! On each host a process stands for the launcher (`hosts/serve.rs`), started through the
//! source's command (ssh, srun), whose pipes are the line to it. This is the other end.
//!
//! Invariants: a host that was lost is not used again in this run; a slot is called fenced
//! when its host says so, when nothing was ever started there, or when the lease of its
//! host has run out (then it has ended everything itself, or is stopped and will before
//! anything else runs there); the driver never waits for a host.

pub mod address;
mod advice;
mod answer;
mod call;
pub mod clock;
mod common;
mod homes;
pub mod hostfile;
mod install;
mod line;
pub mod looks;
pub mod pbs;
mod place;
pub mod preflight;
pub mod relay;
pub mod serve;
pub mod slurm;
pub mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use outlive_base::{Code, Entity, Error, NodeId, Rank, Result, Time};
use outlive_control::ended::Ended;
use outlive_control::supervisor::{Input, Storage};
use rustix::process::Signal;

use crate::each::Way;
use crate::host_words::{Begin, Evict, FromHost, Heard, ToHost};
use crate::layout;
use crate::nodes::{Happened, Nodes};
use crate::process::{self, Group, Process};
use crate::watch::Watcher;
use call::{Call, Purpose, REACHED_WITHIN, Stage};
pub(crate) use common::Common;
use homes::Homes;
use install::Install;
use line::Line;
use place::place;
use source::{Host, Source};

/// How much later than its host a launcher takes a lease for over.
const LEASE_MARGIN: Duration = Duration::from_millis(700);

/// The call that follows when a host has the program: slot, epoch and host, directory, storage.
type Next = ((NodeId, u64, usize), PathBuf, Storage);

/// The launcher's ends of all lines.
#[derive(Debug)]
pub(crate) struct Hosts {
    common: Common,
    source: Box<dyn Source>,
    program: u64,
    events: Sender<Happened>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Hosts that were brought the program, and those to which it is on its way.
    installed: BTreeSet<usize>,
    installs: BTreeMap<u32, (Install, Next)>,
    /// Ways for agents that reach no port of this machine.
    relays: BTreeMap<u32, Process>,
    /// The command was started once.
    started: bool,
    /// Ends what the command left on the hosts.
    sweep: Option<Process>,
    /// The epoch of each slot's holder, unless it was fenced or told to end.
    holders: BTreeMap<NodeId, u64>,
    /// The host of each slot.
    placed: BTreeMap<NodeId, usize>,
    homes: Homes,
    /// Hosts that were lost.
    lost: BTreeSet<usize>,
    /// Holders of slots whose processes are to be gone, and when their host has ended them
    /// by itself.
    fencing: BTreeMap<(NodeId, u64), Instant>,
}

impl Hosts {
    /// `before` names the host of each slot in the run before, where its storage is.
    ///
    /// # Errors
    /// [`Code::NoSpare`] if there are fewer hosts than slots; those of reading the program.
    pub fn new(
        common: Common,
        source: Box<dyn Source>,
        nodes: u32,
        before: &[String],
        events: Sender<Happened>,
    ) -> Result<Hosts> {
        let placed = place(source.hosts(), nodes, before)?;
        Ok(Hosts {
            program: serve::program()?,
            common,
            homes: Homes::of(source.hosts(), &placed),
            source,
            events,
            calls: BTreeMap::new(),
            next_call: 0,
            installed: BTreeSet::new(),
            installs: BTreeMap::new(),
            relays: BTreeMap::new(),
            started: false,
            sweep: None,
            holders: BTreeMap::new(),
            placed,
            lost: BTreeSet::new(),
            fencing: BTreeMap::new(),
        })
    }

    fn host(&self, at: usize) -> &Host {
        &self.source.hosts()[at]
    }

    /// The call that serves a slot now.
    fn of(&mut self, node: NodeId) -> Option<&mut Call> {
        let serves = |call: &&mut Call| call.node == node && call.purpose == Purpose::Serve;
        self.calls.values_mut().rev().find(serves)
    }

    fn say(&mut self, node: NodeId, word: &ToHost) {
        match self.of(node) {
            Some(call) => call.line.say(word),
            None => tracing::info!(%node, ?word, "no host to tell"),
        }
    }

    fn call(
        &mut self,
        call: (NodeId, u64, usize),
        dir: &Path,
        storage: Storage,
        purpose: Purpose,
    ) -> Result<()> {
        let (node, epoch, host) = call;
        let words = [
            self.executable(host),
            "host".to_owned(),
            self.common.job.to_string(),
        ];
        let command = self.source.shell(self.host(host), &words);
        let number = self.next_call;
        self.next_call += 1;
        let line = Line::open(command, number, &self.events)?;
        let call = Call {
            node,
            epoch,
            host,
            storage,
            dir: dir.to_owned(),
            purpose,
            stage: Stage::Connecting,
            begun: Instant::now(),
            line,
            leased: None,
            exited: None,
            silent: false,
            told: false,
        };
        self.calls.insert(number, call);
        Ok(())
    }

    fn run_dir(&self) -> PathBuf {
        crate::files::run_dir_of_hosts(self.common.job_hash)
    }

    /// The same on all hosts: each has one agent.
    fn socket(&self) -> PathBuf {
        self.run_dir().join("agent.sock")
    }

    /// The first word came: is it one of ours, and what is it to do?
    fn met(&mut self, number: u64, version: &str, program: u64) -> Result<()> {
        let Some(call) = self.calls.get_mut(&number) else {
            return Ok(());
        };
        if call.stage == Stage::Stopping {
            // Nothing runs there yet, and nothing is to.
            call.line.close();
            return Ok(());
        }
        let call = &self.calls[&number];
        if program != self.program {
            return Err(Error::new(
                Code::PeerVersion,
                Entity::Option("hosts".to_owned()),
                format!(
                    "{} has another build of outlive ({version}, here {})",
                    self.host(call.host).name,
                    env!("CARGO_PKG_VERSION")
                ),
                "install the same one everywhere, or say where it lies with --remote-executable",
            ));
        }
        let spec = self.common.spec(call, self.socket());
        let run_dir = self.run_dir();
        let launchers = self.common.launchers.clone();
        let word = match call.purpose {
            Purpose::Evict => ToHost::Evict(Box::new(Evict {
                spec,
                launchers,
                run_dir,
            })),
            Purpose::Serve => ToHost::Begin(Box::new(Begin {
                spec,
                launchers,
                known: self.common.known,
                key: self.common.key(self.source.keeps_secrets())?,
                credentials: self.common.credentials_over(self.source.keeps_secrets()),
                run_dir,
                storage: call.storage,
                lease_ms: self.common.lease.as_millis() as u64,
                store_shared: self.common.shared && self.common.object_store.is_none(),
            })),
        };
        if let Some(call) = self.calls.get_mut(&number) {
            call.stage = Stage::Met;
            // Its lease began when it said its first word.
            call.leased = Some(Instant::now());
            call.line.say(&word);
        }
        Ok(())
    }

    /// Sends a way to this process to an agent that finds none.
    fn relay(&mut self, number: u64) {
        let host = self.calls[&number].host;
        let dir = self.run_dir().display().to_string();
        let words = [self.executable(host), "relay".to_owned(), dir];
        let command = self.source.shell(self.host(host), &words);
        match relay::lead(command, self.common.launchers[0].port()) {
            Ok(process) => drop(self.relays.insert(process.pid, process)),
            Err(error) => tracing::warn!(%error, "no relay"),
        }
    }

    fn on_word(&mut self, number: u64, word: FromHost) -> Vec<Input> {
        if let FromHost::Hello { version, program } = &word {
            return match self.met(number, version, *program) {
                Ok(()) => Vec::new(),
                Err(error) => self.fail(number, &error),
            };
        }
        let Some(call) = self.calls.get_mut(&number) else {
            return Vec::new();
        };
        let (node, epoch) = (call.node, call.epoch);
        let fencing = self.fencing.contains_key(&(node, epoch));
        match word {
            FromHost::Up => call.stage = call.stage.max_up(),
            FromHost::Alive { stamp_ms } if !fencing => {
                call.leased = Some(Instant::now());
                call.line.say(&ToHost::Lease { stamp_ms });
            }
            FromHost::RankGone { rank, pid, ended } => {
                return vec![Input::RankGone { rank, pid, ended }];
            }
            FromHost::KeeperEnded { ended } => {
                call.told = true;
                return vec![Input::KeeperEnded { node, epoch, ended }];
            }
            FromHost::Fenced => {
                call.line.close();
                return self.fenced(node, epoch).into_iter().collect();
            }
            FromHost::Refused(error) => {
                call.leased = None;
                return self.fail(number, &error);
            }
            FromHost::Failed(error) => return self.fail(number, &error),
            FromHost::Relay => self.relay(number),
            FromHost::Short { found, unix_ms } => {
                let host = self.calls[&number].host;
                return self.calls[&number].falls_short(&self.host(host).name, found, unix_ms);
            }
            FromHost::Hello { .. } | FromHost::Alive { .. } => {}
        }
        Vec::new()
    }

    /// A host on which the node cannot be: another may do.
    fn fail(&mut self, number: u64, error: &Error) -> Vec<Input> {
        let Some(call) = self.calls.get_mut(&number) else {
            return Vec::new();
        };
        call.line.close();
        if std::mem::replace(&mut call.told, true) || call.purpose == Purpose::Evict {
            return Vec::new();
        }
        let (node, epoch, host) = (call.node, call.epoch, call.host);
        let cause = format!("{}: {error}", self.host(host).name);
        let storage = Storage::Empty;
        vec![Input::NodeGone {
            node,
            epoch,
            cause,
            storage,
        }]
    }

    fn fenced(&mut self, node: NodeId, epoch: u64) -> Option<Input> {
        self.fencing.remove(&(node, epoch))?;
        Some(Input::Fenced {
            node,
            epoch,
            complete: true,
        })
    }

    /// A line has ended, with all that came over it.
    fn ended(&mut self, number: u64) -> Vec<Input> {
        let over = |call: &Call| call.silent && call.exited.is_some();
        if !self.calls.get(&number).is_some_and(over) {
            return Vec::new();
        }
        let Some(call) = self.calls.remove(&number) else {
            return Vec::new();
        };
        let (node, epoch, name) = (call.node, call.epoch, self.host(call.host).name.clone());
        let ended = call.exited.unwrap_or(Ended::Code(0));
        let words = call.line.last_words();
        let said = if words.is_empty() {
            String::new()
        } else {
            format!(": {}", advice::with(&words))
        };
        let fencing = self.fencing.contains_key(&(node, epoch));
        match (call.purpose, call.stage) {
            // Not reached: its lease decides when it is fenced, and another host takes the slot.
            // One that was reached has said so, or its leftovers do not end.
            (Purpose::Evict, Stage::Connecting) if fencing => {
                vec![call.gone(
                    format!("{name} cannot be reached ({ended}{said})"),
                    Storage::Empty,
                )]
            }
            (Purpose::Evict, _) => Vec::new(),
            (_, Stage::Connecting) if fencing => self.fenced(node, epoch).into_iter().collect(),
            _ if fencing => {
                self.evict(&call);
                Vec::new()
            }
            _ if call.told => Vec::new(),
            (_, Stage::Stopping) => vec![Input::KeeperEnded { node, epoch, ended }],
            // What a shell says of a program that is not there, or cannot be executed.
            (_, Stage::Connecting) if matches!(ended, Ended::Code(126 | 127)) => {
                self.install(&call, &said).into_iter().collect()
            }
            (_, Stage::Connecting) => {
                vec![call.gone(
                    format!("{name} cannot be reached ({ended}{said})"),
                    Storage::Empty,
                )]
            }
            // It may be there still.
            (_, Stage::Met | Stage::Up) => {
                self.leave(node, epoch, call.leased);
                self.evict(&call);
                let cause = format!("the connection to {name} ended ({ended}{said})");
                vec![call.gone(cause, Storage::Keep)]
            }
        }
    }

    /// Brings the program to a host that lacks it; if that is not possible, what is wrong.
    fn install(&mut self, call: &Call, said: &str) -> Option<Input> {
        let host = self.host(call.host);
        let may = self.source.may_install() && !self.installed.contains(&call.host);
        let install = match may {
            true => Install::begin(&*self.source, host, self.program),
            false => None,
        };
        let Some(install) = install else {
            let (name, program) = (&host.name, self.common.executable.display());
            let cause = format!(
                "{name} has no program {program}{said}: install outlive there, or say where it \
                 lies with --remote-executable"
            );
            return Some(call.gone(cause, Storage::Empty));
        };
        tracing::info!(host = host.name, "the program is brought to a host");
        self.installed.insert(call.host);
        let what = (call.node, call.epoch, call.host);
        let next = (what, call.dir.clone(), call.storage);
        self.installs.insert(install.pid(), (install, next));
        None
    }

    /// The program was brought to a host, or not: it is called again, and will say.
    fn after_install(&mut self, pid: u32) -> Option<Vec<Input>> {
        let (_, (what, dir, storage)) = self.installs.remove(&pid)?;
        if self.holders.get(&what.0) != Some(&what.1) {
            // Given up meanwhile: another holds the slot, or will.
            return Some(Vec::new());
        }
        let called = self.call(what, &dir, storage, Purpose::Serve);
        let failed = called.err().map(|error| Input::NodeGone {
            node: what.0,
            epoch: what.1,
            cause: error.to_string(),
            storage: Storage::Empty,
        });
        Some(failed.into_iter().collect())
    }

    /// Where the program lies on a host.
    fn executable(&self, host: usize) -> String {
        match self.installed.contains(&host) {
            true => install::path(self.program),
            false => self.common.executable.display().to_string(),
        }
    }

    /// Looks whether a host whose line broke can be reached, and ends what is left there.
    fn evict(&mut self, call: &Call) {
        let what = (call.node, call.epoch, call.host);
        if let Err(error) = self.call(what, &call.dir, call.storage, Purpose::Evict) {
            tracing::info!(%error, "nobody looks after the host");
        }
    }

    /// True while a host is asked whether it is there: what it keeps is not given up at once
    /// because this process, and not the host, stood still.
    fn is_being_reached(&self, node: NodeId, epoch: u64, now: Instant) -> bool {
        self.calls.values().any(|call| {
            (call.node, call.epoch, call.purpose) == (node, epoch, Purpose::Evict)
                && now < call.begun + REACHED_WITHIN
        })
    }

    /// A host that did not let itself be reached until its lease was over is gone.
    fn unanswered(&mut self, node: NodeId, epoch: u64) -> Option<Input> {
        let asks = |call: &&Call| {
            (call.node, call.epoch, call.purpose) == (node, epoch, Purpose::Evict)
                && call.stage == Stage::Connecting
        };
        let call = self.calls.values().find(asks)?;
        process::signal(&call.line.process.fd, Signal::KILL);
        let name = &self.host(call.host).name;
        Some(call.gone(format!("{name} cannot be reached"), Storage::Empty))
    }

    /// A slot is to be called fenced when its host's lease is over, or earlier.
    fn leave(&mut self, node: NodeId, epoch: u64, leased: Option<Instant>) {
        let over_at = leased.map_or_else(Instant::now, |at| at + self.common.lease + LEASE_MARGIN);
        self.fencing.entry((node, epoch)).or_insert(over_at);
    }
}

impl Nodes for Hosts {
    fn start(&mut self, node: NodeId, epoch: u64, dir: &Path, storage: Storage) -> Result<()> {
        if storage == Storage::Empty
            && let Some(gone) = self.placed.remove(&node)
        {
            self.lost.insert(gone);
        }
        let taken: BTreeSet<usize> = self.placed.values().copied().collect();
        let free = |at: &usize| !taken.contains(at) && !self.lost.contains(at);
        let host = match self.placed.get(&node) {
            Some(at) => *at,
            None => (self.homes.next(node, self.source.hosts(), free)).ok_or_else(|| {
                Error::new(
                    Code::NoSpare,
                    Entity::Node(node.0),
                    "no host of the list is left",
                    "start again with more hosts; committed versions are kept",
                )
            })?,
        };
        self.placed.insert(node, host);
        self.holders.insert(node, epoch);
        self.call((node, epoch, host), dir, storage, Purpose::Serve)
    }

    fn fence(&mut self, node: NodeId, epoch: u64, pids: &[u32]) {
        self.holders.remove(&node);
        if self.fencing.contains_key(&(node, epoch)) {
            // It is being done already: its line had ended.
            return;
        }
        let Some(call) = self.of(node).filter(|call| call.epoch == epoch) else {
            return self.leave(node, epoch, None);
        };
        let leased = call.leased;
        if call.stage == Stage::Connecting {
            process::signal(&call.line.process.fd, Signal::KILL);
        }
        call.told = true;
        call.line.say(&ToHost::Fence {
            pids: pids.to_vec(),
        });
        self.leave(node, epoch, leased);
    }

    fn kill_node(&mut self, node: NodeId, pids: &[u32], _dir: &Path) {
        self.say(
            node,
            &ToHost::KillNode {
                pids: pids.to_vec(),
            },
        );
    }

    fn kill_keeper(&mut self, node: NodeId) {
        self.say(node, &ToHost::KillKeeper);
    }

    fn kill(&mut self, node: NodeId, pids: &[u32]) {
        self.say(
            node,
            &ToHost::Kill {
                pids: pids.to_vec(),
            },
        );
    }

    fn freeze(&mut self, node: NodeId, keeper: bool, pids: &[u32], stop: bool) {
        let pids = pids.to_vec();
        self.say(node, &ToHost::Freeze { keeper, pids, stop });
    }

    fn stop(&mut self, node: NodeId, _now: Time, grace: Time) {
        let grace_ms = grace.as_ms() as u64;
        self.holders.remove(&node);
        if let Some(call) = self.of(node) {
            call.stage = Stage::Stopping;
            call.line.say(&ToHost::Stop { grace_ms });
        }
    }

    fn watch(&mut self, node: NodeId, rank: Rank, pid: u32, _watcher: &Watcher) -> Option<Input> {
        self.say(node, &ToHost::Watch { rank, pid });
        None
    }

    fn sweep(&mut self) {
        // Before the first start there is nothing.
        let Some(command) = self.source.sweep().filter(|_| self.started) else {
            self.started = true;
            return;
        };
        match process::spawn(command, Group::Session, true) {
            Ok(process) => self.sweep = Some(process),
            Err(error) => tracing::warn!(%error, "nothing looks for what the command left"),
        }
    }

    fn is_clear(&self) -> bool {
        self.sweep.as_ref().is_none_or(process::has_ended)
    }

    fn part(&mut self) {
        for call in self.calls.values() {
            call.line.say(&ToHost::Part);
        }
    }

    fn child_ended(&mut self, pid: u32, ended: Ended) -> Option<Vec<Input>> {
        if self.sweep.as_ref().is_some_and(|sweep| sweep.pid == pid) {
            self.sweep = None;
            return Some(Vec::new());
        }
        if self.relays.remove(&pid).is_some() {
            return Some(Vec::new());
        }
        if let Some(inputs) = self.after_install(pid) {
            return Some(inputs);
        }
        let is_it = |(_, call): &(&u64, &mut Call)| call.line.process.pid == pid;
        let (number, call) = self.calls.iter_mut().find(is_it)?;
        call.exited = Some(ended);
        let number = *number;
        Some(self.ended(number))
    }

    fn heard(&mut self, line: u64, heard: Heard) -> Vec<Input> {
        match heard {
            Heard::Word(word) => self.on_word(line, word),
            Heard::End => {
                if let Some(call) = self.calls.get_mut(&line) {
                    call.silent = true;
                    // What is left without an end would stay a child for ever.
                    call.line.close();
                }
                self.ended(line)
            }
        }
    }

    fn press(&mut self, _now: Time) -> Vec<Input> {
        let now = Instant::now();
        let over = |(who, at): (&(NodeId, u64), &Instant)| (now >= *at).then_some(*who);
        let over: Vec<_> = self.fencing.iter().filter_map(over).collect();
        let mut inputs = Vec::new();
        for (node, epoch) in over {
            if self.is_being_reached(node, epoch, now) {
                continue;
            }
            inputs.extend(self.unanswered(node, epoch));
            inputs.extend(self.fenced(node, epoch));
        }
        inputs
    }

    fn is_busy(&self) -> bool {
        !self.fencing.is_empty()
    }

    fn pids(&self) -> BTreeSet<u32> {
        let calls = self.calls.values().map(|call| &call.line.process);
        calls
            .chain(&self.sweep)
            .chain(self.relays.values())
            .chain(self.installs.values().map(|(install, _)| &install.0))
            .map(|process| process.pid)
            .collect()
    }

    fn ranks_here(&self) -> Vec<u32> {
        Vec::new()
    }

    fn environment(&mut self) -> Result<Vec<(OsString, OsString)>> {
        let hosts: Vec<&Host> = self.placed.values().map(|at| self.host(*at)).collect();
        let (passed, dir) = (&self.common.passed, &self.common.job_dir);
        let mut variables = self.source.environment(&hosts, passed, dir)?;
        variables.push(("OUTLIVE_AGENT".into(), self.socket().into()));
        Ok(variables)
    }

    fn ways(&self) -> Vec<Way> {
        let way = |at: &usize| {
            let (host, program) = (self.host(*at), self.executable(*at));
            let words = [program, "member".to_owned(), self.common.job.to_string()];
            Way {
                host: Some(self.run_dir().join(layout::HOST)),
                keeps_secrets: self.source.keeps_secrets(),
                address: host.address().to_owned(),
                ..Way::by(&host.name, &self.source.start(host, &words))
            }
        };
        self.placed.values().map(way).collect()
    }

    fn hosts(&self) -> Vec<String> {
        let name = |at: &usize| self.host(*at).name.clone();
        self.placed.values().map(name).collect()
    }

    fn domains(&self) -> Vec<Option<String>> {
        self.homes.domains()
    }

    fn forget_domains(&mut self) {
        self.homes.forget();
    }

    fn astray(&mut self, node: NodeId) -> Option<String> {
        let at = *self.placed.get(&node)?;
        self.homes.astray(node, at, &self.source.hosts()[at])
    }

    fn end(&mut self) {
        for call in self.calls.values_mut() {
            call.line.close();
        }
        // Each ends when it has read the end; what cannot be reached has its lease.
        let until = Instant::now() + Duration::from_secs(2);
        while !self.calls.values().all(|call| has_ended(&call.line)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let calls = self.calls.values().map(|call| &call.line.process);
        for process in calls.chain(self.relays.values()) {
            process::signal(&process.fd, Signal::KILL);
        }
    }
}

fn has_ended(line: &Line) -> bool {
    process::has_ended(&line.process)
}
