//! What `outlive balance` and `outlive balance replay` do, without reading or
//! writing anything: the command line hands in bytes and takes out a report.

use outlive_base::{Code, Entity, Error, Result};
use serde::Serialize;

use crate::error::BalanceError;
use crate::graph::Graph;
use crate::hybrid::Levels;
use crate::metrics::measure;
use crate::parse;
use crate::plot;
use crate::processes::Processes;
use crate::replay::{self, Figures, Method, Settings};
use crate::scenario::{Pattern, Scenario};

/// Names and versions of the reports.
pub const SCHEMA: &str = "outlive.balance/1";
/// That of a scenario.
pub const SCHEMA_REPLAY: &str = "outlive.balance.replay/1";

/// The report of `outlive balance`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The method.
    pub method: &'static str,
    /// Tasks of the graph.
    pub tasks: usize,
    /// Edges, each counted once.
    pub edges: usize,
    /// Processes.
    pub processes: usize,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The report of `outlive balance replay`: means over the steps, and the steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// [`SCHEMA_REPLAY`].
    pub schema: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// The method.
    pub method: &'static str,
    /// Processes.
    pub processes: usize,
    /// Tasks.
    pub tasks: usize,
    /// Means over the steps.
    #[serde(flatten)]
    pub mean: Figures,
    /// Every step.
    pub steps: Vec<Figures>,
}

/// A method by its name.
///
/// # Errors
/// `InvalidArgument` with the names there are.
pub fn method(name: &str) -> Result<Method> {
    let found = Method::ALL.into_iter().find(|method| method.name() == name);
    found.ok_or_else(|| {
        let names = Method::ALL.map(Method::name).join(", ");
        unknown("method", name, &names)
    })
}

/// A scenario's kind by its name.
///
/// # Errors
/// `InvalidArgument` with the names there are.
pub fn kind(name: &str) -> Result<Pattern> {
    let found = Pattern::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        unknown(
            "scenario",
            name,
            &Pattern::ALL.map(Pattern::name).join(", "),
        )
    })
}

/// The methods of a tree's levels by their names, from the leaves up; without any the
/// default.
///
/// # Errors
/// `InvalidArgument` with the name that there is not.
pub fn levels(names: &[String]) -> Result<Levels> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Levels::named(&names).map_err(|name| {
        let name: String = name.chars().take(60).collect();
        Error::new(
            Code::InvalidArgument,
            Entity::Option("levels".into()),
            format!("there is no method '{name}' for that level"),
            "first greedy, refine or diffusion, then refine or diffusion",
        )
    })
}

fn unknown(option: &str, name: &str, names: &str) -> Error {
    let name: String = name.chars().take(60).collect();
    Error::new(
        Code::InvalidArgument,
        Entity::Option(option.into()),
        format!("there is no {option} '{name}'"),
        format!("use one of: {names}"),
    )
}

/// Reads a graph by the ending of its file's name: `.graph` or `.mtx`.
///
/// # Errors
/// Those of [`parse`], about the file; another ending.
pub fn graph(name: &str, bytes: &[u8]) -> Result<Graph> {
    let read = if name.ends_with(".graph") {
        parse::metis(bytes)
    } else if name.ends_with(".mtx") {
        parse::matrix_market(bytes)
    } else {
        return Err(Error::new(
            Code::FormatUnknown,
            Entity::File(name.into()),
            "neither .graph (METIS) nor .mtx (MatrixMarket)",
            "convert it, or rename it to its format",
        ));
    };
    read.map_err(|error| error.at(Entity::File(name.into())))
}

/// Balances a graph read before over `processes`. `parts_in` is a
/// partition file's name and bytes to start from; without one the start is
/// [`replay::initial`], for methods that need one, and migration counts from
/// there. Returns the parts too.
///
/// # Errors
/// Those of the method and of the partition file.
pub fn balance(
    graph: &Graph,
    processes: &Processes,
    method: Method,
    parts_in: Option<(&str, &[u8])>,
    settings: &Settings,
    clock: &dyn Fn() -> f64,
) -> Result<(Report, Vec<u32>)> {
    let count = processes.count();
    let start = match parts_in {
        Some((name, bytes)) => parse::partition(bytes, graph.tasks(), count)
            .map_err(|error: BalanceError| error.at(Entity::File(name.into())))?,
        None => replay::initial(graph, processes)?,
    };
    let (parts, figures) = replay::step(method, graph, processes, &start, settings, clock)?;
    let report = Report {
        schema: SCHEMA,
        method: method.name(),
        tasks: graph.tasks(),
        edges: graph.edges(),
        processes: count,
        figures,
    };
    Ok((report, parts))
}

/// Replays a scenario and returns the report and a picture of the last step.
///
/// # Errors
/// Those of the method.
pub fn run_scenario(
    scenario: &mut Scenario,
    method: Method,
    range: (u32, u32),
    settings: &Settings,
    clock: &dyn Fn() -> f64,
) -> Result<(ReplayReport, String)> {
    let mut picture = String::new();
    let last = range.0.saturating_add(range.1);
    let steps = replay::replay(
        method,
        scenario,
        range,
        settings,
        clock,
        |now, at, parts, _| {
            if now == last {
                let title = format!("{} at step {now}, {}", at.kind.name(), method.name());
                picture = plot::partition(&at.graph, parts, &title);
            }
        },
    )?;
    let report = ReplayReport {
        schema: SCHEMA_REPLAY,
        scenario: scenario.kind.name(),
        method: method.name(),
        processes: scenario.processes.count(),
        tasks: scenario.graph.tasks(),
        mean: Figures::mean(&steps),
        steps,
    };
    Ok((report, picture))
}

/// The figures of a given partition, for checking what another program wrote.
///
/// # Errors
/// A partition that does not fit.
pub fn judge(graph: &Graph, count: usize, before: &[u32], parts: &[u32]) -> Result<Figures> {
    let processes = Processes::uniform(count)?;
    processes.check(graph, before)?;
    processes.check(graph, parts)?;
    let metrics = measure(graph, &processes, before, parts);
    Ok(Figures {
        imbalance: metrics.imbalance,
        migration: metrics.migration,
        edge_cut_max: metrics.edge_cut_max,
        edge_cut_total: metrics.edge_cut_total,
        migration_total: metrics.migration_total,
        migration_least: metrics.migration_least,
        migration_total_least: metrics.migration_total_least,
        volume_total: metrics.volume_total,
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_fields_that_scripts_read() {
        let text = parse::write_metis(&Graph::mesh(8, 8, 1));
        let graph = graph("a.graph", text.as_bytes()).unwrap();
        let start = parse::write_partition(&(0..64).map(|t| t / 32).collect::<Vec<u32>>());
        let (report, parts) = balance(
            &graph,
            &Processes::uniform(4).unwrap(),
            method("diffusion").unwrap(),
            Some(("p", start.as_bytes())),
            &Settings::default(),
            &|| 0.0,
        )
        .unwrap();
        assert_eq!(parts.len(), 64);
        let json = serde_json::to_value(&report).unwrap();
        for field in [
            "imbalance",
            "migration",
            "edge_cut_max",
            "edge_cut_total",
            "seconds_max_per_process",
            "iterations",
        ] {
            assert!(json[field].is_number(), "{field} {json}");
        }
        assert!(json["imbalance"].as_f64().unwrap() < 0.1, "{json}");
    }

    #[test]
    fn unknown_names_say_what_there_is() {
        let error = method("metis").unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.remedy().contains("greedy-refine"));
        assert!(kind("storm").unwrap_err().remedy().contains("shock"));
        let leaf = levels(&["greedy".into(), "greedy".into()]).unwrap_err();
        assert!(leaf.to_string().contains("'greedy'"), "{leaf}");
        assert_eq!(levels(&[]).unwrap(), Levels::default());
        assert_eq!(graph("x.txt", b"").unwrap_err().code(), Code::FormatUnknown);
        let error = graph("x.graph", b"5 9\n").unwrap_err();
        assert_eq!(error.code(), Code::Truncated);
        assert_eq!(error.entity(), &Entity::File("x.graph".into()));
    }
}
