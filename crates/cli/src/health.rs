//! `outlive health`: what the sensors of this machine say, and the settings by which nodes judge
//! theirs.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use outlive_base::{Code, Entity, Error, Result};
use outlive_control::health::{Finding, Judge, Limits, Report, Sensor, Settings, Verdict};
use outlive_control::units;
use outlive_node::health::{Root, read_within};
use serde::Serialize;

use crate::config::Config;
use crate::options::{self, HealthSettings};
use crate::output;

/// A reading that takes longer hangs.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The shortest time between two readings: rates of less mean nothing.
const INTERVAL_MIN_MS: u64 = 100;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive health
  outlive health --all --storage /var/tmp
  outlive health --json --limits cpu-steal=5/20,major-faults=off

The exit status is 0 if nothing is failing, else 69.")]
pub struct HealthOptions {
    /// Show also what is well and what this machine does not offer
    #[arg(long)]
    all: bool,
    /// Time between two readings: rates and jumps take two
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: String,
    /// Go on, with a report after each further reading
    #[arg(long)]
    watch: bool,
    /// As --health-limits of run [default: from the configuration]
    #[arg(long, value_name = "LIST")]
    limits: Option<String>,
    /// Where room for data is looked at: the storage of a node [default: nowhere]
    #[arg(long, value_name = "DIR")]
    storage: Option<PathBuf>,
    /// Read proc and sys beneath this directory instead: those of a container's host, or planted
    /// ones [default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON; with --watch a line for each report
    #[arg(long)]
    json: bool,
}

/// A report as programs read it.
#[derive(Serialize)]
struct Shown<'a> {
    schema: &'static str,
    /// When the sensors were read, in milliseconds since 1970.
    read_unix_ms: u64,
    /// How long that took.
    read_ms: f64,
    verdict: Verdict,
    findings: Vec<ShownFinding<'a>>,
    not_offered: &'a [Sensor],
    left_out: usize,
}

#[derive(Serialize)]
struct ShownFinding<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    unit: &'static str,
    warning: Option<f64>,
    failing: Option<f64>,
    what: &'static str,
}

/// How nodes read and judge their sensors.
///
/// # Errors
/// If a value is not understood.
pub fn settings(config: &Config) -> Result<Settings> {
    const INTERVAL: &str = "health-interval";
    let interval_ms = match config.get(INTERVAL) {
        "off" => 0,
        text => interval(INTERVAL, text).map_err(|error| config.blame(INTERVAL, &error))?,
    };
    Ok(Settings {
        interval_ms,
        limits: limits(config)?,
    })
}

fn limits(config: &Config) -> Result<Limits> {
    const LIMITS: &str = "health-limits";
    let limits = Limits::parse(config.get(LIMITS));
    limits.map_err(|error| config.blame(LIMITS, &error))
}

fn interval(key: &str, text: &str) -> Result<u64> {
    let ms = units::duration_ms(key, text)?;
    if ms < INTERVAL_MIN_MS {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option(key.to_owned()),
            format!("{ms} ms is too short"),
            format!("give at least {INTERVAL_MIN_MS} ms"),
        ));
    }
    Ok(ms)
}

/// `outlive health`: 0 if nothing is failing, else 69.
///
/// # Errors
/// Those of the configuration; [`Code::NotFound`] if nothing lies beneath the root;
/// [`Code::TimedOut`] if a sensor hangs.
pub fn run(options: &HealthOptions) -> Result<u8> {
    let flags = options::Settings {
        health: HealthSettings {
            health_limits: options.limits.clone(),
            ..HealthSettings::default()
        },
        ..options::Settings::default()
    };
    let config = Config::load(&flags, options.config.as_deref())?;
    let mut judge = Judge::new(limits(&config)?);
    let limits = limits(&config)?;
    let pause = Duration::from_millis(interval("interval", &options.interval)?);
    let root = root(options)?;
    let begun = Instant::now();
    let mut next = begun;
    let mut first = true;
    loop {
        let at = Instant::now();
        let samples = read_within(&root, options.storage.clone(), READ_WITHIN)?;
        let read_ms = at.elapsed().as_secs_f64() * 1e3;
        let (report, _) = judge.judge(begun.elapsed().into(), &samples);
        if !first {
            let more = show(options, &report, &limits, read_ms)?;
            if !options.watch || !more {
                return Ok(match report.worst() {
                    Verdict::Failing => 69,
                    _ => 0,
                });
            }
        }
        first = false;
        next += pause;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn root(options: &HealthOptions) -> Result<Root> {
    let Some(directory) = &options.root else {
        return Ok(Root::machine());
    };
    if directory.join("proc").is_dir() || directory.join("sys").is_dir() {
        return Ok(Root::beneath(directory));
    }
    Err(Error::new(
        Code::NotFound,
        Entity::File(directory.display().to_string()),
        "there is neither proc nor sys in it",
        "check --root",
    ))
}

/// Prints a report; false if nobody reads any more.
fn show(options: &HealthOptions, report: &Report, limits: &Limits, read_ms: f64) -> Result<bool> {
    if !options.json {
        return output::is_read(&describe(report, limits, options.all));
    }
    let finding = |finding| shown(finding, limits);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let shown = Shown {
        schema: "outlive.health/1",
        read_unix_ms: now.map_or(0, |now| now.as_millis() as u64),
        read_ms,
        verdict: report.worst(),
        findings: report.findings.iter().map(finding).collect(),
        not_offered: &report.not_offered,
        left_out: report.left_out,
    };
    if !options.watch {
        return output::json(&shown).map(|_| true);
    }
    let line = serde_json::to_string(&shown);
    output::is_read(&line.map_err(|error| Error::internal(format!("JSON: {error}")))?)
}

fn shown<'a>(finding: &'a Finding, limits: &Limits) -> ShownFinding<'a> {
    let (kind, limit) = (finding.sensor.kind(), limits.of(finding.sensor));
    ShownFinding {
        finding,
        unit: kind.unit,
        warning: limit.warning,
        failing: limit.failing,
        what: kind.what,
    }
}

fn describe(report: &Report, limits: &Limits, all: bool) -> String {
    let heading = ["STATE", "SENSOR", "OF", "VALUE", "WARNING", "FAILING"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut findings: Vec<&Finding> = report.findings.iter().collect();
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.verdict));
    let limit = |limit: Option<f64>| limit.map_or_else(|| "-".to_owned(), |it| it.to_string());
    for finding in &findings {
        if finding.verdict == Verdict::Ok && !all {
            continue;
        }
        let set = limits.of(finding.sensor);
        let value = match (&finding.reason, finding.judged) {
            (Some(reason), _) => reason.clone(),
            (None, Some(judged)) => finding.figure(judged),
            (None, None) => "-".to_owned(),
        };
        let source = finding.source.as_str();
        rows.push(vec![
            finding.verdict.to_string(),
            finding.sensor.to_string(),
            if source.is_empty() { "-" } else { source }.to_owned(),
            value,
            limit(set.warning),
            limit(set.failing),
        ]);
    }
    let of = |verdict| findings.iter().filter(|it| it.verdict == verdict).count();
    let mut lines = Vec::new();
    if rows.len() > 1 {
        lines.push(output::table(&rows));
    }
    if all && !report.not_offered.is_empty() {
        let names: Vec<String> = report.not_offered.iter().map(ToString::to_string).collect();
        lines.push(format!("not offered here: {}", names.join(", ")));
    }
    lines.push(format!(
        "health: {}; {} ok, {} unknown, {} warning, {} failing, {} not offered here",
        report.worst(),
        of(Verdict::Ok),
        of(Verdict::Unknown),
        of(Verdict::Warning),
        of(Verdict::Failing),
        report.not_offered.len()
    ));
    lines.join("\n")
}
