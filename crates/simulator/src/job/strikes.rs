//! One blow strikes a job that is otherwise without faults, at a chosen stage of its work: what it
//! restores afterwards, or why nothing. The cells of the kill matrix are made of this.

use std::collections::BTreeSet;

use outlive_base::rng::Sequence;
use outlive_base::{Level, Levels, Time};
use outlive_control::node;

use super::losses::{committed, without_faults};
use super::node::Process;
use super::*;

/// Until the job has come to the stage, at most.
const BOUND: Time = Time::from_secs(10);
/// The stage is waited for so long after all levels have a version, at most, in microseconds.
const LATER_US: u64 = 400_000;
/// From the stage to the blow, at most, in microseconds.
const DELAY_US: u64 = 3_000;
/// A process that stands still, or is not heard, for less than anybody misses it.
const SHORT: Time = Time::from_ms(200);
/// A memory server whose answer is waited for.
const AWAITED: Time = Time::from_ms(700);
/// One that is taken for dead meanwhile.
const LONG: Time = Time::from_ms(2_500);
/// Nothing of the blow is left after this.
const OVER: Time = Time::from_secs(4);

/// What is struck.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Victim {
    /// A process of the command.
    Rank,
    /// The agent of a node.
    Agent(u32),
    /// The keeper of a node, and what it keeps in memory.
    Keeper(u32),
    /// Nodes, with all that runs and is stored there.
    Nodes(BTreeSet<u32>),
    /// The memory server.
    Server,
    /// The launcher; when it is killed the same command is given again.
    Launcher,
}

/// What the job is doing when it is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// A rank has come to a version that is armed.
    Arming,
    /// A rank copies.
    Capture,
    /// A copy or a parity of a version is being written.
    Redundancy,
    /// A node has recorded that it is prepared.
    Prepare,
    /// The coordinator is recording a decision.
    Commit,
    /// A version has been told to be stable.
    Stable,
    /// A rank begins with what it restores.
    Restore,
    /// A node brings a version back into memory.
    Rebuild,
    /// What was lost of a version's redundancy is made again.
    ReProtection,
    /// Old copies are being removed.
    Collection,
}

impl Stage {
    /// All of them, in the order of a version's life.
    pub const ALL: [Stage; 10] = [
        Stage::Arming,
        Stage::Capture,
        Stage::Redundancy,
        Stage::Prepare,
        Stage::Commit,
        Stage::Stable,
        Stage::Restore,
        Stage::Rebuild,
        Stage::ReProtection,
        Stage::Collection,
    ];

    /// True for what a loss is needed to come to.
    pub const fn is_after_a_loss(self) -> bool {
        matches!(self, Stage::Rebuild | Stage::ReProtection)
    }

    /// True if the stage comes at one node for all.
    const fn is_of_all(self) -> bool {
        matches!(self, Stage::Commit | Stage::Stable)
    }
}

/// How it is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// It ends at once.
    Kill,
    /// It stands still for a while: a node for longer than others miss it, a process not.
    Freeze,
    /// It is cut off for a while: nodes from all other nodes, an agent or the launcher from all.
    Partition,
}

/// A cell of the matrix.
#[derive(Clone, Debug)]
pub struct Strike {
    /// Nodes of the job.
    pub nodes: u32,
    /// Its levels.
    pub levels: Levels,
    /// What is struck.
    pub victim: Victim,
    /// When.
    pub stage: Stage,
    /// How.
    pub blow: Blow,
    /// A fault planted in the nodes.
    pub planted: Option<node::Planted>,
}

/// A node that was lost so that the job came to a stage, and whether its storage was too.
pub type First = (u32, bool);

/// What came of a strike.
#[derive(Clone, Debug, Default)]
pub struct AfterStrike {
    /// The job came to the stage.
    pub came: bool,
    /// What was lost before, to bring it there.
    pub first: Option<First>,
    /// What had been declared stable before the blow, by level.
    pub stable: BTreeSet<(Key, Level)>,
    /// What is committed by the records of nodes that were not struck, by level.
    pub recorded: BTreeSet<(Key, Level)>,
    /// An incarnation has opened since the blow.
    pub opened: bool,
    /// What the newest incarnation restored.
    pub restored: Option<Key>,
    /// Why nothing could be restored.
    pub refused: Option<String>,
    /// What the judge found; empty is good.
    pub violations: Vec<String>,
}

/// A strike that the job has not come to, or has.
pub(super) struct Pending {
    strike: Strike,
    /// The stage is looked for.
    armed: bool,
    /// The job has come to it; what was stable then, and how many incarnations had opened.
    came: Option<(BTreeSet<(Key, Level)>, usize)>,
    /// When it was struck.
    at: Option<Time>,
}

/// The job of a seed, and what becomes of it.
pub fn strike(seed: u64, strike: &Strike) -> AfterStrike {
    strike_told(seed, strike, false).0
}

/// As [`strike`], with the history printed if asked for.
pub fn strike_told(seed: u64, strike: &Strike, lines: bool) -> (AfterStrike, Vec<String>) {
    let mut job = Job::new(seed, options(seed, strike));
    job.lines = lines.then(Vec::new);
    job.begin_all();
    let enough = |job: &Job| strike.levels.iter().all(|level| job.is_stable_at(level));
    job.run_until(enough, "nothing becomes stable");
    let later = job.now + Time(1_000 * job.random.below(LATER_US));
    while job.now < later && job.one_more() {}
    job.pending = Some(Box::new(Pending {
        strike: strike.clone(),
        armed: true,
        came: None,
        at: None,
    }));
    let first = job.brings_to_stage(strike);
    let end = job.now + BOUND;
    let is_struck = |job: &Job| job.pending.as_ref().is_some_and(|it| it.at.is_some());
    while !is_struck(&job) && job.now < end && job.one_more() {}
    let (came, at) = match job.pending.take() {
        Some(pending) => (pending.came, pending.at),
        None => (None, None),
    };
    let (Some((stable, before)), Some(at)) = (came, at) else {
        let lines = job.lines.take().unwrap_or_default();
        let violations = job.judge.violations;
        let came = AfterStrike {
            first,
            violations,
            ..AfterStrike::default()
        };
        return (came, lines);
    };
    let goes_on = |job: &Job| {
        let number = job.launcher.supervisor_incarnation();
        let mut levels = strike.levels.iter();
        levels.all(|level| job.judge.stable_after(at + OVER, number, level))
    };
    let is_over = |job: &Job| job.nothing.is_some() || goes_on(job);
    job.run_until(is_over, "the job does not go on");
    let struck = |node: u32| {
        let of = matches!(&strike.victim, Victim::Nodes(nodes) if nodes.contains(&node));
        of || first.is_some_and(|(lost, _)| lost == node)
    };
    let mut recorded = job.judge.committed_at(|node| !struck(node));
    recorded.extend(job.shared.records.iter().filter_map(committed));
    let opened = job.judge.opened_count() > before;
    let after = AfterStrike {
        came: true,
        first,
        stable,
        recorded,
        opened,
        restored: job.judge.newest_opening().filter(|_| opened),
        refused: job.nothing,
        violations: job.judge.violations,
    };
    (after, job.lines.take().unwrap_or_default())
}

/// A job without faults, whose versions are taken at a steady pace.
fn options(seed: u64, strike: &Strike) -> Options {
    let mut random = Sequence::new(seed, 0x7374_7269);
    Options {
        nodes: strike.nodes,
        coordinator: random.below(u64::from(strike.nodes)) as u32,
        levels: strike.levels,
        planted_node: strike.planted,
        steady: true,
        ..without_faults(seed)
    }
}

impl Job {
    /// What must happen before, for the job to come to the stage.
    fn brings_to_stage(&mut self, strike: &Strike) -> Option<First> {
        if strike.stage == Stage::Restore {
            self.rank_fails();
        }
        if !strike.stage.is_after_a_loss() {
            return None;
        }
        let node = match &strike.victim {
            Victim::Nodes(nodes) => nodes.first().copied(),
            Victim::Agent(node) | Victim::Keeper(node) => Some(*node),
            Victim::Rank | Victim::Server | Victim::Launcher => None,
        };
        let nodes = u64::from(strike.nodes);
        let node = node.unwrap_or_else(|| self.random.below(nodes) as u32);
        let wiped = strike.levels.iter().any(Level::outlives_a_node);
        match wiped {
            true => self.node_falls_silent(node),
            false => self.node_ends(node, false),
        }
        Some((node, wiped))
    }

    /// A keeper ends, with the node or alone.
    fn node_ends(&mut self, node: u32, wiped: bool) {
        let who = self.at(node);
        if !self.home(who).lost {
            self.keeper_killed(who, wiped);
        }
    }

    /// A node is gone with its storage, and nobody sees it end.
    fn node_falls_silent(&mut self, node: u32) {
        let who = self.at(node);
        self.ranks_fall(node, false);
        self.kill_all_of(who);
        self.wiped(who);
    }

    /// The job has come to a stage, at a node.
    pub(super) fn comes_to(&mut self, stage: Stage, who: Process) {
        let Some(pending) = &self.pending else {
            return;
        };
        let node = self.homes[who as usize].node;
        let strike = &pending.strike;
        let here = match &strike.victim {
            Victim::Nodes(nodes) => nodes.contains(&node) || stage.is_of_all(),
            Victim::Agent(own) | Victim::Keeper(own) => *own == node || stage.is_of_all(),
            Victim::Rank | Victim::Server | Victim::Launcher => true,
        };
        if !pending.armed || pending.came.is_some() || strike.stage != stage || !here {
            return;
        }
        let came = (self.judge.all_stable(), self.judge.opened_count());
        self.note(|| format!("p{who} comes to {stage:?}"));
        if let Some(pending) = &mut self.pending {
            pending.came = Some(came);
        }
        let delay = match self.random.below(3) {
            0 => Time(1),
            _ => self.some_us(DELAY_US),
        };
        self.after(delay, Action::Blow);
    }

    /// The blow.
    pub(super) fn blow(&mut self) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        pending.at = Some(self.now);
        let (victim, blow) = (pending.strike.victim.clone(), pending.strike.blow);
        self.note(|| format!("struck: {victim:?} by {blow:?}"));
        match victim {
            Victim::Rank => self.blow_to_rank(blow),
            Victim::Agent(node) => self.blow_to_agent(node, blow),
            Victim::Keeper(node) => match blow {
                Blow::Kill => self.node_ends(node, false),
                // Its agent lives on, and is not started anew meanwhile.
                Blow::Freeze | Blow::Partition => {
                    let who = self.at(node);
                    self.home(who).keeper_stopped = true;
                    self.after(LONG, Action::BlowOver);
                }
            },
            Victim::Nodes(nodes) => self.blow_to_nodes(&nodes, blow),
            Victim::Server => match blow {
                Blow::Kill => self.server_is_lost(SHORT, false),
                Blow::Freeze => self.server_is_lost(AWAITED, true),
                Blow::Partition => self.server_is_lost(LONG, true),
            },
            Victim::Launcher => match blow {
                Blow::Kill => self.next_run(),
                Blow::Freeze => self.launcher.paused_until = self.now + LONG,
                Blow::Partition => self.launcher_is_cut_off(LONG),
            },
        }
    }

    fn blow_to_rank(&mut self, blow: Blow) {
        if blow == Blow::Kill {
            return self.rank_fails();
        }
        let ranks: Vec<u32> = self.programs.keys().copied().collect();
        let at = self.random.below(ranks.len().max(1) as u64) as usize;
        let program = ranks.get(at).and_then(|rank| self.programs.get_mut(rank));
        if let Some(program) = program {
            program.stopped = true;
            self.after(SHORT, Action::BlowOver);
        }
    }

    fn blow_to_agent(&mut self, node: u32, blow: Blow) {
        let who = self.at(node);
        match blow {
            Blow::Kill => self.end_agent(who),
            Blow::Freeze => self.home(who).paused_until = self.now + SHORT,
            Blow::Partition => {
                self.home(who).isolated = true;
                self.after(SHORT, Action::BlowOver);
            }
        }
    }

    fn blow_to_nodes(&mut self, nodes: &BTreeSet<u32>, blow: Blow) {
        for &node in nodes {
            let who = self.at(node);
            match blow {
                // Its end is seen or not, as it may be.
                Blow::Kill if self.random.chance(500_000) => self.node_ends(node, true),
                Blow::Kill if !self.home(who).lost => self.node_falls_silent(node),
                Blow::Freeze => self.home(who).paused_until = self.now + LONG,
                Blow::Kill | Blow::Partition => {}
            }
        }
        if blow == Blow::Partition {
            let side = nodes.iter().fold(0, |side, node| side | 1 << node);
            self.net.partition(side);
            self.after(LONG + SHORT, Action::Rejoin);
        }
    }

    /// No word comes through between the launcher and any agent.
    fn launcher_is_cut_off(&mut self, length: Time) {
        for node in 0..self.options.nodes {
            let who = self.at(node);
            self.breaks(who, length);
        }
    }

    /// What stood still, or was cut off, does so no more.
    pub(super) fn blow_over(&mut self) {
        for program in self.programs.values_mut() {
            program.stopped = false;
        }
        for node in 0..self.options.nodes {
            let who = self.at(node);
            let home = self.home(who);
            (home.keeper_stopped, home.isolated) = (false, false);
        }
    }
}
