//! Answers to the ranks of this node.

use outlive_base::ipc::{ToAgent, ToRank};
use outlive_base::{Code, Entity, Error, Rank, Version};
use outlive_protocols::commit::Why;

use super::Core;
use super::joining::Greeting;
use super::ranks::{Use, overwritten};
use crate::node::shell::{Ask, Shell, Staging, With};
use crate::orders::Notice;

impl<S: Shell> Core<S> {
    /// Answers the greetings that waited until an incarnation is open or opening.
    pub(super) fn greet_early(&mut self) {
        for (token, sequence, hello) in self.door.take_delayed() {
            self.on_rank_message(token, sequence, hello);
        }
    }

    /// The rank of a connection.
    pub(in crate::node) fn rank_of(&mut self, token: u64) -> Option<Rank> {
        self.ranks.by_token(token).map(|entry| entry.rank)
    }

    /// A process says something that is no service's.
    pub(in crate::node) fn on_rank_message(&mut self, token: u64, sequence: u32, message: ToAgent) {
        let unknown = !self.open.is_any() && self.opening.is_none();
        if unknown && matches!(message, ToAgent::Hello { .. }) {
            self.door.delay(token, sequence, message);
            return;
        }
        if let ToAgent::Hello {
            abi,
            rank,
            ranks,
            incarnation,
            ..
        } = message
        {
            let hello = Greeting {
                abi,
                rank,
                ranks,
                incarnation,
            };
            return self.on_hello(token, sequence, &hello);
        }
        let Some(rank) = self.rank_of(token) else {
            return;
        };
        match message {
            // Of services.
            ToAgent::Hello { .. } | ToAgent::Wait { .. } | ToAgent::Inject { .. } => {}
            ToAgent::Slab { version, bytes } => self.ask(rank, sequence, version, bytes, false),
            ToAgent::Captured {
                version,
                slot,
                generation,
                blocked_ns,
                forced,
                ..
            } => {
                self.on_captured(rank, version, slot, generation, blocked_ns, forced);
            }
            ToAgent::Failed { version, code } => self.on_failed(rank, version, code),
            ToAgent::Restore => self.give_restore(rank, sequence),
            ToAgent::Restored { version, code } => self.on_restored(rank, sequence, version, code),
            ToAgent::Route { version, name } => self.give_route(rank, sequence, version, &name),
            ToAgent::Force { version, bytes } => self.ask(rank, sequence, version, bytes, true),
            ToAgent::Close => self.close(rank, sequence),
        }
    }

    /// A rank could not capture a version.
    fn on_failed(&mut self, rank: Rank, version: Version, code: Code) {
        let error = Error::new(
            code,
            Entity::Rank(rank.0),
            format!("version {} was not captured: {}", version.0, code.text()),
            "the job goes on; see outlive_last_error of the rank",
        );
        self.warn(error);
        let why = match code {
            Code::MemoryBudget => Why::NoRoom,
            _ => Why::Storage,
        };
        // It waits no longer for what it asked for.
        self.asks.forget(rank);
        // It may have been captured past an armed one, in its place.
        let entry = self.ranks.get(rank);
        let armed = entry.and_then(|entry| entry.filling_up_to(version));
        if let Some((_, armed)) = armed.filter(|&(_, armed)| armed < version) {
            self.disarm_rank(rank, armed);
            self.capture_failed(rank, armed, why);
        }
        self.capture_failed(rank, version, why);
    }

    /// A rank has restored a version, or says why not.
    fn on_restored(&mut self, rank: Rank, sequence: u32, version: Version, code: Option<Code>) {
        if matches!(code, Some(Code::Corrupt | Code::SharedMemory)) {
            self.forget_capture(rank, version);
            return self.answer(rank, sequence, ToRank::Ok);
        }
        let outcome = match code {
            None => Ok(version),
            Some(code) => Err(Error::new(
                code,
                Entity::Rank(rank.0),
                format!(
                    "version {} does not fit the program: {}",
                    version.0,
                    code.text()
                ),
                "protect the same regions with the same sizes as when it was captured",
            )),
        };
        self.tell(&Notice::Restored { rank, outcome });
        self.answer(rank, sequence, ToRank::Ok);
    }

    fn give_restore(&mut self, rank: Rank, sequence: u32) {
        let Some((source, version)) = self.open.restored() else {
            return self.answer(rank, sequence, ToRank::Fresh);
        };
        let Some(entry) = self.ranks.get(rank) else {
            return;
        };
        let slab = entry
            .slot_with(source, version)
            .and_then(|slot| entry.slots[slot].staged.as_ref())
            .ok_or_else(|| {
                Error::new(
                    Code::NoValidCheckpoint,
                    Entity::Version(version.0),
                    "the restored bytes are not in memory any more",
                    "restore before the first checkpoint is taken",
                )
            })
            .map(|staged| &*staged.slab);
        match (slab, entry.link) {
            (Ok(slab), Some(link)) => {
                let capacity = slab.capacity();
                let message = ToRank::Restore { version, capacity };
                self.shell
                    .answer(link, sequence, &message, With::ReadOnly(slab));
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.answer(rank, sequence, ToRank::Error { error }),
        }
    }

    /// A rank cannot use its copy in memory: the next opening takes another.
    fn forget_capture(&mut self, rank: Rank, version: Version) {
        let restored = self.open.restored().filter(|(_, known)| *known == version);
        let Some((source, version)) = restored else {
            return;
        };
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        if let Some(slot) = entry.slot_with(source, version) {
            entry.slots[slot].usage = Use::Free;
            let unused = entry.slots[slot].staged.take();
            self.give_back(unused.map(|it| it.slab).into_iter().collect());
        }
        let reason = format!("version {} in staging memory is damaged", version.0);
        self.warn(overwritten(Entity::Rank(rank.0), &reason));
    }

    fn give_route(&mut self, rank: Rank, sequence: u32, version: Version, name: &str) {
        self.shell.ask(Ask::Route {
            rank,
            sequence,
            incarnation: self.open.incarnation(),
            version,
            name: name.to_owned(),
        });
    }

    /// Routed files of a captured version lie in the slab now.
    pub(super) fn drop_routed(&mut self, version: Version, rank: Rank) {
        self.shell.ask(Ask::DropRouted {
            rank,
            incarnation: self.open.incarnation(),
            version,
        });
    }
}
