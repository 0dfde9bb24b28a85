//! Many histories of whole jobs:
//! `cargo run -p outlive-simulator --example sweep -- FIRST COUNT [THREADS [THEME]]`. Ends with 1
//! if one breaks a promise.

use outlive_simulator::job::{Theme, sweep};

fn main() -> std::process::ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let at = |index: usize, default: u64| {
        let word = words.get(index).map(|text| text.parse().unwrap_or(0));
        word.unwrap_or(default)
    };
    let (first, count, threads) = (at(0, 0), at(1, 100), at(2, cores()));
    let named = |theme: &Theme| Some(format!("{theme:?}")) == words.get(3).cloned();
    let theme = Theme::ALL.into_iter().find(named);
    if theme.is_none() && words.len() > 3 {
        println!("themes: {:?}", Theme::ALL);
        return std::process::ExitCode::from(2);
    }
    let summary = sweep(first..first + count, threads, |options| {
        if let Some(theme) = theme {
            theme.apply(options);
        }
    });
    for (seed, violation) in &summary.failed {
        println!("seed {seed}: {violation}");
    }
    println!(
        "{} histories, {} failed, {} stable, {} incarnations, {} injections, {} late, {} waits, {} mended, \
         {} transferred, {} happenings",
        summary.histories,
        summary.failed.len(),
        summary.stable,
        summary.opened,
        summary.injected,
        summary.late,
        summary.waited,
        summary.mended,
        summary.transfers,
        summary.happenings
    );
    std::process::ExitCode::from(u8::from(!summary.failed.is_empty()))
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}
