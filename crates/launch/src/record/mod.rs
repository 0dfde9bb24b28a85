//! What people see of a job while it runs and afterwards: [`lines`] of what happened, the state of
//! this moment ([`live`]), numbers for a monitoring system ([`metrics`]).
//!
//! Invariants: the job never waits for any of it and never fails by it. The driver hands pieces to a
//! thread by a queue with a bound; what finds the queue full, or a disk that takes nothing, is left
//! out and counted. Nothing is synced: who loses power loses some seconds of it. The files have a
//! bound (`rolling`).

pub mod lines;
pub mod live;
pub mod metrics;
mod reading;
mod rolling;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use outlive_base::{JobName, NodeId, Time};
use outlive_control::orders::{NodeStatus, Notice};
use outlive_control::report::Report;
use outlive_control::supervisor::{Event, Supervisor};
use outlive_control::traffic::Traffic;

use crate::jobs::utc;
use lines::{Ended, Header, SpanLine};
use live::{Live, Rates};
pub use reading::{Follower, Run, Told, read};
use writer::{Piece, Writer};

/// The directory of it in a job's.
pub const DIRECTORY: &str = "view";
/// Between two writes of the state of this moment, where they cost little.
const LIVE_EVERY: Duration = Duration::from_secs(1);

/// `STORE/JOB/view`.
pub fn directory(job_dir: &Path) -> PathBuf {
    job_dir.join(DIRECTORY)
}

/// Takes down what happens.
pub(crate) struct Recorder {
    writer: Writer,
    header: Header,
    /// What the launcher has sent and received.
    pub traffic: Traffic,
    /// What each node said of itself last, and which holder of its slot it was.
    statuses: BTreeMap<NodeId, (u64, NodeStatus)>,
    rates: Rates,
    looked: Option<Instant>,
}

impl Recorder {
    /// Begins to take down a run. `metrics` is where numbers go, if they are wanted.
    pub fn start(job_dir: &Path, job: &JobName, nodes: u32, metrics: Option<&Path>) -> Recorder {
        let began = SystemTime::now();
        let since = began.duration_since(SystemTime::UNIX_EPOCH);
        let header = Header {
            schema: lines::SCHEMA.to_owned(),
            job: job.to_string(),
            began: utc(began),
            began_unix_ms: since.map_or(0, |since| since.as_millis() as u64),
            pid: std::process::id(),
            nodes,
            continues: false,
        };
        let metrics = metrics.map(|path| metrics::file(path, job));
        Recorder {
            writer: Writer::start(directory(job_dir), &header, metrics),
            header,
            traffic: Traffic::default(),
            statuses: BTreeMap::new(),
            rates: Rates::default(),
            looked: None,
        }
    }

    /// An agent said something.
    pub fn notice(&mut self, now: Time, node: NodeId, epoch: u64, notice: &Notice) {
        match notice {
            Notice::Status(status) => {
                drop(self.statuses.insert(node, (epoch, status.clone())));
            }
            Notice::Spans(said) => {
                let line = |span| SpanLine::new(now, node, span);
                let lines = said.spans.iter().map(line).collect();
                self.writer.write(Piece::Spans(lines, said.left_out));
            }
            _ => {}
        }
    }

    /// The user is told something.
    pub fn event(&self, now: Time, event: &Event) {
        self.writer
            .write(Piece::Event(now.as_secs(), Box::new(event.clone())));
    }

    /// Writes the state of this moment, if it is time for that.
    pub fn look(
        &mut self,
        now: Time,
        supervisor: &Supervisor,
        hosts: impl FnOnce() -> Vec<String>,
    ) {
        let Some(pause) = self.writer.pause() else {
            return;
        };
        let every = LIVE_EVERY.max(pause);
        if self.looked.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        self.looked = Some(Instant::now());
        let (live, report) = self.live(now, supervisor, &hosts());
        self.writer
            .write(Piece::Live(Box::new(live), Box::new(report)));
    }

    fn live(&mut self, now: Time, supervisor: &Supervisor, hosts: &[String]) -> (Live, Report) {
        let mut report = supervisor.report().clone();
        report.seconds = now.as_secs();
        self.rates.note(now, &report.checkpoints);
        let view = supervisor.view(now);
        let live = Live::new(
            (&self.header, &self.traffic),
            &view,
            &report,
            &self.statuses,
            hosts,
            &self.rates,
        );
        (live, report)
    }

    /// The end of the run.
    pub fn finish(
        mut self,
        now: Time,
        supervisor: &Supervisor,
        hosts: &[String],
        report: &Report,
        text: &str,
    ) {
        let ended = Ended {
            result: report.result.clone(),
            exit_status: report.exit_status,
        };
        let at = now.as_secs();
        self.writer.write(Piece::Ended(at, ended, text.to_owned()));
        let (live, _) = self.live(now, supervisor, hosts);
        let piece = Piece::Live(Box::new(live), Box::new(report.clone()));
        self.writer.write(piece);
        self.writer.finish();
    }
}
