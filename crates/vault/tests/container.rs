//! Containers: what goes in comes out, and nothing else does.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{
    Collect, FRAME, Owned, at, bytes, head, id, layout, open, open_sealed, rank, store_stream,
    verify_written, write_container,
};
use outlive_base::{Code, Error, Rank};
use outlive_vault::{
    Buffer, Container, Layout, PAGE, ReadError, WriteError, WriteOptions, receive,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn check_file(path: &Path, ranks: &[Owned]) {
    let container = open(path).unwrap();
    assert_eq!(container.ranks().len(), ranks.len());
    for (entry, want) in container.ranks().zip(ranks) {
        assert_eq!((entry.rank, entry.table), (want.rank, &want.table[..]));
        let mut data = Buffer::new(entry.data_bytes as usize);
        container.read_rank(entry.rank, &mut data).unwrap();
        assert!(data[..] == want.wanted()[..], "{}", entry.rank);
    }
}

fn check_stream(stream: &[u8], ranks: &[Owned]) {
    let mut sink = Collect::default();
    receive(&mut &stream[..], None, &mut sink).unwrap();
    assert_eq!(sink.0.len(), ranks.len());
    for want in ranks {
        let (table, data) = &sink.0[&want.rank];
        assert!(*table == want.table && data[..] == want.wanted()[..]);
    }
}

#[test]
fn file_segments_stream_and_copy_are_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = [
        rank(3, &[0, 1, 8192, 8193, 30_000], 1),
        rank(9, &[4096, 4095], 2),
    ];
    let layout = layout(id(1, 5, 2), &ranks);
    let want = bytes(&layout);
    assert!(
        layout
            .segments()
            .all(|segment| segment.len().is_multiple_of(PAGE))
    );
    assert_eq!(want.len() as u64, layout.length());
    let path = dir.path().join("a.olc");
    let sealed = write_container(&path, &layout, &WriteOptions::default()).unwrap();
    assert_eq!(sealed, layout.seal());
    assert_eq!(std::fs::read(&path).unwrap(), want);

    let container = open(&path).unwrap();
    assert_eq!(*container.head(), head(id(1, 5, 2)));
    assert_eq!(container.verify(Some(&sealed)).unwrap(), sealed);
    let mut sent = Vec::new();
    container.send_to(&mut sent).unwrap();
    assert_eq!(sent, want);
    check_file(&path, &ranks);
    check_stream(&want, &ranks);

    let copy = dir.path().join("b.olc");
    let options = WriteOptions::default();
    store_stream(&copy, &mut &want[..], want.len() as u64, &options).unwrap();
    open(&copy).unwrap().verify(Some(&sealed)).unwrap();
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "nothing unfinished is left");
}

#[test]
fn unaligned_memory_and_buffered_files_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let source = rank(0, &[10_000, 5], 7);
    let aligned = layout(id(1, 1, 0), std::slice::from_ref(&source));
    let mut shifted = vec![0; source.data.len() + 1];
    shifted[1..].copy_from_slice(&source.data);
    let mut image = source.image();
    image.data = &shifted[1..];
    let unaligned = Layout::with_frame_bytes(head(id(1, 1, 0)), vec![image], FRAME).unwrap();
    assert!(!unaligned.is_aligned());
    let path = dir.path().join("a.olc");
    let options = WriteOptions {
        threads: 1,
        direct: false,
        ..WriteOptions::default()
    };
    write_container(&path, &unaligned, &options).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes(&aligned));
    let mut odd = vec![0; source.data.len() + 1];
    open(&path)
        .unwrap()
        .read_rank(Rank(0), &mut odd[1..])
        .unwrap();
    assert!(odd[1..] == source.wanted()[..]);
}

#[test]
fn a_node_without_ranks_and_a_rank_without_regions_are_containers_too() {
    for ranks in [
        vec![],
        vec![rank(0, &[], 1)],
        vec![rank(0, &[0], 1), rank(1, &[1], 1)],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.olc");
        let layout = layout(id(1, 1, 0), &ranks);
        write_container(&path, &layout, &WriteOptions::default()).unwrap();
        check_file(&path, &ranks);
        check_stream(&bytes(&layout), &ranks);
    }
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A file of version 1 stays readable, and is what is still written: these bytes
/// change only together with the version of the format. `OUTLIVE_BLESS=1` writes it.
#[test]
fn golden_file() {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1.olc"));
    let ranks = [rank(7, &[0, 5], 42)];
    let layout = layout(id(2, 77, 1), &ranks);
    let written = bytes(&layout);
    if std::env::var_os("OUTLIVE_BLESS").is_some() {
        std::fs::write(golden, &written).unwrap();
    }
    assert!(
        std::fs::read(golden).unwrap() == written,
        "the format has changed"
    );
    check_file(golden, &ranks);

    // By hand from docs/format.md: header, frame page, index, footer.
    let at = |page: usize, offset: usize| page * PAGE + offset;
    assert_eq!(written.len(), 5 * PAGE);
    assert_eq!(&written[..8], b"OLCONT1\0");
    assert_eq!(le::<2>(&written, 8), 1);
    assert_eq!(le::<8>(&written, 32), 0x1234_5678_9abc_def0);
    assert_eq!(
        (
            le::<4>(&written, 40),
            le::<4>(&written, 44),
            le::<8>(&written, 48)
        ),
        (2, 1, 77)
    );
    assert_eq!(
        (
            le::<4>(&written, 56),
            le::<4>(&written, 60),
            le::<4>(&written, 64)
        ),
        (64, 1, 8192)
    );
    assert_eq!(
        (le::<8>(&written, 72), le::<8>(&written, 80)),
        (1, 3 * PAGE as u64)
    );
    assert_eq!(
        (le::<8>(&written, 88), le::<4>(&written, 128)),
        (5 * PAGE as u64, 7)
    );
    assert_eq!(
        le::<8>(&written, 120),
        outlive_codec::crc64(&written[..120])
    );
    let page = &written[at(1, 0)..at(2, 0)];
    assert_eq!(&page[..8], b"OLFRAME1");
    assert_eq!(
        (le::<4>(page, 12), le::<4>(page, 16), le::<4>(page, 20)),
        (7, 1, 0)
    );
    assert_eq!(
        (le::<4>(page, 32), le::<4>(page, 36), le::<4>(page, 40)),
        (5, 5, 0)
    );
    assert_eq!(
        le::<8>(page, 48),
        outlive_codec::crc64(&written[at(2, 0)..at(3, 0)])
    );
    let digest = outlive_codec::digest(&written[at(2, 0)..at(2, 5)]);
    assert_eq!(page[80..96], digest.to_le_bytes());
    assert_eq!(le::<8>(page, 4088), outlive_codec::crc64(&page[..4088]));
    let index = &written[at(3, 0)..at(4, 0)];
    assert_eq!(
        (&index[..8], le::<4>(index, 12), le::<8>(index, 16)),
        (&b"OLINDEX1"[..], 1, 1)
    );
    // 32 fixed, 8 for the rank, 8 a region, then the entry.
    assert_eq!(
        (le::<8>(index, 56 + 16), le::<4>(index, 56 + 24)),
        (PAGE as u64, 5)
    );
    assert_eq!(index[56 + 48..56 + 64], digest.to_le_bytes());
    let footer = &written[at(4, 0)..];
    assert_eq!(
        (&footer[..8], le::<8>(footer, 16)),
        (&b"OLFOOT1\0"[..], 3 * PAGE as u64)
    );
    assert_eq!(le::<8>(footer, 32), outlive_codec::crc64(index));
    let seal = outlive_codec::digest(&[&written[..PAGE], index].concat());
    assert_eq!(footer[48..64], seal.to_le_bytes());
    assert_eq!(layout.seal().digest, seal);
}

/// In memory where possible: these tests open the same small file very often.
fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn small() -> (Vec<Owned>, Vec<u8>) {
    let ranks = vec![rank(0, &[0, 100], 5), rank(1, &[4097], 6)];
    let bytes = bytes(&layout(id(1, 2, 3), &ranks));
    (ranks, bytes)
}

/// Opens, verifies and reads all. `Ok` must mean: exactly these ranks.
fn read_all(path: &Path, ranks: &[Owned]) -> Result<(), ReadError> {
    let container = open(path)?;
    container.verify(None)?;
    for want in ranks {
        let mut data = Buffer::new(want.data.len());
        container.read_rank(want.rank, &mut data)?;
        assert!(data[..] == want.wanted()[..], "wrong data passed");
    }
    Ok(())
}

#[test]
fn every_flipped_bit_is_found_in_the_file_and_in_the_stream() {
    let dir = fast_dir();
    let path = dir.path().join("a.olc");
    let (ranks, good) = small();
    std::fs::write(&path, &good).unwrap();
    let sealed = open(&path).unwrap().sealed();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in 0..good.len() {
        // All bytes, one bit each; all bits of the bytes of the first header.
        let bits = if at < 256 { 0..8 } else { at % 8..at % 8 + 1 };
        for bit in bits {
            let mut stream = good.clone();
            stream[at] ^= 1 << bit;
            let got = receive(&mut &stream[..], Some(&sealed), &mut Collect::default());
            assert!(got.is_err(), "stream, byte {at} bit {bit}");
            file.write_all_at(&stream[at..=at], at as u64).unwrap();
            let error = read_all(&path, &ranks).expect_err(&format!("byte {at} bit {bit}"));
            let code = Error::from(error).code();
            let known = [Code::Corrupt, Code::Truncated, Code::FormatUnknown];
            assert!(known.contains(&code), "byte {at} bit {bit}: {code}");
            let error = verify_written(&path, Some(&sealed)).unwrap_err();
            let code = Error::from(error).code();
            assert!(
                known.contains(&code),
                "read back, byte {at} bit {bit}: {code}"
            );
        }
        file.write_all_at(&good[at..=at], at as u64).unwrap();
    }
    read_all(&path, &ranks).unwrap();
    assert_eq!(verify_written(&path, Some(&sealed)).unwrap(), sealed);
}

#[test]
fn every_truncation_and_extension_is_found() {
    let dir = fast_dir();
    let path = dir.path().join("a.olc");
    let (ranks, good) = small();
    std::fs::write(&path, &good).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for length in (0..good.len()).rev() {
        let got = receive(&mut &good[..length], None, &mut Collect::default());
        assert!(
            matches!(got, Err(ReadError::Lost { .. })),
            "{length}: {got:?}"
        );
        if length % 509 == 0 || length % PAGE < 2 || length < 300 {
            file.set_len(length as u64).unwrap();
            let error = read_all(&path, &ranks).unwrap_err();
            assert_eq!(Error::from(error).code(), Code::Truncated, "{length}");
            let error = verify_written(&path, None).unwrap_err();
            assert_eq!(Error::from(error).code(), Code::Truncated, "{length}");
        }
    }
    std::fs::write(&path, [&good[..], &[0; PAGE]].concat()).unwrap();
    assert_eq!(
        Error::from(read_all(&path, &ranks).unwrap_err()).code(),
        Code::Corrupt
    );
}

#[test]
fn damage_is_named_and_swapped_frames_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let ranks = [rank(0, &[8192, 8192], 1), rank(1, &[8192], 2)];
    let good = bytes(&layout(id(1, 2, 3), &ranks));
    // Header page, then frames of three pages each.
    let frame = |n: usize| PAGE + n * 3 * PAGE..PAGE + (n + 1) * 3 * PAGE;
    let mut damaged = good.clone();
    damaged[frame(1).start + PAGE + 17] ^= 4;
    std::fs::write(&path, &damaged).unwrap();
    let error = open(&path).unwrap().verify(None).unwrap_err();
    let shown = Error::from(error).to_string();
    assert!(
        shown.contains("OL-403") && shown.contains("a.olc"),
        "{shown}"
    );
    assert!(
        shown.contains("rank 0, region 'r1', frame 0, payload checksum"),
        "{shown}"
    );
    // P9: the other rank is not touched by it.
    let container = open(&path).unwrap();
    let mut data = Buffer::new(8192);
    container.read_rank(Rank(1), &mut data).unwrap();
    assert!(data[..] == ranks[1].wanted()[..]);

    let mut swapped = good.clone();
    swapped[frame(0)].copy_from_slice(&good[frame(1)]);
    swapped[frame(1)].copy_from_slice(&good[frame(0)]);
    std::fs::write(&path, &swapped).unwrap();
    let error = open(&path).unwrap().verify(None).unwrap_err();
    assert!(error.to_string().contains("another place"), "{error}");
    assert!(receive(&mut &swapped[..], None, &mut Collect::default()).is_err());

    // A frame of another version with the same shape, index and all else equal.
    let older = bytes(&layout(id(1, 1, 3), &ranks));
    let mut mixed = good.clone();
    mixed[frame(2)].copy_from_slice(&older[frame(2)]);
    std::fs::write(&path, &mixed).unwrap();
    assert!(open(&path).unwrap().verify(None).is_err());
}

#[test]
fn a_lost_index_is_rebuilt_and_trusted_only_with_its_seal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let (ranks, good) = small();
    std::fs::write(&path, &good).unwrap();
    let sealed = open(&path).unwrap().sealed();
    let index_pages = 2;
    let mut lost = good.clone();
    let start = lost.len() - index_pages * PAGE;
    lost[start..].fill(0);
    for bytes in [&lost[..], &good[..start]] {
        std::fs::write(&path, bytes).unwrap();
        assert!(open(&path).is_err());
        let container = open_sealed(&path, &sealed).unwrap();
        assert!(container.is_rebuilt() && container.sealed() == sealed);
        for want in &ranks {
            let mut data = Buffer::new(want.data.len());
            container.read_rank(want.rank, &mut data).unwrap();
            assert!(data[..] == want.wanted()[..]);
        }
        assert!(container.verify(None).is_err(), "damage is still reported");
        let mut other = sealed;
        other.digest ^= 1;
        assert!(open_sealed(&path, &other).is_err());
    }
    lost[PAGE + 3] ^= 1;
    std::fs::write(&path, &lost).unwrap();
    let (store, key) = at(&path);
    let error = Container::rebuild_index(&store, &key).unwrap_err();
    assert!(
        error.to_string().contains("rank 0, region 'r1', frame 0"),
        "{error}"
    );
}

#[test]
fn contradictory_input_is_refused() {
    let ranks = [rank(1, &[10], 1), rank(0, &[10], 1)];
    let make = |ranks: &[Owned], frame| {
        let images = ranks.iter().map(Owned::image).collect();
        Layout::with_frame_bytes(head(id(1, 1, 0)), images, frame).map(|_| ())
    };
    assert!(
        matches!(make(&ranks, FRAME), Err(WriteError::Input(_))),
        "order"
    );
    assert!(
        make(&[rank(64, &[10], 1)], FRAME).is_err(),
        "outside the job"
    );
    assert!(make(&[], 4097).is_err() && make(&[], 2048).is_err() && make(&[], 1 << 27).is_err());
    let mut wrong = rank(0, &[10], 1);
    wrong.data = Buffer::new(2 * PAGE);
    assert!(make(&[wrong], FRAME).is_err(), "length");
    let mut wrong = rank(0, &[10], 1);
    wrong.table.pop();
    assert!(make(&[wrong], FRAME).is_err(), "table");
}

#[test]
fn a_sink_may_refuse_and_another_seal_is_refused_early() {
    let (_, good) = small();
    let mut sink = Collect::default();
    let sealed = receive(&mut &good[..], None, &mut sink).unwrap();
    let other = bytes(&layout(id(1, 3, 3), &[rank(0, &[1], 1)]));
    let mut sink = Collect::default();
    let error = receive(&mut &other[..], Some(&sealed), &mut sink).unwrap_err();
    assert!(matches!(error, ReadError::Other { .. }) && sink.0.is_empty());
    struct Refuse;
    impl outlive_vault::Sink for Refuse {
        fn rank(&mut self, _: Rank, _: &[u8], _: u64) -> outlive_base::Result<&mut [u8]> {
            Err(Error::internal("no"))
        }
    }
    assert!(matches!(
        receive(&mut &good[..], None, &mut Refuse),
        Err(ReadError::Sink(_))
    ));
}

fn size() -> impl Strategy<Value = u64> {
    let frame = u64::from(FRAME);
    let edge = prop::sample::select(vec![
        0,
        1,
        4095,
        4096,
        4097,
        frame - 1,
        frame,
        frame + 1,
        3 * frame,
    ]);
    prop_oneof![3 => edge, 1 => 0..50_000u64]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]
    #[test]
    fn any_set_of_regions_round_trips(
        sizes in prop::collection::vec(prop::collection::vec(size(), 0..12), 0..5),
        seed: u64,
    ) {
        let ranks: Vec<Owned> =
            sizes.iter().enumerate().map(|(i, sizes)| rank(3 * i as u32, sizes, seed)).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.olc");
        let layout = layout(id(1, 1, 0), &ranks);
        let sealed = write_container(&path, &layout, &WriteOptions::default()).unwrap();
        open(&path).unwrap().verify(Some(&sealed)).unwrap();
        check_file(&path, &ranks);
        check_stream(&bytes(&layout), &ranks);
    }
}

#[test]
fn many_regions_are_batched() {
    let sizes: Vec<u64> = (0..3000).map(|i| i % 3).collect();
    let ranks = [rank(0, &sizes, 1)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.olc");
    let layout = layout(id(1, 1, 0), &ranks);
    write_container(&path, &layout, &WriteOptions::default()).unwrap();
    open(&path).unwrap().verify(None).unwrap();
    check_file(&path, &ranks);
    check_stream(&bytes(&layout), &ranks);
}
