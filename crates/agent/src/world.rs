//! The world of a node: descriptors, threads, storage and connections behind
//! [`outlive_control::node::shell::Shell`].
//!
//! Invariants: a record's completion is reported in the order of persisting; nothing here
//! waits but where an injection wants it: at a fail point, and a moment before the node is cut off.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use outlive_base::control_block::Identity;
use outlive_base::ipc::ToRank;
use outlive_base::{Error, Incarnation, NodeId, Rank, Result, Version};
use outlive_capture::control::ControlBlock;
use outlive_capture::ipc::Connection;
use outlive_capture::slab::Slab;
use outlive_control::node::HOLD_MAX;
use outlive_control::node::shell::{Ask, CommandLine, Link, PeerMessage, Shell, With};
use outlive_control::orders::{Fault, Member, Notice, Opened, Order, decode, encode};
use outlive_control::traffic::Traffic;
use outlive_copies::memory::{Block, Memory, Work, control_tag, share, slab_tag};
use outlive_copies::places::Places;
use outlive_copies::record_writer::RecordWriter;
use outlive_copies::reports::Reports;
use outlive_copies::storage;
use outlive_copies::workers::Pool;
use outlive_keeper::Deposit;
use outlive_network::{Driver, Event as NetEvent};
use rustix::process::{Pid, Signal};

use crate::daemon::Daemon;
use crate::health::Sensors;
use crate::ipc_server::is_readable;
use crate::stacks;
use crate::turns::Turns;
use crate::word;

/// What may be put off at a fail point; then its wait is over.
const PUT_OFF_MAX: usize = 1 << 16;

/// How long an agent that is to be cut off waits at most until what it has said is under way, and
/// how often it looks.
const SAY_MAX: Duration = Duration::from_millis(200);
const SAY_STEP: Duration = Duration::from_millis(1);

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
    /// The user's own command on this node.
    pub daemon: Daemon,
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
    pub(super) fn protected(&self, begun: Result<()>) {
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

    /// Where a rank writes its own files of a version.
    pub(super) fn routed(&self, incarnation: Incarnation, version: Version, rank: Rank) -> PathBuf {
        let name = format!("i{}-v{}-r{}", incarnation.0, version.0, rank.0);
        self.places.files.join(name)
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

    fn leave_word(&mut self, opened: &Opened) {
        match word::write(opened) {
            Ok(fd) => self.keep(word::WORD_TAG.to_owned(), Ok(fd)),
            Err(error) => tracing::info!(%error, "no word is left with the keeper"),
        }
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
            Ask::Daemon(act) => self.daemon.act(act, &self.work),
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
