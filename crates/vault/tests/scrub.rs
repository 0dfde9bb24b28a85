//! Copies are read before they are needed, and damaged ones are replaced by sound ones alone.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use common::{FRAME, at, bytes, head, id, rank};
use outlive_base::rng::Sequence;
use outlive_base::{Code, Level};
use outlive_vault::{
    Directory, Faulty, Key, Layout, Odds, ParityHead, Scrubbing, Sealed, Store, WriteOptions,
    mend_container, read_container, read_parity, write_container, write_parity,
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
