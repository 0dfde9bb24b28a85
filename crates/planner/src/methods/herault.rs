//! T. Herault, Y. Robert, A. Bouteiller, D. Arnold, K. Ferreira, G. Bosilca, J. Dongarra,
//! *Optimal Cooperative Checkpointing for Shared High-Performance Computing Platforms*,
//! IPDPSW 2018: jobs share storage that serves one checkpoint at a time. The waste
//!
//! sum_i (n_i q_i / N) (C_i / P_i + (q_i / mu) (P_i / 2 + R_i))
//!
//! is least, subject to sum_i n_i C_i / P_i <= 1, for
//! P_i = sqrt(2 mu N / q_i^2 (q_i / N + lambda) C_i) (equations 6 to 8), lambda >= 0 the
//! least that satisfies it.

/// Jobs of one class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct JobClass {
    /// Jobs that run at a time.
    pub jobs: f64,
    /// Nodes of each.
    pub nodes: f64,
    /// Seconds of a checkpoint, alone on the storage.
    pub cost: f64,
    /// Seconds of a restart.
    pub restart: f64,
}

/// The best periods and what they waste.
#[derive(Clone, PartialEq, Debug)]
pub struct Shared {
    /// Seconds from one checkpoint to the next, of each class.
    pub periods: Vec<f64>,
    /// Share of the platform that is wasted: no schedule wastes less.
    pub waste: f64,
    /// The multiplier; 0: the storage is no constraint, and the periods are Young's.
    pub lambda: f64,
}

/// The least waste of classes on `nodes` nodes, each with an MTBF of `mtbf` seconds.
pub fn best(classes: &[JobClass], nodes: f64, mtbf: f64) -> Shared {
    let period = |class: &JobClass, lambda: f64| {
        let weight = class.nodes / nodes + lambda;
        libm::sqrt(2.0 * mtbf * nodes * weight * class.cost) / class.nodes
    };
    let load = |lambda: f64| {
        let each = classes
            .iter()
            .map(|class| class.jobs * class.cost / period(class, lambda));
        each.sum::<f64>()
    };
    let mut lambda = 0.0;
    if load(0.0) > 1.0 {
        let (mut low, mut high) = (0.0, 1.0);
        while load(high) > 1.0 {
            high *= 2.0;
        }
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            match load(middle) > 1.0 {
                true => low = middle,
                false => high = middle,
            }
        }
        lambda = high;
    }
    let periods: Vec<f64> = classes.iter().map(|class| period(class, lambda)).collect();
    let waste = |(class, period): (&JobClass, &f64)| {
        let failing = class.nodes / mtbf * (period / 2.0 + class.restart);
        class.jobs * class.nodes / nodes * (class.cost / period + failing)
    };
    Shared {
        waste: classes.iter().zip(&periods).map(waste).sum(),
        periods,
        lambda,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workload of Cielo as in the script that the authors publish
    /// (github.com/SMURFSorg/InterferingCheckpoints, maple/celio.mpl); the values were
    /// computed from its formulas by a program of another language, except that the script
    /// evaluates the periods with min(0, lambda), which ignores the constraint of the paper's
    /// equation 6, and this with the lambda that it found.
    #[test]
    fn cielo() {
        for (bandwidth, system_hours, lambda, waste, period) in [
            (40.0, 1.0, 0.169_592_872, 0.388_851_030_4, 25_428.971_353),
            (40.0, 2.0, 0.048_703_531, 0.234_375_977_5, 24_597.919_558),
            (80.0, 8.0, 0.0, 0.073_873_749_6, 25_604.479_609),
            (160.0, 24.0, 0.0, 0.029_298_823_5, 31_358.955_085),
        ] {
            let rows = [
                (8.166_648_934_072_823, 1024.0, 1310.72),
                (11.161_086_876_566_191, 256.0, 378.88),
                (1.965_873_256_667_908_5, 2048.0, 5734.4),
                (1.353_602_571_441_391_3, 1875.0, 1275.0),
            ];
            let class = |&(jobs, nodes, cost): &(f64, f64, f64)| {
                let cost = cost * 40.0 / bandwidth;
                JobClass {
                    jobs,
                    nodes,
                    cost,
                    restart: cost,
                }
            };
            let classes: Vec<JobClass> = rows.iter().map(class).collect();
            let mtbf = system_hours * 3600.0 * 17_784.0;
            let found = best(&classes, 17_784.0, mtbf);
            assert!((found.lambda - lambda).abs() < 1e-8, "{found:?}");
            assert!((found.waste / waste - 1.0).abs() < 1e-8, "{found:?}");
            assert!((found.periods[0] / period - 1.0).abs() < 1e-8, "{found:?}");
        }
    }
}
