//! The layer over a native MPI. So far: the recorder, a profile in C that the
//! user's own `mpicc` compiles (an MPI library's binary interface is its own) and
//! that is preloaded into a job that knows nothing of it.

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
