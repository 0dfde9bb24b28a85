//! The spectrum of a series of fixed time quanta: periodic noise (a timer, a daemon) stands
//! out at its frequency and the multiples of it.
//!
//! Fixed time quanta are sampled at equal distances, so the transform of their counts is
//! meaningful; that of fixed work is not (Sottile and Minnich, Cluster 2004).

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// The most samples that are transformed; a longer series is averaged over pieces (Welch).
const PIECE_MAX: usize = 1 << 14;
/// Points of the picture.
const POINTS_MAX: usize = 512;
/// Peaks that are named.
const PEAKS_MAX: usize = 8;

/// Power by frequency.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spectrum {
    /// Distance of two frequencies before thinning, in Hz.
    pub resolution_hz: f64,
    /// Frequency in Hz and power, where the mean of all powers is 1; thinned to the largest.
    pub points: Vec<(f64, f64)>,
    /// The highest local peaks, highest first.
    pub peaks: Vec<(f64, f64)>,
}

/// The spectrum of a series sampled every `interval_s` seconds, without its mean; `None` for
/// fewer than 16 samples or a series that does not vary.
pub fn spectrum(series: &[f64], interval_s: f64) -> Option<Spectrum> {
    if series.len() < 16 || interval_s.is_nan() || interval_s <= 0.0 {
        return None;
    }
    let size = PIECE_MAX.min(1 << series.len().ilog2());
    let mut power = vec![0.0; size / 2];
    for piece in series.chunks_exact(size) {
        let mean = piece.iter().sum::<f64>() / size as f64;
        let hann = |at: usize| 0.5 - 0.5 * (2.0 * PI * at as f64 / size as f64).cos();
        let mut re: Vec<f64> = (0..size).map(|at| (piece[at] - mean) * hann(at)).collect();
        let mut im = vec![0.0; size];
        transform(&mut re, &mut im);
        for at in 1..size / 2 {
            power[at] += re[at] * re[at] + im[at] * im[at];
        }
    }
    let level = power.iter().sum::<f64>() / (power.len() - 1) as f64;
    if level <= 0.0 {
        return None;
    }
    let resolution_hz = 1.0 / (interval_s * size as f64);
    let point = |at: usize| (at as f64 * resolution_hz, power[at] / level);
    let mut peaks: Vec<(f64, f64)> = (2..power.len() - 1)
        .filter(|&at| power[at] > power[at - 1] && power[at] >= power[at + 1])
        .map(point)
        .collect();
    peaks.sort_by(|a, b| b.1.total_cmp(&a.1));
    peaks.truncate(PEAKS_MAX);
    let run = power.len().div_ceil(POINTS_MAX);
    let starts = (1..power.len()).step_by(run);
    let largest = starts.filter_map(|start| {
        let places = start..(start + run).min(power.len());
        places.map(point).max_by(|a, b| a.1.total_cmp(&b.1))
    });
    Some(Spectrum {
        resolution_hz,
        points: largest.collect(),
        peaks,
    })
}

/// The discrete Fourier transform in place; the length is a power of two (Cooley, Tukey).
fn transform(re: &mut [f64], im: &mut [f64]) {
    let size = re.len();
    let bits = size.trailing_zeros();
    for at in 0..size {
        let to = at.reverse_bits() >> (usize::BITS - bits);
        if at < to {
            re.swap(at, to);
            im.swap(at, to);
        }
    }
    let mut half = 1;
    while half < size {
        for k in 0..half {
            let (sin, cos) = (-PI * k as f64 / half as f64).sin_cos();
            for a in (k..size).step_by(2 * half) {
                let b = a + half;
                let (x, y) = (re[b] * cos - im[b] * sin, re[b] * sin + im[b] * cos);
                (re[b], im[b]) = (re[a] - x, im[a] - y);
                (re[a], im[a]) = (re[a] + x, im[a] + y);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    #[test]
    fn the_transform_is_that_of_the_definition() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        let input: Vec<f64> = (0..32).map(|_| random.below(1_000) as f64).collect();
        let (mut re, mut im) = (input.clone(), vec![0.0; 32]);
        transform(&mut re, &mut im);
        for k in 0..32 {
            let angle = |n: usize| -2.0 * PI * (k * n) as f64 / 32.0;
            let x: f64 = (0..32).map(|n| input[n] * angle(n).cos()).sum();
            let y: f64 = (0..32).map(|n| input[n] * angle(n).sin()).sum();
            assert!((re[k] - x).abs() < 1e-6 && (im[k] - y).abs() < 1e-6, "{k}");
        }
    }

    #[test]
    fn a_planted_period_is_the_highest_peak() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        // A timer of 250 Hz seen in quanta of 0.5 ms, under noise of a third of its size.
        let timer = |at: usize| 30.0 * (2.0 * PI * 250.0 * at as f64 * 0.5e-3).sin();
        let series: Vec<f64> = (0..40_000)
            .map(|at| 1_000.0 - timer(at) - random.below(20) as f64)
            .collect();
        let of = spectrum(&series, 0.5e-3).unwrap();
        assert!(
            (of.peaks[0].0 - 250.0).abs() <= 2.0 * of.resolution_hz,
            "{:?}",
            of.peaks
        );
        assert!(of.points.iter().any(|point| *point == of.peaks[0]));
        // Without the timer nothing stands out.
        let plain: Vec<f64> = (0..40_000).map(|_| random.below(20) as f64).collect();
        assert!(spectrum(&plain, 0.5e-3).unwrap().peaks[0].1 < of.peaks[0].1 / 10.0);
        assert_eq!(spectrum(&[1.0; 64], 1.0), None);
        assert_eq!(spectrum(&[1.0, 2.0], 1.0), None);
    }
}
