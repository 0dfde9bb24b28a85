//! `outlive logs`: what happened to a job, in the words of the timeline.

use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_control::supervisor::Event;
use outlive_launch::jobs::utc;
use outlive_launch::record::lines::Header;
use outlive_launch::record::{self, Follower, Told};
use outlive_launch::store;
use outlive_launch::timeline::{self, Detail};

use super::paint::plain;
use super::{Which, picture};
use crate::output;
use crate::status;

/// Between two looks at what is new.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive logs --job heat --follow
  outlive logs --job heat --all --node 2
Times are in UTC by the launcher's clock, then in seconds since the run began. What agents and keepers
say of themselves is not among it: they write to the launcher's standard error, if OUTLIVE_LOG says
what is wanted.")]
pub struct LogsOptions {
    #[command(flatten)]
    which: Which,
    /// Go on with what happens, until the job ends
    #[arg(short, long)]
    follow: bool,
    /// All runs that are still kept, not the last alone
    #[arg(long)]
    all: bool,
    /// Only what concerns this node [default: all nodes]
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,
    /// Also how long each node took to capture, write, commit and rebuild
    #[arg(long, conflicts_with = "follow")]
    spans: bool,
    /// Only what matters in a log: failures, recoveries, warnings
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Everything
    #[arg(short, long)]
    verbose: bool,
}

/// `outlive logs`.
///
/// # Errors
/// [`Code::NotFound`] if nothing was taken down of the job; those of reading.
pub fn run(options: &LogsOptions) -> Result<u8> {
    let job = status::choose(&options.which.choice())?;
    if options.follow {
        return follow(options, &job.dir);
    }
    let mut runs = record::read(&job.dir)?;
    if !options.all {
        runs.drain(..runs.len().saturating_sub(1));
    }
    if runs.is_empty() {
        return Err(Error::new(
            Code::NotFound,
            Entity::Job(job.name.to_string()),
            "nothing was taken down of it",
            "it never ran, or last with a release that did not do so; outlive status --job tells \
             what its report says",
        ));
    }
    let mut lines = Vec::new();
    for run in &runs {
        lines.push(begun(&run.header));
        if run.is_cut {
            lines.push("(what came first is not kept any more)".to_owned());
        }
        let told = run.told.iter().filter(|told| options.wants(told));
        let mut found: Vec<(f64, String)> =
            told.map(|told| (told.at, plain(&told.words))).collect();
        if options.spans {
            let wanted = |node| options.node.is_none_or(|wanted| wanted == node);
            let spans = run.spans.iter().filter(|span| wanted(span.node));
            found.extend(spans.map(|span| {
                let text = format!("node {}: {}", span.node, picture::describe(span));
                (span.end(), text)
            }));
            found.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        lines.extend(
            found
                .iter()
                .map(|(at, words)| line(&run.header, *at, words)),
        );
    }
    output::text(&lines.join("\n"))
}

/// Until the job ends, or the reader goes.
fn follow(options: &LogsOptions, dir: &Path) -> Result<u8> {
    let mut follower = Follower::new(dir);
    let mut header: Option<Header> = None;
    let mut first = true;
    loop {
        // Looked at before the lines: what a job says at its end is there when it is gone.
        let runs = store::running(dir).is_some();
        let mut found = follower.look()?;
        if std::mem::take(&mut first) && !options.all {
            let last = found.iter().rposition(|(begins, _)| begins.is_some());
            found.drain(..last.unwrap_or(0));
        }
        let mut lines = Vec::new();
        for (begins, told) in found {
            if let Some(begins) = begins {
                let known = header.as_ref().is_some_and(|it| it.is_same_run(&begins));
                if !known {
                    lines.push(begun(&begins));
                    header = Some(begins);
                }
            }
            if let (Some(header), Some(told)) = (&header, told.filter(|told| options.wants(told))) {
                lines.push(line(header, told.at, &plain(&told.words)));
            }
        }
        if !lines.is_empty() && !output::is_read(&lines.join("\n"))? {
            return Ok(0);
        }
        if !runs {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl LogsOptions {
    fn wants(&self, told: &Told) -> bool {
        let detail = match (self.quiet, self.verbose) {
            (true, _) => Detail::Plain,
            (_, true) => Detail::Verbose,
            _ => Detail::Live,
        };
        let needs = told
            .event
            .as_ref()
            .map_or(Detail::Plain, |event| timeline::weight(event).0);
        needs <= detail && self.node.is_none_or(|node| concerns(told, node))
    }
}

/// True if it names the node.
fn concerns(told: &Told, node: u32) -> bool {
    let about = |error: &Error| *error.entity() == Entity::Node(node);
    match &told.event {
        Some(Event::Failure { .. }) => told.place.as_deref() == Some(&*format!("node:{node}")),
        Some(
            Event::Replaced { node: of, .. }
            | Event::Suspected { node: of, .. }
            | Event::Heard { node: of }
            | Event::AgentRestarted { node: of, .. }
            | Event::Health { node: of, .. },
        ) => of.0 == node,
        Some(
            Event::Aborted { error, .. }
            | Event::Warning(error)
            | Event::More { error, .. }
            | Event::Fatal(error),
        ) => about(error),
        // Where all ranks are is told of the job.
        Some(Event::Hang { .. } | Event::Resumed { .. }) => true,
        Some(Event::Injected { text, .. }) => text.contains(&format!("node:{node}@")),
        _ => false,
    }
}

fn begun(header: &Header) -> String {
    format!(
        "run of {} by process {}, {}",
        plain(&header.began),
        header.pid,
        outlive_base::count(header.nodes, "node")
    )
}

fn line(header: &Header, at: f64, words: &str) -> String {
    let ms = header.began_unix_ms.saturating_add((at * 1e3) as u64);
    let moment = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    let moment = utc(moment.unwrap_or(SystemTime::UNIX_EPOCH));
    format!("{moment}  {at:>9.1} s  {words}")
}
