//! Corrected collectives over trees that are kept: series of calls, so that trees are
//! grown, used, hurt and grown again, under the checker of all others.
//!
//! More than that checker asks is promised here: as long as no more than f die, and none
//! of them is the root, a broadcast needs no question, whatever the trees do meanwhile.

use outlive_base::Time;
use outlive_base::machine::Peer;
use outlive_base::rng::Sequence;
use outlive_planner::gossip::{best_time_spaced, kept_trees_time};
use outlive_protocols::collective::{Call, CollectiveKind};
use outlive_protocols::corrected::{Config, Keep, MODEL, Spread};

use super::{Planted, Report, Scenario, corrected};
use crate::logp::{Death, Model};

/// The scenario of a seed, and whether none of its calls may need a question.
///
/// # Errors
/// None for the parameters drawn here.
pub fn scenario(seed: u64) -> outlive_base::Result<(Scenario<Config>, bool)> {
    let mut scenario = corrected::scenario(seed)?;
    let mut random = Sequence::new(seed, 0x6b65_7074);
    let processes = scenario.config.processes;
    let failures = scenario.config.failures;
    let trees = failures + 1 + random.below(4) as u32;
    let gossip = match random.below(3) {
        0 => Time(random.below(30)),
        _ => kept_trees_time(processes, trees),
    };
    scenario.config = scenario.config.keeping(Keep { trees, gossip })?;
    let series = 3 + random.below(22) as usize;
    scenario.interval = Time(random.below(80));
    let horizon = scenario.interval.0 * series as u64 + 300;
    if random.below(2) == 0 {
        scenario.told = Some(Time(random.below(100)));
    }
    let calm = random.below(2) == 0;
    if calm {
        let call = Call {
            kind: CollectiveKind::Bcast,
            root: random.below(u64::from(processes)) as Peer,
            value: None,
            ordered: false,
        };
        scenario.calls = vec![call; series];
        scenario.config.ask = Time(1 << 20);
        scenario.deaths.retain(|&(who, _)| who != call.root);
        scenario.deaths.truncate(failures as usize);
    } else {
        let few = scenario.calls.clone();
        let again = |_| few[random.below(few.len() as u64) as usize];
        scenario.calls = (0..series).map(again).collect();
    }
    for (_, death) in &mut scenario.deaths {
        match random.below(3) {
            0 => *death = Death::At(Time(random.below(horizon))),
            1 => *death = Death::AfterSends(random.below(80) as u32),
            _ => {}
        }
    }
    let silence = scenario.config.timeout.0 * 2 * (1 + u64::from(processes));
    scenario.config.bound = scenario.config.bound + Time(silence + horizon);
    Ok((scenario, calm))
}

/// Runs the scenario of a seed and checks it.
///
/// # Errors
/// What broke the guarantee.
pub fn one(seed: u64, planted: Option<Planted>) -> Result<Report, String> {
    let (mut scenario, calm) = scenario(seed).map_err(|error| error.to_string())?;
    scenario.planted = planted;
    let report = corrected::checked(&scenario, seed)?;
    if calm && report.asked > 0 {
        let asked = report.asked;
        return Err(format!("{asked} questions, though no more than f died"));
    }
    Ok(report)
}

/// Bcasts of rank 0 by corrected gossip, the next when the last is over; with so many trees
/// kept, or none.
///
/// # Errors
/// As [`Config::new`] and [`Config::keeping`].
pub fn series(
    processes: u32,
    failures: u32,
    trees: u32,
    calls: usize,
) -> outlive_base::Result<Scenario<Config>> {
    let model = Model {
        logp: MODEL,
        byte_gap: 0,
        half_duplex: false,
    };
    let spread = Spread::Gossip(Time(best_time_spaced(processes, 0, &MODEL, 1)));
    let mut config = Config::new(processes, spread, failures)?;
    if trees > 0 {
        let gossip = kept_trees_time(processes, trees);
        config = config.keeping(Keep { trees, gossip })?;
    }
    let call = Call {
        kind: CollectiveKind::Bcast,
        root: 0,
        value: None,
        ordered: false,
    };
    let mut scenario = Scenario::new(config, model, call);
    scenario.calls = vec![call; calls];
    // Corrections are paced.
    scenario.interval = Time(u64::from(processes) * 200_000);
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_protocols::corrected::Machine;

    use crate::ftco::run_any;
    use crate::ftco::sweep::sweep_of;

    #[test]
    fn every_live_process_gets_every_result() {
        let (mut used, mut dead) = (0, 0);
        for seed in outlive_base::seeds!(2000) {
            let report = one(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            used += u32::from(report.branches > 0);
            dead += u32::from(report.branches > 0 && !report.dead.is_empty());
        }
        assert!(
            used > 900 && dead > 400,
            "trees in {used} runs, {dead} with deaths"
        );
    }

    /// A process far behind was told of a later call by one who had heard another end of the
    /// call between, and died: it must still answer, and keep what the others say.
    #[test]
    fn who_was_told_another_root_by_the_dead_is_not_called_silent() {
        let report = one(14_539, None).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(report.dead.len(), 27);
    }

    /// Thirty claimants die one after another and no death is told: the next one is asked as
    /// soon as the first was, not as seldom as one that was heard for long, else the last
    /// ones wait for the bound.
    #[test]
    fn claimants_that_die_one_after_another_cost_a_time_out_each() {
        let report = one(373_051, None).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(report.dead.len(), 36);
        let (scenario, _) = scenario(373_051).expect("valid");
        let each = scenario.config.timeout.0 + scenario.config.ask.0;
        assert!(
            report.completion().0 < 36 * each,
            "{:?}",
            report.completion()
        );
    }

    #[test]
    fn planted_faults_are_caught() {
        for planted in [
            Planted::ForgottenChild,
            Planted::CountedTwice,
            Planted::LostAbsent,
            Planted::LostBypass,
        ] {
            let caught = sweep_of(one, 0..300, 2, Some(planted)).failed.len();
            assert!(caught >= 3, "{planted:?} was caught {caught} times");
        }
    }

    fn messages(scenario: outlive_base::Result<Scenario<Config>>) -> u64 {
        let report = run_any::<Machine>(&scenario.expect("valid"), 7).expect("runs");
        assert_eq!(report.asked, 0);
        report.outcome.messages
    }

    #[test]
    fn a_broadcast_over_kept_trees_costs_f_and_one_messages_a_process() {
        for (failures, trees) in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4)] {
            let at = |calls| messages(series(128, failures, trees, calls));
            let each = at(30) - at(20);
            let most = 10 * 127 * u64::from(failures + 1);
            // The root serves a child of several trees once, and nobody its own parent.
            assert!(
                each <= most && each > most * 3 / 4,
                "{failures} {trees}: {each}"
            );
            let without =
                messages(series(128, failures, 0, 30)) - messages(series(128, failures, 0, 20));
            assert!(each * 2 < without, "{failures}: {each} against {without}");
        }
    }

    #[test]
    fn trees_that_a_death_hurt_are_left_and_grown_again_without_a_question() {
        let mut scenario = series(64, 1, 3, 40).expect("valid");
        scenario.told = Some(Time(50));
        // One after the other, each in another tree (place on the ring modulo 3).
        let died = [(1, 8), (2, 12), (3, 16), (4, 20)];
        let at = |call: u64| Death::At(Time(call * scenario.interval.0 + 9));
        scenario.deaths = died.map(|(who, call)| (who, at(call))).to_vec();
        let report = run_any::<Machine>(&scenario, 3).expect("runs");
        assert_eq!(report.asked, 0);
        let done = report.results().filter(|&(who, ..)| who > 4 || who == 0);
        assert_eq!(done.count(), 60 * 40);
        // Most of the calls went down trees.
        assert!(report.branches > 25 * 2 * 50, "{}", report.branches);
    }
}
