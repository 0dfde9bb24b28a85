//! The launcher: the supervisor that runs in a job, and what carries out its actions here.
//! Keepers start and are killed, connections to agents break and lose what is under way.

use std::collections::BTreeMap;

use outlive_base::rng::Sequence;
use outlive_base::{Incarnation, JobName, NodeId, Time};
use outlive_control::node::Input as NodeInput;
use outlive_control::orders::{Bounds, LevelSetting, Notice, Order, Policy, Step, encode};
use outlive_control::report::Report;
use outlive_control::steering::Wishes;
use outlive_control::supervisor::{self, Input, Settings, Storage, Supervisor};
use outlive_ledger::{OfJob, Record};
use outlive_planner::online::learned::Learned;
use serde::Serialize;

use super::node::carried;
use super::*;

/// Bounds so short that every one of them passes in a history.
pub const BOUNDS: Bounds = Bounds {
    heartbeat_ms: 100,
    suspect_ms: 300,
    dead_ms: 700,
    arm_ms: 600,
    commit_ms: 900,
    recovery_ms: 2500,
    drain_ms: 3_000,
};

/// A connection between the launcher and an agent: in order, until it breaks.
#[derive(Clone, Copy, Default)]
struct Line {
    /// Grows when it breaks: what was under way is lost.
    number: u32,
    to_agent: Time,
    to_launcher: Time,
}

/// What stands in the job's file.
#[derive(Clone, Default)]
struct Kept {
    incarnation: u32,
    epoch: u64,
    history: Incarnation,
    learned: Learned,
}

/// The supervisor and its world.
pub struct Launcher {
    supervisor: Supervisor,
    timer: Time,
    lines: BTreeMap<Process, Line>,
    /// The command runs, in this incarnation.
    running: Option<u32>,
    /// The newest start of each node that was asked for.
    asked: BTreeMap<u32, u64>,
    /// Frozen processes that were given up and not killed.
    zombies: Vec<Process>,
    /// It stands still until then.
    pub paused_until: Time,
    /// The supervisor has ended the job, and why.
    pub over: Option<String>,
    run: u32,
    kept: Kept,
    /// What the file said when earlier launchers ended.
    olds: Vec<Kept>,
}

impl Launcher {
    /// The newest incarnation.
    pub fn supervisor_incarnation(&self) -> u32 {
        self.supervisor.incarnation()
    }

    pub fn new(options: &Options, seed: u64) -> Launcher {
        Launcher::after(options, (seed, 0), Kept::default(), Time::ZERO)
    }

    fn after(options: &Options, (seed, run): (u64, u32), kept: Kept, now: Time) -> Launcher {
        let mut random = Sequence::new(seed, 0x706f_6c69);
        let job = JobName::new("history").expect("a good name");
        let mut settings = Settings::new(job, options.nodes);
        settings.coordinator = NodeId(options.coordinator);
        settings.domains = options.domains.clone();
        settings.partners = options.partners;
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
        settings.bounds = Bounds {
            commit_ms: options.commit_ms,
            ..BOUNDS
        };
        settings.anew_if_nothing = true;
        settings.scrub.every_ms = options.scrub.map(|every| every.as_ms() as u64);
        settings.transfer.from_disk = options.from_disk;
        settings.storage_stays = false;
        settings.last_incarnation = kept.incarnation;
        settings.epoch_base = kept.epoch;
        settings.history = kept.history;
        settings.hang = options.hang.clone().unwrap_or_default();
        settings.planted = options.planted_supervisor;
        settings.injections = injected::specs(options, seed, run);
        settings.policy = match random.chance(500_000) {
            true => Policy {
                every: Some(1 + random.below(20)),
                interval_ms: None,
            },
            false => Policy {
                every: None,
                interval_ms: Some(20 + random.below(300)),
            },
        };
        // The weakest level takes part always: each round has one.
        let setting = |(at, level)| LevelSetting {
            level,
            every: match at {
                0 => 1,
                _ => 1 + random.below(options.sparse) as u32,
            },
        };
        settings.levels = options.levels.iter().enumerate().map(setting).collect();
        if random.chance(300_000) && !options.steady {
            // In a history that is so short, costs are looked for at once.
            settings.auto = Some(Wishes {
                commit_ms: options.commit_ms,
                first_ms: 20 + random.below(300),
                least_ms: 20,
                learned: kept.learned.clone(),
                ..Wishes::default()
            });
            settings.policy = Policy::default();
        }
        Launcher::with(settings, kept, run, now)
    }

    /// With the bounds of a run, and checkpoints by order alone.
    pub fn of_run(options: &Options, now: Time) -> Launcher {
        let job = JobName::new("scale").expect("a good name");
        let mut settings = Settings::new(job, options.nodes);
        settings.coordinator = NodeId(options.coordinator);
        settings.storage_stays = false;
        let setting = |level| LevelSetting { level, every: 1 };
        settings.levels = options.levels.iter().map(setting).collect();
        Launcher::with(settings, Kept::default(), 0, now)
    }

    fn with(settings: Settings, kept: Kept, run: u32, now: Time) -> Launcher {
        Launcher {
            supervisor: Supervisor::new(settings, now),
            timer: Time::NEVER,
            lines: BTreeMap::new(),
            running: None,
            asked: BTreeMap::new(),
            zombies: Vec::new(),
            paused_until: Time::ZERO,
            over: None,
            run,
            kept,
            olds: Vec::new(),
        }
    }

    /// The incarnation in which the command runs.
    pub fn running(&self) -> Option<u32> {
        self.running
    }

    pub fn report(&self) -> Report {
        self.supervisor.report().clone()
    }

    pub fn stop_ranks(&mut self) {
        self.running = None;
    }
}

impl Job {
    /// Something happened: the supervisor is told and obeyed.
    pub(super) fn supervise(&mut self, input: Input) {
        if self.launcher.over.is_some() || self.ends.is_over() {
            return;
        }
        self.launcher.supervisor.handle(self.now, input);
        for action in self.launcher.supervisor.take_actions() {
            self.obey_supervisor(action);
        }
        let next = self.launcher.supervisor.deadline();
        if next < self.launcher.timer || self.launcher.timer <= self.now {
            // A moment later: the supervisor looks for what is over.
            let at = next.max(self.now + Time(1_000));
            self.launcher.timer = at;
            self.after(at.since(self.now), Action::Timer { at });
        }
    }

    /// The supervisor's timer, if it was not set anew.
    pub(super) fn timer(&mut self, at: Time) {
        if at == self.launcher.timer {
            self.supervise(Input::Timer);
        }
    }

    fn obey_supervisor(&mut self, action: supervisor::Action) {
        use supervisor::Action as A;
        match action {
            A::StartNode {
                node,
                epoch,
                storage,
            } => {
                self.launcher.asked.insert(node.0, epoch);
                let delay = Time::from_ms(1 + self.random.below(60));
                let start = Action::StartNode {
                    run: self.launcher.run,
                    node: node.0,
                    epoch,
                    keep: storage == Storage::Keep,
                };
                self.after(delay, start);
            }
            A::Order { node, order } => self.send_order(node.0, order),
            A::Fence { node, epoch, .. } => {
                if let Some(meter) = &mut self.meter {
                    meter.gives_up();
                }
                self.fence(node.0, epoch);
            }
            A::StartCommand { incarnation } => {
                if let Some(meter) = &mut self.meter {
                    meter.starts();
                }
                self.launcher.running = Some(incarnation.0);
                self.injections_begin();
                let epoch = self.epoch;
                self.after(Time::from_ms(1), Action::StartRanks { epoch });
            }
            A::EndCommand { .. } => {
                let delay = self.some_us(30_000);
                let epoch = self.epoch;
                self.after(delay, Action::EndRanks { epoch });
            }
            A::RecordIncarnation { incarnation, epoch } => {
                (self.launcher.kept.incarnation, self.launcher.kept.epoch) = (incarnation.0, epoch);
            }
            A::RecordHistory { history } => {
                let known = history.map_or(Incarnation(0), |(incarnation, _)| incarnation);
                self.launcher.kept.history = known;
            }
            A::RecordLearned(learned) => {
                assert_eq!(learned.fault(), None, "{learned:?}");
                self.launcher.kept.learned = learned;
            }
            A::Tell(supervisor::Event::Fatal(error)) => {
                self.note(|| format!("the supervisor gives up: {error}"));
                self.launcher.over = Some(error.to_string());
            }
            A::Tell(supervisor::Event::Health { node, change }) => {
                self.health.push((node.0, change.now));
            }
            A::Tell(supervisor::Event::Finishing) => self.finishing(),
            A::Tell(supervisor::Event::Injected { text, .. }) => self.tells_injected(&text),
            A::Tell(supervisor::Event::Warning(error)) => self.tells_warning(error.reason()),
            A::Kill { .. } | A::KillNode { .. } | A::KillKeeper { .. } | A::Freeze { .. } => {
                self.injects(action);
            }
            A::WriteStacks { .. } => {
                self.hangs += 1;
                self.hung = self.now;
            }
            A::StopNode { node } => self.stop_node(node.0),
            A::Done(outcome) => self.done_with(&outcome),
            // Watching and remembering need nothing here.
            _ => {}
        }
    }

    /// A keeper starts, and its agent.
    pub(super) fn start_node(&mut self, run: u32, slot: (u32, u64, bool)) {
        let (node, epoch, keep) = slot;
        if run != self.launcher.run {
            return;
        }
        let old = self.at(node);
        let who = self.new_home(node, epoch);
        self.slots[node as usize] = who;
        if self.home(old).epoch != 0 {
            match keep && !self.home(old).wiped {
                true => self.adopt_storage(old, who),
                false => self.wiped(old),
            }
        }
        self.launcher_connects(who);
        self.start_agent(who);
    }

    /// The job's file as the next launcher finds it: the last one, or one that was put back, or what
    /// the nodes' records say of the job where it is gone. Whom to let begin anew, and with which
    /// numbers, the nodes know.
    fn found(&mut self) -> Kept {
        let now = self.launcher.kept.clone();
        self.launcher.olds.push(now.clone());
        let mut random = Sequence::new(self.seed, 0x6669_6c65 + u64::from(self.launcher.run));
        if !random.chance(self.options.forgets) {
            return now;
        }
        let olds = self.launcher.olds.len() as u64;
        let old = match random.below(4) {
            0 => olds,
            1 => random.below(olds),
            // The one before: as far behind as the next number is one that the nodes know.
            _ => olds.saturating_sub(2),
        };
        if let Some(old) = self.launcher.olds.get(old as usize).cloned() {
            self.note(|| "the job's file is an old one".to_owned());
            return old;
        }
        self.note(|| "the job's file is gone".to_owned());
        let mut records = self.shared.records.clone();
        for node in 0..self.options.nodes {
            let who = self.at(node);
            records.extend(self.home(who).storage.records.replay());
        }
        let told = OfJob::of(&records, []).unwrap_or_default();
        Kept {
            incarnation: told.incarnation,
            history: told.newest.map_or(Incarnation(0), |(source, _)| source),
            ..Kept::default()
        }
    }

    /// The launcher ends, and all keepers, agents and ranks with it; what is stored stays. The
    /// next launcher goes on from what the last one remembered.
    pub(super) fn next_run(&mut self) {
        for zombie in std::mem::take(&mut self.launcher.zombies) {
            self.kill_all_of(zombie);
        }
        for node in 0..self.options.nodes {
            let who = self.at(node);
            self.ranks_fall(node, false);
            self.kill_all_of(who);
            self.forgets(who);
        }
        self.epoch += 1;
        self.forced.clear();
        let mut kept = self.found();
        // What the nodes share may know of a start that the launcher had no time to remember.
        if self.calm || self.shared.out_until <= self.now {
            let starts = self
                .shared
                .records
                .iter()
                .filter_map(|record| match record {
                    Record::Incarnation { number, .. } => Some(number.0),
                    _ => None,
                });
            kept.incarnation = starts.fold(kept.incarnation, u32::max);
        }
        let run = self.launcher.run + 1;
        let olds = std::mem::take(&mut self.launcher.olds);
        self.launcher = Launcher::after(&self.options, (self.seed, run), kept, self.now);
        self.launcher.olds = olds;
        let specs = injected::specs(&self.options, self.seed, run);
        self.injections = Injections::after(&specs, &self.injections);
        self.starts_anew();
        self.supervise(Input::Timer);
    }

    /// Kills what is left of a slot's holder. A frozen process is one that the launcher
    /// cannot reach: it is not answered for, and wakes up later.
    fn fence(&mut self, node: u32, epoch: u64) {
        let who = self.at(node);
        if self.home(who).epoch != epoch {
            return;
        }
        // Out of reach, other than a process that an injection has stopped.
        let frozen = self.is_frozen(who).is_some();
        self.ranks_fall(node, true);
        if frozen && !self.home(who).lost {
            self.launcher.zombies.push(who);
            return self.wiped(who);
        }
        if self.options.keeps_nodes() {
            self.judge.gives_up_whole(self.now, node);
        }
        let was_up = !self.home(who).lost;
        self.kill_all_of(who);
        if was_up {
            // What it stored stays, until it is known whether the next may have it.
            self.forgets(who);
        }
        let delay = self.some_us(20_000);
        self.after(delay, Action::Fenced { node, epoch });
    }

    pub(super) fn kill_all_of(&mut self, who: Process) {
        self.home(who).lost = true;
        self.end_agent(who);
    }

    /// Whoever looks after the machine ends what is left of the last start.
    fn end_zombies(&mut self) {
        for zombie in std::mem::take(&mut self.launcher.zombies) {
            self.kill_all_of(zombie);
            let (node, epoch) = (self.home(zombie).node, self.home(zombie).epoch);
            self.after(Time::from_ms(1), Action::Fenced { node, epoch });
        }
    }

    /// A rank's process fails by itself.
    pub(super) fn rank_fails(&mut self) {
        let pids: Vec<u32> = self.ranks_running();
        let at = self.random.below(pids.len().max(1) as u64) as usize;
        if let Some(&pid) = pids.get(at) {
            self.kill_rank(pid);
        }
    }

    fn ranks_running(&self) -> Vec<u32> {
        let all = (0..self.ranks_total()).map(|rank| self.pid_of(rank));
        match self.launcher.running {
            Some(_) => all.collect(),
            None => Vec::new(),
        }
    }

    /// A node falls. Either its keeper's end is seen and its storage is kept, or there is
    /// only silence.
    pub(super) fn lose_node(&mut self, who: Process) {
        let (node, epoch) = (self.home(who).node, self.home(who).epoch);
        if epoch == 0 {
            return;
        }
        let is_seen = self.random.chance(300_000);
        self.ranks_fall(node, is_seen);
        self.kill_all_of(who);
        match is_seen {
            true => {
                self.forgets(who);
                let delay = Time::from_ms(1 + self.random.below(100));
                self.after(delay, Action::KeeperEnded { node, epoch });
            }
            false => self.wiped(who),
        }
    }

    // ---- connections ----

    /// An agent connects to the launcher, before it says anything.
    pub(super) fn launcher_connects(&mut self, who: Process) {
        self.launcher.lines.entry(who).or_default().number += 1;
    }

    /// An agent says something to the launcher.
    pub(super) fn notify(&mut self, who: Process, notice: Notice) {
        if let Notice::OpenFailed { error, .. } = &notice
            && error.code() == outlive_base::Code::NoQuorum
        {
            self.end_zombies();
        }
        if self.home(who).isolated {
            return;
        }
        let breaks = !self.calm && self.random.chance(self.options.breaks);
        let delay = Time(20_000 + self.random.below(2_000_000));
        let now = self.now;
        let node = NodeId(self.homes[who as usize].node);
        let sign = notice.is_sign_of_life();
        let delay = self.metered((&notice, sign), (node, NodeId::LAUNCHER), delay);
        if breaks {
            let down = Time::from_ms(5 + self.random.below(400));
            return self.breaks(who, down);
        }
        let line = self.launcher.lines.entry(who).or_default();
        let at = line.to_launcher.max(now + delay);
        line.to_launcher = at;
        let number = line.number;
        let notice = Box::new(carried(&notice));
        let told = Action::Hear {
            who,
            number,
            notice,
        };
        self.after(at.since(now), told);
    }

    /// An agent's connection breaks, for so long.
    pub(super) fn breaks(&mut self, who: Process, down: Time) {
        let line = self.launcher.lines.entry(who).or_default();
        line.number += 1;
        let number = line.number;
        self.after(down, Action::Reconnect { who, number });
    }

    /// How long what a launcher would see is put off, for it stands still.
    pub(super) fn launcher_waits(&self, action: &Action) -> Option<Time> {
        let sees = matches!(
            action,
            Action::Hear { .. }
                | Action::Reconnect { .. }
                | Action::Timer { .. }
                | Action::StartNode { .. }
                | Action::Fenced { .. }
                | Action::KeeperEnded { .. }
                | Action::StartRanks { .. }
                | Action::EndRanks { .. }
                | Action::RankKilled { .. }
                | Action::RankExited { .. }
                | Action::CommandOver { .. }
        );
        let until = self.launcher.paused_until;
        (sees && until > self.now).then(|| until.since(self.now))
    }

    /// A broken connection is made again, if the agent still lives.
    pub(super) fn reconnect(&mut self, who: Process, number: u32) {
        let same = self.launcher.lines.get(&who).map(|line| line.number) == Some(number);
        if same && self.home(who).epoch != 0 {
            let home = self.home(who);
            let (node, epoch, life) = (NodeId(home.node), home.epoch, home.life);
            self.supervise(Input::LinkDown { node, epoch });
            self.launcher_connects(who);
            self.input(who, life, NodeInput::Up(NodeId::LAUNCHER));
        }
    }

    pub(super) fn hear(&mut self, who: Process, number: u32, notice: Notice) {
        let same = self.launcher.lines.get(&who).map(|line| line.number) == Some(number);
        let home = &self.homes[who as usize];
        let (node, epoch) = (home.node, home.epoch);
        if !same {
            return;
        }
        // Nobody listens any more to a holder for which another is on its way.
        let asked = self.launcher.asked.get(&node).copied();
        if let Notice::Checkpoint {
            version,
            step: Step::Stable(_),
        } = &notice
            && self.at(node) == who
            && asked.is_none_or(|asked| epoch >= asked)
        {
            let incarnation = self.launcher.supervisor.incarnation();
            self.judge.tells_launcher((incarnation, version.0));
        }
        let node = NodeId(node);
        let input = Input::Notice {
            node,
            epoch,
            notice,
        };
        self.supervise(input);
    }

    /// Counts a message between launcher and agent, where that is measured; how long it takes.
    fn metered<T: Serialize>(
        &mut self,
        (message, is_sign): (&T, bool),
        way: (NodeId, NodeId),
        delay: Time,
    ) -> Time {
        let now = self.now;
        let Some(meter) = &mut self.meter else {
            return delay;
        };
        let bytes = encode(message).map_or(0, |bytes| bytes.len());
        meter.carries(now, way, (is_sign, bytes), delay).since(now)
    }

    pub(super) fn send_order(&mut self, node: u32, order: Order) {
        if let Order::Open {
            incarnation,
            fresh: true,
            ..
        } = order
        {
            self.judge.asks_anew(incarnation.0);
        }
        self.note(|| format!("order to n{node}: {order:?}"));
        let who = self.at(node);
        let delay = Time(20_000 + self.random.below(2_000_000));
        let now = self.now;
        let sign = order.is_sign_of_life();
        let delay = self.metered((&order, sign), (NodeId::LAUNCHER, NodeId(node)), delay);
        let Some(line) = self.launcher.lines.get_mut(&who) else {
            return;
        };
        let at = line.to_agent.max(now + delay);
        line.to_agent = at;
        let number = line.number;
        let order = Box::new(match self.meter {
            Some(_) => order,
            None => carried(&order),
        });
        self.after(at.since(now), Action::Obey { who, number, order });
    }

    /// An order reaches an agent.
    pub(super) fn obey(&mut self, who: Process, number: u32, order: Order) {
        let line = self.launcher.lines.get(&who).map(|line| line.number);
        let life = self.home(who).life;
        if line == Some(number) && !self.home(who).isolated {
            if self.home(who).agent.is_some() {
                self.ordered(who, &order);
            }
            if self.heard_while_held(who, &order) {
                return;
            }
            self.input(who, life, NodeInput::Order(order));
        }
    }

    /// Faults have ended some time ago: the job must have opened and become stable again.
    pub(super) fn final_checks(&mut self, heal: Time) {
        let number = self.launcher.supervisor.incarnation();
        let since = heal + Time::from_secs(8);
        // A bound shorter than the job's own pace restarts it for ever, as its owner has asked.
        if self.hung > heal {
            return;
        }
        let mut wrong = Vec::new();
        if let Some(why) = &self.launcher.over {
            wrong.push(format!("P5: the supervisor ended the job: {why}"));
        } else if self.launcher.running.is_none() {
            wrong.push(format!("P5: incarnation {number} does not open"));
        } else {
            for level in self.options.levels.iter() {
                if !self.judge.stable_after(since, number, level) {
                    wrong.push(format!(
                        "P5: nothing becomes stable at {level} without faults"
                    ));
                }
            }
            wrong.extend(self.kept_too_long());
        }
        for text in wrong {
            self.note(|| text.clone());
            self.judge.violations.push(text);
        }
    }
}
