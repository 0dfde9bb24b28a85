//! Ranks that leave versions out.
//!
//! A program may offer a checkpoint at every thousandth step only. What is armed is
//! then a bound: a rank captures the first version that it offers at or past it. Which
//! one that is shows with the first capture; it goes on as a forced version does, and
//! the other nodes are asked to join.
//!
//! Invariants: a slot is armed, being filled, or holds a capture of which the message
//! is under way; what is none of these is found by [`Agent::find_passed`], so that no
//! round waits for a rank that has gone on.

use std::time::Instant;

use outlive_base::placement::ranks_of;
use outlive_base::{NodeId, Rank, Version};
use outlive_protocols::commit::{Command, Levels, Why};

use crate::core::Agent;
use crate::ranks::{RankEntry, Use};
use outlive_control::orders::{Notice, Step};

/// Where a rank is with a version for which it has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It has not come so far, or is about to enter.
    Armed,
    /// It is capturing, or has seen in vain whether it should.
    Inside,
    /// It has captured; the message is under way.
    Captured,
    /// It has offered the version, and not gone on.
    There,
    /// It has gone on without a capture, or left the job.
    Passed,
}

impl RankEntry {
    /// The slot that is armed for `version` or for an earlier one, or that a rank fills.
    pub fn filling_up_to(&self, version: Version) -> Option<(usize, Version)> {
        let slots = self.slots.iter().enumerate();
        let filling = slots.filter_map(|(slot, at)| match at.usage {
            Use::Filling(armed) if armed <= version => Some((slot, armed)),
            _ => None,
        });
        filling.max_by_key(|&(_, armed)| armed)
    }

    fn is_armed(&self, version: Version) -> bool {
        let armed = self.block().and_then(|block| block.armed());
        armed.is_some_and(|armed| armed.version == version)
    }

    /// Only what is not armed any more can have been passed: as long as it is, a rank
    /// that has made its offer may be about to enter.
    fn way(&self, slot: usize, version: Version) -> Way {
        let Some(block) = self.block() else {
            return Way::Passed;
        };
        if self.is_armed(version) {
            return Way::Armed;
        }
        // In this order: a rank captures, then leaves, then offers the next.
        let offered = block.called();
        if block.entered().is_some() {
            return Way::Inside;
        }
        match self.holds_capture(slot, version) {
            true => Way::Captured,
            false if offered == version.0 + 1 && !self.closed => Way::There,
            false => Way::Passed,
        }
    }

    /// True if a rank has captured `version` or a later one into a slot. A slot is
    /// emptied when it is armed: what is in it came after that.
    pub fn holds_capture(&self, slot: usize, version: Version) -> bool {
        self.slots[slot].staged.as_ref().is_some_and(|staged| {
            let head = staged.slab.head();
            head.is_ok_and(|head| head.state.is_complete() && head.version >= version)
        })
    }
}

impl Agent {
    /// Ranks of other nodes capture `version` without its having been armed.
    pub(crate) fn on_join(&mut self, version: Version, levels: Levels) {
        if let Some(round) = self.rounds.get(&version) {
            // Met by an agent that was started anew: its levels come with this.
            if round.levels.is_empty() && !round.void {
                self.resume_round(version, levels);
            }
            return;
        }
        self.open_round(version, levels);
        if self.has_no_rank() {
            return self.all_captured_here(version);
        }
        let (job, incarnation, reuse) = (self.spec.job_hash, self.incarnation, self.reuse());
        for entry in self.ranks.iter_mut() {
            // Of what is armed already the ranks make this version by themselves.
            if entry.block().is_none_or(|block| block.armed().is_some())
                || entry.filling_up_to(version).is_some()
            {
                continue;
            }
            let needed = entry.block().map_or(0, |block| block.bytes_needed());
            if let Some(slot) = entry.free_slot(reuse)
                && needed > 0
                && entry.slots[slot].capacity() >= needed
                && entry.stamp(slot, job, incarnation).is_ok()
            {
                entry.slots[slot].usage = Use::Filling(version);
                arm(entry, slot, version);
            }
        }
        self.find_passed();
    }

    /// True unless a rank lives here or is said to: those that ever did are known, after
    /// a restart of this agent too.
    pub(crate) fn may_have_no_rank(&self) -> bool {
        let none = self.ranks.iter().next().is_none();
        none && (self.ranks_of_job().is_none() || self.has_no_rank())
    }

    /// A node without ranks hears how many the job has: with their first word, while
    /// others may have begun a version already, which waits for this node.
    pub(crate) fn capture_nothing(&mut self) {
        if !self.has_no_rank() {
            return;
        }
        if let Some((version, levels, _)) = self.deferred.take() {
            self.on_arm(version, levels);
        }
        let waiting = self.rounds.iter().filter(|(_, round)| {
            // What comes without levels was met after a restart; they follow.
            !round.told && !round.void && !round.levels.is_empty()
        });
        let waiting: Vec<Version> = waiting.map(|(&version, _)| version).collect();
        for version in waiting {
            self.all_captured_here(version);
        }
    }

    /// A rank has captured `version` into the slot that was armed for `armed`, which it
    /// leaves out: all ranks offer the same, so all will capture this one.
    pub(crate) fn captured_past(&mut self, rank: Rank, armed: Version, version: Version) {
        let live = self.rounds.get(&armed).filter(|round| !round.void);
        let levels = live.map(|round| round.levels);
        let aborted = self
            .ranks
            .get_mut(rank)
            .and_then(|entry| entry.block()?.aborted());
        if let Some(levels) = levels
            && aborted != Some(version)
            && !self.rounds.contains_key(&version)
        {
            self.open_round(version, levels);
            if let Some(wanted) = self.policy.wanted.as_mut().filter(|(v, _)| *v == armed) {
                *wanted = (version, Instant::now());
            }
            if self.me == NodeId(0) {
                let step = Step::Armed;
                self.tell(&Notice::Checkpoint { version, step });
            }
            self.command(Command::Force { version, levels });
        }
        // The others hear of the new version first.
        self.capture_failed(rank, armed, Why::Passed);
    }

    /// What was armed is withdrawn: the ranks that have not come so far are armed for
    /// the version past it that others have begun, if there is one.
    pub(crate) fn hand_over(&mut self, armed: Version) {
        let next = self.rounds.iter().find(|(version, round)| {
            **version > armed && !round.void && !round.told && !round.levels.is_empty()
        });
        let Some((&version, _)) = next else { return };
        for entry in self.ranks.iter_mut() {
            let filling = entry.filling_up_to(armed);
            let Some((slot, _)) = filling.filter(|&(_, at)| at == armed) else {
                continue;
            };
            if entry.slot_with(self.incarnation, version).is_some() || !entry.is_armed(armed) {
                continue;
            }
            match entry.block().and_then(|block| block.disarm()) {
                // It has captured something: the message says what.
                None if entry.holds_capture(slot, armed) => {}
                None => {
                    entry.slots[slot].usage = Use::Filling(version);
                    arm(entry, slot, version);
                }
                Some(inside) if inside == version => {
                    entry.slots[slot].usage = Use::Filling(version);
                }
                Some(_) => {}
            }
        }
    }

    /// Ends what waits for ranks that have gone on, and frees the slots that nobody
    /// will fill.
    pub(crate) fn find_passed(&mut self) {
        let live = |round: Option<&crate::core::Round>| round.is_some_and(|round| !round.void);
        let mut passed = Vec::new();
        for entry in self.ranks.iter_mut() {
            for slot in 0..entry.slots.len() {
                let Use::Filling(version) = entry.slots[slot].usage else {
                    continue;
                };
                let way = entry.way(slot, version);
                if live(self.rounds.get(&version)) {
                    if way == Way::Passed {
                        passed.push((entry.rank, version));
                    }
                } else if matches!(way, Way::Passed | Way::There) {
                    entry.slots[slot].usage = Use::Free;
                }
            }
        }
        // Those that have no slot for a version which others have begun.
        let ranks = self.ranks.job_ranks().unwrap_or(0);
        for (&version, round) in &self.rounds {
            if round.told || round.void || round.levels.is_empty() {
                continue;
            }
            for rank in ranks_of(self.me, ranks, self.nodes()) {
                let gone = |entry: &RankEntry| {
                    let further = entry.block().is_some_and(|b| b.called() > version.0 + 1);
                    (further || entry.closed)
                        && entry.filling_up_to(version).is_none()
                        && entry.slot_with(self.incarnation, version).is_none()
                };
                if !round.captured.contains(&rank) && self.ranks.get(rank).is_some_and(gone) {
                    passed.push((rank, version));
                }
            }
        }
        for (rank, version) in passed {
            self.capture_failed(rank, version, Why::Passed);
        }
    }
}

/// Arms a slot that is stamped. A rank that has gone past is found later.
fn arm(entry: &RankEntry, slot: usize, version: Version) {
    let capacity = entry.slots[slot].capacity();
    if let (Some(staged), Some(block)) = (&entry.slots[slot].staged, entry.block()) {
        let _ = block.try_arm(version, slot as u32, staged.generation, capacity);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use outlive_base::{Incarnation, JobName, Level};
    use outlive_network::JobKey;

    use super::*;
    use crate::core::Work;
    use outlive_control::orders::{
        AgentSpec, Bounds, JobConfig, LevelSetting, Member, Order, Policy,
    };

    /// The agent of `node` in a job of as many nodes, open, of which no other lives.
    fn alone(folder: &std::path::Path, node: u32) -> (Agent, crossbeam_channel::Receiver<Work>) {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let key_file = folder.join("key");
        JobKey::create(&key_file).unwrap();
        let spec = AgentSpec {
            job: JobName::new("passing").unwrap(),
            job_hash: 7,
            node: NodeId(node),
            epoch: 1,
            launcher: (here, 1).into(),
            bind: here,
            key_file,
            node_dir: folder.join("node"),
            job_dir: folder.join("job"),
            socket: folder.join("socket"),
            memory_bytes: 1 << 20,
            encrypt: false,
        };
        let network = crossbeam_channel::bounded(16);
        let (work, done) = crossbeam_channel::unbounded();
        let mut agent = Agent::new(spec, network, work).unwrap();
        let member = |node| Member {
            node: NodeId(node),
            epoch: 1,
            address: (here, 1).into(),
            domain: node,
        };
        agent.config = Some(JobConfig {
            members: (0..=node).map(member).collect(),
            levels: vec![LevelSetting {
                level: Level::Disk,
                every: 1,
            }],
            policy: Policy::default(),
            bounds: Bounds::default(),
            keep: 1,
        });
        agent.incarnation = Incarnation(1);
        (agent, done)
    }

    #[test]
    fn a_node_without_ranks_that_learns_late_of_it_joins_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, done) = alone(folder.path(), 4);
        let levels = Levels::NONE.with(Level::Disk);
        agent.on_join(Version(0), levels);
        assert!(
            !agent.rounds[&Version(0)].told,
            "nobody has said how many ranks there are"
        );

        // What is said of an earlier start is not about this one.
        let ranks = |incarnation| Order::Ranks {
            incarnation: Incarnation(incarnation),
            ranks: 3,
        };
        agent.on_order(ranks(0));
        assert!(!agent.rounds[&Version(0)].told);
        agent.on_order(ranks(1));
        assert!(agent.rounds[&Version(0)].told);
        let patience = Duration::from_secs(20);
        let written = done.recv_timeout(patience);
        assert!(
            matches!(written, Ok(Work::LevelDone { result: Ok(_), .. })),
            "an empty container"
        );
        // Said again with each probe: what is captured once is not written twice.
        agent.on_order(ranks(1));
        agent.on_join(Version(1), levels);
        assert!(agent.rounds[&Version(1)].told, "now it is known");
    }

    #[test]
    fn an_arming_waits_until_the_number_of_ranks_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 4);
        agent.on_arm(Version(3), Levels::NONE.with(Level::Disk));
        agent.try_deferred();
        assert!(agent.deferred.is_some() && agent.rounds.is_empty());
        agent.on_order(Order::Ranks {
            incarnation: Incarnation(1),
            ranks: 3,
        });
        assert!(agent.deferred.is_none() && agent.rounds[&Version(3)].told);
    }

    #[test]
    fn a_node_with_ranks_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 2);
        agent.on_join(Version(0), Levels::NONE.with(Level::Disk));
        agent.on_order(Order::Ranks {
            incarnation: Incarnation(1),
            ranks: 3,
        });
        assert!(!agent.rounds[&Version(0)].told);
    }

    #[test]
    fn a_flush_of_an_ended_incarnation_ends_no_round_of_the_same_version() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 2);
        let version = Version(4);
        let begin = |agent: &mut Agent| {
            agent.open_round(version, Levels::NONE.with(Level::Disk));
            let round = agent.rounds.get_mut(&version).unwrap();
            (round.told, round.flushing) = (true, true);
        };
        begin(&mut agent);
        agent.rounds.clear();
        agent.incarnation = Incarnation(2);
        begin(&mut agent);
        let over = |source| Work::FlushOver {
            source: Incarnation(source),
            version,
        };
        agent.on_work(over(1));
        assert!(agent.rounds[&version].flushing, "another flush has ended");
        agent.on_work(over(2));
        assert!(!agent.rounds[&version].flushing);
    }

    #[test]
    fn levels_of_a_short_version_are_prepared_together_or_soon() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 2);
        let version = Version(4);
        let written = |agent: &mut Agent, level, bytes| {
            let round = agent.rounds.get_mut(&version).unwrap();
            (round.told, round.flushing, round.bytes) = (true, true, bytes);
            let source = Incarnation(1);
            let id = outlive_base::ContainerId {
                incarnation: source,
                version,
                node: NodeId(2),
            };
            let part = outlive_vault::Part {
                node: NodeId(2),
                id,
                length: 4096,
                digest: 1,
                holder: NodeId(2),
                ranks: vec![],
            };
            agent.on_level_done(source, version, level, Ok(part));
            agent.rounds[&version].written.len()
        };
        let levels = Levels::NONE.with(Level::Memory).with(Level::Disk);
        agent.open_round(version, levels);
        assert_eq!(written(&mut agent, Level::Memory, 1000), 1, "it waits");
        agent.prepare_late();
        assert_eq!(agent.rounds[&version].written, [Level::Memory]);
        assert_eq!(written(&mut agent, Level::Disk, 1000), 0, "the last");
        // Its time has come.
        assert_eq!(written(&mut agent, Level::Memory, 1000), 1);
        let round = agent.rounds.get_mut(&version).unwrap();
        round.written_until = Some(std::time::Instant::now());
        agent.prepare_late();
        assert!(agent.rounds[&version].written.is_empty());
        // The copies of a long one end at different times: none waits for another.
        let long = crate::flush::SHORT_BYTES + 1;
        assert_eq!(written(&mut agent, Level::Memory, long), 0);
    }

    #[test]
    fn a_new_agent_finds_the_forced_version_that_a_rank_is_capturing() {
        use outlive_capture::control::{ControlBlock, Side};
        use outlive_capture::slab::Slab;
        use std::os::fd::AsFd;

        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 0);
        let (rank, version, source) = (Rank(0), Version(7), Incarnation(1));
        let (block, fd) = ControlBlock::create(rank, 1, NodeId(0), source).unwrap();
        let program = ControlBlock::map(fd.as_fd(), Side::Rank).unwrap();
        let (slab, slab_fd) = Slab::create(1 << 16).unwrap();
        let mut theirs = Slab::map(slab_fd.as_fd(), true).unwrap();
        let entry = agent.ranks.entry(rank, 1);
        entry.control = Some((block, fd));
        entry.install(1, slab, slab_fd, Use::Free);
        entry.stamp(1, 7, source).unwrap();
        // What `adopt` makes of a slab that is being filled.
        entry.slots[1].usage = Use::Filling(version);
        assert!(
            agent.versions_inside(source).is_empty(),
            "left over from before"
        );
        program.claim(version);
        assert!(agent.versions_inside(source).contains(&version));
        theirs.begin_fill(version, &[], 0).unwrap();
        theirs.finish().unwrap();
        program.leave();
        assert!(
            agent.versions_inside(source).contains(&version),
            "its message is lost"
        );
        agent.rejoined(source);
        assert!(!agent.rounds.contains_key(&version), "it is voted down");
    }

    #[test]
    fn what_a_program_wrote_over_is_no_fault_of_ours() {
        use outlive_capture::slab::Slab;
        use std::os::fd::AsFd;

        let folder = tempfile::tempdir().unwrap();
        let (mut agent, _done) = alone(folder.path(), 0);
        let (rank, version) = (Rank(0), Version(7));
        let (slab, fd) = Slab::create(1 << 16).unwrap();
        let mut theirs = Slab::map(fd.as_fd(), true).unwrap();
        let entry = agent.ranks.entry(rank, 1);
        entry.install(0, slab, fd, Use::Filling(version));
        let generation = entry.stamp(0, 7, Incarnation(1)).unwrap();
        // Another version than the message says.
        theirs.begin_fill(Version(8), &[], 0).unwrap();
        theirs.finish().unwrap();
        agent.open_round(version, Levels::NONE.with(Level::Disk));
        agent.on_captured(rank, version, 0, generation, 1);
        let damage = |agent: &Agent| {
            let told = agent.told.entries().iter();
            told.filter(|entry| entry.error.code() == outlive_base::Code::SharedMemory)
                .count()
        };
        assert_eq!(damage(&agent), 1, "{:?}", agent.told);
        agent.on_captured(rank, version, 9, generation, 1);
        assert_eq!(
            damage(&agent),
            agent.told.entries().len(),
            "{:?}",
            agent.told
        );
    }

    #[test]
    fn memory_is_counted_while_it_is_made_and_by_one_worker_a_slot() {
        let folder = tempfile::tempdir().unwrap();
        let (mut agent, done) = alone(folder.path(), 0);
        let rank = Rank(0);
        agent.ranks.entry(rank, 1);
        assert!(!agent.has_memory(rank, 0, 700_000).unwrap());
        assert!(agent.ranks.memory() >= 700_000, "in the making");
        assert!(!agent.has_memory(rank, 0, 600_000).unwrap());
        // The budget is 1 MiB.
        let refused = agent.has_memory(rank, 1, 400_000).unwrap_err();
        assert_eq!(refused.code(), outlive_base::Code::MemoryBudget);
        let made = done.recv_timeout(Duration::from_secs(20)).unwrap();
        agent.on_work(made);
        assert!(agent.has_memory(rank, 0, 700_000).unwrap());
        assert!(done.try_recv().is_err(), "made once");
    }
}
