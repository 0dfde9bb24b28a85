//! The intervals that follow from costs and rates, fast enough to be computed at any call.
//!
//! First order (A. Benoit et al., IEEE TC 66, 2017, as [`crate::methods::benoit`]): each
//! level in use restores its own failures and those of the levels below it that are not in
//! use; level j costs c_j / P_j + lambda_j (P_j / 2 + B_j) per second of computing, which is
//! least for Young's P_j. All subsets of levels are compared. The intervals then are
//! [`Costs::best`], which holds also where failures come as often as checkpoints.
//!
//! Under a budget for checkpoints (MPC 2019, section 5.4) the least loss has all intervals
//! longer by the same factor: that of the sum of c_j / P_j over the budget (a multiplier for
//! the constraint multiplies every c_j alike).

use crate::interval::Costs;

/// A level, from the one that survives least to the one that survives most.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rung {
    /// Seconds that the program loses by a write there, in addition to the capture.
    pub cost: f64,
    /// Seconds of writing in the background: no second write meanwhile.
    pub background: f64,
    /// Failures per second that this level restores and none below it.
    pub rate: f64,
}

/// What the intervals must respect.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Limits {
    /// Seconds for which every checkpoint stops the program.
    pub capture: f64,
    /// Largest share of the computing time for checkpoints.
    pub budget: Option<f64>,
    /// No failure that a level survives shall cost more seconds of computing.
    pub lost_max: Option<f64>,
    /// Seconds between two offers of the program: nothing can be more frequent.
    pub gap: f64,
    /// Nothing shall be more frequent than this, in seconds.
    pub least: f64,
}

/// Intervals and what they cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// Seconds of computing between two versions of each level; none: it is not used.
    pub periods: Vec<Option<f64>>,
    /// Share of the computing time that checkpoints take.
    pub checkpoint: f64,
    /// Share that is lost by failures, without restarts.
    pub lost: f64,
    /// The bound on lost work and the budget do not go together: the bound is kept.
    pub over_budget: bool,
}

/// More rungs are not compared.
pub const RUNGS_MAX: usize = 8;
/// Costs below this, in seconds, count as this: nothing is free.
const COST_MIN: f64 = 1e-6;

/// The levels of a subset with their costs and the rates that fall to them.
fn chosen(rungs: &[Rung], limits: &Limits, subset: u32) -> Vec<(usize, f64, f64)> {
    let mut found = Vec::new();
    let mut rate = 0.0;
    for (place, rung) in rungs.iter().enumerate() {
        rate += rung.rate;
        if subset & (1 << place) != 0 {
            let capture = if found.is_empty() {
                limits.capture
            } else {
                0.0
            };
            found.push((place, (rung.cost + capture).max(COST_MIN), rate));
            rate = 0.0;
        }
    }
    found
}

/// The best intervals. Rungs that no failure needs are not used, unless there is no other:
/// then the first. At most [`RUNGS_MAX`] are looked at.
pub fn schedule(rungs: &[Rung], limits: &Limits) -> Schedule {
    let rungs = &rungs[..rungs.len().min(RUNGS_MAX)];
    let Some(top) = rungs.iter().rposition(|rung| rung.rate > 0.0) else {
        return Schedule {
            periods: vec![None; rungs.len()],
            checkpoint: 0.0,
            lost: 0.0,
            over_budget: false,
        };
    };
    let value = |subset: u32| -> f64 {
        let each = chosen(rungs, limits, subset).into_iter();
        let of = each.map(|(place, cost, rate)| {
            let background = rungs[place].background;
            let period = libm::sqrt(2.0 * cost / rate.max(1e-300))
                .max(background.max(limits.gap).max(limits.least));
            cost / period + rate * (period / 2.0 + background)
        });
        of.sum()
    };
    let subsets = (1 << top)..(2_u32 << top);
    let best = subsets
        .min_by(|&a, &b| value(a).total_cmp(&value(b)))
        .unwrap_or(1 << top);
    let used = chosen(rungs, limits, best);
    let mut periods = vec![None; rungs.len()];
    let mut least = limits.gap.max(limits.least);
    for &(place, cost, rate) in &used {
        let period = match Costs::new(cost, 0.0, 1.0 / rate) {
            Ok(costs) => costs.best(),
            // Nothing has ever needed it: never.
            Err(_) => f64::INFINITY,
        };
        least = period.max(rungs[place].background).max(least);
        periods[place] = Some(least);
    }
    let spent = |periods: &[Option<f64>]| -> f64 {
        let each = used
            .iter()
            .filter_map(|&(place, cost, _)| Some(cost / periods[place]?));
        each.sum()
    };
    if let Some(budget) = limits.budget {
        let factor = (spent(&periods) / budget).max(1.0);
        periods
            .iter_mut()
            .flatten()
            .for_each(|period| *period *= factor);
    }
    let mut over_budget = false;
    if let Some(bound) = limits.lost_max {
        for &(place, cost, _) in &used {
            let most = bound - rungs[place].background - cost - limits.gap;
            let most = most.max(limits.gap).max(COST_MIN);
            if let Some(period) = periods[place].as_mut().filter(|period| **period > most) {
                *period = most;
            }
        }
        over_budget = limits
            .budget
            .is_some_and(|budget| spent(&periods) > budget * 1.001);
    }
    let lost = used.iter().filter_map(|&(place, _, rate)| {
        let period = periods[place].filter(|period| period.is_finite())?;
        Some(rate * (period / 2.0 + rungs[place].background))
    });
    Schedule {
        checkpoint: spent(&periods),
        lost: lost.sum(),
        periods,
        over_budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(cost: f64, background: f64, rate: f64) -> Rung {
        Rung {
            cost,
            background,
            rate,
        }
    }

    #[test]
    fn one_level_is_the_best_interval() {
        let found = schedule(&[rung(10.0, 0.0, 1e-4)], &Limits::default());
        let best = Costs::new(10.0, 0.0, 1e4).expect("good").best();
        assert_eq!(found.periods, [Some(best)]);
    }

    #[test]
    fn a_level_that_is_dear_and_seldom_needed_is_left_out() {
        let useful = [rung(2.0, 0.0, 1e-4), rung(300.0, 0.0, 1e-6)];
        let found = schedule(&useful, &Limits::default());
        assert!(found.periods.iter().all(Option::is_some), "{found:?}");
        let useless = [rung(290.0, 0.0, 1e-7), rung(300.0, 0.0, 1e-5)];
        let found = schedule(&useless, &Limits::default());
        assert!(found.periods[0].is_none() && found.periods[1].is_some());
        let none = schedule(&[rung(1.0, 0.0, 0.0)], &Limits::default());
        assert_eq!(none.periods, [None]);
    }

    /// MPC 2019, 5.4: one minute, 1 %: 100 minutes, however often it fails.
    #[test]
    fn a_budget_is_kept_and_a_bound_comes_first() {
        let mut limits = Limits {
            budget: Some(0.01),
            ..Limits::default()
        };
        let rungs = [rung(60.0, 0.0, 1e-4)];
        let found = schedule(&rungs, &limits);
        assert!((found.periods[0].expect("used") - 6_000.0).abs() < 1e-6);
        let two = schedule(&[rung(5.0, 0.0, 1e-3), rung(100.0, 0.0, 1e-5)], &limits);
        assert!((two.checkpoint / 0.01 - 1.0).abs() < 1e-9 && !two.over_budget);
        limits.lost_max = Some(1_000.0);
        let found = schedule(&rungs, &limits);
        assert_eq!(found.periods[0], Some(940.0));
        assert!(found.over_budget);
    }

    #[test]
    fn what_is_written_in_the_background_is_not_asked_for_again_meanwhile() {
        let limits = Limits {
            capture: 1.0,
            ..Limits::default()
        };
        let found = schedule(&[rung(0.0, 500.0, 1e-3)], &limits);
        assert_eq!(found.periods[0], Some(500.0));
    }
}
