//! What is asked of a collective and what is told of it, whichever machine carries it out.

use outlive_base::machine::{Body, Peer};
use serde::{Deserialize, Serialize};

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum CollectiveKind {
    /// The root's body to all.
    Bcast,
    /// All operands combined at the root.
    Reduce,
    /// All operands combined, the result to all.
    Allreduce,
    /// Nobody leaves before everyone alive has entered.
    Barrier,
    /// Like [`CollectiveKind::Reduce`]; the operator appends.
    Gather,
    /// Like [`CollectiveKind::Allreduce`]; the operator appends.
    Allgather,
    /// Like [`CollectiveKind::Allreduce`]: the same value *and* the same list of the absent at
    /// every process that lives; see [`crate::agreement`].
    Agree,
}

/// What distinguishes a kind: all that machines, drivers and checkers ask of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Which it is.
    pub kind: CollectiveKind,
    /// Contributions go up the tree.
    pub up: bool,
    /// A result comes down the tree.
    pub down: bool,
    /// The same with the result everywhere.
    pub to_all: CollectiveKind,
}

const fn row(kind: CollectiveKind, up: bool, down: bool, to_all: CollectiveKind) -> Row {
    Row {
        kind,
        up,
        down,
        to_all,
    }
}

/// A row a kind, in the order of their numbers on the wire.
pub const ROWS: [Row; 7] = [
    row(CollectiveKind::Bcast, false, true, CollectiveKind::Bcast),
    row(
        CollectiveKind::Reduce,
        true,
        false,
        CollectiveKind::Allreduce,
    ),
    row(
        CollectiveKind::Allreduce,
        true,
        true,
        CollectiveKind::Allreduce,
    ),
    row(CollectiveKind::Barrier, true, true, CollectiveKind::Barrier),
    row(
        CollectiveKind::Gather,
        true,
        false,
        CollectiveKind::Allgather,
    ),
    row(
        CollectiveKind::Allgather,
        true,
        true,
        CollectiveKind::Allgather,
    ),
    row(CollectiveKind::Agree, true, true, CollectiveKind::Agree),
];

impl CollectiveKind {
    /// The kind of this number on the wire.
    pub(crate) fn of(number: u8) -> Option<CollectiveKind> {
        ROWS.get(usize::from(number)).map(|row| row.kind)
    }

    /// What distinguishes it.
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
    /// True if contributions go up the tree.
    pub const fn up(self) -> bool {
        self.row().up
    }
    /// True if nobody ends it before everyone who is not bypassed has entered it.
    pub const fn synchronises(self) -> bool {
        self.up() && self.down()
    }
    /// True if a result comes down the tree.
    pub const fn down(self) -> bool {
        self.row().down
    }
}

/// One call of a collective. The n-th call of every process on a communicator must be
/// the same; the first has sequence number 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Which collective.
    pub kind: CollectiveKind,
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

/// Nothing survives a crash: fail-stop, a process that comes back is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {}

#[cfg(test)]
mod tests {
    use super::{CollectiveKind, ROWS};

    #[test]
    fn every_kind_finds_its_row_and_its_number() {
        for (number, row) in ROWS.iter().enumerate() {
            assert_eq!(row.kind as usize, number);
            assert_eq!(CollectiveKind::of(number as u8), Some(row.kind));
            assert_eq!(row.kind.row(), row);
            assert!(row.to_all.down() && row.to_all.up() == row.up);
        }
        assert_eq!(CollectiveKind::of(ROWS.len() as u8), None);
    }
}
