//! What the machine of spanning trees is told, says and sends.

use outlive_base::machine::{Body, Peer};
use outlive_base::{Code, Entity, Error, Result, Time};

use super::super::tree::{PROCESSES_MAX, Ring};

/// The most trees: their sets are bits of a word.
pub const TREES_MAX: u32 = 32;
/// Broadcasts that the root holds back while another runs.
pub const QUEUE_MAX: usize = 1024;

/// A set of trees, one bit each.
pub type Trees = u32;

/// How a tree reaches those that its gossip missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// On each side of the ring until the nearest sender heard there, by those that the
    /// gossip reached. A tree in which no sender dies holds every live process then, and
    /// one in which a sender dies is hurt.
    Checked,
    /// On each side until so many senders and one more were heard: a hurt tree holds every
    /// live process too, below the dead, if at most so many die while it grows.
    FailureProof(u32),
}

/// What all processes know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub(super) ring: Ring,
    pub(super) trees: u32,
    pub(super) gossip: Time,
    pub(super) repair: Repair,
    pub(super) timeout: Time,
    /// How often the trees are grown at most; then broadcasts fail.
    pub generations_max: u32,
}

fn refuse<T>(option: &str, reason: impl Into<String>, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

impl Config {
    /// Generations unless [`Config::generations_max`] is changed.
    pub const GENERATIONS: u32 = 16;

    /// So many trees over a ring, grown by gossip for `gossip`; a neighbour that was asked
    /// and is silent for `timeout` is dead.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for no processes or more than 2^28, a root that is no
    /// rank, no trees or more than [`TREES_MAX`], a gossip above 2^40, or a time-out of 0.
    pub fn new(
        ring: Ring,
        trees: u32,
        gossip: Time,
        repair: Repair,
        timeout: Time,
    ) -> Result<Config> {
        if ring.processes == 0 || ring.processes > PROCESSES_MAX {
            let reason = format!("{} processes", ring.processes);
            return refuse("processes", reason, "give 1 to 2^28 processes");
        }
        if ring.root >= ring.processes {
            let reason = format!(
                "root {} of {}",
                ring.root,
                outlive_base::count(ring.processes, "process")
            );
            return refuse("root", reason, "give a rank below the number of processes");
        }
        if trees == 0 || trees > TREES_MAX {
            let reason = outlive_base::count(trees, "spanning tree");
            return refuse("dissemination", reason, "give spanning-trees:1 to 32");
        }
        if gossip.0 > super::super::cost::TIME_MAX {
            let reason = format!("{} is above 2^40", gossip.0);
            return refuse("gossip-time", reason, "choose a longer unit of time");
        }
        if timeout == Time::ZERO {
            let remedy = "give a time above four times that of a message";
            return refuse("timeout", "a time-out of 0", remedy);
        }
        Ok(Config {
            ring,
            trees,
            gossip,
            repair,
            timeout,
            generations_max: Config::GENERATIONS,
        })
    }

    /// The ring and its root.
    pub const fn ring(&self) -> Ring {
        self.ring
    }

    /// How many trees.
    pub const fn trees(&self) -> u32 {
        self.trees
    }

    /// The only tree in which this rank may have children; none for the root, which may
    /// in all.
    pub const fn inner_in(&self, rank: Peer) -> Option<u32> {
        match self.ring.place(rank).checked_sub(1) {
            None => None,
            Some(place) => Some(place % self.trees),
        }
    }

    /// How many may have children in a tree, the root left out.
    pub(super) const fn members(&self, tree: u32) -> u32 {
        (self.ring.processes + self.trees - 2 - tree) / self.trees
    }

    /// The place of the `i`-th that may have children in a tree.
    pub(super) const fn member(&self, tree: u32, i: u32) -> u32 {
        1 + tree + self.trees * i
    }

    /// Senders to be heard on a side of the ring.
    pub(super) const fn needed(&self) -> u32 {
        match self.repair {
            Repair::Checked => 1,
            Repair::FailureProof(failures) => failures.saturating_add(1),
        }
    }
}

/// How an offer of a tree came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By gossip.
    Gossip,
    /// By correction, to the left of the sender.
    Leftward,
    /// By correction, to the right of the sender.
    Rightward,
}

/// What travels, besides the payload. Every message names the generation of the trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Msg {
    /// "Be my child in this tree"; gossip ends at `until`.
    Offer {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
        /// How it came.
        way: Way,
        /// When the gossip of this generation ends.
        until: Time,
    },
    /// "I am", from one that may have children itself: sent before it offers the tree.
    Joined {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
    },
    /// "I am, and the tree below me is complete."
    Complete {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
        /// Trees with a dead inner process, as far as known below.
        hurt: Trees,
    },
    /// "I have another parent."
    Declined {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
    },
    /// A broadcast, with its payload.
    Data {
        /// Of the trees.
        generation: u32,
        /// Rises with each sending by the root.
        attempt: u32,
        /// The number of the broadcast, from 1.
        number: u32,
        /// Over which tree.
        tree: u32,
    },
    /// Everyone below the sender has the broadcast, or a tree is hurt.
    Acknowledge {
        /// Of the trees.
        generation: u32,
        /// Of the [`Msg::Data`].
        attempt: u32,
        /// Trees with a dead inner process, as far as known below.
        hurt: Trees,
    },
    /// "Are you alive?", to a silent child.
    Ask {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
        /// Of the [`Msg::Data`]; 0 while the trees grow.
        attempt: u32,
    },
    /// "Yes, I wait myself."
    Wait {
        /// Of the trees.
        generation: u32,
        /// Which.
        tree: u32,
    },
}

impl Msg {
    /// The generation of the trees.
    pub const fn generation(&self) -> u32 {
        match *self {
            Msg::Offer { generation, .. }
            | Msg::Joined { generation, .. }
            | Msg::Complete { generation, .. }
            | Msg::Declined { generation, .. }
            | Msg::Data { generation, .. }
            | Msg::Acknowledge { generation, .. }
            | Msg::Ask { generation, .. }
            | Msg::Wait { generation, .. } => generation,
        }
    }
}

/// What a process is asked or told. Processes other than the root ignore what only the
/// root can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// The root: grow the trees, before the first broadcast.
    Plan,
    /// The root: grow them anew, unless they grow just now. For a layer above that found
    /// them of no use; one after the other, broadcasts do so themselves.
    Again,
    /// Any: a process is known to be dead. It is waited for no longer, without a time-out.
    Dead {
        /// Who.
        peer: Peer,
    },
    /// Any: one that was called dead lives.
    Returned {
        /// Who.
        peer: Peer,
    },
    /// The root: broadcast; grows the trees first if there are none. Broadcasts go one after the
    /// other, those that wait are at most [`QUEUE_MAX`].
    Broadcast {
        /// The payload.
        body: Option<Body>,
    },
}

/// What a process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The root: the trees are grown.
    Planned {
        /// How often they were grown.
        generation: u32,
        /// Those that a failure has hurt meanwhile.
        hurt: Trees,
    },
    /// The process has a broadcast; each once, in order. At the root as it is sent first.
    Delivered {
        /// The number, from 1.
        number: u32,
        /// Over which tree.
        tree: u32,
        /// Earlier ones that this process never got: 0 unless it was taken for dead.
        missed: u32,
        /// The payload: the process may read it until it takes the next input.
        body: Option<Body>,
    },
    /// The root: every live process has the broadcast.
    Completed {
        /// The number.
        number: u32,
        /// Over which tree.
        tree: u32,
    },
    /// The root: a tree is hurt, what was not acknowledged goes over another.
    Switched {
        /// To which.
        to: u32,
    },
    /// The root: no whole tree is left, they are grown again.
    Exhausted,
    /// The root: given up, after [`Config::generations_max`] generations.
    Failed {
        /// The number.
        number: u32,
    },
    /// The root: not taken, because [`QUEUE_MAX`] wait.
    Refused,
}
