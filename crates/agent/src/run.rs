//! The agent of a node: one thread that runs the node ([`outlive_control::node`]); everything
//! that may block (storage, streams, making memory) runs on [`Pool`]s and comes back as
//! [`Work`].

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, bounded, unbounded};
use outlive_base::{Code, Entity, Error, Incarnation, NodeId, Result, Time};
use outlive_capture::control::{ControlBlock, Side};
use outlive_capture::slab::Slab;
use outlive_control::node::shell::{Link, PeerMessage};
use outlive_control::node::{Hello, Input, Node, Ranks, Start, overwritten};
use outlive_control::orders::{AgentSpec, Opened, Order, decode};
use outlive_copies::faults::{Faults, OfShared};
use outlive_copies::kept::{KEPT_TAG, Kept};
use outlive_copies::memory::{Block, Memory, Work, share};
use outlive_copies::places::Places;
use outlive_copies::record_writer::{Means, RecordWriter, owed_of};
use outlive_copies::reports::Reports;
use outlive_copies::served::Served;
use outlive_copies::shared_records::{self, SharedRecords};
use outlive_copies::storage;
use outlive_copies::workers::{Pool, THREADS};
use outlive_keeper::{Caught, Deposit};
use outlive_network::{Endpoint, Event as NetEvent, Identity, JobKey, Options};
use outlive_objects::Objects;
use outlive_vault::{Directory, Faulty, Record, Store, Vault, WriteError};

use crate::daemon::Daemon;
use crate::health::Sensors;
use crate::ipc_server::{CONNECTIONS_MAX, IpcEvent, IpcServer};
use crate::turns::Turns;
use crate::word;
use crate::world::{Process, World};

/// Events that one turn takes at most.
const TOGETHER_MAX: usize = 16;
/// Messages of ranks that may wait for this thread; beyond that they wait in their
/// sockets.
const RANKS_QUEUE: usize = 4096;
/// Slabs and control blocks that may wait for a worker: more than a node can have.
const SLABS_MAX: usize = 4 * CONNECTIONS_MAX;
/// How long the last messages may take to leave.
const LINGER: Duration = Duration::from_millis(500);

/// What woke the agent's thread.
enum Woken {
    Network(NetEvent),
    Rank(IpcEvent),
    Work(Work),
    /// Its time to look around has come.
    Nothing,
    /// Nobody is left to serve.
    Over,
}

/// Runs the agent of a node until the launcher orders its end. Started by the
/// keeper; see [`outlive_keeper`].
///
/// SIGTERM ends it together with its ranks: it comes when the job is over or the
/// launcher is gone, and ranks that nobody supervises would meet those of the next
/// run.
pub fn run(spec: AgentSpec) -> Result<()> {
    // Before any thread is started, so that all of them leave the signal alone.
    let termination = Caught::catch(libc::SIGTERM)
        .map_err(|error| Error::internal(format!("cannot wait for SIGTERM: {error}")))?;
    let resumed = Caught::catch(libc::SIGCONT)
        .map_err(|error| Error::internal(format!("cannot wait for SIGCONT: {error}")))?;
    let (rank_events, ranks) = bounded::<IpcEvent>(RANKS_QUEUE);
    let socket = spec.socket.clone();
    let started = Instant::now();
    let (mut start, done) = start_of(spec)?;
    start.shell.turns.resumed = Some(resumed);
    let rank_events = Reports::new(rank_events, start.shell.network.waker());
    let _server = IpcServer::start(&socket, rank_events)?;
    let mut agent = Agent {
        ranks,
        done,
        started,
        node: Node::new(start),
        turn: 0,
    };
    agent.node.shell().network.flush();
    agent.turn_until_over(&termination);
    // A server that waits for room must not be waited for.
    drop(agent);
    Ok(())
}

/// The memory in which records wait that the disk does not take, and what is in it.
fn kept_records(
    left: &mut Vec<(String, OwnedFd)>,
    deposit: Option<&Deposit>,
    job_hash: u64,
) -> Result<(Option<Kept>, Vec<Record>)> {
    let Some(deposit) = deposit else {
        return Ok((None, Vec::new()));
    };
    if let Some(at) = left.iter().position(|(tag, _)| tag == KEPT_TAG) {
        let (kept, records) = Kept::adopt(left.swap_remove(at).1, job_hash);
        return Ok((Some(kept), records));
    }
    let (kept, fd) = Kept::create()?;
    deposit.keep(KEPT_TAG, fd.as_fd())?;
    Ok((Some(kept), Vec::new()))
}

/// What the agent before this one told the launcher of the incarnation that it opened.
fn word_of(left: &mut Vec<(String, OwnedFd)>) -> Option<Opened> {
    let at = left.iter().position(|(tag, _)| tag == word::WORD_TAG)?;
    word::read(left.swap_remove(at).1)
}

/// What a restarted agent finds in the keeper's hands.
fn adopt(kept: Vec<(String, OwnedFd)>) -> (Ranks<World>, Vec<Error>) {
    let mut ranks = Ranks::default();
    let mut troubles = Vec::new();
    for (tag, fd) in kept {
        if let Err(error) = adopt_one(&mut ranks, &tag, fd) {
            troubles.push(match error {
                error if error.code() == Code::SharedMemory => {
                    let reason = format!("kept memory {tag} is not used: {}", error.reason());
                    overwritten(Entity::Call, &reason)
                }
                error => error,
            });
        }
    }
    (ranks, troubles)
}

fn adopt_one(ranks: &mut Ranks<World>, tag: &str, fd: OwnedFd) -> Result<()> {
    if tag.starts_with("control-") {
        let words = ControlBlock::map(fd.as_fd(), Side::Agent).map_err(share)?;
        ranks.adopt_block(Block { words, fd });
    } else if tag.starts_with("slab-") {
        let slab = Slab::adopt(fd.as_fd()).map_err(share)?;
        ranks.adopt_slab(Memory { slab, fd })?;
    }
    Ok(())
}

/// The records of node storage; true if others are damaged, which are left out.
fn records_of(store: &Vault) -> Result<(Vec<Record>, bool)> {
    let scan = store.records().scan()?;
    for key in &scan.damaged {
        let path = store.records().locate(key);
        tracing::warn!(path, "a damaged record is ignored");
    }
    Ok((scan.records, !scan.damaged.is_empty()))
}

/// Node storage and shared storage, with the faults that may be ordered in front of them; and
/// what node storage refuses.
fn vaults(spec: &AgentSpec, faults: &Arc<Faults>) -> Result<(Vault, Vault, Option<WriteError>)> {
    let (store, refused) = Directory::own_or_read(&spec.node_dir)?;
    let store = Faulty::new(Arc::new(store), Arc::<Faults>::clone(faults));
    let shared: Arc<dyn Store> = match &spec.object_store {
        None => Arc::new(Directory::of_all(&Directory::shared_in(&spec.job_dir))),
        Some(place) => Arc::new(Objects::open(&place.parse()?, &spec.job)?),
    };
    let shared = Faulty::new(shared, Arc::new(OfShared(Arc::clone(faults))));
    Ok((
        Vault::own(Arc::new(store), spec.job_hash),
        Vault::shared(Arc::new(shared), spec.job_hash),
        refused,
    ))
}

/// Where peers reach the agent, and what it takes of them.
fn listening(spec: &AgentSpec) -> Options {
    Options {
        bind: (spec.bind, 0).into(),
        ports: spec.ports,
        encrypt_streams: spec.encrypt,
        message_bytes_max: outlive_control::orders::MESSAGE_BYTES_MAX,
        queue_bytes_max: outlive_control::orders::QUEUE_BYTES_MAX,
        ..Options::default()
    }
}

/// What the agent before this one had begun in shared storage is finished; true if that cannot be
/// read.
fn finished(
    found: &mut Result<(Vec<Record>, bool)>,
    (store, shared): (&Vault, &Vault),
    troubles: &mut Vec<Error>,
) -> bool {
    let Ok((found, damaged)) = found else {
        return false;
    };
    let Err(unfinished) = shared_records::finish_shared(found, store, shared, *damaged) else {
        return false;
    };
    troubles.push(unfinished.error);
    unfinished.unseen
}

/// True if ranks have left files of their own. A directory that cannot be listed may hold some.
fn has_routed(spec: &AgentSpec) -> bool {
    let routed = std::fs::read_dir(Directory::routed(&spec.node_dir));
    routed.map_or(true, |mut found| found.next().is_some())
}

/// What a node begins with.
fn start_of(spec: AgentSpec) -> Result<(Start<World>, Receiver<Work>)> {
    let deposit = Deposit::from_env()?.map(Arc::new);
    let left = deposit.as_ref().map(|deposit| deposit.adopt());
    let mut left = left.transpose()?.unwrap_or_default();
    let (kept, kept_records) = kept_records(&mut left, deposit.as_deref(), spec.job_hash)?;
    let opened = word_of(&mut left);
    let (ranks, mut troubles) = adopt(left);
    let key = JobKey::load(&spec.key_file)?;
    let served = Served::of(&spec, &key)?;
    let faults = Arc::new(Faults::default());
    let (store, shared, refused) = vaults(&spec, &faults)?;
    let restarts = deposit.as_ref().map(|kept| kept.agent_restarts());
    let identity = Identity {
        peer: spec.node,
        epoch: spec.epoch + u64::from(restarts.unwrap_or(0)),
    };
    let (endpoint, network) =
        Endpoint::bind_driven(identity, spec.job_hash, key, listening(&spec))?;
    let (work, done) = unbounded::<Work>();
    let work = Reports::new(work, network.waker());
    endpoint.set_address(NodeId::LAUNCHER, spec.launcher);
    let disk_usage = storage::disk_usage(&store);
    let mut found_records = records_of(&store);
    let began = restarts > Some(0) && spec.node == spec.coordinator;
    let shared_unseen = began && finished(&mut found_records, (&store, &shared), &mut troubles);
    let store = Arc::new(store);
    let shared_records = SharedRecords::start()?;
    let recorder = RecordWriter::start(Means {
        store: Arc::clone(&store),
        job_hash: spec.job_hash,
        owed: owed_of(&kept_records, &store),
        kept,
        marked: Incarnation(0),
        work: work.clone(),
        shared: shared_records.clone(),
    })?;
    if let Some(error) = refused {
        // Told as what comes back from storage.
        let _ = work.send(Work::Kept {
            result: Err(error.into()),
        });
    }
    let hello = Hello {
        address: endpoint.local_addr(),
        pid: std::process::id(),
        keeper_pid: rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32),
    };
    let places = Places {
        node: spec.node,
        job_hash: spec.job_hash,
        store,
        files: Directory::routed(&spec.node_dir),
        shared: Arc::new(shared),
        shared_records,
        served,
        endpoint: Arc::new(endpoint),
        line_out: Default::default(),
        faults,
    };
    let shell = World {
        places: Arc::new(places),
        deposit,
        outgoing: Pool::start("out", THREADS)?,
        incoming: Pool::start("in", THREADS)?,
        recorder,
        memory_maker: Pool::start_with("memory", 1, SLABS_MAX)?,
        scrubber: Pool::start_with("scrub", 1, 1)?,
        transferrer: Pool::start_with("transfer", 1, 1)?,
        keeping: Pool::start_with("keep", 1, SLABS_MAX)?,
        work,
        network,
        put_off: VecDeque::new(),
        processes: BTreeMap::new(),
        traffic: Default::default(),
        sensors: Sensors::new(spec.node_dir.clone()),
        daemon: Daemon::new(&spec),
        turns: Turns::new(),
        plenty: Default::default(),
        has_routed: has_routed(&spec),
        told_too_long: false,
    };
    let start = Start {
        spec,
        shell,
        now: Time::ZERO,
        ranks,
        troubles,
        found_records: found_records.map(|(found, _)| found),
        kept_records,
        opened,
        shared_unseen,
        restarts,
        disk_usage,
        hello,
        commit: Default::default(),
        planted: None,
    };
    Ok((start, done))
}

/// The thread that runs the node.
struct Agent {
    node: Node<World>,
    started: Instant,
    ranks: Receiver<IpcEvent>,
    done: Receiver<Work>,
    /// Turns taken; wraps.
    turn: u32,
}

impl Agent {
    fn now(&self) -> Time {
        self.started.elapsed().into()
    }

    fn turn_until_over(&mut self, termination: &Caught) {
        while !self.node.is_over() {
            let woken = self.wait();
            self.node.shell().turns.begin();
            let Some(what) = self.take(woken) else {
                return self.linger();
            };
            // What waits already goes with it: its answers leave together.
            for _ in 1..TOGETHER_MAX {
                let Some(more) = self.next(0).filter(|_| !self.node.is_over()) else {
                    break;
                };
                self.take(more);
            }
            let now = self.now();
            if self.node.is_look_due(now) && termination.has_come() {
                return self.node.kill_ranks();
            }
            self.node.on_time(now);
            let done = !self.done.is_empty();
            let world = self.node.shell();
            world.recorder.turn(done || world.network.has_event());
            world.network.flush();
            self.end_turn(what);
        }
        self.linger();
    }

    fn wait(&mut self) -> Woken {
        // Each source is asked first in its turn: a flood of one must not hide the others.
        self.turn = self.turn.wrapping_add(1);
        if let Some(woken) = self.next(self.turn) {
            self.node.shell().network.wait(Duration::ZERO);
            return woken;
        }
        let wake = self.node.wake_at();
        let wait = match self.node.shell().put_off.is_empty() {
            true => wake.since(self.now()).into(),
            false => Duration::ZERO,
        };
        self.node.shell().network.wait(wait);
        self.next(0).unwrap_or(Woken::Nothing)
    }

    /// An event that waits already; this source is asked first.
    fn next(&mut self, first: u32) -> Option<Woken> {
        (0..3).find_map(|at| match (first % 3 + at) % 3 {
            0 => self.node.shell().network.next_event().map(Woken::Network),
            1 => match self.ranks.try_recv() {
                Ok(event) => Some(Woken::Rank(event)),
                Err(TryRecvError::Disconnected) => Some(Woken::Over),
                Err(TryRecvError::Empty) => None,
            },
            _ => self.done.try_recv().map(Woken::Work).ok(),
        })
    }

    /// Gives the node what has come; what that was, in words, or `None` at the end.
    fn take(&mut self, woken: Woken) -> Option<&'static str> {
        // What came first goes first.
        while let Some(event) = self.node.shell().put_off.pop_front() {
            self.on_network(event);
        }
        let what = match woken {
            Woken::Network(event) => self.on_network(event),
            Woken::Rank(event) => self.on_rank(event),
            Woken::Work(work) => self.give(Input::Done(work)),
            Woken::Nothing => "housekeeping",
            Woken::Over => return None,
        };
        Some(what)
    }

    fn give(&mut self, input: Input<Memory>) -> &'static str {
        let what = input.what();
        self.node.on(self.now(), input);
        what
    }

    fn on_network(&mut self, event: NetEvent) -> &'static str {
        let input = match event {
            NetEvent::Message { from, bytes } if from.peer == NodeId::LAUNCHER => {
                match decode::<Order>(&bytes) {
                    Ok(order) => {
                        let traffic = &mut self.node.shell().traffic;
                        traffic.receives(order.is_sign_of_life(), bytes.len());
                        Input::Order(order)
                    }
                    Err(error) => Input::Trouble(error),
                }
            }
            NetEvent::Message { from, bytes } => match decode::<PeerMessage>(&bytes) {
                Ok(message) => {
                    let traffic = &mut self.node.shell().traffic;
                    traffic.receives(message.is_sign_of_life(), bytes.len());
                    Input::Peer {
                        from: from.peer,
                        message,
                    }
                }
                Err(error) => Input::Trouble(error),
            },
            NetEvent::Stream {
                from,
                header,
                stream,
            } => match self.node.shell().on_stream(from, &header, stream) {
                Ok(()) => return "what came over the network",
                Err(error) => Input::Trouble(error),
            },
            NetEvent::Up { identity, .. } => Input::Up(identity.peer),
            NetEvent::Down { peer, reason } => {
                // The launcher knows from the keeper whether the node or only its agent
                // is gone; silence is the detector's business.
                tracing::info!(peer = peer.peer.0, ?reason, "a connection ended");
                return "what came over the network";
            }
            NetEvent::Refused { addr, error } => {
                // That a peer cannot be reached is a matter of its heartbeats, which the
                // detector judges; at the end of a job they go one after the other.
                let silent = matches!(error.code(), Code::AgentUnreachable | Code::AgentTimeout);
                let stranger = *error.entity() == Entity::Address(addr.to_string());
                if silent && !(stranger && error.code() == Code::AgentTimeout) {
                    tracing::info!(%addr, %error, "no connection");
                    return "what came over the network";
                }
                Input::Trouble(error)
            }
        };
        self.give(input)
    }

    fn on_rank(&mut self, event: IpcEvent) -> &'static str {
        match event {
            IpcEvent::Connected {
                token,
                socket,
                pid,
                pidfd,
            } => {
                let process = Process { socket, pidfd };
                self.node.shell().processes.insert(token, process);
                self.give(Input::Joined(Link { token, pid }))
            }
            IpcEvent::Message {
                token,
                sequence,
                message,
            } => self.give(Input::Said {
                token,
                sequence,
                message,
            }),
            IpcEvent::Gone { token, exited } => {
                let what = self.give(Input::Gone { token, exited });
                if exited {
                    self.node.shell().processes.remove(&token);
                }
                what
            }
            IpcEvent::Trouble(error) => self.give(Input::Trouble(error)),
        }
    }

    /// A turn that took longer than a heartbeat may is a fault, and is told.
    fn end_turn(&mut self, what: &'static str) {
        let heartbeat = self.node.heartbeat().into();
        let world = self.node.shell();
        let node = world.places.node.0;
        if let Some(error) = world.turns.end(node, what, heartbeat) {
            self.give(Input::Trouble(error));
        }
    }

    /// Gives the last messages a chance to leave.
    fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        let world = self.node.shell();
        world.network.flush();
        while world.places.endpoint.queued(NodeId::LAUNCHER) > 0 && Instant::now() < until {
            world.network.wait(Duration::from_millis(1));
            // Nobody takes them any more.
            while world.network.next_event().is_some() {}
        }
    }
}
