//! The other side of bulk streams: keeping containers for partners, and sending
//! them back.

use std::io::Write;
use std::sync::Arc;

use outlive_base::{Code, ContainerId, Entity, Error, Result};
use outlive_network::{Identity, Stream};
use outlive_vault::{Container, NodeStore, WriteOptions, store_stream, verify_written};

use crate::core::Agent;
use crate::faults::Faults;
use crate::flush::Hook;
use crate::peers::{StreamReply, StreamRequest, send_reply};
use crate::protocol::decode;

impl Agent {
    pub(crate) fn on_stream(&mut self, from: Identity, header: &[u8], stream: Stream) {
        let request = match decode::<StreamRequest>(header) {
            Ok(request) => request,
            Err(error) => return self.warn(error),
        };
        let (store, faults) = (Arc::clone(&self.store), Arc::clone(&self.faults));
        let job = move || serve(&store, &faults, from, request, stream);
        if let Err(error) = self.incoming.run(job) {
            self.warn(error);
        }
    }
}

fn serve(
    store: &NodeStore,
    faults: &Faults,
    from: Identity,
    request: StreamRequest,
    mut stream: Stream,
) {
    let outcome = match request {
        StreamRequest::Store { id, length } => keep(store, faults, from, id, length, &mut stream),
        StreamRequest::Fetch { id } => give(store, id, &mut stream),
    };
    if let Err(error) = outcome {
        tracing::warn!(%error, from = from.peer.0, "a stream failed");
    }
}

/// Stores a partner's container, reads it back, and says its digest.
fn keep(
    store: &NodeStore,
    faults: &Faults,
    from: Identity,
    id: ContainerId,
    length: u64,
    stream: &mut Stream,
) -> Result<()> {
    let reply = match store_verified(store, faults, from, id, length, stream) {
        Ok(digest) => StreamReply::Stored { digest },
        Err(error) => StreamReply::Refused(error),
    };
    send_reply(stream, &reply)
}

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
    let hook = Hook(faults);
    let options = WriteOptions {
        hook: Some(&hook),
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
fn give(store: &NodeStore, id: ContainerId, stream: &mut Stream) -> Result<()> {
    let opened = Container::open(&store.partner_path(id))
        .or_else(|_| Container::open(&store.container_path(id)));
    let container = match opened {
        Ok(container) => container,
        Err(error) => return send_reply(stream, &StreamReply::Refused(error.into())),
    };
    send_reply(
        stream,
        &StreamReply::Coming {
            length: container.sealed().length,
        },
    )?;
    container.send_to(stream)?;
    stream
        .flush()
        .map_err(|error| Error::io("stream", "send a container", &error))
}
