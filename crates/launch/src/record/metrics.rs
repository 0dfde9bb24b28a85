//! Numbers of a job in the text format of Prometheus, version 0.0.4, for its node exporter's textfile
//! collector or anything else that reads a file.
//!
//! Invariants: names say their unit, seconds or bytes; what only rises ends in `_total`; all samples
//! of a name follow its HELP and TYPE lines.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use outlive_base::{JobName, Result};
use outlive_control::health::Verdict;
use outlive_control::report::Report;
use outlive_control::supervisor::{NodeState, Stage};
use outlive_control::traffic::{Count, Traffic};

use super::live::{Live, LiveNode};
use crate::files;

/// Another user reads it: the one whom the monitoring system runs as.
pub(super) const MODE: u32 = 0o644;

/// Where the numbers of a job go: `outlive-JOB.prom` if `path` is a directory.
pub(crate) fn file(path: &Path, job: &JobName) -> PathBuf {
    match path.is_dir() {
        true => path.join(format!("outlive-{job}.prom")),
        false => path.to_owned(),
    }
}

/// Begins the file: that it cannot be written is better known now than after days.
///
/// # Errors
/// Those of the file system.
pub(crate) fn begin(path: &Path, job: &JobName) -> Result<()> {
    let path = file(path, job);
    files::sweep_replaced(&path);
    files::replace(&path, b"", MODE)
}

/// All that is known of a run that has not begun, or is under way, or has ended.
pub fn text(live: &Live, report: &Report) -> String {
    let mut page = Page {
        out: String::new(),
        job: escape(&live.job),
    };
    job(&mut page, live, report);
    checkpoints(&mut page, live, report);
    nodes(&mut page, live);
    page.out
}

struct Page {
    out: String,
    job: String,
}

/// A sample: its labels after the job's, and its value.
type Sample = (String, f64);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str, samples: &[Sample]) {
        if samples.is_empty() {
            return;
        }
        let _ = writeln!(self.out, "# HELP outlive_{name} {help}");
        let _ = writeln!(self.out, "# TYPE outlive_{name} {kind}");
        for (labels, value) in samples {
            let job = &self.job;
            let _ = writeln!(self.out, "outlive_{name}{{job=\"{job}\"{labels}}} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, &[(String::new(), value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help, &[(String::new(), value as f64)]);
    }
}

fn job(page: &mut Page, live: &Live, report: &Report) {
    let release = label("version", env!("CARGO_PKG_VERSION"));
    let help = "The release of Outlive that runs the job.";
    page.family("job_info", "gauge", help, &[(release, 1.0)]);
    let running = report.result == "running";
    let help = "1 while the launcher runs the job, 0 once the run has ended.";
    page.gauge("job_running", help, f64::from(u8::from(running)));
    let stages = [
        ("assembling", Stage::Assembling),
        ("opening", Stage::Opening),
        ("starting", Stage::Starting),
        ("running", Stage::Running),
        ("finishing", Stage::Finishing),
        ("stopping", Stage::Stopping),
        ("ended", Stage::Ended),
    ];
    let stages = stages.map(|(name, stage)| {
        let is = u8::from(stage == live.stage);
        (label("stage", name), f64::from(is))
    });
    page.family(
        "job_stage",
        "gauge",
        "1 for what the job is doing.",
        &stages,
    );
    let help = "When the run began, in seconds since 1970.";
    page.gauge(
        "job_start_time_seconds",
        help,
        live.began_unix_ms as f64 / 1e3,
    );
    let help = "How long the run has lasted.";
    page.gauge("job_elapsed_seconds", help, live.seconds);
    page.gauge("job_nodes", "Nodes of the job.", live.nodes.len() as f64);
    if let Some(ranks) = live.ranks {
        page.gauge("job_ranks", "Ranks of the job.", f64::from(ranks));
    }
    let help = "Ranks that have joined and not left.";
    page.gauge("job_ranks_joined", help, f64::from(live.joined));
    let help = "Nodes that may take the place of lost ones.";
    page.gauge("job_spares", help, f64::from(live.spares_left));
    let help = "The number of the incarnation that is open or being opened.";
    page.gauge("job_incarnation", help, f64::from(live.incarnation));
    let help = "Starts of the command after the first, in this run.";
    page.counter("job_restarts_total", help, report.restarts.into());
    let help = "Agents that were started anew without stopping the job, in this run.";
    page.counter(
        "job_agent_restarts_total",
        help,
        report.agent_restarts.into(),
    );
    let failures = ["node", "rank", "command"].map(|kind| {
        let of_kind = report.failures.iter().filter(|entry| entry.kind == kind);
        (label("kind", kind), of_kind.count() as f64)
    });
    let help = "Failures that were found, in this run.";
    page.family("job_failures_total", "counter", help, &failures);
    let warnings = report.warnings.iter().map(|entry| 1 + entry.more).sum();
    page.counter("job_warnings_total", "Warnings, in this run.", warnings);
}

fn checkpoints(page: &mut Page, live: &Live, report: &Report) {
    let counts = &report.checkpoints;
    let help = "Versions that all ranks captured, in this run.";
    page.counter("checkpoints_captured_total", help, counts.taken);
    let help = "Versions that were given up, at a level or at all, in this run.";
    page.counter("checkpoints_given_up_total", help, counts.aborted);
    let help = "Bytes that all nodes captured, in this run.";
    page.counter("checkpoints_captured_bytes_total", help, counts.bytes);
    let help = "The longest time that a capture blocked a rank, in this run.";
    page.gauge(
        "checkpoint_blocked_max_seconds",
        help,
        counts.blocked_ms_max / 1e3,
    );
    let stable = counts.stable.iter();
    let stable: Vec<Sample> = stable
        .map(|(level, n)| (label("level", level), *n as f64))
        .collect();
    let help = "Versions that became stable at a level, in this run.";
    page.family("checkpoints_stable_total", "counter", help, &stable);
    let last = counts.last.iter();
    let last: Vec<Sample> = last
        .map(|(level, n)| (label("level", level), *n as f64))
        .collect();
    let help = "The newest version that is stable at a level.";
    page.family("checkpoint_stable_version", "gauge", help, &last);
    if let Some(offered) = live.offered {
        let help = "The newest version that a rank has offered.";
        page.gauge("checkpoint_offered_version", help, offered.0 as f64);
    }
}

fn nodes(page: &mut Page, live: &Live) {
    type Value = fn(&LiveNode) -> Option<f64>;
    let families: [(&str, &str, Value); 7] = [
        ("node_up", "1 if the node's agent speaks.", |node| {
            Some(f64::from(u8::from(node.state == NodeState::Up)))
        }),
        (
            "node_silence_seconds",
            "How long ago the node was heard.",
            |node| Some(node.heard_ms as f64 / 1e3),
        ),
        ("node_ranks", "Ranks that live on the node.", |node| {
            Some(f64::from(node.ranks))
        }),
        ("node_memory_bytes", "Staging memory in use.", |node| {
            is_known(node).then_some(node.memory_bytes as f64)
        }),
        (
            "node_memory_limit_bytes",
            "The bound of the staging memory.",
            |node| is_known(node).then_some(node.memory_bytes_max as f64),
        ),
        (
            "node_storage_bytes",
            "Bytes of the job in the node's storage.",
            |node| is_known(node).then_some(node.disk_bytes as f64),
        ),
        (
            "node_storage_free_bytes",
            "Bytes that are free in the node's storage.",
            |node| is_known(node).then_some(node.disk_free_bytes as f64),
        ),
    ];
    for (name, help, value) in families {
        let sample = |node: &LiveNode| Some((of_node(node), value(node)?));
        let samples: Vec<Sample> = live.nodes.iter().filter_map(sample).collect();
        page.family(name, "gauge", help, &samples);
    }
    let known: Vec<(String, &Traffic)> = (live.nodes.iter().filter(|node| is_known(node)))
        .map(|node| (of_node(node), &node.traffic))
        .collect();
    traffic(page, "node", "the node's agent", &known);
    health(page, live);
    let help = "Control connections of the node's agent that stand.";
    let connections = known.iter();
    let connections: Vec<Sample> = connections
        .map(|(labels, traffic)| (labels.clone(), f64::from(traffic.connections)))
        .collect();
    page.family("node_connections", "gauge", help, &connections);
    traffic(
        page,
        "launcher",
        "the launcher",
        &[(String::new(), &live.traffic)],
    );
    let help = "The newest version that the node knows to be stable at a level.";
    let stable = live.nodes.iter().flat_map(|node| {
        let of_level = |(level, version): (&String, &outlive_base::Version)| {
            (of_node(node) + &label("level", level), version.0 as f64)
        };
        node.stable.iter().map(of_level)
    });
    let stable: Vec<Sample> = stable.collect();
    page.family("node_stable_version", "gauge", help, &stable);
}

/// How machines are: the worst that their sensors say, and what warns or is failing.
fn health(page: &mut Page, live: &Live) {
    let verdicts = [
        Verdict::Ok,
        Verdict::Unknown,
        Verdict::Warning,
        Verdict::Failing,
    ];
    let known = || live.nodes.iter().filter(|node| is_known(node));
    let each = known().flat_map(|node| {
        verdicts.map(|verdict| {
            let is = u8::from(node.health.verdict == verdict);
            let labels = of_node(node) + &label("verdict", verdict.name());
            (labels, f64::from(is))
        })
    });
    let help = "1 for the worst that the sensors of the node's machine say.";
    page.family("node_health", "gauge", help, &each.collect::<Vec<_>>());
    let findings = known().flat_map(|node| node.health.findings.iter().map(move |it| (node, it)));
    let findings = findings.filter_map(|(node, finding)| {
        let labels = of_node(node)
            + &label("sensor", finding.sensor.kind().name)
            + &label("source", &finding.source)
            + &label("verdict", finding.verdict.name());
        Some((labels, finding.judged?))
    });
    let help = "What a sensor that has reached a limit says, in the unit of the sensor.";
    page.family(
        "node_health_finding",
        "gauge",
        help,
        &findings.collect::<Vec<_>>(),
    );
}

/// Messages and their bytes, by what they are.
fn traffic(page: &mut Page, whose: &str, who: &str, known: &[(String, &Traffic)]) {
    let kinds = |labels: &str, traffic: &Traffic| {
        [
            ("sent", traffic.sent),
            ("received", traffic.received),
            ("signs-of-life", traffic.signs),
        ]
        .map(|(kind, count)| (labels.to_owned() + &label("kind", kind), count))
    };
    let all: Vec<(String, Count)> = known
        .iter()
        .flat_map(|(labels, traffic)| kinds(labels, traffic))
        .collect();
    let samples = |value: fn(&Count) -> u64| -> Vec<Sample> {
        let sample = |(labels, count): &(String, Count)| (labels.clone(), value(count) as f64);
        all.iter().map(sample).collect()
    };
    let help = format!("Messages between agents and launcher that {who} has sent and received.");
    let messages = samples(|count| count.messages);
    page.family(
        &format!("{whose}_messages_total"),
        "counter",
        &help,
        &messages,
    );
    let help = format!("Bytes of the messages that {who} has sent and received.");
    let bytes = samples(|count| count.bytes);
    page.family(
        &format!("{whose}_message_bytes_total"),
        "counter",
        &help,
        &bytes,
    );
}

/// Its agent has said how it is.
const fn is_known(node: &LiveNode) -> bool {
    node.memory_bytes_max > 0
}

fn of_node(node: &LiveNode) -> String {
    let host = node.host.as_ref().map(|host| label("host", host));
    label("node", &node.node.to_string()) + &host.unwrap_or_default()
}

/// A label after another.
fn label(name: &str, value: &str) -> String {
    format!(",{name}=\"{}\"", escape(value))
}

/// A label's value: backslash, double quote and line feed have two characters there.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use outlive_base::Version;
    use outlive_control::health::{Finding, NodeHealth, Sensor};
    use outlive_control::traffic::Traffic;

    use super::*;

    fn finding() -> Finding {
        Finding {
            sensor: Sensor::CpuSteal,
            source: String::new(),
            verdict: Verdict::Warning,
            judged: Some(12.0),
            value: Some(100.0),
            per_second: Some(12.0),
            limit: Some(10.0),
            reason: None,
        }
    }

    fn sample() -> (Live, Report) {
        let mut traffic = Traffic::default();
        traffic.sends(false, 100);
        traffic.receives(false, 20);
        traffic.receives(true, 3);
        traffic.connections = 4;
        let node = LiveNode {
            node: 1,
            host: Some("a\\b\"c\nd".into()),
            state: NodeState::Up,
            ranks: 2,
            heard_ms: 1500,
            memory_bytes: 5,
            memory_bytes_max: 10,
            disk_bytes: 7,
            disk_free_bytes: 8,
            agent_restarts: 0,
            offered: Some(Version(9)),
            stable: BTreeMap::from([("partner".to_owned(), Version(8))]),
            traffic,
            clock: None,
            health: NodeHealth {
                verdict: Verdict::Warning,
                findings: vec![finding()],
                ..NodeHealth::default()
            },
            transfers: Vec::new(),
        };
        let live = Live {
            schema: super::super::live::SCHEMA.into(),
            job: "heat".into(),
            began: String::new(),
            began_unix_ms: 1_500,
            seconds: 2.5,
            stage: Stage::Running,
            waits_for: None,
            incarnation: 3,
            restarts: 1,
            spares_left: 0,
            ranks: Some(4),
            joined: 4,
            offered: Some(Version(9)),
            stable: BTreeMap::new(),
            versions_per_minute: 0.0,
            bytes_per_second: 0.0,
            traffic: Traffic::default(),
            nodes: vec![node],
        };
        let mut report = Report::new(&JobName::new("heat").unwrap(), 1);
        report.restarts = 1;
        report.checkpoints.bytes = 1 << 60;
        report.checkpoints.stable.insert("partner".into(), 8);
        (live, report)
    }

    /// As the format says: name, labels in braces with escaped values, a value.
    fn parse(line: &str) -> (String, BTreeMap<String, String>, f64) {
        let (name, rest) = line.split_once('{').unwrap();
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(name.chars().all(legal) && !name.starts_with(|c: char| c.is_ascii_digit()));
        let mut labels = BTreeMap::new();
        let mut left = rest;
        loop {
            let (label, after) = left.split_once("=\"").unwrap();
            let mut value = String::new();
            let mut letters = after.char_indices();
            let end = loop {
                match letters.next().unwrap() {
                    (_, '\\') => match letters.next().unwrap().1 {
                        'n' => value.push('\n'),
                        same @ ('\\' | '"') => value.push(same),
                        other => panic!("\\{other}"),
                    },
                    (at, '"') => break at,
                    (_, other) => value.push(other),
                }
            };
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            left = &after[end + 1..];
            match left.split_at(1) {
                (",", more) => left = more,
                ("}", value) => {
                    let value = value.strip_prefix(' ').unwrap();
                    return (name.to_owned(), labels, value.parse().unwrap());
                }
                _ => panic!("{line}"),
            }
        }
    }

    #[test]
    fn each_line_is_as_the_format_wants_it() {
        let (live, report) = sample();
        let page = text(&live, &report);
        assert!(page.ends_with('\n'));
        let (mut family, mut seen) = (String::new(), BTreeSet::new());
        let mut found = BTreeMap::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(family.clone()), "{family} twice");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, family);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name} {kind}");
                assert!(kind == "counter" || kind == "gauge");
            } else {
                let (name, labels, value) = parse(line);
                assert_eq!(name, family);
                assert_eq!(labels["job"], "heat");
                assert!(
                    found.insert((name, labels), value).is_none(),
                    "{line} twice"
                );
            }
        }
        let host = found.keys().find_map(|(_, labels)| labels.get("host"));
        assert_eq!(host.unwrap(), "a\\b\"c\nd");
        let of = |wanted: &str| -> Vec<f64> {
            let named = found.iter().filter(|((name, _), _)| name == wanted);
            named.map(|(_, value)| *value).collect()
        };
        assert_eq!(of("outlive_job_running"), [1.0]);
        assert_eq!(of("outlive_job_restarts_total"), [1.0]);
        assert_eq!(of("outlive_job_start_time_seconds"), [1.5]);
        assert_eq!(of("outlive_node_silence_seconds"), [1.5]);
        assert_eq!(
            of("outlive_checkpoints_captured_bytes_total"),
            [(1u64 << 60) as f64]
        );
        assert_eq!(of("outlive_job_stage").iter().sum::<f64>(), 1.0);
        assert_eq!(of("outlive_node_stable_version"), [8.0]);
        assert_eq!(of("outlive_node_health"), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(of("outlive_node_health_finding"), [12.0]);
        assert_eq!(of("outlive_node_connections"), [4.0]);
        assert_eq!(of("outlive_node_messages_total"), [1.0, 1.0, 1.0]);
        let bytes = of("outlive_node_message_bytes_total");
        assert_eq!(bytes, [20.0, 100.0, 3.0], "received, sent, signs");
        assert_eq!(of("outlive_launcher_messages_total").len(), 3);
    }
}
