//! The known methods, as published, each tested against figures of its paper or of the
//! program that its authors published.
//!
//! All but Herault et al. (whose subject is several jobs) see a [`Ladder`]: levels from the
//! cheapest to the most stable, each with the rate of the failures that it and none below
//! it restores. What a ladder cannot say, background writes, storage that forgets, replaced
//! nodes, they do not know: a background write counts as if the program waited for it.
//! [`plan`] turns a method's answer into a [`Pattern`]; how good that is says
//! [`crate::lifetime`], the same for all.

pub mod benoit;
pub mod di;
pub mod gholami;
pub mod herault;
pub mod scr;
#[cfg(test)]
mod trials;

use crate::interval::Costs;
use crate::lifetime::{Pattern, Question};

/// Levels as the known methods see them, from the cheapest to the most stable.
#[derive(Clone, PartialEq, Debug)]
pub struct Ladder {
    /// Seconds that a checkpoint at this level adds to those at all below it.
    pub costs: Vec<f64>,
    /// Seconds of a restart from it.
    pub restarts: Vec<f64>,
    /// Failures per second that it restores and none below it does.
    pub rates: Vec<f64>,
}

impl Ladder {
    /// Seconds of a checkpoint at this level and all below.
    pub fn whole(&self, level: usize) -> f64 {
        self.costs[..=level].iter().sum()
    }
}

/// A known method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// J. W. Young, CACM 17 (1974): the most stable level alone.
    Young,
    /// J. T. Daly, FGCS 22 (2006), equation 37: the most stable level alone.
    Daly,
    /// A. Moody et al., SC 2010.
    Scr,
    /// S. Di, M. S. Bouguerra, L. Bautista-Gomez, F. Cappello, IPDPS 2014.
    Di,
    /// A. Benoit et al., IEEE Transactions on Computers 66 (2017).
    Benoit,
    /// M. Gholami, F. Schintke, SRDS 2019.
    Gholami,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 6] = [
        Method::Young,
        Method::Daly,
        Method::Scr,
        Method::Di,
        Method::Benoit,
        Method::Gholami,
    ];
    /// Its name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Young => "young",
            Method::Daly => "daly",
            Method::Scr => "scr",
            Method::Di => "di",
            Method::Benoit => "benoit",
            Method::Gholami => "gholami",
        }
    }
    /// Who published it where.
    pub const fn source(self) -> &'static str {
        match self {
            Method::Young => "Young, CACM 17 (1974)",
            Method::Daly => "Daly, FGCS 22 (2006)",
            Method::Scr => "Moody et al. (SCR), SC 2010",
            Method::Di => "Di et al., IPDPS 2014",
            Method::Benoit => "Benoit et al., IEEE TC 66 (2017)",
            Method::Gholami => "Gholami and Schintke, SRDS 2019",
        }
    }
}

/// The levels of a question in the order of a ladder: by what a write takes, without those
/// that restore nothing which a cheaper one does not. Empty if nothing restores anything.
pub fn rungs(question: &Question) -> Vec<usize> {
    let write = |level: usize| question.levels[level].cost + question.levels[level].background;
    let mut order: Vec<usize> = (0..question.levels.len()).collect();
    order.sort_by(|&a, &b| write(a).total_cmp(&write(b)));
    let rates = question.classes.severities(&order);
    let useful = order.iter().zip(rates).filter(|(_, rate)| *rate > 0.0);
    useful.map(|(&level, _)| level).collect()
}

/// A ladder of these levels of a question; what none restores is left out.
pub fn ladder(question: &Question, rungs: &[usize]) -> Ladder {
    let mut rates = question.classes.severities(rungs);
    rates.pop();
    let cost = |(place, &level): (usize, &usize)| {
        let level = &question.levels[level];
        let capture = if place == 0 { question.capture } else { 0.0 };
        capture + level.cost + level.background
    };
    Ladder {
        costs: rungs.iter().enumerate().map(cost).collect(),
        restarts: rungs
            .iter()
            .map(|&level| question.levels[level].restart)
            .collect(),
        rates,
    }
}

/// The levels that a method uses, in the order of the question, and its pattern for them.
/// None where it has no answer: nothing restores anything.
pub fn plan(method: Method, question: &Question) -> Option<(Vec<usize>, Pattern)> {
    let rungs = rungs(question);
    let top = *rungs.last()?;
    let single = |interval: fn(&Costs) -> f64| {
        let ladder = ladder(question, &[top]);
        let rate = question.classes.total();
        let costs = Costs::new(ladder.costs[0], ladder.restarts[0], 1.0 / rate).ok()?;
        let interval = interval(&costs);
        Some((
            vec![top],
            Pattern {
                interval,
                multiples: vec![1],
            },
        ))
    };
    let several = |periods: Vec<(usize, f64)>| {
        let levels: Vec<usize> = periods.iter().map(|&(rung, _)| rungs[rung]).collect();
        let periods: Vec<f64> = periods.iter().map(|&(_, period)| period).collect();
        Some(sorted(levels, nested(&periods)))
    };
    let whole = ladder(question, &rungs);
    match method {
        Method::Young => single(Costs::young),
        Method::Daly => single(Costs::daly),
        Method::Scr => {
            let (interval, multiples) = scr::best(&whole);
            Some(sorted(
                rungs.clone(),
                Pattern {
                    interval,
                    multiples,
                },
            ))
        }
        Method::Di => several(
            di::periods(&whole, question.work)
                .into_iter()
                .enumerate()
                .collect(),
        ),
        Method::Benoit => several(benoit::periods(&whole)),
        Method::Gholami => several(gholami::periods(&whole)),
    }
}

fn sorted(levels: Vec<usize>, pattern: Pattern) -> (Vec<usize>, Pattern) {
    let mut both: Vec<(usize, u32)> = levels.into_iter().zip(pattern.multiples).collect();
    both.sort_unstable();
    let (levels, multiples) = both.into_iter().unzip();
    (
        levels,
        Pattern {
            interval: pattern.interval,
            multiples,
        },
    )
}

/// Periods of levels as multiples of the first, each of the one before.
fn nested(periods: &[f64]) -> Pattern {
    let interval = periods.first().copied().unwrap_or(1.0);
    let mut multiples: Vec<u32> = Vec::new();
    for &period in periods {
        let before = multiples.last().copied().unwrap_or(1);
        let factor = libm::round(period / interval / f64::from(before)).clamp(1.0, 1000.0);
        multiples.push((f64::from(before) * factor).min(10_000.0) as u32);
    }
    // The bound may break that each divides the next: mend from below.
    for at in 1..multiples.len() {
        multiples[at] = multiples[at] / multiples[at - 1] * multiples[at - 1];
    }
    Pattern {
        interval,
        multiples,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Three levels of a machine like those of the papers.
    pub(crate) fn three() -> Ladder {
        Ladder {
            costs: vec![2.0, 20.0, 300.0],
            restarts: vec![5.0, 60.0, 600.0],
            rates: vec![1e-4, 2e-5, 1e-6],
        }
    }

    #[test]
    fn periods_become_nested_multiples() {
        let pattern = nested(&[10.0, 34.0, 210.0, 1e9]);
        assert_eq!(pattern.multiples, [1, 3, 21, 9996]);
        assert_eq!(pattern.interval, 10.0);
    }
}
