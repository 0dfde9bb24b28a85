use outlive_planner::coordinate::{Coordinator, Uncoordinated};
use outlive_planner::interval::Costs;

use super::mixes::{beside, cielo, random};
use super::*;

fn one(mtbf: f64) -> Mix {
    Mix {
        name: "one job".into(),
        nodes: 100.0,
        tiers: vec![10.0],
        mtbf: mtbf * 100.0,
        kinds: vec![JobKind {
            nodes: 100.0,
            bytes: 300.0,
            speed: 5.0,
            work: 1e12,
            restart: 20.0,
            weight: 1.0,
            tier: 0,
        }],
    }
}

/// A job that is alone loses what Daly's formula says, coordinated or not: writes and reads
/// take 60 s at its own speed.
#[test]
fn one_job_is_dalys_formula() {
    let seed = outlive_base::seed!();
    let mix = one(10_000.0);
    let costs = Costs::new(60.0, 80.0, 10_000.0).expect("good");
    let want = costs.overhead(costs.best());
    let runs = 40;
    let of = |coordinated: bool| {
        let each = (0..runs).map(|run| {
            let seed = Sequence::new(seed, run).u64();
            let seconds = 400.0 * 10_000.0;
            let used = match coordinated {
                true => Platform::<Coordinator>::new(&mix, seed).run(seconds),
                false => Platform::<Uncoordinated>::new(&mix, seed).run(seconds),
            };
            used.overhead()
        });
        let all: Vec<f64> = each.collect();
        let mean = all.iter().sum::<f64>() / runs as f64;
        let squares: f64 = all.iter().map(|one| (one - mean) * (one - mean)).sum();
        (mean, (squares / (runs as f64 - 1.0) / runs as f64).sqrt())
    };
    for coordinated in [true, false] {
        let (mean, error) = of(coordinated);
        assert!(
            (mean - want).abs() < 6.0 * error,
            "seed {seed}: {coordinated}: {mean} +- {error}, not {want}"
        );
    }
}

/// Three who want as much as they can: the slow one gets its own speed, the others half of
/// the rest each.
#[test]
fn bandwidth_is_shared_fairly() {
    let kind = |speed| JobKind {
        speed,
        nodes: 1.0,
        ..one(1e9).kinds[0]
    };
    let mix = Mix {
        kinds: vec![kind(1.0), kind(7.0), kind(f64::INFINITY)],
        ..one(1e9)
    };
    let mut platform = Platform::<Uncoordinated>::new(&mix, 1);
    for kind in 0..3 {
        platform.start(kind);
    }
    assert_eq!(platform.rates(), [0.0, 0.0, 0.0]);
    for running in &mut platform.running {
        running.phase = Phase::Write(100.0);
    }
    assert_eq!(platform.rates(), [1.0, 4.5, 4.5]);
    platform.running[2].phase = Phase::Compute;
    assert_eq!(platform.rates(), [1.0, 7.0, 0.0]);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let seed = outlive_base::seed!();
    let mix = random(seed, 0, 2);
    let run = || Platform::<Coordinator>::new(&mix, seed).run(1e6);
    assert_eq!(run(), run());
}

/// Two tiers are two platforms: whoever writes to one is not moved for those of the other, nor
/// slowed by them. On one tier they are.
#[test]
fn jobs_of_two_tiers_are_as_on_two_platforms() {
    let seed = outlive_base::seed!();
    let mut both = one(10_000.0);
    both.nodes = 600.0;
    both.tiers = vec![10.0, 4.0];
    let slow = JobKind {
        bytes: 400.0,
        tier: 1,
        ..both.kinds[0]
    };
    both.kinds.push(slow);
    let seconds = 300.0 * 10_000.0;
    // The jobs of the second tier have the numbers, and so the failures, that they have there.
    let used = |mix: &Mix, first: bool, second: bool| {
        let mut platform = Platform::<Coordinator>::steady(mix, &[0, 0], seed);
        for (kind, runs) in [(0, first), (1, second)] {
            for _ in 0..3 {
                match runs {
                    true => platform.start(kind),
                    false => platform.next_id += 1,
                }
            }
        }
        let running = platform.running.iter_mut();
        running.for_each(|running| running.work = f64::INFINITY);
        platform.run(seconds)
    };
    let (one, other) = (used(&both, true, false), used(&both, false, true));
    let together = used(&both, true, true);
    assert!(
        one.failures > 300 && other.failures > 300,
        "{one:?} {other:?}"
    );
    assert_eq!(
        together.failures,
        one.failures + other.failures,
        "seed {seed}"
    );
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.003;
    let lost = |used: &Used| used.all - used.work;
    let is_as = |used: &Used| {
        near(used.writes as f64, (one.writes + other.writes) as f64)
            && near(lost(used), lost(&one) + lost(&other))
    };
    assert!(
        is_as(&together),
        "seed {seed}: {together:?} {one:?} {other:?}"
    );
    both.kinds[1].tier = 0;
    let crowded = used(&both, true, true);
    assert!(!is_as(&crowded), "seed {seed}: {crowded:?}");
}

/// A sample of `outlive simulate turns`.
#[test]
fn turns_are_better_than_none_where_storage_is_busy() {
    let seed = outlive_base::seed!();
    let found = beside(&cielo(80.0, 10.0), None, 4, 30.0, seed);
    println!("{found:?}");
    assert!(found.gain > 0.1 * found.alone, "seed {seed}: {found:?}");
}

/// Jobs compute or wait or are down: nothing is used twice, and nodes are not overbooked.
#[test]
fn node_hours_add_up() {
    let seed = outlive_base::seed!();
    for number in 0..8 {
        let mix = random(seed, number, 1 + number as usize % 3);
        let used = Platform::<Coordinator>::new(&mix, seed).run(10.0 * 86_400.0);
        assert!(
            used.all <= mix.nodes * 10.0 * 86_400.0 * (1.0 + 1e-9),
            "{used:?}"
        );
        assert!(
            used.work + used.writing <= used.all * (1.0 + 1e-9),
            "{used:?}"
        );
        assert!(
            used.writes > 0 && used.work > 0.0,
            "seed {seed}: {mix:?}: {used:?}"
        );
    }
}
