//! Parities: made of the containers of a group, which their nodes send, and the other way
//! round.
//!
//! Invariants: a parity is reported only after it was read back; memory is bounded by one
//! transfer for each member; nothing is held that another node waits for.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::Arc;

use outlive_base::{ContainerId, Error, Level, NodeId, Result};
use outlive_control::node::shell::Making;
use outlive_ledger::scheme::Piece;
use outlive_ledger::{Parity, Sealed};
use outlive_vault::{ParityHead, Sum, write_parity};

use crate::memory::Work;
use crate::peers::{StreamReply, StreamRequest, connection_lost, open_stream, read_reply};
use crate::places::Places;
use crate::reports::Reports;

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

fn make(places: &Arc<Places>, making: &Making) -> Result<Parity> {
    let group = &making.group;
    let want = Piece::Parity(places.node);
    let terms = group
        .terms(want, |_| true)
        .ok_or_else(|| Error::internal("a parity of a group that is not its own"))?;
    let id = ContainerId {
        incarnation: making.source,
        version: making.version,
        node: places.node,
    };
    let head = ParityHead {
        job_hash: places.job_hash,
        id,
        level: group.level,
        members: making.sealed.clone(),
    };
    let (store, key) = (&**places.store.store(), places.store.key(group.level, id));
    let bytes = group.parity_bytes();
    let mut open = opener(places, group.level, making.sealed.clone());
    let mut sum = Sum::new(terms, bytes, &mut open)?;
    write_parity(store, &key, &head, bytes, &mut sum)
}

/// Opens ranges of the pieces of a group at the nodes that have them.
pub fn opener(
    places: &Arc<Places>,
    level: Level,
    sealed: Vec<Sealed>,
) -> impl FnMut(Piece, Range<u64>) -> io::Result<Box<dyn Read>> {
    let places = Arc::clone(places);
    move |piece, range| {
        let (node, parity) = match piece {
            Piece::Whole(node) => (node, None),
            Piece::Parity(node) => (node, Some(level)),
        };
        let id = sealed.iter().find(|it| it.id.node == node).map(|it| it.id);
        let id = id.ok_or(io::ErrorKind::NotFound)?;
        ask(&places, node, id, parity, range).map_err(io::Error::other)
    }
}

fn ask(
    places: &Places,
    node: NodeId,
    id: ContainerId,
    parity: Option<Level>,
    range: Range<u64>,
) -> Result<Box<dyn Read>> {
    let bytes = range.end - range.start;
    let request = StreamRequest::Range {
        id,
        parity,
        from: range.start,
        bytes,
    };
    let mut stream = open_stream(&places.endpoint, node, &request)?;
    match read_reply(&mut stream, node)? {
        StreamReply::Coming { length } if length == bytes => {}
        StreamReply::Refused(error) => return Err(error),
        _ => return Err(Error::internal("an odd answer on a stream")),
    }
    let coming = Coming { node, id, stream };
    Ok(Box::new(BufReader::with_capacity(AHEAD, coming)))
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

/// The error with which a piece ended, as it was told.
pub fn of_the_sum(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io("a sum of pieces", "read", &error),
    }
}
