//! Parities: made of the containers of a group, which their nodes send, and the other way
//! round.
//!
//! Invariants: a parity is reported only after it was read back; memory is bounded by what is read
//! ahead of each member; nothing is held that another node waits for.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::Arc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, ContainerId, Entity, Error, Level, NodeId, Result};
use outlive_control::node::shell::Making;
use outlive_ledger::scheme::Piece;
use outlive_ledger::{Parity, Part};
use outlive_network::Stream;
use outlive_vault::{ParityHead, Pieces, write_parity};

use crate::memory::Work;
use crate::peers::{
    StreamReply, StreamRequest, WORKING_EVERY, connection_lost, odd, open_stream, read_reply,
};
use crate::places::Places;
use crate::reports::Reports;
use crate::served::Served;
use crate::serving::{self, served_at};

/// Bytes in a second that storage reads at least.
const SLOWEST: u64 = 10_000_000;
/// Words that are waited for whatever is read.
const WORDS_MIN: u64 = 12;
/// Bytes of a piece that are read ahead.
const AHEAD: usize = 256 << 10;

/// Makes a parity and reports it.
pub fn run(places: &Arc<Places>, making: &Making, work: &Reports<Work>) {
    let result = make(places, making);
    let (source, version, level) = (making.source, making.version, making.group.level);
    let _ = work.send(match making.quiet {
        true => Work::Protected {
            result: result.map(drop),
        },
        false => Work::ParityMade {
            source,
            version,
            level,
            result,
        },
    });
}

/// Makes a parity, and puts it in the place of one that is there.
pub fn make(places: &Arc<Places>, making: &Making) -> Result<Parity> {
    let group = &making.group;
    if group.level.store() == StoreKind::Server {
        return serving::make(places, making);
    }
    let id = ContainerId {
        incarnation: making.source,
        version: making.version,
        node: places.node,
    };
    let head = ParityHead {
        job_hash: places.job_hash,
        id,
        level: group.level,
        members: making.parts.iter().map(Part::sealed).collect(),
    };
    let (store, key) = (&**places.store.store(), places.store.key(group.level, id));
    let bytes = group.parity_bytes();
    let mut own = making.parts.iter().filter(|part| part.node == places.node);
    let expected = own.next().and_then(|part| part.parity);
    let mut pieces = Remote {
        places,
        level: group.level,
        parts: &making.parts,
        committed: making.quiet,
    };
    // While a version is being protected there are no parities yet. Afterwards a replaced member
    // may lack its container as well: then parities stand in for it.
    let have = |piece| making.quiet || matches!(piece, Piece::Whole(_));
    let want = Piece::Parity(places.node);
    outlive_vault::make(group, want, bytes, &have, &mut pieces, &mut |sum| {
        write_parity(store, &key, &head, (bytes, expected), sum)
    })
}

/// The pieces of a group at the nodes that have them.
pub struct Remote<'a> {
    /// This node.
    pub places: &'a Arc<Places>,
    /// The level.
    pub level: Level,
    /// The members' parts.
    pub parts: &'a [Part],
    /// They are as a commit names them.
    pub committed: bool,
}

impl Remote<'_> {
    fn part(&self, node: NodeId) -> Result<&Part> {
        let part = self.parts.iter().find(|part| part.node == node);
        part.ok_or_else(|| Error::internal(format!("{node} is in no group of {}", self.level)))
    }

    /// Asks the node that has a piece; the stream, and how many bytes follow on it.
    fn ask(&self, piece: Piece, request: &StreamRequest) -> Result<(u64, Stream)> {
        let node = piece.node();
        let mut stream = open_stream(&self.places.endpoint, node, request)?;
        match read_reply(&mut stream, node)? {
            StreamReply::Coming { length } => Ok((length, stream)),
            StreamReply::Refused(error) => Err(error),
            _ => Err(odd()),
        }
    }

    /// The memory server, if it is what keeps a piece.
    fn served(&self, piece: Piece) -> Result<Option<&Served>> {
        let is_there = self.level.store() == StoreKind::Server && self.level_of(piece).is_some();
        is_there.then(|| served_at(self.places)).transpose()
    }

    fn level_of(&self, piece: Piece) -> Option<Level> {
        match piece {
            Piece::Whole(_) => None,
            Piece::Parity(_) => Some(self.level),
        }
    }

    fn range(&self, piece: Piece, range: &Range<u64>) -> Result<Box<dyn Read>> {
        let id = self.part(piece.node())?.id;
        if let Some(served) = self.served(piece)? {
            let bytes = served.read(self.level, id, range.clone())?;
            return Ok(Box::new(BufReader::with_capacity(AHEAD, bytes)));
        }
        let bytes = range.end - range.start;
        let request = StreamRequest::Range {
            id,
            parity: self.level_of(piece),
            from: range.start,
            bytes,
        };
        let (length, stream) = self.ask(piece, &request)?;
        if length != bytes {
            return Err(odd());
        }
        let node = piece.node();
        let coming = Coming { node, id, stream };
        Ok(Box::new(BufReader::with_capacity(AHEAD, coming)))
    }
}

/// How many words of a node that reads so many bytes are waited for.
fn words_of(length: u64) -> u64 {
    WORDS_MIN + length / (SLOWEST * WORKING_EVERY.as_secs())
}

impl Pieces for Remote<'_> {
    fn open(&mut self, piece: Piece, range: Range<u64>) -> io::Result<Box<dyn Read>> {
        self.range(piece, &range).map_err(io::Error::other)
    }

    fn check(&mut self, piece: Piece) -> Result<()> {
        let part = self.part(piece.node())?;
        let known = match piece {
            Piece::Whole(_) => Some((part.length, part.digest)),
            Piece::Parity(_) => part.parity.map(|parity| (parity.length, parity.digest)),
        };
        let Some((length, digest)) = known.filter(|_| self.committed) else {
            return Ok(());
        };
        if let Some(served) = self.served(piece)? {
            let parity = Parity { length, digest };
            return served.parities().check(self.level, part.id, parity);
        }
        let request = StreamRequest::Check {
            id: part.id,
            parity: self.level_of(piece),
            length,
            digest,
        };
        let node = piece.node();
        let mut stream = open_stream(&self.places.endpoint, node, &request)?;
        for _ in 0..words_of(length) {
            match read_reply(&mut stream, node)? {
                StreamReply::Working => {}
                StreamReply::Coming { length: 0 } => return Ok(()),
                StreamReply::Refused(error) => return Err(error),
                _ => return Err(odd()),
            }
        }
        Err(Error::new(
            Code::Io,
            Entity::Node(node.0),
            format!("it has not read the {length} bytes of a container or parity in time"),
            "look at the node's storage; what is left of the group is used",
        ))
    }
}

/// What a node sends of a container or parity.
struct Coming<R> {
    node: NodeId,
    id: ContainerId,
    stream: R,
}

impl<R: Read> Read for Coming<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let lost = |error: &io::Error| {
            let doing = format!("while it sent bytes of {}", self.id);
            io::Error::other(connection_lost(self.node, &doing, error))
        };
        match self.stream.read(bytes) {
            Ok(0) if !bytes.is_empty() => Err(lost(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(lost(&error)),
            read => read,
        }
    }
}
