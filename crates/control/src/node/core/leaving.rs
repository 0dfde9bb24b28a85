//! What a node is not sent, for it has said that it has it.
//!
//! The contents of a decision name a part of each node. At an opening every node tells the
//! coordinator of every decision that it knows, and the coordinator every node of the one that is
//! restored: with the contents each time, that is the square of the number of nodes, and of a
//! thousand nodes more than a gigabyte. All but those that were lost have them on disk.
//!
//! Invariants: contents are left out only for a peer that has named the decision among those whose
//! contents it has, in this opening; what was left out is named, and a message whose contents were
//! left out and are not here after all (an agent was started anew, a record was damaged) is not
//! taken: the peer is told, and repeats it with them. So an omission costs a repetition, never a
//! decision.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::NodeId;
use outlive_protocols::commit::MsgKind;

use super::Core;
use crate::node::shell::{DecisionKey as Key, PeerMessage, Shell};

/// Most decisions that are named in a message: more than a job keeps. Of more the newest.
const NAMED_MAX: usize = 64;

/// The decisions whose contents peers have, as they say.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    by: BTreeMap<NodeId, BTreeSet<Key>>,
}

impl Leaving {
    /// What this peer has.
    pub fn of(&self, peer: NodeId) -> Option<&BTreeSet<Key>> {
        self.by.get(&peer)
    }

    /// Nobody has said anything yet.
    pub fn clear(&mut self) {
        self.by.clear();
    }

    /// It has lost something, or is another one.
    pub fn forget(&mut self, peer: NodeId) {
        self.by.remove(&peer);
    }

    fn learn(&mut self, peer: NodeId, kind: &MsgKind, named: &[Key]) {
        if let MsgKind::Fetch { index: 0 } = kind {
            // All that it has.
            self.by.remove(&peer);
        }
        let known = self.by.entry(peer).or_default();
        known.extend(named.iter().take(NAMED_MAX));
        while known.len() > NAMED_MAX {
            known.pop_first();
        }
    }
}

impl<S: Shell> Core<S> {
    /// The decisions to name in a message, as ones whose contents are here.
    pub(super) fn named(&self, to: NodeId, kind: &MsgKind) -> Vec<Key> {
        match *kind {
            // Whoever asks says what need not be told.
            MsgKind::Fetch { index: 0 } => self.contents.whole(NAMED_MAX),
            MsgKind::ItemCommit {
                level,
                source,
                version,
                ..
            } if to == self.spec.coordinator => {
                let key = (source, version, level);
                let whole = self.contents.is_whole(key);
                whole.then_some(key).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// A message came, with decisions that its sender has and others that it has left out; true if
    /// it is one to be taken.
    pub(super) fn takes(
        &mut self,
        from: NodeId,
        kind: &MsgKind,
        (named, left_out): (&[Key], &[Key]),
    ) -> bool {
        if !named.is_empty() || matches!(kind, MsgKind::Fetch { index: 0 }) {
            self.leaving.learn(from, kind, named);
        }
        if left_out.iter().all(|key| self.contents.is_whole(*key)) {
            return true;
        }
        self.shell.send(from, &PeerMessage::Lacks);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use outlive_base::{Incarnation, Level, Version};
    use outlive_protocols::commit::{Ballot, Msg};

    use crate::node::still::alone;

    #[test]
    fn what_was_left_out_and_is_not_here_is_asked_for() {
        let mut agent = alone(1);
        let (source, version, level) = key(5);
        let kind = MsgKind::Rebuild {
            source,
            version,
            level,
        };
        let ballot = Ballot::default();
        let coordinator = NodeId(0);
        let msg = Msg { ballot, kind };
        agent.on_commit_message(coordinator, msg, &[], (&[], &[]));
        let asked = |(to, message): &(NodeId, PeerMessage)| {
            *to == coordinator && matches!(message, PeerMessage::Lacks)
        };
        assert!(
            !agent.shell().sent.iter().any(asked),
            "nothing was left out"
        );
        agent.on_commit_message(coordinator, msg, &[], (&[], &[key(5)]));
        assert!(agent.shell().sent.iter().any(asked));
        // Who says so is sent all from then on.
        agent.on_commit_message(NodeId(2), msg, &[], (&[key(5)], &[]));
        assert!(agent.leaving.of(NodeId(2)).is_some());
        agent.on_lacks(NodeId(2));
        assert!(agent.leaving.of(NodeId(2)).is_none());
    }

    fn key(version: u64) -> Key {
        (Incarnation(1), Version(version), Level::DISK)
    }

    #[test]
    fn what_a_peer_has_is_what_it_said_last_and_bounded() {
        let mut leaving = Leaving::default();
        let peer = NodeId(3);
        let (ask, other) = (MsgKind::Fetch { index: 0 }, MsgKind::Begun);
        leaving.learn(peer, &ask, &[key(1), key(2)]);
        leaving.learn(peer, &other, &[key(3)]);
        let all = BTreeSet::from([key(1), key(2), key(3)]);
        assert_eq!(leaving.of(peer), Some(&all));
        leaving.learn(peer, &ask, &[key(2)]);
        assert_eq!(leaving.of(peer), Some(&BTreeSet::from([key(2)])));
        for version in 0..200 {
            leaving.learn(peer, &other, &[key(version)]);
        }
        let known = leaving.of(peer).unwrap();
        assert_eq!(known.len(), NAMED_MAX);
        assert!(known.contains(&key(199)), "the newest");
        leaving.forget(peer);
        assert_eq!(leaving.of(peer), None);
    }
}
