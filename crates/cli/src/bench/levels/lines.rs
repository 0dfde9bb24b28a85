//! What `bench levels` has to say, and how it is shown: schema `outlive.bench.levels/1`.

use outlive_base::Result;
use outlive_control::units::show_bytes;
use serde::Serialize;

use super::super::floors::{Moves, Rates};
use super::super::machine::Machine;
use super::super::table::{Stat, number};
use crate::output;

/// Bytes of a GB, as rates and processor time have it.
const GB: f64 = 1e9;

/// What the machine did at best, beside each version.
#[derive(Clone, Debug, Serialize)]
pub struct Floors {
    pub memory: Stat,
    pub link: Stat,
    pub disk: Stat,
}

impl Floors {
    pub fn of(rates: &[Rates]) -> Floors {
        let of = |each: fn(&Rates) -> f64| Stat::of(&rates.iter().map(each).collect::<Vec<_>>());
        Floors {
            memory: of(|rates| rates.memory),
            link: of(|rates| rates.link),
            disk: of(|rates| rates.disk),
        }
    }

    fn medians(&self) -> Rates {
        Rates {
            memory: self.memory.median,
            link: self.link.median,
            disk: self.disk.median,
        }
    }
}

/// Processor seconds of one thing.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct Used {
    pub ranks: f64,
    /// Keepers and agents.
    pub agents: f64,
    pub launcher: f64,
    /// Of the memory server, at a level that has one.
    pub server: f64,
}

/// All that was measured at a level.
#[derive(Default, Debug)]
pub struct Measured {
    /// Protected bytes of a version.
    pub bytes: u64,
    /// From the call until the version is stable, of each version.
    pub seconds: Vec<f64>,
    /// The floors beside each.
    pub rates: Vec<Rates>,
    /// Over all these versions.
    pub used: Used,
    /// Bytes of files of one version; `None`: it has none.
    pub stored: Option<u64>,
    /// Runs on all cores, in pairs: without and with a version.
    pub without: Vec<f64>,
    pub with: Vec<f64>,
}

/// A level.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub level: &'static str,
    pub survives: &'static str,
    pub moves: Moves,
    pub floors: Floors,
    /// From the call until the version is stable.
    pub seconds: Stat,
    pub bytes_per_second: Stat,
    pub limit_bytes_per_second: Stat,
    pub limit_is: &'static str,
    /// Ours by limit: the median of the pairs.
    pub ratio: f64,
    /// For each protected GB.
    pub processor_seconds_per_gb: Used,
    /// Null: it is in memory alone.
    pub stored_bytes: Option<u64>,
    pub run_seconds: Stat,
    pub run_without_seconds: Stat,
    /// What a version added to a run: of the pairs.
    pub longer_ms: Stat,
    pub longer_percent: f64,
}

impl Line {
    pub fn new(level: outlive_base::Level, moves: Moves, measured: &Measured) -> Line {
        let bytes = measured.bytes as f64;
        let ours: Vec<f64> = measured.seconds.iter().map(|s| bytes / s).collect();
        let limits = measured.rates.iter().map(|rates| moves.limit(rates).0);
        let limits: Vec<f64> = limits.collect();
        let ratios: Vec<f64> = ours.iter().zip(&limits).map(|(o, l)| o / l).collect();
        let floors = Floors::of(&measured.rates);
        let pairs = || measured.with.iter().zip(&measured.without);
        let longer: Vec<f64> = pairs().map(|(with, out)| (with - out) * 1e3).collect();
        let percent: Vec<f64> = pairs()
            .map(|(with, out)| (with / out - 1.0) * 100.0)
            .collect();
        let gb = bytes * measured.seconds.len() as f64 / GB;
        Line {
            level: level.name(),
            survives: level.survives().name(),
            moves,
            limit_is: moves.limit(&floors.medians()).1,
            floors,
            seconds: Stat::of(&measured.seconds),
            bytes_per_second: Stat::of(&ours),
            limit_bytes_per_second: Stat::of(&limits),
            ratio: Stat::of(&ratios).median,
            processor_seconds_per_gb: Used {
                ranks: measured.used.ranks / gb,
                agents: measured.used.agents / gb,
                launcher: measured.used.launcher / gb,
                server: measured.used.server / gb,
            },
            stored_bytes: measured.stored,
            run_seconds: Stat::of(&measured.with),
            run_without_seconds: Stat::of(&measured.without),
            longer_ms: Stat::of(&longer),
            longer_percent: Stat::of(&percent).median,
        }
    }

    fn cells(&self, bytes: u64) -> Vec<String> {
        let mb = |value: f64| number(value / 1e6);
        let spread = format!(
            "{}..{}",
            mb(self.bytes_per_second.min),
            mb(self.bytes_per_second.max)
        );
        let used = &self.processor_seconds_per_gb;
        let Moves { memory, link, disk } = self.moves;
        vec![
            self.level.to_owned(),
            self.survives.to_owned(),
            mb(self.bytes_per_second.median),
            spread,
            format!("{memory:.2} {link:.2} {disk:.2}"),
            format!(
                "{} ({})",
                mb(self.limit_bytes_per_second.median),
                self.limit_is
            ),
            number(self.ratio),
            number(used.ranks),
            number(used.agents),
            number(used.server),
            self.stored_bytes.map_or_else(
                || "in memory".to_owned(),
                |stored| format!("{:.2}", stored as f64 / bytes as f64),
            ),
            format!(
                "{} ms, {} %",
                number(self.longer_ms.median),
                number(self.longer_percent)
            ),
        ]
    }
}

/// A level of a memory server beside the one whose nodes compute the same parities: DEEP-ER, figure 9.
#[derive(Debug, Serialize)]
pub struct Beside {
    pub level: &'static str,
    pub beside: &'static str,
    /// Processor seconds of ranks, keepers and agents for each protected GB.
    pub node_seconds_per_gb: f64,
    pub beside_node_seconds_per_gb: f64,
    /// Of the other's node time.
    pub node_time_saved: f64,
    /// The protected bytes a second of both, one by the other.
    pub bandwidth_ratio: f64,
}

impl Beside {
    /// All pairs of the table.
    pub fn of(levels: &[Line]) -> Vec<Beside> {
        let served = |line: &&Line| line.level.starts_with(SERVED);
        let pairs = levels.iter().filter(served).filter_map(|line| {
            let members = &line.level[SERVED.len()..];
            let mut others = levels.iter();
            let other = others.find(|it| it.level.strip_prefix("xor:") == Some(members))?;
            let of_node = |line: &Line| {
                let used = &line.processor_seconds_per_gb;
                used.ranks + used.agents
            };
            let (ours, theirs) = (of_node(line), of_node(other));
            Some(Beside {
                level: line.level,
                beside: other.level,
                node_seconds_per_gb: ours,
                beside_node_seconds_per_gb: theirs,
                node_time_saved: 1.0 - ours / theirs,
                bandwidth_ratio: line.bytes_per_second.median / other.bytes_per_second.median,
            })
        });
        pairs.collect()
    }

    fn text(&self) -> String {
        format!(
            "{} beside {}: {} by {} CPU s/GB of ranks and agents, {:.0} % less (goal: 50 or more); {} times \
             its MB/s (goal: up to 3)",
            self.level,
            self.beside,
            number(self.node_seconds_per_gb),
            number(self.beside_node_seconds_per_gb),
            100.0 * self.node_time_saved,
            number(self.bandwidth_ratio),
        )
    }
}

/// How levels of memory servers begin; how many members a group has follows.
const SERVED: &str = "memory-server:";

/// The whole table.
#[derive(Debug, Serialize)]
pub struct Levels {
    pub schema: &'static str,
    pub machine: Machine,
    /// Protected bytes of a version, over all ranks.
    pub bytes: u64,
    pub nodes: u32,
    pub ranks: u32,
    /// Versions that were measured at each level, and pairs of runs.
    pub versions: u32,
    pub levels: Vec<Line>,
    pub compared: Vec<Beside>,
    pub notes: Vec<String>,
}

impl Levels {
    /// To standard output.
    pub fn print(&self, json: bool) -> Result<u8> {
        if json {
            return output::json(self);
        }
        output::text(&self.text())
    }

    fn text(&self) -> String {
        let heading = [
            "level",
            "survives",
            "MB/s",
            "min..max",
            "moves (memory link disk)",
            "limit MB/s",
            "ratio",
            "CPU s/GB: ranks",
            "agents",
            "server",
            "stored",
            "a busy run, longer",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.levels.iter().map(|line| line.cells(self.bytes)));
        let floors = self.levels.iter().map(|line| {
            let mb = |stat: Stat| number(stat.median / 1e6);
            let Floors { memory, link, disk } = &line.floors;
            format!(
                "\n  {}: memory {}, link {}, disk {}",
                line.level,
                mb(*memory),
                mb(*link),
                mb(*disk)
            )
        });
        let compared = self.compared.iter().map(Beside::text);
        let notes = compared.chain(self.notes.iter().cloned());
        let notes = notes.map(|note| format!("\n{note}"));
        format!(
            "{}\n{} in {} ranks on {} emulated nodes; {} of each level, medians\n{}\n\
             MB/s that the machine did beside each level:{}{}",
            self.machine,
            show_bytes(self.bytes),
            self.ranks,
            self.nodes,
            outlive_base::count(self.versions, "version"),
            output::table(&rows),
            floors.collect::<String>(),
            notes.collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, seconds: f64, ranks: f64, agents: f64) -> Line {
        let level: outlive_base::Level = name.parse().unwrap();
        let rates = Rates {
            memory: 8e9,
            link: 4e9,
            disk: 2e9,
        };
        let measured = Measured {
            bytes: 1_000_000_000,
            seconds: vec![seconds],
            rates: vec![rates],
            used: Used {
                ranks,
                agents,
                launcher: 9.0,
                server: 9.0,
            },
            stored: None,
            without: vec![1.0],
            with: vec![1.0],
        };
        Line::new(level, Moves::of(level, 8).unwrap(), &measured)
    }

    #[test]
    fn a_memory_server_is_compared_with_nodes_that_compute_the_same() {
        let levels = [
            line("xor:4", 4.0, 0.5, 3.5),
            line("memory-server:3", 1.0, 1.0, 1.0),
            line("memory-server:4", 2.0, 0.5, 1.0),
            line("disk", 1.0, 1.0, 1.0),
        ];
        let compared = Beside::of(&levels);
        let [found] = &compared[..] else {
            panic!("{compared:?}");
        };
        assert_eq!((found.level, found.beside), ("memory-server:4", "xor:4"));
        assert_eq!(found.node_time_saved, 0.625);
        assert_eq!(found.bandwidth_ratio, 2.0);
        let text = found.text();
        assert!(
            text.contains("1.50 by 4.00 CPU s/GB") && text.contains("62 % less"),
            "{text}"
        );
    }

    #[test]
    fn a_line_is_what_was_measured() {
        let rates = |disk| Rates {
            memory: 8e9,
            link: 4e9,
            disk,
        };
        let measured = Measured {
            bytes: 1_000_000_000,
            seconds: vec![2.0, 4.0, 5.0],
            rates: vec![rates(2e9), rates(1e9), rates(2e9)],
            used: Used {
                ranks: 1.5,
                agents: 6.0,
                launcher: 0.3,
                server: 0.9,
            },
            stored: Some(2_000_000_000),
            without: vec![1.0, 2.0],
            with: vec![1.5, 2.2],
        };
        let level = outlive_base::Level::PARTNER;
        let moves = Moves::of(level, 4).unwrap();
        let line = Line::new(level, moves, &measured);
        assert_eq!(line.bytes_per_second.median, 250e6);
        // Of the pairs: 500 of 1000, 250 of 500, 200 of 1000 MB/s.
        assert_eq!((line.ratio, line.limit_is), (0.5, "disk"));
        assert_eq!(line.limit_bytes_per_second.max, 1e9);
        let used = line.processor_seconds_per_gb;
        let close = |value: f64, wanted: f64| (value - wanted).abs() < 1e-9;
        assert_eq!((used.ranks, used.agents), (0.5, 2.0));
        assert!(
            close(used.launcher, 0.1) && close(used.server, 0.3),
            "{line:?}"
        );
        assert!(close(line.longer_ms.median, 350.0), "{line:?}");
        assert!(close(line.longer_percent, 30.0), "{line:?}");
        let cells = line.cells(measured.bytes);
        assert_eq!(cells[..2], ["partner", "domain"]);
        assert_eq!((&*cells[4], &*cells[10]), ("1.00 1.00 2.00", "2.00"));
    }
}
