//! The world of a node: descriptors, threads, storage and connections behind
//! [`outlive_control::node::shell::Shell`].
//!
//! Invariants: a record's completion is reported in the order of persisting; nothing here
//! waits but where an injection wants it: at a fail point, and a moment before the node is cut off.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outlive_base::control_block::Identity;
use outlive_base::ipc::ToRank;
use outlive_base::level::StoreKind;
use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Result, Version};
use outlive_capture::control::ControlBlock;
use outlive_capture::ipc::Connection;
use outlive_capture::slab::Slab;
use outlive_control::node::copies::{Reading, Scrubbed};
use outlive_control::node::shell::{
    Ask, Collected, CommandLine, Flush, Link, Making, PeerMessage, Rebuild, Shell, With,
};
use outlive_control::node::{HOLD_MAX, SHORT_BYTES};
use outlive_control::orders::{Fault, Member, Notice, Order, decode, encode};
use outlive_control::traffic::Traffic;
use outlive_ledger::{GcPolicy, Record};
use outlive_network::{Driver, Event as NetEvent};
use outlive_vault::Removal;
use rustix::process::{Pid, Signal};

use crate::flush::Writing;
use crate::health::Sensors;
use crate::ipc_server::is_readable;
use crate::look::look;
use crate::memory::{Block, Memory, Work, control_tag, share, slab_tag};
use crate::parity;
use crate::places::Places;
use crate::rebuild::Rebuilding;
use crate::record_writer::{Beside, RecordWriter};
use crate::reports::Reports;
use crate::scrub;
use crate::serving;
use crate::stacks;
use crate::storage;
use crate::turns::Turns;
use crate::workers::Pool;
use outlive_keeper::Deposit;

/// What may be put off at a fail point; then its wait is over.
const PUT_OFF_MAX: usize = 1 << 16;

/// How long an agent that is to be cut off waits at most until what it has said is under way, and
/// how often it looks.
const SAY_MAX: Duration = Duration::from_millis(200);
const SAY_STEP: Duration = Duration::from_millis(1);

/// Free bytes of node storage from which on a short version that is replaced may stay a second.
const PLENTY_BYTES: u64 = 256 << 20;

/// A connection of a process.
pub struct Process {
    /// For answers.
    pub socket: Arc<Connection>,
    /// Readable once the process has ended.
    pub pidfd: Option<Arc<OwnedFd>>,
}

/// What a node lives in.
pub struct World {
    /// Where its things are.
    pub places: Arc<Places>,
    /// The line to the keeper.
    pub deposit: Option<Arc<Deposit>>,
    /// Work that goes out of this node, and that comes in.
    pub outgoing: Pool,
    /// See `outgoing`.
    pub incoming: Pool,
    /// Writes records.
    pub recorder: RecordWriter,
    /// Makes and gives back slabs, in order.
    pub memory_maker: Pool,
    /// Reads copies before they are needed.
    pub scrubber: Pool,
    /// Makes copies in shared storage of containers here.
    pub transferrer: Pool,
    /// Hands descriptors to the keeper, in order.
    pub keeping: Pool,
    /// Where workers report.
    pub work: Reports<Work>,
    /// The network, which the node's thread drives.
    pub network: Driver,
    /// What of it came while this thread was held at a fail point.
    pub put_off: VecDeque<NetEvent>,
    /// The processes that are connected, by token.
    pub processes: BTreeMap<u64, Process>,
    /// What was sent and received.
    pub traffic: Traffic,
    /// Reads the machine's sensors.
    pub sensors: Sensors,
    /// How long this thread's turns take.
    pub turns: Turns,
    /// What is to be removed is so little, and so much room is left, that it may wait until
    /// records are written anyway.
    pub plenty: Arc<AtomicBool>,
    /// There may be routed files: some were left here, or a rank has asked for a place.
    pub has_routed: bool,
    /// The launcher was told that a message is too long.
    pub told_too_long: bool,
}

/// The order in a message of the launcher.
fn launchers_order(event: &NetEvent) -> Option<Order> {
    match event {
        NetEvent::Message { from, bytes } if from.peer == NodeId::LAUNCHER => decode(bytes).ok(),
        _ => None,
    }
}

impl World {
    /// Hands a descriptor to the keeper. It may take its time; they arrive in order.
    fn keep(&mut self, tag: String, descriptor: std::io::Result<OwnedFd>) {
        let Some(deposit) = self.deposit.clone() else {
            return;
        };
        let work = self.work.clone();
        let kept = descriptor
            .map_err(|error| Error::io("memory", "duplicate a descriptor", &error))
            .and_then(|descriptor| {
                self.keeping.run(move || {
                    if let Err(error) = deposit.keep(&tag, descriptor.as_fd()) {
                        let _ = work.send(Work::Protected { result: Err(error) });
                    }
                })
            });
        self.protected(kept);
    }

    /// Reports what could not be begun.
    fn protected(&self, begun: Result<()>) {
        if begun.is_err() {
            let _ = self.work.send(Work::Protected { result: begun });
        }
    }

    /// Waits at a fail point until the launcher says that it is over, or for [`HOLD_MAX`].
    fn hold(&mut self, id: u32) -> Vec<(u32, Fault)> {
        let mut ordered = Vec::new();
        let until = Instant::now() + HOLD_MAX.into();
        while let Some(event) = self.network.event_until(until) {
            match launchers_order(&event) {
                Some(Order::InjectDone { id: done }) if done == id => break,
                // The launcher may not have heard of it: it repeats that this is waited for.
                Some(Order::Inject { id: known, .. }) if known == id => self.tell_reached(id),
                // What is to happen here, unless it ends this process.
                Some(Order::Inject { id, fault }) => ordered.push((id, fault)),
                _ => self.put_off.push_back(event),
            }
            if self.put_off.len() >= PUT_OFF_MAX {
                break;
            }
        }
        ordered
    }

    fn flush(&mut self, flush: Flush<Memory>) {
        let (source, version) = (flush.captures.source, flush.captures.version);
        let targets = flush.targets.clone();
        let quiet = flush.quiet;
        let places = Arc::clone(&self.places);
        let work = self.work.clone();
        let writing = Writing { flush, places };
        let Err(error) = self.outgoing.run(move || writing.run(&work)) else {
            return;
        };
        if quiet {
            return self.protected(Err(error));
        }
        let each = targets.into_iter().map(|target| Work::LevelDone {
            source,
            version,
            level: target.level(),
            result: Err(error.clone()),
        });
        let over = Work::FlushOver { source, version };
        let all = each.chain([over]).collect();
        let _ = self.work.send(Work::Together(all));
    }

    fn make_parity(&mut self, making: Making) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let (source, version, level) = (making.source, making.version, making.group.level);
        let quiet = making.quiet;
        let served = self.places.served.as_ref();
        let served = served.filter(|_| level.store() == StoreKind::Server);
        let pool = served.map_or(&self.outgoing, |served| &served.pool);
        let job = move || parity::run(&places, &making, &work);
        let Err(error) = pool.run(job) else {
            return;
        };
        let failed = match quiet {
            true => Work::Protected { result: Err(error) },
            false => Work::ParityMade {
                source,
                version,
                level,
                result: Err(error),
            },
        };
        let _ = self.work.send(failed);
    }

    fn rebuild(&mut self, wanted: Rebuild<Memory>) {
        let (incarnation, source, version) = (wanted.incarnation, wanted.source, wanted.version);
        let places = Arc::clone(&self.places);
        let work = self.work.clone();
        let rebuilding = Rebuilding { wanted, places };
        let report = move |result| Work::Rebuilt {
            incarnation,
            source,
            version,
            result,
        };
        let job = move || drop(work.send(report(rebuilding.run())));
        if let Err(error) = self.outgoing.run(job) {
            let _ = self.work.send(report(Err(error)));
        }
    }

    fn inventory(&mut self, incarnation: Incarnation) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let job = move || {
            let found = Ok(look(&places));
            let _ = work.send(Work::Inventory { incarnation, found });
        };
        if let Err(error) = self.incoming.run(job) {
            let found = Err(error);
            let _ = self.work.send(Work::Inventory { incarnation, found });
        }
    }

    fn collect(&mut self, policy: GcPolicy, shared: bool) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let plenty = Arc::clone(&self.plenty);
        let wait = plenty.load(Ordering::Relaxed);
        self.recorder.run_beside(Beside::new(move |store| {
            let found = store.found().map_err(Error::from);
            let removal = found.and_then(|found| store.removal(found, policy));
            let tombs = removal.as_ref().map(Removal::tombs).unwrap_or_default();
            let rest = move || {
                let result = removal.and_then(|what| collect(&places, &what, shared, &plenty));
                let _ = work.send(Work::Collected { result });
            };
            (tombs, Box::new(rest))
        }));
        if !wait {
            self.recorder.hurry();
        }
    }

    fn finished(&mut self, record: Record) {
        let (store, work) = (Arc::clone(&self.places.store), self.work.clone());
        let job = move || {
            let result = store.records().persist(&record).map_err(Error::from);
            let _ = work.send(Work::Protected { result });
        };
        let begun = self.recorder.run(job);
        self.protected(begun);
    }

    /// Hands to the kernel what the launcher is told, as far as that is possible at once: a node
    /// that is to be cut off has said so before.
    fn say_all(&mut self) {
        let until = Instant::now() + SAY_MAX;
        let endpoint = Arc::clone(&self.places.endpoint);
        endpoint.flush();
        while endpoint.queued(NodeId::LAUNCHER) > 0
            && Instant::now() < until
            && self.put_off.len() < PUT_OFF_MAX
        {
            let next = Instant::now() + SAY_STEP;
            self.put_off.extend(self.network.event_until(next));
        }
    }

    fn tell_reached(&mut self, id: u32) {
        self.tell(&Notice::InjectReached { id, version: None });
        self.places.endpoint.flush();
    }

    fn scrub(&self, reading: Box<Reading>) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let copy = reading.copy;
        let begun = self
            .scrubber
            .run(move || scrub::run(&places, &reading, &work));
        if let Err(error) = begun {
            let outcome = Scrubbed::Unreadable(error);
            let _ = self.work.send(Work::Scrubbed { copy, outcome });
        }
    }

    fn corrupt(&mut self, id: u32, level: Level) {
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let begun = self.incoming.run(move || {
            let result = storage::corrupt(&places, level);
            let _ = work.send(Work::Corrupted { id, level, result });
        });
        if begun.is_err() {
            let result = begun;
            let _ = self.work.send(Work::Corrupted { id, level, result });
        }
    }

    /// Where a rank writes its own files of a version.
    fn routed(&self, incarnation: Incarnation, version: Version, rank: Rank) -> PathBuf {
        let name = format!("i{}-v{}-r{}", incarnation.0, version.0, rank.0);
        self.places.files.join(name)
    }

    fn route(&mut self, rank: Rank, sequence: u32, directory: PathBuf, name: &str) {
        let path = directory.join(name).display().to_string();
        let (places, work) = (Arc::clone(&self.places), self.work.clone());
        let job = move || {
            let made = places
                .faults
                .before_write(0)
                .and_then(|()| std::fs::create_dir_all(&directory));
            let message = match made {
                Ok(()) => ToRank::Path { path },
                Err(error) => ToRank::Error {
                    error: Error::io(&directory, "create a directory for routed files", &error),
                },
            };
            let _ = work.send(Work::Routed {
                rank,
                sequence,
                message,
            });
        };
        if let Err(error) = self.incoming.run(job) {
            let message = ToRank::Error { error };
            let _ = self.work.send(Work::Routed {
                rank,
                sequence,
                message,
            });
        }
    }

    /// Removes directories without waiting for it; what is left is removed when the
    /// next incarnation opens.
    fn remove_routed(&mut self, directories: impl FnOnce(&Path) -> Vec<PathBuf> + Send + 'static) {
        let places = Arc::clone(&self.places);
        let job = move || {
            for directory in directories(&places.files) {
                if let Err(error) = std::fs::remove_dir_all(&directory)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, directory = %directory.display(), "not removed");
                }
            }
        };
        if let Err(error) = self.incoming.run(job) {
            tracing::warn!(%error, "routed files stay");
        }
    }

    fn make_slab(&mut self, ask: Ask<Memory>) {
        let Ask::Slab {
            rank,
            slot,
            ticket,
            bytes,
            stop,
            old,
        } = ask
        else {
            return;
        };
        let (work, places) = (self.work.clone(), Arc::clone(&self.places));
        let report = move |made| Work::SlabMade {
            rank,
            slot,
            ticket,
            made,
        };
        let begun = self.memory_maker.run(move || {
            drop(old);
            let made = Memory::make(bytes, &stop, &places.faults);
            let _ = work.send(report(made));
        });
        if let Err(error) = begun {
            let _ = self.work.send(report(Err(error)));
        }
    }
}

impl Shell for World {
    type Block = Block;
    type Slab = Memory;

    fn tell(&mut self, notice: &Notice) {
        match encode(notice) {
            Ok(bytes) => {
                self.traffic.sends(notice.is_sign_of_life(), bytes.len());
                if let Err(error) = self.places.endpoint.post(NodeId::LAUNCHER, &bytes) {
                    tracing::warn!(%error, "the launcher cannot be told");
                }
            }
            Err(error) => tracing::error!(%error, "a notice cannot be encoded"),
        }
    }

    fn send(&mut self, to: NodeId, message: &PeerMessage) {
        match encode(message) {
            Ok(bytes) => {
                self.traffic.sends(message.is_sign_of_life(), bytes.len());
                if let Err(error) = self.places.endpoint.post(to, &bytes) {
                    tracing::debug!(%error, to = to.0, "a message was not sent");
                }
            }
            // It is repeated in vain, so that no version becomes stable: that must be known.
            Err(error) => {
                tracing::error!(%error, to = to.0, "a message cannot be encoded");
                if !core::mem::replace(&mut self.told_too_long, true) {
                    self.tell(&Notice::Warning(error));
                }
            }
        }
    }

    fn meet(&mut self, member: &Member, known: Option<&Member>) {
        let endpoint = &self.places.endpoint;
        // One that is met first may have connected already: it is not the one to close.
        if known.is_none_or(|known| known.epoch < member.epoch) {
            endpoint.replace(member.node, member.epoch, member.address);
        } else {
            endpoint.forget(member.node);
            endpoint.set_address(member.node, member.address);
        }
    }

    fn isolate(&mut self, on: bool) {
        if on {
            self.say_all();
        }
        self.places.endpoint.isolate(on);
    }

    fn traffic(&self) -> Traffic {
        let connections = self.places.endpoint.connections() as u32;
        Traffic {
            connections,
            ..self.traffic
        }
    }

    fn answer(&mut self, link: Link, sequence: u32, message: &ToRank, with: With<'_, World>) {
        let Some(process) = self.processes.get(&link.token) else {
            return;
        };
        let send = |message: &ToRank, fd: Option<&OwnedFd>| {
            // A rank that cannot take it is found out by its pidfd.
            let fd = fd.map(AsFd::as_fd);
            let _ = process.socket.send(sequence, message, fd, None);
        };
        match with {
            With::Nothing => send(message, None),
            With::Block(block) => send(message, Some(&block.fd)),
            With::Slab(memory) => send(message, Some(&memory.fd)),
            With::ReadOnly(memory) => match Slab::read_only(memory.fd.as_fd()).map_err(share) {
                Ok(fd) => send(message, Some(&fd)),
                Err(error) => send(&ToRank::Error { error }, None),
            },
        }
    }

    fn is_live(&self, link: Link) -> bool {
        self.processes.get(&link.token).is_some_and(|process| {
            let ended = process.pidfd.as_deref().is_some_and(is_readable);
            !ended && process.socket.is_whole()
        })
    }

    fn command_of(&self, pid: u32) -> Option<CommandLine> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let words = std::fs::read(process.join("cmdline")).ok()?;
        let directory = std::fs::read_link(process.join("cwd")).ok()?;
        let directory = directory.into_os_string().into_vec();
        Some(CommandLine { words, directory })
    }

    fn kill(&mut self, pid: u32) {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    fn make_block(&mut self, identity: Identity) -> Result<Block> {
        let Identity {
            rank,
            ranks,
            node,
            incarnation,
        } = identity;
        let made = ControlBlock::create(rank, ranks, node, incarnation).map_err(share)?;
        let (words, fd) = made;
        self.keep(control_tag(rank), fd.try_clone());
        Ok(Block { words, fd })
    }

    fn keep_slab(&mut self, rank: Rank, slot: usize, slab: &Arc<Memory>) {
        self.keep(slab_tag(rank, slot), slab.fd.try_clone());
    }

    fn ask(&mut self, ask: Ask<Memory>) {
        match ask {
            Ask::Persist { op, record, shared } => {
                let shared = shared.then(|| Arc::clone(&self.places.shared));
                self.recorder.persist(op, record, shared);
            }
            Ask::Flush(flush) => self.flush(flush),
            Ask::Parity(making) => self.make_parity(making),
            Ask::Rebuild(wanted) => self.rebuild(wanted),
            Ask::Inventory { incarnation } => self.inventory(incarnation),
            Ask::Collect { policy, shared } => self.collect(policy, shared),
            Ask::Slab { .. } => self.make_slab(ask),
            Ask::GiveBack(slabs) => {
                if let Err(error) = self.memory_maker.run(move || drop(slabs)) {
                    tracing::warn!(%error, "memory was given back by the agent's own thread");
                }
            }
            Ask::Finished(record) => self.finished(record),
            Ask::Corrupt { id, level } => self.corrupt(id, level),
            Ask::Route {
                rank,
                sequence,
                incarnation,
                version,
                name,
            } => {
                let directory = self.routed(incarnation, version, rank);
                self.has_routed = true;
                self.route(rank, sequence, directory, &name);
            }
            Ask::DropRouted {
                rank,
                incarnation,
                version,
            } => {
                let directory = self.routed(incarnation, version, rank);
                if self.has_routed {
                    self.remove_routed(move |_| vec![directory]);
                }
            }
            Ask::EndRouted { but } => self.remove_routed(move |files| storage::routed(files, but)),
            Ask::Stacks {
                number,
                ranks,
                within,
            } => stacks::look(number, ranks, within.into(), self.work.clone()),
            Ask::Scrub(reading) => self.scrub(reading),
            Ask::Transfer(wanted) => self.transfer(wanted),
            Ask::Health => self.sensors.begin(&self.work),
            Ask::DiskUsage => {
                let (places, work) = (Arc::clone(&self.places), self.work.clone());
                let job = move || {
                    let found = storage::disk_usage(&places.store);
                    let _ = work.send(Work::DiskUsage(found));
                };
                if let Err(error) = self.incoming.run(job) {
                    tracing::info!(%error, "nobody counts the bytes in storage");
                }
            }
        }
    }

    fn inject(&mut self, id: u32, fault: Fault) {
        let faults = &self.places.faults;
        match fault {
            Fault::Slow(rate) => {
                faults.set_slow(rate);
                self.places.endpoint.slow((rate != 0).then_some(rate));
            }
            Fault::Full(on) => faults.set_full(on),
            Fault::FailPoint { point, nth } => faults.add_point(id, point, nth),
            // The node's own.
            Fault::Isolate { .. } | Fault::Corrupt(_) | Fault::AtVersion { .. } => {}
        }
    }

    fn point(&mut self, name: &'static str) -> Vec<(u32, Fault)> {
        let Some(id) = self.places.faults.reached(name) else {
            return Vec::new();
        };
        self.tell_reached(id);
        let held = Instant::now();
        let ordered = self.hold(id);
        self.turns.excuse(held.elapsed());
        ordered
    }
}

/// Removes what may go; `plenty` says then whether the next may wait for a while.
fn collect(
    places: &Arc<Places>,
    removal: &Removal,
    shared: bool,
    plenty: &AtomicBool,
) -> Result<Collected> {
    let report = places.store.remove(removal)?;
    collect_served(places, removal.policy());
    let short = report
        .removed
        .iter()
        .all(|(_, _, length)| *length <= SHORT_BYTES);
    let room = places.store.store().room();
    let much = room.is_ok_and(|room| room >= PLENTY_BYTES);
    plenty.store(short && much, Ordering::Relaxed);
    if shared {
        places
            .shared_records
            .collect(&places.shared, removal.policy().clone());
    }
    Ok(Collected {
        removed: report.removed.iter().map(|(id, ..)| *id).collect(),
        forgotten: report.forgotten.into_iter().collect(),
    })
}

/// Removes at the memory server what newer versions have replaced, once that is on record here.
fn collect_served(places: &Arc<Places>, policy: &GcPolicy) {
    let Some(served) = &places.served else {
        return;
    };
    let (theirs, policy) = (Arc::clone(places), policy.clone());
    let job = move || {
        // What stays is found the next time; a server that is lost has nothing.
        if let Err(error) = serving::collect(&theirs, &policy) {
            tracing::info!(%error, "nothing is removed at the memory server");
        }
    };
    if let Err(error) = served.pool.run(job) {
        tracing::info!(%error, "nothing is removed at the memory server");
    }
}
