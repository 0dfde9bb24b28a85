//! The keepers of all slots: starting, stopping and killing them.
//!
//! A keeper runs in a session of its own (mpirun and Slurm kill the step's group,
//! staged memory must outlive the ranks) and gets SIGTERM when the launcher dies.
//! A slot is told apart by its epoch: what is said of an older holder is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use outlive_base::{Error, JobName, NodeId, Ports, Result, Time};
use outlive_control::health;
use outlive_control::orders::{AgentSpec, LAUNCHER_VARIABLE, SPEC_VARIABLE, TITLE};
use rustix::process::Signal;

use crate::process::{self, Group, Process};
use crate::store;
use outlive_control::slots::ServiceSettings;
use outlive_control::supervisor::Storage;

/// What all keepers of a job have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The job.
    pub job: JobName,
    /// Tells jobs apart on the wire.
    pub job_hash: u64,
    /// The slot of the coordinator.
    pub coordinator: NodeId,
    /// Where the launcher listens.
    pub launcher: SocketAddr,
    /// Where agents listen.
    pub bind: IpAddr,
    /// And at which ports.
    pub ports: Ports,
    /// `STORE/JOB`.
    pub job_dir: PathBuf,
    /// Where the level shared lies, if not there.
    pub object_store: Option<String>,
    /// Where the job's memory server is.
    pub memory_server: Option<String>,
    /// Variables that keepers and agents have besides those of this process.
    pub environment: Vec<(String, String)>,
    /// The key's file.
    pub key_file: PathBuf,
    /// The agents' sockets, with `{node}` in place of the number where a machine has several.
    pub sockets: PathBuf,
    /// Number of slots.
    pub nodes: u32,
    /// Bound of the staging memory of each node, in bytes.
    pub memory_bytes: u64,
    /// Encrypt bulk data.
    pub encrypt: bool,
    /// How the machine's sensors are read and judged.
    pub health: health::Settings,
    /// When work is done that need not be done at once, and the user's own.
    pub service: ServiceSettings,
    /// The program that has the subcommands `keeper` and `agent`.
    pub executable: PathBuf,
    /// What all keepers and agents inherit: [`store::Store::nodes_lock`].
    pub nodes_lock: Arc<OwnedFd>,
}

impl Common {
    /// The socket of a slot's agent.
    pub fn socket(&self, node: NodeId) -> PathBuf {
        let pattern = self.sockets.to_string_lossy();
        pattern.replace("{node}", &node.0.to_string()).into()
    }
}

#[derive(Debug)]
struct Keeper {
    epoch: u64,
    process: Process,
    /// SIGTERM was sent; SIGKILL follows then.
    kill_at: Option<Time>,
}

/// A node that is being killed: what is still alive of it.
#[derive(Debug)]
struct Fencing {
    epoch: u64,
    alive: Vec<Process>,
}

/// All keepers.
#[derive(Debug)]
pub struct Fleet {
    common: Common,
    keepers: BTreeMap<NodeId, Keeper>,
    fencing: BTreeMap<NodeId, Fencing>,
    /// When each rank's process began.
    met: BTreeMap<u32, u64>,
}

impl Fleet {
    /// A fleet without ships.
    pub const fn new(common: Common) -> Fleet {
        Fleet {
            common,
            keepers: BTreeMap::new(),
            fencing: BTreeMap::new(),
            met: BTreeMap::new(),
        }
    }

    /// Prepares a slot's directory and starts its keeper.
    ///
    /// # Errors
    /// Those of the file system and of starting a process.
    pub fn start(&mut self, node: NodeId, epoch: u64, dir: &Path, storage: Storage) -> Result<()> {
        store::prepare_node_dir(dir, storage == Storage::Empty)?;
        let spec = AgentSpec {
            job: self.common.job.clone(),
            job_hash: self.common.job_hash,
            node,
            coordinator: self.common.coordinator,
            epoch,
            launcher: self.common.launcher,
            bind: self.common.bind,
            ports: self.common.ports,
            key_file: self.common.key_file.clone(),
            node_dir: dir.to_owned(),
            job_dir: self.common.job_dir.clone(),
            object_store: self.common.object_store.clone(),
            memory_server: self.common.memory_server.clone(),
            socket: self.common.socket(node),
            memory_bytes: self.common.memory_bytes,
            encrypt: self.common.encrypt,
            health: self.common.health.clone(),
            service: self.common.service.clone(),
        };
        let title = spec.title();
        let spec = serde_json::to_string(&spec)
            .map_err(|error| Error::internal(format!("agent spec: {error}")))?;
        let mut command = Command::new(&self.common.executable);
        command
            .arg0(TITLE)
            .arg("keeper")
            .args(title)
            .envs(self.common.environment.iter().cloned())
            .env(SPEC_VARIABLE, spec)
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        crate::leftovers::inherit(&mut command, &self.common.nodes_lock);
        let process = process::spawn(command, Group::Session, true)?;
        let keeper = Keeper {
            epoch,
            process,
            kill_at: None,
        };
        self.keepers.insert(node, keeper);
        Ok(())
    }

    /// What all its keepers have in common.
    pub const fn common(&self) -> &Common {
        &self.common
    }

    /// The numbers of all living keepers: never to be taken for the command's.
    pub fn pids(&self) -> BTreeSet<u32> {
        self.keepers.values().map(|k| k.process.pid).collect()
    }

    /// The same, and the ranks that are known, which need not be below the launcher.
    pub fn processes(&self) -> (BTreeSet<u32>, Vec<u32>) {
        let same =
            |(pid, then): (&u32, &u64)| (process::started(*pid) == Some(*then)).then_some(*pid);
        (self.pids(), self.met.iter().filter_map(same).collect())
    }

    /// If this child was a keeper: its slot and epoch.
    pub fn ended(&mut self, pid: u32) -> Option<(NodeId, u64)> {
        let found = self.keepers.iter().find(|(_, k)| k.process.pid == pid);
        let (node, epoch) = found.map(|(node, keeper)| (*node, keeper.epoch))?;
        self.keepers.remove(&node);
        Some((node, epoch))
    }

    /// SIGKILL to the keeper and `pids`; [`Fleet::fenced`] tells when all are gone.
    pub fn fence(&mut self, node: NodeId, epoch: u64, pids: &[u32]) {
        let mut alive = self.kill(pids);
        if let Some(keeper) = self.keepers.get(&node) {
            process::signal(&keeper.process.fd, Signal::KILL);
            if let Some(fd) = process::open_pid(keeper.process.pid) {
                let pid = keeper.process.pid;
                alive.push(Process { pid, fd });
            }
        }
        self.fencing.insert(node, Fencing { epoch, alive });
    }

    /// Nodes whose processes have all ended since the last call.
    pub fn fenced(&mut self) -> Vec<(NodeId, u64)> {
        for fencing in self.fencing.values_mut() {
            fencing.alive.retain(|process| !process::has_ended(process));
        }
        let done = |(node, f): (&NodeId, &Fencing)| f.alive.is_empty().then_some((*node, f.epoch));
        let done: Vec<_> = self.fencing.iter().filter_map(done).collect();
        for (node, _) in &done {
            self.fencing.remove(node);
        }
        done
    }

    /// True while [`Fleet::fenced`] and [`Fleet::press`] should be called often.
    pub fn is_busy(&self) -> bool {
        !self.fencing.is_empty() || self.keepers.values().any(|k| k.kill_at.is_some())
    }

    /// An injection: the node goes, with its storage.
    pub fn kill_node(&self, node: NodeId, pids: &[u32], dir: &Path) {
        self.kill_keeper(node);
        drop(self.kill(pids));
        if let Err(error) = store::wipe(dir) {
            tracing::warn!(%error, "cannot wipe a killed node's storage");
        }
    }

    /// An injection: the keeper goes.
    pub fn kill_keeper(&self, node: NodeId) {
        if let Some(keeper) = self.keepers.get(&node) {
            process::signal(&keeper.process.fd, Signal::KILL);
        }
    }

    /// SIGSTOP or SIGCONT to processes, and to a slot's keeper.
    pub fn freeze(&self, keeper: Option<NodeId>, pids: &[u32], stop: bool) {
        let with = if stop { Signal::STOP } else { Signal::CONT };
        if let Some(keeper) = keeper.and_then(|node| self.keepers.get(&node)) {
            process::signal(&keeper.process.fd, with);
        }
        for pid in pids {
            if let Some(fd) = self.open(*pid) {
                process::signal(&fd, with);
            }
        }
    }

    /// SIGTERM to a keeper, SIGKILL if it is still there at `kill_at`.
    pub fn stop(&mut self, node: NodeId, kill_at: Time) {
        if let Some(keeper) = self.keepers.get_mut(&node) {
            process::signal(&keeper.process.fd, Signal::TERM);
            // A frozen keeper takes SIGTERM only when it goes on.
            process::signal(&keeper.process.fd, Signal::CONT);
            keeper.kill_at = Some(kill_at);
        }
    }

    /// Kills keepers whose time to end in order is over.
    pub fn press(&mut self, now: Time) {
        for keeper in self.keepers.values_mut() {
            if keeper.kill_at.is_some_and(|at| now >= at) {
                process::signal(&keeper.process.fd, Signal::KILL);
                keeper.kill_at = None;
            }
        }
    }

    /// A rank is this process: from now on its number means this one only.
    pub fn meet(&mut self, pid: u32) {
        if let Some(started) = process::started(pid) {
            self.met.insert(pid, started);
        }
    }

    /// The command is started anew: its ranks will be others.
    pub fn part(&mut self) {
        self.met.clear();
    }

    fn open(&self, pid: u32) -> Option<OwnedFd> {
        process::open_same(pid, self.met.get(&pid).copied())
    }

    /// SIGKILL to processes of this job; those that were alive.
    pub fn kill(&self, pids: &[u32]) -> Vec<Process> {
        let open = |pid: &u32| Some((*pid, self.open(*pid)?));
        let killed = pids.iter().filter_map(open).map(|(pid, fd)| {
            process::signal(&fd, Signal::KILL);
            Process { pid, fd }
        });
        killed.collect()
    }

    /// Removes the sockets of all slots and their directory: a job of another name would
    /// not find them to use them again.
    pub fn remove_sockets(&self) {
        for node in (0..self.common.nodes).map(NodeId) {
            let _ = std::fs::remove_file(self.common.socket(node));
        }
        let dir = self.common.sockets.parent().unwrap_or(Path::new("/"));
        if let Err(error) = std::fs::remove_dir(dir) {
            tracing::info!(%error, "the directory of the sockets stays");
        }
    }

    /// SIGKILL to every keeper. Their agents end with them.
    pub fn kill_all(&self) {
        for keeper in self.keepers.values() {
            process::signal(&keeper.process.fd, Signal::KILL);
        }
    }
}
