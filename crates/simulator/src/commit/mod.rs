//! Histories of a job's checkpoints: real commit machines, simulated ranks,
//! agents, storage and launcher, faults from a seed, and an independent judge.
//!
//! Invariants of the harness: ranks never wait for anything; an agent obeys
//! events and answers them after a random time; storage keeps what was put there,
//! torn or damaged as the faults say; every fault of storage is told to the judge.

mod agent;
mod bare;
mod chaos;
mod checker;
mod launcher;
mod options;
mod passing;
mod restart;

use std::collections::BTreeMap;
use std::ops::Range;

use outlive_base::Time;
use outlive_base::rng::Sequence;
use outlive_protocols::commit::{Command, Commit, Event, Record};

use crate::network::Lossy;
use crate::world::{Driver, Process, World};

pub use checker::{Checker, Key, Place};
pub use options::{Options, Weights};

use agent::Home;
use launcher::Launcher;

type W = World<Commit, Lossy, History>;

/// What the harness schedules for itself.
#[derive(Clone, Debug)]
enum Action {
    /// A rank's next step.
    Step {
        who: Process,
        rank: usize,
        epoch: u32,
    },
    /// An agent's answer, if the same agent still lives.
    Tell {
        who: Process,
        life: u32,
        command: Command,
    },
    /// The launcher has told an agent how many ranks the job has.
    Learn {
        who: Process,
        life: u32,
        incarnation: u32,
    },
    /// An agent writes a level.
    Flush {
        who: Process,
        life: u32,
        key: Key,
        level: outlive_base::Level,
    },
    /// An agent brings a version into memory.
    Rebuild { who: Process, life: u32, key: Key },
    /// A keeper starts its agent again.
    Restart { who: Process },
    /// The launcher's word reaches an agent.
    Open { number: u32, node: u32 },
    /// The launcher looks whether the incarnation is open.
    Overdue { number: u32 },
    /// The launcher opens the next incarnation.
    Next { after: u32 },
    /// The launcher notices that a node is gone.
    Noticed { who: Process },
    /// The policy wants a checkpoint.
    Policy,
    /// A fault is drawn.
    Chaos,
    /// A partition ends.
    Rejoin,
    /// All faults end.
    Heal,
}

/// The whole history: everything above the machines.
struct History {
    options: Options,
    random: Sequence,
    judge: Checker,
    homes: BTreeMap<Process, Home>,
    shared: BTreeMap<(Key, u32), agent::Blob>,
    shared_records: Vec<Record>,
    launcher: Launcher,
    /// A forced checkpoint: incarnation and version.
    forced: Option<(u32, u64)>,
    /// Ranks' life: grows with every start and stop.
    epoch: u32,
    calm: bool,
    restarts: u32,
}

/// What became of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was drawn from it.
    pub options: Options,
    /// What the judge found; empty is good.
    pub violations: Vec<String>,
    /// The hash of the history (P8).
    pub trace: u64,
    /// Versions declared stable, by level.
    pub stable: usize,
    /// Incarnations that opened.
    pub opened: usize,
    /// Happenings.
    pub happenings: u64,
    /// The printable history, if asked for.
    pub lines: Vec<String>,
}

impl Driver<Commit, Lossy> for History {
    type Action = Action;

    fn on_event(&mut self, world: &mut W, who: Process, event: Event) {
        self.agent_event(world, who, event);
    }

    fn on_durable(&mut self, world: &mut W, who: Process, record: Record) {
        let node = world.node(who);
        match record {
            Record::Prepared {
                incarnation,
                version,
                level,
            } => {
                self.judge.prepares(node, (incarnation.0, version.0), level);
            }
            Record::Commit {
                incarnation,
                version,
                level,
                ..
            } => {
                self.judge
                    .commits(world.now, node, (incarnation.0, version.0), level);
                if level == outlive_base::Level::Shared && node == 0 {
                    self.shared_records.push(record);
                }
            }
            Record::Incarnation { .. } if node == 0 => self.shared_records.push(record),
            _ => {}
        }
    }

    fn on_crash(&mut self, world: &mut W, who: Process) {
        self.agent_crashed(world, who);
    }

    fn on_action(&mut self, world: &mut W, action: Action) {
        match action {
            Action::Step { who, rank, epoch } => self.step(world, who, rank, epoch),
            Action::Tell { who, life, command } => self.tell_now(world, who, life, command),
            Action::Learn {
                who,
                life,
                incarnation,
            } => self.learn(world, who, life, incarnation),
            Action::Flush {
                who,
                life,
                key,
                level,
            } => self.flush(world, who, life, key, level),
            Action::Rebuild { who, life, key } => self.rebuild(world, who, life, key),
            Action::Restart { who } => self.restart(world, who),
            Action::Open { number, node } => self.open_one(world, number, node),
            Action::Overdue { number } => self.overdue(world, number),
            Action::Next { after } => self.open_next(world, after),
            Action::Noticed { who } => self.noticed(world, who),
            Action::Policy => self.policy(world),
            Action::Chaos => self.chaos(world),
            Action::Rejoin => world.net.partition(0),
            Action::Heal => self.heal(world),
        }
    }
}

/// One history of this seed, with the options that the seed gives.
pub fn run_seed(seed: u64) -> Outcome {
    run_history(seed, Options::from_seed(seed), false)
}

/// The printable history of a seed: what `run_seed` did, line by line.
pub fn explain(seed: u64, options: Options) -> Outcome {
    run_history(seed, options, true)
}

/// One history.
pub fn run_history(seed: u64, options: Options, lines: bool) -> Outcome {
    let net = Lossy::new(options.net.clone(), seed);
    let mut world: W = World::new(options.config(), net, options.faults.clone(), seed, lines);
    let mut history = History {
        random: Sequence::new(seed, 0x6869_7374),
        judge: Checker::new(options.nodes),
        homes: BTreeMap::new(),
        shared: BTreeMap::new(),
        shared_records: Vec::new(),
        launcher: Launcher::default(),
        forced: None,
        epoch: 0,
        calm: false,
        restarts: 0,
        options,
    };
    let (heal, end) = (history.options.heal, history.options.end);
    for node in 0..history.options.nodes {
        history.new_home(&mut world, node);
    }
    history.open_next(&mut world, 0);
    world.after(Time::from_ms(50), Action::Policy);
    world.after(history.options.tick, Action::Chaos);
    world.after(heal, Action::Heal);
    world.run(&mut history, end);
    history.final_checks(&mut world, heal);
    Outcome {
        seed,
        options: history.options,
        stable: history.judge.stable_count(),
        opened: history.judge.opened_count(),
        violations: history.judge.violations,
        trace: world.trace.0,
        happenings: world.happenings(),
        lines: world.lines.take().unwrap_or_default(),
    }
}

/// What became of many histories.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Histories.
    pub histories: u64,
    /// Seeds whose history breaks a promise, with the first violation.
    pub failed: Vec<(u64, String)>,
    /// Versions declared stable, over all.
    pub stable: u64,
    /// Incarnations opened, over all.
    pub opened: u64,
    /// Happenings, over all.
    pub happenings: u64,
}

/// Many histories on some threads; the result does not depend on their number.
/// `change` may alter the options of a seed.
pub fn sweep(seeds: Range<u64>, threads: u64, change: impl Fn(&mut Options) + Sync) -> Summary {
    let threads = threads.max(1);
    let one = |start: u64| {
        let mut summary = Summary::default();
        for seed in (seeds.start + start..seeds.end).step_by(threads as usize) {
            let mut options = Options::from_seed(seed);
            change(&mut options);
            let outcome = run_history(seed, options, false);
            summary.histories += 1;
            summary.stable += outcome.stable as u64;
            summary.opened += outcome.opened as u64;
            summary.happenings += outcome.happenings;
            if let Some(first) = outcome.violations.first() {
                summary.failed.push((seed, first.clone()));
            }
        }
        summary
    };
    let parts: Vec<Summary> = std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || one(t))).collect();
        // A panic in a history is a finding: pass it on.
        let join = |handle: std::thread::ScopedJoinHandle<'_, Summary>| {
            handle
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    });
    let mut total = Summary::default();
    for part in parts {
        total.histories += part.histories;
        total.stable += part.stable;
        total.opened += part.opened;
        total.happenings += part.happenings;
        total.failed.extend(part.failed);
    }
    total.failed.sort();
    total
}
