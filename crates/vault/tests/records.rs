//! Records: whole and durable, or not there.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::id;
use outlive_base::{Code, ContainerId, Error, Incarnation, Level, NodeId, Rank, Version};
use outlive_vault::{
    Directory, Exclusive, Key, ObjectKind, Parity, Part, Record, RecordError, RecordStore,
    WriteError,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const JOB: u64 = 77;

/// Records right in a directory.
fn records(directory: &Path) -> RecordStore {
    RecordStore::new(Arc::new(Directory::at(directory)), ObjectKind::Mark, JOB)
}

fn key(name: &str) -> Key {
    Key::new(ObjectKind::Mark, name).unwrap()
}

fn commit(ballot: u64, ranks: u32) -> Record {
    Record::Commit {
        incarnation: Incarnation(1),
        version: Version(5),
        level: Level::PARTNER,
        ballot,
        ranks,
        parts: vec![Part {
            node: NodeId(0),
            id: id(1, 5, 0),
            length: 4096,
            digest: u128::MAX - 3,
            holder: NodeId(1),
            ranks: vec![Rank(0), Rank(1)].into(),
            parity: None,
        }]
        .into(),
        groups: Vec::new(),
    }
}

fn any_part() -> impl Strategy<Value = Part> {
    let ranks = prop::collection::vec(any::<u32>().prop_map(Rank), 0..5);
    (
        any::<(u32, u32, u64, u64)>(),
        any::<u128>(),
        any::<u32>(),
        ranks,
        any::<Option<(u64, u128)>>(),
    )
        .prop_map(
            |((node, incarnation, version, length), digest, holder, ranks, parity)| Part {
                node: NodeId(node),
                id: id(incarnation, version, node),
                length,
                digest,
                holder: NodeId(holder),
                ranks: ranks.into(),
                parity: parity.map(|(length, digest)| Parity { length, digest }),
            },
        )
}

fn any_record() -> impl Strategy<Value = Record> {
    let level = || {
        let xor = (3..=32).filter_map(Level::xor);
        let rs = (2..=32).flat_map(|k| (2..=4).filter_map(move |m| Level::rs(k, m)));
        let all = Level::PLAIN.into_iter().chain(xor).chain(rs);
        prop::sample::select(all.collect::<Vec<_>>())
    };
    let point = || {
        (
            any::<u32>().prop_map(Incarnation),
            any::<u64>().prop_map(Version),
        )
    };
    prop_oneof![
        (
            point(),
            level(),
            any::<Option<u32>>(),
            any::<u32>(),
            any::<Vec<u32>>()
        )
            .prop_map(|((number, version), level, older, ranks, members)| {
                Record::Incarnation {
                    number,
                    restored: older.map(|older| (Incarnation(older), version, level)),
                    members: members.into_iter().map(NodeId).collect(),
                    ranks,
                }
            }),
        (point(), level(), any::<u64>(), any_part()).prop_map(
            |((incarnation, version), level, ballot, part)| Record::Prepared {
                incarnation,
                version,
                level,
                ballot,
                part,
            }
        ),
        (
            point(),
            level(),
            any::<(u64, u32)>(),
            prop::collection::vec(any_part(), 0..4),
            any::<Vec<Vec<u32>>>(),
        )
            .prop_map(
                |((incarnation, version), level, (ballot, ranks), parts, groups)| {
                    let group = |group: Vec<u32>| group.into_iter().map(NodeId).collect();
                    Record::Commit {
                        incarnation,
                        version,
                        level,
                        ballot,
                        ranks,
                        parts: parts.into(),
                        groups: groups.into_iter().map(group).collect(),
                    }
                }
            ),
        (
            point(),
            prop::option::of(level()),
            prop::sample::select(Code::ALL.to_vec()),
            any::<String>()
        )
            .prop_map(
                |((incarnation, version), level, code, text)| Record::Abort {
                    incarnation,
                    version,
                    level,
                    code,
                    text,
                }
            ),
        (any::<(u32, u64, u32)>(), level()).prop_map(|((incarnation, version, node), level)| {
            Record::Tombstone {
                id: id(incarnation, version, node),
                level,
            }
        }),
        (any::<u32>(), any::<Option<u64>>()).prop_map(|(incarnation, version)| Record::Finished {
            incarnation: Incarnation(incarnation),
            version: version.map(Version),
        }),
        any::<u64>().prop_map(|ballot| Record::Promise { ballot }),
        (any::<u32>(), any::<u64>()).prop_map(|(incarnation, version)| Record::History {
            incarnation: Incarnation(incarnation),
            version: Version(version),
        }),
        point().prop_map(|(incarnation, version)| Record::Pin {
            incarnation,
            version
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]
    #[test]
    fn any_record_round_trips_in_memory_on_disk_and_as_json(record in any_record()) {
        let bytes = record.encode(JOB).unwrap();
        prop_assert_eq!(&Record::decode(&bytes, JOB).unwrap(), &record);
        prop_assert_eq!(Record::decode(&bytes, JOB + 1), Err(RecordError::OtherJob));
        let json = serde_json::to_string(&record).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Record>(&json).unwrap(), &record);
    }

    #[test]
    fn mutated_records_never_panic_and_are_refused(
        record in any_record(), at: prop::sample::Index, flip in 1u8..,
    ) {
        let mut bytes = record.encode(JOB).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(Record::decode(&bytes, JOB).is_err());
    }
}

#[test]
fn a_record_torn_at_any_length_is_refused_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = records(dir.path());
    let bytes = commit(1, 2).encode(JOB).unwrap();
    let name = commit(1, 2).file_name(false);
    let path = dir.path().join(&name);
    for length in 0..bytes.len() {
        assert!(Record::decode(&bytes[..length], JOB).is_err(), "{length}");
        // A hole where the end should be: what some file systems leave.
        let mut holed = bytes.clone();
        holed[length..].fill(0);
        assert!(Record::decode(&holed, JOB).is_err(), "{length}, holed");
        std::fs::write(&path, &bytes[..length]).unwrap();
        let scan = store.scan().unwrap();
        assert_eq!(
            (scan.records.len(), &scan.damaged[..]),
            (0, &[key(&name)][..])
        );
    }
    assert!(Record::decode(&[&bytes[..], &[0]].concat(), JOB).is_err());
    // What is damaged may be written anew.
    store.persist(&commit(1, 2)).unwrap();
    assert_eq!(store.scan().unwrap().records, [commit(1, 2)]);
}

#[test]
fn persisting_is_idempotent_and_decisions_stand() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("a/records");
    let store = records(&directory);
    store.persist(&commit(1, 2)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&directory).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o700);
    store.persist(&commit(1, 2)).unwrap();
    assert!(matches!(
        store.persist(&commit(1, 3)),
        Err(WriteError::Conflict(_))
    ));
    store.persist(&commit(2, 3)).unwrap();
    assert_eq!(store.scan().unwrap().records, [commit(1, 2), commit(2, 3)]);
    let pin = Record::Pin {
        incarnation: Incarnation(1),
        version: Version(5),
    };
    store.persist(&pin).unwrap();
    store.remove(&pin).unwrap();
    store.remove(&pin).unwrap();
    // A promise goes up only.
    for ballot in [3, 3, 7] {
        store.persist(&Record::Promise { ballot }).unwrap();
    }
    assert!(store.persist(&Record::Promise { ballot: 6 }).is_err());
    let promise = Record::Promise { ballot: 7 };
    assert!(store.scan().unwrap().records.contains(&promise));
    store.remove(&promise).unwrap();
    // Misnamed, foreign, unfinished.
    let misnamed = "pin-i9-v9.rec";
    std::fs::write(directory.join(misnamed), pin.encode(JOB).unwrap()).unwrap();
    let foreign = pin.file_name(false);
    std::fs::write(directory.join(&foreign), pin.encode(1).unwrap()).unwrap();
    let torn = directory.join(".tmp-1-0-x.rec");
    std::fs::write(&torn, b"x").unwrap();
    let scan = store.scan().unwrap();
    assert_eq!(
        (scan.records.len(), scan.damaged, scan.foreign),
        (2, vec![key(misnamed)], vec![key(&foreign)])
    );
    Directory::sweep(&directory);
    assert!(!torn.exists());
}

#[test]
fn of_many_writers_one_creates_the_shared_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = records(dir.path());
    let outcomes: Vec<Exclusive> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|ballot| {
                let store = &store;
                scope.spawn(move || store.persist_exclusive(&commit(ballot, 2)).unwrap())
            })
            .collect();
        writers
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let stands = store.scan().unwrap().records;
    assert_eq!(stands.len(), 1);
    assert_eq!(
        outcomes
            .iter()
            .filter(|it| **it == Exclusive::Created)
            .count(),
        1
    );
    for outcome in outcomes {
        assert!(
            matches!(&outcome, Exclusive::Created)
                || outcome == Exclusive::Stands(stands[0].clone())
        );
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing unfinished is left"
    );
    std::fs::write(dir.path().join(commit(0, 2).file_name(true)), b"torn").unwrap();
    let error = store.persist_exclusive(&commit(1, 2)).unwrap_err();
    assert_eq!(Error::from(error).code(), Code::Corrupt);
}

#[test]
fn what_is_no_file_is_damage_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = records(dir.path());
    store.persist(&commit(1, 2)).unwrap();
    let pipe = dir.path().join("pin-i1-v5.rec");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let directory = dir.path().join("pin-i1-v6.rec");
    std::fs::create_dir(&directory).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let found = pipe.clone();
    // Not joined: it would wait for a writer of the pipe for ever.
    std::thread::spawn(move || {
        let container = common::open(&found).unwrap_err();
        tell.send((store.scan().unwrap(), Error::from(container)))
    });
    let (scan, error) = told
        .recv_timeout(std::time::Duration::from_secs(30))
        .unwrap();
    assert_eq!(scan.records, [commit(1, 2)]);
    assert_eq!(scan.damaged, ["pin-i1-v5.rec", "pin-i1-v6.rec"].map(key));
    assert_eq!(error.code(), Code::Corrupt);
}

#[test]
fn a_scan_tolerates_writers() {
    let dir = tempfile::tempdir().unwrap();
    let store = records(dir.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 0..60 {
                let id = ContainerId {
                    version: Version(version % 7),
                    ..id(1, 0, 0)
                };
                let tomb = Record::Tombstone {
                    id,
                    level: Level::DISK,
                };
                store.persist(&tomb).unwrap();
                if version % 3 == 0 {
                    store.remove(&tomb).unwrap();
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(store.scan().unwrap().damaged.is_empty());
        }
    });
}

#[test]
fn records_that_share_their_syncs_fail_and_stand_each_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = records(dir.path());
    let abort = |version| Record::Abort {
        incarnation: Incarnation(1),
        version: Version(version),
        level: None,
        code: Code::Io,
        text: "x".into(),
    };
    store.persist(&commit(1, 2)).unwrap();
    // One that is there, one that contradicts what is there, two that are new.
    let (same, other) = (commit(1, 2), commit(1, 3));
    let results = store.persist_all(&[&abort(1), &same, &other, &abort(2)]);
    let outcome: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(outcome, [true, true, false, true]);
    assert!(matches!(results[2], Err(WriteError::Conflict(_))));
    let mut found = store.scan().unwrap().records;
    found.sort_by_key(|record| record.file_name(false));
    let mut want = vec![abort(1), abort(2), same];
    want.sort_by_key(|record| record.file_name(false));
    assert_eq!(found, want);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 3, "no unfinished file is left");
    assert!(store.persist_all(&[]).is_empty());
}

/// The records of a golden file, each behind its length.
fn golden(name: &str) -> Vec<Record> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bytes = std::fs::read(directory.join(name)).unwrap();
    let mut rest = &bytes[..];
    let mut found = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (record, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        found.push(Record::decode(record, 7).unwrap());
        rest = after;
    }
    found
}

/// Records of the second format, as an earlier version wrote them: ranks are one number each.
#[test]
fn records_of_the_second_format_are_read() {
    assert_eq!(golden("v2.records"), second_format());
}

fn second_format() -> [Record; 2] {
    let (incarnation, version) = (Incarnation(2), Version(30));
    let level = Level::xor(3).unwrap();
    let part = |node: u32, ranks: &[u32]| Part {
        node: NodeId(node),
        id: id(2, 30, node),
        length: 8192,
        digest: 5 << 100 | u128::from(node),
        holder: NodeId(node),
        ranks: ranks.iter().copied().map(Rank).collect(),
        parity: Some(Parity {
            length: 4096,
            digest: 9 << 90 | u128::from(node),
        }),
    };
    let prepared = Record::Prepared {
        incarnation,
        version,
        level,
        ballot: 7,
        part: part(1, &[2, 3, 9]),
    };
    let commit = Record::Commit {
        incarnation,
        version,
        level,
        ballot: 8,
        ranks: 9,
        parts: vec![
            part(0, &[0, 3, 6]),
            part(1, &[1, 4, 7]),
            part(2, &[8, 2, 5]),
        ]
        .into(),
        groups: vec![vec![NodeId(0), NodeId(1), NodeId(2)]],
    };
    [prepared, commit]
}

/// Records of the first format, as an earlier version wrote them.
#[test]
fn records_of_the_first_format_are_read() {
    let found = golden("v1.records");
    let (incarnation, version) = (Incarnation(2), Version(30));
    let part = |node: u32, holder| Part {
        node: NodeId(node),
        id: id(2, 30, node),
        length: 8192,
        digest: 5 << 100 | u128::from(node),
        holder,
        ranks: vec![Rank(2 * node), Rank(2 * node + 1)].into(),
        parity: None,
    };
    let expected = [
        Record::Incarnation {
            number: Incarnation(3),
            restored: Some((incarnation, version, Level::PARTNER)),
            members: vec![NodeId(0), NodeId(1)],
            ranks: 4,
        },
        Record::Prepared {
            incarnation,
            version,
            level: Level::PARTNER,
            ballot: 7,
            part: part(1, NodeId(0)),
        },
        Record::Commit {
            incarnation,
            version,
            level: Level::SHARED,
            ballot: 8,
            ranks: 4,
            parts: vec![part(0, Part::SHARED), part(1, Part::SHARED)].into(),
            groups: Vec::new(),
        },
        Record::Abort {
            incarnation,
            version,
            level: Some(Level::DISK),
            code: Code::NoSpace,
            text: "no space".into(),
        },
        Record::Tombstone {
            id: id(2, 30, 1),
            level: Level::MEMORY,
        },
    ];
    assert_eq!(found, expected);
}

/// The bytes of a COMMIT of so many nodes with 128 ranks each, placed so.
fn commit_bytes(nodes: u32, placed: impl Fn(u32, u32) -> u32) -> usize {
    let part = |node: u32| Part {
        node: NodeId(node),
        id: ContainerId {
            incarnation: Incarnation(1),
            version: Version(1),
            node: NodeId(node),
        },
        length: 1 << 30,
        digest: u128::from(node),
        holder: NodeId(node),
        ranks: (0..128).map(|at| Rank(placed(node, at))).collect(),
        parity: None,
    };
    let record = Record::Commit {
        incarnation: Incarnation(1),
        version: Version(1),
        level: Level::DISK,
        ballot: 1,
        ranks: nodes * 128,
        parts: (0..nodes).map(part).collect(),
        groups: Vec::new(),
    };
    record.encode(7).expect("within bounds").len()
}

/// A message has at most 16 MiB, and one may carry several of them.
#[test]
fn a_decision_of_many_nodes_is_small() {
    let head = 71;
    let nodes = 10_000;
    let block = commit_bytes(nodes, |node, at| node * 128 + at);
    let in_turn = commit_bytes(nodes, |node, at| at * nodes + node);
    assert_eq!([block, in_turn], [head + 66 * 10_000; 2]);
    // In no order: one number for each.
    let mixed = commit_bytes(2_000, |node, at| {
        (node * 128 + at).wrapping_mul(0x9e37_79b1)
    });
    assert!(mixed <= head + (54 + 4 * 128) * 2_000, "{mixed}");
}
