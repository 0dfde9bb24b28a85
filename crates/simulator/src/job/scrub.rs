//! Copies that are read before they are needed, and mended.

use std::rc::Rc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, Level, NodeId};
use outlive_control::node::Input as NodeInput;
use outlive_control::node::copies::{CopySource, Expected, Reading, Scrubbed};
use outlive_control::node::plain::PlainSlab;
use outlive_control::node::shell::{Done, Making};
use outlive_ledger::scheme::Piece;
use outlive_ledger::{Part, Rules, Sealed};

use super::node::Process;
use super::parity::{Wanted, digest_of, words_of};
use super::storage::Container;
use super::*;

impl Job {
    /// A copy is read, and mended if it is damaged.
    pub(super) fn scrub(&mut self, who: Process, life: u32, reading: &Rc<Reading>) {
        if self.home(who).life != life || self.home(who).agent.is_none() {
            return;
        }
        if reading.brake.is_paused() && !reading.brake.is_stopped() {
            let reading = Rc::clone(reading);
            return self.after(slots::STANDS, Action::Scrub { who, life, reading });
        }
        let outcome = match reading.brake.is_stopped() {
            true => Scrubbed::Stopped,
            false => self.scrubbed(who, reading),
        };
        self.mended += u64::from(matches!(outcome, Scrubbed::Mended { .. }));
        let copy = reading.copy;
        let done: Done<PlainSlab> = Done::Scrubbed { copy, outcome };
        self.input(who, life, NodeInput::Done(done));
    }

    fn scrubbed(&mut self, who: Process, reading: &Reading) -> Scrubbed {
        let id = reading.copy.id;
        let key = (id.incarnation.0, id.version.0);
        let node = self.home(who).node;
        if reading.copy.place == CopySource::Shared && self.shared_is_hidden(node) {
            return Scrubbed::Unreadable(broken(node, Code::Io, "it cannot be read"));
        }
        let served = reading.copy.place.level().store() == StoreKind::Server;
        if served && self.server_is_out() {
            return Scrubbed::Unreadable(broken(node, Code::ServerLost, "nobody answers"));
        }
        let storage = &self.home(who).storage;
        let sound = match (reading.copy.place, reading.expected) {
            (CopySource::Parity(level), Expected::Parity(parity)) if served => {
                let found = self.served.parity.get(&(key, level, node));
                found.map(|(bytes, _)| digest_of(bytes) == parity)
            }
            (CopySource::Parity(level), Expected::Parity(parity)) => {
                let bytes = storage.parity.get(&(key, level));
                bytes.map(|bytes| digest_of(bytes) == parity)
            }
            (place, Expected::Container(sealed)) => {
                let container = match place {
                    CopySource::Kept => storage.partner.get(&(key, id.node.0)),
                    CopySource::Shared => self.shared.containers.get(&(key, node)),
                    _ => storage.own.get(&key),
                };
                container.map(|it| it.is_good() && it.digest == sealed.digest)
            }
            _ => None,
        };
        match sound {
            None if served && !self.may_go(who, reading) => self.mend(who, reading),
            None => Scrubbed::Gone,
            Some(_) if !reading.whole => Scrubbed::There,
            Some(true) => Scrubbed::Whole(4096),
            Some(false) => self.mend(who, reading),
        }
    }

    /// True if what is not there may have been removed.
    fn may_go(&self, who: Process, reading: &Reading) -> bool {
        let (id, level) = (reading.copy.id, reading.copy.place.level());
        let records = &self.homes[who as usize].storage.records;
        let rules = Rules::new(records.readable(), &reading.policy);
        rules.may_go((id.incarnation, id.version), level)
    }

    fn mend(&mut self, who: Process, reading: &Reading) -> Scrubbed {
        let node = self.home(who).node;
        let damage = broken(node, Code::Corrupt, "it has rotted");
        match reading.expected {
            Expected::Parity(_) => match self.parity_again(who, reading) {
                Ok(from) => Scrubbed::Mended { damage, from },
                Err(error) => Scrubbed::Damaged {
                    damage,
                    why: vec![error],
                },
            },
            Expected::Container(sealed) => {
                let mut why = Vec::new();
                for (level, part) in &reading.sources {
                    let Some(found) = self.source(who, reading, (*level, part), sealed) else {
                        continue;
                    };
                    match self.put_in_place(who, reading, found) {
                        Ok(()) => {
                            return Scrubbed::Mended {
                                damage,
                                from: *level,
                            };
                        }
                        Err(error) => why.push(error),
                    }
                }
                Scrubbed::Damaged { damage, why }
            }
        }
    }

    /// Another copy of the same container, if it can be had and is sound.
    fn source(
        &mut self,
        who: Process,
        reading: &Reading,
        (level, part): (Level, &Part),
        sealed: Sealed,
    ) -> Option<Container> {
        let id = reading.copy.id;
        let key = (id.incarnation.0, id.version.0);
        let (me, owner) = (self.home(who).node, id.node.0);
        let found = match level {
            Level::MEMORY => None,
            Level::SHARED if self.shared_is_hidden(me) => None,
            Level::SHARED => self.shared.containers.get(&(key, owner)).cloned(),
            level if level.members().is_some() => {
                let (group, parts) = reading.made_of.get(&level)?;
                let want = Piece::Whole(id.node);
                let wanted = Wanted {
                    key,
                    group,
                    parts,
                    want,
                    length: part.length,
                };
                let have = |piece: Piece| group.is_beside(piece, id.node);
                let is_right =
                    |bytes: &[u8]| Container::new(words_of(bytes)).digest == sealed.digest;
                let bytes = self.made(who, &wanted, &have, &is_right).ok()?;
                Some(Container::new(words_of(&bytes)))
            }
            Level::DISK if owner == me => self.home(who).storage.own.get(&key).cloned(),
            // What is kept for another node has that node itself.
            Level::DISK => {
                let there = self.partner(who, id.node)?;
                self.home(there).storage.own.get(&key).cloned()
            }
            _ if part.holder == NodeId(me) => {
                let there = self.partner(who, id.node)?;
                self.home(there).storage.own.get(&key).cloned()
            }
            _ => {
                let there = self.partner(who, part.holder)?;
                self.home(there).storage.partner.get(&(key, owner)).cloned()
            }
        };
        found.filter(|it| it.is_good() && it.digest == sealed.digest)
    }

    fn put_in_place(
        &mut self,
        who: Process,
        reading: &Reading,
        container: Container,
    ) -> Result<(), Error> {
        let id = reading.copy.id;
        let key = (id.incarnation.0, id.version.0);
        let node = self.home(who).node;
        let refuse = self.refusals(who);
        if self.random.chance(refuse) {
            return Err(broken(node, Code::NoSpace, "no space is left"));
        }
        let words = container.bare();
        let storage = &mut self.home(who).storage;
        let level = match reading.copy.place {
            CopySource::Own => {
                storage.own.insert(key, container);
                Level::DISK
            }
            CopySource::Kept => {
                storage.partner.insert((key, id.node.0), container);
                Level::PARTNER
            }
            CopySource::Shared => {
                self.shared_refuses(node)?;
                self.shared.containers.insert((key, node), container);
                Level::SHARED
            }
            CopySource::Parity(level) => level,
        };
        // What a process has that was replaced is out of everyone's reach.
        if self.at(node) == who {
            self.stored(level, key, id.node.0, &words);
        }
        Ok(())
    }

    fn parity_again(&mut self, who: Process, reading: &Reading) -> Result<Level, Error> {
        let node = self.home(who).node;
        let none = || broken(node, Code::NotFound, "nothing is known of its group");
        let CopySource::Parity(level) = reading.copy.place else {
            return Err(none());
        };
        let (group, parts) = reading.made_of.get(&level).ok_or_else(none)?;
        let member = |node: &NodeId| parts.iter().find(|part| part.node == *node).cloned();
        let ordered: Option<Vec<Part>> = group.members.iter().map(member).collect();
        let id = reading.copy.id;
        let (source, version) = (id.incarnation, id.version);
        let making = Making::new(source, version, level, ordered.ok_or_else(none)?, true);
        self.parity(who, &making).map(|_| level)
    }
}

fn broken(node: u32, code: Code, reason: &str) -> Error {
    Error::new(code, Entity::Node(node), reason, "see the storage")
}
