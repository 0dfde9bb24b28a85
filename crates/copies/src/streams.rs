//! The other side of bulk streams: keeping containers for partners, and sending
//! them back.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use outlive_base::{Code, ContainerId, Entity, Error, Level, Result};
use outlive_control::orders::decode;
use outlive_network::{Identity, Stream};
use outlive_vault::{
    Bytes, Container, Key, Parity, ParityFile, Sealed, Vault, WriteOptions, of_the_sum,
    store_stream, verify_written,
};

use crate::memory::Work;
use crate::peers::{
    StreamReply, StreamRequest, WORKING_EVERY, connection_lost, read_request, send_reply,
};
use crate::places::Places;
use crate::reports::Reports;
use crate::serving::served_at;

/// Bytes of a range that are read at a time.
const RANGE_CHUNK: usize = 1 << 20;

/// What opens a stream; `None`: one that its peer uses again, or has ended.
///
/// # Errors
/// If it cannot be understood.
pub fn request_of(header: &[u8]) -> Result<Option<StreamRequest>> {
    match header.is_empty() {
        true => Ok(None),
        false => Ok(Some(decode::<StreamRequest>(header)?)),
    }
}

/// Serves a peer's stream, and keeps it for the next if it can be used again.
pub fn run(
    places: &Places,
    from: Identity,
    request: Option<StreamRequest>,
    mut stream: Stream,
    work: &Reports<Work>,
) {
    let request = request.map_or_else(|| read_request(&mut stream, from.peer), Ok);
    match request.and_then(|it| serve(places, from, it, &mut stream, work)) {
        // The next version's bytes come after much else that wakes the agent.
        Ok(true) => places.endpoint.park_later(stream),
        Ok(false) => {}
        // Who asked meets the same, and tells it unless a lost node explains it.
        Err(error) => tracing::info!(%error, from = from.peer.0, "a stream ended"),
    }
}

/// Does what is asked for; true if the stream can be used again.
fn serve(
    places: &Places,
    from: Identity,
    request: StreamRequest,
    stream: &mut Stream,
    work: &Reports<Work>,
) -> Result<bool> {
    match request {
        StreamRequest::Store { id, length } => {
            let kept = store_verified(&places.store, from, id, length, stream);
            // What this node's storage refuses is for this node to tell.
            let result = match &kept {
                Ok(_) => Ok(()),
                Err(error) => Err(error.clone()),
            };
            // A connection that ended is for the one who sent.
            let told = |error: &Error| error.code() != Code::Network;
            if result.is_ok() {
                let _ = work.leave(Work::Kept { result });
            } else if result.as_ref().err().is_some_and(told) {
                let _ = work.send(Work::Kept { result });
            }
            // Of one that was refused, bytes may still be on their way.
            let whole = kept.is_ok();
            let reply = match kept {
                Ok(digest) => StreamReply::Stored { digest },
                Err(error) => StreamReply::Refused(error),
            };
            send_reply(stream, from.peer, &reply).map(|()| whole)
        }
        StreamRequest::Fetch { id } => give(&places.store, from, id, stream).map(|()| false),
        StreamRequest::Range {
            id,
            parity,
            from: at,
            bytes,
        } => {
            let end = at.saturating_add(bytes);
            give_range(&places.store, from, (id, parity), at..end, stream, work).map(|()| false)
        }
        StreamRequest::Check {
            id,
            parity,
            length,
            digest,
        } => {
            let check = || check(&places.store, (id, parity), length, digest);
            let mut say = |reply: &StreamReply| send_reply(stream, from.peer, reply);
            let reply = match while_working(check, WORKING_EVERY, &mut say)? {
                Ok(()) => StreamReply::Coming { length: 0 },
                Err(error) => StreamReply::Refused(error),
            };
            say(&reply).map(|()| false)
        }
        StreamRequest::Show { id, length } => {
            let shown = served_at(places).and_then(|served| served.show(&places.store, id, length));
            let reply = match shown {
                Ok(address) => StreamReply::Shown { address },
                Err(error) => StreamReply::Refused(error),
            };
            send_reply(stream, from.peer, &reply).map(|()| false)
        }
    }
}

/// Stores a partner's container, reads it back, and says its digest.
fn store_verified(
    store: &Vault,
    from: Identity,
    id: ContainerId,
    length: u64,
    stream: &mut Stream,
) -> Result<u128> {
    if id.node != from.peer {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Node(from.peer.0),
            format!("offers {id}, which is not its own"),
            "use the same version of Outlive on all nodes",
        ));
    }
    let (store, key) = (&**store.store(), store.kept_key(id));
    store_stream(store, &key, stream, length, &WriteOptions::default())?;
    let sealed = verify_written(store, &key, None)?;
    if sealed.id != id {
        return Err(Error::new(
            Code::Corrupt,
            Entity::File(store.locate(&key)),
            format!("holds {}, announced was {id}", sealed.id),
            "the copy is not used",
        ));
    }
    Ok(sealed.digest)
}

/// The key of this node's container, or of its parity at a level.
fn key_of(store: &Vault, id: ContainerId, parity: Option<Level>) -> Key {
    match parity {
        Some(level) => store.key(level, id),
        None => store.container_key(id),
    }
}

/// Sends bytes of this node's container or parity.
fn give_range(
    store: &Vault,
    to: Identity,
    (id, parity): (ContainerId, Option<Level>),
    range: Range<u64>,
    stream: &mut Stream,
    work: &Reports<Work>,
) -> Result<()> {
    let (kept, key) = (&**store.store(), key_of(store, id, parity));
    let length = range.end - range.start;
    let opened = match parity {
        Some(_) => Bytes::of_parity(kept, &key, range),
        None => Bytes::of_container(kept, &key, range),
    };
    let mut bytes = match opened {
        Ok(bytes) => bytes,
        Err(error) => return send_reply(stream, to.peer, &StreamReply::Refused(error.into())),
    };
    send_reply(stream, to.peer, &StreamReply::Coming { length })?;
    let lost = |error: std::io::Error| {
        connection_lost(to.peer, &format!("while bytes of {id} were sent"), &error)
    };
    let mut chunk = Vec::new();
    loop {
        // Who asked sees only that the connection ended: this is for this node to tell.
        let failed = |error: std::io::Error| {
            let error = of_the_sum(error);
            let _ = work.send(Work::Kept {
                result: Err(error.clone()),
            });
            error
        };
        let part = bytes.at_hand().map_err(failed)?;
        let count = part.len();
        if count > 0 {
            stream.write_all(part).map_err(lost)?;
            bytes.pass(count);
            continue;
        }
        chunk.resize(RANGE_CHUNK, 0);
        match bytes.read(&mut chunk).map_err(failed)? {
            0 => break,
            count => stream.write_all(&chunk[..count]).map_err(lost)?,
        }
    }
    stream.flush().map_err(lost)
}

/// Does what may take longer than a stream may be silent, and says so meanwhile; what came of it.
///
/// # Errors
/// If who waits cannot be told; then it is over when the work is.
fn while_working<T: Send>(
    work: impl FnOnce() -> T + Send,
    every: Duration,
    say: &mut dyn FnMut(&StreamReply) -> Result<()>,
) -> Result<T> {
    std::thread::scope(|scope| {
        let (done, result) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("outlive-check".into())
            .spawn_scoped(scope, move || drop(done.send(work())))
            .map_err(|error| Error::io("thread", "start a worker", &error))?;
        loop {
            match result.recv_timeout(every) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => say(&StreamReply::Working)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::internal("a check ended without a result"));
                }
            }
        }
    })
}

/// Reads a container or parity of this node from its storage.
fn check(
    store: &Vault,
    (id, parity): (ContainerId, Option<Level>),
    length: u64,
    digest: u128,
) -> Result<()> {
    let key = key_of(store, id, parity);
    let kept = &**store.store();
    match parity {
        Some(_) => {
            let file = ParityFile::open(kept, &key)?;
            if file.parity != (Parity { length, digest }) {
                return Err(Error::new(
                    Code::Corrupt,
                    Entity::File(kept.locate(&key)),
                    "not the parity that was recorded",
                    "it is not used",
                ));
            }
            file.verify()?;
        }
        None => {
            let sealed = Sealed { id, length, digest };
            verify_written(kept, &key, Some(&sealed))?;
        }
    }
    Ok(())
}

/// Sends a container that is kept here for `id.node`, or its own.
fn give(store: &Vault, to: Identity, id: ContainerId, stream: &mut Stream) -> Result<()> {
    let open = |key: Key| Container::open(&**store.store(), &key);
    let opened = open(store.kept_key(id)).or_else(|_| open(store.container_key(id)));
    let container = match opened {
        Ok(container) => container,
        Err(error) => return send_reply(stream, to.peer, &StreamReply::Refused(error.into())),
    };
    let length = container.sealed().length;
    send_reply(stream, to.peer, &StreamReply::Coming { length })?;
    container.send_to(stream)?;
    stream.flush().map_err(|error| {
        let doing = format!("while {id} was sent");
        connection_lost(to.peer, &doing, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_hears_that_work_goes_on_and_what_came_of_it() {
        let (told, heard) = mpsc::channel();
        // The work lasts until it was said twice that it does.
        let work = move || heard.iter().take(2).count();
        let mut said = 0;
        let mut say = |reply: &StreamReply| {
            assert!(matches!(reply, StreamReply::Working));
            said += 1;
            told.send(()).unwrap_or_default();
            Ok(())
        };
        let result = while_working(work, Duration::from_millis(1), &mut say);
        assert_eq!(result, Ok(2));
        assert!(said >= 2);
        let gone = || Error::internal("gone");
        let (told, heard) = mpsc::channel();
        let work = move || heard.recv();
        let mut say = |_: &StreamReply| {
            told.send(()).unwrap_or_default();
            Err(gone())
        };
        let result = while_working(work, Duration::from_millis(1), &mut say);
        assert_eq!(result, Err(gone()));
    }
}
