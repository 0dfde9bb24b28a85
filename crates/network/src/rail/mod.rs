//! What moves frames between the ranks of a job: [`threads`] in one process; between processes
//! [`tcp`], `ucx` (with the feature of that name) and [`sessions`], which outlive connections
//! and kernels; the MPI layer adds one over the job's own point-to-point messages.
//!
//! Invariant: bytes from a rail are parsed by [`frame`], which cannot panic and reserves no
//! more than arrived (P7).

mod conform;
pub mod frame;
pub mod sessions;
pub mod tcp;
pub mod threads;
#[cfg(feature = "ucx")]
pub mod ucx;

use std::time::Duration;

use outlive_base::Time;

pub use conform::conform;
pub use frame::{Bytes, Content, Frame, Key, RANKS_MAX};

/// A receiver that takes nothing for so long is late, and holds up nobody else.
pub const STALL: Duration = Duration::from_millis(100);

/// What a rail can do beyond what each must.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Can {
    /// Two ranks may exchange their data beside the rail, by messages of the job's own MPI.
    pub native_pairs: bool,
    /// A death is told, and the other processes go on.
    pub tells_deaths: bool,
    /// No frame is lost with a connection: each arrives exactly once, as long as both
    /// processes keep their memory and find each other again.
    pub reliable: bool,
}

/// What became of another process: each is told once, and nothing follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// It died. What came from it was given out before.
    Dead(u32),
    /// It said goodbye ([`Rail::leave`]): it is not dead, and takes nothing more.
    Left(u32),
}

/// Point-to-point frames among `size` processes.
///
/// Promises of an implementation: frames between two processes arrive in order and
/// at most once while both live; nothing blocks except [`Rail::wait`] and, for its bound,
/// [`Rail::leave`]; what is sent to a process that died or left vanishes. A frame may be
/// lost with its sender and, if the rail is not [`Can::reliable`], with a connection that
/// breaks between two that live. [`conform`] asks a rail for all of this.
pub trait Rail {
    /// This process.
    fn me(&self) -> u32;
    /// All processes.
    fn size(&self) -> u32;
    /// What frames travel on, in words for people.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn can(&self) -> Can;
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
    /// Who died or left since it was last asked.
    fn news(&mut self) -> Option<News>;
    /// Looks at once who died; a receive may do so only now and then.
    fn look(&mut self) {}
    /// Sleeps until something may have happened, at most until `until`.
    fn wait(&mut self, until: Time);
    /// True when all that was sent has left this process.
    fn flushed(&mut self) -> bool;
    /// Sends what waits and says goodbye to those that it is connected with, for at most
    /// `bound`. Nothing is sent afterwards.
    fn leave(&mut self, bound: Duration);
}
