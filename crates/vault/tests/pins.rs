//! Pins against removals: whoever has pinned a version and finds it without a tombstone keeps it,
//! at whatever moment of a removal that was.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::{head, id, rank};
use outlive_base::{Incarnation, Level, Version};
use outlive_ledger::GcPolicy;
use outlive_vault::{
    Act, Directory, Fate, Faults, Faulty, Inventory, Key, Layout, Record, Vault, WriteOptions,
    write_container,
};

const JOB: u64 = 0x1234_5678_9abc_def0;

const PIN: Record = Record::Pin {
    incarnation: Incarnation(1),
    version: Version(10),
};

/// Both stable at `disk`: the newer takes the place of the older.
fn policy() -> GcPolicy {
    let stable = [10, 20].map(|version| (Incarnation(1), Version(version), Level::DISK));
    GcPolicy {
        stable: stable.into(),
        keep: 1,
        levels: [10, 20]
            .map(|version| ((Incarnation(1), Version(version)), [Level::DISK].into()))
            .into(),
        ..GcPolicy::default()
    }
}

/// A node with the versions 10 and 20, for its agent.
fn node(root: &Path, faults: Arc<dyn Faults>) -> Vault {
    let store = Faulty::new(Arc::new(Directory::own(root).unwrap()), faults);
    let vault = Vault::own(Arc::new(store), JOB);
    for version in [10, 20] {
        let id = id(1, version, 0);
        let data = rank(0, &[5000], version);
        let layout = Layout::new(head(id), vec![data.image()]).unwrap();
        let key = vault.key(Level::DISK, id);
        let options = WriteOptions::default();
        write_container(&**vault.store(), &key, &layout, &options).unwrap();
    }
    vault
}

/// Another process: the version is pinned, and was not under a tombstone then.
fn pin(root: &Path) -> bool {
    let place = Vault::of_node(Arc::new(Directory::at(root)), JOB);
    place.records().persist(&PIN).unwrap();
    !is_buried(root) && is_there(root)
}

fn is_buried(root: &Path) -> bool {
    let seen = Inventory::of_node(outlive_base::NodeId(0), root, JOB);
    let tomb = Record::Tombstone {
        id: id(1, 10, 0),
        level: Level::DISK,
    };
    seen.records.contains(&tomb)
}

fn is_there(root: &Path) -> bool {
    root.join("containers/i1-v10-n0.olc").exists()
}

/// Pins when so many acts have passed.
#[derive(Debug, Default)]
struct PinsAt {
    left: AtomicUsize,
    on: AtomicBool,
    root: Mutex<Option<std::path::PathBuf>>,
    /// What the pin was told.
    told: Mutex<Option<bool>>,
}

impl PinsAt {
    fn begin(&self, root: &Path, acts: usize) {
        *self.root.lock().unwrap() = Some(root.to_owned());
        self.left.store(acts, SeqCst);
        self.on.store(true, SeqCst);
    }
}

impl Faults for PinsAt {
    fn before(&self, _: Act, _: &Key, _: u64) -> Fate {
        if self.on.load(SeqCst) {
            match self.left.load(SeqCst) {
                0 => {
                    self.on.store(false, SeqCst);
                    let root = self.root.lock().unwrap().clone().unwrap();
                    *self.told.lock().unwrap() = Some(pin(&root));
                }
                left => self.left.store(left - 1, SeqCst),
            }
        }
        Fate::Goes
    }
}

#[test]
fn a_pin_that_is_told_well_never_loses_to_a_removal() {
    let (mut well, mut badly) = (0, 0);
    for acts in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let faults = Arc::new(PinsAt::default());
        let vault = node(dir.path(), faults.clone());
        faults.begin(dir.path(), acts);
        // As an agent does it: tombstones beside other records, then the rest.
        let removal = vault.removal(vault.found().unwrap(), policy()).unwrap();
        for tomb in removal.tombs() {
            vault.records().persist(&tomb).unwrap();
        }
        let report = vault.remove(&removal).unwrap();
        let told = *faults.told.lock().unwrap();
        match told {
            Some(true) => {
                well += 1;
                assert!(is_there(dir.path()), "lost after act {acts}");
                assert!(!is_buried(dir.path()), "buried after act {acts}");
                assert!(report.removed.is_empty());
                // Neither now nor later, by this process or another.
                assert!(vault.gc(&policy()).unwrap().removed.is_empty());
                drop(vault);
                let next = Vault::create(dir.path(), JOB).unwrap();
                assert!(next.gc(&policy()).unwrap().removed.is_empty());
                assert!(is_there(dir.path()));
            }
            Some(false) => badly += 1,
            // There are no more acts.
            None => break,
        }
        // What it is told twice it is told rightly: nothing is left half done.
        assert_eq!(is_there(dir.path()), pin(dir.path()));
    }
    assert!(well > 0 && badly > 0, "{well} {badly}");
}

#[test]
fn a_removal_that_was_cut_off_before_a_pin_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let vault = node(dir.path(), Arc::new(PinsAt::default()));
    let removal = vault.removal(vault.found().unwrap(), policy()).unwrap();
    vault.records().persist(&removal.tombs()[0]).unwrap();
    drop(vault);
    assert!(!pin(dir.path()), "whether it goes is not known");
    let next = Vault::create(dir.path(), JOB).unwrap();
    assert!(next.gc(&policy()).unwrap().removed.is_empty());
    assert!(pin(dir.path()));
    // Without the pin it goes as before.
    next.records().remove(&PIN).unwrap();
    assert_eq!(next.gc(&policy()).unwrap().removed.len(), 1);
    assert!(!is_there(dir.path()));
}

#[test]
fn a_damaged_pin_keeps_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let vault = node(dir.path(), Arc::new(PinsAt::default()));
    assert!(pin(dir.path()));
    std::fs::write(dir.path().join("records/pin-i1-v10.rec"), "rubbish").unwrap();
    assert!(vault.gc(&policy()).unwrap().removed.is_empty());
    let seen = Inventory::of_node(outlive_base::NodeId(0), dir.path(), JOB);
    assert_eq!(seen.pinned, [(Incarnation(1), Version(10))].into());
    vault.records().remove(&PIN).unwrap();
    assert_eq!(vault.gc(&policy()).unwrap().removed.len(), 1);
}
