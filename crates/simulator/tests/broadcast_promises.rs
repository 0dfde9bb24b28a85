//! What the corrections promise, by sweep: checked with failures before the start,
//! failure-proof with up to f failures at any moment. Every live process must have the
//! message. A weaker stop rule is planted, to show that the sweep would catch it.
//! `scripts/sweep-broadcast.sh` (make soak) does the same at greater length.
#![allow(missing_docs, clippy::unwrap_used)]

use outlive_base::rng::Sequence;
use outlive_protocols::broadcast::tree::{Order, Ring, Shape};
use outlive_protocols::broadcast::{Correction, LogP, Start};
use outlive_simulator::broadcast::{Broadcasts, Faults, Moment, Parameters, Quantity, Run, Spread};
use outlive_simulator::logp::{Death, Model};

const SEEDS: u64 = 2_000;

/// A scenario drawn from a seed: any tree or a short gossip, any order, root, cost and
/// start, up to half of the processes dead before.
fn scenario(seed: u64) -> Parameters {
    let mut random = Sequence::new(seed, 0x0070_726f_6d69_7365);
    let processes = 2 + random.below(if seed.is_multiple_of(20) { 400 } else { 60 }) as u32;
    let root = random.below(u64::from(processes)) as u32;
    let shapes = [
        Shape::Binomial,
        Shape::Kary(1 + random.below(5) as u32),
        Shape::Lame(1 + random.below(4) as u32),
        Shape::Optimal,
    ];
    let order = if random.chance(500_000) {
        Order::InOrder
    } else {
        Order::Interleaved
    };
    let overhead = random.below(4);
    let logp = LogP {
        latency: random.below(9),
        overhead,
        gap: overhead.max(1) + random.below(3),
    };
    // Short gossip misses many: the correction has to do the work.
    let spread = match random.below(3) {
        0 => Spread::Gossip(Some(random.below(6) * logp.delay().max(1))),
        _ => Spread::Tree(shapes[random.below(4) as usize], order),
    };
    let dead = random.below(1 + u64::from(processes) / 2);
    let mut dead: Vec<u32> = (0..dead)
        .map(|_| random.below(u64::from(processes)) as u32)
        .filter(|&who| who != root)
        .collect();
    dead.sort_unstable();
    dead.dedup();
    Parameters {
        ring: Ring { processes, root },
        model: Model {
            logp,
            byte_gap: 0,
            half_duplex: random.chance(300_000),
        },
        spread,
        correction: Correction::Checked,
        start: if random.chance(500_000) {
            Start::Overlapped
        } else {
            Start::Synchronized
        },
        bytes: 1,
        faults: Faults {
            dead,
            ..Faults::none()
        },
    }
}

/// `failures` of those that are left die at any moment.
fn during(mut parameters: Parameters, failures: u32) -> Parameters {
    let left = parameters.ring.processes - 1 - parameters.faults.dead.len() as u32;
    parameters.faults.random = Quantity::Number(failures.min(left));
    parameters.faults.moment = Moment::During;
    parameters
}

fn run(parameters: &Parameters, seed: u64) -> Run {
    Broadcasts::new(parameters.clone())
        .unwrap()
        .run(seed)
        .unwrap()
}

#[test]
fn checked_reaches_every_live_process() {
    let mut gaps = 0;
    for seed in 0..SEEDS {
        let parameters = scenario(seed);
        let run = run(&parameters, seed);
        assert_eq!(run.uncoloured_live, 0, "{seed}: {parameters:?}");
        gaps += u32::from(run.max_gap > 1);
    }
    assert!(
        gaps > SEEDS as u32 / 3,
        "only {gaps} runs had something to correct"
    );
}

#[test]
fn failure_proof_reaches_every_live_process() {
    let mut died = 0;
    for seed in 0..SEEDS {
        let f = 1 + (seed % 4) as u32;
        let mut parameters = during(scenario(seed), f);
        parameters.correction = Correction::FailureProof(f);
        let run = run(&parameters, seed);
        assert_eq!(run.uncoloured_live, 0, "{seed}: {parameters:?}");
        died += u64::from(run.dead.len() > parameters.faults.dead.len());
    }
    assert!(died > SEEDS / 2, "only {died} runs had failures on the way");
}

/// Even the root may die: all live processes get the message, or none.
#[test]
fn failure_proof_is_all_or_nothing_without_the_root() {
    let (mut all, mut none) = (0, 0);
    for seed in 0..SEEDS {
        // Few processes, so that the root is often among the victims.
        let mut parameters = scenario(seed);
        parameters.faults.root_too = true;
        let f = 3;
        parameters = during(parameters, f);
        parameters.correction = Correction::FailureProof(f);
        let run = run(&parameters, seed);
        let live = u64::from(parameters.ring.processes) - run.dead.len() as u64;
        let root_died = run.dead.contains(&parameters.ring.root);
        let missed = run.uncoloured_live;
        assert!(
            missed == 0 || missed == live,
            "{seed}: {missed} of {live}: {parameters:?}"
        );
        all += u32::from(root_died && missed == 0);
        none += u32::from(root_died && missed > 0);
    }
    assert!(all > 20 && none > 0, "{all} all, {none} nothing");
}

/// Planted: a side is left after the first sender, where two may die. It takes one death
/// on each side of a gap, each after the message that lets the neighbour beyond it stop,
/// so two victims are placed and timed at random among many dead. The right rule stands
/// in every scenario that the weaker one fails.
#[test]
fn a_weaker_stop_rule_is_caught() {
    let mut caught = [0, 0];
    for seed in 0..5 * SEEDS {
        let mut random = Sequence::new(seed, 0x7765_616b_6572);
        let processes = 16 + random.below(16) as u32;
        let mut parameters = scenario(seed);
        parameters.ring = Ring { processes, root: 0 };
        // Long gaps, and answers that come before the second send.
        parameters.spread = Spread::Tree(Shape::Binomial, Order::InOrder);
        parameters.start = Start::Synchronized;
        parameters.model.logp = LogP {
            latency: 0,
            overhead: 1,
            gap: 3,
        };
        let drawn = |random: &mut Sequence| 1 + random.below(u64::from(processes) - 1) as u32;
        let dead = (0..processes / 4).map(|_| drawn(&mut random));
        parameters.faults.dead = dead.collect();
        for _ in 0..2 {
            let who = drawn(&mut random);
            let death = Death::AfterSends(1 + random.below(4) as u32);
            if !parameters.faults.dead.contains(&who) {
                parameters.faults.named.push((who, death));
            }
        }
        for (weaker, caught) in [Correction::FailureProof(0), Correction::Checked]
            .into_iter()
            .zip(&mut caught)
        {
            parameters.correction = weaker;
            if run(&parameters, seed).uncoloured_live == 0 {
                continue;
            }
            *caught += 1;
            parameters.correction = Correction::FailureProof(2);
            assert_eq!(
                run(&parameters, seed).uncoloured_live,
                0,
                "{seed}: {parameters:?}"
            );
        }
    }
    println!("the weaker rules were caught in {caught:?} runs");
    assert!(
        caught.iter().all(|&runs| runs > 0),
        "stopping after the first sender was not caught"
    );
}

/// Planted: no check at all.
#[test]
fn a_missing_check_is_caught() {
    let caught = (0..SEEDS / 4).filter(|&seed| {
        let mut parameters = scenario(seed);
        parameters.correction = Correction::Opportunistic(2);
        run(&parameters, seed).uncoloured_live > 0
    });
    assert!(caught.count() > 20);
}
