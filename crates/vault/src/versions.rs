//! From the records and files of many places to one table of versions.
//!
//! Invariants: of several commits of a level the highest ballot wins; every place that
//! records the decision, in whatever ballot, counts for its stability; a copy under a
//! tombstone is no copy; the order of places and records does not matter.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::{Incarnation, Level, NodeId, Version};

use crate::aligned::PAGE64;
use crate::entry::{CopyState, Entry, Group, LevelState, PartState};
use crate::inventory::Inventory;
use outlive_ledger::Lineage;
use outlive_ledger::{Part, Record};

/// What the records of one version say.
#[derive(Default)]
struct Known<'r> {
    /// Per level: the winning commit and the places that record the decision.
    commits: BTreeMap<Level, (&'r Record, BTreeSet<NodeId>)>,
    aborts: BTreeMap<Option<Level>, &'r str>,
    /// The places where a pin stands.
    pinned: BTreeSet<NodeId>,
    superseded: bool,
    captured: bool,
}

fn gather<'r>(inventories: &[&'r Inventory]) -> BTreeMap<(Incarnation, Version), Known<'r>> {
    let mut known: BTreeMap<(Incarnation, Version), Known<'r>> = BTreeMap::new();
    let mut buried = BTreeSet::new();
    for inventory in inventories {
        for record in &inventory.records {
            let Some(checkpoint) = record.checkpoint() else {
                continue;
            };
            // A tombstone alone is no version to speak of.
            if matches!(record, Record::Tombstone { .. }) {
                buried.insert(checkpoint);
                continue;
            }
            let version = known.entry(checkpoint).or_default();
            match record {
                Record::Commit { level, ballot, .. } => {
                    version.captured = true;
                    let (winner, places) = version
                        .commits
                        .entry(*level)
                        .or_insert((record, BTreeSet::new()));
                    if matches!(winner, Record::Commit { ballot: other, .. } if ballot > other) {
                        *winner = record;
                    }
                    // A decision that was replicated again in a higher ballot is the
                    // same decision: every place that has it counts.
                    places.insert(inventory.place);
                }
                Record::Abort { level, text, .. } => {
                    version.aborts.insert(*level, text);
                }
                Record::Prepared { .. } => version.captured = true,
                _ => {}
            }
        }
    }
    for copy in inventories.iter().flat_map(|it| &it.copies) {
        if let Some(version) = known.get_mut(&(copy.id.incarnation, copy.id.version)) {
            version.captured = true;
        }
    }
    for inventory in inventories {
        for checkpoint in &inventory.pinned {
            let version = known.entry(*checkpoint).or_default();
            version.pinned.insert(inventory.place);
        }
    }
    for checkpoint in buried {
        if let Some(version) = known.get_mut(&checkpoint) {
            version.superseded = true;
        }
    }
    known
}

/// All versions that the records of these places speak of, newest first.
pub(crate) fn entries(inventories: &[&Inventory]) -> Vec<Entry> {
    let records = || inventories.iter().flat_map(|it| &it.records);
    let line = Lineage::new(records());
    let nodes = records()
        .filter_map(|record| match record {
            Record::Incarnation { members, .. } => Some(members.len() as u32),
            _ => None,
        })
        .max()
        .unwrap_or(0);
    let known = gather(inventories);
    let pinnable: Vec<NodeId> = inventories
        .iter()
        .filter(|it| it.is_in_use())
        .map(|it| it.place)
        .collect();
    let entry = |((incarnation, version), known): (&(Incarnation, Version), &Known<'_>)| {
        let mut parts: BTreeMap<NodeId, PartState> = BTreeMap::new();
        let mut ranks_total = 0;
        for (level, (record, _)) in &known.commits {
            let Record::Commit {
                parts: committed,
                ranks,
                ..
            } = record
            else {
                continue;
            };
            ranks_total = *ranks;
            for part in committed.iter() {
                let state = parts.entry(part.node).or_insert_with(|| PartState {
                    part: part.clone(),
                    copies: Vec::new(),
                });
                state.part.parity = state.part.parity.or(part.parity);
                add_copies(state, part, *level, inventories);
            }
        }
        for state in parts.values_mut() {
            state.copies.sort_by_key(|copy| (copy.level, copy.place));
        }
        Entry {
            incarnation: *incarnation,
            version: *version,
            void: line.is_void(*incarnation, *version),
            unproven: line.is_unproven(*incarnation, *version),
            pinned: !known.pinned.is_empty(),
            half_pinned: !known.pinned.is_empty() && known.pinned.len() < pinnable.len(),
            superseded: known.superseded,
            captured: known.captured,
            ranks: ranks_total,
            bytes: parts.values().map(|state| state.part.length).sum(),
            levels: levels(known, nodes),
            parts: parts.into_values().collect(),
            groups: groups(known),
        }
    };
    known.iter().rev().map(entry).collect()
}

fn groups(known: &Known<'_>) -> Vec<Group> {
    let commits = known
        .commits
        .iter()
        .filter_map(|(level, (record, _))| match record {
            Record::Commit { groups, .. } => Some((*level, groups)),
            _ => None,
        });
    let group = |level, members: &Vec<NodeId>| Group {
        level,
        members: members.clone(),
    };
    commits
        .flat_map(|(level, groups)| groups.iter().map(move |members| group(level, members)))
        .collect()
}

fn levels(known: &Known<'_>, nodes: u32) -> Vec<LevelState> {
    let all = known.aborts.get(&None).copied();
    let mut levels = Vec::new();
    let recorded = known.commits.keys().copied();
    let aborted = known.aborts.keys().copied().flatten();
    let named: BTreeSet<Level> = recorded.chain(aborted).chain(Level::PLAIN).collect();
    for level in named {
        let commit = known.commits.get(&level);
        let aborted = known.aborts.get(&Some(level)).copied().or(all);
        if commit.is_none() && aborted.is_none() {
            continue;
        }
        let places = commit.map(|(_, places)| places);
        let shared = places.is_some_and(|places| places.contains(&Part::SHARED));
        let recorded = places.map_or(0, |places| places.len() as u32);
        let enough =
            level.store() != StoreKind::Shared && recorded > level.domains_tolerated(nodes);
        levels.push(LevelState {
            level,
            committed: commit.and_then(|(record, _)| match record {
                Record::Commit { ballot, .. } => Some(*ballot),
                _ => None,
            }),
            recorded,
            stable: shared || enough,
            aborted: aborted.filter(|_| commit.is_none()).map(str::to_owned),
        });
    }
    levels
}

/// The length of what a part is at a level: of a container, or of a parity with its header.
fn length(part: &Part, level: Level) -> u64 {
    match part.parity.filter(|_| level.members().is_some()) {
        Some(parity) => parity.length.saturating_add(PAGE64),
        None => part.length,
    }
}

/// The copies that a commit of `part` at `level` calls for: the named one, present
/// or not; and, if present, the node's own (a container is the same file wherever
/// it lies).
fn add_copies(state: &mut PartState, part: &Part, level: Level, inventories: &[&Inventory]) {
    let mut add = |place: NodeId, tier: Level, wanted: bool| {
        let Some(inventory) = inventories.iter().find(|it| it.place == place) else {
            return;
        };
        let found = inventory
            .copy(part, tier)
            .filter(|found| found.length == length(part, tier));
        let known = state
            .copies
            .iter()
            .any(|copy| (copy.place, copy.level) == (place, tier));
        if !known && (wanted || found.is_some()) {
            state.copies.push(CopyState {
                place,
                level: tier,
                path: found.map(|found| found.path.clone()),
                local: true,
                parity: part.parity.filter(|_| tier.members().is_some()),
            });
        }
    };
    match (level.store(), level.scheme()) {
        (StoreKind::Keeper, _) => {}
        (StoreKind::Shared, _) => add(Part::SHARED, level, true),
        (StoreKind::Node, Scheme::Single | Scheme::Copies) => add(part.holder, level, true),
        // Of its server, if the job has told where that is.
        (StoreKind::Server, _) => {
            add(part.node, Level::DISK, true);
            if part.parity.is_some() {
                add(NodeId::SERVER, level, true);
            }
        }
        (StoreKind::Node, Scheme::Xor | Scheme::ReedSolomon) => {
            add(part.node, Level::DISK, true);
            add(part.node, level, true);
        }
    }
    add(part.node, Level::DISK, false);
    add(Part::SHARED, Level::SHARED, false);
    for inventory in inventories {
        add(inventory.place, Level::PARTNER, false);
    }
}
