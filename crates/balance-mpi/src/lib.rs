//! Diffusion balancing inside a running parallel program.
//!
//! [`distributed`] is the method on one process's own tasks, over a
//! [`transport::Transport`]; it runs the kernels of `outlive-balance` (the flow as
//! a protocol, selection, pairwise refinement) and exchanges what neighbours must
//! know. [`ffi`] is its C interface, in the style that users of Zoltan know. The C
//! side supplies the transport: `c/outlive_balance_mpi.c`, compiled with the
//! user's own `mpicc`, puts it onto a communicator, so the library depends on no
//! MPI and works with every one. Without MPI, [`rails`] runs it over TCP between the
//! processes, and goes on without those that fail. Where the caller asks for a fresh partition,
//! [`gathered`] has one process compute for all.

pub mod distributed;
pub mod ffi;
pub mod gathered;

mod leaving;
pub mod outcome;
pub mod rails;
pub mod tasks;
pub mod transport;
