//! What the broadcast is told, says and sends.

use outlive_base::{Code, Entity, Error, Result, Time};

use super::cost::LogP;
use super::tree::{Order, Ring, Shape, Tree};

/// How the message is first spread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dissemination {
    /// Down a tree.
    Tree(Tree),
    /// Down a tree, and acknowledged up it; the baseline that detects a failure but
    /// does not mend it.
    AcknowledgedTree(Tree),
    /// To others drawn at random, until this time (Hoefler et al., IPDPS 2017).
    Gossip {
        /// No send of the gossip starts at or after it.
        until: Time,
    },
}

/// How processes that the dissemination missed are reached: messages to the left and
/// to the right on the ring of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// None.
    None,
    /// To this many neighbours in all, the larger half to the right, starting there;
    /// nothing is checked.
    Opportunistic(u32),
    /// The same without those that a heard neighbour covers.
    OptimizedOpportunistic(u32),
    /// In turns left and right, on each side until the nearest sender heard there.
    /// Everybody is reached if nobody dies after the start.
    Checked,
    /// Like checked, on each side until this many senders and one more were heard, by
    /// everyone who has the message. Everybody is reached if at most this many die after
    /// the start and one who has the message lives.
    FailureProof(u32),
}

/// When a process starts to correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// All at once, when a fault-free dissemination would have ended.
    Synchronized,
    /// Each as soon as its own part of the dissemination is sent.
    Overlapped,
}

/// What all processes of a broadcast know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    pub(super) ring: Ring,
    pub(super) dissemination: Dissemination,
    pub(super) correction: Correction,
    /// When correction may start; 0 if overlapped.
    pub(super) correct_from: Time,
    pub(super) start: Start,
    /// Neighbours to the left and right that opportunistic correction sends to.
    pub(super) reach: (u32, u32),
}

fn refuse<T>(option: &str, reason: impl Into<String>, remedy: &str) -> Result<T> {
    let entity = Entity::Option(option.into());
    Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
}

impl Config {
    /// A broadcast over a tree.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] as [`Tree::new`], if the model is not valid, the root is
    /// not a rank, a distance of correction is 0, or an acknowledged tree is to be
    /// corrected.
    pub fn tree(
        ring: Ring,
        (shape, order): (Shape, Order),
        acknowledged: bool,
        model: &LogP,
        correction: Correction,
        start: Start,
    ) -> Result<Config> {
        model.check()?;
        let tree = Tree::new(shape, order, ring.processes, model)?;
        if acknowledged && correction != Correction::None {
            return refuse(
                "correction",
                "an acknowledged tree is not corrected",
                "give --correction none, or --dissemination tree",
            );
        }
        let correct_from = match start {
            Start::Synchronized if correction != Correction::None => Time(tree.completion(model)),
            _ => Time::ZERO,
        };
        let dissemination = if acknowledged {
            Dissemination::AcknowledgedTree(tree)
        } else {
            Dissemination::Tree(tree)
        };
        Config::new(ring, dissemination, correction, correct_from, start)
    }

    /// A broadcast by gossip until that time, when correction starts.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the root is not a rank or a distance is 0.
    pub fn gossip(ring: Ring, until: Time, correction: Correction, start: Start) -> Result<Config> {
        Config::new(
            ring,
            Dissemination::Gossip { until },
            correction,
            until,
            start,
        )
    }

    fn new(
        ring: Ring,
        dissemination: Dissemination,
        correction: Correction,
        correct_from: Time,
        start: Start,
    ) -> Result<Config> {
        if ring.processes == 0 || ring.processes > super::tree::PROCESSES_MAX {
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
        let distance = match correction {
            Correction::Opportunistic(0) | Correction::OptimizedOpportunistic(0) => {
                return refuse(
                    "correction",
                    "distance 0 corrects nothing",
                    "give a distance of 1 or more, or --correction none",
                );
            }
            Correction::Opportunistic(d) | Correction::OptimizedOpportunistic(d) => d,
            _ => 0,
        };
        let mut config = Config {
            ring,
            dissemination,
            correction,
            correct_from,
            start,
            reach: (distance / 2, distance.div_ceil(2)),
        };
        if !config.cut() {
            // On a small ring both sides meet: nobody is served twice.
            let others = ring.processes - 1;
            let right = config.reach.1.min(others);
            config.reach = (config.reach.0.min(others - right), right);
        }
        Ok(config)
    }

    /// A sender of opportunistic correction serves everybody: its reach goes all round the
    /// ring.
    pub(super) const fn reaches_all(&self) -> bool {
        !self.cut() && self.reach.0 + self.reach.1 == self.ring.processes - 1
    }

    /// The ring and its root.
    pub const fn ring(&self) -> Ring {
        self.ring
    }

    /// When synchronized correction starts; 0 if it is overlapped.
    pub const fn correct_from(&self) -> Time {
        self.correct_from
    }

    /// Whether the ring is cut to the left of the root.
    ///
    /// Some corrections of a tree do not pass the root: the ring is cut to its left. The
    /// root is the first to have the message and the place to its left among the last;
    /// past the cut overlapped checked correction would run ahead of the tree, reach one
    /// process after the other before their parents do, and so never hear of anybody who
    /// corrects. Nothing is lost: the root takes part, so whoever is missed has one that
    /// does on its left. Which corrections are cut is as in the simulator of Küttler et
    /// al.: overlapped checked, opportunistic, and synchronized optimized opportunistic.
    const fn cut(&self) -> bool {
        let tree = !matches!(self.dissemination, Dissemination::Gossip { .. });
        let overlapped = matches!(self.start, Start::Overlapped);
        tree && match self.correction {
            Correction::Checked => overlapped,
            Correction::Opportunistic(_) => true,
            Correction::OptimizedOpportunistic(_) => !overlapped,
            Correction::None | Correction::FailureProof(_) => false,
        }
    }

    /// How far a place sends to the left and to the right at most.
    pub(super) const fn limits(&self, place: u32) -> (u32, u32) {
        if self.cut() {
            (place, self.ring.processes - 1 - place)
        } else {
            (u32::MAX, u32::MAX)
        }
    }

    pub(super) fn tree_of(&self) -> Option<&Tree> {
        match &self.dissemination {
            Dissemination::Tree(tree) | Dissemination::AcknowledgedTree(tree) => Some(tree),
            Dissemination::Gossip { .. } => None,
        }
    }

    pub(super) const fn acknowledged(&self) -> bool {
        matches!(self.dissemination, Dissemination::AcknowledgedTree(_))
    }
}

/// What travels, besides the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Msg {
    /// Down the tree, or gossip.
    Spread,
    /// Correction from a process on the right, sent to its left.
    Leftward,
    /// Correction from a process on the left, sent to its right.
    Rightward,
    /// Everyone below the sender has the message.
    Acknowledge,
}

/// What a process is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Broadcast; given to the root.
    Start,
}

/// How a process came to the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It is the root.
    Root,
    /// By tree or gossip.
    Dissemination,
    /// By a neighbour on the ring.
    Correction,
}

/// What a process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It has the message.
    Coloured(Cause),
    /// Everyone below it acknowledged (at the root: everyone).
    Acknowledged,
}
