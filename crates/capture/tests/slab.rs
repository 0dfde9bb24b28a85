//! Slabs: states, bounds, and heads that others have damaged.
#![allow(clippy::unwrap_used)] // helpers of tests

use outlive_base::{Incarnation, Rank, Version};
use outlive_capture::ShareError;
use outlive_capture::region::{self, Region};
use outlive_capture::slab::{HEAD_BYTES, Slab, SlabId, State, capacity_for, job_hash};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};

fn id() -> SlabId {
    SlabId {
        job: job_hash("heat"),
        incarnation: Incarnation(1),
        rank: Rank(2),
        ranks: 4,
        slot: 1,
        generation: 5,
    }
}

fn regions() -> Vec<Region> {
    vec![
        Region::memory("u", 5000),
        Region::memory("none", 0),
        Region::memory("k", 8),
    ]
}

fn filled() -> (Slab, OwnedFd) {
    let table = region::encode(&regions());
    let (_, total) = region::offsets(&regions()).unwrap();
    let (mut slab, fd) = Slab::create(capacity_for(table.len() as u64, total).unwrap()).unwrap();
    slab.format(id()).unwrap();
    let mut rank = Slab::map(fd.as_fd(), true).unwrap();
    rank.begin_fill(Version(9), &table, total).unwrap();
    assert_eq!(slab.head().unwrap().state, State::Filling);
    assert!(slab.data().is_err(), "not complete yet");
    let data = rank.data_mut().unwrap();
    assert_eq!(data.len(), 12288);
    data[..5000].fill(7);
    data[8192..8200].copy_from_slice(&42u64.to_le_bytes());
    rank.finish().unwrap();
    rank.protect(true).unwrap();
    rank.protect(false).unwrap();
    assert!(rank.data_mut().is_err(), "complete: not to be changed");
    (slab, fd)
}

#[test]
fn a_capture_is_read_back_by_another_mapping() {
    let (mut slab, fd) = filled();
    let head = slab.head().unwrap();
    assert_eq!(
        (head.id, head.state, head.version),
        (id(), State::Captured, Version(9))
    );
    slab.seal().unwrap();
    assert!(slab.seal().is_err());
    // A new agent finds only the descriptor.
    drop(slab);
    let mut adopted = Slab::map(fd.as_fd(), true).unwrap();
    assert_eq!(adopted.head().unwrap().state, State::Sealed);
    let found = adopted.regions().unwrap();
    let data = adopted.data().unwrap();
    assert_eq!(
        found.iter().map(|(r, _)| r.clone()).collect::<Vec<_>>(),
        regions()
    );
    assert!(data[found[0].1.clone()].iter().all(|&b| b == 7));
    assert_eq!(data[found[2].1.clone()], 42u64.to_le_bytes());
    adopted.clear().unwrap();
    assert_eq!(adopted.head().unwrap().table_bytes, 0);
    assert!(adopted.regions().is_err());
}

#[test]
fn a_read_only_descriptor_cannot_be_mapped_writable() {
    let (slab, fd) = filled();
    let reader = Slab::read_only(fd.as_fd()).unwrap();
    assert!(matches!(
        Slab::map(reader.as_fd(), true),
        Err(ShareError::Io { .. })
    ));
    let mut mapped = Slab::map(reader.as_fd(), false).unwrap();
    assert_eq!(mapped.regions().unwrap().len(), 3);
    assert!(mapped.clear().is_err() && mapped.finish().is_err() && mapped.data_mut().is_err());
    assert!(mapped.begin_fill(Version(1), b"", 0).is_err() && mapped.format(id()).is_err());
    drop(slab);
}

#[test]
fn too_much_is_refused_before_anything_is_touched() {
    let (mut slab, _) = Slab::create(8192).unwrap();
    slab.format(id()).unwrap();
    assert!(matches!(
        slab.begin_fill(Version(1), &[0; 10], 1),
        Err(ShareError::Full {
            needed: 12288,
            capacity: 8192
        })
    ));
    assert_eq!(slab.head().unwrap().state, State::Empty);
    assert!(slab.begin_fill(Version(1), &[0; 10], u64::MAX - 5).is_err());
    assert!(slab.begin_fill(Version(u64::MAX), &[0; 10], 0).is_err());
    let error = Slab::create(1 << 50).unwrap_err();
    assert!(
        matches!(&error, ShareError::Io { source, .. } if source.raw_os_error() == Some(12)),
        "{error}"
    );
    assert!(Slab::create(u64::MAX).is_err());
}

#[test]
fn short_and_unsealed_files_are_refused() {
    let fd = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, HEAD_BYTES).unwrap();
    assert!(matches!(
        Slab::map(fd.as_fd(), true),
        Err(ShareError::NotSealed)
    ));
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    assert!(matches!(
        Slab::map(fd.as_fd(), true),
        Err(ShareError::Magic(_))
    ));
}

#[test]
fn a_damaged_table_is_noticed() {
    let (slab, fd) = filled();
    rustix::io::pwrite(&fd, b"X", HEAD_BYTES + 20).unwrap();
    assert!(matches!(slab.regions(), Err(ShareError::Table(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]
    #[test]
    fn no_damage_of_head_or_table_can_panic(
        at in 8u64..(HEAD_BYTES + 100),
        bytes in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let (mut slab, fd) = filled();
        rustix::io::pwrite(&fd, &bytes, at).unwrap();
        let _ = slab.head();
        let _ = slab.table().map(<[u8]>::len);
        let _ = slab.data().map(<[u8]>::len);
        let _ = slab.regions();
        let _ = slab.data_mut().map(|data| data.len());
    }
}
