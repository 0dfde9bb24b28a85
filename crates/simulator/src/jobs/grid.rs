//! The planner's analysis beside simulation, on a grid of cases: 1 to 5 levels, exponential
//! and Weibull lives, with and without correlated groups, with and without background
//! writes; and some cases of their own.

use outlive_base::Result;
use outlive_planner::classes::classes;
use outlive_planner::lifetime::{Pattern, Question, lifetime};
use outlive_planner::machine::{self, Level, Machine};

use super::{Estimate, estimate};

/// A case: a machine, the levels in use, and a pattern.
pub struct Case {
    /// What it is.
    pub name: String,
    machine: String,
    pattern: Pattern,
}

/// Analysis and simulation of a case.
pub struct Compared {
    /// The case.
    pub name: String,
    /// Overhead that the analysis expects.
    pub expected: f64,
    /// What simulation gives.
    pub simulated: Estimate,
}

impl Compared {
    /// Relative difference of the times of the job.
    pub fn time_difference(&self) -> f64 {
        (1.0 + self.simulated.overhead) / (1.0 + self.expected) - 1.0
    }
    /// Relative difference of the overheads.
    pub fn overhead_difference(&self) -> f64 {
        self.simulated.overhead / self.expected - 1.0
    }
    /// Whether the analysis lies in the 99.9 % interval of the simulation.
    pub fn inside(&self) -> bool {
        (self.simulated.overhead - self.expected).abs() <= self.simulated.half_width()
    }
}

const NODES: &str = r#"
[nodes]
count = 240
mtbf = "960000 s"
light-mtbf = "480000 s"
SHAPES
[[servers]]
name = "files"
count = 1
"#;

/// Racks hold whole rows of partners' distance; power supplies cut across them.
const GROUPS: &str = r#"
[[groups]]
name = "rack"
size = 12
mtbf = "160000 s"
[[groups]]
name = "power supply"
size = 12
stride = 20
mtbf = "240000 s"
[[groups]]
name = "switch"
size = 24
hits = 0.2
mtbf = "150000 s"
"#;

/// Rarely, what takes a node and its partner.
const SUPPLIES: &str = r#"
[[groups]]
name = "power supply"
size = 12
stride = 20
mtbf = "5500000 s"
"#;

const BUFFER: &str = r#"
[[servers]]
name = "buffer"
count = 2
mtbf = "12000 s"
"#;

fn level(kind: &str, times: (u32, u32), asynchronous: bool) -> String {
    let (write, restart) = times;
    format!(
        "[[levels]]\n{kind}\ncost = \"{write} s\"\nrestart = \"{restart} s\"\nasynchronous = {asynchronous}\n"
    )
}

const ARCHIVE: &str = r#"
[[servers]]
name = "archive"
count = 1
"#;

const LOCAL: &str = "kind = \"local\"";
const XOR: &str = "kind = \"xor\"\ngroup = 6\nstride = 12";
const PARTNER: &str = "kind = \"partner\"\ndistance = 20";
const SHARED: &str = "kind = \"shared\"\nservers = \"buffer\"";
const FILES: &str = "kind = \"shared\"\nservers = \"files\"";

fn levels(count: usize, asynchronous: bool) -> String {
    let all = [
        level(LOCAL, (4, 10), false),
        level(XOR, (8, 25), asynchronous),
        level(PARTNER, (10, 20), asynchronous),
        level(SHARED, (30, 60), asynchronous),
        level(FILES, (60, 150), asynchronous),
    ];
    let used: &[usize] = match count {
        1 => &[4],
        2 => &[0, 4],
        3 => &[0, 2, 4],
        4 => &[0, 2, 3, 4],
        _ => &[0, 1, 2, 3, 4],
    };
    used.iter().map(|&one| all[one].clone()).collect()
}

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut found = Vec::new();
    let mut add = |name: String,
                   count,
                   shapes: &str,
                   groups: &str,
                   levels: String,
                   multiples: Vec<u32>,
                   interval| {
        let buffer = if count >= 4 { BUFFER } else { "" };
        let machine = NODES.replace("SHAPES", shapes) + buffer + groups + &levels;
        let pattern = Pattern {
            interval,
            multiples,
        };
        found.push(Case {
            name,
            machine,
            pattern,
        });
    };
    let words = |yes, one: &'static str, other: &'static str| if yes { one } else { other };
    for count in 1..=5_usize {
        for weibull in [false, true] {
            for correlated in [false, true] {
                for asynchronous in [false, true] {
                    let name = format!(
                        "{count} levels, {}, {}, {}",
                        words(weibull, "Weibull 0.7", "exponential"),
                        words(correlated, "groups", "single nodes"),
                        words(asynchronous, "background", "waiting")
                    );
                    let shapes = words(weibull, "shape = 0.7\nlight-shape = 0.8", "");
                    let multiples = (0..count as u32).map(|place| 1 << place).collect();
                    let groups = words(correlated, GROUPS, "");
                    add(
                        name,
                        count,
                        shapes,
                        groups,
                        levels(count, asynchronous),
                        multiples,
                        120.0,
                    );
                }
            }
        }
    }
    let slow = level(LOCAL, (4, 10), false) + &level(FILES, (400, 150), true);
    add(
        "requests refused while a write lasts".into(),
        2,
        "",
        GROUPS,
        slow,
        vec![1, 2],
        90.0,
    );
    let rs = level(LOCAL, (4, 10), false)
        + &level(
            "kind = \"rs\"\ngroup = 8\nparity = 2\nstride = 12",
            (12, 40),
            false,
        )
        + &level(FILES, (60, 150), true);
    add(
        "Reed-Solomon with parity 2".into(),
        3,
        "",
        GROUPS,
        rs,
        vec![1, 2, 8],
        100.0,
    );
    let rare = levels(3, false);
    add(
        "multiples that do not divide each other".into(),
        3,
        "",
        GROUPS,
        rare,
        vec![1, 3, 10],
        80.0,
    );
    let long = level(LOCAL, (4, 200), false) + &level(FILES, (60, 900), false);
    add(
        "restarts as long as the time between failures".into(),
        2,
        "",
        GROUPS,
        long,
        vec![1, 6],
        100.0,
    );
    let memory = level(LOCAL, (4, 10), false)
        + &level(SHARED, (20, 40), false)
        + &level(FILES, (60, 150), false);
    add(
        "storage that forgets often".into(),
        4,
        "",
        GROUPS,
        memory,
        vec![1, 2, 12],
        100.0,
    );
    // The machine without racks stops every 1,327 s: of the writes to files one in eight ends.
    let seldom = level(PARTNER, (150, 340), true) + &level(FILES, (2700, 2800), true);
    add(
        "background writes that failures mostly end".into(),
        2,
        "",
        SUPPLIES,
        seldom,
        vec![1, 5],
        80.0,
    );
    let shapes = "shape = 1.5\nlight-shape = 0.6";
    add(
        "Weibull 1.5 and 0.6".into(),
        5,
        shapes,
        GROUPS,
        levels(5, true),
        vec![1, 2, 2, 4, 16],
        120.0,
    );
    found.extend(repaired());
    found
}

/// Servers that are away until they are repaired: times that are alike, and that differ; one kind, and
/// two; with and without background writes; and servers whose loss also stops the job.
fn repaired() -> Vec<Case> {
    let mut found = Vec::new();
    let all = |asynchronous| {
        level(PARTNER, (10, 20), asynchronous)
            + &level(SHARED, (20, 40), asynchronous)
            + &level(FILES, (60, 150), asynchronous)
    };
    for (sigma, median) in [("0", "1500 s"), ("1", "1200 s"), ("1.3", "900 s")] {
        for asynchronous in [false, true] {
            let repair = format!("repair = {{ median = \"{median}\", sigma = {sigma} }}\n");
            let machine = NODES.replace("SHAPES", "") + BUFFER + &repair + GROUPS;
            let words = if asynchronous {
                "background"
            } else {
                "waiting"
            };
            found.push(Case {
                name: format!("a buffer in repair, sigma {sigma}, {words}"),
                machine: machine + &all(asynchronous),
                pattern: Pattern {
                    interval: 110.0,
                    multiples: vec![1, 2, 8],
                },
            });
        }
    }
    let repair = "repair = { median = \"1200 s\", sigma = 1.2 }\n";
    let lossy = |stops: &str| {
        let files = format!("name = \"files\"\ncount = 1\nmtbf = \"40000 s\"\n{stops}{repair}");
        NODES
            .replace("SHAPES", "")
            .replace("name = \"files\"\ncount = 1\n", &files)
    };
    // Without it a job may lose all its levels, and runs are too short to tell what that costs.
    let archive = level(
        "kind = \"shared\"\nservers = \"archive\"",
        (120, 300),
        false,
    );
    for (name, stops) in [
        ("both buffer and files in repair", ""),
        (
            "files whose loss stops the job, in repair",
            "stops-jobs = true\n",
        ),
    ] {
        found.push(Case {
            name: name.into(),
            machine: lossy(stops) + BUFFER + repair + ARCHIVE + SUPPLIES + &all(false) + &archive,
            pattern: Pattern {
                interval: 110.0,
                multiples: vec![1, 2, 4, 16],
            },
        });
    }
    found
}

impl Case {
    /// The same with servers that are back at once.
    #[cfg(test)]
    pub(super) fn without_repair(&self) -> Case {
        let lines = self.machine.lines();
        let kept: Vec<&str> = lines.filter(|line| !line.starts_with("repair")).collect();
        Case {
            name: self.name.clone(),
            machine: kept.join("\n"),
            pattern: self.pattern.clone(),
        }
    }

    fn parts(&self) -> Result<(Machine, machine::Job, Vec<Level>)> {
        let machine = machine::machine(&self.machine, &self.name)?;
        let text = "nodes = 240\nwork = \"1000 h\"\ncheckpoint = \"1 GB\"\ncapture = \"1 s\"";
        let job = machine::job(text, &self.name, &machine)?;
        let levels = machine::priced(&machine, &job);
        Ok((machine, job, levels))
    }

    /// Analysis and simulation, with so many intervals in each run.
    ///
    /// # Errors
    /// None for the cases of [`cases`].
    pub fn compare(&self, intervals: u64, seed: u64) -> Result<Compared> {
        let (machine, job, levels) = self.parts()?;
        let rates = classes(&machine, &job, &levels, seed);
        let all: Vec<usize> = (0..levels.len()).collect();
        let question = Question::new(&job, &levels, &rates, &all);
        let expected = lifetime(&question, &self.pattern)?.overhead();
        let length = self.pattern.length();
        let intervals = intervals.div_ceil(length) * length;
        let simulated = estimate(&machine, &job, &levels, &self.pattern, intervals, seed);
        Ok(Compared {
            name: self.name.clone(),
            expected,
            simulated,
        })
    }
}
