//! Where the command is started: once on this machine, as mpirun and srun want it, which go to
//! the nodes by themselves; or once on each node, as torchrun does, which starts ranks on its own
//! machine alone.

use std::ffi::OsString;
use std::path::Path;

use outlive_base::{Code, Entity, Error, Result, count};

use crate::config::{Config, refuse, short};

/// True if it is started on each node.
///
/// # Errors
/// [`Code::InvalidArgument`] if that is said in no known way, or torchrun is told of other nodes
/// than there are.
pub fn each(config: &Config, words: &[OsString], nodes: u32, on_hosts: bool) -> Result<bool> {
    let torchrun = Torchrun::of(words, |name| std::env::var(name).ok());
    let each = match config.get("start") {
        "" => torchrun
            .as_ref()
            .is_some_and(|it| it.wants_each(nodes, on_hosts)),
        "once" => false,
        "each" => true,
        other => {
            let reason = format!("'{}' is neither once nor each", short(other));
            let remedy = "give once for mpirun and srun, each for what starts ranks on its own \
                          machine alone";
            return Err(refuse(config, "start", reason, remedy));
        }
    };
    match torchrun {
        Some(torchrun) if each => torchrun.check(nodes, on_hosts).map(|()| true),
        _ => Ok(each),
    }
}

/// What matters here of a line of torchrun.
#[derive(Debug, Default, PartialEq, Eq)]
struct Torchrun {
    nodes: Option<String>,
    /// Which of them this is: who says so starts the others too.
    node_rank: bool,
    standalone: bool,
    /// The rendezvous, if it is not left to be chosen.
    rendezvous: Option<String>,
}

impl Torchrun {
    /// `None` if the command is another.
    fn of(words: &[OsString], variable: impl Fn(&str) -> Option<String>) -> Option<Torchrun> {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut options = options_of_torchrun(&words)?.iter().copied();
        let mut seen = Torchrun {
            nodes: variable("PET_NNODES"),
            standalone: variable("PET_STANDALONE").is_some_and(|set| set == "1"),
            rendezvous: variable("PET_RDZV_BACKEND"),
            ..Torchrun::default()
        };
        while let Some(word) = options.next() {
            // The program and what is its own follow.
            let Some(option) = word.strip_prefix("--") else {
                match word {
                    "-r" | "-t" => drop(options.next()),
                    _ if word.starts_with('-') => {}
                    _ => break,
                }
                continue;
            };
            let (name, given) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            let name = name.replace('_', "-");
            if FLAGS.contains(&name.as_str()) {
                seen.standalone |= name == "standalone";
                continue;
            }
            let value = given.or_else(|| options.next()).unwrap_or_default();
            match name.as_str() {
                "nnodes" => seen.nodes = Some(value.to_owned()),
                "node-rank" => seen.node_rank = true,
                "rdzv-backend" => seen.rendezvous = Some(value.to_owned()),
                _ => {}
            }
        }
        Some(seen)
    }

    /// The most nodes that it says, if that is a number.
    fn most(&self) -> Option<u32> {
        let most = self.nodes.as_deref()?.rsplit(':').next()?;
        most.trim().parse().ok()
    }

    fn wants_each(&self, nodes: u32, on_hosts: bool) -> bool {
        let several = self.most().map_or(on_hosts, |most| most > 1);
        nodes > 1 && several && !self.standalone && !self.node_rank
    }

    fn check(&self, nodes: u32, on_hosts: bool) -> Result<()> {
        let refuse = |reason: String, remedy: &str| {
            let entity = Entity::Option("start".to_owned());
            Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
        };
        if let Some(given) = self.nodes.as_deref().filter(|_| self.most() != Some(nodes)) {
            return refuse(
                format!(
                    "torchrun is told of --nnodes {}, and the job has {}",
                    short(given),
                    count(nodes, "node")
                ),
                "leave --nnodes out, or give as many hosts and --spares as fit",
            );
        }
        match &self.rendezvous {
            Some(backend) if on_hosts && backend != "static" => refuse(
                format!(
                    "torchrun's rendezvous {} numbers nodes by who comes first, and a rank must \
                     come to where its data is",
                    short(backend)
                ),
                "leave --rdzv-backend and --rdzv-endpoint out: each start is told where to meet",
            ),
            _ => Ok(()),
        }
    }
}

/// Options of torchrun that take no value.
const FLAGS: [&str; 5] = ["standalone", "module", "no-python", "run-path", "help"];

/// Those of a line that starts torchrun, under any of its names.
fn options_of_torchrun<'a>(words: &'a [&'a str]) -> Option<&'a [&'a str]> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    if name == "torchrun" {
        return Some(&words[1..]);
    }
    let modules = ["torch.distributed.run", "torch.distributed.launch"];
    let at = words.windows(2).position(|two| two[0] == "-m")?;
    // Before it only options of the interpreter.
    let own = words[1..at].iter().all(|word| word.starts_with('-'));
    let is_it = name.starts_with("python") && own && modules.contains(&words[at + 1]);
    is_it.then(|| &words[at + 2..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> Option<Torchrun> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Torchrun::of(&words, |_| None)
    }

    #[test]
    fn torchrun_is_known_by_each_of_its_names_and_nothing_else_is() {
        for line in [
            "torchrun train.py",
            "/opt/env/bin/torchrun --nproc_per_node=2 train.py --nnodes 3",
            "python3.11 -u -m torch.distributed.run train.py",
            "/usr/bin/python -m torch.distributed.launch train.py",
        ] {
            assert_eq!(seen(line), Some(Torchrun::default()), "{line}");
        }
        for line in [
            "python train.py -m torch.distributed.run",
            "mpirun -n 2 torchrun train.py",
            "srun -m torch.distributed.run",
            "",
        ] {
            assert_eq!(seen(line), None, "{line}");
        }
    }

    #[test]
    fn its_options_are_read_as_it_reads_them() {
        let nodes = |line: &str| seen(line).unwrap().most();
        for line in [
            "torchrun --nnodes=2 a.py",
            "torchrun --nproc-per-node 4 --nnodes 2 a.py",
            "torchrun --nnodes=1:2 a.py",
            "torchrun --no_python --nnodes=2 a",
            "torchrun -r 3 --nnodes=2 a",
        ] {
            assert_eq!(nodes(line), Some(2), "{line}");
        }
        assert!(seen("torchrun --standalone a.py").unwrap().standalone);
        assert!(seen("torchrun --node_rank 1 a.py").unwrap().node_rank);
        let c10d = seen("torchrun --rdzv-backend=c10d a.py").unwrap();
        assert_eq!(c10d.rendezvous.as_deref(), Some("c10d"));
        let words = ["torchrun".into(), "a.py".into()];
        let told = Torchrun::of(&words, |name| (name == "PET_NNODES").then(|| "4".into()));
        assert_eq!(told.unwrap().most(), Some(4));
    }

    #[test]
    fn it_is_started_on_each_node_where_it_speaks_of_several() {
        let wants = |line: &str, nodes, hosts| seen(line).unwrap().wants_each(nodes, hosts);
        assert!(wants("torchrun --nnodes=2 a.py", 2, false));
        assert!(wants("torchrun --nproc-per-node=2 a.py", 2, true));
        // One torchrun for all ranks of this machine, whatever parts it has.
        assert!(!wants("torchrun --nproc-per-node=4 a.py", 2, false));
        assert!(!wants("torchrun --nnodes=2 a.py", 1, true));
        assert!(!wants("torchrun --standalone a.py", 2, true));
        assert!(!wants("torchrun --nnodes=2 --node-rank=0 a.py", 2, false));
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_starts() {
        let check = |line: &str, hosts| seen(line).unwrap().check(2, hosts);
        check("torchrun --nnodes=2 a.py", true).unwrap();
        check("torchrun --nnodes=1:2 --rdzv-backend=static a.py", true).unwrap();
        // On one machine each rank finds its node's agent, whichever it is.
        check("torchrun --nnodes=2 --rdzv-backend=c10d a.py", false).unwrap();
        let error = check("torchrun --nnodes=3 a.py", false).unwrap_err();
        assert!(error.reason().contains("--nnodes 3"), "{error}");
        let error = check("torchrun --rdzv-backend=c10d a.py", true).unwrap_err();
        assert!(error.remedy().contains("--rdzv-endpoint"), "{error}");
    }
}
