//! What the corrections promise, by sweep: checked with failures before the start,
//! failure-proof with up to f failures at any moment. Every live process must have the
//! message. A weaker stop rule is planted, to show that the sweep would catch it.
//! `scripts/sweep-broadcast.sh` (make soak) does the same at greater length.
#![allow(missing_docs, clippy::unwrap_used)]

use outlive_base::rng::Sequence;
use outlive_protocols::broadcast::tree::{Order, Ring, Shape, Tree};
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
    for seed in outlive_base::seeds!(SEEDS) {
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
    for seed in outlive_base::seeds!(SEEDS) {
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
    for seed in outlive_base::seeds!(SEEDS) {
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

/// A gap whose two neighbours die in the correction: in the binomial tree in order a dead
/// head leaves its subtree without the message, all of it side by side. The place left of
/// the gap and the one right of it send to their outer neighbours, which rely on them, and
/// die before they have reached anybody in the gap: more of the dead shield its edges.
fn two_die_beside_a_gap(seed: u64) -> Parameters {
    let mut random = Sequence::new(seed, 0x7765_616b_6572);
    let mut parameters = scenario(seed);
    let size = 8 << random.below(2);
    let head = size * (1 + 2 * random.below(2) as u32);
    let (left, right) = (head - 1, head + size);
    let processes = right + 2 + random.below(30) as u32;
    parameters.ring = Ring { processes, root: 0 };
    parameters.spread = Spread::Tree(Shape::Binomial, Order::InOrder);
    parameters.start = Start::Synchronized;
    parameters.model.half_duplex = false;
    // The neighbours beyond hear of them within a few sends.
    let overhead = 1 + random.below(2);
    parameters.model.logp = LogP {
        latency: random.below(3),
        overhead,
        gap: overhead + random.below(4),
    };
    let shield = 2 + random.below(u64::from(size) / 2 - 2) as u32;
    parameters.faults.dead = (head..head + shield).chain(right - shield..right).collect();
    let tree = Tree::new(
        Shape::Binomial,
        Order::InOrder,
        processes,
        &parameters.model.logp,
    )
    .unwrap();
    // Each turns to its left first: the one on the left is done with its neighbour after
    // one correction, that on the right after two.
    let mut sends = |who, least: u32| {
        let sends = tree.child_count(who) + least + random.below(3) as u32;
        (who, Death::AfterSends(sends))
    };
    parameters.faults.named = vec![sends(left, 1), sends(right, 2)];
    parameters
}

/// Planted: a side is left after the first sender, where two may die. The right rule
/// stands in every scenario.
#[test]
fn a_weaker_stop_rule_is_caught() {
    let mut caught = [0; 2];
    for seed in outlive_base::seeds!(SEEDS) {
        let mut parameters = two_die_beside_a_gap(seed);
        let mut missed = |correction| {
            parameters.correction = correction;
            let run = run(&parameters, seed);
            (
                run.uncoloured_live,
                run.dead.len() - parameters.faults.dead.len(),
            )
        };
        let (right, died) = missed(Correction::FailureProof(2));
        assert_eq!((right, died), (0, 2), "{seed}: {parameters:?}");
        caught[0] += u64::from(missed(Correction::FailureProof(0)).0 > 0);
        caught[1] += u64::from(missed(Correction::Checked).0 > 0);
    }
    println!("the weaker rules were caught in {caught:?} of {SEEDS} runs");
    assert!(
        caught.iter().all(|&runs| runs > SEEDS / 10),
        "stopping after the first sender was caught in {caught:?} runs only"
    );
}

/// Planted: no check at all.
#[test]
fn a_missing_check_is_caught() {
    let caught = outlive_base::seeds!(SEEDS / 4).filter(|&seed| {
        let mut parameters = scenario(seed);
        parameters.correction = Correction::Opportunistic(2);
        run(&parameters, seed).uncoloured_live > 0
    });
    assert!(caught.count() > 20);
}
