//! Copies are read before they are needed, and damaged ones are replaced by sound ones alone.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use common::{FRAME, at, bytes, head, id, rank};
use outlive_base::rng::Sequence;
use outlive_base::{Code, Level};
use outlive_vault::{
    Directory, Draft, Faulty, Item, Key, Layout, Object, ObjectKind, Odds, ParityHead, Put,
    Scrubbing, Sealed, Store, Unappended, WriteError, WriteOptions, make_container, mend_container,
    read_container, read_parity, write_container, write_parity,
};

/// A container of two ranks in a directory, its bytes and its seal.
fn written(path: &Path) -> (Directory, Key, Vec<u8>, Sealed) {
    let ranks = [rank(0, &[70_000, 5], 1), rank(1, &[9_000], 2)];
    let images = ranks.iter().map(|rank| rank.image()).collect();
    let layout = Layout::with_frame_bytes(head(id(1, 5, 2)), images, FRAME).unwrap();
    let (store, key) = at(path);
    write_container(&store, &key, &layout, &WriteOptions::default()).unwrap();
    (store, key, bytes(&layout), layout.seal())
}

fn flip(path: &Path, random: &mut Sequence) {
    let mut bytes = std::fs::read(path).unwrap();
    let place = random.below(bytes.len() as u64) as usize;
    bytes[place] ^= 1 << random.below(8);
    std::fs::write(path, bytes).unwrap();
}

fn look(store: &dyn Store, key: &Key, sealed: &Sealed) -> Scrubbing {
    read_container(store, key, sealed, &mut |_| true)
}

#[test]
fn each_flipped_bit_is_found_and_mended_from_a_sound_copy_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let (store, key, good, sealed) = written(&path);
    assert!(matches!(look(&store, &key, &sealed), Scrubbing::Whole(all) if all == sealed.length));
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    for _ in 0..100 {
        flip(&path, &mut random);
        assert!(matches!(look(&store, &key, &sealed), Scrubbing::Damaged(_)));
        let before = std::fs::read(&path).unwrap();
        // One that is damaged itself, and one that ends early, take no place.
        let other = dir.path().join("other");
        std::fs::write(&other, &good).unwrap();
        flip(&other, &mut random);
        let bad = std::fs::read(&other).unwrap();
        let refused = mend_container(&store, &key, &sealed, &mut &bad[..]).unwrap_err();
        assert_eq!(refused.code(), Code::Corrupt, "{refused}");
        let cut = random.below(good.len() as u64) as usize;
        assert!(mend_container(&store, &key, &sealed, &mut &good[..cut]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), before, "it stays as it is");
        mend_container(&store, &key, &sealed, &mut &good[..]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), good);
        assert!(matches!(look(&store, &key, &sealed), Scrubbing::Whole(_)));
    }
}

/// The file of a container that is removed may be written over at once, for the next.
#[test]
fn what_is_removed_while_it_is_read_is_gone_and_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let (store, key, good, sealed) = written(&path);
    let mut calls = 0;
    let read = read_container(&store, &key, &sealed, &mut |_| {
        calls += 1;
        if calls == 2 {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&vec![0; good.len()], 0).unwrap();
            std::fs::rename(&path, dir.path().join("spare")).unwrap();
        }
        true
    });
    assert!(calls >= 2 && matches!(read, Scrubbing::Gone), "{read:?}");
    assert!(matches!(look(&store, &key, &sealed), Scrubbing::Gone));
    // Nor does it come back.
    let gone = mend_container(&store, &key, &sealed, &mut &good[..]).unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    assert!(!path.exists());
}

#[test]
fn a_reading_ends_when_it_is_not_wanted_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (store, key, _, sealed) = written(&dir.path().join("a.olc"));
    let mut left = 2;
    let read = read_container(&store, &key, &sealed, &mut |_| {
        left -= 1;
        left > 0
    });
    assert!(matches!(read, Scrubbing::Stopped), "{read:?}");
}

/// A lost container stands again only if it is what was recorded, whether the store lets a draft be
/// looked at before it has its name or not.
#[test]
fn what_was_lost_is_made_again_of_a_sound_copy_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let (directory, key, good, sealed) = written(&path);
    let rotting = |seed| {
        let mut odds = Odds::new(seed);
        odds.rots = 1_000_000;
        Faulty::new(Arc::new(Directory::at(dir.path())), Arc::new(odds))
    };
    let mut random = Sequence::new(outlive_base::seed!(), 3);
    let stores: [(&dyn Store, bool); 3] = [
        (&directory, true),
        (&Unshown(Directory::at(dir.path())), true),
        (&rotting(random.u64()), false),
    ];
    for (store, is_sound) in stores {
        std::fs::remove_file(&path).ok();
        for _ in 0..20 {
            let mut bad = good.clone();
            let place = random.below(bad.len() as u64) as usize;
            bad[place] ^= 1 << random.below(8);
            let refused = make_container(store, &key, &sealed, &mut &bad[..]).unwrap_err();
            assert_eq!(refused.code(), Code::Corrupt, "{refused}");
            let cut = random.below(good.len() as u64) as usize;
            assert!(make_container(store, &key, &sealed, &mut &good[..cut]).is_err());
            assert!(!path.exists(), "nothing stands there");
        }
        let made = make_container(store, &key, &sealed, &mut &good[..]);
        assert_eq!(made.is_ok(), is_sound, "{made:?}");
        assert_eq!(path.exists(), is_sound);
    }
}

/// What the storage does not hold as it was written takes no place.
#[test]
fn what_reads_back_otherwise_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let (store, key, good, sealed) = written(&path);
    let mut random = Sequence::new(outlive_base::seed!(), 1);
    flip(&path, &mut random);
    let before = std::fs::read(&path).unwrap();
    let mut odds = Odds::new(random.u64());
    odds.rots = 1_000_000;
    let rotting = Faulty::new(Arc::new(store), Arc::new(odds));
    assert!(mend_container(&rotting, &key, &sealed, &mut &good[..]).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn parities_are_read_as_containers_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::at(dir.path());
    let level = Level::xor(3).unwrap();
    let head = ParityHead {
        job_hash: 7,
        id: id(1, 5, 2),
        level,
        members: Vec::new(),
    };
    let key = Key::parity(level, head.id);
    let sum = vec![3; 8192];
    let parity = write_parity(&store, &key, &head, (8192, None), &mut &sum[..]).unwrap();
    let read = |go_on: bool| read_parity(&store, &key, parity, &mut |_| go_on);
    assert!(matches!(read(true), Scrubbing::Whole(_)));
    assert!(matches!(read(false), Scrubbing::Stopped));
    let mut random = Sequence::new(outlive_base::seed!(), 2);
    let path = store.locate(&key);
    flip(Path::new(&path), &mut random);
    assert!(matches!(read(true), Scrubbing::Damaged(_)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read(true), Scrubbing::Gone));
}

/// A store that shows nothing before it has its name, as object stores do.
#[derive(Debug)]
struct Unshown(Directory);

struct UnshownDraft(Box<dyn Draft>);

impl Draft for UnshownDraft {
    fn write(&self, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        self.0.write(at, parts)
    }
    fn read_back(&self) -> Result<Box<dyn Object>, WriteError> {
        Err(WriteError::Io {
            path: "draft".into(),
            doing: "read back",
            source: io::ErrorKind::Unsupported.into(),
        })
    }
    fn seal(self: Box<Self>) -> Result<(), WriteError> {
        self.0.seal()
    }
}

impl Store for Unshown {
    fn name(&self) -> String {
        self.0.name()
    }
    fn locate(&self, key: &Key) -> String {
        self.0.locate(key)
    }
    fn begin(&self, key: &Key, length: u64, aligned: bool) -> Result<Box<dyn Draft>, WriteError> {
        Ok(Box::new(UnshownDraft(self.0.begin(key, length, aligned)?)))
    }
    fn put_all(&self, small: &[Put<'_>]) -> Vec<Result<u64, WriteError>> {
        self.0.put_all(small)
    }
    fn create(&self, key: &Key, bytes: &[u8]) -> Result<bool, WriteError> {
        self.0.create(key, bytes)
    }
    fn append(&self, key: &Key, at: u64, parts: &mut [IoSlice<'_>]) -> Result<(), Unappended> {
        self.0.append(key, at, parts)
    }
    fn open(&self, key: &Key, fresh: bool) -> io::Result<Box<dyn Object>> {
        self.0.open(key, fresh)
    }
    fn get(&self, key: &Key, most: u64) -> io::Result<Vec<u8>> {
        self.0.get(key, most)
    }
    fn get_still(&self, key: &Key, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.0.get_still(key, most)
    }
    fn tag(&self, key: &Key) -> Option<u64> {
        self.0.tag(key)
    }
    fn written(&self, key: &Key) -> io::Result<std::time::SystemTime> {
        self.0.written(key)
    }
    fn list(&self, kind: ObjectKind) -> io::Result<Vec<Item>> {
        self.0.list(kind)
    }
    fn remove(&self, keys: &[Key]) -> Result<(), WriteError> {
        self.0.remove(keys)
    }
    fn settle(&self, kind: ObjectKind, keys: &[Key]) -> Result<(), WriteError> {
        self.0.settle(kind, keys)
    }
    fn room(&self) -> io::Result<u64> {
        self.0.room()
    }
}
