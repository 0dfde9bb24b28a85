//! Replays one history of a job and prints it:
//! `cargo run -p outlive-simulator --example history -- SEED [TAIL_LINES [THEME]]`.

use outlive_simulator::job::{Options, Theme, explain};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let at = |index: usize| words.get(index).and_then(|text| text.parse::<u64>().ok());
    let seed = at(0).unwrap_or(0);
    let tail = at(1).unwrap_or(u64::MAX) as usize;
    let mut options = Options::from_seed(seed);
    let named = |theme: &Theme| Some(format!("{theme:?}")) == words.get(2).cloned();
    if let Some(theme) = Theme::ALL.into_iter().find(named) {
        theme.apply(&mut options);
    }
    let outcome = explain(seed, options);
    for line in &outcome.lines[outcome.lines.len().saturating_sub(tail)..] {
        println!("{line}");
    }
    println!("{:#?}", outcome.options);
    println!(
        "seed {seed}: {} happenings, {} stable, {} incarnations, trace {:016x}",
        outcome.happenings, outcome.stable, outcome.opened, outcome.trace
    );
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
}
