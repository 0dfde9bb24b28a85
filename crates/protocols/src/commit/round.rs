//! A round as the coordinator counts it.

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Arming,
    Capturing,
    Flushing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Open,
    /// COMMIT is being persisted.
    Deciding,
    Committed,
    Stable,
    Aborted,
}

/// One level of a round, as the coordinator counts it.
#[derive(Debug)]
pub(super) struct Tally {
    pub prepared: NodeSet,
    pub acked: NodeSet,
    pub verdict: Verdict,
}

/// The round of one version, as the coordinator sees it.
#[derive(Debug)]
pub(super) struct Round {
    pub levels: Levels,
    pub phase: Phase,
    /// Began without being armed.
    pub forced: bool,
    /// Armed again it may get any number.
    pub any: bool,
    pub armed: NodeSet,
    pub captured: NodeSet,
    /// Only for levels of the round.
    pub tallies: BTreeMap<Level, Tally>,
    pub deadline: Time,
    /// The bound of all that is not in the background has passed.
    pub late: bool,
    pub again: Backoff,
    pub retries: u32,
}

impl Round {
    pub fn new(cx: &C, levels: Levels, phase: Phase, deadline: Time, retries: u32) -> Round {
        let nodes = cx.config.nodes;
        let empty = || NodeSet::new(nodes);
        let mut round = Round {
            levels: Levels::NONE,
            phase,
            forced: false,
            any: false,
            armed: empty(),
            captured: empty(),
            tallies: BTreeMap::new(),
            deadline,
            late: false,
            again: Backoff::new(cx.now, cx.config.resend),
            retries,
        };
        round.widen(cx, levels);
        round
    }

    /// It goes to these levels too.
    pub fn widen(&mut self, cx: &C, more: Levels) {
        let nodes = cx.config.nodes;
        self.levels = self.levels.or(more);
        for level in more.iter() {
            self.tallies.entry(level).or_insert_with(|| Tally {
                prepared: NodeSet::new(nodes),
                acked: NodeSet::new(nodes),
                verdict: Verdict::Open,
            });
        }
    }

    /// True if a level is undecided that is none of these.
    pub fn undecided(&self, background: Levels) -> bool {
        let mut awaited = self.tallies.iter();
        awaited
            .any(|(level, tally)| tally.verdict < Verdict::Stable && !background.contains(*level))
    }
}

impl PartialOrd for Verdict {
    fn partial_cmp(&self, other: &Verdict) -> Option<core::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}

/// Nobody takes the version, unless it is forced.
pub(super) fn unarmed(version: Version, culprit: Option<u32>) -> MsgKind {
    MsgKind::Abort {
        version,
        level: None,
        why: Why::Unarmed,
        culprit: code(culprit),
    }
}

pub(super) fn code(node: Option<u32>) -> u32 {
    node.unwrap_or(u32::MAX)
}
