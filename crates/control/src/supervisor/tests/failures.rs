//! Ranks, agents and nodes that fail, one by one and together.

use super::*;

#[test]
fn a_lost_rank_ends_the_command_and_the_next_incarnation_restores() {
    let mut world = World::running(settings(4), 8);
    world.stable(40);
    world.pass(20_000);
    world.gone(3, Some(Ended::Signal(11)));
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.incarnation(), 2);
    let report = world.sup.report();
    let failure = &report.failures[0];
    assert_eq!(
        (failure.kind.as_str(), failure.place.as_str()),
        ("rank", "rank:3")
    );
    assert_eq!(failure.version, Some(40));
    assert_eq!(failure.level.as_deref(), Some("partner"));
    assert_eq!(failure.rebuild_ms, Some(12.5));
    assert!(failure.fence_ms.is_some() && failure.relaunch_ms.is_some());
    assert_eq!((report.restarts, report.incarnations.len()), (1, 2));
    // The other ranks' deaths, and the command's, are no failures of their own.
    assert_eq!(report.failures.len(), 1);
}

/// The report has in time what was lost, for how long ranks were blocked, and how long levels took.
#[test]
fn what_a_failure_lost_is_told_in_time() {
    let mut world = World::running(settings(2), 4);
    let capture = |world: &mut World, version: u64, blocked_ms: [u64; 2]| {
        for (node, ms) in (0..).zip(blocked_ms) {
            let step = Step::Captured {
                bytes: 10,
                blocked_ns: ms * 1_000_000,
            };
            let version = Version(version);
            world.notice(node, Notice::Checkpoint { version, step });
        }
    };
    world.pass(10_000);
    capture(&mut world, 1, [3, 7]);
    world.pass(2_000);
    world.stable(1);
    world.pass(3_000);
    capture(&mut world, 2, [5, 4]);
    world.pass(4_000);
    world.gone(3, Some(Ended::Signal(11)));
    let report = world.sup.report();
    assert_eq!(report.failures[0].version, Some(1));
    let near = |found: Option<f64>, ms: f64| found.is_some_and(|found| (found - ms).abs() < 1.0);
    assert!(
        near(report.failures[0].lost_ms, 9_000.0),
        "{:?}",
        report.failures[0]
    );
    let counts = &report.checkpoints;
    assert_eq!((counts.blocked_ms_max, counts.blocked_ms_sum), (7.0, 12.0));
    assert!(
        near(counts.kept_ms.get("partner").copied(), 2_000.0),
        "{counts:?}"
    );
    assert_eq!(counts.kept_ms.len(), 1);
    // The same version again, and less of it.
    world.pass(1_500);
    world.gone(2, Some(Ended::Signal(11)));
    let failure = &world.sup.report().failures[1];
    assert!(near(failure.lost_ms, 1_500.0), "{failure:?}");
}

#[test]
fn a_rank_that_is_gone_without_reason_waits_a_little_for_the_commands_end() {
    let mut world = World::running(settings(2), 4);
    world.down(1, RankEnd::Lost);
    assert_eq!(world.starts(), 1);
    world.pass(79);
    assert_eq!(world.starts(), 1);
    world.pass(2);
    assert_eq!(world.starts(), 2);
    let failure = &world.sup.report().failures[0];
    assert!(
        failure.detect_ms.unwrap() <= 100.0,
        "dead ranks are found within 100 ms"
    );
}

#[test]
fn a_killed_node_is_replaced_by_a_spare_with_an_empty_directory() {
    let mut set = settings(4);
    set.injections = vec![inject::parse("node:2@version=60", 4).unwrap()];
    let mut world = World::running(set, 8);
    assert_eq!(
        world.count(|a| matches!(
            a,
            Action::Order {
                order: Order::Inject { .. },
                ..
            }
        )),
        1
    );
    world.stable(50);
    let version = Some(Version(60));
    world.notice(2, Notice::InjectReached { id: 0, version });
    let emptied = |a: &Action| {
        matches!(
            a,
            Action::StartNode {
                storage: Storage::Empty,
                ..
            }
        )
    };
    assert_eq!(world.count(emptied), 1);
    let replaced = |a: &Action| {
        matches!(a, Action::Order { order: Order::Open { replaced, .. }, .. }
            if *replaced == vec![NodeId(2)])
    };
    assert_eq!(world.count(replaced), 4);
    assert_eq!(world.starts(), 2);
    let failure = &world.sup.report().failures[0];
    assert_eq!(failure.place, "node:2");
    assert!(failure.injected);
    assert_eq!(failure.detect_ms, Some(3.0));
    assert_eq!((failure.at_version, failure.version), (Some(60), Some(50)));
    assert_eq!(failure.versions_lost, Some(10));
    // It happens once: the new holder is not told to do it again.
    assert_eq!(world.count(|a| matches!(a, Action::KillNode { .. })), 1);
    assert_eq!(
        world.count(|a| matches!(
            a,
            Action::Order {
                order: Order::Inject { .. },
                ..
            }
        )),
        1
    );
}

/// Two nodes that are to be lost at one version are lost together, whichever reaches it
/// first; one whose ranks never come there is not waited for without end.
#[test]
fn injections_at_one_version_happen_together() {
    for slow in [false, true] {
        let mut set = settings(4);
        set.spares = 2;
        let parse = |spec: &str| inject::parse(spec, 4).unwrap();
        set.injections = vec![parse("node:1@version=60"), parse("node:2@version=60")];
        let mut world = World::running(set, 8);
        world.stable(50);
        let version = Some(Version(60));
        let killed = |a: &Action| matches!(a, Action::KillNode { .. });
        let released = |a: &Action| {
            let Action::Order { order, .. } = a else {
                return false;
            };
            matches!(order, Order::InjectDone { .. })
        };
        world.notice(2, Notice::InjectReached { id: 2, version });
        world.pass(100);
        assert_eq!((world.count(killed), world.count(released)), (0, 0));
        match slow {
            false => world.notice(1, Notice::InjectReached { id: 0, version }),
            true => world.pass(2_000),
        }
        let places: Vec<&str> = {
            let failures = world.sup.report().failures.iter();
            failures.map(|failure| failure.place.as_str()).collect()
        };
        let expected = if slow {
            vec!["node:2"]
        } else {
            vec!["node:1", "node:2"]
        };
        assert_eq!(places, expected);
        assert_eq!((world.starts(), world.sup.report().restarts), (2, 1));
    }
}

#[test]
fn a_keeper_that_dies_alone_keeps_its_storage_and_needs_no_spare() {
    let mut set = settings(2);
    set.spares = 0;
    let mut world = World::running(set, 2);
    world.keeper_ended(1);
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.report().failures[0].place, "node:1");
    assert_eq!(
        world.count(|a| matches!(
            a,
            Action::StartNode {
                storage: Storage::Empty,
                ..
            }
        )),
        0
    );
}

#[test]
fn ranks_that_die_with_their_node_are_one_failure() {
    let mut world = World::running(settings(4), 8);
    world.stubborn = true;
    world.gone(4, Some(Ended::Signal(9)));
    world.gone(5, Some(Ended::Signal(9)));
    world.keeper_ended(2);
    world.command_ended(Ended::Code(1));
    world.input(Input::TreeEnded);
    let report = world.sup.report();
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert_eq!(report.failures[0].place, "node:2");
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.report().restarts, 1);
}

/// The ends of a killed node's ranks come before its keeper's, and the command's too.
#[test]
fn a_killed_node_whose_keeper_ends_last_is_one_failure() {
    let mut set = settings(4);
    set.injections = vec![inject::parse("node:2@version=60", 4).unwrap()];
    let mut world = World::running(set, 8);
    world.lingering = true;
    let version = Some(Version(60));
    world.notice(2, Notice::InjectReached { id: 0, version });
    world.gone(4, Some(Ended::Signal(9)));
    assert_eq!(world.starts(), 1, "node 2 has not ended yet");
    world.keeper_ended(2);
    assert_eq!((world.starts(), world.sup.report().restarts), (2, 1));
    let places = world.sup.report().failures.iter().map(|f| f.place.as_str());
    assert_eq!(places.collect::<Vec<_>>(), ["node:2"]);
}

#[test]
fn a_second_node_lost_during_recovery_is_a_failure_of_its_own() {
    let mut world = World::running(settings(4), 8);
    world.stubborn = true;
    world.keeper_ended(2);
    world.keeper_ended(3);
    assert_eq!(world.starts(), 1, "the command has not ended yet");
    world.input(Input::TreeEnded);
    assert_eq!(world.starts(), 2);
    let places: Vec<_> = world
        .sup
        .report()
        .failures
        .iter()
        .map(|f| f.place.clone())
        .collect();
    assert_eq!(places, ["node:2", "node:3"]);
    let all = world
        .sup
        .report()
        .failures
        .iter()
        .all(|f| f.relaunch_ms.is_some());
    assert!(all, "both were recovered from");
}

#[test]
fn a_node_lost_while_waiting_for_ready_opens_another_incarnation() {
    let mut world = World::running(settings(4), 8);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    assert_eq!(world.starts(), 1);
    assert_eq!(world.sup.incarnation(), 2);
    world.unready.clear();
    world.keeper_ended(3);
    assert_eq!(world.sup.incarnation(), 3);
    assert_eq!(world.starts(), 2);
}

#[test]
fn a_spare_that_dies_is_replaced_by_the_next_until_none_is_left() {
    let mut set = settings(2);
    set.spares = 2;
    set.injections = ["node:1@1s", "node:1@2s", "node:1@3s"]
        .map(|text| inject::parse(text, 2).unwrap())
        .to_vec();
    let mut world = World::running(set, 2);
    world.pass(1_500);
    assert_eq!(world.starts(), 2);
    world.pass(1_000);
    assert_eq!(world.starts(), 3);
    world.pass(1_000);
    assert_eq!(world.starts(), 3);
    assert_eq!(world.exit(), 69);
    assert_eq!(world.codes(), ["OL-504"]);
}

#[test]
fn the_coordinators_node_is_replaced_like_any_other() {
    let mut set = settings(3);
    set.injections = vec![inject::parse("node:0@1s", 3).unwrap()];
    let mut world = World::running(set, 3);
    world.stable(7);
    world.pass(2_000);
    assert_eq!(world.starts(), 2);
    let failure = &world.sup.report().failures[0];
    assert_eq!(
        (failure.place.as_str(), failure.version),
        ("node:0", Some(7))
    );
}

#[test]
fn an_agent_that_its_keeper_starts_anew_does_not_stop_the_job() {
    let mut world = World::running(settings(2), 4);
    let before = world.log.len();
    world.input(Input::LinkDown {
        node: NodeId(1),
        epoch: world.epochs[&NodeId(1)],
    });
    // It counts up its own epoch.
    let epoch = world.epochs[&NodeId(1)] + 1;
    let mut notice = hello(NodeId(1), 1);
    if let Notice::Hello { ranks, .. } = &mut notice {
        *ranks = vec![(Rank(2), world.pid(2)), (Rank(3), world.pid(3))];
    }
    world.epochs.insert(NodeId(1), epoch);
    world.input(Input::Notice {
        node: NodeId(1),
        epoch,
        notice,
    });
    world.pass(5_000);
    assert_eq!(world.starts(), 1);
    assert!(world.told(|event| matches!(event, Event::AgentRestarted { restarts: 1, .. })));
    assert_eq!(world.sup.report().agent_restarts, 1);
    assert!(world.sup.report().failures.is_empty());
    // Its address changed, so every agent is told.
    assert_eq!(told(&world.log[before..], 1), [None]);
    assert_eq!(told(&world.log[before..], 0), [Some(vec![NodeId(1)])]);
}

/// What a node was told of the members: all, or who has changed.
fn told(log: &[Action], of: u32) -> Vec<Option<Vec<NodeId>>> {
    let orders = log.iter().filter_map(|action| match action {
        Action::Order { node, order } if node.0 == of => Some(order),
        _ => None,
    });
    let members = orders.filter_map(|order| match order {
        Order::Configure(_) => Some(None),
        Order::Members { changed, .. } => Some(Some(changed.iter().map(|it| it.node).collect())),
        _ => None,
    });
    members.collect()
}

#[test]
fn who_knows_the_job_is_told_of_what_has_changed_alone() {
    let mut world = World::running(settings(3), 3);
    assert!((0..3).all(|node| told(&world.log, node) == [None]));
    let before = world.log.len();
    let epoch = world.epochs[&NodeId(1)];
    world.input(Input::KeeperEnded {
        node: NodeId(1),
        epoch,
        ended: Ended::Signal(9),
    });
    world.pass(5_000);
    assert_eq!(world.sup.incarnation(), 2);
    let log = &world.log[before..];
    assert_eq!(told(log, 1), [None], "it is new");
    for node in [0, 2] {
        assert_eq!(told(log, node), [Some(vec![NodeId(1)])], "{node}");
    }
    // What went over a connection that broke counts for nothing.
    let before = world.log.len();
    let (node, epoch) = (NodeId(2), world.epochs[&NodeId(2)]);
    world.input(Input::LinkDown { node, epoch });
    world.gone(0, Some(Ended::Signal(6)));
    world.command_ended(Ended::Code(1));
    world.pass(60_000);
    let log = &world.log[before..];
    // It may be opened more than once in that time.
    assert_eq!(told(log, 2).first(), Some(&None));
    let rest = told(log, 2).into_iter().skip(1).chain(told(log, 0));
    assert!(rest.into_iter().all(|members| members == Some(Vec::new())));
    assert!(!told(log, 0).is_empty());
}

#[test]
fn an_agent_whose_configuration_was_lost_with_its_connection_is_told_again() {
    let mut world = World::running(settings(2), 4);
    for (says, told) in [(Some(2), 0), (None, 1)] {
        let before = world.log.len();
        // The same process at the same place, on a new connection.
        let mut notice = hello(NodeId(1), 0);
        if let Notice::Hello { heard, .. } = &mut notice {
            *heard = says;
        }
        let epoch = world.epochs[&NodeId(1)];
        world.input(Input::Notice {
            node: NodeId(1),
            epoch,
            notice,
        });
        world.pass(1_000);
        let configures = world.log[before..].iter().filter(|action| {
            matches!(
                action,
                Action::Order {
                    node: NodeId(1),
                    order: Order::Configure(_),
                    ..
                }
            )
        });
        assert_eq!(configures.count(), told, "heard: {says:?}");
    }
    assert_eq!(world.starts(), 1);
}

/// The job runs, and one agent is started anew at another address. What others are told of that may be lost
/// with their connections.
#[test]
fn an_agent_is_told_whom_it_missed_with_its_connection() {
    let mut world = World::running(settings(3), 3);
    let revision = |log: &[Action], of: u32| {
        let orders = log.iter().filter_map(|action| match action {
            Action::Order { node, order } if node.0 == of => Some(order),
            _ => None,
        });
        let mut revisions = orders.filter_map(|order| match order {
            Order::Configure(config) => Some(config.revision),
            Order::Members { revision, .. } => Some(*revision),
            _ => None,
        });
        revisions.next_back()
    };
    let calls = |world: &mut World, node: u32, restarts: u32, says: Option<u64>| {
        let before = world.log.len();
        let mut notice = hello(NodeId(node), restarts);
        if let Notice::Hello { heard, .. } = &mut notice {
            *heard = says;
        }
        let node = NodeId(node);
        let epoch = world.epochs[&node] + u64::from(restarts);
        world.epochs.insert(node, epoch);
        world.input(Input::Notice {
            node,
            epoch,
            notice,
        });
        world.pass(1_000);
        world.log[before..].to_vec()
    };
    let first = revision(&world.log, 2);
    let log = calls(&mut world, 1, 1, None);
    assert_eq!(told(&log, 2), [Some(vec![NodeId(1)])]);
    let second = revision(&log, 2);
    assert!(first < second, "{first:?}, {second:?}");
    // It has not heard that, and then it has.
    let log = calls(&mut world, 2, 0, first);
    assert_eq!(told(&log, 2), [Some(vec![NodeId(1)])]);
    assert_eq!(revision(&log, 2), second);
    let log = calls(&mut world, 2, 0, second);
    assert_eq!(told(&log, 2), [], "it knows all");
    // What it says that it has heard is of another run of the launcher.
    let log = calls(&mut world, 2, 0, Some(1_000));
    assert_eq!(told(&log, 2), [None]);
    assert_eq!(world.starts(), 1);
}

#[test]
fn an_incarnation_is_never_opened_while_the_old_command_runs() {
    let mut world = World::running(settings(2), 2);
    world.stubborn = true;
    world.gone(0, Some(Ended::Signal(6)));
    world.command_ended(Ended::Code(1));
    world.pass(60_000);
    assert_eq!(world.sup.incarnation(), 1);
    world.input(Input::TreeEnded);
    assert_eq!(world.sup.incarnation(), 2);
}

#[test]
fn messages_of_a_fenced_agent_change_nothing() {
    let mut world = World::running(settings(2), 2);
    let old = world.epochs[&NodeId(1)];
    world.keeper_ended(1);
    let failures = world.sup.report().failures.len();
    let notice = Notice::RankDown {
        rank: Rank(1),
        pid: world.pid(1),
        end: RankEnd::Lost,
    };
    world.input(Input::Notice {
        node: NodeId(1),
        epoch: old,
        notice,
    });
    world.pass(1_000);
    assert_eq!(world.sup.report().failures.len(), failures);
}

#[test]
fn fresh_is_said_once_for_it_makes_void_what_was_before() {
    let mut set = settings(1);
    set.fresh = true;
    let mut world = World::new(set, 1);
    // Stable, and the launcher has not heard of it.
    world.newest = Some(Version(3));
    world.gone(0, Some(Ended::Signal(9)));
    assert_eq!(world.sup.report().failures[0].version, Some(3));
    let fresh = |action: &Action| match action {
        Action::Order {
            order: Order::Open { fresh, .. },
            ..
        } => Some(*fresh),
        _ => None,
    };
    let said: Vec<bool> = world.log.iter().filter_map(fresh).collect();
    assert_eq!(said, [true, false]);
}

/// The same version is stable again in the next incarnation: that is news of it.
#[test]
fn a_version_that_comes_again_counts_for_the_incarnation_in_which_it_does() {
    let mut world = World::running(settings(2), 2);
    world.stable(7);
    world.newest = None;
    world.gone(0, Some(Ended::Signal(9)));
    world.stable(7);
    let recorded = |action: &Action| match action {
        Action::RecordHistory { history } => history.map(|(number, _)| number.0),
        _ => None,
    };
    let recorded: Vec<u32> = world.log.iter().filter_map(recorded).collect();
    assert_eq!(recorded, [1, 2]);
}

/// An agent that was started anew and has lost its record of the incarnation: without it no
/// version is committed, and nothing else would end that.
#[test]
fn an_agent_that_takes_no_part_any_more_is_lost_with_its_storage_kept() {
    let mut world = World::running(settings(2), 2);
    world.outside.insert(NodeId(1));
    world.pass(20_000);
    assert_eq!(world.starts(), 1, "it may only be late");
    world.pass(15_000);
    assert_eq!(world.starts(), 2);
    let failures = &world.sup.report().failures;
    assert!(
        failures[0].cause.contains("not taken part"),
        "{}",
        failures[0].cause
    );
    world.outside.clear();
    world.pass(60_000);
    assert_eq!((world.starts(), world.sup.report().failures.len()), (2, 1));
}

/// Processes that end later than the bound are no reason any more to want a majority.
#[test]
fn what_is_fenced_late_is_fenced() {
    let mut world = World::running(settings(2), 2);
    let epoch = world.sup.slots[&NodeId(1)].epoch;
    let node = NodeId(1);
    world.sup.unfenced.insert((node, epoch - 1));
    assert!(!is_fenced(&world.sup));
    let complete = true;
    let late = Input::Fenced {
        node,
        epoch: epoch - 1,
        complete,
    };
    world.input(late);
    assert!(is_fenced(&world.sup));
    assert_eq!(world.starts(), 1);
}

fn is_fenced(sup: &Supervisor) -> bool {
    matches!(
        sup.open_order(Incarnation(9)),
        Order::Open { fenced: true, .. }
    )
}

#[test]
fn processes_that_cannot_be_ended_are_told_of_and_not_waited_for_without_end() {
    let mut world = World::running(settings(2), 2);
    world.stubborn = true;
    world.gone(0, Some(Ended::Signal(11)));
    world.pass(4_900);
    assert!(world.sup.report().warnings.is_empty());
    world.pass(500);
    assert_eq!(world.sup.report().warnings[0].code, "OL-502");
    assert_eq!(world.starts(), 1, "nothing is started beside them");
    world.pass(400_000);
    assert_eq!((world.exit(), world.starts()), (75, 1));
    assert_eq!(world.codes(), ["OL-502"]);
}

/// A disk that takes no records may hold the only copy of what is committed (P3).
#[test]
fn a_full_disk_is_given_up_only_if_what_lies_there_is_safe_elsewhere() {
    for (level, emptied, status) in [(Level::DISK, 0, 74), (Level::PARTNER, 1, 0)] {
        let mut world = World::running(settings(2), 2);
        let version = Version(40);
        world.newest = Some(version);
        let step = Step::Stable(level);
        world.notice(0, Notice::Checkpoint { version, step });
        let node = outlive_base::Entity::Node(1);
        world.open_fails = Some(Error::new(Code::Io, node, "no space", "make room"));
        world.stubborn = true;
        world.gone(0, Some(Ended::Signal(9)));
        world.input(Input::TreeEnded);
        if status == 0 {
            world.open_fails = None;
        }
        world.pass(10_000);
        let empty = |a: &Action| {
            matches!(
                a,
                Action::StartNode {
                    storage: Storage::Empty,
                    ..
                }
            )
        };
        assert_eq!(world.count(empty), emptied, "{level}");
        if status != 0 {
            assert_eq!(world.exit(), status);
        }
    }
}

/// An outage of what all share is nobody's fault, and is waited for: for minutes, not for ever.
#[test]
fn what_is_out_of_reach_for_now_is_waited_for() {
    // Storage that all nodes share; a node that another does not reach.
    for (code, exit) in [(Code::Io, 74), (Code::AgentUnreachable, 69)] {
        let job = outlive_base::Entity::Job("demo".into());
        let error = Error::new(code, job, "out of reach", "bring it back");
        let starts = |world: &World| world.count(|it| matches!(it, Action::StartNode { .. }));
        let mut world = World::running(settings(2), 2);
        let version = Version(40);
        let step = Step::Stable(Level::PARTNER);
        world.notice(0, Notice::Checkpoint { version, step });
        world.open_fails = Some(error.clone());
        world.stubborn = true;
        let before = starts(&world);
        world.gone(0, Some(Ended::Signal(9)));
        world.input(Input::TreeEnded);
        world.pass(300_000);
        assert_eq!(starts(&world), before, "no node is replaced");
        world.open_fails = None;
        world.pass(10_000);
        assert!(world.sup.is_running());
        let mut world = World::running(settings(2), 2);
        world.open_fails = Some(error);
        world.stubborn = true;
        world.gone(0, Some(Ended::Signal(9)));
        world.input(Input::TreeEnded);
        world.pass(650_000);
        assert_eq!(world.exit(), exit);
    }
}

/// Of two nodes lost at once, a rank of the one is seen to end before the other's keeper.
#[test]
fn ends_of_two_killed_nodes_in_any_order_are_two_failures() {
    let mut set = settings(4);
    set.spares = 2;
    let parse = |spec: &str| inject::parse(spec, 4).unwrap();
    set.injections = vec![parse("node:1@version=60"), parse("node:2@version=60")];
    let mut world = World::running(set, 8);
    world.lingering = true;
    let version = Some(Version(60));
    world.notice(1, Notice::InjectReached { id: 0, version });
    world.notice(2, Notice::InjectReached { id: 2, version });
    world.gone(2, Some(Ended::Signal(9)));
    world.down(3, RankEnd::Lost);
    world.pass(100);
    world.keeper_ended(2);
    world.keeper_ended(1);
    let failures = world.sup.report().failures.iter();
    let places: Vec<&str> = failures.map(|failure| failure.place.as_str()).collect();
    assert_eq!(places, ["node:2", "node:1"]);
    assert_eq!((world.starts(), world.sup.report().restarts), (2, 1));
    let lost = |a: &Action| matches!(a, Action::Tell(Event::Failure { .. }));
    assert_eq!(world.count(lost), 2);
}
