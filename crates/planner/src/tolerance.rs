//! f, the number of failures to tolerate, from a mean time between failures.
//!
//! Failures of a job that come independently and at a constant rate are a Poisson process:
//! in a time D with a mean time M between two of them in the whole job, their number N has
//!
//! P(N > f) = 1 - e^-m (m^0/0! + m^1/1! + ... + m^f/f!),   m = D / M,
//!
//! and f is the smallest number for which P(N > f) is at most the wanted risk. D is how
//! long the job runs between two times at which all its processes are alive, for a reduce
//! counts all who are dead. (That f may be chosen so: FFMK 2020, section 3.2.)

use outlive_base::{Code, Entity, Error, Result};

/// The risk that is taken if none is named.
pub const RISK: f64 = 1e-6;
/// No smaller risk: the sums below are exact to about that.
pub const RISK_MIN: f64 = 1e-12;
/// Most failures expected in the time.
const MEAN_MAX: f64 = 1e6;

/// The smallest f with P(N > f) at most `risk` in `duration`, for failures of the whole
/// job that are `mtbf` apart on average (both in one unit).
///
/// # Errors
/// [`Code::Config`] if a time is not positive, the risk not between [`RISK_MIN`] and 1, or
/// more than a million failures are to be expected.
pub fn failures(mtbf: f64, duration: f64, risk: f64) -> Result<u32> {
    let refuse = |what: &str, value: f64, remedy: &str| {
        let entity = Entity::Option(what.into());
        Err(Error::new(Code::Config, entity, value.to_string(), remedy))
    };
    for (what, value) in [("MTBF", mtbf), ("duration", duration)] {
        if !(value.is_finite() && value > 0.0) {
            return refuse(what, value, "give a positive number of seconds");
        }
    }
    if !(RISK_MIN..1.0).contains(&risk) {
        return refuse("risk", risk, "give a probability from 1e-12 to below 1");
    }
    let mean = duration / mtbf;
    if mean > MEAN_MAX {
        return refuse("duration / MTBF", mean, "give a shorter duration");
    }
    Ok(smallest(mean, risk))
}

fn smallest(mean: f64, risk: f64) -> u32 {
    // Beyond this the rest of the sum is far below RISK_MIN (Chernoff).
    let last = (mean + 12.0 * libm::sqrt(mean) + 60.0) as u32;
    let log = |k: u32| libm::log(mean / f64::from(k));
    // ln of m^k/k! e^-m, from which no term underflows.
    let mut term = -mean + (1..=last).map(log).sum::<f64>();
    let mut tail = 0.0;
    // From the smallest terms up, so that none is lost against a larger one.
    for f in (0..last).rev() {
        // Here the term is that of f + 1.
        tail += libm::exp(term);
        if tail > risk {
            return f + 1;
        }
        term -= log(f + 1);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(N > f), summed the plain way; good for small means.
    fn exceeded(mean: f64, f: u32) -> f64 {
        let (mut term, mut sum) = (libm::exp(-mean), 0.0);
        for k in 0..=f {
            sum += term;
            term *= mean / f64::from(k + 1);
        }
        1.0 - sum
    }

    #[test]
    fn f_is_the_smallest_that_keeps_the_risk() {
        for mean in [1e-9, 1e-3, 0.02, 0.5, 1.0, 3.0, 20.0] {
            for risk in [0.5, 0.1, 1e-3, 1e-6, 1e-9] {
                let f = failures(1.0, mean, risk).expect("good");
                assert!(exceeded(mean, f) <= risk * 1.000_001, "{mean} {risk}: {f}");
                if f > 0 {
                    assert!(
                        exceeded(mean, f - 1) > risk * 0.999_999,
                        "{mean} {risk}: {f}"
                    );
                }
            }
        }
    }

    #[test]
    fn known_values() {
        // Tables of the Poisson distribution: P(N > 3 | m = 1) = 0.0190, P(N > 2) = 0.0803.
        assert_eq!(failures(86_400.0, 86_400.0, 0.02).expect("good"), 3);
        assert_eq!(failures(86_400.0, 86_400.0, 0.019).expect("good"), 3);
        assert_eq!(failures(86_400.0, 86_400.0, 0.0189).expect("good"), 4);
        // A day between failures, an hour of running: about 1 in 170,000 for three.
        assert_eq!(failures(86_400.0, 3_600.0, RISK).expect("good"), 3);
        // Many: the normal distribution, m + 4.75 sqrt(m) for 1e-6.
        let many = failures(1.0, 10_000.0, RISK).expect("good");
        assert!((10_475..10_485).contains(&many), "{many}");
        assert!(failures(1.0, 1e6, RISK).expect("good") > 1_000_000);
    }

    #[test]
    fn what_is_no_time_or_risk_is_refused() {
        for (mtbf, duration, risk) in [
            (0.0, 1.0, 0.1),
            (1.0, -1.0, 0.1),
            (f64::NAN, 1.0, 0.1),
            (1.0, f64::INFINITY, 0.1),
            (1.0, 1.0, 0.0),
            (1.0, 1.0, 1.0),
            (1.0, 2e6, 0.1),
        ] {
            let error = failures(mtbf, duration, risk).expect_err("no sense");
            assert_eq!(error.code(), Code::Config);
        }
    }
}
