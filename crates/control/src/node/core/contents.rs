//! The long contents of commit records: who holds which container. The commit
//! machine decides by short messages; this is what they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use outlive_base::{Code, Incarnation, Level, NodeId, Version};
use outlive_ledger::scheme::Group;
use outlive_ledger::{Part, Record};
use outlive_protocols::commit::{Ballot, MsgKind, Record as Short};

type Key = (Incarnation, Version, Level);

/// What is known of versions and where their containers lie.
#[derive(Debug, Default)]
pub struct Contents {
    parts: BTreeMap<Key, BTreeMap<NodeId, Part>>,
    commits: BTreeMap<Key, Decided>,
    members: Vec<NodeId>,
    /// The groups of the job's levels, over its members.
    groups: BTreeMap<Level, Vec<Vec<NodeId>>>,
    ranks: u32,
}

/// What is known of a decision.
#[derive(Debug, Default)]
struct Decided {
    ballot: u64,
    ranks: u32,
    parts: BTreeMap<NodeId, Part>,
    groups: Vec<Vec<NodeId>>,
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
    /// The job's members and number of ranks, for incarnation records.
    pub fn set_job(&mut self, members: Vec<NodeId>, ranks: u32) {
        self.members = members;
        self.know_ranks(ranks);
    }

    /// The groups of a level over the job's members.
    pub fn set_groups(&mut self, level: Level, groups: Vec<Vec<NodeId>>) {
        self.groups.insert(level, groups);
    }

    /// The number of ranks of the job; 0: nothing new.
    pub fn know_ranks(&mut self, ranks: u32) {
        if ranks != 0 {
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
                let known = self.commits.entry(key).or_default();
                if known.ballot <= *ballot {
                    (known.ballot, known.ranks) = (*ballot, *ranks);
                    known.groups.clone_from(groups);
                }
                // One that was written while its parts were not all known takes nothing away
                // from what is known of the others.
                for part in parts {
                    known.parts.insert(part.node, part.clone());
                }
                for part in parts {
                    self.add_part(*incarnation, *version, *level, part.clone());
                }
            }
            _ => {}
        }
    }

    /// The part of one node.
    pub fn add_part(&mut self, source: Incarnation, version: Version, level: Level, part: Part) {
        self.parts
            .entry((source, version, level))
            .or_default()
            .insert(part.node, part);
    }

    /// The part of `node` at a level, if known.
    pub fn part(
        &self,
        source: Incarnation,
        version: Version,
        level: Level,
        node: NodeId,
    ) -> Option<&Part> {
        self.parts.get(&(source, version, level))?.get(&node)
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
        let levels = self.parts.range(keys(source, version));
        levels
            .filter_map(|(&(_, _, level), parts)| Some((level, parts.get(&node)?)))
            .collect()
    }

    /// The levels at which a version is known to be committed.
    pub fn levels_of(&self, source: Incarnation, version: Version) -> BTreeSet<Level> {
        let decided = self.commits.range(keys(source, version));
        decided.map(|(&(_, _, level), _)| level).collect()
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
        let parts: Vec<Part> = decided.parts.values().cloned().collect();
        let group = Group::of(level, &decided.groups, &parts, node)?;
        Some((group, parts))
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
        let mine = |parts: &BTreeMap<NodeId, Part>| {
            parts.get(&node).is_some_and(|part| part.ranks.is_empty())
        };
        let empty = self.parts.iter().filter(|(_, parts)| mine(parts));
        empty
            .map(|(&(source, version, _), _)| (source, version))
            .collect()
    }

    /// A level ended without a decision: what was about to be one was not recorded.
    pub fn undecided(&mut self, source: Incarnation, version: Version, level: Level) {
        self.commits.remove(&(source, version, level));
    }

    /// Forgets versions that were removed.
    pub fn forget(&mut self, source: Incarnation, version: Version) {
        let gone = keys(source, version);
        self.parts.retain(|key, _| !gone.contains(key));
        self.commits.retain(|key, _| !gone.contains(key));
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
            Some(known) => (known.ranks, &known.parts, Some(&known.groups)),
            None => (self.ranks, self.parts.get(&key)?, self.groups.get(&level)),
        };
        // Whoever is told that it is stable before that it is committed knows its own part
        // alone. A record without the others' would name no copy of theirs.
        if ranks == 0 || parts.len() < self.members.len() {
            return None;
        }
        let parts = parts.values().cloned().collect();
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

    /// What has to travel with a message of the commit machine.
    pub fn attachments(
        &self,
        kind: &MsgKind,
        me: NodeId,
        open: Incarnation,
        ballot: Ballot,
    ) -> Vec<Record> {
        let number = ballot_number(ballot);
        match *kind {
            MsgKind::Prepared { version, level } => self
                .part(open, version, level, me)
                .map(|part| Record::Prepared {
                    incarnation: open,
                    version,
                    level,
                    ballot: number,
                    part: part.clone(),
                })
                .into_iter()
                .collect(),
            MsgKind::Commit { version, level } => self
                .commit(open, version, level, number)
                .into_iter()
                .collect(),
            MsgKind::ItemCommit {
                level,
                source,
                version,
                by,
                ..
            } => self
                .commit(source, version, level, ballot_number(by))
                .into_iter()
                .collect(),
            MsgKind::Rebuild {
                source, version, ..
            } => {
                let levels = self.levels_of(source, version).into_iter();
                levels
                    .filter_map(|level| self.commit(source, version, level, number))
                    .collect()
            }
            _ => Vec::new(),
        }
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
        levels.last().copied().unwrap_or(Level::MEMORY)
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
            ranks: vec![Rank(node.0)],
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
            parts,
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
        part.ranks.clear();
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
