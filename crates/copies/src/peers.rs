//! How agents ask each other for bulk data.

use std::time::Duration;

use outlive_base::{Code, ContainerId, Entity, Error, Level, NodeId, Result};
use outlive_network::Endpoint;
use serde::{Deserialize, Serialize};

/// What the opener of a bulk stream wants: its header, and after a
/// [`StreamReply::Stored`] as often as it likes, preceded by its length as u32.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StreamRequest {
    /// Keep this container for me (level partner): its bytes follow, then comes a
    /// [`StreamReply::Stored`].
    Store {
        /// The container.
        id: ContainerId,
        /// Its length in bytes.
        length: u64,
    },
    /// Send me this container: a [`StreamReply::Coming`], then its bytes.
    Fetch {
        /// The container.
        id: ContainerId,
    },
    /// Send me bytes of your own container, or of your parity at a level: a
    /// [`StreamReply::Coming`], then these bytes.
    Range {
        /// Whose, and of which version.
        id: ContainerId,
        /// The level of a parity; `None`: the container.
        parity: Option<Level>,
        /// The first byte.
        from: u64,
        /// How many.
        bytes: u64,
    },
    /// Read all of your own container, or of your parity at a level: a
    /// [`StreamReply::Coming`] of no bytes if it is what was committed; before that, a
    /// [`StreamReply::Working`] each [`WORKING_EVERY`].
    Check {
        /// Whose, and of which version.
        id: ContainerId,
        /// The level of a parity; `None`: the container.
        parity: Option<Level>,
        /// Its bytes.
        length: u64,
        /// What they must be.
        digest: u128,
    },
    /// Show your own container to the job's memory server: a [`StreamReply::Shown`].
    Show {
        /// Of which version.
        id: ContainerId,
        /// Its bytes.
        length: u64,
    },
}

/// An answer on a bulk stream, preceded by its length as u32.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StreamReply {
    /// The container is stored, synced and read back; its digest.
    Stored {
        /// Digest of the container, as [`outlive_vault::Sealed`] has it.
        digest: u128,
    },
    /// The container's bytes follow.
    Coming {
        /// Its length.
        length: u64,
    },
    /// It cannot be done.
    Refused(Error),
    /// It is not done yet.
    Working,
    /// The container may be read there, under its own name.
    Shown {
        /// Where.
        address: std::net::SocketAddr,
    },
}

/// How often who reads something long says that it does: much more often than a stream may be
/// silent.
pub const WORKING_EVERY: Duration = Duration::from_secs(5);

/// Longest encoded [`StreamReply`], or [`StreamRequest`] that is not the first.
const FRAME_BYTES_MAX: usize = 16 * 1024;

/// A peer answers something else than it was asked.
pub fn odd() -> Error {
    Error::internal("an odd answer on a stream")
}

/// The connection to a peer broke: no file is at fault, and no device.
pub fn connection_lost(peer: NodeId, doing: &str, error: &std::io::Error) -> Error {
    let seen = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
        _ => error.to_string(),
    };
    Error::new(
        Code::Network,
        Entity::Node(peer.0),
        format!("the connection ended {doing}: {seen}"),
        "nothing, if the node was lost: what did not arrive is sent or read again; else check the network between the nodes",
    )
}

/// Opens a stream to `peer`. What hinders it is a matter of that node, wherever it
/// listens: so the loss of the node explains it.
pub fn open_stream(
    endpoint: &Endpoint,
    peer: NodeId,
    request: &StreamRequest,
) -> Result<outlive_network::Stream> {
    let opened = endpoint.open_stream(peer, &outlive_control::orders::encode(request)?);
    opened.map_err(|error| match error.entity() {
        Entity::Address(address) => Error::new(
            error.code(),
            Entity::Node(peer.0),
            format!("{address}: {}", error.reason()),
            error.remedy(),
        ),
        _ => error,
    })
}

/// Asks for something more on a stream of which everything was read.
pub fn send_request(
    stream: &mut impl std::io::Write,
    peer: NodeId,
    request: &StreamRequest,
) -> Result<()> {
    let bytes = outlive_control::orders::encode(request)?;
    let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
    let failed = |error: std::io::Error| connection_lost(peer, "before it was asked", &error);
    stream.write_all(&framed).map_err(failed)
}

/// Reads what `peer` asks for next on a stream.
pub fn read_request(stream: &mut impl std::io::Read, peer: NodeId) -> Result<StreamRequest> {
    outlive_control::orders::decode(&read_framed(stream, peer, "before it asked")?)
}

/// Writes a reply to `peer`.
pub fn send_reply(
    stream: &mut impl std::io::Write,
    peer: NodeId,
    reply: &StreamReply,
) -> Result<()> {
    let bytes = outlive_control::orders::encode(reply)?;
    let failed = |error: std::io::Error| connection_lost(peer, "before it was answered", &error);
    let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
    stream.write_all(&framed).map_err(failed)?;
    stream.flush().map_err(failed)
}

/// Reads the reply of `peer`.
pub fn read_reply(stream: &mut impl std::io::Read, peer: NodeId) -> Result<StreamReply> {
    outlive_control::orders::decode(&read_framed(stream, peer, "before it answered")?)
}

fn read_framed(stream: &mut impl std::io::Read, peer: NodeId, doing: &str) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| connection_lost(peer, doing, &error);
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::internal(format!("{length} bytes on a stream")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
