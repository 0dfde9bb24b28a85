//! Nodes by themselves, for tests.
#![allow(clippy::unwrap_used)] // helpers of tests

use ::core::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use outlive_base::control_block::Identity;
use outlive_base::ipc::ToRank;
use outlive_protocols::commit;

use outlive_base::{
    ContainerId, Incarnation, JobName, Level, NodeId, Ports, Rank, Result, Time, Version,
};
use outlive_ledger::Part;

use super::core::Core;
use super::plain::{PlainBlock, PlainSlab};
use super::shell::{Ask, CommandLine, Link, PeerMessage, Shell, With};
use super::{Hello, Node, Ranks, Start};
use crate::orders::{
    AgentSpec, Bounds, Fault, JobConfig, LevelSetting, Member, Notice, Opened, Policy,
};
use crate::refused::Refused;
use crate::scrubbing::ScrubSetting;
use crate::transfers::TransferSetting;

/// What tests look at.
impl Deref for Node<Still> {
    type Target = Core<Still>;
    fn deref(&self) -> &Core<Still> {
        &self.core
    }
}

impl DerefMut for Node<Still> {
    fn deref_mut(&mut self) -> &mut Core<Still> {
        &mut self.core
    }
}

/// A world in which nothing happens by itself.
#[derive(Default)]
pub struct Still {
    /// What was asked of it.
    pub asked: Vec<Ask<PlainSlab>>,
    /// What the launcher was told.
    pub told: Vec<Notice>,
    /// What ranks were answered, by what they had asked.
    pub answered: Vec<(u32, ToRank)>,
    /// What peers were told.
    pub sent: Vec<(NodeId, PeerMessage)>,
    /// How often it was cut off.
    pub isolated: u32,
}

impl Shell for Still {
    type Block = PlainBlock;
    type Slab = PlainSlab;

    fn tell(&mut self, notice: &Notice) {
        self.told.push(notice.clone());
    }
    fn send(&mut self, to: NodeId, message: &PeerMessage) {
        self.sent.push((to, message.clone()));
    }
    fn meet(&mut self, _: &Member, _: Option<&Member>) {}
    fn isolate(&mut self, on: bool) {
        self.isolated += u32::from(on);
    }
    fn answer(&mut self, _: Link, sequence: u32, message: &ToRank, _: With<'_, Still>) {
        self.answered.push((sequence, message.clone()));
    }
    fn is_live(&self, _: Link) -> bool {
        true
    }
    fn command_of(&self, _: u32) -> Option<CommandLine> {
        None
    }
    fn kill(&mut self, _: u32) {}
    fn make_block(&mut self, identity: Identity) -> Result<PlainBlock> {
        Ok(PlainBlock::new(identity))
    }
    fn leave_word(&mut self, _: &Opened) {}
    fn keep_slab(&mut self, _: Rank, _: usize, _: &Arc<PlainSlab>) {}
    fn ask(&mut self, ask: Ask<PlainSlab>) {
        self.asked.push(ask);
    }
    fn inject(&mut self, _: u32, _: Fault) {}
    fn point(&mut self, _: &'static str) -> Vec<(u32, Fault)> {
        Vec::new()
    }
}

/// The part of a node of one rank, which it keeps itself; no two are as long.
pub fn part_of((incarnation, version): (Incarnation, Version), node: u32) -> Part {
    let node = NodeId(node);
    Part {
        node,
        id: ContainerId {
            incarnation,
            version,
            node,
        },
        length: 4096 * (1 + u64::from(node.0)),
        digest: u128::from(node.0),
        holder: node,
        ranks: vec![Rank(node.0)].into(),
        parity: None,
    }
}

/// The agent of `node` in a job of as many nodes, open, of which no other lives.
pub fn alone(node: u32) -> Node<Still> {
    alone_at(node, Level::DISK)
}

/// The same with another level.
pub fn alone_at(node: u32, level: Level) -> Node<Still> {
    one_of(node + 1, node, level)
}

/// The same of so many nodes.
pub fn one_of(nodes: u32, node: u32, level: Level) -> Node<Still> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let spec = AgentSpec {
        job: JobName::new("passing").unwrap(),
        job_hash: 7,
        node: NodeId(node),
        coordinator: NodeId(0),
        epoch: 1,
        launcher: (here, 1).into(),
        bind: here,
        key_file: "key".into(),
        node_dir: "node".into(),
        job_dir: "job".into(),
        object_store: None,
        ports: Ports::ANY,
        memory_server: None,
        socket: "socket".into(),
        memory_bytes: 1 << 20,
        encrypt: false,
        health: Default::default(),
        service: Default::default(),
    };
    let mut agent = Node::new(Start {
        spec,
        shell: Still::default(),
        now: Time::ZERO,
        ranks: Ranks::default(),
        troubles: Vec::new(),
        found_records: Ok(Vec::new()),
        kept_records: Vec::new(),
        opened: None,
        shared_unseen: false,
        restarts: Some(0),
        disk_usage: (0, 0),
        hello: Hello {
            address: (here, 2).into(),
            pid: 1,
            keeper_pid: 2,
        },
        commit: commit::Config::default(),
        planted: None,
    });
    let member = |node| Member {
        node: NodeId(node),
        epoch: 1,
        address: (here, 1).into(),
        domain: node,
    };
    agent.core.configure_alone(JobConfig {
        revision: 0,
        members: (0..nodes).map(member).collect(),
        levels: vec![LevelSetting { level, every: 1 }],
        policy: Policy::default(),
        bounds: Bounds::default(),
        keep: 1,
        partners: 1,
        scrub: ScrubSetting::default(),
        transfer: TransferSetting::default(),
        refused: Refused::default(),
    });
    agent
}

/// A control block as both sides see it.
pub fn block_of(rank: Rank, incarnation: Incarnation) -> (PlainBlock, PlainBlock) {
    let block = PlainBlock::new(Identity {
        rank,
        ranks: 1,
        node: NodeId(0),
        incarnation,
    });
    let program = block.of_rank();
    (block, program)
}
