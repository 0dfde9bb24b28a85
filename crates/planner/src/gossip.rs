//! How far gossip gets, and how long it should last.

use outlive_base::Time;
use outlive_protocols::broadcast::LogP;
use outlive_protocols::corrected::MODEL;

/// The expected number of live processes that have the message at the times 0, 1, ...,
/// `last`, if gossip ends at `until` and `dead` of `processes` are dead.
///
/// C(t) = N - (N - C(t-1)) (1 - 1/(P-1))^S(t), where S(t) sends end their reception at
/// t: those that began L + 2o earlier (mean-field form of Hoefler et al., IPDPS 2017,
/// section III).
pub fn expected_coloured(
    processes: u32,
    dead: u32,
    model: &LogP,
    until: u64,
    last: u64,
) -> Vec<f64> {
    let live = f64::from(processes - dead.min(processes.saturating_sub(1)));
    let missed = libm::log1p(-1.0 / (f64::from(processes) - 1.0).max(1.000_001));
    // What arrives at once would have to be known before it is computed: a step later.
    let (delay, gap) = (model.delay().max(1) as usize, model.gap as usize);
    // Who begins at t sends at t, t + gap, ...: sends(t) = begun(t) + sends(t - gap).
    let mut coloured: Vec<f64> = Vec::new();
    let mut sends: Vec<f64> = Vec::new();
    for t in 0..=last as usize {
        let before = t.checked_sub(1).map_or(0.0, |at| coloured[at]);
        let arriving = t
            .checked_sub(delay)
            .filter(|&at| (at as u64) < until)
            .map_or(0.0, |at| sends[at]);
        let now = if t == 0 {
            1.0
        } else {
            live - (live - before) * libm::exp(missed * arriving)
        };
        let again = t.checked_sub(gap).map_or(0.0, |at| sends[at]);
        sends.push(now - before + again);
        coloured.push(now);
    }
    coloured
}

/// The longest gossip that is tried, in steps of max(gap, delay).
const STEPS_MAX: u64 = 200;

/// The gossip time with the least expected end of a checked correction: for every time
/// the expected longest gap K of the uncoloured, for which both neighbours send K
/// messages to each side. Units are those of the model.
pub fn best_time(processes: u32, dead: u32, model: &LogP) -> u64 {
    best_time_spaced(processes, dead, model, 1)
}

/// The same if those that gossip stand so many places apart on the ring of the correction.
pub fn best_time_spaced(processes: u32, dead: u32, model: &LogP, spacing: u32) -> u64 {
    if processes < 3 {
        return model.gap;
    }
    // Coarser units for slow networks keep the scan short.
    let unit = (model.delay() / 64).max(model.gap / 16).max(1);
    let coarse = LogP {
        latency: model.latency / unit,
        overhead: model.overhead / unit,
        gap: (model.gap / unit).max(1),
    };
    let step = coarse.gap;
    let most = STEPS_MAX * coarse.gap.max(coarse.delay());
    let mut best = (f64::INFINITY, step);
    // No process sends before it has heard: the least that is worth a look.
    for until in (1..=most / step).map(|n| n * step) {
        let last = until + coarse.delay();
        let coloured = expected_coloured(processes, dead, &coarse, until, last);
        let reached = coloured.last().copied().unwrap_or(1.0);
        let share = reached / f64::from(processes);
        let gap = longest_expected(f64::from(processes), share.min(1.0 - 1e-12));
        let places = gap * f64::from(spacing);
        let end = until as f64 + 2.0 * coarse.gap as f64 * places;
        if end < best.0 {
            best = (end, until);
        }
        // Longer gossip costs more than the best that was found: it cannot win.
        if until as f64 > best.0 {
            break;
        }
    }
    best.1 * unit
}

/// The gossip time with which `trees` kept trees over so many processes grow well, in the
/// units of [`MODEL`].
pub fn kept_trees_time(processes: u32, trees: u32) -> Time {
    let members = processes.saturating_sub(1).div_ceil(trees.max(1)) + 1;
    // The root serves the trees in turns.
    let turns = u64::from(trees.saturating_sub(1)) * MODEL.gap;
    Time(best_time_spaced(members, 0, &MODEL, trees) + turns)
}

/// The run length of the missed that is expected to be exceeded by less than half a run
/// on a ring of n places, of which `share` are reached.
fn longest_expected(n: f64, share: f64) -> f64 {
    let missed = 1.0 - share;
    (libm::log(2.0 * n * share.max(1.0 / n)) / -libm::log(missed)).max(0.0)
}
