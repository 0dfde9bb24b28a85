//! Parities: made of the bytes that the other members of a group store, and the other way
//! round, by the ledger's own terms.

use std::rc::Rc;

use outlive_base::{Code, Entity, Error, Level, NodeId, Rank, Result};
use outlive_control::node::Input as NodeInput;
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{Done, Making, Rebuild};
use outlive_ledger::Parity;
use outlive_ledger::scheme::{Group, Piece};
use outlive_protocols::commit::Planted;

use super::checker::Place;
use super::node::Process;
use super::storage::{Container, digest};
use super::*;

/// Bytes of a rank's word in a container.
const WORD: usize = 12;

/// A container as bytes.
pub(super) fn bytes_of(words: &[(Rank, u64)]) -> Vec<u8> {
    let each = words.iter();
    each.flat_map(|(rank, word)| {
        let mut bytes = rank.0.to_le_bytes().to_vec();
        bytes.extend_from_slice(&word.to_le_bytes());
        bytes
    })
    .collect()
}

fn words_of(bytes: &[u8]) -> Vec<(Rank, u64)> {
    let word = |bytes: &[u8]| {
        let (rank, word) = bytes.split_first_chunk::<4>()?;
        let (word, _) = word.split_first_chunk::<8>()?;
        Some((Rank(u32::from_le_bytes(*rank)), u64::from_le_bytes(*word)))
    };
    bytes.chunks(WORD).filter_map(word).collect()
}

/// A digest of any bytes.
fn name(bytes: &[u8]) -> u128 {
    let words = bytes.chunks(8).enumerate().map(|(nth, chunk)| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (Rank(nth as u32), u64::from_le_bytes(word))
    });
    digest(&words.collect::<Vec<_>>())
}

impl Job {
    /// Makes a parity, writes it and reads it back.
    pub(super) fn make_parity(&mut self, who: Process, life: u32, making: &Rc<Making>) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            return;
        }
        let node = NodeId(self.home(who).node);
        let group = &making.group;
        let (source, version, level) = (making.source, making.version, group.level);
        let key = (source.0, version.0);
        let sum = self.sum(who, key, group, Piece::Parity(node), group.parity_bytes());
        let result = sum.and_then(|bytes| self.write_parity(who, key, level, bytes));
        let done = match making.quiet {
            true => Done::Protected {
                result: result.map(drop),
            },
            false => Done::ParityMade {
                source,
                version,
                level,
                result,
            },
        };
        self.input(who, life, NodeInput::Done(done));
    }

    fn write_parity(
        &mut self,
        who: Process,
        key: Key,
        level: Level,
        bytes: Vec<u8>,
    ) -> Result<Parity> {
        let owner = self.home(who).node;
        let no = |code, reason: &str| {
            let entity = Entity::Node(owner);
            Err(Error::new(code, entity, reason, "see the storage"))
        };
        let (refuse, torn) = match self.calm {
            true => (0, 0),
            false => (self.options.faults.refuse, self.options.torn),
        };
        if self.random.chance(refuse) {
            return no(Code::NoSpace, "no space is left");
        }
        let parity = Parity {
            length: bytes.len() as u64,
            digest: name(&bytes),
        };
        if self.random.chance(torn) && self.options.planted != Some(Planted::SkipReadBack) {
            return no(Code::Corrupt, "reads back with another digest");
        }
        let storage = &mut self.home(who).storage;
        storage.parity.insert((key, level), bytes);
        // What it gives back is known by what is restored of it.
        let own = storage.own.get(&key);
        let own = own.map(|own| (own.bare(), own.is_good()));
        let sound = own.as_ref().is_some_and(|(_, sound)| *sound);
        if let Some((own, _)) = own {
            self.stored(level, key, owner, &own);
        }
        // A fault may have taken the container since it was written.
        if !sound || self.at(owner) != who {
            self.judge.copy_fails(Place { level, key, owner });
        }
        Ok(parity)
    }

    /// The container of a node, made of what the others of its group have; `None` while one of
    /// them is away.
    pub(super) fn made_of_group(
        &mut self,
        who: Process,
        wanted: &Rebuild<PlainSlab>,
        level: Level,
        length: u64,
    ) -> Option<Container> {
        let (group, _) = wanted.made_of.get(&level)?;
        let key = (wanted.source.0, wanted.version.0);
        let want = Piece::Whole(NodeId(self.home(who).node));
        let bytes = self.sum(who, key, group, want, length).ok()?;
        Some(Container::new(words_of(&bytes)))
    }

    /// A sum of pieces as their holders have them.
    fn sum(
        &mut self,
        who: Process,
        key: Key,
        group: &Group,
        want: Piece,
        length: u64,
    ) -> Result<Vec<u8>> {
        let terms = group.terms(want, |_| true);
        let terms = terms.ok_or_else(|| Error::internal("no such piece in its group"))?;
        let mut sum = vec![0; length as usize];
        for term in terms {
            let holder = term.from.node();
            let no = |code, reason: &str| {
                let entity = Entity::Node(holder.0);
                Error::new(code, entity, reason, "the next copy is tried")
            };
            let Some(there) = self.partner(who, holder) else {
                return Err(no(Code::Network, "the connection ended"));
            };
            let storage = &self.home(there).storage;
            let bytes = match term.from {
                Piece::Whole(_) => storage.own.get(&key).map(|it| bytes_of(&it.words)),
                Piece::Parity(_) => storage.parity.get(&(key, group.level)).cloned(),
            };
            let bytes = bytes.ok_or_else(|| no(Code::NotFound, "it is not there"))?;
            let range = term.range.start as usize..term.range.end as usize;
            let bytes = bytes
                .get(range)
                .ok_or_else(|| no(Code::Corrupt, "too short"))?;
            let into = &mut sum[term.at as usize..][..bytes.len()];
            into.iter_mut()
                .zip(bytes)
                .for_each(|(sum, byte)| *sum ^= byte);
        }
        Ok(sum)
    }
}
