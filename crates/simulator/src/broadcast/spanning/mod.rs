//! Runs of [`outlive_protocols::broadcast::spanning`] over the LogP network: trees are
//! grown once, then many broadcasts follow each other, with failures at any moment.
//!
//! What a run came to is checked here from what the processes said and sent, and from who
//! is whose parent in the end; the code of the protocol is not asked whether all is well.

mod watch;

use outlive_base::machine::{Body, Machine, Peer};
use outlive_base::{Result, Time};
use outlive_planner::gossip::best_time_spaced;
use outlive_protocols::broadcast::spanning::{Command, Config, Event, Msg, Repair, SpanningTrees};
use outlive_protocols::broadcast::tree::Ring;

use super::faults::{Faults, Moment};
use super::{refuse, stretched};
use crate::logp::{Death, Model, World};
use crate::plot::{self, Picture};
use watch::{Forest, LEGEND, Watch};

/// A protocol with the interface of [`SpanningTrees`], or that with a fault planted in it.
pub trait Grows:
    Machine<Config = Config, Msg = Msg, Command = Command, Event = Event>
    + Default
    + Clone
    + AsRef<SpanningTrees>
{
}
impl<M> Grows for M where
    M: Machine<Config = Config, Msg = Msg, Command = Command, Event = Event>
        + Default
        + Clone
        + AsRef<SpanningTrees>
{
}

/// Broadcasts of a run at most.
pub const BROADCASTS_MAX: u32 = 1024;
/// A time-out of its own choice is so many times the time of a calm run.
const AUTO_FACTOR: u64 = 8;

/// Everything but the seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// The ring and its root.
    pub ring: Ring,
    /// The network.
    pub model: Model,
    /// How many trees.
    pub trees: u32,
    /// How long the gossip lasts; none: by [`best_time_spaced`] for those that gossip in a tree.
    pub gossip_time: Option<u64>,
    /// How trees reach those that the gossip missed.
    pub repair: Repair,
    /// Silence after which a process is dead; none: eight times the time of a calm run.
    pub timeout: Option<u64>,
    /// How many broadcasts.
    pub broadcasts: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// Who fails.
    pub faults: Faults,
}

/// What one broadcast came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct One {
    /// From 1.
    pub number: u32,
    /// The tree over which it was completed; else the last that was tried.
    pub tree: u32,
    /// From the first send to the last live process that has it.
    pub colouring_time: u64,
    /// From the first send until the root knows that everybody has it.
    pub completion: Option<u64>,
    /// Data and acknowledgements.
    pub messages: u64,
    /// Processes that live to the end and never had it.
    pub uncoloured_live: u64,
}

/// What a run came to. Times are in the units of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// When the root knew that the first trees were complete.
    pub planned: Option<u64>,
    /// Messages that grew trees, also for the second time.
    pub plan_messages: u64,
    /// All messages.
    pub messages: u64,
    /// When the last send or reception ended, or the last message to the dead arrived.
    pub quiescence: u64,
    /// Who died, ascending.
    pub dead: Vec<Peer>,
    /// The broadcasts in their order.
    pub broadcasts: Vec<One>,
    /// How often the root took another tree.
    pub switches: u32,
    /// How often the trees were grown.
    pub generations: u32,
    /// Longest way from the root in each tree of the last generation.
    pub heights: Vec<u32>,
    /// Most children of a process in one tree, the root left out.
    pub children_max: u32,
    /// Trees of the last generation, hurt ones too, that do not hold every live process.
    pub trees_lacking: u32,
    /// Broadcasts times live processes that missed them.
    pub uncoloured_live: u64,
    /// The first broken promise, of those that hold if the run is guaranteed.
    pub violation: Option<String>,
    /// Entries of the simulator's calendar.
    pub events: u64,
}

/// Runs that can be made with any seed.
#[derive(Clone, Debug)]
pub struct Plans {
    parameters: Parameters,
    config: Config,
    gossip_time: u64,
    timeout: u64,
    /// The time-out if none is given.
    auto_timeout: u64,
    /// The quiescence without failures: they are spread over it.
    horizon: u64,
}

impl Plans {
    /// Checks the parameters and prepares what all runs share.
    ///
    /// # Errors
    /// `InvalidArgument` for parameters that are out of range or contradict each other.
    pub fn new(parameters: Parameters) -> Result<Plans> {
        let Parameters { ring, model, .. } = parameters;
        model.logp.check()?;
        if parameters.bytes == 0 || parameters.bytes > 1 << 40 {
            let reason = format!("{} bytes", parameters.bytes);
            return refuse("bytes", reason, "give 1 to 2^40 bytes");
        }
        if parameters.broadcasts == 0 || parameters.broadcasts > BROADCASTS_MAX {
            let reason = format!("{} broadcasts", parameters.broadcasts);
            return refuse("broadcasts", reason, "give 1 to 1024");
        }
        let trees = parameters.trees;
        let config = |gossip: u64, timeout: u64| {
            let repair = parameters.repair;
            Config::new(ring, trees, Time(gossip), repair, Time(timeout))
        };
        config(0, 1)?; // Before anything is computed from them.
        parameters.faults.check(ring)?;
        let gossip_time = parameters.gossip_time.unwrap_or_else(|| {
            let members = (ring.processes - 1).div_ceil(trees) + 1;
            let dead = parameters.faults.most(ring) / trees;
            // The root serves the trees in turns.
            let turns = u64::from(trees - 1) * model.logp.gap;
            let logp = stretched(&model, 1);
            best_time_spaced(members, dead.min(members - 1), &logp, trees) + turns
        });
        let mut plans = Plans {
            config: config(gossip_time, 1 << 40)?,
            parameters,
            gossip_time,
            timeout: 1 << 40,
            auto_timeout: 0,
            horizon: 0,
        };
        let all = plans.parameters.broadcasts;
        let calm = plans.run_with::<SpanningTrees>(0, &[], all, false)?.0;
        plans.horizon = calm.quiescence;
        // No message is longer under way than the trees take to grow, nor than a broadcast.
        let first = calm.broadcasts.first().and_then(|one| one.completion);
        let calm = calm.planned.unwrap_or(0) + first.unwrap_or(0);
        plans.auto_timeout = AUTO_FACTOR.saturating_mul(calm.max(8));
        let timeout = plans.parameters.timeout.unwrap_or(plans.auto_timeout);
        plans.timeout = timeout;
        let repair = plans.parameters.repair;
        plans.config = Config::new(ring, trees, Time(gossip_time), repair, Time(timeout))?;
        Ok(plans)
    }

    /// The configuration that the processes share.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The parameters.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// How long gossip lasts, given or chosen.
    pub const fn gossip_time(&self) -> u64 {
        self.gossip_time
    }

    /// Silence after which a process is dead, given or chosen.
    pub const fn timeout(&self) -> u64 {
        self.timeout
    }

    /// How many may die on the way at most.
    fn during(&self) -> u32 {
        let Parameters { faults, ring, .. } = &self.parameters;
        let drawn = match faults.moment {
            Moment::During => faults.drawn(*ring),
            Moment::Before | Moment::After => 0,
        };
        drawn.saturating_add(faults.named.len() as u32)
    }

    /// Every live process must get every broadcast: a time-out is not shorter than four calm
    /// runs, and there are fewer failures than can use up all growths.
    pub fn guaranteed(&self) -> bool {
        let growths = self.config.generations_max;
        self.timeout >= self.auto_timeout / 2
            && self.during() < growths.saturating_mul(self.parameters.trees)
    }

    /// Hurt trees must hold every live process too.
    fn proof(&self) -> bool {
        match self.parameters.repair {
            Repair::Checked => false,
            Repair::FailureProof(failures) => self.during() <= failures,
        }
    }

    /// One run.
    ///
    /// # Errors
    /// `Internal` if the machines could not be made.
    pub fn run(&self, seed: u64) -> Result<Run> {
        self.run_any::<SpanningTrees>(seed)
    }

    /// One run of the protocol, or of one with a fault planted in it.
    ///
    /// # Errors
    /// As [`Plans::run`].
    pub fn run_any<M: Grows>(&self, seed: u64) -> Result<Run> {
        let Parameters { ring, faults, .. } = &self.parameters;
        let deaths = faults.draw(*ring, seed, self.horizon);
        let all = self.parameters.broadcasts;
        Ok(self.run_with::<M>(seed, &deaths, all, false)?.0)
    }

    /// A picture of the run with this seed, as SVG: up to [`plot::DRAWN_MAX`] processes
    /// every message in space and time, with dots where the first broadcast arrives; above
    /// that how many have it.
    ///
    /// # Errors
    /// As [`Plans::run`].
    pub fn plot(&self, seed: u64) -> Result<String> {
        let Parameters { ring, faults, .. } = &self.parameters;
        let deaths = faults.draw(*ring, seed, self.horizon);
        let few = ring.processes <= plot::DRAWN_MAX;
        let all = self.parameters.broadcasts;
        let (run, watch) = self.run_with::<SpanningTrees>(seed, &deaths, all, few)?;
        let picture = Picture {
            title: format!(
                "{} processes, {} dead: {} trees grown {} times, {} broadcasts, quiescent at {}",
                ring.processes,
                run.dead.len(),
                self.parameters.trees,
                run.generations,
                run.broadcasts.len(),
                run.quiescence
            ),
            legend: &LEGEND,
            dead: &run.dead,
            quiescence: run.quiescence,
            reached: &watch.had[0],
        };
        Ok(match &watch.arrows {
            Some(arrows) => plot::space_time(&picture, arrows),
            None => plot::curve(&picture),
        })
    }

    /// Runs with consecutive seeds on so many threads; ascending by seed.
    ///
    /// # Errors
    /// As [`Plans::run`].
    pub fn sweep(&self, first: u64, runs: u64, threads: usize) -> Result<Vec<Run>> {
        super::sweep(first, runs, threads, |seed| self.run(seed))
    }

    fn run_with<M: Grows>(
        &self,
        seed: u64,
        deaths: &[(Peer, Death)],
        broadcasts: u32,
        trace: bool,
    ) -> Result<(Run, Watch)> {
        let ring = self.parameters.ring;
        let machines = vec![M::default(); ring.processes as usize];
        let mut watch = Watch::new(&self.parameters);
        watch.arrows = trace.then(Vec::new);
        let model = self.parameters.model;
        let mut world = World::new(model, &self.config, seed, machines, watch)?;
        for &(who, death) in deaths {
            world.kill(who, death);
        }
        for number in 1..=broadcasts {
            let body = Some(Body(number));
            world.command(ring.root, Command::Broadcast { body });
        }
        let outcome = world.run(Time(u64::MAX / 4));
        let mut dead: Vec<Peer> = deaths.iter().map(|d| d.0).collect();
        dead.retain(|&who| world.dead(who));
        dead.sort_unstable();
        let machines: Vec<&SpanningTrees> = world.machines().iter().map(AsRef::as_ref).collect();
        let hurt = world.host.planned.map_or(0, |planned| planned.1);
        let hurt = if self.proof() { 0 } else { hurt };
        let forest = Forest::of(&self.config, &machines, &dead, hurt);
        let watch = &mut world.host;
        let all: Vec<One> = (0..broadcasts as usize)
            .map(|at| watch.one(at, &dead))
            .collect();
        watch.promises(&all, &dead, &forest);
        let run = Run {
            seed,
            planned: watch.planned.map(|planned| planned.0),
            plan_messages: watch.plan_messages,
            messages: outcome.messages,
            quiescence: outcome.quiescence.0,
            uncoloured_live: all.iter().map(|one| one.uncoloured_live).sum(),
            broadcasts: all,
            switches: watch.switches,
            generations: watch.generations,
            heights: forest.heights,
            children_max: forest.children_max,
            trees_lacking: forest.lacking.count_ones(),
            violation: watch.violation.take(),
            dead,
            events: outcome.events,
        };
        Ok((run, world.host))
    }
}
