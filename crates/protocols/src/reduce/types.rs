//! Who is in which group and tree.

use outlive_base::machine::Peer;
use outlive_base::{Code, Entity, Error, Result, Time};
use serde::{Deserialize, Serialize};

use crate::broadcast::LogP;
use crate::broadcast::tree::{Order, Ring, Shape, Tree};

/// What all processes of one reduce share.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many processes.
    pub processes: u32,
    /// Who gets the result.
    pub root: Peer,
    /// How many failures are tolerated.
    pub failures: u32,
    /// Silence after which a member of the group counts as dead.
    pub timeout: Time,
    /// The tree over whole groups that all f + 1 trees follow; none without any.
    tree: Option<Tree>,
}

impl Config {
    /// Groups and trees; `model` matters for the optimal tree only.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if there are no processes or no such root, or as
    /// [`Tree::new`].
    pub fn new(
        shape: Shape,
        processes: u32,
        root: Peer,
        failures: u32,
        model: &LogP,
    ) -> Result<Config> {
        // For its checks of processes and shape.
        Tree::new(shape, Order::Interleaved, processes, model)?;
        if root >= processes {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("root".into()),
                format!(
                    "rank {root} of {}",
                    outlive_base::count(processes, "process")
                ),
                "give a rank below the number of processes",
            ));
        }
        let failures = failures.min(processes - 1);
        let groups = (processes - 1) / (failures + 1);
        let tree = match groups {
            0 => None,
            _ => Some(Tree::new(shape, Order::Interleaved, groups, model)?),
        };
        Ok(Config {
            processes,
            root,
            failures,
            timeout: Time::from_secs(2),
            tree,
        })
    }

    /// The ring with the root at place 0.
    pub fn ring(&self) -> Ring {
        Ring {
            processes: self.processes,
            root: self.root,
        }
    }

    fn width(&self) -> u32 {
        self.failures + 1
    }

    /// Whole groups: (P - 1) / (f + 1), rounded down.
    pub fn groups(&self) -> u32 {
        (self.processes - 1) / self.width()
    }

    /// The places of the group of a place, ascending, with itself. The root belongs to
    /// those who are left over.
    pub fn group(&self, place: u32) -> Vec<u32> {
        let left = 1 + self.groups() * self.width();
        if place == 0 || place >= left {
            return std::iter::once(0).chain(left..self.processes).collect();
        }
        let first = place - (place - 1) % self.width();
        (first..first + self.width()).collect()
    }

    /// The places below in the tree of a place; below the root: the first group.
    pub fn below(&self, place: u32) -> Vec<u32> {
        let Some(tree) = &self.tree else {
            return Vec::new();
        };
        if place == 0 {
            return (1..=self.width()).collect();
        }
        let (group, member) = ((place - 1) / self.width(), (place - 1) % self.width());
        if group >= self.groups() {
            return Vec::new();
        }
        let mut groups: Vec<u32> = tree.children(group).collect();
        groups.sort_unstable();
        let at = |group: u32| 1 + group * self.width() + member;
        groups.into_iter().map(at).collect()
    }

    /// The place above in its tree; none for the root and for those who are left over.
    pub fn above(&self, place: u32) -> Option<u32> {
        let group = place.checked_sub(1)? / self.width();
        if group >= self.groups() {
            return None;
        }
        let parent = self.tree.as_ref()?.parent(group);
        Some(parent.map_or(0, |parent| {
            1 + parent * self.width() + (place - 1) % self.width()
        }))
    }

    /// Levels of the tree below a place.
    pub fn levels(&self, place: u32) -> u32 {
        let Some(tree) = &self.tree else {
            return 0;
        };
        let group = place.saturating_sub(1) / self.width();
        let (mut at, mut levels) = (group, u32::from(place == 0));
        while group < self.groups()
            && let Some(child) = tree.child(at, 0)
        {
            at = child;
            levels += 1;
        }
        levels
    }

    /// Messages of a run without failures.
    pub fn messages(&self) -> u64 {
        let (q, f) = (u64::from(self.groups()), u64::from(self.failures));
        let left = u64::from(self.processes - 1) - q * (f + 1);
        q * f * (f + 1) + left * (left + 1) + q * (f + 1)
    }

    /// Most others that a process hears of in its group and below it.
    pub(super) fn peers_max(&self) -> usize {
        self.processes as usize
    }
}

/// Which step a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum MsgStep {
    /// An operand for the others of the group.
    Exchange,
    /// The value of a part of a tree for the one above.
    Up,
}

/// A message; its body is an operand or a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Msg {
    /// The step.
    pub step: MsgStep,
    /// Nobody was missing in the sender's part of the tree.
    pub clean: bool,
}
