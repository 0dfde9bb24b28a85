//! Figures and how they are shown: schema `outlive.bench/1`.

use outlive_base::Result;
use serde::Serialize;

use super::machine::Machine;
use crate::output;

/// Repeated measurements of one thing.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Stat {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// How many.
    pub n: usize,
}

impl Stat {
    /// Of at least one value; all zero of none.
    pub fn of(values: &[f64]) -> Stat {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let n = sorted.len();
        let upper = at(n / 2);
        let median = match n.is_multiple_of(2) && n > 0 {
            true => f64::midpoint(at(n / 2 - 1), upper),
            false => upper,
        };
        Stat {
            median,
            min: at(0),
            max: at(n.saturating_sub(1)),
            n,
        }
    }
}

/// What must hold.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    pub unit: &'static str,
    pub ours: Stat,
    /// What the machine does at best, measured beside it.
    pub limit: Option<Stat>,
    /// What the limit is.
    pub limit_is: Option<&'static str>,
    /// Ours by limit: the median of the pairs, where they are pairs.
    pub ratio: Option<f64>,
    /// Of the ratio if there is a limit, else of the median.
    pub goal: Option<Goal>,
    pub met: Option<bool>,
}

impl Row {
    pub fn new(what: impl Into<String>, unit: &'static str, ours: &[f64]) -> Row {
        Row {
            what: what.into(),
            unit,
            ours: Stat::of(ours),
            limit: None,
            limit_is: None,
            ratio: None,
            goal: None,
            met: None,
        }
    }

    /// Beside a limit; paired if both were measured as often.
    pub fn beside(mut self, what: &'static str, ours: &[f64], limit: &[f64]) -> Row {
        let (all, by) = (Stat::of(limit), self.ours.median);
        let ratio = match ours.len() == limit.len() {
            true => {
                let pairs: Vec<f64> = ours.iter().zip(limit).map(|(o, l)| o / l).collect();
                Stat::of(&pairs).median
            }
            false => by / all.median,
        };
        self.limit = Some(all);
        self.limit_is = Some(what);
        self.ratio = Some(ratio);
        self
    }

    pub fn goal(mut self, goal: Goal) -> Row {
        let value = self.ratio.unwrap_or(self.ours.median);
        self.met = Some(match goal {
            Goal::AtMost(most) => value <= most,
            Goal::AtLeast(least) => value >= least,
        });
        self.goal = Some(goal);
        self
    }

    fn cells(&self) -> Vec<String> {
        let limit = self.limit.map_or(String::new(), |limit| {
            format!(
                "{} ({})",
                number(limit.median),
                self.limit_is.unwrap_or_default()
            )
        });
        let goal = match self.goal {
            None => String::new(),
            Some(Goal::AtMost(most)) => format!("<= {}", number(most)),
            Some(Goal::AtLeast(least)) => format!(">= {}", number(least)),
        };
        let met = match self.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let spread = match self.ours.n > 1 {
            true => format!(
                "{}..{} of {}",
                number(self.ours.min),
                number(self.ours.max),
                self.ours.n
            ),
            false => String::new(),
        };
        vec![
            self.what.clone(),
            number(self.ours.median),
            self.unit.to_owned(),
            spread,
            limit,
            self.ratio.map_or(String::new(), number),
            goal,
            met.to_owned(),
        ]
    }
}

/// Three to four digits.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}

/// All that a benchmark has to say.
#[derive(Debug, Serialize)]
pub struct Table {
    pub schema: &'static str,
    pub benchmark: &'static str,
    pub machine: Machine,
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
}

impl Table {
    pub fn new(benchmark: &'static str, machine: Machine) -> Table {
        Table {
            schema: "outlive.bench/1",
            benchmark,
            machine,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The figures of another benchmark, below these.
    pub fn append(&mut self, other: Table) {
        self.benchmark = "all";
        self.rows.extend(other.rows);
        self.notes.extend(other.notes);
    }

    /// To standard output.
    pub fn print(&self, json: bool) -> Result<u8> {
        if json {
            return output::json(self);
        }
        let heading = [
            "what",
            "median",
            "",
            "min..max",
            "limit (same run)",
            "ratio",
            "goal",
            "",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.rows.iter().map(Row::cells));
        let notes = self.notes.iter().map(|note| format!("\n{note}"));
        output::text(&format!(
            "{}\n{}{}",
            self.machine,
            output::table(&rows),
            notes.collect::<String>()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_pairs() {
        assert_eq!(Stat::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Stat::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let row = Row::new("x", "ms", &[2.0, 30.0])
            .beside("memcpy", &[2.0, 30.0], &[1.0, 10.0])
            .goal(Goal::AtMost(2.5));
        assert_eq!((row.ratio, row.met), (Some(2.5), Some(true)));
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(0.123_45), "0.123");
    }
}
