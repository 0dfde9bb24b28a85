//! How jobs end: well, exhausted, hopeless, interrupted.

use super::*;

#[test]
fn a_command_that_ends_well_finishes_flushes_and_stops_the_nodes() {
    let mut world = World::running(settings(2), 4);
    for rank in 0..4 {
        world.down(rank, RankEnd::Closed);
        world.gone(rank, Some(Ended::Code(0)));
    }
    world.command_ended(Ended::Code(0));
    assert_eq!(world.exit(), 0);
    let finish = |a: &Action| {
        matches!(
            a,
            Action::Order {
                order: Order::Finish { success: true },
                ..
            }
        )
    };
    assert_eq!(world.count(finish), 2);
    assert_eq!(world.count(|a| matches!(a, Action::StopNode { .. })), 2);
    assert_eq!(world.sup.report().result, "finished");
    assert!(world.sup.report().failures.is_empty());
}

#[test]
fn an_agent_that_is_started_anew_at_the_end_is_told_of_the_job() {
    let mut world = World::running(settings(2), 2);
    world.mute = BTreeSet::from([NodeId(0), NodeId(1)]);
    world.command_ended(Ended::Code(0));
    assert!(world.outcome.is_none(), "flushes are under way");
    let told = |a: &Action| {
        let Action::Order { node, order } = a else {
            return false;
        };
        *node == NodeId(0) && matches!(order, Order::Configure(_))
    };
    let before = world.count(told);
    world.notice(0, hello(NodeId(0), 1));
    assert_eq!(world.count(told), before + 1, "else it can decide nothing");
}

#[test]
fn ranks_that_end_well_without_close_are_a_warning() {
    let mut world = World::running(settings(1), 2);
    world.gone(0, Some(Ended::Code(0)));
    world.down(0, RankEnd::Lost);
    world.down(1, RankEnd::Lost);
    world.command_ended(Ended::Code(0));
    assert_eq!(world.exit(), 0);
    assert_eq!(world.sup.report().warnings.len(), 2);
}

#[test]
fn a_command_that_ends_with_0_though_a_rank_was_killed_is_started_again() {
    let mut world = World::running(settings(1), 2);
    world.stubborn = true;
    world.gone(1, Some(Ended::Signal(9)));
    world.command_ended(Ended::Code(0));
    world.input(Input::TreeEnded);
    assert!(world.outcome.is_none());
    assert_eq!(world.starts(), 2);
}

#[test]
fn a_job_that_dies_at_once_on_every_start_stops_with_its_own_status() {
    let mut world = World::running(settings(1), 1);
    for _ in 0..3 {
        world.pass(1_000);
        world.command_ended(Ended::Code(3));
        world.pass(1_500);
    }
    assert_eq!(world.exit(), 3);
    assert_eq!(world.codes(), ["OL-506"]);
    assert_eq!(world.starts(), 3);
}

#[test]
fn progress_forgives_early_deaths() {
    let mut set = settings(1);
    set.max_restarts = 100;
    let mut world = World::running(set, 1);
    for version in 1..20 {
        world.pass(1_000);
        world.stable(version);
        world.gone(0, Some(Ended::Signal(11)));
        world.pass(100);
    }
    assert!(world.outcome.is_none());
    assert_eq!(world.starts(), 20);
}

#[test]
fn restarts_are_exhausted_with_growing_delays() {
    let mut set = settings(1);
    set.max_restarts = 4;
    let mut world = World::running(set, 1);
    let mut waited = Vec::new();
    for _ in 0..5 {
        world.pass(6_000);
        let starts = world.starts();
        world.command_ended(Ended::Code(1));
        let from = world.now;
        while world.starts() == starts && world.outcome.is_none() {
            world.pass(10);
        }
        waited.push(world.now.since(from).as_secs().round() as u64);
    }
    assert_eq!(world.exit(), 79);
    assert_eq!(world.codes(), ["OL-503"]);
    assert_eq!(waited, [0, 1, 2, 4, 0]);
}

#[test]
fn one_is_not_many_in_what_ended_the_job() {
    let mut set = settings(1);
    set.max_restarts = 1;
    let mut world = World::running(set, 1);
    for _ in 0..2 {
        world.pass(6_000);
        world.command_ended(Ended::Code(1));
        world.pass(6_000);
    }
    assert_eq!(world.codes(), ["OL-503"]);
    let reason = &world.sup.report().errors[0].reason;
    assert!(reason.starts_with("after 1 restart: "), "{reason}");

    for (spares, says) in [(0, "no spare"), (1, "the only spare"), (2, "all 2 spares")] {
        let mut set = settings(2);
        set.spares = spares;
        let node = |second| inject::parse(&format!("node:1@{second}s"), 2).unwrap();
        set.injections = (1..=spares + 1).map(node).collect();
        let mut world = World::running(set, 2);
        world.pass(5_000);
        assert_eq!(world.codes(), ["OL-504"]);
        let reason = &world.sup.report().errors[0].reason;
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn without_restarts_the_commands_status_is_ours() {
    for (ended, status) in [(Ended::Code(7), 7), (Ended::Signal(15), 143)] {
        let mut set = settings(1);
        set.max_restarts = 0;
        let mut world = World::running(set, 1);
        world.command_ended(ended);
        assert_eq!(world.exit(), status);
        assert_eq!(world.sup.report().result, "failed");
    }
}

/// The launcher of the ranks kills those that are left when one fails: which of them is
/// seen first is chance, whose status counts is not.
#[test]
fn the_first_own_status_wins_over_a_killed_rank_seen_before() {
    let killed = Some(Ended::Signal(9));
    let world = |max_restarts| {
        let mut set = settings(1);
        set.max_restarts = max_restarts;
        let mut world = World::running(set, 2);
        world.stubborn = true;
        world
    };
    // The command says it by its end.
    let mut by_command = world(0);
    by_command.gone(1, killed);
    assert!(
        by_command.outcome.is_none(),
        "the command may still say why"
    );
    by_command.command_ended(Ended::Code(3));
    by_command.input(Input::TreeEnded);
    assert_eq!(by_command.exit(), 3);
    assert!(
        by_command.sup.report().failures[0]
            .cause
            .contains("exit code 3")
    );
    // The rank that failed is seen after the one that was killed; then the command,
    // which we have ended, too.
    let mut by_rank = world(0);
    by_rank.gone(1, killed);
    by_rank.gone(0, Some(Ended::Code(4)));
    by_rank.command_ended(Ended::Code(5));
    by_rank.input(Input::TreeEnded);
    assert_eq!(by_rank.exit(), 4);
    assert!(by_rank.sup.report().failures[0].cause.contains("rank:0"));
    // Nobody knows better.
    let mut nobody = world(0);
    nobody.gone(1, killed);
    nobody.command_ended(Ended::Signal(9));
    nobody.input(Input::TreeEnded);
    assert_eq!(nobody.exit(), 137);
    // On every start: the first own status of all of them.
    for (first, exit) in [(Ended::Signal(9), 9), (Ended::Code(8), 8)] {
        let mut quick = world(10);
        for ended in [first, Ended::Signal(9), Ended::Signal(9)] {
            quick.gone(1, Some(ended));
            if quick.starts() == 3 {
                quick.command_ended(Ended::Code(9));
            }
            quick.input(Input::TreeEnded);
            quick.pass(1_500);
        }
        assert_eq!((quick.exit(), quick.starts()), (exit, 3));
        assert_eq!(quick.codes(), ["OL-506"]);
    }
}

#[test]
fn a_command_that_cannot_be_started_is_not_tried_again() {
    let mut world = World::new(settings(1), 1);
    assert!(world.outcome.is_none());
    world.no_command = true;
    world.gone(0, Some(Ended::Signal(9)));
    assert_eq!(world.exit(), 127);
    assert_eq!(world.codes(), ["OL-505"]);
}

#[test]
fn another_number_of_ranks_is_hopeless_at_once() {
    let mut world = World::running(settings(1), 1);
    let error = Error::new(
        Code::RankCount,
        outlive_base::Entity::Rank(0),
        "4, not 1",
        "x",
    );
    world.notice(
        0,
        Notice::Restored {
            rank: Rank(0),
            outcome: Err(error),
        },
    );
    world.command_ended(Ended::Code(1));
    assert_eq!(world.codes(), ["OL-201"]);
    assert_eq!(world.exit(), 65);
}

#[test]
fn no_valid_checkpoint_ends_the_job_with_80() {
    let mut world = World::running(settings(2), 2);
    let job = outlive_base::Entity::Job("job".into());
    world.open_fails = Some(Error::new(Code::NoValidCheckpoint, job, "none", "x"));
    world.gone(0, Some(Ended::Signal(9)));
    assert_eq!(world.exit(), 80);
}

#[test]
fn an_opening_that_fails_is_tried_a_bounded_number_of_times() {
    let mut world = World::running(settings(2), 2);
    let job = outlive_base::Entity::Job("job".into());
    world.open_fails = Some(Error::new(Code::NoQuorum, job, "no majority", "x"));
    world.gone(0, Some(Ended::Signal(9)));
    world.pass(60_000);
    assert_eq!(world.codes(), ["OL-507"]);
}

#[test]
fn an_interrupt_is_forwarded_and_ends_in_order() {
    let mut world = World::running(settings(2), 2);
    world.stubborn = true;
    world.input(Input::Interrupt {
        signal: crate::ended::SIGTERM,
        from_terminal: false,
    });
    let forwarded = |a: &Action| {
        matches!(
            a,
            Action::EndCommand {
                signal: Some(crate::ended::SIGTERM),
                grace_ms: 2_000
            }
        )
    };
    assert_eq!(world.count(forwarded), 1);
    assert!(world.outcome.is_none());
    // The command's death by that signal is no failure.
    world.command_ended(Ended::Signal(15));
    world.input(Input::TreeEnded);
    assert_eq!(world.exit(), 143);
    assert_eq!(world.sup.report().result, "interrupted");
    assert!(world.sup.report().failures.is_empty());
    let finish = |a: &Action| {
        matches!(
            a,
            Action::Order {
                order: Order::Finish { success: false },
                ..
            }
        )
    };
    assert_eq!(world.count(finish), 2);
}

#[test]
fn a_warning_of_the_end_takes_a_checkpoint_at_all_levels_and_ends_nothing() {
    let warned = |world: &mut World| {
        world.input(Input::Interrupt {
            signal: crate::ended::SIGUSR1,
            from_terminal: false,
        });
    };
    let all = [Level::MEMORY, Level::DISK, Level::PARTNER];
    let asked = |a: &Action| {
        let now =
            |order: &Order| matches!(order, Order::CheckpointNow { levels } if *levels == all);
        matches!(a, Action::Order { node: NodeId(0), order } if now(order))
    };
    let mut set = settings(2);
    let every = 1;
    set.levels = all.map(|level| LevelSetting { level, every }).to_vec();
    let mut world = World::running(set.clone(), 2);
    warned(&mut world);
    assert_eq!(world.count(asked), 1);
    assert!(world.outcome.is_none() && world.sup.report().failures.is_empty());
    // While there is nobody who could take one it is kept in mind.
    let mut world = World::running(set, 2);
    world.stubborn = true;
    world.gone(0, Some(Ended::Signal(9)));
    warned(&mut world);
    assert_eq!(world.count(asked), 0);
    world.command_ended(Ended::Signal(9));
    world.input(Input::TreeEnded);
    world.pass(5_000);
    assert_eq!((world.starts(), world.count(asked)), (2, 1));
}

#[test]
fn the_terminals_interrupt_is_not_sent_twice() {
    let mut world = World::running(settings(1), 1);
    world.input(Input::Interrupt {
        signal: crate::ended::SIGINT,
        from_terminal: true,
    });
    assert_eq!(
        world.count(|a| matches!(a, Action::EndCommand { signal: None, .. })),
        1
    );
    assert_eq!(world.exit(), 130);
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let mut world = World::running(settings(2), 2);
    world.stubborn = true;
    world.mute.insert(NodeId(0));
    world.input(Input::Interrupt {
        signal: crate::ended::SIGINT,
        from_terminal: false,
    });
    world.input(Input::Interrupt {
        signal: crate::ended::SIGINT,
        from_terminal: false,
    });
    assert_eq!(world.exit(), 130);
}

#[test]
fn an_interrupt_before_the_first_start_ends_too() {
    let mut world = World::new(settings(2), 2);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    world.input(Input::Interrupt {
        signal: crate::ended::SIGINT,
        from_terminal: false,
    });
    assert_eq!(world.exit(), 130);
    assert_eq!(world.starts(), 1);
}

#[test]
fn nodes_that_never_finish_are_waited_for_within_the_bound() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    world.command_ended(Ended::Code(0));
    for _ in 0..59 {
        world.pass(1_000);
        world.notice(
            1,
            Notice::Alive {
                offered: None,
                held: false,
            },
        );
    }
    assert!(world.outcome.is_none());
    world.pass(3_000);
    assert_eq!(world.exit(), 0);
    assert_eq!(world.sup.report().warnings.len(), 1);
}

#[test]
fn nodes_that_fall_silent_at_the_end_are_not_waited_for() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    world.command_ended(Ended::Code(0));
    world.pass(12_000);
    assert_eq!(world.exit(), 0);
}

/// Its part of the versions that are not decided yet is nothing if no rank lived there.
#[test]
fn an_agent_started_anew_at_the_end_hears_how_many_ranks_there_were() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    for rank in 0..2 {
        world.down(rank, RankEnd::Closed);
    }
    world.command_ended(Ended::Code(0));
    let before = world.log.len();
    world.notice(1, hello(NodeId(1), 1));
    let told = |action: &Action| match action {
        Action::Order { node, order } => {
            *node == NodeId(1) && matches!(order, Order::Ranks { ranks: 2, .. })
        }
        _ => false,
    };
    assert!(world.log[before..].iter().any(told), "{:?}", world.log);
}

#[test]
fn a_node_lost_after_the_end_does_not_spoil_it() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    world.command_ended(Ended::Code(0));
    world.keeper_ended(1);
    assert_eq!(world.exit(), 0);
    assert!(world.sup.report().failures.is_empty());
}

#[test]
fn a_rank_that_vanished_before_the_good_end_is_warned_of_once() {
    let mut world = World::running(settings(2), 2);
    // The flushes of node 1 take their time.
    world.mute.insert(NodeId(1));
    world.down(0, RankEnd::Lost);
    world.command_ended(Ended::Code(0));
    world.pass(500);
    let warnings = &world.sup.report().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].reason.contains("outlive_close"));
}

#[test]
fn strangers_without_end_are_counted_and_leave_room() {
    let mut world = World::running(settings(1), 1);
    let stranger = |port: u32| {
        let addr = outlive_base::Entity::Address(format!("10.0.0.1:{port}"));
        Error::new(Code::KeyMismatch, addr, "another key", "x")
    };
    for port in 0..500 {
        let error = stranger(port);
        world.input(Input::Refused { error });
    }
    let told = |a: &Action| matches!(a, Action::Tell(Event::Warning(_)));
    assert_eq!(
        (world.count(told), world.sup.report().warnings.len()),
        (3, 3)
    );
    let full = Error::new(
        Code::NoSpace,
        outlive_base::Entity::File("/n/containers/i1-v10-n0.olc".into()),
        "write: no space",
        "free it",
    );
    world.notice(0, Notice::Warning(full));
    assert_eq!(world.count(told), 4);
    world.command_ended(Ended::Code(0));
    assert_eq!(world.exit(), 0);
    let warnings = &world.sup.report().warnings;
    assert_eq!((warnings[2].more, warnings[3].more), (497, 0));
    let more = |a: &Action| matches!(a, Action::Tell(Event::More { more: 497, .. }));
    assert_eq!(world.count(more), 1, "the end says how many in all");
}

fn given_up(version: u64, level: Level) -> Notice {
    let entity = outlive_base::Entity::Version(version);
    let error = Error::new(Code::Io, entity, "could not be written", "x");
    Notice::Checkpoint {
        version: Version(version),
        step: Step::Aborted {
            level: Some(level),
            error,
        },
    }
}

#[test]
fn versions_that_a_full_disk_costs_are_told_once_and_counted() {
    let mut set = settings(1);
    set.levels = vec![LevelSetting {
        level: Level::DISK,
        every: 1,
    }];
    let mut world = World::running(set, 1);
    for version in [10, 10, 20, 30] {
        world.notice(0, given_up(version, Level::DISK));
        // Of a level that the job does not use there is nothing to say.
        world.notice(0, given_up(version, Level::SHARED));
    }
    world.pass(2_000);
    let told = |a: &Action| matches!(a, Action::Tell(Event::Aborted { .. }));
    assert_eq!(world.count(told), 1);
    assert_eq!(world.sup.report().checkpoints.aborted, 3);
    let stable = |version| Notice::Checkpoint {
        version: Version(version),
        step: Step::Stable(Level::DISK),
    };
    // One that is late is older than those.
    world.notice(0, stable(5));
    world.notice(0, stable(40));
    let again = |a: &Action| matches!(a, Action::Tell(Event::KeptAgain { given_up: 3, .. }));
    assert_eq!(world.count(again), 1);
    // Another time is told again.
    world.notice(0, given_up(50, Level::DISK));
    world.pass(2_000);
    assert_eq!(world.count(told), 2);
}

#[test]
fn what_a_lost_node_explains_is_not_told_beside_it() {
    let mut set = settings(2);
    set.levels = vec![LevelSetting {
        level: Level::PARTNER,
        every: 1,
    }];
    let mut world = World::running(set, 2);
    let entity = outlive_base::Entity::Node(1);
    let lost = Error::new(Code::Network, entity, "the connection ended", "x");
    world.notice(0, Notice::Warning(lost.clone()));
    world.notice(0, given_up(10, Level::PARTNER));
    world.keeper_ended(1);
    world.pass(5_000);
    let words = |a: &Action| matches!(a, Action::Tell(Event::Warning(_) | Event::Aborted { .. }));
    assert_eq!(world.count(words), 0);
    assert!(world.sup.report().warnings.is_empty());
    // With nobody lost it is said, after a moment.
    world.notice(0, Notice::Warning(lost));
    assert_eq!(world.count(words), 0);
    world.pass(2_000);
    assert_eq!(world.count(words), 1);
}

/// Its neighbour's copy was under way.
#[test]
fn what_an_agent_that_was_started_anew_explains_is_not_told_beside_it() {
    let mut set = settings(3);
    set.levels = vec![LevelSetting {
        level: Level::PARTNER,
        every: 1,
    }];
    let mut world = World::running(set, 3);
    let of_node = |node| {
        let entity = outlive_base::Entity::Node(node);
        Error::new(Code::Network, entity, "the connection ended", "x")
    };
    world.notice(0, Notice::Warning(of_node(1)));
    world.notice(2, Notice::Warning(of_node(0)));
    world.notice(0, given_up(10, Level::PARTNER));
    world.notice(1, hello(NodeId(1), 1));
    // And what another finds a moment later.
    world.notice(2, Notice::Warning(of_node(1)));
    world.pass(5_000);
    let words = |a: &Action| matches!(a, Action::Tell(Event::Warning(_) | Event::Aborted { .. }));
    assert_eq!(world.count(words), 1, "what is said of another node stands");
    world.notice(2, Notice::Warning(of_node(1)));
    world.pass(2_000);
    assert_eq!(world.count(words), 2, "it is long past");
}

/// The rank's end waits for that of its node, whatever else is lost between them.
#[test]
fn two_nodes_lost_at_once_are_two_lines() {
    let mut world = World::running(settings(3), 3);
    world.gone(1, None);
    world.down(1, RankEnd::Lost);
    world.keeper_ended(2);
    world.keeper_ended(1);
    world.pass(5_000);
    let lost = |a: &Action| matches!(a, Action::Tell(Event::Failure { .. }));
    assert_eq!(world.count(lost), 2);
}

/// A shell between tells the signal as its exit code, and may be seen to end before its node.
#[test]
fn a_node_and_the_shell_that_ran_there_are_one_line() {
    let mut world = World::running(settings(3), 3);
    // It is being killed, and answers nothing any more.
    world.unready.insert(NodeId(1));
    world.down(1, RankEnd::Lost);
    world.command_ended(Ended::Code(137));
    world.keeper_ended(1);
    world.unready.clear();
    world.pass(5_000);
    let told = |a: &Action| match a {
        Action::Tell(Event::Failure { what, .. }) => Some(what.clone()),
        _ => None,
    };
    let told: Vec<String> = world.log.iter().filter_map(told).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("node:1"), "{told:?}");
}

/// A status repeats what an agent warned of: that a lost node explained it is remembered.
#[test]
fn what_a_lost_node_explained_does_not_come_back_with_a_status() {
    let mut world = World::running(settings(2), 2);
    let entity = outlive_base::Entity::Node(1);
    let lost = Error::new(Code::AgentUnreachable, entity, "cannot connect", "x");
    world.notice(0, Notice::Warning(lost.clone()));
    world.keeper_ended(1);
    world.pass(1_000);
    let status = NodeStatus {
        warnings: vec![lost],
        ..NodeStatus::default()
    };
    world.notice(0, Notice::Status(status));
    world.pass(3_000);
    let words = |a: &Action| matches!(a, Action::Tell(Event::Warning(_)));
    assert_eq!(world.count(words), 0);
}

/// Versions were stable, and the next start finds nothing: the job stops and says what each
/// node has, or begins anew if its owner said so before.
#[test]
fn nothing_usable_ends_the_job_or_begins_it_anew() {
    let nothing = || {
        Error::new(
            Code::NoValidCheckpoint,
            outlive_base::Entity::Node(1),
            "no copy",
            "bring it back",
        )
    };
    let fail = |anew_if_nothing: bool| {
        let mut set = settings(2);
        set.anew_if_nothing = anew_if_nothing;
        let mut world = World::running(set, 2);
        world.stable(10);
        world.open_fails = Some(nothing());
        world.gone(0, Some(Ended::Signal(11)));
        world
    };
    let stops = fail(false);
    assert_eq!(stops.exit(), 80);
    let reason = &stops.sup.report().errors[0];
    assert!(reason.remedy.contains("--on-nothing-usable"), "{reason:?}");
    let known = |history: Option<(Incarnation, Version)>| {
        move |action: &Action| *action == Action::RecordHistory { history }
    };
    let first = Some((Incarnation(1), Version(10)));
    assert!(stops.count(known(first)) > 0);

    let anew = fail(true);
    let ordered = |action: &Action| {
        let Action::Order { order, .. } = action else {
            return false;
        };
        matches!(order, Order::Open { fresh: true, history, .. } if history.0 == 0)
    };
    assert!(anew.count(ordered) > 0);
}

/// A job file that is older than the nodes' records: used numbers are passed over, so many
/// times at most.
#[test]
fn numbers_that_were_used_are_passed_over() {
    let mut world = World::running(settings(1), 1);
    let used = Error::new(Code::JobBusy, outlive_base::Entity::Call, "used", "wait");
    world.open_fails = Some(used);
    world.gone(0, Some(Ended::Signal(11)));
    assert_eq!(world.exit(), 75);
    assert_eq!(world.sup.report().incarnations, [1, 2, 3, 4, 5]);
}
