//! Jobs that stand still, and jobs that only seem to.

use outlive_base::{NodeId, Rank, Time, Version};

use super::{Action, Event, Input, Settings, World, settings};
use crate::ended::Ended;
use crate::orders::{Notice, Order, Place, RankEnd, RankStacks, Stacks};
use crate::report::HangEntry;
use crate::standstill::OnHang;

/// Rank 1 is in a loop, the others wait for it.
pub(super) fn stacks(ranks: impl Iterator<Item = u32>) -> Stacks {
    let one = |rank| RankStacks {
        rank: Rank(rank),
        place: Place {
            does: match rank {
                1 => "running in solve".to_owned(),
                _ => "waiting in MPI_Recv, called by exchange".to_owned(),
            },
            file: "heat.c".to_owned(),
            line: 80 + rank,
        },
        text: format!("process {rank}\n"),
    };
    Stacks {
        ranks: ranks.map(one).collect(),
        left_out: 0,
    }
}

fn ruled(on: OnHang, bound_ms: Option<u64>) -> Settings {
    let mut set = settings(2);
    set.hang.on = on;
    set.hang.bound_ms = bound_ms;
    set.hang.dir = "store/job".to_owned();
    set
}

fn offer(world: &mut World, version: u64) {
    let offered = Some(Version(version));
    let held = false;
    world.notice(0, Notice::Alive { offered, held });
}

/// A job that has learnt that it takes a second from version to version.
fn at_work(set: Settings) -> World {
    let mut world = World::running(set, 4);
    for version in 1..=10 {
        world.pass(1_000);
        offer(&mut world, version);
    }
    world
}

fn hangs(world: &World) -> &[HangEntry] {
    &world.sup.report().hangs
}

fn said(world: &World) -> Vec<&str> {
    let words = world.log.iter().filter_map(|action| match action {
        Action::Tell(Event::Hang { what } | Event::Resumed { what }) => Some(&**what),
        _ => None,
    });
    words.collect()
}

#[test]
fn a_standstill_is_told_once_with_the_place_of_every_rank() {
    let mut world = at_work(ruled(OnHang::Report, None));
    world.pass(59_000);
    assert!(hangs(&world).is_empty());
    world.pass(600_000);
    assert_eq!(
        said(&world),
        [
            "no progress for 60.0 s after version 10 (bound: 60.0 s, learnt from its pace): \
          rank 1 running in solve (heat.c:81); \
          ranks 0, 2-3 waiting in MPI_Recv, called by exchange (heat.c:80); \
          all stacks: store/job/hang-1.txt"
        ]
    );
    let waits_for = world.sup.view(world.now).waits_for.unwrap();
    assert!(waits_for.starts_with("progress: none for ") && waits_for.ends_with("hang-1.txt"));
    let [entry] = hangs(&world) else {
        panic!("{:?}", hangs(&world));
    };
    assert_eq!(
        (entry.number, entry.version, entry.learnt),
        (1, Some(10), true)
    );
    assert_eq!((entry.places.len(), entry.places[0].count), (2, 1));
    assert_eq!(entry.action, OnHang::Report);
    let written = world.log.iter().find_map(|action| match action {
        Action::WriteStacks { number: 1, text } => Some(text),
        _ => None,
    });
    let text = written.expect("it is written down");
    assert!(text.contains("rank 3 on node 1: process 3"), "{text}");
    // Nothing was done about it, and the job may end as it likes.
    assert_eq!((world.starts(), world.sup.report().restarts), (1, 0));
    world.command_ended(Ended::Code(0));
    world.pass(1_000);
    assert_eq!(world.exit(), 0);
}

#[test]
fn a_job_that_comes_forward_again_has_a_longer_bound() {
    let mut world = at_work(ruled(OnHang::Report, None));
    world.pass(80_000);
    offer(&mut world, 11);
    assert_eq!(world.sup.view(world.now).waits_for, None);
    assert_eq!(
        said(&world)[1],
        "the ranks come forward again after 80.0 s; the bound is 13.3 min now"
    );
    let resumed = hangs(&world)[0].resumed_seconds.expect("it came forward");
    assert!((79.0..81.0).contains(&resumed), "{resumed}");
    world.pass(700_000);
    assert_eq!(hangs(&world).len(), 1);
    world.pass(120_000);
    assert_eq!(hangs(&world).len(), 2);
}

#[test]
fn a_restart_goes_on_from_the_newest_version_and_counts() {
    let mut world = at_work(ruled(OnHang::Restart, None));
    world.stable(10);
    world.pass(70_000);
    assert_eq!((world.starts(), world.sup.report().restarts), (2, 1));
    let failures = &world.sup.report().failures;
    let [failure] = &failures[..] else {
        panic!("{failures:?}");
    };
    assert_eq!(
        (&*failure.kind, &*failure.place, failure.version),
        ("hang", "job", Some(10))
    );
    assert!(failure.cause.contains("hang-1.txt"), "{failure:?}");
    assert_eq!(hangs(&world)[0].action, OnHang::Restart);
    // The new start is judged by its own versions.
    world.pass(600_000);
    assert_eq!(hangs(&world).len(), 1);
    for version in 11..=14 {
        world.pass(1_000);
        offer(&mut world, version);
    }
    world.pass(70_000);
    assert_eq!((hangs(&world).len(), world.starts()), (2, 3));
}

#[test]
fn restarts_are_bounded() {
    let mut set = ruled(OnHang::Restart, Some(2_000));
    (set.max_restarts, set.quick_ms) = (2, 0);
    let mut world = World::running(set, 4);
    world.pass(60_000);
    assert_eq!((world.starts(), world.exit()), (3, 79));
    assert_eq!(world.codes(), ["OL-503"]);
    let mut set = ruled(OnHang::Restart, Some(2_000));
    set.max_restarts = 0;
    let mut world = World::running(set, 4);
    world.pass(60_000);
    assert_eq!((world.starts(), world.exit()), (1, 81));
    assert_eq!(world.codes(), ["OL-508"]);
}

#[test]
fn kill_ends_the_job_with_a_code_and_names_the_file() {
    let mut world = World::running(ruled(OnHang::Kill, Some(2_000)), 4);
    world.pass(10_000);
    assert_eq!((world.starts(), world.exit()), (1, 81));
    let [error] = &world.sup.report().errors[..] else {
        panic!("{:?}", world.sup.report().errors);
    };
    assert_eq!(error.code, "OL-508");
    assert!(
        error.reason.contains("before the first version"),
        "{error:?}"
    );
    assert!(error.remedy.contains("store/job/hang-1.txt"), "{error:?}");
    let wrote = |action: &Action| matches!(action, Action::WriteStacks { .. });
    let ended = |action: &Action| matches!(action, Action::EndCommand { .. });
    let at = |which: fn(&Action) -> bool| world.log.iter().position(which);
    assert!(at(wrote) < at(ended), "first it is written down");
}

#[test]
fn a_node_that_does_not_answer_is_named_after_its_bound() {
    let mut world = World::new(ruled(OnHang::Kill, Some(2_000)), 4);
    world.blind.insert(NodeId(1));
    world.pass(11_000);
    assert!(world.outcome.is_none(), "it is waited for");
    world.pass(3_000);
    assert_eq!(world.exit(), 81);
    let words = said(&world);
    assert!(
        words[0].contains("node 1 has not said where its ranks are"),
        "{words:?}"
    );
    assert_eq!(hangs(&world)[0].silent_nodes, [1]);
    let asked = |node| {
        world.count(|action| {
            matches!(action, Action::Order { node: to, order: Order::Stacks { .. } }
                if *to == NodeId(node))
        })
    };
    assert_eq!((asked(0), asked(1)), (1, 5), "who is silent is asked again");
}

#[test]
fn a_job_that_moves_while_it_is_looked_at_is_left_alone() {
    let mut world = World::running(ruled(OnHang::Kill, Some(2_000)), 4);
    world.blind.extend([NodeId(0), NodeId(1)]);
    world.pass(3_000);
    offer(&mut world, 1);
    world.pass(1_000);
    offer(&mut world, 2);
    let found = stacks([0, 1].into_iter());
    world.notice(0, Notice::Stacks { number: 1, found });
    world.pass(1_000);
    offer(&mut world, 3);
    let found = stacks([2, 3].into_iter());
    world.notice(1, Notice::Stacks { number: 1, found });
    assert!(world.outcome.is_none());
    let words = said(&world);
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(
        words[1].starts_with("the ranks come forward again"),
        "{words:?}"
    );
    assert_eq!(hangs(&world)[0].action, OnHang::Report);
}

#[test]
fn what_has_bounds_of_its_own_is_no_standstill() {
    // A recovery that takes long.
    let mut world = at_work(ruled(OnHang::Kill, None));
    world.unready.insert(NodeId(1));
    world.gone(1, Some(Ended::Signal(11)));
    world.pass(250_000);
    assert!(hangs(&world).is_empty());
    world.unready.clear();
    world.pass(40_000);
    assert_eq!(world.starts(), 2);
    // Ranks that wait for their agent: for memory, or for a version to be safe.
    let mut world = at_work(ruled(OnHang::Kill, None));
    world.held.insert(NodeId(1));
    world.pass(500_000);
    world.held.clear();
    world.pass(50_000);
    assert!(hangs(&world).is_empty());
    // A launcher that was stopped.
    let mut world = at_work(ruled(OnHang::Kill, None));
    for _ in 0..5 {
        world.now = world.now + Time::from_secs(3_600);
        world.input(Input::Timer);
    }
    world.pass(50_000);
    assert!(hangs(&world).is_empty());
    // Ranks that have closed: what the command does then is its own affair.
    let mut world = at_work(ruled(OnHang::Kill, None));
    for rank in 0..4 {
        world.down(rank, RankEnd::Closed);
    }
    world.pass(500_000);
    assert!(hangs(&world).is_empty() && world.outcome.is_none());
    // One that has not is waited for by nobody else.
    let mut world = at_work(ruled(OnHang::Kill, None));
    for rank in 1..4 {
        world.down(rank, RankEnd::Closed);
    }
    world.pass(100_000);
    assert_eq!(hangs(&world).len(), 1);
}

#[test]
fn a_job_that_never_offered_a_version_is_judged_by_a_given_bound_alone() {
    let mut world = World::running(ruled(OnHang::Report, None), 4);
    world.pass(10_000_000);
    assert!(hangs(&world).is_empty());
    let mut world = World::running(ruled(OnHang::Report, Some(30_000)), 4);
    world.pass(31_000);
    assert_eq!((hangs(&world).len(), hangs(&world)[0].version), (1, None));
    // Numbers go on from what earlier runs have left.
    let mut set = ruled(OnHang::Report, Some(30_000));
    set.hang.before = 6;
    let mut world = World::running(set, 4);
    world.pass(31_000);
    assert_eq!(hangs(&world)[0].file, "store/job/hang-7.txt");
}
