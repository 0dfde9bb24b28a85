//! From samples to verdicts: what was read before is remembered as far as it is needed.

use std::collections::{BTreeMap, VecDeque};

use outlive_base::Time;

use super::limits::Limits;
use super::report::{Change, Finding, Report, Verdict};
use super::sensors::{ALL, Judged, Sample, Sensor};

/// Samples that are judged at most; the rest is counted.
pub const SAMPLES_MAX: usize = 1_024;
/// Longest name of a source that is kept, in bytes.
const SOURCE_BYTES_MAX: usize = 64;
/// What gets better is believed when so many readings in a row say so: a value around its limit is
/// one finding, not many.
const CALM_READINGS: u32 = 3;
/// A window is kept in so many parts: what was added is exact to one of them.
const PARTS: u64 = 24;
/// What has gone is shown for so long.
const GONE_FOR: Time = Time::from_secs(3_600);
/// A counter of 32 bits that is at most so far from its end, and then small, has wrapped.
const WRAP: f64 = 4_294_967_296.0;
const NEAR_WRAP: f64 = WRAP * 0.75;

/// See the module.
#[derive(Clone, Debug)]
pub struct Judge {
    limits: Limits,
    /// By sensor and source.
    kept: BTreeMap<(Sensor, String), Kept>,
}

/// What is remembered of a sensor.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// When it was read last, and what it said.
    last: Option<(Time, f64)>,
    /// What was added since the first reading.
    added: f64,
    /// The same at earlier moments, for its window.
    points: VecDeque<(Time, f64)>,
    /// What it is thought to be.
    verdict: Verdict,
    /// So many readings in a row were better.
    better: u32,
    /// Since when it is gone.
    gone: Option<Time>,
}

impl Judge {
    /// One that has read nothing yet.
    pub const fn new(limits: Limits) -> Judge {
        Judge {
            limits,
            kept: BTreeMap::new(),
        }
    }

    /// Judges what was read at `now`. Also tells what is worse than before, or well again.
    pub fn judge(&mut self, now: Time, samples: &[Sample]) -> (Report, Vec<Change>) {
        let mut report = Report {
            left_out: samples.len().saturating_sub(SAMPLES_MAX),
            ..Report::default()
        };
        let mut changes = Vec::new();
        let mut seen: BTreeMap<(Sensor, String), Finding> = BTreeMap::new();
        for sample in samples.iter().take(SAMPLES_MAX) {
            let key = (sample.sensor, name(&sample.source));
            let kept = self.kept.entry(key.clone()).or_default();
            kept.gone = None;
            let finding = kept.take(now, sample, &key.1, &self.limits);
            // Of two that have the same name the worse counts.
            let worse = seen.get(&key).is_none_or(|it| it.verdict < finding.verdict);
            if worse {
                seen.insert(key, finding);
            }
        }
        self.kept.retain(|key, kept| {
            if !seen.contains_key(key) {
                let since = *kept.gone.get_or_insert(now);
                if now.since(since) >= GONE_FOR {
                    return false;
                }
                seen.insert(key.clone(), kept.missed(now, key));
            }
            true
        });
        self.bound();
        for (key, mut finding) in seen {
            let Some(kept) = self.kept.get_mut(&key) else {
                report.left_out += 1;
                continue;
            };
            let before = kept.verdict;
            kept.settle(finding.verdict);
            // What is shown is what is believed. A disk that was failing and is gone is not well.
            if finding.verdict != Verdict::Unknown || kept.verdict.is_bad() {
                finding.verdict = kept.verdict;
            }
            if kept.verdict != before && (kept.verdict.is_bad() || before.is_bad()) {
                let now = finding.clone();
                changes.push(Change { before, now });
            }
            report.findings.push(finding);
        }
        let offered = |sensor| report.findings.iter().any(|it| it.sensor == sensor);
        let missing = ALL.iter().map(|kind| kind.sensor);
        report.not_offered = missing.filter(|sensor| !offered(*sensor)).collect();
        (report, changes)
    }

    /// Of a machine whose devices always have new names no more is kept than of another.
    fn bound(&mut self) {
        while self.kept.len() > 2 * SAMPLES_MAX {
            let gone = self.kept.iter().filter(|(_, kept)| kept.gone.is_some());
            let oldest = gone.min_by_key(|(_, kept)| kept.gone);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.kept.remove(&key);
        }
    }
}

/// A name that is short enough, without what is not for people.
fn name(source: &str) -> String {
    let mut name: String = source.chars().filter(|it| !it.is_control()).collect();
    let mut end = SOURCE_BYTES_MAX.min(name.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

impl Kept {
    fn take(&mut self, now: Time, sample: &Sample, source: &str, limits: &Limits) -> Finding {
        let mut finding = Finding {
            sensor: sample.sensor,
            source: source.to_owned(),
            verdict: Verdict::Unknown,
            judged: None,
            value: None,
            per_second: None,
            limit: None,
            reason: None,
        };
        let value = match &sample.value {
            Ok(value) if value.is_finite() => *value,
            Ok(_) => {
                finding.reason = Some("what it says is no number".to_owned());
                return finding;
            }
            Err(reason) => {
                finding.reason = Some(name(reason));
                return finding;
            }
        };
        finding.value = Some(value);
        let judged = sample.sensor.kind().judged;
        if judged.is_counter() {
            finding.per_second = self.count(now, value);
        }
        finding.judged = match judged {
            Judged::High | Judged::Low => Some(value),
            Judged::PerSecond => finding.per_second,
            Judged::Added(window) => Some(self.in_window(now, window)),
            Judged::Jump => self.last.map(|(_, last)| (value - last).abs()),
        };
        self.last = Some((now, value));
        if let Some(judged) = finding.judged {
            (finding.verdict, finding.limit) = limits.judge(sample.sensor, judged);
        } else {
            finding.reason = Some("known from the second reading on".to_owned());
        }
        finding
    }

    /// Adds what a counter has counted; what that is in a second.
    fn count(&mut self, now: Time, value: f64) -> Option<f64> {
        let (at, last) = self.last?;
        let more = match value - last {
            more if more >= 0.0 => more,
            _ if (NEAR_WRAP..WRAP).contains(&last) && value < WRAP - NEAR_WRAP => {
                value + WRAP - last
            }
            // It was reset: this is what came since.
            _ => value.max(0.0),
        };
        self.added += more;
        let seconds = now.since(at).as_secs();
        (seconds > 0.0).then(|| more / seconds)
    }

    /// What was added in the last `window`.
    fn in_window(&mut self, now: Time, window: Time) -> f64 {
        let part = Time(window.0 / PARTS);
        let last = self.points.back().map(|(at, _)| *at);
        if last.is_none_or(|at| now.since(at) >= part) {
            self.points.push_back((now, self.added));
        }
        // The last point before the window stays: the window is whole then.
        while self
            .points
            .get(1)
            .is_some_and(|(at, _)| now.since(*at) >= window)
        {
            self.points.pop_front();
        }
        self.added - self.points.front().map_or(0.0, |(_, added)| *added)
    }

    /// It is not there any more.
    fn missed(&mut self, now: Time, (sensor, source): &(Sensor, String)) -> Finding {
        let value = self.last.map(|(_, value)| value);
        let since = now.since(self.gone.unwrap_or(now));
        let reason = match since {
            Time::ZERO => "was there, and is gone".to_owned(),
            since => format!("was there, and is gone since {:.0} s", since.as_secs()),
        };
        Finding {
            sensor: *sensor,
            source: source.clone(),
            verdict: Verdict::Unknown,
            judged: None,
            value,
            per_second: None,
            limit: None,
            reason: Some(reason),
        }
    }

    /// Takes a verdict over: at once if it is worse, later if it is better. One that is not known
    /// changes nothing.
    fn settle(&mut self, found: Verdict) {
        if found == Verdict::Unknown {
            return;
        }
        self.better = match found < self.verdict && self.verdict.is_bad() {
            true => self.better + 1,
            false => 0,
        };
        if self.better == 0 || self.better >= CALM_READINGS {
            self.verdict = found;
            self.better = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge() -> Judge {
        Judge::new(Limits::default())
    }

    /// A reading each ten seconds of one sensor: verdicts, and what was told.
    fn series(judge: &mut Judge, sensor: Sensor, values: &[f64]) -> (Vec<Finding>, Vec<Verdict>) {
        let (mut findings, mut told) = (Vec::new(), Vec::new());
        for (n, value) in values.iter().enumerate() {
            let sample = Sample::of(sensor, "a", *value);
            let (mut report, changes) = judge.judge(at(n as u64), &[sample]);
            findings.push(report.findings.remove(0));
            told.extend(changes.iter().map(|change| change.now.verdict));
        }
        (findings, told)
    }

    fn at(reading: u64) -> Time {
        Time::from_secs(10 * reading)
    }

    #[test]
    fn what_the_machine_lacks_is_not_offered_and_what_cannot_be_read_is_unknown() {
        let (report, told) = judge().judge(
            at(0),
            &[
                Sample::of(Sensor::MemoryAvailable, "", 50.0),
                Sample::unknown(Sensor::DiskSmart, "nvme0", "permission denied"),
                Sample::of(Sensor::ClockError, "", f64::NAN),
            ],
        );
        assert_eq!(report.findings.len(), 3);
        assert_eq!(report.not_offered.len(), ALL.len() - 3);
        assert!(report.not_offered.contains(&Sensor::EccUncorrected));
        let verdicts: Vec<_> = report.findings.iter().map(|it| it.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Unknown, Verdict::Unknown]);
        assert_eq!(
            report.findings[1].words(),
            "disk-smart of nvme0: permission denied"
        );
        assert_eq!((report.worst(), told.len()), (Verdict::Ok, 0));
        let none = judge().judge(at(0), &[]).0;
        assert_eq!(
            (none.worst(), none.not_offered.len()),
            (Verdict::Unknown, ALL.len())
        );
    }

    #[test]
    fn counters_are_judged_by_what_is_added_not_by_their_height() {
        let (found, told) = series(&mut judge(), Sensor::EccCorrected, &[5e6, 5e6, 5e6 + 9.0]);
        assert_eq!(found[2].judged, Some(9.0));
        assert_eq!(found[2].verdict, Verdict::Ok);
        assert_eq!(found[2].per_second, Some(0.9));
        assert!(told.is_empty());
        let (found, told) = series(&mut judge(), Sensor::EccCorrected, &[7.0, 7.0, 17.0, 18.0]);
        assert_eq!(found[2].verdict, Verdict::Warning);
        assert_eq!(found[2].words(), "ecc-corrected of a: 10 in 24 h, limit 10");
        assert_eq!(told, [Verdict::Warning], "once");
    }

    #[test]
    fn one_that_goes_back_was_reset_or_has_wrapped() {
        let (found, _) = series(&mut judge(), Sensor::DiskErrors, &[900.0, 0.0, 0.0]);
        assert_eq!(found[2].judged, Some(0.0), "a driver that was loaded again");
        let (found, _) = series(&mut judge(), Sensor::DiskErrors, &[900.0, 3.0]);
        assert_eq!(found[1].judged, Some(3.0));
        let end = 4_294_967_290.0;
        let (found, _) = series(&mut judge(), Sensor::NetworkErrors, &[end, 4.0]);
        assert_eq!(found[1].judged, Some(10.0));
        let (found, _) = series(&mut judge(), Sensor::NetworkErrors, &[4.0, -7.0]);
        assert_eq!(found[1].judged, Some(0.0));
    }

    #[test]
    fn a_window_forgets_and_keeps_little() {
        let mut judge = judge();
        // One kill each 100 s: 36 an hour.
        let values: Vec<f64> = (0..2_000).map(|n| f64::from(n / 10)).collect();
        let (found, _) = series(&mut judge, Sensor::OomKills, &values);
        let judged = found[1_999].judged.unwrap();
        assert!((36.0..39.0).contains(&judged), "{judged}");
        let points = judge.kept.values().map(|kept| kept.points.len()).max();
        assert!(points.unwrap() <= PARTS as usize + 2, "{points:?}");
        let quiet = vec![199.0; 800];
        let later: Vec<Finding> = quiet
            .iter()
            .enumerate()
            .map(|(n, value)| {
                let sample = Sample::of(Sensor::OomKills, "a", *value);
                judge
                    .judge(at(2_000 + n as u64), &[sample])
                    .0
                    .findings
                    .remove(0)
            })
            .collect();
        assert_eq!(later.last().unwrap().verdict, Verdict::Ok);
    }

    #[test]
    fn a_value_around_its_limit_is_told_once() {
        let values: Vec<f64> = (0..50).map(|n| 60.0 - f64::from(n % 2)).collect();
        let (found, told) = series(&mut judge(), Sensor::IoPressure, &values);
        assert_eq!(told, [Verdict::Warning]);
        assert!(found.iter().all(|it| it.verdict == Verdict::Warning));
        let (found, told) = series(
            &mut judge(),
            Sensor::MemoryPressure,
            &[0.0, 60.0, 20.0, 20.0, 20.0, 0.0, 0.0, 0.0],
        );
        let verdicts: Vec<_> = found.iter().map(|it| it.verdict).collect();
        let (f, w, ok) = (Verdict::Failing, Verdict::Warning, Verdict::Ok);
        assert_eq!(verdicts, [ok, f, f, f, w, w, w, ok]);
        assert_eq!(told, [f, w, ok]);
    }

    #[test]
    fn a_rate_and_a_jump_take_two_readings() {
        let (found, _) = series(&mut judge(), Sensor::CpuSteal, &[1_000.0, 1_100.0, 1_700.0]);
        assert_eq!(
            (found[0].verdict, found[0].judged),
            (Verdict::Unknown, None)
        );
        assert_eq!(
            (found[1].judged, found[1].verdict),
            (Some(10.0), Verdict::Warning)
        );
        assert_eq!(found[2].verdict, Verdict::Failing);
        let (found, _) = series(
            &mut judge(),
            Sensor::ClockJump,
            &[1e9, 1e9 + 0.1, 1e9 - 2.0],
        );
        assert_eq!(found[1].verdict, Verdict::Ok);
        assert_eq!(found[2].verdict, Verdict::Warning);
        // Two readings at one moment say nothing of a rate.
        let mut judge = judge();
        let sample = [Sample::of(Sensor::CpuSteal, "", 3.0)];
        judge.judge(at(1), &sample);
        let twice = judge.judge(at(1), &sample).0;
        assert_eq!(twice.findings[0].judged, None);
    }

    #[test]
    fn what_is_gone_is_unknown_for_a_while_and_goes_on_when_it_is_back() {
        let mut judge = judge();
        let disk = |errors| [Sample::of(Sensor::DiskErrors, "sdb", errors)];
        judge.judge(at(0), &disk(5.0));
        let (report, _) = judge.judge(at(1), &[]);
        assert_eq!(report.findings[0].verdict, Verdict::Unknown);
        assert_eq!(
            report.findings[0].reason.as_deref(),
            Some("was there, and is gone")
        );
        judge.judge(at(2), &disk(7.0));
        let (report, told) = judge.judge(at(3), &[]);
        let (verdict, worst) = (report.findings[0].verdict, report.worst());
        assert_eq!(
            (verdict, worst),
            (Verdict::Warning, Verdict::Warning),
            "not well by going"
        );
        assert!(told.is_empty());
        let (report, told) = judge.judge(at(4), &disk(7.0));
        assert_eq!(report.findings[0].verdict, Verdict::Warning);
        assert!(told.is_empty(), "not told anew");
        judge.judge(at(5), &[]);
        let (report, _) = judge.judge(at(5) + GONE_FOR, &[]);
        assert!(report.findings.is_empty() && judge.kept.is_empty());
    }

    #[test]
    fn memory_is_bounded_whatever_names_come() {
        let mut judge = judge();
        for round in 0..6u64 {
            let many: Vec<Sample> = (0..SAMPLES_MAX + 10)
                .map(|n| {
                    Sample::of(
                        Sensor::NetworkDrops,
                        format!("{}{round}-{n}", "é".repeat(90)),
                        1.0,
                    )
                })
                .collect();
            let (report, _) = judge.judge(at(round), &many);
            assert!(report.left_out >= 10);
            let short: Vec<Sample> = (0..SAMPLES_MAX)
                .map(|n| Sample::of(Sensor::NetworkDrops, format!("eth{round}-{n}\n"), 1.0))
                .collect();
            let (report, _) = judge.judge(at(round), &short);
            assert!(judge.kept.len() <= 2 * SAMPLES_MAX);
            assert!(report.findings.len() <= 2 * SAMPLES_MAX);
            assert!(
                report
                    .findings
                    .iter()
                    .all(|it| it.source.len() <= SOURCE_BYTES_MAX)
            );
        }
    }

    #[test]
    fn the_worst_travel() {
        let samples: Vec<Sample> = (0..20)
            .map(|n| Sample::of(Sensor::FilesystemErrors, format!("sd{n:02}"), 1.0))
            .chain([Sample::of(Sensor::EccUncorrected, "mc0", 1.0)])
            .collect();
        let summary = judge().judge(at(0), &samples).0.summary();
        assert_eq!((summary.findings.len(), summary.more), (8, 13));
        assert_eq!(summary.findings[0].sensor, Sensor::EccUncorrected);
        assert_eq!(summary.verdict, Verdict::Failing);
        assert_eq!(
            summary.words(),
            "failing: ecc-uncorrected of mc0: 1, limit 1; 20 more"
        );
    }
}
