//! `outlive bench agents`: what the agents of many nodes send each other and the launcher, by their
//! own counts, while a job of theirs opens, takes a checkpoint and loses a node.
//!
//! All of it runs on this machine: the messages are those of as many machines, the times are not.

use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_control::traffic::{Count, Traffic};
use outlive_launch::record::live::Live;

use super::machine::{self, Machine};
use super::save::{STRIDE, save};
use super::session::{Scratch, Session, odd};
use super::table::{Row, Table};
use crate::args::BenchOptions;

/// The version at which the node is lost: far from those that are saved.
const HIT: u64 = 1_000 * STRIDE - 7;
/// The node that is: no coordinator.
const LOST: usize = 1;
/// Each agent says once a second how it is, and the launcher writes that down as often: what was
/// written so long after something has counted it.
const SAID_WITHIN: f64 = 3.0;
/// For which signs of life are counted.
const IDLE: Duration = Duration::from_secs(5);
/// Longest time until the launcher has written that.
const PATIENCE: Duration = Duration::from_secs(120);

/// Its options.
#[derive(clap::Args, Debug)]
pub struct AgentsBench {
    /// Nodes of the job, all of them on this machine: agents 64 with a rank each, levels 4
    /// [default: by benchmark]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: Option<u32>,
}

/// Nodes where none are given.
const NODES: u32 = 64;
/// One is lost, and two must remain.
const NODES_MIN: u32 = 3;

/// Runs the benchmark.
pub fn measure(options: &BenchOptions) -> Result<Table> {
    let mut table = Table::new("agents", Machine::here());
    let scratch = Scratch::new(options.dir.as_deref())?;
    let nodes = options.agents.nodes.unwrap_or(NODES);
    if nodes < NODES_MIN {
        let entity = Entity::Option("nodes".into());
        let reason = "of fewer than three nodes none can be lost";
        let remedy = "give three or more";
        return Err(Error::new(Code::InvalidArgument, entity, reason, remedy));
    }
    let nodes = nodes as usize;
    let (count, every, hit) = (
        nodes.to_string(),
        STRIDE.to_string(),
        format!("node:{LOST}@version={HIT}"),
    );
    let settings = [
        "--emulate-nodes",
        &count,
        "--levels",
        "memory,disk,partner",
        "--every",
        &every,
        "--spares",
        "1",
        "--backoff",
        "0",
        "--memory",
        "16MiB",
        "--start-timeout",
        "180s",
        "--inject",
        &hit,
    ];
    let began = Instant::now();
    let mut session = Session::start(&scratch, "agents", nodes, &settings)?;
    session.gather(nodes)?;
    let opening = began.elapsed();
    let mut seen = vec![look(&session, nodes)?];
    session.all("fill 4096 1")?;
    session.all("open")?;
    session.all("restore")?;
    session.all("offer 1 0")?;
    let before = look(&session, nodes)?;
    std::thread::sleep(IDLE);
    let after = look(&session, nodes)?;
    signs(&mut table, &before, &after);
    seen.push(after);
    let began = Instant::now();
    let mut version = STRIDE;
    save(&mut session, &mut version)?;
    session.all(&format!("wait {version} node-loss"))?;
    let checkpoint = began.elapsed();
    seen.push(look(&session, nodes)?);
    // The ranks end with the node that one of them lives on.
    let began = Instant::now();
    let _ = session.all(&format!("offer {HIT} 0"));
    session.gather(nodes)?;
    let recovery = began.elapsed();
    seen.push(look(&session, nodes)?);
    session.all("fill 4096 1")?;
    session.all("open")?;
    let restored = session.all("restore")?;
    if restored.iter().any(|answer| answer[0] != "ok") {
        return Err(odd("the version was not restored after the loss of a node"));
    }
    session.finish()?;
    let parts = [
        ("opening", opening),
        ("a checkpoint", checkpoint),
        ("recovery", recovery),
    ];
    let none = Seen::none(nodes);
    let pairs = [
        (&none, &seen[0]),
        (&seen[1], &seen[2]),
        (&seen[2], &seen[3]),
    ];
    for ((name, took), (from, to)) in parts.into_iter().zip(pairs) {
        rows(&mut table, name, took, from, to);
    }
    connections(&mut table, &seen[3]);
    let load = machine::load();
    table
        .notes
        .push(format!("agents: {nodes} nodes, load {load} at the end"));
    Ok(table)
}

/// What all had counted at one moment, and when that was.
struct Seen {
    seconds: f64,
    launcher: Traffic,
    nodes: Vec<Traffic>,
}

impl Seen {
    fn none(nodes: usize) -> Seen {
        Seen {
            seconds: 0.0,
            launcher: Traffic::default(),
            nodes: vec![Traffic::default(); nodes],
        }
    }

    fn of(live: &Live) -> Seen {
        Seen {
            seconds: live.seconds,
            launcher: live.traffic,
            nodes: live.nodes.iter().map(|node| node.traffic).collect(),
        }
    }
}

/// What has been counted of all that was sent until now.
fn look(session: &Session, nodes: usize) -> Result<Seen> {
    let until = Instant::now() + PATIENCE;
    let mut since = None;
    loop {
        if let Some(live) = Live::read(session.job_dir()) {
            let since = *since.get_or_insert(live.seconds);
            let said = |node: &&outlive_launch::record::live::LiveNode| node.memory_bytes_max > 0;
            let all = live.nodes.iter().filter(said).count() == nodes;
            if all && live.seconds >= since + SAID_WITHIN {
                return Ok(Seen::of(&live));
            }
        }
        if Instant::now() > until {
            return Err(odd("the launcher does not write how its nodes are"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Of all nodes but the coordinator's and the one that is lost.
fn others<T>(nodes: &[T]) -> impl Iterator<Item = &T> {
    let with = nodes.iter().enumerate();
    with.filter(|(at, _)| *at != 0 && *at != LOST)
        .map(|(_, it)| it)
}

fn rows(table: &mut Table, name: &str, took: Duration, from: &Seen, to: &Seen) {
    let seconds = [took.as_secs_f64()];
    table
        .rows
        .push(Row::new(format!("{name}: it took"), "s", &seconds));
    let between = |from: &[Traffic], to: &[Traffic]| -> Vec<Traffic> {
        let pairs = to.iter().zip(from);
        pairs.map(|(to, from)| to.since(*from)).collect()
    };
    let nodes = between(&from.nodes, &to.nodes);
    let kinds = [
        (
            "a node",
            others(&nodes).map(Traffic::work).collect::<Vec<Count>>(),
        ),
        ("the coordinator's node", vec![nodes[0].work()]),
        (
            "the launcher",
            vec![to.launcher.since(from.launcher).work()],
        ),
    ];
    for (who, counts) in kinds {
        let messages: Vec<f64> = counts.iter().map(|it| it.messages as f64).collect();
        let kib: Vec<f64> = counts.iter().map(|it| it.bytes as f64 / 1024.0).collect();
        table.rows.push(Row::new(
            format!("  {who}: messages"),
            "messages",
            &messages,
        ));
        table
            .rows
            .push(Row::new(format!("  {who}: in bytes"), "KiB", &kib));
    }
}

/// Signs of life come whatever happens.
fn signs(table: &mut Table, from: &Seen, to: &Seen) {
    let seconds = to.seconds - from.seconds;
    let rate = |to: Traffic, from: Traffic| to.since(from).signs.messages as f64 / seconds;
    let pairs = to.nodes.iter().zip(&from.nodes);
    let nodes: Vec<f64> = pairs.map(|(to, from)| rate(*to, *from)).collect();
    let launcher = [rate(to.launcher, from.launcher)];
    table.rows.push(Row::new(
        "signs of life: a node",
        "messages/s",
        &others(&nodes).copied().collect::<Vec<f64>>(),
    ));
    table
        .rows
        .push(Row::new("  the launcher", "messages/s", &launcher));
}

fn connections(table: &mut Table, seen: &Seen) {
    let count = |traffic: &Traffic| f64::from(traffic.connections);
    let nodes: Vec<f64> = others(&seen.nodes).map(count).collect();
    table
        .rows
        .push(Row::new("connections: a node", "connections", &nodes));
    table.rows.push(Row::new(
        "  the coordinator's node",
        "connections",
        &[count(&seen.nodes[0])],
    ));
}
