//! Datagrams between a rank and its agent over a Unix socket (SOCK_SEQPACKET).
//!
//! A datagram is u16 kind, u32 sequence number, body. The sequence number of a
//! request comes back with its answer, so that an answer that was too late for its
//! request is never taken for another's. Every datagram has a bound, every field
//! within it too; decoding is a pure function that cannot panic (P7).

mod message;
mod socket;

pub use message::{
    DATAGRAM_BYTES_MAX, Message, PATH_BYTES_MAX, TEXT_BYTES_MAX, ToAgent, ToRank, VersionState,
    decode, encode,
};
pub use socket::{Connection, Deadline, IpcError, Listener, Peer, Received, SOCKET_PATH_BYTES_MAX};
