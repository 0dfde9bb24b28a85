use std::collections::BTreeMap;

use super::*;
use crate::classes::{Outcome, Rate};
use crate::interval::Costs;
use crate::machine::Scheme;

fn level(name: &str, scheme: Scheme, cost: f64, background: f64, restart: f64) -> Level {
    Level {
        name: name.into(),
        scheme,
        cost,
        background,
        restart,
    }
}

fn stops(rates: &[(u16, f64)]) -> BTreeMap<Outcome, Rate> {
    let outcome = |survive| Outcome {
        survive,
        also: 0,
        replaces: false,
    };
    let rate = |rate| Rate { rate, error: 0.0 };
    rates
        .iter()
        .map(|&(mask, r)| (outcome(mask), rate(r)))
        .collect()
}

fn question(levels: Vec<Level>, rates: &[(u16, f64)]) -> Question {
    let losses = vec![0.0; levels.len()];
    let classes = Classes {
        stops: stops(rates),
        losses,
    };
    Question {
        levels,
        classes,
        work: 1e6,
        capture: 0.0,
        anew: 0.0,
    }
}

const SHARED: Scheme = Scheme::Shared { servers: 0 };

/// One level is Daly's model (2006, equation 20), which is exact.
#[test]
fn one_level_is_dalys_formula() {
    for (cost, restart, mtbf, interval) in [
        (5.0, 10.0, 1000.0, 100.0),
        (30.0, 60.0, 300.0, 200.0),
        (1.0, 0.0, 50.0, 10.0),
    ] {
        let of = question(
            vec![level("files", SHARED, cost, 0.0, restart)],
            &[(1, 1.0 / mtbf)],
        );
        let pattern = Pattern {
            interval,
            multiples: vec![1],
        };
        let found = lifetime(&of, &pattern).expect("good");
        let want = Costs::new(cost, restart, mtbf)
            .expect("good")
            .overhead(interval);
        assert!(
            (found.overhead() - want).abs() < 1e-9 * (1.0 + want),
            "{} not {want}",
            found.overhead()
        );
        let parts = found.work + found.checkpoint + found.restart + found.lost;
        assert!((parts - found.total).abs() < 1e-6 * found.total);
    }
}

/// A level that is written with every n-th checkpoint is a level with an interval n times
/// as long and the others' checkpoints as work, if only its failures come.
#[test]
fn two_levels_with_failures_of_one_kind_only() {
    let levels = vec![
        level("local", Scheme::Local, 2.0, 0.0, 5.0),
        level("files", SHARED, 20.0, 0.0, 40.0),
    ];
    let of = question(levels, &[(0b10, 1e-3)]);
    let pattern = Pattern {
        interval: 30.0,
        multiples: vec![1, 8],
    };
    let found = lifetime(&of, &pattern).expect("good");
    let single = Costs::new(20.0, 40.0, 1e3).expect("good");
    // 8 intervals and 8 local checkpoints are one interval of 256 s, of which 240 are work.
    let want = (1.0 + single.overhead(256.0)) * 256.0 / 240.0 - 1.0;
    assert!(
        (found.overhead() - want).abs() < 1e-9,
        "{} not {want}",
        found.overhead()
    );
}

/// A rate of new beginnings alone: E T = (e^(rate T) - 1) / rate for a job without loss.
#[test]
fn a_job_that_nothing_restores_begins_anew() {
    let mut of = question(
        vec![level("local", Scheme::Local, 1e-6, 0.0, 1.0)],
        &[(0, 1e-3)],
    );
    of.work = 2_000.0;
    let found = lifetime(
        &of,
        &Pattern {
            interval: 10.0,
            multiples: vec![1],
        },
    )
    .expect("good");
    let want = 1e3 * libm::expm1(2.0);
    assert!(
        (found.total - want).abs() < 1e-3 * want,
        "{} not {want}",
        found.total
    );
}

#[test]
fn refinements_cost_what_they_should() {
    let mask = [(0b111, 1e-3), (0b110, 3e-4), (0b100, 1e-4)];
    let with = |background: f64, loss: f64| {
        let levels = vec![
            level("local", Scheme::Local, 1.0, 0.0, 5.0),
            level("buffer", SHARED, 5.0, background, 40.0),
            level("files", SHARED, 20.0, 0.0, 90.0),
        ];
        let mut of = question(levels, &mask);
        of.classes.losses[1] = loss;
        lifetime(
            &of,
            &Pattern {
                interval: 40.0,
                multiples: vec![1, 4, 16],
            },
        )
        .expect("good")
        .overhead()
    };
    // A version that comes later is worth less; a buffer that forgets too.
    let plain = with(0.0, 0.0);
    assert!(with(60.0, 0.0) > plain * 1.001);
    assert!(with(150.0, 0.0) > with(60.0, 0.0));
    assert!(with(0.0, 1e-4) > plain * 1.001);
    // A vanishing rate or time changes nothing.
    assert!((with(1e-6, 0.0) - plain).abs() < 1e-6);
    assert!((with(0.0, 1e-12) - plain).abs() < 1e-6);
    // A buffer that forgets at once is no buffer, but costs as much: only files are left.
    let mut of = question(
        vec![
            level("local", Scheme::Local, 1.0, 0.0, 5.0),
            level("files", SHARED, 20.0, 0.0, 90.0),
        ],
        &[(0b11, 1e-3), (0b10, 4e-4)],
    );
    of.work = 1e6;
    let none = lifetime(
        &of,
        &Pattern {
            interval: 40.0,
            multiples: vec![1, 16],
        },
    )
    .expect("good")
    .overhead();
    assert!(with(0.0, 5.0) > none, "{} {none}", with(0.0, 5.0));
}

#[test]
fn replaced_nodes_weaken_a_level_until_it_is_written_again() {
    let levels = vec![
        level("local", Scheme::Local, 1.0, 0.0, 5.0),
        level("partner", Scheme::Partner { distance: 1 }, 2.0, 0.0, 10.0),
        level(
            "xor",
            Scheme::Erasure {
                layout: crate::machine::Layout { size: 4, stride: 1 },
                parity: 1,
            },
            2.0,
            0.0,
            8.0,
        ),
        level("files", SHARED, 20.0, 0.0, 90.0),
    ];
    let mut of = question(levels, &[]);
    let key = |survive, also, replaces| Outcome {
        survive,
        also,
        replaces,
    };
    let rate = |rate| Rate { rate, error: 0.0 };
    of.classes.stops.insert(key(0b1110, 0, true), rate(9e-4));
    of.classes
        .stops
        .insert(key(0b1110, 0b0110, true), rate(1e-4));
    let pattern = Pattern {
        interval: 40.0,
        multiples: vec![1, 2, 2, 16],
    };
    let degraded = lifetime(&of, &pattern).expect("good").overhead();
    of.classes.stops = [(key(0b1110, 0, true), rate(1e-3))].into();
    let whole = lifetime(&of, &pattern).expect("good").overhead();
    assert!(degraded > whole * 1.0005, "{degraded} {whole}");
    assert!(degraded < whole * 1.1, "{degraded} {whole}");
}

#[test]
fn what_makes_no_headway_and_what_cannot_be() {
    let of = question(
        vec![level("files", SHARED, 1000.0, 0.0, 10.0)],
        &[(1, 1e-2)],
    );
    let pattern = |interval, multiple| Pattern {
        interval,
        multiples: vec![multiple],
    };
    assert_eq!(
        lifetime(&of, &pattern(10.0, 1)).expect("good").total,
        f64::INFINITY
    );
    for bad in [
        pattern(0.0, 1),
        pattern(f64::NAN, 1),
        pattern(1.0, 0),
        pattern(1.0, 1 << 20),
    ] {
        assert_eq!(lifetime(&of, &bad).expect_err("bad").code(), Code::Config);
    }
    assert!(
        lifetime(
            &of,
            &Pattern {
                interval: 1.0,
                multiples: vec![1, 2]
            }
        )
        .is_err()
    );
    let calm = question(vec![level("files", SHARED, 10.0, 0.0, 10.0)], &[]);
    let found = lifetime(&calm, &pattern(90.0, 1)).expect("good");
    assert!((found.overhead() - 1.0 / 9.0).abs() < 1e-12);
}

/// A coarser solution differs in digits that do not matter.
#[test]
fn coarser_solutions_are_close() {
    let levels = vec![
        level("local", Scheme::Local, 4.0, 0.0, 10.0),
        level("xor", SHARED, 0.0, 8.0, 25.0),
        level("partner", SHARED, 0.0, 10.0, 20.0),
        level("buffer", SHARED, 0.0, 30.0, 60.0),
        level("files", SHARED, 0.0, 60.0, 150.0),
    ];
    let of = question(
        levels,
        &[
            (0b11111, 5e-4),
            (0b11110, 2e-4),
            (0b11000, 1e-4),
            (0b10000, 2e-5),
        ],
    );
    let pattern = Pattern {
        interval: 120.0,
        multiples: vec![1, 2, 4, 8, 16],
    };
    let fine = with_slack(&of, &pattern, 1e-10).expect("good");
    for slack in [1e-9, 1e-8, 1e-7, 1e-6, 1e-5] {
        let coarse = with_slack(&of, &pattern, slack).expect("good");
        let bound = (1e4 * slack).max(1e-8);
        assert!(
            (coarse.overhead() / fine.overhead() - 1.0).abs() < bound,
            "{slack}: {coarse:?}, not {fine:?}"
        );
    }
}
