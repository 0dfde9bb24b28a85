//! Rehearsal of a loss: the restart is carried out on scratch storage, data and all.
//!
//! Invariants: nothing but the scratch directory is written, and that is empty again
//! at the end; memory is bounded by the largest rank; a copy that turns out damaged
//! gives way to the next copy, and a version without sound copies to the next older
//! one, as in a real restart (P2).

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use outlive_base::{Error, Incarnation, Level, NodeId, Rank, Version};
use outlive_ledger::RankList;
use outlive_ledger::scheme::{self, Piece};
use serde::{Deserialize, Serialize};

use crate::aligned::Buffer;
use crate::catalogue::{Catalogue, Rejected, offered, shown};
use crate::disk::{self, Opened, Temporary, write_all};
use crate::entry::{CopyState, Entry, PartState};
use crate::error::{ReadError, WriteError};
use crate::store::read_exact;
use crate::stream::{Sink, receive};
use crate::sum::{Pieces, make, of_received};

/// Bytes read back at a time.
const CHUNK: usize = 4 << 20;

/// One rank that was rebuilt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankProof {
    /// The rank.
    pub rank: Rank,
    /// Length of its data part, in bytes.
    pub bytes: u64,
    /// XXH3-128 of its data part as read back from the scratch storage.
    #[serde(with = "outlive_ledger::digest")]
    pub digest: u128,
    /// Where it came from.
    pub source: CopyState,
}

/// What a rehearsal has shown.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Rehearsal {
    /// The version that a restart would take; absent: none could be rebuilt.
    pub rebuilt: Option<(Incarnation, Version)>,
    /// The farthest level that was read.
    pub level: Option<Level>,
    /// All of its ranks, ascending.
    pub ranks: Vec<RankProof>,
    /// Copies that turned out damaged on the way.
    pub damaged: Vec<(NodeId, CopyState, Error)>,
    /// Newer versions that could not be rebuilt, newest first.
    pub rejected: Vec<Rejected>,
}

impl Catalogue {
    /// Rebuilds every rank's data in `scratch` as if the `lost` nodes were gone, and
    /// checks what was written. An error means that the rehearsal itself could not go
    /// on; that nothing can be rebuilt is an answer.
    pub fn rehearse(&self, lost: &BTreeSet<NodeId>, scratch: &Path) -> Result<Rehearsal, Error> {
        disk::create_directory(scratch)?;
        let mut rehearsal = Rehearsal::default();
        for entry in self
            .without(lost)
            .into_iter()
            .filter(|entry| !entry.is_gone())
        {
            let reason = match offered(&entry) {
                Ok(()) => match rebuild(self, &entry, scratch, &mut rehearsal)? {
                    None => {
                        rehearsal.rebuilt = Some((entry.incarnation, entry.version));
                        rehearsal.ranks.sort_by_key(|proof| proof.rank);
                        rehearsal.level = rehearsal.ranks.iter().map(|it| it.source.level).max();
                        return Ok(rehearsal);
                    }
                    Some(reason) => reason,
                },
                Err(reason) => reason,
            };
            rehearsal.rejected.push(Rejected {
                incarnation: entry.incarnation,
                version: entry.version,
                reason,
            });
        }
        Ok(rehearsal)
    }
}

/// Rebuilds one version; the reason if it cannot be.
fn rebuild(
    catalogue: &Catalogue,
    entry: &Entry,
    scratch: &Path,
    rehearsal: &mut Rehearsal,
) -> Result<Option<String>, Error> {
    rehearsal.ranks.clear();
    for state in &entry.parts {
        let mut done = false;
        let whole = |copy: &&CopyState| copy.level.members().is_none();
        for copy in state.copies.iter().filter(whole) {
            match rebuild_part(catalogue, state, copy, scratch) {
                Ok(proofs) => {
                    rehearsal.ranks.extend(proofs);
                    done = true;
                    break;
                }
                Err(Failed::Copy(error)) => {
                    rehearsal
                        .damaged
                        .push((state.part.node, copy.clone(), error.into()));
                }
                Err(Failed::Scratch(error)) => return Err(error),
            }
        }
        if !done {
            done = rebuild_from_groups(catalogue, entry, state, scratch, rehearsal)?;
        }
        if !done {
            rehearsal.ranks.clear();
            let copies = state.copies.iter().filter(whole);
            let tried: Vec<String> = copies
                .map(|copy| format!("{} at {}", copy.level, shown(copy.place)))
                .collect();
            let tried = if tried.is_empty() {
                "none is left".into()
            } else {
                tried.join(", ")
            };
            let mut reason = format!("no sound copy of {}: {tried}", state.part.node);
            for group in short_groups(entry, state.part.node) {
                reason += &format!("; {group}");
            }
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// The groups of a node of which more is gone than they tolerate, in the words in which an agent
/// says it.
fn short_groups(entry: &Entry, node: NodeId) -> Vec<String> {
    let told =
        |group: scheme::Group| group.lacks(|piece| entry.piece(group.level, piece).is_some());
    entry.groups_of(node).filter_map(told).collect()
}

/// Makes a node's part of what the others of its groups have; false if no group can.
fn rebuild_from_groups(
    catalogue: &Catalogue,
    entry: &Entry,
    state: &PartState,
    scratch: &Path,
    rehearsal: &mut Rehearsal,
) -> Result<bool, Error> {
    let node = state.part.node;
    for group in entry.groups_of(node) {
        let source = CopyState {
            place: node,
            level: group.level,
            path: None,
            local: true,
            parity: None,
        };
        let have = |piece| entry.piece(group.level, piece).is_some();
        if group.terms(Piece::Whole(node), have).is_none() {
            continue;
        }
        let mut pieces = Stored {
            catalogue,
            entry,
            level: group.level,
            damaged: &mut rehearsal.damaged,
        };
        let made = make(
            &group,
            Piece::Whole(node),
            state.part.length,
            &have,
            &mut pieces,
            &mut |sum| {
                let mut proofs = Proofs::new(scratch, source.clone());
                let received = receive(sum, Some(&state.part.sealed()), &mut proofs);
                received.map_err(of_received)?;
                proofs.finish()
            },
        );
        match made {
            Ok(proofs) => {
                rehearsal.ranks.extend(proofs);
                return Ok(true);
            }
            Err(error) => rehearsal.damaged.push((node, source, error)),
        }
    }
    Ok(false)
}

/// The pieces of a group as they lie in the stores that were looked at.
struct Stored<'a> {
    catalogue: &'a Catalogue,
    entry: &'a Entry,
    level: Level,
    /// What turns out damaged, once each.
    damaged: &'a mut Vec<(NodeId, CopyState, Error)>,
}

impl Pieces for Stored<'_> {
    fn open(&mut self, piece: Piece, range: Range<u64>) -> io::Result<Box<dyn Read>> {
        let found = self.entry.piece(self.level, piece);
        let (state, copy) = found.ok_or(io::ErrorKind::NotFound)?;
        // A reader's memory is filled with zeroes before it is used: no more than there is to read.
        let ahead = range.end.saturating_sub(range.start).min(CHUNK as u64);
        let bytes = self.catalogue.bytes_of(copy, &state.part, range);
        let bytes = bytes.map_err(|error| io::Error::other(Error::from(error)))?;
        Ok(Box::new(BufReader::with_capacity(ahead as usize, bytes)))
    }

    fn check(&mut self, piece: Piece) -> Result<(), Error> {
        let Some((state, copy)) = self.entry.piece(self.level, piece) else {
            return Ok(());
        };
        let checked = self.catalogue.check(copy, &state.part, true);
        if let Err(error) = &checked {
            let known = |it: &(NodeId, CopyState, Error)| (it.0, &it.1) == (piece.node(), copy);
            if !self.damaged.iter().any(known) {
                let found = (piece.node(), copy.clone(), error.clone());
                self.damaged.push(found);
            }
        }
        checked
    }
}

/// Takes ranks as they come, and puts each through the scratch storage.
struct Proofs<'a> {
    scratch: &'a Path,
    source: CopyState,
    /// The rank that is coming.
    coming: Option<(Rank, Buffer)>,
    done: Vec<RankProof>,
}

impl<'a> Proofs<'a> {
    fn new(scratch: &'a Path, source: CopyState) -> Proofs<'a> {
        Proofs {
            scratch,
            source,
            coming: None,
            done: Vec::new(),
        }
    }

    /// The rank that came is whole.
    fn settle(&mut self) -> Result<(), Error> {
        let Some((rank, data)) = self.coming.take() else {
            return Ok(());
        };
        let path = self.scratch.join(format!("rank-{}", rank.0));
        self.done.push(RankProof {
            rank,
            bytes: data.len() as u64,
            digest: through_scratch(&path, &data)?,
            source: self.source.clone(),
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<RankProof>, Error> {
        self.settle()?;
        Ok(self.done)
    }
}

impl Sink for Proofs<'_> {
    fn rank(&mut self, rank: Rank, _: &[u8], data_bytes: u64) -> Result<&mut [u8], Error> {
        self.settle()?;
        let data = Buffer::new(usize::try_from(data_bytes).unwrap_or(usize::MAX));
        let (_, data) = self.coming.insert((rank, data));
        Ok(data)
    }
}

enum Failed {
    /// This copy is no good: the next may be.
    Copy(ReadError),
    /// The scratch storage failed: the rehearsal ends.
    Scratch(Error),
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Failed {
        Failed::Copy(error)
    }
}

fn rebuild_part(
    catalogue: &Catalogue,
    state: &PartState,
    copy: &CopyState,
    scratch: &Path,
) -> Result<Vec<RankProof>, Failed> {
    if copy.path.is_none() {
        let place = shown(copy.place);
        let gone = std::io::ErrorKind::NotFound;
        return Err(ReadError::io(&place, "find the copy", gone).into());
    }
    let container = catalogue.open(copy, &state.part)?;
    let mut proofs = Vec::new();
    for entry in container.ranks() {
        let mut data = Buffer::new(usize::try_from(entry.data_bytes).unwrap_or(usize::MAX));
        container.read_rank(entry.rank, &mut data)?;
        let digest = through_scratch(&scratch.join(format!("rank-{}", entry.rank.0)), &data)
            .map_err(Failed::Scratch)?;
        proofs.push(RankProof {
            rank: entry.rank,
            bytes: entry.data_bytes,
            digest,
            source: copy.clone(),
        });
    }
    let named: RankList = proofs.iter().map(|proof| proof.rank).collect();
    if named != state.part.ranks {
        let what = "the container holds other ranks than its record says";
        return Err(ReadError::corrupt(container.path(), what).into());
    }
    Ok(proofs)
}

/// Writes, reads back and compares; the file is removed.
fn through_scratch(path: &Path, data: &[u8]) -> Result<u128, Error> {
    // Never renamed: it is removed when it goes out of scope.
    let file = Temporary::create(path, true)?;
    file.reserve(data.len() as u64)
        .map_err(|error| WriteError::io(path, "reserve", error))?;
    write_all(&file.file, &mut [std::io::IoSlice::new(data)], 0)
        .map_err(|error| WriteError::io(path, "write", error))?;
    file.sync()?;
    let shown = &*path.display().to_string();
    let back =
        Opened::open(file.path(), true).map_err(|error| ReadError::io(shown, "open", error))?;
    let mut found = outlive_codec::Digest::new();
    let mut buffer = Buffer::new(CHUNK.min(data.len()));
    for (nth, chunk) in data.chunks(CHUNK).enumerate() {
        let buffer = &mut buffer[..chunk.len()];
        read_exact(&back, buffer, (nth * CHUNK) as u64)
            .map_err(|error| ReadError::io(shown, "read", error))?;
        found.update(buffer);
    }
    let digest = found.finish();
    if digest != outlive_codec::digest(data) {
        return Err(ReadError::corrupt(shown, "the scratch storage returned other bytes").into());
    }
    Ok(digest)
}
