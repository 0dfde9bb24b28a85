//! Answers to the ranks of this node.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Incarnation, Level, Rank, Result, Version};
use outlive_capture::control::{CONTROL_ABI, ControlBlock};
use outlive_capture::ipc::{Connection, ToAgent, ToRank, VersionState};
use outlive_capture::slab::Slab;
use outlive_protocols::commit::{Command, Why};

use crate::core::{Agent, Waiting};
use crate::ipc_server::IpcEvent;
use crate::protocol::{Notice, RankEnd};
use crate::ranks::{Link, Use, control_tag, no_memory, node_of, share};

/// Longest time a rank is held at an injection's version.
const HOLD_MAX: Duration = Duration::from_secs(10);

/// Longest time a forced capture waits for a slot that is being written or made: less
/// than a rank waits for its agent by default.
const FORCE_PATIENCE: Duration = Duration::from_secs(5);

/// A forced capture that waits for a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forced {
    rank: Rank,
    sequence: u32,
    version: Version,
    bytes: u64,
    until: Instant,
}

impl Agent {
    pub(crate) fn on_rank_event(&mut self, event: IpcEvent) {
        match event {
            IpcEvent::Connected { token, socket, pid } => {
                self.strangers.insert(token, (socket, pid));
            }
            IpcEvent::Message {
                token,
                sequence,
                message,
            } => {
                self.on_rank_message(token, sequence, message);
            }
            IpcEvent::Gone { token, exited } => self.on_rank_gone(token, exited),
            IpcEvent::Trouble(error) => self.warn(error),
        }
    }

    /// Answers the greetings that waited until an incarnation is open or opening.
    pub(crate) fn greet_early(&mut self) {
        for (token, sequence, hello) in std::mem::take(&mut self.early) {
            self.on_rank_message(token, sequence, hello);
        }
    }

    fn on_rank_message(&mut self, token: u64, sequence: u32, message: ToAgent) {
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
            let Some((socket, pid)) = self.strangers.remove(&token) else {
                return;
            };
            let refused = self.welcome(
                token,
                sequence,
                &socket,
                pid,
                (abi, rank, ranks, incarnation),
            );
            if let Err(error) = refused {
                let _ = socket.send(
                    sequence,
                    &ToRank::Error {
                        error: error.clone(),
                    },
                    None,
                    None,
                );
                self.strangers.insert(token, (socket, pid));
                self.warn(error);
            }
            return;
        }
        let Some(rank) = self.ranks.by_token(token).map(|entry| entry.rank) else {
            return;
        };
        match message {
            ToAgent::Hello { .. } => {}
            ToAgent::Slab { version, bytes } => self.give_slab(rank, sequence, version, bytes),
            ToAgent::Captured {
                version,
                slot,
                generation,
                blocked_ns,
                ..
            } => {
                self.on_captured(rank, version, slot, generation, blocked_ns);
            }
            ToAgent::Failed { version, code } => {
                let error = Error::new(
                    code,
                    Entity::Rank(rank.0),
                    format!("version {} was not captured: {}", version.0, code.text()),
                    "the job goes on; see outlive_last_error of the rank",
                );
                self.warn(error);
                let why = if code == Code::MemoryBudget {
                    Why::NoRoom
                } else {
                    Why::Storage
                };
                // It may have been captured past an armed one, in its place.
                let entry = self.ranks.get(rank);
                let armed = entry.and_then(|entry| entry.filling_up_to(version));
                if let Some((_, armed)) = armed.filter(|&(_, armed)| armed < version) {
                    self.disarm_rank(rank, armed);
                    self.capture_failed(rank, armed, why);
                }
                self.capture_failed(rank, version, why);
            }
            ToAgent::Wait {
                version,
                level,
                timeout_ms,
            } => {
                let until = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
                let waiting = Waiting {
                    rank,
                    sequence,
                    version,
                    level,
                    until,
                };
                self.waits.push(waiting);
                self.answer_waits();
            }
            ToAgent::Restore => self.give_restore(rank, sequence),
            ToAgent::Restored { version, code } => {
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
            ToAgent::Route { version, name } => self.give_route(rank, sequence, version, &name),
            ToAgent::Inject { version } => self.hold(rank, sequence, version),
            ToAgent::Force { version, bytes } => self.force(Forced {
                rank,
                sequence,
                version,
                bytes,
                until: Instant::now() + FORCE_PATIENCE,
            }),
            ToAgent::Close => self.close(rank, sequence),
        }
    }

    pub(crate) fn answer(&mut self, rank: Rank, sequence: u32, message: ToRank) {
        if let Some(entry) = self.ranks.get_mut(rank) {
            entry.answer(sequence, &message, None);
        }
    }

    fn welcome(
        &mut self,
        token: u64,
        sequence: u32,
        socket: &Arc<Connection>,
        pid: u32,
        (abi, rank, ranks, incarnation): (u32, Rank, u32, Incarnation),
    ) -> Result<()> {
        self.may_join(abi, rank, ranks, incarnation)?;
        let (me, nodes) = (self.me, self.nodes());
        let restore = self.restored.map(|(_, version)| version);
        let entry = self.ranks.entry(rank, ranks);
        entry.ranks = ranks;
        if entry.control.is_none() {
            entry.control =
                Some(ControlBlock::create(rank, ranks, me, incarnation).map_err(share)?);
            if let Some(deposit) = &self.deposit
                && let Some((_, fd)) = &entry.control
            {
                deposit.keep(&control_tag(rank), fd.as_fd())?;
            }
        }
        entry.closed = false;
        entry.link = Some(Link {
            token,
            socket: Arc::clone(socket),
            pid,
        });
        let fd = entry.control.as_ref().map(|(_, fd)| fd);
        entry.answer(
            sequence,
            &ToRank::Welcome {
                node: me,
                incarnation,
                restore,
            },
            fd,
        );
        let members = (0..nodes).map(outlive_base::NodeId).collect();
        self.contents.set_job(members, ranks);
        for level in Level::ALL {
            if let Some((_, version)) = self.stable[level as usize] {
                self.ranks.set_committed(level, version);
            }
        }
        self.set_injections();
        self.tell(&Notice::RankUp { rank, ranks, pid });
        Ok(())
    }

    fn may_join(&self, abi: u32, rank: Rank, ranks: u32, incarnation: Incarnation) -> Result<()> {
        let entity = Entity::Rank(rank.0);
        if abi != CONTROL_ABI {
            return Err(Error::new(
                Code::PeerVersion,
                entity,
                format!("its library speaks version {abi}, this agent {CONTROL_ABI}"),
                "link the program against the same installation as the command outlive",
            ));
        }
        if self.opening.is_some() || incarnation != self.incarnation {
            return Err(Error::new(
                Code::RankLost,
                entity,
                format!(
                    "belongs to start {}, open is {}",
                    incarnation.0, self.incarnation.0
                ),
                "processes of an earlier start must end; start ranks through outlive run only",
            ));
        }
        let nodes = self.nodes();
        if rank.0 >= ranks || node_of(rank, ranks, nodes) != self.me {
            return Err(Error::new(
                Code::RankUnknown,
                entity,
                format!("of {ranks} does not live on node {} of {nodes}", self.me.0),
                "start the ranks in blocks, in the order of the nodes",
            ));
        }
        let expected = self
            .restored
            .and_then(|(source, version)| self.contents.ranks_of(source, version))
            .or_else(|| self.ranks.job_ranks());
        match expected {
            Some(expected) if expected != ranks && expected != 0 => Err(Error::new(
                Code::RankCount,
                entity,
                format!("the job has {ranks} ranks, the checkpoint {expected}"),
                "start with the same number of ranks, or use another --job name (or --fresh)",
            )),
            _ => Ok(()),
        }
    }

    fn on_rank_gone(&mut self, token: u64, exited: bool) {
        self.strangers.remove(&token);
        self.early.retain(|(early, ..)| *early != token);
        // A rank that connected anew has another token: this one is its past.
        let Some(entry) = self.ranks.by_last_token(token) else {
            return;
        };
        let (rank, closed) = (entry.rank, entry.closed);
        let pid = entry.process.map_or(0, |(_, pid)| pid);
        entry.link = None;
        if exited {
            entry.process = None;
        }
        self.waits.retain(|waiting| waiting.rank != rank);
        self.forces.retain(|forced| forced.rank != rank);
        if !closed {
            let why = if exited { Why::RankLost } else { Why::Left };
            let open: Vec<Version> = self.rounds.keys().copied().collect();
            for version in open {
                self.capture_failed(rank, version, why);
            }
        }
        if exited {
            let end = if closed {
                RankEnd::Closed
            } else {
                RankEnd::Lost
            };
            self.tell(&Notice::RankDown { rank, pid, end });
        }
    }

    fn close(&mut self, rank: Rank, sequence: u32) {
        if let Some(entry) = self.ranks.get_mut(rank) {
            entry.closed = true;
            entry.answer(sequence, &ToRank::Ok, None);
        }
        let open: Vec<Version> = self.rounds.keys().copied().collect();
        for version in open {
            self.capture_failed(rank, version, Why::Left);
        }
    }

    /// A rank needs the slab of an armed version, for the first time or larger.
    fn give_slab(&mut self, rank: Rank, sequence: u32, version: Version, bytes: u64) {
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let slot = entry.filling_up_to(version).map(|(slot, _)| slot);
        let result = match slot {
            Some(slot) => self.slab_of_at_least(rank, slot, bytes),
            None => Err(Error::new(
                Code::CommitAborted,
                Entity::Version(version.0),
                "is not armed any more",
                "nothing to do: the next version will be offered",
            )),
        };
        self.send_slab(rank, sequence, version, result.map(|()| slot.unwrap_or(0)));
    }

    pub(crate) fn send_slab(
        &mut self,
        rank: Rank,
        sequence: u32,
        version: Version,
        slot: Result<usize>,
    ) {
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        let staged = slot.and_then(|slot| {
            let staged = entry.slots[slot].staged.as_ref();
            staged
                .map(|staged| (slot, staged))
                .ok_or_else(|| Error::internal("no slab"))
        });
        match staged {
            Ok((slot, staged)) => {
                let message = ToRank::Slab {
                    version,
                    slot: slot as u32,
                    generation: staged.generation,
                    capacity: staged.slab.capacity(),
                };
                entry.answer(sequence, &message, Some(&staged.fd));
            }
            Err(error) => {
                entry.answer(
                    sequence,
                    &ToRank::Error {
                        error: error.clone(),
                    },
                    None,
                );
                self.warn(error);
            }
        }
    }

    /// Makes sure that a slot has a slab of at least `bytes`, now. The rank waits,
    /// so this is done here and not by a worker; it is rare: regions grew between
    /// arming and capture, or a checkpoint was forced before any was armed.
    pub(crate) fn slab_of_at_least(&mut self, rank: Rank, slot: usize, bytes: u64) -> Result<()> {
        let used = self.ranks.memory();
        let budget = self.spec.memory_bytes;
        let (job, incarnation) = (self.spec.job_hash, self.incarnation);
        let Some(entry) = self.ranks.get_mut(rank) else {
            return Err(Error::internal("an unknown rank asks for memory"));
        };
        if entry.slots[slot].capacity() >= bytes {
            return Ok(());
        }
        let after = (used - entry.slots[slot].capacity()).saturating_add(bytes);
        if after > budget {
            return Err(no_memory(self.me.0, after, budget));
        }
        let usage = entry.slots[slot].usage;
        // The old slab goes first: both together would break the bound.
        entry.slots[slot].staged = None;
        let (slab, fd) = Slab::create(bytes).map_err(share)?;
        entry.install(slot, slab, fd, usage);
        entry.stamp(slot, job, incarnation)?;
        self.keep_slab(rank, slot);
        Ok(())
    }

    fn give_restore(&mut self, rank: Rank, sequence: u32) {
        let Some((source, version)) = self.restored else {
            return self.answer(rank, sequence, ToRank::Fresh);
        };
        let Some(entry) = self.ranks.get_mut(rank) else {
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
            .and_then(|staged| {
                let fd = Slab::read_only(staged.fd.as_fd()).map_err(share)?;
                Ok((staged.slab.capacity(), fd))
            });
        match slab {
            Ok((capacity, fd)) => {
                entry.answer(sequence, &ToRank::Restore { version, capacity }, Some(&fd));
            }
            Err(error) => entry.answer(sequence, &ToRank::Error { error }, None),
        }
    }

    fn give_route(&mut self, rank: Rank, sequence: u32, version: Version, name: &str) {
        let directory = self.routed_dir(version, rank);
        let made = self
            .faults
            .before_write(0)
            .and_then(|()| std::fs::create_dir_all(&directory))
            .map_err(|error| Error::io(&directory, "create a directory for routed files", &error));
        let message = match made {
            Ok(()) => ToRank::Path {
                path: directory.join(name).display().to_string(),
            },
            Err(error) => ToRank::Error { error },
        };
        self.answer(rank, sequence, message);
    }

    /// Where a rank writes its own files of a version.
    fn routed_dir(&self, version: Version, rank: Rank) -> PathBuf {
        let name = format!("i{}-v{}-r{}", self.incarnation.0, version.0, rank.0);
        self.store.files().join(name)
    }

    /// Routed files of a captured version lie in the slab now.
    pub(crate) fn drop_routed(&mut self, version: Version, rank: Rank) {
        self.remove_later(self.routed_dir(version, rank));
    }

    /// Removes a directory without waiting for it; what is left is removed when the
    /// next incarnation opens.
    pub(crate) fn remove_later(&mut self, directory: PathBuf) {
        let job = move || {
            if let Err(error) = std::fs::remove_dir_all(&directory)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(%error, directory = %directory.display(), "not removed");
            }
        };
        if let Err(error) = self.incoming.run(job) {
            tracing::warn!(%error, "routed files stay");
        }
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
    pub(crate) fn release_held(&mut self, id: u32) {
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
    pub(crate) fn set_injections(&mut self) {
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

    /// How long a rank may be held; used for the launcher's bound too.
    pub(crate) const fn hold_max() -> Duration {
        HOLD_MAX
    }

    /// True if `version` is known here, and neither `level` nor a stronger one is left to
    /// it: given up there, or by the policy not meant to go so far.
    fn cannot_be_committed(&self, version: Version, level: Level) -> bool {
        // After a restart of this agent the levels come later.
        let unknown = |round: &crate::core::Round| round.levels.is_empty() && !round.void;
        if self.rounds.get(&version).is_some_and(unknown) {
            return false;
        }
        let left = self.line.levels.get(&(self.incarnation, version));
        left.is_some_and(|left| left.range(level..).next().is_none())
    }

    /// Answers the waits that are decided or whose time has passed.
    pub(crate) fn answer_waits(&mut self) {
        let now = Instant::now();
        let mut rest = Vec::new();
        for waiting in std::mem::take(&mut self.waits) {
            let aborted = self
                .ranks
                .get_mut(waiting.rank)
                .and_then(|entry| entry.block()?.aborted());
            let stable = self.stable[waiting.level as usize..]
                .iter()
                .flatten()
                .any(|(_, version)| *version >= waiting.version);
            let over = aborted == Some(waiting.version)
                || self.cannot_be_committed(waiting.version, waiting.level);
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
                level,
                ..
            } = waiting;
            self.answer(
                rank,
                sequence,
                ToRank::State {
                    version,
                    level,
                    state,
                },
            );
        }
        self.waits = rest;
    }

    /// A forced version comes before memory that is being made ahead of need, and
    /// before one that is armed only, if there is no free slot.
    fn make_way(&mut self, rank: Rank, version: Version) {
        let reuse = self.reuse();
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        if entry.free_slot(reuse).is_none()
            && let Some(slot) = entry.slots.iter_mut().find(|slot| slot.usage == Use::Busy)
        {
            // What the worker makes for it is not taken any more.
            slot.usage = Use::Free;
        }
        let armed = entry.block().and_then(|block| block.armed());
        if let Some(armed) = armed.filter(|armed| armed.version > version)
            && entry.free_slot(reuse).is_none()
        {
            self.disarm_rank(rank, armed.version);
            self.capture_failed(rank, armed.version, Why::NoRoom);
        }
    }

    /// Tries again what waits for a slot; within its bound it goes on waiting.
    pub(crate) fn try_forces(&mut self) {
        for forced in std::mem::take(&mut self.forces) {
            self.force(forced);
        }
    }

    /// A checkpoint that the ranks take whatever the policy says. While the slots are
    /// being written or made the answer waits, up to a bound.
    fn force(&mut self, forced: Forced) {
        let Forced {
            rank,
            sequence,
            version,
            bytes,
            until,
        } = forced;
        self.make_way(rank, version);
        let keep = self.reuse();
        let Some(entry) = self.ranks.get_mut(rank) else {
            return;
        };
        if entry.block().and_then(|block| block.aborted()) == Some(version) {
            let error = Error::new(
                Code::CommitAborted,
                Entity::Version(version.0),
                "was given up before this rank reached it",
                "force the next version",
            );
            return self.send_slab(rank, sequence, version, Err(error));
        }
        let slot = entry
            .slots
            .iter()
            .position(|slot| slot.usage == Use::Filling(version))
            .or_else(|| entry.free_slot(keep));
        let Some(slot) = slot else {
            if Instant::now() < until && self.finishing.is_none() {
                return self.forces.push(forced);
            }
            let error = Error::new(
                Code::AgentTimeout,
                Entity::Rank(rank.0),
                format!(
                    "the slots are still being written after {} ms",
                    FORCE_PATIENCE.as_millis()
                ),
                "wait for the previous version (outlive_wait) before forcing another",
            );
            return self.send_slab(rank, sequence, version, Err(error));
        };
        entry.slots[slot].usage = Use::Filling(version);
        let (job, incarnation) = (self.spec.job_hash, self.incarnation);
        let ready = self.slab_of_at_least(rank, slot, bytes).and_then(|()| {
            match self.ranks.get_mut(rank) {
                Some(entry) => entry.stamp(slot, job, incarnation).map(|_| slot),
                None => Err(Error::internal("an unknown rank forces a version")),
            }
        });
        if ready.is_err()
            && let Some(entry) = self.ranks.get_mut(rank)
        {
            entry.slots[slot].usage = Use::Free;
        }
        let levels = self.all_levels();
        let failed = ready.is_err();
        self.send_slab(rank, sequence, version, ready);
        if !self.rounds.contains_key(&version) {
            self.open_round(version, levels);
            self.command(Command::Force { version, levels });
        }
        if failed {
            self.capture_failed(rank, version, Why::NoRoom);
        }
    }
}
