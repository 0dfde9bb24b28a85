//! Faults that were asked for: words of them that are lost, agents that end meanwhile.

use super::*;
use crate::orders::Fault;

fn asked(spec: &str) -> World {
    let mut set = settings(2);
    set.injections = vec![inject::parse(spec, 2).unwrap()];
    World::running(set, 2)
}

fn orders(world: &World) -> Vec<Fault> {
    let fault = |action: &Action| match action {
        Action::Order {
            order: Order::Inject { fault, .. },
            ..
        } => Some(fault.clone()),
        _ => None,
    };
    world.log.iter().filter_map(fault).collect()
}

fn told(world: &World) -> usize {
    world.count(|action| matches!(action, Action::Tell(Event::Injected { .. })))
}

/// The agent of a node was started anew.
fn anew(world: &mut World, node: u32, restarts: u32) {
    world.notice(node, hello(NodeId(node), restarts));
}

/// A lost order, or a lost answer.
#[test]
fn what_an_agent_is_to_do_is_said_again_until_it_says_that_it_did() {
    let mut world = asked("full:node:1@1s");
    world.injected = None;
    world.pass(5_000);
    let repeated = orders(&world).len();
    assert!((3..=6).contains(&repeated), "{repeated}");
    assert_eq!((told(&world), world.sup.report().injected.len()), (0, 0));
    world.injected = Some(Ok(()));
    world.pass(5_000);
    assert_eq!(orders(&world).len(), repeated + 1);
    assert_eq!((told(&world), world.sup.report().injected.len()), (1, 1));
}

/// What waits at an agent was perhaps lost on its way there.
#[test]
fn a_version_that_an_agent_waits_for_is_said_again_until_it_was_reached() {
    let mut world = asked("node:1@version=60");
    world.pass(3_500);
    let waiting = |fault: &Fault| matches!(fault, Fault::AtVersion { .. });
    let before = orders(&world).iter().filter(|it| waiting(it)).count();
    assert!(before >= 3, "{before}");
    let version = Some(Version(60));
    world.notice(1, Notice::InjectReached { id: 0, version });
    assert_eq!(told(&world), 1);
    let before = orders(&world).len();
    world.pass(3_500);
    assert_eq!(orders(&world).len(), before);
    // An agent that has not heard that it may go on asks again.
    let released = |action: &Action| {
        let Action::Order { order, .. } = action else {
            return false;
        };
        matches!(order, Order::InjectDone { id: 0 })
    };
    let answers = world.count(released);
    world.notice(1, Notice::InjectReached { id: 0, version });
    assert_eq!((world.count(released), told(&world)), (answers + 1, 1));
}

#[test]
fn what_cannot_be_done_is_told_and_is_not_said_to_be_done() {
    let mut world = asked("corrupt:node:1@1s");
    world.injected = Some(Err(Error::internal("there is nothing")));
    world.pass(3_000);
    let report = world.sup.report();
    assert_eq!((told(&world), report.injected.len()), (0, 0));
    assert_eq!(report.not_injected, ["corrupt:node:1@1s"]);
    assert_eq!((report.warnings.len(), orders(&world).len()), (1, 1));
}

/// Nobody knows whether the agent did it before it ended: to say so again may be twice.
#[test]
fn what_an_agent_may_have_done_before_it_ended_is_not_done_by_the_next() {
    for spec in ["corrupt:node:1@1s", "partition:node:1@1s,for=5s"] {
        let mut world = asked(spec);
        world.injected = None;
        world.pass(1_500);
        let before = orders(&world).len();
        anew(&mut world, 1, 1);
        world.injected = Some(Ok(()));
        world.pass(5_000);
        assert_eq!(orders(&world).len(), before, "{spec}");
        let report = world.sup.report();
        assert_eq!(report.not_injected, [spec]);
        let reason = &report.warnings[0].reason;
        assert!(reason.contains(spec), "{reason}");
    }
}

#[test]
fn a_full_disk_stays_full_for_the_next_agent_and_not_for_a_spare() {
    let mut world = asked("full:node:1@1s");
    world.pass(2_000);
    assert_eq!((orders(&world).len(), told(&world)), (1, 1));
    anew(&mut world, 1, 1);
    world.pass(2_000);
    assert_eq!(orders(&world), [Fault::Full(true), Fault::Full(true)]);
    world.keeper_ended(1);
    anew(&mut world, 1, 1);
    world.pass(3_000);
    assert_eq!((orders(&world).len(), told(&world)), (2, 1));
}

#[test]
fn what_a_job_does_not_come_to_is_reported_as_not_done() {
    let mut world = asked("rank:1@version=60");
    world.command_ended(Ended::Code(0));
    world.pass(1_000);
    let report = world.sup.report();
    assert_eq!(report.not_injected, ["rank:1@version=60"]);
    assert!(report.injected.is_empty());
    let told: Vec<&str> = report
        .warnings
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    let said = "the job ended before what was to be injected: 'rank:1@version=60'";
    assert_eq!(told, [said]);
}

#[test]
fn a_version_at_a_node_without_ranks_is_said_to_be_none() {
    let mut set = settings(3);
    let spec = "kill:node:2@version=9";
    set.injections = vec![inject::parse(spec, 3).unwrap()];
    let mut world = World::running(set, 1);
    world.command_ended(Ended::Code(0));
    world.pass(1_000);
    let [warning] = &world.sup.report().warnings[..] else {
        panic!("{:?}", world.sup.report().warnings);
    };
    let why = "(node 2 has no rank that offers a version)";
    assert!(warning.reason.ends_with(why), "{}", warning.reason);
}

/// An agent that is frozen for a while, of a node that is frozen for good.
#[test]
fn what_two_injections_have_frozen_is_woken_by_the_last() {
    let mut set = settings(2);
    let parse = |spec: &str| inject::parse(spec, 2).unwrap();
    set.injections = vec![
        parse("freeze:node:1@1s"),
        parse("freeze:agent:1@1s,for=500ms"),
    ];
    let mut world = World::running(set, 2);
    world.pass(1_900);
    let woken = |it: &Action| matches!(it, Action::Freeze { stop: false, .. });
    let stopped = |it: &Action| matches!(it, Action::Freeze { stop: true, .. });
    assert_eq!((world.count(stopped), world.count(woken)), (2, 0));
    let mut world = asked("freeze:agent:1@1s,for=500ms");
    world.pass(1_900);
    assert_eq!((world.count(stopped), world.count(woken)), (1, 1));
}
