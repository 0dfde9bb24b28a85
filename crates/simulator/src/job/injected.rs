//! Injections in a history: what its user asks for with `--inject`, and what comes of it in this
//! world. The supervisor decides when, its orders go the way of all orders, nodes wait at their
//! points and ranks at their versions; here somebody is killed, frozen, cut off or damaged.
//!
//! Judged, by what happened and what was said alone: what is said to have been carried out was;
//! nothing is more often than it was asked for; what a job comes to without other faults is
//! carried out; at the end each one is told as done or as not done, and as one of them.

use std::collections::{BTreeSet, VecDeque};

use outlive_base::rng::Sequence;
use outlive_base::{Level, Rank, Time};
use outlive_control::inject::{self, Injection, Target, Verb, When};
use outlive_control::node::{HOLD_MAX, Input as NodeInput, fail_points};
use outlive_control::orders::{Fault, Notice, Order};
use outlive_control::report::Report;

use super::checker::CopyAt;
use super::node::{Held, Process};
use super::shell::Effect;
use super::*;

/// So long after its time has come an injection is carried out, if nothing else happens: what was
/// lost is said again with a probe, and those of one version wait for each other.
const SOON: Time = Time::from_secs(5);

/// What the judge knows of one injection.
struct Asked {
    spec: Injection,
    /// The user was told that it was carried out.
    done: bool,
    /// The user was told that it could not be, or that nobody knows.
    excused: bool,
    /// Its time has come, and nothing else has happened since.
    due: Option<Time>,
    /// How often a life of its agent has come to its point since then.
    passed: (u32, u32),
}

/// Something happened to a target because somebody asked for it.
struct Blow {
    target: Target,
    kind: &'static str,
    /// At whom and by which number, if an agent did it to itself.
    by: Option<(Process, u32)>,
    told: bool,
}

/// See the module.
#[derive(Default)]
pub struct Injections {
    asked: Vec<Asked>,
    blows: Vec<Blow>,
    /// So many were told as done, over all runs.
    pub count: usize,
    /// When the command was first started in this run.
    started: Option<Time>,
    /// The last time that one of them changed the world.
    pub last: Time,
}

const fn kind(verb: &Verb) -> &'static str {
    match verb {
        Verb::Kill => "kill",
        Verb::Freeze { .. } => "freeze",
        Verb::Partition { .. } => "partition",
        Verb::Slow { .. } => "slow",
        Verb::Corrupt { .. } => "corrupt",
        Verb::Full { .. } => "full",
    }
}

/// One specification, as a user writes it.
fn draw(random: &mut Sequence, options: &Options, ranks: u32) -> String {
    let (rank, node) = (
        random.below(u64::from(ranks)),
        random.below(u64::from(options.nodes)),
    );
    let lasts = format!("for={}ms", 50 + random.below(2_000));
    let (target, option) = match random.below(13) {
        0 | 1 => (format!("rank:{rank}"), String::new()),
        2 => (format!("freeze:rank:{rank}"), lasts),
        3 | 4 => (format!("node:{node}"), String::new()),
        5 => (format!("agent:{node}"), String::new()),
        6 => (format!("keeper:{node}"), String::new()),
        7 => (format!("freeze:node:{node}"), String::new()),
        8 => (format!("freeze:agent:{node}"), lasts),
        9 => (format!("partition:node:{node}"), lasts),
        10 => (format!("slow:node:{node}"), lasts),
        11 => (format!("full:node:{node}"), lasts),
        _ => (format!("corrupt:node:{node}"), String::new()),
    };
    let points = fail_points();
    let (when, nth) = match random.below(10) {
        0..=4 => {
            let version = 1 + random.below(60) * options.stride;
            (format!("version={version}"), String::new())
        }
        8.. if !target.contains("rank") => {
            let point = points[random.below(points.len() as u64) as usize];
            let nth = format!("nth={}", 1 + random.below(5));
            (format!("phase={point}"), nth)
        }
        _ => (format!("{}ms", 100 + random.below(9_000)), String::new()),
    };
    let options = [option, nth];
    let options = options.iter().filter(|option| !option.is_empty());
    options.fold(format!("{target}@{when}"), |text, it| text + "," + it)
}

/// What the user of this run of the launcher asks for.
pub fn specs(options: &Options, seed: u64, run: u32) -> Vec<Injection> {
    let mut random = Sequence::new(seed, 0x696e_6a63 + u64::from(run));
    let texts: BTreeSet<String> = (0..options.weights.injection)
        .map(|_| draw(&mut random, options, options.ranks_total()))
        .collect();
    let parse = |text: &String| inject::parse(text, options.nodes);
    let parsed = texts.iter().map(parse);
    parsed.map(|it| it.expect("a user may write it")).collect()
}

impl Injections {
    /// A run of the launcher begins, after that one.
    pub fn after(specs: &[Injection], before: &Injections) -> Injections {
        let asked = |spec: &Injection| Asked {
            spec: spec.clone(),
            done: false,
            excused: false,
            due: None,
            passed: (0, 0),
        };
        Injections {
            asked: specs.iter().map(asked).collect(),
            blows: Vec::new(),
            started: None,
            count: before.count,
            last: before.last,
        }
    }

    /// Something happens: what is due by itself is due from now on.
    fn disturbed(&mut self, now: Time) {
        self.last = now;
        for asked in &mut self.asked {
            (asked.due, asked.passed) = (None, (0, 0));
        }
    }
}

impl Job {
    /// From then on nothing of the faults is to be seen; a late injection is one.
    pub(super) fn healed(&self) -> Time {
        self.options.heal.max(self.injections.last)
    }

    // ---- the judge ----

    /// It happened.
    fn strikes(&mut self, target: Target, kind: &'static str, by: Option<(Process, u32)>) {
        let blow = Blow {
            target,
            kind,
            by,
            told: false,
        };
        let same = |it: &&Blow| it.target == target && it.kind == kind;
        let blows = &self.injections.blows;
        // A full disk, or a slow one, stays so under the next agent of the same keeper.
        let lasts = kind == "slow" || kind == "full";
        let goes_on = lasts && blows.iter().any(|it| same(&it) && it.by == by);
        self.note(|| format!("injected: {kind} {target}"));
        if goes_on {
            return;
        }
        self.injections.blows.push(blow);
        let now = self.now;
        self.injections.disturbed(now);
        let happened = self.injections.blows.iter().filter(same).count();
        let wanted = |it: &&Asked| it.spec.target == target && self::kind(&it.spec.verb) == kind;
        let asked = self.injections.asked.iter().filter(wanted).count();
        if happened > asked {
            self.wrong(format!(
                "{kind} {target} was carried out {happened} times, asked for {asked} times"
            ));
        }
    }

    /// The user is told that it was carried out.
    pub(super) fn tells_injected(&mut self, text: &str) {
        let Some(asked) = (self.injections.asked.iter_mut()).find(|it| it.spec.text == text) else {
            return self.wrong(format!("'{text}' was told, and never asked for"));
        };
        let again = std::mem::replace(&mut asked.done, true);
        let (target, kind) = (asked.spec.target, kind(&asked.spec.verb));
        self.injections.count += 1;
        let mut blows = self.injections.blows.iter_mut();
        let blow = blows.find(|it| !it.told && it.target == target && it.kind == kind);
        let happened = blow.map(|blow| blow.told = true).is_some();
        if again || !happened {
            self.wrong(format!(
                "'{text}' was told as done; again: {again}, it happened: {happened}"
            ));
        }
    }

    /// The user is warned.
    pub(super) fn tells_warning(&mut self, reason: &str) {
        // That it did not happen is no excuse for it.
        if reason.starts_with(supervisor::NOT_INJECTED) {
            return;
        }
        for asked in &mut self.injections.asked {
            asked.excused |= reason.contains(&asked.spec.text);
        }
    }

    /// An agent says what became of a fault that it was to carry out.
    fn answers_fault(&mut self, id: u32) {
        if let Some(asked) = self.injections.asked.get_mut(id as usize / 2) {
            asked.excused = true;
        }
    }

    /// A rank has come to a version.
    pub(super) fn offers(&mut self, node: u32, rank: u32, version: u64) {
        let now = self.now;
        if now < self.healed() {
            return;
        }
        for asked in &mut self.injections.asked {
            let mine = match asked.spec.target {
                Target::Rank(wanted) => wanted.0 == rank,
                Target::Node(it) | Target::Agent(it) | Target::Keeper(it) => it.0 == node,
            };
            if mine && matches!(asked.spec.when, When::Version(wanted) if wanted.0 <= version) {
                asked.due.get_or_insert(now);
            }
        }
    }

    /// An agent comes to a point.
    fn passes(&mut self, who: Process, name: &str) {
        let (now, node) = (self.now, self.home(who).node);
        // What is placed is said again with a probe.
        if now < self.healed() + SOON {
            return;
        }
        let life = who << 8 | self.home(who).life & 0xff;
        for asked in &mut self.injections.asked {
            let When::Phase { point, nth } = &asked.spec.when else {
                continue;
            };
            let there = match asked.spec.target {
                Target::Rank(_) => false,
                Target::Node(it) | Target::Agent(it) | Target::Keeper(it) => it.0 == node,
            };
            if there && point == name {
                if asked.passed.0 != life {
                    asked.passed = (life, 0);
                }
                asked.passed.1 += 1;
                if asked.passed.1 >= *nth {
                    asked.due.get_or_insert(now);
                }
            }
        }
    }

    /// The command is started.
    pub(super) fn injections_begin(&mut self) {
        let now = self.now;
        self.injections.started.get_or_insert(now);
    }

    /// The run is over: what was due is done, and all is told.
    pub(super) fn judge_injections(&mut self, report: &Report) {
        let until = self.wound_down().unwrap_or(self.now);
        let healed = self.healed();
        let started = self.injections.started;
        let mut wrong = Vec::new();
        for asked in &self.injections.asked {
            let text = &asked.spec.text;
            let count = |list: &[String]| list.iter().filter(|it| *it == text).count();
            let told = (count(&report.injected), count(&report.not_injected));
            if told != (usize::from(asked.done), usize::from(!asked.done)) {
                wrong.push(format!(
                    "'{text}' was reported {told:?} times as done and not done"
                ));
            }
            let by_clock = match (&asked.spec.when, started) {
                (When::AfterMs(ms), Some(at)) => Some((at + Time::from_ms(*ms)).max(healed)),
                _ => None,
            };
            let due = by_clock.or(asked.due);
            let late = due.is_some_and(|at| at + SOON < until);
            if late && !asked.done && !asked.excused {
                wrong.push(format!("'{text}' was forgotten, due since {due:?}"));
            }
        }
        for text in wrong {
            self.wrong(text);
        }
    }

    // ---- what the supervisor does itself ----

    /// Carries out an injection of the supervisor's.
    pub(super) fn injects(&mut self, action: supervisor::Action) {
        use supervisor::Action as A;
        match action {
            A::Kill { node, pids } => {
                for pid in pids {
                    self.strikes(self.target_of(node.0, pid), "kill", None);
                    self.kill_process(node.0, pid);
                }
            }
            A::KillNode { node, .. } => {
                self.strikes(Target::Node(node), "kill", None);
                let who = self.at(node.0);
                if !self.home(who).lost {
                    self.keeper_killed(who, true);
                }
            }
            A::KillKeeper { node } => {
                self.strikes(Target::Keeper(node), "kill", None);
                let who = self.at(node.0);
                if !self.home(who).lost {
                    self.keeper_killed(who, false);
                }
            }
            A::Freeze {
                node,
                keeper,
                pids,
                stop,
            } => self.freeze(node.0, keeper, &pids, stop),
            _ => {}
        }
    }

    /// Who has this process number.
    fn target_of(&self, node: u32, pid: u32) -> Target {
        match pid >= program::PID_FIRST {
            true => Target::Rank(Rank((pid - program::PID_FIRST) % 1_000)),
            false => Target::Agent(NodeId(node)),
        }
    }

    fn kill_process(&mut self, node: u32, pid: u32) {
        if pid >= program::PID_FIRST {
            return self.kill_rank(pid);
        }
        let who = self.at(node);
        if self.home(who).agent_pid(who) == pid {
            self.end_agent(who);
        }
    }

    /// A keeper is gone, and its agent with it; the launcher sees that. With the whole node, its
    /// ranks and its storage are too.
    pub(super) fn keeper_killed(&mut self, who: Process, with_node: bool) {
        let (node, epoch) = (self.home(who).node, self.home(who).epoch);
        if with_node {
            self.ranks_fall(node, true);
        }
        self.kill_all_of(who);
        match with_node {
            true => self.wiped(who),
            false => self.forgets(who),
        }
        let delay = Time::from_ms(1 + self.random.below(100));
        self.after(delay, Action::KeeperEnded { node, epoch });
    }

    /// SIGSTOP or SIGCONT.
    fn freeze(&mut self, node: u32, keeper: bool, pids: &[u32], stop: bool) {
        let who = self.at(node);
        if stop {
            let target = match pids {
                _ if keeper => Target::Node(NodeId(node)),
                [pid, ..] => self.target_of(node, *pid),
                [] => Target::Agent(NodeId(node)),
            };
            self.strikes(target, "freeze", None);
        }
        let now = self.now;
        self.injections.disturbed(now);
        let agent = self.home(who).agent_pid(who);
        let home = self.home(who);
        if keeper {
            home.keeper_stopped = stop;
        }
        if pids.contains(&agent) {
            home.stopped = stop;
            if !stop {
                self.goes_on(who);
            }
        }
        for program in self.programs.values_mut() {
            if pids.contains(&program.pid) {
                program.stopped = stop;
            }
        }
    }

    /// True for what a stopped rank cannot do.
    pub(super) fn is_of_stopped_rank(&self, action: &Action) -> bool {
        let rank = match action {
            Action::Reach { rank, .. }
            | Action::Step { rank, .. }
            | Action::Filled { rank, .. }
            | Action::Late { rank, .. } => Some(*rank),
            Action::Answer { token, .. } => self.links.get(token).map(|(.., rank, _)| *rank),
            _ => None,
        };
        let program = rank.and_then(|rank| self.programs.get(&rank));
        program.is_some_and(|program| program.stopped)
    }

    /// What a stopped agent was to hear comes now.
    pub(super) fn goes_on(&mut self, who: Process) {
        for action in std::mem::take(&mut self.home(who).missed) {
            self.after(Time::ZERO, action);
        }
    }

    // ---- what an agent does to itself ----

    /// The agent's endpoint drops all traffic, or no more.
    pub(super) fn isolates(&mut self, who: Process, on: bool) {
        let now = self.now;
        self.injections.disturbed(now);
        let home = self.home(who);
        let was = std::mem::replace(&mut home.isolated, on);
        let node = Target::Node(NodeId(home.node));
        if was && !on {
            // What was said meanwhile is lost, and both ends hear that something was.
            let down = self.some_us(20_000);
            self.breaks(who, down);
        }
        if on {
            self.strikes(node, "partition", None);
        }
    }

    /// A fault of the agent's storage begins or ends.
    pub(super) fn storage_fault(&mut self, who: Process, id: u32, fault: &Fault) {
        let home = self.home(who);
        let node = Target::Node(NodeId(home.node));
        let (kind, on) = match *fault {
            Fault::Slow(rate) => ("slow", rate > 0),
            Fault::Full(full) => ("full", full),
            _ => return,
        };
        match kind {
            "slow" => home.slow = on,
            _ => home.full = on,
        }
        if on {
            self.strikes(node, kind, Some((who, id)));
        }
    }

    /// The newest container of a node is damaged, if there is one.
    pub(super) fn corrupt(&mut self, who: Process, life: u32, id: u32, level: Level) {
        let mut random = self.random.clone();
        let home = self.home(who);
        let node = home.node;
        let newest = home.storage.own.iter_mut().next_back();
        let newest = newest.map(|(&key, container)| {
            container.flip(&mut random);
            key
        });
        self.random = random;
        let result = match newest {
            Some(key) => {
                let (level, owner) = (Level::DISK, node);
                self.judge.fails(self.now, node);
                self.judge.copy_fails(CopyAt { level, key, owner });
                self.strikes(Target::Node(NodeId(node)), "corrupt", None);
                Ok(())
            }
            None => Err(outlive_base::Error::new(
                outlive_base::Code::NotFound,
                outlive_base::Entity::Node(node),
                "there is no container to damage",
                "inject it later",
            )),
        };
        self.later(who, life, 2_000, Done::Corrupted { id, level, result });
    }

    /// What an agent says of its injections.
    pub(super) fn says_of_injections(&mut self, notice: &Notice) {
        if let Notice::Injected {
            id,
            outcome: Err(_),
            ..
        } = notice
        {
            self.answers_fault(*id);
        }
    }

    // ---- an agent that waits at a point ----

    /// The agent has come to these points.
    pub(super) fn passed(&mut self, who: Process, names: Vec<&'static str>) {
        for name in names {
            self.passes(who, name);
        }
    }

    /// The agent waits where an injection waits for it.
    pub(super) fn hold(&mut self, who: Process, id: u32, rest: VecDeque<Effect>) {
        let life = self.home(who).life;
        self.note(|| format!("p{who} waits at the point of injection {id}"));
        self.home(who).held = Some(Held {
            id,
            rest,
            ordered: Vec::new(),
        });
        self.tell_reached(who, id);
        self.after(HOLD_MAX, Action::HoldOver { who, life, id });
    }

    fn tell_reached(&mut self, who: Process, id: u32) {
        self.says(who, Notice::InjectReached { id, version: None });
    }

    /// An order reaches an agent that waits: true if it is one that is heard there.
    pub(super) fn heard_while_held(&mut self, who: Process, order: &Order) -> bool {
        let Some(held) = &mut self.home(who).held else {
            return false;
        };
        let own = held.id;
        match order {
            Order::InjectDone { id } if *id == own => self.let_go(who),
            Order::Inject { id, .. } if *id == own => self.tell_reached(who, own),
            Order::Inject { id, fault } => held.ordered.push((*id, fault.clone())),
            _ => return false,
        }
        true
    }

    /// Nobody has said within the bound that it may go on.
    pub(super) fn hold_over(&mut self, who: Process, life: u32, id: u32) {
        let home = self.home(who);
        if home.life == life && home.held.as_ref().is_some_and(|held| held.id == id) {
            self.let_go(who);
        }
    }

    /// The agent goes on: with what was ordered meanwhile, with what it was about to do, with what
    /// it has not heard.
    fn let_go(&mut self, who: Process) {
        let Some(held) = self.home(who).held.take() else {
            return;
        };
        let now = self.now;
        let home = self.home(who);
        let since = now.since(home.started);
        let life = home.life;
        let mut effects = VecDeque::new();
        if let Some(node) = &mut home.agent {
            for (id, fault) in held.ordered {
                node.on(since, NodeInput::Order(Order::Inject { id, fault }));
                effects.extend(node.shell().take_effects());
            }
        }
        effects.extend(held.rest);
        self.carry_out_all(who, effects);
        while self.home(who).life == life && self.home(who).held.is_none() {
            let Some(input) = self.home(who).put_off.pop_front() else {
                return;
            };
            self.input(who, life, input);
        }
    }
}
