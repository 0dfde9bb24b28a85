//! The timeline of a run as SVG, with colours from the page's style.
//!
//! Invariant: its size is bounded by its width in points, not by the length of the run: what falls on
//! the same point is drawn once and counted in its words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outlive_control::report::{FailureEntry, Report};
use outlive_launch::record::Run;
use outlive_launch::record::lines::{SpanKind, SpanLine};
use outlive_node::picture::escape;

use super::history::{Bar, History, Part, Recovery, Tick, by_level};
use super::show_seconds;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 986.0;
/// Where the first row begins, below the marks of failures.
const TOP: f64 = 30.0;
const ROW: f64 = 22.0;
const GAP: f64 = 6.0;
/// What is shorter is drawn with this width: a recovery of a second in a run of a week is seen.
const LEAST: f64 = 2.5;
/// Nodes that have a row of their own; of more none has.
pub const NODES_MAX: u32 = 24;
/// About so many times stand at the axis.
const TIMES: f64 = 8.0;

/// Draws a run.
pub fn timeline(report: &Report, run: Option<&Run>, history: &History) -> String {
    let mut drawing = Drawing::new(history.seconds);
    if !history.bars.is_empty() {
        drawing.row("command");
        history.bars.iter().for_each(|bar| drawing.bar(bar));
    }
    if history.recoveries.iter().any(|one| !one.parts.is_empty()) {
        drawing.row("recovery");
        for recovery in &history.recoveries {
            drawing.parts(recovery);
        }
    }
    if !history.captured.is_empty() {
        drawing.row("captured");
        drawing.ticks(&history.captured, "captured", "captured");
    }
    for (level, ticks) in by_level(&history.stable) {
        drawing.row(level);
        drawing.ticks(ticks, "stable", &format!("stable on {level}"));
    }
    if let Some(run) = run.filter(|run| run.header.nodes <= NODES_MAX) {
        for node in 0..run.header.nodes {
            let of_node = run.spans.iter().filter(|span| span.node == node);
            drawing.row(&format!("node {node}"));
            drawing.spans(of_node);
        }
    }
    for failure in &report.failures {
        drawing.failure(failure);
    }
    drawing.finish()
}

struct Drawing {
    seconds: f64,
    /// Of the present row.
    top: f64,
    rows: String,
    marks: String,
}

impl Drawing {
    fn new(seconds: f64) -> Drawing {
        Drawing {
            // A run that has just begun has no length to divide by.
            seconds: seconds.max(1e-3),
            top: TOP - ROW - GAP,
            rows: String::new(),
            marks: String::new(),
        }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at / self.seconds).clamp(0.0, 1.0)
    }

    fn row(&mut self, name: &str) {
        self.top += ROW + GAP;
        let (middle, name) = (self.top + ROW / 2.0 + 4.0, escape(name));
        let top = self.top;
        let width = RIGHT - LEFT;
        let _ = writeln!(
            self.rows,
            "<rect class='row' x='{LEFT}' y='{top}' width='{width}' height='{ROW}' rx='3'/>\n\
             <text class='name' x='{}' y='{middle}' text-anchor='end'>{name}</text>",
            LEFT - 8.0
        );
    }

    /// A rectangle in the present row, with words for who points at it.
    fn block(&mut self, class: &str, (begin, end): (f64, f64), inset: f64, words: &str) -> f64 {
        let x = self.x(begin);
        let width = (self.x(end) - x).max(LEAST).min(RIGHT - x + LEAST);
        let (y, height) = (self.top + inset, ROW - 2.0 * inset);
        let words = escape(words);
        let _ = writeln!(
            self.rows,
            "<rect class='{class}' x='{x:.1}' y='{y}' width='{width:.1}' height='{height}' rx='1.5'>\
             <title>{words}</title></rect>"
        );
        width
    }

    fn bar(&mut self, bar: &Bar) {
        let name = bar
            .incarnation
            .map_or_else(String::new, |n| format!(" {n}"));
        let restored = bar.restored.map_or_else(
            || "from the beginning".to_owned(),
            |version| format!("from version {version}"),
        );
        let words = format!(
            "incarnation{name}, {restored}: {} from {}",
            show_seconds(bar.when.seconds()),
            show_seconds(bar.when.begin)
        );
        let width = self.block("runs", (bar.when.begin, bar.when.end), 2.0, &words);
        let text = match width {
            width if width > 190.0 => format!("incarnation{name}, {restored}"),
            width if width > 90.0 => format!("incarnation{name}"),
            width if width > 24.0 => name.trim().to_owned(),
            _ => return,
        };
        let (x, y) = (self.x(bar.when.begin) + 7.0, self.top + ROW / 2.0 + 4.0);
        let _ = writeln!(
            self.rows,
            "<text class='inside' x='{x:.1}' y='{y}'>{}</text>",
            escape(&text)
        );
    }

    fn parts(&mut self, recovery: &Recovery) {
        // Later parts lie on earlier ones where they are too short to lie beside them.
        let mut from = f64::NEG_INFINITY;
        for (part, when) in &recovery.parts {
            let words = format!("{}: {}", part.name(), show_seconds(when.seconds()));
            let least = self.seconds * LEAST / (RIGHT - LEFT);
            let begin = when.begin.max(from);
            let end = when.end.max(begin + least);
            self.block(part.name(), (begin, end), 2.0, &words);
            from = end;
        }
    }

    fn ticks(&mut self, ticks: &[Tick], class: &str, what: &str) {
        let mut by_point: BTreeMap<i64, (usize, Tick, Tick)> = BTreeMap::new();
        for tick in ticks {
            let point = (self.x(tick.at) * 2.0).round() as i64;
            let entry = by_point.entry(point).or_insert((0, *tick, *tick));
            entry.0 += 1;
            entry.2 = *tick;
        }
        for (point, (count, first, last)) in by_point {
            let x = point as f64 / 2.0;
            let words = match count {
                1 => format!("{} {what} at {}", first.version, show_seconds(first.at)),
                _ => format!(
                    "{count} versions {what}, {} to {}, at {}",
                    first.version.0,
                    last.version.0,
                    show_seconds(first.at)
                ),
            };
            let (top, bottom) = (self.top + 3.0, self.top + ROW - 3.0);
            let _ = writeln!(
                self.rows,
                "<path class='{class}' d='M{x} {top}V{bottom}'><title>{}</title></path>",
                escape(&words)
            );
        }
    }

    fn spans<'a>(&mut self, spans: impl Iterator<Item = &'a SpanLine>) {
        let mut drawn: BTreeMap<(SpanKind, i64, i64), (usize, &SpanLine)> = BTreeMap::new();
        for span in spans {
            let point = |at: f64| self.x(at).round() as i64;
            let at = (span.kind, point(span.begin), point(span.end()));
            drawn.entry(at).or_insert((0, span)).0 += 1;
        }
        for ((kind, ..), (count, span)) in drawn {
            let (class, inset) = match kind {
                SpanKind::Capture => ("capture", 2.0),
                SpanKind::Write => ("write", 4.0),
                SpanKind::Commit => ("commit", 8.0),
                SpanKind::Rebuild => ("rebuild", 2.0),
            };
            let more = match count {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let words = format!("{}{more}", describe(span));
            self.block(class, (span.begin, span.end()), inset, &words);
        }
    }

    fn failure(&mut self, failure: &FailureEntry) {
        let x = self.x(failure.at_seconds);
        let words = format!(
            "{} at {}: {}",
            failure.place,
            show_seconds(failure.at_seconds),
            failure.cause
        );
        let _ = writeln!(
            self.marks,
            "<g class='failure'><title>{}</title><path d='M{x:.1} 18V@BOTTOM@'/>\
             <path class='mark' d='M{:.1} 8h12l-6 11z'/></g>",
            escape(&words),
            x - 6.0
        );
    }

    fn finish(self) -> String {
        let bottom = self.top.max(TOP) + ROW + GAP;
        let mut axis = String::new();
        let step = step(self.seconds);
        let mut at = 0.0;
        while at <= self.seconds * 1.000_001 {
            let x = self.x(at);
            let anchor = if x > RIGHT - 30.0 { "end" } else { "middle" };
            let _ = writeln!(
                axis,
                "<path class='grid' d='M{x:.1} {TOP}V{bottom}'/>\
                 <text class='time' x='{x:.1}' y='{}' text-anchor='{anchor}'>{}</text>",
                bottom + 16.0,
                show_time(at, step)
            );
            at += step;
        }
        let height = bottom + 24.0;
        let marks = self.marks.replace("@BOTTOM@", &bottom.to_string());
        format!(
            "<svg class='timeline' viewBox='0 0 {WIDTH} {height}' role='img' \
             aria-label='timeline of the run'>\n{axis}{}{marks}</svg>\n",
            self.rows
        )
    }
}

/// In words, for who points at it or reads a list.
pub fn describe(span: &SpanLine) -> String {
    let version = span.version.map_or_else(String::new, |it| format!("{it} "));
    let level = span
        .level
        .map_or_else(String::new, |it| format!(" on {it}"));
    let took = show_seconds(span.seconds);
    let bytes = match span.bytes {
        0 => String::new(),
        bytes => format!(", {}", outlive_control::units::show_bytes(bytes)),
    };
    match (span.kind, span.rank) {
        (SpanKind::Capture, Some(rank)) => format!("{version}captured by {rank} in {took}{bytes}"),
        (SpanKind::Capture, None) => format!("{version}captured in {took}{bytes}"),
        (SpanKind::Write, _) => format!("{version}written{level} in {took}{bytes}"),
        (SpanKind::Commit, _) => format!("{version}committed{level} in {took}"),
        (SpanKind::Rebuild, _) if span.version.is_none() => format!("nothing to rebuild: {took}"),
        (SpanKind::Rebuild, _) => format!("{version}rebuilt in {took}{bytes}"),
    }
}

/// A distance of times that reads well, so that about [`TIMES`] of them stand at the axis.
fn step(seconds: f64) -> f64 {
    let wanted = seconds / TIMES;
    let nice = [
        60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0,
    ];
    if wanted > 30.0 {
        let found = nice.into_iter().find(|step| *step >= wanted);
        return found.unwrap_or_else(|| (wanted / 86_400.0).ceil() * 86_400.0);
    }
    let power = 10f64.powf(wanted.log10().floor());
    let of = |times: f64| times * power;
    [of(1.0), of(2.0), of(5.0)]
        .into_iter()
        .find(|step| *step >= wanted)
        .unwrap_or(of(10.0))
}

/// A time at the axis.
fn show_time(at: f64, step: f64) -> String {
    let whole = at.round() as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match step {
        step if step < 0.1 => format!("{:.0} ms", at * 1e3),
        step if step < 1.0 => format!("{at:.1} s"),
        step if step < 60.0 => format!("{at:.0} s"),
        step if step < 3_600.0 && days == 0 && hours == 0 => format!("{minutes} min"),
        step if step < 86_400.0 && days == 0 => format!("{hours}:{minutes:02} h"),
        step if step < 86_400.0 => format!("{days} d {hours} h"),
        _ => format!("{days} d"),
    }
}

/// The four parts of a recovery as one bar, to the scale of the longest.
pub fn phases(failure: &FailureEntry, longest_ms: f64) -> String {
    const WIDE: f64 = 220.0;
    let scale = WIDE / longest_ms.max(1e-3);
    let (mut x, mut blocks) = (0.0, String::new());
    for part in Part::ALL {
        let Some(ms) = part.ms_of(failure).filter(|ms| *ms > 0.0) else {
            continue;
        };
        let width = (ms * scale).max(1.0);
        let words = format!("{}: {}", part.name(), show_seconds(ms / 1e3));
        let _ = write!(
            blocks,
            "<rect class='{}' x='{x:.1}' y='1' width='{width:.1}' height='12'>\
             <title>{words}</title></rect>",
            part.name()
        );
        x += width;
    }
    format!(
        "<svg class='phases' viewBox='0 0 {:.0} 14' width='{:.0}' height='14' role='img' \
         aria-label='parts of the recovery'>{blocks}</svg>",
        x.max(1.0).ceil(),
        x.max(1.0).ceil()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::history::tests::sample;

    #[test]
    fn times_at_the_axis_are_few_and_read_well() {
        for seconds in [1e-3, 0.4, 4.5, 61.0, 599.0, 3_700.0, 90_000.0, 3e6, 3e7] {
            let step = step(seconds);
            let count = seconds / step;
            assert!((2.0..=10.0).contains(&count), "{seconds}: {count}");
        }
        assert_eq!(show_time(0.5, 0.5), "0.5 s");
        assert_eq!(show_time(7_200.0, 3_600.0), "2:00 h");
        assert_eq!(show_time(180.0, 60.0), "3 min");
    }

    #[test]
    fn a_long_run_is_no_larger_than_its_width() {
        let (report, mut run) = sample();
        let tick = |n: u64| outlive_launch::record::Told {
            at: n as f64 * 30.0 / 1e5,
            kind: "stable".into(),
            place: None,
            words: String::new(),
            event: Some(outlive_control::supervisor::Event::Stable {
                version: outlive_base::Version(n),
                level: outlive_base::Level::DISK,
            }),
        };
        run.told = (0..100_000).map(tick).collect();
        let span = run.spans[0].clone();
        run.spans = vec![span; 100_000];
        let drawn = timeline(&report, Some(&run), &History::new(&report, Some(&run)));
        assert!(drawn.len() < 500_000, "{} bytes", drawn.len());
    }
}
