//! What goes in and out of the detector.

use outlive_base::{NodeId, Time};
use serde::{Deserialize, Serialize};

/// What all instances share.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of nodes; peers are `0..nodes` and `NodeId::LAUNCHER.0`.
    pub nodes: u32,
    /// How many live nodes that follow on the ring a node watches.
    pub watch: u32,
    /// Interval of heartbeats.
    pub interval: Time,
    /// Silence after which a node is suspected.
    pub suspect_timeout: Time,
    /// Silence after which a node is dead, if a second witness agrees.
    pub dead_timeout: Time,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            nodes: 1,
            watch: 2,
            interval: Time::from_ms(100),
            suspect_timeout: Time::from_secs(1),
            dead_timeout: Time::from_secs(10),
        }
    }
}

/// What the driver tells the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// The node's connection was closed by its side, or its keeper's process
    /// ended: dead at once.
    Closed {
        /// The node.
        node: NodeId,
    },
    /// Another party (launcher, agreement) says that the node is dead.
    Lost {
        /// The node.
        node: NodeId,
    },
    /// A replacement has taken the slot, or the node was reached again.
    Joined {
        /// The node.
        node: NodeId,
    },
    /// Any byte of the node was received outside this machine's messages: as good
    /// as a heartbeat.
    Heard {
        /// The node.
        node: NodeId,
    },
}

/// What the machine tells the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A node is silent.
    Suspected {
        /// The node.
        node: NodeId,
        /// For how long.
        silent_for: Time,
    },
    /// A suspected or dead node was heard again.
    Cleared {
        /// The node.
        node: NodeId,
    },
    /// A node is dead. Said once until it joins or is heard again.
    Dead {
        /// The node.
        node: NodeId,
        /// Who else found it silent; `None` if its connection was closed.
        by_witness: Option<NodeId>,
    },
}

/// Nothing needs to survive a crash: an instance starts anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Msg {
    /// I am alive.
    Heartbeat,
    /// Are you alive? Answered with a heartbeat.
    Watch,
    /// I have not heard of this node for `dead_timeout`.
    Silent {
        /// The node.
        node: u32,
    },
}
