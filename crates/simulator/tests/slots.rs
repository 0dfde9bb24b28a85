//! Service work in slots: the promises hold with it, and nodes do not say less of the coordinator's clock
//! than the truth.

use outlive_control::node::Planted;
use outlive_control::slots::Slots;
use outlive_simulator::job::{Options, Summary, sweep};

fn run(histories: u64, plant: Option<Planted>) -> Summary {
    let first = outlive_base::seed!();
    sweep(first..first + histories, 2, |options: &mut Options| {
        options.slots = Slots {
            period_ms: 400,
            length_ms: 40,
        };
        options.planted_node = plant;
    })
}

#[test]
fn histories_with_slots_keep_the_promises_and_clocks_are_as_far_off_as_is_said() {
    const HISTORIES: u64 = 40;
    let summary = run(HISTORIES, None);
    assert!(summary.failed.is_empty(), "{:?}", summary.failed);
    assert!(summary.clocks > 20 * HISTORIES, "{}", summary.clocks);
    assert!(summary.stable > 20 * HISTORIES, "{}", summary.stable);
}

#[test]
fn a_node_that_is_too_sure_of_the_clock_is_caught() {
    let summary = run(4, Some(Planted::SureOfClock));
    let lies = |(_, what): &(u64, String)| what.contains("wrong of the clock");
    assert!(summary.failed.iter().any(lies), "{:?}", summary.failed);
}
