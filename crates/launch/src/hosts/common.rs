//! What the agents of all hosts have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use outlive_base::{JobName, NodeId, Ports, Result};
use outlive_control::orders::AgentSpec;

use super::call::Call;

/// What the nodes of a job on hosts have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub job: JobName,
    pub job_hash: u64,
    /// The slot of the coordinator.
    pub coordinator: NodeId,
    /// The same before this run, if that is known: whose storage the hosts may hold.
    pub known: Option<u64>,
    /// Where the launcher may be reached.
    pub launchers: Vec<SocketAddr>,
    pub job_dir: PathBuf,
    /// Where the level shared lies, if not there.
    pub object_store: Option<String>,
    /// Where the job's memory server is.
    pub memory_server: Option<String>,
    /// Variables with its credentials, which agents are started with.
    pub credentials: Vec<(String, String)>,
    /// Where its agents listen.
    pub ports: Ports,
    pub key_file: PathBuf,
    /// Bound of the staging memory of each node, in bytes; 0: half of what its host has.
    pub memory_bytes: u64,
    pub encrypt: bool,
    pub health: outlive_control::health::Settings,
    pub service: outlive_control::slots::ServiceSettings,
    /// The program on each host.
    pub executable: PathBuf,
    /// Names of the variables that ranks must have.
    pub passed: Vec<String>,
    /// Silence after which a host ends everything of the job.
    pub lease: Duration,
    /// The level shared is used.
    pub shared: bool,
}

impl Common {
    /// The key's file as it is sent, where nobody can read along.
    pub(super) fn key(&self, secret: bool) -> Result<Option<String>> {
        if !secret {
            return Ok(None);
        }
        let bytes = crate::input::read(&self.key_file, crate::input::TEXT_BYTES_MAX)?;
        Ok(Some(super::serve::to_hex(&bytes)))
    }

    /// What opens the object store, under the same condition. Slurm hands variables on by itself.
    pub(super) fn credentials_over(&self, secret: bool) -> Vec<(String, String)> {
        match secret {
            true => self.credentials.clone(),
            false => Vec::new(),
        }
    }

    /// What the agent of a call is told. Where it listens is found out on its host.
    pub(super) fn spec(&self, call: &Call, socket: PathBuf) -> AgentSpec {
        AgentSpec {
            job: self.job.clone(),
            job_hash: self.job_hash,
            node: call.node,
            coordinator: self.coordinator,
            epoch: call.epoch,
            launcher: self.launchers[0],
            bind: self.launchers[0].ip(),
            ports: self.ports,
            key_file: self.key_file.clone(),
            node_dir: call.dir.clone(),
            job_dir: self.job_dir.clone(),
            object_store: self.object_store.clone(),
            memory_server: self.memory_server.clone(),
            socket,
            memory_bytes: self.memory_bytes,
            encrypt: self.encrypt,
            health: self.health.clone(),
            service: self.service.clone(),
        }
    }
}
