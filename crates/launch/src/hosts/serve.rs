//! The process that stands for the launcher on a host: it starts the keeper of one slot,
//! and ends everything there when the launcher says so, when the line to it ends, and when
//! it has been silent for the length of the lease.
//!
//! The lease makes a host that is cut off harmless without being reached: `stamp` times of
//! this host's own clock go to the launcher and come back. What this host started is
//! killed when the newest that came back is older than the lease; the launcher waits that
//! long after it gave the last one back. Clocks need not agree, only go equally fast, and
//! an answer that was delayed on its way does not lengthen the lease.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use outlive_base::{Code, Entity, Error, NodeId, Result, Time};
use outlive_control::orders::AgentSpec;

use super::address;
use super::line::next_line;
use super::{clock, relay};
use crate::each::member;
use crate::fleet::{Common, Fleet};
use crate::host_words::{self as words, Begin, Evict, FromHost, ToHost};
use crate::layout;
use crate::site::{self, Places};
use crate::watch::{Seen, Watcher};
use crate::{files, leftovers, sys, threads};

/// Words that may wait on their way out; what finds no room is lost, and the lease with it.
const QUEUE: usize = 1024;
/// Between two looks at what is ending.
const LOOK: Duration = Duration::from_millis(2);
/// From SIGTERM to SIGKILL when the launcher is gone.
const END_GRACE_MS: u64 = 2_000;
/// The same when the lease is over: the launcher waits little longer.
const LEASE_GRACE_MS: u64 = 200;
/// How long processes may take to end after SIGKILL before this one ends without them.
const KILLED_MS: u64 = 10_000;
/// Between two stamps; a third of a short lease.
const ALIVE_MS: u64 = 500;

/// Tries to make the directory of the socket, which an earlier run may be removing.
const TRIES: u32 = 5;
enum Woken {
    Seen(Seen),
    Word(ToHost),
    /// What may take long before a keeper is started is done.
    Ready(Result<Box<Ready>>),
    /// What an earlier run left has ended, or not.
    Evicted(Result<()>),
    /// The launcher let go, or what it says is not understood.
    End(Option<Error>),
}

impl From<Seen> for Woken {
    fn from(seen: Seen) -> Woken {
        Woken::Seen(seen)
    }
}

/// Serves one slot on this host, over standard input and output. Started by `outlive run`
/// through ssh or srun.
///
/// # Errors
/// Those of the kernel that leave nothing to serve with; others go to the launcher.
pub fn serve() -> Result<u8> {
    let (to, woken) = unbounded::<Woken>();
    // Slurm may warn all steps; the launcher decides what follows.
    sys::ignore_warnings();
    // Blocks signals for all threads to come.
    let watcher = Watcher::start(to.clone())?;
    sys::raise_limit();
    let (said, says) = bounded::<FromHost>(QUEUE);
    threads::start("to launcher", move || speak(&says))?;
    threads::start("from launcher", {
        let to = to.clone();
        move || hear(&to)
    })?;
    let mut host = Host {
        said,
        to,
        watcher,
        begun: false,
        leased_ms: clock_ms(),
        alive_ms: 0,
        node: None,
        fencing: false,
        ending: None,
        over: false,
    };
    host.say(FromHost::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: program()?,
    });
    host.run(&woken);
    // What was said last is written by another thread.
    drop(host);
    std::thread::sleep(Duration::from_millis(20));
    Ok(0)
}

/// What stands for the program's file: an installation of another kind says otherwise.
///
/// # Errors
/// Those of reading it.
pub(super) fn program() -> Result<u64> {
    let path = Path::new("/proc/self/exe");
    let file = std::fs::File::open(path).map_err(|error| Error::io(path, "open", &error))?;
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let mut from = BufReader::with_capacity(1 << 20, file);
    loop {
        let bytes = from
            .fill_buf()
            .map_err(|error| Error::io(path, "read", &error))?;
        if bytes.is_empty() {
            return Ok(hash.digest());
        }
        hash.update(bytes);
        let read = bytes.len();
        from.consume(read);
    }
}

/// Where this program lies: so it does on hosts too, if nothing else is said.
///
/// # Errors
/// Those of the file system.
pub(crate) fn program_path() -> Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    std::fs::read_link(own).map_err(|error| Error::io(own, "read", &error))
}

fn speak(says: &Receiver<FromHost>) {
    let mut out = std::io::stdout().lock();
    for word in says {
        let written = words::write(&word)
            .map(|text| out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

fn hear(to: &Sender<Woken>) {
    let mut from = BufReader::new(std::io::stdin());
    let end = loop {
        let word = match next_line(&mut from) {
            Ok(None) => break None,
            Ok(Some(line)) => words::read::<ToHost>(&line),
            Err(error) => break Some(error),
        };
        match word {
            Ok(None) => {}
            Ok(Some(word)) => match to.send(Woken::Word(word)) {
                Ok(()) => {}
                Err(_) => return,
            },
            Err(error) => break Some(error),
        }
    };
    let _ = to.send(Woken::End(end));
}

/// Milliseconds that went by on this machine, while it slept too.
fn clock_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// What was begun here.
struct Node {
    fleet: Fleet,
    me: NodeId,
    epoch: u64,
    dir: PathBuf,
    run_dir: PathBuf,
    ranks: Vec<u32>,
    lease_ms: u64,
}

/// All that a keeper's start needs.
struct Ready {
    begin: Begin,
    common: Common,
}

struct Host {
    said: Sender<FromHost>,
    /// To this thread, from those that do what takes long.
    to: Sender<Woken>,
    watcher: Watcher,
    /// The first order came.
    begun: bool,
    /// The newest stamp that came back; before the first, when this process began.
    leased_ms: u64,
    /// When the next stamp leaves.
    alive_ms: u64,
    node: Option<Node>,
    /// True while the launcher waits for an answer to [`ToHost::Fence`].
    fencing: bool,
    /// When this process ends, whatever is left.
    ending: Option<u64>,
    over: bool,
}

impl Host {
    fn say(&self, word: FromHost) {
        if self.said.try_send(word).is_err() {
            tracing::warn!("the launcher takes no words");
        }
    }

    fn run(&mut self, woken: &Receiver<Woken>) {
        while !self.over {
            match woken.recv_timeout(self.patience()) {
                Ok(Woken::Seen(seen)) => self.on_seen(seen),
                Ok(Woken::Word(word)) => self.on_word(word),
                Ok(Woken::Ready(ready)) => self.start(ready),
                Ok(Woken::Evicted(evicted)) => self.say(match evicted {
                    Ok(()) => FromHost::Fenced,
                    Err(error) => FromHost::Refused(error),
                }),
                Ok(Woken::End(error)) => {
                    if let Some(error) = error {
                        self.say(FromHost::Failed(error));
                    }
                    self.end(END_GRACE_MS);
                }
                Err(_) => {}
            }
            self.look();
        }
    }

    fn patience(&self) -> Duration {
        let busy = self.ending.is_some()
            || self.fencing
            || self.node.as_ref().is_some_and(|node| node.fleet.is_busy());
        match (&self.node, busy) {
            (_, true) => LOOK,
            (None, false) => Duration::from_millis(ALIVE_MS),
            (Some(node), false) => {
                let left = (self.leased_ms + node.lease_ms + 1).saturating_sub(clock_ms());
                Duration::from_millis(alive_ms(Some(node)).min(left))
            }
        }
    }

    fn on_seen(&mut self, seen: Seen) {
        match seen {
            Seen::Rank { rank, pid, ended } => self.say(FromHost::RankGone { rank, pid, ended }),
            Seen::Signal(_) => self.end(END_GRACE_MS),
            Seen::Child { pid, ended } => {
                let ours = self.node.as_mut().and_then(|node| node.fleet.ended(pid));
                if ours.is_some() {
                    self.say(FromHost::KeeperEnded { ended });
                }
            }
        }
    }

    fn on_word(&mut self, word: ToHost) {
        match (word, &mut self.node) {
            (ToHost::Begin(begin), None) => {
                let said = self.said.clone();
                self.aside(move || Woken::Ready(prepare(*begin, said).map(Box::new)));
            }
            (ToHost::Evict(evict), None) => {
                self.aside(move || Woken::Evicted(end_leftovers(&evict)))
            }
            (ToHost::Lease { stamp_ms }, _) => self.leased_ms = self.leased_ms.max(stamp_ms),
            (ToHost::Part, None) => {}
            (ToHost::Watch { rank, pid }, Some(node)) => {
                node.ranks.push(pid);
                node.fleet.meet(pid);
                if !self.watcher.add(rank, pid) {
                    let ended = None;
                    self.say(FromHost::RankGone { rank, pid, ended });
                }
            }
            (ToHost::Part, Some(node)) => {
                node.ranks.clear();
                node.fleet.part();
            }
            (ToHost::Fence { pids }, Some(node)) => {
                node.fleet.fence(node.me, node.epoch, &pids);
                self.fencing = true;
            }
            (ToHost::Kill { pids }, Some(node)) => drop(node.fleet.kill(&pids)),
            (ToHost::KillNode { pids }, Some(node)) => {
                node.fleet.kill_node(node.me, &pids, &node.dir);
            }
            (ToHost::KillKeeper, Some(node)) => node.fleet.kill_keeper(node.me),
            (ToHost::Freeze { keeper, pids, stop }, Some(node)) => {
                node.fleet.freeze(keeper.then_some(node.me), &pids, stop);
            }
            (ToHost::Stop { grace_ms }, Some(_)) => self.end(grace_ms),
            (word, _) => tracing::warn!(?word, "out of place"),
        }
    }

    /// Does what may take long beside this thread, which answers for the lease.
    fn aside(&mut self, what: impl FnOnce() -> Woken + Send + 'static) {
        if std::mem::replace(&mut self.begun, true) {
            return tracing::warn!("a second order to begin");
        }
        let to = self.to.clone();
        if let Err(error) = threads::start("begin", move || drop(to.send(what()))) {
            self.say(FromHost::Refused(error));
        }
    }

    /// Starts the keeper: on this thread, whose end the kernel tells it of.
    fn start(&mut self, ready: Result<Box<Ready>>) {
        if self.ending.is_some() {
            if let Ok(ready) = ready {
                leave(&ready.begin.run_dir);
            }
            return;
        }
        match ready.and_then(|ready| Node::start(*ready)) {
            Ok(node) => {
                self.node = Some(node);
                self.say(FromHost::Up);
            }
            Err(error) => self.say(FromHost::Refused(error)),
        }
    }

    /// Ends the keeper in order, then by force, then this process.
    fn end(&mut self, grace_ms: u64) {
        if self.ending.is_some() {
            return;
        }
        let now = clock_ms();
        self.ending = Some(now + grace_ms + KILLED_MS);
        if let Some(node) = &mut self.node {
            node.fleet.stop(node.me, Time::from_ms(now + grace_ms));
        }
    }

    /// What time brings.
    fn look(&mut self) {
        let now = clock_ms();
        let mut said = Vec::new();
        if now >= self.alive_ms {
            self.alive_ms = now + alive_ms(self.node.as_ref());
            said.push(FromHost::Alive { stamp_ms: now });
        }
        let Some(node) = &mut self.node else {
            self.over = self.ending.is_some();
            return said.into_iter().for_each(|word| self.say(word));
        };
        node.fleet.press(Time::from_ms(now));
        if self.ending.is_none() && now > self.leased_ms + node.lease_ms {
            eprintln!(
                "outlive: the launcher has been silent for {} ms: everything of its job here \
                 is ended",
                now - self.leased_ms
            );
            // Ranks that it never heard of are the agent's to end.
            drop(node.fleet.kill(&node.ranks));
            self.end(LEASE_GRACE_MS);
        }
        let Some(node) = &mut self.node else {
            return;
        };
        let gone = !node.fleet.fenced().is_empty();
        if gone && std::mem::take(&mut self.fencing) {
            said.push(FromHost::Fenced);
        }
        if let Some(at) = self.ending {
            let left = !node.fleet.pids().is_empty() || node.fleet.is_busy();
            // Ranks were the agent's to end; one that hangs is not left behind.
            if !left {
                drop(node.fleet.kill(&node.ranks));
            }
            self.over = !left || now >= at;
        }
        if self.over {
            node.remove_files();
        }
        for word in said {
            self.say(word);
        }
    }
}

/// Between two stamps: several fit into a short lease.
fn alive_ms(node: Option<&Node>) -> u64 {
    node.map_or(ALIVE_MS, |node| (node.lease_ms / 4).clamp(10, ALIVE_MS))
}

fn end_leftovers(evict: &Evict) -> Result<()> {
    let lock = lock(&evict.run_dir, &evict.spec, &evict.launchers)?;
    leave(&evict.run_dir);
    drop(lock);
    Ok(())
}

fn prepare(mut begin: Begin, said: Sender<FromHost>) -> Result<Ready> {
    let spec = &mut begin.spec;
    let lock = Arc::new(lock(&begin.run_dir, spec, &begin.launchers)?);
    spec.key_file = key_file(spec, begin.key.take(), &begin.run_dir)?;
    let (launcher, own) = match address::reach(&begin.launchers) {
        Ok(reached) => reached,
        Err(error) => {
            eprintln!(
                "outlive: {}; it is spoken to over the connection by which this was started",
                error.reason()
            );
            let own = relay::own_address(&begin.launchers)?;
            (relay::wait(&begin.run_dir, said.clone())?, own)
        }
    };
    let apart = !spec.node_dir.starts_with(&spec.job_dir);
    if let Some(storage) = spec.node_dir.parent().filter(|_| apart) {
        crate::owner::claim(storage, begin.known, spec.job_hash)?;
    }
    look_beside(&begin, said);
    let spec = &mut begin.spec;
    let memory = match spec.memory_bytes {
        0 => sys::available_memory().unwrap_or(1 << 30) / 2,
        bytes => bytes,
    };
    let common = Common {
        job: spec.job.clone(),
        job_hash: spec.job_hash,
        coordinator: spec.coordinator,
        launcher,
        bind: own,
        ports: spec.ports,
        job_dir: spec.job_dir.clone(),
        object_store: spec.object_store.clone(),
        memory_server: spec.memory_server.clone(),
        environment: std::mem::take(&mut begin.credentials),
        key_file: spec.key_file.clone(),
        sockets: spec.socket.clone(),
        nodes: 1,
        memory_bytes: memory,
        encrypt: spec.encrypt,
        health: spec.health.clone(),
        service: spec.service.clone(),
        executable: "/proc/self/exe".into(),
        nodes_lock: lock,
    };
    Ok(Ready { begin, common })
}

/// Looks what falls short here, beside the start, which waits for nothing.
fn look_beside(begin: &Begin, said: Sender<FromHost>) {
    let spec = &begin.spec;
    let job_dir = begin.store_shared.then(|| spec.job_dir.clone());
    let (node_dir, memory_bytes) = (spec.node_dir.clone(), spec.memory_bytes);
    let (job, job_hash) = (spec.job.clone(), spec.job_hash);
    let look = move || {
        let mut found = site::short(&Places {
            job_dir: job_dir.as_deref(),
            node_storage: node_dir.parent().unwrap_or(&node_dir),
            memory_bytes,
        });
        let key = job_dir.map(|dir| dir.join(layout::KEY));
        let seen =
            key.map(|key| crate::job_hash(job.as_str(), &key).is_ok_and(|it| it == job_hash));
        found.extend((seen == Some(false)).then(site::store_unseen));
        let unix_ms = clock::unix_ms();
        let _ = said.try_send(FromHost::Short { found, unix_ms });
    };
    if let Err(error) = threads::start("look", look) {
        tracing::info!(%error, "nobody looks at this machine");
    }
}

impl Node {
    fn start(ready: Ready) -> Result<Node> {
        let Ready { begin, common } = ready;
        let spec = begin.spec;
        // Of the command that is started on each host only what finds this process runs.
        member::announce(&begin.run_dir)?;
        let mut fleet = Fleet::new(common);
        fleet.start(spec.node, spec.epoch, &spec.node_dir, begin.storage)?;
        Ok(Node {
            fleet,
            me: spec.node,
            epoch: spec.epoch,
            dir: spec.node_dir,
            run_dir: begin.run_dir,
            ranks: Vec::new(),
            lease_ms: begin.lease_ms,
        })
    }

    /// The key that was sent is not left behind; nor is the socket.
    fn remove_files(&self) {
        remove_key_and_lock(&self.run_dir);
        self.fleet.remove_sockets();
    }
}

/// Removes what [`lock`] and [`key_file`] made, by their holder: who waits for the lock looks
/// where it is then.
fn remove_key_and_lock(run_dir: &Path) {
    for name in [layout::KEY, layout::HOST, layout::RELAY, layout::NODES_LOCK] {
        let _ = std::fs::remove_file(run_dir.join(name));
    }
}

/// The same where no keeper was started; the directory too, unless something else is in it.
fn leave(run_dir: &Path) {
    remove_key_and_lock(run_dir);
    let _ = std::fs::remove_dir(run_dir);
}

/// The lock of this host's node, once nothing older is left. What has one of these launchers is
/// of this run: another slot, if two names mean one machine, or a later holder of this one.
fn lock(run_dir: &Path, spec: &AgentSpec, launchers: &[SocketAddr]) -> Result<OwnedFd> {
    let this_run = |other: &AgentSpec| {
        let newer = other.node != spec.node || other.epoch > spec.epoch;
        newer && launchers.contains(&other.launcher)
    };
    for _ in 0..TRIES {
        files::make_run_dir(run_dir)?;
        match leftovers::take(run_dir, &spec.job_dir, &spec.job, &this_run) {
            // The one before removed the directory at its end.
            Err(error) if error.code() == Code::NotFound => {}
            taken => return taken,
        }
    }
    Err(Error::internal(
        "the directory of sockets goes whenever it is made",
    ))
}

/// The key's file: written here if the key was sent, else that of the shared store.
fn key_file(spec: &AgentSpec, key: Option<String>, run_dir: &Path) -> Result<PathBuf> {
    let path = match key {
        Some(digits) => {
            let bytes = from_hex(&digits).ok_or_else(|| Error::internal("key of odd digits"))?;
            let path = run_dir.join(layout::KEY);
            files::write_atomic(&path, &bytes)?;
            // The launcher says which job it is of.
            return Ok(path);
        }
        None => spec.key_file.clone(),
    };
    let hash = crate::job_hash(spec.job.as_str(), &path).map_err(|error| {
        remedied(
            error,
            "the directory of --store must be shared by all hosts",
        )
    })?;
    match hash == spec.job_hash {
        true => Ok(path),
        false => Err(Error::new(
            Code::KeyMismatch,
            Entity::File(path.display().to_string()),
            "the key here is another job's",
            "let all hosts see one --store",
        )),
    }
}

fn remedied(error: Error, remedy: &str) -> Error {
    Error::new(error.code(), error.entity().clone(), error.reason(), remedy)
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    };
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_back_and_odd_ones_do_not() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!((from_hex("0"), from_hex("xy")), (None, None));
    }
}
