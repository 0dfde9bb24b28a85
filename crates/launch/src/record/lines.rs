//! The lines of `events.jsonl` and `spans.jsonl`, schema `outlive.events/1`: a JSON object on each.
//! Fields are only ever added; a reader leaves out kinds that it does not know.

use outlive_base::{Level, NodeId, Rank, Time, Version};
use outlive_control::orders::{Span, Work};
use outlive_control::supervisor::Event;
use serde::{Deserialize, Serialize};

/// The schema's name and number.
pub const SCHEMA: &str = "outlive.events/1";
/// What happened to the job, in the words of the timeline.
pub const EVENTS: &str = "events.jsonl";
/// What took how long at which node.
pub const SPANS: &str = "spans.jsonl";

/// A run begins, or goes on in another file; kind `run`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// The job's name.
    pub job: String,
    /// When the run began, in UTC by the launcher's clock. All times of its lines count from then.
    pub began: String,
    /// The same in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The launcher's process.
    pub pid: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// The run began in the file before this one.
    pub continues: bool,
}

impl Header {
    /// True if both are of one run.
    pub fn is_same_run(&self, other: &Header) -> bool {
        (self.began_unix_ms, self.pid) == (other.began_unix_ms, other.pid)
    }
}

/// A run has ended; kind `ended`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// As in the report.
    pub result: String,
    /// As in the report.
    pub exit_status: u8,
}

/// Lines that could not be written; kind `left-out`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    /// How many.
    pub lines: u64,
}

/// A line of `events.jsonl`.
#[derive(Serialize)]
pub(super) struct Line<'a, T> {
    /// Seconds since the run began.
    pub at: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'a str>,
    #[serde(flatten)]
    pub what: T,
    /// What failed, as in the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<&'a str>,
    /// The words of the timeline.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub words: &'a str,
}

/// A line, with its line feed.
pub(super) fn line<T: Serialize>(at: f64, kind: Option<&str>, what: &T, words: &str) -> String {
    let place = None;
    json(&Line {
        at,
        kind,
        what,
        place,
        words,
    })
}

/// The line of an event.
pub(super) fn event_line(at: f64, event: &Event, words: &str) -> String {
    json(&Line {
        at,
        kind: None,
        what: event,
        place: event.place(),
        words,
    })
}

fn json<T: Serialize>(line: &T) -> String {
    // Nothing of it can fail; a line that did would be skipped by every reader.
    serde_json::to_string(line).unwrap_or_default() + "\n"
}

/// What kind of work a span is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// A rank is blocked while its regions are captured.
    Capture,
    /// A level of a version is written and read back.
    Write,
    /// From then until it is known to be stable.
    Commit,
    /// The newest version is found, rebuilt and verified.
    Rebuild,
}

/// A line of `spans.jsonl`: something that took a while at a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpanLine {
    /// When it began, in seconds since the run did. By the launcher's clock: when it was told less
    /// how long ago it had ended then, so that it may be late by the way of a message.
    pub begin: f64,
    /// How long it lasted, in seconds.
    pub seconds: f64,
    /// The node.
    pub node: u32,
    /// What it is.
    pub kind: SpanKind,
    /// The rank, of a capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// The level, of a write or commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// The version; `None`: nothing was restored.
    pub version: Option<Version>,
    /// Bytes captured, written or rebuilt; 0 for a commit.
    pub bytes: u64,
}

impl SpanLine {
    /// As an agent told it at `now`. What the run cannot have seen begins with it.
    pub fn new(now: Time, node: NodeId, span: &Span) -> SpanLine {
        let (kind, rank, level) = match span.work {
            Work::Capture(rank) => (SpanKind::Capture, Some(rank), None),
            Work::Write(level) => (SpanKind::Write, None, Some(level)),
            Work::Commit(level) => (SpanKind::Commit, None, Some(level)),
            Work::Rebuild => (SpanKind::Rebuild, None, None),
        };
        let end = now.since(Time(span.ago_ns));
        let begin = end.since(Time(span.lasted_ns));
        SpanLine {
            begin: begin.as_secs(),
            seconds: end.since(begin).as_secs(),
            node: node.0,
            kind,
            rank,
            level,
            version: span.version,
            bytes: span.bytes,
        }
    }

    /// When it ended, in seconds since the run began.
    pub fn end(&self) -> f64 {
        self.begin + self.seconds
    }
}
