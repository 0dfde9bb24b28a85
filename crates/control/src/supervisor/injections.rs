//! When faults are due, and what carries them out. Each happens once.
//!
//! A trigger that only an agent can see (a version, a fail point) is placed there
//! with number 2i, again with every agent that takes the place; an effect that only
//! an agent can have is sent with number 2i + 1.
//!
//! Those at the same version are one event: the first to be reached waits, its rank held
//! there, for the others, so that a chance of the schedule does not make a failure of two
//! nodes into two failures of one.

use crate::orders::{Fault, Order};
use outlive_base::{NodeId, Time, Version};

use super::{Action, Event, Supervisor};
use crate::inject::{Injection, Target, Verb, When};

/// Longest time that a rank is held at a version for the others that are due there: one
/// may have no step of this version.
const TOGETHER_MS: u64 = 2_000;

#[derive(Debug)]
pub(super) struct Tracked {
    spec: Injection,
    state: State,
    /// At which node, when and where its version was reached in this incarnation.
    reached: Option<Reached>,
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
    /// Done, and undone at that time.
    Until(Time),
    Over,
}

pub(super) fn track(specs: &[Injection]) -> Vec<Tracked> {
    let track = |spec: &Injection| Tracked {
        spec: spec.clone(),
        state: State::Waiting,
        reached: None,
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
                (State::Until(at), _) if now >= at => self.undo(index),
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
            (State::Until(at), _) => Some(at),
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
        let for_ms = match spec.verb {
            Verb::Kill | Verb::Corrupt { .. } => None,
            Verb::Freeze { for_ms }
            | Verb::Partition { for_ms }
            | Verb::Slow { for_ms, .. }
            | Verb::Full { for_ms } => for_ms,
        };
        self.injections[index].state = match for_ms {
            Some(ms) => State::Until(now + Time::from_ms(ms)),
            None => State::Over,
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
                self.actions.push_back(match verb {
                    Verb::Kill => Action::Kill { node, pids },
                    _ => Action::Freeze {
                        node,
                        keeper: false,
                        pids,
                        stop: true,
                    },
                });
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
            (Verb::Freeze { .. }, _) => Action::Freeze {
                node,
                keeper,
                pids,
                stop: true,
            },
            (..) => {
                let id = index as u32 * 2 + 1;
                let fault = fault.unwrap_or(Fault::Full(true));
                return self.order(node, Order::Inject { id, fault });
            }
        };
        self.actions.push_back(action);
    }

    fn undo(&mut self, index: usize) {
        self.injections[index].state = State::Over;
        let spec = self.injections[index].spec.clone();
        if let Target::Rank(rank) = spec.target {
            self.rank_hits.remove(&rank);
            // One that is gone meanwhile needs no waking.
            if let Some(node) = self.node_of(rank) {
                self.actions.push_back(Action::Freeze {
                    node,
                    keeper: false,
                    pids: self.pids_of(spec.target),
                    stop: false,
                });
            }
            return;
        }
        let Some(node) = spec.target.node() else {
            return;
        };
        let fault = match spec.verb {
            Verb::Freeze { .. } => {
                let pids = self.pids_of(spec.target);
                self.actions.push_back(Action::Freeze {
                    node,
                    keeper: !matches!(spec.target, Target::Agent(_)),
                    pids,
                    stop: false,
                });
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
            let id = index as u32 * 2 + 1;
            self.order(node, Order::Inject { id, fault });
        }
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
