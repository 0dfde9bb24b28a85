//! Where the nodes of a job live: parts of this machine ([`crate::emulated`]) or machines of
//! their own ([`crate::hosts`]). The driver knows this face alone.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use outlive_base::{NodeId, Rank, Result, Time};
use outlive_control::ended::Ended;
use outlive_control::processes::Process;
use outlive_control::supervisor::{Input, Storage};

use crate::each::Way;
use crate::host_words::Heard;
use crate::watch::{Seen, Watcher};

/// What wakes the driver, beside agents.
#[derive(Debug)]
pub enum Happened {
    /// The kernel told it.
    Seen(Seen),
    /// A line to a host, by its number, brought it.
    Line(u64, Heard),
    /// What the command's processes do, by the number of the look.
    Looked(u32, Vec<Process>),
}

impl From<Seen> for Happened {
    fn from(seen: Seen) -> Happened {
        Happened::Seen(seen)
    }
}

/// The keepers of all slots, and processes that live beside them.
pub(crate) trait Nodes {
    /// Starts the keeper of a slot. `dir` is the slot's directory on its machine.
    ///
    /// # Errors
    /// Those for which another machine would be no help.
    fn start(&mut self, node: NodeId, epoch: u64, dir: &Path, storage: Storage) -> Result<()>;
    /// SIGKILL to a slot's keeper and these; [`Nodes::press`] tells when all are gone.
    fn fence(&mut self, node: NodeId, epoch: u64, pids: &[u32]);
    /// An injection: the node goes, with its storage.
    fn kill_node(&mut self, node: NodeId, pids: &[u32], dir: &Path);
    /// An injection: the keeper goes.
    fn kill_keeper(&mut self, node: NodeId);
    /// SIGKILL to processes of a slot.
    fn kill(&mut self, node: NodeId, pids: &[u32]);
    /// SIGSTOP or SIGCONT to processes of a slot, and to its keeper.
    fn freeze(&mut self, node: NodeId, keeper: bool, pids: &[u32], stop: bool);
    /// Ends a keeper in order, by SIGKILL after `grace`.
    fn stop(&mut self, node: NodeId, now: Time, grace: Time);
    /// A rank is this process of a slot: from now on its number means this one only, and
    /// its end is told. That end, if it has come already.
    fn watch(&mut self, node: NodeId, rank: Rank, pid: u32, watcher: &Watcher) -> Option<Input>;
    /// Begins to end what the command left elsewhere when it was killed.
    fn sweep(&mut self) {}
    /// True if that is done: the command may be started again.
    fn is_clear(&self) -> bool {
        true
    }
    /// The command is started anew: its ranks will be others.
    fn part(&mut self);
    /// A child of this process ended: what that means, `None` if it is none of ours.
    fn child_ended(&mut self, pid: u32, ended: Ended) -> Option<Vec<Input>>;
    /// Something came over a line.
    fn heard(&mut self, line: u64, heard: Heard) -> Vec<Input>;
    /// Goes on with what takes several looks.
    fn press(&mut self, now: Time) -> Vec<Input>;
    /// True while [`Nodes::press`] should be called often.
    fn is_busy(&self) -> bool;
    /// Children of this process that are none of the command's.
    fn pids(&self) -> BTreeSet<u32>;
    /// The ranks that are known to live on this machine.
    fn ranks_here(&self) -> Vec<u32>;
    /// Variables by which the command finds agents and machines, as they are now.
    ///
    /// # Errors
    /// Those of writing the files that they name.
    fn environment(&mut self) -> Result<Vec<(OsString, OsString)>>;
    /// How a command that is started on each node comes to it, in the order of the slots.
    fn ways(&self) -> Vec<Way>;
    /// The name of each slot's host, where they have names.
    fn hosts(&self) -> Vec<String> {
        Vec::new()
    }
    /// What fails as a whole with each slot's host, in the order of the slots, as it was when the
    /// run began; empty where nothing is known.
    fn domains(&self) -> Vec<Option<String>> {
        Vec::new()
    }
    /// Those mean nothing in this run.
    fn forget_domains(&mut self) {}
    /// What is to be said of a slot whose host now is of another domain; each host once.
    fn astray(&mut self, _node: NodeId) -> Option<String> {
        None
    }
    /// Kills every keeper, and removes what ranks use to find them.
    fn end(&mut self);
}
