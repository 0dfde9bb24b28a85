//! How a process becomes a rank of this node, and how it ends.
//!
//! Invariant: a rank is one living process.

use outlive_base::control_block::ControlWords;
use outlive_base::control_block::{CONTROL_ABI, Identity};
use outlive_base::ipc::ToRank;
use outlive_base::placement::{node_of, ranks_of};
use outlive_base::{Code, Entity, Error, Incarnation, Rank, Result, Version};
use outlive_protocols::commit::Why;

use super::{Core, News, Planted};
use crate::node::shell::{Link, Shell, With};
use crate::orders::{Notice, RankEnd};

/// Most connections of processes at once: a bound against a program that leaks them.
pub const CONNECTIONS_MAX: usize = 16_384;

/// What a process says that it is.
pub(super) struct Greeting {
    pub abi: u32,
    pub rank: Rank,
    pub ranks: u32,
    pub incarnation: Incarnation,
}

impl<S: Shell> Core<S> {
    /// A process has connected; who it is comes later.
    pub(in crate::node) fn on_stranger(&mut self, link: Link) {
        self.door.keep(link);
    }

    /// A process says which rank it is.
    pub(super) fn on_hello(&mut self, token: u64, sequence: u32, hello: &Greeting) {
        let Some(link) = self.door.take(token) else {
            return;
        };
        let &Greeting { rank, ranks, .. } = hello;
        let may = self
            .may_join(hello)
            .and_then(|()| self.is_vacant(rank, ranks, link.pid))
            .and_then(|()| self.is_the_same(rank, ranks, link.pid));
        match may.and_then(|()| self.control_of(rank, ranks)) {
            Ok(()) => self.welcome(sequence, link, rank, ranks),
            Err(error) => {
                let answer = ToRank::Error {
                    error: error.clone(),
                };
                self.shell.answer(link, sequence, &answer, With::Nothing);
                self.door.keep(link);
                self.warn(error);
            }
        }
    }

    /// Makes the rank's control block of this incarnation, unless it is there.
    pub(super) fn control_of(&mut self, rank: Rank, ranks: u32) -> Result<()> {
        let (me, incarnation) = (self.me, self.open.incarnation());
        let entry = self.ranks.entry(rank, ranks);
        entry.ranks = ranks;
        if entry.control.is_none() {
            entry.control = Some(self.shell.make_block(Identity {
                rank,
                ranks,
                node: me,
                incarnation,
            })?);
        }
        Ok(())
    }

    fn welcome(&mut self, sequence: u32, link: Link, rank: Rank, ranks: u32) {
        let (me, nodes, incarnation) = (self.me, self.nodes(), self.open.incarnation());
        let restore = self.open.restored().map(|(_, version)| version);
        let pid = link.pid;
        let levels = self.all_levels();
        let entry = self.ranks.entry(rank, ranks);
        entry.closed = false;
        entry.process = Some((link.token, pid));
        entry.link = Some(link);
        if let Some(block) = entry.block() {
            block.set_levels(levels);
        }
        let welcome = ToRank::Welcome {
            node: me,
            incarnation,
            restore,
        };
        let with = entry.block().map_or(With::Nothing, With::Block);
        self.shell.answer(link, sequence, &welcome, with);
        let members = (0..nodes).map(outlive_base::NodeId).collect();
        self.contents.set_job(members, ranks);
        for (level, (_, version)) in &self.line.newest {
            self.ranks.set_committed(*level, *version);
        }
        self.news(News::Joined);
        self.tell(&Notice::RankUp { rank, ranks, pid });
    }

    /// Says to the launcher who this is.
    pub(in crate::node) fn say_hello(&mut self) {
        let ranks = self.ranks.iter().filter_map(|entry| {
            let link = entry.link.as_ref()?;
            Some((entry.rank, link.pid))
        });
        let notice = Notice::Hello {
            address: self.hello.address,
            pid: self.hello.pid,
            keeper_pid: self.hello.keeper_pid,
            restarts: self.restarts.unwrap_or(0),
            ranks: ranks.collect(),
            heard: self.config.as_ref().map(|config| config.revision),
        };
        self.tell(&notice);
    }

    /// Says to the launcher, on a new connection, who this is and who is here.
    pub(super) fn introduce(&mut self) {
        self.say_hello();
        let linked = self.ranks.iter().filter_map(|entry| {
            let pid = entry.link.as_ref()?.pid;
            let (rank, ranks) = (entry.rank, entry.ranks);
            (!entry.closed).then_some(Notice::RankUp { rank, ranks, pid })
        });
        for notice in linked.collect::<Vec<_>>() {
            self.tell(&notice);
        }
    }

    /// One living process is a rank, not two: they would share a control block, and one
    /// would restore the state of the other.
    fn is_vacant(&mut self, rank: Rank, ranks: u32, pid: u32) -> Result<()> {
        if self.is_planted(Planted::TakeSecondProcess) {
            return Ok(());
        }
        let holder = self.ranks.get(rank).filter(|entry| !entry.closed);
        let holder = holder.and_then(|entry| entry.link);
        let Some(holder) = holder.filter(|&link| self.shell.is_live(link)) else {
            return Ok(());
        };
        if holder.pid != pid && ranks == 1 {
            self.door.contest(|| self.shell.command_of(holder.pid));
        }
        let (reason, remedy) = if holder.pid == pid {
            (
                format!("of {ranks} is open in this process ({pid}) already"),
                "use the handle that is open, or close it before another is opened",
            )
        } else if ranks == 1 {
            (
                format!("of 1 is process {}, which lives; this is {pid}", holder.pid),
                "a process that finds no variables of a launcher takes itself for rank 0 of 1: \
                 pass rank and ranks when opening the job, or set OUTLIVE_RANK and OUTLIVE_SIZE",
            )
        } else {
            (
                format!(
                    "of {ranks} is process {}, which lives; this is {pid}",
                    holder.pid
                ),
                "give each process a rank of its own; a forked child is none",
            )
        };
        Err(Error::new(
            Code::RankUnknown,
            Entity::Rank(rank.0),
            reason,
            remedy,
        ))
    }

    /// Several processes took themselves for the only rank: after a restart another of
    /// them may be the first, and must not restore the state of the one that was it.
    fn is_the_same(&self, rank: Rank, ranks: u32, pid: u32) -> Result<()> {
        let Some(was) = self.door.contested().filter(|_| ranks == 1) else {
            return Ok(());
        };
        match self.shell.command_of(pid) {
            Some(is) if is != *was => Err(Error::new(
                Code::RankUnknown,
                Entity::Rank(rank.0),
                format!(
                    "of 1 was a process with another command line or working directory, \
                     while others took themselves for it too; this is {pid}"
                ),
                "give each process a rank of its own (OUTLIVE_RANK and OUTLIVE_SIZE), \
                 or a job of its own",
            )),
            _ => Ok(()),
        }
    }

    fn may_join(&self, hello: &Greeting) -> Result<()> {
        let &Greeting {
            abi,
            rank,
            ranks,
            incarnation,
        } = hello;
        let entity = Entity::Rank(rank.0);
        if abi != CONTROL_ABI {
            return Err(Error::new(
                Code::PeerVersion,
                entity,
                format!("its library speaks version {abi}, this agent {CONTROL_ABI}"),
                "link the program against the same installation as the command outlive",
            ));
        }
        if self.opening.is_some() || incarnation != self.open.incarnation() {
            return Err(Error::new(
                Code::RankLost,
                entity,
                format!(
                    "belongs to start {}, open is {}",
                    incarnation.0,
                    self.open.incarnation().0
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
        let here = ranks_of(self.me, ranks, nodes).size_hint().0;
        if here > CONNECTIONS_MAX {
            return Err(Error::new(
                Code::RankUnknown,
                entity,
                format!("of {ranks}: {here} of them would live here, {CONNECTIONS_MAX} can"),
                "check the number of ranks that the program passes, or use more nodes",
            ));
        }
        let expected = self
            .open
            .restored()
            .and_then(|(source, version)| self.contents.ranks_of(source, version))
            .or_else(|| self.ranks.job_ranks());
        match expected {
            Some(expected) if expected != ranks && expected != 0 => Err(Error::new(
                Code::RankCount,
                entity,
                format!(
                    "the job has {}, the checkpoint {expected}",
                    outlive_base::count(ranks, "rank")
                ),
                "start with the same number of ranks, or use another --job name (or --fresh)",
            )),
            _ => Ok(()),
        }
    }

    /// A connection is closed, or its process has ended.
    pub(in crate::node) fn on_rank_gone(&mut self, token: u64, exited: bool) {
        self.door.forget(token);
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
        self.news(News::Gone(rank));
        self.asks.forget(rank);
        if !closed {
            if exited {
                let open: Vec<Version> = self.rounds.keys().copied().collect();
                for version in open {
                    self.capture_failed(rank, version, Why::RankLost);
                }
            } else {
                self.leaves(rank);
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

    pub(super) fn close(&mut self, rank: Rank, sequence: u32) {
        if let Some(entry) = self.ranks.get_mut(rank) {
            entry.closed = true;
        }
        self.answer(rank, sequence, ToRank::Ok);
        self.leaves(rank);
    }

    /// A rank takes part in nothing more. What it has captured stays: other ranks of its node may still
    /// be capturing the job's last version.
    fn leaves(&mut self, rank: Rank) {
        let all = self.is_planted(Planted::LeaveWithCapture);
        let lacks = |(version, round): (&Version, &super::Round)| {
            (all || !round.captured.contains(&rank)).then_some(*version)
        };
        let open: Vec<Version> = self.rounds.iter().filter_map(lacks).collect();
        for version in open {
            self.capture_failed(rank, version, Why::Left);
        }
    }
}
