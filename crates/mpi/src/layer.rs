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
use outlive_collectives::tcp::Tcp;
use outlive_collectives::{Content, Engine, Frame, Key, Operator, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::ftco::{self, Call, Command, Config, Event, Plan, Why};

use crate::comms::{Comm, Comms};
use crate::native::Native;
use crate::settings::Settings;
use crate::shadow::Shadow;

/// The engine's number of the fault-tolerant collectives.
const PROTOCOL: u8 = 1;
/// How long a process sleeps at most before it looks around again.
const NAP: Time = Time(1_000_000);
/// How long a finished call waits for what it sent to leave.
const FLUSH: Time = Time(1_000_000_000);
/// Rounds without sleep first.
const SPINS: u32 = 200;
/// Most processes that all call each other at the start, to notice deaths at once.
pub const CALL_ALL_MAX: u32 = 256;

/// One rail or the other.
pub enum AnyRail {
    /// The job's own messages.
    Shadow(Shadow),
    /// Our own connections.
    Tcp(Box<Tcp>),
}

macro_rules! either {
    ($rail:expr, $one:ident => $call:expr) => {
        match $rail {
            AnyRail::Shadow($one) => $call,
            AnyRail::Tcp($one) => $call,
        }
    };
}

impl Rail for AnyRail {
    fn me(&self) -> u32 {
        either!(self, rail => rail.me())
    }
    fn size(&self) -> u32 {
        either!(self, rail => rail.size())
    }
    fn now(&self) -> Time {
        either!(self, rail => rail.now())
    }
    fn ready(&self) -> bool {
        either!(self, rail => rail.ready())
    }
    fn send(&mut self, to: u32, frame: Frame) {
        either!(self, rail => rail.send(to, frame));
    }
    fn receive(&mut self) -> Option<(u32, Frame)> {
        either!(self, rail => rail.receive())
    }
    fn death(&mut self) -> Option<u32> {
        either!(self, rail => rail.death())
    }
    fn wait(&mut self, until: Time) {
        either!(self, rail => rail.wait(until));
    }
    fn flushed(&mut self) -> bool {
        either!(self, rail => rail.flushed())
    }
}

/// Rail and engine: what the lock guards.
pub struct World {
    rail: AnyRail,
    engine: Engine<ftco::Machine>,
    /// Calls whose end is another thread's to hear.
    news: u64,
}

impl World {
    /// One round: everything that came is delivered, then machines are pulled.
    fn round(&mut self, current: Key, op: Option<&mut dyn Operator>) -> bool {
        let mut moved = false;
        while let Some((from, frame)) = self.rail.receive() {
            self.engine.deliver(&self.rail, from, frame);
            moved = true;
        }
        while let Some(dead) = self.rail.death() {
            self.engine.death(&self.rail, dead);
            moved = true;
        }
        self.engine.pump(&mut self.rail, current, op);
        self.news += u64::from(moved);
        moved
    }
}

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
    /// Pairs exchange their data by plain messages on the shadow communicator.
    pub pairs: bool,
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

fn key(comm: &Comm) -> Key {
    Key {
        comm: comm.id,
        sequence: 0,
        incarnation: 0,
        protocol: PROTOCOL,
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
        rail: AnyRail,
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
            pairs: matches!(rail, AnyRail::Shadow(_)),
            wounded: AtomicBool::new(false),
            world: Mutex::new(World {
                rail,
                engine: Engine::new(0, Bounds::default()),
                news: 0,
            }),
        }
    }

    /// A death leaves the others running, so answers are owed in every blocking call.
    pub fn tolerant(&self) -> bool {
        self.ulfm || !self.pairs
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Every round leaves the engine whole, also one that a panic ended.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self, processes: u32) -> Result<Config> {
        let model = LogP {
            latency: 2,
            overhead: 1,
            gap: 1,
        };
        let plan = Plan::new(Shape::Binomial, Order::InOrder, processes, &model)?;
        let bound = self.settings.bound;
        let mut config = Config::new(plan);
        // Late is not dead: without a time-out only a known death ends the waiting.
        config.timeout = self.settings.timeout.unwrap_or(bound);
        config.patience = config.timeout + config.timeout;
        config.late = bound;
        config.bound = bound;
        Ok(config)
    }

    fn start(&self, world: &mut World, comm: &Comm) -> Result<()> {
        if comm.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let config = self.config(comm.members.len() as u32)?;
        let start = Start {
            key: key(comm),
            members: Arc::clone(&comm.members),
            me: comm.me,
            machine: ftco::Machine::new(),
            config: Arc::new(config),
            seed: comm.id,
        };
        world.engine.start(&world.rail, start);
        Ok(())
    }

    /// Runs one collective of `comm` to its end.
    ///
    /// # Errors
    /// Why the machine gave no result.
    pub fn run(
        &self,
        comm: &Comm,
        call: Call,
        value: Option<Content>,
        op: &mut dyn Operator,
    ) -> std::result::Result<Outcome, Why> {
        let key = key(comm);
        let mut world = self.world();
        if self.start(&mut world, comm).is_err() {
            return Err(Why::Argument);
        }
        let number = comm.calls.fetch_add(1, Ordering::AcqRel);
        let World { rail, engine, .. } = &mut *world;
        let value = value.map(|content| (number, content));
        engine.command(&*rail, key, value, |value| {
            Command::Start(Call { value, ..call })
        });
        let mut quiet = 0u32;
        loop {
            let moved = world.round(key, Some(&mut *op));
            while let Some((event, content)) = world.engine.event(key) {
                match event {
                    Event::Done { seq, .. } if seq == number => {
                        self.note_deaths(&world);
                        self.flush(world, key);
                        return Ok(self.outcome(comm, content));
                    }
                    Event::Failed { seq, why } if seq == number => return Err(why),
                    // Information, or the end of a call that another thread waits for
                    // (which MPI forbids on one communicator).
                    _ => {}
                }
            }
            quiet = if moved { 0 } else { quiet.saturating_add(1) };
            if quiet > SPINS {
                let now = world.rail.now();
                let until = world
                    .engine
                    .deadline()
                    .map_or(now + NAP, |at| at.min(now + NAP));
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
        if world.engine.dead().next().is_some() {
            self.wounded.store(true, Ordering::Release);
        }
    }

    /// World ranks that are known to be dead, ascending.
    pub fn dead(&self) -> Vec<u32> {
        self.world().engine.dead().collect()
    }

    /// Tells the engine of deaths that a pair met.
    pub fn ask_failures(&self) {
        let mut world = self.world();
        if let AnyRail::Shadow(shadow) = &mut world.rail {
            shadow.ask_failures();
        }
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

    /// Ends the rail: the others hear a goodbye, not a death.
    pub fn leave(&self) {
        if let AnyRail::Tcp(tcp) = &mut self.world().rail {
            tcp.leave(Duration::from_millis(500));
        }
    }

    /// Says what is wrong, if it was asked to.
    pub fn say(&self, error: &Error) {
        if self.settings.verbose {
            eprintln!("outlive: rank {}: {error}", self.me);
        }
    }
}
