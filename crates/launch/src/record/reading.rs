//! Reading what was taken down: whole, or as it grows.
//!
//! What cannot be read as a line is left out: a launcher that was killed leaves half a line, a later
//! release writes kinds that this one does not know.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use outlive_base::{Error, Result};
use outlive_control::supervisor::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::directory;
use super::lines::{EVENTS, Ended, Header, SPANS, SpanLine};
use super::rolling::older;

/// Most bytes of a file that are looked at.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Something that the user was told.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// Seconds since the run began.
    pub at: f64,
    /// The name of its kind.
    pub kind: String,
    /// What failed, of a failure.
    pub place: Option<String>,
    /// The words of the timeline.
    pub words: String,
    /// What it is, if this release knows its kind.
    pub event: Option<Event>,
}

/// What was taken down of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Whose it is, and when it began.
    pub header: Header,
    /// Its beginning is not there any more: newer lines took its place.
    pub is_cut: bool,
    /// In the order in which they happened.
    pub told: Vec<Told>,
    /// In the order in which they ended.
    pub spans: Vec<SpanLine>,
    /// How it ended; `None` if it goes on, or its launcher was killed.
    pub ended: Option<(f64, Ended)>,
}

impl Run {
    fn new(header: Header) -> Run {
        Run {
            is_cut: header.continues,
            header,
            told: Vec::new(),
            spans: Vec::new(),
            ended: None,
        }
    }

    /// The last second that is known of.
    pub fn seconds(&self) -> f64 {
        let told = self.told.iter().map(|told| told.at);
        let ended = self.ended.iter().map(|(at, _)| *at);
        let spans = self.spans.iter().map(SpanLine::end);
        told.chain(ended).chain(spans).fold(0.0, f64::max)
    }
}

/// The runs of a job that are still written of, the oldest first.
///
/// # Errors
/// Those of reading; files that are not there are none.
pub fn read(job_dir: &Path) -> Result<Vec<Run>> {
    let dir = directory(job_dir);
    let mut runs: Vec<Run> = Vec::new();
    for line in lines_of(&dir.join(EVENTS))? {
        match parse(&line) {
            Some(Line::Run(header)) => find(&mut runs, header),
            Some(Line::Told(told)) => {
                if let Some(run) = runs.last_mut() {
                    run.told.push(told);
                }
            }
            Some(Line::Ended(told, ended)) => {
                if let Some(run) = runs.last_mut() {
                    run.ended = Some((told.at, ended));
                    run.told.push(told);
                }
            }
            Some(Line::Span(_)) | None => {}
        }
    }
    let mut at = None;
    for line in lines_of(&dir.join(SPANS))? {
        match parse(&line) {
            Some(Line::Run(header)) => {
                at = runs.iter().position(|run| run.header.is_same_run(&header));
            }
            Some(Line::Span(span)) => {
                if let Some(at) = at {
                    runs[at].spans.push(span);
                }
            }
            _ => {}
        }
    }
    Ok(runs)
}

/// Begins a run, unless it goes on in another file.
fn find(runs: &mut Vec<Run>, header: Header) {
    let known = runs
        .last()
        .is_some_and(|run| run.header.is_same_run(&header));
    if !known {
        runs.push(Run::new(header));
    }
}

/// A line that was understood.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Line {
    Run(Header),
    Told(Told),
    Ended(Told, Ended),
    Span(SpanLine),
}

pub(super) fn parse(line: &[u8]) -> Option<Line> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let kind = value.get("kind")?.as_str()?.to_owned();
    if kind == "run" {
        let header: Header = known(&value)?;
        return (header.schema == super::lines::SCHEMA).then_some(Line::Run(header));
    }
    if value.get("begin").is_some() {
        let span: SpanLine = known(&value)?;
        let sound = span.begin.is_finite() && span.seconds >= 0.0 && span.begin >= 0.0;
        return sound.then_some(Line::Span(span));
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let at = value.get("at")?.as_f64().filter(|at| *at >= 0.0)?;
    let told = Told {
        at,
        place: text("place"),
        words: text("words").unwrap_or_default(),
        event: known(&value),
        kind,
    };
    match (told.kind == "ended", known(&value)) {
        (true, Some(ended)) => Some(Line::Ended(told, ended)),
        _ => Some(Line::Told(told)),
    }
}

fn known<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

/// The lines of a file and of the one before it.
fn lines_of(path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut bytes = Vec::new();
    // The newer first: what takes its place meanwhile is then read twice at worst, and told apart.
    let newer = open(path)?;
    let older = open(&older(path))?;
    let same = |a: &File, b: &File| number(a).is_some() && number(a) == number(b);
    let older = older.filter(|older| !newer.as_ref().is_some_and(|newer| same(newer, older)));
    for file in [older, newer].into_iter().flatten() {
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(|error| Error::io(path, "read", &error))?;
    }
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect())
}

fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, "open", &error)),
    }
}

fn number(file: &File) -> Option<(u64, u64)> {
    let meta = file.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}

/// What is told from now on, while it is being told.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line that has no end yet.
    rest: Vec<u8>,
}

impl Follower {
    /// Follows a job from the beginning of its newest file.
    pub fn new(job_dir: &Path) -> Follower {
        Follower {
            path: directory(job_dir).join(EVENTS),
            file: None,
            rest: Vec::new(),
        }
    }

    /// What has come since the last look: runs that begin, and what was told.
    ///
    /// # Errors
    /// Those of reading.
    pub fn look(&mut self) -> Result<Vec<(Option<Header>, Option<Told>)>> {
        let mut found = Vec::new();
        loop {
            if self.file.is_none() {
                self.file = open(&self.path)?;
            }
            if self.file.is_none() {
                return Ok(found);
            }
            self.read(&mut found)?;
            let there = fs::metadata(&self.path).ok();
            let there = there.map(|meta| (meta.dev(), meta.ino()));
            if there.is_none() || there == self.file.as_ref().and_then(number) {
                return Ok(found);
            }
            // It is full, and another has its name. What came between the reading and the look at
            // the name is its end.
            self.read(&mut found)?;
            self.file = None;
            self.rest.clear();
        }
    }

    /// Reads the open file to its end.
    fn read(&mut self, found: &mut Vec<(Option<Header>, Option<Told>)>) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut self.rest);
        read.map_err(|error| Error::io(&self.path, "read", &error))?;
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match parse(&line) {
                Some(Line::Run(header)) => found.push((Some(header), None)),
                Some(Line::Told(told) | Line::Ended(told, _)) => found.push((None, Some(told))),
                Some(Line::Span(_)) | None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{Code, Entity, Incarnation, Level, NodeId, Time, Version};
    use outlive_control::orders::{Span, Work};

    use super::*;
    use crate::record::lines;
    use crate::timeline;

    /// One of each way in which an event has fields.
    fn events() -> Vec<Event> {
        let error = Error::new(Code::NoSpare, Entity::Node(2), "a \"reason\"\n", "more");
        vec![
            Event::NodesUp { nodes: 3 },
            Event::Opened {
                incarnation: Incarnation(2),
                restored: Some(Version(60)),
                level: Some(Level::PARTNER),
                rebuild_ms: 12.5,
                rejected: 1,
                restart: true,
                given_up: false,
            },
            Event::Failure {
                what: "node:2 lost: <b>".into(),
                suspected_ms: None,
                detect_ms: Some(4.0),
            },
            Event::Aborted {
                version: Version(7),
                level: None,
                error: error.clone(),
            },
            Event::Replaced {
                node: NodeId(2),
                spares_left: None,
            },
            Event::Warned,
            Event::Announced {
                signal: 15,
                notice_ms: 30_000,
            },
            Event::Finishing,
            Event::Warning(error.clone()),
            Event::More {
                error: error.clone(),
                more: 9,
            },
            Event::Fatal(error),
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        for event in events() {
            let text = timeline::words(&event);
            let line = lines::event_line(1.5, &event, &text);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let Some(Line::Told(told)) = parse(line.as_bytes()) else {
                panic!("{line}");
            };
            assert_eq!(
                (told.at, &told.event),
                (1.5, &Some(event.clone())),
                "{line}"
            );
            assert_eq!(told.words, text);
            let failed = matches!(event, Event::Failure { .. });
            assert_eq!(told.place.as_deref(), failed.then_some("node:2"));
        }
    }

    #[test]
    fn what_is_not_known_is_told_in_its_words_and_nonsense_is_left_out() {
        let text = br#"{"at":3,"kind":"eclipse","moon":1,"words":"dark"}"#;
        let Some(Line::Told(told)) = parse(text) else {
            panic!("left out");
        };
        assert_eq!((told.event, &*told.words), (None, "dark"));
        for text in [
            "",
            "{",
            "[]",
            "{\"kind\":7}",
            "{\"at\":\"x\",\"kind\":\"warned\"}",
            "{\"at\":-1,\"kind\":\"warned\"}",
            "{\"kind\":\"run\",\"schema\":\"outlive.events/2\"}",
            "{\"begin\":1,\"seconds\":-2,\"node\":0,\"kind\":\"rebuild\",\"version\":null,\"bytes\":0}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_span_is_put_on_the_launchers_clock_and_never_before_the_run() {
        let span = |ago_ns, lasted_ns| Span {
            work: Work::Write(Level::DISK),
            version: Some(Version(3)),
            bytes: 5,
            ago_ns,
            lasted_ns,
        };
        let now = Time::from_secs(10);
        let line = SpanLine::new(now, NodeId(1), &span(2_000_000_000, 3_000_000_000));
        assert_eq!((line.begin, line.seconds), (5.0, 3.0));
        let line = SpanLine::new(now, NodeId(1), &span(2_000_000_000, 9_000_000_000));
        assert_eq!((line.begin, line.end()), (0.0, 8.0));
        let text = serde_json::to_vec(&line).unwrap();
        assert_eq!(parse(&text), Some(Line::Span(line)));
    }

    #[test]
    fn runs_are_told_apart_and_a_file_that_is_full_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let view = directory(dir.path());
        fs::create_dir(&view).unwrap();
        let header = |pid, continues| Header {
            schema: lines::SCHEMA.into(),
            job: "j".into(),
            began: String::new(),
            began_unix_ms: 1,
            pid,
            nodes: 1,
            continues,
        };
        let run = |pid, continues| lines::line(0.0, Some("run"), &header(pid, continues), "");
        let event = |at| lines::event_line(at, &Event::Warned, "warned");
        let path = view.join(EVENTS);
        fs::write(
            &path,
            run(1, false) + &event(1.0) + &run(2, false) + &event(2.0),
        )
        .unwrap();
        let mut follower = Follower::new(dir.path());
        let told = |found: Vec<(Option<Header>, Option<Told>)>| -> Vec<f64> {
            let told = found.into_iter().filter_map(|(_, told)| told);
            told.map(|told| told.at).collect()
        };
        assert_eq!(told(follower.look().unwrap()), [1.0, 2.0]);
        fs::rename(&path, older(&path)).unwrap();
        assert!(told(follower.look().unwrap()).is_empty());
        fs::write(&path, run(2, true) + &event(3.0) + "{\"at\":4").unwrap();
        assert_eq!(told(follower.look().unwrap()), [3.0]);
        let runs = read(dir.path()).unwrap();
        let found: Vec<(u32, usize, bool)> = runs
            .iter()
            .map(|run| (run.header.pid, run.told.len(), run.is_cut))
            .collect();
        assert_eq!(found, [(1, 1, false), (2, 2, false)]);
    }
}
