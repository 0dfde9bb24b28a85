//! A member's life: it follows, and serves the jobs while it leads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use openraft::error::{InitializeError, RaftError};
use openraft::{Config, ServerState, SnapshotPolicy};
use outlive_base::{Code, Entity, Error, JobName, NodeId, Ports, Result, Time, count};
use outlive_control::orders;
use outlive_control::turns::{Answer, Ask, Batch, Doubt, Service, Tier, Word};
use outlive_launch::coordinator::{self as place, Address, Keys};
use outlive_launch::files;
use outlive_network::{Endpoint, Event, Identity, JobKey, Options};
use tokio::runtime::Runtime;

use crate::group::{self, Member};
use crate::machine::Machine;
use crate::members::{self, Peers, Wire};
use crate::metrics::{self, About, Metrics};
use crate::state::State;
use crate::{Answers, Raft};

/// What stands for a job's hash where members talk to each other.
const HASH: u64 = 0x6f75_746c_6976_6532;
/// So long may a majority take: a job that has no answer by then writes anyway.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);
/// The service looks so often at what has lasted too long, and writes what it knows.
const TURN: Duration = Duration::from_secs(1);
/// Who does not lead looks so often whether it does.
const IDLE: Duration = Duration::from_millis(200);
/// Messages that may wait.
const QUEUE: usize = 4_096;
/// Words of one entry of the log, and entries of one message: such a message stays far below
/// what may be sent.
const WORDS_MAX: usize = 64;
const ENTRIES_MAX: u64 = 32;
/// Bytes of a snapshot that are sent at once.
const CHUNK_BYTES: u64 = 256 << 10;
/// After so many entries a snapshot is taken, and so many before it are kept for members that
/// are a little behind.
const SNAPSHOT_EVERY: u64 = 1_000;
const KEPT_ENTRIES: u64 = 200;

/// How a coordinator is reached, and by how many it is kept.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Where jobs and other members reach it.
    pub bind: IpAddr,
    /// At which ports.
    pub ports: Ports,
    /// 1, or 3 of which two must live.
    pub members: u8,
    /// A file for numbers in the text format of Prometheus, or a directory for it.
    pub metrics: Option<PathBuf>,
}

/// A member that runs.
struct Running<'a> {
    store: &'a Path,
    choice: &'a Choice,
    /// Of all jobs, asked by the network's thread too.
    keys: Arc<Mutex<Keys>>,
    member: Member,
    /// Where other members find this one, if there are others.
    address: Option<Address>,
    machine: Machine,
    raft: Raft,
    runtime: Runtime,
    metrics: RefCell<Option<Metrics>>,
    /// Jobs of which was said that their writes to a tier are not what they say.
    named: RefCell<BTreeSet<(JobName, Tier)>>,
    /// What was said of each tier last.
    told: RefCell<BTreeMap<Tier, String>>,
    said: &'a dyn Fn(&str),
}

/// Times and bounds of the consensus. A leader that is silent is followed by another within twice
/// the longer time-out.
fn config() -> Result<Arc<Config>> {
    let config = Config {
        cluster_name: "outlive".to_owned(),
        heartbeat_interval: 250,
        election_timeout_min: 1_000,
        election_timeout_max: 2_000,
        install_snapshot_timeout: 5_000,
        max_payload_entries: ENTRIES_MAX,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY),
        snapshot_max_chunk_size: CHUNK_BYTES,
        max_in_snapshot_log_to_keep: KEPT_ENTRIES,
        ..Config::default()
    };
    let checked = config.validate();
    checked.map(Arc::new).map_err(|error| internal(&error))
}

fn internal(error: &impl std::fmt::Display) -> Error {
    Error::internal(format!("consensus: {error}"))
}

/// A member of the coordinator of a store: serves its jobs while it leads, until the process is
/// ended.
///
/// # Errors
/// [`Code::JobBusy`] if all members run already; [`Code::InvalidArgument`] for a number of members
/// other than 1 and 3, or than the store's; [`Code::Corrupt`] or [`Code::FormatUnknown`] if what
/// it wrote down cannot be believed; those of the file system and network.
pub fn serve(store: &Path, choice: &Choice, said: impl Fn(&str)) -> Result<u8> {
    if !matches!(choice.members, 1 | 3) {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("--members".into()),
            format!("{}, of 1 or 3", choice.members),
            "1 goes on when it is started again; of 3, on three machines, one may be lost",
        ));
    }
    let metrics = choice.metrics.as_deref().map(Metrics::begin).transpose()?;
    let dir = store.join(place::DIR);
    let keys = Keys::make(&dir)?;
    let member = group::join(&dir.join("members"), choice.members, keys.mark()?)?;
    let (log, dropped, machine) = member.open()?;
    if dropped > 0 {
        said(&format!(
            "member {}: the last {} of its log were being written when it died, and are dropped",
            member.number,
            count(dropped as u64, "byte")
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("consensus")
        .enable_time()
        .build()
        .map_err(|error| Error::internal(format!("no threads: {error}")))?;
    let (wire, events, address) = wire(choice, keys.of_members()?, &member)?;
    let peers = Peers(wire.clone());
    let made = Raft::new(member.number, config()?, peers, log, machine.clone());
    let raft = runtime.block_on(made).map_err(|error| internal(&error))?;
    wire.start(&raft, events, runtime.handle())?;
    let all = (1..=u64::from(choice.members)).collect::<BTreeSet<u64>>();
    match runtime.block_on(raft.initialize(all)) {
        // It goes on with what it wrote down, or was told by others who are there.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
        Err(error) => return Err(internal(&error)),
    }
    let running = Running {
        store,
        choice,
        keys: Arc::new(Mutex::new(keys)),
        member,
        address,
        machine,
        raft,
        runtime,
        metrics: RefCell::new(metrics),
        named: RefCell::default(),
        told: RefCell::default(),
        said: &said,
    };
    running.live()
}

/// Listens for the other members, if there are any, and says where.
fn wire(
    choice: &Choice,
    key: JobKey,
    member: &Member,
) -> Result<(Arc<Wire>, Receiver<Event>, Option<Address>)> {
    let (to, events) = bounded(QUEUE);
    let (mut endpoint, mut address) = (None, None);
    if !member.others.is_empty() {
        let path = member.dir.join(place::ADDRESS);
        let me = Identity {
            peer: members::node(member.number),
            epoch: place::next_epoch(&path),
        };
        let made = Endpoint::bind(me, HASH, key, options(choice), to)?;
        let own = Address::new(made.local_addr(), me.epoch);
        own.save(&path)?;
        (endpoint, address) = (Some(made), Some(own));
    }
    let wire = Wire::new(endpoint, member.others.clone());
    Ok((wire, events, address))
}

fn options(choice: &Choice) -> Options {
    Options {
        bind: SocketAddr::new(choice.bind, 0),
        ports: choice.ports,
        ..Options::default()
    }
}

impl Running<'_> {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        // What panicked had not changed them.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Result<u8> {
        let mut metrics = self.raft.metrics();
        let mut told = None;
        let mut counted: Option<Instant> = None;
        loop {
            let (state, leader) = {
                let now = metrics.borrow_and_update();
                if let Err(error) = &now.running_state {
                    return Err(self.stopped(error));
                }
                (now.state, now.current_leader)
            };
            if state == ServerState::Leader {
                self.lead()?;
            } else if told != Some(leader) {
                told = Some(leader);
                self.follows(leader);
            }
            if counted.is_none_or(|at| at.elapsed() >= TURN) {
                counted = Some(Instant::now());
                self.count(false);
                self.stay();
            }
            let changed = async { tokio::time::timeout(IDLE, metrics.changed()).await.is_ok() };
            self.runtime.block_on(changed);
        }
    }

    fn stopped(&self, error: &impl std::fmt::Display) -> Error {
        Error::new(
            Code::Io,
            Entity::File(self.member.dir.display().to_string()),
            format!("what was agreed on cannot be kept: {error}"),
            "check space and rights there, and start it again; jobs go on by their own plans",
        )
    }

    fn follows(&self, leader: Option<u64>) {
        if self.choice.members == 1 {
            return;
        }
        let (me, all) = (self.member.number, self.choice.members);
        (self.said)(&match leader {
            Some(leader) => format!("member {me} of {all}: member {leader} coordinates"),
            None => format!("member {me} of {all}: waiting for a majority"),
        });
    }

    /// Waits for an answer of the consensus; none if it takes too long or is no.
    fn agreed<T, E: std::fmt::Display>(
        &self,
        asked: impl Future<Output = std::result::Result<T, E>>,
    ) -> Option<T> {
        let within = async { tokio::time::timeout(ANSWER, asked).await };
        match self.runtime.block_on(within) {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                tracing::info!(%error, "no longer agreed");
                None
            }
            Err(_) => {
                tracing::info!("no majority answers");
                None
            }
        }
    }

    /// Serves the jobs, until it leads no more or does not reach a majority. Each time it
    /// begins under a new epoch, at a new address, so that no job takes it for the one before.
    fn lead(&self) -> Result<()> {
        // All that was agreed on before is applied here, and a majority follows.
        if self.agreed(self.raft.ensure_linearizable()).is_none() {
            return Ok(());
        }
        let dir = self.store.join(place::DIR);
        // Keys that were withdrawn while another led; if that cannot be known, nobody is served.
        self.keys().renew(&dir)?;
        let path = dir.join(place::ADDRESS);
        let me = Identity {
            peer: NodeId::LAUNCHER,
            epoch: place::next_epoch(&path),
        };
        let (to, events) = bounded(QUEUE);
        let keys = Arc::clone(&self.keys);
        let guests = Arc::new(move |claim: &str| {
            let keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.guest(claim)
        });
        let endpoint = Endpoint::bind_service(me, place::HASH, guests, options(self.choice), to)?;
        let address = Address::new(endpoint.local_addr(), me.epoch);
        address.save(&path)?;
        if let Err(error) = address.publish(&self.store.join(place::PUBLIC)) {
            (self.said)(&format!("jobs of other stores do not find it: {error}"));
        }
        let (me, all) = (self.member.number, self.choice.members);
        let of = match all {
            1 => String::new(),
            _ => format!(" (member {me} of {all})"),
        };
        let (store, at) = (self.store.display(), address.address);
        (self.said)(&format!("coordinating {store} at {at}{of}"));
        let served = self.serve_as(&endpoint, &events, &address, &path);
        if all > 1 {
            (self.said)(&format!("member {me} of {all} coordinates no more"));
        }
        served
    }

    fn serve_as(
        &self,
        endpoint: &Endpoint,
        events: &Receiver<Event>,
        address: &Address,
        path: &Path,
    ) -> Result<()> {
        // The clock goes on from the newest moment that any leader has said.
        let base = self.machine.state().kept.time();
        let begun = Instant::now();
        let mut written = None;
        let mut turn = begun;
        let mut agreed = begun;
        let mut gone = Vec::new();
        loop {
            let mut words = std::mem::take(&mut gone);
            match events.recv_timeout(TURN.saturating_sub(turn.elapsed())) {
                Ok(event) => {
                    words.extend(self.word(endpoint, event));
                    let more = events.try_iter();
                    let more = more.filter_map(|event| self.word(endpoint, event));
                    words.extend(more.take(WORDS_MAX - 1));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::internal("the network thread has ended"));
                }
            }
            let at = base + Time::from(begun.elapsed());
            let due = self.machine.state().kept.service().is_due(at);
            if !words.is_empty() || due {
                let batch = Batch { at, words };
                let Some(done) = self.agreed(self.raft.client_write(batch)) else {
                    return Ok(());
                };
                agreed = Instant::now();
                answer(endpoint, done.data);
            }
            if turn.elapsed() < TURN {
                continue;
            }
            turn = Instant::now();
            // Who leads alone does not hear that another was chosen.
            if agreed.elapsed() >= TURN {
                if self.agreed(self.raft.ensure_linearizable()).is_none() {
                    return Ok(());
                }
                agreed = Instant::now();
            }
            // One who led before may have written its own after this one had, or it is damaged.
            if Address::load(path).ok().as_ref() != Some(address) {
                tracing::info!("the address is another's");
                return Ok(());
            }
            let public = address.publish_again(&self.store.join(place::PUBLIC));
            if let Ok(true) | Err(_) = public {
                tracing::info!(?public, "the address for jobs of other stores was another");
            }
            self.stay();
            gone = self.withdraw(endpoint);
            self.tell(&mut written);
            self.count(true);
        }
    }

    /// Closes the connections of those whose keys were withdrawn; they have left.
    fn withdraw(&self, endpoint: &Endpoint) -> Vec<Word> {
        let renewed = self.keys().renew(&self.store.join(place::DIR));
        let held = renewed.unwrap_or_else(|error| {
            tracing::warn!(%error, "keys that were withdrawn are not known");
            Vec::new()
        });
        let leave = |(job, number): (JobName, u32)| {
            (self.said)(&format!("job {job}: what was issued for it holds no more"));
            endpoint.forget(NodeId(number));
            Word::Heard(u64::from(number), Ask::Leave)
        };
        held.into_iter().map(leave).collect()
    }

    /// Writes this member's address anew where it was damaged: another member would not find it.
    fn stay(&self) {
        let Some(address) = &self.address else {
            return;
        };
        let path = self.member.dir.join(place::ADDRESS);
        if Address::load(&path).ok().as_ref() != Some(address) {
            let saved = address.save(&path);
            tracing::info!(?saved, "this member's address was another");
        }
    }

    /// What an event means to the service.
    fn word(&self, endpoint: &Endpoint, event: Event) -> Option<Word> {
        match event {
            Event::Message { from, bytes } => match orders::decode::<Ask>(&bytes) {
                Ok(Ask::Join { job, .. }) if !self.is_of(from.peer, &job) => {
                    tracing::warn!(?from, %job, "another's name");
                    let why = format!("its key is not that of job {job}");
                    let deny = Answer::Deny {
                        tier: None,
                        sequence: 0,
                        why,
                    };
                    let number = u64::from(from.peer.0);
                    answer(endpoint, vec![(number, deny)]);
                    None
                }
                Ok(ask) => {
                    tracing::debug!(?from, ?ask, "asked");
                    Some(Word::Heard(u64::from(from.peer.0), ask))
                }
                Err(error) => {
                    tracing::warn!(%error, ?from, "not understood");
                    None
                }
            },
            Event::Down { peer, .. } => Some(Word::Gone(u64::from(peer.peer.0))),
            Event::Refused { addr, error } => {
                tracing::warn!(%addr, %error, "refused");
                None
            }
            Event::Up { .. } | Event::Stream { .. } => None,
        }
    }

    /// Whether the job that speaks under this number has this name.
    fn is_of(&self, peer: NodeId, job: &JobName) -> bool {
        let guest = self.keys().guest(job.as_str());
        guest.is_some_and(|guest| guest.peer == peer)
    }

    /// Writes the numbers, if they are wanted.
    fn count(&self, serves: bool) {
        let Some(metrics) = &mut *self.metrics.borrow_mut() else {
            return;
        };
        let about = About {
            store: &self.store.display().to_string(),
            member: self.member.number,
            members: self.choice.members,
            serves,
        };
        let page = {
            let state = self.machine.state();
            metrics::page(&about, state.kept.service())
        };
        // The disk may be slow, and jobs wait for what is agreed on meanwhile.
        if let Some(error) = metrics.write(&page) {
            (self.said)(&format!("numbers are not written: {error}"));
        }
    }

    /// Says of each tier what is known, if that has changed.
    fn say_tiers(&self, tiers: BTreeMap<Tier, String>) {
        let mut told = self.told.borrow_mut();
        for (tier, words) in &tiers {
            if told.get(tier) != Some(words) {
                (self.said)(words);
            }
        }
        *told = tiers;
    }

    /// Whose writes are not what they say: once, for what a job says it says again and again.
    fn doubts(&self, service: &Service) -> Vec<String> {
        let mut named = self.named.borrow_mut();
        let new = |doubt: Doubt<'_>| {
            named
                .insert((doubt.job.clone(), doubt.tier.clone()))
                .then(|| {
                    format!(
                        "job {}: a write to {} takes {} ms as it says, and its last took {} ms: \
                         turns go by what its writes take; if that stays so, run it with the \
                         version of this coordinator, and look what else uses the storage",
                        doubt.job, doubt.tier, doubt.said_ms, doubt.took_ms
                    )
                })
        };
        service.doubts().filter_map(new).collect()
    }

    /// Says what is known, if it has changed. Nothing is written while what is known is held: jobs
    /// would wait for it.
    fn tell(&self, written: &mut Option<State>) {
        let (state, doubts, tiers) = {
            let known = self.machine.state();
            let service = known.kept.service();
            let state = State::of(service, self.member.number, self.choice.members);
            let tiers = service.tiers();
            let tiers: BTreeMap<Tier, String> = tiers
                .map(|seen| (seen.tier.clone(), seen.words()))
                .collect();
            (state, self.doubts(service), tiers)
        };
        doubts.iter().for_each(|words| (self.said)(words));
        if written.as_ref() == Some(&state) {
            return;
        }
        let path = self.store.join(place::DIR).join("state.json");
        let text =
            serde_json::to_vec_pretty(&state).map_err(|error| Error::internal(error.to_string()));
        if let Err(error) = text.and_then(|text| files::write_atomic(&path, &text)) {
            tracing::warn!(%error, "state not written");
        }
        if written.is_none() && !state.has_jobs() {
            (self.said)("no job takes turns yet");
        }
        self.say_tiers(tiers);
        *written = Some(state);
    }
}

fn answer(endpoint: &Endpoint, answers: Answers) {
    for (job, answer) in answers {
        let sent =
            orders::encode(&answer).and_then(|bytes| endpoint.send(NodeId(job as u32), &bytes));
        if let Err(error) = sent {
            tracing::info!(%error, "not answered");
        }
    }
}
