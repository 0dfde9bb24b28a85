use super::*;

mod preempted;
mod tiers;

const LEVELS: [Level; 3] = [Level::MEMORY, Level::DISK, Level::PARTNER];

/// A job that offers a version every so often, with writes that take their time.
struct World {
    steering: Steering,
    now: Time,
    version: u64,
    offer: f64,
    offered: Time,
    blocked: f64,
    writes: f64,
    wanted: Option<Vec<Level>>,
    flying: Vec<(Time, Version, Level)>,
    /// When what was captured.
    taken: Vec<(f64, Vec<Level>)>,
    /// A level that keeps nothing.
    broken: Option<Level>,
}

impl World {
    fn new(wishes: &Wishes) -> World {
        let mut steering = Steering::new(&LEVELS, 4, wishes, Time::ZERO);
        steering.reopened(None, None);
        steering.ready(Time::ZERO);
        World {
            steering,
            now: Time::ZERO,
            version: 0,
            offer: 0.1,
            offered: Time::ZERO,
            blocked: 0.01,
            writes: 0.2,
            wanted: None,
            flying: Vec::new(),
            taken: Vec::new(),
            broken: None,
        }
    }

    fn compute(&mut self, seconds: f64) {
        let until = self.now + Time((seconds * 1e9) as u64);
        while self.now < until {
            self.now = self.now + Time::from_ms(50);
            let now = self.now;
            let done = |flight: &&(Time, Version, Level)| flight.0 <= now;
            let stored: Vec<_> = self.flying.iter().filter(done).copied().collect();
            self.flying.retain(|flight| flight.0 > now);
            for (_, version, level) in stored {
                match self.broken == Some(level) {
                    true => self.steering.given_up(now, version, Some(level)),
                    false => self.steering.stable(now, version, level),
                }
            }
            if now.since(self.offered).as_secs() >= self.offer {
                self.offered = now;
                self.version += 1;
                self.steering.offered(now);
                if let Some(levels) = self.wanted.take() {
                    let version = Version(self.version);
                    self.steering.captured(now, version, self.blocked);
                    // What is farther takes longer.
                    let end = |level: Level| {
                        let times = match level {
                            Level::MEMORY => 0.1,
                            Level::DISK => 1.0,
                            Level::PARTNER => 2.0,
                            _ => 10.0,
                        };
                        let seconds = self.writes * times;
                        now + Time((seconds * 1e9) as u64)
                    };
                    let flying = levels.iter().map(|level| (end(*level), version, *level));
                    self.flying.extend(flying);
                    self.taken.push((now.as_secs(), levels));
                }
            }
            if let Some(levels) = self.steering.ask(now) {
                self.wanted = Some(levels);
            }
        }
    }

    fn fail(&mut self, lost: Lost) {
        self.flying.clear();
        self.wanted = None;
        self.steering.failed(self.now, lost);
        self.now = self.now + Time::from_secs(2);
        self.steering
            .reopened(Some(Version(self.version)), Some(Level::MEMORY));
        self.steering.ready(self.now);
    }

    fn intervals(&mut self) -> Vec<Option<f64>> {
        self.steering.looked = None;
        let entry = self.steering.entry(self.now).0;
        entry.levels.iter().map(|level| level.seconds).collect()
    }

    /// Captures of a level in the last so many seconds.
    fn rate(&self, level: Level, seconds: f64) -> usize {
        let since = self.now.as_secs() - seconds;
        let taken = self.taken.iter().filter(|(at, _)| *at > since);
        taken.filter(|(_, levels)| levels.contains(&level)).count()
    }
}

fn wishes() -> Wishes {
    Wishes::default()
}

#[test]
fn costs_are_measured_first_at_all_levels() {
    let mut world = World::new(&wishes());
    assert_eq!(world.intervals(), [Some(10.0); 3]);
    let why = world.steering.entry(world.now).0.why.clone();
    assert!(why.contains("until their costs are known"), "{why}");
    world.compute(10.5);
    assert_eq!(world.taken.len(), 1);
    assert_eq!(world.taken[0].1, LEVELS);
    assert_eq!(
        world.intervals()[0].unwrap().total_cmp(&10.0),
        std::cmp::Ordering::Greater
    );
    let (entry, _) = world.steering.entry(world.now);
    let background = entry.levels[1].background_ms.unwrap();
    assert!((150.0..300.0).contains(&background), "{entry:?}");
    assert!(entry.why.starts_with("memory every "), "{}", entry.why);
    world.compute(600.0);
    // What a rare loss needs is written more rarely.
    assert!(world.rate(Level::MEMORY, 600.0) > 2 * world.rate(Level::PARTNER, 600.0));
}

#[test]
fn failures_shorten_the_intervals_of_the_levels_that_they_need() {
    let mut world = World::new(&wishes());
    world.compute(300.0);
    let calm = world.intervals();
    for _ in 0..6 {
        world.compute(60.0);
        world.fail(Lost::Process);
    }
    let failing = world.intervals();
    assert!(
        failing[0].unwrap() < calm[0].unwrap() / 3.0,
        "{calm:?} {failing:?}"
    );
    let before = world.rate(Level::MEMORY, 300.0);
    world.compute(300.0);
    assert!(world.rate(Level::MEMORY, 300.0) >= before);
    let entry = world.steering.entry(world.now).0;
    assert_eq!(
        (entry.failures, entry.levels[0].failures),
        (Some(6), Some(6))
    );
    for _ in 0..4 {
        world.compute(60.0);
        world.fail(Lost::Storage);
    }
    let losing = world.intervals();
    assert!(
        losing[2].unwrap() < calm[2].unwrap() / 3.0,
        "{calm:?} {losing:?}"
    );
}

#[test]
fn a_dear_checkpoint_is_taken_more_rarely() {
    let mut cheap = World::new(&wishes());
    cheap.compute(120.0);
    let mut dear = World::new(&wishes());
    dear.blocked = 1.0;
    dear.compute(120.0);
    let (cheap, dear) = (cheap.intervals(), dear.intervals());
    assert!(
        dear[0].unwrap() > 4.0 * cheap[0].unwrap(),
        "{cheap:?} {dear:?}"
    );
    // With what the owner allows, more rarely still.
    let mut world = World::new(&Wishes {
        overhead_max: Some(0.001),
        ..wishes()
    });
    world.blocked = 1.0;
    world.compute(120.0);
    assert!(world.intervals()[0].unwrap() > 900.0);
    let mut world = World::new(&Wishes {
        lost_max_ms: Some(30_000),
        ..wishes()
    });
    world.blocked = 1.0;
    world.compute(600.0);
    let intervals = world.intervals();
    assert!(
        intervals.iter().flatten().all(|every| *every < 30.0),
        "{intervals:?}"
    );
    assert!(world.rate(Level::PARTNER, 500.0) > 15);
}

#[test]
fn what_was_learned_goes_into_the_next_run() {
    let mut world = World::new(&wishes());
    for _ in 0..8 {
        world.compute(120.0);
        world.fail(Lost::Process);
    }
    world.compute(30.0);
    let before = world.intervals();
    world.steering.ended();
    let learned = world.steering.keep(world.now, true).unwrap();
    assert_eq!(learned.fault(), None);
    assert_eq!(learned.failures.len(), 8);
    let text = serde_json::to_string(&learned).unwrap();
    let learned: Learned = serde_json::from_str(&text).unwrap();
    let mut next = World::new(&Wishes {
        learned: learned.clone(),
        ..wishes()
    });
    let after = next.intervals();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.is_some(), after.is_some(), "{before:?} {after:?}");
        let ratio = after.unwrap_or(1.0) / before.unwrap_or(1.0);
        assert!((0.8..1.25).contains(&ratio), "{before:?} {after:?}");
    }
    // Nothing has to be measured first, and the time goes on.
    next.compute(9.0);
    assert_eq!(next.steering.entry(next.now).0.failures, Some(8));
    next.fail(Lost::Process);
    let learned_next = next.steering.keep(next.now, true).unwrap();
    assert_eq!(
        (learned_next.failures.len(), learned_next.fault()),
        (9, None)
    );
    assert!(learned_next.seconds > learned.seconds + 9.0);
}

#[test]
fn what_is_wanted_is_said_again_until_it_is_captured() {
    let mut world = World::new(&wishes());
    let mut said = Vec::new();
    for tenth in 0..300 {
        let now = Time::from_ms(tenth * 100);
        if world.steering.ask(now).is_some() {
            said.push(now.as_secs());
        }
        assert!(world.steering.wake().unwrap() >= now);
    }
    assert_eq!(said, [10.0, 15.0, 20.0, 25.0]);
    // The next start wants it anew.
    world.steering.failed(Time::from_secs(30), Lost::Process);
    assert_eq!(world.steering.ask(Time::from_secs(60)), None);
    assert_eq!(world.steering.wake(), None);
    world.steering.reopened(None, None);
    world.steering.ready(Time::from_secs(60));
    assert_eq!(world.steering.ask(Time::from_secs(65)), None);
    assert!(world.steering.ask(Time::from_secs(70)).is_some());
}

#[test]
fn a_level_that_keeps_nothing_holds_up_nothing() {
    let mut world = World::new(&wishes());
    world.broken = Some(Level::DISK);
    world.compute(60.0);
    assert!(!world.steering.is_measuring());
    let all = world.taken.iter().filter(|(_, levels)| levels.len() == 3);
    assert!(all.count() >= 3);
    assert!(world.intervals()[0].is_some());
    assert_eq!(
        world.steering.entry(world.now).0.levels[1].background_ms,
        None
    );
}

#[test]
fn only_a_failure_of_a_program_that_computes_counts() {
    let mut world = World::new(&wishes());
    world.compute(20.0);
    world.fail(Lost::Process);
    world.steering.failed(world.now, Lost::Process);
    // What else is found until the next start is the same failure; the worst counts.
    world.steering.failed(world.now, Lost::Storage);
    world.steering.failed(world.now, Lost::Memory);
    world.steering.reopened(None, None);
    world.steering.ready(world.now);
    let learned = world.steering.keep(world.now, true).unwrap();
    let lost: Vec<Lost> = learned
        .failures
        .iter()
        .map(|failure| failure.lost)
        .collect();
    assert_eq!(lost, [Lost::Process, Lost::Storage]);
    let mut starting = Steering::new(&LEVELS, 4, &wishes(), Time::ZERO);
    starting.failed(Time::from_secs(1), Lost::Process);
    starting.ended();
    assert_eq!(
        starting.keep(Time::from_secs(1), true).unwrap().failures,
        []
    );
}

#[test]
fn before_the_end_a_version_goes_where_it_outlasts_the_run() {
    let mut world = World::new(&Wishes {
        ends_after_ms: Some(400_000),
        ..wishes()
    });
    world.writes = 2.0;
    world.compute(400.0);
    let (at, levels) = world.taken.last().unwrap();
    assert!((380.0..398.0).contains(at), "{:?}", world.taken);
    assert!(
        levels.iter().any(|level| *level != Level::MEMORY),
        "{levels:?}"
    );
}

/// Only where the length of the notice is known; a later warning does not put the end off.
#[test]
fn after_a_warning_the_last_version_is_as_late_as_the_notice_allows() {
    let taken = |notice_ms: Option<u64>| {
        let mut world = World::new(&Wishes {
            notice_ms,
            ..wishes()
        });
        world.writes = 2.0;
        world.compute(100.0);
        world.steering.warned(world.now, None);
        world.compute(20.0);
        world.steering.warned(world.now, None);
        world.compute(40.0);
        let beyond = |levels: &[Level]| levels.iter().any(|level| *level != Level::MEMORY);
        let late = world.taken.into_iter().filter(|(at, _)| *at > 120.0);
        let late = late.filter(|(_, levels)| beyond(levels));
        late.map(|(at, _)| at).collect::<Vec<f64>>()
    };
    assert_eq!(taken(None), [0.0; 0]);
    // A write to the disk takes 2 s here, one to a partner 4 s.
    let late = taken(Some(60_000));
    let last = late.last().is_some_and(|at| (140.0..158.0).contains(at));
    assert!(last, "{late:?}");
}

#[test]
fn a_write_of_which_nothing_is_heard_any_more_is_given_up() {
    let mut world = World::new(&wishes());
    world.compute(10.3);
    assert!(!world.flying.is_empty());
    world.flying.clear();
    world.compute(200.0);
    assert!(world.taken.len() > 1, "{:?}", world.taken);
    assert!(world.rate(Level::DISK, 100.0) > 0, "{:?}", world.taken);
}

const SHARED: [Level; 2] = [Level::MEMORY, Level::SHARED];

/// A job at memory and shared storage that is about to write there, with its coordinator.
fn served() -> (Steering, Time) {
    let wishes = Wishes {
        lost_max_ms: Some(5_000),
        ..wishes()
    };
    let mut steering = Steering::new(&SHARED, 2, &wishes, Time::ZERO);
    steering.reopened(None, None);
    steering.ready(Time::ZERO);
    let mut now = Time::from_secs(10);
    assert_eq!(steering.ask(now).as_deref(), Some(&SHARED[..]));
    steering.captured(now, Version(1), 0.01);
    now = now + Time::from_ms(300);
    for level in SHARED {
        steering.stable(now, Version(1), level);
    }
    let job = outlive_base::JobName::new("job").unwrap();
    steering.on_tiers(now, &tiers::of(&SHARED));
    steering.served(now, &job, 2);
    let said = steering.take_said(now);
    // Its interval began with the capture, not when shared storage had it.
    assert!(
        matches!(said[..], [Ask::Join { since_ms: 300, .. }]),
        "{said:?}"
    );
    (steering, now)
}

/// Until it offers: the number of the offer, and what was wanted at other levels meanwhile.
fn until_offered(steering: &mut Steering, now: &mut Time) -> u32 {
    for _ in 0..1_000 {
        *now = *now + Time::from_ms(50);
        if steering.ask(*now).is_some() {
            steering.captured(*now, Version(2), 0.01);
            steering.stable(*now, Version(2), Level::MEMORY);
        }
        let said = steering.take_said(*now);
        if let Some(Ask::Offer { sequence, .. }) = said.last() {
            return *sequence;
        }
    }
    panic!("offers nothing");
}

#[test]
fn shared_storage_is_written_when_it_is_its_turn() {
    use crate::turns::Answer;
    let (mut steering, mut now) = served();
    let sequence = until_offered(&mut steering, &mut now);
    assert_eq!(steering.ask(now), None, "the answer is awaited");
    steering.answered(&Answer::Later {
        sequence,
        after_ms: 700,
    });
    // What does not go there does not wait.
    if let Some(meanwhile) = steering.ask(now) {
        assert_eq!(meanwhile, [Level::MEMORY]);
        steering.captured(now, Version(3), 0.01);
        steering.stable(now, Version(3), Level::MEMORY);
    }
    let put_off = now;
    let sequence = until_offered(&mut steering, &mut now);
    // It asks again at half of that: it may be its turn sooner.
    let waited = now.since(put_off).as_ms();
    assert!((350.0..600.0).contains(&waited), "{waited}");
    steering.answered(&Answer::Accept { sequence });
    let wanted = steering.ask(now).unwrap();
    assert!(wanted.contains(&Level::SHARED), "{wanted:?}");
    steering.captured(now, Version(4), 0.01);
    steering.stable(now + Time::from_ms(300), Version(4), Level::SHARED);
    let said = steering.take_said(now + Time::from_ms(300));
    let tier = tiers::tier(outlive_base::level::StoreKind::Shared);
    assert_eq!(said.first(), Some(&Ask::Ended { tier }));
}

/// A job that is put off time after time captures no version for that: only what is due elsewhere.
#[test]
fn who_is_put_off_is_not_blocked_more_often() {
    let (mut steering, mut now) = served();
    let every = |steering: &mut Steering, now, level: usize| {
        let entry = steering.entry(now).0;
        entry.levels[level].seconds
    };
    let mut taken = 0;
    let mut answers = 0;
    until_offered(&mut steering, &mut now);
    steering.answered(&crate::turns::Answer::Later {
        sequence: 1,
        after_ms: 400,
    });
    let begun = now;
    let lasts = 2.0 * every(&mut steering, now, 1).unwrap();
    while now.since(begun).as_secs() < lasts {
        now = now + Time::from_ms(50);
        if let Some(levels) = steering.ask(now) {
            assert_eq!(levels, [Level::MEMORY], "it is put off");
            steering.captured(now, Version(2 + taken), 0.01);
            steering.stable(now, Version(2 + taken), Level::MEMORY);
            taken += 1;
        }
        if let Some(Ask::Offer { sequence, .. }) = steering.take_said(now).last() {
            answers += 1;
            steering.answered(&crate::turns::Answer::Later {
                sequence: *sequence,
                after_ms: 400,
            });
        }
    }
    // As often as memory wants by itself, at most, and one more.
    let own = every(&mut steering, now, 0).map_or(0.0, |seconds| lasts / seconds);
    let most = own + 1.0;
    assert!(taken as f64 <= most, "{taken}, {own} by itself");
    // A version for each answer would be many more, so it would be noticed.
    assert!(f64::from(answers) > 2.0 * most, "{answers} answers, {own}");
}

#[test]
fn nobody_waits_for_a_coordinator_that_does_not_answer() {
    let (mut steering, mut now) = served();
    until_offered(&mut steering, &mut now);
    assert_eq!(steering.ask(now + Time::from_ms(1_900)), None);
    let wanted = steering.ask(now + Time::from_ms(2_000)).unwrap();
    assert!(wanted.contains(&Level::SHARED));
    assert!(steering.take_silent() && !steering.take_silent());
    assert!(!steering.is_served());
    // One that is gone is not waited for at all.
    let (mut steering, mut now) = served();
    until_offered(&mut steering, &mut now);
    steering.not_served();
    assert!(steering.ask(now).unwrap().contains(&Level::SHARED));
    // Put off for longer than its interval, it goes by its own plan.
    let (mut steering, mut now) = served();
    let begun = now;
    loop {
        let sequence = until_offered(&mut steering, &mut now);
        steering.answered(&crate::turns::Answer::Later {
            sequence,
            after_ms: 100,
        });
        match steering.ask(now) {
            Some(levels) if levels.contains(&Level::SHARED) => break,
            Some(_) => steering.captured(now, Version(9), 0.01),
            None => {}
        }
        assert!(now.since(begun) < Time::from_secs(30), "starved");
    }
}
