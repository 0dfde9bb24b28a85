//! What goes in and out of the fault-tolerant collectives.

use outlive_base::Time;
use outlive_base::machine::{Body, Peer};
use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// What all instances of one communicator share.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tree, planned once.
    pub plan: Plan,
    /// Silence after which a process is bypassed: its contribution is left out
    /// unless the processes below it still bring theirs. Half of it is the time
    /// after which a silent process is asked.
    pub timeout: Time,
    /// Added to `timeout` for each level of the tree below the process that waits.
    pub timeout_per_level: Time,
    /// Time since the start of a call before which nobody takes the place of a root
    /// that is silent and not known to be dead. At least `timeout`.
    pub patience: Time,
    /// Time since the start of a call for which a process that answers and has not
    /// yet entered the call is waited for.
    pub late: Time,
    /// Time since the start of a call after which it fails (P5).
    pub bound: Time,
    /// Ended collectives whose results are kept for those who come late; at least 2.
    ///
    /// Bcast, Reduce and Gather do not wait for everyone: a process may be far ahead of
    /// others. The layer above puts a Barrier after at most `retained / 2` of these in a
    /// row ([`Kind::synchronises`]), else orphans may find that what they need is gone.
    pub retained: u32,
    /// How far a sender may be ahead of this process, in collectives, and how many may
    /// be in flight here; what is beyond is dropped or refused.
    pub ahead: u32,
}

impl Config {
    /// Defaults: 2 s (that of ULFM, and of the published figures), 1 ms a level, 4 s
    /// before a root is replaced, 64 results retained.
    pub fn new(plan: Plan) -> Config {
        Config {
            plan,
            timeout: Time::from_secs(2),
            timeout_per_level: Time::from_ms(1),
            patience: Time::from_secs(4),
            late: Time::from_secs(60),
            bound: Time::from_secs(600),
            retained: 64,
            ahead: 1024,
        }
    }
}

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// The root's body to all.
    Bcast,
    /// All operands combined at the root.
    Reduce,
    /// All operands combined, the result to all.
    Allreduce,
    /// Nobody leaves before everyone alive has entered.
    Barrier,
    /// Like [`Kind::Reduce`]; the operator appends.
    Gather,
    /// Like [`Kind::Allreduce`]; the operator appends.
    Allgather,
    /// Like [`Kind::Allreduce`]: the same value *and* the same list of the absent at
    /// every process that lives; see [`crate::agreement`].
    Agree,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Bcast,
        Kind::Reduce,
        Kind::Allreduce,
        Kind::Barrier,
        Kind::Gather,
        Kind::Allgather,
        Kind::Agree,
    ];

    /// The kind of this number on the wire.
    pub(crate) fn of(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number)).copied()
    }

    /// True if contributions go up the tree.
    pub const fn up(self) -> bool {
        !matches!(self, Kind::Bcast)
    }
    /// True if nobody ends it before everyone who is not bypassed has entered it.
    pub const fn synchronises(self) -> bool {
        self.up() && self.down()
    }
    /// True if a result comes down the tree.
    pub const fn down(self) -> bool {
        !matches!(self, Kind::Reduce | Kind::Gather)
    }
}

/// One call of a collective. The n-th call of every process on a communicator must be
/// the same; the first has sequence number 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Which collective.
    pub kind: Kind,
    /// The root of Bcast, Reduce and Gather; 0 for the others.
    pub root: Peer,
    /// This process's operand; of Bcast the root's data. `None` only for Bcast
    /// elsewhere than at the root. Barrier has an empty body, which carries the list of
    /// the absent. The machine owns it from here on and says [`Release`] in the end.
    ///
    /// [`Release`]: outlive_base::machine::Output::Release
    pub value: Option<Body>,
    /// True if operands must be combined in the order of ranks (operators that do not
    /// commute, and the operator that appends).
    pub ordered: bool,
}

/// What the layer above asks or tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Starts the next collective.
    Start(Call),
    /// Plans a collective that will run many times, under a number of the caller's
    /// choice below [`PREPARED_MAX`]. `value` is not looked at.
    Prepare {
        /// The number.
        handle: u32,
        /// The call, as it will be repeated.
        call: Call,
    },
    /// Starts a planned collective as the next one.
    Run {
        /// The number given to [`Command::Prepare`].
        handle: u32,
        /// This process's operand.
        value: Option<Body>,
    },
    /// A process is known to be dead (closed connection, ULFM, the agent): it is not
    /// waited for any longer, in this and later collectives.
    Dead {
        /// The rank.
        peer: Peer,
    },
    /// A process that was called dead is there again.
    Returned {
        /// The rank.
        peer: Peer,
    },
}

/// Most persistent collectives of one communicator.
pub const PREPARED_MAX: u32 = 1024;

/// Why a collective ended without its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// `Config::bound` has passed.
    Bound,
    /// The root was in another call with this sequence number.
    Mismatch,
    /// This process came so late that the result is no longer retained.
    Expired,
    /// Too many collectives are in flight.
    Busy,
    /// The operator does not commute and the tree is not in order.
    Unordered,
    /// No such root, no such handle, or no operand.
    Argument,
    /// The operator was not carried out.
    Operator,
    /// More processes failed than were to be tolerated ([`crate::reduce`]).
    TooMany,
}

/// What the layer above is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The collective ended here. Said once for every call that did not fail.
    Done {
        /// Its sequence number.
        seq: u32,
        /// The result, with the list of the absent that was collected on it; it stays
        /// valid until its release. `None` where none is due (Reduce elsewhere than at
        /// the root), and if the root of a Bcast died before it gave its data away.
        value: Option<Body>,
        /// The rank that put the result together (of Bcast: the root).
        by: Peer,
    },
    /// The collective ended here without a result.
    Failed {
        /// Its sequence number.
        seq: u32,
        /// Why.
        why: Why,
    },
    /// `peer` did not contribute to `body`: put it on the list that travels with the
    /// body. [`Combine`] unites the lists of both bodies.
    ///
    /// [`Combine`]: outlive_base::machine::Output::Combine
    Absent {
        /// The body.
        body: Body,
        /// The rank.
        peer: Peer,
    },
    /// `peer` is silent and is bypassed. It may only be late.
    Silent {
        /// Sequence number of the collective in which it was waited for.
        seq: u32,
        /// The rank.
        peer: Peer,
    },
    /// `peer` is in another call with this sequence number.
    Mismatch {
        /// The sequence number.
        seq: u32,
        /// The rank.
        peer: Peer,
    },
    /// `peer` holds another result of this collective: one of the two was called dead
    /// while it lived. Both are told.
    Diverged {
        /// The sequence number.
        seq: u32,
        /// The rank.
        peer: Peer,
    },
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Verb {
    /// Here is what I and those below me contribute (the body; none in a Bcast whose
    /// data never came).
    Give,
    /// Give me what you have: the process between us is silent, or you are.
    Claim,
    /// Are you there? I wait for the result.
    Ask,
    /// I am in the call and have no answer yet.
    Wait,
    /// I am there, and not yet in the call.
    Idle,
    /// The result (the body; none if a Bcast's data is lost).
    Result,
    /// The result is no longer retained.
    Gone,
    /// I am in another call with this sequence number.
    Mismatch,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Msg {
    /// Sequence number of the collective on its communicator.
    pub seq: u32,
    /// Its root.
    pub root: Peer,
    /// [`Verb::Result`]: who put it together.
    pub by: Peer,
    /// Which collective.
    pub kind: Kind,
    /// What it says.
    pub verb: Verb,
}

impl Msg {
    /// Bytes on the wire.
    pub const BYTES: usize = 14;

    /// Little-endian: sequence number, root, by, kind, verb.
    pub fn encode(self) -> [u8; Msg::BYTES] {
        let mut bytes = [0; Msg::BYTES];
        bytes[0..4].copy_from_slice(&self.seq.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.by.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes[13] = self.verb as u8;
        bytes
    }

    /// The reverse of [`Msg::encode`]; `None` if a kind or verb is unknown.
    pub fn decode(bytes: [u8; Msg::BYTES]) -> Option<Msg> {
        const VERBS: [Verb; 8] = [
            Verb::Give,
            Verb::Claim,
            Verb::Ask,
            Verb::Wait,
            Verb::Idle,
            Verb::Result,
            Verb::Gone,
            Verb::Mismatch,
        ];
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Msg {
            seq: word(0),
            root: word(4),
            by: word(8),
            kind: Kind::of(bytes[12])?,
            verb: *VERBS.get(usize::from(bytes[13]))?,
        })
    }
}

/// Nothing survives a crash: fail-stop, a process that comes back is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {}
