//! Many histories.

use super::{Options, Outcome, run_history};

/// What became of many histories.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Histories.
    pub histories: u64,
    /// Seeds whose history breaks a promise, with the first violation.
    pub failed: Vec<(u64, String)>,
    /// Versions declared stable, over all.
    pub stable: u64,
    /// Incarnations opened, over all.
    pub opened: u64,
    /// Injections that were carried out, over all.
    pub injected: u64,
    /// Times at which a job was said to stand still, over all.
    pub hangs: u64,
    /// Copies at `shared` that were made of containers, over all.
    pub transfers: u64,
    /// Writes that appeared in shared storage after the end of their process, over all.
    pub late: u64,
    /// Occasions at which something was to end, over all.
    pub met: u64,
    /// Times at which a node has said how the coordinator's clock stands to its own, over all.
    pub clocks: u64,
    /// Waits of ranks that have ended, over all.
    pub waited: u64,
    /// Copies that were mended before they were needed, over all.
    pub mended: u64,
    /// Openings that went back behind what was stable, over all.
    pub behind: u64,
    /// Happenings, over all.
    pub happenings: u64,
}

/// A history whose panic, a finding of its own, says which seed repeats it.
fn run_history_named(seed: u64, options: Options) -> Outcome {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the history of seed {} panicked", self.0);
            }
        }
    }
    let _named = Named(seed);
    run_history(seed, options, false)
}

/// Many histories on some threads; the result does not depend on their number.
/// `change` may alter the options of a seed.
pub fn sweep(
    seeds: impl IntoIterator<Item = u64>,
    threads: u64,
    change: impl Fn(&mut Options) + Sync,
) -> Summary {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let threads = threads.max(1);
    let one = |start: u64| {
        let mut summary = Summary::default();
        for &seed in seeds.iter().skip(start as usize).step_by(threads as usize) {
            let mut options = Options::from_seed(seed);
            change(&mut options);
            let outcome = run_history_named(seed, options);
            summary.histories += 1;
            summary.stable += outcome.stable as u64;
            summary.opened += outcome.opened as u64;
            summary.injected += outcome.injected as u64;
            summary.hangs += outcome.hangs;
            summary.late += outcome.late;
            summary.met += outcome.met;
            summary.clocks += outcome.clocks;
            summary.waited += outcome.waited;
            summary.mended += outcome.mended;
            summary.transfers += outcome.transfers;
            summary.behind += outcome.behind;
            summary.happenings += outcome.happenings;
            if let Some(first) = outcome.violations.first() {
                summary.failed.push((seed, first.clone()));
            }
        }
        summary
    };
    let parts: Vec<Summary> = std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || one(t))).collect();
        // A panic in a history is a finding: pass it on.
        let join = |handle: std::thread::ScopedJoinHandle<'_, Summary>| {
            handle
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    });
    let mut total = Summary::default();
    for part in parts {
        total.histories += part.histories;
        total.stable += part.stable;
        total.opened += part.opened;
        total.injected += part.injected;
        total.hangs += part.hangs;
        total.late += part.late;
        total.met += part.met;
        total.clocks += part.clocks;
        total.waited += part.waited;
        total.mended += part.mended;
        total.transfers += part.transfers;
        total.behind += part.behind;
        total.happenings += part.happenings;
        total.failed.extend(part.failed);
    }
    total.failed.sort();
    total
}
