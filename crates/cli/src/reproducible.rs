//! `outlive run --reproducible`: the environment under which each MPI library adds up in the
//! same order after a restart as before it.
//!
//! A library may choose another algorithm from one call to the next: MPICH goes over to a
//! tree in shared memory at a communicator's fifth collective, so the fourth call after a
//! restart is combined in another order than the hundredth of the first run. What is set
//! here fixes the choice by communicator, count and datatype alone. Variables that the user
//! has set stay; a library that does not know a variable does not look at it.

use std::ffi::OsString;

use crate::options::{Collectives, RunOptions};

/// Variables of MPI libraries. Those of MPICH and Open MPI are held to it by
/// `tests/examples/test_reproducible.py`; the others are what the vendors' manuals name.
const NATIVE: [(&str, &str); 8] = [
    // MPICH 3.4 and newer: not the tree in shared memory.
    ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir"),
    ("MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM", "mpir"),
    // Open MPI: no order by topology, and no libraries that combine in the network or as
    // operands arrive.
    ("OMPI_MCA_coll_han_reproducible", "1"),
    ("OMPI_MCA_coll_hcoll_enable", "0"),
    ("OMPI_MCA_coll_ucc_enable", "0"),
    // Intel MPI: "strict conditional numerical reproducibility".
    ("I_MPI_CBWR", "2"),
    // Cray MPICH: not by nodes.
    ("MPICH_ALLREDUCE_NO_SMP", "1"),
    ("MPICH_REDUCE_NO_SMP", "1"),
];
/// The same of our own collectives.
const LAYER: &str = "OUTLIVE_COLLECTIVES_REPRODUCIBLE";

/// The variables that the command's processes inherit, as far as `is_set` has none.
pub fn environment(
    options: &RunOptions,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(OsString, OsString)> {
    if !options.reproducible {
        return Vec::new();
    }
    let served = !matches!(options.collectives, None | Some(Collectives::Native));
    let layer = served.then_some((LAYER, "on"));
    let wanted = NATIVE.into_iter().chain(layer);
    wanted
        .filter(|(name, _)| !is_set(name))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn names(words: &[&str], set: &[&str]) -> Vec<String> {
        let words = ["outlive", "run"]
            .iter()
            .chain(words)
            .chain(&["--", "./app"]);
        let Command::Run(options) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not run");
        };
        let made = environment(&options, |name| set.contains(&name));
        made.iter()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn what_the_user_set_stays() {
        assert!(names(&[], &[]).is_empty());
        assert_eq!(names(&["--reproducible"], &[]).len(), NATIVE.len());
        let some = names(&["--reproducible"], &["I_MPI_CBWR"]);
        assert!(some.len() == NATIVE.len() - 1 && !some.contains(&"I_MPI_CBWR".to_owned()));
        let ours = ["--reproducible", "--collectives", "ftco"];
        assert!(names(&ours, &[]).contains(&LAYER.to_owned()));
    }
}
