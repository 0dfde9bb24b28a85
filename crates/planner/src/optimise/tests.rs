use super::*;
use crate::classes;
use crate::lifetime::lifetime;
use crate::machine::{self, Machine};

/// A machine like that of the seed's evaluation (FFMK 2020, section 3.5; the authors'
/// program): 50,000 nodes, five levels, 118 GB a node.
pub(crate) const LARGE: &str = r#"
name = "large"
[nodes]
count = 50000
mtbf = "8000 h"
light-mtbf = "20000 h"
[[groups]]
name = "rack"
size = 64
mtbf = "200000 h"
[[servers]]
name = "buffer"
count = 1
mtbf = "20000 h"
[[servers]]
name = "files"
count = 1
[[levels]]
kind = "local"
write = "15 GB/s"
read = "15 GB/s"
[[levels]]
kind = "xor"
group = 16
write = "8 GB/s"
read = "5 GB/s"
[[levels]]
kind = "partner"
distance = 64
write = "5 GB/s"
read = "5 GB/s"
[[levels]]
kind = "shared"
servers = "buffer"
write = "20 TB/s"
read = "20 TB/s"
[[levels]]
kind = "shared"
servers = "files"
write = "10 TB/s"
read = "10 TB/s"
"#;

pub(crate) fn large(gigabytes: u32) -> (Machine, Job, Vec<Level>, Classes) {
    let machine = machine::machine(LARGE, "m").expect("good");
    let text = format!(
        "nodes = 50000\nwork = \"100 h\"\ncheckpoint = \"{gigabytes} GB\"\nrestart = \"60 s\""
    );
    let job = machine::job(&text, "j", &machine).expect("good");
    let levels = machine::priced(&machine, &job);
    let classes = classes::classes(&machine, &job, &levels, 0);
    (machine, job, levels, classes)
}

#[test]
fn no_known_method_and_no_neighbour_is_better() {
    for gigabytes in [6, 60] {
        let (_, job, levels, classes) = large(gigabytes);
        let plan = best(&job, &levels, &classes).expect("a plan");
        let question = Question::new(&job, &levels, &classes, &plan.levels);
        for factor in [0.8, 0.95, 1.05, 1.25] {
            let pattern = Pattern {
                interval: plan.pattern.interval * factor,
                ..plan.pattern.clone()
            };
            let other = lifetime(&question, &pattern).expect("good");
            assert!(
                other.total > plan.lifetime.total * (1.0 - 1e-6),
                "{gigabytes} {factor}"
            );
        }
        let all: Vec<usize> = (0..levels.len()).collect();
        let whole = Question::new(&job, &levels, &classes, &all);
        for method in methods::Method::ALL {
            let Some((used, pattern)) = methods::plan(method, &whole) else {
                continue;
            };
            let question = Question::new(&job, &levels, &classes, &used);
            let other = lifetime(&question, &pattern).expect("good");
            assert!(
                other.total >= plan.lifetime.total * (1.0 - 1e-6),
                "{gigabytes} {method:?}: {other:?} {plan:?}"
            );
        }
    }
}

/// All patterns of two levels on a grid: none is better than what the search finds.
#[test]
fn the_search_finds_the_best_of_a_grid() {
    let (_, job, levels, classes) = large(20);
    let two = [levels[2].clone(), levels[4].clone()];
    let rates = classes.of(&[2, 4]);
    let plan = best(&job, &two, &rates).expect("a plan");
    let question = Question::new(&job, &two, &rates, &[0, 1]);
    for multiple in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
        for step in 0..24 {
            let interval = 10.0 * libm::pow(1.2, f64::from(step));
            let pattern = Pattern {
                interval,
                multiples: vec![1, multiple],
            };
            let other = with_effort(&question, &pattern, Effort::CLOSE, &mut 0).expect("good");
            assert!(
                other.total > plan.lifetime.total * (1.0 - 1e-3),
                "{pattern:?} {other:?} {plan:?}"
            );
        }
    }
}

#[test]
fn what_is_worth_most_is_what_costs_most() {
    let (_, job, levels, classes) = large(60);
    let plan = best(&job, &levels, &classes).expect("a plan");
    let question = Question::new(&job, &levels, &classes, &plan.levels);
    let found = sensitivity(&question, &plan.pattern).expect("good");
    assert!(found.windows(2).all(|pair| pair[0].saved >= pair[1].saved));
    let rarer = found
        .iter()
        .find(|one| one.input.starts_with("failures"))
        .expect("there");
    // Rarer failures save lost work and restarts: between them, about a tenth of both.
    let parts = plan.lifetime.lost + plan.lifetime.restart;
    assert!(
        rarer.saved > 0.05 * parts && rarer.saved < 0.2 * parts,
        "{rarer:?} {plan:?}"
    );
    assert!(
        found
            .iter()
            .all(|one| one.saved > -1e-6 * plan.lifetime.total),
        "{found:?}"
    );
}

#[test]
fn a_job_that_cannot_be_saved_in_time_is_told_why() {
    let (_, job, mut levels, classes) = large(240);
    levels.iter_mut().for_each(|level| level.cost *= 1000.0);
    let error = best(&job, &levels, &classes).expect_err("hopeless");
    assert!(error.reason().contains("stopped every"), "{error}");
    assert!(error.remedy().contains("fewer nodes"), "{error}");
}
