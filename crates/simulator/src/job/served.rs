//! The memory server: it pulls what nodes store and keeps the sum, is lost, started anew and out of
//! reach. What it adds up are real bytes, by the ledger's own terms.

use outlive_base::{Code, Entity, Error, Incarnation, Level, NodeId, Result, Version};
use outlive_control::node::shell::Making;
use outlive_ledger::scheme::Piece;
use outlive_ledger::{Parity, Rules};

use super::checker::CopyAt;
use super::node::Process;
use super::parity::{Wanted, digest_of};
use super::*;

/// Most time that it is out of reach.
const OUT_MAX: Time = Time::from_secs(3);

impl Job {
    /// It is started anew, empty, or out of reach for a while.
    pub(super) fn server_fails(&mut self) {
        let length = Time::from_ms(20) + Time(self.random.below(OUT_MAX.0));
        let kept = self.random.chance(300_000);
        self.server_is_lost(length, kept);
    }

    /// Nobody is answered for so long; what it had is kept, or not.
    pub(super) fn server_is_lost(&mut self, length: Time, kept: bool) {
        let until = self.now + length;
        self.served.out_until = until;
        if !kept {
            for ((key, level, _), (_, members)) in std::mem::take(&mut self.served.parity) {
                for owner in members {
                    self.judge.copy_fails(CopyAt { level, key, owner });
                }
            }
        }
        self.judge.server_fails(until);
    }

    /// True if nobody is answered.
    pub(super) fn server_is_out(&self) -> bool {
        !self.calm && self.served.out_until > self.now
    }

    /// A parity that it has.
    pub(super) fn served_at(&self, wanted: &Wanted<'_>, piece: Piece) -> Option<Vec<u8>> {
        let at = (wanted.key, wanted.group.level, piece.node().0);
        let found = self
            .served
            .parity
            .get(&at)
            .filter(|_| !self.server_is_out());
        found.map(|(bytes, _)| bytes.clone())
    }

    /// What bears a node's name there.
    pub(super) fn served_by(&self, node: u32) -> impl Iterator<Item = (Key, Level, u32)> {
        let all = self.served.parity.keys().filter(|_| !self.server_is_out());
        all.filter(move |(.., owner)| *owner == node).copied()
    }

    /// Has it make the parity of a group, and read it back.
    pub(super) fn served_parity(&mut self, who: Process, making: &Making) -> Result<Parity> {
        let node = self.home(who).node;
        let lost = |code, reason: &str| {
            let entity = Entity::Address("server".into());
            Err(Error::new(code, entity, reason, "see the server"))
        };
        if self.server_is_out() {
            return lost(Code::ServerLost, "nobody answers");
        }
        let refuse = if self.calm {
            0
        } else {
            self.options.faults.refuse
        };
        if self.random.chance(refuse) {
            return lost(Code::NoSpace, "more than the quota of the job");
        }
        let level = making.group.level;
        let key = (making.source.0, making.version.0);
        let wanted = Wanted {
            key,
            group: &making.group,
            parts: &making.parts,
            want: Piece::Parity(NodeId(node)),
            length: making.group.parity_bytes(),
        };
        let have = |piece| matches!(piece, Piece::Whole(_));
        let mut own = making.parts.iter().filter(|part| part.node.0 == node);
        let recorded = own.next().and_then(|part| part.parity);
        let is_right = |bytes: &[u8]| recorded.is_none_or(|it| it == digest_of(bytes));
        let bytes = self.made(who, &wanted, &have, &is_right)?;
        let parity = digest_of(&bytes);
        let members: Vec<u32> = making.group.members.iter().map(|node| node.0).collect();
        for &owner in &members {
            let there = self.at(owner);
            let own = self.home(there).storage.own.get(&key).cloned();
            // Of a node without ranks nothing is read: it may be lost, and with it its container.
            let bare = own.as_ref().map(|own| own.bare()).unwrap_or_default();
            self.stored(level, key, owner, &bare);
            // A fault may have taken the container, or the node, since.
            let sound = own.is_some_and(|own| own.is_good());
            if !sound || self.at(node) != who {
                self.judge.copy_fails(CopyAt { level, key, owner });
            }
        }
        let at = (key, level, node);
        self.served.parity.insert(at, (bytes, members));
        Ok(parity)
    }

    /// Removes there what the rules let go of a node's.
    pub(super) fn collect_served(&mut self, who: Process, rules: &Rules<'_>) {
        let node = self.home(who).node;
        let gone = |&(key, level, _): &(Key, Level, u32)| {
            rules.may_go((Incarnation(key.0), Version(key.1)), level)
        };
        let gone: Vec<_> = self.served_by(node).filter(gone).collect();
        for at in gone {
            let Some((_, members)) = self.served.parity.remove(&at) else {
                continue;
            };
            let (key, level, _) = at;
            if self.at(node) == who {
                for owner in members {
                    self.judge.removes(self.now, CopyAt { level, key, owner });
                }
            }
        }
    }
}
