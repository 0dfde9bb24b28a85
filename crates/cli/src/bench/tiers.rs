//! `outlive bench tiers`: shared storage that the nodes write directly, against the way through
//! node storage, for a program that waits and for one that does not.
//!
//! As deep-er, figures 6 and 7, compares writing to the global file system with writing to node
//! storage that is flushed in the background. Shared storage is slowed to a rate, so that the
//! difference shows on one machine. The three ways through node storage differ only in what the
//! program waits for, so that one save is measured for all of them.

use outlive_base::{Code, Entity, Error, Level, Result};
use outlive_control::units::{show_bytes, size_bytes};
use serde::Serialize;

use super::levels::{Wanted, until};
use super::machine::{self, Machine};
use super::save::save;
use super::session::{Scratch, Session, word};
use super::table::{Stat, number};
use crate::args::BenchOptions;
use crate::output;

/// No bound.
const OFF: &str = "off";
/// A version may take so long at the given rate: ranks wait for two minutes at most.
const SECONDS_MAX: u64 = 100;

/// One way to shared storage.
#[derive(Serialize)]
struct Line {
    way: &'static str,
    /// What the program waits for.
    waits: &'static str,
    /// From the call until the program goes on.
    blocked_seconds: Stat,
    /// From the call until node storage has the version; null: it is not written there.
    node_seconds: Option<Stat>,
    /// From the call until shared storage has it.
    shared_seconds: Stat,
    shared_bytes_per_second: Stat,
}

#[derive(Serialize)]
struct Tiers {
    schema: &'static str,
    machine: Machine,
    bytes: u64,
    nodes: u32,
    ranks: u32,
    versions: u32,
    /// Bound of what all nodes write to shared storage together; null: none.
    shared_bytes_per_second: Option<u64>,
    ways: Vec<Line>,
    notes: Vec<String>,
}

/// Seconds of each save: until the program has its call back, until node storage has the
/// version, until shared storage has it.
#[derive(Default)]
struct Seconds {
    call: Vec<f64>,
    node: Vec<f64>,
    shared: Vec<f64>,
}

/// The bound, from the option.
fn rate(text: &str, bytes: u64) -> Result<Option<u64>> {
    let refuse = |reason: String, remedy: &str| {
        let entity = Entity::Option("shared-rate".into());
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    if text == OFF {
        return Ok(None);
    }
    match size_bytes("shared-rate", text)? {
        0 => refuse(
            "nothing is written at 0 bytes a second".into(),
            "give more, or off for no bound",
        ),
        rate if bytes / rate > SECONDS_MAX => refuse(
            format!(
                "a version of {} would take {} s",
                show_bytes(bytes),
                bytes / rate
            ),
            "give more, or fewer --bytes, so that it takes 100 s at most",
        ),
        rate => Ok(Some(rate)),
    }
}

fn saves(session: &mut Session, versions: u32, has_node_storage: bool) -> Result<Seconds> {
    let mut seconds = Seconds::default();
    let mut version = 0;
    // The first uses slots, files and threads for the first time.
    for nth in 0..=versions {
        let offered = save(session, &mut version)?;
        let call = offered.iter().map(|answer| word(answer, 1));
        let call = call.fold(0.0, f64::max) / 1e9;
        let node = match has_node_storage {
            true => Some(until(session, &offered, version, "node-crash")?),
            false => None,
        };
        let shared = until(session, &offered, version, "all-nodes")?;
        if nth > 0 {
            seconds.call.push(call);
            seconds.node.extend(node);
            seconds.shared.push(shared);
        }
    }
    Ok(seconds)
}

fn lines(bytes: u64, direct: &Seconds, through: &Seconds) -> Vec<Line> {
    let line = |way, waits, from: &Seconds, blocked: &[f64]| {
        let rates: Vec<f64> = from.shared.iter().map(|s| bytes as f64 / s).collect();
        Line {
            way,
            waits,
            blocked_seconds: Stat::of(blocked),
            node_seconds: (!from.node.is_empty()).then(|| Stat::of(&from.node)),
            shared_seconds: Stat::of(&from.shared),
            shared_bytes_per_second: Stat::of(&rates),
        }
    };
    vec![
        line(
            "direct",
            "waits until shared storage has it",
            direct,
            &direct.shared,
        ),
        line(
            "synchronous",
            "waits until shared storage has it",
            through,
            &through.shared,
        ),
        line(
            "node-storage",
            "waits until node storage has it",
            through,
            &through.node,
        ),
        line("background", "goes on at once", through, &through.call),
    ]
}

/// Runs the benchmark.
///
/// # Errors
/// Those of [`Wanted::new`], a rate that means nothing, and what the jobs say.
pub fn run(options: &BenchOptions) -> Result<u8> {
    let names = [Level::DISK, Level::SHARED].map(|level| level.name().to_owned());
    let mut wanted = Wanted::new(options, &names)?;
    let bound = rate(&options.levels.shared_rate, wanted.all())?;
    let machine = Machine::here();
    let scratch = Scratch::new(options.dir.as_deref())?;
    wanted.has_room(scratch.path(), 2.0)?;
    if let Some(bound) = bound {
        let words = ["--shared-rate-job".to_owned(), format!("{bound}B")];
        wanted.more.extend(words);
    }
    let mut measure = |name, levels: &str, from: &str| {
        let given = wanted.more.len();
        let words = ["--shared-from", from].map(str::to_owned);
        wanted.more.extend(words);
        let mut session = wanted.start(&scratch, name, levels)?;
        wanted.more.truncate(given);
        let seconds = saves(
            &mut session,
            wanted.versions,
            levels != Level::SHARED.name(),
        )?;
        session.finish()?;
        let _ = std::fs::remove_dir_all(scratch.path().join(name));
        Ok::<_, Error>(seconds)
    };
    let direct = measure("direct", "shared", "memory")?;
    let through = measure("through", "disk,shared", "disk")?;
    let notes = vec![
        "direct: the nodes write to shared storage from the memory of the version; the others: to \
         node storage, from where a copy goes to shared storage"
            .to_owned(),
        format!("load {} at the end", machine::load()),
    ];
    let table = Tiers {
        schema: "outlive.bench.tiers/1",
        machine,
        bytes: wanted.all(),
        nodes: wanted.nodes,
        ranks: wanted.ranks,
        versions: wanted.versions,
        shared_bytes_per_second: bound,
        ways: lines(wanted.all(), &direct, &through),
        notes,
    };
    match options.json {
        true => output::json(&table),
        false => output::text(&table.text()),
    }
}

impl Tiers {
    fn text(&self) -> String {
        let heading = [
            "way",
            "the program",
            "blocked s",
            "min..max",
            "at node storage s",
            "at shared storage s",
            "MB/s there",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.ways.iter().map(|line| {
            let blocked = &line.blocked_seconds;
            vec![
                line.way.to_owned(),
                line.waits.to_owned(),
                number(blocked.median),
                format!("{}..{}", number(blocked.min), number(blocked.max)),
                line.node_seconds
                    .map_or_else(|| "-".to_owned(), |it| number(it.median)),
                number(line.shared_seconds.median),
                number(line.shared_bytes_per_second.median / 1e6),
            ]
        }));
        let bound = self.shared_bytes_per_second.map_or_else(
            || "no bound".to_owned(),
            |rate| format!("at most {} a second together", show_bytes(rate)),
        );
        let notes = self.notes.iter().map(|note| format!("\n{note}"));
        format!(
            "{}\n{} in {} ranks on {} emulated nodes, to shared storage {bound}; {}, medians\n{}{}",
            self.machine,
            show_bytes(self.bytes),
            self.ranks,
            self.nodes,
            outlive_base::count(self.versions, "version"),
            output::table(&rows),
            notes.collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_waits_for_what_it_names() {
        let direct = Seconds {
            call: vec![0.1, 0.1, 0.1],
            node: Vec::new(),
            shared: vec![8.0, 10.0, 20.0],
        };
        let through = Seconds {
            call: vec![0.2, 0.1, 0.3],
            node: vec![1.0, 2.0, 3.0],
            shared: vec![10.0, 20.0, 25.0],
        };
        let lines = lines(1000, &direct, &through);
        let blocked: Vec<f64> = lines.iter().map(|it| it.blocked_seconds.median).collect();
        assert_eq!(blocked, [10.0, 20.0, 2.0, 0.2]);
        let shared: Vec<f64> = lines.iter().map(|it| it.shared_seconds.median).collect();
        assert_eq!(shared, [10.0, 20.0, 20.0, 20.0]);
        assert_eq!(lines[0].shared_bytes_per_second.median, 100.0);
        assert!(lines[0].node_seconds.is_none() && lines[3].node_seconds.is_some());
    }

    #[test]
    fn rates_that_mean_nothing_are_refused() {
        assert_eq!(rate("off", 1).unwrap(), None);
        assert_eq!(rate("1MiB", 100 << 20).unwrap(), Some(1 << 20));
        for (text, bytes) in [("0B", 1), ("x", 1), ("1B", 102), ("1MiB", 102 << 20)] {
            let error = rate(text, bytes).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }
}
