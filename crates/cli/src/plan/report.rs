//! `outlive plan --report`: what a run paid, and what the best interval would have paid.

use std::path::Path;

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::report::{Report, SCHEMA};
use outlive_launch::input;
use outlive_planner::hindsight::{Run, replayed};
use outlive_planner::units::duration;
use serde::Serialize;

use crate::output;

/// Intervals that are tried, from a version to the whole run.
const TRIED: u32 = 200;

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    job: String,
    result: String,
    seconds: f64,
    failures: usize,
    injected: usize,
    mtbf_seconds: Option<f64>,
    checkpoint_cost_seconds: f64,
    version_seconds: f64,
    paid: Choice,
    /// The best interval for the failures' mean; null without failures.
    advised: Option<Choice>,
    /// The best that could have been known afterwards; null without failures.
    hindsight: Option<Choice>,
}

#[derive(Serialize, Clone, Copy)]
struct Choice {
    interval_seconds: f64,
    checkpoint_seconds: f64,
    lost_seconds: f64,
    restart_seconds: f64,
    total_seconds: f64,
}

fn choice(interval: f64, (checkpoint, lost, restart): (f64, f64, f64)) -> Choice {
    Choice {
        interval_seconds: interval,
        checkpoint_seconds: checkpoint,
        lost_seconds: lost,
        restart_seconds: restart,
        total_seconds: checkpoint + lost + restart,
    }
}

fn read(path: &Path) -> Result<Report> {
    let text = input::read_text(path, input::TEXT_BYTES_MAX)?;
    let refuse = |seen: String| {
        Error::new(
            Code::Config,
            Entity::File(path.display().to_string()),
            seen,
            "give the report of a run: STORE/JOB/report.json, or the file of outlive run --report",
        )
    };
    let report: Report = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    match report.schema == SCHEMA {
        true => Ok(report),
        false => Err(refuse(format!("schema '{}', not {SCHEMA}", report.schema))),
    }
}

/// For how long a version has blocked a rank, on average; a report of a version before this one
/// tells only the longest.
fn blocked_ms(report: &Report) -> f64 {
    let counts = &report.checkpoints;
    match counts.blocked_ms_sum > 0.0 {
        true => counts.blocked_ms_sum / counts.taken.max(1) as f64,
        false => counts.blocked_ms_max,
    }
}

fn run_of(report: &Report) -> Run {
    let failure = |entry: &outlive_control::report::FailureEntry| {
        let parts = [
            entry.detect_ms,
            entry.fence_ms,
            entry.rebuild_ms,
            entry.relaunch_ms,
        ];
        let restart: f64 = parts.into_iter().flatten().sum();
        (
            entry.at_seconds,
            entry.versions_lost.unwrap_or(0),
            restart / 1e3,
        )
    };
    let last = report.checkpoints.last.values().copied().max().unwrap_or(0);
    let offered = report
        .failures
        .iter()
        .filter_map(|entry| entry.at_version)
        .max();
    Run {
        seconds: report.seconds,
        taken: report.checkpoints.taken,
        blocked: blocked_ms(report) / 1e3,
        last_version: last.max(offered.unwrap_or(0)),
        failures: report.failures.iter().map(failure).collect(),
    }
}

/// Judges the run.
pub(super) fn run(path: &Path, json: bool) -> Result<u8> {
    let report = read(path)?;
    let run = run_of(&report);
    let Some(paid) = run.paid() else {
        return Err(Error::new(
            Code::Config,
            Entity::File(path.display().to_string()),
            "the run offered no version, or computed nothing",
            "judge a run that offered checkpoints",
        ));
    };
    let at = |interval: f64| choice(interval, replayed(&run, paid.work, interval));
    let advised = run.advised().map(|interval| at(interval.max(paid.version)));
    let failed = !run.failures.is_empty() && run.blocked > 0.0;
    let hindsight = failed.then(|| {
        let ratio = (paid.work / paid.version).max(1.0);
        let tried = (0..=TRIED).map(|step| {
            let share = f64::from(step) / f64::from(TRIED);
            at(paid.version * ratio.powf(share))
        });
        tried.min_by(|a, b| a.total_seconds.total_cmp(&b.total_seconds))
    });
    let answer = Answer {
        schema: "outlive.plan.report/1",
        job: report.job.clone(),
        result: report.result.clone(),
        seconds: run.seconds,
        failures: run.failures.len(),
        injected: report
            .failures
            .iter()
            .filter(|entry| entry.injected)
            .count(),
        mtbf_seconds: run.costs().map(|costs| costs.mtbf),
        checkpoint_cost_seconds: run.blocked,
        version_seconds: paid.version,
        paid: choice(paid.interval, (paid.checkpoint, paid.lost, paid.restart)),
        advised,
        hindsight: hindsight.flatten(),
    };
    match json {
        true => output::json(&answer),
        false => output::text(&words(&answer)),
    }
}

fn words(answer: &Answer) -> String {
    let mut out = format!(
        "{}: {} after {}; {} failure{}",
        answer.job,
        answer.result,
        duration(answer.seconds),
        answer.failures,
        if answer.failures == 1 { "" } else { "s" },
    );
    if answer.injected > 0 {
        out += &format!(", {} of them injected", answer.injected);
    }
    out += &format!(
        "\nA checkpoint stopped the program for up to {}; a version took {}.\n\n",
        duration(answer.checkpoint_cost_seconds),
        duration(answer.version_seconds)
    );
    let head = ["", "every", "checkpoints", "lost", "restarts", "all"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut row = |what: &str, of: &Choice| {
        rows.push(vec![
            what.to_owned(),
            duration(of.interval_seconds),
            duration(of.checkpoint_seconds),
            duration(of.lost_seconds),
            duration(of.restart_seconds),
            duration(of.total_seconds),
        ]);
    };
    row("it paid", &answer.paid);
    if let Some(advised) = &answer.advised {
        row("best interval for its failures' mean", advised);
    }
    if let Some(hindsight) = &answer.hindsight {
        row("best for just these failures", hindsight);
    }
    out += &output::table(&rows);
    let least = answer.advised.as_ref().filter(|_| answer.failures > 0);
    out += &match least {
        None => "\nNothing failed, or checkpoints took no time: no interval can be advised from this run alone; use outlive plan --machine FILE --job FILE.".to_owned(),
        Some(best) if best.total_seconds < answer.paid.total_seconds => format!(
            "\nWith checkpoints every {} it would have paid {} less.",
            duration(best.interval_seconds),
            duration(answer.paid.total_seconds - best.total_seconds)
        ),
        Some(_) => "\nNo other interval that could have been known would have paid less.".to_owned(),
    };
    out
}

#[cfg(test)]
mod tests {
    use outlive_base::JobName;
    use outlive_control::report::FailureEntry;

    use super::*;

    fn report() -> Report {
        let name = JobName::new("demo").expect("a name");
        let mut report = Report::new(&name, 4);
        report.result = "finished".into();
        report.seconds = 10_000.0;
        report.checkpoints.taken = 4;
        report.checkpoints.blocked_ms_max = 1_000.0;
        report.checkpoints.last.insert("disk".into(), 900);
        report.failures = vec![
            FailureEntry {
                at_seconds: 3_000.0,
                at_version: Some(300),
                versions_lost: Some(95),
                detect_ms: Some(5_000.0),
                relaunch_ms: Some(5_000.0),
                ..FailureEntry::default()
            },
            FailureEntry {
                at_seconds: 7_000.0,
                at_version: Some(620),
                versions_lost: Some(120),
                relaunch_ms: Some(10_000.0),
                ..FailureEntry::default()
            },
        ];
        report
    }

    #[test]
    fn a_run_is_judged_in_words() {
        let place = std::env::temp_dir().join(format!("outlive-report-{}", std::process::id()));
        std::fs::write(&place, report().to_json()).expect("written");
        let read = read(&place).expect("a report");
        std::fs::remove_file(&place).expect("removed");
        let run = run_of(&read);
        assert_eq!(run.failures, [(3_000.0, 95, 10.0), (7_000.0, 120, 10.0)]);
        // Where the report has them all, the mean of what versions took.
        let mut exact = read.clone();
        exact.checkpoints.blocked_ms_sum = 100.0 * exact.checkpoints.taken as f64;
        assert_eq!((run.blocked, run_of(&exact).blocked), (1.0, 0.1));
        let paid = run.paid().expect("something");
        assert!(paid.lost > 1_900.0 && paid.restart == 20.0);
        // Every hundred seconds or so is far better than four times in all.
        let best = run.advised().expect("failures");
        let (checkpoint, lost, _) = replayed(&run, paid.work, best);
        assert!(checkpoint + lost < 0.3 * (paid.checkpoint + paid.lost));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let place = std::env::temp_dir().join(format!("outlive-noreport-{}", std::process::id()));
        for text in [
            "{}",
            "[1",
            &report().to_json().replace("report/1", "report/9"),
        ] {
            std::fs::write(&place, text).expect("written");
            let error = read(&place).expect_err(text);
            assert_eq!(error.code(), Code::Config);
        }
        std::fs::remove_file(&place).expect("removed");
    }
}
