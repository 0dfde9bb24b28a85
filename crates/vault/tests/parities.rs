//! Parities as files: the bytes of the format.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;

use common::{bytes, id, layout, rank};
use outlive_base::rng::Sequence;
use outlive_base::{Code, Level, NodeId};
use outlive_ledger::scheme::{Group, Piece};
use outlive_vault::{
    Bytes, Key, Memory, ObjectKind, ParityFile, ParityHead, Put, Sealed, Space, Store, Sum,
    write_parity,
};

const PAGE: usize = 4096;
const JOB: u64 = 77;

fn le<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + N].iter().rev();
    bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Containers of so many members, none as long as another.
fn containers(members: u32) -> BTreeMap<Piece, Vec<u8>> {
    (0..members)
        .map(|node| {
            let length = 6000 + 1500 * node;
            let bytes = (0..length).map(|i| (i * 7 + i / 251 * 3 + node * 29) as u8);
            (Piece::Whole(NodeId(node)), bytes.collect())
        })
        .collect()
}

/// The file that member 1 keeps.
fn written(level: Level) -> Vec<u8> {
    let members = u32::from(level.members().unwrap());
    let containers = containers(members);
    let sealed = |(piece, bytes): (&Piece, &Vec<u8>)| Sealed {
        id: id(2, 30, piece.node().0),
        length: bytes.len() as u64,
        digest: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10 + u128::from(piece.node().0),
    };
    let head = ParityHead {
        job_hash: JOB,
        id: id(2, 30, 1),
        level,
        members: containers.iter().map(sealed).collect(),
    };
    let group = Group {
        level,
        members: (0..members).map(NodeId).collect(),
        lengths: head.members.iter().map(|it| it.length).collect(),
    };
    let (want, bytes) = (Piece::Parity(NodeId(1)), group.parity_bytes());
    let terms = group.terms(want, |_| true).unwrap();
    let mut open = |piece: Piece, range: std::ops::Range<u64>| {
        let part = containers[&piece][range.start as usize..range.end as usize].to_vec();
        Ok(Box::new(Cursor::new(part)) as Box<dyn Read>)
    };
    let mut sum = Sum::new(terms, bytes, &mut open);
    let (store, key) = (Memory::new(1 << 20), Key::parity(level, head.id));
    write_parity(&store, &key, &head, (bytes, None), &mut sum).unwrap();
    store.get(&key, u64::MAX).unwrap()
}

/// Files of version 1 stay readable, and are what is still written. `OUTLIVE_BLESS=1` writes them.
#[test]
fn golden_files() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (xor, rs) = (Level::xor(4).unwrap(), Level::rs(3, 2).unwrap());
    for (name, level, k, m, polynomial) in [
        ("v1-xor4.olp", xor, 3, 1, 0),
        ("v1-rs3+2.olp", rs, 3, 2, 0x11d),
    ] {
        let (path, written) = (golden.join(name), written(level));
        if std::env::var_os("OUTLIVE_BLESS").is_some() {
            std::fs::write(&path, &written).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == written,
            "{name} has changed"
        );
        // By hand from docs/format.md.
        assert_eq!(&written[..8], b"OLPARIT1");
        assert_eq!(le::<1>(&written, 40), 1, "node storage");
        assert_eq!(le::<2>(&written, 43), k);
        assert_eq!(le::<2>(&written, 45), m);
        assert_eq!(le::<2>(&written, 48), polynomial);
        assert_eq!(le::<8>(&written, 52), (written.len() - PAGE) as u64);
        assert_eq!(le::<4>(&written, 76), k + m);
    }
}

/// The bytes of a parity, computed from docs/format.md alone.
#[test]
fn a_parity_is_what_the_format_says() {
    fn times(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in (0..8).rev() {
            product <<= 1;
            if product & 0x100 != 0 {
                product ^= 0x11d;
            }
            if b >> bit & 1 == 1 {
                product ^= u16::from(a);
            }
        }
        product as u8
    }
    let over = |a: u8, b: u8| (0..=255).find(|it| times(*it, b) == a).unwrap();
    let (n, m, k) = (5, 2, 3);
    let containers: Vec<Vec<u8>> = containers(n as u32).into_values().collect();
    // The longest has 12000 bytes.
    let segment = 4096;
    let byte = |member: usize, at: usize| containers[member].get(at).copied().unwrap_or(0);
    let mut expected = Vec::new();
    for i in 0..m {
        let row = (1 + n - i) % n;
        for at in 0..segment {
            let terms = (0..k).map(|s| {
                let factor = over(255 ^ s as u8, (255 - i as u8) ^ s as u8);
                times(factor, byte((row + m + s) % n, s * segment + at))
            });
            expected.push(terms.fold(0, |sum, term| sum ^ term));
        }
    }
    assert!(written(Level::rs(3, 2).unwrap())[PAGE..] == expected);
}

/// A header whose polynomial is not that of its level is of an unknown code.
#[test]
fn another_field_is_refused() {
    let level = Level::rs(3, 2).unwrap();
    let key = Key::parity(level, id(2, 30, 1));
    let store = Memory::new(1 << 20);
    for polynomial in [0x11d, 0, 0x11b] {
        let mut bytes = written(level);
        bytes[48..50].copy_from_slice(&u16::to_le_bytes(polynomial));
        let sum = outlive_codec::crc64(&bytes[..PAGE - 8]);
        bytes[PAGE - 8..PAGE].copy_from_slice(&sum.to_le_bytes());
        let put = [Put {
            key: key.clone(),
            bytes: &bytes,
            space: Space::Free,
        }];
        store.put_all(&put).pop().unwrap().unwrap();
        let opened = ParityFile::open(&store, &key);
        assert_eq!(opened.is_ok(), polynomial == 0x11d, "{polynomial:#x}");
    }
}

/// Whatever byte of a container has rotted: no other bytes than those that were written are given
/// for a parity, and what holds the damage is not given at all.
#[test]
fn rotten_bytes_of_a_container_are_not_given() {
    let mut random = Sequence::new(outlive_base::seed!(), 0);
    let ranks = [rank(3, &[5000, 0, 70_001], 1), rank(4, &[8192, 1], 2)];
    let id = id(2, 30, 1);
    let written = bytes(&layout(id, &ranks));
    let store = Memory::new(1 << 20);
    let key = Key::container(ObjectKind::Container, id);
    let put = |bytes: &[u8]| {
        let put = [Put {
            key: key.clone(),
            bytes,
            space: Space::Free,
        }];
        store.put_all(&put).pop().unwrap().unwrap();
    };
    let given = |range: std::ops::Range<u64>| {
        let mut given = Vec::new();
        let open = || Bytes::of_container(&store, &key, range.clone());
        let read = open().map_err(outlive_base::Error::from);
        let read = read.and_then(|mut part| {
            let read = part.read_to_end(&mut given);
            read.map_err(outlive_vault::of_the_sum)
        });
        // Where they lie, and into other memory, by turns.
        let (mut shown, mut spare) = (Vec::new(), [0; 700]);
        let looked = open().map_err(outlive_base::Error::from);
        let looked = looked.and_then(|mut part| {
            loop {
                let seen = part.at_hand().map_err(outlive_vault::of_the_sum)?;
                let count = seen.len().min(1 + shown.len() % 5000);
                shown.extend_from_slice(&seen[..count]);
                part.pass(count);
                match part.read(&mut spare).map_err(outlive_vault::of_the_sum)? {
                    0 if count == 0 => return Ok(shown.len()),
                    read => shown.extend_from_slice(&spare[..read]),
                }
            }
        });
        assert_eq!(looked.is_ok(), read.is_ok());
        assert!(read.is_err() || shown == given);
        (read, given)
    };
    let end = written.len() as u64;
    for _ in 0..400 {
        let at = random.below(end);
        let mut rotten = written.clone();
        rotten[at as usize] ^= 1 << random.below(8);
        put(&rotten);
        let (read, _) = given(0..end);
        assert_eq!(read.unwrap_err().code(), Code::Corrupt, "byte {at}");
        let from = random.below(end);
        let to = from + random.below(end - from + 1);
        let (read, some) = given(from..to);
        assert!(read.is_err() || !(from..to).contains(&at), "byte {at}");
        let right = &written[from as usize..to as usize];
        assert!(right.starts_with(&some), "byte {at} of {from}..{to}");
        put(&written);
        let (read, all) = given(from..to);
        assert!(read.is_ok() && all == right, "{from}..{to}");
    }
    assert!(given(1..end + 1).0.is_err());
    assert!(given(end..end).0.is_ok());
}
