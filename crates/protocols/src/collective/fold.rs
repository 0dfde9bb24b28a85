//! Contributions in the order of the tree, combined from the last to the first.
//!
//! Invariants: the order of the list is the order of operands; a bypassed process is
//! replaced by its children in its own place, so the operands of a tree in order stay
//! in the order of ranks; each entry stands for a part of the tree that no other entry
//! touches, so nothing is counted twice whatever arrives how often and when.
//!
//! The value is base + (s1 + (s2 + (... + sn))), where + is the operator: a function of
//! the tree and of who contributed, whatever the order of arrival. In all trees but the
//! binomial in order the last child has the smallest subtree and gives first, so most of
//! it is done while waiting.

use outlive_base::Time;
use outlive_base::machine::Peer;

/// No body.
pub(crate) const NONE: u32 = u32::MAX;

/// One whose contribution is awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub peer: Peer,
    /// What it gave, or what was folded into it.
    pub body: u32,
    /// When it was last heard, or when waiting began.
    pub heard: Time,
    pub asked: bool,
    pub given: bool,
}

impl Source {
    pub fn awaited(peer: Peer, now: Time, asked: bool) -> Source {
        Source {
            peer,
            body: NONE,
            heard: now,
            asked,
            given: false,
        }
    }
}

/// What [`Fold::step`] found.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Someone is still awaited, or the operator is at work.
    Waiting,
    /// Pull this, and call [`Fold::combined`] when it is done.
    Combine { acc: u32, arg: u32, acc_left: bool },
    /// The value, or none if nobody had an operand.
    Value(u32),
}

/// The list. Everything from `tail` on is folded into the entry at `tail`.
#[derive(Debug)]
pub(crate) struct Fold {
    pub sources: Vec<Source>,
    tail: u32,
    last: bool,
    /// A body among the entries that is only read.
    fixed: u32,
}

impl Default for Fold {
    fn default() -> Fold {
        Fold::new(Vec::new(), NONE)
    }
}

impl Fold {
    /// `fixed` is a body that stays as it is, or none.
    pub fn new(sources: Vec<Source>, fixed: u32) -> Fold {
        let tail = sources.len() as u32;
        Fold {
            sources,
            tail,
            last: false,
            fixed,
        }
    }

    /// The entry of someone who is still awaited.
    pub fn awaited(&self, peer: Peer) -> Option<usize> {
        let found = |source: &Source| source.peer == peer && !source.given;
        self.sources.iter().position(found)
    }

    /// True if `peer` has an entry.
    pub fn holds(&self, peer: Peer) -> bool {
        self.sources.iter().any(|source| source.peer == peer)
    }

    /// Puts others in the place of an entry that is awaited.
    pub fn replace(&mut self, at: usize, by: Vec<Source>) {
        self.tail = self.tail - 1 + by.len() as u32;
        self.sources.splice(at..=at, by);
    }

    /// What to do next; `base` is the own operand, to the left of all.
    pub fn step(&mut self, base: u32) -> Step {
        while self.tail > 0 {
            let tail = self.tail as usize;
            let left = self.sources[tail - 1];
            if !left.given {
                return Step::Waiting;
            }
            let right = self.sources.get(tail).map_or(NONE, |source| source.body);
            if left.body != NONE && right != NONE {
                let acc_left = left.body != self.fixed;
                let (acc, arg) = if acc_left {
                    (left.body, right)
                } else {
                    (right, left.body)
                };
                return Step::Combine { acc, arg, acc_left };
            }
            if right != NONE {
                self.sources[tail - 1].body = right;
                self.sources[tail].body = NONE;
            }
            self.tail -= 1;
        }
        let folded = self.sources.first().map_or(NONE, |source| source.body);
        if folded == NONE {
            return Step::Value(base);
        }
        if base == NONE || self.last {
            self.sources[0].body = NONE;
            return Step::Value(folded);
        }
        Step::Combine {
            acc: folded,
            arg: base,
            acc_left: false,
        }
    }

    /// The operator has done what the last step asked for. The body to let go.
    pub fn combined(&mut self) -> Option<u32> {
        if self.tail == 0 {
            self.last = true;
            return None;
        }
        let right = core::mem::replace(&mut self.sources[self.tail as usize].body, NONE);
        self.tail -= 1;
        let left = &mut self.sources[self.tail as usize].body;
        if *left == self.fixed {
            *left = right;
            return None;
        }
        (right != self.fixed).then_some(right)
    }

    /// Bodies that it holds.
    pub fn bodies(&self) -> impl Iterator<Item = u32> + '_ {
        let bodies = self.sources.iter().map(|source| source.body);
        bodies.filter(|&body| body != NONE && body != self.fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(peer: Peer, body: u32) -> Source {
        Source {
            body,
            given: true,
            ..Source::awaited(peer, Time::ZERO, false)
        }
    }

    #[test]
    fn operands_keep_their_order_and_bypassed_ones_leave_their_place_to_their_children() {
        let mut words = vec!["a", "b", "", "d"]
            .into_iter()
            .map(String::from)
            .collect::<Vec<_>>();
        let mut fold = Fold::new(
            vec![
                given(1, 1),
                Source::awaited(2, Time::ZERO, false),
                given(3, 3),
            ],
            NONE,
        );
        assert_eq!(fold.step(0), Step::Waiting);
        words.push("c".into());
        fold.replace(1, vec![given(5, 4), given(6, NONE)]);
        loop {
            match fold.step(0) {
                Step::Combine { acc, arg, acc_left } => {
                    let (l, r) = if acc_left { (acc, arg) } else { (arg, acc) };
                    words[acc as usize] = format!("{}{}", words[l as usize], words[r as usize]);
                    fold.combined();
                }
                Step::Value(value) => {
                    assert_eq!(words[value as usize], "abcd");
                    break;
                }
                Step::Waiting => panic!("all have given"),
            }
        }
    }
}
