//! The agent of a node: one thread that owns all state and decides; everything that
//! may block (storage, streams, making memory) runs on [`Pool`]s and comes back as
//! [`Work`].
//!
//! Invariants: the commit machine hears of a level only after its bytes were read
//! back; a record's completion is reported in the order of persisting; ranks wait
//! for this thread only in requests that they chose to make, each bounded on their
//! side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Rank, Result, Time, Version};
use outlive_capture::ipc::ToAgent;
use outlive_network::{Endpoint, Event as NetEvent, Identity, JobKey, Options};
use outlive_protocols::commit::{Commit, Levels};
use outlive_protocols::detector::Detector;
use outlive_vault::{NodeStore, Record, Scan, SharedStore};

use crate::contents::Contents;
use crate::events::Woken;
pub(crate) use crate::events::Work;
use crate::faults::Faults;
use crate::flush::Idle;
use crate::ipc_server::{IpcEvent, IpcServer};
use crate::keeper::{Caught, Deposit};
use crate::machines::{Driver, Effect};
use crate::ranks::{Link, Ranks};
use crate::recorder::{KEPT_TAG, Kept, Means, Recorder, owed_of};
use crate::turns::Turns;
use crate::workers::Pool;
use outlive_control::orders::{
    AgentSpec, JobConfig, NodeStatus, Notice, Order, STATUS_WARNINGS_MAX, decode, encode,
};
use outlive_control::told::{Said, Told, is_of_connection};

/// How often housekeeping looks around while something is under way: memory to
/// prepare, policy, waits. Each look that finds nothing new doubles the pause.
const TICK: Duration = Duration::from_millis(5);
/// How often it does while only the rate of versions is of interest.
const TICK_FAR: Duration = Duration::from_millis(25);
/// How often it does when nothing was: what ranks say through shared memory alone
/// (their first call, how much memory they need) is noticed this late.
const TICK_CALM: Duration = Duration::from_millis(250);
/// Events that one turn takes at most.
const TOGETHER_MAX: usize = 16;
/// How long the first version of a start is looked for closely.
const BEGINNING: Duration = Duration::from_secs(5);
/// Messages of the network that may wait for this thread.
const NETWORK_QUEUE: usize = 4096;
/// Messages of ranks that may wait for this thread; beyond that they wait in their
/// sockets.
const RANKS_QUEUE: usize = 4096;
/// Slabs and control blocks that may wait for a worker: more than a node can have.
const SLABS_MAX: usize = 4 * crate::ipc_server::CONNECTIONS_MAX;

/// A version on its way through this node.
pub(crate) struct Round {
    /// The levels to write.
    pub levels: Levels,
    /// Ranks that have captured.
    pub captured: BTreeSet<Rank>,
    /// Longest time a rank was blocked.
    pub blocked_ns: u64,
    /// Bytes captured.
    pub bytes: u64,
    /// The commit machine was told.
    pub told: bool,
    /// A flush reads the slots.
    pub flushing: bool,
    /// Levels of a short version that are written: they are prepared together, with the
    /// last of them or when this time has come, so that their records share their syncs.
    pub written: Vec<Level>,
    pub written_until: Option<Instant>,
    /// It will not be committed; slots go back as they become free.
    pub void: bool,
}

/// What garbage collection must know of versions.
#[derive(Default)]
pub(crate) struct Line {
    /// Every (incarnation, version, level) that is stable.
    pub stable: BTreeSet<(Incarnation, Version, Level)>,
    /// The levels at which a version is or may still become committed.
    pub levels: BTreeMap<(Incarnation, Version), BTreeSet<Level>>,
}

/// A rank's `wait` that cannot be answered yet.
pub(crate) struct Waiting {
    pub rank: Rank,
    pub sequence: u32,
    pub version: Version,
    pub level: Level,
    pub until: Instant,
}

/// An injection that waits for a version, and the ranks held at it.
pub(crate) struct AtVersion {
    pub id: u32,
    pub rank: Option<Rank>,
    pub version: Version,
    pub told: bool,
    pub held: Vec<(Rank, u32)>,
}

/// The opening that is under way.
pub(crate) struct Opening {
    pub incarnation: Incarnation,
    pub since: Instant,
    pub replaced: Vec<NodeId>,
    /// Where this node's bytes came from.
    pub level: Option<Level>,
    pub bytes: u64,
    pub rejected: Vec<outlive_control::orders::Rejected>,
    /// The version whose copy in memory is being checked.
    pub checking: Option<(Incarnation, Version)>,
    /// The versions whose copy in memory is damaged.
    pub damaged: BTreeSet<(Incarnation, Version)>,
}

/// When the next checkpoint is wanted (coordinator only).
pub(crate) struct PolicyState {
    pub last: Instant,
    pub wanted: Option<(Version, Instant)>,
    pub not_before: Option<Instant>,
    pub misses: u32,
    /// Versions in a row that came to nothing because ranks had passed them.
    pub passed: u32,
    pub rounds: u32,
    /// Versions a second, smoothed, and its last sample.
    pub rate: f64,
    pub sample: (Instant, u64),
    /// Versions between the last two samples that differed.
    pub stride: u64,
    /// The next version to want is not near.
    pub far: bool,
    pub now_wanted: bool,
}

/// Everything an agent knows.
pub(crate) struct Agent {
    pub spec: AgentSpec,
    pub me: NodeId,
    pub started: Instant,
    pub endpoint: Arc<Endpoint>,
    pub deposit: Option<Arc<Deposit>>,
    pub store: Arc<NodeStore>,
    pub shared: Arc<SharedStore>,
    pub faults: Arc<Faults>,
    /// The stream to the partner, while nothing is sent on it.
    pub line_out: Arc<Idle>,
    pub outgoing: Pool,
    pub incoming: Pool,
    pub recorder: Recorder,
    /// What lay in node storage when this agent began; taken when the job is known.
    pub found_records: Option<Result<Scan>>,
    /// What an agent before this one left with the keeper instead of on disk.
    pub kept_records: Vec<Record>,
    /// Makes and gives back slabs, in order.
    pub memory_maker: Pool,
    /// The number of the last slab that was begun.
    pub tickets: u64,
    /// Hands descriptors to the keeper, in order.
    pub keeping: Pool,
    pub work: Sender<Work>,
    /// What the network brings, and what of it came while this thread was held at a
    /// fail point.
    pub network: Receiver<NetEvent>,
    pub put_off: VecDeque<NetEvent>,
    pub config: Option<JobConfig>,
    pub commit: Option<Driver<Commit>>,
    pub detector: Option<Driver<Detector>>,
    pub commit_effects: VecDeque<Effect<Commit>>,
    pub detector_effects: VecDeque<Effect<Detector>>,
    pub ranks: Ranks,
    pub strangers: BTreeMap<u64, Link>,
    /// Greetings that came before this agent, started anew, knew what is open.
    pub early: Vec<(u64, u32, ToAgent)>,
    pub contents: Contents,
    pub incarnation: Incarnation,
    pub restored: Option<(Incarnation, Version)>,
    /// Ranks of the job, as the launcher heard.
    pub job_ranks: Option<u32>,
    pub opening: Option<Opening>,
    /// What the launcher was told when the open incarnation had been opened.
    pub opened: Vec<Notice>,
    pub rounds: BTreeMap<Version, Round>,
    /// An arming that waits for room: version, levels, until when.
    pub deferred: Option<(Version, Levels, Instant)>,
    pub stable: [Option<(Incarnation, Version)>; 4],
    pub line: Line,
    pub waits: Vec<Waiting>,
    pub injections: Vec<AtVersion>,
    pub policy: PolicyState,
    /// What was warned of, for `outlive status`.
    pub told: Told,
    /// What is wrong with the node's storage, until it takes a container again.
    pub storage_trouble: Option<Code>,
    pub memory_warned: bool,
    /// Command line and directory of the only rank, once others took themselves for it.
    pub contested: Option<(Vec<u8>, PathBuf)>,
    /// There is memory for one slot a rank: it is a way to the other levels, no level.
    pub staging: bool,
    /// Ranks that wait for memory to capture into, each at most once.
    pub asks: Vec<crate::asks::Ask>,
    pub collecting: bool,
    /// What one has found that ended while an incarnation was opening.
    pub collected: Option<Result<outlive_vault::GcReport>>,
    /// When a worker was last sent to look up the bytes in node storage and the free bytes
    /// there, and what was found.
    pub disk_usage: (Instant, (u64, u64)),
    /// A version became stable: what it replaces is removed when all its levels are
    /// decided, or [`COLLECT_AFTER`] this.
    pub collect_due: Option<(Version, Instant)>,
    /// The last record could not be written.
    pub unwritable: bool,
    pub isolated_until: Option<Instant>,
    pub finishing: Option<Instant>,
    /// The launcher knows that nothing is to be waited for here.
    pub finished: bool,
    pub over: bool,
    /// Something happened since the last look.
    pub stirred: bool,
    /// A slot may have become free, so that the next version can be wanted at once.
    pub look_now: bool,
    /// How long this thread's turns take.
    pub turns: Turns,
    /// What the last look saw, and how many in a row saw the same.
    pub looks: (crate::policy::Sight, u32),
}

/// Runs the agent of a node until the launcher orders its end. Started by the
/// keeper; see [`crate::keeper`].
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
    let (net_events, net) = bounded::<NetEvent>(NETWORK_QUEUE);
    let (rank_events, ranks) = bounded::<IpcEvent>(RANKS_QUEUE);
    let (work, done) = unbounded::<Work>();
    let mut agent = Agent::new(spec, (net_events, net), work)?;
    agent.turns.resumed = Some(resumed);
    let _server = IpcServer::start(&agent.spec.socket, rank_events)?;
    agent.hello();
    agent.endpoint.flush();
    agent.turn_until_over(&ranks, &done, &termination);
    // A server that waits for room must not be waited for.
    drop(ranks);
    Ok(())
}

/// An event that waits already.
fn next_of(
    net: &Receiver<NetEvent>,
    ranks: &Receiver<IpcEvent>,
    done: &Receiver<Work>,
) -> Option<Woken> {
    let work = || done.try_recv().map(Woken::Work);
    let rank = || ranks.try_recv().map(Woken::Rank);
    let network = net.try_recv().map(Woken::Network);
    network.or_else(|_| rank()).or_else(|_| work()).ok()
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

impl Agent {
    pub(crate) fn new(
        spec: AgentSpec,
        (events, network): (Sender<NetEvent>, Receiver<NetEvent>),
        work: Sender<Work>,
    ) -> Result<Agent> {
        let deposit = Deposit::from_env()?.map(Arc::new);
        let mut left = match &deposit {
            Some(deposit) => deposit.adopt()?,
            None => Vec::new(),
        };
        let (kept, kept_records) = kept_records(&mut left, deposit.as_deref(), spec.job_hash)?;
        let (ranks, troubles) = crate::ranks::adopt(left);
        let key = JobKey::load(&spec.key_file)?;
        let (store, refused) = NodeStore::create_or_read(&spec.node_dir, spec.job_hash)?;
        let shared = SharedStore::at(&spec.job_dir.join("shared"), spec.job_hash);
        let restarts = deposit.as_ref().map_or(0, |kept| kept.agent_restarts());
        let identity = Identity {
            peer: spec.node,
            epoch: spec.epoch + u64::from(restarts),
        };
        let options = Options {
            bind: (spec.bind, 0).into(),
            encrypt_streams: spec.encrypt,
            ..Options::default()
        };
        let endpoint = Endpoint::bind(identity, spec.job_hash, key, options, events)?;
        endpoint.set_address(NodeId::LAUNCHER, spec.launcher);
        let now = Instant::now();
        let disk_usage = (now, crate::policy::disk_usage(&store));
        let found_records = Some(store.records().scan().map_err(Error::from));
        let (store, faults) = (Arc::new(store), Arc::new(Faults::default()));
        let recorder = Recorder::start(Means {
            store: Arc::clone(&store),
            faults: Arc::clone(&faults),
            job_hash: spec.job_hash,
            owed: owed_of(&kept_records, &store),
            kept,
            marked: [Incarnation(0); 2],
            work: work.clone(),
        })?;
        if let Some(error) = refused {
            // Told as what comes back from storage.
            let _ = work.send(Work::Kept {
                result: Err(error.into()),
            });
        }
        Ok(Agent {
            me: spec.node,
            started: now,
            endpoint: Arc::new(endpoint),
            deposit,
            store,
            shared: Arc::new(shared),
            faults,
            line_out: Arc::default(),
            outgoing: Pool::start("out", crate::workers::THREADS)?,
            incoming: Pool::start("in", crate::workers::THREADS)?,
            recorder,
            found_records,
            kept_records,
            memory_maker: Pool::start_with("memory", 1, SLABS_MAX)?,
            tickets: 0,
            keeping: Pool::start_with("keep", 1, SLABS_MAX)?,
            work,
            network,
            put_off: VecDeque::new(),
            config: None,
            commit: None,
            detector: None,
            commit_effects: VecDeque::new(),
            detector_effects: VecDeque::new(),
            ranks,
            strangers: BTreeMap::new(),
            early: Vec::new(),
            contents: Contents::default(),
            incarnation: Incarnation(0),
            restored: None,
            job_ranks: None,
            opening: None,
            opened: Vec::new(),
            rounds: BTreeMap::new(),
            deferred: None,
            stable: [None; 4],
            line: Line::default(),
            waits: Vec::new(),
            injections: Vec::new(),
            policy: PolicyState {
                last: now,
                wanted: None,
                not_before: None,
                misses: 0,
                passed: 0,
                rounds: 0,
                rate: 0.0,
                sample: (now, 0),
                stride: 0,
                far: false,
                now_wanted: false,
            },
            told: Told::of(troubles),
            storage_trouble: None,
            memory_warned: false,
            contested: None,
            staging: false,
            asks: Vec::new(),
            collecting: false,
            collected: None,
            disk_usage,
            collect_due: None,
            unwritable: false,
            isolated_until: None,
            finishing: None,
            finished: false,
            over: false,
            stirred: false,
            look_now: false,
            turns: Turns::new(),
            looks: (crate::policy::Sight::default(), 0),
            spec,
        })
    }

    fn turn_until_over(
        &mut self,
        ranks: &Receiver<IpcEvent>,
        done: &Receiver<Work>,
        termination: &Caught,
    ) {
        let mut next_tick = Instant::now() + TICK;
        let net = self.network.clone();
        while !self.over {
            self.stirred = false;
            let wake = self
                .next_deadline()
                .map_or(next_tick, |at| at.min(next_tick));
            let wait = match self.put_off.is_empty() {
                true => wake.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            let woken = select! {
                recv(net) -> event => event.map_or(Woken::Over, Woken::Network),
                recv(ranks) -> event => event.map_or(Woken::Over, Woken::Rank),
                recv(done) -> work => work.map_or(Woken::Nothing, Woken::Work),
                default(wait) => Woken::Nothing,
            };
            self.turns.begin();
            let what = woken.what();
            self.on_woken(woken);
            // What waits already goes with it: its answers leave together.
            for _ in 1..TOGETHER_MAX {
                let Some(more) = next_of(&net, ranks, done).filter(|_| !self.over) else {
                    break;
                };
                self.carry_out();
                self.on_woken(more);
            }
            self.fire_deadlines();
            // A look that is nearly due goes with what woke this thread anyway.
            if Instant::now() + self.pause() / 4 >= next_tick {
                if termination.has_come() {
                    return self.kill_ranks();
                }
                self.tick();
                next_tick = Instant::now() + self.until_next_look();
            }
            self.carry_out();
            self.recorder.turn(!net.is_empty() || !done.is_empty());
            if self.stirred {
                self.looks.1 = 0;
                next_tick = next_tick.min(Instant::now() + TICK);
            }
            if std::mem::take(&mut self.look_now) {
                next_tick = Instant::now();
            }
            self.endpoint.flush();
            self.end_turn(what);
        }
        self.linger();
    }

    fn on_woken(&mut self, woken: Woken) {
        // What came first goes first.
        while let Some(event) = self.put_off.pop_front() {
            self.on_network(event);
        }
        match woken {
            Woken::Network(event) => self.on_network(event),
            Woken::Rank(event) => {
                self.stirred = true;
                self.on_rank_event(event);
            }
            Woken::Work(work) => {
                self.stirred = true;
                self.on_work(work);
            }
            Woken::Nothing => {}
            Woken::Over => self.over = true,
        }
    }

    /// A turn that took longer than a heartbeat may is a fault, and is told.
    fn end_turn(&mut self, what: &'static str) {
        let bounds = self.config.as_ref().map(|config| config.bounds);
        let heartbeat = Duration::from_millis(bounds.unwrap_or_default().heartbeat_ms);
        if let Some(error) = self.turns.end(self.me.0, what, heartbeat) {
            self.warn(error);
        }
    }

    /// How long housekeeping may wait: not long while something is under way that no
    /// event will tell of.
    fn until_next_look(&mut self) -> Duration {
        let sight = self.sight();
        self.looks = match self.looks {
            (last, count) if last == sight => (sight, count.saturating_add(1)),
            _ => (sight, 0),
        };
        if self.is_waiting_for_room() || self.is_beginning() {
            return TICK;
        }
        let pause = self.pause();
        let first = self.waits.iter().map(|waiting| waiting.until);
        // A multiple that is far by the rate needs a look now and then, for the rate.
        let due = self.checkpoint_due().map(|at| match self.policy.far {
            // Until the rate is known, nobody can say how far.
            true if self.policy.rate == 0.0 => at.max(Instant::now() + TICK),
            true => at.max(Instant::now() + TICK_FAR),
            false => at,
        });
        let first = first.chain(due).min();
        first
            .map_or(pause, |at| at.saturating_duration_since(Instant::now()))
            .clamp(TICK, pause)
    }

    /// True while the first version of a start is awaited, at its beginning: ranks say by
    /// shared memory alone how much memory they need and when they begin to call, and a
    /// short program would be over before that was noticed.
    fn is_beginning(&self) -> bool {
        let first = (self.incarnation, Version(0));
        self.line.levels.range(first..).next().is_none() && self.policy.last.elapsed() < BEGINNING
    }

    /// The pause after so many looks that found nothing new.
    fn pause(&self) -> Duration {
        TICK.saturating_mul(1 << self.looks.1.min(16))
            .min(TICK_CALM)
    }

    /// The clock of the machines.
    pub(crate) fn now(&self) -> Time {
        self.started.elapsed().into()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let now = self.now();
        let commit = self.commit.as_ref().and_then(|driver| driver.deadline(now));
        let detector = self
            .detector
            .as_ref()
            .and_then(|driver| driver.deadline(now));
        let first = [commit, detector].into_iter().flatten().min()?;
        self.started.checked_add(first.into())
    }

    /// Number of node slots.
    pub(crate) fn nodes(&self) -> u32 {
        self.config
            .as_ref()
            .map_or(1, |config| config.members.len() as u32)
    }

    /// Tells the launcher; a lost launcher is noticed by the keeper.
    pub(crate) fn tell(&self, notice: &Notice) {
        match encode(notice) {
            Ok(bytes) => {
                if let Err(error) = self.endpoint.post(NodeId::LAUNCHER, &bytes) {
                    tracing::warn!(%error, "the launcher cannot be told");
                }
            }
            Err(error) => tracing::error!(%error, "a notice cannot be encoded"),
        }
    }

    /// Something went wrong that does not stop the job (P4): remembered and reported.
    pub(crate) fn warn(&mut self, error: Error) {
        // What the loss of a node would explain is told by the launcher, if nothing does.
        let other = matches!(error.entity(), Entity::Node(node) if *node != self.me.0);
        match self.told.add(None, error.clone()) {
            _ if other && is_of_connection(&error) => {
                tracing::info!(node = self.me.0, %error, "a peer's connection");
            }
            Said::Again => tracing::info!(node = self.me.0, %error, "warning, again"),
            Said::New | Said::Grown(..) => tracing::warn!(node = self.me.0, %error, "warning"),
        }
        self.tell(&Notice::Warning(error));
    }

    /// Node storage refuses something: told once, until it works again; what that costs
    /// is told version by version by the coordinator.
    pub(crate) fn warn_of_storage(&mut self, error: Error) {
        if self.storage_trouble.replace(error.code()) == Some(error.code()) {
            return tracing::info!(node = self.me.0, %error, "storage, again");
        }
        self.warn(error);
    }

    /// What the status says of warnings: each kind with its count, the newest ones.
    fn warnings(&self) -> Vec<Error> {
        let entries = self.told.entries();
        let skipped = entries.len().saturating_sub(STATUS_WARNINGS_MAX);
        entries[skipped..]
            .iter()
            .map(|entry| entry.error.clone())
            .collect()
    }

    fn on_network(&mut self, event: NetEvent) {
        match event {
            NetEvent::Message { from, bytes } if from.peer == NodeId::LAUNCHER => {
                match decode::<Order>(&bytes) {
                    Ok(order) => {
                        // The launcher's regular question is nothing new.
                        self.stirred |= !matches!(order, Order::Status);
                        self.on_order(order);
                    }
                    Err(error) => self.warn(error),
                }
            }
            NetEvent::Message { from, bytes } => self.on_peer_message(from, &bytes),
            NetEvent::Stream {
                from,
                header,
                stream,
            } => self.on_stream(from, header, stream),
            NetEvent::Up { identity, .. } => self.on_peer_up(identity),
            NetEvent::Down { peer, reason } => self.on_peer_down(peer, reason),
            NetEvent::Refused { addr, error } => {
                // That a peer cannot be reached is a matter of its heartbeats, which the
                // detector judges; at the end of a job they go one after the other.
                let silent = matches!(error.code(), Code::AgentUnreachable | Code::AgentTimeout);
                let stranger = *error.entity() == Entity::Address(addr.to_string());
                if silent && !(stranger && error.code() == Code::AgentTimeout) {
                    return tracing::info!(%addr, %error, "no connection");
                }
                self.warn(error);
            }
        }
    }

    /// A snapshot for `outlive status`.
    pub(crate) fn status(&mut self) -> NodeStatus {
        let ranks = self.ranks.iter().filter_map(|entry| {
            let link = entry.link.as_ref()?;
            let called = entry
                .block()
                .and_then(|block| block.called().checked_sub(1));
            Some((entry.rank, link.pid, called.map(Version)))
        });
        NodeStatus {
            incarnation: self.incarnation.0,
            ranks: ranks.collect(),
            stable: self.stable.map(|stable| stable.map(|(_, version)| version)),
            memory: (self.ranks.memory(), self.spec.memory_bytes),
            disk: self.disk_usage(),
            agent_restarts: self
                .deposit
                .as_ref()
                .map_or(0, |kept| kept.agent_restarts()),
            warnings: self.warnings(),
        }
    }

    /// Gives the last messages a chance to leave.
    fn linger(&mut self) {
        self.endpoint.flush();
        let until = Instant::now() + Duration::from_millis(500);
        while self.endpoint.queued(NodeId::LAUNCHER) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
