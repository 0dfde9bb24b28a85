//! The nodes of a Slurm allocation, reached by steps of their own.
//!
//! One srun for each host: a step that spans hosts is killed as a whole when one of them
//! starts anew (a reboot that Slurm does not notice), whatever `--no-kill` says.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_planner::slurm::Cluster;

use super::answer;
use super::hostfile::open_mpis;
use super::source::{self, Host, Source};
use crate::files;

/// The word for it in `--hosts`.
pub const NAME: &str = "slurm";

/// The name of our own steps.
const STEP: &str = "outlive-node";
/// The name of those in which the user's command is started on each node.
const STARTED: &str = "outlive-each";
/// Bound of looking for steps that were left.
const SWEEP_SECONDS: &str = "5";

/// How long scontrol may take to tell of hosts and switches; where it does not answer, no step
/// starts either.
const CONTROL_WITHIN: Duration = Duration::from_secs(10);
/// Longest answer: a line for each switch, some hundred bytes.
const CONTROL_BYTES_MAX: u64 = 1 << 24;

/// The nodes of the allocation in which this process runs.
#[derive(Debug)]
pub struct Slurm {
    hosts: Vec<Host>,
}

impl Slurm {
    /// Reads the allocation from the variables that Slurm sets in it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] outside of an allocation, or if its nodes cannot be listed.
    pub fn of_this_job() -> Result<Slurm> {
        let refuse = |reason: String, remedy: &str| {
            let entity = Entity::Option("hosts".to_owned());
            Error::new(Code::InvalidArgument, entity, reason, remedy)
        };
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let Some(list) = variable("SLURM_JOB_NODELIST") else {
            return Err(refuse(
                "slurm: this is no allocation (SLURM_JOB_NODELIST is not set)".to_owned(),
                "run it inside: salloc --no-kill -N 5 ..., or sbatch --no-kill",
            ));
        };
        // All that is needed later: a job that has begun would be lost for it.
        for program in ["scontrol", "srun"] {
            if !source::is_in_path(program) {
                return Err(refuse(
                    format!("slurm: there is no {program} in PATH"),
                    "put Slurm's commands in PATH, of batch scripts too: module load slurm, or \
                     export PATH=/opt/slurm/bin:$PATH; else name the hosts in a file: --hosts FILE",
                ));
            }
        }
        let mut command = Command::new("scontrol");
        command.args(["show", "hostnames", &list]);
        let names = answer::of(command, CONTROL_WITHIN, CONTROL_BYTES_MAX);
        let names = names.map_err(|seen| {
            refuse(
                format!("scontrol show hostnames: {seen}"),
                "check that Slurm's controller answers: scontrol ping",
            )
        })?;
        let tasks = variable("SLURM_TASKS_PER_NODE");
        let slots = tasks.as_deref().map(per_node).unwrap_or_default();
        let host = |(at, name): (usize, &str)| Host {
            name: name.trim().to_owned(),
            slots: slots.get(at).copied(),
            domain: None,
        };
        let hosts: Vec<Host> = names.lines().enumerate().map(host).collect();
        source::check(&hosts, "hosts")?;
        Ok(Slurm { hosts })
    }

    /// Takes the leaf switches from what `scontrol show topology` prints.
    fn take_switches(&mut self, printed: &str) -> Result<()> {
        let mut cluster = Cluster {
            nodes: self.hosts.iter().map(|host| host.name.clone()).collect(),
            ..Cluster::default()
        };
        cluster.topology(printed, "scontrol show topology")?;
        // A node of several rails has several switches, which share their nodes: the first.
        for (mut switch, members) in cluster.switches.into_iter().rev() {
            // It is shown on terminals.
            switch.retain(|c| !c.is_control());
            for node in members {
                self.hosts[node as usize].domain = Some(switch.clone());
            }
        }
        Ok(())
    }
}

/// `2(x3),1`: tasks on each node, in order.
fn per_node(text: &str) -> Vec<u32> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.trim_end_matches(')').parse().unwrap_or(0)),
            None => (part, 1),
        };
        let Ok(tasks) = tasks.trim().parse::<u32>() else {
            return Vec::new();
        };
        if counts.len() + times > source::HOSTS_MAX {
            return Vec::new();
        }
        counts.extend(std::iter::repeat_n(tasks, times));
    }
    counts
}

impl Source for Slurm {
    fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    fn shell(&self, host: &Host, words: &[String]) -> Command {
        step(STEP, host, words)
    }

    fn start(&self, host: &Host, words: &[String]) -> Command {
        step(STARTED, host, words)
    }

    /// Of Slurm's ways to tell this is the one that answers for all nodes, from anywhere in the
    /// allocation, and needs no file: topology.conf may lie on the controller alone, and
    /// `SLURM_TOPOLOGY_ADDR` is told to the tasks of a step, each about its own node.
    fn find_domains(&mut self) -> Result<()> {
        let mut command = Command::new("scontrol");
        // Lines that are cut would say something else.
        command
            .args(["show", "topology"])
            .env_remove("SLURM_TOPO_LEN");
        let printed = answer::of(command, CONTROL_WITHIN, CONTROL_BYTES_MAX);
        let read = match printed {
            Ok(printed) => self.take_switches(&printed),
            Err(seen) => {
                let entity = Entity::File("scontrol show topology".to_owned());
                Err(Error::new(Code::Config, entity, seen, ""))
            }
        };
        read.map_err(|error| {
            Error::new(
                Code::Config,
                error.entity().clone(),
                format!("Slurm's switches are not known: {}", error.reason()),
                "nothing, if nodes fail one by one; else name the failure domains: --domains \
                 0,0,1,1",
            )
        })
    }

    /// A step whose srun was killed goes on, and is in the way of the next.
    fn sweep(&self) -> Option<Command> {
        const SCRIPT: &str = "squeue --noheader --steps --jobs=$1 --format='%i %j' |
            while read -r step name; do
                case $name in $2 | extern | batch | interactive) ;;
                *) scancel --signal=KILL $step ;; esac
            done";
        let job = std::env::var("SLURM_JOB_ID").ok()?;
        let mut command = Command::new("timeout");
        command
            .args([SWEEP_SECONDS, "sh", "-c", SCRIPT, "sh", &job, STEP])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Some(command)
    }

    fn keeps_secrets(&self) -> bool {
        false
    }

    fn environment(
        &self,
        hosts: &[&Host],
        passed: &[String],
        dir: &Path,
    ) -> Result<Vec<(OsString, OsString)>> {
        // A line for each task: as many on each host as Slurm would have put there.
        let lines = |host: &&Host| format!("{}\n", host.name).repeat(slots(host));
        let tasks: String = hosts.iter().map(lines).collect();
        let (file, hydra) = (dir.join("hosts.slurm"), dir.join("hosts.hydra"));
        files::write_atomic(&file, tasks.as_bytes())?;
        let lines = |host: &&Host| format!("{}:{}\n", host.name, slots(host));
        files::write_atomic(
            &hydra,
            hosts.iter().map(lines).collect::<String>().as_bytes(),
        )?;
        let open_mpi = dir.join("hosts");
        let lines = |host: &&Host| format!("{} slots={}\n", host.name, slots(host));
        let text: String = hosts.iter().map(lines).collect();
        files::write_atomic(&open_mpi, text.as_bytes())?;
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let mut variables = vec![
            ("SLURM_HOSTFILE".into(), file.clone().into()),
            ("SLURM_DISTRIBUTION".into(), "arbitrary".into()),
            // One that ends slowly, as a dead node's does, is not waited for.
            ("SLURM_OVERLAP".into(), "1".into()),
            ("HYDRA_HOST_FILE".into(), hydra.into()),
            ("OUTLIVE_HOSTFILE".into(), file.into()),
            ("OUTLIVE_HOSTS".into(), names.join(",").into()),
        ];
        variables.extend(open_mpis(&open_mpi, passed));
        // Its own way to Slurm takes the allocation's order and dead nodes, and its helpers' srun
        // what is said above for the ranks': it lays ranks by its list, by ssh, or not at all.
        let ways = [
            "OMPI_MCA_ras",
            "OMPI_MCA_plm",
            "PRTE_MCA_ras",
            "PRTE_MCA_plm",
        ];
        let free = ways
            .into_iter()
            .filter(|name| std::env::var_os(name).is_none());
        variables.extend(free.map(|name| (name.into(), "^slurm".into())));
        Ok(variables)
    }
}

/// A step on one host, beside others.
fn step(name: &str, host: &Host, words: &[String]) -> Command {
    let mut command = Command::new("srun");
    command
        // Beside the ranks' step, on what they use.
        .args(["--overlap", "--mem=0", "--cpu-bind=none"])
        .args(["--no-kill", "--kill-on-bad-exit=0", "--unbuffered"])
        .args(["--nodes=1", "--ntasks=1", "--mpi=none"])
        .arg(format!("--job-name={name}"))
        .arg(format!("--nodelist={}", host.name))
        .args(words)
        // What the user set for the ranks is not meant for this step.
        .env_remove("SLURM_HOSTFILE")
        .env_remove("SLURM_DISTRIBUTION")
        .env_remove("SLURM_NTASKS_PER_NODE");
    command
}

fn slots(host: &Host) -> usize {
    host.slots.unwrap_or(1).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_each_node_are_read_as_slurm_writes_them() {
        assert_eq!(per_node("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(per_node("4"), [4]);
        for bad in ["", "x", "2(x99999999)", "2(x3),y"] {
            assert!(per_node(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn each_task_has_its_line_in_the_order_of_the_nodes() {
        let host = |name: &str, slots| Host {
            name: name.to_owned(),
            slots,
            domain: None,
        };
        let hosts = vec![host("n1", Some(2)), host("n3", None)];
        let dir = tempfile::tempdir().unwrap();
        let source = Slurm { hosts };
        let order = [&source.hosts[1], &source.hosts[0]];
        let variables = source.environment(&order, &[], dir.path()).unwrap();
        let file = |name: &str| {
            let (_, path) = variables.iter().find(|(key, _)| key == name).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        assert_eq!(file("SLURM_HOSTFILE"), "n3\nn1\nn1\n");
        assert_eq!(
            file("PRTE_MCA_prte_default_hostfile"),
            "n3 slots=1\nn1 slots=2\n"
        );
    }

    #[test]
    fn hosts_lie_under_their_leaf_switches() {
        let host = |name: &str| Host {
            name: name.to_owned(),
            slots: None,
            domain: None,
        };
        let domains = |printed: &str| {
            let hosts = ["n1", "n2", "n3", "n4", "x"].map(host).to_vec();
            let mut source = Slurm { hosts };
            source.take_switches(printed).map(|()| {
                let domain = |host: &Host| host.domain.clone().unwrap_or("-".to_owned());
                source.hosts.iter().map(domain).collect::<Vec<_>>()
            })
        };
        let tree = "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2,9]\n\
                    SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4]\n\
                    SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4,9] Switches=s1,s2\n";
        assert_eq!(domains(tree).unwrap(), ["s1", "s1", "s2", "s2", "-"]);
        let rails = "SwitchName=a Level=0 Nodes=n[1-3]\nSwitchName=b Level=0 Nodes=n[1-3]\n";
        assert_eq!(domains(rails).unwrap(), ["a", "a", "a", "-", "-"]);
        for nothing in ["", "\n", "what?\n"] {
            assert_eq!(domains(nothing).unwrap(), ["-"; 5]);
        }
        let error = domains("SwitchName=a Nodes=n[1-\n").unwrap_err();
        assert_eq!(error.code(), Code::Config);
    }
}
