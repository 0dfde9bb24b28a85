//! Reliable sessions: messages between the ranks of a job that arrive exactly
//! once and in order although connections break, kernels below the peers panic
//! and are replaced, or processes are stopped for a while.
//!
//! [`Session`] is the state machine of one pair, without sockets or clock;
//! [`Mesh`] drives one with each rank that is in use over TCP, with nothing but
//! plain sockets, `poll`, `sendmsg` and `recvmsg`: no thread, no epoll, no
//! eventfd, so that a process whose memory outlives its kernel needs no
//! descriptor back. `docs/design/sessions.md` tells why it is correct.

mod conn;
mod frame;
mod machine;
mod mesh;
mod replay;
mod sock;

pub use frame::{FrameKind, HEAD_BYTES, Head, RESUME_BYTES, Resume};
pub use machine::{Config, Counts, Cut, Incoming, Link, Session};
pub use mesh::{Mesh, MeshOptions, Message, Totals};
