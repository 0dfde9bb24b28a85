//! What the layer above is told.

use std::net::SocketAddr;

use outlive_base::Error;

use crate::identity::Identity;
use crate::stream::Stream;

/// What the layer above is told, on the channel given to
/// [`crate::Endpoint::bind`]. For one peer the order is `Up`, `Message`...,
/// `Down`, `Up`, ...: never two `Up` without a `Down` between.
///
/// If the channel is full, the endpoint stops reading until there is room, so
/// TCP pushes back on the senders: give a bounded channel and drain it.
#[derive(Debug)]
pub enum Event {
    /// An authenticated connection to this peer is open.
    Up {
        /// The peer.
        identity: Identity,
        /// Where the peer listens: the address that was dialled, or for a peer
        /// that called the address it called from with the port it announced.
        addr: SocketAddr,
    },
    /// A message. Messages of one connection arrive in the order of sending,
    /// each at most once.
    Message {
        /// The sender.
        from: Identity,
        /// The message, at most `message_bytes_max` bytes.
        bytes: Vec<u8>,
    },
    /// A peer opened a bulk stream, or uses one again that was parked
    /// ([`crate::Endpoint::park`]), or has ended that.
    Stream {
        /// The sender.
        from: Identity,
        /// What it said about the stream, at most
        /// [`crate::STREAM_HEADER_BYTES_MAX`] bytes; empty for one that was parked.
        header: Vec<u8>,
        /// The open stream.
        stream: Stream,
    },
    /// The connection to this peer is gone. Not told after
    /// [`crate::Endpoint::forget`], where the caller knows.
    Down {
        /// The peer.
        peer: Identity,
        /// Why.
        reason: DownReason,
    },
    /// A connection did not come to be, in either direction.
    /// [`KeyMismatch`](outlive_base::Code::KeyMismatch): one end lacks the job's
    /// key, or speaks for another job.
    /// [`PeerVersion`](outlive_base::Code::PeerVersion): another protocol version.
    /// [`AgentTimeout`](outlive_base::Code::AgentTimeout): no handshake in time.
    /// [`AgentUnreachable`](outlive_base::Code::AgentUnreachable): nobody listens
    /// there (told once a series of attempts).
    /// [`Network`](outlive_base::Code::Network): not a peer at all, or the wrong one.
    Refused {
        /// The address of the other end.
        addr: SocketAddr,
        /// Why.
        error: Error,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// The peer closed it, or its process ended.
    Closed,
    /// The peer's kernel reset it.
    Reset,
    /// Bytes were not taken or not acknowledged within `write_timeout`, or
    /// keep-alive probes were not answered.
    Timeout,
    /// The peer sent bytes that no correct peer sends.
    Protocol,
    /// A newer connection of the same peer took its place.
    Replaced,
}
