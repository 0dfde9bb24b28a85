//! Commands that run while ranks do not join.

use outlive_base::{NodeId, Time};

use super::{Action, Event, Input, Settings, World, settings};
use crate::ended::Ended;
use crate::orders::{Notice, Place, RankEnd};
use crate::processes::Process;
use crate::report::HangEntry;
use crate::standstill::OnHang;

/// A launcher that waits for a host.
pub(super) fn processes() -> Vec<Process> {
    let one = |pid, command: &str, does: &str| Process {
        pid,
        command: command.to_owned(),
        place: Place {
            does: does.to_owned(),
            ..Place::default()
        },
        text: format!("process {pid} ({command})\n"),
    };
    vec![
        one(70, "mpirun -n 4 ./app", "waiting in poll"),
        one(71, "ssh n3 orted", "waiting in read"),
    ]
}

fn ruled(on: OnHang, given_ms: Option<u64>) -> Settings {
    let mut set = settings(2);
    set.hang.on = on;
    set.hang.dir = "store/job".to_owned();
    set.hang.join_given = given_ms.is_some();
    set.hang.join_ms = given_ms.unwrap_or(set.hang.join_ms);
    set
}

/// The command runs, and no rank joins.
fn alone(set: Settings) -> World {
    let mut world = World::before(set, 4);
    world.silent_ranks = true;
    world.input(Input::Timer);
    assert_eq!(world.starts(), 1);
    world
}

fn warnings(world: &World) -> Vec<(&str, &str)> {
    let all = &world.sup.report().warnings;
    all.iter().map(|it| (&*it.code, &*it.reason)).collect()
}

fn hangs(world: &World) -> &[HangEntry] {
    &world.sup.report().hangs
}

fn resumed(world: &World) -> Vec<&str> {
    let words = world.log.iter().filter_map(|action| match action {
        Action::Tell(Event::Resumed { what }) => Some(&**what),
        _ => None,
    });
    words.collect()
}

#[test]
fn a_command_that_no_rank_joins_is_told_once_with_what_it_does() {
    // Whatever else is to be done about ranks that hang: without a bound that was given it is
    // told, no more.
    for on in [OnHang::Report, OnHang::Restart, OnHang::Kill] {
        let mut world = alone(ruled(on, None));
        world.pass(119_000);
        assert!(hangs(&world).is_empty() && warnings(&world).is_empty());
        world.pass(7_200_000);
        assert_eq!(
            warnings(&world),
            [(
                "OL-509",
                "no rank has joined for 2.0 min (incarnation 1, bound: 2.0 min): \
                 mpirun -n 4 ./app (70) waiting in poll; ssh n3 orted (71) waiting in read; \
                 all stacks: store/job/hang-1.txt"
            )]
        );
        let [entry] = hangs(&world) else {
            panic!("{:?}", hangs(&world));
        };
        assert!(entry.joining && entry.places.is_empty(), "{entry:?}");
        assert_eq!((entry.processes.len(), entry.action), (2, OnHang::Report));
        let view = world.sup.view(world.now).waits_for.unwrap();
        assert_eq!(
            view,
            "the first rank to join: none for 122.0 min, see hang-1.txt"
        );
        let written = world.log.iter().find_map(|action| match action {
            Action::WriteStacks { number: 1, text } => Some(text),
            _ => None,
        });
        let text = written.expect("it is written down");
        assert!(text.ends_with("\nprocess 71 (ssh n3 orted)\n"), "{text}");
        // It may end as it likes: it is a program that never joins.
        assert_eq!((world.starts(), world.sup.report().restarts), (1, 0));
        world.command_ended(Ended::Code(0));
        world.pass(1_000);
        assert_eq!(world.exit(), 0);
    }
}

#[test]
fn a_rank_that_joins_after_all_is_told_and_the_job_goes_on() {
    let mut world = alone(ruled(OnHang::Report, None));
    world.pass(180_000);
    assert_eq!(hangs(&world).len(), 1);
    for rank in 0..4 {
        world.join(rank);
    }
    world.pass(500_000);
    assert_eq!(resumed(&world), ["a rank has joined after 3.0 min"]);
    let after = hangs(&world)[0].resumed_seconds.expect("it joined");
    assert!((179.0..181.0).contains(&after), "{after}");
    assert_eq!(
        (hangs(&world).len(), world.sup.view(world.now).waits_for),
        (1, None)
    );
}

#[test]
fn ranks_that_are_missing_are_told_as_well() {
    let mut world = alone(ruled(OnHang::Report, None));
    world.pass(100_000);
    world.join(0);
    world.join(2);
    world.pass(100_000);
    assert!(hangs(&world).is_empty(), "two have come meanwhile");
    world.pass(30_000);
    let [(code, reason)] = warnings(&world)[..] else {
        panic!("{:?}", warnings(&world));
    };
    assert_eq!(code, "OL-509");
    assert!(
        reason.starts_with("2 of 4 ranks joined, and no more for 2.0 min (incarnation 1"),
        "{reason}"
    );
    // Once all were there, and have left again, nobody is awaited.
    let mut world = World::running(ruled(OnHang::Report, None), 4);
    for rank in 0..4 {
        world.down(rank, RankEnd::Closed);
    }
    world.pass(500_000);
    assert!(hangs(&world).is_empty());
    // The only one that ever came, of a program that has said so, has left.
    let mut world = alone(ruled(OnHang::Report, None));
    world.join(0);
    world.down(0, RankEnd::Closed);
    world.pass(500_000);
    assert!(hangs(&world).is_empty());
}

#[test]
fn a_bound_that_was_given_ends_the_start_and_the_next_one_goes_on() {
    let mut world = alone(ruled(OnHang::Restart, Some(30_000)));
    world.silent_ranks = false;
    world.pass(29_000);
    assert_eq!(world.starts(), 1);
    world.pass(10_000);
    assert_eq!((world.starts(), world.sup.report().restarts), (2, 1));
    let [failure] = &world.sup.report().failures[..] else {
        panic!("{:?}", world.sup.report().failures);
    };
    assert_eq!((&*failure.kind, &*failure.place), ("hang", "job"));
    assert!(
        failure.cause.starts_with("no rank has joined for 30.0 s")
            && failure.cause.ends_with("hang-1.txt"),
        "{failure:?}"
    );
    assert_eq!(hangs(&world)[0].action, OnHang::Restart);
    world.pass(500_000);
    assert_eq!((hangs(&world).len(), world.starts()), (1, 2));
}

#[test]
fn restarts_of_such_starts_are_bounded_and_kill_has_its_code() {
    let mut set = ruled(OnHang::Restart, Some(30_000));
    set.max_restarts = 2;
    let mut world = alone(set);
    world.pass(600_000);
    assert_eq!((world.starts(), world.exit()), (3, 79));
    assert_eq!(world.codes(), ["OL-503"]);
    let mut set = ruled(OnHang::Restart, Some(30_000));
    set.max_restarts = 0;
    let mut world = alone(set);
    world.pass(600_000);
    assert_eq!((world.starts(), world.exit()), (1, 81));
    assert_eq!(world.codes(), ["OL-509"]);
    let mut world = alone(ruled(OnHang::Kill, Some(30_000)));
    world.pass(600_000);
    assert_eq!((world.starts(), world.exit()), (1, 81));
    let error = &world.sup.report().errors[0];
    assert_eq!(error.code, "OL-509");
    assert!(error.remedy.contains("store/job/hang-1.txt"), "{error:?}");
    let wrote = |action: &Action| matches!(action, Action::WriteStacks { .. });
    let ended = |action: &Action| matches!(action, Action::EndCommand { .. });
    let at = |which: fn(&Action) -> bool| world.log.iter().position(which);
    assert!(at(wrote) < at(ended), "first it is written down");
}

#[test]
fn a_look_that_brings_nothing_has_a_bound_and_a_rank_that_joins_meanwhile_counts() {
    let mut world = alone(ruled(OnHang::Kill, Some(30_000)));
    world.unseen = true;
    world.pass(39_000);
    assert!(world.outcome.is_none() && warnings(&world).is_empty());
    world.pass(2_000);
    assert_eq!(world.exit(), 81);
    let (_, reason) = warnings(&world)[0];
    assert!(reason.contains("processes do is not known"), "{reason}");

    let mut world = alone(ruled(OnHang::Kill, Some(30_000)));
    world.unseen = true;
    world.pass(31_000);
    world.join(0);
    let found = processes();
    world.input(Input::CommandSeen { number: 2, found });
    assert!(warnings(&world).is_empty(), "that is another look");
    let found = processes();
    world.input(Input::CommandSeen { number: 1, found });
    assert!(world.outcome.is_none());
    assert!(
        warnings(&world)[0]
            .1
            .starts_with("no rank has joined for 30.0 s")
    );
    assert_eq!(resumed(&world).len(), 1);
    assert_eq!(hangs(&world)[0].action, OnHang::Report);
}

#[test]
fn only_time_in_which_all_else_is_well_counts() {
    let mut world = alone(ruled(OnHang::Kill, Some(30_000)));
    // A launcher that was stopped.
    for _ in 0..5 {
        world.now = world.now + Time::from_secs(3_600);
        world.input(Input::Timer);
    }
    // A node that is not heard.
    world.mute.insert(NodeId(1));
    world.pass(8_000);
    world.mute.clear();
    world.pass(15_000);
    assert!(hangs(&world).is_empty(), "{:?}", hangs(&world));
    world.pass(20_000);
    assert_eq!(hangs(&world).len(), 1);
}

#[test]
fn a_standstill_and_ranks_that_are_awaited_are_told_apart() {
    let mut set = ruled(OnHang::Report, Some(30_000));
    set.hang.bound_ms = Some(10_000);
    let mut world = alone(set);
    world.pass(31_000);
    for rank in 0..4 {
        world.join(rank);
    }
    world.pass(15_000);
    let [awaited, still] = hangs(&world) else {
        panic!("{:?}", hangs(&world));
    };
    assert!(awaited.joining && !still.joining, "{still:?}");
    assert_eq!((awaited.number, still.number), (1, 2));
    let offered = Some(outlive_base::Version(1));
    let held = false;
    world.notice(0, Notice::Alive { offered, held });
    assert!(hangs(&world)[1].resumed_seconds.is_some());
    assert_eq!(resumed(&world).len(), 2, "{:?}", resumed(&world));
}
