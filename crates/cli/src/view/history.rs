//! A run in intervals: when the command ran, what each recovery consisted of, when versions became
//! stable. Pictures and traces are drawn from it.
//!
//! Invariant: no interval ends before it begins, and none begins before the run. Of a run of which
//! only the report is left, what the report does not say is not shown.

use std::collections::BTreeMap;

use outlive_base::{Level, Version};
use outlive_control::report::{FailureEntry, Report};
use outlive_control::supervisor::Event;
use outlive_launch::record::{Run, Told};

/// From and to, in seconds since the run began.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    pub begin: f64,
    pub end: f64,
}

impl Interval {
    fn new(begin: f64, end: f64) -> Interval {
        let begin = begin.max(0.0);
        Interval {
            begin,
            end: end.max(begin),
        }
    }

    pub fn seconds(self) -> f64 {
        self.end - self.begin
    }
}

/// The command runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    pub incarnation: Option<u32>,
    pub when: Interval,
    /// What the ranks went on from; `None`: nothing, or it is not known.
    pub restored: Option<u64>,
}

/// A part of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// From the failure, as far as that is known, until it was found.
    Detect,
    /// Until every old process was gone.
    Fence,
    /// Until the version was found, rebuilt and verified.
    Rebuild,
    /// Until all ranks had joined.
    Relaunch,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::Detect, Part::Fence, Part::Rebuild, Part::Relaunch];

    pub const fn name(self) -> &'static str {
        match self {
            Part::Detect => "detect",
            Part::Fence => "fence",
            Part::Rebuild => "rebuild",
            Part::Relaunch => "relaunch",
        }
    }

    /// How long it took, by the report.
    pub const fn ms_of(self, entry: &FailureEntry) -> Option<f64> {
        match self {
            Part::Detect => entry.detect_ms,
            Part::Fence => entry.fence_ms,
            Part::Rebuild => entry.rebuild_ms,
            Part::Relaunch => entry.relaunch_ms,
        }
    }
}

/// What followed a failure, and those that were found before the command ran again.
#[derive(Clone, PartialEq, Debug)]
pub struct Recovery {
    /// Their numbers in the report.
    pub failures: Vec<usize>,
    pub when: Interval,
    /// In order; each begins when the one before it has ended, or later.
    pub parts: Vec<(Part, Interval)>,
}

/// A version that became stable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tick {
    pub at: f64,
    pub version: Version,
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    /// How long the run lasted, or has lasted.
    pub seconds: f64,
    pub bars: Vec<Bar>,
    pub recoveries: Vec<Recovery>,
    /// By level.
    pub stable: BTreeMap<String, Vec<Tick>>,
    pub captured: Vec<Tick>,
}

/// Values by level, what survives least first.
pub fn by_level<T>(of: &BTreeMap<String, T>) -> Vec<(&String, &T)> {
    let mut all: Vec<(&String, &T)> = of.iter().collect();
    all.sort_by_key(|(level, _)| level.parse::<Level>().ok());
    all
}

/// The incarnations that a run has opened.
pub fn incarnations(run: &Run) -> Vec<u32> {
    let opened = |told: &Told| match &told.event {
        Some(Event::Opened { incarnation, .. }) => Some(incarnation.0),
        _ => None,
    };
    run.told.iter().filter_map(opened).collect()
}

impl History {
    pub fn new(report: &Report, run: Option<&Run>) -> History {
        let told = run.map_or(&[][..], |run| &run.told);
        let known = run.map_or(0.0, Run::seconds);
        let found = report.failures.iter().map(|entry| entry.at_seconds);
        let seconds = found.fold(report.seconds.max(known), f64::max);
        let recoveries = recoveries(report, told, seconds);
        let bars = match bars_told(told, seconds) {
            bars if bars.is_empty() => bars_between(report, &recoveries, seconds),
            bars => bars,
        };
        let mut stable: BTreeMap<String, Vec<Tick>> = BTreeMap::new();
        let mut captured = Vec::new();
        for told in told {
            let at = told.at;
            match told.event {
                Some(Event::Stable { version, level }) => {
                    let ticks = stable.entry(level.name().to_owned()).or_default();
                    ticks.push(Tick { at, version });
                }
                Some(Event::Captured { version }) => captured.push(Tick { at, version }),
                _ => {}
            }
        }
        History {
            seconds,
            bars,
            recoveries,
            stable,
            captured,
        }
    }
}

/// When the command ran, by what was told.
fn bars_told(told: &[Told], seconds: f64) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut restored = None;
    let mut open = false;
    let end = |bars: &mut Vec<Bar>, open: &mut bool, at: f64| {
        if let Some(bar) = bars.last_mut().filter(|_| *open) {
            bar.when = Interval::new(bar.when.begin, at);
        }
        *open = false;
    };
    for told in told {
        match &told.event {
            Some(Event::Opened { restored: from, .. }) => {
                end(&mut bars, &mut open, told.at);
                restored = from.map(|version| version.0);
            }
            Some(Event::CommandStarted { incarnation }) => {
                bars.push(Bar {
                    incarnation: Some(incarnation.0),
                    when: Interval::new(told.at, seconds),
                    restored,
                });
                open = true;
            }
            Some(Event::Failure { .. } | Event::Finishing | Event::Fatal(_)) => {
                end(&mut bars, &mut open, told.at);
            }
            _ if told.kind == "ended" => end(&mut bars, &mut open, told.at),
            _ => {}
        }
    }
    bars
}

/// The same from the report alone: between recoveries.
fn bars_between(report: &Report, recoveries: &[Recovery], seconds: f64) -> Vec<Bar> {
    if report.incarnations.is_empty() {
        return Vec::new();
    }
    let mut bars = Vec::new();
    let mut begin = Some((0.0, None));
    for recovery in recoveries {
        let found = recovery.failures.iter().map(|at| &report.failures[*at]);
        let at = found
            .clone()
            .map(|entry| entry.at_seconds)
            .fold(f64::INFINITY, f64::min);
        if let Some((begin, restored)) = begin.take() {
            let when = Interval::new(begin, at);
            bars.push((when, restored));
        }
        if recovery
            .parts
            .iter()
            .any(|(part, _)| *part == Part::Relaunch)
        {
            let restored = found.clone().next_back().and_then(|entry| entry.version);
            begin = Some((recovery.when.end, restored));
        }
    }
    bars.extend(begin.map(|(begin, restored)| (Interval::new(begin, seconds), restored)));
    let bar = |(at, (when, restored)): (usize, (Interval, Option<u64>))| Bar {
        incarnation: report.incarnations.get(at).copied(),
        when,
        restored,
    };
    bars.into_iter().enumerate().map(bar).collect()
}

/// Failures whose recovery ended together, and its parts.
fn recoveries(report: &Report, told: &[Told], seconds: f64) -> Vec<Recovery> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    let mut until = f64::NEG_INFINITY;
    for (at, entry) in report.failures.iter().enumerate() {
        match found.last_mut().filter(|_| entry.at_seconds < until) {
            Some(group) => group.push(at),
            None => found.push(vec![at]),
        }
        until = until.max(back_at(entry, told, seconds));
    }
    let recovery = |failures: Vec<usize>| {
        let entries: Vec<&FailureEntry> = failures.iter().map(|at| &report.failures[*at]).collect();
        let parts = parts(&entries, told);
        let first = entries
            .iter()
            .map(|entry| entry.at_seconds)
            .fold(f64::INFINITY, f64::min);
        let begin = parts
            .iter()
            .map(|(_, when)| when.begin)
            .fold(first, f64::min);
        let end = parts.iter().map(|(_, when)| when.end).fold(first, f64::max);
        Recovery {
            failures,
            when: Interval::new(begin, end),
            parts,
        }
    };
    found.into_iter().map(recovery).collect()
}

/// The first time after `at` that an event of this kind was told.
fn next(told: &[Told], at: f64, is: impl Fn(&Event) -> bool) -> Option<f64> {
    let mut after = told.iter().filter(|told| told.at >= at);
    after
        .find(|told| told.event.as_ref().is_some_and(&is))
        .map(|told| told.at)
}

/// When the ranks had joined again after a failure; if they never had, the end.
fn back_at(entry: &FailureEntry, told: &[Told], seconds: f64) -> f64 {
    let at = entry.at_seconds;
    if entry.relaunch_ms.is_none() {
        return seconds;
    }
    let sum_ms = [Part::Fence, Part::Rebuild, Part::Relaunch].iter();
    let sum_ms: f64 = sum_ms.filter_map(|part| part.ms_of(entry)).sum();
    next(told, at, |event| matches!(event, Event::RanksUp { .. })).unwrap_or(at + sum_ms / 1e3)
}

/// The parts of the recovery from these failures. What was told says when; else one follows the
/// other.
fn parts(entries: &[&FailureEntry], told: &[Told]) -> Vec<(Part, Interval)> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return Vec::new();
    };
    let found = first.at_seconds;
    let mut parts = Vec::new();
    if let Some(ms) = first.detect_ms {
        parts.push((Part::Detect, Interval::new(found - ms / 1e3, found)));
    }
    let mut at = found;
    if let Some(ms) = last.fence_ms {
        at = last.at_seconds + ms / 1e3;
        parts.push((Part::Fence, Interval::new(found, at)));
    }
    if let Some(ms) = last.rebuild_ms {
        let opened = |event: &Event| matches!(event, Event::Opened { .. });
        let end = next(told, last.at_seconds, opened).unwrap_or(at + ms / 1e3);
        // It never begins before the old processes are gone.
        let begin = (end - ms / 1e3).max(at);
        at = end.max(begin);
        parts.push((Part::Rebuild, Interval::new(begin, at)));
    }
    if let Some(ms) = last.relaunch_ms {
        let joined = |event: &Event| matches!(event, Event::RanksUp { .. });
        let end = next(told, last.at_seconds, joined).unwrap_or(at + ms / 1e3);
        parts.push((Part::Relaunch, Interval::new(at, end)));
    }
    parts
}

#[cfg(test)]
pub mod tests {
    use outlive_base::{Incarnation, JobName};
    use outlive_control::report::{ErrorEntry, RejectedEntry};
    use outlive_launch::record::lines::{Ended, Header, SpanKind, SpanLine};

    use super::*;

    /// What is hostile in text that comes from outside.
    pub const HOSTILE: &str = "</title><script>alert('x')</script>\"&\u{1b}[31m\u{7}";

    /// Two failures, of which the second ends the job; names and causes are hostile.
    pub fn sample() -> (Report, Run) {
        let mut report = Report::new(&JobName::new("heat").unwrap(), 2);
        report.job = HOSTILE.into();
        report.result = "failed".into();
        report.exit_status = 79;
        report.ranks = Some(4);
        report.restarts = 1;
        report.incarnations = vec![7, 8];
        report.seconds = 30.0;
        report.checkpoints.taken = 3;
        report.checkpoints.last.insert("disk".into(), 30);
        report.checkpoints.stable.insert("disk".into(), 2);
        report.failures = vec![
            FailureEntry {
                kind: "node".into(),
                place: "node:1".into(),
                cause: HOSTILE.into(),
                at_version: Some(25),
                at_seconds: 10.0,
                detect_ms: Some(500.0),
                fence_ms: Some(100.0),
                rebuild_ms: Some(2_000.0),
                relaunch_ms: Some(1_000.0),
                level: Some("disk".into()),
                version: Some(20),
                versions_lost: Some(5),
                rejected: vec![RejectedEntry {
                    version: 22,
                    reason: HOSTILE.into(),
                }],
                ..FailureEntry::default()
            },
            FailureEntry {
                kind: "command".into(),
                place: "command".into(),
                cause: "ended with status 3".into(),
                at_seconds: 30.0,
                ..FailureEntry::default()
            },
        ];
        let error = ErrorEntry {
            code: "OL-503".into(),
            text: "restarts exhausted".into(),
            entity: "job".into(),
            reason: HOSTILE.into(),
            remedy: "look at the cause".into(),
            more: 2,
        };
        report.warnings = vec![error.clone()];
        report.errors = vec![error];
        (report, run())
    }

    fn run() -> Run {
        let told = |at: f64, event: Event| Told {
            at,
            kind: "x".into(),
            place: event.place().map(str::to_owned),
            words: outlive_launch::timeline::words(&event),
            event: Some(event),
        };
        let opened = |incarnation, restored| Event::Opened {
            incarnation: Incarnation(incarnation),
            restored,
            level: Some(Level::DISK),
            rebuild_ms: 2_000.0,
            rejected: 0,
            restart: restored.is_some(),
            given_up: false,
        };
        let started = |incarnation| Event::CommandStarted {
            incarnation: Incarnation(incarnation),
        };
        let stable = |version| Event::Stable {
            version: Version(version),
            level: Level::DISK,
        };
        let failure = |what: &str| Event::Failure {
            what: format!("{what} lost: {HOSTILE}"),
            suspected_ms: None,
            detect_ms: None,
        };
        let joined = Event::RanksUp {
            ranks: 4,
            after_ms: 1_000.0,
        };
        let span = |begin, seconds, kind| SpanLine {
            begin,
            seconds,
            node: 1,
            kind,
            rank: None,
            level: Some(Level::DISK),
            version: Some(Version(20)),
            bytes: 1 << 20,
        };
        Run {
            header: Header {
                schema: outlive_launch::record::lines::SCHEMA.into(),
                job: HOSTILE.into(),
                began: "2026-05-04T09:30:00Z".into(),
                began_unix_ms: 1_777_887_000_000,
                pid: 1,
                nodes: 2,
                continues: false,
            },
            is_cut: false,
            told: vec![
                told(0.2, opened(7, None)),
                told(0.5, started(7)),
                told(1.0, joined.clone()),
                told(4.0, stable(10)),
                told(8.0, stable(20)),
                told(10.0, failure("node:1")),
                told(13.0, opened(8, Some(Version(20)))),
                told(13.1, started(8)),
                told(14.0, joined),
                told(20.0, stable(30)),
                told(30.0, failure("command")),
            ],
            // Two writes of a node overlap: they cannot lie on one line.
            spans: vec![
                span(7.0, 0.5, SpanKind::Write),
                span(7.4, 0.6, SpanKind::Write),
                span(7.5, 0.1, SpanKind::Commit),
                span(11.0, 2.0, SpanKind::Rebuild),
            ],
            ended: Some((
                30.0,
                Ended {
                    result: "failed".into(),
                    exit_status: 79,
                },
            )),
        }
    }

    #[test]
    fn a_run_is_bars_and_recoveries() {
        let (report, run) = sample();
        let history = History::new(&report, Some(&run));
        let bars: Vec<(f64, f64, Option<u64>)> = history
            .bars
            .iter()
            .map(|bar| (bar.when.begin, bar.when.end, bar.restored))
            .collect();
        assert_eq!(bars, [(0.5, 10.0, None), (13.1, 30.0, Some(20))]);
        let first = &history.recoveries[0];
        let parts: Vec<(Part, f64, f64)> = first
            .parts
            .iter()
            .map(|(part, when)| (*part, when.begin, when.end))
            .collect();
        assert_eq!(
            parts,
            [
                (Part::Detect, 9.5, 10.0),
                (Part::Fence, 10.0, 10.1),
                (Part::Rebuild, 11.0, 13.0),
                (Part::Relaunch, 13.0, 14.0)
            ]
        );
        assert_eq!(first.when, Interval::new(9.5, 14.0));
        assert_eq!(history.recoveries[1].failures, [1]);
        assert_eq!(history.stable["disk"].len(), 3);
    }

    #[test]
    fn a_report_alone_is_drawn_too_and_nothing_is_negative() {
        let (report, _) = sample();
        let history = History::new(&report, None);
        assert_eq!(history.seconds, 30.0);
        assert_eq!(history.bars.len(), 2);
        assert!((history.recoveries[0].when.end - 13.1).abs() < 1e-9);
        let mut early = report;
        early.failures[0].detect_ms = Some(99_000.0);
        early.seconds = 0.0;
        let history = History::new(&early, None);
        for recovery in &history.recoveries {
            for (_, when) in &recovery.parts {
                assert!(when.begin >= 0.0 && when.end >= when.begin);
            }
        }
    }

    #[test]
    fn failures_of_one_recovery_belong_together() {
        let (mut report, _) = sample();
        let mut second = report.failures[0].clone();
        second.at_seconds = 10.05;
        report.failures.insert(1, second);
        let history = History::new(&report, None);
        assert_eq!(history.recoveries[0].failures, [0, 1]);
        assert_eq!(history.recoveries.len(), 2);
    }
}
