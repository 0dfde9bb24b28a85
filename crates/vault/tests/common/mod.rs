//! Small jobs in memory, for tests.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use outlive_base::{ContainerId, Incarnation, NodeId, Rank, Version};
use outlive_capture::region::{self, Region};
use outlive_vault::{
    Buffer, Container, ContainerHead, Directory, Key, Layout, ObjectKind, PAGE, RankImage,
    ReadError, Sealed, Sink, WriteError, WriteOptions,
};

pub const FRAME: u32 = 4096 * 2;

pub fn id(incarnation: u32, version: u64, node: u32) -> ContainerId {
    ContainerId {
        incarnation: Incarnation(incarnation),
        version: Version(version),
        node: NodeId(node),
    }
}

pub fn head(id: ContainerId) -> ContainerHead {
    ContainerHead {
        job_hash: 0x1234_5678_9abc_def0,
        id,
        ranks_total: 64,
    }
}

/// A rank's memory. Padding is filled with rubbish: it must never reach a file.
pub struct Owned {
    pub rank: Rank,
    pub table: Vec<u8>,
    pub data: Buffer,
    pub sizes: Vec<u64>,
}

pub fn rank(number: u32, sizes: &[u64], seed: u64) -> Owned {
    let regions: Vec<Region> = sizes
        .iter()
        .enumerate()
        .map(|(i, bytes)| Region::memory(format!("r{i}"), *bytes))
        .collect();
    let (offsets, total) = region::offsets(&regions).unwrap();
    let mut data = Buffer::new(total as usize);
    data.fill(0xAA);
    let mut state = seed.wrapping_mul(2) + 1;
    for (offset, bytes) in offsets.iter().zip(sizes) {
        for byte in &mut data[*offset as usize..(offset + bytes) as usize] {
            // Fixed seed: the golden file holds these very bytes.
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
    }
    Owned {
        rank: Rank(number),
        table: region::encode(&regions),
        data,
        sizes: sizes.to_vec(),
    }
}

impl Owned {
    pub fn image(&self) -> RankImage<'_> {
        RankImage {
            rank: self.rank,
            table: &self.table,
            data: &self.data,
        }
    }

    /// What must come back: the same with zero padding.
    pub fn wanted(&self) -> Vec<u8> {
        let mut data = self.data.to_vec();
        let mut at = 0;
        for bytes in &self.sizes {
            let end = at + (*bytes as usize).next_multiple_of(PAGE);
            data[at + *bytes as usize..end].fill(0);
            at = end;
        }
        data
    }
}

pub fn layout(id: ContainerId, ranks: &[Owned]) -> Layout<'_> {
    let images = ranks.iter().map(Owned::image).collect();
    Layout::with_frame_bytes(head(id), images, FRAME).unwrap()
}

pub fn bytes(layout: &Layout<'_>) -> Vec<u8> {
    layout.segments().flatten().copied().collect()
}

/// Collects what is received; refuses more than 16 MiB.
#[derive(Default)]
pub struct Collect(pub BTreeMap<Rank, (Vec<u8>, Buffer)>);

impl Sink for Collect {
    fn rank(&mut self, rank: Rank, table: &[u8], bytes: u64) -> outlive_base::Result<&mut [u8]> {
        if bytes > 16 << 20 {
            return Err(outlive_base::Error::internal("too much for a test"));
        }
        let entry = (table.to_vec(), Buffer::new(bytes as usize));
        self.0.insert(rank, entry);
        Ok(&mut self.0.get_mut(&rank).unwrap().1)
    }
}

/// A file as an object: marks lie beside the directories of the other kinds.
pub fn at(path: &Path) -> (Directory, Key) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let key = Key::new(ObjectKind::Mark, name).unwrap();
    (Directory::at(path.parent().unwrap()), key)
}

pub fn open(path: &Path) -> Result<Container, ReadError> {
    let (store, key) = at(path);
    Container::open(&store, &key)
}

pub fn open_sealed(path: &Path, sealed: &Sealed) -> Result<Container, ReadError> {
    let (store, key) = at(path);
    Container::open_sealed(&store, &key, sealed)
}

pub fn verify_written(path: &Path, expected: Option<&Sealed>) -> Result<Sealed, ReadError> {
    let (store, key) = at(path);
    outlive_vault::verify_written(&store, &key, expected)
}

pub fn write_container(
    path: &Path,
    layout: &Layout<'_>,
    options: &WriteOptions<'_>,
) -> Result<Sealed, WriteError> {
    let (store, key) = at(path);
    outlive_vault::write_container(&store, &key, layout, options)
}

pub fn store_stream(
    path: &Path,
    reader: &mut dyn Read,
    length: u64,
    options: &WriteOptions<'_>,
) -> Result<(), WriteError> {
    let (store, key) = at(path);
    outlive_vault::store_stream(&store, &key, reader, length, options)
}
