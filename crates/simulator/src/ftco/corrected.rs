//! Corrected collectives under the same worlds and the same checker as those over a
//! tree: any of them, failures before, during and after, also of roots, also more than f.

use outlive_base::Time;
use outlive_base::rng::Sequence;
use outlive_protocols::broadcast::tree::Shape;
use outlive_protocols::collective::CollectiveKind;
use outlive_protocols::corrected::{Config, Machine, Msg, Part, Spread};
use outlive_protocols::reduce;

use super::caller::Subject;
use super::check::{Expect, check};
use super::{Planted, Report, Scenario, run_any, sweep};

impl Subject for Machine {
    fn fresh() -> Self {
        Machine::new()
    }
    fn processes(config: &Config) -> u32 {
        config.processes
    }
    fn gives(msg: &Msg) -> bool {
        let up = |msg: &reduce::Msg| msg.step == reduce::MsgStep::Up;
        matches!(msg.part, Part::Give) || matches!(&msg.part, Part::Reduce(msg) if up(msg))
    }
    fn claims(msg: &Msg) -> bool {
        matches!(msg.part, Part::Claim)
    }
    fn asks(msg: &Msg) -> bool {
        matches!(msg.part, Part::Ask(_))
    }
    fn branches(msg: &Msg) -> bool {
        matches!(msg.part, Part::Branch { .. })
    }
}

const KINDS: [CollectiveKind; 4] = [
    CollectiveKind::Bcast,
    CollectiveKind::Reduce,
    CollectiveKind::Allreduce,
    CollectiveKind::Barrier,
];

/// The scenario of a seed.
///
/// # Errors
/// None for the parameters drawn here.
pub fn scenario(seed: u64) -> outlive_base::Result<Scenario<Config>> {
    let mut random = Sequence::new(seed, 0x636f_7272);
    let processes = match random.below(3) {
        0 => 1 + random.below(6),
        1 => 2 + random.below(15),
        _ => 2 + random.below(47),
    } as u32;
    let logp = sweep::logp(&mut random);
    let spread = match random.below(4) {
        0 => Spread::Gossip(Time(1 + random.below(16))),
        1 => Spread::Tree(Shape::Kary(1 + random.below(4) as u32)),
        2 => Spread::Tree(Shape::Lame(1 + random.below(4) as u32)),
        _ => Spread::Tree(Shape::Binomial),
    };
    let timeout = 4000;
    let config = Config {
        pace: Time(random.below(2) * random.below(20)),
        timeout: Time(timeout),
        patience: Time(timeout + random.below(timeout)),
        ask: Time(200 + random.below(timeout)),
        bound: Time(timeout * (60 + 8 * u64::from(processes))),
        ..Config::new(processes, spread, random.below(4) as u32)?
    };
    let calls = 1 + random.below(4);
    let mut calls = sweep::calls_of(&KINDS, &mut random, (calls, processes), false);
    // Drawn apart, so that the seeds that are kept have the histories that they had.
    let mut gathers = Sequence::new(seed, 0x6761_7468);
    for call in &mut calls {
        call.kind = match call.kind {
            CollectiveKind::Reduce if gathers.below(3) == 0 => CollectiveKind::Gather,
            CollectiveKind::Allreduce if gathers.below(3) == 0 => CollectiveKind::Allgather,
            kind => kind,
        };
    }
    let model = sweep::model(&mut random, logp);
    let mut scenario = Scenario::new(config, model, calls[0]);
    scenario.calls = calls;
    sweep::surround(&mut random, &mut scenario, processes, timeout);
    Ok(scenario)
}

/// Runs the scenario of a seed and checks it.
///
/// # Errors
/// What broke the guarantee.
pub fn one(seed: u64, planted: Option<Planted>) -> Result<Report, String> {
    let mut scenario = scenario(seed).map_err(|error| error.to_string())?;
    scenario.planted = planted;
    checked(&scenario, seed)
}

/// Runs a scenario and checks it.
pub(super) fn checked(scenario: &Scenario<Config>, seed: u64) -> Result<Report, String> {
    let report = run_any::<Machine>(scenario, seed).map_err(|error| error.to_string())?;
    let expect = Expect {
        processes: scenario.config.processes,
        calls: &scenario.calls,
        ordered: false,
        late: None,
    };
    check(&expect, &report).map(|()| report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logp::Model;
    use outlive_protocols::broadcast::LogP;
    use outlive_protocols::collective::{Call, Event, Why};

    #[test]
    fn every_live_process_gets_the_result() {
        let summary = sweep::sweep_of(one, 0..2000, 2, None);
        assert_eq!(summary.failed, []);
    }

    #[test]
    fn another_call_on_one_rank_ends_there_and_elsewhere_without_it() {
        let logp = LogP {
            latency: 2,
            overhead: 1,
            gap: 1,
        };
        let model = Model {
            logp,
            byte_gap: 0,
            half_duplex: false,
        };
        let call = |kind| Call {
            kind,
            root: 0,
            value: None,
            ordered: false,
        };
        for wrong in 1..8 {
            let config = Config::new(8, Spread::Tree(Shape::Binomial), 1).expect("valid");
            let mut scenario = Scenario::new(config, model, call(CollectiveKind::Allreduce));
            scenario.other = Some((wrong, vec![call(CollectiveKind::Bcast)]));
            let report = run_any::<Machine>(&scenario, 1).expect("runs");
            let failed = report.lines.iter().find_map(|line| match line.said.event {
                Event::Failed { why, .. } => Some((line.who, why)),
                _ => None,
            });
            assert_eq!(failed, Some((wrong, Why::Mismatch)));
            let results: Vec<_> = report.results().collect();
            assert_eq!(results.len(), 7, "all others have a result");
            for (_, at, _, value) in results {
                let value = value.expect("a value");
                assert_eq!(value.absent.as_slice(), [wrong]);
                assert_eq!(value.count, 7);
                assert!(
                    at < scenario.config.timeout,
                    "without waiting for a time-out"
                );
            }
        }
    }

    #[test]
    fn planted_faults_are_caught() {
        for planted in [
            Planted::CountedTwice,
            Planted::LostAbsent,
            Planted::LostBypass,
        ] {
            let caught = sweep::sweep_of(one, 0..300, 2, Some(planted)).failed.len();
            assert!(caught >= 3, "{planted:?} was caught {caught} times");
        }
    }
}
