//! Whether spare nodes suffice.
//!
//! Nodes that fail independently and are repaired side by side are M/G/infinity: the number
//! in repair has a Poisson distribution whose mean is the rate of losses times the mean time
//! of repair, whatever the distribution of that time (C. Palm, 1938). A loss meets the
//! system as any other moment does, so it finds no spare with P(in repair >= spares).
//! Groups that fall together come in batches, which this takes apart: with many of them it
//! is too hopeful.

use crate::machine::{Job, Machine};

/// Nodes in repair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct InRepair {
    /// On average.
    pub mean: f64,
}

impl InRepair {
    /// For a job on a machine; none without a time of repair.
    pub fn of(machine: &Machine, job: &Job) -> Option<InRepair> {
        let repair = machine.nodes.repair?;
        let single = machine
            .nodes
            .fatal
            .map_or(0.0, |life| f64::from(job.nodes) / life.mtbf);
        let groups = machine.groups.iter().map(|group| {
            let nodes: usize = (0..group.sets(job.nodes))
                .map(|set| group.set(set, job.nodes).len())
                .sum();
            nodes as f64 * group.hits / group.life.mtbf
        });
        let mean = (single + groups.sum::<f64>()) * repair.mean();
        Some(InRepair { mean })
    }

    /// The probability that a lost node finds none of so many spares.
    pub fn none_left(&self, spares: u32) -> f64 {
        let mut term = libm::exp(-self.mean);
        let mut below = 0.0;
        for k in 0..spares {
            below += term;
            term *= self.mean / f64::from(k + 1);
        }
        (1.0 - below).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;

    #[test]
    fn the_mean_is_littles_law_and_the_tail_is_poissons() {
        let text = "[nodes]\ncount = 100\nmtbf = \"1000 h\"\nrepair = { median = \"10 h\", sigma = 0 }\n\
            [[groups]]\nname = \"rack\"\nsize = 10\nmtbf = \"10000 h\"\nhits = 0.5\n\
            [[levels]]\nkind = \"local\"\ncost = \"1 s\"\nrestart = \"1 s\"";
        let machine = machine::machine(text, "m").expect("good");
        let job = machine::job(
            "nodes = 100\nwork = \"1 h\"\ncheckpoint = \"1 GB\"",
            "j",
            &machine,
        )
        .expect("good");
        let found = InRepair::of(&machine, &job).expect("repaired");
        // 0.1 nodes an hour alone and 10 racks of 10, half of each, every 10,000 h.
        assert!((found.mean - 10.0 * (0.1 + 0.005)).abs() < 1e-9);
        // Tables of the Poisson distribution: P(N >= 3 | 1) = 0.0803.
        let one = InRepair { mean: 1.0 };
        assert!((one.none_left(3) - 0.080_30).abs() < 1e-5);
        assert_eq!(one.none_left(0), 1.0);
    }
}
