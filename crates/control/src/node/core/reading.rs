//! What services read, and the few ways in which they change something.

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::ToRank;
use outlive_base::{Incarnation, Level, NodeId, Rank, Time, Version};
use outlive_ledger::Part;
use outlive_protocols::commit::{Command, Commit};
use std::collections::BTreeMap;

use super::contents::Contents;
use super::{Core, Line, Ranks, Round};
use crate::node::Planted;
use crate::node::shell::{Ask, PeerMessage, Shell, With};
use crate::orders::{AgentSpec, JobConfig, NodeStatus};

impl<S: Shell> Core<S> {
    /// This node.
    pub(in crate::node) const fn me(&self) -> NodeId {
        self.me
    }
    /// True on the node that decides for all.
    pub(in crate::node) fn is_coordinator(&self) -> bool {
        self.me == self.spec.coordinator
    }
    /// The time of the input that is being taken.
    pub(in crate::node) const fn now(&self) -> Time {
        self.now
    }
    /// When this agent began, or the open incarnation was opened.
    pub(in crate::node) const fn began(&self) -> Time {
        self.open.since()
    }
    /// Who this agent is.
    pub(in crate::node) const fn spec(&self) -> &AgentSpec {
        &self.spec
    }
    /// The job, once it is known.
    pub(in crate::node) const fn config(&self) -> Option<&JobConfig> {
        self.config.as_ref()
    }
    /// True if this fault is planted.
    pub(in crate::node) fn has_planted(&self, fault: Planted) -> bool {
        self.is_planted(fault)
    }
    /// The open incarnation; 0: none.
    pub(in crate::node) const fn incarnation(&self) -> Incarnation {
        self.open.incarnation()
    }
    /// What the open incarnation restored.
    pub(in crate::node) const fn restored(&self) -> Option<(Incarnation, Version)> {
        self.open.restored()
    }
    /// True while an incarnation is being opened.
    pub(in crate::node) const fn is_opening(&self) -> bool {
        self.opening.is_some()
    }
    /// True once nothing is begun any more.
    pub(in crate::node) const fn is_finishing(&self) -> bool {
        self.finishing
    }
    /// True if the last record could be written at this node. What shared storage refuses ends its
    /// own level, and no other.
    pub(in crate::node) const fn is_writable(&self) -> bool {
        self.trouble.is_writable()
    }
    /// Tells this agent's clock from that of another one in its place.
    pub(in crate::node) const fn life(&self) -> u64 {
        self.spec.epoch << 32 | self.hello.pid as u64
    }
    /// True if a rank is connected.
    pub(in crate::node) fn has_ranks(&self) -> bool {
        self.ranks.iter().any(|entry| entry.link.is_some())
    }
    /// The ranks.
    pub(in crate::node) const fn ranks(&self) -> &Ranks<S> {
        &self.ranks
    }
    /// Where containers lie.
    pub(in crate::node) const fn contents(&self) -> &Contents {
        &self.contents
    }
    /// The versions on their way.
    pub(in crate::node) const fn rounds(&self) -> &BTreeMap<Version, Round> {
        &self.rounds
    }
    /// What is stable, and what may become so.
    pub(in crate::node) const fn line(&self) -> &Line {
        &self.line
    }
    /// The newest version that is stable at each level.
    pub(in crate::node) const fn stable(&self) -> &BTreeMap<Level, (Incarnation, Version)> {
        &self.line.newest
    }
    /// The commit machine, for its questions.
    pub(in crate::node) fn machine(&self) -> Option<&Commit> {
        self.commit.as_ref().map(|driver| driver.machine())
    }
    /// True if there is memory for what the ranks protect, for one slot at least.
    pub(in crate::node) const fn has_memory_for_all(&self) -> bool {
        self.supply.is_enough()
    }
    /// True if there is memory for one slot a rank only.
    pub(in crate::node) const fn has_one_slot(&self) -> bool {
        self.supply.is_one_slot()
    }

    /// True while a rank waits for what it has asked this agent.
    pub(in crate::node) const fn has_waiting(&self) -> bool {
        self.asks.is_anybody_waiting()
    }
    /// So many ranks wait for a version to be safe.
    pub(in crate::node) const fn note_waiting(&mut self, ranks: usize) {
        self.asks.note_waiting(ranks);
    }

    /// Says something to a peer.
    pub(in crate::node) fn send(&mut self, to: NodeId, message: &PeerMessage) {
        self.shell.send(to, message);
    }
    /// Begins something that takes time.
    pub(in crate::node) fn begin(&mut self, ask: Ask<S::Slab>) {
        self.shell.ask(ask);
    }
    /// Answers a rank, if it is connected.
    pub(in crate::node) fn answer(&mut self, rank: Rank, sequence: u32, message: ToRank) {
        if let Some(link) = self.ranks.get(rank).and_then(|entry| entry.link) {
            self.shell.answer(link, sequence, &message, With::Nothing);
        }
    }
    /// Cuts this node off from all others, or no more.
    pub(in crate::node) fn isolate(&mut self, on: bool) {
        self.shell.isolate(on);
    }
    /// As if a record had been found.
    #[cfg(test)]
    pub(in crate::node) fn learn(&mut self, record: &outlive_ledger::Record) {
        self.contents.learn(record);
    }
    /// Nothing is begun from now on: the job ends.
    pub(in crate::node) const fn begin_to_finish(&mut self) {
        self.finishing = true;
    }
    /// A level of a version is whole here: this is its part.
    pub(in crate::node) fn prepare_with(&mut self, version: Version, level: Level, part: Part) {
        self.contents
            .add_part(part.id.incarnation, version, level, part);
        self.span_written(version, level);
        self.prepared(version, level);
    }
    /// A version was removed.
    pub(in crate::node) fn forget(&mut self, source: Incarnation, version: Version) {
        self.contents.forget(source, version);
        self.line
            .stable
            .retain(|(s, v, _)| (*s, *v) != (source, version));
        self.line.levels.remove(&(source, version));
        self.command(Command::Forget { source, version });
    }
    /// A snapshot for `outlive status`; `disk` is what was found in node storage.
    pub(in crate::node) fn status(&self, disk: (u64, u64)) -> NodeStatus {
        let ranks = self.ranks.iter().filter_map(|entry| {
            let link = entry.link.as_ref()?;
            let called = entry
                .block()
                .and_then(|block| block.called().checked_sub(1));
            Some((entry.rank, link.pid, called.map(Version)))
        });
        NodeStatus {
            incarnation: self.open.incarnation().0,
            ranks: ranks.collect(),
            stable: self
                .line
                .newest
                .iter()
                .map(|(level, at)| (*level, at.1))
                .collect(),
            memory: (self.ranks.memory(), self.spec.memory_bytes),
            disk,
            agent_restarts: self.restarts.unwrap_or(0),
            warnings: self.shown.warnings(),
            traffic: self.shell.traffic(),
            scrub: Box::new(self.shown.scrub().clone()),
            transfers: self.shown.transfers(self.now),
            health: Box::new(self.health()),
            clock: self.shown.clock(),
        }
    }
}
