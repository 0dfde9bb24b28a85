//! Which nodes a run has: parts of this machine, or hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crossbeam_channel::Sender;
use outlive_base::level::StoreKind;
use outlive_base::{Error, Ports, Result};

use crate::command;
use crate::emulated::Emulated;
use crate::fleet::{Common, Fleet};
use crate::hosts::{self, Hosts};
use crate::job_file::key_hash;
use crate::nodes::{Happened, Nodes};
use crate::run::{Machines, Run};
use crate::site;
use crate::store::{self, Store};

/// Names of the variables that a rank must have, wherever it is started.
fn passed(run: &Run) -> Vec<String> {
    let ours = command::VARIABLES.iter().map(ToString::to_string);
    let more = run.environment.iter().map(|(name, _)| name);
    let more = more.map(|name| name.to_string_lossy().into_owned());
    let set = |name: &&str| std::env::var_os(name).is_some();
    let users = [
        "OUTLIVE_CHECK_CAPTURES",
        "OUTLIVE_COPY_THREADS",
        "OUTLIVE_LOG",
    ]
    .into_iter()
    .filter(set);
    ours.chain(more).chain(users.map(str::to_owned)).collect()
}

/// What falls short here, if all nodes live on this machine.
pub(crate) fn short(run: &Run, store: &Store) -> Vec<Error> {
    let node_storage = run.node_storage.as_deref().unwrap_or(store.dir());
    let found = site::short(&site::Places {
        job_dir: Some(store.dir()),
        node_storage,
        memory_bytes: run.memory_bytes.saturating_mul(run.settings.nodes.into()),
    });
    let told = |check| site::told("this machine", check);
    found.iter().map(told).collect()
}

/// What decides where the nodes of a run live.
pub(crate) struct Lives<'a> {
    pub run: &'a Run,
    pub store: &'a Store,
    /// The job's number under its key of earlier runs.
    pub known: Option<u64>,
    pub job_hash: u64,
    /// Where the launcher listens.
    pub launcher: SocketAddr,
}

impl Lives<'_> {
    /// The nodes, none of them started yet; `events` is told what hosts say.
    ///
    /// # Errors
    /// Too few hosts, no address, a directory of sockets that is somebody else's.
    pub fn nodes(
        &self,
        machines: Option<Machines>,
        events: Sender<Happened>,
    ) -> Result<Box<dyn Nodes>> {
        Ok(match machines {
            None => Box::new(self.emulated()?),
            Some(machines) => Box::new(self.hosts(machines, events)?),
        })
    }

    fn emulated(&self) -> Result<Emulated> {
        let (run, store) = (self.run, self.store);
        let sockets = key_hash(run.settings.job.as_str(), &store.key_file())?;
        Ok(Emulated(Fleet::new(Common {
            job: run.settings.job.clone(),
            job_hash: self.job_hash,
            coordinator: run.settings.coordinator,
            launcher: self.launcher,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: Ports::ANY,
            job_dir: store.dir().to_owned(),
            object_store: store.job().object_store.clone(),
            memory_server: store.job().memory_server.clone(),
            environment: Vec::new(),
            key_file: store.key_file(),
            sockets: store::run_dir(sockets)?.join("agent-{node}.sock"),
            nodes: run.settings.nodes,
            memory_bytes: run.memory_bytes,
            encrypt: run.encrypt,
            health: run.health.clone(),
            service: run.service.clone(),
            executable: run.executable.clone(),
            nodes_lock: store.nodes_lock().clone(),
        })))
    }

    fn hosts(&self, machines: Machines, events: Sender<Happened>) -> Result<Hosts> {
        let (run, store) = (self.run, self.store);
        let set = &run.settings;
        let executable = match machines.executable {
            Some(path) => path,
            None => hosts::serve::program_path()?,
        };
        let port = self.launcher.port();
        let common = hosts::Common {
            job: set.job.clone(),
            job_hash: self.job_hash,
            coordinator: set.coordinator,
            known: self.known,
            launchers: hosts::address::of_this_machine(port, machines.network)?,
            job_dir: store.dir().to_owned(),
            object_store: store.job().object_store.clone(),
            memory_server: store.job().memory_server.clone(),
            credentials: crate::shared::credentials(store.job()),
            ports: machines.ports,
            key_file: store.key_file(),
            memory_bytes: run.memory_bytes,
            encrypt: run.encrypt,
            health: run.health.clone(),
            service: run.service.clone(),
            executable,
            passed: passed(run),
            lease: Duration::from_millis(set.bounds.silence_ms()),
            shared: set
                .levels
                .iter()
                .any(|set| set.level.store() == StoreKind::Shared),
        };
        let before = &store.job().hosts;
        Hosts::new(common, machines.source, set.nodes, before, events)
    }
}
