//! The state of a running job at one moment, schema `outlive.live/1`: what `outlive top` shows.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use outlive_base::{NodeId, Time, Version};
use outlive_control::health::NodeHealth;
use outlive_control::orders::NodeStatus;
use outlive_control::report::{Checkpoints, Report};
use outlive_control::slots::Offset;
use outlive_control::supervisor::{EPOCH_STEP, NodeState, NodeView, Stage, View};
use outlive_control::traffic::Traffic;
use outlive_control::transfers::TransferStatus;
use serde::{Deserialize, Serialize};

use super::lines::Header;
use crate::input;

/// The schema's name and number.
pub const SCHEMA: &str = "outlive.live/1";
/// Its file.
pub const FILE: &str = "live.json";
/// The largest such file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Rates are means over so long.
const WINDOW: Time = Time::from_secs(60);

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Live {
    /// [`SCHEMA`].
    pub schema: String,
    /// The job's name.
    pub job: String,
    /// When the run began, in UTC.
    pub began: String,
    /// The same in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Seconds since then.
    pub seconds: f64,
    /// What the job is doing.
    pub stage: Stage,
    /// What it waits for, in words.
    pub waits_for: Option<String>,
    /// The incarnation that is open or being opened.
    pub incarnation: u32,
    /// Starts of the command after the first.
    pub restarts: u32,
    /// Spares that are left.
    pub spares_left: u32,
    /// Ranks, once known.
    pub ranks: Option<u32>,
    /// Those that have joined and not left.
    pub joined: u32,
    /// The newest version that a rank has offered.
    pub offered: Option<Version>,
    /// The newest version that is stable at each level in this incarnation.
    pub stable: BTreeMap<String, Version>,
    /// Versions that all ranks captured, a minute.
    pub versions_per_minute: f64,
    /// Bytes captured, a second.
    pub bytes_per_second: f64,
    /// What the launcher has sent and received.
    #[serde(default)]
    pub traffic: Traffic,
    /// Of each node, ascending.
    pub nodes: Vec<LiveNode>,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LiveNode {
    /// Its slot.
    pub node: u32,
    /// The name of its machine, where nodes are machines.
    pub host: Option<String>,
    /// How it is.
    pub state: NodeState,
    /// Ranks that live there.
    pub ranks: u32,
    /// How long ago it was heard, in milliseconds.
    pub heard_ms: u64,
    /// Staging memory in use and its bound.
    pub memory_bytes: u64,
    /// The bound of it; 0: not known yet.
    pub memory_bytes_max: u64,
    /// Bytes in its storage.
    pub disk_bytes: u64,
    /// Bytes that are free there; 0 with no bytes used: not known yet.
    pub disk_free_bytes: u64,
    /// How often its agent was started anew.
    pub agent_restarts: u32,
    /// The newest version that a rank of it has offered.
    pub offered: Option<Version>,
    /// The newest version that it knows to be stable, by level.
    pub stable: BTreeMap<String, Version>,
    /// What its agent has sent and received.
    #[serde(default)]
    pub traffic: Traffic,
    /// How its machine is.
    #[serde(default)]
    pub health: NodeHealth,
    /// Its copies on their way to shared storage.
    #[serde(default)]
    pub transfers: Vec<TransferStatus>,
    /// How the coordinator's clock stands to this node's, where slots go by it.
    #[serde(default)]
    pub clock: Option<Offset>,
}

impl Live {
    pub(super) fn new(
        (header, traffic): (&Header, &Traffic),
        view: &View,
        report: &Report,
        statuses: &BTreeMap<NodeId, (u64, NodeStatus)>,
        hosts: &[String],
        rates: &Rates,
    ) -> Live {
        let node = |node: &NodeView| {
            let status = statuses.get(&node.node);
            // Of the present holder alone: one before it may have said other things.
            let held = node.epoch..node.epoch + EPOCH_STEP;
            let status = status.filter(|(epoch, _)| held.contains(epoch));
            let host = hosts.get(node.node.0 as usize).cloned();
            LiveNode::new(node, status.map(|(_, status)| status), host)
        };
        let (versions_per_minute, bytes_per_second) = rates.get();
        Live {
            schema: SCHEMA.to_owned(),
            job: header.job.clone(),
            began: header.began.clone(),
            began_unix_ms: header.began_unix_ms,
            seconds: report.seconds,
            stage: view.stage,
            waits_for: view.waits_for.clone(),
            incarnation: view.incarnation.0,
            restarts: report.restarts,
            spares_left: view.spares_left,
            ranks: view.ranks,
            joined: view.joined,
            offered: view.offered,
            stable: view
                .stable
                .iter()
                .map(|(level, version)| (level.name().to_owned(), *version))
                .collect(),
            versions_per_minute,
            bytes_per_second,
            traffic: *traffic,
            nodes: view.nodes.iter().map(node).collect(),
        }
    }

    /// Reads the state that the launcher of a job wrote last; `None` if there is none that this
    /// release understands.
    pub fn read(job_dir: &Path) -> Option<Live> {
        let path = super::directory(job_dir).join(FILE);
        let text = input::read(&path, FILE_BYTES_MAX).ok()?;
        let live: Live = serde_json::from_slice(&text).ok()?;
        (live.schema == SCHEMA).then_some(live)
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

impl LiveNode {
    fn new(view: &NodeView, status: Option<&NodeStatus>, host: Option<String>) -> LiveNode {
        let none = NodeStatus::default();
        let status = status.unwrap_or(&none);
        let stable = status.stable.iter();
        LiveNode {
            node: view.node.0,
            host,
            state: view.state,
            ranks: view.ranks,
            heard_ms: view.heard_ago.as_ms() as u64,
            memory_bytes: status.memory.0,
            memory_bytes_max: status.memory.1,
            disk_bytes: status.disk.0,
            disk_free_bytes: status.disk.1,
            agent_restarts: status.agent_restarts,
            offered: status.ranks.iter().filter_map(|(.., it)| *it).max(),
            stable: stable
                .map(|(level, version)| (level.name().to_owned(), *version))
                .collect(),
            traffic: status.traffic,
            health: NodeHealth::clone(&status.health),
            transfers: status.transfers.clone(),
            clock: status.clock,
        }
    }
}

/// Means over the last minute.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<(Time, u64, u64)>);

impl Rates {
    /// What the counters say now.
    pub fn note(&mut self, now: Time, counts: &Checkpoints) {
        self.0.push_back((now, counts.taken, counts.bytes));
        // The last one before the window stays: the window is whole then.
        while self
            .0
            .get(1)
            .is_some_and(|(at, ..)| now.since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
    }

    /// Versions a minute and bytes a second.
    fn get(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return (0.0, 0.0);
        };
        let seconds = last.0.since(first.0).as_secs();
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        (rate(first.1, last.1) * 60.0, rate(first.2, last.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_minute() {
        let mut rates = Rates::default();
        let counts = |taken, bytes| Checkpoints {
            taken,
            bytes,
            ..Checkpoints::default()
        };
        rates.note(Time::ZERO, &counts(0, 0));
        assert_eq!(rates.get(), (0.0, 0.0));
        for second in 1..=100 {
            rates.note(Time::from_secs(second), &counts(second, 1000 * second));
        }
        assert_eq!(rates.get(), (60.0, 1000.0));
        for second in 101..=160 {
            rates.note(Time::from_secs(second), &counts(100, 100_000));
        }
        assert_eq!(rates.get(), (0.0, 0.0));
        assert!(rates.0.len() <= 62);
    }
}
