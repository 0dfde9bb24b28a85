//! Who am I? Rank and number of ranks from the environment of whatever launcher
//! started the process, and the way to the node's agent. Pure functions over a
//! look-up, so that every launcher is a row of a table in the tests.

use outlive_base::placement::node_of;
use outlive_base::{Code, Entity, Error, Rank, Result};
use std::path::PathBuf;

/// Most ranks of a job: C's `int32_t` numbers them.
pub const RANKS_MAX: u32 = i32::MAX as u32;

/// A rank and the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankOf {
    /// The rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
}

/// The way to the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Surroundings {
    /// `OUTLIVE_AGENT`: the socket, `{node}` in it standing for the node.
    pub agent: String,
    /// `OUTLIVE_NODES`: number of emulated nodes.
    pub nodes: Option<u32>,
    /// `OUTLIVE_INCARNATION`: which start this is; 0 if not told.
    pub incarnation: u32,
}

/// Launchers in the order in which they are asked: name, variables of the rank,
/// variables of the size (the first that is set counts).
const LAUNCHERS: &[(&str, &str, &[&str])] = &[
    ("Outlive", "OUTLIVE_RANK", &["OUTLIVE_SIZE"]),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        &["OMPI_COMM_WORLD_SIZE"],
    ),
    (
        "PMIx",
        "PMIX_RANK",
        // Not OMPI_UNIVERSE_SIZE: that counts slots, of which a job may leave some free.
        &["OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"],
    ),
    ("PMI", "PMI_RANK", &["PMI_SIZE"]),
    ("Slurm", "SLURM_PROCID", &["SLURM_NTASKS"]),
    ("PALS", "PALS_RANKID", &["PALS_SIZE"]),
    ("Flux", "FLUX_TASK_RANK", &["FLUX_JOB_SIZE"]),
    (TORCHRUN, "RANK", &["WORLD_SIZE"]),
    // `outlive run --start each`, of what has no launcher below it.
    ("Outlive", "OUTLIVE_NODE_RANK", &["OUTLIVE_NODES"]),
];

const TORCHRUN: &str = "torchrun";
/// Set by torchrun alone, for its workers: it may itself have been started by srun or mpirun, whose
/// variables number what they have started.
const OF_TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

fn unknown(reason: String) -> Error {
    Error::new(
        Code::RankUnknown,
        Entity::Call,
        reason,
        "pass rank and ranks when opening the job, or set OUTLIVE_RANK and OUTLIVE_SIZE",
    )
}

/// Finds rank and size: the first launcher that gives both; rank 0 of 1 if none
/// gives any. A launcher that gives only one of the two is passed over, unless no
/// other gives both: then, as with values that make no sense, error 200.
pub fn place(lookup: &dyn Fn(&str) -> Option<String>) -> Result<RankOf> {
    let mut incomplete = None;
    let under_torchrun = lookup(OF_TORCHRUN).is_some();
    // By hand, then torchrun if it is the nearest, then all in order.
    let near = |at: &usize| *at == 0 || (under_torchrun && LAUNCHERS[*at].0 == TORCHRUN);
    let order = (0..LAUNCHERS.len()).filter(near).chain(0..LAUNCHERS.len());
    for (launcher, rank_name, size_names) in order.map(|at| &LAUNCHERS[at]) {
        let Some(rank) = lookup(rank_name) else {
            continue;
        };
        let size = size_names
            .iter()
            .find_map(|name| Some((name, lookup(name)?)));
        let Some((size_name, size)) = size else {
            incomplete.get_or_insert(format!(
                "{launcher} sets {rank_name} but none of {}",
                size_names.join(", ")
            ));
            continue;
        };
        let number = |name: &str, text: &str| {
            text.trim()
                .parse::<u32>()
                .map_err(|_| unknown(format!("{name} is '{}', no number", cut(text))))
        };
        return checked(number(rank_name, &rank)?, number(size_name, &size)?)
            .map_err(|error| unknown(format!("{launcher}: {}", error.reason())));
    }
    match incomplete {
        Some(reason) => Err(unknown(reason)),
        None => Ok(RankOf { rank: 0, ranks: 1 }),
    }
}

/// A rank of a number of ranks, or error 200.
pub fn checked(rank: u32, ranks: u32) -> Result<RankOf> {
    if rank < ranks && ranks <= RANKS_MAX {
        Ok(RankOf { rank, ranks })
    } else {
        Err(unknown(format!(
            "rank {rank} of {} is impossible",
            outlive_base::count(ranks, "rank")
        )))
    }
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The way to the agent, or `None` if the program was not started by `outlive run`.
pub fn surroundings(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Surroundings>> {
    let Some(agent) = lookup("OUTLIVE_AGENT").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let remedy = "start the program by outlive run and leave the variable alone";
    let number = |name| positive(lookup, name, remedy);
    Ok(Some(Surroundings {
        agent,
        nodes: number("OUTLIVE_NODES")?,
        incarnation: number("OUTLIVE_INCARNATION")?.unwrap_or(0),
    }))
}

/// `OUTLIVE_COPY_THREADS`: threads that copy in a capture, if told.
pub fn copy_threads(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<usize>> {
    let remedy = "give a number of threads, or unset it";
    let told = positive(lookup, "OUTLIVE_COPY_THREADS", remedy)?;
    Ok(told.map(|threads| threads as usize))
}

/// `OUTLIVE_CHECK_CAPTURES`: whether captures are compared with the memory that they were copied
/// from, if told.
pub fn check_captures(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<bool>> {
    let name = "OUTLIVE_CHECK_CAPTURES";
    match lookup(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some("0" | "false") => Ok(Some(false)),
        Some("1" | "true") => Ok(Some(true)),
        Some(other) => Err(Error::new(
            Code::Config,
            Entity::Option(name.into()),
            format!("'{}' is neither 1 nor 0", cut(other)),
            "set it to 1 to compare each capture with its memory, or unset it",
        )),
    }
}

/// A variable that holds a positive number; `None` if it is not set, or empty.
fn positive(
    lookup: &dyn Fn(&str) -> Option<String>,
    name: &str,
    remedy: &str,
) -> Result<Option<u32>> {
    let Some(text) = lookup(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let number = text.trim().parse::<u32>().ok();
    number
        .filter(|&number| number > 0)
        .map(Some)
        .ok_or_else(|| {
            Error::new(
                Code::Config,
                Entity::Option(name.into()),
                format!("'{}' is no positive number", cut(&text)),
                remedy,
            )
        })
}

/// The emulated node on which a rank lives.
pub const fn emulated_node(place: RankOf, nodes: u32) -> u32 {
    node_of(Rank(place.rank), place.ranks, nodes).0
}

impl Surroundings {
    /// The socket of the agent that serves this rank.
    pub fn socket(&self, place: RankOf) -> Result<PathBuf> {
        if !self.agent.contains("{node}") {
            return Ok(self.agent.clone().into());
        }
        let nodes = self.nodes.ok_or_else(|| {
            Error::new(
                Code::Config,
                Entity::Option("OUTLIVE_NODES".into()),
                "not set, but OUTLIVE_AGENT contains {node}",
                "start the program by outlive run, with its variables passed to all ranks",
            )
        })?;
        Ok(self
            .agent
            .replace("{node}", &emulated_node(place, nodes).to_string())
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<(u32, u32)> {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        place(&lookup).map(|place| (place.rank, place.ranks))
    }

    #[test]
    fn every_launcher_is_understood() {
        for (variables, expected) in [
            (&[][..], (0, 1)),
            (
                &[("OUTLIVE_RANK", "3"), ("OUTLIVE_SIZE", "5"), ("RANK", "9")],
                (3, 5),
            ),
            (
                &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
                (1, 2),
            ),
            // prterun sets both, and PMIX_RANK alone has no size.
            (
                &[
                    ("PMIX_RANK", "1"),
                    ("OMPI_COMM_WORLD_RANK", "1"),
                    ("OMPI_COMM_WORLD_SIZE", "2"),
                ],
                (1, 2),
            ),
            // srun --mpi=pmix.
            (
                &[
                    ("PMIX_RANK", "6"),
                    ("SLURM_PROCID", "6"),
                    ("SLURM_NTASKS", "8"),
                ],
                (6, 8),
            ),
            // MPICH and Intel MPI (hydra).
            (&[("PMI_RANK", "0"), ("PMI_SIZE", "4")], (0, 4)),
            (&[("SLURM_PROCID", "7"), ("SLURM_NTASKS", "8")], (7, 8)),
            (&[("PALS_RANKID", "2"), ("PALS_SIZE", "4")], (2, 4)),
            (&[("FLUX_TASK_RANK", "2"), ("FLUX_JOB_SIZE", "4")], (2, 4)),
            (
                &[("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")],
                (2, 4),
            ),
            // torchrun inside of steps of srun and of an mpirun.
            (
                &[
                    ("SLURM_PROCID", "1"),
                    ("SLURM_NTASKS", "2"),
                    ("PMI_RANK", "1"),
                    ("PMI_SIZE", "2"),
                    ("TORCHELASTIC_RUN_ID", "none"),
                    ("RANK", "3"),
                    ("WORLD_SIZE", "4"),
                ],
                (3, 4),
            ),
            // Others set these too, for what they start.
            (
                &[
                    ("PMI_RANK", "1"),
                    ("PMI_SIZE", "2"),
                    ("RANK", "3"),
                    ("WORLD_SIZE", "4"),
                ],
                (1, 2),
            ),
            // A plain process on each node, and one that starts ranks there.
            (
                &[("OUTLIVE_NODE_RANK", "1"), ("OUTLIVE_NODES", "3")],
                (1, 3),
            ),
            (
                &[
                    ("OUTLIVE_NODE_RANK", "1"),
                    ("OUTLIVE_NODES", "2"),
                    ("RANK", "2"),
                    ("WORLD_SIZE", "4"),
                ],
                (2, 4),
            ),
            // torchrun inside of an incomplete outer environment.
            (
                &[("PMIX_RANK", "0"), ("RANK", "2"), ("WORLD_SIZE", "4")],
                (2, 4),
            ),
            (&[("RANK", " 1 "), ("WORLD_SIZE", "2\n")], (1, 2)),
        ] {
            assert_eq!(found(variables).unwrap(), expected, "{variables:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_names_of_the_variables() {
        for (variables, word) in [
            (&[("PMI_RANK", "x"), ("PMI_SIZE", "4")][..], "PMI_RANK"),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "-4")], "PMI_SIZE"),
            (&[("PMI_RANK", "4"), ("PMI_SIZE", "4")], "rank 4 of 4"),
            (&[("RANK", "0"), ("WORLD_SIZE", "0")], "rank 0 of 0"),
            (&[("RANK", "0"), ("WORLD_SIZE", "4000000000")], "4000000000"),
            (&[("PMIX_RANK", "1")], "PMIx"),
            // Eight slots, and nobody says how many of them are used.
            (&[("PMIX_RANK", "1"), ("OMPI_UNIVERSE_SIZE", "8")], "PMIx"),
        ] {
            let error = found(variables).unwrap_err();
            assert_eq!(error.code(), Code::RankUnknown);
            assert!(error.reason().contains(word), "{error}");
        }
    }

    #[test]
    fn emulated_nodes_share_the_ranks_evenly_and_in_order() {
        let nodes: Vec<u32> = (0..8)
            .map(|rank| emulated_node(RankOf { rank, ranks: 8 }, 3))
            .collect();
        assert_eq!(nodes, [0, 0, 0, 1, 1, 1, 2, 2]);
        let last = RankOf {
            rank: RANKS_MAX - 1,
            ranks: RANKS_MAX,
        };
        assert_eq!(emulated_node(last, u32::MAX), u32::MAX - 3);
    }

    #[test]
    fn the_way_to_the_agent() {
        let with = |pairs: &'static [(&str, &str)]| {
            surroundings(&move |name| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[]).unwrap(), None);
        assert_eq!(with(&[("OUTLIVE_AGENT", "")]).unwrap(), None);
        let place = RankOf { rank: 3, ranks: 4 };
        let one = with(&[("OUTLIVE_AGENT", "/run/a.sock")]).unwrap().unwrap();
        assert_eq!(
            (one.socket(place).unwrap(), one.incarnation),
            ("/run/a.sock".into(), 0)
        );
        let many = with(&[
            ("OUTLIVE_AGENT", "/run/a-{node}.sock"),
            ("OUTLIVE_NODES", "2"),
            ("OUTLIVE_INCARNATION", "3"),
        ]);
        let many = many.unwrap().unwrap();
        assert_eq!(
            (many.socket(place).unwrap(), many.incarnation),
            ("/run/a-1.sock".into(), 3)
        );
        let lost = with(&[("OUTLIVE_AGENT", "/run/a-{node}.sock")])
            .unwrap()
            .unwrap();
        assert_eq!(lost.socket(place).unwrap_err().code(), Code::Config);
        let bad = with(&[("OUTLIVE_AGENT", "/a"), ("OUTLIVE_NODES", "0")]);
        assert_eq!(bad.unwrap_err().code(), Code::Config);
    }

    #[test]
    fn whether_captures_are_checked_is_understood_or_refused() {
        let with = |text: &str| check_captures(&|_| Some(text.to_owned()));
        assert_eq!(check_captures(&|_| None).unwrap(), None);
        assert_eq!(with("").unwrap(), None);
        assert_eq!(
            (with("1").unwrap(), with("true").unwrap()),
            (Some(true), Some(true))
        );
        assert_eq!(
            (with(" 0").unwrap(), with("false").unwrap()),
            (Some(false), Some(false))
        );
        let error = with("2").unwrap_err();
        assert_eq!(error.code(), Code::Config);
        assert!(
            error.to_string().contains("OUTLIVE_CHECK_CAPTURES"),
            "{error}"
        );
    }

    #[test]
    fn the_number_of_copying_threads_is_understood_or_refused() {
        let with = |text: &str| copy_threads(&|_| Some(text.to_owned()));
        assert_eq!(copy_threads(&|_| None).unwrap(), None);
        assert_eq!((with("").unwrap(), with(" 4 ").unwrap()), (None, Some(4)));
        for bad in ["0", "-1", "four", "4.0"] {
            let error = with(bad).unwrap_err();
            assert_eq!(error.code(), Code::Config);
            assert!(
                error.to_string().contains("OUTLIVE_COPY_THREADS"),
                "{error}"
            );
        }
    }
}
