//! Histories of a job's checkpoints: real commit machines and the real supervisor,
//! simulated ranks, agents and storage, faults from a seed, and an independent judge.
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

use outlive_base::NodeId;
use outlive_base::Time;
use outlive_base::rng::Sequence;
use outlive_control::ended::{Ended, SIGKILL};
use outlive_control::orders::{Notice, Order};
use outlive_control::supervisor::Input;
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
    /// The supervisor's timer.
    Wake { at: Time },
    /// A keeper starts; it finds what the last holder of its slot stored, or nothing.
    StartNode {
        run: u32,
        node: u32,
        epoch: u64,
        keep: bool,
    },
    /// A sign of life of an agent is due.
    Beat { who: Process, life: u32 },
    /// A word of an agent reaches the launcher, if the connection did not break.
    Hear {
        who: Process,
        number: u32,
        notice: Box<Notice>,
    },
    /// An order reaches an agent, if the connection did not break.
    Obey {
        who: Process,
        number: u32,
        order: Box<Order>,
    },
    /// A connection that broke is made again.
    Reconnect { who: Process, number: u32 },
    /// The processes of a slot are gone.
    Fenced { node: u32, epoch: u64 },
    /// The launcher sees that a keeper has ended.
    KeeperEnded { node: u32, epoch: u64 },
    /// The command starts its ranks.
    StartRanks { epoch: u32 },
    /// A rank meets its agent.
    Join {
        who: Process,
        rank: u32,
        pid: u32,
        epoch: u32,
    },
    /// Peers ask for a node that they call dead.
    AskFor { who: Process },
    /// The ranks of the command are gone.
    EndRanks { epoch: u32 },
    /// The launcher sees the end of a rank.
    RankKilled { rank: u32, pid: u32 },
    /// Peers notice that a node is gone.
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
            Action::Flush {
                who,
                life,
                key,
                level,
            } => self.flush(world, who, life, key, level),
            Action::Rebuild { who, life, key } => self.rebuild(world, who, life, key),
            Action::Restart { who } => self.restart(world, who),
            Action::Wake { at } => self.wake(world, at),
            Action::StartNode {
                run,
                node,
                epoch,
                keep,
            } => self.start_node(world, run, (node, epoch, keep)),
            Action::Beat { who, life } => self.beat(world, who, life),
            Action::Hear {
                who,
                number,
                notice,
            } => self.hear(world, who, number, *notice),
            Action::Obey { who, number, order } => self.obey(world, who, number, order),
            Action::Reconnect { who, number } => self.reconnect(world, who, number),
            Action::Fenced { node, epoch } => {
                let (node, complete) = (NodeId(node), true);
                self.supervise(
                    world,
                    Input::Fenced {
                        node,
                        epoch,
                        complete,
                    },
                );
            }
            Action::KeeperEnded { node, epoch } => {
                let (node, ended) = (NodeId(node), Ended::Signal(SIGKILL));
                self.supervise(world, Input::KeeperEnded { node, epoch, ended });
            }
            Action::StartRanks { epoch } => self.start_ranks(world, epoch),
            Action::Join {
                who,
                rank,
                pid,
                epoch,
            } => self.rank_joins(world, (who, rank, pid, epoch)),
            Action::AskFor { who } => self.ask_for(world, who),
            Action::EndRanks { epoch } => self.end_ranks(world, epoch),
            Action::RankKilled { rank, pid } => self.rank_killed(world, rank, pid),
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
        launcher: Launcher::new(&options),
        forced: None,
        epoch: 0,
        calm: false,
        restarts: 0,
        options,
    };
    let (heal, end) = (history.options.heal, history.options.end);
    for node in 0..history.options.nodes {
        // An address for everyone who is asked for before its keeper has started.
        let who = history.new_home(&mut world, node);
        history.home(who).up = false;
    }
    history.supervise(&mut world, Input::Timer);
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
