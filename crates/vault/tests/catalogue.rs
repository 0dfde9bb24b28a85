//! A job of three nodes on one disk: what can be restored after which loss.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use common::{Owned, head, id, rank};
use outlive_base::{Code, ContainerId, Incarnation, Level, NodeId, Rank, Version};
use outlive_vault::{
    Catalogue, Directory, GcPolicy, Layout, Part, Record, Rehearsal, Vault, WriteOptions,
    write_container,
};

const JOB: u64 = 0x1234_5678_9abc_def0;
const NODES: u32 = 3;

fn path(vault: &Vault, level: Level, id: ContainerId) -> PathBuf {
    vault.store().locate(&vault.key(level, id)).into()
}

struct Job {
    dir: tempfile::TempDir,
    nodes: Vec<Vault>,
    shared: Vault,
}

impl Job {
    fn new() -> Job {
        let dir = tempfile::tempdir().unwrap();
        let root = |node| dir.path().join(format!("nodes/node-{node}"));
        let nodes = (0..NODES)
            .map(|node| Vault::create(&root(node), JOB).unwrap())
            .collect();
        let shared = Arc::new(Directory::at(&dir.path().join("shared")));
        let shared = Vault::shared(shared, JOB);
        let job = Job { dir, nodes, shared };
        job.start(1, None);
        job
    }

    fn path(&self, node: u32, level: Level, id: ContainerId) -> PathBuf {
        path(&self.nodes[node as usize], level, id)
    }

    fn start(&self, number: u32, restored: Option<(u32, u64)>) {
        let record = Record::Incarnation {
            number: Incarnation(number),
            restored: restored.map(|(i, v)| (Incarnation(i), Version(v), Level::DISK)),
            members: (0..NODES).map(NodeId).collect(),
            ranks: 2 * NODES,
        };
        self.nodes
            .iter()
            .for_each(|node| node.records().persist(&record).unwrap());
    }

    fn data(version: u64, node: u32) -> [Owned; 2] {
        [0, 1].map(|at| rank(2 * node + at, &[9000, 17], version * 10 + u64::from(node)))
    }

    /// Captures a version at the levels and records the commits on `places` nodes.
    fn save(&self, incarnation: u32, version: u64, levels: &[Level], places: usize) {
        let mut parts: BTreeMap<Level, Vec<Part>> = BTreeMap::new();
        for node in 0..NODES {
            let data = Self::data(version, node);
            let id = id(incarnation, version, node);
            let images = data.iter().map(Owned::image).collect();
            let layout = Layout::with_frame_bytes(head(id), images, common::FRAME).unwrap();
            for level in levels {
                let partner = (node + 1) % NODES;
                let (vault, holder) = match *level {
                    Level::DISK => (&self.nodes[node as usize], NodeId(node)),
                    Level::PARTNER => (&self.nodes[partner as usize], NodeId(partner)),
                    _ => (&self.shared, Part::SHARED),
                };
                let (store, key) = (&**vault.store(), vault.key(*level, id));
                let options = WriteOptions::default();
                let sealed = write_container(store, &key, &layout, &options).unwrap();
                parts.entry(*level).or_default().push(Part {
                    node: NodeId(node),
                    id,
                    length: sealed.length,
                    digest: sealed.digest,
                    holder,
                    ranks: data.iter().map(|rank| rank.rank).collect(),
                    parity: None,
                });
            }
        }
        for (level, parts) in parts {
            let commit = Record::Commit {
                incarnation: Incarnation(incarnation),
                version: Version(version),
                level,
                ballot: 1,
                ranks: 2 * NODES,
                parts: parts.into(),
                groups: Vec::new(),
            };
            if level == Level::SHARED {
                self.shared.records().persist_exclusive(&commit).unwrap();
            }
            for node in &self.nodes[..places] {
                node.records().persist(&commit).unwrap();
            }
        }
    }

    fn catalogue(&self) -> Catalogue {
        let nodes: Vec<(NodeId, PathBuf)> = (0..NODES)
            .map(|node| {
                (
                    NodeId(node),
                    self.nodes[node as usize].store().name().into(),
                )
            })
            .collect();
        Catalogue::scan(self.dir.path(), &nodes, JOB)
    }

    fn rehearse(&self, lost: &[u32]) -> Rehearsal {
        let lost = lost.iter().copied().map(NodeId).collect();
        let scratch = self.dir.path().join("scratch");
        self.catalogue().rehearse(&lost, &scratch).unwrap()
    }

    /// What can be rebuilt: incarnation, version, strongest level read.
    fn choice(&self, lost: &[u32]) -> Option<(u32, u64, Level)> {
        let found = self.rehearse(lost);
        let (incarnation, version) = found.rebuilt?;
        Some((incarnation.0, version.0, found.level?))
    }
}

#[test]
fn the_newest_version_that_a_loss_leaves_is_chosen() {
    let job = Job::new();
    assert_eq!(job.choice(&[]), None);
    job.save(1, 10, &[Level::DISK, Level::SHARED], 3);
    job.save(1, 20, &[Level::DISK, Level::PARTNER], 3);
    job.save(1, 30, &[Level::DISK], 3);
    assert_eq!(job.choice(&[]), Some((1, 30, Level::DISK)));
    for node in 0..NODES {
        assert_eq!(job.choice(&[node]), Some((1, 20, Level::PARTNER)), "{node}");
    }
    assert_eq!(job.choice(&[0, 1]), Some((1, 10, Level::SHARED)));
    assert_eq!(job.choice(&[0, 1, 2]), Some((1, 10, Level::SHARED)));
    let answer = job.rehearse(&[0, 1]);
    assert_eq!(answer.rejected.len(), 2);
    assert!(
        answer.rejected[0]
            .reason
            .contains("no sound copy of node 0"),
        "{answer:?}"
    );

    let catalogue = job.catalogue();
    let states: Vec<_> = catalogue
        .entries
        .iter()
        .map(|entry| {
            (
                entry.version.0,
                entry.committed(),
                entry.levels.iter().all(|it| it.stable),
            )
        })
        .collect();
    assert_eq!(
        states,
        [
            (30, Some(Level::DISK), true),
            (20, Some(Level::PARTNER), true),
            (10, Some(Level::SHARED), true)
        ]
    );
    assert!(
        catalogue
            .verify(true)
            .iter()
            .all(|check| check.error.is_none())
    );
    let json = serde_json::to_string(&catalogue).unwrap();
    let back: Catalogue = serde_json::from_str(&json).unwrap();
    assert_eq!(back.entries, catalogue.entries);
}

#[test]
fn without_a_commit_nothing_is_offered_and_stability_needs_two_domains() {
    let job = Job::new();
    job.save(1, 10, &[Level::DISK, Level::PARTNER], 1);
    let entry = &job.catalogue().entries[0];
    let stable: Vec<_> = entry
        .levels
        .iter()
        .map(|it| (it.level, it.stable))
        .collect();
    assert_eq!(stable, [(Level::DISK, true), (Level::PARTNER, false)]);
    // The only record of the commit is on the node that is lost.
    assert_eq!(job.choice(&[0]), None);
    assert_eq!(job.choice(&[1]), Some((1, 10, Level::PARTNER)));
    job.save(1, 20, &[Level::DISK], 0);
    let abort = Record::Abort {
        incarnation: Incarnation(1),
        version: Version(20),
        level: None,
        code: Code::RankLost,
        text: "rank 3 died".into(),
    };
    job.nodes[0].records().persist(&abort).unwrap();
    let answer = job.rehearse(&[]);
    assert_eq!(answer.rejected[0].reason, "aborted: rank 3 died");
    // One of which nobody wrote anything is told apart from those that were captured.
    let never = match abort {
        Record::Abort { code, text, .. } => Record::Abort {
            incarnation: Incarnation(1),
            version: Version(30),
            level: None,
            code,
            text,
        },
        other => other,
    };
    job.nodes[0].records().persist(&never).unwrap();
    let entries = job.catalogue().entries;
    let captured: Vec<_> = entries
        .iter()
        .map(|it| (it.version.0, it.captured))
        .collect();
    assert_eq!(captured, [(30, false), (20, true), (10, true)]);
    let answer = job.rehearse(&[]);
    assert_eq!(answer.rebuilt.unwrap().1, Version(10));
}

#[test]
fn the_highest_ballot_wins_and_void_versions_are_passed_over() {
    let job = Job::new();
    job.save(1, 10, &[Level::DISK], 3);
    job.save(1, 20, &[Level::DISK], 3);
    job.start(2, Some((1, 10)));
    let answer = job.rehearse(&[]);
    assert!(answer.rejected[0].reason.starts_with("void"), "{answer:?}");
    assert_eq!(answer.rebuilt.unwrap().1, Version(10));
    job.save(2, 15, &[Level::DISK], 3);
    assert_eq!(job.choice(&[]), Some((2, 15, Level::DISK)));
    // A later ballot that names another seal: the files are not what was committed.
    let scan = job.nodes[0].records().scan().unwrap().records;
    let mut record = scan
        .into_iter()
        .find(|it| {
            matches!(
                it,
                Record::Commit {
                    version: Version(15),
                    ..
                }
            )
        })
        .unwrap();
    if let Record::Commit { ballot, parts, .. } = &mut record {
        *ballot = 2;
        std::sync::Arc::make_mut(parts)[1].digest ^= 1;
    }
    job.nodes[2].records().persist(&record).unwrap();
    let answer = job.rehearse(&[]);
    assert!(
        answer.rejected[0]
            .reason
            .contains("no sound copy of node 1"),
        "{answer:?}"
    );
    assert_eq!(answer.rebuilt.unwrap().1, Version(10));
}

#[test]
fn damage_costs_one_copy_and_rehearsal_finds_what_a_glance_does_not() {
    let job = Job::new();
    job.save(1, 10, &[Level::DISK, Level::PARTNER], 3);
    job.save(1, 20, &[Level::DISK, Level::PARTNER], 3);
    let scratch = job.dir.path().join("scratch");
    let good = job.rehearse(&[1]);
    assert_eq!(good.rebuilt, Some((Incarnation(1), Version(20))));
    assert_eq!(good.level, Some(Level::PARTNER));
    for (at, proof) in good.ranks.iter().enumerate() {
        assert_eq!(proof.rank, Rank(at as u32));
        let want = &Job::data(20, at as u32 / 2)[at % 2];
        assert_eq!(proof.digest, outlive_codec::digest(&want.wanted()));
    }
    assert_eq!(
        std::fs::read_dir(&scratch).unwrap().count(),
        0,
        "scratch is left empty"
    );

    // One bit of payload in the partner's copy of node 1.
    let path = job.path(2, Level::PARTNER, id(1, 20, 1));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[3 * 4096] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let glance = job.catalogue().verify(false);
    assert!(
        glance.iter().all(|check| check.error.is_none()),
        "a glance sees headers only"
    );
    let checks = job.catalogue().verify(true);
    let bad: Vec<_> = checks
        .iter()
        .filter(|check| check.error.is_some())
        .collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(bad[0].error.as_ref().unwrap().code(), Code::Corrupt);
    let found = job.rehearse(&[1]);
    assert_eq!(found.rebuilt, Some((Incarnation(1), Version(10))));
    assert_eq!((found.damaged.len(), found.rejected.len()), (1, 1));
    assert_eq!(
        job.rehearse(&[]).rebuilt,
        Some((Incarnation(1), Version(20))),
        "own copies serve"
    );

    // Node 0's own copy cut off: its partner's serves.
    let path = job.path(0, Level::DISK, id(1, 20, 0));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
    let answer = job.rehearse(&[]);
    assert_eq!(answer.rebuilt, Some((Incarnation(1), Version(20))));
    // Everything of version 20 gone: the older one.
    std::fs::remove_file(job.path(1, Level::DISK, id(1, 20, 1))).unwrap();
    let answer = job.rehearse(&[]);
    assert_eq!(answer.rebuilt, Some((Incarnation(1), Version(10))));
    assert_eq!(job.rehearse(&[0, 1]).rebuilt, None);
}

#[test]
fn gc_removes_what_is_superseded_and_goes_on_after_a_crash() {
    let job = Job::new();
    let levels = [Level::DISK, Level::PARTNER];
    for version in [10, 20, 30] {
        job.save(1, version, &levels, 3);
    }
    let stable = |versions: &[u64]| GcPolicy {
        stable: versions
            .iter()
            .flat_map(|v| levels.map(|level| (Incarnation(1), Version(*v), level)))
            .collect(),
        keep: 1,
        ..GcPolicy::default()
    };
    assert!(job.nodes[0].gc(&stable(&[10])).unwrap().removed.is_empty());
    // Tombstones that somebody else writes before are as good.
    let removal = || {
        let found = job.nodes[0].found().unwrap();
        job.nodes[0].removal(found, stable(&[10, 20])).unwrap()
    };
    let due = removal();
    let tombs = due.tombs();
    assert_eq!(tombs.len(), 2);
    for result in job.nodes[0].records().persist_all(&[&tombs[0], &tombs[1]]) {
        result.unwrap();
    }
    assert!(removal().tombs().is_empty());
    let report = job.nodes[0].remove(&due).unwrap();
    assert_eq!(report.removed.len(), 2);
    assert!(
        report
            .removed
            .iter()
            .all(|(id, _, _)| id.version == Version(10))
    );
    assert!(
        job.nodes[0]
            .gc(&stable(&[10, 20]))
            .unwrap()
            .removed
            .is_empty(),
        "idempotent"
    );
    let entry = job.catalogue().entries.pop().unwrap();
    assert_eq!(entry.version, Version(10));
    assert_eq!(job.choice(&[]), Some((1, 30, Level::DISK)));

    // A crash between tombstone and removal: not offered any more, removed next time.
    let tombstone = Record::Tombstone {
        id: id(1, 30, 1),
        level: Level::DISK,
    };
    job.nodes[1].records().persist(&tombstone).unwrap();
    assert_eq!(
        job.choice(&[]),
        Some((1, 30, Level::PARTNER)),
        "its partner's copy is taken"
    );
    let report = job.nodes[1].gc(&GcPolicy::default()).unwrap();
    assert_eq!(report.removed.len(), 1);
    assert!(!job.path(1, Level::DISK, id(1, 30, 1)).exists());
    // Without any word of stability nothing else goes.
    assert!(
        job.nodes[2]
            .gc(&GcPolicy::default())
            .unwrap()
            .removed
            .is_empty()
    );
}

/// The key of a job was lost and made anew: its records are another job's from then on.
/// What they speak of is named, and stays for the day when the key is put back.
#[test]
fn what_another_key_has_committed_is_named_and_not_removed() {
    let job = Job::new();
    job.save(1, 10, &[Level::DISK, Level::PARTNER], 3);
    let all = job.nodes[0].found().unwrap().len();
    let anew = Vault::of_node(Arc::clone(job.nodes[0].store()), JOB + 1);
    let commit = |version| Record::Commit {
        incarnation: Incarnation(2),
        version: Version(version),
        level: Level::DISK,
        ballot: 1,
        ranks: 1,
        parts: vec![].into(),
        groups: Vec::new(),
    };
    anew.records().persist(&commit(50)).unwrap();
    let policy = GcPolicy {
        stable: [Level::DISK, Level::PARTNER, Level::SHARED]
            .map(|level| (Incarnation(2), Version(50), level))
            .into(),
        keep: 1,
        ..GcPolicy::default()
    };
    assert!(anew.gc(&policy).unwrap().removed.is_empty());
    assert_eq!(anew.found().unwrap().len(), all);
    let nodes = [(NodeId(0), job.nodes[0].store().name().into())];
    let catalogue = Catalogue::scan(job.dir.path(), &nodes, JOB + 1);
    let [error] = &catalogue.errors[..] else {
        panic!("{:?}", catalogue.errors)
    };
    assert_eq!(error.code(), Code::KeyMismatch);
    assert!(error.reason().starts_with("3 records"), "{error}");
    // With the key back everything is as it was.
    assert_eq!(job.choice(&[]), Some((1, 10, Level::DISK)));
}

#[test]
fn records_of_versions_long_gone_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let node = Vault::create(dir.path(), JOB).unwrap();
    let tombstones = |versions: std::ops::RangeInclusive<u64>| {
        for version in versions {
            let id = id(1, version, 0);
            let level = Level::DISK;
            let record = Record::Tombstone { id, level };
            node.records().persist(&record).unwrap();
        }
    };
    tombstones(1..=80);
    assert_eq!(node.gc(&GcPolicy::default()).unwrap().records, 0);
    // They go together.
    tombstones(81..=81);
    assert_eq!(node.gc(&GcPolicy::default()).unwrap().records, 17);
    let left = node.records().scan().unwrap().records;
    assert!(
        left.iter()
            .all(|it| it.checkpoint().unwrap().1 > Version(17))
            && left.len() == 64
    );
}

/// Versions of the levels memory and shared leave no container on a node, and so no
/// tombstone: their records must not pile up all the same.
#[test]
fn records_of_versions_without_a_copy_here_are_forgotten_too() {
    for level in [Level::MEMORY, Level::SHARED] {
        let dir = tempfile::tempdir().unwrap();
        let node = Vault::create(dir.path(), JOB).unwrap();
        let at = |version| (Incarnation(1), Version(version));
        let commit = |version, level| Record::Commit {
            incarnation: Incarnation(1),
            version: Version(version),
            level,
            ballot: 1,
            ranks: 1,
            parts: vec![].into(),
            groups: Vec::new(),
        };
        let pin = Record::Pin {
            incarnation: Incarnation(1),
            version: Version(3),
        };
        node.records().persist(&pin).unwrap();
        // Both are in use: what a version is not known at, it may be at.
        for stronger in [Level::PARTNER, Level::SHARED] {
            node.records().persist(&commit(3, stronger)).unwrap();
        }
        for version in 1..=90 {
            node.records().persist(&commit(version, level)).unwrap();
        }
        let policy = |levels: BTreeSet<Level>| GcPolicy {
            stable: (1..=89)
                .map(|v| (Incarnation(1), Version(v), level))
                .collect(),
            keep: 2,
            in_use: BTreeSet::from([at(5)]),
            levels: (1..=90).map(|v| (at(v), levels.clone())).collect(),
            ..GcPolicy::default()
        };
        let versions = || -> BTreeSet<u64> {
            let records = node.records().scan().unwrap().records;
            records
                .iter()
                .map(|it| it.checkpoint().unwrap().1.0)
                .collect()
        };
        // Not known at which levels they are, or known to be stronger than what replaced
        // them: all stay.
        let unknown = GcPolicy {
            levels: BTreeMap::new(),
            ..policy(BTreeSet::new())
        };
        for policy in [unknown, policy(BTreeSet::from([Level::PARTNER]))] {
            assert_eq!(node.gc(&policy).unwrap().records, 0, "{level}");
        }
        // 88, 89 and 90 are not replaced; 64 of the others stay for listings.
        let removed = node.gc(&policy(BTreeSet::from([level]))).unwrap().records;
        assert_eq!(removed, 87 - 64 - 2, "{level}");
        let left: BTreeSet<u64> = (24..=90).chain([3, 5]).collect();
        assert_eq!(versions(), left, "{level}");
    }
}

#[test]
fn a_second_process_may_scan_at_any_time() {
    let job = Job::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1..8 {
                job.save(1, version, &[Level::DISK], 3);
                let stable = (1..=version).map(|v| (Incarnation(1), Version(v), Level::DISK));
                let policy = GcPolicy {
                    stable: stable.collect(),
                    levels: (1..=version)
                        .map(|v| ((Incarnation(1), Version(v)), BTreeSet::from([Level::DISK])))
                        .collect(),
                    ..GcPolicy::default()
                };
                job.nodes.iter().for_each(|node| {
                    node.gc(&policy).unwrap();
                });
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut newest = 0;
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let catalogue = job.catalogue();
            assert!(catalogue.damaged.is_empty() && catalogue.errors.is_empty());
            let scratch = job.dir.path().join("beside");
            let found = catalogue.rehearse(&BTreeSet::new(), &scratch).unwrap();
            if let Some((_, version)) = found.rebuilt {
                assert!(version.0 >= newest);
                newest = version.0;
            }
        }
    });
    assert_eq!(job.choice(&[]), Some((1, 7, Level::DISK)));
}
