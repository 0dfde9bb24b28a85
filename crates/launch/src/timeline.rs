//! The line per event that a user sees while a job runs, on standard error.
//!
//! On a terminal everything of interest is shown as it happens; elsewhere only what
//! matters in a log: failures, recoveries, the end. `-q` shows errors only, `-v`
//! more. Colours only on a terminal and unless `NO_COLOR` is set.

use std::io::{IsTerminal, Write};

use outlive_base::{Entity, Error, NodeId, Time, count};

use outlive_control::health::{self, Change};
use outlive_control::report::Report;
use outlive_control::supervisor::{Event, Verdict};
use outlive_control::units::{show_bytes, show_ms};

/// How much is shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Detail {
    /// Errors only.
    Quiet,
    /// What matters in a log.
    Plain,
    /// What is of interest on a terminal.
    Live,
    /// Everything.
    Verbose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Bad,
    Good,
    Dim,
    Usual,
}

/// The printer.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    detail: Detail,
    colour: bool,
}

impl Timeline {
    /// For standard error, with `quiet` and the number of `-v`.
    pub fn new(quiet: bool, verbose: u8) -> Timeline {
        let terminal = std::io::stderr().is_terminal();
        let detail = match (quiet, verbose, terminal) {
            (true, _, _) => Detail::Quiet,
            (_, 1.., _) => Detail::Verbose,
            (_, _, true) => Detail::Live,
            _ => Detail::Plain,
        };
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Timeline {
            detail,
            colour: terminal && !no_colour,
        }
    }

    /// Shows an event.
    pub fn show(&self, now: Time, event: &Event) {
        let (needs, tone, text) = describe(event);
        if self.detail < needs {
            return;
        }
        if let Event::Fatal(error) = event {
            return self.error(error);
        }
        let line = format!("{:>7.1} s  {text}", now.as_secs());
        self.line(tone, &line);
    }

    /// Shows an error: the line and its remedy.
    pub fn error(&self, error: &Error) {
        self.line(Tone::Bad, &error_line(error));
        self.line(Tone::Usual, &format!("  remedy: {}", error.remedy()));
    }

    /// Shows how it ended.
    pub fn summary(&self, report: &Report, verdict: Verdict) {
        if self.detail == Detail::Quiet || (self.detail == Detail::Plain && report.is_uneventful())
        {
            return;
        }
        let tone = if verdict == Verdict::Ok {
            Tone::Good
        } else {
            Tone::Bad
        };
        self.line(tone, &summary_line(report));
    }

    /// Says what matters in a log too.
    pub fn say(&self, text: &str) {
        if self.detail >= Detail::Plain {
            self.line(Tone::Usual, &format!("outlive: {text}"));
        }
    }

    /// Shows a line of another kind.
    pub fn note(&self, text: &str) {
        if self.detail >= Detail::Live {
            self.line(Tone::Dim, text);
        }
    }

    fn line(&self, tone: Tone, text: &str) {
        let (on, off) = match (self.colour, tone) {
            (false, _) | (_, Tone::Usual) => ("", ""),
            (_, Tone::Bad) => ("\x1b[31m", "\x1b[0m"),
            (_, Tone::Good) => ("\x1b[32m", "\x1b[0m"),
            (_, Tone::Dim) => ("\x1b[2m", "\x1b[0m"),
        };
        // At once: others write there too, and standard error keeps nothing back. That it is closed stops
        // nothing.
        let line = format!("{on}{text}{off}\n");
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// The first line of an error on a terminal.
pub fn error_line(error: &Error) -> String {
    format!(
        "outlive: {} {}: {}: {}",
        error.code(),
        error.code().text(),
        error.entity(),
        error.reason()
    )
}

/// How a run ended, in a line.
fn summary_line(report: &Report) -> String {
    format!("{:>7.1} s  {}", report.seconds, summary_words(report))
}

/// The same without the time.
pub fn summary_words(report: &Report) -> String {
    let counts = &report.checkpoints;
    let mut text = format!(
        "{}: {}, {}, {} ({})",
        report.result,
        count(report.failures.len() as u64, "failure"),
        count(report.restarts, "restart"),
        count(counts.taken, "checkpoint"),
        show_bytes(counts.bytes)
    );
    if counts.blocked_ms_max > 0.0 {
        text += &format!(", blocked at most {}", show_ms(counts.blocked_ms_max));
    }
    text
}

/// The words of an event.
pub fn words(event: &Event) -> String {
    describe(event).2
}

/// How much detail shows an event, and whether something went wrong.
pub fn weight(event: &Event) -> (Detail, bool) {
    let (needs, tone, _) = describe(event);
    (needs, tone == Tone::Bad)
}

/// What an event needs to be shown, its tone and its words.
fn describe(event: &Event) -> (Detail, Tone, String) {
    use Detail::{Live, Plain, Quiet, Verbose};
    use Tone::{Bad, Dim, Good, Usual};
    match event {
        Event::NodesUp { nodes } => (Live, Dim, format!("{} ready", count(*nodes, "node"))),
        Event::Opened { .. } => opened(event),
        Event::CommandStarted { incarnation } => (Verbose, Dim, format!("{incarnation} started")),
        Event::RanksUp { ranks, after_ms } => {
            let text = format!(
                "{} joined after {}",
                count(*ranks, "rank"),
                show_ms(*after_ms)
            );
            (Live, Usual, text)
        }
        Event::Steered { why } => (Live, Usual, format!("checkpoints: {why}")),
        Event::Captured { version } => (Verbose, Dim, format!("{version} captured")),
        Event::Stable { version, level } => (Live, Dim, format!("{version} stable on {level}")),
        Event::Aborted {
            version,
            level,
            error,
        } => {
            let place = level.map_or_else(String::new, |level| format!(" on {level}"));
            let about = match error.entity() {
                Entity::Version(_) => String::new(),
                other => format!("{other}: "),
            };
            let (code, reason) = (error.code(), error.reason());
            let text = format!("{version} given up{place}: {code} {about}{reason}");
            (Plain, Bad, text)
        }
        Event::KeptAgain {
            version,
            level,
            given_up,
        } => {
            let place = level.map_or_else(|| "captured".to_owned(), |l| format!("kept on {l}"));
            let text = format!("{version} {place} again; {given_up} in a row were given up");
            (Plain, Good, text)
        }
        Event::NotKept {
            level,
            versions,
            last,
        } => {
            let place = level.map_or_else(String::new, |level| format!(" on {level}"));
            let text = format!(
                "{} in a row given up{place}, the last: {last}",
                count(*versions, "version")
            );
            (Plain, Bad, text)
        }
        Event::Failure {
            what,
            suspected_ms,
            detect_ms,
        } => {
            let said = |ms: &Option<f64>, what: &str| {
                ms.map_or_else(String::new, |ms| format!("; {what} {}", show_ms(ms)))
            };
            let first = said(suspected_ms, "suspected after");
            let after = said(detect_ms, "detected in");
            (Plain, Bad, format!("{what}{first}{after}"))
        }
        Event::Hang { what } => (Plain, Bad, what.clone()),
        Event::Resumed { what } => (Plain, Good, what.clone()),
        Event::Cleared { fence_ms } => {
            let text = format!("all of it ended after {}", show_ms(*fence_ms));
            (Live, Dim, text)
        }
        Event::Replaced { node, spares_left } => {
            let text = match spares_left {
                Some(left) => format!("a spare takes the place of {node}; {left} left"),
                None => format!("{node} is started again, with its storage"),
            };
            (Plain, Usual, text)
        }
        Event::BackOff { ms } => (
            Plain,
            Usual,
            format!("next start in {}", show_ms(*ms as f64)),
        ),
        Event::Suspected { node, silent_ms } => {
            let text = format!("{node} silent for {}", show_ms(*silent_ms as f64));
            (Plain, Bad, text)
        }
        Event::Heard { node } => (Plain, Good, format!("{node} heard again")),
        Event::AgentRestarted { node, restarts } => {
            let text = format!("agent of {node} started anew ({restarts}); the job goes on");
            (Plain, Usual, text)
        }
        Event::Injected { text, version } => {
            let at = version.map_or_else(String::new, |version| format!(" at {version}"));
            (Plain, Bad, format!("injected{at}: {text}"))
        }
        Event::Interrupted { signal, times } => {
            let name = outlive_control::ended::signal_name(*signal);
            let text = match times {
                1 => format!("{name}: ending the job; once more ends it at once"),
                _ => format!("{name}: killed"),
            };
            (Plain, Bad, text)
        }
        Event::Warned => {
            let text = "SIGUSR1: the next version that is offered is kept at all levels";
            (Plain, Usual, text.to_owned())
        }
        Event::Announced { signal, notice_ms } => {
            let name = outlive_control::ended::signal_name(*signal);
            let notice = outlive_control::units::show_ms(*notice_ms as f64);
            let text = format!(
                "{name}: preempted in {notice}: the last version is taken, then the job ends; \
                 once more ends it now"
            );
            (Plain, Bad, text)
        }
        Event::Finishing => (Verbose, Dim, "finishing flushes".to_owned()),
        Event::Health { node, change } => of_health(*node, change),
        Event::Warning(error) => (Plain, Bad, format!("warning: {error}")),
        Event::More { error, more } => {
            let (code, entity, reason) = (error.code(), error.entity(), error.reason());
            let text = format!("warning: {code} {entity}: {reason}: and {more} more like it");
            (Plain, Bad, text)
        }
        Event::Fatal(error) => (Quiet, Bad, error.to_string()),
    }
}

/// What warns is of interest to who looks; what is failing belongs in a log.
fn of_health(node: NodeId, change: &Change) -> (Detail, Tone, String) {
    let words = change.now.words();
    match change.now.verdict {
        health::Verdict::Failing => {
            let text = format!("health of {node}: failing: {words}");
            (Detail::Plain, Tone::Bad, text)
        }
        health::Verdict::Warning => {
            let text = format!("health of {node}: warning: {words}");
            (Detail::Live, Tone::Bad, text)
        }
        health::Verdict::Ok | health::Verdict::Unknown => {
            let text = format!("health of {node}: no longer {}: {words}", change.before);
            (Detail::Live, Tone::Good, text)
        }
    }
}

fn opened(event: &Event) -> (Detail, Tone, String) {
    let Event::Opened {
        restored,
        level,
        rebuild_ms,
        rejected,
        restart,
        given_up,
        ..
    } = event
    else {
        return (Detail::Verbose, Tone::Dim, String::new());
    };
    let Some(version) = restored else {
        // A restart always says what it goes on from.
        return match restart {
            true => {
                let text = "nothing was committed yet: begins anew".to_owned();
                (Detail::Plain, Tone::Usual, text)
            }
            false => (Detail::Live, Tone::Dim, "fresh start".to_owned()),
        };
    };
    let from = level.map_or_else(String::new, |level| format!(" from {level}"));
    let mut text = format!("{version} rebuilt{from} in {}", show_ms(*rebuild_ms));
    if *given_up {
        text += ": the copy that was needed is there, though not all are";
    }
    if *rejected > 0 {
        text += &format!("; {rejected} newer could not be used");
    }
    (Detail::Plain, Tone::Good, text)
}

#[cfg(test)]
mod tests {
    use outlive_base::{Code, Incarnation, Level, Version};

    use super::*;

    #[test]
    fn events_read_as_sentences() {
        let failure = Event::Failure {
            what: "node:2 lost: x".into(),
            suspected_ms: None,
            detect_ms: Some(4.0),
        };
        assert_eq!(describe(&failure).2, "node:2 lost: x; detected in 4.0 ms");
        let silent = Event::Failure {
            what: "node:2 lost: x".into(),
            suspected_ms: Some(2.0),
            detect_ms: Some(4.0),
        };
        let text = "node:2 lost: x; suspected after 2.0 ms; detected in 4.0 ms";
        assert_eq!(describe(&silent).2, text);
        let opened = Event::Opened {
            incarnation: Incarnation(2),
            restored: Some(Version(60)),
            level: Some(Level::PARTNER),
            rebuild_ms: 12.0,
            rejected: 1,
            restart: true,
            given_up: false,
        };
        let text = describe(&opened).2;
        assert_eq!(
            text,
            "version 60 rebuilt from partner in 12 ms; 1 newer could not be used"
        );
        let heard = Event::Heard { node: NodeId(1) };
        assert_eq!(describe(&heard).2, "node 1 heard again");
    }

    #[test]
    fn one_failure_is_not_failures() {
        let mut report = Report::new(&outlive_base::JobName::new("j").unwrap(), 1);
        report.restarts = 1;
        let line = summary_line(&report);
        assert!(
            line.contains("0 failures, 1 restart, 0 checkpoints"),
            "{line}"
        );
    }

    #[test]
    fn an_error_is_one_line_with_its_code() {
        let error = Error::new(Code::NoSpare, Entity::Node(2), "lost", "more spares");
        assert_eq!(
            error_line(&error),
            "outlive: OL-504 no spare node left: node 2: lost"
        );
    }
}
