//! Datagrams between a rank and its agent over a Unix socket (SOCK_SEQPACKET). What they
//! say stands in [`outlive_base::ipc`].

mod socket;

pub use outlive_base::ipc::{
    DATAGRAM_BYTES_MAX, Message, PATH_BYTES_MAX, TEXT_BYTES_MAX, ToAgent, ToRank, VersionState,
    decode, encode,
};
pub use socket::{Connection, Deadline, IpcError, Listener, Peer, Received, SOCKET_PATH_BYTES_MAX};
