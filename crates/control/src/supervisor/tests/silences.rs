//! Silence, partitions, and the difference between them and death.

use super::*;

#[test]
fn a_frozen_node_is_suspected_at_1_s_and_replaced_by_10_s() {
    let mut set = settings(4);
    set.injections = vec![inject::parse("freeze:node:2@5s", 4).unwrap()];
    let mut world = World::running(set, 8);
    world.pass(5_000);
    // Heard last when it answered the probe before: at most 250 ms earlier.
    world.pass(700);
    assert!(!world.told(|event| matches!(event, Event::Suspected { .. })));
    world.pass(600);
    assert!(world.told(|event| matches!(
        event,
        Event::Suspected {
            node: NodeId(2),
            ..
        }
    )));
    world.notice(
        1,
        Notice::Suspected {
            node: NodeId(2),
            epoch: world.epochs[&NodeId(2)],
            silent_ms: 1_200,
        },
    );
    world.pass(7_500);
    assert_eq!(world.starts(), 1);
    // 10 s after it was frozen, at the default bounds, its replacement has begun.
    world.pass(1_190);
    assert_eq!(world.starts(), 2);
    let failure = &world.sup.report().failures[0];
    assert_eq!(failure.place, "node:2");
    let (suspected, found) = (failure.suspected_ms.unwrap(), failure.detect_ms.unwrap());
    assert!(failure.injected && suspected < found && found < 9_900.0);
    assert!((600.0..=1_010.0).contains(&suspected), "{suspected}");
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
}

#[test]
fn without_a_second_witness_death_takes_twice_as_long() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    // Heard last when it answered the probe before: at most 250 ms earlier.
    let twice = 2 * crate::orders::Bounds::default().silence_ms();
    world.pass(twice - 300);
    assert_eq!(world.starts(), 1);
    world.pass(2_000);
    assert_eq!(world.starts(), 2);
}

#[test]
fn the_peers_verdict_counts_when_the_launcher_misses_the_node_too() {
    let mut world = World::running(settings(3), 3);
    world.mute.insert(NodeId(1));
    world.pass(1_500);
    world.notice(
        0,
        Notice::Dead {
            node: NodeId(1),
            epoch: world.epochs[&NodeId(1)],
        },
    );
    assert_eq!(world.starts(), 2);
}

#[test]
fn a_node_that_only_its_peers_miss_stays() {
    let mut world = World::running(settings(3), 3);
    world.pass(1_000);
    world.notice(
        0,
        Notice::Suspected {
            node: NodeId(1),
            epoch: world.epochs[&NodeId(1)],
            silent_ms: 1_000,
        },
    );
    world.notice(
        2,
        Notice::Dead {
            node: NodeId(1),
            epoch: world.epochs[&NodeId(1)],
        },
    );
    world.pass(60_000);
    assert_eq!(world.starts(), 1);
    assert_eq!(world.sup.report().warnings[0].code, "OL-304");
    assert_eq!(world.sup.report().warnings.len(), 1);
}

#[test]
fn a_late_word_about_a_replaced_node_says_nothing_of_the_next() {
    let mut world = World::running(settings(3), 3);
    let epoch = world.epochs[&NodeId(1)];
    world.keeper_ended(1);
    world.pass(5_000);
    assert_eq!(world.starts(), 2);
    let dead = Notice::Dead {
        node: NodeId(1),
        epoch,
    };
    world.notice(0, dead.clone());
    world.notice(2, dead);
    world.pass(10_000);
    assert!(world.sup.report().warnings.is_empty());
}

#[test]
fn a_partition_that_heals_costs_nothing() {
    let mut world = World::running(settings(2), 2);
    world.mute.insert(NodeId(1));
    world.pass(5_000);
    world.notice(
        0,
        Notice::Suspected {
            node: NodeId(1),
            epoch: world.epochs[&NodeId(1)],
            silent_ms: 5_000,
        },
    );
    world.mute.clear();
    world.pass(1_000);
    assert!(world.told(|event| matches!(event, Event::Heard { node: NodeId(1) })));
    world.notice(0, Notice::Cleared { node: NodeId(1) });
    world.pass(60_000);
    assert_eq!(world.starts(), 1);
}

#[test]
fn the_launchers_own_stall_is_nobodys_silence() {
    let mut world = World::running(settings(2), 2);
    world.notice(
        0,
        Notice::Suspected {
            node: NodeId(1),
            epoch: world.epochs[&NodeId(1)],
            silent_ms: 1_000,
        },
    );
    world.pass(1_000);
    // Suspended for an hour; the first thing seen is the timer, then the answers.
    world.now = world.now + Time::from_secs(3_600);
    world.input(Input::Timer);
    world.pass(1_000);
    assert_eq!(world.starts(), 1);
    assert!(!world.told(|event| matches!(event, Event::Suspected { .. })));
}

#[test]
fn the_only_node_keeps_its_storage_when_it_was_silent() {
    let mut world = World::running(settings(1), 1);
    world.mute.insert(NodeId(0));
    world.pass(11_000);
    assert_eq!(world.starts(), 2);
    let emptied = |a: &Action| {
        matches!(
            a,
            Action::StartNode {
                storage: Storage::Empty,
                ..
            }
        )
    };
    assert_eq!(world.count(emptied), 0);
}

#[test]
fn a_node_that_is_not_ready_within_the_bound_is_started_again() {
    let mut world = World::running(settings(2), 2);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    world.pass(299_000);
    assert_eq!(world.starts(), 1);
    world.unready.clear();
    world.pass(2_000);
    assert_eq!(world.starts(), 2);
    let places: Vec<_> = world
        .sup
        .report()
        .failures
        .iter()
        .map(|f| f.place.clone())
        .collect();
    assert_eq!(places, ["rank:0", "node:1"]);
}

#[test]
fn faults_of_agents_are_ordered_and_undone() {
    let mut set = settings(2);
    set.injections = ["slow:node:1@1s,rate=1MiB,for=2s", "freeze:rank:0@1s,for=1s"]
        .map(|text| inject::parse(text, 2).unwrap())
        .to_vec();
    let mut world = World::running(set, 2);
    world.pass(5_000);
    use crate::orders::Fault;
    let faults: Vec<_> = world
        .log
        .iter()
        .filter_map(|action| match action {
            Action::Order {
                order: Order::Inject { fault, .. },
                ..
            } => Some(fault.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(faults, [Fault::Slow(1 << 20), Fault::Slow(0)]);
    assert_eq!(
        world.count(|a| matches!(a, Action::Freeze { stop: true, .. })),
        1
    );
    assert_eq!(
        world.count(|a| matches!(a, Action::Freeze { stop: false, .. })),
        1
    );
    assert_eq!(world.sup.report().injected.len(), 2);
    assert_eq!(world.starts(), 1);
}

#[test]
fn orders_of_an_opening_are_repeated_with_growing_pauses() {
    let mut world = World::running(settings(3), 3);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    let opens = |world: &World, wanted: u32| {
        world.count(|action| {
            matches!(action, Action::Order { node, order: Order::Open { incarnation, .. } }
                if node.0 == wanted && incarnation.0 == 2)
        })
    };
    world.pass(1_500);
    assert_eq!((opens(&world, 1), opens(&world, 2)), (1, 1));
    // After 2, 6, 14, 30 and 62 s, then every 32 s, and only to who has not answered.
    world.pass(60_000);
    assert_eq!((opens(&world, 1), opens(&world, 2)), (5, 1));
    world.pass(200_000);
    assert!(
        (10..=13).contains(&opens(&world, 1)),
        "{}",
        opens(&world, 1)
    );
    world.unready.clear();
    world.pass(40_000);
    assert_eq!(world.starts(), 2);
    assert_eq!(
        world.sup.report().failures.len(),
        1,
        "nobody was given up for it"
    );
}

/// A coordinator that is given up while it is frozen, wakes up and calls a version stable: the
/// launcher remembers that there is one, whatever becomes of the node.
#[test]
fn what_a_given_up_node_called_stable_is_remembered() {
    let mut world = World::running(settings(2), 2);
    world.lingering = true;
    let (node, now) = (NodeId(0), world.now);
    world.sup.lose_slot(now, node, Storage::Empty);
    let version = Version(9);
    let step = Step::Stable(Level::DISK);
    world.notice(0, Notice::Checkpoint { version, step });
    assert_eq!(world.sup.history, Incarnation(1));
    assert_eq!(world.sup.newest_stable, None, "nothing else changes");
}

/// The machine of node 1 is gone, with its storage or not.
fn gone(world: &mut World, storage: Storage) {
    let (node, epoch) = (NodeId(1), world.epochs[&NodeId(1)]);
    let cause = "its connection ended".to_owned();
    world.input(Input::NodeGone {
        node,
        epoch,
        cause,
        storage,
    });
}

fn started(world: &World, wanted: Storage) -> usize {
    let node_1 = |a: &Action| matches!(a, Action::StartNode { node: NodeId(1), storage, .. } if *storage == wanted);
    world.count(node_1)
}

#[test]
fn a_machine_that_may_be_there_is_tried_again_and_one_that_is_not_is_replaced() {
    let mut world = World::running(settings(2), 2);
    gone(&mut world, Storage::Keep);
    world.pass(1_000);
    assert_eq!(
        (
            started(&world, Storage::Keep),
            started(&world, Storage::Empty)
        ),
        (2, 0)
    );
    gone(&mut world, Storage::Empty);
    world.pass(1_000);
    assert_eq!(
        (
            started(&world, Storage::Keep),
            started(&world, Storage::Empty)
        ),
        (2, 1)
    );
    assert!(world.outcome.is_none());
    // What an older holder's line says late is nobody's business.
    world.input(Input::NodeGone {
        node: NodeId(1),
        epoch: 1,
        cause: "late".to_owned(),
        storage: Storage::Empty,
    });
    assert_eq!(started(&world, Storage::Empty), 1);
}

#[test]
fn a_machine_that_turns_out_to_be_gone_while_it_is_fenced_is_replaced() {
    let mut world = World::running(settings(2), 2);
    world.unfenced = true;
    gone(&mut world, Storage::Keep);
    assert_eq!(started(&world, Storage::Keep), 1, "not before it is fenced");
    gone(&mut world, Storage::Empty);
    world.pass(20_000);
    assert_eq!(
        (
            started(&world, Storage::Keep),
            started(&world, Storage::Empty)
        ),
        (1, 1)
    );
}

/// Nodes that miss each other for so long, said at each heartbeat, while ranks offer a newer
/// version each second until `stuck`.
fn parted(world: &mut World, pairs: &[(u32, u32)], for_s: u64, stuck: u64) {
    for quarter in 0..4 * for_s {
        for (witness, peer) in pairs {
            let node = NodeId(*peer);
            let epoch = world.epochs[&node];
            world.notice(*witness, Notice::Silent { node, epoch });
        }
        if quarter % 4 == 0 && quarter / 4 < stuck {
            let offered = Some(Version(10 + quarter));
            world.notice(
                0,
                Notice::Alive {
                    offered,
                    held: false,
                },
            );
        }
        world.pass(250);
    }
}

fn on_machines(nodes: u32) -> Settings {
    let mut set = settings(nodes);
    set.apart_ms = Some(20_000);
    set.spares = 1;
    set.levels = vec![level(Level::MEMORY), level(Level::PARTNER)];
    set
}

fn level(level: Level) -> LevelSetting {
    LevelSetting { level, every: 1 }
}

#[test]
fn ranks_that_wait_behind_a_cut_link_are_started_on_another_machine() {
    let mut world = World::running(on_machines(4), 4);
    world.pass(1_000);
    parted(&mut world, &[(1, 2), (2, 1)], 23, 5);
    // 20 s after the last version that was offered, at the fourth second, not after the cut.
    assert_eq!(world.starts(), 1);
    assert_eq!(world.sup.report().warnings[0].code, "OL-304");
    parted(&mut world, &[(1, 2), (2, 1)], 3, 0);
    assert_eq!(world.starts(), 2);
    let failures = &world.sup.report().failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].place, "node:2");
    let elsewhere = |a: &Action| {
        matches!(
            a,
            Action::StartNode {
                node: NodeId(2),
                storage: Storage::Empty,
                ..
            }
        )
    };
    assert_eq!(world.count(elsewhere), 1);
}

#[test]
fn of_parted_nodes_the_one_that_is_parted_from_most_goes() {
    let mut world = World::running(on_machines(4), 4);
    world.pass(1_000);
    // Each way of a link counts once.
    parted(&mut world, &[(1, 2), (1, 3), (3, 1)], 23, 0);
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.report().failures[0].place, "node:1");
}

#[test]
fn a_cut_link_that_no_rank_waits_for_costs_nothing() {
    let mut world = World::running(on_machines(3), 3);
    parted(&mut world, &[(1, 2)], 90, 90);
    assert_eq!(world.starts(), 1);
    assert_eq!(world.sup.report().warnings.len(), 1);
    assert!(world.sup.report().failures.is_empty());
}

#[test]
fn ranks_that_are_slow_by_themselves_are_not_taken_to_wait() {
    let mut world = World::running(on_machines(3), 3);
    world.notice(
        0,
        Notice::Alive {
            offered: Some(Version(1)),
            held: false,
        },
    );
    world.pass(60_000);
    world.notice(
        0,
        Notice::Alive {
            offered: Some(Version(2)),
            held: false,
        },
    );
    parted(&mut world, &[(1, 2)], 110, 0);
    assert_eq!(world.starts(), 1);
    parted(&mut world, &[(1, 2)], 15, 0);
    assert_eq!(world.starts(), 2);
}

#[test]
fn a_link_that_heals_or_has_no_spare_behind_it_ends_nothing() {
    let mut world = World::running(on_machines(3), 3);
    parted(&mut world, &[(1, 2)], 15, 0);
    world.pass(5_000);
    // The count begins again.
    parted(&mut world, &[(1, 2)], 15, 0);
    assert_eq!(world.starts(), 1);

    let mut set = on_machines(3);
    set.spares = 0;
    let mut world = World::running(set, 3);
    parted(&mut world, &[(1, 2)], 90, 0);
    assert_eq!(world.starts(), 1);

    // Where no copy is on another machine, what the node keeps would be lost.
    let mut set = on_machines(3);
    set.levels = vec![level(Level::MEMORY), level(Level::DISK)];
    let mut world = World::running(set, 3);
    parted(&mut world, &[(1, 2)], 90, 0);
    assert_eq!(world.starts(), 1);
    assert_eq!(world.sup.report().warnings.len(), 1);
}

#[test]
fn one_that_all_peers_call_dead_goes_too_when_ranks_wait() {
    let mut world = World::running(on_machines(3), 3);
    world.pass(1_000);
    let epoch = world.epochs[&NodeId(1)];
    for witness in [0, 2] {
        let node = NodeId(1);
        world.notice(witness, Notice::Dead { node, epoch });
    }
    world.pass(18_000);
    assert_eq!(world.starts(), 1);
    world.pass(3_000);
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.report().failures[0].place, "node:1");
}

/// What is said of a holder that was replaced since counts for nothing: else the next one would
/// be said to be out of reach as soon as it is there.
#[test]
fn a_late_word_about_a_replaced_holder_is_none() {
    let mut world = World::running(on_machines(3), 3);
    let node = NodeId(1);
    let epoch = world.epochs[&node] - 1;
    world.notice(0, Notice::Silent { node, epoch });
    world.pass(60_000);
    assert_eq!(world.starts(), 1);
    assert!(world.sup.report().warnings.is_empty());
    // The same word about the present one is heard.
    let epoch = epoch + 1;
    for _ in 0..8 {
        world.notice(0, Notice::Silent { node, epoch });
        world.pass(250);
    }
    assert_eq!(world.sup.report().warnings.len(), 1);
}

#[test]
fn an_agent_that_was_started_anew_has_missed_nobody() {
    let mut world = World::running(on_machines(3), 3);
    let node = NodeId(1);
    let epoch = world.epochs[&node];
    world.notice(2, Notice::Dead { node, epoch });
    world.sup.forget_words_of(NodeId(2));
    world.pass(60_000);
    assert_eq!(world.starts(), 1);
}

/// What it answered may be lost with the connection before.
#[test]
fn an_agent_that_calls_again_while_the_job_opens_is_asked_at_once() {
    let mut world = World::running(settings(3), 3);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    let opens = |world: &World| {
        world.count(|action| {
            matches!(action, Action::Order { node: NodeId(1), order: Order::Open { incarnation, .. } }
                if incarnation.0 == 2)
        })
    };
    world.pass(500);
    assert_eq!(opens(&world), 1);
    world.notice(1, hello(NodeId(1), 0));
    assert_eq!(opens(&world), 2);
}

/// The agent that opened it was started anew, and the next one knows less of what it found.
#[test]
fn the_first_word_of_an_opening_counts() {
    let mut world = World::running(settings(3), 3);
    world.unready.insert(NodeId(1));
    world.gone(0, Some(Ended::Signal(9)));
    world.pass(1_500);
    let again = Opened {
        uncertain: true,
        ..opened(Incarnation(2), None, 3)
    };
    world.notice(0, Notice::Opened(again));
    world.unready.clear();
    world.pass(40_000);
    assert_eq!(world.starts(), 2);
    assert!(!world.sup.report().failures[0].uncertain);
}

#[test]
fn an_opening_that_waits_for_one_node_out_of_its_peers_reach_loses_that_node_alone() {
    let mut world = World::running(on_machines(4), 4);
    world.pass(1_000);
    world.unready.extend((0..4).map(NodeId));
    world.gone(0, Some(Ended::Signal(9)));
    let of_two = [(0, 2), (2, 0), (1, 2), (2, 1), (3, 2), (2, 3)];
    // Until the opening is overdue, after five minutes.
    parted(&mut world, &of_two, 298, 0);
    assert_eq!(world.sup.report().failures.len(), 1, "the rank");
    world.unready.clear();
    parted(&mut world, &of_two, 4, 0);
    let failures = &world.sup.report().failures;
    let places: Vec<&str> = failures.iter().map(|it| it.place.as_str()).collect();
    assert_eq!(places, ["rank:0", "node:2"]);
    assert_eq!(world.starts(), 2);
}
