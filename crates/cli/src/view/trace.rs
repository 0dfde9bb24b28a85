//! `outlive trace`: a run in the Trace Event Format, which Perfetto and chrome://tracing open.
//!
//! The launcher and each node are processes of the trace. Complete events (`X`) of one of its threads
//! must lie inside or beside each other, so that work which overlaps has threads of its own. Times are
//! microseconds since the run began.
//!
//! Source: Trace Event Format, D. Sinclair and others, Google, "Complete Events", "Instant Events",
//! "Metadata Events", "JSON Object Format".

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use outlive_base::{Error, Level, Rank, Result};
use outlive_launch::record::lines::{SpanKind, SpanLine};
use outlive_launch::record::{Run, Told};
use outlive_launch::timeline;
use serde::Serialize;
use serde_json::{Value, json};

use super::history::{History, Interval};
use super::{Seen, Which, picture};
use crate::output;

/// Numbers of processes: 0 is taken for the idle task of a machine by some readers.
const LAUNCHER: u32 = 1;
const NODES: u32 = 2;

/// Threads of a process have numbers from this times its own on: a thread with the number of its
/// process is taken for its main one, and shown first.
const THREADS: u32 = 1_000;
/// Threads of the launcher.
const COMMAND: u32 = THREADS * LAUNCHER;
const RECOVERY: u32 = COMMAND + 1;
const EVENTS: u32 = COMMAND + 2;

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  outlive trace --job heat --output heat.trace.json
Open the file at https://ui.perfetto.dev, which loads it into the browser alone, or in
chrome://tracing.")]
pub struct TraceOptions {
    /// Write the trace there [default: to standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
}

/// `outlive trace`.
///
/// # Errors
/// Those of reading the job, and of writing the trace.
pub fn run(options: &TraceOptions) -> Result<u8> {
    let trace = of(&super::of_job(&options.which)?);
    let text =
        serde_json::to_vec(&trace).map_err(|error| Error::internal(format!("JSON: {error}")))?;
    let to = options.output.clone().unwrap_or_else(|| PathBuf::from("-"));
    output::to(&to, &[&text[..], b"\n"].concat())
}

/// The object form, to which fields of one's own may be added.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<Entry>,
    display_time_unit: &'static str,
    other_data: Value,
}

/// An event of the trace.
#[derive(Serialize, Debug)]
struct Entry {
    name: String,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    /// Of an instant: `t`, a thread; `p`, a process; `g`, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

/// Where an event stands.
#[derive(Clone, Copy)]
struct At {
    pid: u32,
    tid: u32,
}

fn of(seen: &Seen) -> Trace {
    let history = History::new(&seen.report, seen.run.as_ref());
    let mut entries = Vec::new();
    launcher(&mut entries, seen, &history);
    if let Some(run) = &seen.run {
        events(&mut entries, run);
        for node in 0..run.header.nodes {
            of_node(&mut entries, node, run);
        }
    }
    Trace {
        trace_events: entries,
        display_time_unit: "ms",
        other_data: json!({
            "job": seen.report.job,
            "result": seen.report.result,
            "began": seen.run.as_ref().map(|run| &run.header.began),
            "beginning_is_kept": seen.run.as_ref().map(|run| !run.is_cut),
        }),
    }
}

fn launcher(entries: &mut Vec<Entry>, seen: &Seen, history: &History) {
    let report = &seen.report;
    name(entries, LAUNCHER, &format!("outlive run {}", report.job));
    for (tid, what) in [
        (COMMAND, "command"),
        (RECOVERY, "recovery"),
        (EVENTS, "events"),
    ] {
        thread(entries, At { pid: LAUNCHER, tid }, what, tid);
    }
    let at = |tid| At { pid: LAUNCHER, tid };
    for bar in &history.bars {
        let name = match bar.incarnation {
            Some(number) => format!("incarnation {number}"),
            None => "command".to_owned(),
        };
        let args = json!({ "restored_version": bar.restored });
        entries.push(complete(name, "command", at(COMMAND), bar.when, args));
    }
    for recovery in &history.recoveries {
        let failures = recovery.failures.iter().map(|n| &report.failures[*n]);
        let places: Vec<&str> = failures.map(|entry| entry.place.as_str()).collect();
        let name = format!("recovery from {}", places.join(", "));
        let args = json!({ "failures": places });
        entries.push(complete(
            name,
            "recovery",
            at(RECOVERY),
            recovery.when,
            args,
        ));
        for (part, when) in &recovery.parts {
            let name = part.name().to_owned();
            entries.push(complete(name, "recovery", at(RECOVERY), *when, json!({})));
        }
    }
    for failure in &report.failures {
        let args = json!({
            "cause": failure.cause,
            "injected": failure.injected,
            "restored_version": failure.version,
            "versions_lost": failure.versions_lost,
        });
        let name = format!("{} lost", failure.place);
        let place = at(EVENTS);
        entries.push(instant(
            name,
            "failure",
            place,
            failure.at_seconds,
            "g",
            args,
        ));
    }
}

/// What was told, but for failures, which the report knows better, and what has a length.
fn events(entries: &mut Vec<Entry>, run: &Run) {
    let place = At {
        pid: LAUNCHER,
        tid: EVENTS,
    };
    let told = run.told.iter().filter(|told| told.kind != "failure");
    for Told {
        at,
        words,
        kind,
        event,
        ..
    } in told
    {
        let wrong = event
            .as_ref()
            .is_some_and(|event| timeline::weight(event).1);
        let cat = if wrong { "trouble" } else { "event" };
        let args = json!({ "kind": kind });
        entries.push(instant(words.clone(), cat, place, *at, "t", args));
    }
}

fn of_node(entries: &mut Vec<Entry>, node: u32, run: &Run) {
    let pid = NODES + node;
    name(entries, pid, &format!("node {node}"));
    // What may overlap: by kind, then rank or level.
    let mut tracks: BTreeMap<Track, Vec<&SpanLine>> = BTreeMap::new();
    for span in run.spans.iter().filter(|span| span.node == node) {
        tracks.entry(track(span)).or_default().push(span);
    }
    let mut tid = pid.saturating_mul(THREADS);
    for mut spans in tracks.into_values() {
        let Some(title) = spans.first().map(|span| title(span)) else {
            continue;
        };
        spans.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        for (lane, spans) in lanes(&spans).into_iter().enumerate() {
            tid = tid.saturating_add(1);
            let title = match lane {
                0 => title.clone(),
                lane => format!("{title} ({})", lane + 1),
            };
            thread(entries, At { pid, tid }, &title, tid);
            for span in spans {
                let when = Interval {
                    begin: span.begin,
                    end: span.end(),
                };
                let args = json!({
                    "version": span.version,
                    "bytes": span.bytes,
                    "what": picture::describe(span),
                });
                let (name, cat) = label(span);
                entries.push(complete(name, cat, At { pid, tid }, when, args));
            }
        }
    }
}

/// The thread of a span, in order: what survives least comes first.
type Track = (u8, Option<Rank>, Option<Level>);

fn track(span: &SpanLine) -> Track {
    let place = match span.kind {
        SpanKind::Rebuild => 0,
        SpanKind::Capture => 1,
        SpanKind::Write => 2,
        SpanKind::Commit => 3,
    };
    (place, span.rank, span.level)
}

fn title(span: &SpanLine) -> String {
    let level = span.level.map_or("", |level| level.name());
    match (span.kind, span.rank) {
        (SpanKind::Rebuild, _) => "recovery".to_owned(),
        (SpanKind::Capture, Some(rank)) => format!("{rank}: capture"),
        (SpanKind::Capture, None) => "capture".to_owned(),
        (SpanKind::Write, _) => format!("{level}: write"),
        (SpanKind::Commit, _) => format!("{level}: commit"),
    }
}

fn label(span: &SpanLine) -> (String, &'static str) {
    let version = span
        .version
        .map_or_else(|| "nothing".to_owned(), |it| it.0.to_string());
    match span.kind {
        SpanKind::Capture => (format!("capture {version}"), "capture"),
        SpanKind::Write => (format!("write {version}"), "write"),
        SpanKind::Commit => (format!("commit {version}"), "commit"),
        SpanKind::Rebuild => (format!("rebuild {version}"), "recovery"),
    }
}

/// Lanes in which no two spans overlap: each span goes to the first that is free. They are given by
/// their beginning.
fn lanes<'a>(spans: &[&'a SpanLine]) -> Vec<Vec<&'a SpanLine>> {
    let mut lanes: Vec<Vec<&SpanLine>> = Vec::new();
    for span in spans {
        let free = |lane: &&mut Vec<&SpanLine>| {
            let last = lane.last();
            last.is_none_or(|last| micros(last.end()) <= micros(span.begin))
        };
        match lanes.iter_mut().find(free) {
            Some(lane) => lane.push(span),
            None => lanes.push(vec![span]),
        }
    }
    lanes
}

/// To the nanosecond, so that what ends where another begins does so as text too.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

fn complete(name: String, cat: &'static str, at: At, when: Interval, args: Value) -> Entry {
    let ts = micros(when.begin);
    let nanos = (micros(when.end) - ts).max(0.0) * 1e3;
    Entry {
        name,
        cat,
        ph: "X",
        ts,
        dur: Some(nanos.round() / 1e3),
        pid: at.pid,
        tid: at.tid,
        s: None,
        args,
    }
}

fn instant(
    name: String,
    cat: &'static str,
    at: At,
    seconds: f64,
    scope: &'static str,
    args: Value,
) -> Entry {
    Entry {
        name,
        cat,
        ph: "i",
        ts: micros(seconds),
        dur: None,
        pid: at.pid,
        tid: at.tid,
        s: Some(scope),
        args,
    }
}

fn metadata(name: &str, at: At, args: Value) -> Entry {
    Entry {
        name: name.to_owned(),
        cat: "__metadata",
        ph: "M",
        ts: 0.0,
        dur: None,
        pid: at.pid,
        tid: at.tid,
        s: None,
        args,
    }
}

/// Names a process, and puts it in its place.
fn name(entries: &mut Vec<Entry>, pid: u32, name: &str) {
    let at = At { pid, tid: 0 };
    entries.push(metadata("process_name", at, json!({ "name": name })));
    entries.push(metadata(
        "process_sort_index",
        at,
        json!({ "sort_index": pid }),
    ));
}

/// Names a thread, and puts it in its place.
fn thread(entries: &mut Vec<Entry>, at: At, name: &str, place: u32) {
    entries.push(metadata("thread_name", at, json!({ "name": name })));
    entries.push(metadata(
        "thread_sort_index",
        at,
        json!({ "sort_index": place }),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::history::tests::sample;

    #[test]
    fn on_each_thread_spans_lie_inside_or_beside_each_other() {
        let (report, run) = sample();
        let failures = report.failures.len();
        let trace = of(&Seen {
            report,
            run: Some(run),
        });
        let mut threads: BTreeMap<(u32, u32), Vec<(f64, f64)>> = BTreeMap::new();
        for entry in trace.trace_events.iter().filter(|entry| entry.ph == "X") {
            let dur = entry.dur.unwrap();
            assert!(entry.ts >= 0.0 && dur >= 0.0, "{entry:?}");
            let spans = threads.entry((entry.pid, entry.tid)).or_default();
            spans.push((entry.ts, entry.ts + dur));
        }
        for (thread, spans) in &threads {
            for (at, a) in spans.iter().enumerate() {
                for b in &spans[at + 1..] {
                    let beside = a.1 <= b.0 + 1e-6 || b.1 <= a.0 + 1e-6;
                    let inside = (a.0 <= b.0 && b.1 <= a.1 + 1e-6) || (b.0 <= a.0 && a.1 <= b.1);
                    assert!(beside || inside, "{thread:?}: {a:?} and {b:?}");
                }
            }
        }
        let named: Vec<(u32, u32)> = trace
            .trace_events
            .iter()
            .filter(|entry| entry.name == "thread_name")
            .map(|entry| (entry.pid, entry.tid))
            .collect();
        assert!(threads.keys().all(|thread| named.contains(thread)));
        let global = trace
            .trace_events
            .iter()
            .filter(|entry| entry.s == Some("g"));
        assert_eq!(global.count(), failures);
        // Both writes, though they overlap.
        let writes = threads.keys().filter(|(pid, _)| *pid == NODES + 1).count();
        assert_eq!(writes, 4, "recovery, two lanes of writes, commits");
    }
}
