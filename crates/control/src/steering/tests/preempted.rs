//! Runs that are taken off their machines.

use super::*;

fn spot(notice_s: u64) -> Wishes {
    Wishes {
        notice_ms: Some(notice_s * 1_000),
        preempts: true,
        ..wishes()
    }
}

/// When it ends itself: asked every quarter of a second.
fn leaves_after(world: &mut World, seconds: u32) -> Option<f64> {
    let from = world.now;
    (0..4 * seconds).find_map(|_| {
        world.compute(0.25);
        let leaves = world.steering.is_time_to_leave(world.now);
        leaves.then(|| world.now.since(from).as_secs())
    })
}

#[test]
fn the_last_version_goes_where_no_machine_is_needed_and_then_the_run_ends_itself() {
    let mut world = World::new(&spot(60));
    world.writes = 2.0;
    world.compute(100.0);
    assert!(!world.steering.is_time_to_leave(world.now));
    let warned = world.now;
    world.steering.warned(world.now, Some(Time::from_secs(3)));
    let after = leaves_after(&mut world, 60).unwrap();
    assert!((50.0..57.5).contains(&after), "{after}");
    let announced = warned.as_secs();
    let last = world
        .taken
        .iter()
        .rfind(|(_, levels)| levels.contains(&Level::PARTNER));
    let at = last.unwrap().0 - announced;
    // A write to a partner takes 4 s here: as late as that is sure to be whole, or later.
    assert!((40.0..53.0).contains(&at), "{at}: {:?}", world.taken);
    assert!(world.flying.iter().all(|flying| flying.2 != Level::PARTNER));
}

/// A write of minutes beside a notice of seconds: the end comes in time nevertheless.
#[test]
fn a_run_that_can_save_nothing_more_ends_within_the_notice() {
    let mut world = World::new(&spot(20));
    world.writes = 100.0;
    world.compute(100.0);
    world.steering.warned(world.now, Some(Time::from_secs(3)));
    let wake = world.steering.wake().unwrap();
    assert!(wake <= world.now + Time::from_secs(17));
    let after = leaves_after(&mut world, 20).unwrap();
    assert!((16.5..17.5).contains(&after), "{after}");
}

#[test]
fn preemptions_are_learned_apart_from_failures_and_go_into_the_next_run() {
    let mut learned = Learned::default();
    for run in 0..4 {
        let mut world = World::new(&Wishes {
            learned: learned.clone(),
            ..spot(30)
        });
        world.compute(200.0);
        world.steering.warned(world.now, Some(Time::from_secs(3)));
        // Said twice, and a machine goes before the run has ended itself.
        world.steering.warned(world.now, Some(Time::from_secs(3)));
        assert!(
            world.steering.keep(world.now, false).is_some(),
            "kept at once"
        );
        world.steering.failed(world.now, Lost::Storage);
        world.steering.ended();
        learned = world.steering.keep(world.now, true).unwrap();
        assert_eq!(learned.failures, []);
        assert_eq!(
            (learned.preemptions.len(), learned.fault()),
            (run + 1, None)
        );
    }
    let text = serde_json::to_string(&learned).unwrap();
    let learned: Learned = serde_json::from_str(&text).unwrap();
    let every = |wishes: Wishes, writes: f64| {
        let mut world = World::new(&wishes);
        world.writes = writes;
        world.compute(40.0 + 30.0 * writes);
        world.intervals()[2].unwrap()
    };
    let with = |notice_s| Wishes {
        learned: learned.clone(),
        ..spot(notice_s)
    };
    let plain = Wishes {
        learned: Learned {
            preemptions: Vec::new(),
            ..learned.clone()
        },
        ..wishes()
    };
    // A write to a partner takes 4 s here. What fits into the notice costs no interval; what does
    // not is lost four times in 800 s.
    let (never, fits) = (every(plain, 2.0), every(with(120), 2.0));
    assert!((0.9..1.1).contains(&(fits / never)), "{fits} {never}");
    let late = every(with(1), 2.0);
    assert!(late < never / 4.0, "{late} {never}");
    let mut world = World::new(&with(120));
    let why = world.steering.entry(world.now).0.why.clone();
    assert!(why.contains("4 preemptions"), "{why}");
}

#[test]
fn a_warning_before_an_end_that_was_known_is_no_preemption() {
    let mut world = World::new(&Wishes {
        ends_after_ms: Some(400_000),
        notice_ms: Some(60_000),
        ..wishes()
    });
    world.compute(300.0);
    world.steering.warned(world.now, None);
    assert!(
        leaves_after(&mut world, 90).is_none(),
        "it is ended from outside"
    );
    world.steering.ended();
    let learned = world.steering.keep(world.now, true).unwrap();
    assert_eq!((learned.preemptions.len(), learned.failures.len()), (0, 0));
}

/// A process that dies after the announcement was no machine: it counts.
#[test]
fn what_else_fails_meanwhile_is_a_failure() {
    let mut world = World::new(&spot(60));
    world.compute(50.0);
    world.steering.warned(world.now, None);
    world.fail(Lost::Process);
    let learned = world.steering.keep(world.now, true).unwrap();
    assert_eq!((learned.preemptions.len(), learned.failures.len()), (1, 1));
    // A node goes as announced, and the job goes on with a spare: that is over.
    world.fail(Lost::Storage);
    assert!(!world.steering.is_leaving(world.now));
    world.compute(100.0);
    world.fail(Lost::Storage);
    let learned = world.steering.keep(world.now, true).unwrap();
    assert_eq!((learned.preemptions.len(), learned.failures.len()), (1, 2));
}

#[test]
fn what_outlasts_a_preemption_lies_elsewhere_if_anything_does() {
    use leaving::outlasting;
    let all = [Level::MEMORY, Level::DISK, Level::PARTNER, Level::SHARED];
    assert_eq!(outlasting(&all, false), 0b1110);
    assert_eq!(outlasting(&all, true), 0b1000);
    assert_eq!(outlasting(&all[..3], true), 0b100);
    assert_eq!(outlasting(&all[..2], true), 0b10);
}
