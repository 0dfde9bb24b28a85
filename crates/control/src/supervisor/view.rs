//! What the supervisor knows at this moment, for people who watch a job.

use std::collections::BTreeMap;

use outlive_base::{Incarnation, Level, NodeId, Time, Version, count};
use serde::{Deserialize, Serialize};

use super::{CommandState, NodeSlot, NodeSlotState, Phase, Supervisor};

/// Nodes that are named one by one in a sentence.
const NAMED_MAX: usize = 6;

/// What the job is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// What is old is being ended, and nodes are being started.
    Assembling,
    /// The newest version is looked for and rebuilt.
    Opening,
    /// The command was started; not all ranks have joined.
    Starting,
    /// All ranks compute.
    Running,
    /// The command has ended; flushes are being finished.
    Finishing,
    /// Nodes are being ended.
    Stopping,
    /// Nothing more happens.
    Ended,
}

/// How a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Its keeper was started; its agent has not spoken yet.
    Starting,
    /// Its agent speaks.
    Up,
    /// Its agent is silent.
    Silent,
    /// It is lost; what is left of it is being ended.
    Lost,
    /// It was ended in order.
    Ended,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its slot.
    pub node: NodeId,
    /// Which holder of the slot.
    pub epoch: u64,
    /// How it is.
    pub state: NodeState,
    /// Ranks that have joined there and not left.
    pub ranks: u32,
    /// How long ago it was heard.
    pub heard_ago: Time,
}

/// The whole.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// What the job is doing.
    pub stage: Stage,
    /// What it waits for, in words; `None`: for nothing.
    pub waits_for: Option<String>,
    /// The incarnation that is open or being opened; 0: none yet.
    pub incarnation: Incarnation,
    /// Spares that are left.
    pub spares_left: u32,
    /// Ranks of the job, once known.
    pub ranks: Option<u32>,
    /// Those that have joined this incarnation and not left.
    pub joined: u32,
    /// The newest version that a rank has offered.
    pub offered: Option<Version>,
    /// The newest version that is stable at each level in this incarnation.
    pub stable: BTreeMap<Level, Version>,
    /// All nodes, ascending.
    pub nodes: Vec<NodeView>,
}

impl Supervisor {
    /// What is known at `now`.
    pub fn view(&self, now: Time) -> View {
        let nodes = self.slots.iter().map(|(node, slot)| NodeView {
            node: *node,
            epoch: slot.epoch,
            state: slot.seen(),
            ranks: slot.ranks.len() as u32,
            heard_ago: now.since(slot.last_heard),
        });
        let nodes: Vec<NodeView> = nodes.collect();
        View {
            stage: self.stage(),
            waits_for: self.waits_for(now),
            incarnation: Incarnation(self.last_incarnation),
            spares_left: self.spares_left,
            ranks: self.ranks_total,
            joined: nodes.iter().map(|node| node.ranks).sum(),
            offered: self.newest_offered,
            stable: self.stable_here.newest(),
            nodes,
        }
    }

    const fn stage(&self) -> Stage {
        match self.phase {
            Phase::Assembling { .. } => Stage::Assembling,
            Phase::Opening { .. } => Stage::Opening,
            Phase::Running { complete: true, .. } => Stage::Running,
            Phase::Running { .. } => Stage::Starting,
            Phase::Finishing { .. } => Stage::Finishing,
            Phase::Stopping { .. } => Stage::Stopping,
            Phase::Done => Stage::Ended,
        }
    }

    fn waits_for(&self, now: Time) -> Option<String> {
        let those = |wanted: &dyn Fn(&NodeSlot) -> bool| {
            let found = self.slots.iter().filter(|(_, slot)| wanted(slot));
            found.map(|(node, _)| *node).collect::<Vec<_>>()
        };
        let ending = |slot: &NodeSlot| matches!(slot.state, NodeSlotState::Fencing { .. });
        match &self.phase {
            Phase::Assembling { .. } => {
                if self.command != CommandState::None {
                    return Some("the end of all processes of the command".to_owned());
                }
                let (lost, starting) = (those(&ending), those(&|slot| !slot.is_up()));
                let left_ms = self.not_before.since(now).as_ms();
                match (&lost[..], &starting[..]) {
                    ([], []) if left_ms > 0.0 => {
                        let left = crate::units::show_ms(left_ms);
                        Some(format!("the delay before the next start: {left}"))
                    }
                    ([], []) => None,
                    ([], starting) => Some(format!("the agents of {}", named(starting))),
                    (lost, _) => Some(format!("the end of what is left of {}", named(lost))),
                }
            }
            Phase::Opening { opened, .. } => {
                let waiting = those(&|slot| !slot.ready);
                match opened {
                    None => Some("the choice of the version to go on from".to_owned()),
                    Some(_) if waiting.is_empty() => None,
                    Some(_) => Some(format!("the version on {}", named(&waiting))),
                }
            }
            Phase::Running {
                complete: false, ..
            } => Some(self.missing_ranks()),
            Phase::Running { .. } => {
                let silent = those(&|slot| slot.seen() == NodeState::Silent);
                let silent = Some(silent).filter(|silent| !silent.is_empty());
                let silent = silent.map(|silent| format!("a word from {}", named(&silent)));
                silent.or_else(|| self.no_progress())
            }
            Phase::Finishing { .. } => {
                let waiting = those(&|slot| slot.is_up() && !slot.finished);
                let waiting = Some(waiting).filter(|waiting| !waiting.is_empty());
                waiting.map(|waiting| format!("the last writes of {}", named(&waiting)))
            }
            Phase::Stopping { .. } => Some("the end of the agents".to_owned()),
            Phase::Done => None,
        }
    }

    /// What was told of a job that stands still.
    fn no_progress(&self) -> Option<String> {
        if !self.judge.is_told() {
            return None;
        }
        let still = crate::units::show_ms(self.judge.still().as_ms());
        let last = self.report.hangs.iter().rfind(|entry| !entry.joining);
        let file = last.map_or("", |entry| &*entry.file);
        let name = file.rsplit('/').next().unwrap_or_default();
        Some(format!("progress: none for {still}, see {name}"))
    }

    fn missing_ranks(&self) -> String {
        let joined: usize = self.slots.values().map(|slot| slot.ranks.len()).sum();
        let here = joined + self.left.len();
        let mut words = match self.ranks_total {
            Some(ranks) => {
                let missing = (ranks as usize).saturating_sub(here);
                format!("{} of {ranks} to join", count(missing as u64, "rank"))
            }
            None => "the first rank to join".to_owned(),
        };
        if let Some(long) = self.awaited_long() {
            words += &format!(": {long}");
        }
        words
    }
}

impl NodeSlot {
    fn seen(&self) -> NodeState {
        match self.state {
            NodeSlotState::Starting { .. } => NodeState::Starting,
            NodeSlotState::Up if self.suspected.is_some() => NodeState::Silent,
            NodeSlotState::Up => NodeState::Up,
            NodeSlotState::Fencing { .. } => NodeState::Lost,
            NodeSlotState::Ended => NodeState::Ended,
        }
    }
}

/// `node 1`, `nodes 1, 2 and 3`, `nodes 1, 2, 3, 4, 5, 6 and 7 more`.
fn named(nodes: &[NodeId]) -> String {
    let shown = nodes.len().min(NAMED_MAX);
    let mut words: Vec<String> = nodes[..shown].iter().map(|it| it.0.to_string()).collect();
    if nodes.len() > shown {
        words.push(format!("{} more", nodes.len() - shown));
    }
    match words.pop() {
        Some(last) if words.is_empty() => format!("node {last}"),
        Some(last) => format!("nodes {} and {last}", words.join(", ")),
        None => "no node".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_in_words() {
        let nodes: Vec<NodeId> = (0..9).map(NodeId).collect();
        assert_eq!(named(&nodes[..1]), "node 0");
        assert_eq!(named(&nodes[..3]), "nodes 0, 1 and 2");
        assert_eq!(named(&nodes), "nodes 0, 1, 2, 3, 4, 5 and 3 more");
    }
}
