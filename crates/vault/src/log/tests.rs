#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Act, Directory, Fate, Faults, Faulty, RecordStore, Vault};
use outlive_base::{Code, Level, Version};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const JOB: u64 = 7;

fn commit(version: u64, ranks: u32) -> Record {
    Record::Commit {
        incarnation: Incarnation(1),
        version: Version(version),
        level: Level::DISK,
        ballot: 1,
        ranks,
        parts: vec![].into(),
        groups: Vec::new(),
    }
}

fn abort(version: u64, text: &str) -> Record {
    Record::Abort {
        incarnation: Incarnation(1),
        version: Version(version),
        level: None,
        code: Code::Io,
        text: text.into(),
    }
}

fn node(dir: &Path) -> Vault {
    Vault::create(dir, JOB).unwrap()
}

fn reader(dir: &Path) -> RecordStore {
    let store = Arc::new(Directory::at(dir));
    Vault::of_node(store, JOB).records().clone()
}

fn log_in(dir: &Path) -> io::Result<Content> {
    let name = name_of(Incarnation(1), JOB);
    let key = Key::record(ObjectKind::Record, name);
    Content::read(&Directory::at(dir), &key, JOB)
}

fn log_of(dir: &Path) -> PathBuf {
    dir.join("records").join(name_of(Incarnation(1), JOB))
}

fn sound(dir: &Path) -> Vec<Record> {
    reader(dir).scan().unwrap().records
}

#[test]
fn decisions_share_a_file_and_promises_have_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    let promise = Record::Promise { ballot: 3 };
    let results = store
        .records()
        .persist_all(&[&commit(1, 2), &promise, &abort(2, "x")]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    store.records().persist(&commit(3, 2)).unwrap();
    // Said again, and said otherwise.
    store.records().persist(&commit(3, 2)).unwrap();
    let other = store.records().persist(&commit(3, 4));
    assert!(matches!(other, Err(WriteError::Conflict(_))), "{other:?}");
    store.records().persist(&abort(2, "y")).unwrap();
    let all = [promise, abort(2, "y"), commit(1, 2), commit(3, 2)];
    assert_eq!(sound(dir.path()), all);
    let again = store.records().scan_again().unwrap();
    assert_eq!(crate::Scan::from(again).records, all);
    let mut names: Vec<String> = std::fs::read_dir(dir.path().join("records"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["decisions-i1-0000000000000007.log", "promise.rec"]);
}

#[test]
fn another_life_goes_on_and_records_go_only_together() {
    let dir = tempfile::tempdir().unwrap();
    node(dir.path()).records().persist(&commit(1, 2)).unwrap();
    let store = node(dir.path());
    store.records().persist(&commit(2, 2)).unwrap();
    assert!(store.records().persist(&commit(1, 3)).is_err(), "it stands");
    assert_eq!(sound(dir.path()), [commit(1, 2), commit(2, 2)]);
    store
        .records()
        .remove_all(&[&commit(1, 2), &commit(9, 2)])
        .unwrap();
    assert_eq!(sound(dir.path()), [commit(2, 2)]);
    store.records().remove(&commit(2, 2)).unwrap();
    assert!(!log_of(dir.path()).exists());
    store.records().persist(&commit(3, 2)).unwrap();
    assert_eq!(sound(dir.path()), [commit(3, 2)]);
}

#[test]
fn many_versions_need_little_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    for version in 0..200 {
        store.records().persist(&commit(version, 2)).unwrap();
        if version % 16 == 15 {
            let old: Vec<Record> = (version - 15..=version).map(|it| commit(it, 2)).collect();
            store
                .records()
                .remove_all(&old.iter().collect::<Vec<_>>())
                .unwrap();
        }
    }
    let length = std::fs::metadata(log_of(dir.path())).unwrap().len();
    assert!(length <= 2 * SPARE_BYTES, "{length}");
    assert_eq!(sound(dir.path()).len(), 8);
}

/// What a power cut may leave of the last batch: any prefix, zeros, or pages of other content.
#[test]
fn a_torn_batch_costs_nothing_that_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    store.records().persist(&commit(1, 2)).unwrap();
    let before = std::fs::read(log_of(dir.path())).unwrap();
    store
        .records()
        .persist_all(&[&commit(2, 2), &abort(3, "text")]);
    let after = std::fs::read(log_of(dir.path())).unwrap();
    let changed = (0..after.len()).filter(|at| before[*at] != after[*at]);
    let changed: Vec<usize> = changed.collect();
    assert!(changed[0] as u64 >= PAGE64, "a durable page was written");
    for cut in changed[0]..=changed[changed.len() - 1] + 1 {
        let mut torn = after.clone();
        torn[cut..].copy_from_slice(&before[cut..]);
        for torn in [&torn[..], &torn[..cut]] {
            let content = Content::parse(torn, JOB);
            assert_eq!(content.records[0], commit(1, 2), "{cut}");
        }
    }
    std::fs::write(log_of(dir.path()), &after[..changed[changed.len() / 2]]).unwrap();
    // The next life writes behind nothing that is torn.
    let store = node(dir.path());
    store.records().persist(&commit(4, 2)).unwrap();
    let all = sound(dir.path());
    assert!(
        all.contains(&commit(1, 2)) && all.contains(&commit(4, 2)),
        "{all:?}"
    );
}

#[test]
fn damage_costs_one_record_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    let all: Vec<Record> = (1..=4).map(|version| commit(version, 2)).collect();
    store
        .records()
        .persist_all(&all[..3].iter().collect::<Vec<_>>());
    store.records().persist(&all[3]).unwrap();
    let bytes = std::fs::read(log_of(dir.path())).unwrap();
    let length = all[0].encode(JOB).unwrap().len().next_multiple_of(STEP);
    for at in 0..PAGE64 as usize + length {
        let mut hurt = bytes.clone();
        hurt[at] ^= 0x10;
        let content = Content::parse(&hurt, JOB);
        let lost = all.len() - content.records.len();
        assert!(lost <= 1, "{at}: {lost} lost");
        // The zeros behind a record's last byte, in its last word, belong to nothing.
        if lost == 1 {
            assert_eq!(content.damaged, 1, "{at}");
        }
    }
    std::fs::write(log_of(dir.path()), b"no log at all").unwrap();
    assert_eq!(reader(dir.path()).scan().unwrap().damaged.len(), 1);
}

/// A log that lost its end, even between two records, is not taken for a shorter one.
#[test]
fn a_log_that_was_cut_is_told_wherever_it_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    // Past the room that it is made with, and grows by.
    let versions = 2 * SPARE_BYTES / PAGE64 + 5;
    for version in 1..=versions {
        store.records().persist(&commit(version, 2)).unwrap();
        let bytes = std::fs::read(log_of(dir.path())).unwrap();
        let content = Content::parse(&bytes, JOB);
        assert_eq!(
            (content.records.len() as u64, content.damaged),
            (version, 0)
        );
        // Room grows before it is used up: the last page of a whole log is empty.
        assert!(content.end + PAGE64 <= bytes.len() as u64, "{version}");
        for pages in 0..version {
            let cut = Content::parse(&bytes[..(pages * PAGE64) as usize], JOB);
            assert_eq!((cut.records.len() as u64, cut.damaged), (pages, 1));
        }
    }
    // Also where a batch failed, and the cut is this process's own.
    #[derive(Debug)]
    struct Failing;
    impl Faults for Failing {
        fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
            match act {
                Act::Append => Fate::Fails(io::ErrorKind::Other),
                _ => Fate::Goes,
            }
        }
    }
    let failing = Faulty::new(Arc::clone(store.store()), Arc::new(Failing));
    let failing = Vault::own(Arc::new(failing), JOB);
    failing.records().persist(&commit(500, 2)).unwrap();
    assert!(failing.records().persist(&commit(501, 2)).is_err());
    assert_eq!(log_in(dir.path()).unwrap().damaged, 0);
    std::fs::write(log_of(dir.path()), b"").unwrap();
    assert_eq!(reader(dir.path()).scan().unwrap().damaged.len(), 1);
}

#[test]
fn another_jobs_log_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    Vault::create(dir.path(), 8)
        .unwrap()
        .records()
        .persist(&commit(1, 2))
        .unwrap();
    let store = node(dir.path());
    store.records().persist(&commit(2, 2)).unwrap();
    let scan = store.records().scan().unwrap();
    assert_eq!((scan.records, scan.damaged), (vec![commit(2, 2)], vec![]));
    assert_eq!(scan.foreign[0].name(), "commit-i1-v1-disk-b1.rec");
    store.records().remove(&commit(2, 2)).unwrap();
    assert_eq!(store.records().scan().unwrap().foreign.len(), 1);
}

#[test]
fn a_batch_that_fails_is_not_there_and_the_next_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Directory::own(dir.path()).unwrap());
    let mut logs = Logs::open(store, ObjectKind::Record, JOB);
    let entry = |record: &'static Record| Entry {
        record,
        name: record.file_name(false),
        bytes: record.encode(JOB).unwrap(),
    };
    let [one, two, three] = [1, 2, 3].map(|version| &*Box::leak(Box::new(commit(version, 2))));
    logs.append(Incarnation(1), &[entry(one)]).unwrap();
    // No longer where this process believes: neither the batch nor the cut succeeds.
    logs.of(Incarnation(1)).end = u64::MAX - 2 * PAGE64;
    assert!(logs.append(Incarnation(1), &[entry(two)]).is_err());
    assert_eq!(logs.get(Incarnation(1), &two.file_name(false)), None);
    logs.append(Incarnation(1), &[entry(three)]).unwrap();
    let content = log_in(dir.path()).unwrap();
    assert_eq!(
        (&content.records[..], content.damaged),
        (&[one.clone(), three.clone()][..], 0)
    );
    // Purged, or replaced by another, behind this process's back.
    std::fs::remove_file(log_of(dir.path())).unwrap();
    logs.append(Incarnation(1), &[entry(two)]).unwrap();
    assert_eq!(log_in(dir.path()).unwrap().records.len(), 3);
}

#[test]
fn records_with_files_of_their_own_stay_there() {
    let dir = tempfile::tempdir().unwrap();
    drop(node(dir.path()));
    // As an earlier release wrote them.
    let old = reader(dir.path());
    old.persist_all(&[&commit(1, 2), &abort(2, "x")]);
    let store = node(dir.path());
    assert!(store.records().persist(&commit(1, 5)).is_err(), "it stands");
    store
        .records()
        .persist_all(&[&abort(2, "y"), &commit(3, 2)]);
    assert_eq!(
        sound(dir.path()),
        [abort(2, "y"), commit(1, 2), commit(3, 2)]
    );
    // On a full disk, what must be said has a file too.
    #[derive(Debug)]
    struct Full;
    impl Faults for Full {
        fn before(&self, act: Act, _: &Key, _: u64) -> Fate {
            match act {
                Act::Put | Act::Append => Fate::Fails(io::ErrorKind::StorageFull),
                _ => Fate::Goes,
            }
        }
    }
    let full = Faulty::new(Arc::clone(store.store()), Arc::new(Full));
    let full = Vault::own(Arc::new(full), JOB);
    let results = full.records().persist_all(&[&commit(4, 2), &abort(5, "x")]);
    assert!(results[0].is_ok() && results[1].as_ref().is_err_and(WriteError::is_full));
    let all = [commit(1, 2), commit(3, 2), commit(4, 2), abort(2, "y")];
    assert_eq!(sound(dir.path()).len(), 4);
    let store = node(dir.path());
    store
        .records()
        .remove_all(&all.iter().collect::<Vec<_>>())
        .unwrap();
    assert_eq!(sound(dir.path()), []);
}

/// A device that fails once when an agent starts must not cost what its log holds.
#[test]
fn a_log_that_cannot_be_read_at_first_is_not_written_anew() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    #[derive(Debug)]
    struct Unreadable(AtomicBool);
    impl Faults for Unreadable {
        fn before(&self, act: Act, key: &Key, _: u64) -> Fate {
            match act == Act::Read && is_log(key.name()) && self.0.load(Relaxed) {
                true => Fate::Fails(io::ErrorKind::Other),
                false => Fate::Goes,
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    node(dir.path()).records().persist(&commit(1, 2)).unwrap();
    let fails = Arc::new(Unreadable(true.into()));
    let directory = Arc::new(Directory::own(dir.path()).unwrap());
    let store = Vault::own(Arc::new(Faulty::new(directory, fails.clone())), JOB);
    store.records().persist(&commit(2, 2)).unwrap();
    assert_eq!(sound(dir.path()), [commit(2, 2), commit(1, 2)]);
    assert!(store.records().remove(&commit(1, 2)).is_err());
    fails.0.store(false, Relaxed);
    store.records().persist(&commit(3, 2)).unwrap();
    assert!(store.records().persist(&commit(1, 3)).is_err(), "it stands");
    store.records().remove(&commit(1, 2)).unwrap();
    assert_eq!(sound(dir.path()), [commit(2, 2), commit(3, 2)]);
}

/// A status that is asked for while a batch is written sees all of it, or none.
#[test]
fn who_reads_while_another_writes_sees_no_damage() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let store = node(dir.path());
    store.records().persist(&commit(0, 2)).unwrap();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut version = 1;
            while !over.load(Ordering::Relaxed) {
                let batch: Vec<Record> = (version..version + 30).map(|it| commit(it, 2)).collect();
                store
                    .records()
                    .persist_all(&batch.iter().collect::<Vec<_>>());
                if version > 1000 {
                    let old: Vec<&Record> = batch.iter().collect();
                    store.records().remove_all(&old).unwrap();
                }
                version += 30;
            }
            version
        });
        let mut last = 0;
        for _ in 0..10_000 {
            let content = log_in(dir.path());
            // Between two files of its name it may be neither.
            let Ok(content) = content else { continue };
            assert_eq!(content.damaged, 0);
            last = last.max(content.records.len());
        }
        over.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), last)
    });
    assert!(written.0 > 60 && written.1 > 30, "{written:?}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in 0usize..200, flip in any::<u8>(),
    ) {
        let mut log = pack([&commit(1, 2).encode(JOB).unwrap()[..], &bytes].into_iter());
        log[at] ^= flip;
        let content = Content::parse(&log, JOB);
        prop_assert!(content.records.len() <= 1);
        prop_assert!(content.end <= log.len() as u64);
        Content::parse(&bytes, JOB);
    }
}
