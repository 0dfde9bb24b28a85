//! Entry points: whatever the bytes, no panic, no memory beyond a constant times the
//! bytes (P7), and what passes is consistent.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;

use outlive_base::{ContainerId, Incarnation, Level, NodeId, Rank, Version};
use outlive_codec::crc64;
use outlive_vault::{
    Buffer, Container, Key, Memory, ObjectKind, PAGE, ParityFile, Put, Record, Sink, Space, Store,
    Vault, receive as receive_stream, verify_written,
};

/// Splits off the first byte; odd means: put the checksums right.
fn input(bytes: &[u8]) -> (bool, Vec<u8>) {
    bytes
        .split_first()
        .map_or((false, Vec::new()), |(first, rest)| {
            (first & 1 == 1, rest.to_vec())
        })
}

fn reseal(bytes: &mut [u8], from: usize, at: usize) {
    if from <= at && at.checked_add(8).is_some_and(|end| end <= bytes.len()) {
        let checksum = crc64(&bytes[from..at]);
        bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize, count: usize) -> usize {
    let bytes = bytes.get(at..at + count).unwrap_or_default();
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Puts the checksums of header, frame pages, index and footer right.
pub fn reseal_container(bytes: &mut [u8]) {
    reseal(bytes, 0, 120);
    let header = number(bytes, 12, 4);
    reseal(bytes, 128, header.saturating_sub(8));
    for start in (0..bytes.len()).step_by(PAGE) {
        let page = &bytes[start..];
        if page.starts_with(b"OLFRAME1") || page.starts_with(b"OLFOOT1\0") {
            reseal(bytes, start, start + PAGE - 8);
        } else if page.starts_with(b"OLINDEX1") {
            let length = number(page, 24, 8);
            reseal(bytes, start, start.saturating_add(length.saturating_sub(8)));
        }
    }
}

/// Opens and reads a parity.
pub fn parity_open(bytes: &[u8]) {
    let (fix, mut bytes) = input(bytes);
    if fix {
        reseal(&mut bytes, 0, PAGE - 8);
    }
    let id = ContainerId {
        incarnation: Incarnation(number(&bytes, 24, 4) as u32),
        node: NodeId(number(&bytes, 28, 4) as u32),
        version: Version(number(&bytes, 32, 8) as u64),
    };
    let (scheme, k) = (number(&bytes, 41, 2), number(&bytes, 43, 2) as u16);
    let level = match scheme {
        2 => Level::rs(k, number(&bytes, 45, 2) as u16),
        _ => Level::xor(k.saturating_add(1)),
    };
    let level = level.unwrap_or(Level::DISK);
    let (store, key) = (Memory::new(u64::MAX), Key::parity(level, id));
    let put = [Put {
        key: key.clone(),
        bytes: &bytes,
        space: Space::Free,
    }];
    store.put_all(&put).pop().unwrap().unwrap();
    if let Ok(file) = ParityFile::open(&store, &key) {
        assert!(file.head.members.len() <= bytes.len());
        assert_eq!((file.head.id, file.head.level), (id, level));
        if file.verify().is_ok() {
            assert_eq!(file.parity.length + PAGE as u64, bytes.len() as u64);
        }
    }
}

/// Opens, verifies, reads and rebuilds a container.
pub fn container_open(bytes: &[u8]) {
    let (fix, mut bytes) = input(bytes);
    if fix {
        reseal_container(&mut bytes);
    }
    let (store, key) = (
        Memory::new(u64::MAX),
        Key::new(ObjectKind::Container, "fuzz").unwrap(),
    );
    let (put, space) = (key.clone(), Space::Free);
    let put = [Put {
        key: put,
        bytes: &bytes,
        space,
    }];
    store.put_all(&put).pop().unwrap().unwrap();
    if let Ok(container) = Container::open(&store, &key) {
        let verified = container.verify(None).is_ok();
        let written = verify_written(&store, &key, None);
        assert_eq!(verified, written.is_ok(), "however it is read");
        let mut sound = true;
        for entry in container.ranks() {
            assert!(entry.data_bytes <= bytes.len() as u64);
            let mut data = Buffer::new(entry.data_bytes as usize);
            sound &= container.read_rank(entry.rank, &mut data).is_ok();
        }
        assert_eq!(verified, sound, "verify and read must agree");
        let mut sent = Vec::new();
        container.send_to(&mut sent).unwrap();
        assert!(sent == bytes);
        let mut sink = Bounded {
            most: bytes.len(),
            memory: Buffer::default(),
        };
        let received = receive_stream(&mut &sent[..], None, &mut sink);
        assert_eq!(verified, received.is_ok(), "file and stream must agree");
    }
    if let Ok(container) = Container::rebuild_index(&store, &key) {
        for entry in container.ranks() {
            let mut data = Buffer::new(entry.data_bytes as usize);
            let _ = container.read_rank(entry.rank, &mut data);
        }
    }
}

/// Decodes a record; what decodes encodes to the same bytes, or if an earlier version wrote them to
/// bytes that are the same record.
pub fn record_decode(bytes: &[u8]) {
    let (fix, mut bytes) = input(bytes);
    if fix {
        let end = bytes.len().saturating_sub(8);
        reseal(&mut bytes, 0, end);
    }
    let job = number(&bytes, 16, 8) as u64;
    if let Ok(record) = Record::decode(&bytes, job) {
        let encoded = record.encode(job).unwrap();
        match encoded[8..10] == bytes[8..10] {
            true => assert_eq!(encoded, bytes),
            false => assert_eq!(Record::decode(&encoded, job), Ok(record.clone())),
        }
        assert!(!record.file_name(false).contains('/'));
    }
}

/// Reads a log of decisions.
pub fn log(bytes: &[u8]) {
    let (fix, mut bytes) = input(bytes);
    let starts: Vec<usize> = (0..bytes.len()).step_by(8).collect();
    for start in starts.into_iter().filter(|_| fix) {
        if bytes[start..].starts_with(b"OLREC01\0") {
            let end = start.saturating_add(24 + number(&bytes, start + 12, 4));
            reseal(&mut bytes, start, end);
        }
    }
    const JOB: u64 = 9;
    let store = Memory::new(u64::MAX);
    let put = [Put {
        key: Key::new(ObjectKind::Record, format!("decisions-i1-{JOB:016x}.log")).unwrap(),
        bytes: &bytes,
        space: Space::Free,
    }];
    store.put_all(&put).pop().unwrap().unwrap();
    let vault = Vault::of_node(Arc::new(store), JOB);
    let scan = vault.records().scan().unwrap();
    let found = scan.records.len() + scan.damaged.len() + scan.foreign.len();
    assert!(found <= bytes.len() / 8 + 2);
    assert!(found > 0, "nothing in it, and nothing said");
    for record in &scan.records {
        let encoded = record.encode(JOB).unwrap();
        assert_eq!(Record::decode(&encoded, JOB).as_ref(), Ok(record));
    }
}

/// Decodes a region table; what decodes encodes to the same bytes.
pub fn region_table(bytes: &[u8]) {
    if let Ok(regions) = outlive_capture::region::decode(bytes) {
        assert_eq!(outlive_capture::region::encode(&regions), bytes);
        assert!(outlive_capture::region::offsets(&regions).is_some());
    }
}

struct Bounded {
    most: usize,
    memory: Buffer,
}

impl Sink for Bounded {
    fn rank(&mut self, _: Rank, _: &[u8], bytes: u64) -> outlive_base::Result<&mut [u8]> {
        if bytes > self.most as u64 {
            return Err(outlive_base::Error::internal("more than was sent"));
        }
        self.memory = Buffer::new(bytes as usize);
        Ok(&mut self.memory)
    }
}

/// Receives a container from a stream.
pub fn receive(bytes: &[u8]) {
    let (fix, mut bytes) = input(bytes);
    if fix {
        reseal_container(&mut bytes);
    }
    let mut sink = Bounded {
        most: bytes.len(),
        memory: Buffer::default(),
    };
    let _ = receive_stream(&mut &bytes[..], None, &mut sink);
}
