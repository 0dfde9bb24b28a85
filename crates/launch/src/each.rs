//! A command that is started once on every node: `torchrun`, which starts ranks on its own machine
//! alone, and plain processes.
//!
//! The command that the launcher starts is then this program (`outlive each -- COMMAND`), as it
//! would start mpirun: it goes to each node by the source's own command (ssh, srun), where another
//! of this program ([`member`]) starts COMMAND, hands its output and status on, and ends it with all
//! that it started.
//!
//! Invariants: a member ends everything when its input ends, when it has heard nothing for the
//! length of the lease, and when the process that stands for the launcher on its host ends (whose
//! lease makes a host harmless that is cut off: `hosts/serve.rs`). So nothing that was started
//! here runs on beside the next start.

mod meeting;
pub mod member;
pub mod runner;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use outlive_base::{Error, Incarnation, Ports, Result};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::run::Run;
use meeting::{Meeting, meeting_at};

/// Names the file of the [`Plan`] to the runner.
const VARIABLE: &str = "OUTLIVE_EACH";
/// The number of the node on which a process was started, by which a plain process finds its rank.
const NODE_RANK: &str = "OUTLIVE_NODE_RANK";
/// Its name in the job's directory.
const FILE: &str = "each.json";

/// How a process is started on one node.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// The node, for people.
    pub name: String,
    /// The command that runs a member on it, and its variables (`None`: not set); empty: this
    /// machine is it.
    pub words: Vec<OsString>,
    /// Variables of that command.
    pub variables: Vec<(OsString, Option<OsString>)>,
    /// Where the process that stands for the launcher there says that it lives.
    pub host: Option<PathBuf>,
    /// True if nobody else can read what goes over its pipes; what is needed there is sent then,
    /// else the way hands it on by itself.
    pub keeps_secrets: bool,
    /// Where others reach it.
    pub address: String,
}

impl Way {
    /// By this command.
    pub fn by(name: &str, command: &Command) -> Way {
        let variables = command.get_envs();
        let variables = variables.map(|(name, value)| (name.to_owned(), value.map(OsString::from)));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        Way {
            name: name.to_owned(),
            words: words.map(OsString::from).collect(),
            variables: variables.collect(),
            ..Way::default()
        }
    }

    /// On this machine.
    pub fn here(name: String) -> Way {
        Way {
            name,
            address: "127.0.0.1".to_owned(),
            ..Way::default()
        }
    }
}

/// What the runner does.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Plan {
    /// In the order of the nodes.
    pub ways: Vec<Way>,
    /// The same for all.
    pub variables: BTreeMap<String, String>,
    /// A member that hears nothing for so long ends.
    pub lease_ms: u64,
}

/// What the starts of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    /// Where plans are written.
    pub dir: PathBuf,
    pub job_hash: u64,
    /// Those at which something may listen on a host.
    pub ports: Ports,
    pub lease_ms: u64,
}

impl Starts {
    /// Those of a run whose command is started on each node; `dir` is the job's.
    pub fn of(run: &Run, dir: &Path, job_hash: u64) -> Option<Starts> {
        run.each.then(|| Starts {
            dir: dir.to_owned(),
            job_hash,
            ports: run.hosts.as_ref().map_or(Ports::ANY, |it| it.ports),
            lease_ms: run.settings.bounds.silence_ms(),
        })
    }

    /// Writes the plan of one; the variable that names it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn plan(&self, ways: Vec<Way>, incarnation: Incarnation) -> Result<(OsString, OsString)> {
        let is_set = |name: &str| std::env::var_os(name).is_some();
        let at = Meeting {
            address: ways.first().map_or("", |way| &way.address),
            here: ways.iter().all(|way| way.words.is_empty()),
            ports: self.ports,
            start: self.job_hash ^ u64::from(incarnation.0),
            nodes: ways.len(),
        };
        let variables = meeting_at(&at, is_set);
        let plan = Plan {
            ways,
            variables,
            lease_ms: self.lease_ms,
        };
        let path = self.dir.join(FILE);
        let text = serde_json::to_vec(&plan)
            .map_err(|error| Error::internal(format!("plan of a start: {error}")))?;
        files::write_atomic(&path, &text)?;
        Ok((VARIABLE.into(), path.into()))
    }
}

/// The command that is started here: the user's, or what starts that on each node.
pub(crate) fn line(run: &Run) -> Vec<OsString> {
    if !run.each {
        return run.words.clone();
    }
    let runner = [run.executable.clone().into(), "each".into(), "--".into()];
    let words = run.words.iter().cloned();
    runner.into_iter().chain(words).collect()
}

/// What of a member's start differs from the others'.
fn own(node: usize) -> [(String, String); 2] {
    // `PET_`: torchrun takes the values of its options from such variables.
    ["PET_NODE_RANK", NODE_RANK].map(|name| (name.to_owned(), node.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_leads_to_a_host_comes_back_from_the_file() {
        let mut command = Command::new("srun");
        command.args(["-w", "n1"]).env_remove("A").env("B", "2");
        let way = Way::by("n1", &command);
        let text = serde_json::to_vec(&way).unwrap();
        let back: Way = serde_json::from_slice(&text).unwrap();
        assert_eq!(back, way);
        assert_eq!(way.words, ["srun", "-w", "n1"]);
        let variables = [("A".into(), None), ("B".into(), Some("2".into()))];
        assert_eq!(way.variables, variables);
    }

    #[test]
    fn each_start_has_its_plan() {
        let dir = tempfile::tempdir().unwrap();
        let ways = || ["a", "b"].map(|name| Way::here(name.to_owned())).to_vec();
        let read = |incarnation| {
            let starts = Starts {
                dir: dir.path().to_owned(),
                job_hash: 7,
                ports: Ports::ANY,
                lease_ms: 1_000,
            };
            let (name, path) = starts.plan(ways(), Incarnation(incarnation)).unwrap();
            assert_eq!(name, VARIABLE);
            serde_json::from_slice::<Plan>(&std::fs::read(path).unwrap()).unwrap()
        };
        let first = read(1);
        assert_eq!((first.ways, first.lease_ms), (ways(), 1_000));
        assert_eq!(first.variables["PET_NNODES"], "2");
        assert_eq!(own(1).map(|(_, value)| value), ["1", "1"]);
    }
}
