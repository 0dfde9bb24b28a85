//! Trees as pure functions: who are the children of a rank, and who its parent.
//!
//! Invariants: ranks are *virtual*, the root is 0 (see [`Ring`] for other roots);
//! every rank below the number of processes has exactly one parent, except the
//! root; the children of a rank are numbered from 0 in the order in which it sends
//! to them; nothing is stored for each process.
//!
//! Two numberings of the same kind of tree. *Interleaved* spreads every subtree over
//! the whole ring, so that a dead inner process leaves many short gaps (Küttler et
//! al., Corrected trees for reliable group communication, PPoPP 2019, section 3.2).
//! *In order* gives every subtree consecutive ranks, so that it leaves one long gap:
//! the numbering that MPI libraries use.
//!
//! | shape | children of r, interleaved |
//! |---|---|
//! | binomial | r + 2^l for l = bit length of r and above |
//! | k-ary | r + c k^level(r), c = 1..k |
//! | Lamé of order k | r + rts(start(r) + i + k - 1), i = 0, 1, ... |
//! | optimal | Karp et al., SPAA 1993: each process that has the message sends it on as soon as its port allows |
//!
//! Lamé and optimal trees are both *growing* trees (see `growth.rs`).

use outlive_base::{Code, Entity, Error, Result};

use super::cost::LogP;
use super::growth::{Growth, Last};

/// The most processes of a collective.
pub const PROCESSES_MAX: u32 = 1 << 28;

/// The kind of tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Every process that has the message sends in every round.
    Binomial,
    /// At most this many children each (at least 1; 1 is a chain).
    Kary(u32),
    /// Lamé tree of this order (at least 1; 1 is binomial): a process that has the
    /// message is ready to send again a round later, a new one only this many rounds
    /// later.
    Lame(u32),
    /// The greedy tree of Karp et al. for the given [`LogP`].
    Optimal,
}

/// How the ranks are laid on the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Subtrees spread over the ring.
    Interleaved,
    /// Subtrees of consecutive ranks.
    InOrder,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    Binomial,
    Kary(u32),
    Growth(Growth),
}

/// A tree over ranks `0..processes` with root 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    processes: u32,
    order: Order,
    kind: Form,
}

fn refuse(option: &str, reason: String, remedy: &str) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Option(option.into()),
        reason,
        remedy,
    )
}

impl Tree {
    /// A tree over `processes` ranks; `model` matters for [`Shape::Optimal`] only.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there are no processes or more than
    /// [`PROCESSES_MAX`], if an order or arity is 0, or if `model` is not valid.
    pub fn new(shape: Shape, order: Order, processes: u32, model: &LogP) -> Result<Tree> {
        if processes == 0 || processes > PROCESSES_MAX {
            return Err(refuse(
                "processes",
                format!("{processes} processes"),
                "give 1 to 2^28 processes",
            ));
        }
        let kind = match shape {
            Shape::Kary(0) | Shape::Lame(0) => {
                return Err(refuse(
                    "tree",
                    "arity or order 0: nobody would be reached".into(),
                    "give a k of 1 or more, for example kary:4 or lame:2",
                ));
            }
            Shape::Binomial => Form::Binomial,
            Shape::Kary(k) => Form::Kary(k),
            // Order k or more than there are processes is a star: the root serves all.
            Shape::Lame(k) => {
                let delay = u64::from(k.min(processes));
                Form::Growth(Growth::new(processes, delay, 1, Last::Lowest))
            }
            Shape::Optimal => {
                model.check()?;
                // Where messages take no time any tree is optimal; a unit keeps it one.
                let delay = model.delay().max(1);
                Form::Growth(Growth::new(processes, delay, model.gap, Last::Highest))
            }
        };
        Ok(Tree {
            processes,
            order,
            kind,
        })
    }

    /// The number of processes.
    pub const fn processes(&self) -> u32 {
        self.processes
    }

    /// The `i`-th child of `rank` (both from 0) in the order of sending.
    pub fn child(&self, rank: u32, i: u32) -> Option<u32> {
        let child = match (&self.kind, self.order) {
            (Form::Binomial, Order::Interleaved) => {
                let level = (u32::BITS - rank.leading_zeros()).checked_add(i)?;
                rank.checked_add(1u32.checked_shl(level).filter(|&bit| bit > 0)?)?
            }
            (Form::Binomial, Order::InOrder) => self.binomial_in_order(rank, i)?,
            (Form::Kary(1), _) if i == 0 => rank.checked_add(1)?,
            (Form::Kary(k), _) if i >= *k || *k == 1 => return None,
            (Form::Kary(k), Order::Interleaved) => {
                let (_, stride) = level(rank, *k);
                let far = u64::from(rank) + (u64::from(i) + 1) * stride;
                u32::try_from(far).ok()?
            }
            (Form::Kary(k), Order::InOrder) => {
                let size = kary_range(self.processes, *k, rank).size;
                let (skip, own) = share(size - 1, *k, i);
                if own == 0 {
                    return None;
                }
                rank + 1 + skip
            }
            (Form::Growth(growth), Order::Interleaved) => growth.child(rank, i)?,
            (Form::Growth(growth), Order::InOrder) => growth.child_in_order(rank, i)?,
        };
        (child < self.processes).then_some(child)
    }

    /// The children of `rank` in the order of sending.
    pub fn children(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        (0..).map_while(move |i| self.child(rank, i))
    }

    /// The parent of `rank`; none for the root.
    pub fn parent(&self, rank: u32) -> Option<u32> {
        if rank == 0 || rank >= self.processes {
            return None;
        }
        Some(match (&self.kind, self.order) {
            (Form::Binomial, Order::Interleaved) => rank & !(1 << rank.ilog2()),
            (Form::Binomial, Order::InOrder) => rank & (rank - 1),
            (Form::Kary(1), _) => rank - 1,
            (Form::Kary(k), Order::Interleaved) => {
                let (first, width) = level(rank, *k);
                let width = width / u64::from(*k);
                let above = u64::from(first) - width;
                // Below the number of processes, as it is below `rank`.
                (above + (u64::from(rank) - above) % width) as u32
            }
            (Form::Kary(k), Order::InOrder) => kary_range(self.processes, *k, rank).parent,
            (Form::Growth(growth), Order::Interleaved) => growth.parent(rank),
            (Form::Growth(growth), Order::InOrder) => growth.parent_in_order(rank),
        })
    }

    /// How many children `rank` has.
    pub fn child_count(&self, rank: u32) -> u32 {
        self.children(rank).count() as u32
    }

    /// When the last process has the message if nobody fails, in the units of
    /// `model`: the start of synchronized correction.
    pub fn completion(&self, model: &LogP) -> u64 {
        let mut last = 0;
        let mut open = vec![(0u32, 0u64)];
        while let Some((rank, at)) = open.pop() {
            last = last.max(at);
            let mut sent = at;
            for child in self.children(rank) {
                open.push((child, sent.saturating_add(model.delay())));
                sent = sent.saturating_add(model.gap);
            }
        }
        last
    }

    /// The largest power of two first, so that the largest subtree starts first.
    fn binomial_in_order(&self, rank: u32, i: u32) -> Option<u32> {
        let below = if rank == 0 {
            u32::BITS - (self.processes - 1).leading_zeros()
        } else {
            rank.trailing_zeros()
        };
        // Bits whose child would lie beyond the last process are left out.
        let reach = (self.processes - 1).checked_sub(rank)?;
        let fits = u32::BITS - reach.leading_zeros();
        let bit = below.min(fits).checked_sub(i + 1)?;
        Some(rank + (1 << bit))
    }
}

/// The first rank of the level on which `rank` lies in the interleaved k-ary tree
/// (k above 1), and the number of ranks on that level.
fn level(rank: u32, k: u32) -> (u32, u64) {
    let (mut first, mut width) = (0u64, 1u64);
    while u64::from(rank) >= first + width {
        first += width;
        width *= u64::from(k);
    }
    // first <= rank.
    (first as u32, width)
}

/// Of `rest` ranks shared among `k` children as evenly as can be, the first ones
/// getting one more: how many lie before child `i`, and how many are its own.
fn share(rest: u32, k: u32, i: u32) -> (u32, u32) {
    let (each, more) = (rest / k, rest % k);
    (each * i + more.min(i), each + u32::from(i < more))
}

struct Range {
    parent: u32,
    size: u32,
}

/// The consecutive ranks below `rank` (itself included) in the k-ary tree in order.
fn kary_range(processes: u32, k: u32, rank: u32) -> Range {
    let (mut head, mut size, mut parent) = (0, processes, 0);
    while head != rank && size > 1 {
        let (each, more) = ((size - 1) / k, (size - 1) % k);
        let at = rank - head - 1;
        let i = match at.checked_sub(more * (each + 1)) {
            None => at / (each + 1),
            Some(beyond) => more + beyond / each.max(1),
        };
        let (skip, own) = share(size - 1, k, i);
        parent = head;
        head += 1 + skip;
        size = own;
    }
    Range { parent, size }
}

/// Ranks of a communicator and their places on the ring whose place 0 is the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// The number of processes.
    pub processes: u32,
    /// The rank of the root.
    pub root: u32,
}

impl Ring {
    /// The place (virtual rank) of a rank.
    pub const fn place(self, rank: u32) -> u32 {
        if rank >= self.root {
            rank - self.root
        } else {
            rank + (self.processes - self.root)
        }
    }
    /// The rank at a place.
    pub const fn rank(self, place: u32) -> u32 {
        let to_end = self.processes - self.root;
        if place >= to_end {
            place - to_end
        } else {
            place + self.root
        }
    }
    /// The place `distance` (at most the number of processes) to the right.
    pub const fn right(self, place: u32, distance: u32) -> u32 {
        let to_end = self.processes - place;
        if distance >= to_end {
            distance - to_end
        } else {
            place + distance
        }
    }
    /// The place `distance` (at most the number of processes) to the left.
    pub const fn left(self, place: u32, distance: u32) -> u32 {
        if distance > place {
            place + (self.processes - distance)
        } else {
            place - distance
        }
    }
}
