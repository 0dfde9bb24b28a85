//! What moves frames between the ranks of a job: [`threads`] in one process, [`tcp`] and
//! `ucx` (with the feature of that name) between processes; the MPI layer adds one over the
//! job's own point-to-point messages.
//!
//! Invariant: bytes from a rail are parsed by [`frame`], which cannot panic and reserves no
//! more than arrived (P7).

pub mod frame;
pub mod tcp;
pub mod threads;
#[cfg(feature = "ucx")]
pub mod ucx;

use std::time::Duration;

use outlive_base::Time;

pub use frame::{Bytes, Content, Frame, Key};

/// A receiver that takes nothing for so long is late, and holds up nobody else.
pub const STALL: Duration = Duration::from_millis(100);

/// Point-to-point frames among `size` processes.
///
/// Promises of an implementation: frames between two processes arrive in order and
/// at most once while both live; nothing blocks except [`Rail::wait`]; what is
/// sent to a dead process vanishes. A frame may be lost with its sender only.
pub trait Rail {
    /// This process.
    fn me(&self) -> u32;
    /// All processes.
    fn size(&self) -> u32;
    /// The monotonic clock of this process.
    fn now(&self) -> Time;
    /// False while so much waits to be sent that machines shall not be pulled.
    fn ready(&self) -> bool;
    /// Bytes that were sent and have not left this process. What is stuck for longer than
    /// [`STALL`] is not counted: its receiver is late, and others must not wait for that.
    fn waiting(&self) -> usize;
    /// Takes a frame for `to`.
    fn send(&mut self, to: u32, frame: Frame);
    /// Makes progress; the next frame that arrived, with its sender.
    fn receive(&mut self) -> Option<(u32, Frame)>;
    /// A process that is now known to be dead, each once.
    fn death(&mut self) -> Option<u32>;
    /// Sleeps until something may have happened, at most until `until`.
    fn wait(&mut self, until: Time);
    /// True when all that was sent has left this process.
    fn flushed(&mut self) -> bool;
}
