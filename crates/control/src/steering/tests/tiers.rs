//! Jobs that write to several tiers, alone and with their coordinator.

use outlive_base::level::StoreKind;
use outlive_base::rng::Sequence;
use outlive_base::{JobName, seed};

use super::*;
use crate::turns::{Answer, Batch, Kept, Tier, Tiers, Word};

/// Nothing is on its way for longer: the end of a write, and the next look.
const STEP: Time = Time::from_ms(50);

fn server() -> Level {
    Level::memory_server(4).unwrap()
}

pub(super) fn tier(store: StoreKind) -> Tier {
    let name = match store {
        StoreKind::Server => "memory-server:1",
        _ => "nfs4:10.0.0.1",
    };
    Tier::new(name).unwrap()
}

/// Those of a job at these levels.
pub(super) fn of(levels: &[Level]) -> Tiers {
    let stores = levels.iter().map(|level| level.store());
    let stores = stores.filter(|store| matches!(store, StoreKind::Shared | StoreKind::Server));
    stores.map(|store| (store, tier(store))).collect()
}

/// A job, with a version at all its levels but for its disks, which are broken, that its
/// coordinator serves: what a level costs is still looked for, so that all are wanted at once.
fn served(shared: &[Level]) -> (Steering, Vec<Level>, Time) {
    let levels = [&[Level::MEMORY, Level::DISK], shared].concat();
    let mut steering = Steering::new(&levels, 2, &wishes(), Time::ZERO);
    steering.reopened(None, None);
    steering.ready(Time::ZERO);
    let now = Time::from_secs(10);
    assert_eq!(steering.ask(now).as_deref(), Some(&levels[..]));
    write(&mut steering, now, 1, &levels);
    let now = now + Time::from_ms(300);
    steering.served(now, &JobName::new("job").unwrap(), 2);
    (steering, levels, now)
}

/// What is wanted is written in 300 ms, but for the disks.
fn write(steering: &mut Steering, now: Time, version: u64, levels: &[Level]) {
    steering.captured(now, Version(version), 0.01);
    let now = now + Time::from_ms(300);
    for level in levels {
        match *level {
            Level::DISK => steering.given_up(now, Version(version), Some(*level)),
            _ => steering.stable(now, Version(version), *level),
        }
    }
}

/// Until it offers anything: at which tiers, with which numbers.
fn until_offered(steering: &mut Steering, now: &mut Time) -> Vec<(Tier, u32)> {
    for number in 100..1_000 {
        *now = *now + STEP;
        if let Some(levels) = steering.ask(*now) {
            write(steering, *now, number, &levels);
        }
        let offer = |ask: Ask| match ask {
            Ask::Offer { tier, sequence } => Some((tier, sequence)),
            _ => None,
        };
        let said = steering.take_said(*now).into_iter();
        let offers: Vec<_> = said.filter_map(offer).collect();
        if !offers.is_empty() {
            return offers;
        }
    }
    panic!("offers nothing");
}

#[test]
fn of_two_tiers_what_is_accepted_is_written_and_the_other_waits() {
    let two = [server(), Level::SHARED];
    let tiers = two.map(|level| tier(level.store()));
    // Whichever of the two is put off.
    for late in 0..2 {
        let (mut steering, levels, mut now) = served(&two);
        // What it lies on is not known yet: nothing is announced.
        assert_eq!(steering.take_said(now), []);
        steering.on_tiers(now, &of(&levels));
        let said = steering.take_said(now);
        let joined: Vec<&Tier> = said.iter().map(joins).collect();
        assert_eq!(joined, [&tiers[1], &tiers[0]]);
        let offers = until_offered(&mut steering, &mut now);
        let number = |place: usize| {
            let offer = offers.iter().find(|offer| offer.0 == tiers[place]);
            offer.unwrap().1
        };
        assert_ne!(number(0), number(1));
        steering.answered(&Answer::Accept {
            sequence: number(1 - late),
        });
        assert_eq!(steering.ask(now), None, "the other answer is awaited");
        steering.answered(&Answer::Later {
            sequence: number(late),
            after_ms: 900,
        });
        let wanted = steering.ask(now).unwrap();
        let other = two[late];
        let rest: Vec<Level> = levels.iter().copied().filter(|it| *it != other).collect();
        assert_eq!(wanted, rest);
        write(&mut steering, now, 50, &wanted);
        let tier = tiers[1 - late].clone();
        assert_eq!(steering.take_said(now), [Ask::Ended { tier }]);
        // The other is offered again, and not before.
        let until = now + Time::from_ms(900);
        let again = until_offered(&mut steering, &mut now);
        assert!(
            again.iter().any(|offer| offer.0 == tiers[late]),
            "{again:?}"
        );
        assert!(now >= until, "{now:?} {until:?}");
    }
}

fn joins(ask: &Ask) -> &Tier {
    match ask {
        Ask::Join { tier, .. } => tier,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_answer_of_two_is_enough_after_the_bound() {
    let two = [server(), Level::SHARED];
    let (mut steering, levels, mut now) = served(&two);
    steering.on_tiers(now, &of(&levels));
    let offers = until_offered(&mut steering, &mut now);
    steering.answered(&Answer::Later {
        sequence: offers[0].1,
        after_ms: 900,
    });
    assert_eq!(steering.ask(now + Time::from_ms(1_900)), None);
    let wanted = steering.ask(now + Time::from_ms(2_000)).unwrap();
    assert!(wanted.contains(&server()) && !wanted.contains(&Level::SHARED));
    assert!(steering.take_silent() && !steering.is_served());
}

#[test]
fn two_levels_of_one_server_are_one_turn() {
    let (four, eight) = (server(), Level::memory_server(8).unwrap());
    let (mut steering, levels, mut now) = served(&[four, eight]);
    steering.on_tiers(now, &of(&levels));
    let said = steering.take_said(now);
    let [Ask::Join { need, .. }] = &said[..] else {
        panic!("{said:?}");
    };
    // Of both: each took 300 ms.
    assert!((550..650).contains(&need.write_ms), "{need:?}");
    let offers = until_offered(&mut steering, &mut now);
    let [(_, sequence)] = offers[..] else {
        panic!("{offers:?}");
    };
    steering.answered(&Answer::Accept { sequence });
    assert_eq!(steering.ask(now).unwrap(), levels);
    steering.captured(now, Version(50), 0.01);
    steering.stable(now, Version(50), four);
    assert_eq!(steering.take_said(now), [], "one of them is written still");
    steering.given_up(now, Version(50), Some(eight));
    let tier = tier(StoreKind::Server);
    assert_eq!(steering.take_said(now), [Ask::Ended { tier }]);
}

/// Of a job that loses nodes every so many seconds: a level that is cheap is worth it beside a dear one.
fn losses(every: usize) -> Wishes {
    let mut learned = Learned {
        seconds: 10.0 * every as f64,
        ..Learned::default()
    };
    for at in (every / 2..10 * every).step_by(every) {
        learned.fail(at as f64, Lost::Storage);
    }
    Wishes {
        lost_max_ms: Some(6_000),
        learned,
        ..wishes()
    }
}

/// While a level is put off the others are written when they are due, not instead of it.
#[test]
fn what_does_not_wait_is_not_written_again_and_again() {
    let levels = [Level::MEMORY, server(), Level::SHARED];
    let mut steering = Steering::new(&levels, 2, &losses(20), Time::ZERO);
    steering.reopened(None, None);
    steering.ready(Time::ZERO);
    let mut now = Time::from_secs(10);
    let first = steering.ask(now).unwrap();
    let mut version = 1;
    let mut write = |steering: &mut Steering, now: Time, wanted: &[Level]| {
        version += 1;
        steering.captured(now, Version(version), 0.01);
        for level in wanted {
            let ms = if *level == Level::SHARED { 1_500 } else { 20 };
            steering.stable(now + Time::from_ms(ms), Version(version), *level);
        }
    };
    write(&mut steering, now, &first);
    // The server is nobody else's.
    steering.on_tiers(now, &of(&[Level::SHARED]));
    steering.served(now, &JobName::new("job").unwrap(), 2);
    let sequence = (0..1_000)
        .find_map(|_| {
            now = now + STEP;
            if let Some(wanted) = steering.ask(now) {
                write(&mut steering, now, &wanted);
            }
            let said = steering.take_said(now).into_iter();
            let mut offers = said.filter_map(|ask| match ask {
                Ask::Offer { sequence, .. } => Some(sequence),
                _ => None,
            });
            offers.next()
        })
        .unwrap();
    let after_ms = 2_000;
    steering.answered(&Answer::Later { sequence, after_ms });
    let until = now + Time::from_ms(after_ms);
    let mut written = 0;
    while now < until {
        match steering.ask(now) {
            Some(wanted) => {
                assert!(!wanted.contains(&Level::SHARED));
                written += 1;
                write(&mut steering, now, &wanted);
            }
            None => assert!(steering.wake().is_some()),
        }
        // It offers again before that, and is put off again.
        for ask in steering.take_said(now) {
            if let Ask::Offer { sequence, .. } = ask {
                let after_ms = until.since(now).as_ms() as u64;
                steering.answered(&Answer::Later { sequence, after_ms });
                assert_eq!(steering.ask(now), None);
            }
        }
        now = now + STEP;
    }
    // At once, and when they are due by themselves: none is written more than once a second.
    assert!(written <= 3, "{written} times in 2 s");
}

#[test]
fn a_server_that_was_started_anew_is_another_tier() {
    let (mut steering, levels, mut now) = served(&[server()]);
    steering.on_tiers(now, &of(&levels));
    assert_eq!(steering.take_said(now).len(), 1);
    until_offered(&mut steering, &mut now);
    assert_eq!(steering.ask(now), None);
    let new = Tier::new("memory-server:2").unwrap();
    let tiers: Tiers = [(StoreKind::Server, new.clone())].into();
    steering.on_tiers(now, &tiers);
    // What it was asked of the other is written.
    assert!(steering.ask(now).unwrap().contains(&server()));
    let said = steering.take_said(now);
    let old = tier(StoreKind::Server);
    assert!(
        matches!(&said[..], [Ask::Quit { tier }, Ask::Join { tier: now, .. }]
            if *tier == old && *now == new),
        "{said:?}"
    );
    // The same again says nothing.
    steering.on_tiers(now, &tiers);
    assert_eq!(steering.take_said(now), []);
    // A denial of one tier leaves the other alone; the job announces itself there again.
    steering.answered(&Answer::Deny {
        tier: Some(old),
        sequence: 0,
        why: "no".to_owned(),
    });
    let later = now + crate::turns::ALIVE;
    assert_eq!(steering.take_said(later), [Ask::Alive]);
    steering.answered(&Answer::Deny {
        tier: Some(new),
        sequence: 0,
        why: "no".to_owned(),
    });
    let said = steering.take_said(later + crate::turns::ALIVE);
    assert!(
        matches!(said[..], [Ask::Alive, Ask::Join { .. }]),
        "{said:?}"
    );
}

/// A job with its coordinator: what it writes takes its time, and it offers a version often.
struct Job {
    steering: Steering,
    version: u64,
    flying: Vec<(Time, Version, Level)>,
    /// When it wrote to which tier, from and to.
    wrote: Vec<(StoreKind, Time, Time)>,
    late: u64,
}

impl Job {
    fn step(&mut self, now: Time, draw: &mut Sequence) -> Vec<Ask> {
        let done = |flight: &&(Time, Version, Level)| flight.0 <= now;
        let stored: Vec<_> = self.flying.iter().filter(done).copied().collect();
        self.flying.retain(|flight| flight.0 > now);
        for (_, version, level) in stored {
            self.steering.stable(now, version, level);
        }
        self.version += 1;
        self.steering.offered(now);
        if let Some(levels) = self.steering.ask(now) {
            self.steering.captured(now, Version(self.version), 0.01);
            for level in levels {
                let shared = of(&[level]).into_keys().next();
                let end = now + shared.map_or(STEP, |store| writes(draw, store));
                self.flying.push((end, Version(self.version), level));
                self.wrote.extend(shared.map(|store| (store, now, end)));
            }
        }
        self.steering.take_said(now)
    }
}

/// What a write takes, about: a server of memory is fast.
fn writes(draw: &mut Sequence, store: StoreKind) -> Time {
    match store {
        StoreKind::Server => Time::from_ms(150 + draw.below(300)),
        _ => Time::from_ms(350 + draw.below(700)),
    }
}

/// Jobs that lose nodes often, at these levels, for so long, with one coordinator or with one that
/// is not heard.
fn together(levels: &[&[Level]], is_heard: bool, seed: u64) -> (Vec<Job>, Kept) {
    let mut draw = Sequence::new(seed, 0);
    let mut kept = Kept::default();
    let wishes = losses(80);
    let made = |levels: &&[Level]| {
        let mut steering = Steering::new(levels, 2, &wishes, Time::ZERO);
        steering.reopened(None, None);
        steering.ready(Time::ZERO);
        steering.on_tiers(Time::ZERO, &of(levels));
        if is_heard {
            steering.served(Time::ZERO, &JobName::new("job").unwrap(), 2);
        }
        Job {
            steering,
            version: 0,
            flying: Vec::new(),
            wrote: Vec::new(),
            late: 0,
        }
    };
    let mut jobs: Vec<Job> = levels.iter().map(made).collect();
    let mut now = Time::ZERO;
    while now < Time::from_secs(600) {
        now = now + STEP;
        let mut words = Vec::new();
        // In any order, as messages come.
        let first = draw.below(jobs.len() as u64) as usize;
        for turn in 0..jobs.len() {
            let place = (first + turn) % jobs.len();
            let said = jobs[place].step(now, &mut draw);
            words.extend(said.into_iter().map(|ask| Word::Heard(place as u64, ask)));
        }
        for (place, answer) in kept.apply(&Batch { at: now, words }) {
            let job = &mut jobs[place as usize];
            job.late += u64::from(matches!(answer, Answer::Later { .. }));
            job.steering.answered(&answer);
        }
    }
    (jobs, kept)
}

/// How often two of them write to a tier at the same time.
fn overlaps(jobs: &[Job], store: StoreKind) -> usize {
    // While costs are being measured nobody takes turns.
    let begun = Time::from_secs(30);
    let of = |job: &Job| -> Vec<(Time, Time)> {
        let wrote = job.wrote.iter().filter(|it| it.0 == store && it.1 > begun);
        wrote.map(|it| (it.1, it.2)).collect()
    };
    let all: Vec<Vec<(Time, Time)>> = jobs.iter().map(of).collect();
    let mut found = 0;
    for (place, one) in all.iter().enumerate() {
        for other in &all[place + 1..] {
            let meets = |a: &(Time, Time)| other.iter().filter(|b| a.0 < b.1 && b.0 < a.1).count();
            found += one.iter().map(meets).sum::<usize>();
        }
    }
    found
}

/// They meet where that costs less than to wait, which on a fast tier is often; in all at most half as often as
/// they would by themselves.
fn assert_turns(levels: &[&[Level]], stores: &[StoreKind], seed: u64) -> (Vec<Job>, Kept) {
    let alone = together(levels, false, seed).0;
    let (jobs, kept) = together(levels, true, seed);
    let met = |jobs: &[Job]| -> Vec<usize> {
        let each = stores.iter().map(|store| overlaps(jobs, *store));
        each.collect()
    };
    let (met, before) = (met(&jobs), met(&alone));
    let fewer = met.iter().zip(&before).all(|(met, before)| met < before);
    let half = 2 * met.iter().sum::<usize>() <= before.iter().sum();
    assert!(fewer && half, "{met:?} of {before:?} {stores:?}");
    (jobs, kept)
}

#[test]
fn jobs_of_one_tier_take_turns_and_those_of_another_are_never_put_off() {
    let files: &[Level] = &[Level::MEMORY, Level::SHARED];
    let memory: &[Level] = &[Level::MEMORY, server()];
    let seed = seed!();
    // Alone on its tier, beside one that is alone on another.
    let (jobs, kept) = together(&[files, memory], true, seed);
    assert_eq!(kept.service().counts().later, 0);
    assert!(jobs.iter().all(|job| job.wrote.len() > 30), "writes");
    // Three of one tier beside one of another.
    let levels = [files, files, memory, files];
    let (jobs, kept) = assert_turns(&levels, &[StoreKind::Shared], seed);
    let late: Vec<u64> = jobs.iter().map(|job| job.late).collect();
    assert!(
        late[2] == 0 && late[0] > 0 && late[1] > 0 && late[3] > 0,
        "{late:?}"
    );
    assert_eq!(kept.service().counts().later, late.iter().sum::<u64>());
    // One of both: on each tier with its own.
    let both: &[Level] = &[Level::MEMORY, server(), Level::SHARED];
    let stores = [StoreKind::Shared, StoreKind::Server];
    let (jobs, kept) = assert_turns(&[files, memory, both, both, memory], &stores, seed);
    for store in stores {
        let wrote = jobs[2].wrote.iter().filter(|it| it.0 == store).count();
        assert!(wrote > 20, "{wrote} {store:?}");
    }
    let later: Vec<u64> = kept.service().tiers().map(|it| it.counts.later).collect();
    assert!(later.iter().all(|later| *later > 0), "{later:?}");
    assert!(jobs.iter().all(|job| job.late > 0));
}
