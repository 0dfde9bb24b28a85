//! The fuzz targets' entry points over mutated inputs, on stable: a few
//! seconds of what `fuzz/` does for hours.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "../../../fuzz/vault.rs"]
mod fuzz;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{bytes, id, layout, rank};
use outlive_base::rng::Sequence;
use outlive_base::{Incarnation, Level, NodeId, Rank, Version};
use outlive_vault::{
    Key, Memory, ObjectKind, Parity, ParityHead, Part, Record, Sealed, Store, Vault, write_parity,
};

struct Random(Sequence);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    /// A copy with a few changes of the kinds that hurt parsers.
    fn mutate(&mut self, good: &[u8], first: Option<u8>) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            // Most changes go to the structures, which lead.
            let at = match self.below(4) {
                0 => at,
                1 => at % 256,
                _ => at % 136,
            };
            let bit = self.below(8);
            let Some(left) = bytes.get_mut(at..) else {
                continue;
            };
            match self.below(6) {
                0 => left.iter_mut().take(1).for_each(|byte| *byte ^= 1 << bit),
                1 => left.iter_mut().take(4).for_each(|byte| *byte = 0xff),
                2 => left.iter_mut().take(8).for_each(|byte| *byte = 0),
                3 => left
                    .iter_mut()
                    .take(1)
                    .for_each(|byte| *byte = byte.wrapping_add(1)),
                4 => bytes.truncate(at.max(1)),
                _ => {
                    let from = self.below(bytes.len());
                    let piece = bytes[from..bytes.len().min(from + 16)].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        first.into_iter().chain(bytes).collect()
    }
}

/// Mutates for a second and a half, at least a few hundred times.
fn run(good: &[Vec<u8>], marked: bool, entry: impl Fn(&[u8])) {
    let mut random = Random(Sequence::new(outlive_base::seed!(), 0));
    let start = Instant::now();
    let mut count = 0;
    while count < 300 || start.elapsed() < Duration::from_millis(1500) {
        for good in good {
            let first = marked.then(|| random.below(2) as u8);
            entry(&random.mutate(good, first));
            count += 1;
        }
    }
    for good in good {
        let first = marked.then_some(0);
        entry(
            &first
                .into_iter()
                .chain(good.iter().copied())
                .collect::<Vec<u8>>(),
        );
    }
}

fn containers() -> Vec<Vec<u8>> {
    let small = [rank(0, &[5, 0, 9000], 1), rank(2, &[8192], 2)];
    let many = [rank(1, &[1; 40], 3)];
    vec![
        bytes(&layout(id(1, 2, 3), &[])),
        bytes(&layout(id(1, 2, 3), &small)),
        bytes(&layout(id(1, 2, 3), &many)),
    ]
}

#[test]
fn container_open() {
    run(&containers(), true, fuzz::container_open);
}

#[test]
fn parity_open() {
    let (xor, rs) = (Level::xor(4).unwrap(), Level::rs(4, 2).unwrap());
    let of = |level: Level, members: u32, length: u64| {
        let member = |node| Sealed {
            id: id(1, 2, node),
            length: 4096,
            digest: 5,
        };
        let head = ParityHead {
            job_hash: 7,
            id: id(1, 2, 3),
            level,
            members: (0..members).map(member).collect(),
        };
        let (store, key) = (Memory::new(1 << 20), Key::parity(level, head.id));
        let sum = vec![7; length as usize];
        write_parity(&store, &key, &head, (length, None), &mut &sum[..]).unwrap();
        store.get(&key, u64::MAX).unwrap()
    };
    let good = [
        of(xor, 4, 8192),
        of(xor, 63, 0),
        of(rs, 6, 8192),
        of(rs, 71, 0),
    ];
    run(&good, true, fuzz::parity_open);
}

#[test]
fn receive() {
    run(&containers(), true, fuzz::receive);
}

#[test]
fn region_table() {
    let tables = [vec![], vec![0, 1, 4096], vec![7; 30]].map(|sizes| rank(0, &sizes, 1).table);
    run(&tables, false, fuzz::region_table);
}

fn records() -> [Record; 4] {
    let (incarnation, version) = (Incarnation(1), Version(2));
    let part = Part {
        node: NodeId(1),
        id: id(1, 2, 1),
        length: 4096,
        digest: 7,
        holder: NodeId(2),
        ranks: vec![Rank(1), Rank(2)].into(),
        parity: Some(Parity {
            length: 8192,
            digest: 3,
        }),
    };
    let (level, ballot, parts) = (Level::PARTNER, 3, vec![part.clone(); 3]);
    [
        Record::Commit {
            incarnation,
            version,
            level,
            ballot,
            ranks: 6,
            parts: parts.into(),
            groups: vec![vec![NodeId(0), NodeId(1)], vec![]],
        },
        Record::Prepared {
            incarnation,
            version,
            level,
            ballot,
            part,
        },
        Record::Abort {
            incarnation,
            version,
            level: Some(level),
            code: outlive_base::Code::RankLost,
            text: "lost".into(),
        },
        Record::Incarnation {
            number: incarnation,
            restored: Some((incarnation, version, level)),
            members: vec![NodeId(0), NodeId(1)],
            ranks: 6,
        },
    ]
}

#[test]
fn record_decode() {
    let records = records().map(|record| record.encode(9).unwrap());
    run(&records, true, fuzz::record_decode);
}

#[test]
fn log() {
    let store = Arc::new(Memory::new(1 << 20));
    let vault = Vault::own(store.clone(), 9);
    for record in &records()[..3] {
        vault.records().persist(record).unwrap();
    }
    let items = store.list(ObjectKind::Record).unwrap();
    let logs = items
        .iter()
        .filter(|item| item.key.name().ends_with(".log"));
    let good: Vec<Vec<u8>> = logs
        .map(|item| {
            let mut bytes = store.get(&item.key, u64::MAX).unwrap();
            // Of the empty room behind the last batch a page.
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            bytes.truncate(used.next_multiple_of(4096) + 4096);
            bytes
        })
        .collect();
    assert_eq!(good.len(), 1);
    run(&good, true, fuzz::log);
}
