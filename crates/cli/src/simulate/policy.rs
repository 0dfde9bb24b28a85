//! `outlive simulate policy`: policies beside each other on machines that change.

use clap::Args;
use outlive_base::Result;
use outlive_simulator::jobs::steered::scenarios;
use serde::Serialize;

use crate::output;

#[derive(Args, Debug)]
pub struct PolicyOptions {
    /// Runs of each policy in each scenario, all with the same failures
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    runs: u64,
    /// Of all failures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    seed: u64,
    runs: u64,
    scenarios: Vec<ScenarioAnswer>,
}

#[derive(Serialize)]
struct ScenarioAnswer {
    name: String,
    policies: Vec<PolicyAnswer>,
}

#[derive(Serialize)]
struct PolicyAnswer {
    name: String,
    waste: f64,
    ratio: f64,
    half_width: f64,
}

/// Compares all policies; 0 whatever comes out, for a figure is no failure.
pub fn run(options: &PolicyOptions) -> Result<u8> {
    let mut answer = Answer {
        schema: "outlive.simulate.policy/1",
        seed: options.seed,
        runs: options.runs,
        scenarios: Vec::new(),
    };
    for scenario in scenarios()? {
        let found = scenario.compare(options.runs, options.seed);
        let policies = found.into_iter().map(|one| PolicyAnswer {
            name: one.policy,
            waste: one.mean,
            ratio: one.ratio,
            half_width: one.half_width,
        });
        answer.scenarios.push(ScenarioAnswer {
            name: scenario.name,
            policies: policies.collect(),
        });
    }
    if options.json {
        return output::json(&answer);
    }
    let head = ["", "waste", "over the one that knows", "95 %"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for scenario in &answer.scenarios {
        rows.push(vec![
            scenario.name.clone(),
            String::new(),
            String::new(),
            String::new(),
        ]);
        for policy in &scenario.policies {
            rows.push(vec![
                format!("  {}", policy.name),
                format!("{:.2} %", 100.0 * policy.waste),
                format!("{:.3}", policy.ratio),
                format!("+- {:.3}", policy.half_width),
            ]);
        }
    }
    output::text(&format!(
        "{}\n{} each, all with the same failures",
        output::table(&rows),
        outlive_base::count(options.runs, "run")
    ))
}
