//! Versions that a program forces: they begin with a capture, at all levels.
//!
//! Invariants: a round only ever gets more levels, and only before all nodes have captured; a level that it does not
//! get is said to be given up.

use super::*;

impl Commit {
    pub(super) fn on_forced(&mut self, cx: &C, from: Peer, version: Version, levels: Levels) {
        let levels = levels.and(cx.config.levels);
        if !self.rounds.contains_key(&version) {
            let full = self.rounds.len() >= 4 * cx.config.rounds_max as usize;
            if self.ended.contains(version) || full || !self.lost.is_empty() || levels.is_empty() {
                return self.answer_over(cx, from, version);
            }
            self.ended.used = self.ended.used.max(Some(version));
            let deadline = cx.now + cx.config.commit_timeout;
            let mut round = Round::new(cx, levels, Phase::Capturing, deadline, 0);
            round.forced = true;
            round.armed.insert(from);
            self.rounds.insert(version, round);
            // Before anything that ends the arming which this one has passed.
            self.ask_to_join(cx, version);
        }
        self.widen(cx, from, version, levels);
        if let Some(round) = self.rounds.get_mut(&version) {
            // An arming that a forced call overtakes is armed here by that call.
            round.armed.insert(from);
            let (levels, goes) = (round.levels, round.phase != Phase::Arming);
            // Whoever has heard that it goes ends it no more by the word that it was not armed.
            if goes {
                self.say(cx, from, MsgKind::Go { version, levels });
            }
            self.go_if_armed(cx, version);
        }
    }

    /// What the policy armed at fewer levels goes to those as well that the program asks for.
    fn widen(&mut self, cx: &C, from: Peer, version: Version, levels: Levels) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        let more = levels.less(round.levels);
        if more.is_empty() {
            return;
        }
        if round.phase == Phase::Flushing || cx.config.planted == Some(Planted::ForcedAsArmed) {
            // No node that forces it can be missing any more, unless it has been started anew since.
            let (why, culprit) = (Why::Coordinator, code(None));
            for level in more.iter() {
                let level = Some(level);
                let ended = MsgKind::Abort {
                    version,
                    level,
                    why,
                    culprit,
                };
                self.say(cx, from, ended);
            }
            return;
        }
        round.widen(cx, more);
        let (levels, goes) = (round.levels, round.phase == Phase::Capturing);
        if goes {
            round.deadline = cx.now + cx.config.commit_timeout;
            self.say_all(cx, MsgKind::Go { version, levels });
        }
    }

    /// Tells the nodes that have not said anything of a forced round about it.
    pub(super) fn ask_to_join(&mut self, cx: &C, version: Version) {
        let Some(round) = self.rounds.get(&version) else {
            return;
        };
        if !round.forced || round.phase != Phase::Capturing {
            return;
        }
        let (levels, known) = (round.levels, round.armed.clone());
        for node in (0..cx.config.nodes).filter(|&node| !known.contains(node)) {
            self.say(cx, node, MsgKind::Join { version, levels });
        }
    }
}
