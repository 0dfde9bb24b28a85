//! Programs that outlive their kernel.
//!
//! [`launch`] starts an unmodified program whose memory the [`supervisor`] keeps in files
//! that survive a warm reboot (DAX), at the same addresses. When the kernel dies, the
//! module under `kernel/` saves registers and tables; the next kernel starts
//! [`revive`], which reads that image through [`area`] and brings the processes up again
//! by the crate `outlive-image`. The idea, and the table of what is kept, are those of
//! mini-ckpts (Fiala, Mueller, Ferreira, Engelmann).

pub mod area;
pub mod births;
pub mod device;
pub mod filter;
pub mod journal;
pub mod kept;
pub mod launch;
mod losses;
pub mod memory;
mod register;
pub mod revive;
mod segments;
pub mod setup;
pub mod space;
mod stacks;
mod stub;
pub mod supervisor;
pub mod sys;
pub mod warm;
