//! The coordinator while an incarnation opens, or after its own restart: ask
//! every node, choose, rebuild, record.
//!
//! Invariants: nothing is chosen before every node has answered; only a version
//! with a COMMIT record on the line of the newest incarnation is chosen, newest
//! first; one that any node cannot rebuild is not asked for again; ranks start
//! only after the record is durable on all nodes.

use super::items::{FORWARD_MAX, Heard, numbered};
use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waiting for the own promise and inventory.
    Waiting,
    Fetching,
    /// The driver looks whether a version can be made of what there is.
    Planning {
        source: Incarnation,
        version: Version,
    },
    Rebuilding {
        source: Incarnation,
        version: Version,
        level: Level,
    },
    /// The others record.
    Beginning,
    /// This node records, last.
    Closing,
}

#[derive(Debug, Default)]
struct Candidate {
    levels: Levels,
    by: Ballot,
    copies: Option<NodeSet>,
    /// Whose parity is there.
    parity: BTreeSet<(Level, NodeId)>,
    /// What the driver says of it, if some copies are missing.
    planned: Option<bool>,
    unusable: bool,
}

impl Candidate {
    /// True if the bytes of every node can be had, for all that is known.
    fn is_whole(&self, nodes: u32) -> bool {
        let copies = self.copies.as_ref();
        copies.is_some_and(|set| set.is_full(nodes)) || self.planned == Some(true)
    }

    /// True if nobody has said yet whether parity makes good what is missing.
    fn may_be_planned(&self) -> bool {
        self.planned.is_none() && !self.parity.is_empty()
    }
}

/// What the coordinator knows while it asks.
#[derive(Debug)]
pub(super) struct Lead {
    incarnation: Incarnation,
    replaced: NodeSet,
    fenced: bool,
    fresh: bool,
    /// The newest incarnation of which something shows that versions were committed.
    trace: Incarnation,
    /// Nodes that could not read the storage that all share.
    blind: NodeSet,
    stage: Stage,
    /// What was heard of each node's list.
    heard: Vec<Heard>,
    answered: NodeSet,
    lines: BTreeMap<Incarnation, (Incarnation, Version)>,
    candidates: BTreeMap<(Incarnation, Version), Candidate>,
    prepared: BTreeSet<log::Key>,
    chosen: Option<(Incarnation, Version)>,
    forward: Vec<MsgKind>,
    again: Backoff,
    bound: Time,
}

impl Lead {
    pub fn new(
        cx: &C,
        incarnation: Incarnation,
        replaced: NodeSet,
        fenced: bool,
        fresh: bool,
        trace: Incarnation,
    ) -> Lead {
        Lead {
            incarnation,
            replaced,
            fenced,
            fresh,
            trace,
            blind: NodeSet::new(cx.config.nodes),
            stage: Stage::Waiting,
            heard: vec![Heard::default(); cx.config.nodes as usize],
            answered: NodeSet::new(cx.config.nodes),
            lines: BTreeMap::new(),
            candidates: BTreeMap::new(),
            prepared: BTreeSet::new(),
            chosen: None,
            forward: Vec::new(),
            again: Backoff::new(cx.now, cx.config.resend),
            bound: cx.now + cx.config.recovery_timeout,
        }
    }

    pub fn rejoining(cx: &C, incarnation: Incarnation) -> Lead {
        let replaced = NodeSet::new(cx.config.nodes);
        Lead::new(cx, incarnation, replaced, true, false, Incarnation(0))
    }

    pub fn deadline(&self) -> Time {
        self.again.next.min(self.bound)
    }

    fn enter(&mut self, cx: &C, stage: Stage) {
        self.stage = stage;
        self.answered = NodeSet::new(cx.config.nodes);
        self.again = Backoff::new(cx.now, cx.config.resend);
        self.bound = cx.now + cx.config.recovery_timeout;
    }

    /// What to say again to a node that has not answered.
    fn request(&self, config: &Config, node: Peer) -> Option<MsgKind> {
        match self.stage {
            Stage::Waiting | Stage::Planning { .. } => None,
            Stage::Fetching => Some(MsgKind::Fetch {
                index: self.heard.get(node as usize).map_or(0, |it| it.next),
            }),
            Stage::Rebuilding {
                source,
                version,
                level,
            } => Some(MsgKind::Rebuild {
                source,
                version,
                level,
            }),
            Stage::Beginning if node == config.coordinator => None,
            Stage::Beginning | Stage::Closing => {
                let (source, version) = self.chosen.unwrap_or_default();
                let commits = u16::try_from(self.forward.len()).unwrap_or(0);
                Some(MsgKind::Begin {
                    source,
                    version,
                    commits,
                })
            }
        }
    }

    fn take(&mut self, cx: &C, from: Peer, item: MsgKind) {
        let nodes = cx.config.nodes;
        match item {
            MsgKind::ItemCopy {
                source,
                version,
                node,
                ..
            } => {
                let candidate = self.candidates.entry((source, version)).or_default();
                candidate
                    .copies
                    .get_or_insert_with(|| NodeSet::new(nodes))
                    .insert(node);
            }
            MsgKind::ItemPiece {
                level,
                source,
                version,
                ..
            } => {
                let candidate = self.candidates.entry((source, version)).or_default();
                candidate.parity.insert((level, NodeId(from)));
            }
            MsgKind::ItemCommit {
                level,
                source,
                version,
                by,
                ..
            } => {
                let planted = cx.config.planted == Some(Planted::ForgetForeignCommits);
                if planted && from != cx.me {
                    return;
                }
                let candidate = self.candidates.entry((source, version)).or_default();
                candidate.levels = candidate.levels.with(level);
                candidate.by = candidate.by.max(by);
            }
            MsgKind::ItemPrepared {
                level,
                source,
                version,
                ..
            } => {
                self.prepared.insert((source, version, level));
            }
            MsgKind::ItemIncarnation {
                number,
                source,
                version,
                ..
            } => {
                self.lines.insert(number, (source, version));
            }
            MsgKind::ItemTrace { number, .. } => self.trace = self.trace.max(number),
            MsgKind::ItemBlind { .. } => drop(self.blind.insert(from)),
            _ => {}
        }
    }

    /// The newest incarnation that is known of: opened, or with a committed version.
    /// Nothing says that the latter was left, though its own record may be damaged.
    fn newest_incarnation(&self) -> Incarnation {
        let committed = |it: &(&(Incarnation, Version), &Candidate)| !it.1.levels.is_empty();
        let versions = self.candidates.iter().filter(committed);
        let newest = versions.map(|((source, _), _)| *source).max();
        let opened = self.lines.keys().next_back().copied();
        newest.max(opened).unwrap_or_default()
    }

    /// A node of whose part of the newest committed version no copy is known; one that was lost
    /// before others: an opening before this one may have let go of what the others had.
    fn first_missing(&self, config: &Config) -> Option<NodeId> {
        let committed = |it: &&Candidate| !it.levels.is_empty();
        let newest = self.candidates.values().rev().find(committed)?;
        let has = |node: &u32| newest.copies.as_ref().is_some_and(|it| it.contains(*node));
        let lost = self.replaced.iter().find(|node| !has(node));
        let missing = || match &newest.copies {
            Some(copies) => copies.first_missing(config.nodes),
            None => Some(config.coordinator),
        };
        lost.or_else(missing).map(NodeId)
    }

    /// True if versions were committed since the job last began anew, by whatever trace.
    fn has_history(&self) -> bool {
        let anew = self.lines.iter().rev().find(|(_, line)| line.0.0 == 0);
        self.trace.0 != 0 && anew.is_none_or(|(number, _)| self.trace >= *number)
    }

    /// Neither the launcher's word, nor promises of a majority that includes the
    /// only node that could still commit in the last incarnation.
    fn lacks_quorum(&self, config: &Config) -> bool {
        let survivors = config.nodes - self.replaced.len().min(config.nodes);
        let first = self.lines.is_empty() && self.replaced.is_empty();
        let majority = survivors * 2 > config.nodes && !self.replaced.contains(config.coordinator);
        !self.fenced && !first && !majority && config.planted != Some(Planted::ForgetFencing)
    }

    /// The newest committed version on the line that can be rebuilt, and how many
    /// newer ones cannot.
    fn newest(&self, config: &Config) -> (Option<(Incarnation, Version, Level)>, u16) {
        let line = Line::to(self.newest_incarnation(), &self.lines);
        let mut skipped: u16 = 0;
        for (&(source, version), candidate) in self.candidates.iter().rev() {
            let Some(level) = candidate.levels.iter().next_back() else {
                continue;
            };
            let void = config.planted == Some(Planted::OfferVoid);
            if !void && !line.holds(source, version) {
                // Below the first record that is missing nobody knows: it is neither
                // offered nor taken for void.
                skipped = skipped.saturating_add(u16::from(line.is_unknown(source)));
                continue;
            }
            if candidate.is_whole(config.nodes) && !candidate.unusable {
                return (Some((source, version, level)), skipped);
            }
            skipped = skipped.saturating_add(1);
        }
        (None, skipped)
    }

    /// A node that must read the storage that all share before anything is decided. The
    /// coordinator: only there may the decisions lie. Another: if an older version were taken
    /// than one of which its part may lie there, what follows would make that one void for good.
    fn unread(&self, config: &Config) -> Option<NodeId> {
        if config.planted == Some(Planted::DecideBlind) {
            return None;
        }
        if self.blind.contains(config.coordinator) {
            return Some(NodeId(config.coordinator));
        }
        let blind = self.blind.iter().next().map(NodeId)?;
        let line = Line::to(self.newest_incarnation(), &self.lines);
        let offered = |(key, it): &(&(Incarnation, Version), &Candidate)| {
            !it.levels.is_empty() && line.holds(key.0, key.1)
        };
        let mut offered = self.candidates.iter().rev().filter(offered);
        let can_be_had =
            |it: &Candidate| !it.unusable && (it.is_whole(config.nodes) || it.may_be_planned());
        let newest = offered.find(|(_, it)| {
            can_be_had(it)
                || it
                    .levels
                    .iter()
                    .any(|level| level.store() == StoreKind::Shared)
        });
        newest.filter(|(_, it)| !can_be_had(it)).map(|_| blind)
    }

    /// A version of which copies are missing that parity may make good, if none newer can be
    /// rebuilt without.
    fn to_plan(&self, config: &Config) -> Option<(Incarnation, Version)> {
        let line = Line::to(self.newest_incarnation(), &self.lines);
        let offered = |(key, it): &(&(Incarnation, Version), &Candidate)| {
            !it.levels.is_empty() && !it.unusable && line.holds(key.0, key.1)
        };
        let first = self
            .candidates
            .iter()
            .rev()
            .filter(offered)
            .find(|(_, it)| it.is_whole(config.nodes) || it.may_be_planned());
        let (key, candidate) = first?;
        (!candidate.is_whole(config.nodes)).then_some(*key)
    }

    /// True if a newer version may have been committed without trace: some node is
    /// prepared for it, no COMMIT was found, and more failure domains were lost
    /// than the level tolerates.
    fn uncertain(&self, config: &Config) -> bool {
        let lost = domains(config, &self.replaced);
        let committed = |key: &log::Key| {
            self.candidates
                .get(&(key.0, key.1))
                .is_some_and(|candidate| candidate.levels.contains(key.2))
        };
        let last = self.lines.keys().next_back().copied().unwrap_or_default();
        let line = Line::to(last, &self.lines);
        let suspicious = |key: &log::Key| {
            Some((key.0, key.1)) > self.chosen.filter(|chosen| chosen.0.0 != 0)
                && line.holds(key.0, key.1)
                && !committed(key)
                && lost >= domains_needed(config, key.2)
        };
        self.prepared.iter().any(suspicious) || self.replaced.is_full(config.nodes)
    }

    fn decisions_to_forward(&self) -> Vec<MsgKind> {
        let Some(chosen) = self.chosen else {
            return Vec::new();
        };
        let line = Line::to(chosen.0, &self.lines);
        let mut forward = Vec::new();
        for (&(source, version), candidate) in self.candidates.range(..=chosen).rev() {
            if !line.holds(source, version) {
                continue;
            }
            for level in candidate.levels.iter() {
                let by = Ballot {
                    incarnation: self.incarnation,
                    term: 0,
                };
                forward.push(MsgKind::ItemCommit {
                    index: 0,
                    level,
                    source,
                    version,
                    by,
                });
            }
        }
        forward.truncate(FORWARD_MAX);
        forward
    }
}

impl Commit {
    fn leading(&mut self) -> Option<&mut Lead> {
        match &mut self.mode {
            Mode::Opening(opening) => opening.lead.as_deref_mut(),
            Mode::Rejoining(lead) => Some(lead),
            _ => None,
        }
    }

    /// Enters a stage and asks every node.
    fn enter(&mut self, cx: &C, stage: Stage) {
        let Some(lead) = self.leading() else { return };
        lead.enter(cx, stage);
        self.ask(cx);
    }

    fn ask(&mut self, cx: &C) {
        for node in 0..cx.config.nodes {
            let Some(lead) = self.leading() else { return };
            if !lead.answered.contains(node)
                && let Some(kind) = lead.request(cx.config, node)
            {
                self.say(cx, node, kind);
            }
        }
    }

    pub(super) fn lead_begin(&mut self, cx: &C) {
        self.enter(cx, Stage::Fetching);
    }

    pub(super) fn rejoin_promised(&mut self, cx: &C, ok: bool) {
        // What could not be recorded is tried again with the next time-out.
        if ok {
            self.enter(cx, Stage::Fetching);
        }
    }

    pub(super) fn recovery_message(&mut self, cx: &C, from: Peer, kind: MsgKind) {
        match kind {
            MsgKind::ItemCopy { index, .. }
            | MsgKind::ItemPiece { index, .. }
            | MsgKind::ItemCommit { index, .. }
            | MsgKind::ItemPrepared { index, .. }
            | MsgKind::ItemIncarnation { index, .. }
            | MsgKind::ItemTrace { index, .. }
            | MsgKind::ItemBlind { index } => self.on_item(cx, from, index, kind),
            MsgKind::ItemEnd { index, digest } => self.on_end(cx, from, (index, digest)),
            MsgKind::Rebuilt {
                source,
                version,
                outcome,
            } => self.on_rebuilt(cx, from, (source, version), outcome),
            MsgKind::Recall { index } => {
                if let Some(lead) = self.leading()
                    && let Some(&item) = lead.forward.get(usize::from(index))
                {
                    self.say(cx, from, numbered(item, index));
                }
            }
            MsgKind::Begun => self.on_begun(cx, from),
            _ => {}
        }
    }

    fn on_item(&mut self, cx: &C, from: Peer, index: u16, item: MsgKind) {
        let Some(lead) = self.leading() else { return };
        let Some(heard) = lead.heard.get_mut(from as usize) else {
            return;
        };
        if lead.stage != Stage::Fetching || heard.next != index {
            return;
        }
        heard.take(&item);
        lead.take(cx, from, item);
        // Progress: a lost item is asked for soon, and the bound starts anew.
        lead.again = Backoff::new(cx.now, cx.config.resend);
        lead.bound = cx.now + cx.config.recovery_timeout;
        if let (Mode::Rejoining(_), MsgKind::ItemCommit { version, level, .. }) = (&self.mode, item)
        {
            self.lead_adopt(cx, from, version, level);
        }
        self.say(cx, from, MsgKind::Fetch { index: index + 1 });
    }

    /// Its agent may have been started anew meanwhile, with another list: what was heard is then the
    /// beginning of one and the end of the other, and what stands in neither would count as lost.
    /// All of it is asked for again. What the first list said still counts: what is gone cannot be
    /// rebuilt.
    fn on_end(&mut self, cx: &C, from: Peer, (index, digest): (u16, u64)) {
        let Some(lead) = self.leading() else { return };
        let Some(heard) = lead.heard.get_mut(from as usize) else {
            return;
        };
        if lead.stage != Stage::Fetching || heard.next < index {
            return;
        }
        if (heard.next, heard.digest()) != (index, digest) {
            *heard = Heard::default();
            lead.answered.remove(from);
            return self.say(cx, from, MsgKind::Fetch { index: 0 });
        }
        lead.answered.insert(from);
        if !lead.answered.is_full(cx.config.nodes) {
            return;
        }
        if matches!(self.mode, Mode::Rejoining(_)) {
            return self.rejoined(cx);
        }
        if self
            .leading()
            .is_some_and(|lead| lead.lacks_quorum(cx.config))
        {
            return self.open_failed(Why::NoQuorum, None);
        }
        self.choose(cx);
    }

    fn choose(&mut self, cx: &C) {
        let Some(lead) = self.leading() else { return };
        if lead.fresh {
            return self.record(cx, (Incarnation(0), Version(0)));
        }
        if let Some(blind) = lead.unread(cx.config) {
            return self.open_failed(Why::Unreadable, Some(blind));
        }
        if let Some((source, version)) = lead.to_plan(cx.config) {
            lead.enter(cx, Stage::Planning { source, version });
            return self.out.event(Event::Plan { source, version });
        }
        let (newest, skipped) = lead.newest(cx.config);
        let missing = lead.first_missing(cx.config);
        let has_history = lead.has_history() && cx.config.planted != Some(Planted::ForgetHistory);
        self.found.0 = skipped;
        match newest {
            Some((source, version, level)) => {
                self.enter(
                    cx,
                    Stage::Rebuilding {
                        source,
                        version,
                        level,
                    },
                );
            }
            None if skipped > 0 => self.open_failed(Why::NothingUsable, missing),
            None if has_history => self.open_failed(Why::NoRecord, None),
            None => self.record(cx, (Incarnation(0), Version(0))),
        }
    }

    /// What is known of a version while an incarnation opens; nothing else than that counts.
    pub fn pieces(&self, source: Incarnation, version: Version) -> Pieces {
        let lead = match &self.mode {
            Mode::Opening(opening) => opening.lead.as_deref(),
            _ => None,
        };
        let candidate = lead.and_then(|lead| lead.candidates.get(&(source, version)));
        let whole = candidate.and_then(|it| it.copies.as_ref());
        Pieces {
            whole: whole.map_or_else(BTreeSet::new, |set| set.iter().map(NodeId).collect()),
            parity: candidate.map_or_else(BTreeSet::new, |it| it.parity.clone()),
        }
    }

    /// The driver's word of a version of which copies are missing.
    pub(super) fn planned(&mut self, cx: &C, at: (Incarnation, Version), ok: bool) {
        let Some(lead) = self.leading() else { return };
        let (source, version) = at;
        if lead.stage != (Stage::Planning { source, version }) {
            return;
        }
        if let Some(candidate) = lead.candidates.get_mut(&at) {
            candidate.planned = Some(ok);
        }
        self.choose(cx);
    }

    fn on_rebuilt(
        &mut self,
        cx: &C,
        from: Peer,
        (source, version): (Incarnation, Version),
        outcome: Rebuilding,
    ) {
        let Some(lead) = self.leading() else { return };
        match lead.stage {
            Stage::Rebuilding {
                source: s,
                version: v,
                ..
            } if (s, v) == (source, version) => {}
            _ => return,
        }
        // Whoever is lost takes no part: the next opening says so. The others may reach each other
        // again, and an older version would be a loss (P3).
        if outcome == Rebuilding::OutOfReach {
            return self.open_failed(Why::OutOfReach, Some(NodeId(from)));
        }
        if outcome != Rebuilding::Done {
            if outcome == Rebuilding::Unreadable {
                lead.blind.insert(from);
            }
            if let Some(candidate) = lead.candidates.get_mut(&(source, version)) {
                candidate.unusable = true;
            }
            return self.choose(cx);
        }
        lead.answered.insert(from);
        if lead.answered.is_full(cx.config.nodes) {
            self.record(cx, (source, version));
        }
    }

    fn record(&mut self, cx: &C, chosen: (Incarnation, Version)) {
        let Some(lead) = self.leading() else { return };
        lead.chosen = Some(chosen);
        lead.forward = if chosen.0.0 == 0 {
            Vec::new()
        } else {
            lead.decisions_to_forward()
        };
        let uncertain = lead.uncertain(cx.config);
        self.found.1 = uncertain;
        let alone = cx.config.nodes == 1;
        self.enter(
            cx,
            if alone {
                Stage::Closing
            } else {
                Stage::Beginning
            },
        );
    }

    fn on_begun(&mut self, cx: &C, from: Peer) {
        if self.running() {
            return self.say(cx, from, MsgKind::Started);
        }
        let Some(lead) = self.leading() else { return };
        if !matches!(lead.stage, Stage::Beginning | Stage::Closing) {
            return;
        }
        lead.answered.insert(from);
        let others = lead.answered.len() - u32::from(lead.answered.contains(cx.config.coordinator));
        if lead.answered.is_full(cx.config.nodes) {
            self.say_all(cx, MsgKind::Started);
        } else if lead.stage == Stage::Beginning && others + 1 == cx.config.nodes {
            let answered = lead.answered.clone();
            lead.enter(cx, Stage::Closing);
            lead.answered = answered;
            self.ask(cx);
        }
    }

    /// Every node has said its decisions in the new term.
    fn rejoined(&mut self, cx: &C) {
        let incarnation = self.ballot.incarnation;
        let Some(lead) = self.leading() else { return };
        let found: Vec<(Version, Level)> = lead
            .candidates
            .iter()
            .flat_map(|(key, candidate)| candidate.levels.iter().map(|level| (key.1, level)))
            .collect();
        self.mode = Mode::Running;
        self.items = None;
        for (version, level) in found {
            self.say_all(cx, MsgKind::Commit { version, level });
        }
        self.lead_resumed(cx);
        self.out.event(Event::Rejoined { incarnation });
    }

    pub(super) fn lead_opening_timeout(&mut self, cx: &C) {
        let (now, interval, nodes) = (cx.now, cx.config.resend, cx.config.nodes);
        let Some(lead) = self.leading() else { return };
        if now >= lead.bound {
            let culprit = lead.answered.first_missing(nodes).map(NodeId);
            return self.open_failed(Why::Timeout, culprit);
        }
        if lead.again.due(now, interval) {
            self.ask(cx);
        }
    }

    /// A coordinator that was started anew asks until it is answered: the job runs, and who
    /// supervises it decides whether a silent node is lost.
    pub(super) fn rejoin_timeout(&mut self, cx: &C) {
        let (now, interval, nodes) = (cx.now, cx.config.resend, cx.config.nodes);
        let incarnation = self.ballot.incarnation;
        let Some(lead) = self.leading() else { return };
        let late = now >= lead.bound;
        let culprit = lead.answered.first_missing(nodes).map(NodeId);
        if late {
            lead.bound = now + cx.config.recovery_timeout;
        }
        let (again, waiting) = (lead.again.due(now, interval), lead.stage == Stage::Waiting);
        if late {
            self.out.event(Event::RejoinLate {
                incarnation,
                culprit,
            });
        }
        match (again, waiting) {
            (true, true) => self.promise_again(Then::Rejoin),
            (true, false) => self.ask(cx),
            _ => {}
        }
    }
}
