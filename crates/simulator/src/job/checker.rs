//! The judge of a history. It is told what happened, by the harness that carries
//! it out: bytes captured, bytes put somewhere, records that became durable,
//! failures, what was declared and what was restored. It shares no code and no
//! state with the protocol.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Level, Levels, Survives, Time};
use outlive_control::slots::Offset;

/// (incarnation, version) of a checkpoint.
pub type Key = (u32, u64);

/// So long, at most, a new agent asks the others where nothing goes wrong but that they end too.
const RETURNS: Time = Time::from_secs(1);

/// One copy: where it lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CopyAt {
    /// The kind of place.
    pub level: Level,
    /// The checkpoint.
    pub key: Key,
    /// Whose ranks' bytes.
    pub owner: u32,
}

#[derive(Debug)]
struct Copy {
    words: Vec<u64>,
    /// Lost or damaged by a fault of the history, not by the agent.
    failed: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Checker {
    nodes: u32,
    levels: Levels,
    /// The failure domain of each node.
    domains: Vec<u32>,
    /// What was found wrong; empty is good.
    pub violations: Vec<String>,
    /// Openings that went back behind what was stable.
    pub behind: u64,
    captured: BTreeMap<(Key, u32), (Time, Vec<u64>)>,
    copies: BTreeMap<CopyAt, Copy>,
    /// When agents ended.
    restarts: Vec<Time>,
    /// All that anybody ever called aborted.
    given_up: BTreeSet<(Key, Level)>,
    /// What nodes have begun to write.
    writing: BTreeSet<(Key, Level)>,
    prepared: BTreeMap<(Key, Level), BTreeSet<u32>>,
    committed: BTreeMap<(Key, Level), BTreeSet<u32>>,
    /// Who said so; none: a rank was told.
    aborted: BTreeMap<(Key, Level), Option<u32>>,
    stable: BTreeMap<(Key, Level), Time>,
    /// Versions of which a node has removed its records, for newer ones had replaced them.
    forgotten: BTreeSet<Key>,
    /// What the launcher was told of.
    told: BTreeSet<Key>,
    /// Incarnations that the user asked to begin anew, opened or not.
    anew: BTreeSet<u32>,
    failures: Vec<(Time, u32)>,
    /// Until when the memory server was out of reach; what it kept before it may be gone.
    server_failures: Vec<Time>,
    opened: BTreeMap<u32, Key>,
    /// What each incarnation restored that a node has recorded, opened or not.
    begun: BTreeMap<u32, Key>,
}

/// The number of domains that may fail at a level: the published table of
/// docs/guarantees.md, written down again.
fn tolerance(level: Level, nodes: u32) -> usize {
    match level {
        Level::MEMORY | Level::DISK => 0,
        Level::SHARED => nodes as usize,
        // The partner and XOR: one. Reed-Solomon: as many as its name says.
        _ => level
            .name()
            .rsplit_once('+')
            .map_or(1, |(_, m)| m.parse().expect("a number")),
    }
}

/// What a level survives, by the same table.
fn survives(level: Level) -> Survives {
    match level {
        Level::MEMORY => Survives::Process,
        Level::DISK => Survives::NodeCrash,
        Level::SHARED => Survives::AllNodes,
        _ => Survives::Domain,
    }
}

/// The levels by what the table says that they survive, the least first.
fn strength(level: Level) -> usize {
    match level {
        Level::MEMORY => 0,
        Level::DISK => 1,
        Level::SHARED => usize::MAX,
        _ => 1 + tolerance(level, u32::MAX),
    }
}

impl Checker {
    /// A judge for a job of so many nodes and levels, and such domains.
    pub fn new(options: &super::Options) -> Checker {
        Checker {
            nodes: options.nodes,
            levels: options.levels,
            domains: match options.domains.is_empty() {
                true => (0..options.nodes).collect(),
                false => options.domains.clone(),
            },
            violations: Vec::new(),
            behind: 0,
            captured: BTreeMap::new(),
            copies: BTreeMap::new(),
            restarts: Vec::new(),
            given_up: BTreeSet::new(),
            writing: BTreeSet::new(),
            prepared: BTreeMap::new(),
            committed: BTreeMap::new(),
            aborted: BTreeMap::new(),
            stable: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            told: BTreeSet::new(),
            anew: BTreeSet::new(),
            failures: Vec::new(),
            server_failures: Vec::new(),
            opened: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }

    fn wrong(&mut self, now: Time, text: String) {
        self.violations
            .push(format!("{:.3} ms: {text}", now.as_ms()));
    }

    /// A rank begins with another version than its incarnation restored, or with nothing (P2).
    pub fn starts_apart(&mut self, now: Time, rank: u32, incarnation: u32, from: Key) {
        self.wrong(
            now,
            format!(
                "P2: rank {rank} begins with {from:?} in {incarnation}, which restored another"
            ),
        );
    }

    /// A node says of the coordinator's clock what is further from the truth than it says.
    pub fn lies_of_clock(&mut self, now: Time, node: u32, said: Offset) {
        self.wrong(now, format!("node {node} is wrong of the clock: {said:?}"));
    }

    /// All ranks of a node captured these bytes.
    pub fn captures(&mut self, now: Time, key: Key, node: u32, words: &[u64]) {
        self.captured.insert((key, node), (now, words.to_vec()));
    }

    /// Bytes reached a place, as the medium holds them.
    pub fn stores(&mut self, place: CopyAt, words: &[u64]) {
        let captured = self.captured.get(&(place.key, place.owner));
        let whole = captured.is_some_and(|(_, captured)| captured == words);
        // A copy that a fault took stays so until a whole one is there again.
        let before = self.copies.get(&place).is_some_and(|copy| copy.failed);
        let words = words.to_vec();
        let failed = before && !whole;
        self.copies.insert(place, Copy { words, failed });
    }

    /// A fault of the history took or damaged a copy.
    pub fn copy_fails(&mut self, place: CopyAt) {
        if let Some(copy) = self.copies.get_mut(&place) {
            copy.failed = true;
        }
    }

    /// An agent removed a copy (P3).
    pub fn removes(&mut self, now: Time, place: CopyAt) {
        if self.copies.get(&place).is_some_and(|copy| !copy.failed) {
            self.copies.remove(&place);
        }
        let committed_here = self.committed.contains_key(&(place.key, place.level));
        let newer = |&(key, level): &(Key, Level)| {
            key > place.key && strength(level) >= strength(place.level) && self.on_line(key)
        };
        // Also if whoever was to say so has ended meanwhile: others may know it.
        let recorded = self.committed.iter();
        let recorded = recorded
            .filter(|((_, level), holders)| self.domains_of(*holders) >= self.needed(*level));
        let newer = self.stable.keys().any(newer) || recorded.map(|(at, _)| at).any(newer);
        let void = self.is_void_by_record(place.key);
        if committed_here && self.on_line(place.key) && !newer && !void {
            self.wrong(
                now,
                format!("P3: {place:?} removed before a newer one is stable"),
            );
        }
    }

    /// A failure domain lost or damaged what it stored.
    pub fn fails(&mut self, now: Time, node: u32) {
        self.failures.push((now, node));
    }

    /// The memory server is lost, or out of reach until then.
    pub fn server_fails(&mut self, until: Time) {
        self.server_failures.push(until);
    }

    /// The number of domains that may fail at a level without losing this version, by what has
    /// become of the server since it was captured.
    fn tolerated(&self, key: Key, level: Level) -> usize {
        let nodes = 0..self.nodes;
        let taken = nodes.filter_map(|node| self.captured.get(&(key, node)).map(|it| it.0));
        let first = taken.min().unwrap_or(Time::ZERO);
        let served = level.name().starts_with("memory-server:");
        match served && self.server_failures.iter().any(|until| *until >= first) {
            true => tolerance(Level::DISK, self.nodes),
            false => tolerance(level, self.nodes),
        }
    }

    /// A PREPARED record became durable.
    pub fn prepares(&mut self, node: u32, key: Key, level: Level) {
        self.prepared.entry((key, level)).or_default().insert(node);
    }

    /// A COMMIT record became durable. The first one of a level must find all
    /// nodes prepared and all copies in place (P1).
    pub fn commits(&mut self, now: Time, node: u32, key: Key, level: Level) {
        let holders = self.committed.entry((key, level)).or_default();
        let first = holders.is_empty();
        holders.insert(node);
        if !first {
            return;
        }
        // What a newer stable version has replaced may be gone when it is decided (P3).
        let newer = |&(other, at): &(Key, Level)| other > key && strength(at) >= strength(level);
        let replaced = self.stable.keys().any(newer);
        for owner in 0..self.nodes {
            let prepared = self
                .prepared
                .get(&(key, level))
                .is_some_and(|set| set.contains(&owner));
            if !prepared {
                self.wrong(
                    now,
                    format!("P1: {key:?} {level} committed, node {owner} not prepared"),
                );
            }
            let captured = self.captured.get(&(key, owner)).map(|(_, words)| words);
            let good = match (self.copies.get(&CopyAt { level, key, owner }), captured) {
                (Some(copy), Some(words)) => copy.failed || copy.words == *words,
                (None, Some(_)) => replaced,
                _ => false,
            };
            if !good {
                self.wrong(
                    now,
                    format!("P1: {key:?} {level} committed, no good copy of {owner}"),
                );
            }
        }
        if self.aborted.contains_key(&(key, level)) && self.failed_since(key) == 0 {
            self.wrong(
                now,
                format!("split decision: {key:?} {level} aborted, then committed"),
            );
        }
    }

    /// The record of a decision names the parts of these nodes, and of each whether its digest is
    /// that of what was captured: what names none, or another, cannot be restored by it (P3).
    pub fn names(&mut self, now: Time, key: Key, level: Level, nodes: &BTreeMap<u32, bool>) {
        if let Some(node) = (0..self.nodes).find(|node| nodes.get(node) != Some(&true)) {
            let what = if nodes.contains_key(&node) {
                "other bytes"
            } else {
                "no part"
            };
            self.wrong(
                now,
                format!("P3: the record of {key:?} {level} names {what} of node {node}"),
            );
        }
    }

    /// A node writes a version at a level.
    pub fn writes(&mut self, key: Key, level: Level) {
        self.writing.insert((key, level));
    }

    /// The job has ended well, long after all faults: the last version that all have captured is
    /// decided, so that the next run begins where this one ended.
    ///
    /// If an agent has ended meanwhile nobody need have said what became of it; nor if one had
    /// shortly before: until it has heard of all the others, the next coordinator takes up nothing
    /// that is not prepared.
    pub fn ends(&mut self, now: Time, number: u32, since: Time) {
        let all = |key: &Key| (0..self.nodes).all(|node| self.captured.contains_key(&(*key, node)));
        let of = self.captured.keys().map(|(key, _)| *key);
        let Some(last) = of.filter(|key| key.0 == number).filter(all).max() else {
            return;
        };
        let taken = self.captured.range((last, 0)..=(last, u32::MAX));
        let taken = taken.map(|(_, (at, _))| *at).min().unwrap_or(now);
        let from = taken.since(RETURNS);
        if self.restarts.iter().any(|at| (from..since).contains(at)) {
            return;
        }
        let written = self.writing.iter().filter(|(key, _)| *key == last);
        let open =
            written.filter(|what| !self.stable.contains_key(what) && !self.given_up.contains(what));
        let open: Vec<Level> = open.map(|(_, level)| *level).collect();
        if !open.is_empty() {
            self.wrong(
                now,
                format!("P5: ended while {last:?} was undecided at {open:?}"),
            );
        }
    }

    /// True if, at this time already, so many newer versions were stable at each level.
    pub fn is_replaced_since(&self, key: Key, keep: usize, at: Time) -> bool {
        self.levels.iter().all(|level| {
            let newer = self
                .stable
                .iter()
                .filter(|((other, of), since)| *of == level && *other > key && **since <= at);
            newer.count() >= keep
        })
    }

    /// A decision that nobody was told of is gone again.
    pub fn takes_back(&mut self, node: u32, key: Key, level: Level) {
        if let Some(holders) = self.committed.get_mut(&(key, level)) {
            holders.remove(&node);
            if holders.is_empty() {
                self.committed.remove(&(key, level));
            }
        }
    }

    /// Distinct failed domains since the capture of a version began.
    fn failed_since(&self, key: Key) -> usize {
        let nodes = 0..self.nodes;
        let first = nodes
            .filter_map(|node| self.captured.get(&(key, node)).map(|c| c.0))
            .min();
        let Some(first) = first else {
            return usize::MAX;
        };
        let failed = self.failures.iter().filter(|(at, _)| *at >= first);
        self.domains_of(failed.map(|(_, node)| node))
    }

    /// How many failure domains these nodes are.
    fn domains_of<'n>(&self, nodes: impl IntoIterator<Item = &'n u32>) -> usize {
        let domains = nodes.into_iter().map(|node| self.domains[*node as usize]);
        domains.collect::<BTreeSet<u32>>().len()
    }

    /// True if the newest open incarnation descends from this version.
    fn on_line(&self, key: Key) -> bool {
        let newest = self.opened.last_key_value();
        newest.is_none_or(|(&newest, _)| self.on_line_to(newest, key))
    }

    /// True if what began newer than any that opened has made this version void: the opening
    /// was recorded at some nodes and came to nothing, and those keep to it.
    fn is_void_by_record(&self, key: Key) -> bool {
        let newest = self.opened.last_key_value();
        let first = newest.map_or(0, |(&newest, _)| newest) + 1;
        let mut begun = self.begun.range(first..);
        begun.any(|(&number, _)| number > key.0 && !self.on_line_to(number, key))
    }

    fn on_line_to(&self, number: u32, key: Key) -> bool {
        let (mut at, mut limit) = (number, u64::MAX);
        loop {
            if at == key.0 {
                return key.1 <= limit;
            }
            match self.opened.get(&at).or_else(|| self.begun.get(&at)) {
                Some(&(source, version)) if source < at && source != 0 => {
                    (at, limit) = (source, version);
                }
                _ => return false,
            }
        }
    }

    /// In so many failure domains the COMMIT of a stable level must lie.
    fn needed(&self, level: Level) -> usize {
        match level {
            Level::SHARED => 1,
            _ => (tolerance(level, self.nodes) + 1)
                .min(self.domains_of(&(0..self.nodes).collect::<Vec<_>>())),
        }
    }

    /// Somebody declared a level stable. It binds who comes later only if somebody heard it; what it
    /// rests on must be there either way.
    pub fn declares_stable(&mut self, now: Time, key: Key, level: Level, is_heard: bool) {
        let holders = self.committed.get(&(key, level));
        let holders = holders.map_or(0, |holders| self.domains_of(holders));
        let needed = self.needed(level);
        if holders < needed {
            self.wrong(
                now,
                format!("{key:?} {level} stable with {holders} of {needed} records"),
            );
        }
        if self.aborted.contains_key(&(key, level)) && self.failed_since(key) == 0 {
            self.wrong(
                now,
                format!("split decision: {key:?} {level} aborted, then stable"),
            );
        }
        if !is_heard {
            return;
        }
        let newest = self
            .opened
            .last_key_value()
            .map_or(0, |(&number, _)| number);
        // A late echo of what was declared before it became void is no new word.
        let new = !self.stable.contains_key(&(key, level));
        if new && key.0 < newest && !self.on_line(key) {
            self.wrong(now, format!("P3: {key:?} {level} stable after it was void"));
        }
        self.stable.entry((key, level)).or_insert(now);
    }

    /// The user asks this incarnation to begin anew. One that is opened by some nodes only
    /// holds for the next: it made void what was before.
    pub fn asks_anew(&mut self, number: u32) {
        self.anew.insert(number);
    }

    /// The launcher has heard that a version is stable.
    pub fn tells_launcher(&mut self, key: Key) {
        // The word names no incarnation: one that comes late is not about the present one.
        if self.stable.keys().any(|(stable, _)| *stable == key) {
            self.told.insert(key);
        }
    }

    /// A node has removed its records of a version.
    pub fn forgets(&mut self, key: Key) {
        self.forgotten.insert(key);
    }

    /// True if nobody need remember what became of it: a newer version is stable at least at
    /// this level, and a node's records are gone for that.
    fn is_history(&self, key: Key, level: Level) -> bool {
        let newer = |&(other, at): &(Key, Level)| {
            other > key
                && self.on_line(other)
                && strength(at) >= strength(level)
                && self.on_line(key)
        };
        self.forgotten.contains(&key) && self.stable.keys().any(newer)
    }

    /// An agent (by its number) or a rank's block declared a version, or one level, aborted.
    pub fn declares_aborted(&mut self, now: Time, key: Key, level: Option<Level>, by: Option<u32>) {
        for one in self.levels.iter() {
            if level.is_some_and(|level| level != one) {
                continue;
            }
            self.given_up.insert((key, one));
            let said = self.aborted.entry((key, one)).or_insert(by);
            *said = said.and(by);
            let failed = self.failed_since(key);
            let committed = self.committed.contains_key(&(key, one)) && failed == 0;
            let stable =
                self.stable.contains_key(&(key, one)) && failed <= self.tolerated(key, one);
            if (committed || stable) && !self.is_history(key, one) {
                self.wrong(
                    now,
                    format!("split decision: {key:?} {one} committed, then aborted"),
                );
            }
        }
    }

    /// A rank hears that a version, or a newer one of its start, survives this.
    pub fn hears_safe(&mut self, now: Time, key: Key, what: Survives) {
        let newer = |other: Key| other.0 == key.0 && other.1 >= key.1;
        let enough = |level: Level| survives(level) >= what;
        let known = self.committed.iter();
        let mut known = known.filter(|((other, level), _)| newer(*other) && enough(*level));
        if !known.any(|((_, level), holders)| self.domains_of(holders) >= self.needed(*level)) {
            self.wrong(
                now,
                format!("P1: a rank heard that {key:?} survives {what:?}"),
            );
        }
    }

    /// A rank hears that nothing will come of a version that survives this; `by` decides that.
    pub fn hears_ended(&mut self, now: Time, key: Key, what: Survives, by: u32) {
        let levels = self.levels.iter();
        for level in levels.filter(|level| survives(*level) >= what) {
            self.declares_aborted(now, key, Some(level), Some(by));
        }
    }

    /// An agent has ended, and with it what it had given up: that is not recorded. The next may
    /// ask all again, and decide by what they have then; that this is all is judged there (P1).
    pub fn agent_ends(&mut self, now: Time, who: u32) {
        self.restarts.push(now);
        self.aborted.retain(|_, by| *by != Some(who));
    }

    /// The newest version on the line that must survive what has failed.
    fn must_have(&self) -> Option<(Key, Level)> {
        self.stable
            .keys()
            .copied()
            .filter(|&(key, level)| {
                self.on_line(key) && self.failed_since(key) <= self.tolerated(key, level)
            })
            .max()
    }

    /// A node has recorded an incarnation, and what it restored.
    pub fn begins(&mut self, number: u32, restored: Key) {
        self.begun.entry(number).or_insert(restored);
    }

    /// An incarnation opened (P1, P3, uniqueness). Source 0: from the beginning.
    pub fn opens(&mut self, now: Time, number: u32, restored: Key) {
        if let Some(&before) = self.opened.get(&number) {
            if before != restored {
                self.wrong(
                    now,
                    format!("incarnation {number} opened twice, differently"),
                );
            }
            return;
        }
        if self
            .opened
            .last_key_value()
            .is_some_and(|(&newest, _)| newest > number)
        {
            self.wrong(
                now,
                format!("incarnation {number} opened after a newer one"),
            );
        }
        let all = (restored, Level::FIRST)..=(restored, Level::LAST);
        let committed = self.committed.range(all).next().is_some();
        if restored.0 != 0 && !committed {
            self.wrong(now, format!("P1: {restored:?} offered, never committed"));
        }
        if restored.0 != 0 && !self.on_line(restored) {
            self.wrong(now, format!("P1: {restored:?} offered, but void"));
        }
        // Nothing says that this incarnation is newer than the version: a fault may open an old one.
        let anew = self.anew.clone();
        let asked = |key: Key| anew.iter().any(|&anew| key.0 < anew && anew <= number);
        // To begin anew was asked for when nothing could be restored, which was judged then.
        if let Some((key, level)) = self.must_have()
            && restored < key
            && !(restored.0 == 0 && asked(key))
        {
            self.wrong(
                now,
                format!("P3: {restored:?} offered, {key:?} was stable at {level}"),
            );
        }
        let begun = self.opened.iter().rev().find(|(_, from)| from.0 == 0);
        let begun = begun.map_or(0, |(&number, _)| number);
        // What nobody who lives has heard of, nobody can know.
        let newest = self.told.iter().next_back().copied();
        if let Some(key) = newest.filter(|key| key.0 >= begun)
            && restored.0 == 0
            && !asked(key)
        {
            self.wrong(
                now,
                format!("P2: begun anew in silence, {key:?} was stable"),
            );
        }
        let newest = self.stable.keys().map(|(key, _)| *key);
        let newest = newest.filter(|key| self.on_line(*key)).max();
        self.behind += u64::from(newest > Some(restored));
        self.opened.insert(number, restored);
    }

    /// A node is given up that lives and is reached, and whose storage is whole (P9).
    pub fn gives_up_whole(&mut self, now: Time, node: u32) {
        self.wrong(
            now,
            format!("P9: node {node} is given up, and nothing is wrong with it"),
        );
    }

    /// The job was told that nothing can be restored.
    pub fn gives_up(&mut self, now: Time) {
        if let Some((key, level)) = self.must_have() {
            self.wrong(
                now,
                format!("P3: nothing offered, {key:?} was stable at {level}"),
            );
        }
    }

    /// A node's ranks begin with these bytes (P2).
    pub fn restores(&mut self, now: Time, node: u32, key: Key, words: &[u64]) {
        let same = self
            .captured
            .get(&(key, node))
            .is_some_and(|(_, captured)| captured == words);
        if !same {
            self.wrong(
                now,
                format!("P2: node {node} restored other bytes than captured {key:?}"),
            );
        }
    }

    /// Levels declared stable after `since` in incarnation `number`.
    pub fn stable_after(&self, since: Time, number: u32, level: Level) -> bool {
        self.stable
            .iter()
            .any(|(&(key, l), &at)| key.0 == number && l == level && at >= since)
    }

    /// What was declared stable.
    pub fn all_stable(&self) -> BTreeSet<(Key, Level)> {
        self.stable.keys().copied().collect()
    }

    /// What one of these nodes has recorded as committed.
    pub fn committed_at(&self, node: impl Fn(u32) -> bool) -> BTreeSet<(Key, Level)> {
        let known = self.committed.iter();
        let known = known.filter(|(_, nodes)| nodes.iter().any(|it| node(*it)));
        known.map(|(what, _)| *what).collect()
    }

    /// What the newest incarnation restored.
    pub fn newest_opening(&self) -> Option<Key> {
        self.opened.last_key_value().map(|(_, from)| *from)
    }

    /// How many (version, level) pairs were declared stable.
    pub fn stable_count(&self) -> usize {
        self.stable.len()
    }

    /// How many incarnations opened.
    pub fn opened_count(&self) -> usize {
        self.opened.len()
    }
}
