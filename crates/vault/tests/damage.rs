//! Every file of a job is hurt in every way: that is found, mended where something is left that can
//! mend it, and never taken for what was written. Each structural byte of each kind of file is tried,
//! with a bit from a seed; the bytes of programs by a sample.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/grouped.rs"]
mod grouped;
#[path = "common/hurt.rs"]
mod hurt;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::id;
use grouped::Job;
use hurt::{Harm, all_harms, get, put};
use outlive_base::rng::Sequence;
use outlive_base::{Code, Incarnation, Level, NodeId, Version};
use outlive_ledger::scheme::Piece;
use outlive_vault::{
    Bytes, Directory, Key, ObjectKind, Part, Record, Scrubbing, Sealed, Store, Vault, make,
    mend_container, read_container, read_parity, write_parity,
};

const OLDER: u64 = 7;
const NEWER: u64 = 8;

fn rs() -> Level {
    Level::rs(2, 2).unwrap()
}

fn levels() -> [Level; 4] {
    [Level::DISK, Level::PARTNER, rs(), Level::SHARED]
}

/// Four nodes and two versions with all kinds of copies.
fn job() -> Job {
    let mut job = Job::new(4);
    job.uneven = true;
    job.save(OLDER, &levels());
    job.save(NEWER, &levels());
    job
}

/// One copy of the newer version: where it lies, at which level, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Copy {
    place: NodeId,
    level: Level,
    owner: u32,
}

const NODE: u32 = 1;

/// One of each kind.
fn copies() -> [Copy; 4] {
    let at = |place, level, owner| Copy {
        place,
        level,
        owner,
    };
    [
        at(NodeId(NODE), Level::DISK, NODE),
        at(NodeId(NODE), Level::PARTNER, NODE - 1),
        at(NodeId(NODE), rs(), NODE),
        at(Part::SHARED, Level::SHARED, NODE),
    ]
}

fn vault(job: &Job, copy: Copy) -> Vault {
    match copy.place {
        Part::SHARED => job.of_all(),
        node => job.own(node.0),
    }
}

fn key(job: &Job, copy: Copy, version: u64) -> Key {
    vault(job, copy).key(copy.level, id(1, version, copy.owner))
}

/// What a reader before the need says of it.
fn read(job: &Job, copy: Copy, part: &Part) -> Scrubbing {
    let vault = vault(job, copy);
    let (store, key) = (&**vault.store(), key(job, copy, NEWER));
    match part.parity.filter(|_| copy.level.members().is_some()) {
        Some(parity) => read_parity(store, &key, parity, &mut |_| true),
        None => read_container(store, &key, &part.sealed(), &mut |_| true),
    }
}

/// Mends it as an agent does: of a copy elsewhere, or of its group.
fn mend(job: &Job, copy: Copy, part: &Part) {
    let vault = vault(job, copy);
    let (store, key) = (&**vault.store(), key(job, copy, NEWER));
    if copy.level.members().is_some() {
        let made = job.make_parity(NEWER, copy.level, copy.owner, part.parity);
        assert_eq!(Some(made.unwrap()), part.parity);
        return;
    }
    let sealed = part.sealed();
    let other = match copy.level == Level::SHARED {
        true => (job.own(copy.owner), Level::DISK),
        false => (job.of_all(), Level::SHARED),
    };
    let from = other.0.key(other.1, sealed.id);
    let mut bytes = Bytes::of_container(&**other.0.store(), &from, 0..sealed.length).unwrap();
    mend_container(store, &key, &sealed, &mut bytes).unwrap();
}

/// The same from the other members of its group, where nothing else is left.
fn mend_of_group(job: &Job, store: &dyn Store, key: &Key, sealed: Sealed) {
    let owner = sealed.id.node;
    let group = job.group(NEWER, rs(), owner.0).unwrap();
    let have = |piece: Piece| piece.node() != owner;
    let mut pieces = job.pieces(NEWER, rs());
    let want = Piece::Whole(owner);
    make(
        &group,
        want,
        sealed.length,
        &have,
        &mut pieces,
        &mut |sum| mend_container(store, key, &sealed, sum),
    )
    .unwrap();
}

/// All of the file but the bytes of programs, which are told apart by the frame pages before them.
fn structure(kind: Level, good: &[u8]) -> BTreeSet<usize> {
    let mut places = BTreeSet::new();
    let mut payload = false;
    for (nth, page) in good.chunks(4096).enumerate() {
        let starts = |magic: &[u8]| page.starts_with(magic);
        payload &= !(starts(b"OLFRAME1") || starts(b"OLINDEX1") || starts(b"OLFOOT1\0"));
        let is_parity = kind.members().is_some() && nth > 0;
        if !payload && !is_parity {
            // Of what is empty in a page some bytes stand for all.
            let counts = |(at, byte): (usize, &u8)| *byte != 0 || at < 144 || at % 509 == 0;
            let there = page.iter().enumerate().filter(|it| counts(*it));
            places.extend(there.map(|(at, _)| nth * 4096 + at));
        }
        payload |= starts(b"OLFRAME1");
    }
    places
}

/// Hurts a copy of each kind, by each harm or by each `step`th flip, and has it found and mended.
fn sweep(job: &Job, random: &mut Sequence, step: usize) -> usize {
    let mut tried = 0;
    for copy in copies() {
        let part = job.part_of(NEWER, copy.level, copy.owner);
        let (vault, key) = (vault(job, copy), key(job, copy, NEWER));
        let store = &**vault.store();
        let good = get(store, &key);
        let older = get(store, &self::key(job, copy, OLDER));
        let others = [older, other_node(job, copy)];
        let places = structure(copy.level, &good);
        assert!(places.len() > 200, "{copy:?}: {}", places.len());
        let harms = all_harms(&good, &places, &others, random);
        let is_flip = |harm: &Harm| matches!(harm, Harm::Flip(..));
        let wanted = |(nth, harm): &(usize, Harm)| nth % step == 0 || !is_flip(harm);
        for (nth, harm) in harms.into_iter().enumerate().filter(wanted) {
            put(store, &key, &harm.of(&good));
            let found = read(job, copy, &part);
            let says = || format!("{copy:?}, {harm:?}: {found:?}");
            let damaged = matches!(&found, Scrubbing::Damaged(error) if is_told(error));
            assert!(damaged, "{}", says());
            tried += 1;
            // What takes longer is looked at now and then.
            if nth % 40 == 0 || !is_flip(&harm) {
                found_by_all(job, copy, &harm);
                mend(job, copy, &part);
                assert!(get(store, &key) == good, "{}", says());
            }
        }
        put(store, &key, &good);
    }
    tried
}

#[test]
fn each_damage_to_a_copy_is_found_and_mended() {
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let tried = sweep(&job(), &mut random, 1);
    println!("{tried} damages");
    assert!(tried > 3_000, "only {tried}");
}

/// Files are read by other ways than objects in memory: past the cache, and in whole pages.
#[test]
fn so_is_damage_to_files() {
    let mut random = Sequence::new(outlive_base::seed!(), 5);
    let dir = tempfile::tempdir().unwrap();
    let own = |node: u32| {
        let root = dir.path().join(format!("node-{node}"));
        Arc::new(Directory::own(&root).unwrap()) as Arc<dyn Store>
    };
    let shared = Arc::new(Directory::at(&dir.path().join("shared")));
    let mut job = Job::over((0..4).map(own).collect(), shared);
    job.uneven = true;
    job.save(OLDER, &levels());
    job.save(NEWER, &levels());
    assert!(sweep(&job, &mut random, 37) > 200);
}

fn is_told(error: &outlive_base::Error) -> bool {
    let known = matches!(
        error.code(),
        Code::Corrupt | Code::Truncated | Code::FormatUnknown
    );
    known && !error.reason().is_empty() && !error.remedy().is_empty()
}

/// The same kind of file of another node.
fn other_node(job: &Job, copy: Copy) -> Vec<u8> {
    let owner = (copy.owner + 2) % job.count();
    let place = match copy.place {
        Part::SHARED => Part::SHARED,
        node => NodeId((node.0 + 2) % job.count()),
    };
    let other = Copy {
        place,
        owner,
        ..copy
    };
    get(&**vault(job, other).store(), &key(job, other, NEWER))
}

/// `verify` names this copy and no other, and what is restored is what was captured.
fn found_by_all(job: &Job, copy: Copy, harm: &Harm) {
    let catalogue = job.catalogue();
    assert!(catalogue.damaged.is_empty(), "{harm:?}");
    let bad: Vec<_> = catalogue.verify(true).into_iter().collect();
    let bad: Vec<_> = bad.iter().filter(|check| check.error.is_some()).collect();
    let [check] = &bad[..] else {
        panic!("{copy:?}, {harm:?}: {bad:?}");
    };
    let at = (check.copy.place, check.copy.level, check.node.0);
    assert_eq!(at, (copy.place, copy.level, copy.owner), "{harm:?}");
    assert_eq!(check.version.0, NEWER);
    for node in 0..job.count() {
        let restored = job.restore(NEWER, node).unwrap();
        assert!(
            restored == job.captured[&(NEWER, node)],
            "{copy:?}, {harm:?}"
        );
    }
}

/// Whatever is done to all copies of a node's bytes but the parities of its group: they come back.
#[test]
fn what_is_damaged_everywhere_else_comes_back_from_its_group() {
    let mut random = Sequence::new(outlive_base::seed!(), 1);
    let job = job();
    let owned = [
        (job.own(NODE), Level::DISK),
        (job.own(NODE + 1), Level::PARTNER),
        (job.of_all(), Level::SHARED),
    ];
    let sealed = job.part_of(NEWER, Level::DISK, NODE).sealed();
    let keys: Vec<_> = owned
        .iter()
        .map(|(vault, level)| (vault.store().clone(), vault.key(*level, sealed.id)))
        .collect();
    let good = get(&*keys[0].0, &keys[0].1);
    for _ in 0..60 {
        for (store, key) in &keys {
            let harm = Harm::some(&good, &mut random);
            put(&**store, key, &harm.of(&good));
        }
        let restored = job.restore(NEWER, NODE).unwrap();
        assert!(restored == job.captured[&(NEWER, NODE)]);
        for (store, key) in &keys {
            mend_of_group(&job, &**store, key, sealed);
            assert!(get(&**store, key) == good);
        }
    }
}

/// Checksums that were put right do not help: what a commit names is more than that.
#[test]
fn a_field_that_was_changed_on_purpose_is_found() {
    let job = job();
    let copy = copies()[0];
    let part = job.part_of(NEWER, copy.level, copy.owner);
    let vault = vault(&job, copy);
    let (store, key) = (&**vault.store(), key(&job, copy, NEWER));
    let good = get(store, &key);
    let mut pages = vec![0];
    for (nth, page) in good.chunks(4096).enumerate() {
        let magic = [&b"OLFRAME1"[..], b"OLINDEX1", b"OLFOOT1\0"];
        if magic.iter().any(|magic| page.starts_with(magic)) {
            pages.push(nth * 4096);
        }
    }
    let mut tried = 0;
    for page in pages {
        for at in (page..page + 200).step_by(2) {
            for value in [0u16, 1, 0x7fff, 0x8000, 0xffff] {
                let mut bytes = good.clone();
                bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
                hurt::reseal_container(&mut bytes);
                if bytes == good {
                    continue;
                }
                put(store, &key, &bytes);
                let found = read(&job, copy, &part);
                assert!(
                    matches!(found, Scrubbing::Damaged(_)),
                    "byte {at} is {value}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 1_000);
}

// ---- records ----

fn pinned(version: u64) -> Record {
    Record::Pin {
        incarnation: Incarnation(1),
        version: Version(version),
    }
}

/// Records of all kinds in the directory of a node: in its log, and as files.
fn with_all_kinds(job: &Job) -> Vault {
    let vault = job.own(0);
    let part = job.part_of(NEWER, Level::DISK, 0);
    let (incarnation, version) = (Incarnation(1), Version(NEWER));
    let records = [
        Record::Prepared {
            incarnation,
            version,
            level: Level::DISK,
            ballot: 1,
            part: part.clone(),
        },
        Record::Abort {
            incarnation,
            version: Version(NEWER + 1),
            level: None,
            code: Code::RankLost,
            text: "rank 3 died".into(),
        },
        Record::Tombstone {
            id: id(1, 3, 0),
            level: Level::DISK,
        },
        Record::Finished {
            incarnation,
            version: Some(version),
        },
        Record::Promise { ballot: 5 },
        pinned(NEWER),
    ];
    for record in &records {
        vault.records().persist(record).unwrap();
    }
    let history = Record::History {
        incarnation,
        version,
    };
    vault.mark().persist(&history).unwrap();
    vault
}

/// All files of records in a store.
fn record_keys(store: &dyn Store) -> Vec<Key> {
    let kinds = [ObjectKind::Record, ObjectKind::Mark];
    let lists = kinds.map(|kind| store.list(kind).unwrap());
    let keys = lists.into_iter().flatten().map(|item| item.key);
    keys.filter(|key| key.name().ends_with(".rec") || key.name().ends_with(".log"))
        .collect()
}

fn scanned(vault: &Vault, key: &Key) -> (Vec<Record>, usize, usize) {
    let store = match key.kind() {
        ObjectKind::Mark => vault.mark(),
        _ => vault.records(),
    };
    let scan = store.scan().unwrap();
    (scan.records, scan.damaged.len(), scan.foreign.len())
}

#[test]
fn each_damage_to_a_record_is_found_and_changes_no_other() {
    let mut random = Sequence::new(outlive_base::seed!(), 2);
    let job = job();
    let writer = with_all_kinds(&job);
    let shared = job.of_all();
    let mut kinds = BTreeSet::new();
    let mut tried = 0;
    let of_node = Vault::of_node(Arc::clone(writer.store()), grouped::JOB);
    for reader in [&of_node, &shared] {
        let store = &**reader.store();
        for key in record_keys(store) {
            let good = get(store, &key);
            let (sound, damaged, _) = scanned(reader, &key);
            assert_eq!(damaged, 0, "{key:?}");
            kinds.insert(key.name().split('-').next().unwrap().to_owned());
            let is_log = key.name().ends_with(".log");
            let used = good.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            let places: BTreeSet<usize> = (0..used).collect();
            let other = record_keys(store).into_iter().find(|other| *other != key);
            let others: Vec<Vec<u8>> = other.iter().map(|key| get(store, key)).collect();
            for harm in all_harms(&good[..used], &places, &others, &mut random) {
                let mut bytes = harm.of(&good[..used]);
                if is_log && !matches!(harm, Harm::Cut(_) | Harm::Swap(_)) {
                    // What is behind the last batch of a log stays.
                    bytes.resize(bytes.len().next_multiple_of(4096) + 4096, 0);
                }
                put(store, &key, &bytes);
                let (left, damaged, foreign) = scanned(reader, &key);
                // What a log was before its last batches is no damage that it could show, nor are
                // more zeroes behind them.
                let more =
                    bytes.starts_with(&good[..used]) && bytes[used..].iter().all(|it| *it == 0);
                let earlier = is_log && (more || is_earlier(&good, &bytes));
                assert!(earlier || damaged > 0, "{key:?}, {harm:?} is passed over");
                assert_eq!(foreign, 0, "{key:?}, {harm:?} is taken for another job's");
                let known = |record: &Record| sound.contains(record);
                assert!(
                    left.iter().all(known),
                    "{key:?}, {harm:?} gives another record"
                );
                assert!(left.len() <= sound.len(), "{key:?}, {harm:?}");
                tried += 1;
            }
            put(store, &key, &good);
        }
    }
    let all = [
        "commit",
        "decisions",
        "finished",
        "history.rec",
        "incarnation",
        "pin",
        "promise.rec",
    ];
    assert!(all.iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
    assert!(tried > 2_000, "only {tried}");
}

/// A log without its last batches is what it was before them.
fn is_earlier(good: &[u8], bytes: &[u8]) -> bool {
    let used = bytes.iter().rposition(|byte| *byte != 0);
    let used = used.map_or(0, |at| at + 1);
    let next = good.get(used.next_multiple_of(4096)..);
    let ends = next.is_some_and(|rest| rest.starts_with(b"OLREC01\0"));
    used > 0
        && ends
        && good.starts_with(&bytes[..used])
        && bytes.len() >= used.next_multiple_of(4096) + 4096
}

/// A version whose commit cannot be read anywhere is not offered, and what was damaged is told; one
/// of which any place has a sound record is.
#[test]
fn a_commit_that_is_damaged_everywhere_is_no_commit_and_is_told() {
    let mut random = Sequence::new(outlive_base::seed!(), 3);
    for sound_at in [None, Some(2), Some(4)] {
        let mut job = Job::new(4);
        job.save(OLDER, &levels());
        let places = (0..4).map(|node| job.own(node)).chain([job.of_all()]);
        for (place, vault) in places.enumerate() {
            let store = &**vault.store();
            for key in record_keys(store) {
                let decides =
                    key.name().starts_with("decisions") || key.name().starts_with("commit");
                if decides && sound_at != Some(place) {
                    let mut bytes = get(store, &key);
                    // A bit of each record.
                    let starts: Vec<usize> = (0..bytes.len().saturating_sub(40))
                        .step_by(8)
                        .filter(|at| bytes[*at..].starts_with(b"OLREC01\0"))
                        .collect();
                    for start in starts {
                        bytes[start + 24 + random.below(8) as usize] ^= 1 << random.below(8);
                    }
                    put(store, &key, &bytes);
                }
            }
        }
        let catalogue = job.catalogue();
        assert!(!catalogue.damaged.is_empty());
        assert_eq!(catalogue.newest(false).is_some(), sound_at.is_some());
        let traces = catalogue.traces();
        assert!(traces.iter().any(|trace| trace.damaged > 0), "{traces:?}");
        assert!(
            traces
                .iter()
                .all(|trace| trace.incarnation >= Incarnation(1))
        );
    }
}

/// A pin keeps its version whatever becomes of its bytes.
#[test]
fn a_damaged_pin_still_pins() {
    let mut random = Sequence::new(outlive_base::seed!(), 4);
    let job = job();
    let vault = job.own(0);
    vault.records().persist(&pinned(OLDER)).unwrap();
    let store = &**vault.store();
    let key = record_keys(store)
        .into_iter()
        .find(|key| key.name().starts_with("pin-"))
        .unwrap();
    let good = get(store, &key);
    for _ in 0..50 {
        put(store, &key, &Harm::some(&good, &mut random).of(&good));
        let pins = vault.records().pinned().unwrap();
        assert!(pins.contains(&(Incarnation(1), Version(OLDER))));
    }
}

/// A parity is not made of what has rotted, and one that was made wrong is not taken.
#[test]
fn a_parity_of_other_bytes_is_not_written() {
    let job = job();
    let part = job.part_of(NEWER, rs(), NODE);
    let vault = job.own(NODE);
    let (store, key) = (&**vault.store(), vault.key(rs(), part.id));
    let good = get(store, &key);
    let parity = part.parity.unwrap();
    let head = outlive_vault::ParityFile::open(store, &key).unwrap().head;
    let mut wrong = good[4096..].to_vec();
    wrong[17] ^= 1;
    let expected = (parity.length, Some(parity));
    let refused = write_parity(store, &key, &head, expected, &mut &wrong[..]).unwrap_err();
    assert_eq!(refused.code(), Code::Corrupt);
    assert!(get(store, &key) == good);
    let short = write_parity(store, &key, &head, expected, &mut &wrong[..100]).map_err(|error| {
        assert_ne!(error.code(), Code::Internal);
    });
    assert!(short.is_err());
}
