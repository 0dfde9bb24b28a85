//! What changed from one version to another: which regions, and how much of them.
//!
//! Frames of which the index says the same digest are equal and are not read; of others both are read
//! and compared. Invariants: memory is bounded by two frames and the headers and indexes of two
//! containers; a copy that turns out damaged gives way to the next; what cannot be compared is
//! named and counts as neither changed nor unchanged.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::{Error, NodeId, Rank, Version};
use serde::Serialize;

use crate::aligned::PAGE;
use crate::catalogue::Catalogue;
use crate::entry::{Entry, PartState};
use crate::scratch::Scratch;
use crate::sources::{Source, Sources};

/// Changes are counted in blocks of so many bytes too, from the start of a region.
pub const BLOCK: usize = PAGE;

/// A region in all ranks that have one of this name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RegionDiff {
    /// Its name.
    pub name: String,
    /// Ranks that have it in both versions.
    pub ranks: u64,
    /// Ranks of these in which it changed, in length or content.
    pub ranks_changed: u64,
    /// Ranks of these in which its length changed.
    pub resized: u64,
    /// Ranks that have it in the newer version only.
    pub added: u64,
    /// Ranks that have it in the older version only.
    pub removed: u64,
    /// Its bytes in the older version, of all ranks that were compared.
    pub bytes_before: u64,
    /// Its bytes in the newer one.
    pub bytes_after: u64,
    /// Bytes that were compared: of ranks that have it in both, as far as the shorter goes.
    pub bytes_compared: u64,
    /// Bytes of these that differ.
    pub bytes_changed: u64,
    /// Blocks of [`BLOCK`] bytes that were compared.
    pub blocks_compared: u64,
    /// Blocks of these in which a byte differs.
    pub blocks_changed: u64,
    /// Bytes that should have been compared and could not be read.
    pub bytes_unread: u64,
}

/// A node's part of a version of which no copy can be read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Uncompared {
    /// The version.
    pub version: Version,
    /// The node.
    pub node: NodeId,
    /// Its ranks, of those that are in both versions.
    pub ranks: Vec<Rank>,
    /// Why: of the last copy that was tried.
    pub error: Error,
}

/// What changed.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Diff {
    /// Ranks that were compared.
    pub ranks_compared: u64,
    /// Ranks of these in which a region changed, came or went.
    pub ranks_changed: u64,
    /// Ranks of the older version only.
    pub ranks_removed: Vec<Rank>,
    /// Ranks of the newer version only.
    pub ranks_added: Vec<Rank>,
    /// Regions, by name.
    pub regions: Vec<RegionDiff>,
    /// What could not be compared.
    pub uncompared: Vec<Uncompared>,
    /// Copies that turned out damaged on the way.
    pub damaged: Vec<Error>,
}

impl Diff {
    /// True if all that both versions have was compared.
    pub fn is_complete(&self) -> bool {
        let unread = |region: &RegionDiff| region.bytes_unread > 0;
        self.uncompared.is_empty() && !self.regions.iter().any(unread)
    }
}

impl Catalogue {
    /// Compares two versions of which copies can be opened from here; `only`: one rank.
    pub fn diff(&self, older: &Entry, newer: &Entry, only: Option<Rank>) -> Diff {
        let wanted = |rank: &Rank| only.is_none_or(|only| only == *rank);
        let ranks = |entry: &Entry| -> BTreeSet<Rank> {
            let all = entry.parts.iter().flat_map(|it| it.part.ranks.iter());
            all.filter(wanted).collect()
        };
        let (before, after) = (ranks(older), ranks(newer));
        let mut comparison = Comparison {
            sources: Sources::new(self),
            versions: [older.version, newer.version],
            regions: BTreeMap::new(),
            diff: Diff {
                ranks_removed: before.difference(&after).copied().collect(),
                ranks_added: after.difference(&before).copied().collect(),
                ..Diff::default()
            },
            buffers: [Scratch::new(0), Scratch::new(0)],
        };
        // Ranks may have moved to other nodes since.
        let mut of_newer: BTreeMap<Rank, usize> = BTreeMap::new();
        for (at, state) in newer.parts.iter().enumerate() {
            of_newer.extend(state.part.ranks.iter().map(|rank| (rank, at)));
        }
        for one in &older.parts {
            let mut common: BTreeMap<usize, Vec<Rank>> = BTreeMap::new();
            for rank in one.part.ranks.iter().filter(|rank| wanted(rank)) {
                if let Some(at) = of_newer.get(&rank) {
                    common.entry(*at).or_default().push(rank);
                }
            }
            for (at, mut ranks) in common {
                ranks.sort();
                comparison.parts([one, &newer.parts[at]], &ranks);
            }
        }
        let regions = comparison.regions.into_values();
        Diff {
            regions: regions.collect(),
            damaged: comparison.sources.damaged,
            ..comparison.diff
        }
    }
}

struct Comparison<'a> {
    sources: Sources<'a>,
    versions: [Version; 2],
    regions: BTreeMap<String, RegionDiff>,
    diff: Diff,
    buffers: [Scratch; 2],
}

impl<'a> Comparison<'a> {
    /// Compares these ranks of two nodes' parts.
    fn parts(&mut self, states: [&'a PartState; 2], ranks: &[Rank]) {
        let opened = states.map(|state| self.sources.open(state));
        for (nth, result) in opened.iter().enumerate() {
            if let Err(error) = result {
                self.diff.uncompared.push(Uncompared {
                    version: self.versions[nth],
                    node: states[nth].part.node,
                    ranks: ranks.to_vec(),
                    error: error.clone(),
                });
            }
        }
        let [Ok(one), Ok(other)] = opened else {
            return;
        };
        let mut sources = [one, other];
        for rank in ranks {
            self.diff.ranks_compared += 1;
            self.diff.ranks_changed += u64::from(self.rank(&mut sources, *rank));
        }
    }

    /// Compares a rank; true if anything of it changed.
    fn rank(&mut self, sources: &mut [Source<'a>; 2], rank: Rank) -> bool {
        let tables = [0, 1].map(|side| sources[side].regions(rank));
        let mut differs = false;
        for (name, (before, frames)) in &tables[0] {
            let bytes = &before.bytes;
            let region = self.region(name);
            region.bytes_before += bytes;
            match tables[1].get(name) {
                None => {
                    region.removed += 1;
                    differs = true;
                }
                Some((after, others)) => {
                    let after = &after.bytes;
                    region.bytes_after += after;
                    region.ranks += 1;
                    region.resized += u64::from(bytes != after);
                    let common = *bytes.min(after);
                    let spans = [frames.clone(), others.clone()];
                    let changed = self.compare(sources, name, spans, common) || bytes != after;
                    self.region(name).ranks_changed += u64::from(changed);
                    differs |= changed;
                }
            }
        }
        for (name, (after, _)) in &tables[1] {
            if !tables[0].contains_key(name) {
                let region = self.region(name);
                region.added += 1;
                region.bytes_after += after.bytes;
                differs = true;
            }
        }
        differs
    }

    fn region(&mut self, name: &str) -> &mut RegionDiff {
        if !self.regions.contains_key(name) {
            let new = RegionDiff {
                name: name.to_owned(),
                ..RegionDiff::default()
            };
            self.regions.insert(name.to_owned(), new);
        }
        self.regions.entry(name.to_owned()).or_default()
    }

    /// Compares the first `common` bytes of a region, frame by frame; true if any differ.
    fn compare(
        &mut self,
        sources: &mut [Source<'a>; 2],
        name: &str,
        frames: [std::ops::Range<usize>; 2],
        common: u64,
    ) -> bool {
        // Frames are powers of two, so that the larger ones are made of the smaller.
        let sizes = [0, 1].map(|side| u64::from(sources[side].container.plan().frame_bytes));
        let step = sizes[0].min(sizes[1]);
        let mut held: [Option<usize>; 2] = [None; 2];
        let mut changed = false;
        let mut at = 0;
        while at < common {
            let length = step.min(common - at);
            let nth = [0, 1].map(|side| frames[side].start + (at / sizes[side]) as usize);
            let compared = match is_same(sources, nth) {
                true => Ok((0, 0)),
                false => self.span(sources, &mut held, nth, (at, length)),
            };
            let region = self.region(name);
            match compared {
                Ok((bytes, blocks)) => {
                    region.bytes_compared += length;
                    region.blocks_compared += length.div_ceil(BLOCK as u64);
                    region.bytes_changed += bytes;
                    region.blocks_changed += blocks;
                    changed |= bytes > 0;
                }
                Err(error) => {
                    region.bytes_unread += length;
                    tracing::debug!(%error, name, "not compared");
                }
            }
            at += length;
        }
        changed
    }

    /// Bytes and blocks that differ between `length` bytes at `at` in the region, which lie in these
    /// frames. `held`: the frames that are in the buffers.
    fn span(
        &mut self,
        sources: &mut [Source<'a>; 2],
        held: &mut [Option<usize>; 2],
        nth: [usize; 2],
        (at, length): (u64, u64),
    ) -> Result<(u64, u64), Error> {
        for side in [0, 1] {
            if held[side] == Some(nth[side]) {
                continue;
            }
            held[side] = None;
            let mut buffer = std::mem::replace(&mut self.buffers[side], Scratch::new(0));
            let loaded = self
                .sources
                .load(&mut sources[side], nth[side], &mut buffer);
            self.buffers[side] = buffer;
            loaded?;
            held[side] = Some(nth[side]);
        }
        let [one, other] = [0, 1].map(|side| {
            let spot = sources[side].spot(nth[side]);
            let start = PAGE + (at - spot.logical_offset) as usize;
            &self.buffers[side][start..start + length as usize]
        });
        Ok(differing(one, other))
    }
}

/// True if these frames are as long and have the same bytes, as their containers' seals vouch for.
fn is_same(sources: &[Source<'_>; 2], nth: [usize; 2]) -> bool {
    let [one, other] = [0, 1].map(|side| {
        let (spots, sums) = sources[side].container.frames();
        let spot = &spots[nth[side]];
        (spot.logical_offset, spot.length, sums[nth[side]].digest)
    });
    one == other
}

/// How many bytes differ, and in how many blocks.
fn differing(one: &[u8], other: &[u8]) -> (u64, u64) {
    let (mut bytes, mut blocks) = (0, 0);
    for (one, other) in one.chunks(BLOCK).zip(other.chunks(BLOCK)) {
        if one != other {
            blocks += 1;
            bytes += one.iter().zip(other).filter(|(a, b)| a != b).count() as u64;
        }
    }
    (bytes, blocks)
}
