use super::*;

const SURE: f64 = 0.01;

fn prior(seconds: f64) -> CostPrior {
    CostPrior {
        seconds,
        spread: SURE,
    }
}

fn level(cost: f64, background: f64, mtbf: f64) -> LevelPrior {
    LevelPrior {
        cost: prior(cost),
        background: prior(background),
        restart: prior(30.0),
        failures: RatePrior::known(1.0 / mtbf),
    }
}

fn settings(levels: Vec<LevelPrior>) -> Settings {
    Settings {
        outlasting: 1 << (levels.len() - 1),
        levels,
        capture: prior(0.0),
        beyond: RatePrior::known(1e-12),
        budget: None,
        lost_max: None,
        ends_at: None,
        notice: None,
        energy: None,
        interference: 0.0,
        least: 0.0,
        ahead: false,
    }
}

fn anew(seconds: f64) -> Seen {
    Seen::Restarted {
        from: None,
        holds: 0,
        seconds,
    }
}

/// Offers every second until `end`; writes take no time. Says when what was written.
fn written(policy: &mut Adaptive, from: u32, end: u32) -> Vec<(u32, Mask, Why)> {
    let mut found = Vec::new();
    for second in from..end {
        let at = f64::from(second);
        let decision = policy.decide(at, 0);
        if decision.levels == 0 {
            continue;
        }
        found.push((second, decision.levels, decision.why));
        for level in (0..8).filter(|level| decision.levels & (1 << level) != 0) {
            policy.see(
                at,
                Seen::Stored {
                    level,
                    seconds: 0.0,
                },
            );
        }
        policy.see(at, Seen::Resumed);
    }
    found
}

#[test]
fn a_known_machine_gets_the_best_interval() {
    let mut policy = Adaptive::new(settings(vec![level(10.0, 0.0, 20_000.0)]));
    let due = policy.due(0.0).expect("some time");
    let found = written(&mut policy, 1, 3_000);
    let best = crate::interval::Costs::new(10.0, 0.0, 20_000.0)
        .expect("good")
        .best();
    assert!((due - best).abs() < 1.0, "{due}, not {best}");
    for (number, &(at, ..)) in found.iter().enumerate() {
        let want = best * (number + 1) as f64;
        assert!(
            (f64::from(at) - want).abs() < 2.0 * (number + 1) as f64,
            "{found:?}"
        );
    }
    assert_eq!(found.len(), (2_999.0 / best) as usize);
}

#[test]
fn dear_levels_go_with_every_nth_and_the_lower_ones_with_them() {
    let levels = vec![level(1.0, 0.0, 5_000.0), level(20.0, 0.0, 50_000.0)];
    let mut policy = Adaptive::new(settings(levels));
    let found = written(&mut policy, 1, 8_000);
    let (all, high): (usize, usize) = (
        found.len(),
        found.iter().filter(|one| one.1 & 2 != 0).count(),
    );
    assert!(found.iter().all(|one| one.1 & 1 != 0), "{found:?}");
    // Young: sqrt(2 1 5000) = 100 and sqrt(2 20 50000) = 1414.
    assert!(
        (70..90).contains(&all) && (5..8).contains(&high),
        "{all} {high}"
    );
}

/// A policy that has seen a burst asks for checkpoints sooner than one that has not, and
/// forgets it after a long silence.
#[test]
fn a_burst_shortens_the_interval() {
    let of = |failures| LevelPrior {
        failures,
        ..level(10.0, 0.0, 1.0)
    };
    let new = || Adaptive::new(settings(vec![of(RatePrior::guess(50_000.0))]));
    let period = |policy: &mut Adaptive, at| policy.advice(at).levels[0].period.expect("used");
    let (mut calm, mut burst) = (new(), new());
    let before = period(&mut burst, 100_000.0);
    for failure in 0..4 {
        let at = 100_000.0 + 600.0 * f64::from(failure);
        burst.see(at, Seen::Stopped { survive: 1 });
        let restarted = anew(10.0);
        burst.see(at + 10.0, restarted);
    }
    let during = period(&mut burst, 102_000.0);
    assert!(during < 0.4 * before && during < 0.4 * period(&mut calm, 102_000.0));
    let after = period(&mut burst, 400_000.0);
    assert!(after > 2.0 * during, "{during}, then {after}");
}

#[test]
fn it_says_how_sure_it_is() {
    let of = |failures| LevelPrior {
        failures,
        ..level(10.0, 0.0, 1.0)
    };
    let mut policy = Adaptive::new(settings(vec![of(RatePrior::guess(1_000.0))]));
    let unsure = policy.advice(0.0).levels[0];
    for failure in 1..40 {
        let at = 1_000.0 * f64::from(failure);
        policy.see(at, Seen::Stopped { survive: 1 });
    }
    let sure = policy.advice(40_000.0).levels[0];
    assert!(
        unsure.confidence < 0.75 && sure.confidence > 0.9,
        "{unsure:?} {sure:?}"
    );
    assert!(sure.rate_between.0 > unsure.rate_between.0);
    assert!(sure.rate_between.1 < unsure.rate_between.1);
    assert_eq!(sure.seen.0, 39);
}

/// The last checkpoint fits before the end, on the level that outlasts the job, and little
/// is computed after it.
#[test]
fn the_end_is_known_and_what_fits_is_saved() {
    let levels = vec![level(1.0, 0.0, 50_000.0), level(20.0, 40.0, 5e6)];
    let mut with = settings(levels);
    with.ends_at = Some(2_000.0);
    let mut policy = Adaptive::new(with);
    let found = written(&mut policy, 1, 2_000);
    let ending: Vec<u32> = found
        .iter()
        .filter(|one| one.2 == Why::Ending)
        .map(|one| one.0)
        .collect();
    let last = *ending.last().expect("a last one");
    assert!((1_870..=1_940).contains(&last), "{ending:?}");
    assert!(
        found
            .iter()
            .any(|one| one.1 & 2 != 0 && one.2 == Why::Ending)
    );
}

/// A scheduler's notice of two minutes: saved at the next offer; taken back: as before.
#[test]
fn a_notice_counts_at_once() {
    let mut policy = Adaptive::new(settings(vec![level(5.0, 30.0, 1e6)]));
    assert_eq!(policy.decide(10.0, 0), Decision::skip(Why::Early));
    policy.see(11.0, Seen::EndsBy { at: 71.0 });
    assert!(policy.due(11.0).expect("soon") < 35.0);
    let mut saved = None;
    for second in 12..71 {
        let found = policy.decide(f64::from(second), 0);
        if found.why == Why::Ending {
            saved.get_or_insert(second);
        }
    }
    assert!(saved.is_some_and(|at| at + 35 <= 71), "{saved:?}");
    let mut policy = Adaptive::new(settings(vec![level(5.0, 30.0, 1e6)]));
    policy.see(11.0, Seen::EndsBy { at: 20.0 });
    assert_eq!(
        policy.decide(12.0, 0).levels,
        0,
        "it would not be whole in time"
    );
    policy.see(13.0, Seen::EndsBy { at: f64::INFINITY });
    assert_eq!(policy.due(13.0).map(|at| at > 1_000.0), Some(true));
}

#[test]
fn a_bound_on_lost_work_holds() {
    let mut with = settings(vec![level(1.0, 0.0, 1e6), level(10.0, 30.0, 1e8)]);
    with.lost_max = Some(300.0);
    let mut policy = Adaptive::new(with);
    let found = written(&mut policy, 1, 3_000);
    let mut last = 0;
    for (at, levels, why) in found {
        if levels & 2 != 0 {
            assert!(at - last <= 300 - 40, "{at} after {last}");
            assert_eq!(why, Why::Bound);
            last = at;
        }
    }
    assert!(last > 2_700);
}

/// Checkpoints draw half the power: they are made more often, by sqrt 2.
#[test]
fn energy_counts_instead_of_time() {
    let mut with = settings(vec![level(10.0, 0.0, 1e6)]);
    let plain = Adaptive::new(with.clone()).due(0.0).expect("some time");
    with.energy = Some(Energy {
        compute: 400.0,
        checkpoint: 200.0,
    });
    let saving = Adaptive::new(with).due(0.0).expect("some time");
    assert!((plain / saving - core::f64::consts::SQRT_2).abs() < 0.01);
}

/// What is being written counts as held, until it failed; a restart goes back to what was.
#[test]
fn exposure_follows_what_is_held() {
    let mut policy = Adaptive::new(settings(vec![level(1.0, 0.0, 1e4), level(5.0, 50.0, 1e5)]));
    assert_ne!(policy.decide(2_000.0, 0).levels, 0);
    policy.see(2_000.0, Seen::Resumed);
    assert_eq!(policy.exposure(1), 0.0);
    policy.see(2_030.0, Seen::Failed { level: 1 });
    policy.see(
        2_030.0,
        Seen::Stored {
            level: 0,
            seconds: 0.0,
        },
    );
    assert_eq!((policy.exposure(0), policy.exposure(1)), (0.0, 2_000.0));
    policy.see(2_100.0, Seen::Stopped { survive: 2 });
    let restarted = anew(40.0);
    policy.see(2_140.0, restarted);
    assert_eq!(policy.decide(2_150.0, 0).levels, 0);
    assert_eq!((policy.exposure(0), policy.exposure(1)), (10.0, 10.0));
}

/// A level that waits, because it is written or because it is not this job's turn, makes no other
/// one due, however often that is asked.
#[test]
fn what_is_busy_has_the_lower_levels_written_no_more_often() {
    let taken = |busy: Mask| {
        let mut settings = settings(vec![level(1.0, 0.0, 1e3), level(0.0, 40.0, 1e4)]);
        (settings.ahead, settings.interference) = (true, 0.05);
        let mut policy = Adaptive::new(settings);
        policy.see(0.0, anew(0.0));
        let plan = policy.plan(0.0);
        let (Some(low), Some(high)) = (plan.periods[0], plan.periods[1]) else {
            panic!("both are worth it: {plan:?}");
        };
        // Long enough for the second to be overdue, asked ten times a second.
        let end = 4.0 * high;
        let mut count = 0;
        for tenth in 0..(10.0 * end) as u32 {
            let at = f64::from(tenth) / 10.0;
            let decision = policy.decide(at, busy);
            assert_eq!(decision.levels & busy, 0);
            if decision.levels != 0 {
                policy.see(at, Seen::Captured { seconds: 0.0 });
                policy.see(at, Seen::Resumed);
                for level in (0..2).filter(|level| decision.levels & (1 << level) != 0) {
                    policy.see(
                        at,
                        Seen::Stored {
                            level,
                            seconds: 0.1,
                        },
                    );
                }
                count += 1;
            }
        }
        (f64::from(count), end / low)
    };
    let (waiting, own) = taken(0b10);
    assert!(
        waiting > 0.5 * own && waiting < 1.2 * own + 1.0,
        "{waiting}, {own} by itself"
    );
    let (calm, _) = taken(0);
    assert!(waiting <= calm + 1.0, "{waiting}, not busy {calm}");
}
