//! Answers to the ranks of this node.

use outlive_base::control_block::ControlWords;
use outlive_base::ipc::{ToAgent, ToRank, VersionState};
use outlive_base::{Code, Entity, Error, Rank, Survives, Time, Version};
use outlive_protocols::commit::Why;

use super::joining::Hello;
use super::ranks::{Use, overwritten};
use super::shell::{Ask, Shell, Staging, With};
use super::{Node, Waiting};
use crate::orders::Notice;

impl<S: Shell> Node<S> {
    /// Answers the greetings that waited until an incarnation is open or opening.
    pub(super) fn greet_early(&mut self) {
        for (token, sequence, hello) in std::mem::take(&mut self.early) {
            self.on_rank_message(token, sequence, hello);
        }
    }

    pub(super) fn on_rank_message(&mut self, token: u64, sequence: u32, message: ToAgent) {
        let unknown = self.incarnation.0 == 0 && self.opening.is_none();
        if unknown && matches!(message, ToAgent::Hello { .. }) {
            self.early.push((token, sequence, message));
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
            let hello = Hello {
                abi,
                rank,
                ranks,
                incarnation,
            };
            return self.on_hello(token, sequence, &hello);
        }
        let Some(rank) = self.ranks.by_token(token).map(|entry| entry.rank) else {
            return;
        };
        match message {
            ToAgent::Hello { .. } => {}
            ToAgent::Slab { version, bytes } => self.ask(rank, sequence, version, bytes, false),
            ToAgent::Captured {
                version,
                slot,
                generation,
                blocked_ns,
                ..
            } => {
                self.on_captured(rank, version, slot, generation, blocked_ns);
            }
            ToAgent::Failed { version, code } => self.on_failed(rank, version, code),
            ToAgent::Wait {
                version,
                survives,
                timeout_ms,
            } => {
                let until = self.now + Time::from_ms(u64::from(timeout_ms));
                let waiting = Waiting {
                    rank,
                    sequence,
                    version,
                    survives,
                    until,
                };
                // A rank waits for one thing at a time.
                self.waits.retain(|waiting| waiting.rank != rank);
                self.waits.push(waiting);
                self.answer_waits();
            }
            ToAgent::Restore => self.give_restore(rank, sequence),
            ToAgent::Restored { version, code } => self.on_restored(rank, sequence, version, code),
            ToAgent::Route { version, name } => self.give_route(rank, sequence, version, &name),
            ToAgent::Inject { version } => self.hold(rank, sequence, version),
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
        self.asks.retain(|ask| ask.rank != rank);
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

    pub(super) fn answer(&mut self, rank: Rank, sequence: u32, message: ToRank) {
        if let Some(link) = self.ranks.get(rank).and_then(|entry| entry.link) {
            self.shell.answer(link, sequence, &message, With::Nothing);
        }
    }

    fn give_restore(&mut self, rank: Rank, sequence: u32) {
        let Some((source, version)) = self.restored else {
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
        let restored = self.restored.filter(|(_, known)| *known == version);
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
            incarnation: self.incarnation,
            version,
            name: name.to_owned(),
        });
    }

    /// Routed files of a captured version lie in the slab now.
    pub(super) fn drop_routed(&mut self, version: Version, rank: Rank) {
        self.shell.ask(Ask::DropRouted {
            rank,
            incarnation: self.incarnation,
            version,
        });
    }

    fn hold(&mut self, rank: Rank, sequence: u32, version: Version) {
        let mut tell = Vec::new();
        let mut held = false;
        for injection in &mut self.injections {
            let here = injection.rank.is_none_or(|wanted| wanted == rank);
            if here && version >= injection.version {
                if !injection.told {
                    injection.told = true;
                    tell.push(Notice::InjectReached {
                        id: injection.id,
                        version: Some(version),
                    });
                }
                injection.held.push((rank, sequence));
                held = true;
            }
        }
        for notice in tell {
            self.tell(&notice);
        }
        if !held {
            self.answer(rank, sequence, ToRank::Ok);
        }
    }

    /// Lets the ranks go on that an injection holds.
    pub(super) fn release_held(&mut self, id: u32) {
        let Some(at) = self
            .injections
            .iter()
            .position(|injection| injection.id == id)
        else {
            return;
        };
        let injection = self.injections.remove(at);
        self.set_injections();
        for (rank, sequence) in injection.held {
            self.answer(rank, sequence, ToRank::Ok);
        }
    }

    /// Writes the smallest injected version into each control block.
    pub(super) fn set_injections(&mut self) {
        for entry in self.ranks.iter() {
            let first = self
                .injections
                .iter()
                .filter(|injection| injection.rank.is_none_or(|rank| rank == entry.rank))
                .map(|injection| injection.version)
                .min();
            if let Some(block) = entry.block() {
                block.set_inject(first);
            }
        }
    }

    /// True if `version` is known here, and no level is left to it that survives this: given
    /// up there, or by the policy not meant to go so far.
    fn cannot_be_committed(&self, version: Version, survives: Survives) -> bool {
        // After a restart of this agent the levels come later.
        let unknown = |round: &super::Round| round.levels.is_empty() && !round.void;
        if self.rounds.get(&version).is_some_and(unknown) {
            return false;
        }
        let left = self.line.levels.get(&(self.incarnation, version));
        left.is_some_and(|left| !left.iter().any(|level| level.survives() >= survives))
    }

    /// Answers the waits that are decided or whose time has passed.
    pub(super) fn answer_waits(&mut self) {
        let now = self.now;
        let mut rest = Vec::new();
        for waiting in std::mem::take(&mut self.waits) {
            let aborted = self
                .ranks
                .get_mut(waiting.rank)
                .and_then(|entry| entry.block()?.aborted());
            let mut stable = self.stable.iter();
            let stable = stable.any(|(level, (_, version))| {
                level.survives() >= waiting.survives && *version >= waiting.version
            });
            let over = aborted == Some(waiting.version)
                || self.cannot_be_committed(waiting.version, waiting.survives);
            let state = if stable {
                VersionState::Committed
            } else if over {
                VersionState::Aborted
            } else if now >= waiting.until {
                VersionState::Pending
            } else {
                rest.push(waiting);
                continue;
            };
            let Waiting {
                rank,
                sequence,
                version,
                survives,
                ..
            } = waiting;
            self.answer(
                rank,
                sequence,
                ToRank::State {
                    version,
                    survives,
                    state,
                },
            );
        }
        self.waits = rest;
    }
}
