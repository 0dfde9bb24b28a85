//! The words between the network and the layer above: who a peer is, what may
//! be set, what is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, NodeId};

use crate::stream::Stream;

/// Who speaks: a node slot and which life of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// The node, or [`NodeId::LAUNCHER`].
    pub peer: NodeId,
    /// Grows with every restart or replacement of the peer's agent. A newer
    /// epoch replaces connections of an older one; an older one is refused.
    pub epoch: u64,
}

/// Every bound of an endpoint. `Options::default()` suits a job; tests shorten
/// the times.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Port 0 takes a free one. Default 127.0.0.1:0: the
    /// caller chooses the interface, never this crate.
    pub bind: SocketAddr,
    /// Bound of a TCP connection attempt. Default 3 s.
    pub connect_timeout: Duration,
    /// Bound of a whole handshake, on both sides. Default 3 s.
    pub handshake_timeout: Duration,
    /// A peer that takes no byte for this long is down; also TCP_USER_TIMEOUT.
    /// Default 10 s.
    pub write_timeout: Duration,
    /// Bound of every single read of a stream. Default 30 s.
    pub stream_read_timeout: Duration,
    /// Bound of every single write of a stream. Default 30 s.
    pub stream_write_timeout: Duration,
    /// First delay before connecting again; doubles. Default 20 ms.
    pub backoff_min: Duration,
    /// Largest delay before connecting again. Default 1 s.
    pub backoff_max: Duration,
    /// [`crate::Endpoint::shutdown`] tries to hand queued messages to the
    /// kernel for this long. Default 200 ms.
    pub linger: Duration,
    /// Longest control message, in bytes. Default 1 MiB.
    pub message_bytes_max: usize,
    /// Messages queued to one peer. Default 1024.
    pub queue_messages_max: usize,
    /// Bytes queued to one peer. Default 16 MiB.
    pub queue_bytes_max: usize,
    /// Unfinished handshakes of unknown callers at once. When one more calls,
    /// the oldest that has not shown the key is dropped. Default 64.
    pub handshakes_max: usize,
    /// Bulk streams open at once, both directions together. Default 256.
    pub streams_max: usize,
    /// [`Event::Refused`] told in one second; the rest is only traced.
    /// Default 32.
    pub refusals_per_second: u32,
    /// Encrypt bulk streams too. Both ends must agree. Default false: the frames
    /// inside carry checksums, and bulk data is the job's own business.
    pub encrypt_streams: bool,
}

/// Longest header of a stream, in bytes.
pub const STREAM_HEADER_BYTES_MAX: usize = 4096;

impl Default for Options {
    fn default() -> Options {
        Options {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(10),
            stream_read_timeout: Duration::from_secs(30),
            stream_write_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            linger: Duration::from_millis(200),
            message_bytes_max: 1 << 20,
            queue_messages_max: 1024,
            queue_bytes_max: 16 << 20,
            handshakes_max: 64,
            streams_max: 256,
            refusals_per_second: 32,
            encrypt_streams: false,
        }
    }
}

impl Options {
    /// Refuses bounds that would stop everything or wait for ever.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let times = [
            ("connect_timeout", self.connect_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("write_timeout", self.write_timeout),
            ("stream_read_timeout", self.stream_read_timeout),
            ("stream_write_timeout", self.stream_write_timeout),
            ("backoff_min", self.backoff_min),
            ("backoff_max", self.backoff_max),
        ];
        let counts = [
            ("message_bytes_max", self.message_bytes_max),
            ("queue_messages_max", self.queue_messages_max),
            ("queue_bytes_max", self.queue_bytes_max),
            ("handshakes_max", self.handshakes_max),
            ("streams_max", self.streams_max),
        ];
        let day = Duration::from_secs(86_400);
        let bad_time = times
            .iter()
            .find(|(_, t)| *t < Duration::from_millis(1) || *t > day);
        let bad_count = counts.iter().find(|(_, n)| *n == 0 || *n > 1 << 30);
        let bad = bad_time
            .map(|(name, _)| *name)
            .or(bad_count.map(|(name, _)| *name));
        match bad {
            None => Ok(()),
            Some(name) => Err(Error::new(
                Code::InvalidArgument,
                Entity::Option(name.into()),
                "out of range",
                "times lie between 1 ms and 1 day, counts between 1 and 2^30",
            )),
        }
    }
}

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
        /// What it said about the stream, at most [`STREAM_HEADER_BYTES_MAX`] bytes; empty
        /// for one that was parked.
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
    /// A connection did not come to be, in either direction. [`Code::KeyMismatch`]:
    /// one end lacks the job's key, or speaks for another job.
    /// [`Code::PeerVersion`]: another protocol version. [`Code::AgentTimeout`]: no
    /// handshake in time. [`Code::AgentUnreachable`]: nobody listens there (told
    /// once a series of attempts). [`Code::Network`]: not a peer at all, or the
    /// wrong one.
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
