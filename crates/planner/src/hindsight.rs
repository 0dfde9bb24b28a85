//! A run that is over: what it paid for checkpoints, lost computing and restarts, and the
//! interval that would have paid least with what is now known.
//!
//! Pure arithmetic on what a report holds; the failures that came are replayed by
//! `outlive_simulator::jobs`, not assumed.

use crate::interval::Costs;

/// What a report says, in seconds where not said otherwise.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// Wall-clock time.
    pub seconds: f64,
    /// Checkpoints that were captured.
    pub taken: u64,
    /// For which each stopped the program.
    pub blocked: f64,
    /// The newest version that was stable at the end.
    pub last_version: u64,
    /// Each failure: when, versions that were computed again, from the detection until the
    /// program computed.
    pub failures: Vec<(f64, u64, f64)>,
}

/// What a run paid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Paid {
    /// Computing that was kept.
    pub work: f64,
    /// Stopped by checkpoints.
    pub checkpoint: f64,
    /// Computing that was done again.
    pub lost: f64,
    /// From failures until the program computed.
    pub restart: f64,
    /// Computing of one version.
    pub version: f64,
    /// Computing between two checkpoints.
    pub interval: f64,
}

impl Run {
    /// What it paid. Versions are taken to be equally long. None: nothing was computed.
    pub fn paid(&self) -> Option<Paid> {
        let restart: f64 = self.failures.iter().map(|failure| failure.2).sum();
        let again: u64 = self.failures.iter().map(|failure| failure.1).sum();
        let checkpoint = self.taken as f64 * self.blocked;
        let computed = self.seconds - restart - checkpoint;
        let versions = self.last_version + again;
        if computed <= 0.0 || versions == 0 {
            return None;
        }
        let version = computed / versions as f64;
        let lost = again as f64 * version;
        Some(Paid {
            work: computed - lost,
            checkpoint,
            lost,
            restart,
            version,
            interval: computed / self.taken.max(1) as f64,
        })
    }

    /// Costs as they turned out. None without a failure, or where checkpoints took no time.
    pub fn costs(&self) -> Option<Costs> {
        let failures = self.failures.len() as f64;
        let restart = self.failures.iter().map(|failure| failure.2).sum::<f64>() / failures;
        Costs::new(self.blocked, restart, self.seconds / failures).ok()
    }

    /// The interval that one would choose with these costs: the best for the mean time
    /// between the failures that came. None as [`Run::costs`].
    pub fn advised(&self) -> Option<f64> {
        Some(self.costs()?.best())
    }

    /// When the failures came, in seconds of computing and checkpoints, without the restarts
    /// before them.
    pub fn moments(&self) -> Vec<f64> {
        let mut before = 0.0;
        let of = self.failures.iter().map(|&(at, _, restart)| {
            let moment = (at - before).max(0.0);
            before += restart;
            moment
        });
        of.collect()
    }
}

/// What a run of `work` seconds would have paid at an interval, had the same failures come at
/// the same moments of its uptime: (checkpoints, lost, restarts).
pub fn replayed(run: &Run, work: f64, interval: f64) -> (f64, f64, f64) {
    let mut failures = run
        .moments()
        .into_iter()
        .zip(run.failures.iter().map(|one| one.2))
        .peekable();
    let (mut up, mut saved, mut since) = (0.0, 0.0, 0.0);
    let (mut checkpoint, mut lost, mut restart) = (0.0, 0.0, 0.0);
    while saved < work {
        let step = interval.min(work - saved);
        // The last interval is not followed by a checkpoint.
        let cost = if saved + step < work {
            run.blocked
        } else {
            0.0
        };
        let end = since + step + cost;
        match failures.next_if(|(at, _)| *at < end) {
            Some((at, seconds)) => {
                let done = (at - since).clamp(0.0, step);
                lost += done;
                checkpoint += (at - since - done).max(0.0);
                restart += seconds;
                up = at.max(up);
                since = up;
            }
            None => {
                saved += step;
                checkpoint += cost;
                up = end;
                since = up;
            }
        }
    }
    (checkpoint, lost, restart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        Run {
            seconds: 1_000.0,
            taken: 9,
            blocked: 2.0,
            last_version: 900,
            failures: vec![(350.0, 40, 20.0), (700.0, 2, 20.0)],
        }
    }

    /// 1000 s less 40 s of restarts and 18 s of checkpoints are 942 versions.
    #[test]
    fn what_was_paid_adds_up() {
        let paid = run().paid().expect("something");
        assert_eq!(
            (paid.version, paid.lost, paid.restart, paid.checkpoint),
            (1.0, 42.0, 40.0, 18.0)
        );
        assert_eq!(
            paid.work + paid.lost + paid.restart + paid.checkpoint,
            1_000.0
        );
        let costs = run().costs().expect("failures");
        assert_eq!((costs.cost, costs.restart, costs.mtbf), (2.0, 20.0, 500.0));
        assert_eq!(Run::default().paid(), None);
        assert_eq!(Run::default().advised(), None);
    }

    /// By hand: failures at 350 and 680 s of uptime; 100 s and 2 s of saving; the first
    /// loses 44 s (from 306 on), the second 24 s (of 656 to 758), and 300 s of work are left.
    #[test]
    fn the_same_failures_at_another_interval() {
        assert_eq!(run().moments(), [350.0, 680.0]);
        let (checkpoint, lost, restart) = replayed(&run(), 900.0, 100.0);
        // Saved at 102, 204, 306; then 452, 554, 656; then 782, 884; the ninth ends it.
        assert_eq!((checkpoint, lost, restart), (16.0, 68.0, 40.0));
        let (checkpoint, lost, _) = replayed(&run(), 900.0, 1_000.0);
        assert_eq!((checkpoint, lost), (0.0, 680.0));
    }
}
