//! Entry points of what comes from other processes, from the network, and from files that people
//! write: whatever the bytes, no panic; what passes is consistent; what is refused has a code, a
//! reason and a remedy.
#![allow(dead_code, clippy::unwrap_used)]

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use outlive_base::ipc::{self, Message, ToAgent, ToRank};
use outlive_base::{Error, JobName, Level, Result, Survives};
use outlive_control::node::shell::PeerMessage;
use outlive_control::orders::{Notice, Order, decode, encode};
use outlive_control::{inject, units};
use outlive_launch::hosts::address::Subnet;
use outlive_launch::hosts::hostfile::HostFile;
use serde::{Serialize, de::DeserializeOwned};

/// A refusal says what to do about it.
fn told<T>(result: Result<T>) -> Option<T> {
    let says = |error: &Error| !error.reason().is_empty() && !error.remedy().is_empty();
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(says(&error), "{error:?}");
            // Who reads it is a person at a terminal.
            assert!(error.to_string().len() < 100_000);
            None
        }
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What is understood is said again in the same way.
fn word<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Some(said) = told(decode::<T>(bytes)) else {
        return;
    };
    let again = encode(&said).unwrap();
    let once_more = decode::<T>(&again).unwrap();
    assert!(encode(&once_more).unwrap() == again);
}

/// Orders of the launcher, what agents tell it, and what they tell each other. The first byte says
/// which.
pub fn orders(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 3 {
        0 => word::<Order>(bytes),
        1 => word::<Notice>(bytes),
        _ => word::<PeerMessage>(bytes),
    }
}

/// Requests on streams between agents, and their answers.
pub fn streams(bytes: &[u8]) {
    outlive_copies::fuzz::streams(bytes);
}

fn datagram<M: Message>(bytes: &[u8]) {
    if let Ok((sequence, message)) = ipc::decode::<M>(bytes) {
        let again = ipc::encode(sequence, &message);
        let (same, once_more) = ipc::decode::<M>(&again).unwrap();
        assert_eq!(same, sequence);
        assert!(ipc::encode(sequence, &once_more) == again);
    }
}

/// What ranks and agents say to each other.
pub fn datagrams(bytes: &[u8]) {
    datagram::<ToAgent>(bytes);
    datagram::<ToRank>(bytes);
}

/// What comes over a connection before anybody is known.
pub fn strangers(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => outlive_network::fuzz::head(bytes),
        1 => outlive_network::fuzz::handshake_payloads(bytes),
        2 => outlive_network::fuzz::messages(bytes),
        _ => outlive_network::fuzz::stranger(bytes),
    }
}

/// A machine, and after a line of `###` a job on it.
pub fn machine(bytes: &[u8]) {
    use outlive_planner::machine::{job, machine};
    let text = text(bytes);
    let (first, second) = text.split_once("###\n").unwrap_or((&text, ""));
    if let Some(machine) = told(machine(first, "machine.toml")) {
        told(job(second, "job.toml", &machine));
    }
}

/// What Slurm prints of nodes, switches and past jobs, with `###` between, and a list of hosts.
pub fn slurm(bytes: &[u8]) {
    use outlive_planner::slurm::{Cluster, hosts};
    let text = text(bytes);
    let mut parts = text.split("###\n");
    let mut part = || parts.next().unwrap_or_default();
    let (nodes, switches, jobs) = (part(), part(), part());
    if let Err(why) = hosts(part().trim()) {
        assert!(!why.is_empty());
    }
    if let Some(mut cluster) = told(Cluster::nodes(nodes, "nodes.txt")) {
        told(cluster.topology(switches, "topology.conf"));
        told(cluster.accounting(jobs, "sacct.txt"));
        // What is written for people can be read.
        let toml = cluster.toml("machine");
        let read = outlive_planner::machine::machine(&toml, "machine.toml");
        assert!(read.is_ok(), "{read:?}\n{toml}");
    }
}

/// Task graphs in both forms, and what belongs to them. The first byte says which.
pub fn graphs(bytes: &[u8]) {
    use outlive_balance::{command, parse};
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => drop(told(command::graph("a.graph", bytes))),
        1 => drop(told(command::graph("a.mtx", bytes))),
        2 => drop(parse::partition(bytes, 6, 3)),
        _ => drop(parse::capacities(bytes, 4)),
    }
}

thread_local! {
    /// Files that a reader wants to open lie here.
    static PLACE: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

fn file(name: &str, bytes: &[u8]) -> (PathBuf, PathBuf) {
    let memory = Path::new("/dev/shm");
    let root = PLACE.with_borrow_mut(|place| {
        let made = || match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        place.get_or_insert_with(made).path().to_owned()
    });
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    (root, path)
}

/// A file of hosts.
pub fn hosts(bytes: &[u8]) {
    let (_, path) = file("hosts", bytes);
    told(HostFile::load(&path, "ssh -x"));
}

/// What is kept of a job in its directory.
pub fn job_file(bytes: &[u8]) {
    let (root, _) = file("job/job.json", bytes);
    let name = JobName::new("job").unwrap();
    told(outlive_launch::history::job_of(&root.join("job"), &name));
    let _ = outlive_launch::jobs::all(&root);
}

/// What is kept of runs.
pub fn runs(bytes: &[u8]) {
    let directory = outlive_launch::record::directory(Path::new("run"));
    for known in ["events.jsonl", "spans.jsonl", "live.json"] {
        let path = directory.join(known);
        file(path.to_str().unwrap(), bytes);
    }
    let (root, _) = file("run/other", &[]);
    if let Some(runs) = told(outlive_launch::record::read(&root.join("run"))) {
        assert!(runs.iter().all(|run| !run.seconds().is_nan()));
    }
}

/// Short words of the command line.
pub fn words(bytes: &[u8]) {
    let text = text(bytes);
    told(inject::parse(&text, 4));
    told(units::duration_ns("every", &text));
    told(units::size_bytes("memory", &text)).map(units::show_bytes);
    told(Subnet::parse(&text));
    told(JobName::new(text.clone()));
    told(text.parse::<Level>());
    told(text.parse::<Survives>());
    let planner = [
        outlive_planner::units::Seconds::parse(&text).err(),
        outlive_planner::units::Bytes::parse(&text).err(),
        outlive_planner::units::Bandwidth::parse(&text).err(),
    ];
    for (seen, remedy) in planner.into_iter().flatten() {
        assert!(!seen.is_empty() && !remedy.is_empty());
    }
}
