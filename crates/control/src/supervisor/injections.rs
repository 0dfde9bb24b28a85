//! When faults are due, and what carries them out. Each happens once.
//!
//! A trigger that only an agent can see (a version, a fail point) is placed there
//! with number 2i, again with every agent that takes the place; an effect that only
//! an agent can have is sent with number 2i + 1. Words can be lost with their connection or
//! while a node is cut off: what is not answered is repeated with each probe, and agents know
//! by the number what they have done already. What an agent does counts as done when it says so.
//!
//! An agent that ends without having said whether it damaged a file or cut its node off is not
//! told so again, for that would be twice: the user is told that it is not known. A slow or full
//! disk goes on with the next agent of the same holder.
//!
//! Those at the same version are one event: the first to be reached waits, its rank held
//! there, for the others, so that a chance of the schedule does not make a failure of two
//! nodes into two failures of one.

use crate::orders::{Fault, Notice, Order};
use outlive_base::{Code, Entity, Error, NodeId, Time, Version, placement};

use super::{Action, Event, Planted, Supervisor};
use crate::inject::{Injection, Target, Verb, When};

/// Longest time that a rank is held at a version for the others that are due there: one
/// may have no step of this version.
const TOGETHER_MS: u64 = 2_000;

/// How the warning of what was asked for and did not happen begins.
pub const NOT_INJECTED: &str = "the job ended before what was to be injected";

#[derive(Debug)]
pub(super) struct Tracked {
    spec: Injection,
    state: State,
    /// At which node, when and where its version was reached in this incarnation.
    reached: Option<Reached>,
    /// The version at which it was fired.
    version: Option<Version>,
    /// What an agent was told, until it says that it did it.
    unanswered: Option<Fault>,
    /// When it was told.
    said: Time,
    /// What it has frozen.
    frozen: Frozen,
}

/// Processes that are stopped.
#[derive(Clone, Debug, Default)]
struct Frozen {
    pids: Vec<u32>,
    /// The keeper of this node and epoch.
    keeper: Option<(NodeId, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Reached {
    since: Time,
    node: NodeId,
    at: Option<Version>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// An agent is to do it, and has not said that it did.
    Ordered,
    /// Done, and undone at that time if it does not last.
    InForce(Option<Time>),
    Over,
}

pub(super) fn track(specs: &[Injection]) -> Vec<Tracked> {
    let track = |spec: &Injection| Tracked {
        spec: spec.clone(),
        state: State::Waiting,
        reached: None,
        version: None,
        unanswered: None,
        said: Time::ZERO,
        frozen: Frozen::default(),
    };
    specs.iter().map(track).collect()
}

impl Target {
    const fn node(self) -> Option<NodeId> {
        match self {
            Target::Node(node) | Target::Agent(node) | Target::Keeper(node) => Some(node),
            Target::Rank(_) => None,
        }
    }
}

impl Supervisor {
    /// Tells an agent which triggers to watch for.
    pub(super) fn place_injections(&mut self, node: NodeId) {
        let mut orders = Vec::new();
        for (index, tracked) in self.injections.iter().enumerate() {
            let target = tracked.spec.target;
            let concerned = target.node().is_none_or(|n| n == node);
            if tracked.state != State::Waiting || !concerned {
                continue;
            }
            let fault = match (&tracked.spec.when, target) {
                (When::AfterMs(_), _) => continue,
                (When::Version(version), Target::Rank(rank)) => Fault::AtVersion {
                    rank: Some(rank),
                    version: *version,
                },
                (When::Version(version), _) => Fault::AtVersion {
                    rank: None,
                    version: *version,
                },
                (When::Phase { point, nth }, _) => Fault::FailPoint {
                    point: point.clone(),
                    nth: *nth,
                },
            };
            let id = index as u32 * 2;
            orders.push(Order::Inject { id, fault });
        }
        for order in orders {
            self.order(node, order);
        }
    }

    pub(super) fn on_reached(&mut self, now: Time, node: NodeId, id: u32, at: Option<Version>) {
        let index = id as usize / 2;
        let running = self.is_running();
        let waiting = self
            .injections
            .get_mut(index)
            .filter(|tracked| running && tracked.state == State::Waiting && id.is_multiple_of(2));
        let Some(tracked) = waiting else {
            return self.order(node, Order::InjectDone { id });
        };
        tracked.reached.get_or_insert(Reached {
            since: now,
            node,
            at,
        });
        self.newest_offered = self.newest_offered.max(at);
        self.fire_overdue(now);
    }

    /// This one and the others that wait for the same version.
    fn together(&self, index: usize) -> Vec<usize> {
        let when = &self.injections[index].spec.when;
        let same = |other: &usize| {
            let tracked = &self.injections[*other];
            *other == index
                || (matches!(when, When::Version(_))
                    && tracked.spec.when == *when
                    && tracked.state == State::Waiting)
        };
        (0..self.injections.len()).filter(same).collect()
    }

    /// True if its version was not reached, and a rank is there that may reach it.
    fn is_awaited(&self, index: usize) -> bool {
        let tracked = &self.injections[index];
        let there = match tracked.spec.target {
            Target::Rank(rank) => self.pid_of(rank).is_some(),
            Target::Node(node) | Target::Agent(node) | Target::Keeper(node) => {
                let slot = self.slots.get(&node).filter(|slot| slot.is_up());
                slot.is_some_and(|slot| !slot.ranks.is_empty())
            }
        };
        tracked.reached.is_none() && there
    }

    /// Fires those that were reached, all at once, and lets the ranks go on.
    fn fire_reached(&mut self, now: Time, together: &[usize]) {
        let reached = |index: &usize| Some((*index, self.injections[*index].reached?));
        let due: Vec<(usize, Reached)> = together.iter().filter_map(reached).collect();
        // A node that is cut off would not hear that it may go on.
        let cut_off = |supervisor: &Supervisor, index: usize| {
            let verb = supervisor.injections[index].spec.verb;
            matches!(verb, Verb::Partition { .. })
        };
        let (before, after): (Vec<_>, Vec<_>) =
            due.iter().partition(|(index, _)| cut_off(self, *index));
        self.release(&before);
        for (index, reached) in &due {
            self.injections[*index].reached = None;
            self.fire(now, *index, reached.at);
        }
        self.release(&after);
    }

    fn release(&mut self, held: &[(usize, Reached)]) {
        for (index, reached) in held {
            let id = *index as u32 * 2;
            self.order(reached.node, Order::InjectDone { id });
        }
    }

    /// What was reached in an incarnation that ends is to be reached again in the next.
    pub(super) fn forget_reached(&mut self) {
        for tracked in &mut self.injections {
            tracked.reached = None;
        }
    }

    /// When those that wait for others at their version wait no longer.
    fn together_until(tracked: &Tracked) -> Option<Time> {
        let reached = tracked.reached?;
        Some(reached.since + Time::from_ms(TOGETHER_MS))
    }

    /// Fires what was reached and waits for nobody any more.
    fn fire_overdue(&mut self, now: Time) {
        for index in 0..self.injections.len() {
            let Some(until) = Self::together_until(&self.injections[index]) else {
                continue;
            };
            let together = self.together(index);
            if now >= until || !together.iter().any(|other| self.is_awaited(*other)) {
                self.fire_reached(now, &together);
            }
        }
    }

    /// Fires what is due by time, and ends what was to last only so long.
    pub(super) fn fire_due(&mut self, now: Time) {
        let Some(start) = self.first_start.filter(|_| self.is_alive()) else {
            return;
        };
        self.fire_overdue(now);
        for index in 0..self.injections.len() {
            let tracked = &self.injections[index];
            match (tracked.state, &tracked.spec.when) {
                (State::Waiting, When::AfterMs(ms)) if now >= start + Time::from_ms(*ms) => {
                    self.fire(now, index, None);
                }
                (State::InForce(Some(at)), _) if now >= at => self.undo(index),
                _ => {}
            }
        }
    }

    /// When the next is due; those overdue (their target is not there) wait for an
    /// input that changes that.
    pub(super) fn next_injection(&self) -> Time {
        let Some(start) = self.first_start else {
            return Time::NEVER;
        };
        let at = |tracked: &Tracked| match (tracked.state, &tracked.spec.when) {
            (State::Waiting, When::AfterMs(ms)) => Some(start + Time::from_ms(*ms)),
            (State::InForce(Some(at)), _) => Some(at),
            _ => Self::together_until(tracked),
        };
        let times = self.injections.iter().filter_map(at);
        let later = times.filter(|at| *at > self.last_seen);
        later.min().unwrap_or(Time::NEVER)
    }

    fn fire(&mut self, now: Time, index: usize, version: Option<Version>) {
        let spec = self.injections[index].spec.clone();
        if !self.strike(now, index, &spec) {
            return;
        }
        self.injections[index].version = version;
        match self.injections[index].unanswered {
            Some(_) => self.injections[index].state = State::Ordered,
            None => self.is_done(now, index),
        }
    }

    /// It has happened: the user is told.
    fn is_done(&mut self, now: Time, index: usize) {
        let (spec, version) = (
            self.injections[index].spec.clone(),
            self.injections[index].version,
        );
        self.injections[index].state = match spec.verb {
            Verb::Kill | Verb::Corrupt { .. } => State::Over,
            Verb::Freeze { for_ms }
            | Verb::Partition { for_ms }
            | Verb::Slow { for_ms, .. }
            | Verb::Full { for_ms } => State::InForce(for_ms.map(|ms| now + Time::from_ms(ms))),
        };
        self.report.injected.push(spec.text.clone());
        self.tell(Event::Injected {
            text: spec.text,
            version,
        });
    }

    /// Carries it out; false if the target is not there at the moment.
    fn strike(&mut self, now: Time, index: usize, spec: &Injection) -> bool {
        match (spec.target, spec.verb) {
            (Target::Rank(rank), verb) => {
                let (Some(pid), Some(node)) = (self.pid_of(rank), self.node_of(rank)) else {
                    return false;
                };
                self.rank_hits.insert(rank, now);
                let pids = vec![pid];
                match verb {
                    Verb::Kill => self.actions.push_back(Action::Kill { node, pids }),
                    _ => self.freeze(index, node, pids, false),
                }
                true
            }
            (Target::Node(node) | Target::Agent(node) | Target::Keeper(node), verb) => {
                if !self.slots.get(&node).is_some_and(super::NodeSlot::is_up) {
                    return false;
                }
                self.strike_node(now, index, spec.target, node, verb);
                true
            }
        }
    }

    fn strike_node(&mut self, now: Time, index: usize, target: Target, node: NodeId, verb: Verb) {
        let pids = self.pids_of(target);
        let keeper = !matches!(target, Target::Agent(_));
        let fault = match verb {
            Verb::Kill => None,
            Verb::Freeze { .. } => None,
            Verb::Partition { for_ms } => Some(Fault::Isolate { for_ms }),
            Verb::Slow { rate, .. } => Some(Fault::Slow(rate)),
            Verb::Corrupt { level } => Some(Fault::Corrupt(level)),
            Verb::Full { .. } => Some(Fault::Full(true)),
        };
        let silences = !matches!(target, Target::Agent(_))
            && matches!(
                verb,
                Verb::Kill | Verb::Freeze { .. } | Verb::Partition { .. }
            );
        if let Some(slot) = self.slots.get_mut(&node)
            && silences
        {
            slot.hit = Some(now);
            slot.wiped |= verb == Verb::Kill && matches!(target, Target::Node(_));
            slot.doomed |= verb == Verb::Kill;
        }
        let action = match (verb, target) {
            (Verb::Kill, Target::Node(_)) => Action::KillNode { node, pids },
            (Verb::Kill, Target::Keeper(_)) => Action::KillKeeper { node },
            (Verb::Kill, _) => Action::Kill { node, pids },
            (Verb::Freeze { .. }, _) => return self.freeze(index, node, pids, keeper),
            (..) => {
                let fault = fault.unwrap_or(Fault::Full(true));
                return self.order_fault(index, node, fault);
            }
        };
        self.actions.push_back(action);
    }

    fn freeze(&mut self, index: usize, node: NodeId, pids: Vec<u32>, keeper: bool) {
        let epoch = self.slots.get(&node).map_or(0, |slot| slot.epoch);
        self.injections[index].frozen = Frozen {
            pids: pids.clone(),
            keeper: keeper.then_some((node, epoch)),
        };
        let stop = true;
        self.actions.push_back(Action::Freeze {
            node,
            keeper,
            pids,
            stop,
        });
    }

    /// Wakes what no other injection in force has frozen too: an agent that answers for a
    /// frozen node would hide that nothing else there does.
    fn thaw(&mut self, node: NodeId, mut pids: Vec<u32>, keeper: bool) {
        let epoch = self.slots.get(&node).map_or(0, |slot| slot.epoch);
        let in_force = |it: &&Tracked| matches!(it.state, State::InForce(_));
        let others = self.injections.iter().filter(in_force);
        let held: Vec<&Frozen> = others.map(|it| &it.frozen).collect();
        pids.retain(|pid| !held.iter().any(|it| it.pids.contains(pid)));
        let keeper = keeper && !held.iter().any(|it| it.keeper == Some((node, epoch)));
        if keeper || !pids.is_empty() {
            let stop = false;
            self.actions.push_back(Action::Freeze {
                node,
                keeper,
                pids,
                stop,
            });
        }
    }

    fn undo(&mut self, index: usize) {
        self.injections[index].state = State::Over;
        let spec = self.injections[index].spec.clone();
        if let Target::Rank(rank) = spec.target {
            self.rank_hits.remove(&rank);
            // One that is gone meanwhile needs no waking.
            if let Some(node) = self.node_of(rank) {
                self.thaw(node, self.pids_of(spec.target), false);
            }
            return;
        }
        let Some(node) = spec.target.node() else {
            return;
        };
        let fault = match spec.verb {
            Verb::Freeze { .. } => {
                let keeper = !matches!(spec.target, Target::Agent(_));
                self.thaw(node, self.pids_of(spec.target), keeper);
                None
            }
            Verb::Slow { .. } => Some(Fault::Slow(0)),
            Verb::Full { .. } => Some(Fault::Full(false)),
            // An isolated agent cannot be told: it counts the time itself.
            Verb::Kill | Verb::Corrupt { .. } | Verb::Partition { .. } => None,
        };
        if let Some(slot) = self.slots.get_mut(&node) {
            slot.hit = None;
        }
        if let Some(fault) = fault {
            self.order_fault(index, node, fault);
        }
    }

    /// Orders what an agent is to do; until it says that it did, with each probe again.
    fn order_fault(&mut self, index: usize, node: NodeId, fault: Fault) {
        self.injections[index].unanswered = Some(fault.clone());
        self.injections[index].said = self.last_seen;
        let id = index as u32 * 2 + 1;
        self.order(node, Order::Inject { id, fault });
    }

    /// Says again what may have been lost.
    pub(super) fn repeat_injections(&mut self, node: NodeId) {
        if self.is_planted(Planted::ForgetInjection) {
            return;
        }
        if self.is_running() {
            self.place_injections(node);
        }
        for index in 0..self.injections.len() {
            let tracked = &self.injections[index];
            if tracked.spec.target.node() == Some(node)
                && tracked.said < self.last_seen
                && let Some(fault) = tracked.unanswered.clone()
            {
                self.order_fault(index, node, fault);
            }
        }
    }

    /// An agent says that it carried out what it was told, or cannot.
    pub(super) fn on_injected(&mut self, now: Time, node: NodeId, said: Notice) {
        let Notice::Injected { id, fault, outcome } = said else {
            return;
        };
        let index = id as usize / 2;
        let Some(tracked) = self.injections.get_mut(index) else {
            return;
        };
        let concerned = tracked.spec.target.node() == Some(node);
        if !concerned || tracked.unanswered.take_if(|it| *it == fault).is_none() {
            return;
        }
        match (tracked.state, outcome) {
            (State::Ordered, Ok(())) => self.is_done(now, index),
            (State::Ordered, Err(error)) => {
                tracked.state = State::Over;
                let text = tracked.spec.text.clone();
                self.report.not_injected.push(text);
                self.warn(error);
            }
            // Undone, or said to the next agent.
            _ => {}
        }
    }

    /// The agent of a node was started anew: what it had put into force is over, and nobody
    /// knows what it did and did not say.
    pub(super) fn injections_anew(&mut self, node: NodeId) {
        for index in 0..self.injections.len() {
            let tracked = &mut self.injections[index];
            if tracked.spec.target.node() != Some(node) {
                continue;
            }
            let lasting = match tracked.spec.verb {
                Verb::Slow { rate, .. } => Some(Fault::Slow(rate)),
                Verb::Full { .. } => Some(Fault::Full(true)),
                _ => None,
            };
            match tracked.state {
                State::Ordered if lasting.is_none() => self.overtake(index, node),
                State::InForce(_) => tracked.unanswered = lasting,
                State::Over => tracked.unanswered = None,
                State::Waiting | State::Ordered => {}
            }
            if self.is_planted(Planted::RepeatInjection) {
                self.injections[index].state = State::Waiting;
            }
        }
    }

    /// A slot's holder is lost, and all that was in force there with it.
    pub(super) fn injections_lost(&mut self, node: NodeId) {
        for index in 0..self.injections.len() {
            let tracked = &mut self.injections[index];
            if tracked.spec.target.node() != Some(node) {
                continue;
            }
            tracked.unanswered = None;
            match tracked.state {
                State::Ordered => self.overtake(index, node),
                State::InForce(_) => tracked.state = State::Over,
                State::Waiting | State::Over => {}
            }
        }
    }

    /// Nobody will know whether it happened: it is not done again.
    fn overtake(&mut self, index: usize, node: NodeId) {
        let tracked = &mut self.injections[index];
        (tracked.state, tracked.unanswered) = (State::Over, None);
        let text = tracked.spec.text.clone();
        self.warn(Error::new(
            Code::AgentTimeout,
            Entity::Node(node.0),
            format!("its agent ended before it said whether it carried out '{text}'"),
            "it is not done twice; give it again in another run",
        ));
        self.report.not_injected.push(text);
    }

    /// The job ends: what was not carried out will not be.
    pub(super) fn end_injections(&mut self) {
        let left = |tracked: &&Tracked| matches!(tracked.state, State::Waiting | State::Ordered);
        let left = self.injections.iter().filter(left);
        let left: Vec<&Injection> = left.map(|tracked| &tracked.spec).collect();
        if left.is_empty() {
            return;
        }
        let each: Vec<String> = left.iter().map(|spec| self.why_not(spec)).collect();
        let error = Error::new(
            Code::NotFound,
            Entity::Job(self.set.job.to_string()),
            format!("{NOT_INJECTED}: {}", each.join(", ")),
            "the run shows nothing of them; give versions, points or times that it comes to",
        );
        let texts: Vec<String> = left.iter().map(|spec| spec.text.clone()).collect();
        self.report.not_injected.extend(texts);
        self.warn(error);
    }

    /// What was asked for, and why it cannot have come, where that is known.
    fn why_not(&self, spec: &Injection) -> String {
        let text = &spec.text;
        let ranks = self
            .ranks_total
            .filter(|_| matches!(spec.when, When::Version(_)));
        let node = spec.target.node();
        let (Some(ranks), Some(node)) = (ranks, node) else {
            return format!("'{text}'");
        };
        let mut here = placement::ranks_of(node, ranks, self.set.nodes);
        match here.next() {
            Some(_) => format!("'{text}'"),
            None => format!("'{text}' ({node} has no rank that offers a version)"),
        }
    }

    fn is_planted(&self, fault: Planted) -> bool {
        self.set.planted == Some(fault)
    }

    /// The processes of a target besides the keeper.
    fn pids_of(&self, target: Target) -> Vec<u32> {
        match target {
            Target::Rank(rank) => self.pid_of(rank).into_iter().collect(),
            Target::Keeper(_) => Vec::new(),
            Target::Agent(node) => self
                .slots
                .get(&node)
                .and_then(|s| s.agent_pid)
                .into_iter()
                .collect(),
            Target::Node(node) => {
                let slot = self.slots.get(&node);
                let pids = slot.map(|s| s.ranks.values().copied().chain(s.agent_pid));
                pids.into_iter().flatten().collect()
            }
        }
    }
}
