//! What somebody who watches the job is told at each stage.

use super::*;
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
