//! The other side of bulk streams: keeping containers for partners, and sending
//! them back.

use std::io::Write;
use std::sync::Arc;

use crossbeam_channel::Sender;
use outlive_base::{Code, ContainerId, Entity, Error, Result};
use outlive_network::{Identity, Stream};
use outlive_vault::{Container, NodeStore, WriteOptions, store_stream, verify_written};

use crate::core::{Agent, Work};
use crate::faults::Faults;
use crate::flush::Hook;
use crate::peers::{StreamReply, StreamRequest, connection_lost, read_request, send_reply};
use outlive_control::orders::decode;

impl Agent {
    pub(crate) fn on_stream(&mut self, from: Identity, header: Vec<u8>, stream: Stream) {
        // One that its peer uses again, or has ended.
        let request = match header.is_empty() {
            true => None,
            false => match decode::<StreamRequest>(&header) {
                Ok(request) => Some(request),
                Err(error) => return self.warn(error),
            },
        };
        let (store, faults) = (Arc::clone(&self.store), Arc::clone(&self.faults));
        let (endpoint, work) = (Arc::clone(&self.endpoint), self.work.clone());
        let job = move || {
            let mut stream = stream;
            let request = request.map_or_else(|| read_request(&mut stream, from.peer), Ok);
            match request.and_then(|it| serve(&store, &faults, from, it, &mut stream, &work)) {
                Ok(true) => endpoint.park(stream),
                Ok(false) => {}
                // Who asked meets the same, and tells it unless a lost node explains it.
                Err(error) => tracing::info!(%error, from = from.peer.0, "a stream ended"),
            }
        };
        if let Err(error) = self.incoming.run(job) {
            self.warn(error);
        }
    }
}

/// Does what is asked for; true if the stream can be used again.
fn serve(
    store: &NodeStore,
    faults: &Faults,
    from: Identity,
    request: StreamRequest,
    stream: &mut Stream,
    work: &Sender<Work>,
) -> Result<bool> {
    match request {
        StreamRequest::Store { id, length } => {
            let kept = store_verified(store, faults, from, id, length, stream);
            // What this node's storage refuses is for this node to tell.
            let result = match &kept {
                Ok(_) => Ok(()),
                Err(error) => Err(error.clone()),
            };
            // A connection that ended is for the one who sent.
            let told = |error: &Error| error.code() != Code::Network;
            if result.as_ref().err().is_none_or(told) {
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
        StreamRequest::Fetch { id } => give(store, from, id, stream).map(|()| false),
    }
}

/// Stores a partner's container, reads it back, and says its digest.
fn store_verified(
    store: &NodeStore,
    faults: &Faults,
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
    let path = store.partner_path(id);
    store.make(&path)?;
    let hook = Hook(faults);
    let options = WriteOptions {
        hook: Some(&hook),
        spares: store.spares(),
        ..WriteOptions::default()
    };
    store_stream(&path, stream, length, &options)?;
    let sealed = verify_written(&path, None)?;
    if sealed.id != id {
        return Err(Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            format!("holds {}, announced was {id}", sealed.id),
            "the copy is not used",
        ));
    }
    Ok(sealed.digest)
}

/// Sends a container that is kept here for `id.node`, or its own.
fn give(store: &NodeStore, to: Identity, id: ContainerId, stream: &mut Stream) -> Result<()> {
    let opened = Container::open(&store.partner_path(id))
        .or_else(|_| Container::open(&store.container_path(id)));
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
