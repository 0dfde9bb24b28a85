//! The launcher: the supervisor that runs in a job, and what carries out its actions here.
//! Keepers start and are killed, connections to agents break and lose what is under way,
//! ranks start and end, nodes are silent or fall without a word.

mod link;

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Code, Entity, Error, Incarnation, JobName, Level, NodeId, Rank, Time, Version};
use outlive_control::ended::{Ended, SIGKILL};
use outlive_control::orders::{Bounds, LevelSetting, Notice, Opened};
use outlive_control::supervisor::{self, Input, Settings, Storage, Supervisor};
use outlive_protocols::commit::{Command, Levels, Why};

use super::*;
use link::Link;

/// Between signs of life of an agent, in milliseconds.
const HEARTBEAT_MS: u64 = 100;
/// A supervisor that never waits longer than a history can bear.
const BOUNDS: Bounds = Bounds {
    heartbeat_ms: HEARTBEAT_MS,
    suspect_ms: 300,
    dead_ms: 700,
    arm_ms: 600,
    commit_ms: 900,
    recovery_ms: 2500,
    drain_ms: 500,
};

const BOUNDS_SUSPECT: Time = Time(BOUNDS.suspect_ms * 1_000_000);

/// The supervisor and its world.
#[derive(Debug)]
pub(super) struct Launcher {
    supervisor: Supervisor,
    /// When the supervisor is woken next.
    timer: Time,
    /// Each slot's holder, by epoch.
    epochs: BTreeMap<Process, u64>,
    links: BTreeMap<Process, Link>,
    /// The command runs, in this incarnation.
    running: Option<u32>,
    /// Frozen processes that were given up and not killed.
    zombies: Vec<Process>,
    /// The supervisor has ended the job, and why.
    over: Option<String>,
    /// Ranks that have met their agents in this start.
    joined: BTreeSet<(u32, u32)>,
    /// Which launcher this is.
    run: u32,
    /// What a launcher remembers for the next one: `job.json`.
    kept: Kept,
}

/// What stands in the job's file.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    incarnation: u32,
    epoch: u64,
    history: Incarnation,
}

impl Launcher {
    pub(super) fn new(options: &Options) -> Launcher {
        Launcher::after(options, Kept::default(), Time::ZERO)
    }

    fn after(options: &Options, kept: Kept, now: Time) -> Launcher {
        let job = JobName::new("history").expect("a good name");
        let mut settings = Settings::new(job, options.nodes);
        settings.spares = u32::MAX;
        settings.max_restarts = u32::MAX;
        settings.quick_max = u32::MAX;
        settings.open_tries_max = u32::MAX;
        settings.backoff_ms = 5;
        settings.backoff_max_ms = 40;
        settings.start_ms = 1_000;
        settings.fence_ms = 100;
        settings.kill_grace_ms = 50;
        settings.probe_ms = 200;
        settings.bounds = BOUNDS;
        settings.anew_if_nothing = true;
        settings.storage_stays = false;
        settings.last_incarnation = kept.incarnation;
        settings.epoch_base = kept.epoch;
        settings.history = kept.history;
        let setting = |level| LevelSetting { level, every: 1 };
        settings.levels = options.levels.iter().map(setting).collect();
        Launcher {
            supervisor: Supervisor::new(settings, now),
            timer: Time::NEVER,
            epochs: BTreeMap::new(),
            links: BTreeMap::new(),
            running: None,
            zombies: Vec::new(),
            over: None,
            joined: BTreeSet::new(),
            run: 0,
            kept,
        }
    }

    /// True while the command runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The incarnation opened last.
    pub(super) fn number(&self) -> u32 {
        self.supervisor.incarnation()
    }
}

impl History {
    /// Something happened: the supervisor is told and obeyed.
    pub(super) fn supervise(&mut self, world: &mut W, input: Input) {
        if self.launcher.over.is_some() {
            return;
        }
        self.launcher.supervisor.handle(world.now, input);
        for action in self.launcher.supervisor.take_actions() {
            self.obey_supervisor(world, action);
        }
        let next = self.launcher.supervisor.deadline();
        if next < self.launcher.timer || self.launcher.timer <= world.now {
            // A moment later: the supervisor looks for what is over.
            let at = next.max(world.now + Time(1_000));
            self.launcher.timer = at;
            world.after(at.since(world.now), Action::Wake { at });
        }
    }

    /// The supervisor's timer, if it was not set anew.
    pub(super) fn wake(&mut self, world: &mut W, at: Time) {
        if at == self.launcher.timer {
            self.supervise(world, Input::Timer);
        }
    }

    fn obey_supervisor(&mut self, world: &mut W, action: supervisor::Action) {
        use supervisor::Action as A;
        match action {
            A::StartNode {
                node,
                epoch,
                storage,
            } => {
                let delay = Time::from_ms(1 + self.random.below(60));
                let (node, keep) = (node.0, storage == Storage::Keep);
                let run = self.launcher.run;
                let start = Action::StartNode {
                    run,
                    node,
                    epoch,
                    keep,
                };
                world.after(delay, start);
            }
            A::Order { node, order } => self.send_order(world, node.0, order),
            A::Fence { node, epoch, .. } => self.fence(world, node.0, epoch),
            A::StartCommand { incarnation } => {
                self.launcher.running = Some(incarnation.0);
                let epoch = self.epoch;
                world.after(Time::from_ms(1), Action::StartRanks { epoch });
            }
            A::EndCommand { .. } => {
                let delay = Time(1000 * self.random.below(30_000));
                let epoch = self.epoch;
                world.after(delay, Action::EndRanks { epoch });
            }
            A::RecordIncarnation { incarnation, epoch } => {
                (self.launcher.kept.incarnation, self.launcher.kept.epoch) = (incarnation.0, epoch);
            }
            A::RecordHistory { history } => {
                let known = history.map_or(Incarnation(0), |(incarnation, _)| incarnation);
                self.launcher.kept.history = known;
            }
            A::Tell(supervisor::Event::Fatal(error)) => {
                world.note(|| format!("the supervisor gives up: {error}"));
                self.launcher.over = Some(error.to_string());
            }
            A::Done(_) => {
                self.launcher.over.get_or_insert_with(String::new);
            }
            // Injections are not used; watching and remembering need nothing here.
            _ => {}
        }
    }

    /// A keeper starts, and its agent.
    pub(super) fn start_node(&mut self, world: &mut W, run: u32, slot: (u32, u64, bool)) {
        let (node, epoch, keep) = slot;
        if run != self.launcher.run {
            return;
        }
        let old = self
            .homes
            .contains_key(&world.at(node))
            .then(|| world.at(node));
        let who = self.new_home(world, node);
        match old.filter(|old| self.launcher.epochs.contains_key(old)) {
            Some(old) if keep && !self.home(old).wiped => self.inherit(world, old, who),
            Some(old) => self.wiped(world, old),
            None => {}
        }
        world.start(who);
        self.launcher.epochs.insert(who, epoch);
        self.greet(world, who, true);
    }

    /// The launcher ends, and all keepers, agents and ranks with it; what is stored stays. The
    /// next launcher goes on from what the last one remembered.
    fn next_run_of(&mut self, world: &mut W) -> Launcher {
        let now = world.now;
        let kept = self.launcher.kept;
        let mut next = Launcher::after(&self.options, kept, now);
        next.run = self.launcher.run + 1;
        for zombie in std::mem::take(&mut self.launcher.zombies) {
            self.kill_all_of(world, zombie);
        }
        for node in 0..self.options.nodes {
            let who = world.at(node);
            self.kill_all_of(world, who);
            self.forgets(world, who);
        }
        next.epochs = std::mem::take(&mut self.launcher.epochs);
        next
    }

    pub(super) fn next_run(&mut self, world: &mut W) {
        self.epoch += 1;
        self.forced = None;
        self.launcher = self.next_run_of(world);
        self.supervise(world, Input::Timer);
    }

    /// Kills what is left of a slot's holder. A frozen process is one that the launcher
    /// cannot reach: it is not answered for, and wakes up later.
    fn fence(&mut self, world: &mut W, node: u32, epoch: u64) {
        let who = world.at(node);
        if self.launcher.epochs.get(&who) != Some(&epoch) {
            return;
        }
        if world.paused(who) && !self.home(who).lost {
            self.launcher.zombies.push(who);
            return self.wiped(world, who);
        }
        let empty = !self.home(who).lost;
        self.kill_all_of(world, who);
        if empty {
            self.wiped(world, who);
        }
        let delay = Time(1000 * self.random.below(20_000));
        world.after(delay, Action::Fenced { node, epoch });
    }

    fn kill_all_of(&mut self, world: &mut W, who: Process) {
        for record in world.kill(who) {
            self.on_durable(world, who, record);
        }
        let home = self.home(who);
        home.lost = true;
        home.up = false;
    }

    pub(super) fn open_failed(&mut self, world: &mut W, who: Process, failed: (u32, Why, u32)) {
        let (number, why, known) = failed;
        if self.home(who).lost || world.at(self.home(who).node) != who {
            return;
        }
        let code = match why {
            Why::NothingUsable | Why::NoRecord => {
                self.judge.gives_up(world.now);
                Code::NoValidCheckpoint
            }
            Why::NoQuorum => {
                // Whoever looks after the machine ends what is left of the last start.
                for zombie in std::mem::take(&mut self.launcher.zombies) {
                    self.kill_all_of(world, zombie);
                    let node = self.home(zombie).node;
                    if let Some(&epoch) = self.launcher.epochs.get(&zombie) {
                        world.after(Time::from_ms(1), Action::Fenced { node, epoch });
                    }
                }
                Code::NoQuorum
            }
            Why::Stale => Code::JobBusy,
            Why::Storage => Code::Io,
            _ => Code::AgentTimeout,
        };
        let error = Error::new(code, Entity::Call, "it did not open", "wait");
        let (incarnation, known) = (Incarnation(number), Incarnation(known));
        let notice = Notice::OpenFailed {
            incarnation,
            error,
            known,
        };
        self.notify(world, who, notice);
    }

    /// A node has opened the incarnation; the coordinator says what was decided.
    pub(super) fn node_ready(&mut self, world: &mut W, who: Process, number: u32, restored: Key) {
        let incarnation = Incarnation(number);
        let level: Option<Level> = None;
        if self.home(who).node == 0 {
            let decision = Opened {
                incarnation,
                restored: (restored.0 != 0).then_some(Version(restored.1)),
                level,
                ranks: self.ranks_total(),
                rebuild_ms: 0.0,
                rebuilt_bytes: 0,
                rejected: Vec::new(),
                uncertain: false,
            };
            self.notify(world, who, Notice::Opened(decision));
        }
        let ready = Notice::NodeReady {
            incarnation,
            level,
            rebuilt_bytes: 0,
        };
        self.notify(world, who, ready);
    }

    fn ranks_total(&self) -> u32 {
        let nodes = 0..self.options.nodes;
        nodes.map(|node| self.ranks_of(node) as u32).sum()
    }

    fn ranks_with_pids(&self, node: u32) -> Vec<(Rank, u32)> {
        let before: usize = (0..node).map(|node| self.ranks_of(node)).sum();
        let here = before..before + self.ranks_of(node);
        here.map(|rank| (Rank(rank as u32), self.pid_of(rank as u32)))
            .collect()
    }

    fn pid_of(&self, rank: u32) -> u32 {
        1_000_000 + self.epoch * 1_000 + rank
    }

    /// The command starts: ranks begin, and each is told of by its node's agent.
    pub(super) fn start_ranks(&mut self, world: &mut W, epoch: u32) {
        if epoch != self.epoch || self.launcher.running.is_none() {
            return;
        }
        for node in 0..self.options.nodes {
            let who = world.at(node);
            self.home(who).knows = false;
            for rank in 0..self.ranks_of(node) {
                let delay = Time(self.random.below(self.options.step_max.0));
                world.after(delay, Action::Step { who, rank, epoch });
            }
            for (rank, pid) in self.ranks_with_pids(node) {
                let delay = Time(self.random.below(10_000_000));
                let rank = rank.0;
                let join = Action::Join {
                    who,
                    rank,
                    pid,
                    epoch,
                };
                world.after(delay, join);
            }
        }
    }

    /// A rank meets its agent, when that is there.
    pub(super) fn rank_joins(&mut self, world: &mut W, join: (Process, u32, u32, u32)) {
        let (who, rank, pid, epoch) = join;
        if epoch != self.epoch || self.home(who).lost {
            return;
        }
        if !self.home(who).up || world.paused(who) {
            let again = Action::Join {
                who,
                rank,
                pid,
                epoch,
            };
            return world.after(Time::from_ms(10), again);
        }
        self.launcher.joined.insert((epoch, rank));
        let (rank, ranks) = (Rank(rank), self.ranks_total());
        self.notify(world, who, Notice::RankUp { rank, ranks, pid });
    }

    /// The command's processes are gone.
    pub(super) fn end_ranks(&mut self, world: &mut W, epoch: u32) {
        if epoch != self.epoch {
            return;
        }
        self.epoch += 1;
        self.forced = None;
        self.launcher.running = None;
        self.supervise(world, Input::TreeEnded);
    }

    /// A rank's process fails by itself.
    pub(super) fn rank_fails(&mut self, world: &mut W) {
        let ranks = self.ranks_total();
        if self.launcher.is_running() && ranks > 0 {
            let rank = self.random.below(u64::from(ranks)) as u32;
            let (pid, ended) = (self.pid_of(rank), Some(Ended::Signal(11)));
            let rank = Rank(rank);
            self.supervise(world, Input::RankGone { rank, pid, ended });
        }
    }

    /// A restarted agent connects. True if it takes part in the open incarnation.
    pub(super) fn agent_is_back(&mut self, world: &mut W, who: Process) -> bool {
        if world.at(self.home(who).node) != who {
            return false;
        }
        self.greet(world, who, true);
        let known = world.machine(who).map_or(0, |machine| machine.known().0);
        let idle = world.machine(who).is_some_and(|machine| machine.is_idle());
        let home = self.home(who);
        let takes_part = !idle && known == home.incarnation;
        if !takes_part {
            // Its record of the incarnation is damaged, or it never had it.
            home.incarnation = 0;
        }
        takes_part
    }

    /// A node falls. Either its keeper's end is seen and its storage is kept, or there is
    /// only silence.
    pub(super) fn lose_node(&mut self, world: &mut W, who: Process) {
        self.kill_all_of(world, who);
        let node = self.home(who).node;
        let Some(&epoch) = self.launcher.epochs.get(&who) else {
            return;
        };
        if self.random.chance(300_000) {
            self.forgets(world, who);
            let delay = Time::from_ms(1 + self.random.below(100));
            world.after(delay, Action::KeeperEnded { node, epoch });
            if self.launcher.is_running() {
                for (rank, pid) in self.ranks_with_pids(node) {
                    let delay = Time::from_ms(self.random.below(100));
                    let rank = rank.0;
                    world.after(delay, Action::RankKilled { rank, pid });
                }
            }
        } else {
            self.wiped(world, who);
            let delay = Time::from_ms(5 + self.random.below(300));
            world.after(delay, Action::Noticed { who });
        }
    }

    pub(super) fn rank_killed(&mut self, world: &mut W, rank: u32, pid: u32) {
        let (rank, ended) = (Rank(rank), Some(Ended::Signal(SIGKILL)));
        self.supervise(world, Input::RankGone { rank, pid, ended });
    }

    /// Peers miss a lost, or frozen, node; one of them tells the launcher.
    pub(super) fn noticed(&mut self, world: &mut W, who: Process) {
        let node = self.home(who).node;
        let Some(&epoch) = self.launcher.epochs.get(&who) else {
            return;
        };
        let gone = self.home(who).lost || world.paused(who);
        if world.at(node) != who || !gone {
            return;
        }
        world.after(BOUNDS_SUSPECT, Action::AskFor { who });
        let node_id = NodeId(node);
        for other in (0..self.options.nodes).filter(|other| *other != node) {
            let there = world.at(other);
            if self.home(there).up && !world.paused(there) {
                world.command(there, Command::Lost { node: node_id });
                let silent_ms = BOUNDS.suspect_ms;
                let suspected = Notice::Suspected {
                    node: node_id,
                    epoch,
                    silent_ms,
                };
                self.notify(world, there, suspected);
                let node = node_id;
                self.notify(world, there, Notice::Dead { node, epoch });
            }
        }
    }

    /// Peers ask for a node that they call dead: it may have been frozen only.
    pub(super) fn ask_for(&mut self, world: &mut W, who: Process) {
        let node = self.home(who).node;
        if world.at(node) != who || self.home(who).lost {
            return;
        }
        if world.paused(who) || !self.home(who).up {
            return world.after(BOUNDS_SUSPECT, Action::AskFor { who });
        }
        for other in (0..self.options.nodes).filter(|other| *other != node) {
            let there = world.at(other);
            if self.home(there).up && !world.paused(there) {
                let node = NodeId(node);
                world.command(there, Command::Heard { node });
                self.notify(world, there, Notice::Cleared { node });
            }
        }
    }

    /// The policy: one checkpoint after another.
    pub(super) fn policy(&mut self, world: &mut W) {
        let pause = Time::from_ms(40 + self.random.below(200));
        world.after(pause, Action::Policy);
        if !self.launcher.is_running() {
            return;
        }
        let who = world.at(0);
        if !self.home(who).up {
            return;
        }
        let stride = self.options.stride;
        let ahead = self.furthest(world) + 1 + self.random.below(3 * stride);
        if self.random.chance(80_000) && self.forced.is_none() {
            let version = (ahead + 4 * stride).next_multiple_of(stride);
            self.forced = Some((self.launcher.number(), version));
            return;
        }
        if self.forced.is_some_and(|(_, v)| ahead > v + 20 * stride) {
            self.forced = None;
        }
        let levels = if self.random.chance(200_000) {
            Levels::of(&[Level::Memory])
        } else {
            self.options.levels
        };
        let at_least = Version(ahead);
        world.command(who, Command::Want { at_least, levels });
    }

    /// Faults have ended: the job must have opened and become stable again.
    pub(super) fn final_checks(&mut self, world: &mut W, heal: Time) {
        let bound = Time::from_secs(8);
        let mut wrong = self.overdue_work(world, bound);
        let number = self.launcher.number();
        let since = heal + Time::from_secs(8);
        if let Some(why) = &self.launcher.over {
            wrong.push(format!("P5: the supervisor ended the job: {why}"));
        } else if !self.launcher.is_running() {
            wrong.push(format!("P5: incarnation {number} does not open"));
        } else {
            for level in self.options.levels.iter() {
                if !self.judge.stable_after(since, number, level) {
                    wrong.push(format!(
                        "P5: nothing becomes stable at {level} without faults"
                    ));
                }
            }
        }
        for text in wrong {
            world.note(|| text.clone());
            self.judge.violations.push(text);
        }
    }
}
