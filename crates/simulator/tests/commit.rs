//! Seeded histories of the commit protocol.

use outlive_simulator::commit::{Options, explain, run_seed, sweep};

#[test]
fn a_thousand_histories_keep_the_promises() {
    let summary = sweep(0..1000, 1, |_| {});
    println!("{summary:?}");
    for (seed, first) in summary.failed.iter().take(10) {
        println!("seed {seed}: {first}");
    }
    assert!(
        summary.failed.is_empty(),
        "{} seeds failed",
        summary.failed.len()
    );
}

#[test]
fn same_seed_same_history() {
    for seed in [1, 2, 3] {
        let (a, b) = (explain(seed, Options::from_seed(seed)), run_seed(seed));
        assert_eq!((a.trace, a.happenings), (b.trace, b.happenings));
    }
}
