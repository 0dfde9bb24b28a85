//! Forced versions beside what is armed.

use super::*;

/// The policy wants the very version that a rank forces: whichever comes first, it is taken.
#[test]
fn an_arming_that_a_forced_call_overtakes_is_not_refused() {
    let (version, levels) = (Version(20), Levels::NONE.with(Level::DISK));
    for announced in [true, false] {
        let mut agent = alone(0);
        let program = with_slots(&mut agent, Version(14));
        agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
        // The rank has called; its request is under way.
        if announced {
            program.announce(version);
        }
        program.offer(version.0);
        assert_eq!(program.enter(version, None), None);
        agent.on_arm(version, levels);
        assert_eq!(agent.rounds.contains_key(&version), announced);
        if announced {
            program.claim(version);
            agent.find_passed();
            agent.ask(Rank(0), 1, version, 1 << 12, true);
            assert!(agent.asks.is_empty(), "it has its slab");
            let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
            assert_eq!(slots[1].usage, Use::Filling(version));
            assert!(
                agent.rounds.contains_key(&version),
                "and goes on with the round"
            );
        }
    }
    // The arming waits for room, which the forced call gets.
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    entry.link = Some(Link { token: 1, pid: 1 });
    let (source, before) = (Incarnation(1), Version(16));
    entry.slots[1].usage = Use::Full {
        source,
        version: before,
    };
    agent.on_arm(version, levels);
    assert!(agent.deferred.is_some(), "it waits for room");
    program.announce(version);
    program.offer(version.0);
    program.claim(version);
    agent.ask(Rank(0), 1, version, 1 << 12, true);
    agent.ranks.get_mut(Rank(0)).unwrap().slots[1].usage = Use::Free;
    agent.try_asks();
    assert!(agent.asks.is_empty() && !agent.deferred.is_some());
    assert!(agent.rounds.contains_key(&version));
}

#[test]
fn an_armed_slot_that_is_withdrawn_goes_to_a_forced_version_before_it() {
    let mut agent = alone(0);
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

/// The policy has armed version 21; version 18, which is forced, has the only slot that was free.
fn lent() -> (Node<Still>, PlainBlock) {
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    armed(&mut agent, Version(21));
    program.offer(18);
    program.claim(Version(18));
    agent.ask(Rank(0), 1, Version(18), 1 << 12, true);
    (agent, program)
}

/// The policy armed ahead, a forced version before that takes the only slot: the armed one is not
/// given up, and has a slot again as soon as one is free, or when the program forces it.
#[test]
fn what_makes_way_for_a_forced_version_is_armed_again() {
    for free_before_it_is_reached in [true, false] {
        let (mut agent, program) = lent();
        let usage = |agent: &Node<Still>| agent.ranks.get(Rank(0)).unwrap().slots[1].usage;
        assert_eq!(usage(&agent), Use::Filling(Version(18)));
        agent.arm_again();
        assert!(program.armed().is_none(), "there is no slot yet");
        assert!(agent.rounds.contains_key(&Version(21)));
        program.leave();
        agent.ranks.get_mut(Rank(0)).unwrap().slots[1].usage = Use::Free;
        if free_before_it_is_reached {
            agent.arm_again();
            assert_eq!(program.armed().map(|it| it.version), Some(Version(21)));
        }
        program.announce(Version(21));
        program.offer(21);
        if !free_before_it_is_reached {
            program.claim(Version(21));
            agent.ask(Rank(0), 2, Version(21), 1 << 12, true);
        }
        agent.find_passed();
        assert_eq!(usage(&agent), Use::Filling(Version(21)));
        assert!(agent.asks.is_empty() && agent.rounds.contains_key(&Version(21)));
        assert!(program.aborted().is_none(), "nobody gave it up");
    }
}

/// A rank has left the job, others force a version afterwards: nobody waits for the one that has
/// left.
#[test]
fn a_rank_that_has_left_is_armed_for_nothing() {
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    program.offer(18);
    agent.ranks.get_mut(Rank(0)).unwrap().closed = true;
    agent.on_join(Version(21), Levels::NONE.with(Level::DISK));
    assert!(program.armed().is_none(), "nobody would take it");
    let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
    assert_eq!(slots[1].usage, Use::Free);
}

/// No slot was free when the rank came to it: that is told of no version as a failure, at no level,
/// while one that a rank has left out is.
#[test]
fn what_made_way_and_was_passed_is_no_failure() {
    for why in [Why::MadeWay, Why::Overtaken] {
        let (mut agent, program) = lent();
        program.leave();
        let (source, version) = (Incarnation(1), Version(18));
        agent.ranks.get_mut(Rank(0)).unwrap().slots[1].usage = Use::Full { source, version };
        program.offer(21);
        program.offer(22);
        let passed = agent.passed();
        assert_eq!(passed, [(Rank(0), Version(21), Why::MadeWay)]);
        agent.on_aborted(Version(21), Some(Level::DISK), why, Some(NodeId(1)));
        let ends = agent.shell.told.iter().filter(|it| {
            matches!(
                it,
                Notice::Checkpoint {
                    step: Step::Aborted { .. },
                    ..
                }
            )
        });
        assert_eq!(ends.count(), usize::from(why == Why::Overtaken));
    }
}

#[test]
fn an_armed_slot_that_a_rank_has_not_seen_goes_to_what_it_forces() {
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, Version(20));
    // The rank enters the next one while that is withdrawn: whether it has seen the slot
    // shows with what it says.
    program.offer(21);
    program.claim(Version(21));
    agent.withdraw(Version(20));
    let usage = |agent: &Node<Still>| agent.ranks.get(Rank(0)).unwrap().slots[1].usage;
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

/// A rank that waits for this version is told at once that nothing will come of it.
fn hears_its_end(agent: &mut Node<Still>, version: Version) {
    let survives = Survives::NodeCrash;
    let waits = ToAgent::Wait {
        version,
        survives,
        timeout_ms: 600_000,
    };
    agent.on_said(1, 7, waits);
    let state = VersionState::Aborted;
    let answer = ToRank::State {
        version,
        survives,
        state,
    };
    assert_eq!(agent.shell.answered, [(7, answer)]);
}

/// A version that ranks were forcing when their agent ended cannot be taken up whole, and is
/// disarmed. Its levels are not known then; a rank that comes back and waits for it hears that
/// nothing will come.
#[test]
fn who_waits_for_a_forced_version_that_a_new_agent_gave_up_hears_at_once() {
    let version = Version(20);
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    agent.open_round(version, Levels::NONE);
    agent.on_commit_event(commit::Event::Disarm { version });
    hears_its_end(&mut agent, version);
}

/// A version that ranks have captured has ended while their agent was away. The next agent hears it, and
/// the end of the next version, before they find it and say what they wait for.
#[test]
fn who_waits_for_a_version_that_ended_before_the_last_one_hears_at_once() {
    let version = Version(20);
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    agent.open_round(version, Levels::NONE);
    agent.on_aborted(version, None, Why::Coordinator, None);
    agent.on_aborted(Version(21), None, Why::NoRoom, None);
    hears_its_end(&mut agent, version);
}

/// Whoever asks for it was told of a later end, and this rank of that one: it would take its capture for
/// given up, while the others call it safe.
#[test]
fn what_a_rank_was_told_has_ended_is_not_joined() {
    let version = Version(20);
    let mut agent = alone(0);
    let _program = with_slots(&mut agent, Version(14));
    agent.on_aborted(version, None, Why::NoRoom, None);
    agent.on_join(version, Levels::NONE.with(Level::DISK));
    let block = agent.ranks.get(Rank(0)).unwrap().block().unwrap();
    assert!(block.armed().is_none());
}

/// An agent ended between that word and what follows from it.
#[test]
fn what_is_armed_and_was_told_to_have_ended_is_not_taken_up() {
    let version = Version(20);
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, version);
    let entry = agent.ranks.get(Rank(0)).unwrap();
    entry.block().unwrap().set_aborted(version);
    agent.rounds.clear();
    agent.rejoined(Incarnation(1));
    assert!(program.armed().is_none(), "nobody captures it");
}

/// An agent before this one heard how the version ended, and told nobody: it is voted down once, and not
/// before the rank has come to it.
#[test]
fn who_waits_for_what_nobody_here_knows_has_the_coordinator_asked() {
    let (open, version) = (Incarnation(1), Version(20));
    let mut agent = alone(1);
    let program = with_slots(&mut agent, Version(14));
    let ballot = commit::Ballot {
        incarnation: open,
        term: 0,
    };
    let log = vec![
        commit::Record::Promise { ballot },
        commit::Record::Incarnation {
            number: open,
            source: Incarnation(0),
            version: Version(0),
        },
    ];
    let config = commit::Config {
        nodes: 2,
        ..commit::Config::default()
    };
    agent.commit = Some(Driver::recover(config, 1, 7, agent.now, log));
    agent.open.take_up(open, None);
    let is_asked = |agent: &Node<Still>| !agent.machine().unwrap().may_forget(open, version);
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    let waits = ToAgent::Wait {
        version,
        survives: Survives::NodeCrash,
        timeout_ms: 600_000,
    };
    agent.on_said(1, 7, waits);
    assert!(!is_asked(&agent), "the rank has not come so far");
    program.offer(version.0);
    agent.look_around();
    assert!(is_asked(&agent));
}

/// What is armed at a step that the program leaves out is withdrawn while the rank captures the next
/// one in its place: no other node has heard of that.
#[test]
fn who_waits_for_a_capture_that_nobody_has_begun_hears_at_once() {
    let (armed_first, version) = (Version(20), Version(23));
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    armed(&mut agent, armed_first);
    let entry = agent.ranks.get_mut(Rank(0)).unwrap();
    entry.link = Some(Link { token: 1, pid: 1 });
    let staged = entry.slots[1].staged.as_ref().unwrap();
    let (slab, generation) = (PlainSlab::clone(&staged.slab), staged.generation);
    program.offer(version.0);
    assert!(program.enter(version, None).is_some());
    agent.on_commit_event(commit::Event::Disarm {
        version: armed_first,
    });
    slab.begin_fill(version, 8);
    slab.finish(1);
    program.leave();
    let captured = ToAgent::Captured {
        version,
        slot: 1,
        generation,
        table_bytes: 0,
        data_bytes: 8,
        blocked_ns: 1,
        forced: false,
    };
    agent.on_said(1, 0, captured);
    hears_its_end(&mut agent, version);
}

/// The policy has armed a version before at some of the job's levels; or had, when the rank came.
/// What it forces goes to all levels, as where nothing was armed: elsewhere it may have begun so, and who
/// waits for it would hear of fewer.
#[test]
fn what_is_forced_past_an_armed_version_goes_to_all_levels() {
    for ended in [false, true] {
        let mut agent = crate::node::still::alone_at(0, Level::SHARED);
        let program = with_slots(&mut agent, Version(14));
        armed(&mut agent, Version(16));
        let version = Version(18);
        program.announce(version);
        program.offer(18);
        assert!(program.enter(version, None).is_some());
        if ended {
            agent.on_aborted(Version(16), None, Why::Unarmed, None);
            assert_eq!(program.aborted(), None, "it may be forced");
        }
        agent.captured_past(Rank(0), Version(16), version, false);
        let levels = agent.rounds.get(&version).map(|round| round.levels);
        assert_eq!(levels, Some(Levels::NONE.with(Level::SHARED)), "{ended}");
    }
}

/// The policy has armed the very version that a program forces, at some of the job's levels.
#[test]
fn what_is_forced_as_it_was_armed_goes_to_all_levels() {
    for forces in [true, false] {
        let mut agent = crate::node::still::alone_at(0, Level::SHARED);
        let program = with_slots(&mut agent, Version(14));
        agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
        let version = Version(18);
        armed(&mut agent, version);
        if forces {
            program.announce(version);
        }
        program.offer(version.0);
        assert!(program.enter(version, None).is_some());
        let captured = captures(&agent, &program, version);
        agent.on_said(1, 0, captured);
        let armed = Levels::NONE.with(Level::DISK);
        let levels = match forces {
            true => armed.with(Level::SHARED),
            false => armed,
        };
        assert_eq!(agent.rounds[&version].levels, levels);
        let known = &agent.line.levels[&(Incarnation(1), version)];
        assert_eq!(known.len(), levels.iter().count(), "waits go by this");
    }
}

/// How often something was asked to be written.
fn flushes(agent: &Node<Still>) -> usize {
    let flush = |ask: &&Ask<PlainSlab>| matches!(ask, Ask::Flush(_));
    agent.shell.asked.iter().filter(flush).count()
}

/// Elsewhere it is forced, and goes to more levels than it is being written at here.
#[test]
fn what_is_widened_while_it_is_written_is_written_there_after_that() {
    let mut agent = crate::node::still::alone_at(0, Level::SHARED);
    let program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    let (source, version) = (Incarnation(1), Version(18));
    armed(&mut agent, version);
    program.offer(version.0);
    assert!(program.enter(version, None).is_some());
    let captured = captures(&agent, &program, version);
    agent.on_said(1, 0, captured);
    assert_eq!((flushes(&agent), agent.rounds[&version].told), (1, true));
    let levels = agent.rounds[&version].levels.with(Level::SHARED);
    agent.resume_round(version, levels);
    assert_eq!(flushes(&agent), 1, "one reads its slots at a time");
    agent.flush_over(source, version);
    assert_eq!(
        (flushes(&agent), agent.rounds[&version].flushing),
        (2, true)
    );
    agent.flush_over(source, version);
    assert_eq!(
        (flushes(&agent), agent.rounds[&version].flushing),
        (2, false)
    );
    // Given up there before: nothing is left to be written.
    let level = Some(Level::SHARED);
    agent.on_aborted(version, level, Why::Storage, None);
    agent.resume_round(version, levels);
    assert_eq!(flushes(&agent), 2);
}

/// Captures `version` into slot 1, as the rank does; what it says of that comes later.
fn captures(agent: &Node<Still>, program: &PlainBlock, version: Version) -> ToAgent {
    let entry = agent.ranks.get(Rank(0)).unwrap();
    let staged = entry.slots[1].staged.as_ref().unwrap();
    staged.slab.begin_fill(version, 8);
    staged.slab.finish(1);
    program.leave();
    ToAgent::Captured {
        version,
        slot: 1,
        generation: staged.generation,
        table_bytes: 0,
        data_bytes: 8,
        blocked_ns: 1,
        forced: program.forced() == Some(version),
    }
}

/// A version is armed here, another node has no room for it, and the rank is inside, or has captured it
/// (of a node with other ranks, which have not): it forces this very version, so it begins by that.
#[test]
fn what_a_rank_forces_and_captured_while_it_was_armed_is_not_given_back() {
    for said_before in [true, false] {
        let version = Version(18);
        let mut agent = alone(0);
        agent.on_order(Order::Ranks {
            incarnation: Incarnation(1),
            ranks: 2,
        });
        let program = with_slots(&mut agent, Version(14));
        agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
        armed(&mut agent, version);
        program.announce(version);
        program.offer(version.0);
        assert!(program.enter(version, None).is_some());
        if said_before {
            let captured = captures(&agent, &program, version);
            // By then it forces the next one.
            program.announce(Version(19));
            agent.on_said(1, 0, captured);
            agent.on_aborted(version, None, Why::Unarmed, None);
        } else {
            agent.on_aborted(version, None, Why::Unarmed, None);
            assert!(!agent.rounds.contains_key(&version), "nothing is captured");
            let captured = captures(&agent, &program, version);
            agent.on_said(1, 0, captured);
        }
        let source = Incarnation(1);
        let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
        assert_eq!(slots[1].usage, Use::Full { source, version });
        let begun = agent.rounds.get(&version).map(|it| it.captured.len());
        assert_eq!(begun, Some(1), "{said_before}");
        assert!(program.aborted().is_none(), "nobody gave it up");
        let survives = Survives::Process;
        let waits = ToAgent::Wait {
            version,
            survives,
            timeout_ms: 600_000,
        };
        agent.on_said(1, 7, waits);
        agent.deliver();
        let answered = &agent.shell.answered;
        assert!(answered.is_empty(), "{said_before}: {answered:?}");
    }
}

/// What the policy wanted, and nobody forces, comes to nothing with its arming.
#[test]
fn what_nobody_forces_is_given_back_when_it_was_not_armed_everywhere() {
    let version = Version(18);
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    armed(&mut agent, version);
    program.offer(version.0);
    assert!(program.enter(version, None).is_some());
    agent.on_aborted(version, None, Why::Unarmed, None);
    let captured = captures(&agent, &program, version);
    agent.on_said(1, 0, captured);
    assert!(!agent.rounds.contains_key(&version));
    let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
    assert_eq!(slots[1].usage, Use::Free);
}

/// A later version was armed for the same rank, and withdrawn again: its block says nothing of the one
/// before, which has a slot and which the rank has not come to.
#[test]
fn a_rank_that_has_not_come_to_a_version_has_not_passed_it() {
    let version = Version(18);
    let mut agent = alone(0);
    let program = with_slots(&mut agent, Version(14));
    agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
    armed(&mut agent, version);
    program.offer(17);
    let _ = agent.ranks.get(Rank(0)).unwrap().block().unwrap().disarm();
    agent.find_passed();
    let usage = |agent: &Node<Still>| agent.ranks.get(Rank(0)).unwrap().slots[1].usage;
    assert_eq!(usage(&agent), Use::Filling(version));
    program.announce(version);
    program.offer(version.0);
    program.claim(version);
    agent.find_passed();
    agent.ask(Rank(0), 1, version, 1 << 12, true);
    assert_eq!(usage(&agent), Use::Filling(version));
    assert!(agent.asks.is_empty() && agent.rounds.contains_key(&version));
}

/// What was not armed everywhere is still being written here when others begin it: this node joins
/// when that is over.
#[test]
fn what_is_begun_again_while_it_is_written_in_vain_is_joined_after_that() {
    let (version, levels) = (Version(3), Levels::NONE.with(Level::DISK));
    let mut agent = alone(4);
    agent.on_order(Order::Ranks {
        incarnation: Incarnation(1),
        ranks: 3,
    });
    agent.on_arm(version, levels);
    assert!(agent.rounds[&version].flushing, "a node without ranks");
    agent.on_aborted(version, None, Why::Unarmed, None);
    agent.on_join(version, levels);
    assert!(agent.rounds[&version].void, "it is being written");
    agent.flush_over(Incarnation(1), version);
    let round = &agent.rounds[&version];
    assert!(!round.void && round.told, "captured again");
}

/// Elsewhere a rank captured a later version in the place of the armed one, and the word that this one has
/// ended comes first. The rank here has captured the same later version, and leaves the job: its capture counts.
#[test]
fn what_takes_the_place_of_a_version_that_others_have_passed_is_not_given_back() {
    for (why, counts) in [(Why::Passed, true), (Why::Coordinator, false)] {
        let (armed_for, version) = (Version(16), Version(18));
        let mut agent = alone(0);
        let program = with_slots(&mut agent, Version(14));
        agent.ranks.get_mut(Rank(0)).unwrap().link = Some(Link { token: 1, pid: 1 });
        armed(&mut agent, armed_for);
        program.offer(version.0);
        assert!(program.enter(version, None).is_some());
        agent.on_aborted(armed_for, None, why, None);
        let captured = captures(&agent, &program, version);
        agent.on_said(1, 0, captured);
        agent.close(Rank(0), 1);
        agent.on_join(version, Levels::NONE.with(Level::DISK));
        let begun = agent.rounds.get(&version).map(|it| it.captured.len());
        assert_eq!(begun, Some(usize::from(counts)), "{why:?}");
        let slots = &agent.ranks.get(Rank(0)).unwrap().slots;
        let (source, free) = (Incarnation(1), Use::Free);
        let full = Use::Full { source, version };
        assert_eq!(slots[1].usage, if counts { full } else { free }, "{why:?}");
    }
}

/// A rank has left the job, its agent was started anew and does not know it. Others capture a version: this
/// node says at the job's end that it has nothing of it, and nobody waits for a bound.
#[test]
fn what_a_rank_that_has_ended_would_capture_ends_with_the_job() {
    for linked in [false, true] {
        let version = Version(18);
        let mut agent = alone(0);
        let program = with_slots(&mut agent, Version(14));
        program.offer(15);
        let link = linked.then_some(Link { token: 1, pid: 1 });
        agent.ranks.get_mut(Rank(0)).unwrap().link = link;
        agent.on_join(version, Levels::NONE.with(Level::DISK));
        assert_eq!(program.armed().map(|it| it.version), Some(version));
        assert_eq!(agent.passed(), []);
        agent.begin_to_finish();
        // One that is connected may have captured it: its word is under way.
        let ends = (!linked).then_some((Rank(0), version, Why::Passed));
        assert_eq!(agent.passed(), Vec::from_iter(ends), "{linked}");
    }
}
