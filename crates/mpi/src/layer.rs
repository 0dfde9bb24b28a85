//! The layer of one process: its rail, its engine, and how a call runs through them.
//!
//! Invariants: one lock around rail and engine, held for one round of progress at a
//! time; a call waits at most [`Settings::bound`] (P5); nothing here aborts or exits
//! (P6), and only [`Settings::verbose`] makes it print.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use outlive_base::{Error, Result, Time};
use outlive_collectives::engine::{Bounds, Start};
use outlive_collectives::{Engine, Operator};
use outlive_network::rail::{Can, Content, Key, News, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::collective::{Call, CollectiveKind, Command, Event, Why};
use outlive_protocols::corrected::{self, Keep, Spread};
use outlive_protocols::ftco::{self, Plan};

use crate::comms::{Comm, Comms, Family};
use crate::native::Native;
use crate::settings::{Mode, Settings};

/// Most calls in a row that let a process run ahead of others; then comes a barrier, so
/// that what late ones need is still retained (64 results).
const AHEAD_MAX: u32 = 32;
/// How long a process sleeps at most before it looks around again.
const NAP: Time = Time(1_000_000);
/// How long a finished call waits for what it sent to leave.
const FLUSH: Time = Time(1_000_000_000);
/// How long the goodbye to the others may take.
const LEAVE: Duration = Duration::from_millis(500);
/// Rounds without sleep first.
const SPINS: u32 = 200;
/// Most processes that all call each other at the start, to notice deaths at once.
pub const CALL_ALL_MAX: u32 = 256;

/// Rail and engines: what the lock guards.
pub struct World {
    rail: Box<dyn Rail + Send>,
    ftco: Engine<ftco::Machine>,
    corrected: Engine<corrected::Machine>,
    /// Calls whose end is another thread's to hear.
    news: u64,
}

macro_rules! engine {
    ($world:expr, $family:expr, $one:ident => $call:expr) => {
        match $family {
            Family::Ftco => {
                let $one = &mut $world.ftco;
                $call
            }
            Family::Corrected => {
                let $one = &mut $world.corrected;
                $call
            }
        }
    };
}

impl World {
    /// One round: everything that came is delivered, then machines are pulled.
    fn round(&mut self, current: Key, op: Option<&mut dyn Operator>) -> bool {
        let mut moved = false;
        while let Some((from, frame)) = self.rail.receive() {
            if frame.key.protocol == Family::Corrected as u8 {
                self.corrected.deliver(&*self.rail, from, frame);
            } else {
                self.ftco.deliver(&*self.rail, from, frame);
            }
            moved = true;
        }
        while let Some(news) = self.rail.news() {
            // Who left has been through MPI_Finalize, which is a collective: nobody waits for it.
            if let News::Dead(dead) = news {
                self.ftco.death(&*self.rail, dead);
                self.corrected.death(&*self.rail, dead);
            }
            moved = true;
        }
        // Who combines is the current call's machine; the other one gets no operator.
        if current.protocol == Family::Corrected as u8 {
            self.ftco.pump(&mut *self.rail, current, None);
            self.corrected.pump(&mut *self.rail, current, op);
        } else {
            self.ftco.pump(&mut *self.rail, current, op);
            self.corrected.pump(&mut *self.rail, current, None);
        }
        self.news += u64::from(moved);
        moved
    }

    fn deadline(&self) -> Option<Time> {
        let both = [self.ftco.deadline(), self.corrected.deadline()];
        both.into_iter().flatten().min()
    }

    /// What has ended in `key`: its number, and its result.
    fn ended(&mut self, key: Key, family: Family) -> Option<Ended> {
        loop {
            match engine!(self, family, engine => engine.event(key)) {
                None => return None,
                Some((Event::Done { seq, .. }, content)) => return Some((seq, Ok(content))),
                Some((Event::Failed { seq, why }, _)) => return Some((seq, Err(why))),
                // Information only.
                Some(_) => {}
            }
        }
    }
}

type Ended = (u32, std::result::Result<Option<Content>, Why>);

/// See the module.
pub struct Layer {
    /// The MPI below.
    pub native: &'static Native,
    /// Its communicators.
    pub comms: &'static Comms,
    /// What the environment asked for.
    pub settings: Settings,
    /// The duplicate of the world that returns errors.
    pub shadow: usize,
    /// This process in the world.
    pub me: u32,
    /// All processes.
    pub size: u32,
    /// Failures are reported by ULFM.
    pub ulfm: bool,
    /// What the rail can do.
    pub can: Can,
    /// A death is known, so progress matters in every blocking call.
    pub wounded: AtomicBool,
    world: Mutex<World>,
}

/// The layer, once MPI is initialised and until it is finalised.
static LAYER: OnceLock<Layer> = OnceLock::new();
/// True between initialisation and finalisation.
static OPEN: AtomicBool = AtomicBool::new(false);

/// The layer, if it serves calls now.
pub fn layer() -> Option<&'static Layer> {
    if !OPEN.load(Ordering::Acquire) {
        return None;
    }
    LAYER.get()
}

/// Serves calls from now on.
pub fn open(layer: Layer) {
    if LAYER.set(layer).is_ok() {
        OPEN.store(true, Ordering::Release);
    }
}

/// Serves none any more.
pub fn close() {
    OPEN.store(false, Ordering::Release);
}

/// How a call ended.
pub struct Outcome {
    /// The result, where one is due.
    pub content: Option<Content>,
    /// Ranks that did not contribute.
    pub absent: Arc<Vec<u32>>,
}

/// The gossip time of `outlive simulate broadcast --gossip-time auto`, in the units of the
/// machine's virtual time.
fn gossip_time(processes: u32) -> u64 {
    outlive_planner::gossip::best_time(processes, 0, &corrected::MODEL)
}

fn key(comm: &Comm, family: Family) -> Key {
    Key {
        comm: comm.id,
        sequence: 0,
        incarnation: 0,
        protocol: family as u8,
    }
}

impl Layer {
    /// Around a rail.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        native: &'static Native,
        comms: &'static Comms,
        settings: Settings,
        shadow: usize,
        rail: Box<dyn Rail + Send>,
        ulfm: bool,
    ) -> Layer {
        Layer {
            native,
            comms,
            settings,
            shadow,
            me: rail.me(),
            size: rail.size(),
            ulfm,
            can: rail.can(),
            wounded: AtomicBool::new(false),
            world: Mutex::new(World {
                rail,
                ftco: Engine::new(0, Bounds::default()),
                corrected: Engine::new(0, Bounds::default()),
                news: 0,
            }),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Every round leaves the engine whole, also one that a panic ended.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who carries out a call with so many bytes of data. Corrections repeat the data and
    /// keep no order, so long ones, operators that do not commute, and all that must be
    /// reproducible go over the tree, which combines in an order of its own.
    pub fn family(&self, call: &Call, bytes: usize) -> Family {
        let fits = bytes <= self.settings.corrected_bytes;
        let mode = self.settings.mode;
        let corrected = matches!(mode, Mode::CorrectedTree | Mode::CorrectedGossip);
        let loose = !(self.settings.reproducible && call.kind.up());
        if corrected && loose && fits && corrected::serves(call.kind, call.ordered) {
            Family::Corrected
        } else {
            Family::Ftco
        }
    }

    fn ftco(&self, processes: u32) -> Result<ftco::Config> {
        let model = LogP {
            latency: 2,
            overhead: 1,
            gap: 1,
        };
        let plan = Plan::new(Shape::Binomial, Order::InOrder, processes, &model)?;
        let bound = self.settings.bound;
        let mut config = ftco::Config::new(plan);
        // Late is not dead: without a time-out only a known death ends the waiting.
        config.timeout = self.settings.timeout.unwrap_or(bound);
        config.patience = config.timeout + config.timeout;
        config.late = bound;
        config.bound = bound;
        Ok(config)
    }

    fn corrected(&self, processes: u32) -> Result<corrected::Config> {
        let spread = match self.settings.mode {
            Mode::CorrectedGossip => Spread::Gossip(Time(gossip_time(processes))),
            _ => Spread::Tree(Shape::Binomial),
        };
        let Settings {
            bound, failures, ..
        } = self.settings;
        let mut config = corrected::Config::new(processes, spread, failures)?;
        let trees = self.settings.trees;
        if trees > 0 {
            let gossip = outlive_planner::gossip::kept_trees_time(processes, trees);
            config = config.keeping(Keep { trees, gossip })?;
        }
        config.pace = self.settings.pace;
        config.timeout = self.settings.timeout.unwrap_or(bound);
        config.patience = config.timeout + config.timeout;
        config.ask = config.ask.min(Time(config.timeout.0 / 2));
        config.late = bound;
        config.bound = bound;
        Ok(config)
    }

    fn start(&self, world: &mut World, comm: &Comm, family: Family) -> Result<()> {
        if comm.started[family as usize].swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let processes = comm.members.len() as u32;
        let (key, members, seed) = (key(comm, family), Arc::clone(&comm.members), comm.id);
        match family {
            Family::Ftco => world.ftco.start(
                &*world.rail,
                Start {
                    key,
                    members,
                    me: comm.me,
                    machine: ftco::Machine::new(),
                    config: Arc::new(self.ftco(processes)?),
                    seed,
                },
            ),
            Family::Corrected => world.corrected.start(
                &*world.rail,
                Start {
                    key,
                    members,
                    me: comm.me,
                    machine: corrected::Machine::new(),
                    config: Arc::new(self.corrected(processes)?),
                    seed,
                },
            ),
        }
        Ok(())
    }

    /// The number of the next call of this family on `comm`, before which a barrier may
    /// be due: every rank counts alike.
    ///
    /// # Errors
    /// Why that barrier failed.
    pub fn number(
        &self,
        comm: &Comm,
        call: &Call,
        family: Family,
    ) -> std::result::Result<u32, Why> {
        let ahead = &comm.ahead[family as usize];
        if call.kind.synchronises() {
            ahead.store(0, Ordering::Release);
        } else if ahead.fetch_add(1, Ordering::AcqRel) >= AHEAD_MAX {
            ahead.store(1, Ordering::Release);
            let barrier = Call {
                kind: CollectiveKind::Barrier,
                root: 0,
                value: None,
                ordered: false,
            };
            let empty = Some(Content::default());
            self.run(comm, barrier, family, empty, &mut crate::body::Nothing)?;
        }
        Ok(comm.calls[family as usize].load(Ordering::Acquire))
    }

    /// Runs one collective of `comm` to its end.
    ///
    /// # Errors
    /// Why the machine gave no result.
    pub fn run(
        &self,
        comm: &Comm,
        call: Call,
        family: Family,
        value: Option<Content>,
        op: &mut dyn Operator,
    ) -> std::result::Result<Outcome, Why> {
        let key = key(comm, family);
        let mut world = self.world();
        if self.start(&mut world, comm, family).is_err() {
            return Err(Why::Argument);
        }
        let number = comm.calls[family as usize].fetch_add(1, Ordering::AcqRel);
        let value = value.map(|content| (number, content));
        {
            let world = &mut *world;
            let start = |value| Command::Start(Call { value, ..call });
            engine!(world, family, engine => engine.command(&*world.rail, key, value, start));
        }
        let mut quiet = 0u32;
        loop {
            let moved = world.round(key, Some(&mut *op));
            while let Some((seq, ended)) = world.ended(key, family) {
                // The end of a call that another thread waits for is not looked at (MPI
                // forbids two on one communicator).
                if seq == number {
                    let content = ended?;
                    self.note_deaths(&world);
                    self.flush(world, key);
                    return Ok(self.outcome(comm, content));
                }
            }
            quiet = if moved { 0 } else { quiet.saturating_add(1) };
            if quiet > SPINS {
                let now = world.rail.now();
                let until = world.deadline().map_or(now + NAP, |at| at.min(now + NAP));
                world.rail.wait(until);
                drop(world);
                std::thread::yield_now();
                world = self.world();
            } else if quiet > 0 {
                drop(world);
                std::thread::yield_now();
                world = self.world();
            }
        }
    }

    /// What the call sent leaves this process before the program goes on, which may not
    /// call MPI again for hours. Bounded: a receiver that takes nothing may itself wait for
    /// this process, in a call where it serves nobody; the rest leaves in later calls.
    fn flush<'a>(&'a self, mut world: MutexGuard<'a, World>, key: Key) {
        let end = world.rail.now() + FLUSH;
        while !world.rail.flushed() && world.rail.now() < end {
            if !world.round(key, None) {
                let until = world.rail.now() + NAP;
                world.rail.wait(until);
                drop(world);
                std::thread::yield_now();
                world = self.world();
            }
        }
    }

    fn outcome(&self, comm: &Comm, content: Option<Content>) -> Outcome {
        let absent = content
            .as_ref()
            .map_or_else(Arc::default, |one| Arc::clone(&one.absent));
        let mut last = comm.absent.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Arc::clone(&absent);
        Outcome { content, absent }
    }

    fn note_deaths(&self, world: &World) {
        if world.ftco.dead().next().is_some() {
            self.wounded.store(true, Ordering::Release);
        }
    }

    /// World ranks that are known to be dead, ascending.
    pub fn dead(&self) -> Vec<u32> {
        self.world().ftco.dead().collect()
    }

    /// Tells the engine of deaths that a pair met.
    pub fn ask_failures(&self) {
        let mut world = self.world();
        world.rail.look();
        self.progress_on(&mut world);
    }

    /// One round of progress for those who are later than this process.
    pub fn progress(&self) {
        if let Ok(mut world) = self.world.try_lock() {
            self.progress_on(&mut world);
        }
    }

    fn progress_on(&self, world: &mut World) {
        let none = Key {
            comm: 0,
            sequence: 0,
            incarnation: 0,
            protocol: 0,
        };
        world.round(none, None);
        self.note_deaths(world);
    }

    /// Serves those who are late and sends what waits, for at most `bound`.
    pub fn linger(&self, bound: Duration, at_least: Duration) {
        let mut world = self.world();
        let start = world.rail.now();
        let (least, most) = (start + Time::from(at_least), start + Time::from(bound));
        loop {
            self.progress_on(&mut world);
            let now = world.rail.now();
            if now >= most || (now >= least && world.rail.flushed()) {
                return;
            }
            world.rail.wait(now + NAP);
        }
    }

    /// What frames travel on, in words.
    pub fn rail_name(&self) -> &'static str {
        self.world().rail.name()
    }

    /// Ends the rail: the others hear a goodbye, not a death.
    pub fn leave(&self) {
        self.world().rail.leave(LEAVE);
    }

    /// Says what is wrong, if it was asked to.
    pub fn say(&self, error: &Error) {
        if self.settings.verbose {
            eprintln!("outlive: rank {}: {error}", self.me);
        }
    }
}
