use super::*;

const A: JobId = 1;
const B: JobId = 2;
const C: JobId = 3;
const D: JobId = 4;

fn tier(name: &str) -> Tier {
    Tier::new(name).unwrap()
}

fn join(since_ms: u64, writing_ms: Option<u64>) -> Ask {
    join_at("files", since_ms, writing_ms)
}

fn join_at(name: &str, since_ms: u64, writing_ms: Option<u64>) -> Ask {
    Ask::Join {
        job: JobName::new("job").unwrap(),
        tier: tier(name),
        need: Need {
            nodes: 4,
            // With a write of 2 s: every 20 s.
            mtbf_ms: 100_000,
            write_ms: 2_000,
        },
        since_ms,
        writing_ms,
    }
}

fn offer(service: &mut Service, at: u64, id: JobId) -> Option<Answer> {
    offer_at(service, at, id, "files")
}

fn offer_at(service: &mut Service, at: u64, id: JobId, name: &str) -> Option<Answer> {
    let (tier, sequence) = (tier(name), 7);
    service.on(Time::from_ms(at), id, Ask::Offer { tier, sequence })
}

fn ended(name: &str) -> Ask {
    Ask::Ended { tier: tier(name) }
}

fn two() -> Service {
    let mut service = Service::default();
    for id in [A, B] {
        assert_eq!(service.on(Time::ZERO, id, join(0, None)), None);
    }
    service
}

#[test]
fn one_writes_at_a_time() {
    let mut service = two();
    let accepted = Some(Answer::Accept { sequence: 7 });
    assert_eq!(offer(&mut service, 22_000, A), accepted);
    // Said again, because the answer was lost: the same turn.
    assert_eq!(offer(&mut service, 22_100, A), accepted);
    let Some(Answer::Later { after_ms, .. }) = offer(&mut service, 22_200, B) else {
        panic!("two write");
    };
    assert!((500..4_000).contains(&after_ms), "{after_ms}");
    service.on(Time::from_ms(24_000), A, ended("files"));
    assert_eq!(offer(&mut service, 24_100, B), accepted);
    let counts = service.counts();
    assert_eq!((counts.accepted, counts.later), (2, 1), "{counts:?}");
}

#[test]
fn a_dead_holder_holds_up_nobody() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    // Its connection ends.
    let mut service = two();
    assert_eq!(offer(&mut service, 22_000, A), accepted);
    service.gone(A);
    assert_eq!(offer(&mut service, 22_600, B), accepted);
    // It is only silent: its turn ends, and then it is forgotten.
    let mut service = two();
    service.on(Time::from_ms(20_000), B, Ask::Alive);
    assert_eq!(offer(&mut service, 22_000, A), accepted);
    assert_ne!(offer(&mut service, 31_900, B), accepted);
    assert_eq!(offer(&mut service, 32_100, B), accepted);
    assert_eq!(service.counts().expired, 1);
    service.on(Time::from_ms(53_000), B, Ask::Alive);
    assert_eq!((service.jobs().count(), service.counts().lost), (1, 1));
}

/// It reads its version, alone if the other can wait: until it computes, or for twice as long as it
/// writes.
#[test]
fn a_holder_that_has_failed_is_waited_for_while_it_reads() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    for resumes in [true, false] {
        let mut service = two();
        assert_eq!(offer(&mut service, 22_000, A), accepted);
        service.on(Time::from_ms(22_500), A, Ask::Paused);
        let Some(Answer::Later { after_ms, .. }) = offer(&mut service, 22_600, B) else {
            panic!("beside one who reads");
        };
        assert!((500..4_000).contains(&after_ms), "{after_ms}");
        let mut at = 22_600 + after_ms;
        if resumes {
            at = 23_000;
            service.on(Time::from_ms(at), A, Ask::Resumed);
        }
        assert_eq!(offer(&mut service, at, B), accepted, "{resumes}");
    }
}

/// It says 2 s, and takes 9 s.
#[test]
fn who_lies_about_its_size_is_named() {
    let mut service = Service::default();
    let accepted = Some(Answer::Accept { sequence: 7 });
    service.on(Time::ZERO, A, join(0, None));
    let mut at = 0;
    let mut write = |service: &mut Service, took: u64| {
        // It lives meanwhile.
        for _ in 0..2 {
            at += 25_000;
            service.on(Time::from_ms(at), A, Ask::Alive);
        }
        assert_eq!(offer(service, at, A), accepted);
        service.on(Time::from_ms(at + took), A, ended("files"));
        at + took
    };
    write(&mut service, 2_500);
    assert_eq!(service.doubts().count(), 0);
    // Longer than its turn may last, it would be taken back.
    for _ in 0..3 {
        write(&mut service, 9_000);
        let doubts: Vec<Doubt<'_>> = service.doubts().collect();
        let [doubt] = doubts[..] else {
            panic!("{doubts:?}");
        };
        assert_eq!((doubt.said_ms, doubt.took_ms), (2_000, 9_000));
    }
    // What it says again is in doubt still.
    let now = write(&mut service, 9_000);
    service.on(Time::from_ms(now), A, join(0, None));
    assert_eq!(service.doubts().count(), 1);
    // Of another that has not written nothing is known.
    service.on(Time::from_ms(now), B, join(60_000, None));
    assert_eq!(service.doubts().count(), 1);
}

#[test]
fn a_coordinator_that_was_started_anew_learns_from_the_jobs() {
    let mut service = Service::default();
    service.on(Time::ZERO, A, join(20_000, Some(500)));
    service.on(Time::ZERO, B, join(25_000, None));
    assert!(matches!(
        offer(&mut service, 10, B),
        Some(Answer::Later { .. })
    ));
    service.on(Time::from_ms(1_500), A, ended("files"));
    assert_eq!(
        offer(&mut service, 1_600, B),
        Some(Answer::Accept { sequence: 7 })
    );
}

#[test]
fn who_is_unknown_or_impossible_goes_by_its_own_plan() {
    let mut service = Service::default();
    assert!(matches!(
        offer(&mut service, 1, A),
        Some(Answer::Deny {
            sequence: 7,
            tier: Some(_),
            ..
        })
    ));
    let mut ask = join(0, None);
    if let Ask::Join { need, .. } = &mut ask {
        need.nodes = 0;
    }
    let denied = service.on(Time::ZERO, A, ask);
    assert!(matches!(denied, Some(Answer::Deny { sequence: 0, .. })));
    assert_eq!(service.jobs().count(), 0);
    // Times that cannot be are cut.
    service.on(Time::ZERO, A, join(u64::MAX, Some(u64::MAX)));
    assert_eq!(service.jobs().count(), 1);
}

#[test]
fn jobs_of_two_tiers_do_not_wait_for_each_other() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    let mut service = Service::default();
    service.on(Time::ZERO, A, join_at("files", 0, None));
    service.on(Time::ZERO, B, join_at("memory", 0, None));
    // Who is alone on its tier writes when it wants to; these are not.
    service.on(Time::from_ms(20_000), C, join_at("memory", 0, None));
    service.on(Time::from_ms(20_000), D, join_at("files", 0, None));
    // A writes, and fails while it does; B neither waits for its write nor for its read, D does.
    assert_eq!(offer_at(&mut service, 22_000, A, "files"), accepted);
    assert_eq!(offer_at(&mut service, 22_100, B, "memory"), accepted);
    service.on(Time::from_ms(22_300), B, ended("memory"));
    service.on(Time::from_ms(22_400), A, Ask::Paused);
    service.on(Time::from_ms(22_500), B, join_at("memory", 60_000, None));
    service.on(Time::from_ms(22_500), D, join_at("files", 22_500, None));
    assert_eq!(offer_at(&mut service, 22_600, B, "memory"), accepted);
    assert_eq!(service.counts().later, 0);
    let later = offer_at(&mut service, 22_700, D, "files");
    assert!(matches!(later, Some(Answer::Later { .. })), "{later:?}");
    // What A says of its write counts nowhere else, nor does its offer.
    service.on(Time::from_ms(22_800), A, ended("memory"));
    let denied = offer_at(&mut service, 22_900, A, "memory");
    assert!(matches!(denied, Some(Answer::Deny { .. })), "{denied:?}");
    let seen: Vec<TierSeen<'_>> = service.tiers().collect();
    let counts: Vec<_> = seen
        .iter()
        .map(|it| (it.jobs, it.writing, it.counts))
        .collect();
    let given = |accepted, later, denied| Counts {
        accepted,
        later,
        denied,
        ..Counts::default()
    };
    assert_eq!(counts, [(2, 0, given(1, 1, 0)), (2, 1, given(2, 0, 1))]);
    assert_eq!(service.counts(), given(3, 1, 1));
    assert!(
        seen[1]
            .words()
            .starts_with("memory: 2 jobs, 1 writing; 2 turns given")
    );
}

/// A job of two tiers has a turn on each, and each ends by itself.
#[test]
fn a_job_takes_turns_on_each_of_its_tiers() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    let mut service = two();
    service.on(Time::ZERO, A, join_at("memory", 0, None));
    assert_eq!(service.jobs().count(), 2);
    assert_eq!(offer(&mut service, 22_000, A), accepted);
    assert_eq!(offer_at(&mut service, 22_000, A, "memory"), accepted);
    // Written to memory, not to files: B waits still.
    service.on(Time::from_ms(22_100), A, ended("memory"));
    assert!(matches!(
        offer(&mut service, 22_200, B),
        Some(Answer::Later { .. })
    ));
    let writes = |service: &Service| -> Vec<Vec<bool>> {
        let jobs = service.jobs();
        jobs.map(|job| job.tiers.iter().map(|it| it.1).collect())
            .collect()
    };
    assert_eq!(writes(&service), [vec![true, false], vec![false]]);
    assert!(service.jobs().next().is_some_and(|job| job.writes()));
    // Its connection ends: on no tier does anybody wait for it.
    service.on(Time::from_ms(42_000), A, Ask::Alive);
    assert_eq!(offer_at(&mut service, 43_000, A, "memory"), accepted);
    service.on(Time::from_ms(43_000), B, join_at("memory", 60_000, None));
    service.gone(A);
    assert_eq!(offer(&mut service, 43_100, B), accepted);
    assert_eq!(offer_at(&mut service, 43_200, B, "memory"), accepted);
    // It is silent, and forgotten: on both tiers, and counted once.
    service.on(Time::from_ms(72_000), B, Ask::Alive);
    service.on_time(Time::from_ms(73_000));
    let counts = service.counts();
    assert_eq!((counts.lost, service.jobs().count()), (1, 1));
    let lost: u64 = service.tiers().map(|it| it.counts.lost).sum();
    assert_eq!(lost, 2);
}

/// Each turn is taken back by its own tier's time.
#[test]
fn a_lease_ends_on_its_tier_alone() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    let mut service = two();
    let slow = |mut ask: Ask| {
        if let Ask::Join { need, .. } = &mut ask {
            need.write_ms = 9_000;
        }
        ask
    };
    service.on(Time::ZERO, A, slow(join_at("memory", 60_000, None)));
    service.on(Time::ZERO, B, slow(join_at("memory", 0, None)));
    for name in ["files", "memory"] {
        assert_eq!(offer_at(&mut service, 22_000, A, name), accepted);
    }
    service.on(Time::from_ms(31_000), A, Ask::Alive);
    service.on(Time::from_ms(31_000), B, Ask::Alive);
    let now = Time::from_ms(32_000);
    assert!(service.is_due(now));
    service.on_time(now);
    assert_eq!(service.counts().expired, 1);
    let writing: Vec<u64> = service.tiers().map(|it| it.writing).collect();
    assert_eq!(writing, [0, 1]);
    assert!(!service.is_due(now));
}

#[test]
fn a_tier_that_is_left_is_forgotten_some_time_and_what_was_answered_is_not() {
    let mut service = Service::default();
    let accepted = Some(Answer::Accept { sequence: 7 });
    let many = 2 * EMPTY_MAX as u64;
    for number in 0..many {
        let name = format!("server-{number}");
        let at = Time::from_secs(number);
        service.on(at, A, join_at(&name, 60_000, None));
        assert_eq!(offer_at(&mut service, number * 1_000, A, &name), accepted);
        service.on(at, A, Ask::Quit { tier: tier(&name) });
        // It was its only one.
        assert_eq!(service.jobs().count(), 0);
    }
    assert_eq!(service.tiers().count(), EMPTY_MAX);
    assert_eq!(service.counts().accepted, many);
    let last = tier(&format!("server-{}", many - 1));
    assert!(service.tiers().any(|it| *it.tier == last));
    // One that is not empty stays, however old it is.
    service.on(Time::from_secs(many), A, join_at("old", 0, None));
    for number in 0..many {
        let at = Time::from_secs(many);
        service.on(at, B, join_at(&format!("new-{number}"), 0, None));
        service.on(at, B, Ask::Leave);
    }
    assert!(service.tiers().any(|it| it.tier.as_str() == "old"));
    // Nor can one job make many.
    for number in 0..9 {
        let denied = service.on(
            Time::from_secs(many),
            B,
            join_at(&format!("{number}"), 0, None),
        );
        assert_eq!(denied.is_some(), number >= TIERS_OF_A_JOB_MAX, "{denied:?}");
    }
    assert_eq!(service.jobs().count(), 2);
}

/// As soon as there are two, they take turns.
#[test]
fn who_is_alone_writes_when_it_wants_to() {
    let accepted = Some(Answer::Accept { sequence: 7 });
    let mut service = Service::default();
    service.on(Time::ZERO, A, join(0, None));
    for at in (1_000..9_000).step_by(2_000) {
        assert_eq!(offer(&mut service, at, A), accepted);
        service.on(Time::from_ms(at + 500), A, ended("files"));
    }
    service.on(Time::from_ms(9_000), B, join(60_000, None));
    assert_eq!(offer(&mut service, 9_000, B), accepted);
    let later = offer(&mut service, 9_100, A);
    assert!(matches!(later, Some(Answer::Later { .. })), "{later:?}");
    service.on(Time::from_ms(9_200), B, Ask::Leave);
    assert_eq!(offer(&mut service, 9_300, A), accepted);
}
