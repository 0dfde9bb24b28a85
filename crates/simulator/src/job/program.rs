//! Ranks: programs that offer a version in each step, as the library does, through their
//! control block, and speak with their agent only when they must.

use std::collections::BTreeMap;

use outlive_base::control_block::{Armed, CONTROL_ABI, ControlWords};
use outlive_base::ipc::{ToAgent, ToRank};
use outlive_base::rng::draw;
use outlive_base::{Code, Incarnation, Level, Rank, Survives, Time, Version};
use outlive_control::ended::{Ended, SIGKILL};
use outlive_control::node::plain::{PlainBlock, PlainSlab};
use outlive_control::node::shell::Staging;
use outlive_control::supervisor::Input;

use super::checker::CopyAt;
use super::shell::Carry;
use super::*;

/// Bytes that each rank protects.
const BYTES: u64 = 8192;
/// The numbers of the ranks' processes begin here.
pub const PID_FIRST: u32 = 1_000_000;
/// How long a rank waits for an answer.
const PATIENCE: Time = Time::from_secs(5);

/// In the place of the number of a start: a process that is no rank of the job.
pub const TWIN: u32 = u32::MAX;

/// What a rank is doing.
#[derive(Clone)]
pub enum Stage {
    /// It greets its agent, and then goes on with this.
    Greeting(Box<Stage>),
    /// It has never met its agent.
    New,
    /// It asks what to restore.
    Restoring,
    /// It computes.
    Running,
    /// It has offered a version that needs a look.
    Deciding(Version),
    /// It has come to the version of an injection, and waits for that.
    Injected(Version, Version),
    /// It waits for memory.
    Waiting(Version, Option<Armed>),
    /// It copies.
    Filling(Version, u32, u32, PlainSlab),
    /// It waits for a version.
    Awaiting(Wait),
    /// It has done its work, and waits for the answer to that.
    Closing,
}

impl Stage {
    /// Its start is not over: what it restores is still to be read.
    pub const fn is_before_work(&self) -> bool {
        matches!(self, Stage::Greeting(_) | Stage::New | Stage::Restoring)
    }
}

/// What a rank waits for.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub version: Version,
    pub survives: Survives,
    pub since: Time,
    pub until: Time,
}

/// A rank.
pub struct Program {
    pub rank: u32,
    node: u32,
    pub pid: u32,
    epoch: u32,
    pub token: Option<u64>,
    pub block: Option<PlainBlock>,
    mapped: BTreeMap<u32, (u32, PlainSlab)>,
    pub stage: Stage,
    /// It was sent SIGSTOP.
    pub stopped: bool,
    /// The version of an injection at which nobody has answered it.
    injected: Option<Version>,
    state: u64,
    /// The version that it has offered last.
    pub next: u64,
    answered: Option<Version>,
    sequence: u32,
    unsent: Option<ToAgent>,
    said_last: Time,
    /// What lies in each slot, as this rank has put it there.
    holds: BTreeMap<u32, Key>,
}

impl Job {
    pub(super) fn pid_of(&self, rank: u32) -> u32 {
        PID_FIRST + self.epoch * 1_000 + rank
    }

    /// The command starts: ranks begin and look for their agents.
    pub(super) fn start_ranks(&mut self, epoch: u32) {
        if epoch != self.epoch || self.launcher.running().is_none() {
            return;
        }
        self.programs.clear();
        self.starts_anew();
        for node in 0..self.options.nodes {
            for Rank(rank) in self.ranks_of(node) {
                let pid = self.pid_of(rank);
                self.programs.insert(
                    rank,
                    Program {
                        rank,
                        node,
                        pid,
                        epoch,
                        token: None,
                        block: None,
                        mapped: BTreeMap::new(),
                        stage: Stage::New,
                        stopped: false,
                        injected: None,
                        state: 0,
                        next: 0,
                        answered: None,
                        sequence: 0,
                        unsent: None,
                        said_last: Time::ZERO,
                        holds: BTreeMap::new(),
                    },
                );
                let delay = self.some_us(30_000);
                self.after(delay, Action::Reach { rank, epoch });
            }
        }
    }

    pub(super) fn program(&mut self, rank: u32, epoch: u32) -> Option<&mut Program> {
        let program = self.programs.get_mut(&rank)?;
        (program.epoch == epoch).then_some(program)
    }

    /// A rank looks for its agent, and greets it if it is there.
    pub(super) fn reach(&mut self, rank: u32, epoch: u32) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if program.token.is_some() {
            return;
        }
        let (node, pid) = (program.node, program.pid);
        let who = self.at(node);
        let there = self.home(who);
        let life = there.life;
        if there.agent.is_none() || there.lost {
            let again = Time::from_ms(10);
            return self.after(again, Action::Reach { rank, epoch });
        }
        self.tokens += 1;
        let token = self.tokens;
        self.links.insert(token, (who, life, rank, epoch));
        let Some(running) = self.launcher.running() else {
            return;
        };
        let ranks = self.ranks_total();
        if let Some(program) = self.program(rank, epoch) {
            program.token = Some(token);
            if !matches!(program.stage, Stage::Greeting(_)) {
                let then = std::mem::replace(&mut program.stage, Stage::Running);
                program.stage = Stage::Greeting(Box::new(then));
            }
        }
        self.joins(who, token, pid);
        let hello = ToAgent::Hello {
            abi: CONTROL_ABI,
            rank: Rank(rank),
            ranks,
            pid,
            incarnation: Incarnation(running),
        };
        self.say(rank, epoch, hello);
    }

    /// The connection of a rank is gone: it looks for another if it waits for something.
    pub(super) fn lost_link(&mut self, rank: u32, epoch: u32) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        program.token = None;
        if !matches!(program.stage, Stage::Running | Stage::Filling(..)) {
            self.after(Time::from_ms(2), Action::Reach { rank, epoch });
        }
    }

    /// Says something to the agent, in order.
    pub(super) fn say(&mut self, rank: u32, epoch: u32, message: ToAgent) {
        let now = self.now;
        let delay = self.some_us(200);
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        program.sequence += 1;
        let sequence = program.sequence;
        let Some(token) = program.token else { return };
        program.said_last = program.said_last.max(now + delay) + Time(1);
        let at = program.said_last.since(now);
        let Some(&(who, life, ..)) = self.links.get(&token) else {
            return;
        };
        self.after(
            at,
            Action::Said {
                who,
                life,
                token,
                sequence,
                message,
            },
        );
        let late = Action::Late {
            rank,
            epoch,
            sequence,
        };
        self.after(PATIENCE, late);
    }

    /// As [`Job::say`], later if the connection is broken.
    fn notify_agent(&mut self, rank: u32, epoch: u32, message: ToAgent) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if program.token.is_some() {
            return self.say(rank, epoch, message);
        }
        program.unsent = Some(message);
        self.reach(rank, epoch);
    }

    pub(super) fn late(&mut self, rank: u32, epoch: u32, sequence: u32) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if program.sequence != sequence {
            return;
        }
        match program.stage.clone() {
            Stage::Waiting(version, _) => self.gives_up(rank, epoch, version, Code::AgentTimeout),
            Stage::Injected(version, at) => {
                program.injected = Some(at);
                if self.now > self.healed() + PATIENCE {
                    self.wrong(format!("rank {rank} waits at the version of an injection"));
                }
                self.enter(rank, epoch, version);
            }
            Stage::Awaiting(wait) => self.wait_is_late(rank, epoch, wait, sequence),
            Stage::Greeting(_) | Stage::Restoring => {
                // Nobody answers: the connection is given up.
                if let Some(token) = program.token.take() {
                    self.leaves(token, false);
                }
                self.after(Time::from_ms(2), Action::Reach { rank, epoch });
            }
            Stage::Closing => {
                if self.calm {
                    self.wrong(format!("rank {rank} waits for an answer to CLOSE"));
                }
                self.exits(rank, epoch);
            }
            _ => {}
        }
    }

    pub(super) fn answered(&mut self, token: u64, _: u32, message: ToRank, carry: Carry) {
        let Some(&(.., rank, epoch)) = self.links.get(&token) else {
            return;
        };
        if epoch == TWIN {
            return self.twin_answered(token, &message);
        }
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if program.token != Some(token) {
            return;
        }
        match (program.stage.clone(), message, carry) {
            (Stage::Greeting(then), ToRank::Welcome { .. }, Carry::Block(block)) => {
                self.welcomed(rank, epoch, block, *then);
            }
            (Stage::Greeting(_), ToRank::Error { .. }, _) => {
                program.token = None;
                self.leaves(token, false);
                self.after(Time::from_ms(10), Action::Reach { rank, epoch });
            }
            (Stage::Restoring, ToRank::Fresh, _) => self.begins(rank, epoch, None),
            (Stage::Restoring, ToRank::Restore { .. }, Carry::Slab(slab)) => {
                self.begins(rank, epoch, Some(slab));
            }
            (Stage::Restoring, ToRank::Error { .. }, _) => {
                // The program cannot go on without its state.
                let pid = program.pid;
                self.kill_rank(pid);
            }
            (
                Stage::Waiting(version, _),
                ToRank::Slab {
                    slot,
                    generation,
                    version: of,
                    ..
                },
                Carry::Slab(slab),
            ) if of == version => {
                program.mapped.insert(slot, (generation, slab.clone()));
                self.fill_slab(rank, epoch, version, slot, generation, slab);
            }
            (Stage::Closing, ToRank::Ok, _) => self.exits(rank, epoch),
            (
                Stage::Awaiting(wait),
                ToRank::State {
                    version,
                    survives,
                    state,
                },
                _,
            ) if (version, survives) == (wait.version, wait.survives) => {
                self.wait_ends(rank, epoch, wait, state);
            }
            (Stage::Injected(version, _), ToRank::Ok, _) => {
                program.injected = None;
                self.enter(rank, epoch, version);
            }
            (Stage::Waiting(version, _), ToRank::Error { error }, _) => {
                self.gives_up(rank, epoch, version, error.code());
            }
            _ => {}
        }
    }

    /// The agent knows this rank: it goes on with what it did.
    fn welcomed(&mut self, rank: u32, epoch: u32, block: PlainBlock, then: Stage) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let old = program.block.replace(block.clone());
        if let Some(old) = old {
            // The same words, or those of a block that the keeper has lost.
            if let Some(version) = old.forced() {
                block.announce(version);
            }
            if old.called() > block.called() {
                let _ = block.offer(old.called() - 1);
            }
            if let Some(version) = old.entered() {
                block.claim(version);
            }
        }
        block.set_bytes_needed(BYTES);
        program.stage = then.clone();
        if let Some(message) = program.unsent.take() {
            self.say(rank, epoch, message);
        }
        match then {
            Stage::New | Stage::Restoring => {
                if let Some(program) = self.program(rank, epoch) {
                    program.stage = Stage::Restoring;
                }
                self.say(rank, epoch, ToAgent::Restore);
            }
            Stage::Deciding(version) => self.decide(rank, epoch, version),
            Stage::Injected(_, at) => self.say(rank, epoch, ToAgent::Inject { version: at }),
            Stage::Waiting(version, armed) => self.ask_slab(rank, epoch, version, armed),
            Stage::Closing => self.say(rank, epoch, ToAgent::Close),
            Stage::Awaiting(wait) => self.ask_wait(rank, epoch, wait),
            Stage::Greeting(_) | Stage::Running | Stage::Filling(..) => {}
        }
    }

    /// The rank begins with what it restored, or with nothing.
    fn begins(&mut self, rank: u32, epoch: u32, slab: Option<PlainSlab>) {
        let incarnation = self.launcher.running().unwrap_or(0);
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let (mut from, mut state) = ((0, 0), 0);
        if let Some(slab) = slab {
            let head = slab.head().ok();
            from = head.map_or((0, 0), |head| (head.id.incarnation.0, head.version.0));
            state = slab.content().unwrap_or(0) as u64;
            let code = None;
            let version = Version(from.1);
            program.next = from.1;
            program.state = state;
            self.say(rank, epoch, ToAgent::Restored { version, code });
        }
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        program.stage = Stage::Running;
        let node = program.node;
        self.judge_start(rank, incarnation, from);
        if from.0 != 0 {
            self.comes_to(strikes::Stage::Restore, self.at(node));
            let expected = self.ranks_of(node).len();
            let all = self.restored.entry((incarnation, node)).or_default();
            all.insert(rank, (from, state));
            if all.len() == expected {
                let words: Vec<u64> = all.values().map(|(_, word)| *word).collect();
                let same = all.values().all(|(key, _)| *key == from);
                let all = all.clone();
                self.judge.restores(self.now, node, from, &words);
                if !same {
                    let text = format!("P2: node {node} restored several versions: {all:?}");
                    self.judge.violations.push(text);
                }
            }
        }
        let delay = self.some_us(2_000);
        self.after(delay, Action::Step { rank, epoch });
    }

    /// A rank goes one step and offers a version.
    pub(super) fn step(&mut self, rank: u32, epoch: u32) {
        let stride = self.options.stride;
        let jump = !self.calm && self.random.chance(3_000) && !self.options.peace;
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        match &program.stage {
            Stage::Running => {}
            // It tells of a capture first, to an agent that it has to find again.
            Stage::Greeting(then) if matches!(**then, Stage::Running) => {
                return self.after(Time::from_ms(1), Action::Step { rank, epoch });
            }
            _ => return,
        }
        let Some(block) = program.block.clone() else {
            return;
        };
        let next = program.next;
        if self.is_held_by_waits(next) {
            return self.after(Time::from_ms(5), Action::Step { rank, epoch });
        }
        if self.closes(rank, epoch, next) {
            return;
        }
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let version = next + if jump { 2 * stride } else { stride };
        program.next = version;
        let node = program.node;
        self.offers(node, rank, version);
        let is_forced = self.is_forced(epoch, version);
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let incarnation = block.identity().incarnation.0;
        program.state = draw(
            program.state,
            u64::from(rank),
            version << 8 | u64::from(incarnation),
        );
        if is_forced {
            block.announce(Version(version));
        }
        let attention = block.offer(version);
        let captured = program.answered;
        if version < attention && !is_forced {
            self.judge_block(&block, captured);
            return self.next_step(rank, epoch, version);
        }
        program.stage = Stage::Deciding(Version(version));
        if program.token.is_none() {
            return self.reach(rank, epoch);
        }
        self.decide(rank, epoch, Version(version));
    }

    pub(super) fn next_step(&mut self, rank: u32, epoch: u32, version: u64) {
        // Ranks exchange messages, so none stays far behind for long.
        let furthest = match self.meter {
            // They do nothing that is measured, and there are many of them.
            Some(_) => None,
            None => self.programs.values().map(|program| program.next).max(),
        };
        let behind = version + 4 * self.options.stride < furthest.unwrap_or(0);
        let most = match behind {
            true => 500,
            false => self.options.step_max.0 / 1_000,
        };
        let delay = Time(500_000) + self.some_us(most);
        self.after(delay, Action::Step { rank, epoch });
    }

    /// An injection may wait for this version.
    fn decide(&mut self, rank: u32, epoch: u32, version: Version) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let at = program.block.as_ref().and_then(ControlWords::inject);
        let at = at.filter(|at| *at <= version && program.injected != Some(*at));
        let Some(at) = at else {
            return self.enter(rank, epoch, version);
        };
        program.stage = Stage::Injected(version, at);
        self.say(rank, epoch, ToAgent::Inject { version: at });
    }

    /// Whether this version is to be captured: it is armed, or forced.
    fn enter(&mut self, rank: u32, epoch: u32, version: Version) {
        let forced = self.is_forced(epoch, version.0);
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let node = program.node;
        let Some(block) = program.block.clone() else {
            return;
        };
        let armed = block.enter(version, program.answered);
        if armed.is_none() && !forced {
            program.stage = Stage::Running;
            return self.next_step(rank, epoch, version.0);
        }
        match armed {
            Some(_) => self.comes_to(strikes::Stage::Arming, self.at(node)),
            None => block.claim(version),
        }
        self.ask_slab(rank, epoch, version, armed);
    }

    fn ask_slab(&mut self, rank: u32, epoch: u32, version: Version, armed: Option<Armed>) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if let Some(armed) = armed
            && let Some((generation, slab)) = program.mapped.get(&armed.slot).cloned()
            && generation == armed.generation
        {
            return self.fill_slab(rank, epoch, version, armed.slot, generation, slab);
        }
        program.stage = Stage::Waiting(version, armed);
        let bytes = BYTES;
        let message = match armed {
            Some(_) => ToAgent::Slab { version, bytes },
            None => ToAgent::Force { version, bytes },
        };
        self.say(rank, epoch, message);
    }

    fn fill_slab(
        &mut self,
        rank: u32,
        epoch: u32,
        version: Version,
        slot: u32,
        generation: u32,
        slab: PlainSlab,
    ) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let node = program.node;
        let before = slab.head().ok().filter(|head| head.state.is_complete());
        let before = before.map(|head| (head.id.incarnation.0, head.version.0));
        let before = before.or(program.holds.remove(&slot));
        slab.begin_fill(version, 8);
        program.stage = Stage::Filling(version, slot, generation, slab);
        if let Some(block) = self.program(rank, epoch).and_then(|it| it.block.clone()) {
            // The node may have heard what nobody else has heard yet.
            self.judge_block(&block, None);
        }
        if let Some(key) = before {
            let (level, owner) = (Level::MEMORY, node);
            self.judge.removes(self.now, CopyAt { level, key, owner });
        }
        let delay = self.fills(self.at(node));
        self.after(delay, Action::Filled { rank, epoch });
    }

    pub(super) fn filled(&mut self, rank: u32, epoch: u32) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        let Stage::Filling(version, slot, generation, slab) = program.stage.clone() else {
            return;
        };
        let Some(block) = program.block.clone() else {
            return;
        };
        slab.finish(u128::from(program.state));
        block.leave();
        program.answered = Some(version);
        program.stage = Stage::Running;
        let key = (block.identity().incarnation.0, version.0);
        program.holds.insert(slot, key);
        let (node, state) = (program.node, program.state);
        let expected = self.ranks_of(node).len();
        let all = self.captured.entry((key, node)).or_default();
        all.insert(rank, state);
        if all.len() == expected {
            let words: Vec<u64> = all.values().copied().collect();
            self.judge.captures(self.now, key, node, &words);
            let (level, owner) = (Level::MEMORY, node);
            self.judge.stores(CopyAt { level, key, owner }, &words);
        }
        let who = self.at(node);
        let _ = self.meets(who, Occasion::Captures);
        let captured = ToAgent::Captured {
            version,
            slot,
            generation,
            table_bytes: 0,
            data_bytes: 8,
            blocked_ns: 1,
            forced: block.forced() == Some(version),
        };
        self.notify_agent(rank, epoch, captured);
        if !self.waits_for(rank, epoch, version) {
            self.next_step(rank, epoch, version.0);
        }
    }

    /// The rank cannot capture a version that it has entered.
    fn gives_up(&mut self, rank: u32, epoch: u32, version: Version, code: Code) {
        let Some(program) = self.program(rank, epoch) else {
            return;
        };
        if let Some(block) = &program.block {
            block.leave();
        }
        program.answered = Some(version);
        program.stage = Stage::Running;
        self.is_refused(rank, epoch, version, code);
        self.notify_agent(rank, epoch, ToAgent::Failed { version, code });
        self.next_step(rank, epoch, version.0);
    }

    /// The ranks of the command are gone.
    pub(super) fn end_ranks(&mut self, epoch: u32) {
        if epoch != self.epoch {
            return;
        }
        self.command_over(epoch, Ended::Signal(SIGKILL));
        self.epoch += 1;
        self.forced.clear();
        let tokens: Vec<u64> = self.programs.values().filter_map(|it| it.token).collect();
        self.programs.clear();
        for token in tokens {
            self.leaves(token, true);
        }
        self.launcher.stop_ranks();
        self.supervise(Input::TreeEnded);
    }

    /// One rank ends at once.
    pub(super) fn kill_rank(&mut self, pid: u32) {
        let found = self.programs.values().find(|program| program.pid == pid);
        let Some((rank, token)) = found.map(|program| (program.rank, program.token)) else {
            return;
        };
        self.programs.remove(&rank);
        if let Some(token) = token {
            self.leaves(token, true);
        }
        let delay = self.some_us(50_000);
        self.after(delay, Action::RankKilled { rank, pid });
        // What has started the ranks ends with the first of them.
        let (delay, epoch) = (self.some_us(200_000), self.epoch);
        let ended = Ended::Code(1);
        self.after(delay, Action::CommandOver { epoch, ended });
    }

    pub(super) fn rank_killed(&mut self, rank: u32, pid: u32) {
        let (rank, ended) = (Rank(rank), Some(Ended::Signal(SIGKILL)));
        self.supervise(Input::RankGone { rank, pid, ended });
    }

    /// The ranks of a slot end with their node: nobody is left to be told.
    pub(super) fn ranks_fall(&mut self, node: u32, is_seen: bool) {
        let here = self
            .programs
            .values()
            .filter(|program| program.node == node);
        let here: Vec<(u32, u32, Option<u64>)> =
            here.map(|it| (it.rank, it.pid, it.token)).collect();
        for (rank, pid, token) in here {
            self.programs.remove(&rank);
            if let Some(token) = token {
                self.links.remove(&token);
            }
            if is_seen {
                let delay = self.some_us(100_000);
                self.after(delay, Action::RankKilled { rank, pid });
            }
        }
    }
}
