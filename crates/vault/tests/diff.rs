//! What changed from one version to another, of jobs whose every byte is known.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{head, id};
use outlive_base::{Incarnation, Level, NodeId, Rank, Version};
use outlive_capture::region::{self, Region};
use outlive_vault::{
    BLOCK, Buffer, Catalogue, Diff, Layout, Part, RankImage, Record, RegionDiff, Vault,
    WriteOptions, write_container,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const JOB: u64 = 0x1234_5678_9abc_def0;

/// The regions of a rank.
type State = BTreeMap<String, Vec<u8>>;

struct Store {
    dir: tempfile::TempDir,
    nodes: Vec<Vault>,
}

fn image(state: &State) -> (Vec<u8>, Buffer) {
    let regions: Vec<Region> = state
        .iter()
        .map(|(name, bytes)| Region::memory(name.as_str(), bytes.len() as u64))
        .collect();
    let (offsets, total) = region::offsets(&regions).unwrap();
    let mut data = Buffer::new(total as usize);
    for (offset, bytes) in offsets.iter().zip(state.values()) {
        data[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
    }
    (region::encode(&regions), data)
}

impl Store {
    fn new(nodes: u32) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let vault = |node: u32| Vault::create(&dir.path().join(node.to_string()), JOB).unwrap();
        let nodes = (0..nodes).map(vault).collect();
        Store { dir, nodes }
    }

    /// Commits a version at `disk` and `partner`: by node, its ranks.
    fn save(&self, version: u64, frame: u32, nodes: &[BTreeMap<u32, State>]) {
        let count = nodes.iter().map(BTreeMap::len).sum::<usize>() as u32;
        let mut parts: [Vec<Part>; 2] = Default::default();
        for (node, ranks) in nodes.iter().enumerate() {
            let id = id(1, version, node as u32);
            let images: Vec<_> = ranks.iter().map(|(rank, it)| (*rank, image(it))).collect();
            let images = images.iter().map(|(rank, (table, data))| RankImage {
                rank: Rank(*rank),
                table,
                data,
            });
            let mut head = head(id);
            head.ranks_total = 64;
            let layout = Layout::with_frame_bytes(head, images.collect(), frame).unwrap();
            let partner = (node + 1) % self.nodes.len();
            for (at, level, holder) in [(0, Level::DISK, node), (1, Level::PARTNER, partner)] {
                let vault = &self.nodes[holder];
                let key = vault.key(level, id);
                let options = WriteOptions::default();
                let sealed = write_container(&**vault.store(), &key, &layout, &options).unwrap();
                parts[at].push(Part {
                    node: NodeId(node as u32),
                    id,
                    length: sealed.length,
                    digest: sealed.digest,
                    holder: NodeId(holder as u32),
                    ranks: ranks.keys().copied().map(Rank).collect(),
                    parity: None,
                });
            }
        }
        for (level, parts) in [Level::DISK, Level::PARTNER].into_iter().zip(parts) {
            let commit = Record::Commit {
                incarnation: Incarnation(1),
                version: Version(version),
                level,
                ballot: 1,
                ranks: count,
                parts: parts.into(),
                groups: Vec::new(),
            };
            for node in &self.nodes {
                node.records().persist(&commit).unwrap();
            }
        }
    }

    fn catalogue(&self) -> Catalogue {
        let root = |node: usize| self.dir.path().join(node.to_string());
        let nodes: Vec<(NodeId, PathBuf)> = (0..self.nodes.len())
            .map(|node| (NodeId(node as u32), root(node)))
            .collect();
        Catalogue::scan(self.dir.path(), &nodes, JOB)
    }

    fn diff(&self, only: Option<u32>) -> Diff {
        let catalogue = self.catalogue();
        let [newer, older] = &catalogue.entries[..] else {
            panic!("two versions");
        };
        catalogue.diff(older, newer, only.map(Rank))
    }

    fn path(&self, node: usize, level: Level, version: u64, of: u32) -> PathBuf {
        let vault = &self.nodes[node];
        let key = vault.key(level, id(1, version, of));
        vault.store().locate(&key).into()
    }
}

fn state(regions: &[(&str, Vec<u8>)]) -> State {
    let owned = regions.iter();
    owned
        .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()))
        .collect()
}

fn region<'a>(diff: &'a Diff, name: &str) -> &'a RegionDiff {
    diff.regions.iter().find(|it| it.name == name).unwrap()
}

/// The plain way.
fn by_definition(older: &BTreeMap<u32, State>, newer: &BTreeMap<u32, State>) -> Vec<RegionDiff> {
    let mut found: BTreeMap<&str, RegionDiff> = BTreeMap::new();
    for (rank, before) in older {
        let Some(after) = newer.get(rank) else {
            continue;
        };
        let names = before.keys().chain(after.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            let region = found.entry(name).or_default();
            region.name.clone_from(name);
            let (one, other) = (before.get(name), after.get(name));
            region.bytes_before += one.map_or(0, Vec::len) as u64;
            region.bytes_after += other.map_or(0, Vec::len) as u64;
            let (Some(one), Some(other)) = (one, other) else {
                region.removed += u64::from(one.is_some());
                region.added += u64::from(other.is_some());
                continue;
            };
            region.ranks += 1;
            region.resized += u64::from(one.len() != other.len());
            region.ranks_changed += u64::from(one != other);
            region.bytes_compared += one.len().min(other.len()) as u64;
            let pairs: Vec<(&u8, &u8)> = one.iter().zip(other).collect();
            for block in pairs.chunks(BLOCK) {
                let changed = block.iter().filter(|(a, b)| a != b).count() as u64;
                region.bytes_changed += changed;
                region.blocks_changed += u64::from(changed > 0);
                region.blocks_compared += 1;
            }
        }
    }
    found.into_values().collect()
}

fn states() -> impl Strategy<Value = State> {
    let bytes = (0..40_000usize, any::<u8>()).prop_map(|(length, fill)| vec![fill & 3; length]);
    prop::collection::btree_map("[abc]", bytes, 0..4)
}

/// Two versions of the same rank: mostly the same bytes.
fn pairs() -> impl Strategy<Value = (State, State)> {
    let changes = prop::collection::vec((0..3u8, 0..40_000usize), 0..6);
    (states(), states(), changes, any::<bool>()).prop_map(|(one, other, changes, anew)| {
        let mut after = match anew {
            true => other,
            false => one.clone(),
        };
        for (which, at) in changes {
            let name = ["a", "b", "c"][which as usize];
            if let Some(byte) = after.get_mut(name).and_then(|bytes| bytes.get_mut(at)) {
                *byte ^= 0x80;
            }
        }
        (one, after)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]
    #[test]
    fn it_is_what_comparing_byte_by_byte_gives(
        ranks in prop::collection::vec(pairs(), 1..5),
        frames in (0..4u32, 0..4u32),
        moved in any::<bool>(),
        fewer in any::<bool>(),
    ) {
        let store = Store::new(2);
        let place = |after: bool| -> Vec<BTreeMap<u32, State>> {
            let mut nodes = vec![BTreeMap::new(), BTreeMap::new()];
            for (rank, (one, other)) in ranks.iter().enumerate() {
                let node = (rank + usize::from(after && moved)) % 2;
                let state = if after { other } else { one };
                nodes[node].insert(rank as u32, state.clone());
            }
            if after && fewer {
                nodes[0].pop_last();
            }
            nodes
        };
        let (before, after) = (place(false), place(true));
        store.save(1, 4096 << frames.0, &before);
        store.save(2, 4096 << frames.1, &after);
        let all = |nodes: Vec<BTreeMap<u32, State>>| -> BTreeMap<u32, State> {
            nodes.into_iter().flatten().collect()
        };
        let (before, after) = (all(before), all(after));
        let diff = store.diff(None);
        prop_assert!(diff.is_complete() && diff.damaged.is_empty());
        prop_assert_eq!(&diff.regions, &by_definition(&before, &after));
        let both = before.keys().filter(|rank| after.contains_key(rank));
        let changed = both.filter(|rank| before[rank] != after[rank]).count();
        prop_assert_eq!(diff.ranks_changed, changed as u64);
        let lost = before.keys().filter(|rank| !after.contains_key(rank));
        prop_assert_eq!(diff.ranks_removed, lost.copied().map(Rank).collect::<Vec<_>>());
    }
}

/// Two nodes with a rank each: `x` changes in 3 bytes of one block, `y` not at all.
fn known() -> Store {
    let store = Store::new(2);
    let mut x = vec![7; 20_000];
    let y = vec![1; 9000];
    let of = |x: &[u8]| state(&[("x", x.to_vec()), ("y", y.clone())]);
    let nodes = |x: &[u8]| [BTreeMap::from([(0, of(x))]), BTreeMap::from([(1, of(x))])];
    store.save(1, 4096, &nodes(&x));
    x[5000] ^= 1;
    x[5002] ^= 1;
    x[8191] ^= 1;
    store.save(2, 4096, &nodes(&x));
    store
}

#[test]
fn frames_that_the_index_calls_equal_are_not_read() {
    let store = known();
    // Rot in a frame that did not change is the business of others; in one that did, of this.
    let rot = |path: PathBuf, at: usize| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    // Header, frame page, first frame of x; then those of its second.
    rot(store.path(0, Level::DISK, 2, 0), 2 * BLOCK + 5);
    assert_eq!(store.diff(None).damaged, []);
    rot(store.path(0, Level::DISK, 2, 0), 4 * BLOCK + 5);
    let diff = store.diff(None);
    assert_eq!(diff.damaged.len(), 1, "{diff:?}");
    assert!(diff.is_complete(), "the partner's copy is read");
    assert_eq!(region(&diff, "x").bytes_changed, 6);
    // And if that is damaged too, it is said.
    rot(store.path(1, Level::PARTNER, 2, 0), 4 * BLOCK + 5);
    let diff = store.diff(None);
    let x = region(&diff, "x");
    assert!(!diff.is_complete() && x.bytes_unread == 4096 && x.bytes_changed == 3);
    assert!(store.diff(Some(1)).is_complete(), "the other rank is whole");
}

#[test]
fn what_is_missing_is_named() {
    let store = known();
    let diff = store.diff(None);
    let x = region(&diff, "x");
    assert_eq!((x.ranks, x.ranks_changed), (2, 2));
    assert_eq!((x.bytes_changed, x.blocks_changed), (6, 2));
    assert_eq!((x.bytes_compared, x.blocks_compared), (40_000, 10));
    assert_eq!(region(&diff, "y").bytes_changed, 0);
    assert_eq!((diff.ranks_compared, diff.ranks_changed), (2, 2));
    std::fs::remove_file(store.path(1, Level::DISK, 1, 1)).unwrap();
    assert!(store.diff(None).is_complete());
    std::fs::remove_file(store.path(0, Level::PARTNER, 1, 1)).unwrap();
    let diff = store.diff(None);
    assert_eq!((diff.ranks_compared, diff.uncompared.len()), (1, 1));
    let missing = &diff.uncompared[0];
    assert_eq!(
        (missing.version, missing.node, &missing.ranks[..]),
        (Version(1), NodeId(1), &[Rank(1)][..])
    );
}
