//! What goes in and out of the corrected collectives.

use outlive_base::machine::Peer;
use outlive_base::{Code, Entity, Error, Result, Time, count};

use crate::broadcast::spanning::Trees;
use crate::broadcast::tree::{Order, PROCESSES_MAX, Ring, Shape};
use crate::broadcast::{self, Correction, LogP, Start};
use crate::collective::CollectiveKind;
use crate::reduce;

/// How a result is first spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Down a tree of this shape, interleaved.
    Tree(Shape),
    /// By gossip until this virtual time, in the units of [`MODEL`].
    Gossip(Time),
}

/// Trees that each root keeps, instead of spreading and correcting every result; see
/// [`Config::keeping`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// How many, from f + 1 to 32. Each beyond f + 1 is for one more death until they are
    /// grown anew.
    pub trees: u32,
    /// How long gossip lasts while they grow, in the units of [`MODEL`].
    pub gossip: Time,
}

/// The LogP model of virtual time: a process's own clock goes on by `gap` with each of
/// its sends, and a message takes `delay` on top of its sender's clock. So gossip sends
/// as many messages as in the model, however slow the processes and the rail are.
pub const MODEL: LogP = LogP {
    latency: 2,
    overhead: 1,
    gap: 1,
};

/// What all instances of one communicator share.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many processes.
    pub processes: u32,
    /// How a result is spread before it is corrected.
    pub spread: Spread,
    /// f: how many may fail without more cost than their silence. With 0 correction is
    /// checked, else failure-proof.
    pub failures: u32,
    /// Between two corrections of a process, at least: the time in which a neighbour is
    /// expected to be heard. Shorter sends more than is needed, longer waits for it.
    pub pace: Time,
    /// Silence after which a process that is not known to be dead is left out; it is
    /// asked after half of it.
    pub timeout: Time,
    /// Time since the start of a call before which a root that is silent and not known
    /// to be dead is passed over.
    pub patience: Time,
    /// After so long without the result a process asks for it; then after twice as long,
    /// up to 64 times.
    pub ask: Time,
    /// Time since the start of a call for which a process that answers and has not yet
    /// entered it is waited for.
    pub late: Time,
    /// Time since the start of a call after which it fails (P5).
    pub bound: Time,
    /// Ended collectives whose results are kept for those who come late; at least 2. The
    /// layer above puts a Barrier after at most `retained / 2` that do not synchronise.
    pub retained: u32,
    /// How far a sender may be ahead of this process, in collectives.
    pub ahead: u32,
    /// Trees that are kept; `None`: every result is spread and corrected for itself.
    pub keep: Option<Keep>,
}

impl Config {
    /// Defaults as those of [`crate::ftco::Config::new`]; a pace of 50 µs, first asking
    /// after 1 s.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there are no processes, more than 2^28, or as
    /// [`crate::broadcast::tree::Tree::new`].
    pub fn new(processes: u32, spread: Spread, failures: u32) -> Result<Config> {
        if processes == 0 || processes > PROCESSES_MAX {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("processes".into()),
                count(processes, "process"),
                "give 1 to 2^28 processes",
            ));
        }
        let config = Config {
            processes,
            spread,
            failures: failures.min(processes - 1),
            pace: Time(50_000),
            timeout: Time::from_secs(2),
            patience: Time::from_secs(4),
            ask: Time::from_secs(1),
            late: Time::from_secs(60),
            bound: Time::from_secs(600),
            retained: 64,
            ahead: 1024,
            keep: None,
        };
        // For their checks: later ones differ in the root only.
        config.broadcast(0)?;
        config.reduce(0)?;
        Ok(config)
    }

    /// Results go down trees that are kept. [`Config::spread`] serves until they are grown,
    /// and when fewer than f + 1 of them are whole.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for fewer than f + 1 trees, more than 32, or a gossip
    /// longer than 2^31.
    pub fn keeping(mut self, keep: Keep) -> Result<Config> {
        let refuse = |option: &str, reason: String, remedy: &str| {
            let entity = Entity::Option(option.into());
            Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
        };
        if keep.trees <= self.failures {
            let reason = format!(
                "{} for {}",
                count(keep.trees, "tree"),
                count(self.failures, "failure")
            );
            return refuse("trees", reason, "give one more than failures, or more");
        }
        if keep.gossip.0 > 1 << 31 {
            let reason = format!("{} is above 2^31", keep.gossip.0);
            return refuse("gossip-time", reason, "give a shorter one");
        }
        self.keep = Some(keep);
        self.spanning(0)?;
        Ok(self)
    }

    /// The broadcast from this root.
    pub(super) fn broadcast(&self, root: Peer) -> Result<broadcast::Config> {
        let ring = Ring {
            processes: self.processes,
            root,
        };
        let correction = match self.failures {
            0 => Correction::Checked,
            f => Correction::FailureProof(f),
        };
        // There is no clock that all share: each corrects when its own part is sent.
        let start = Start::Overlapped;
        match self.spread {
            Spread::Tree(shape) => {
                let tree = (shape, Order::Interleaved);
                broadcast::Config::tree(ring, tree, false, &MODEL, correction, start)
            }
            Spread::Gossip(until) => broadcast::Config::gossip(ring, until, correction, start),
        }
    }

    /// The reduce to this root.
    pub(super) fn reduce(&self, root: Peer) -> Result<reduce::Config> {
        let shape = match self.spread {
            Spread::Tree(shape) => shape,
            Spread::Gossip(_) => Shape::Binomial,
        };
        let mut config = reduce::Config::new(shape, self.processes, root, self.failures, &MODEL)?;
        // Silence is this machine's to judge: it asks before.
        config.timeout = self.bound;
        Ok(config)
    }
}

/// The part of a collective that a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The broadcast of the result (the body), which arrives at this virtual time.
    Spread(broadcast::Msg, u32),
    /// The result (the body) down the trees of the root that are kept.
    Branch {
        /// Which were grown.
        generation: u32,
        /// Those that carry it, a bit each.
        trees: Trees,
    },
    /// Trees of the root grow: [`Msg::seq`] is their generation.
    Grow {
        /// What it says.
        what: Grow,
        /// In which tree.
        tree: u8,
        /// The virtual time at which it arrives.
        at: u32,
    },
    /// The reduce.
    Reduce(reduce::Msg),
    /// I wait for the result, or for your part. True: and the root is dead.
    Ask(bool),
    /// I have no result yet. True: I am in the call.
    Wait(bool),
    /// I put the result together, for the root is dead or more failed than f. Give me
    /// your operand, and take a result from nobody else.
    Claim,
    /// My operand (the body); of a Bcast: I have no data.
    Give,
    /// The result (the body). True: there is none, the data of a Bcast are lost.
    Result(bool),
    /// The result is no longer retained.
    Gone,
    /// I am in another call with this sequence number.
    Mismatch,
    /// I failed in this call: go on without me.
    Out,
}

/// What is said while trees grow ([`crate::broadcast::spanning::Msg`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grow {
    /// An offer by gossip, which ends at the virtual time [`Msg::by`].
    Gossip,
    /// An offer to the left; as above.
    Leftward,
    /// An offer to the right; as above.
    Rightward,
    /// I took your offer and may have children.
    Joined,
    /// I took it, and all below me did; [`Msg::by`]: hurt trees, a bit each.
    Complete,
    /// I have another parent.
    Declined,
    /// Are you alive?
    Ask,
    /// Yes.
    Wait,
    /// To the root: I have no room for your trees.
    Full,
}

const GROWS: [Grow; 9] = [
    Grow::Gossip,
    Grow::Leftward,
    Grow::Rightward,
    Grow::Joined,
    Grow::Complete,
    Grow::Declined,
    Grow::Ask,
    Grow::Wait,
    Grow::Full,
];

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msg {
    /// Sequence number of the collective on its communicator.
    pub seq: u32,
    /// Its root; of those without: who puts the result together unless it dies.
    pub root: Peer,
    /// [`Part::Result`]: who put it together. [`Part::Grow`]: see [`Grow`].
    pub by: Peer,
    /// Which collective.
    pub kind: CollectiveKind,
    /// What it says.
    pub part: Part,
}

impl Msg {
    /// Bytes on the wire.
    pub const BYTES: usize = 20;

    /// Little-endian: sequence number, root, by (of a branch: its trees), virtual time (of a
    /// branch: its generation) u32; kind, part, and what the part holds u8, twice.
    pub fn encode(self) -> [u8; Msg::BYTES] {
        let (mut by, mut more) = (self.by, 0);
        let (tag, detail, time) = match self.part {
            Part::Spread(broadcast::Msg::Spread, at) => (0, 0, at),
            Part::Spread(broadcast::Msg::Leftward, at) => (0, 1, at),
            Part::Spread(broadcast::Msg::Rightward, at) => (0, 2, at),
            Part::Spread(broadcast::Msg::Acknowledge, at) => (0, 3, at),
            Part::Reduce(msg) => (1 + msg.step as u8, u8::from(msg.clean), 0),
            Part::Ask(dead) => (3, u8::from(dead), 0),
            Part::Wait(entered) => (4, u8::from(entered), 0),
            Part::Claim => (5, 0, 0),
            Part::Give => (6, 0, 0),
            Part::Result(lost) => (7, u8::from(lost), 0),
            Part::Gone => (8, 0, 0),
            Part::Mismatch => (9, 0, 0),
            Part::Out => (10, 0, 0),
            Part::Branch { generation, trees } => {
                by = trees;
                (11, 0, generation)
            }
            Part::Grow { what, tree, at } => {
                more = tree;
                (12, what as u8, at)
            }
        };
        let mut bytes = [0; Msg::BYTES];
        bytes[0..4].copy_from_slice(&self.seq.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..12].copy_from_slice(&by.to_le_bytes());
        bytes[12..16].copy_from_slice(&time.to_le_bytes());
        bytes[16..20].copy_from_slice(&[self.kind as u8, tag, detail, more]);
        bytes
    }

    /// The reverse of [`Msg::encode`]; `None` if the bytes are no message.
    pub fn decode(bytes: [u8; Msg::BYTES]) -> Option<Msg> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (tag, detail, time) = (bytes[17], bytes[18], word(12));
        let flag = match detail {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let up = |step| {
            let clean = flag?;
            Some(Part::Reduce(reduce::Msg { step, clean }))
        };
        let part = match tag {
            0 => {
                const SPREADS: [broadcast::Msg; 4] = [
                    broadcast::Msg::Spread,
                    broadcast::Msg::Leftward,
                    broadcast::Msg::Rightward,
                    broadcast::Msg::Acknowledge,
                ];
                Part::Spread(*SPREADS.get(usize::from(detail))?, time)
            }
            1 => up(reduce::MsgStep::Exchange)?,
            2 => up(reduce::MsgStep::Up)?,
            3 => Part::Ask(flag?),
            4 => Part::Wait(flag?),
            5 => Part::Claim,
            6 => Part::Give,
            7 => Part::Result(flag?),
            8 => Part::Gone,
            9 => Part::Mismatch,
            10 => Part::Out,
            11 => Part::Branch {
                generation: time,
                trees: word(8),
            },
            12 => Part::Grow {
                what: *GROWS.get(usize::from(detail))?,
                tree: bytes[19],
                at: time,
            },
            _ => return None,
        };
        let branch = matches!(part, Part::Branch { .. });
        Some(Msg {
            seq: word(0),
            root: word(4),
            // It is the root who put together what goes down its trees.
            by: if branch { word(4) } else { word(8) },
            kind: CollectiveKind::of(bytes[16])?,
            part,
        })
    }
}
