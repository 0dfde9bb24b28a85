//! The thread that writes what is taken down.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use outlive_control::report::Report;
use outlive_control::supervisor::Event;

use super::lines::{self, EVENTS, Ended, Header, LeftOut, SpanLine};
use super::live::{self, Live};
use super::metrics;
use super::rolling::Rolling;
use crate::files;
use crate::timeline;

/// Pieces that may wait for the disk.
const QUEUE: usize = 1024;
/// Of each of the two files of lines, and as much of the one before it.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// How long the end of a run waits for a disk.
const END: Duration = Duration::from_secs(2);
/// The state of this moment costs at most this part of the time of a thread.
const SHARE: u32 = 1000;

/// But it is no older than this for long, for one slow write says little of the next.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is to be written.
pub(super) enum Piece {
    /// At this second of the run.
    Event(f64, Box<Event>),
    /// What took how long, and how much the node has left out.
    Spans(Vec<SpanLine>, u64),
    Live(Box<Live>, Box<Report>),
    /// The run has ended, in the words of the timeline.
    Ended(f64, Ended, String),
}

/// The end of the queue that the driver has.
pub(super) struct Writer {
    to: Option<Sender<Piece>>,
    /// Closed when the thread has ended.
    done: Receiver<()>,
    left_out: Arc<AtomicU64>,
    /// How long the last state took to write, in nanoseconds.
    live_ns: Arc<AtomicU64>,
    /// A state waits to be written: it is large, and one that is newer takes its place later.
    live_waits: Arc<AtomicBool>,
}

impl Writer {
    pub fn start(dir: PathBuf, header: &Header, metrics: Option<PathBuf>) -> Writer {
        let (to, from) = bounded(QUEUE);
        let (ended, done) = bounded::<()>(0);
        let left_out = Arc::new(AtomicU64::new(0));
        let live_ns = Arc::new(AtomicU64::new(0));
        let live_waits = Arc::new(AtomicBool::new(false));
        let mut pen = Pen::new(dir, header, metrics, &left_out, &live_ns);
        let waits = Arc::clone(&live_waits);
        let write = move || {
            pen.begin();
            for piece in from {
                let is_live = matches!(piece, Piece::Live(..));
                pen.write(piece);
                if is_live {
                    waits.store(false, Ordering::Relaxed);
                }
            }
            drop(ended);
        };
        let thread = std::thread::Builder::new()
            .name("record".into())
            .spawn(write);
        if let Err(error) = &thread {
            tracing::warn!(%error, "nothing is taken down");
        }
        Writer {
            to: thread.is_ok().then_some(to),
            done,
            left_out,
            live_ns,
            live_waits,
        }
    }

    /// Never waits.
    pub fn write(&self, piece: Piece) {
        let Some(to) = &self.to else { return };
        let lines = match &piece {
            Piece::Event(..) | Piece::Ended(..) => 1,
            Piece::Spans(lines, left_out) => lines.len() as u64 + left_out,
            Piece::Live(..) => {
                self.live_waits.store(true, Ordering::Relaxed);
                0
            }
        };
        if let Err(refused) = to.try_send(piece) {
            self.left_out.fetch_add(lines, Ordering::Relaxed);
            if matches!(refused.into_inner(), Piece::Live(..)) {
                self.live_waits.store(false, Ordering::Relaxed);
            }
        }
    }

    /// How long to wait between two states, by what the last cost; `None`: one waits still, for a
    /// disk that is slow or hangs.
    pub fn pause(&self) -> Option<Duration> {
        let last = Duration::from_nanos(self.live_ns.load(Ordering::Relaxed));
        let waits = self.live_waits.load(Ordering::Relaxed);
        (!waits).then(|| last.saturating_mul(SHARE).min(PAUSE_MAX))
    }

    /// Waits for the thread, but for no disk that hangs.
    pub fn finish(mut self) {
        if self.to.take().is_some() {
            let _ = self.done.recv_timeout(END);
        }
    }
}

/// What the thread has.
struct Pen {
    dir: PathBuf,
    header: String,
    events: Rolling,
    spans: Rolling,
    metrics: Option<PathBuf>,
    /// A refusal of the file of numbers was told.
    refused: bool,
    /// The second of the run that was written last.
    at: f64,
    left_out: Arc<AtomicU64>,
    live_ns: Arc<AtomicU64>,
}

impl Pen {
    fn new(
        dir: PathBuf,
        header: &Header,
        metrics: Option<PathBuf>,
        left_out: &Arc<AtomicU64>,
        live_ns: &Arc<AtomicU64>,
    ) -> Pen {
        let run = |header: &Header| lines::line(0.0, Some("run"), header, "");
        let again = run(&Header {
            continues: true,
            ..header.clone()
        });
        let file = |name| Rolling::new(dir.join(name), FILE_BYTES_MAX, again.clone());
        Pen {
            events: file(EVENTS),
            spans: file(lines::SPANS),
            header: run(header),
            dir,
            metrics,
            refused: false,
            at: 0.0,
            left_out: Arc::clone(left_out),
            live_ns: Arc::clone(live_ns),
        }
    }

    fn begin(&mut self) {
        if let Err(error) = files::make_private(&self.dir) {
            tracing::warn!(%error, "nothing is taken down");
        }
        // A state of the run before would be taken for this one's.
        let live = self.dir.join(live::FILE);
        let _ = std::fs::remove_file(&live);
        files::sweep_replaced(&live);
        let header = self.header.clone();
        for file in [&mut self.events, &mut self.spans] {
            if let Err(error) = file.append(&header) {
                tracing::warn!(%error, "not taken down");
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn write(&mut self, piece: Piece) {
        match piece {
            Piece::Event(at, event) => {
                self.at = at;
                let text = timeline::words(&event);
                self.append(&lines::event_line(at, &event, &text));
            }
            Piece::Ended(at, ended, text) => {
                self.at = at;
                self.append(&lines::line(at, Some("ended"), &ended, &text));
            }
            Piece::Spans(spans, left_out) => {
                self.left_out.fetch_add(left_out, Ordering::Relaxed);
                for span in spans {
                    let Ok(line) = serde_json::to_string(&span) else {
                        continue;
                    };
                    if self.spans.append(&(line + "\n")).is_err() {
                        self.left_out.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Piece::Live(live, report) => self.live(&live, &report),
        }
    }

    /// A line of events, after what was left out before it.
    fn append(&mut self, line: &str) {
        let lines = self.left_out.swap(0, Ordering::Relaxed);
        let at = self.at;
        let mut failed = 0;
        if lines > 0 {
            let text = format!("{lines} lines were left out: they could not be written");
            let note = lines::line(at, Some("left-out"), &LeftOut { lines }, &text);
            failed += u64::from(self.events.append(&note).is_err()) * lines;
        }
        failed += u64::from(self.events.append(line).is_err());
        self.left_out.fetch_add(failed, Ordering::Relaxed);
    }

    fn live(&mut self, live: &Live, report: &Report) {
        let begun = Instant::now();
        let path = self.dir.join(live::FILE);
        if let Err(error) = files::replace(&path, live.to_json().as_bytes(), 0o600) {
            tracing::info!(%error, "the state of the job is not written");
        }
        if let Some(path) = &self.metrics {
            let text = metrics::text(live, report);
            match files::replace(path, text.as_bytes(), metrics::MODE) {
                Ok(()) => self.refused = false,
                Err(_) if self.refused => {}
                Err(error) => {
                    self.refused = true;
                    tracing::warn!(%error, "metrics not written");
                }
            }
        }
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.live_ns.store(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_write_does_not_stop_what_is_seen_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let header = Header {
            schema: lines::SCHEMA.to_owned(),
            job: "test".to_owned(),
            began: String::new(),
            began_unix_ms: 0,
            pid: 1,
            nodes: 1,
            continues: false,
        };
        let writer = Writer::start(dir.path().join("view"), &header, None);
        writer.live_ns.store(20_000, Ordering::Relaxed);
        assert_eq!(writer.pause(), Some(Duration::from_millis(20)));
        writer.live_ns.store(10_000_000_000, Ordering::Relaxed);
        assert_eq!(writer.pause(), Some(PAUSE_MAX));
        // While one waits for the disk, no other is made.
        writer.live_waits.store(true, Ordering::Relaxed);
        assert_eq!(writer.pause(), None);
        writer.finish();
    }
}
