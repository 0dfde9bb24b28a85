//! What somebody who watches the job is told at each stage.

use super::*;
use crate::reprotection::{Lost, Reprotection, Ways};
use crate::supervisor::{NodeState, Stage};

fn seen(world: &World) -> (Stage, Option<String>) {
    let view = world.sup.view(world.now);
    (view.stage, view.waits_for)
}

fn waits(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_job_that_runs_waits_for_nothing_until_a_node_is_silent() {
    let mut world = World::running(settings(3), 6);
    assert_eq!(seen(&world), (Stage::Running, None));
    world.stable(7);
    let view = world.sup.view(world.now);
    assert_eq!((view.joined, view.ranks, view.spares_left), (6, Some(6), 1));
    assert_eq!(view.stable.get(&Level::PARTNER), Some(&Version(7)));
    world.mute.insert(NodeId(2));
    world.pass(1_500);
    let view = world.sup.view(world.now);
    assert_eq!(view.waits_for, waits("a word from node 2"));
    assert_eq!(view.nodes[2].state, NodeState::Silent);
    assert_eq!(view.nodes[1].state, NodeState::Up);
    assert!(view.nodes[2].heard_ago > view.nodes[1].heard_ago);
}

#[test]
fn each_stage_says_what_it_waits_for() {
    let mut world = World::running(settings(3), 6);
    // What is left of a lost node goes on living.
    world.lingering = true;
    world.unfenced = true;
    world.keeper_ended(1);
    let (stage, waits_for) = seen(&world);
    assert_eq!(stage, Stage::Assembling);
    let text = waits_for.unwrap();
    assert!(text.starts_with("the end of "), "{text}");
    assert_eq!(world.sup.view(world.now).nodes[1].state, NodeState::Lost);

    let mut world = World::running(settings(3), 6);
    world.unready.insert(NodeId(0));
    world.unready.insert(NodeId(2));
    world.gone(1, Some(Ended::Signal(11)));
    world.pass(100);
    let (stage, waits_for) = seen(&world);
    assert_eq!(stage, Stage::Opening);
    let text = waits_for.unwrap();
    assert!(text.contains("version"), "{text}");

    let mut world = World::running(settings(3), 6);
    world.silent_ranks = true;
    world.gone(1, Some(Ended::Signal(11)));
    world.pass(3_000);
    let (stage, waits_for) = seen(&world);
    assert_eq!(stage, Stage::Starting);
    assert_eq!(waits_for, waits("6 ranks of 6 to join"));
}

/// What node 2 says that took the place of a lost one, which had node 1's copy, as its own lies at node 3.
fn says(world: &mut World, copies: u64, lost: &[Lost]) {
    let said = Reprotection {
        incarnation: Incarnation(world.sup.incarnation()),
        version: Version(7),
        lasted_ms: 250,
        copies,
        copies_total: 2,
        bytes: 100 * copies,
        bytes_total: 200,
        lost: lost.iter().copied().collect(),
        ways: Ways {
            nodes: [1, 2].map(NodeId).into(),
            copies: [(1, 2), (2, 3)]
                .map(|(it, at)| (NodeId(it), NodeId(at)))
                .into(),
            ..Ways::default()
        },
    };
    world.notice(2, Notice::Reprotection(Box::new(said)));
}

fn told(world: &World) -> Vec<(bool, Vec<NodeId>)> {
    let told = world.log.iter().filter_map(|action| match action {
        Action::Tell(Event::Reprotecting { not_survived, .. }) => {
            Some((false, not_survived.clone()))
        }
        Action::Tell(Event::Reprotected { .. }) => Some((true, Vec::new())),
        _ => None,
    });
    told.collect()
}

#[test]
fn what_is_made_again_is_seen_until_it_is_done() {
    let mut world = World::running(settings(4), 8);
    world.stable(7);
    world.newest = Some(Version(7));
    world.keeper_ended(2);
    assert_eq!(world.starts(), 2);
    assert_eq!(world.sup.view(world.now).reprotecting, None);
    says(&mut world, 0, &[Lost::Own, Lost::Kept(NodeId(1))]);
    let seen = world.sup.view(world.now).reprotecting.unwrap();
    assert_eq!((seen.version, seen.copies, seen.copies_total), (7, 0, 2));
    assert_eq!(
        (seen.bytes, seen.bytes_total, seen.nodes[0].node),
        (0, 200, 2)
    );
    assert_eq!(seen.not_survived, [1]);
    says(&mut world, 1, &[Lost::Own]);
    let seen = world.sup.view(world.now).reprotecting.unwrap();
    assert_eq!((seen.bytes, &seen.not_survived[..]), (100, &[][..]));
    let entry = &world.sup.report().reprotections[0];
    assert_eq!((entry.node, entry.seconds), (2, None));
    world.pass(3_000);
    says(&mut world, 2, &[]);
    // What a status repeats is no news.
    says(&mut world, 2, &[]);
    assert_eq!(world.sup.view(world.now).reprotecting, None);
    let report = world.sup.report();
    assert_eq!(report.reprotections.len(), 1);
    let entry = &report.reprotections[0];
    assert_eq!((entry.version, entry.incarnation, entry.bytes), (7, 2, 200));
    assert!(entry.seconds.is_some_and(|it| it >= 3.0), "{entry:?}");
    assert_eq!(told(&world), [(false, vec![NodeId(1)]), (true, Vec::new())]);
}

#[test]
fn a_newer_version_ends_the_danger_and_not_the_work() {
    let mut world = World::running(settings(4), 8);
    world.stable(7);
    world.newest = Some(Version(7));
    world.keeper_ended(2);
    says(&mut world, 0, &[Lost::Own, Lost::Kept(NodeId(1))]);
    world.stable(9);
    let seen = world.sup.view(world.now).reprotecting.unwrap();
    assert_eq!((seen.copies_total, seen.not_survived.len()), (2, 0));
}

#[test]
fn an_agent_that_knows_of_nothing_is_told_to_look_and_another_holder_begins_anew() {
    let mut world = World::running(settings(4), 8);
    world.stable(7);
    world.newest = Some(Version(7));
    world.keeper_ended(2);
    says(&mut world, 0, &[Lost::Own]);
    let ordered = |world: &World| {
        let look = |it: &&Action| {
            matches!(
                it,
                Action::Order {
                    node: NodeId(2),
                    order: Order::LookForLost
                }
            )
        };
        world.log.iter().filter(look).count()
    };
    assert_eq!(ordered(&world), 0);
    // The world's agents say nothing of it in their status.
    world.pass(5_000);
    assert!(ordered(&world) >= 1);
    says(&mut world, 0, &[Lost::Own]);
    assert_eq!(world.sup.report().reprotections.len(), 1);
    // One that keeps its storage lacks what it lacked.
    world.keeper_ended(2);
    assert!(world.sup.view(world.now).reprotecting.is_some());
    // One that is lost is told of no more, and the next has all to do.
    world.mute.insert(NodeId(2));
    let epoch = world.epochs[&NodeId(2)];
    for _ in 0..60 {
        world.pass(1_000);
        if world.epochs[&NodeId(2)] != epoch {
            world.mute.clear();
        }
    }
    assert_eq!(world.sup.view(world.now).reprotecting, None);
    says(&mut world, 2, &[]);
    let entries = &world.sup.report().reprotections;
    let ended = entries.iter().map(|it| it.seconds.is_some());
    assert_eq!(ended.collect::<Vec<_>>(), [false, true]);
}
