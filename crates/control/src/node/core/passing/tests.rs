//! Ranks that leave versions out, beside a node without its job.

use outlive_base::{Code, Incarnation, Level, Survives};
use outlive_protocols::commit;

use super::*;
use crate::node::machines::Driver;
use crate::node::plain::{PlainBlock, PlainSlab};
use crate::node::shell::{Ask, Done, Link, Rebuilt};
use crate::node::still::{Still, alone, block_of};
use crate::node::{Input, Node, SHORT_BYTES};
use crate::orders::Order;
use outlive_base::ipc::{ToAgent, ToRank, VersionState};
use outlive_base::{NodeId, Time};

mod forced;

#[test]
fn a_node_without_ranks_that_learns_late_of_it_joins_all_the_same() {
    let mut agent = alone(4);
    let levels = Levels::NONE.with(Level::DISK);
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
    let empty = |ask: &Ask<PlainSlab>| match ask {
        Ask::Flush(flush) => flush.captures.slabs.is_empty(),
        _ => false,
    };
    let flushes = |agent: &Node<Still>| agent.shell.asked.iter().filter(|&ask| empty(ask)).count();
    assert_eq!(flushes(&agent), 1, "an empty container");
    // Said again with each probe: what is captured once is not written twice.
    agent.on_order(ranks(1));
    assert_eq!(flushes(&agent), 1);
    agent.on_join(Version(1), levels);
    assert!(agent.rounds[&Version(1)].told, "now it is known");
}

#[test]
fn an_arming_waits_until_the_number_of_ranks_is_known() {
    let mut agent = alone(4);
    agent.on_arm(Version(3), Levels::NONE.with(Level::DISK));
    agent.try_deferred();
    assert!(agent.deferred.is_some() && agent.rounds.is_empty());
    agent.on_order(Order::Ranks {
        incarnation: Incarnation(1),
        ranks: 3,
    });
    assert!(!agent.deferred.is_some() && agent.rounds[&Version(3)].told);
}

#[test]
fn a_node_with_ranks_waits_for_them() {
    let mut agent = alone(2);
    agent.on_join(Version(0), Levels::NONE.with(Level::DISK));
    agent.on_order(Order::Ranks {
        incarnation: Incarnation(1),
        ranks: 3,
    });
    assert!(!agent.rounds[&Version(0)].told);
}

#[test]
fn a_flush_of_an_ended_incarnation_ends_no_round_of_the_same_version() {
    let mut agent = alone(2);
    let version = Version(4);
    let begin = |agent: &mut Node<Still>| {
        agent.open_round(version, Levels::NONE.with(Level::DISK));
        let round = agent.rounds.get_mut(&version).unwrap();
        (round.told, round.flushing) = (true, true);
    };
    begin(&mut agent);
    agent.rounds.clear();
    agent.open.take_up(Incarnation(2), None);
    begin(&mut agent);
    let over = |source| Done::FlushOver {
        source: Incarnation(source),
        version,
    };
    agent.on_done(over(1));
    assert!(agent.rounds[&version].flushing, "another flush has ended");
    agent.on_done(over(2));
    assert!(!agent.rounds[&version].flushing);
}

#[test]
fn levels_of_a_short_version_are_prepared_together_or_soon() {
    let mut agent = alone(2);
    let version = Version(4);
    let written = |agent: &mut Node<Still>, level, bytes| {
        let round = agent.rounds.get_mut(&version).unwrap();
        (round.told, round.flushing, round.bytes) = (true, true, bytes);
        let source = Incarnation(1);
        let id = outlive_base::ContainerId {
            incarnation: source,
            version,
            node: NodeId(2),
        };
        let part = outlive_ledger::Part {
            node: NodeId(2),
            id,
            length: 4096,
            digest: 1,
            holder: NodeId(2),
            ranks: vec![].into(),
            parity: None,
        };
        agent.on_level_done(source, version, level, Ok(part));
        agent.rounds[&version].written.len()
    };
    let levels = Levels::NONE.with(Level::MEMORY).with(Level::DISK);
    agent.open_round(version, levels);
    assert_eq!(written(&mut agent, Level::MEMORY, 1000), 1, "it waits");
    agent.prepare_late();
    assert_eq!(agent.rounds[&version].written, [Level::MEMORY]);
    assert_eq!(written(&mut agent, Level::DISK, 1000), 0, "the last");
    // Its time has come.
    assert_eq!(written(&mut agent, Level::MEMORY, 1000), 1);
    let now = agent.now;
    let round = agent.rounds.get_mut(&version).unwrap();
    round.written_until = Some(now);
    agent.prepare_late();
    assert!(agent.rounds[&version].written.is_empty());
    // The copies of a long one end at different times: none waits for another.
    let long = SHORT_BYTES + 1;
    assert_eq!(written(&mut agent, Level::MEMORY, long), 0);
}

#[test]
fn a_new_agent_finds_the_forced_version_that_a_rank_is_capturing() {
    let mut agent = alone(0);
    let (rank, version, source) = (Rank(0), Version(7), Incarnation(1));
    let (block, program) = block_of(rank, source);
    let slab = PlainSlab::new(1 << 16);
    let theirs = slab.clone();
    let entry = agent.ranks.entry(rank, 1);
    entry.control = Some(block);
    entry.install(1, slab, Use::Free);
    entry.stamp(1, 7, source).unwrap();
    // What `adopt` makes of a slab that is being filled.
    entry.slots[1].usage = Use::Filling(version);
    assert!(
        agent.versions_inside(source).is_empty(),
        "left over from before"
    );
    program.claim(version);
    assert!(agent.versions_inside(source).contains(&version));
    theirs.begin_fill(version, 0);
    theirs.finish(1);
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
    let mut agent = alone(0);
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
    let mut agent = alone(0);
    let (open, source, version) = (Incarnation(2), Incarnation(1), Version(14));
    let began_with = |agent: &mut Node<Still>, source, version| {
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
        let now = agent.now;
        agent.commit = Some(Driver::recover(config, 0, 7, now, log));
        agent.rejoined(open);
    };
    let usage = |agent: &Node<Still>| agent.ranks.get(Rank(0)).unwrap().slots[0].usage;
    let _program = with_slots(&mut agent, version);
    began_with(&mut agent, source, version);
    assert_eq!(agent.open.restored(), Some((source, version)));
    assert_eq!(usage(&agent), Use::Full { source, version });
    // It began anew: what was captured before and not committed is void.
    began_with(&mut agent, Incarnation(0), Version(0));
    assert_eq!(agent.open.restored(), None);
    assert_eq!(usage(&agent), Use::Free);
}

#[test]
fn what_a_program_wrote_over_is_no_fault_of_ours() {
    let mut agent = alone(0);
    let (rank, version) = (Rank(0), Version(7));
    let slab = PlainSlab::new(1 << 16);
    let theirs = slab.clone();
    let entry = agent.ranks.entry(rank, 1);
    entry.install(0, slab, Use::Filling(version));
    let generation = entry.stamp(0, 7, Incarnation(1)).unwrap();
    // Another version than the message says.
    theirs.begin_fill(Version(8), 0);
    theirs.finish(1);
    agent.open_round(version, Levels::NONE.with(Level::DISK));
    agent.on_captured(rank, version, 0, generation, 1, false);
    let warned = |agent: &Node<Still>| agent.shown.warnings();
    assert_eq!(warned(&agent).len(), 1, "{:?}", warned(&agent));
    agent.on_captured(rank, version, 9, generation, 1, false);
    let all = warned(&agent);
    let mut codes = all.iter().map(|error| error.code());
    assert!(codes.all(|code| code == Code::SharedMemory), "{all:?}");
}

#[test]
fn memory_is_counted_while_it_is_made_and_by_one_worker_a_slot() {
    let mut agent = alone(0);
    let rank = Rank(0);
    agent.ranks.entry(rank, 1);
    assert!(!agent.has_memory(rank, 0, 700_000).unwrap());
    assert!(agent.ranks.memory() >= 700_000, "in the making");
    assert!(!agent.has_memory(rank, 0, 600_000).unwrap());
    // The budget is 1 MiB.
    let refused = agent.has_memory(rank, 1, 400_000).unwrap_err();
    assert_eq!(refused.code(), Code::MemoryBudget);
    let asked = std::mem::take(&mut agent.shell.asked);
    let [Ask::Slab { ticket, bytes, .. }] = asked[..] else {
        panic!("made once");
    };
    agent.on_done(Done::SlabMade {
        rank,
        slot: 0,
        ticket,
        made: Ok(Some(PlainSlab::new(bytes))),
    });
    assert!(agent.has_memory(rank, 0, 700_000).unwrap());
    assert!(agent.shell.asked.is_empty());
}

/// A rank with a slot of which the version is stable and a free one, and the program's
/// side of its control block.
fn with_slots(agent: &mut Node<Still>, stable: Version) -> PlainBlock {
    let (rank, source) = (Rank(0), Incarnation(1));
    let (block, program) = block_of(rank, source);
    program.set_bytes_needed(1 << 12);
    let entry = agent.ranks.entry(rank, 1);
    entry.control = Some(block);
    for slot in 0..2 {
        entry.install(slot, PlainSlab::new(1 << 16), Use::Free);
    }
    let version = stable;
    entry.slots[0].usage = Use::Full { source, version };
    agent.line.newest.insert(Level::MEMORY, (source, stable));
    program
}

/// Arms slot 1.
fn armed(agent: &mut Node<Still>, version: Version) {
    agent.open_round(version, Levels::NONE.with(Level::DISK));
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    entry.stamp(1, 7, Incarnation(1)).unwrap();
    entry.slots[1].usage = Use::Filling(version);
    arm(entry, 1, version);
    assert!(entry.is_armed(version));
}

#[test]
fn a_rank_that_waits_for_a_version_hears_at_once_that_a_larger_one_takes_its_place() {
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(20));
    // It has captured; on another node a rank had gone past when this was to be armed.
    let link = Link { token: 1, pid: 1 };
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(link);
    let message = ToAgent::Wait {
        version: Version(20),
        survives: Survives::NodeCrash,
        timeout_ms: 600_000,
    };
    agent.on_said(1, 7, message);
    assert!(agent.shell.answered.is_empty(), "nothing is decided");
    agent.on_commit_event(commit::Event::Disarm {
        version: Version(20),
    });
    agent.deliver();
    let answer = (agent.shell.answered.pop(), agent.shell.answered.len());
    let aborted = ToRank::State {
        version: Version(20),
        survives: Survives::NodeCrash,
        state: VersionState::Aborted,
    };
    assert_eq!(
        answer,
        (Some((7, aborted)), 0),
        "it was given up, said once"
    );
}

#[test]
fn what_waits_for_an_earlier_version_gets_a_slot_that_was_handed_over() {
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(30));
    agent.open_round(Version(35), Levels::NONE.with(Level::DISK));
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

/// A record of what a short one says, as it is asked to be written.
fn persisted(agent: &mut Node<Still>, short: &commit::Record) -> Option<outlive_ledger::Record> {
    agent.shell.asked.clear();
    agent.persist(outlive_base::machine::Op(1), short);
    match agent.shell.asked.pop() {
        Some(Ask::Persist { record, .. }) => Some(record),
        _ => None,
    }
}

#[test]
fn a_commit_of_an_agent_started_anew_names_the_number_of_ranks() {
    let mut agent = alone(0);
    let (source, version, level) = (Incarnation(1), Version(4), Level::DISK);
    let part = outlive_ledger::Part {
        node: NodeId(0),
        id: outlive_base::ContainerId {
            incarnation: source,
            version,
            node: NodeId(0),
        },
        length: 4096,
        digest: 1,
        holder: NodeId(0),
        ranks: vec![Rank(0)].into(),
        parity: None,
    };
    agent.contents.add_part(source, version, level, part);
    let decision = commit::Record::Commit {
        incarnation: source,
        version,
        level,
        ballot: commit::Ballot {
            incarnation: source,
            term: 0,
        },
    };
    assert_eq!(persisted(&mut agent, &decision), None, "nobody knows it");
    // Its rank has nothing to say yet; its control block is there.
    let entry = agent.ranks.entry(Rank(0), 1);
    entry.control = Some(block_of(Rank(0), source).0);
    let record = persisted(&mut agent, &decision).unwrap();
    assert!(
        matches!(record, outlive_ledger::Record::Commit { ranks: 1, .. }),
        "{record:?}"
    );
}

#[test]
fn levels_that_a_new_agent_does_not_know_are_not_none() {
    let mut agent = alone(0);
    let (source, version) = (Incarnation(1), Version(14));
    let _program = with_slots(&mut agent, version);
    agent.rejoined(source);
    assert!(agent.rounds.contains_key(&version), "met again");
    let known = |agent: &Node<Still>| agent.line.levels.get(&(source, version)).cloned();
    assert_eq!(known(&agent), None, "the strongest is assumed");
    let levels = Levels::NONE.with(Level::MEMORY);
    agent.resume_round(version, levels);
    agent.on_stable(version, Level::DISK);
    let both = std::collections::BTreeSet::from([Level::MEMORY, Level::DISK]);
    assert_eq!(known(&agent), Some(both));
}

/// A lost node may have been the only one to record that the level was committed: one of this
/// opening, or of one before.
#[test]
fn what_a_lost_node_may_have_committed_is_not_taken_for_replaced() {
    let mut agent = alone(1);
    let (source, version) = (Incarnation(1), Version(14));
    agent.contents.learn(&outlive_ledger::Record::Commit {
        incarnation: source,
        version,
        level: Level::MEMORY,
        ballot: 1,
        ranks: 3,
        parts: Vec::new().into(),
        groups: Vec::new(),
    });
    agent.restore_line(source, version);
    let used = agent.all_levels();
    assert!(used.contains(Level::DISK));
    let known = &agent.line.levels[&(source, version)];
    assert!(used.iter().all(|level| known.contains(&level)));
    assert!(
        !agent.line.newest.contains_key(&Level::PARTNER),
        "nor for stable"
    );
}

/// The launcher was told that nothing is to be waited for here.
fn is_finished(agent: &Node<Still>) -> bool {
    agent.shell.told.contains(&Notice::Finished)
}

#[test]
fn a_version_in_a_slot_is_decided_though_a_new_agent_heard_of_a_newer_one_first() {
    let mut agent = alone(0);
    let (source, version) = (Incarnation(1), Version(14));
    let _program = with_slots(&mut agent, version);
    agent.on_stable(Version(20), Level::DISK);
    agent.rejoined(source);
    agent.rounds.get_mut(&version).unwrap().told = true;
    agent.on(agent.now, Input::Order(Order::Finish { success: true }));
    agent.look_around();
    assert!(!is_finished(&agent), "nobody has said what became of it");
    agent.on_stable(version, Level::DISK);
    agent.look_around();
    assert!(is_finished(&agent), "the job's end waits for nothing");
}

#[test]
fn a_coordinator_that_is_started_anew_at_the_end_waits_for_the_others() {
    let mut agent = alone(0);
    let config = commit::Config {
        nodes: 2,
        ..commit::Config::default()
    };
    let opened = commit::Record::Incarnation {
        number: Incarnation(1),
        source: Incarnation(0),
        version: Version(0),
    };
    agent.commit = Some(Driver::recover(config, 0, 7, Time::ZERO, vec![opened]));
    agent.on(agent.now, Input::Order(Order::Finish { success: true }));
    agent.look_around();
    assert!(
        !is_finished(&agent),
        "it does not know yet what is undecided"
    );
}

#[test]
fn a_level_that_is_not_in_use_is_not_said_to_be_given_up() {
    let mut agent = alone(0);
    let aborted = |agent: &mut Node<Still>, level| {
        agent.shell.told.clear();
        let why = commit::Why::Coordinator;
        agent.on_aborted(Version(3), Some(level), why, None);
        agent.shell.told.len()
    };
    assert_eq!(aborted(&mut agent, Level::DISK), 1);
    assert_eq!(aborted(&mut agent, Level::SHARED), 0);
}

#[test]
fn a_level_that_ends_before_there_is_room_does_not_hold_its_slot_for_ever() {
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    // The second slot is being written.
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    let (source, version) = (Incarnation(1), Version(20));
    entry.slots[1].usage = Use::Full { source, version };
    let version = Version(30);
    let levels = Levels::NONE.with(Level::DISK).with(Level::PARTNER);
    agent.on_arm(version, levels);
    assert!(agent.deferred.is_some(), "it waits for room");
    agent.on_aborted(version, Some(Level::PARTNER), commit::Why::Partner, None);
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    entry.slots[1].usage = Use::Free;
    agent.try_deferred();
    assert_eq!(
        agent.rounds[&version].levels,
        Levels::NONE.with(Level::DISK)
    );
}

#[test]
fn a_version_that_some_ranks_hold_is_rebuilt_into_one_slot_of_each() {
    let mut agent = alone(0);
    let (source, version) = (Incarnation(1), Version(14));
    agent.contents.learn(&outlive_ledger::Record::Commit {
        incarnation: source,
        version,
        level: Level::DISK,
        ballot: 1,
        ranks: 2,
        parts: Vec::new().into(),
        groups: Vec::new(),
    });
    let full = Use::Full { source, version };
    let entry = agent.ranks.entry(Rank(0), 2);
    entry.install(1, PlainSlab::new(1 << 16), full);
    agent.ranks.entry(Rank(1), 2);
    agent.rebuild(source, version);
    let incarnation = agent.opening_or_open();
    let slabs = [Rank(0), Rank(1)].map(|rank| (rank, PlainSlab::new(1 << 16)));
    agent.on_done(Done::Rebuilt {
        incarnation,
        source,
        version,
        result: Ok(Rebuilt {
            level: Level::DISK,
            bytes: 4096,
            slabs: slabs.into(),
            rejected: Vec::new(),
        }),
    });
    for entry in agent.ranks.iter() {
        let held = entry.slots.iter().filter(|slot| slot.usage == full).count();
        assert_eq!(
            held, 1,
            "{}: the other is for the next version",
            entry.rank.0
        );
    }
}

#[test]
fn what_ranks_were_told_is_aborted_is_not_armed_again() {
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    agent.on_aborted(Version(20), None, commit::Why::NoRoom, None);
    // One that was forced, before it.
    agent.on_aborted(Version(17), None, commit::Why::Left, None);
    // The coordinator was started anew and remembers nothing.
    let levels = Levels::NONE.with(Level::DISK);
    agent.on_arm(Version(20), levels);
    let armed = |agent: &Node<Still>| agent.ranks.get(Rank(0)).unwrap().block().unwrap().armed();
    assert!(armed(&agent).is_none() && !agent.rounds.contains_key(&Version(20)));
    agent.on_arm(Version(21), levels);
    assert_eq!(armed(&agent).map(|it| it.version), Some(Version(21)));
}

/// Cut off from the coordinator, a new agent ends by itself what is not prepared; the rest is
/// ended by the coordinator, level by level. Each alone was no news of a round whose levels nobody
/// had said: its slots stayed taken, and no checkpoint came any more.
#[test]
fn a_round_of_unknown_levels_is_over_when_all_levels_have_ended() {
    let mut agent = alone(0);
    let (version, source) = (Version(20), Incarnation(1));
    let _program = with_slots(&mut agent, Version(14));
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    let slot = entry
        .slots
        .iter()
        .position(|it| it.usage == Use::Free)
        .unwrap();
    entry.slots[slot].usage = Use::Full { source, version };
    if let Some(config) = &mut agent.config {
        let mut second = config.levels[0];
        second.level = Level::MEMORY;
        config.levels.push(second);
    }
    agent.open_round(version, Levels::NONE);
    let used: Vec<Level> = agent.all_levels().iter().collect();
    let (last, first) = used.split_last().unwrap();
    assert!(!first.is_empty());
    let link = Link { token: 1, pid: 1 };
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(link);
    let survives = Survives::NodeCrash;
    let waits = ToAgent::Wait {
        version,
        survives,
        timeout_ms: 600_000,
    };
    agent.on_said(1, 7, waits);
    let end = |agent: &mut Node<Still>, level| {
        agent.on_aborted(version, Some(level), Why::NodeLost, None);
        agent.deliver();
    };
    for level in first {
        end(&mut agent, *level);
        assert!(agent.rounds.contains_key(&version), "some are left");
        assert!(agent.shell.answered.is_empty());
    }
    end(&mut agent, *last);
    let state = VersionState::Aborted;
    let answer = ToRank::State {
        version,
        survives,
        state,
    };
    assert_eq!(agent.shell.answered, [(7, answer)], "nobody waits for more");
    assert!(!agent.rounds.contains_key(&version));
    let entry = agent.ranks.get(Rank(0)).unwrap();
    assert_eq!(entry.slots[slot].usage, Use::Free);
}

/// What an agent that was started anew hears first of a version in its slots may be that one
/// level is stable; the others are still to be written here.
#[test]
fn a_level_that_is_stable_does_not_stand_for_those_that_are_not_known_yet() {
    let (version, source) = (Version(20), Incarnation(1));
    let levels = Levels::NONE.with(Level::DISK).with(Level::MEMORY);
    for resumed in [true, false] {
        let mut agent = alone(0);
        let _program = with_slots(&mut agent, Version(14));
        agent.ranks.get_mut(Rank(0)).unwrap().slots[1].usage = Use::Full { source, version };
        if let Some(config) = &mut agent.config {
            let mut second = config.levels[0];
            second.level = Level::MEMORY;
            config.levels.push(second);
        }
        assert_eq!(agent.all_levels(), levels);
        agent.open_round(version, Levels::NONE);
        agent.rounds.get_mut(&version).unwrap().told = true;
        agent.on_stable(version, Level::DISK);
        assert!(agent.rounds.contains_key(&version), "memory is left");
        if resumed {
            agent.resume_round(version, levels);
            assert!(agent.rounds[&version].flushing, "it is written");
        } else {
            // Nobody says the levels: one has ended well, the other has not.
            agent.on_aborted(version, Some(Level::MEMORY), Why::NodeLost, None);
            agent.retire_rounds();
            assert!(!agent.rounds.contains_key(&version));
            let slot = agent.ranks.get(Rank(0)).unwrap().slots[1].usage;
            assert_eq!(slot, Use::Full { source, version }, "what is stable stays");
        }
    }
}

/// Known as committed since it was to be recorded, restored from memory, it took the place of
/// older versions that were stable at that level.
#[test]
fn a_decision_that_could_not_be_recorded_is_none_when_its_version_is_restored() {
    let mut agent = alone(0);
    let (incarnation, version, level) = (Incarnation(1), Version(14), Level::SHARED);
    let commit = |level| outlive_ledger::Record::Commit {
        incarnation,
        version,
        level,
        ballot: 1,
        ranks: 1,
        parts: Vec::new().into(),
        groups: Vec::new(),
    };
    agent.contents.learn(&commit(level));
    agent.contents.learn(&commit(Level::DISK));
    agent
        .line
        .stable
        .insert((incarnation, version, Level::DISK));
    agent.on_aborted(version, Some(level), Why::Storage, None);
    // What is stable is not taken back by any word.
    agent.on_aborted(version, None, Why::Coordinator, None);
    agent.restore_line(incarnation, version);
    let stable: Vec<Level> = agent.line.newest.keys().copied().collect();
    assert_eq!(stable, [Level::MEMORY, Level::DISK]);
}
