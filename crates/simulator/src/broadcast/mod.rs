//! Runs of [`outlive_protocols::broadcast`] over the LogP network, with failures.
//!
//! A run is a function of its [`Parameters`] and its seed, whatever the number of
//! threads of a sweep (P8). The metrics are those of the papers: colouring time (the
//! last live process has the message), quiescence (the last send or reception ends),
//! messages, and the longest gap that the dissemination leaves on the ring.

mod faults;
pub mod spanning;

pub use faults::{Faults, Moment, Quantity};

use std::sync::atomic::{AtomicUsize, Ordering};

use outlive_base::machine::Peer;
use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_planner::gossip::best_time;
use outlive_protocols::broadcast::tree::{Order, Ring, Shape};
use outlive_protocols::broadcast::{
    Broadcast, Cause, Command, Config, Correction, Event, LogP, Msg, Start,
};

use crate::logp::{Death, Host, Model, World};
use crate::plot::{self, Arrow, Picture};

/// How the message is first spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Down a tree.
    Tree(Shape, Order),
    /// Down a tree and acknowledged up it.
    AcknowledgedTree(Shape, Order),
    /// At random, until that time; none: the best time by [`best_time`].
    Gossip(Option<u64>),
}

/// Everything about a broadcast but the seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// The ring and its root.
    pub ring: Ring,
    /// The network.
    pub model: Model,
    /// How it is spread.
    pub spread: Spread,
    /// How it is corrected.
    pub correction: Correction,
    /// When.
    pub start: Start,
    /// Bytes of the message.
    pub bytes: u64,
    /// Who fails.
    pub faults: Faults,
}

impl Parameters {
    /// Over a tree with interleaved ranks and synchronized checked correction, L = 2,
    /// o = g = 1, nobody fails: what the published figures are about.
    pub const fn new(processes: u32, shape: Shape) -> Parameters {
        Parameters {
            ring: Ring { processes, root: 0 },
            model: Model {
                logp: LogP {
                    latency: 2,
                    overhead: 1,
                    gap: 1,
                },
                byte_gap: 0,
                half_duplex: false,
            },
            spread: Spread::Tree(shape, Order::Interleaved),
            correction: Correction::Checked,
            start: Start::Synchronized,
            bytes: 1,
            faults: Faults::none(),
        }
    }
}

/// What a run came to. Times are in the units of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// When the last live process had the message.
    pub colouring_time: u64,
    /// When the last send or reception ended, or the last message to the dead arrived.
    pub quiescence: u64,
    /// Messages sent.
    pub messages: u64,
    /// Who died, ascending.
    pub dead: Vec<Peer>,
    /// Live processes without the message.
    pub uncoloured_live: u64,
    /// The longest run of neighbours that the dissemination was not first to reach,
    /// the dead included.
    pub max_gap: u32,
    /// The root of an acknowledged tree knows that everyone has the message.
    pub acknowledged: bool,
    /// Entries of the simulator's calendar.
    pub events: u64,
}

struct Watch {
    bytes: u64,
    gossip: bool,
    /// Overlapped, messages of both kinds mix; these corrections go by the order in which
    /// a process hears them.
    in_turn: bool,
    /// When each process was coloured, in the order of ranks; 2^64 - 1: never.
    coloured: Vec<u64>,
    acknowledged: bool,
    /// Every message, if asked for.
    arrows: Option<Vec<Arrow>>,
}

/// Colour and meaning of the messages in a picture.
const LEGEND: [(&str, &str); 4] = [
    ("#1f6fb4", "dissemination"),
    ("#d1610d", "correction to the left"),
    ("#2a8f3c", "correction to the right"),
    ("#888888", "acknowledgements"),
];

const fn kind(msg: Msg) -> usize {
    match msg {
        Msg::Spread => 0,
        Msg::Leftward => 1,
        Msg::Rightward => 2,
        Msg::Acknowledge => 3,
    }
}

impl Host<Broadcast> for Watch {
    fn on_send(&mut self, from: Peer, to: Peer, msg: &Msg, now: Time) {
        if let Some(arrows) = &mut self.arrows {
            arrows.push(Arrow {
                from,
                to,
                kind: kind(*msg),
                start: now.0,
                end: None,
            });
        }
    }
    fn on_receive(&mut self, from: Peer, to: Peer, msg: &Msg, now: Time) {
        if let Some(arrows) = &mut self.arrows {
            plot::received(arrows, from, to, kind(*msg), now.0);
        }
    }
    fn on_event(&mut self, who: Peer, now: Time, event: Event) {
        match event {
            Event::Coloured(_) => self.coloured[who as usize] = now.0,
            Event::Acknowledged => self.acknowledged = true,
        }
    }
    /// A process hands all messages to its children to the port at once, and decides on
    /// a correction when the port is free.
    fn yields(&self, msg: &Msg) -> bool {
        matches!(msg, Msg::Leftward | Msg::Rightward)
    }
    fn decided(&self, from: Peer, msg: &Msg, sent: Time) -> Time {
        match msg {
            Msg::Spread if !self.gossip => Time(self.coloured[from as usize].min(sent.0)),
            _ => sent,
        }
    }
    fn in_turn(&self) -> bool {
        self.in_turn
    }
    fn bytes(&self, msg: &Msg, _: Option<outlive_base::machine::Body>) -> u64 {
        match msg {
            Msg::Acknowledge => 1,
            _ => self.bytes,
        }
    }
}

/// A broadcast that can be run with any seed.
#[derive(Clone, Debug)]
pub struct Broadcasts {
    parameters: Parameters,
    config: Config,
    gossip_time: Option<u64>,
    /// The quiescence without failures, if they are to be spread over it.
    horizon: u64,
}

/// The largest entry of the calendar, in bytes.
pub const EVENT_BYTES: usize = World::<'static, Broadcast, Watch>::EVENT_BYTES;
const _: () = assert!(EVENT_BYTES <= 24);

impl Broadcasts {
    /// Checks the parameters and prepares what all runs share.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for parameters that are out of range or contradict each
    /// other, among them a root that is to die before the start.
    pub fn new(parameters: Parameters) -> Result<Broadcasts> {
        let Parameters { ring, model, .. } = parameters;
        model.logp.check()?;
        if parameters.bytes == 0 || parameters.bytes > 1 << 40 {
            let reason = format!("{} bytes", parameters.bytes);
            return refuse("bytes", reason, "give 1 to 2^40 bytes");
        }
        parameters.faults.check(ring)?;
        let (correction, start) = (parameters.correction, parameters.start);
        let mut gossip_time = None;
        let config = match parameters.spread {
            Spread::Tree(shape, order) => {
                let logp = stretched(&model, parameters.bytes);
                Config::tree(ring, (shape, order), false, &logp, correction, start)?
            }
            Spread::AcknowledgedTree(shape, order) => {
                let logp = stretched(&model, parameters.bytes);
                Config::tree(ring, (shape, order), true, &logp, correction, start)?
            }
            Spread::Gossip(until) => {
                let logp = stretched(&model, parameters.bytes);
                let dead = parameters.faults.most(ring);
                let until = until.unwrap_or_else(|| best_time(ring.processes, dead, &logp));
                gossip_time = Some(until);
                Config::gossip(ring, Time(until), correction, start)?
            }
        };
        let mut broadcasts = Broadcasts {
            parameters,
            config,
            gossip_time,
            horizon: 0,
        };
        if broadcasts.parameters.faults.moment != Moment::Before {
            let (calm, _) = broadcasts.run_with(0, &[], false)?;
            broadcasts.horizon = calm.quiescence;
        }
        Ok(broadcasts)
    }

    /// The configuration that the processes share.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The parameters.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// When gossip ends, given or chosen.
    pub const fn gossip_time(&self) -> Option<u64> {
        self.gossip_time
    }

    /// One run.
    ///
    /// # Errors
    /// [`Code::Internal`] if the machines could not be made.
    pub fn run(&self, seed: u64) -> Result<Run> {
        let deaths = self.deaths(seed);
        Ok(self.run_with(seed, &deaths, false)?.0)
    }

    /// A picture of the run with this seed, as SVG: up to [`Broadcasts::DRAWN_MAX`]
    /// processes every message in space and time, above that how many have the message.
    ///
    /// # Errors
    /// As [`Broadcasts::run`].
    pub fn plot(&self, seed: u64) -> Result<String> {
        let deaths = self.deaths(seed);
        let few = self.parameters.ring.processes <= Self::DRAWN_MAX;
        let (run, watch) = self.run_with(seed, &deaths, few)?;
        let picture = Picture {
            title: format!(
                "{} processes, {} dead: coloured at {}, quiescent at {}, {} messages",
                self.parameters.ring.processes,
                run.dead.len(),
                run.colouring_time,
                run.quiescence,
                run.messages
            ),
            legend: &LEGEND,
            dead: &run.dead,
            quiescence: run.quiescence,
            reached: &watch.coloured,
        };
        Ok(match &watch.arrows {
            Some(arrows) => plot::space_time(&picture, arrows),
            None => plot::curve(&picture),
        })
    }

    /// The most processes whose messages are drawn one by one.
    pub const DRAWN_MAX: u32 = plot::DRAWN_MAX;

    fn deaths(&self, seed: u64) -> Vec<(Peer, Death)> {
        let Parameters { ring, faults, .. } = &self.parameters;
        faults.draw(*ring, seed, self.horizon)
    }

    /// What the correction promises for these failures: that every live process gets
    /// the message.
    pub fn guaranteed(&self) -> bool {
        let Parameters { faults, ring, .. } = &self.parameters;
        let during = match faults.moment {
            Moment::During => faults.drawn(*ring),
            Moment::Before | Moment::After => 0,
        };
        let during = during.saturating_add(faults.named.len() as u32);
        match self.parameters.correction {
            Correction::Checked => during == 0,
            Correction::FailureProof(f) => during <= f,
            _ => {
                let calm = during == 0 && faults.most(*ring) == 0;
                calm && !matches!(self.parameters.spread, Spread::Gossip(_))
            }
        }
    }

    fn run_with(&self, seed: u64, deaths: &[(Peer, Death)], trace: bool) -> Result<(Run, Watch)> {
        let ring = self.parameters.ring;
        let count = ring.processes as usize;
        let gossip = matches!(self.parameters.spread, Spread::Gossip(_));
        let by_turn = matches!(
            self.parameters.correction,
            Correction::OptimizedOpportunistic(_) | Correction::FailureProof(_)
        );
        let watch = Watch {
            bytes: self.parameters.bytes,
            gossip,
            in_turn: by_turn && !gossip && self.parameters.start == Start::Overlapped,
            coloured: vec![u64::MAX; count],
            acknowledged: false,
            arrows: trace.then(Vec::new),
        };
        let machines = vec![Broadcast::default(); count];
        let mut world = World::new(self.parameters.model, &self.config, seed, machines, watch)?;
        for &(who, death) in deaths {
            world.kill(who, death);
        }
        world.command(ring.root, Command::Start);
        let outcome = world.run(Time::NEVER);
        let mut dead: Vec<Peer> = deaths.iter().map(|d| d.0).collect();
        dead.retain(|&who| world.dead(who));
        dead.sort_unstable();
        let live = |who: usize| dead.binary_search(&(who as Peer)).is_err();
        let (mut colouring_time, mut uncoloured_live) = (0, 0);
        for (who, &at) in world.host.coloured.iter().enumerate() {
            if at == u64::MAX {
                uncoloured_live += u64::from(live(who));
            } else if at > colouring_time && live(who) {
                colouring_time = at;
            }
        }
        let reached = |place: u32| {
            let cause = world.machines()[ring.rank(place) as usize].cause();
            matches!(cause, Some(Cause::Root | Cause::Dissemination))
        };
        let max_gap = longest_gap(ring.processes, reached);
        let run = Run {
            seed,
            colouring_time,
            quiescence: outcome.quiescence.0,
            messages: outcome.messages,
            max_gap,
            dead,
            uncoloured_live,
            acknowledged: world.host.acknowledged,
            events: outcome.events,
        };
        Ok((run, world.host))
    }

    /// Runs with consecutive seeds on so many threads; ascending by seed.
    ///
    /// # Errors
    /// As [`Broadcasts::run`].
    pub fn sweep(&self, first: u64, runs: u64, threads: usize) -> Result<Vec<Run>> {
        sweep(first, runs, threads, |seed| self.run(seed))
    }
}

/// What `run` gives for consecutive seeds, ascending, on so many threads.
///
/// # Errors
/// The first error of a run.
pub fn sweep<R: Send>(
    first: u64,
    runs: u64,
    threads: usize,
    run: impl Fn(u64) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let runs = usize::try_from(runs).unwrap_or(usize::MAX);
    let threads = threads.clamp(1, runs.max(1));
    if threads == 1 {
        return (0..runs as u64)
            .map(|n| run(first.wrapping_add(n)))
            .collect();
    }
    let next = AtomicUsize::new(0);
    let part = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= runs {
                return done;
            }
            done.push((n, run(first.wrapping_add(n as u64))));
        }
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
        for worker in workers {
            let ended = worker.join();
            let part = ended
                .map_err(|_| Error::internal("a thread of the sweep ended early".to_owned()))?;
            all.extend(part);
        }
        Ok(())
    })?;
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, run)| run).collect()
}

/// LogGP as LogP for messages of one size: what the trees and the gossip plan with.
fn stretched(model: &Model, bytes: u64) -> LogP {
    let extra = (bytes - 1).saturating_mul(model.byte_gap);
    let extra = extra.min(u64::from(u32::MAX));
    let mut logp = model.logp;
    logp.latency += extra;
    logp.gap += extra;
    logp
}

fn refuse<T>(option: &str, reason: impl Into<String>, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

/// The longest run on the ring for which `reached` is false.
fn longest_gap(processes: u32, reached: impl Fn(u32) -> bool) -> u32 {
    let Some(first) = (0..processes).find(|&place| reached(place)) else {
        return processes;
    };
    let (mut longest, mut run) = (0, 0);
    for step in 1..=processes {
        let place = (first + step) % processes;
        run = if reached(place) { 0 } else { run + 1 };
        longest = longest.max(run);
    }
    longest
}
