//! The long contents of commit records: who holds which container. The commit
//! machine decides by short messages; this is what they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use outlive_base::{Code, Incarnation, Level, NodeId, Version};
use outlive_ledger::scheme::Group;
use outlive_ledger::{Part, Record};
use outlive_protocols::commit::{Ballot, MsgKind, Record as Short};

use crate::node::Planted;

type Key = (Incarnation, Version, Level);

/// Decisions whose bytes are kept for the next node to which they go.
const ENCODED_MAX: usize = 16;

/// What is known of versions and where their containers lie.
#[derive(Debug, Default)]
pub struct Contents {
    /// What was said of single parts since the decision, or before there was one.
    parts: BTreeMap<Key, BTreeMap<NodeId, Part>>,
    commits: BTreeMap<Key, Decided>,
    /// Decisions as they travel, by ballot: each goes to all nodes and has a part of each, so to
    /// encode it for each of them would cost the square of their number.
    encoded: BTreeMap<(Key, u64), Arc<[u8]>>,
    members: Vec<NodeId>,
    /// The groups of the job's levels, over its members.
    groups: BTreeMap<Level, Vec<Vec<NodeId>>>,
    ranks: u32,
    /// Planted: some parts are enough.
    incomplete: bool,
    /// Planted: what is in memory is not held against what is known of it.
    trusts_memory: bool,
}

/// What is known of a decision.
#[derive(Debug, Default)]
struct Decided {
    ballot: u64,
    ranks: u32,
    /// Ascending by node.
    parts: Arc<[Part]>,
    groups: Vec<Vec<NodeId>>,
}

impl Decided {
    fn part(&self, node: NodeId) -> Option<&Part> {
        let at = self.parts.binary_search_by_key(&node, |part| part.node);
        self.parts.get(at.ok()?)
    }

    /// One that was written while its parts were not all known takes nothing away from what is
    /// known of the others.
    fn take(&mut self, parts: &Arc<[Part]>) {
        let ascending = parts.is_sorted_by(|one, other| one.node < other.node);
        let has = |known: &Part| {
            let at = parts.binary_search_by_key(&known.node, |part| part.node);
            at.is_ok()
        };
        if ascending && self.parts.iter().all(has) {
            // As usual: shared with whoever else knows it.
            self.parts = Arc::clone(parts);
            return;
        }
        let both = self.parts.iter().chain(parts.iter());
        let all: BTreeMap<NodeId, &Part> = both.map(|part| (part.node, part)).collect();
        self.parts = all.into_values().cloned().collect();
    }
}

/// All keys of a version.
fn keys(source: Incarnation, version: Version) -> RangeInclusive<Key> {
    (source, version, Level::FIRST)..=(source, version, Level::LAST)
}

/// A ballot as records store it.
pub fn ballot_number(ballot: Ballot) -> u64 {
    u64::from(ballot.incarnation.0) << 32 | u64::from(ballot.term)
}

/// The inverse of [`ballot_number`].
pub fn ballot_of(number: u64) -> Ballot {
    Ballot {
        incarnation: Incarnation((number >> 32) as u32),
        term: number as u32,
    }
}

impl Contents {
    /// Nothing is known yet.
    pub fn planted(fault: Option<Planted>) -> Contents {
        Contents {
            incomplete: fault == Some(Planted::RecordIncomplete),
            trusts_memory: fault == Some(Planted::TrustMemory),
            ..Contents::default()
        }
    }

    /// The job's members and number of ranks, for incarnation records.
    pub fn set_job(&mut self, members: Vec<NodeId>, ranks: u32) {
        self.members = members;
        self.encoded.clear();
        self.know_ranks(ranks);
    }

    /// The groups of a level over the job's members.
    pub fn set_groups(&mut self, level: Level, groups: Vec<Vec<NodeId>>) {
        self.encoded.clear();
        self.groups.insert(level, groups);
    }

    /// The number of ranks of the job; 0: nothing new.
    pub fn know_ranks(&mut self, ranks: u32) {
        if ranks != 0 && ranks != self.ranks {
            self.encoded.clear();
            self.ranks = ranks;
        }
    }

    /// Learns from a record, wherever it was found.
    pub fn learn(&mut self, record: &Record) {
        match record {
            Record::Prepared {
                incarnation,
                version,
                level,
                part,
                ..
            } => {
                self.add_part(*incarnation, *version, *level, part.clone());
            }
            Record::Commit {
                incarnation,
                version,
                level,
                ballot,
                ranks,
                parts,
                groups,
            } => {
                let key = (*incarnation, *version, *level);
                self.changed(key);
                let known = self.commits.entry(key).or_default();
                if known.ballot <= *ballot {
                    (known.ballot, known.ranks) = (*ballot, *ranks);
                    known.groups.clone_from(groups);
                }
                known.take(parts);
                // What it says of a node is the newest word.
                if let Some(said) = self.parts.get_mut(&key) {
                    parts.iter().for_each(|part| drop(said.remove(&part.node)));
                }
                self.parts.retain(|_, said| !said.is_empty());
            }
            _ => {}
        }
    }

    /// The part of one node.
    pub fn add_part(&mut self, source: Incarnation, version: Version, level: Level, part: Part) {
        let key = (source, version, level);
        self.changed(key);
        self.parts.entry(key).or_default().insert(part.node, part);
    }

    /// What was encoded of it is old.
    fn changed(&mut self, key: Key) {
        self.encoded.retain(|(encoded, _), _| *encoded != key);
    }

    /// The part of `node` at a level, if known.
    pub fn part(
        &self,
        source: Incarnation,
        version: Version,
        level: Level,
        node: NodeId,
    ) -> Option<&Part> {
        let key = (source, version, level);
        let said = self.parts.get(&key).and_then(|said| said.get(&node));
        said.or_else(|| self.commits.get(&key)?.part(node))
    }

    /// What is known of a node's bytes of a version, which are the same at every level: what was
    /// decided, else what was said.
    pub fn known_part(&self, source: Incarnation, version: Version, node: NodeId) -> Option<Part> {
        if self.trusts_memory {
            return None;
        }
        let mut decided = self.commits.range(keys(source, version));
        let decided = decided.find_map(|(_, decided)| decided.part(node));
        let mut said = self.parts.range(keys(source, version));
        let said = || said.find_map(|(_, said)| said.get(&node));
        decided.or_else(said).cloned()
    }

    /// The levels at which anything is known of a version.
    fn levels_known(&self, source: Incarnation, version: Version) -> BTreeSet<Level> {
        let said = self.parts.range(keys(source, version)).map(|(key, _)| key);
        let decided = self.commits.range(keys(source, version));
        let decided = decided.map(|(key, _)| key);
        said.chain(decided).map(|&(.., level)| level).collect()
    }

    /// Number of ranks of a committed version.
    pub fn ranks_of(&self, source: Incarnation, version: Version) -> Option<u32> {
        let mut decided = self.commits.range(keys(source, version));
        decided.next().map(|(_, decided)| decided.ranks)
    }

    /// All parts of `node` at a version, at whatever level.
    pub fn parts_of(
        &self,
        source: Incarnation,
        version: Version,
        node: NodeId,
    ) -> Vec<(Level, &Part)> {
        let levels = self.levels_known(source, version).into_iter();
        let part = |level| Some((level, self.part(source, version, level, node)?));
        levels.filter_map(part).collect()
    }

    /// The levels at which a version is known to be committed.
    pub fn levels_of(&self, source: Incarnation, version: Version) -> BTreeSet<Level> {
        let decided = self.commits.range(keys(source, version));
        decided.map(|(&(_, _, level), _)| level).collect()
    }

    /// The parts of other nodes at a level at which a version was committed, of which this node
    /// keeps a copy.
    pub fn held_for_others(
        &self,
        source: Incarnation,
        version: Version,
        level: Level,
        me: NodeId,
    ) -> impl Iterator<Item = &Part> {
        let decided = self.commits.get(&(source, version, level));
        let parts = decided.into_iter().flat_map(|decided| decided.parts.iter());
        parts.filter(move |part| part.holder == me && part.node != me)
    }

    /// The group of a node at a level at which a version was committed, and the parts of its
    /// members.
    pub fn group(
        &self,
        source: Incarnation,
        version: Version,
        level: Level,
        node: NodeId,
    ) -> Option<(Group, Vec<Part>)> {
        let decided = self.commits.get(&(source, version, level))?;
        let group = Group::of(level, &decided.groups, &decided.parts, node)?;
        Some((group, decided.parts.to_vec()))
    }

    /// All versions that are known to be committed at some level.
    pub fn versions(&self) -> BTreeSet<(Incarnation, Version)> {
        self.commits
            .keys()
            .map(|&(source, version, _)| (source, version))
            .collect()
    }

    /// Versions of which this node has written its part, which is of no rank: also if it has
    /// not heard that they were committed.
    pub fn empty_parts(&self, node: NodeId) -> BTreeSet<(Incarnation, Version)> {
        let mine = |&&(source, version, level): &&Key| {
            let part = self.part(source, version, level, node);
            part.is_some_and(|part| part.ranks.is_empty())
        };
        let all = self.parts.keys().chain(self.commits.keys());
        let empty = all.filter(mine);
        empty
            .map(|&(source, version, _)| (source, version))
            .collect()
    }

    /// A level ended without a decision: what was about to be one was not recorded.
    pub fn undecided(&mut self, source: Incarnation, version: Version, level: Level) {
        self.changed((source, version, level));
        let Some(decided) = self.commits.remove(&(source, version, level)) else {
            return;
        };
        // What it said of the parts holds.
        let said = self.parts.entry((source, version, level)).or_default();
        for part in decided.parts.iter() {
            said.entry(part.node).or_insert_with(|| part.clone());
        }
    }

    /// Forgets versions that were removed.
    pub fn forget(&mut self, source: Incarnation, version: Version) {
        let gone = keys(source, version);
        self.parts.retain(|key, _| !gone.contains(key));
        self.commits.retain(|key, _| !gone.contains(key));
        self.encoded.retain(|(key, _), _| !gone.contains(key));
    }

    /// The full commit record of a level; `None` if its parts are not known, or of how many
    /// ranks they are.
    pub fn commit(
        &self,
        source: Incarnation,
        version: Version,
        level: Level,
        ballot: u64,
    ) -> Option<Record> {
        let key = (source, version, level);
        let (ranks, parts, groups) = match self.commits.get(&key) {
            Some(known) => (known.ranks, Arc::clone(&known.parts), Some(&known.groups)),
            None => {
                let said = self.parts.get(&key)?;
                if said.len() < self.members.len() && !self.incomplete {
                    return None;
                }
                let parts = said.values().cloned().collect();
                (self.ranks, parts, self.groups.get(&level))
            }
        };
        // Whoever is told that it is stable before that it is committed knows its own part
        // alone. A record without the others' would name no copy of theirs.
        if ranks == 0 || parts.len() < self.members.len() && !self.incomplete {
            return None;
        }
        Some(Record::Commit {
            incarnation: source,
            version,
            level,
            ballot,
            ranks,
            parts,
            groups: groups.cloned().unwrap_or_default(),
        })
    }

    /// True if the contents of a decision are known whole.
    pub fn is_whole(&self, key: Key) -> bool {
        let decided = self.commits.get(&key);
        decided.is_some_and(|it| it.ranks != 0 && it.parts.len() >= self.members.len())
    }

    /// The newest decisions of which that is so.
    pub fn whole(&self, most: usize) -> Vec<Key> {
        let newest = self.commits.keys().rev().copied();
        newest
            .filter(|key| self.is_whole(*key))
            .take(most)
            .collect()
    }

    /// What has to travel with a message of the commit machine to a peer that has the contents of
    /// `known`, and what of that is left out.
    pub fn attachments(
        &mut self,
        kind: &MsgKind,
        (me, known): (NodeId, Option<&BTreeSet<Key>>),
        (open, ballot): (Incarnation, Ballot),
        job_hash: u64,
    ) -> (Vec<Arc<[u8]>>, Vec<Key>) {
        let number = ballot_number(ballot);
        let left_out = |key: &Key| known.is_some_and(|known| known.contains(key));
        match *kind {
            MsgKind::Prepared { version, level } => {
                let part = self.part(open, version, level, me);
                let record = part.map(|part| Record::Prepared {
                    incarnation: open,
                    version,
                    level,
                    ballot: number,
                    part: part.clone(),
                });
                let bytes = record.and_then(|record| record.encode(job_hash));
                (bytes.map(Arc::from).into_iter().collect(), Vec::new())
            }
            MsgKind::Commit { version, level } => {
                let bytes = self.encoded((open, version, level), number, job_hash);
                (bytes.into_iter().collect(), Vec::new())
            }
            MsgKind::ItemCommit {
                level,
                source,
                version,
                by,
                ..
            } => {
                let key = (source, version, level);
                if left_out(&key) {
                    return (Vec::new(), vec![key]);
                }
                let bytes = self.encoded(key, ballot_number(by), job_hash);
                (bytes.into_iter().collect(), Vec::new())
            }
            MsgKind::Rebuild {
                source, version, ..
            } => {
                let levels = self.levels_of(source, version).into_iter();
                let keys = levels.map(|level| (source, version, level));
                let (without, with): (Vec<Key>, Vec<Key>) = keys.partition(left_out);
                let with = with.into_iter();
                let bytes = with.filter_map(|key| self.encoded(key, number, job_hash));
                (bytes.collect(), without)
            }
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// A decision as it travels, encoded once for all to whom it goes.
    fn encoded(&mut self, key: Key, ballot: u64, job_hash: u64) -> Option<Arc<[u8]>> {
        if let Some(bytes) = self.encoded.get(&(key, ballot)) {
            return Some(Arc::clone(bytes));
        }
        let record = self.commit(key.0, key.1, key.2, ballot)?;
        let bytes: Arc<[u8]> = record.encode(job_hash)?.into();
        if self.encoded.len() >= ENCODED_MAX {
            self.encoded.clear();
        }
        self.encoded.insert((key, ballot), Arc::clone(&bytes));
        Some(bytes)
    }

    /// A short record with its contents, as it goes to disk.
    pub fn long(&self, short: &Short, me: NodeId) -> Option<Record> {
        Some(match *short {
            Short::Promise { ballot } => Record::Promise {
                ballot: ballot_number(ballot),
            },
            Short::Prepared {
                incarnation,
                version,
                level,
            } => Record::Prepared {
                incarnation,
                version,
                level,
                ballot: ballot_number(Ballot {
                    incarnation,
                    term: 0,
                }),
                part: self.part(incarnation, version, level, me)?.clone(),
            },
            Short::Commit {
                incarnation,
                version,
                level,
                ballot,
            } => self.commit(incarnation, version, level, ballot_number(ballot))?,
            Short::Abort {
                incarnation,
                version,
                level,
            } => Record::Abort {
                incarnation,
                version,
                level,
                code: Code::CommitAborted,
                text: String::new(),
            },
            Short::Incarnation {
                number,
                source,
                version,
            } => Record::Incarnation {
                number,
                restored: (source.0 != 0)
                    .then(|| (source, version, self.strongest(source, version))),
                members: self.members.clone(),
                ranks: self.ranks,
            },
        })
    }

    fn strongest(&self, source: Incarnation, version: Version) -> Level {
        let levels = self.levels_of(source, version);
        levels.last().copied().unwrap_or(Level::FIRST)
    }
}

/// A record from disk as the commit machine knows it.
pub fn short(record: &Record) -> Option<Short> {
    Some(match record {
        Record::Promise { ballot } => Short::Promise {
            ballot: ballot_of(*ballot),
        },
        Record::Prepared {
            incarnation,
            version,
            level,
            ..
        } => Short::Prepared {
            incarnation: *incarnation,
            version: *version,
            level: *level,
        },
        Record::Commit {
            incarnation,
            version,
            level,
            ballot,
            ..
        } => Short::Commit {
            incarnation: *incarnation,
            version: *version,
            level: *level,
            ballot: ballot_of(*ballot),
        },
        Record::Abort {
            incarnation,
            version,
            level,
            ..
        } => Short::Abort {
            incarnation: *incarnation,
            version: *version,
            level: *level,
        },
        Record::Incarnation {
            number, restored, ..
        } => {
            let (source, version) = restored
                .map_or((Incarnation(0), Version(0)), |(source, version, _)| {
                    (source, version)
                });
            Short::Incarnation {
                number: *number,
                source,
                version,
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use outlive_base::{ContainerId, Rank};

    use super::*;

    const AT: Key = (Incarnation(1), Version(7), Level::PARTNER);

    fn part(node: u32) -> Part {
        let (incarnation, version, _) = AT;
        let node = NodeId(node);
        Part {
            node,
            id: ContainerId {
                incarnation,
                version,
                node,
            },
            length: 4096,
            digest: 1,
            holder: node,
            ranks: vec![Rank(node.0)].into(),
            parity: None,
        }
    }

    fn commit_of(parts: Vec<Part>) -> Record {
        let (incarnation, version, level) = AT;
        Record::Commit {
            incarnation,
            version,
            level,
            ballot: 1,
            ranks: 3,
            parts: parts.into(),
            groups: Vec::new(),
        }
    }

    fn of_three() -> Contents {
        let mut contents = Contents::default();
        contents.set_job((0..3).map(NodeId).collect(), 3);
        contents
    }

    fn recorded(contents: &Contents) -> Option<usize> {
        let (source, version, level) = AT;
        match contents.commit(source, version, level, 1)? {
            Record::Commit { parts, .. } => Some(parts.len()),
            _ => None,
        }
    }

    #[test]
    fn a_decision_is_not_recorded_before_all_its_parts_are_known() {
        let mut contents = of_three();
        let (source, version, level) = AT;
        contents.add_part(source, version, level, part(1));
        assert_eq!(recorded(&contents), None, "its own part alone");
        contents.learn(&commit_of(vec![part(1)]));
        assert_eq!(recorded(&contents), None, "and such a record is no help");
        contents.learn(&commit_of((0..3).map(part).collect()));
        assert_eq!(recorded(&contents), Some(3));
    }

    #[test]
    fn what_a_peer_has_is_left_out_and_what_changes_is_encoded_anew() {
        let mut contents = of_three();
        contents.learn(&commit_of((0..3).map(part).collect()));
        let (source, version, level) = AT;
        let kind = MsgKind::Rebuild {
            source,
            version,
            level,
        };
        let by = (Incarnation(2), Ballot::default());
        let attached = |contents: &mut Contents, known: Option<&BTreeSet<Key>>| {
            let (records, left_out) = contents.attachments(&kind, (NodeId(0), known), by, 7);
            let read = |bytes: &Arc<[u8]>| match Record::decode(bytes, 7) {
                Ok(Record::Commit { parts, .. }) => parts[1].digest,
                other => panic!("{other:?}"),
            };
            (records.iter().map(read).collect::<Vec<u128>>(), left_out)
        };
        assert_eq!(attached(&mut contents, None), (vec![1], vec![]));
        let known = BTreeSet::from([AT]);
        assert_eq!(attached(&mut contents, Some(&known)), (vec![], vec![AT]));
        let mut parts: Vec<Part> = (0..3).map(part).collect();
        parts[1].digest = 2;
        contents.learn(&commit_of(parts));
        assert_eq!(attached(&mut contents, None), (vec![2], vec![]));
        assert_eq!(contents.whole(8), [AT]);
        contents.forget(source, version);
        assert_eq!(attached(&mut contents, None), (vec![], vec![]));
    }

    #[test]
    fn the_newest_word_on_a_part_counts_whoever_says_it() {
        let mut contents = of_three();
        let (source, version, level) = AT;
        contents.learn(&commit_of((0..3).map(part).collect()));
        let mut newer = part(1);
        newer.digest = 9;
        contents.add_part(source, version, level, newer);
        let digest = |contents: &Contents| {
            let part = contents.part(source, version, level, NodeId(1));
            part.map(|part| part.digest)
        };
        assert_eq!(digest(&contents), Some(9));
        contents.learn(&commit_of(vec![part(1)]));
        assert_eq!(digest(&contents), Some(1), "said after that");
        // A level that ended without a decision: its parts are known still.
        contents.undecided(source, version, level);
        assert_eq!(digest(&contents), Some(1));
        assert!(contents.levels_of(source, version).is_empty());
    }

    /// An agent that is started anew and writes the rest of a version holds it against this.
    #[test]
    fn bytes_that_are_known_are_those_that_were_decided_at_whatever_level() {
        let mut contents = of_three();
        let (source, version, level) = AT;
        let digest = |contents: &Contents| {
            let part = contents.known_part(source, version, NodeId(1));
            part.map(|part| part.digest)
        };
        assert_eq!(digest(&contents), None);
        let mut newer = part(1);
        newer.digest = 9;
        contents.add_part(source, version, Level::MEMORY, newer.clone());
        assert_eq!(digest(&contents), Some(9), "said, and not decided");
        contents.learn(&commit_of((0..3).map(part).collect()));
        contents.add_part(source, version, level, newer);
        assert_eq!(digest(&contents), Some(1));
    }

    #[test]
    fn a_record_that_lacks_parts_takes_none_away() {
        let mut contents = of_three();
        contents.learn(&commit_of((0..3).map(part).collect()));
        contents.learn(&commit_of(vec![part(1)]));
        assert_eq!(recorded(&contents), Some(3));
    }

    #[test]
    fn a_node_without_ranks_has_its_nothing_though_it_missed_the_decision() {
        let mut contents = of_three();
        let (incarnation, version, level) = AT;
        let mut part = part(1);
        part.ranks = Vec::new().into();
        contents.learn(&Record::Prepared {
            incarnation,
            version,
            level,
            ballot: 1,
            part,
        });
        let at = (incarnation, version);
        assert_eq!(contents.empty_parts(NodeId(1)), BTreeSet::from([at]));
        assert_eq!(contents.empty_parts(NodeId(0)), BTreeSet::new());
    }
}
