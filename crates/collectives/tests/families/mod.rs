//! The machines of the scenarios, and how each is set for them.

use outlive_base::Time;
use outlive_collectives::engine::Wired;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::corrected::{self, Keep, Spread};
use outlive_protocols::ftco::{self, Plan};
use outlive_simulator::ftco::Subject;

use super::{MODEL, Scenario};

/// One of the machines that carry out collectives.
pub trait Family: Subject + Wired {
    const NAME: &'static str;
    /// Times in units of `unit`; death is told, so nothing is decided by the clock.
    fn config(scenario: &Scenario, unit: Time) -> Self::Config;
    /// As `config`, for a world in which nobody tells of a death: silence does.
    fn silent(scenario: &Scenario) -> Self::Config;
    /// At a root: enough trees are kept for the next broadcast.
    fn grown(&self, _root: u32) -> bool {
        true
    }
}

impl Family for ftco::Machine {
    const NAME: &'static str = "ftco";
    fn config(scenario: &Scenario, unit: Time) -> ftco::Config {
        let processes = scenario.processes;
        let plan = Plan::new(Shape::Binomial, Order::InOrder, processes, &MODEL).expect("a plan");
        ftco::Config {
            timeout: Time(unit.0 * 1_000_000),
            timeout_per_level: Time(0),
            patience: Time(unit.0 * 2_000_000),
            late: Time(unit.0 * 4_000_000),
            bound: Time(unit.0 * 8_000_000),
            ..ftco::Config::new(plan)
        }
    }
    fn silent(scenario: &Scenario) -> ftco::Config {
        ftco::Config {
            timeout: Time(1_000),
            patience: Time(2_000),
            ..ftco::Machine::config(scenario, Time(1))
        }
    }
}

impl Family for corrected::Machine {
    const NAME: &'static str = "corrected-tree";
    fn config(scenario: &Scenario, unit: Time) -> corrected::Config {
        let tree = Spread::Tree(Shape::Binomial);
        let keep = Keep {
            trees: scenario.trees,
            gossip: Time(8),
        };
        let config = corrected::Config::new(scenario.processes, tree, 1).expect("valid");
        let config = match scenario.trees {
            0 => config,
            _ => config.keeping(keep).expect("valid"),
        };
        corrected::Config {
            pace: Time(unit.0 / 20),
            timeout: Time(unit.0 * 1_000_000),
            patience: Time(unit.0 * 2_000_000),
            ask: Time(unit.0 * 1_000),
            late: Time(unit.0 * 4_000_000),
            bound: Time(unit.0 * 8_000_000),
            ..config
        }
    }
    fn silent(scenario: &Scenario) -> corrected::Config {
        corrected::Config {
            timeout: Time(1_000),
            patience: Time(2_000),
            ..corrected::Machine::config(scenario, Time(1))
        }
    }
    fn grown(&self, root: u32) -> bool {
        // f is 1.
        self.whole_trees(root)
            .is_some_and(|trees| trees.count_ones() > 1)
    }
}
