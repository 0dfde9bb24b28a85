//! Ranks that leave versions out, beside an agent without its job.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use outlive_base::{Incarnation, JobName, Level};
use outlive_network::JobKey;

use outlive_protocols::commit;

use super::*;
use crate::core::Work;
use outlive_control::orders::{AgentSpec, Bounds, JobConfig, LevelSetting, Member, Order, Policy};

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
fn a_new_agent_gives_ranks_no_control_block_of_the_incarnation_before() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    // What the keeper held when the agent was killed while incarnation 2 was opened.
    let _program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(30));
    agent.rounds.clear();
    agent.rejoined(Incarnation(2));
    assert!(agent.ranks.get(Rank(0)).unwrap().control.is_none());
    assert!(agent.rounds.is_empty(), "nothing was armed in this one");
    agent.control_of(Rank(0), 1).unwrap();
    let entry = agent.ranks.get(Rank(0)).unwrap();
    let made = entry.block().unwrap().identity();
    assert_eq!(made.incarnation, Incarnation(2));
    agent.find_passed();
    let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
    assert_eq!(slots[1].usage, Use::Free, "what was armed in it is over");
}

#[test]
fn a_new_agent_restores_what_the_incarnation_did_and_not_what_lies_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    let (open, source, version) = (Incarnation(2), Incarnation(1), Version(14));
    let began_with = |agent: &mut Agent, source, version| {
        let config = commit::Config {
            nodes: 1,
            ..commit::Config::default()
        };
        let ballot = commit::Ballot {
            incarnation: open,
            term: 0,
        };
        let log = vec![
            commit::Record::Promise { ballot },
            commit::Record::Incarnation {
                number: open,
                source,
                version,
            },
        ];
        let now = agent.now();
        agent.commit = Some(crate::machines::Driver::recover(config, 0, 7, now, log));
        agent.rejoined(open);
    };
    let usage = |agent: &Agent| agent.ranks.get(Rank(0)).unwrap().slots[0].usage;
    let _program = with_slots(&mut agent, version);
    began_with(&mut agent, source, version);
    assert_eq!(agent.restored, Some((source, version)));
    assert_eq!(usage(&agent), Use::Full { source, version });
    // It began anew: what was captured before and not committed is void.
    began_with(&mut agent, Incarnation(0), Version(0));
    assert_eq!(agent.restored, None);
    assert_eq!(usage(&agent), Use::Free);
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

/// A rank with a slot of which the version is stable and a free one, and the program's
/// side of its control block.
fn with_slots(agent: &mut Agent, stable: Version) -> outlive_capture::control::ControlBlock {
    use outlive_capture::control::{ControlBlock, Side};
    use outlive_capture::slab::Slab;
    use std::os::fd::AsFd;

    let (rank, source) = (Rank(0), Incarnation(1));
    let (block, fd) = ControlBlock::create(rank, 1, NodeId(0), source).unwrap();
    let program = ControlBlock::map(fd.as_fd(), Side::Rank).unwrap();
    program.set_bytes_needed(1 << 12);
    let entry = agent.ranks.entry(rank, 1);
    entry.control = Some((block, fd));
    for slot in 0..2 {
        let (slab, fd) = Slab::create(1 << 16).unwrap();
        entry.install(slot, slab, fd, Use::Free);
    }
    let version = stable;
    entry.slots[0].usage = Use::Full { source, version };
    agent.stable[Level::Memory as usize] = Some((source, stable));
    program
}

/// Arms slot 1.
fn armed(agent: &mut Agent, version: Version) {
    agent.open_round(version, Levels::NONE.with(Level::Disk));
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    entry.stamp(1, 7, Incarnation(1)).unwrap();
    entry.slots[1].usage = Use::Filling(version);
    arm(entry, 1, version);
    assert!(entry.is_armed(version));
}

#[test]
fn an_armed_slot_that_is_withdrawn_goes_to_a_forced_version_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(30));
    program.offer(21);
    program.claim(Version(21));
    // Another rank's forced capture has taken the place of what was armed there.
    agent.withdraw(Version(30));
    agent.ask(Rank(0), 1, Version(21), 1 << 12, true);
    let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
    assert_eq!(slots[1].usage, Use::Filling(Version(21)));
    assert!(agent.asks.is_empty(), "it has its slab");
}

#[test]
fn an_armed_slot_that_a_rank_has_not_seen_goes_to_what_it_forces() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(20));
    // The rank enters the next one while that is withdrawn: whether it has seen the slot
    // shows with what it says.
    program.offer(21);
    program.claim(Version(21));
    agent.withdraw(Version(20));
    let usage = |agent: &Agent| agent.ranks.get(Rank(0)).unwrap().slots[1].usage;
    assert_eq!(
        usage(&agent),
        Use::Filling(Version(20)),
        "it may be filling it"
    );
    agent.find_passed();
    assert_eq!(usage(&agent), Use::Filling(Version(20)), "still");
    agent.ask(Rank(0), 1, Version(21), 1 << 12, true);
    assert_eq!(usage(&agent), Use::Filling(Version(21)));
    assert!(agent.asks.is_empty(), "it has its slab");
}

#[test]
fn a_rank_that_waits_for_a_version_hears_at_once_that_a_larger_one_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    let _program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(20));
    // It has captured; on another node a rank had gone past when this was to be armed.
    agent.waits.push(crate::core::Waiting {
        rank: Rank(0),
        sequence: 1,
        version: Version(20),
        level: Level::Disk,
        until: Instant::now() + Duration::from_secs(600),
    });
    agent.answer_waits();
    assert_eq!(agent.waits.len(), 1, "nothing is decided");
    agent.on_commit_event(commit::Event::Disarm {
        version: Version(20),
    });
    assert!(agent.waits.is_empty(), "it was given up");
}

#[test]
fn what_waits_for_an_earlier_version_gets_a_slot_that_was_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, _done) = alone(folder.path(), 0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(30));
    agent.open_round(Version(35), Levels::NONE.with(Level::Disk));
    program.offer(21);
    program.claim(Version(21));
    agent.withdraw(Version(30));
    let entry = agent.ranks.get(Rank(0)).unwrap();
    assert!(
        entry.is_armed(Version(35)),
        "it comes to it after what it forces"
    );
    agent.ask(Rank(0), 1, Version(21), 1 << 12, true);
    let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
    assert_eq!(slots[1].usage, Use::Filling(Version(21)));
    assert!(agent.asks.is_empty(), "it has its slab");
}
