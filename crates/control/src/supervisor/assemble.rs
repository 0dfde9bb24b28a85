//! From "nothing runs" to "the command runs".

use crate::orders::Order;
use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Time, Version};

use super::apart::Pace;
use super::faults::Found;
use super::types::EPOCH_STEP;
use super::{
    Action, CommandState, Event, NodeSlot, NodeSlotState, Phase, Planted, Site, Storage, Supervisor,
};
use crate::ended::Ended;
use crate::steering::Steering;

/// Before the orders of an opening are repeated for the first time; then twice as long
/// each time, up to so many doublings.
const REPEAT_MS: u64 = 2_000;
const REPEATS_MAX: u32 = 4;
/// The pause before another try grows so often.
const OPEN_PAUSES_MAX: u32 = 8;
/// Nodes whose storage is described when nothing can be restored, and with how many
/// letters each.
const TRACES_SHOWN: usize = 8;
const TRACE_CHARS: usize = 400;

impl Supervisor {
    /// Carries out everything that time and state permit.
    pub(super) fn advance(&mut self, now: Time) {
        self.settle_unexplained(now);
        self.check_silence(now);
        self.check_apart(now);
        self.check_hang(now);
        self.check_joining(now);
        self.check_bounds(now);
        self.speak(now);
        self.step(now);
        self.steer(now);
        self.fire_due(now);
        self.probe(now);
    }

    /// When to be woken at the latest.
    pub fn deadline(&self) -> Time {
        let probe = self.last_probe + self.probe_every();
        let mut at = probe.min(self.last_seen + Time::from_ms(self.set.look_ms));
        at = at.min(self.due);
        for until in self.unexplained.values() {
            at = at.min(*until);
        }
        if matches!(self.phase, Phase::Assembling { .. }) && self.not_before > self.last_seen {
            at = at.min(self.not_before);
        }
        if matches!(self.phase, Phase::Opening { .. }) {
            at = at.min(self.repeat_at);
        }
        if let Some(wake) = self.steering.as_ref().and_then(Steering::wake) {
            at = at.min(wake);
        }
        at = at.min(self.next_word()).min(self.hang_at);
        at.min(self.next_injection()).min(self.silence_at)
    }

    pub(super) fn step(&mut self, now: Time) {
        match &self.phase {
            Phase::Assembling { since } => {
                let since = *since;
                self.note_fenced(now);
                let ready = self.nothing_old() && self.slots.values().all(NodeSlot::is_up);
                if ready && now >= self.not_before {
                    self.open(now);
                } else if ready && since == now {
                    let ms = self.not_before.since(now).as_ms() as u64;
                    self.tell(Event::BackOff { ms });
                }
            }
            Phase::Opening {
                opened,
                incarnation,
                ..
            } => {
                if now >= self.repeat_at {
                    let incarnation = *incarnation;
                    return self.open_again(now, incarnation);
                }
                if opened.is_some() && self.slots.values().all(|slot| slot.ready) {
                    self.start_command(now);
                }
            }
            Phase::Running { .. } | Phase::Done => {}
            Phase::Finishing { since, asked } => {
                let (since, asked) = (*since, *asked);
                self.finish(now, since, asked);
            }
            Phase::Stopping { since } => {
                let bound = Time::from_ms(self.set.fence_ms + self.set.kill_grace_ms);
                let over = now.since(*since) >= bound;
                if over || self.slots.values().all(|s| s.state == NodeSlotState::Ended) {
                    self.done();
                }
            }
        }
    }

    /// True if no process of the last incarnation is left anywhere. A keeper that is being
    /// killed counts: its ranks' ends may be seen first, and to open without it and once
    /// more would make two failures of one.
    fn nothing_old(&self) -> bool {
        let fencing = |slot: &NodeSlot| matches!(slot.state, NodeSlotState::Fencing { .. });
        let old = |slot: &NodeSlot| fencing(slot) || (slot.doomed && slot.is_up());
        self.command == CommandState::None && !self.slots.values().any(old)
    }

    pub(super) fn note_fenced(&mut self, now: Time) {
        if !self.nothing_old() {
            return;
        }
        let found: Vec<Time> = self.open.iter().map(|(_, at)| *at).collect();
        let mut last = None;
        for (entry, at) in self.open_entries().iter_mut().zip(found) {
            if entry.fence_ms.is_none() {
                let ms = now.since(at).as_ms();
                entry.fence_ms = Some(ms);
                last = Some(ms);
            }
        }
        if let Some(fence_ms) = last {
            self.tell(Event::Cleared { fence_ms });
        }
    }

    pub(super) fn up(&self) -> impl Iterator<Item = NodeId> + '_ {
        let up = self.slots.iter().filter(|(_, slot)| slot.is_up());
        up.map(|(node, _)| *node)
    }

    fn open(&mut self, now: Time) {
        if self.last_incarnation == 0 || self.first_start.is_none() {
            let nodes = self.set.nodes;
            self.tell(Event::NodesUp { nodes });
        }
        self.last_incarnation += 1;
        self.traces.clear();
        self.repeats = 0;
        self.repeat_at = now + Time::from_ms(REPEAT_MS);
        let incarnation = Incarnation(self.last_incarnation);
        self.report.incarnations.push(incarnation.0);
        let epoch = self.slots.values().map(|slot| slot.epoch).max();
        self.actions.push_back(Action::RecordIncarnation {
            incarnation,
            epoch: epoch.unwrap_or(0),
        });
        self.configure_all();
        let nodes: Vec<NodeId> = self.slots.keys().copied().collect();
        for node in nodes {
            self.place_injections(node);
            let order = self.open_order(incarnation);
            self.order(node, order);
        }
        for slot in self.slots.values_mut() {
            slot.ready = false;
            slot.rebuilt_from = None;
        }
        self.phase = Phase::Opening {
            incarnation,
            since: now,
            opened: None,
        };
    }

    /// Orders and answers can be lost while a node is cut off: they are repeated at
    /// growing intervals to who has not answered. An agent that is at work already
    /// ignores them, one that has answered does so again.
    fn open_again(&mut self, now: Time, incarnation: Incarnation) {
        self.repeats += 1;
        self.repeat_at = now + Time::from_ms(REPEAT_MS << self.repeats.min(REPEATS_MAX));
        let undecided = matches!(self.phase, Phase::Opening { opened: None, .. });
        let config = self.job_config();
        let late = |node: &NodeId, slot: &NodeSlot| {
            slot.is_up() && (!slot.ready || (undecided && *node == self.set.coordinator))
        };
        let changes = self.changes;
        let slots = self.slots.iter();
        let late: Vec<NodeId> = slots
            .filter(|(node, slot)| late(node, slot))
            .map(|(node, _)| *node)
            .collect();
        for node in late {
            self.order(node, Order::Configure(config.clone()));
            if let Some(slot) = self.slots.get_mut(&node) {
                slot.told = Some(changes);
            }
            let order = self.open_order(incarnation);
            self.order(node, order);
        }
    }

    pub(super) fn open_order(&self, incarnation: Incarnation) -> Order {
        let replaced = self.slots.iter().filter(|(_, slot)| slot.replaced);
        Order::Open {
            incarnation,
            replaced: replaced.map(|(node, _)| *node).collect(),
            fenced: self.unfenced.is_empty(),
            fresh: self.fresh,
            history: match self.fresh {
                true => Incarnation(0),
                false => self.history,
            },
        }
    }

    fn start_command(&mut self, now: Time) {
        let Phase::Opening {
            incarnation,
            opened: Some(opened),
            ..
        } = &self.phase
        else {
            return;
        };
        let (incarnation, mut opened) = (*incarnation, opened.clone());
        // The coordinator knows its own source only: the strongest of all counts.
        let sources = self.slots.values().filter_map(|slot| slot.rebuilt_from);
        opened.level = opened.level.max(sources.max());
        let lost = self.course.restored(opened.restored);
        let mut lost_ms = lost.map(|lost| lost.as_ms());
        for entry in self.open_entries() {
            // All of it with the first that was found.
            entry.lost_ms = lost_ms;
            lost_ms = lost.map(|_| 0.0);
            entry.rebuild_ms = Some(opened.rebuild_ms);
            entry.level = opened.level.map(|level: Level| level.name().to_owned());
            entry.version = opened.restored.map(|version| version.0);
            let lost = |at: u64| at.saturating_sub(opened.restored.map_or(0, |v| v.0));
            entry.versions_lost = entry.at_version.map(lost);
            entry.rejected = opened.rejected.iter().map(Into::into).collect();
            entry.uncertain = opened.uncertain;
        }
        self.tell(Event::Opened {
            incarnation,
            restored: opened.restored,
            level: opened.level,
            rebuild_ms: opened.rebuild_ms,
            rejected: opened.rejected.len(),
            restart: self.first_start.is_some(),
            given_up: opened
                .restored
                .zip(opened.level)
                .is_some_and(|(version, level)| self.was_given_up(version, level)),
        });
        self.forget_given_up();
        if self.first_start.is_some() {
            self.report.restarts += 1;
        }
        self.first_start.get_or_insert(now);
        if self.fresh && self.history.0 != 0 {
            // What was before is void, on every node and by the owner's word.
            self.history = Incarnation(0);
            let history = None;
            self.actions.push_back(Action::RecordHistory { history });
        }
        // Its record, on every node, makes void what was before: the next start may restore
        // what this one keeps, also what the launcher has not heard of yet.
        self.fresh = false;
        if let Some(version) = opened.restored {
            self.note_history(version);
        }
        self.steer_reopened(opened.restored, opened.level);
        self.relaunching = self.open.len();
        self.open.clear();
        self.collateral.clear();
        self.open_retries = 0;
        self.shared_out_since = None;
        self.unfenced.clear();
        self.newest_stable = opened.restored;
        self.stable_here.clear();
        self.captured_here.clear();
        self.newest_offered = opened.restored;
        self.pace = Pace::new(now);
        self.judge.started();
        self.joining.started();
        for slot in self.slots.values_mut() {
            slot.replaced = false;
        }
        self.ready_at = Some(now);
        self.command_status = None;
        self.command = CommandState::Running;
        self.phase = Phase::Running {
            since: now,
            stable_before: opened.restored,
            complete: false,
        };
        self.actions.push_back(Action::StartCommand { incarnation });
        self.tell(Event::CommandStarted { incarnation });
    }

    /// Bounds of everything that others must do (P5).
    fn check_bounds(&mut self, now: Time) {
        // Nothing has a bound of a node that is up and takes part.
        let waits = |slot: &NodeSlot| match slot.state {
            NodeSlotState::Up => slot.outside.is_some(),
            NodeSlotState::Fencing { .. } | NodeSlotState::Starting { .. } => true,
            NodeSlotState::Ended => false,
        };
        let nodes = self.slots.iter().filter(|(_, slot)| waits(slot));
        let nodes: Vec<(NodeId, NodeSlotState)> =
            nodes.map(|(node, slot)| (*node, slot.state)).collect();
        for (node, state) in nodes {
            match state {
                NodeSlotState::Fencing { since, .. }
                    if self.over(now, since, self.set.fence_ms) =>
                {
                    let epoch = self.slots[&node].epoch;
                    self.on_fenced(now, node, epoch, false);
                }
                NodeSlotState::Starting { since } if self.over(now, since, self.set.start_ms) => {
                    let bound = self.set.start_ms;
                    let cause = format!("no agent within {bound} ms");
                    self.lose_bound(now, node, cause, since, Storage::Keep);
                }
                NodeSlotState::Up => self.check_outside(now, node),
                _ => {}
            }
        }
        if let Phase::Opening { since, .. } = self.phase
            && self.over(now, since, self.set.bounds.recovery_ms)
        {
            self.recovery_overdue(now, since);
        }
        if let Phase::Assembling { since } = self.phase
            && self.command == CommandState::Ending
        {
            self.check_ending(now, since);
        }
    }

    /// An agent that was started anew, and whose record of the incarnation that runs is
    /// damaged, takes no part in it any more: only the next one brings checkpoints again.
    fn check_outside(&mut self, now: Time, node: NodeId) {
        let bound = self.set.start_ms;
        let since = self.slots.get(&node).and_then(|slot| slot.outside);
        if let Some(since) = since.filter(|since| self.over(now, *since, bound))
            && self.is_running()
        {
            let cause = format!("its agent has not taken part for {bound} ms");
            self.lose_bound(now, node, cause, since, Storage::Keep);
        }
    }

    /// Processes of the last start that do not end, though they were killed: the next
    /// waits for them (a process that gives back much memory takes its time), told of
    /// after `fence_ms`, for `recovery_ms` at most.
    fn check_ending(&mut self, now: Time, since: Time) {
        let stuck = |bound: u64| {
            Error::new(
                Code::JobBusy,
                Entity::Job(self.set.job.to_string()),
                format!("processes of the command did not end within {bound} ms of SIGKILL"),
                "look for processes in state D; a new run goes on from the newest version",
            )
        };
        let (fence, recovery) = (self.set.fence_ms, self.set.bounds.recovery_ms);
        if self.over(now, since, recovery) {
            let error = stuck(recovery);
            return self.give_up(now, error, None);
        }
        let told = self.ending_since.filter(|at| self.over(now, *at, fence));
        if told.is_some() {
            let error = stuck(fence);
            self.ending_since = None;
            self.warn(error);
        }
    }

    pub(super) fn over(&self, now: Time, since: Time, bound_ms: u64) -> bool {
        now.since(since) >= Time::from_ms(bound_ms)
    }

    fn lose_bound(
        &mut self,
        now: Time,
        node: NodeId,
        cause: String,
        since: Time,
        storage: Storage,
    ) {
        if !self.is_alive() {
            return;
        }
        let epoch = self.slots[&node].epoch;
        self.lose_slot(now, node, storage);
        self.found(
            now,
            Found {
                place: Site::Node(node, epoch),
                cause,
                ended: None,
                base: Some(since),
                injected: false,
                suspected: None,
            },
        );
    }

    fn recovery_overdue(&mut self, now: Time, since: Time) {
        let bound = self.set.bounds.recovery_ms;
        let late = self.slots.iter().filter(|(_, slot)| !slot.ready);
        let late: Vec<NodeId> = late.map(|(node, _)| *node).collect();
        if late.is_empty() {
            let error = Error::new(
                Code::AgentTimeout,
                Entity::Job(self.set.job.to_string()),
                format!("no decision within {bound} ms"),
                "raise --recovery-timeout or look at the agents' warnings",
            );
            let current = Incarnation(self.last_incarnation);
            return self.on_open_failed(now, current, error, current);
        }
        // One that its peers do not reach makes all late.
        let late = match self.parted_from_most(now) {
            Some(node) if late.contains(&node) => vec![node],
            _ => late,
        };
        for node in late {
            let cause = format!("not ready within {bound} ms");
            self.lose_bound(now, node, cause, since, Storage::Keep);
        }
    }

    /// The incarnation cannot be opened: try another, within bounds.
    pub(super) fn on_open_failed(
        &mut self,
        now: Time,
        incarnation: Incarnation,
        error: Error,
        known: Incarnation,
    ) {
        let current =
            matches!(self.phase, Phase::Opening { incarnation: i, .. } if i == incarnation);
        if !current {
            return;
        }
        // Numbers only grow, also those that an older copy of job.json does not know.
        let heeds = self.set.planted != Some(Planted::IgnoreUsedNumbers);
        if heeds && known >= incarnation && error.code() == Code::JobBusy {
            tracing::info!(%error, known = known.0, "number used before");
            self.last_incarnation = known.0;
            self.open_retries += 1;
            if self.open_retries <= self.set.open_tries_max {
                return self.leave_incarnation(now);
            }
        }
        let mut error = error;
        if error.code() == Code::NoValidCheckpoint {
            error = self.nothing_usable(&error);
            if self.set.anew_if_nothing && !self.fresh {
                self.warn(error);
                self.fresh = true;
                return self.leave_incarnation(now);
            }
        }
        // What all nodes share is out of reach, or full, or two nodes do not reach each other: no
        // other node would do better, and it may come back.
        let of_all = matches!(error.code(), Code::Io | Code::AgentUnreachable)
            && matches!(error.entity(), Entity::Job(_));
        let since = *self.shared_out_since.get_or_insert(now);
        let may_return = of_all && now.since(since) < Time::from_ms(self.set.shared_patience_ms);
        if !of_all {
            self.shared_out_since = None;
        }
        if !may_return || self.open_retries < self.set.open_tries_max {
            self.open_retries += 1;
        }
        let hopeless = match error.code() {
            Code::NoValidCheckpoint | Code::FormatUnknown | Code::MemoryBudget => true,
            // Not a number that was used before: somebody else runs the job, and has gone further.
            Code::JobBusy => known < incarnation,
            _ => false,
        };
        if hopeless || self.open_retries > self.set.open_tries_max {
            return self.give_up(now, error, None);
        }
        // Another node takes the slot of one that cannot keep a record (P9), unless what
        // lies there may be the only copy, for another node lost its own, or nothing is
        // known to be stable that outlives a node (P3): then the user can make room.
        let last = &self.report.checkpoints.last;
        let outlives = |level: Level| level.outlives_a_node();
        let only = self.slots.values().any(|slot| slot.replaced)
            || !last.keys().any(|name| name.parse().is_ok_and(outlives));
        if let (Code::Io, Entity::Node(node), 1.., false) =
            (error.code(), error.entity(), self.spares_left, only)
        {
            let (node, cause) = (NodeId(*node), "its storage takes no records");
            return self.lose_bound(now, node, cause.to_owned(), now, Storage::Empty);
        }
        self.warn(error);
        self.not_before =
            now + Time::from_ms(500 * u64::from(self.open_retries.min(OPEN_PAUSES_MAX)));
        self.leave_incarnation(now);
    }

    /// The error with what each node has instead.
    fn nothing_usable(&self, error: &Error) -> Error {
        let mut reason = error.reason().to_owned();
        for (node, text) in self.traces.iter().take(TRACES_SHOWN) {
            let text: String = text.chars().take(TRACE_CHARS).collect();
            reason += &format!("; {node} has {text}");
        }
        match self.traces.len() {
            more @ TRACES_SHOWN.. if more > TRACES_SHOWN => {
                reason += &format!(
                    "; and {} more",
                    outlive_base::count((more - TRACES_SHOWN) as u64, "node")
                );
            }
            _ => {}
        }
        let option = "; --on-nothing-usable fresh does so by itself";
        Error::new(
            error.code(),
            error.entity().clone(),
            reason,
            error.remedy().to_owned() + option,
        )
    }

    /// A version is stable in this incarnation: a later start that finds nothing must know.
    pub(super) fn note_history(&mut self, version: Version) {
        let incarnation = Incarnation(self.last_incarnation);
        if self.history < incarnation {
            self.history = incarnation;
            let history = Some((incarnation, version));
            self.actions.push_back(Action::RecordHistory { history });
        }
    }

    pub(super) fn on_keeper_ended(&mut self, now: Time, node: NodeId, epoch: u64, ended: Ended) {
        let over = !self.is_alive();
        let Some(slot) = self.slots.get_mut(&node).filter(|s| s.epoch == epoch) else {
            return;
        };
        if over {
            slot.state = NodeSlotState::Ended;
            return;
        }
        if matches!(
            slot.state,
            NodeSlotState::Fencing { .. } | NodeSlotState::Ended
        ) {
            return;
        }
        let (hit, wiped, suspected) = (slot.hit, slot.wiped, slot.suspected);
        let base = hit.or(slot.is_up().then_some(slot.last_heard));
        let (storage, what) = match wiped {
            true => (Storage::Empty, "its storage is gone"),
            false => (Storage::Keep, "its storage is kept"),
        };
        self.lose_slot(now, node, storage);
        let found = Found {
            place: Site::Node(node, epoch),
            cause: format!("its keeper ended ({ended}); {what}"),
            ended: None,
            base,
            injected: hit.is_some(),
            suspected,
        };
        self.found(now, found);
    }

    /// Its machine is out of reach: another one takes the slot if its storage is, too.
    pub(super) fn on_node_gone(
        &mut self,
        now: Time,
        (node, epoch): (NodeId, u64),
        cause: String,
        storage: Storage,
    ) {
        let alive = self.is_alive();
        let Some(slot) = self.slots.get_mut(&node).filter(|s| s.epoch == epoch) else {
            return;
        };
        slot.wiped |= storage == Storage::Empty;
        let since = if slot.is_up() { slot.last_heard } else { now };
        match slot.state {
            NodeSlotState::Ended | NodeSlotState::Fencing { .. } => {}
            _ if alive => {
                let storage = match slot.wiped {
                    true => Storage::Empty,
                    false => storage,
                };
                self.lose_bound(now, node, cause, since, storage);
            }
            _ => slot.state = NodeSlotState::Ended,
        }
    }

    pub(super) fn on_node_failed(&mut self, now: Time, node: NodeId, epoch: u64, error: Error) {
        if self.slots.get(&node).is_some_and(|s| s.epoch == epoch) {
            if let Some(slot) = self.slots.get_mut(&node) {
                slot.state = NodeSlotState::Ended;
            }
            self.give_up(now, error, None);
        }
    }

    /// A lost slot's processes are gone: the next holder may start.
    pub(super) fn on_fenced(&mut self, now: Time, node: NodeId, epoch: u64, complete: bool) {
        if complete && self.unfenced.remove(&(node, epoch)) {
            // Later than the bound, and in time for the next try to open.
            return;
        }
        let alive = self.is_alive();
        let spares_left = self.spares_left;
        let Some(slot) = self.slots.get_mut(&node).filter(|s| s.epoch == epoch) else {
            return;
        };
        let NodeSlotState::Fencing { storage, .. } = slot.state else {
            return;
        };
        // What was learned while it was being killed counts too.
        let storage = match slot.wiped {
            true => Storage::Empty,
            false => storage,
        };
        let no_spare = storage == Storage::Empty && spares_left == 0;
        if !alive || no_spare {
            slot.state = NodeSlotState::Ended;
        } else {
            let replaced = slot.replaced || storage == Storage::Empty;
            *slot = NodeSlot {
                replaced,
                ..NodeSlot::new(epoch + EPOCH_STEP, now)
            };
        }
        if !complete {
            self.unfenced.insert((node, epoch));
            self.warn(Error::new(
                Code::NodeSilent,
                Entity::Node(node.0),
                format!("its processes did not end within {} ms", self.set.fence_ms),
                "the agents decide by majority instead; look for processes in state D",
            ));
        }
        if !alive {
            return;
        }
        if no_spare {
            let error = Error::new(
                Code::NoSpare,
                Entity::Node(node.0),
                no_spare_left(self.set.spares),
                "start again with more --spares; committed versions are kept",
            );
            return self.give_up(now, error, None);
        }
        if storage == Storage::Empty {
            self.spares_left -= 1;
        }
        self.actions.push_back(Action::StartNode {
            node,
            epoch: epoch + EPOCH_STEP,
            storage,
        });
        let spares_left = (storage == Storage::Empty).then_some(self.spares_left);
        self.tell(Event::Replaced { node, spares_left });
    }
}

/// A lost node stays lost.
fn no_spare_left(spares: u32) -> String {
    match spares {
        0 => "lost, and the run has no spare".to_owned(),
        1 => "lost, and the only spare is used".to_owned(),
        _ => format!("lost, and all {spares} spares are used"),
    }
}

impl From<&crate::orders::Rejected> for crate::report::RejectedEntry {
    fn from(rejected: &crate::orders::Rejected) -> Self {
        crate::report::RejectedEntry {
            version: rejected.version.0,
            reason: rejected.reason.clone(),
        }
    }
}
