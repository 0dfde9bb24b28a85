//! Many scenarios, each a function of its seed: any tree, any collective, failures
//! before, during and after, at any time and between any two sends.

use outlive_base::Time;
use outlive_base::machine::Peer;
use outlive_base::rng::Sequence;
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::ftco::{Call, Config, Kind, Plan};

use super::check::{Expect, check};
use super::{Planted, Report, Scenario, run};
use crate::logp::{Death, Model};

/// The kinds that are swept.
const KINDS: [Kind; 7] = [
    Kind::Allreduce,
    Kind::Bcast,
    Kind::Reduce,
    Kind::Barrier,
    Kind::Gather,
    Kind::Allgather,
    Kind::Agree,
];

/// What a sweep came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Runs in which rank 0 died.
    pub roots: u64,
    /// Messages.
    pub messages: u64,
    /// Seeds that broke the guarantee, and how.
    pub failed: Vec<(u64, String)>,
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.runs += other.runs;
        self.deaths += other.deaths;
        self.roots += other.roots;
        self.messages += other.messages;
        self.failed.extend(other.failed);
    }
}

/// The scenario of a seed, with what is true of it.
///
/// # Errors
/// None for the parameters drawn here.
pub fn scenario(seed: u64) -> outlive_base::Result<Scenario> {
    let mut random = Sequence::new(seed, 0x6674_636f);
    let processes = match random.below(4) {
        0 => 1 + random.below(6),
        1 => 2 + random.below(15),
        2 => 16 + random.below(17),
        _ => 2 + random.below(63),
    } as u32;
    let logp = LogP {
        latency: 1 + random.below(8),
        overhead: 1 + random.below(2),
        gap: 2,
    };
    let shape = match random.below(5) {
        0 => Shape::Binomial,
        1 => Shape::Kary(1 + random.below(4) as u32),
        2 => Shape::Lame(1 + random.below(4) as u32),
        3 => Shape::Optimal,
        _ => Shape::Kary(processes),
    };
    let order = if random.below(2) == 0 {
        Order::InOrder
    } else {
        Order::Interleaved
    };
    let plan = Plan::new(shape, order, processes, &logp)?;
    let timeout = 4000;
    let levels = u64::from(plan.height());
    let config = Config {
        timeout: Time(timeout),
        timeout_per_level: Time(20 + random.below(20)),
        patience: Time(timeout + random.below(2 * timeout)),
        bound: Time(timeout * (40 + 8 * u64::from(processes)) + levels * 10_000),
        ..Config::new(plan)
    };
    let calls = 1 + random.below(3);
    let kinds = |random: &mut Sequence| KINDS[random.below(KINDS.len() as u64) as usize];
    let calls = (0..calls).map(|_| {
        let kind = kinds(&mut random);
        let rooted = matches!(kind, Kind::Bcast | Kind::Reduce | Kind::Gather);
        let root = if rooted && random.below(2) == 0 {
            random.below(u64::from(processes)) as Peer
        } else {
            0
        };
        Call {
            kind,
            root,
            value: None,
            ordered: order == Order::InOrder && random.below(3) > 0,
        }
    });
    let calls: Vec<Call> = calls.collect();
    let model = Model {
        logp,
        byte_gap: 0,
        half_duplex: random.below(4) == 0,
    };
    let mut scenario = Scenario::new(config, model, calls[0]);
    scenario.calls = calls;
    // Entering at once, or within an eighth of the time-out.
    let skew = [1, timeout / 8][random.below(2) as usize];
    scenario.enters = (0..processes).map(|_| Time(random.below(skew))).collect();
    scenario.interval = Time(random.below(60));
    let faults = match random.below(8) {
        0 => 0,
        1..=4 => 1 + random.below(3),
        5 | 6 => random.below(u64::from(processes)),
        _ => u64::from(processes) - 1,
    };
    scenario.deaths = deaths(&mut random, processes, faults, timeout);
    scenario.end = Time(u64::MAX / 4);
    Ok(scenario)
}

/// So many different ranks, each with its moment.
fn deaths(random: &mut Sequence, processes: u32, faults: u64, timeout: u64) -> Vec<(Peer, Death)> {
    let mut dead: Vec<(Peer, Death)> = Vec::new();
    while (dead.len() as u64) < faults.min(u64::from(processes) - 1) {
        // Low ranks are near the root in every tree.
        let top = if random.below(2) == 0 { 4 } else { processes };
        let who = random.below(u64::from(top.min(processes))) as Peer;
        let taken = |who: Peer| dead.iter().any(|&(other, _)| other == who);
        let Some(who) = (0..processes)
            .map(|step| (who + step) % processes)
            .find(|&who| !taken(who))
        else {
            break;
        };
        let death = match random.below(6) {
            0 => Death::At(Time::ZERO),
            1 | 2 => Death::AfterSends(random.below(12) as u32),
            3 => Death::At(Time(random.below(200))),
            4 => Death::At(Time(timeout / 2 * random.below(8) + random.below(60))),
            _ => Death::At(Time(random.below(6 * timeout))),
        };
        dead.push((who, death));
    }
    dead
}

/// What the checker expects of a scenario.
pub fn expect(scenario: &Scenario) -> Expect<'_> {
    Expect {
        processes: scenario.config.plan.processes(),
        calls: &scenario.calls,
        ordered: scenario.config.plan.ordered() && scenario.calls.iter().all(|call| call.ordered),
        late: None,
    }
}

/// One run, checked.
///
/// # Errors
/// What was violated.
pub fn one(seed: u64, planted: Option<Planted>) -> Result<Report, String> {
    let mut scenario = scenario(seed).map_err(|error| error.to_string())?;
    scenario.planted = planted;
    let report = run(&scenario, seed).map_err(|error| error.to_string())?;
    check(&expect(&scenario), &report)?;
    Ok(report)
}

/// Runs of these seeds on so many threads.
pub fn sweep(seeds: std::ops::Range<u64>, threads: u64, planted: Option<Planted>) -> Summary {
    let part = |thread: u64| {
        let mut summary = Summary::default();
        for seed in seeds
            .clone()
            .skip(thread as usize)
            .step_by(threads.max(1) as usize)
        {
            summary.runs += 1;
            match one(seed, planted) {
                Ok(report) => {
                    summary.deaths += report.dead.len() as u64;
                    summary.roots += u64::from(report.dead.contains(&0));
                    summary.messages += report.outcome.messages;
                }
                Err(violation) => summary.failed.push((seed, violation)),
            }
        }
        summary
    };
    let mut total = Summary::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1))
            .map(|thread| scope.spawn(move || part(thread)))
            .collect();
        for handle in handles {
            match handle.join() {
                Ok(summary) => total.add(summary),
                Err(_) => total.failed.push((u64::MAX, "a thread panicked".into())),
            }
        }
    });
    total.failed.sort_unstable();
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_live_process_gets_the_result_whenever_others_die() {
        let summary = sweep(0..2_000, 2, None);
        assert_eq!(summary.failed, []);
        assert!(summary.deaths > 5_000 && summary.roots > 300, "{summary:?}");
    }

    #[test]
    fn planted_faults_are_caught() {
        for planted in [
            Planted::CountedTwice,
            Planted::LostBypass,
            Planted::LostAbsent,
            Planted::HastyOrphan,
        ] {
            let summary = sweep(0..300, 2, Some(planted));
            assert!(summary.failed.len() > 3, "{planted:?}: {summary:?}");
        }
    }
}
