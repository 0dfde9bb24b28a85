//! Broadcasts over LogP: published figures, an independent reference, guarantees.
#![allow(missing_docs, clippy::unwrap_used)]

mod reference;

use outlive_base::Code;
use outlive_base::rng::Sequence;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::broadcast::{Correction, LogP, Start};
use outlive_simulator::broadcast::{Broadcasts, Moment, Parameters, Quantity, Run, Spread};

fn parameters(processes: u32, shape: Shape) -> Parameters {
    Parameters::new(processes, shape)
}

fn run(parameters: Parameters) -> Run {
    Broadcasts::new(parameters).unwrap().run(1).unwrap()
}

/// Quiescence and messages of the published simulator (Küttler et al., PPoPP 2019,
/// simulated with L = 2, o = g = 1, synchronized checked correction, no failure).
#[test]
fn trees_are_as_published() {
    for (shape, small, large) in [
        (Shape::Binomial, 48, 72),
        (Shape::Kary(4), 41, 62),
        (Shape::Lame(2), 37, 54),
        (Shape::Optimal, 32, 45),
    ] {
        for (processes, quiescence) in [(1024, small), (65536, large)] {
            let run = run(parameters(processes, shape));
            assert_eq!(run.quiescence, quiescence, "{shape:?} {processes}");
            assert_eq!(run.colouring_time, quiescence - 8);
            assert_eq!(run.messages, u64::from(processes) * 6 - 1);
            assert_eq!((run.max_gap, run.uncoloured_live), (0, 0));
        }
    }
}

/// Corrected gossip with checked correction: means of the published simulator.
#[test]
fn gossip_is_as_published() {
    for (processes, dead, until, want) in [
        (1024, 0, 26, [31.5, 40.4, 8.9]),
        (4096, 41, 30, [36.7, 45.8, 8.4]),
    ] {
        let mut parameters = parameters(processes, Shape::Binomial);
        parameters.spread = Spread::Gossip(Some(until));
        parameters.faults.random = Quantity::Number(dead);
        let runs = Broadcasts::new(parameters)
            .unwrap()
            // Fixed seed: a published figure.
            .sweep(1, 100, 2)
            .unwrap();
        let mean =
            |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>() as f64 / runs.len() as f64;
        let per = f64::from(processes);
        let got = [
            mean(|r| r.colouring_time),
            mean(|r| r.quiescence),
            mean(|r| r.messages) / per,
        ];
        println!("{processes}: {got:?} {want:?}");
        assert!(runs.iter().all(|run| run.uncoloured_live == 0));
        for (got, (want, error)) in got.iter().zip(want.iter().zip([0.5, 0.6, 0.15])) {
            assert!((got - want).abs() < error, "{got} is not {want}");
        }
    }
}

/// Failure-proof correction was published without a program, so by hand, L = 2, o = g = 1,
/// all coloured at T: everyone sends at T, T+1, ... to its left and right in turns, hears
/// F + 1 senders on its right by T + 2F + 4 and on its left one later, and stops there.
#[test]
fn failure_proof_by_hand() {
    for shape in [
        Shape::Binomial,
        Shape::Kary(3),
        Shape::Lame(2),
        Shape::Optimal,
    ] {
        for processes in [500, 777] {
            for f in 0..5 {
                let mut parameters = parameters(processes, shape);
                parameters.correction = Correction::None;
                let end = run(parameters.clone()).quiescence;
                parameters.correction = Correction::FailureProof(f);
                let found = run(parameters);
                let (f, p) = (u64::from(f), u64::from(processes));
                assert_eq!(found.quiescence, end + (2 * f + 4) + 4, "{shape:?} {f}");
                assert_eq!(found.messages, p - 1 + p * (2 * f + 5), "{shape:?} {f}");
            }
        }
    }
}

/// Random small networks against the reference: trees that are not full, other L, o and
/// g, named dead, all corrections, both starts, both duplex modes, any root.
#[test]
fn small_runs_equal_the_reference() {
    for seed in outlive_base::seeds!(1) {
        small_runs(seed);
    }
}

fn small_runs(seed: u64) {
    let mut random = Sequence::new(seed, 31);
    for case in 0..1_500 {
        let processes = 1 + random.below(if case % 10 == 0 { 150 } else { 30 }) as u32;
        let root = random.below(u64::from(processes)) as u32;
        let shapes = [
            Shape::Binomial,
            Shape::Kary(1 + random.below(5) as u32),
            Shape::Lame(1 + random.below(4) as u32),
            Shape::Optimal,
        ];
        let shape = shapes[random.below(4) as usize];
        let both = matches!(shape, Shape::Binomial | Shape::Kary(_));
        let order = match both && random.chance(400_000) {
            true => Order::InOrder,
            false => Order::Interleaved,
        };
        let overhead = 1 + random.below(3);
        let corrections = [
            Correction::None,
            Correction::Opportunistic(1 + random.below(7) as u32),
            Correction::OptimizedOpportunistic(1 + random.below(7) as u32),
            Correction::Checked,
            Correction::Checked,
            Correction::FailureProof(random.below(4) as u32),
        ];
        let mut parameters = parameters(processes, shape);
        parameters.ring.root = root;
        parameters.spread = Spread::Tree(shape, order);
        parameters.correction = corrections[random.below(6) as usize];
        parameters.model.logp = LogP {
            latency: random.below(8),
            overhead,
            gap: overhead + random.below(3),
        };
        parameters.model.half_duplex = random.chance(250_000);
        if random.chance(500_000) {
            parameters.start = Start::Overlapped;
        }
        let dead = random.below(1 + u64::from(processes) / 2);
        parameters.faults.dead = (0..dead)
            .map(|_| random.below(u64::from(processes)) as u32)
            .filter(|&who| who != root)
            .collect();
        let run = run(parameters.clone());
        let got = reference::Found {
            colouring_time: run.colouring_time,
            quiescence: run.quiescence,
            messages: run.messages,
            uncoloured_live: run.uncoloured_live,
            max_gap: run.max_gap,
        };
        assert_eq!(got, reference::run(&parameters), "{case}: {parameters:?}");
        let complete = matches!(
            parameters.correction,
            Correction::Checked | Correction::FailureProof(_)
        );
        assert!(!complete || run.uncoloured_live == 0, "{parameters:?}");
    }
}

/// By hand, L = 2, o = g = 1, three processes in a binomial tree: 0 serves 1 at 0 and 2 at
/// 1, so 1 has it at 4 and 2 at 5.
#[test]
fn three_processes_by_hand() {
    let none = Parameters {
        correction: Correction::None,
        ..parameters(3, Shape::Binomial)
    };
    let found = run(none.clone());
    assert_eq!(
        (found.colouring_time, found.quiescence, found.messages),
        (5, 5, 2)
    );
    // Half duplex changes nothing: nobody sends and receives.
    let mut half = none.clone();
    half.model.half_duplex = true;
    assert_eq!(run(half).quiescence, found.quiescence);
    // 1 is dead: its message is sent all the same, and 2 has it at 5.
    let mut dead = none.clone();
    dead.faults.dead = vec![1];
    let found = run(dead);
    assert_eq!(
        (found.colouring_time, found.messages, found.max_gap),
        (5, 2, 1)
    );
    // The only message of two processes is lost, and is on its way until 3.
    let mut last = parameters(2, Shape::Binomial);
    last.correction = Correction::None;
    last.faults.dead = vec![1];
    assert_eq!(run(last).quiescence, 1 + 2);
    // 100 bytes at G = 3 arrive 297 later and keep the root's port 297 longer.
    let mut long = none;
    long.bytes = 100;
    long.model.byte_gap = 3;
    assert_eq!(run(long).colouring_time, 1 + 297 + 297 + 4);
    // Acknowledged: 1 answers at 4 (received 8), 2 at 5 (9).
    let mut acknowledged = parameters(3, Shape::Binomial);
    acknowledged.correction = Correction::None;
    acknowledged.spread = Spread::AcknowledgedTree(Shape::Binomial, Order::Interleaved);
    let found = run(acknowledged);
    assert_eq!(
        (found.quiescence, found.messages, found.acknowledged),
        (9, 4, true)
    );
}

/// One process has the message; two overlapped serve each other once.
#[test]
fn the_smallest_broadcasts() {
    for start in [Start::Synchronized, Start::Overlapped] {
        let one = Parameters {
            start,
            ..parameters(1, Shape::Binomial)
        };
        let found = run(one);
        assert_eq!(
            (found.colouring_time, found.quiescence, found.messages),
            (0, 0, 0)
        );
    }
    let two = Parameters {
        start: Start::Overlapped,
        ..parameters(2, Shape::Binomial)
    };
    assert_eq!(run(two).messages, 3);
}

/// Bad parameters are refused with a code, before anything runs.
#[test]
fn bad_parameters_are_refused() {
    let good = parameters(8, Shape::Binomial);
    let mut bad = vec![
        parameters(0, Shape::Binomial),
        parameters(8, Shape::Kary(0)),
    ];
    bad.push(Parameters {
        correction: Correction::Opportunistic(0),
        ..good.clone()
    });
    bad.push(Parameters {
        bytes: 0,
        ..good.clone()
    });
    type Change = fn(&mut Parameters);
    let changes: [Change; 7] = [
        |p| p.faults.dead = vec![0],
        |p| p.faults.dead = vec![8],
        |p| p.faults.random = Quantity::Number(8),
        |p| p.ring.root = 8,
        |p| p.model.logp.gap = 0,
        |p| p.model.logp.overhead = 2,
        |p| p.model.logp.latency = u64::MAX,
    ];
    for change in changes {
        let mut parameters = good.clone();
        change(&mut parameters);
        bad.push(parameters);
    }
    for parameters in bad {
        let error = Broadcasts::new(parameters.clone()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{parameters:?}");
    }
}

/// The gossip time that is chosen is near the best by simulation.
#[test]
fn the_gossip_time_chosen_is_near_the_best() {
    let seed = outlive_base::seed!();
    for processes in [64, 1024] {
        let quiescence = |until: Option<u64>| {
            let mut parameters = parameters(processes, Shape::Binomial);
            parameters.spread = Spread::Gossip(until);
            let broadcasts = Broadcasts::new(parameters).unwrap();
            let runs = broadcasts.sweep(seed, 40, 2).unwrap();
            runs.iter().map(|run| run.quiescence).sum::<u64>() as f64 / 40.0
        };
        let best = (10..45)
            .map(|until| quiescence(Some(until)))
            .fold(f64::INFINITY, f64::min);
        let chosen = quiescence(None);
        println!("{processes}: chosen {chosen}, best {best}");
        assert!(
            chosen <= best * 1.08,
            "{processes}: {chosen} against {best}"
        );
    }
}

/// A gossip time is also found where messages cost no time.
#[test]
fn gossip_without_latency_and_overhead() {
    let mut parameters = parameters(64, Shape::Binomial);
    parameters.spread = Spread::Gossip(None);
    parameters.model.logp.latency = 0;
    parameters.model.logp.overhead = 0;
    let run = run(parameters);
    assert_eq!(run.uncoloured_live, 0);
    assert!(run.quiescence < 64);
}

/// The same seed gives the same run whatever the number of threads (P8).
#[test]
fn threads_change_nothing() {
    let mut parameters = parameters(200, Shape::Lame(2));
    parameters.correction = Correction::FailureProof(3);
    parameters.faults.random = Quantity::Number(3);
    parameters.faults.moment = Moment::During;
    let broadcasts = Broadcasts::new(parameters).unwrap();
    let seed = outlive_base::seed!();
    assert_eq!(
        broadcasts.sweep(seed, 50, 1).unwrap(),
        broadcasts.sweep(seed, 50, 3).unwrap()
    );
}
