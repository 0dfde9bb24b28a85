//! A job of many nodes, each with a store of its own and one that all share, whose versions are
//! protected by copies and parities as agents protect them: the same functions write the same
//! bytes. Stores are replaced by empty ones where nodes are lost.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Result, Version};
use outlive_ledger::scheme::{Group, Piece, groups};
use outlive_vault::{
    Bytes, Catalogue, Container, Inventory, Layout, Memory, Parity, ParityHead, Part, Pieces,
    RankImage, Record, Scrubbing, Sealed, Store, Vault, WriteOptions, make, of_received,
    read_container, read_parity, receive, store_stream, write_container, write_parity,
};

use crate::common::{Collect, FRAME, Owned, head, id, rank};

pub const JOB: u64 = 0x1234_5678_9abc_def0;
const INCARNATION: u32 = 1;
const STORE_BYTES: u64 = 1 << 30;

/// The ranks of a node and their bytes.
pub type Restored = BTreeMap<Rank, Vec<u8>>;

#[derive(Clone)]
pub struct Job {
    pub nodes: Vec<Arc<dyn Store>>,
    pub shared: Arc<dyn Store>,
    /// Containers are not all of one length.
    pub uneven: bool,
    /// What was captured, by version and node.
    pub captured: BTreeMap<(u64, u32), Restored>,
    /// What each commit names.
    parts: BTreeMap<(u64, Level), Vec<Part>>,
    groups: BTreeMap<(u64, Level), Vec<Vec<NodeId>>>,
}

fn empty() -> Arc<dyn Store> {
    Arc::new(Memory::new(STORE_BYTES))
}

impl Job {
    pub fn new(nodes: u32) -> Job {
        let nodes = (0..nodes).map(|_| empty()).collect();
        Job::over(nodes, empty())
    }

    /// Over these stores, which are empty.
    pub fn over(nodes: Vec<Arc<dyn Store>>, shared: Arc<dyn Store>) -> Job {
        let job = Job {
            nodes,
            shared,
            uneven: false,
            captured: BTreeMap::new(),
            parts: BTreeMap::new(),
            groups: BTreeMap::new(),
        };
        let begun = Record::Incarnation {
            number: Incarnation(INCARNATION),
            restored: None,
            members: (0..job.count()).map(NodeId).collect(),
            ranks: job.count(),
        };
        for node in 0..job.count() {
            job.own(node).records().persist(&begun).unwrap();
        }
        job
    }

    pub fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// A node's storage as its agent has it.
    pub fn own(&self, node: u32) -> Vault {
        Vault::own(Arc::clone(&self.nodes[node as usize]), JOB)
    }

    pub fn of_all(&self) -> Vault {
        Vault::shared(Arc::clone(&self.shared), JOB)
    }

    /// One rank for each node.
    fn data(&self, version: u64, node: u32) -> Owned {
        let more = if self.uneven { 5000 * (node % 7) } else { 0 };
        let sizes = [9000 + u64::from(more), 17 + u64::from(node)];
        rank(node, &sizes, version * 1000 + u64::from(node))
    }

    fn part(node: u32, sealed: Sealed, holder: NodeId) -> Part {
        Part {
            node: NodeId(node),
            id: sealed.id,
            length: sealed.length,
            digest: sealed.digest,
            holder,
            ranks: [Rank(node)].into_iter().collect(),
            parity: None,
        }
    }

    /// Captures a version at these levels, and commits it at each: all nodes record that, and the
    /// shared directory what is committed there.
    pub fn save(&mut self, version: u64, levels: &[Level]) {
        let options = WriteOptions::default();
        let in_nodes = |level: &Level| level.store() == StoreKind::Node;
        for node in 0..self.count() {
            let data = self.data(version, node);
            let id = id(INCARNATION, version, node);
            let layout = Layout::with_frame_bytes(head(id), vec![data.image()], FRAME).unwrap();
            let restored = [(data.rank, data.wanted())].into();
            self.captured.insert((version, node), restored);
            let partner = (node + 1) % self.count();
            // As an agent does: whatever lies at a partner or is in a parity lies at home too.
            if levels.iter().any(in_nodes) {
                let vault = self.own(node);
                let (store, key) = (&**vault.store(), vault.key(Level::DISK, id));
                write_container(store, &key, &layout, &options).unwrap();
            }
            for level in levels {
                let holder = match (level.store(), level.scheme()) {
                    (StoreKind::Node, Scheme::Copies) => {
                        let vault = self.own(partner);
                        let key = vault.key(*level, id);
                        let bytes = crate::common::bytes(&layout);
                        let length = bytes.len() as u64;
                        store_stream(&**vault.store(), &key, &mut &bytes[..], length, &options)
                            .unwrap();
                        NodeId(partner)
                    }
                    (StoreKind::Shared, _) => {
                        let vault = self.of_all();
                        let key = vault.key(*level, id);
                        write_container(&**vault.store(), &key, &layout, &options).unwrap();
                        Part::SHARED
                    }
                    _ => NodeId(node),
                };
                let part = Self::part(node, layout.seal(), holder);
                self.parts.entry((version, *level)).or_default().push(part);
            }
        }
        for level in levels {
            self.protect(version, *level);
            self.commit(version, *level);
        }
    }

    fn domains(&self) -> Vec<u32> {
        (0..self.count()).collect()
    }

    /// The parities of a level.
    fn protect(&mut self, version: u64, level: Level) {
        let laid = groups(level, &self.domains()).unwrap();
        self.groups.insert((version, level), laid);
        for node in 0..self.count() {
            if level.members().is_some() {
                let parity = self.make_parity(version, level, node, None).unwrap();
                let parts = self.parts.get_mut(&(version, level)).unwrap();
                parts[node as usize].parity = Some(parity);
            }
        }
    }

    pub fn group(&self, version: u64, level: Level, node: u32) -> Option<Group> {
        let (groups, parts) = (
            &self.groups[&(version, level)],
            &self.parts[&(version, level)],
        );
        Group::of(level, groups, parts, NodeId(node))
    }

    /// Makes a parity of what there is and writes it, as `copies::parity::make` does.
    pub fn make_parity(
        &self,
        version: u64,
        level: Level,
        node: u32,
        expected: Option<Parity>,
    ) -> Result<Parity> {
        let group = self.group(version, level, node).unwrap();
        let parts = &self.parts[&(version, level)];
        let sealed = |member: &NodeId| parts[member.0 as usize].sealed();
        let id = id(INCARNATION, version, node);
        let head = ParityHead {
            job_hash: JOB,
            id,
            level,
            members: group.members.iter().map(sealed).collect(),
        };
        let vault = self.own(node);
        let (store, key) = (&**vault.store(), vault.key(level, id));
        let bytes = group.parity_bytes();
        let have = |piece| expected.is_some() || matches!(piece, Piece::Whole(_));
        let mut pieces = self.pieces(version, level);
        let want = Piece::Parity(NodeId(node));
        make(&group, want, bytes, &have, &mut pieces, &mut |sum| {
            write_parity(store, &key, &head, (bytes, expected), sum)
        })
    }

    fn committed(&self, version: u64, level: Level) -> Record {
        Record::Commit {
            incarnation: Incarnation(INCARNATION),
            version: Version(version),
            level,
            ballot: 1,
            ranks: self.count(),
            parts: self.parts[&(version, level)].clone().into(),
            groups: self.groups[&(version, level)].clone(),
        }
    }

    fn commit(&self, version: u64, level: Level) {
        let commit = self.committed(version, level);
        if level.store() == StoreKind::Shared {
            let vault = self.of_all();
            vault.records().persist_exclusive(&commit).unwrap();
        }
        for node in 0..self.count() {
            self.own(node).records().persist(&commit).unwrap();
        }
    }

    /// What a commit names of a node.
    pub fn part_of(&self, version: u64, level: Level, node: u32) -> Part {
        self.parts[&(version, level)][node as usize].clone()
    }

    fn parts_of(&self, version: u64) -> impl Iterator<Item = (&(u64, Level), &Vec<Part>)> {
        self.parts
            .range((version, Level::FIRST)..=(version, Level::LAST))
    }

    /// The node is lost, and one without anything takes its place.
    pub fn lose(&mut self, node: u32) {
        self.nodes[node as usize] = empty();
    }

    /// What any reader sees.
    pub fn catalogue(&self) -> Catalogue {
        let shared = Inventory::of(Part::SHARED, &self.of_all());
        let node = |node| {
            let store = Arc::clone(&self.nodes[node as usize]);
            Inventory::of(NodeId(node), &Vault::of_node(store, JOB))
        };
        let nodes = (0..self.count()).map(node);
        Catalogue::new(std::iter::once(shared).chain(nodes).collect())
    }

    pub fn pieces(&self, version: u64, level: Level) -> Stored<'_> {
        Stored {
            job: self,
            version,
            level,
        }
    }

    /// Brings back the bytes of a node's ranks from what is stored, as `copies::rebuild` does: the
    /// copies that commits name, the nearest first, through the vault's own readers.
    ///
    /// # Errors
    /// Why each could not be used.
    pub fn restore(&self, version: u64, node: u32) -> std::result::Result<Restored, Vec<Error>> {
        let mut why = Vec::new();
        let mut copies = vec![(Level::DISK, NodeId(node))];
        for ((_, level), parts) in self.parts_of(version) {
            let copy = (*level, parts[node as usize].holder);
            if !copies.contains(&copy) {
                copies.push(copy);
            }
        }
        for (level, holder) in copies {
            match self.fetch(version, node, level, holder) {
                Ok(restored) => return Ok(restored),
                Err(error) => why.push(error),
            }
        }
        Err(why)
    }

    fn fetch(&self, version: u64, node: u32, level: Level, holder: NodeId) -> Result<Restored> {
        let mut all = self.parts_of(version);
        let sealed = all.next().unwrap().1[node as usize].sealed();
        if level.members().is_some() {
            let group = self.group(version, level, node).unwrap();
            let have = |piece: Piece| piece.node() != NodeId(node);
            let mut pieces = self.pieces(version, level);
            let want = Piece::Whole(NodeId(node));
            return make(
                &group,
                want,
                sealed.length,
                &have,
                &mut pieces,
                &mut |sum| {
                    let mut into = Collect::default();
                    receive(sum, Some(&sealed), &mut into).map_err(of_received)?;
                    Ok(restored(into))
                },
            );
        }
        let vault = match level.store() {
            StoreKind::Shared => self.of_all(),
            _ => self.own(holder.0),
        };
        let (store, key) = (&**vault.store(), vault.key(level, sealed.id));
        let container = Container::open_sealed(store, &key, &sealed)?;
        if holder.0 != node && level.store() == StoreKind::Node {
            // From another node it comes as a stream.
            let mut sent = Vec::new();
            container.send_to(&mut sent)?;
            let mut into = Collect::default();
            receive(&mut &sent[..], Some(&sealed), &mut into).map_err(of_received)?;
            return Ok(restored(into));
        }
        let mut into = Restored::new();
        for entry in container.ranks() {
            let mut data = outlive_vault::Buffer::new(entry.data_bytes as usize);
            container.read_rank(entry.rank, &mut data)?;
            into.insert(entry.rank, data.to_vec());
        }
        Ok(into)
    }

    /// Gives the nodes that took the place of lost ones all that they have to keep at a version, of
    /// the bytes that can be restored: what agents do quietly after an opening.
    pub fn protect_again(&self, version: u64, lost: &BTreeSet<u32>) {
        let containers: Vec<(u32, Vec<u8>)> = (0..self.count())
            .map(|node| {
                let restored = self.restore(version, node).unwrap();
                let data = self.data(version, node);
                let images = vec![RankImage {
                    rank: data.rank,
                    table: &data.table,
                    data: &restored[&data.rank],
                }];
                let head = head(id(INCARNATION, version, node));
                let layout = Layout::with_frame_bytes(head, images, FRAME).unwrap();
                (node, crate::common::bytes(&layout))
            })
            .collect();
        let levels: Vec<Level> = self.parts_of(version).map(|(key, _)| key.1).collect();
        for (node, bytes) in containers {
            let id = id(INCARNATION, version, node);
            let put = |at: u32, level: Level| {
                let vault = self.own(at);
                let (key, options) = (vault.key(level, id), WriteOptions::default());
                let length = bytes.len() as u64;
                store_stream(&**vault.store(), &key, &mut &bytes[..], length, &options).unwrap();
            };
            let in_nodes = |level: &Level| level.store() == StoreKind::Node;
            if lost.contains(&node) && levels.iter().any(in_nodes) {
                put(node, Level::DISK);
            }
            let partner = (node + 1) % self.count();
            if lost.contains(&partner) && levels.contains(&Level::PARTNER) {
                put(partner, Level::PARTNER);
            }
        }
        for (key, parts) in self.parts_of(version) {
            for node in lost {
                if key.1.members().is_some() {
                    let expected = parts[*node as usize].parity;
                    let made = self.make_parity(version, key.1, *node, expected).unwrap();
                    assert_eq!(Some(made), expected);
                }
            }
        }
        for node in lost {
            for level in &levels {
                let (vault, commit) = (self.own(*node), self.committed(version, *level));
                vault.records().persist(&commit).unwrap();
            }
        }
    }
}

fn restored(into: Collect) -> Restored {
    let ranks = into.0.into_iter();
    ranks
        .map(|(rank, (_, data))| (rank, data.to_vec()))
        .collect()
}

/// The pieces of a group where they lie.
pub struct Stored<'a> {
    job: &'a Job,
    version: u64,
    level: Level,
}

impl Stored<'_> {
    fn part(&self, node: NodeId) -> &Part {
        &self.job.parts[&(self.version, self.level)][node.0 as usize]
    }
}

impl Pieces for Stored<'_> {
    fn open(&mut self, piece: Piece, range: Range<u64>) -> io::Result<Box<dyn Read>> {
        let id = self.part(piece.node()).id;
        let vault = self.job.own(piece.node().0);
        let store = &**vault.store();
        let bytes = match piece {
            Piece::Whole(_) => Bytes::of_container(store, &vault.key(Level::DISK, id), range),
            Piece::Parity(_) => Bytes::of_parity(store, &vault.key(self.level, id), range),
        };
        let bytes = bytes.map_err(|error| io::Error::other(Error::from(error)))?;
        Ok(Box::new(bytes))
    }

    fn check(&mut self, piece: Piece) -> Result<()> {
        let part = self.part(piece.node()).clone();
        let vault = self.job.own(piece.node().0);
        let store = &**vault.store();
        let mut go_on = |_| true;
        let read = match (piece, part.parity) {
            (Piece::Whole(_), _) => {
                let key = vault.key(Level::DISK, part.id);
                read_container(store, &key, &part.sealed(), &mut go_on)
            }
            (Piece::Parity(_), Some(parity)) => {
                let key = vault.key(self.level, part.id);
                read_parity(store, &key, parity, &mut go_on)
            }
            (Piece::Parity(_), None) => return Ok(()),
        };
        match read {
            Scrubbing::Whole(_) => Ok(()),
            Scrubbing::Damaged(error) | Scrubbing::Unreadable(error) => Err(error),
            Scrubbing::Gone | Scrubbing::Stopped => Err(Error::internal("it is not there")),
        }
    }
}
