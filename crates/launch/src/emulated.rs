//! Nodes that are parts of this machine.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use outlive_base::{NodeId, Rank, Result, Time};
use outlive_control::ended::Ended;
use outlive_control::supervisor::{Input, Storage};

use crate::each::Way;
use crate::fleet::Fleet;
use crate::host_words::Heard;
use crate::nodes::Nodes;
use crate::watch::Watcher;

/// The keepers of all slots as children of this process.
#[derive(Debug)]
pub(crate) struct Emulated(pub Fleet);

impl Nodes for Emulated {
    fn start(&mut self, node: NodeId, epoch: u64, dir: &Path, storage: Storage) -> Result<()> {
        self.0.start(node, epoch, dir, storage)
    }

    fn fence(&mut self, node: NodeId, epoch: u64, pids: &[u32]) {
        self.0.fence(node, epoch, pids);
    }

    fn kill_node(&mut self, node: NodeId, pids: &[u32], dir: &Path) {
        self.0.kill_node(node, pids, dir);
    }

    fn kill_keeper(&mut self, node: NodeId) {
        self.0.kill_keeper(node);
    }

    fn kill(&mut self, _node: NodeId, pids: &[u32]) {
        drop(self.0.kill(pids));
    }

    fn freeze(&mut self, node: NodeId, keeper: bool, pids: &[u32], stop: bool) {
        self.0.freeze(keeper.then_some(node), pids, stop);
    }

    fn stop(&mut self, node: NodeId, now: Time, grace: Time) {
        self.0.stop(node, now + grace);
    }

    fn watch(&mut self, _node: NodeId, rank: Rank, pid: u32, watcher: &Watcher) -> Option<Input> {
        self.0.meet(pid);
        let ended = None;
        (!watcher.add(rank, pid)).then_some(Input::RankGone { rank, pid, ended })
    }

    fn part(&mut self) {
        self.0.part();
    }

    fn child_ended(&mut self, pid: u32, ended: Ended) -> Option<Vec<Input>> {
        let (node, epoch) = self.0.ended(pid)?;
        Some(vec![Input::KeeperEnded { node, epoch, ended }])
    }

    fn heard(&mut self, _line: u64, _heard: Heard) -> Vec<Input> {
        Vec::new()
    }

    fn press(&mut self, now: Time) -> Vec<Input> {
        self.0.press(now);
        let gone = |(node, epoch)| Input::Fenced {
            node,
            epoch,
            complete: true,
        };
        self.0.fenced().into_iter().map(gone).collect()
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn pids(&self) -> BTreeSet<u32> {
        self.0.pids()
    }

    fn ranks_here(&self) -> Vec<u32> {
        self.0.processes().1
    }

    fn environment(&mut self) -> Result<Vec<(OsString, OsString)>> {
        let sockets = self.0.common().sockets.clone();
        Ok(vec![("OUTLIVE_AGENT".into(), sockets.into())])
    }

    fn ways(&self) -> Vec<Way> {
        let nodes = 0..self.0.common().nodes;
        nodes
            .map(|node| Way::here(NodeId(node).to_string()))
            .collect()
    }

    fn end(&mut self) {
        self.0.kill_all();
        self.0.remove_sockets();
    }
}
