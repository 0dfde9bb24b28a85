//! What may be removed.
//!
//! Invariants (P3): a copy of a version that is, or for all that is known may be,
//! committed is removed only when enough newer versions on the line are stable with
//! at least the same tolerance *of the same kind*: local copies (disk, partner)
//! against local levels, shared copies against the shared level. Pins and versions in use
//! stay. What is unknown is taken for the strongest that it could be, by all that is recorded.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::StoreKind;
use outlive_base::{ContainerId, Incarnation, Level, Levels, Version};

use crate::lineage::Lineage;
use crate::record::Record;

/// A checkpoint of a job.
pub type Checkpoint = (Incarnation, Version);

/// Versions whose records stay after their copies are gone, for `list` and reports.
const RECORDS_KEPT: usize = 64;
/// So many more stay until they go together: their removal is synced once.
const RECORDS_SPARE: usize = 16;

/// What the caller knows and wants.
#[derive(Clone, Debug, Default)]
pub struct GcPolicy {
    /// Versions that are STABLE: committed, and the commit recorded in f + 1 domains.
    pub stable: BTreeSet<(Incarnation, Version, Level)>,
    /// Newest stable versions to keep, each with its tolerance; at least one is kept.
    pub keep: usize,
    /// Being captured, committed or restored: not touched.
    pub in_use: BTreeSet<Checkpoint>,
    /// Versions of which *all* levels are known at which they are, or may still
    /// become, committed. Of others the strongest is assumed.
    pub levels: BTreeMap<Checkpoint, BTreeSet<Level>>,
    /// The levels in use: any other version may be at each of them.
    pub used: Levels,
}

/// True if a copy at `copy` serves the same kind of failure domain as `level`.
fn same_kind(copy: Level, level: Level) -> bool {
    let shared = |level: Level| level.store() == StoreKind::Shared;
    shared(copy) == shared(level)
}

/// What records and policy say about removing.
#[derive(Debug)]
pub struct Rules<'a> {
    policy: &'a GcPolicy,
    line: Lineage,
    pinned: BTreeSet<Checkpoint>,
    committed: BTreeSet<Checkpoint>,
    aborted: BTreeSet<Checkpoint>,
    /// What is recorded here: the levels of which a commit stands, and those that were prepared.
    decided: BTreeMap<Checkpoint, Levels>,
    prepared: BTreeMap<Checkpoint, Levels>,
    /// All levels of which anything is recorded here.
    seen: Levels,
}

impl<'a> Rules<'a> {
    /// Of these records, under a policy.
    pub fn new<'r>(
        records: impl IntoIterator<Item = &'r Record> + Clone,
        policy: &'a GcPolicy,
    ) -> Rules<'a> {
        let mut rules = Rules {
            policy,
            line: Lineage::new(records.clone()),
            pinned: BTreeSet::new(),
            committed: policy.stable.iter().map(|(i, v, _)| (*i, *v)).collect(),
            aborted: BTreeSet::new(),
            decided: BTreeMap::new(),
            prepared: BTreeMap::new(),
            seen: Levels::NONE,
        };
        let known = policy
            .levels
            .iter()
            .filter(|(_, levels)| !levels.is_empty());
        rules
            .committed
            .extend(known.map(|(checkpoint, _)| *checkpoint));
        for record in records {
            let Some(checkpoint) = record.checkpoint() else {
                continue;
            };
            match record {
                Record::Pin { .. } => drop(rules.pinned.insert(checkpoint)),
                Record::Commit { level, .. } => {
                    rules.committed.insert(checkpoint);
                    let decided = rules.decided.entry(checkpoint).or_default();
                    *decided = decided.with(*level);
                    rules.seen = rules.seen.with(*level);
                }
                Record::Prepared { level, .. } => {
                    let prepared = rules.prepared.entry(checkpoint).or_default();
                    *prepared = prepared.with(*level);
                    rules.seen = rules.seen.with(*level);
                }
                Record::Abort { level: None, .. } => drop(rules.aborted.insert(checkpoint)),
                _ => {}
            }
        }
        rules
    }

    /// True if a version may be committed at a level of which this run says nothing. A commit
    /// takes a record of each node: where there are records of the version, and of no version one
    /// at this level, it was not in use. Else what a run leaves behind would stay for ever once
    /// nobody remembers its levels. Nor was it if the job does not use it and there are records
    /// of other versions, of which none is at it: a container that was written again after its
    /// records had gone has none of its own.
    fn may_have_had(&self, checkpoint: Checkpoint, level: Level) -> bool {
        let recorded = |map: &BTreeMap<Checkpoint, Levels>| map.contains_key(&checkpoint);
        let any = recorded(&self.decided) || recorded(&self.prepared);
        match any {
            true => self.seen.contains(level),
            false => {
                let unknown = self.seen.is_empty();
                unknown || self.seen.contains(level) || self.policy.used.contains(level)
            }
        }
    }

    /// The levels whose tolerance a removal of this copy would end; of a version of which not
    /// all are known, whatever it may be committed at.
    fn serves(&self, checkpoint: Checkpoint, copy: Level) -> BTreeSet<Level> {
        if copy.store() == StoreKind::Shared {
            return BTreeSet::from([copy]);
        }
        let mut levels = match self.policy.levels.get(&checkpoint) {
            // A copy that lies on a disk has made the version safe there.
            Some(known) => known.iter().copied().chain([Level::DISK]).collect(),
            None => {
                let prepared = self.prepared.get(&checkpoint).copied().unwrap_or_default();
                let mut any = BTreeSet::from([copy]);
                if self.may_have_had(checkpoint, Level::PARTNER) {
                    any.insert(Level::PARTNER);
                }
                any.extend(self.policy.used.iter().chain(prepared.iter()));
                any
            }
        };
        // A word that a version came to nothing may come late, when it is decided.
        levels.extend(self.decided_at(checkpoint));
        levels.retain(|level| same_kind(copy, *level));
        levels
    }

    /// The levels at which it is known to be committed, whatever else is known of it.
    fn decided_at(&self, (source, version): Checkpoint) -> impl Iterator<Item = Level> {
        let all = (source, version, Level::FIRST)..=(source, version, Level::LAST);
        let stable = self.policy.stable.range(all).map(|(_, _, level)| *level);
        let recorded = self.decided.get(&(source, version)).copied();
        stable.chain(recorded.unwrap_or_default().iter())
    }

    /// True if a commit of it is known.
    pub fn is_committed(&self, checkpoint: Checkpoint) -> bool {
        self.committed.contains(&checkpoint)
    }

    /// True if the copy may go.
    pub fn may_go(&self, checkpoint: Checkpoint, copy: Level) -> bool {
        if self.pinned.contains(&checkpoint) || self.policy.in_use.contains(&checkpoint) {
            return false;
        }
        if self.line.is_void(checkpoint.0, checkpoint.1) {
            return true;
        }
        // A commit outweighs an abort.
        if self.aborted.contains(&checkpoint) && !self.committed.contains(&checkpoint) {
            return true;
        }
        let serves = self.serves(checkpoint, copy);
        serves
            .iter()
            .all(|level| self.is_replaced(checkpoint, *level))
    }

    /// True if enough newer versions on the line are stable with at least the tolerance of
    /// `level`.
    fn is_replaced(&self, checkpoint: Checkpoint, level: Level) -> bool {
        // In order, so that the levels of one version follow each other.
        let (mut newer, mut last) = (0, checkpoint);
        for (incarnation, version, at) in &self.policy.stable {
            let found = (*incarnation, *version);
            if found > last && at.covers(level) && !self.line.is_void(found.0, found.1) {
                (newer, last) = (newer + 1, found);
            }
        }
        newer >= self.policy.keep.max(1)
    }

    /// True if what is recorded here of a version without copies here (its bytes lie in
    /// memory or in shared storage, or it was aborted) is of no use any more.
    fn is_over(&self, checkpoint: Checkpoint, committed: &BTreeSet<Level>) -> bool {
        if self.pinned.contains(&checkpoint) || self.policy.in_use.contains(&checkpoint) {
            return false;
        }
        if self.line.is_void(checkpoint.0, checkpoint.1) {
            return true;
        }
        let strongest = [Level::PARTNER, Level::SHARED].into_iter();
        let strongest = strongest.filter(|level| self.may_have_had(checkpoint, *level));
        let strongest = strongest.chain(self.policy.used.iter()).collect();
        let known = self.policy.levels.get(&checkpoint).unwrap_or(&strongest);
        let replaced = |level: &Level| self.is_replaced(checkpoint, *level);
        // One that was aborted at all levels is over once anything newer is stable.
        let newer = |(incarnation, version, _): &(Incarnation, Version, Level)| {
            (*incarnation, *version) > checkpoint
        };
        known.union(committed).all(replaced) && self.policy.stable.iter().any(newer)
    }
}

/// The versions whose copies here are long gone, or that never had any here and are long
/// replaced. `present`: the versions with copies here.
pub fn long_gone<'r>(
    records: impl IntoIterator<Item = &'r Record> + Clone,
    tombs: &BTreeSet<(ContainerId, Level)>,
    present: &BTreeSet<Checkpoint>,
    policy: &GcPolicy,
) -> BTreeSet<Checkpoint> {
    let mut committed: BTreeMap<Checkpoint, BTreeSet<Level>> = BTreeMap::new();
    for record in records.clone() {
        let Some(checkpoint) = record.checkpoint() else {
            continue;
        };
        let levels = committed.entry(checkpoint).or_default();
        if let Record::Commit { level, .. } = record {
            levels.insert(*level);
        }
    }
    let mut gone: BTreeSet<Checkpoint> = tombs
        .iter()
        .map(|(id, _)| (id.incarnation, id.version))
        .collect();
    let few = |gone: usize| gone <= RECORDS_KEPT + RECORDS_SPARE;
    // Most often there are not so many of any kind, and nothing else needs to be asked.
    let others = committed.keys().filter(|it| !gone.contains(it)).count();
    if few(gone.len() + others) {
        return BTreeSet::new();
    }
    let rules = Rules::new(records, policy);
    let over = committed
        .iter()
        .filter(|(checkpoint, levels)| rules.is_over(**checkpoint, levels));
    gone.extend(over.map(|(checkpoint, _)| *checkpoint));
    gone.retain(|checkpoint| !present.contains(checkpoint) && !rules.pinned.contains(checkpoint));
    match few(gone.len()) {
        true => BTreeSet::new(),
        false => gone.into_iter().rev().skip(RECORDS_KEPT).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::NodeId;
    use proptest::prelude::*;

    fn checkpoint(version: u64) -> Checkpoint {
        (Incarnation(1), Version(version))
    }

    fn policy(stable: &[(u64, Level)], keep: usize) -> GcPolicy {
        let stable = stable
            .iter()
            .map(|(v, level)| (Incarnation(1), Version(*v), *level));
        GcPolicy {
            stable: stable.collect(),
            keep,
            ..GcPolicy::default()
        }
    }

    #[test]
    fn the_newest_of_each_tolerance_stays() {
        let decided = policy(
            &[(2, Level::PARTNER), (3, Level::DISK), (1, Level::SHARED)],
            1,
        );
        let rules = Rules::new([], &decided);
        assert!(
            rules.may_go(checkpoint(1), Level::DISK) && rules.may_go(checkpoint(1), Level::PARTNER)
        );
        assert!(
            !rules.may_go(checkpoint(1), Level::SHARED),
            "no newer shared one"
        );
        assert!(
            !rules.may_go(checkpoint(2), Level::DISK),
            "disk is weaker than partner"
        );
        // Known as disk only: enough, unless it is decided that it is more.
        let only = BTreeMap::from([(checkpoint(2), BTreeSet::from([Level::DISK]))]);
        let with = |mut policy: GcPolicy| {
            policy.levels = only.clone();
            policy
        };
        let known = with(policy(&[(3, Level::DISK)], 1));
        assert!(Rules::new([], &known).may_go(checkpoint(2), Level::DISK));
        let known = with(decided);
        assert!(!Rules::new([], &known).may_go(checkpoint(2), Level::DISK));
    }

    #[test]
    fn an_unknown_version_may_be_at_each_level_in_use() {
        let rs = Level::rs(3, 2).unwrap();
        let mut policy = policy(&[(3, Level::PARTNER)], 1);
        assert!(Rules::new([], &policy).may_go(checkpoint(2), Level::DISK));
        policy.used = Levels::of(&[Level::DISK, rs]);
        assert!(!Rules::new([], &policy).may_go(checkpoint(2), Level::DISK));
        policy.stable.insert((Incarnation(1), Version(4), rs));
        assert!(Rules::new([], &policy).may_go(checkpoint(2), Level::DISK));
    }

    #[test]
    fn a_level_that_was_never_in_use_keeps_nothing() {
        let policy = policy(&[(3, Level::DISK)], 1);
        let abort = |version, level| {
            let (incarnation, version) = checkpoint(version);
            Record::Abort {
                incarnation,
                version,
                level: Some(level),
                code: outlive_base::Code::CommitAborted,
                text: String::new(),
            }
        };
        let commit = |version, level| {
            let (incarnation, version) = checkpoint(version);
            Record::Commit {
                incarnation,
                version,
                level,
                ballot: 1,
                ranks: 1,
                parts: Vec::new().into(),
                groups: Vec::new(),
            }
        };
        let goes =
            |records: &[Record]| Rules::new(records, &policy).may_go(checkpoint(2), Level::DISK);
        assert!(!goes(&[]), "nothing is known of it");
        assert!(goes(&[commit(2, Level::DISK)]));
        assert!(!goes(&[abort(2, Level::DISK)]), "an abort says nothing");
        // A container that was written again after its records had gone.
        assert!(
            goes(&[commit(3, Level::DISK)]),
            "others speak of disk alone"
        );
        assert!(!goes(&[commit(1, Level::PARTNER), commit(3, Level::DISK)]));
        // What another version had, this one may have had as well.
        let other = [commit(2, Level::DISK), commit(1, Level::PARTNER)];
        assert!(!goes(&other));
    }

    #[test]
    fn levels_of_one_newer_version_count_once() {
        let mut stable = vec![(2, Level::DISK), (2, Level::PARTNER)];
        let two = policy(&stable, 2);
        assert!(!Rules::new([], &two).may_go(checkpoint(1), Level::DISK));
        stable.push((3, Level::PARTNER));
        let two = policy(&stable, 2);
        assert!(Rules::new([], &two).may_go(checkpoint(1), Level::DISK));
        assert!(!Rules::new([], &two).may_go(checkpoint(2), Level::DISK));
    }

    #[test]
    fn pins_leases_commits_and_voids() {
        let mut policy = policy(&[(9, Level::PARTNER)], 1);
        policy.in_use.insert(checkpoint(3));
        let (incarnation, version) = checkpoint(4);
        let abort = |version| Record::Abort {
            incarnation,
            version,
            level: None,
            code: outlive_base::Code::CommitAborted,
            text: String::new(),
        };
        let records = [
            Record::Pin {
                incarnation,
                version,
            },
            abort(Version(11)),
            abort(Version(12)),
            Record::Commit {
                incarnation,
                version: Version(12),
                level: Level::DISK,
                ballot: 1,
                ranks: 1,
                parts: vec![].into(),
                groups: Vec::new(),
            },
        ];
        let rules = Rules::new(&records, &policy);
        assert!(rules.may_go(checkpoint(2), Level::DISK));
        assert!(
            !rules.may_go(checkpoint(3), Level::DISK) && !rules.may_go(checkpoint(4), Level::DISK)
        );
        assert!(rules.may_go(checkpoint(11), Level::DISK), "aborted");
        assert!(
            !rules.may_go(checkpoint(12), Level::DISK),
            "a commit outweighs an abort"
        );
        let start = Record::Incarnation {
            number: Incarnation(2),
            restored: Some((incarnation, Version(8), Level::DISK)),
            members: vec![NodeId(0)],
            ranks: 1,
        };
        let records = [start];
        let rules = Rules::new(&records, &policy);
        assert!(rules.may_go(checkpoint(9), Level::DISK), "void");
        assert!(
            !rules.may_go(checkpoint(8), Level::DISK),
            "9 is void and protects nobody"
        );
    }

    /// What truly happened to one version: the levels at which it was committed, and
    /// which of them are stable.
    #[derive(Clone, Debug)]
    struct Happened {
        committed: [bool; 4],
        stable: [bool; 4],
        known: bool,
        recorded: bool,
        /// A late word that it came to nothing has taken away what shows otherwise.
        cleared: bool,
    }

    const RS: Level = Level::rs(3, 2).unwrap();
    const LEVELS: [Level; 4] = [Level::DISK, Level::PARTNER, RS, Level::SHARED];

    fn happened() -> impl Strategy<Value = Happened> {
        (
            any::<[bool; 4]>(),
            any::<[bool; 4]>(),
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(committed, stable, known, recorded, cleared)| Happened {
                committed,
                stable: [0, 1, 2, 3].map(|at| committed[at] && stable[at]),
                known,
                recorded,
                cleared,
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
        /// P3, written down independently: if a copy of a version goes, then for every
        /// level at which the version was committed and which that copy serves, there
        /// is a newer version on the line that is stable at that level or a stronger
        /// one of the same kind.
        #[test]
        fn p3_holds_over_any_history(
            history in prop::collection::vec(happened(), 1..12),
            keep in 0usize..4,
            restored in prop::option::of(1u64..12),
        ) {
            let used = Levels::of(&LEVELS);
            let mut policy = GcPolicy { keep, used, ..GcPolicy::default() };
            let mut records = Vec::new();
            for (at, version) in history.iter().enumerate() {
                let (incarnation, number) = checkpoint(at as u64 + 1);
                let set = |which: &[bool; 4]| -> BTreeSet<Level> {
                    (0..4).filter(|at| which[*at]).map(|at| LEVELS[at]).collect()
                };
                for level in set(&version.stable) {
                    policy.stable.insert((incarnation, number, level));
                }
                if version.known {
                    let mut known = set(&version.committed);
                    let stable = set(&version.stable);
                    known.retain(|level| {
                        !version.cleared || !(version.recorded || stable.contains(level))
                    });
                    policy.levels.insert((incarnation, number), known);
                }
                for level in set(&version.committed).into_iter().filter(|_| version.recorded) {
                    records.push(Record::Commit {
                        incarnation, version: number, level, ballot: 1, ranks: 1, parts: vec![].into(),
                        groups: Vec::new(),
                    });
                }
            }
            if let Some(version) = restored {
                records.push(Record::Incarnation {
                    number: Incarnation(2),
                    restored: Some((Incarnation(1), Version(version), Level::DISK)),
                    members: vec![],
                    ranks: 1,
                });
            }
            let valid = |at: usize| restored.is_none_or(|last| (at as u64) < last);
            let rules = Rules::new(&records, &policy);
            for (at, version) in history.iter().enumerate().filter(|(at, _)| valid(*at)) {
                for copy in LEVELS {
                    if !rules.may_go(checkpoint(at as u64 + 1), copy) {
                        continue;
                    }
                    let serves: &[usize] = if copy == Level::SHARED { &[3] } else { &[0, 1, 2] };
                    for level in serves.iter().filter(|level| version.committed[**level]) {
                        let strong: &[usize] = match level {
                            0 => &[0, 1, 2],
                            1 => &[1, 2],
                            2 => &[2],
                            _ => &[3],
                        };
                        let successors = (at + 1..history.len())
                            .filter(|newer| valid(*newer))
                            .filter(|newer| strong.iter().any(|it| history[*newer].stable[*it]))
                            .count();
                        prop_assert!(successors >= keep.max(1), "version {} lost {copy}", at + 1);
                    }
                }
            }
        }
    }
}
