//! An agent in this process, of nothing but `capture`'s agent side: it greets,
//! arms when the test says so, gives slabs, keeps what was captured and offers it
//! for a restore. What a keeper would hold survives [`TestAgent::die`].
#![allow(dead_code, clippy::unwrap_used)]

use outlive::{Code, Entity, Error, Region};
use outlive_base::{Incarnation, Level, Levels, NodeId, Rank, Version};
use outlive_capture::control::{ControlBlock, ControlWords, Refused};
use outlive_capture::ipc::{Connection, IpcError, Listener, ToAgent, ToRank, VersionState};
use outlive_capture::region;
use outlive_capture::slab::{Slab, SlabId, State as SlabState, capacity_for, job_hash};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const JOB: &str = "test-job";
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The level of the job beside memory.
pub const XOR: Level = Level::xor(4).unwrap();

struct Slot {
    slab: Slab,
    fd: OwnedFd,
    generation: u32,
}

struct RankState {
    control: ControlBlock,
    control_fd: OwnedFd,
    slots: [Option<Slot>; 2],
    turn: usize,
    restore: Option<(Version, Slab, OwnedFd)>,
}

#[derive(Default)]
pub struct State {
    ranks: BTreeMap<u32, RankState>,
    generation: u32,
    pub log: Vec<(u32, ToAgent)>,
    /// Requests that are not answered, by the name of their variant.
    pub mute: BTreeSet<&'static str>,
    /// Answer requests for memory with error 302.
    pub refuse_memory: bool,
    pub incarnation: u32,
    pub connections: u32,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    count: u32,
    files: PathBuf,
    stop: AtomicBool,
}

pub struct TestAgent {
    shared: Arc<Shared>,
    pub path: PathBuf,
    threads: Vec<JoinHandle<()>>,
    pub directory: tempfile::TempDir,
}

impl TestAgent {
    pub fn start(ranks: u32) -> TestAgent {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("files");
        std::fs::create_dir(&files).unwrap();
        let state = State {
            incarnation: 1,
            ..State::default()
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            count: ranks,
            files,
            stop: AtomicBool::new(false),
        };
        let path = directory.path().join("run/agent-0.sock");
        let mut agent = TestAgent {
            shared: Arc::new(shared),
            path,
            threads: Vec::new(),
            directory,
        };
        agent.revive();
        agent
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// The environment of a rank.
    pub fn environment(&self, rank: u32) -> Vec<(&'static str, String)> {
        vec![
            ("OUTLIVE_AGENT", self.path.display().to_string()),
            ("OUTLIVE_RANK", rank.to_string()),
            ("OUTLIVE_SIZE", self.shared.count.to_string()),
            ("OUTLIVE_INCARNATION", self.state().incarnation.to_string()),
            ("OUTLIVE_JOB", JOB.into()),
        ]
    }

    pub fn open(&self, rank: u32, timeout_ms: u64) -> outlive::Result<outlive::Job> {
        let environment = self.environment(rank);
        let options = outlive::Options {
            timeout: Duration::from_millis(timeout_ms),
            ..outlive::Options::default()
        };
        outlive::Job::open_with(&options, &|name| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.clone())
        })
    }

    /// Ends the agent: socket and connections go, memory stays.
    pub fn die(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let _ = std::fs::remove_file(&self.path);
    }

    pub fn revive(&mut self) {
        self.shared.stop.store(false, SeqCst);
        let listener = Listener::bind(&self.path).unwrap();
        let shared = self.shared.clone();
        self.threads
            .push(std::thread::spawn(move || accept(&shared, &listener)));
    }

    /// The next start of the job: new control blocks.
    pub fn next_incarnation(&self) {
        let mut state = self.state();
        state.incarnation += 1;
        for rank in state.ranks.keys().copied().collect::<Vec<_>>() {
            let fresh = new_control(&self.shared, rank, state.incarnation);
            let rank = state.ranks.get_mut(&rank).unwrap();
            (rank.control, rank.control_fd) = fresh;
            rank.slots = [None, None];
        }
    }

    /// Loses the control block, as when the keeper died too.
    pub fn lose_control(&self, rank: u32) {
        let mut state = self.state();
        let fresh = new_control(&self.shared, rank, state.incarnation);
        let rank = state.ranks.get_mut(&rank).unwrap();
        (rank.control, rank.control_fd) = fresh;
    }

    /// Makes the control block of a rank that has not said hello yet.
    pub fn prepare(&self, rank: u32) {
        let _ = self.state().rank(&self.shared, rank);
    }

    pub fn control<T>(&self, rank: u32, look: impl FnOnce(&ControlBlock) -> T) -> T {
        look(&self.state().ranks[&rank].control)
    }

    /// Reserves a slab of the size that the rank says, and arms.
    pub fn arm(&self, rank: u32, version: u64) -> Result<(), Refused> {
        let bytes = self.control(rank, ControlBlock::bytes_needed);
        self.arm_with(rank, version, bytes)
    }

    pub fn arm_with(&self, rank: u32, version: u64, bytes: u64) -> Result<(), Refused> {
        let mut state = self.state();
        let slot = state.reserve(self.shared.count, rank, bytes);
        let rank = &state.ranks[&rank];
        let generation = rank.slots[slot].as_ref().unwrap().generation;
        let capacity = rank.slots[slot].as_ref().unwrap().slab.capacity();
        rank.control
            .try_arm(Version(version), slot as u32, generation, capacity)
    }

    pub fn disarm(&self, rank: u32) -> Option<Version> {
        self.control(rank, ControlBlock::disarm)
    }

    /// Waits until a message was logged that `found` accepts.
    pub fn wait_for(&self, what: &str, found: impl Fn(&ToAgent) -> bool) -> ToAgent {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state();
        loop {
            if let Some((_, message)) = state.log.iter().find(|(_, message)| found(message)) {
                return message.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} among {:?}", state.log);
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    pub fn captured(&self, version: u64) -> ToAgent {
        self.wait_for(
            "CAPTURED",
            |message| matches!(message, ToAgent::Captured { version: v, .. } if v.0 == version),
        )
    }

    pub fn failed(&self, version: u64) -> Code {
        let failed = |message: &ToAgent| matches!(message, ToAgent::Failed { version: v, .. } if v.0 == version);
        match self.wait_for("FAILED", failed) {
            ToAgent::Failed { code, .. } => code,
            _ => unreachable!(),
        }
    }

    pub fn count(&self, found: impl Fn(&ToAgent) -> bool) -> usize {
        self.state()
            .log
            .iter()
            .filter(|(_, message)| found(message))
            .count()
    }

    /// Regions and bytes of a captured version.
    pub fn content(&self, rank: u32, version: u64) -> Vec<(Region, Vec<u8>)> {
        self.captured(version);
        let state = self.state();
        let slot = state.ranks[&rank]
            .slots
            .iter()
            .flatten()
            .find(|slot| {
                let head = slot.slab.head().unwrap();
                head.state == SlabState::Captured && head.version.0 == version
            })
            .expect("captured");
        let data = slot.slab.data().unwrap();
        let regions = slot.slab.regions().unwrap();
        regions
            .into_iter()
            .map(|(region, range)| (region, data[range].to_vec()))
            .collect()
    }

    /// Offers content for a restore.
    pub fn offer(&self, rank: u32, version: u64, content: &[(Region, Vec<u8>)]) {
        self.offer_with(rank, version, content, |_| {});
    }

    pub fn offer_with(
        &self,
        rank: u32,
        version: u64,
        content: &[(Region, Vec<u8>)],
        change: impl FnOnce(&mut SlabId),
    ) {
        let regions: Vec<Region> = content.iter().map(|(region, _)| region.clone()).collect();
        let table = region::encode(&regions);
        let (offsets, total) = region::offsets(&regions).unwrap();
        let (mut slab, fd) =
            Slab::create(capacity_for(table.len() as u64, total).unwrap()).unwrap();
        let mut state = self.state();
        let mut id = slab_id(state.incarnation, rank, self.shared.count, 2, 1);
        change(&mut id);
        slab.format(id).unwrap();
        slab.begin_fill(Version(version), &table, total).unwrap();
        let data = slab.data_mut().unwrap();
        for ((_, bytes), at) in content.iter().zip(offsets) {
            data[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
        slab.finish().unwrap();
        slab.seal().unwrap();
        let fd = Slab::read_only(fd.as_fd()).unwrap();
        state.rank(&self.shared, rank).restore = Some((Version(version), slab, fd));
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn slab_id(incarnation: u32, rank: u32, ranks: u32, slot: u32, generation: u32) -> SlabId {
    SlabId {
        job: job_hash(JOB),
        incarnation: Incarnation(incarnation),
        rank: Rank(rank),
        ranks,
        slot,
        generation,
    }
}

fn new_control(shared: &Shared, rank: u32, incarnation: u32) -> (ControlBlock, OwnedFd) {
    let made = ControlBlock::create(
        Rank(rank),
        shared.count,
        NodeId(0),
        Incarnation(incarnation),
    )
    .unwrap();
    made.0.set_levels(Levels::of(&[Level::MEMORY, XOR]));
    made
}

impl State {
    fn rank(&mut self, shared: &Shared, rank: u32) -> &mut RankState {
        let incarnation = self.incarnation;
        self.ranks.entry(rank).or_insert_with(|| {
            let (control, control_fd) = new_control(shared, rank, incarnation);
            RankState {
                control,
                control_fd,
                slots: [None, None],
                turn: 0,
                restore: None,
            }
        })
    }

    /// The next slot, empty and of at least `bytes`.
    fn reserve(&mut self, count: u32, rank: u32, bytes: u64) -> usize {
        self.generation += 1;
        let (generation, incarnation) = (self.generation, self.incarnation);
        let state = self.ranks.get_mut(&rank).expect("the rank said hello");
        state.turn += 1;
        let slot = state.turn % 2;
        let place = &mut state.slots[slot];
        match place {
            Some(old) if old.slab.capacity() >= bytes => old.slab.clear().unwrap(),
            _ => {
                let (mut slab, fd) = Slab::create(bytes).unwrap();
                slab.format(slab_id(incarnation, rank, count, slot as u32, generation))
                    .unwrap();
                *place = Some(Slot {
                    slab,
                    fd,
                    generation,
                });
            }
        }
        slot
    }

    /// A larger slab in the slot of the armed version, or the armed one itself.
    fn give(&mut self, count: u32, rank: u32, bytes: u64) -> (usize, u32) {
        let state = &self.ranks[&rank];
        let slot = state.control.armed().map_or(0, |armed| armed.slot as usize);
        if state.slots[slot]
            .as_ref()
            .is_none_or(|slot| slot.slab.capacity() < bytes)
        {
            self.ranks.get_mut(&rank).unwrap().turn = slot + 1;
            assert_eq!(self.reserve(count, rank, bytes), slot);
        }
        let slab = &mut self.ranks.get_mut(&rank).unwrap().slots[slot]
            .as_mut()
            .unwrap()
            .slab;
        slab.clear().unwrap();
        (
            slot,
            self.ranks[&rank].slots[slot].as_ref().unwrap().generation,
        )
    }
}

fn accept(shared: &Arc<Shared>, listener: &Listener) {
    let mut threads = Vec::new();
    while !shared.stop.load(SeqCst) {
        match listener.accept(Some(Instant::now() + Duration::from_millis(10))) {
            Ok((connection, _)) => {
                let shared = shared.clone();
                threads.push(std::thread::spawn(move || serve(&shared, &connection)));
            }
            Err(IpcError::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn serve(shared: &Shared, connection: &Connection) {
    let mut rank = 0;
    shared.state.lock().unwrap().connections += 1;
    while !shared.stop.load(SeqCst) {
        let deadline = Instant::now() + Duration::from_millis(10);
        let received = match connection.recv::<ToAgent>(Some(deadline)) {
            Ok(received) => received,
            Err(IpcError::TimedOut) => continue,
            Err(_) => return,
        };
        if let ToAgent::Hello {
            rank: Rank(who), ..
        } = received.message
        {
            rank = who;
        }
        let mut state = shared.state.lock().unwrap();
        state.log.push((rank, received.message.clone()));
        shared.changed.notify_all();
        let Some((answer, fd)) = answer(shared, &mut state, rank, received.message) else {
            continue;
        };
        let deadline = Some(Instant::now() + PATIENCE);
        let _ = connection.send(
            received.sequence,
            &answer,
            fd.as_ref().map(AsFd::as_fd),
            deadline,
        );
    }
}

fn kind(message: &ToAgent) -> &'static str {
    match message {
        ToAgent::Hello { .. } => "hello",
        ToAgent::Slab { .. } => "slab",
        ToAgent::Force { .. } => "force",
        ToAgent::Wait { .. } => "wait",
        ToAgent::Restore => "restore",
        ToAgent::Route { .. } => "route",
        ToAgent::Inject { .. } => "inject",
        ToAgent::Close => "close",
        _ => "",
    }
}

fn answer(
    shared: &Shared,
    state: &mut State,
    rank: u32,
    message: ToAgent,
) -> Option<(ToRank, Option<OwnedFd>)> {
    if state.mute.contains(kind(&message)) {
        return None;
    }
    let copy = |fd: &OwnedFd| Some(fd.try_clone().unwrap());
    Some(match message {
        ToAgent::Hello { ranks, .. } if ranks != shared.count => {
            let reason = format!("{ranks} ranks, the job has {}", shared.count);
            let error = Error::new(
                Code::RankCount,
                Entity::Rank(rank),
                reason,
                "start as before",
            );
            (ToRank::Error { error }, None)
        }
        ToAgent::Hello { .. } => {
            let incarnation = Incarnation(state.incarnation);
            let found = state.rank(shared, rank);
            let restore = found.restore.as_ref().map(|(version, ..)| *version);
            let fd = copy(&found.control_fd);
            (
                ToRank::Welcome {
                    node: NodeId(0),
                    incarnation,
                    restore,
                },
                fd,
            )
        }
        ToAgent::Slab { .. } | ToAgent::Force { .. } if state.refuse_memory => {
            let error = Error::new(
                Code::MemoryBudget,
                Entity::Node(0),
                "no room",
                "raise the budget",
            );
            (ToRank::Error { error }, None)
        }
        ToAgent::Slab { version, bytes } | ToAgent::Force { version, bytes } => {
            let (slot, generation) = state.give(shared.count, rank, bytes);
            let found = state.ranks[&rank].slots[slot].as_ref().unwrap();
            let capacity = found.slab.capacity();
            let answer = ToRank::Slab {
                version,
                slot: slot as u32,
                generation,
                capacity,
            };
            (answer, copy(&found.fd))
        }
        ToAgent::Wait {
            version, survives, ..
        } => {
            let control = &state.ranks[&rank].control;
            let state = match control.surviving(survives) {
                Some(committed) if committed >= version => VersionState::Committed,
                _ => VersionState::Pending,
            };
            (
                ToRank::State {
                    version,
                    survives,
                    state,
                },
                None,
            )
        }
        ToAgent::Restore => match &state.ranks[&rank].restore {
            None => (ToRank::Fresh, None),
            Some((version, slab, fd)) => {
                let (version, capacity) = (*version, slab.capacity());
                (ToRank::Restore { version, capacity }, copy(fd))
            }
        },
        ToAgent::Restored { code, .. } => {
            if code.is_none() {
                state.rank(shared, rank).restore = None;
            }
            (ToRank::Ok, None)
        }
        ToAgent::Route { version, name } => {
            let directory = shared.files.join(format!("{rank}-{}", version.0));
            std::fs::create_dir_all(&directory).unwrap();
            (
                ToRank::Path {
                    path: directory.join(name).display().to_string(),
                },
                None,
            )
        }
        ToAgent::Inject { .. } => {
            // It waits for it no more, and says so before it answers.
            state.ranks[&rank].control.set_inject(None);
            (ToRank::Ok, None)
        }
        ToAgent::Close => (ToRank::Ok, None),
        ToAgent::Captured { version, .. } => {
            // Disarm as an agent does, and call the memory level committed.
            let control = &state.ranks[&rank].control;
            let _ = control.disarm();
            control.set_committed(Level::MEMORY, version);
            return None;
        }
        ToAgent::Failed { .. } => {
            let _ = state.ranks[&rank].control.disarm();
            return None;
        }
    })
}
