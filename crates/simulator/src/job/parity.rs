//! Parities: made of the bytes that the other members of a group store, and the other way
//! round, by the ledger's own terms.

use std::collections::BTreeSet;
use std::rc::Rc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, NodeId, Rank, Result};
use outlive_control::node::Input as NodeInput;
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{Done, Making, Rebuild};
use outlive_ledger::scheme::{Group, Piece, Term};
use outlive_ledger::{Parity, Part};
use outlive_protocols::commit::Planted;

use super::checker::CopyAt;
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

pub(super) fn words_of(bytes: &[u8]) -> Vec<(Rank, u64)> {
    let word = |bytes: &[u8]| {
        let (rank, word) = bytes.split_first_chunk::<4>()?;
        let (word, _) = word.split_first_chunk::<8>()?;
        Some((Rank(u32::from_le_bytes(*rank)), u64::from_le_bytes(*word)))
    };
    bytes.chunks(WORD).filter_map(word).collect()
}

/// A parity as records name it.
pub(super) fn digest_of(bytes: &[u8]) -> Parity {
    Parity {
        length: bytes.len() as u64,
        digest: name(bytes),
    }
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
        let (source, version, level) = (making.source, making.version, making.group.level);
        let result = self.parity(who, making);
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

    /// The parity, as it was written and read back.
    pub(super) fn parity(&mut self, who: Process, making: &Making) -> Result<Parity> {
        let node = NodeId(self.home(who).node);
        let group = &making.group;
        if group.level.store() == StoreKind::Server {
            return self.served_parity(who, making);
        }
        let (source, version, level) = (making.source, making.version, group.level);
        let key = (source.0, version.0);
        // While a version is being protected there are no parities yet.
        let have = |piece| making.quiet || matches!(piece, Piece::Whole(_));
        let mut own = making.parts.iter().filter(|part| part.node == node);
        let expected = own.next().and_then(|part| part.parity);
        let is_right = |bytes: &[u8]| expected.is_none_or(|it| it == digest_of(bytes));
        let wanted = Wanted {
            key,
            group,
            parts: &making.parts,
            want: Piece::Parity(node),
            length: group.parity_bytes(),
        };
        let sum = self.made(who, &wanted, &have, &is_right);
        sum.and_then(|bytes| self.write_parity(who, key, level, bytes))
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
        let parity = digest_of(&bytes);
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
            self.judge.copy_fails(CopyAt { level, key, owner });
        }
        Ok(parity)
    }

    /// The container of a node, made of what the others of its group have.
    ///
    /// # Errors
    /// [`Code::Network`] while it could be made of what is away; others if too little is left.
    pub(super) fn made_of_group(
        &mut self,
        who: Process,
        wanted: &Rebuild<PlainSlab>,
        level: Level,
        part: &Part,
    ) -> Result<Container> {
        let (group, parts) = wanted
            .made_of
            .get(&level)
            .ok_or_else(|| no(part.node, Code::NotFound, "nothing is known of its group"))?;
        let me = NodeId(self.home(who).node);
        let wanted = Wanted {
            key: (wanted.source.0, wanted.version.0),
            group,
            parts,
            want: Piece::Whole(me),
            length: part.length,
        };
        let have = |piece: Piece| group.is_beside(piece, me);
        let skip = self.options.planted == Some(Planted::SkipReadBack);
        let is_right = |bytes: &[u8]| skip || digest(&words_of(bytes)) == part.digest;
        let bytes = self.made(who, &wanted, &have, &is_right)?;
        Ok(Container::new(words_of(&bytes)))
    }

    /// A piece, of what there is of its group: what cannot be had is left out, and if the sum is
    /// not what was wanted, so is what is not sound.
    pub(super) fn made(
        &mut self,
        who: Process,
        wanted: &Wanted<'_>,
        have: &dyn Fn(Piece) -> bool,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>> {
        let mut gone = BTreeMap::new();
        let mut why = Error::internal("no such piece in its group");
        loop {
            let there = |piece| have(piece) && !gone.contains_key(&piece);
            let Some(terms) = wanted.group.terms(wanted.want, there) else {
                let away =
                    |piece: Piece| gone.get(&piece).is_none_or(|code| *code == Code::Network);
                let may_come = |piece| have(piece) && away(piece);
                return Err(match wanted.group.terms(wanted.want, may_come) {
                    Some(_) => no(wanted.want.node(), Code::Network, "some of it is away"),
                    None if why.code() == Code::Network => {
                        no(wanted.want.node(), Code::NotFound, "too little is left")
                    }
                    None => why,
                });
            };
            let used: BTreeSet<Piece> = terms.iter().map(|term| term.from).collect();
            match self.sum(who, wanted, terms) {
                Ok(sum) if is_right(&sum) => return Ok(sum),
                Ok(_) => {
                    let before = gone.len();
                    let unsound = used.into_iter().filter(|it| !self.is_sound(wanted, *it));
                    gone.extend(unsound.map(|it| (it, Code::Corrupt)));
                    why = no(wanted.want.node(), Code::Corrupt, "not what was committed");
                    if gone.len() == before {
                        return Err(why);
                    }
                }
                Err((piece, error)) => {
                    gone.insert(piece, error.code());
                    why = error;
                }
            }
        }
    }

    /// True if a piece is what was committed.
    fn is_sound(&mut self, wanted: &Wanted<'_>, piece: Piece) -> bool {
        let served = wanted
            .group
            .is_served(piece)
            .then(|| self.served_at(wanted, piece));
        let holder = self.at(piece.node().0);
        let storage = &self.home(holder).storage;
        let mut parts = wanted.parts.iter();
        let Some(part) = parts.find(|part| part.node == piece.node()) else {
            return false;
        };
        match piece {
            Piece::Whole(_) => {
                let own = storage.own.get(&wanted.key);
                own.is_some_and(|own| own.is_good() && own.digest == part.digest)
            }
            Piece::Parity(_) if served.is_some() => {
                let bytes = served.flatten();
                bytes.is_some_and(|bytes| Some(digest_of(&bytes)) == part.parity)
            }
            Piece::Parity(_) => {
                let parity = storage.parity.get(&(wanted.key, wanted.group.level));
                parity.is_some_and(|bytes| Some(digest_of(bytes)) == part.parity)
            }
        }
    }

    /// A sum of pieces as their holders have them; else the one that could not be had.
    fn sum(
        &mut self,
        who: Process,
        wanted: &Wanted<'_>,
        terms: Vec<Term>,
    ) -> std::result::Result<Vec<u8>, (Piece, Error)> {
        let (key, level) = (wanted.key, wanted.group.level);
        let mut sum = vec![0; wanted.length as usize];
        let planted = self.options.planted_node
            == Some(outlive_control::node::Planted::WrongFactor)
            && matches!(wanted.want, Piece::Parity(_));
        for (nth, term) in terms.into_iter().enumerate() {
            let holder = term.from.node();
            let no = |code, reason: &str| (term.from, no(holder, code, reason));
            let served = wanted.group.is_served(term.from);
            let own = holder.0 == self.home(who).node;
            let there = match served || own {
                true => Some(who),
                false => self.partner(who, holder),
            };
            let Some(there) = there else {
                return Err(no(Code::Network, "the connection ended"));
            };
            let storage = &self.home(there).storage;
            let bytes = match term.from {
                Piece::Parity(_) if served => self.served_at(wanted, term.from),
                // What has rotted is found as it is read, and not sent.
                Piece::Whole(_) => {
                    let own = storage.own.get(&key).filter(|own| own.is_good());
                    own.map(|it| bytes_of(&it.words))
                }
                Piece::Parity(_) => storage.parity.get(&(key, level)).cloned(),
            };
            let bytes = bytes.ok_or_else(|| no(Code::NotFound, "it is not there"))?;
            let range = term.range.start as usize..term.range.end as usize;
            let bytes = bytes
                .get(range)
                .ok_or_else(|| no(Code::Corrupt, "too short"))?;
            let factor = match planted && nth == 0 {
                true => term.factor ^ 1,
                false => term.factor,
            };
            let into = &mut sum[term.at as usize..][..bytes.len()];
            outlive_codec::field::add_multiple(into, bytes, factor);
        }
        Ok(sum)
    }
}

/// What is to be made.
pub(super) struct Wanted<'a> {
    pub key: Key,
    pub group: &'a Group,
    /// The members' parts, as they were committed.
    pub parts: &'a [Part],
    pub want: Piece,
    pub length: u64,
}

fn no(node: NodeId, code: Code, reason: &str) -> Error {
    let entity = Entity::Node(node.0);
    Error::new(code, entity, reason, "the next copy is tried")
}
