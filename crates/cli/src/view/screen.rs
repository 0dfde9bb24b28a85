//! What `outlive top` shows, as lines of a given width. Nothing here knows a terminal.

use outlive_base::level::StoreKind;
use outlive_base::{Level, count};
use outlive_control::report::{FailureEntry, Report};
use outlive_control::supervisor::{NodeState, Stage};
use outlive_control::units::{show_bytes, show_ms};
use outlive_launch::jobs::State;
use outlive_launch::record::live::{Live, LiveNode};

use super::history::{Part, by_level};
use super::paint::{Column, Line, Room, Tone, row, wrapped};
use super::{nodes, show_seconds};

/// What is older than this is said to be.
const OLD_SECONDS: f64 = 5.0;
/// Rows of nodes that stay where failures need room too.
const NODES_MIN: usize = 4;
/// On fewer rows what matters less is left out.
const SMALL: usize = 16;
/// Width of the words before a line.
const NAME: usize = 13;

/// A job as it is shown.
pub struct Subject {
    pub name: String,
    pub state: State,
    pub exit_status: Option<u8>,
    pub live: Option<Live>,
    pub report: Option<Report>,
    /// How long ago the state was written, in seconds.
    pub age: f64,
}

impl Subject {
    fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// What is known of its nodes, while it runs.
    fn nodes(&self) -> &[LiveNode] {
        let live = self.live.as_ref().filter(|_| self.is_running());
        live.map_or(&[], |live| &live.nodes)
    }
}

/// A job.
pub fn job(subject: &Subject, room: Room) -> Vec<Line> {
    let mut lines = head(subject, room);
    let failures = failures(subject, room.width);
    if !subject.nodes().is_empty() {
        lines.push(Line::default());
        let left = room.height.saturating_sub(lines.len() + 1);
        let wanted = left.saturating_sub(failures.len() + 1);
        let rows = wanted.max(NODES_MIN.min(left));
        lines.extend(nodes::table(
            subject.nodes(),
            Room {
                height: rows,
                ..room
            },
        ));
    }
    if !failures.is_empty() {
        lines.push(Line::default());
        lines.extend(failures);
    }
    lines.truncate(room.height);
    lines
}

fn named(name: &str, tone: Tone, text: impl Into<String>) -> Line {
    Line::of(Tone::Dim, format!("{name:<NAME$}")).and(tone, text)
}

fn head(subject: &Subject, room: Room) -> Vec<Line> {
    let width = room.width;
    let small = room.height < SMALL;
    let (live, report) = (subject.live.as_ref(), subject.report.as_ref());
    let mut lines = vec![title(subject, width)];
    if let Some(live) = live.filter(|_| subject.is_running()) {
        lines.extend(people(live, report));
    }
    if let Some(report) = report {
        let counted = checkpoints(subject, report);
        lines.extend(counted.into_iter().take(if small { 1 } else { 2 }));
    }
    lines.extend(newest(subject));
    let policy = report.and_then(|report| report.policy.as_ref());
    if let Some(policy) = policy.filter(|_| !small) {
        let room = width.saturating_sub(NAME).max(20);
        for (at, text) in wrapped(&policy.why, room).into_iter().take(2).enumerate() {
            let name = if at == 0 { "wanted" } else { "" };
            lines.push(named(name, Tone::Usual, text));
        }
    }
    if let Some(live) = live.filter(|_| subject.is_running()) {
        lines.push(match &live.waits_for {
            Some(what) => named("waits for", Tone::Warn, what.clone()),
            None => named("waits for", Tone::Dim, "nothing"),
        });
        if subject.age > OLD_SECONDS {
            let text = format!("the launcher wrote this {} ago", show_seconds(subject.age));
            lines.push(named("old", Tone::Warn, text));
        }
    } else if subject.is_running() {
        let text = "the launcher has not written of this run yet";
        lines.push(named("waits for", Tone::Warn, text));
    }
    lines
}

fn title(subject: &Subject, width: usize) -> Line {
    let (tone, state) = match (subject.state, &subject.live, subject.exit_status) {
        (State::Running, Some(live), _) => match live.stage {
            Stage::Running => (Tone::Good, "running".to_owned()),
            stage => (Tone::Warn, stage_name(stage).to_owned()),
        },
        (State::Running, None, _) => (Tone::Warn, "starting".to_owned()),
        (State::Failed, _, Some(status)) => (Tone::Bad, format!("failed ({status})")),
        (State::EndedWell, ..) => (Tone::Good, subject.state.text().to_owned()),
        (state, ..) => (Tone::Bad, state.text().to_owned()),
    };
    let mut line = Line::of(Tone::Strong, subject.name.clone()).and(Tone::Usual, "  ");
    line = line.and(tone, state);
    if let Some(live) = subject.live.as_ref().filter(|live| live.incarnation > 0) {
        line = line.and(Tone::Usual, format!("  incarnation {}", live.incarnation));
    }
    let seconds = match (&subject.live, &subject.report) {
        (Some(live), _) if subject.is_running() => {
            Some(live.seconds + subject.age.min(OLD_SECONDS))
        }
        (_, report) => report.as_ref().map(|report| report.seconds),
    };
    let elapsed = seconds.map_or_else(String::new, show_seconds);
    let gap = width.saturating_sub(line.width() + elapsed.chars().count());
    line.and(Tone::Usual, " ".repeat(gap.max(2)))
        .and(Tone::Strong, elapsed)
}

const fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Assembling => "assembling",
        Stage::Opening => "opening",
        Stage::Starting => "starting",
        Stage::Running => "running",
        Stage::Finishing => "finishing",
        Stage::Stopping => "stopping",
        Stage::Ended => "ended",
    }
}

fn people(live: &Live, report: Option<&Report>) -> [Line; 2] {
    let up = live
        .nodes
        .iter()
        .filter(|node| node.state == NodeState::Up)
        .count();
    let all = live.nodes.len();
    let tone = if up == all { Tone::Usual } else { Tone::Warn };
    let spares = count(live.spares_left, "spare");
    let ranks = live
        .ranks
        .map_or_else(|| "?".to_owned(), |ranks| ranks.to_string());
    let nodes = named("nodes", tone, format!("{up} of {all} up, {spares}"));
    let nodes = nodes.and(Tone::Usual, format!("   ranks {} of {ranks}", live.joined));
    let (failures, warnings) = report.map_or((0, 0), |report| {
        let more: u64 = report.warnings.iter().map(|it| 1 + it.more).sum();
        (report.failures.len(), more)
    });
    let tone = if failures > 0 {
        Tone::Warn
    } else {
        Tone::Usual
    };
    let line = named("failures", tone, failures.to_string());
    let line = line.and(
        Tone::Usual,
        format!(", {}", count(live.restarts, "restart")),
    );
    let tone = if warnings > 0 {
        Tone::Warn
    } else {
        Tone::Usual
    };
    let line = line.and(tone, format!(", {}", count(warnings, "warning")));
    [nodes, line]
}

fn checkpoints(subject: &Subject, report: &Report) -> Vec<Line> {
    let counts = &report.checkpoints;
    let mut text = format!("{} taken, {}", counts.taken, show_bytes(counts.bytes));
    if counts.blocked_ms_max > 0.0 {
        text += &format!("   blocked at most {}", show_ms(counts.blocked_ms_max));
    }
    if counts.aborted > 0 {
        text += &format!("   {} given up", counts.aborted);
    }
    let mut lines = vec![named("checkpoints", Tone::Usual, text)];
    if let Some(live) = subject.live.as_ref().filter(|_| subject.is_running()) {
        let bytes = show_bytes(live.bytes_per_second as u64);
        let text = format!("{:.1} a minute, {bytes}/s", live.versions_per_minute);
        lines.push(named("", Tone::Usual, text));
    }
    lines
}

fn newest(subject: &Subject) -> Option<Line> {
    let report = subject.report.as_ref()?;
    let running = subject.live.as_ref().filter(|_| subject.is_running());
    let offered = running.and_then(|live| live.offered);
    let offered = offered.map(|version| format!("{} offered", version.0));
    let mut last = by_level(&report.checkpoints.last);
    // Memory is gone with the job.
    let in_memory =
        |level: &str| matches!(level.parse::<Level>(), Ok(it) if it.store() == StoreKind::Keeper);
    last.retain(|(level, _)| running.is_some() || !in_memory(level));
    let stable = last
        .into_iter()
        .map(|(level, version)| format!("{level} {version}"));
    let words: Vec<String> = offered.into_iter().chain(stable).collect();
    (!words.is_empty()).then(|| named("versions", Tone::Usual, words.join("   ")))
}

fn failures(subject: &Subject, width: usize) -> Vec<Line> {
    let Some(report) = &subject.report else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for error in &report.errors {
        let text = format!("{} {}: {}", error.code, error.entity, error.reason);
        lines.push(Line::of(Tone::Bad, text));
        lines.push(Line::of(Tone::Usual, format!("  remedy: {}", error.remedy)));
    }
    for failure in report.failures.iter().rev().take(3) {
        let at = show_seconds(failure.at_seconds);
        let text = format!("{at:>10}  {}: {}", failure.place, failure.cause);
        lines.push(Line::of(Tone::Bad, text));
        let text = format!("{:>10}  {}", "", recovery(failure));
        lines.extend(
            wrapped(&text, width.max(20))
                .into_iter()
                .take(1)
                .map(|it| Line::of(Tone::Usual, it)),
        );
    }
    if report.failures.len() > 3 {
        let text = format!("{:>10}  and {} before", "", report.failures.len() - 3);
        lines.push(Line::of(Tone::Dim, text));
    }
    if let Some(warning) = report.warnings.last() {
        let text = format!(
            "warning  {} {}: {}",
            warning.code, warning.entity, warning.reason
        );
        lines.push(Line::of(Tone::Warn, text));
    }
    lines
}

/// What became of a failure.
fn recovery(failure: &FailureEntry) -> String {
    let from = match (failure.version, &failure.level, failure.relaunch_ms) {
        (Some(version), Some(level), _) => format!("version {version} from {level}"),
        (Some(version), None, _) => format!("version {version}"),
        (None, _, Some(_)) => "from the beginning".to_owned(),
        (None, _, None) => return "the job has not gone on from it".to_owned(),
    };
    let lost = failure
        .versions_lost
        .map_or_else(String::new, |lost| format!(", {lost} lost"));
    let took: f64 = Part::ALL
        .iter()
        .filter_map(|part| part.ms_of(failure))
        .sum();
    match failure.relaunch_ms {
        Some(_) => format!("{from}{lost}; back after {}", show_seconds(took / 1e3)),
        None => format!("{from}{lost}; not all ranks are back"),
    }
}

/// All jobs of a store.
pub fn list(subjects: &[Subject], store: &str, room: Room) -> Vec<Line> {
    if subjects.is_empty() {
        return vec![Line::of(
            Tone::Usual,
            format!("no job is stored in {store}"),
        )];
    }
    let rows = room.height.saturating_sub(1);
    let shown: Vec<&Subject> = subjects.iter().take(rows).collect();
    let column = |name: &str, right, cell: &dyn Fn(&Subject) -> (Tone, String)| Column {
        name: name.to_owned(),
        cells: shown.iter().map(|it| cell(it)).collect(),
        goes: 0,
        right,
    };
    let usual = |text: String| (Tone::Usual, text);
    let live = |it: &Subject, text: &dyn Fn(&Live) -> String| {
        let live = it.live.as_ref().filter(|_| it.is_running());
        usual(live.map_or_else(|| "-".to_owned(), text))
    };
    let columns = [
        column("JOB", false, &|it| {
            (Tone::Strong, it.name.chars().take(24).collect())
        }),
        column("STATE", false, &|it| match (&it.live, it.is_running()) {
            (Some(live), true) => (Tone::Good, stage_name(live.stage).to_owned()),
            (None, true) => (Tone::Warn, "starting".to_owned()),
            (_, false) => usual(it.state.text().to_owned()),
        }),
        column("NODES", true, &|it| {
            live(it, &|live| live.nodes.len().to_string())
        }),
        column("RANKS", true, &|it| {
            live(it, &|live| live.joined.to_string())
        }),
        column("VERSION", true, &|it| {
            let last = it
                .report
                .iter()
                .flat_map(|report| report.checkpoints.last.values());
            usual(last.max().map_or_else(|| "-".to_owned(), u64::to_string))
        }),
        column("A MINUTE", true, &|it| {
            live(it, &|live| format!("{:.1}", live.versions_per_minute))
        }),
        column("FAILURES", true, &|it| {
            let failures = it.report.as_ref().map_or(0, |report| report.failures.len());
            usual(failures.to_string())
        }),
    ];
    let mut lines = vec![row(&columns, |column| (Tone::Dim, column.name.clone()))];
    lines.extend((0..shown.len()).map(|at| row(&columns, |column| column.cells[at].clone())));
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outlive_base::Version;

    use super::*;
    use crate::view::history::tests::{HOSTILE, sample};
    use crate::view::nodes::tests::node;

    fn subject(nodes: Vec<LiveNode>) -> Subject {
        let (report, _) = sample();
        let live = Live {
            schema: outlive_launch::record::live::SCHEMA.into(),
            job: HOSTILE.into(),
            began: String::new(),
            began_unix_ms: 0,
            seconds: 724.0,
            stage: Stage::Running,
            waits_for: Some(HOSTILE.into()),
            incarnation: 8,
            restarts: 1,
            spares_left: 1,
            ranks: Some(8),
            joined: 8,
            offered: Some(Version(25)),
            stable: BTreeMap::new(),
            versions_per_minute: 12.0,
            bytes_per_second: 3e6,
            traffic: Default::default(),
            nodes,
        };
        Subject {
            name: HOSTILE.into(),
            state: State::Running,
            exit_status: None,
            live: Some(live),
            report: Some(report),
            age: 0.4,
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_none_moves_the_cursor() {
        for (width, height, count) in [
            (80, 24, 4),
            (80, 24, 2_000),
            (40, 10, 4),
            (20, 3, 9),
            (1, 1, 1),
        ] {
            let nodes = (0..count).map(|n| node(n, NodeState::Up)).collect();
            let room = Room {
                width,
                height,
                scroll: 0,
            };
            let lines = job(&subject(nodes), room);
            assert!(lines.len() <= height, "{width}x{height}: {}", lines.len());
            for line in &lines {
                let text = line.show(width, false);
                assert!(text.chars().count() <= width, "{text}");
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }

    #[test]
    fn eighty_columns_hold_what_counts() {
        let nodes = vec![node(0, NodeState::Up), node(1, NodeState::Silent)];
        let room = Room {
            width: 80,
            height: 24,
            scroll: 0,
        };
        let text: Vec<String> = job(&subject(nodes), room)
            .iter()
            .map(|line| line.show(80, false))
            .collect();
        let text = text.join("\n");
        for wanted in [
            "1 of 2 up, 1 spare",
            "ranks 8 of 8",
            "12.0 a minute, 2.9 MiB/s",
            "25 offered   disk 30",
            "waits for",
            "PARTNER",
            "silent",
            "node:1",
            "version 20 from disk, 5 lost; back after 3.6 s",
            "12 min 04 s",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
    }
}
