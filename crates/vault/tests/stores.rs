//! Every store keeps the promises of the seam; who breaks one is found; what was told is
//! there whatever fails.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::Arc;

use common::{Owned, id, layout, rank};
use outlive_base::rng::Sequence;
use outlive_base::{ContainerId, Incarnation, Level, Version};
use outlive_vault::{
    Container, Directory, Draft, Exclusive, Faulty, Item, Key, Memory, Object, ObjectKind, Odds,
    Put, Record, Store, Unappended, Vault, WriteError, WriteOptions, conform, verify_written,
    write_container,
};

const ROOM: u64 = 64 << 20;

#[test]
fn a_faulty_store_without_faults_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let inner: [Arc<dyn Store>; 2] = [
        Arc::new(Memory::new(ROOM)),
        Arc::new(Directory::own(dir.path()).unwrap()),
    ];
    for inner in inner {
        conform(&Faulty::new(inner, Arc::new(Odds::new(0)))).unwrap();
    }
}

#[test]
fn reads_that_give_less_are_read_on() {
    let mut odds = Odds::new(outlive_base::seed!());
    odds.short = 500_000;
    let store = Faulty::new(Arc::new(Memory::new(ROOM)), Arc::new(odds));
    // A single transfer may be short; whatever is read whole is whole.
    let ranks = [rank(0, &[300_000, 5], 1), rank(1, &[9000], 2)];
    let layout = layout(id(1, 1, 0), &ranks);
    let key = Key::container(ObjectKind::Container, id(1, 1, 0));
    let sealed = write_container(&store, &key, &layout, &WriteOptions::default()).unwrap();
    for _ in 0..20 {
        verify_written(&store, &key, Some(&sealed)).unwrap();
        check(&store, &key, &ranks);
    }
}

fn check(store: &dyn Store, key: &Key, ranks: &[Owned]) {
    let container = Container::open(store, key).unwrap();
    for want in ranks {
        let mut data = outlive_vault::Buffer::new(want.data.len());
        container.read_rank(want.rank, &mut data).unwrap();
        assert!(data[..] == want.wanted()[..]);
    }
}

/// Which promise a store breaks.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Breaks {
    Nothing,
    DraftsShow,
    SealsLost,
    KindsMixed,
    CreatesTwice,
    AppendCutsOff,
    AppendForgets,
    RemovesNothing,
    ListsLess,
    TagsStay,
    PutsInPart,
    LastByteLost,
}

#[derive(Debug)]
struct Broken(Memory, Breaks);

impl Broken {
    fn key(&self, key: &Key) -> Key {
        match (self.1, key.kind()) {
            (Breaks::KindsMixed, ObjectKind::Partner) => {
                Key::new(ObjectKind::Container, key.name()).unwrap()
            }
            _ => key.clone(),
        }
    }
}

struct Lost;

impl Draft for Lost {
    fn write(&self, _: u64, _: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        Ok(())
    }
    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        Err(WriteError::Input("lost".into()))
    }
    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        Ok(())
    }
}

impl Store for Broken {
    fn name(&self) -> String {
        self.0.name()
    }
    fn locate(&self, key: &Key) -> String {
        self.0.locate(key)
    }
    fn begin(&self, key: &Key, length: u64, aligned: bool) -> Result<Box<dyn Draft>, WriteError> {
        let key = self.key(key);
        if self.1 == Breaks::DraftsShow {
            self.0.begin(&key, length, aligned)?.seal()?;
        }
        match self.1 {
            Breaks::SealsLost => Ok(Box::new(Lost)),
            Breaks::LastByteLost => self.0.begin(&key, length.saturating_sub(1), aligned),
            _ => self.0.begin(&key, length, aligned),
        }
    }
    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>> {
        match self.1 {
            Breaks::PutsInPart => {
                let mut small = small.to_vec();
                for put in &mut small {
                    put.bytes = &put.bytes[..put.bytes.len().min(1)];
                }
                self.0.put_all(&small)
            }
            _ => self.0.put_all(small),
        }
    }
    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError> {
        match self.1 {
            Breaks::CreatesTwice => {
                let _ = self.0.remove(std::slice::from_ref(key));
                self.0.create(key, bytes)
            }
            _ => self.0.create(key, bytes),
        }
    }
    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended> {
        match self.1 {
            Breaks::AppendForgets => Ok(()),
            Breaks::AppendCutsOff => {
                let before = self.0.get(key, at).unwrap_or_default();
                self.0.append(key, at, parts)?;
                let end = at + parts.iter().map(|part| part.len() as u64).sum::<u64>();
                let bytes = self.0.get(key, end).unwrap();
                assert_eq!(bytes[..before.len()], before);
                let space = outlive_vault::Space::Free;
                let (key, bytes) = (key.clone(), &bytes[..]);
                self.0
                    .put_all(&[Put { key, bytes, space }])
                    .pop()
                    .unwrap()
                    .unwrap();
                Ok(())
            }
            _ => self.0.append(key, at, parts),
        }
    }
    fn open(&self, key: &Key, fresh: bool) -> io::Result<Box<dyn Object>> {
        self.0.open(&self.key(key), fresh)
    }
    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        self.0.get(&self.key(key), most)
    }
    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.0.get_still(&self.key(key), most)
    }
    fn written(&self, key: &Key) -> io::Result<std::time::SystemTime> {
        self.0.written(&self.key(key))
    }
    fn tag(&self, key: &Key) -> Option<u64> {
        let tag = self.0.tag(&self.key(key))?;
        Some(if self.1 == Breaks::TagsStay { 1 } else { tag })
    }
    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        let mut items = self.0.list(kind)?;
        match self.1 {
            Breaks::ListsLess => drop(items.pop()),
            Breaks::TagsStay => items.iter_mut().for_each(|item| item.tag = 1),
            _ => {}
        }
        Ok(items)
    }
    fn remove(&self, keys: &[Key]) -> Result<(), WriteError> {
        match self.1 {
            Breaks::RemovesNothing => Ok(()),
            _ => self.0.remove(keys),
        }
    }
    fn settle(&self, kind: ObjectKind, keys: &[Key]) -> Result<(), WriteError> {
        self.0.settle(kind, keys)
    }
    fn room(&self) -> io::Result<u64> {
        self.0.room()
    }
}

#[test]
fn a_store_that_breaks_a_promise_is_found() {
    use Breaks::*;
    conform(&Broken(Memory::new(ROOM), Nothing)).unwrap();
    for breaks in [
        DraftsShow,
        SealsLost,
        KindsMixed,
        CreatesTwice,
        AppendCutsOff,
        AppendForgets,
        RemovesNothing,
        ListsLess,
        TagsStay,
        PutsInPart,
    ] {
        let found = conform(&Broken(Memory::new(ROOM), breaks));
        assert!(found.is_err(), "{breaks:?} was not found");
        println!("{breaks:?}: {}", found.unwrap_err());
    }
    // A draft that is written beyond its announced length grows: nothing is lost by it.
    conform(&Broken(Memory::new(ROOM), LastByteLost)).unwrap();
    // Bits that rot in one of a few hundred reads.
    let mut odds = Odds::new(outlive_base::seed!());
    odds.rots = 100_000;
    let store = Faulty::new(Arc::new(Memory::new(ROOM)), Arc::new(odds));
    assert!(conform(&store).is_err(), "rot was not found");
}

/// What a job was told.
#[derive(Default)]
struct Told {
    records: BTreeMap<String, Record>,
    shared: BTreeMap<String, Record>,
    containers: BTreeSet<(Level, ContainerId)>,
    /// Asked for and not told: may be there or not.
    unsure: BTreeSet<String>,
}

fn commit(version: u64, ballot: u64) -> Record {
    Record::Commit {
        incarnation: Incarnation(1),
        version: Version(version),
        level: Level::DISK,
        ballot,
        ranks: 1,
        parts: vec![].into(),
        groups: Vec::new(),
    }
}

/// Lives of one agent on one storage, each ended by a power cut or in peace.
struct History {
    random: Sequence,
    node: Faulty,
    shared: Faulty,
    told: Told,
    cuts: usize,
}

impl History {
    fn new(seed: u64, node: Arc<dyn Store>) -> History {
        let odds = |stream: u64| {
            let mut odds = Odds::new(seed.wrapping_add(stream << 40));
            (odds.full, odds.fails, odds.short, odds.cut) = (20_000, 20_000, 200_000, 8_000);
            Arc::new(odds)
        };
        History {
            random: Sequence::new(seed, 9),
            node: Faulty::new(node, odds(1)),
            shared: Faulty::new(Arc::new(Memory::new(ROOM)), odds(2)),
            told: Told::default(),
            cuts: 0,
        }
    }

    fn live(&mut self, ranks: &[Owned]) {
        let node = Vault::own(Arc::new(self.node.clone()), 7);
        let shared = Vault::shared(Arc::new(self.shared.clone()), 7);
        for _ in 0..60 {
            if self.node.is_off() || self.shared.is_off() {
                break;
            }
            let version = self.random.below(30);
            match self.random.below(10) {
                0..4 => self.persist(&node, version),
                4 => self.remove(&node),
                5 => {
                    let record = commit(version, self.random.below(3));
                    if let Ok(stands) = shared.records().persist_exclusive(&record) {
                        let stands = match stands {
                            Exclusive::Created => record,
                            Exclusive::Stands(stands) => stands,
                        };
                        let before = self
                            .told
                            .shared
                            .insert(stands.file_name(true), stands.clone());
                        assert!(before.is_none_or(|before| before == stands));
                    }
                }
                6 => {
                    let copy = (Level::PARTNER, id(1, version, 1));
                    let key = node.key(copy.0, copy.1);
                    self.told.containers.remove(&copy);
                    if node.store().remove(std::slice::from_ref(&key)).is_ok() {
                        let _ = node.store().settle(key.kind(), &[]);
                    }
                }
                _ => {
                    let copy = (Level::PARTNER, id(1, version, 1));
                    let (store, key) = (&**node.store(), node.key(copy.0, copy.1));
                    let layout = layout(copy.1, ranks);
                    // One that is there stays until another takes its place.
                    if write_container(store, &key, &layout, &WriteOptions::default()).is_ok() {
                        self.told.containers.insert(copy);
                    }
                }
            }
        }
    }

    fn persist(&mut self, node: &Vault, version: u64) {
        let records: Vec<Record> = (0..=self.random.below(3))
            .map(|at| match self.random.below(4) {
                0 => Record::Pin {
                    incarnation: Incarnation(1),
                    version: Version(version + at),
                },
                _ => commit(version + at, 1),
            })
            .collect();
        let mut names = BTreeSet::new();
        let records: Vec<&Record> = records
            .iter()
            .filter(|record| names.insert(record.file_name(false)))
            .collect();
        let results = node.records().persist_all(&records);
        for (record, result) in records.into_iter().zip(results) {
            let name = record.file_name(false);
            match result {
                Ok(()) => drop(self.told.records.insert(name, record.clone())),
                Err(_) => drop(self.told.unsure.insert(name)),
            }
        }
    }

    fn remove(&mut self, node: &Vault) {
        let all: Vec<Record> = self.told.records.values().cloned().collect();
        if all.is_empty() {
            return;
        }
        let gone = &all[self.random.below(all.len() as u64) as usize];
        let name = gone.file_name(false);
        self.told.records.remove(&name);
        match node.records().remove(gone) {
            Ok(()) => drop(self.told.unsure.remove(&name)),
            Err(_) => drop(self.told.unsure.insert(name)),
        }
    }

    /// What another process finds once the power is back.
    fn judge(&self, seed: u64, inner: &Arc<dyn Store>, ranks: &[Owned]) {
        let found = Vault::of_node(Arc::clone(inner), 7)
            .records()
            .scan()
            .unwrap();
        let found: BTreeMap<String, Record> = found
            .records
            .into_iter()
            .map(|record| (record.file_name(false), record))
            .collect();
        for (name, record) in &self.told.records {
            assert_eq!(found.get(name), Some(record), "seed {seed}: {name}");
        }
        for name in found.keys() {
            let known = self.told.records.contains_key(name) || self.told.unsure.contains(name);
            assert!(known, "seed {seed}: {name} came back");
        }
        for (level, id) in &self.told.containers {
            let vault = Vault::of_node(Arc::clone(inner), 7);
            check(&**inner, &vault.key(*level, *id), ranks);
        }
    }
}

fn histories(seed: u64, inner: Arc<dyn Store>) -> usize {
    let ranks = [rank(0, &[9000, 5], 1)];
    let mut history = History::new(seed, Arc::clone(&inner));
    for _ in 0..8 {
        history.live(&ranks);
        for store in [&history.node, &history.shared] {
            history.cuts += usize::from(store.is_off());
            store.restart().unwrap();
        }
        history.judge(seed, &inner, &ranks);
    }
    history.cuts
}

#[test]
fn what_was_told_outlives_power_cuts_and_failing_storage() {
    let mut cuts = 0;
    for seed in outlive_base::seeds!(150) {
        cuts += histories(seed, Arc::new(Memory::new(ROOM)));
    }
    assert!(cuts > 100, "{cuts} power cuts");
    let dir = tempfile::tempdir().unwrap();
    for seed in outlive_base::seeds!(2) {
        let root = dir.path().join(seed.to_string());
        histories(seed, Arc::new(Directory::own(&root).unwrap()));
    }
}
