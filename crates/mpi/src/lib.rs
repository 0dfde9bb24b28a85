//! The layer over a native MPI.
//!
//! - `liboutlive_mpi.so`, preloaded or linked: takes over MPI_Bcast, MPI_Reduce,
//!   MPI_Allreduce, MPI_Gather(v), MPI_Allgather(v) and MPI_Barrier, in C and Fortran, of Open MPI, MPICH and the standard
//!   ABI, by the fault-tolerant collectives; [`settings`] lists what the environment
//!   chooses. Start at [`exports`], then [`calls`], [`layer`], [`pair`]. While a process is
//!   blocked elsewhere in MPI, [`waits`] lets it answer the others.
//! - The recorder, a profile in C that the user's own `mpicc` compiles and that is
//!   preloaded into a job that knows nothing of it.

pub mod ask;
pub mod body;
pub mod calls;
pub mod comms;
mod connect;
pub mod exports;
pub mod gather;
pub mod lane;
pub mod large;
pub mod layer;
pub mod native;
pub mod pair;
pub mod settings;
pub mod shadow;
pub mod start;
pub mod waits;

/// The source of the recorder; see its first comment for how to use it.
pub const RECORDER_C: &str = include_str!("../c/recorder.c");

#[cfg(test)]
mod tests {
    #[test]
    fn every_wrapped_call_goes_on_to_its_profiled_name() {
        let wrapped = super::RECORDER_C.matches("\nint MPI_").count();
        assert!(wrapped >= 6, "{wrapped}");
        assert!(super::RECORDER_C.contains("PMPI_Finalize()"));
    }
}
