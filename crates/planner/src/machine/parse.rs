//! Machines and jobs from TOML. Whatever is wrong is told with its line and a remedy.

use outlive_base::{Code, Entity, Error, Result};
use serde::Deserialize;
use toml::Spanned;

use super::{
    Group, Job, Layout, LevelSpec, Life, Machine, Members, Nodes, Price, Repair, Scheme, Servers,
};
use crate::units::{Bandwidth, Bytes, REMEDY, Seconds};

/// No more nodes.
const NODES_MAX: u32 = 4_000_000;
/// No more levels: plans try all subsets.
pub(crate) const LEVELS_MAX: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MachineText {
    name: Option<String>,
    nodes: Spanned<NodesText>,
    #[serde(default)]
    groups: Vec<Spanned<GroupText>>,
    #[serde(default)]
    servers: Vec<Spanned<ServersText>>,
    #[serde(default)]
    levels: Vec<Spanned<LevelText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NodesText {
    count: u32,
    mtbf: Option<Seconds>,
    shape: Option<f64>,
    light_mtbf: Option<Seconds>,
    light_shape: Option<f64>,
    repair: Option<RepairText>,
    spares: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RepairText {
    median: Seconds,
    sigma: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GroupText {
    name: String,
    mtbf: Seconds,
    shape: Option<f64>,
    hits: Option<f64>,
    size: Option<u32>,
    stride: Option<u32>,
    nodes: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ServersText {
    name: String,
    count: u32,
    mtbf: Option<Seconds>,
    shape: Option<f64>,
    repair: Option<RepairText>,
    #[serde(default)]
    stops_jobs: bool,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum LevelKind {
    Local,
    Partner,
    Xor,
    Rs,
    Shared,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LevelText {
    kind: LevelKind,
    name: Option<String>,
    distance: Option<u32>,
    group: Option<u32>,
    stride: Option<u32>,
    parity: Option<u32>,
    servers: Option<String>,
    write: Option<Bandwidth>,
    read: Option<Bandwidth>,
    latency: Option<Seconds>,
    cost: Option<Seconds>,
    restart: Option<Seconds>,
    #[serde(default)]
    asynchronous: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct JobText {
    name: Option<String>,
    nodes: Spanned<u32>,
    work: Spanned<Seconds>,
    checkpoint: Spanned<Bytes>,
    capture: Option<Seconds>,
    restart: Option<Seconds>,
}

/// A text and its name, for errors.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at.min(self.text.len())]
            .iter()
            .filter(|&&b| b == b'\n')
            .count()
    }
    /// Where a key of the table that begins at `at` stands; `at` itself where it is not found, as in
    /// a table of one line, or one that lacks it.
    fn key(&self, at: usize, key: &str) -> usize {
        let mut place = at;
        for (number, line) in self.text[at..].split_inclusive('\n').enumerate() {
            let begun = line.trim_start();
            if number > 0 && begun.starts_with('[') {
                break;
            }
            let rest = begun.strip_prefix(key).map(str::trim_start);
            if rest.is_some_and(|rest| rest.starts_with('=')) {
                return place;
            }
            place += line.len();
        }
        at
    }
    fn error(&self, at: usize, seen: &str, remedy: &str) -> Error {
        let reason = format!("line {}: {seen}", self.line(at));
        Error::new(Code::Config, Entity::File(self.file.into()), reason, remedy)
    }
    fn refuse<T>(&self, at: usize, seen: impl AsRef<str>, remedy: &str) -> Result<T> {
        Err(self.error(at, seen.as_ref(), remedy))
    }
    fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let message = error.message().trim();
            let known = match message.starts_with("invalid value: integer") {
                true => "give a whole number of at least 0",
                false => "see docs/how-to/plan.md for what may stand there",
            };
            let (seen, remedy) = message.split_once(REMEDY).unwrap_or((message, known));
            self.error(at, &seen.replace('\n', " "), remedy)
        })
    }
    /// `light`: before the names of the keys.
    fn life(
        &self,
        at: usize,
        what: &str,
        (mtbf, shape): (Seconds, Option<f64>),
        light: &str,
    ) -> Result<Life> {
        let shape = shape.unwrap_or(1.0);
        if mtbf.0 <= 0.0 {
            let seen = format!("{what}: an MTBF of 0");
            return self.refuse(
                self.key(at, &format!("{light}mtbf")),
                seen,
                "give the mean time between failures of one of them, or leave it out",
            );
        }
        if !(0.2..=10.0).contains(&shape) {
            let seen = format!("{what}: a Weibull shape of {shape}");
            let at = self.key(at, &format!("{light}shape"));
            return self.refuse(at, seen, "give a shape from 0.2 to 10; 1 is exponential, machines in service have 0.7 to 0.8");
        }
        Ok(Life {
            mtbf: mtbf.0,
            shape,
        })
    }
}

/// A machine from TOML; `file` names it in errors.
///
/// # Errors
/// [`Code::Config`] with line and remedy: what is no TOML, has unknown keys or lacks a unit;
/// no nodes, times or probabilities that cannot be, groups with nodes that do not exist,
/// levels on servers that do not exist or that survive nothing.
pub fn machine(text: &str, file: &str) -> Result<Machine> {
    let source = Source { text, file };
    let read: MachineText = source.read()?;
    let nodes = nodes(&source, &read.nodes)?;
    let mut groups = Vec::new();
    for group in &read.groups {
        groups.push(self::group(&source, group, nodes.count)?);
    }
    let mut servers: Vec<Servers> = Vec::new();
    for text in &read.servers {
        let (at, text) = (text.span().start, text.get_ref());
        if text.count == 0 {
            return source.refuse(
                source.key(at, "count"),
                format!("servers {}: a count of 0", text.name),
                "give at least 1, or remove the entry",
            );
        }
        if servers.iter().any(|other| other.name == text.name) {
            return source.refuse(
                source.key(at, "name"),
                format!("two entries of servers are called {}", text.name),
                "give each its own name",
            );
        }
        let life = match text.mtbf {
            Some(mtbf) => Some(source.life(at, &text.name, (mtbf, text.shape), "")?),
            None => None,
        };
        let repair = repair(&source, at, text.repair.as_ref())?;
        if repair.is_some() && life.is_none() {
            return source.refuse(
                source.key(at, "repair"),
                format!(
                    "servers {}: a time of repair, and they never fail",
                    text.name
                ),
                "give their mtbf too, or leave repair out",
            );
        }
        servers.push(Servers {
            name: text.name.clone(),
            count: text.count,
            life,
            repair,
            stops_jobs: text.stops_jobs,
        });
    }
    let mut levels: Vec<LevelSpec> = Vec::new();
    for text in &read.levels {
        let level = level(&source, text, nodes.count, &servers)?;
        if levels.iter().any(|other| other.name == level.name) {
            return source.refuse(
                source.key(text.span().start, "name"),
                format!("two levels are called {}", level.name),
                "give each its own name",
            );
        }
        levels.push(level);
    }
    if levels.is_empty() || levels.len() > LEVELS_MAX {
        return source.refuse(
            0,
            format!("{} levels", levels.len()),
            "give 1 to 8 entries [[levels]]",
        );
    }
    let fails = nodes.fatal.is_some() || nodes.light.is_some() || !groups.is_empty();
    if !fails {
        return source.refuse(
            read.nodes.span().start,
            "nothing fails here",
            "give mtbf or light-mtbf to [nodes], or a [[groups]]",
        );
    }
    let name = read.name.unwrap_or_else(|| file.to_owned());
    Ok(Machine {
        name,
        nodes,
        groups,
        servers,
        levels,
    })
}

fn repair(source: &Source, at: usize, text: Option<&RepairText>) -> Result<Option<Repair>> {
    match text {
        Some(repair) if repair.median.0 <= 0.0 || !(0.0..=5.0).contains(&repair.sigma) => source
            .refuse(
                source.key(at, "repair"),
                "a repair that cannot be",
                "give a median above 0 and a sigma from 0 to 5",
            ),
        text => Ok(text.map(|repair| Repair {
            median: repair.median.0,
            sigma: repair.sigma,
        })),
    }
}

fn nodes(source: &Source, text: &Spanned<NodesText>) -> Result<Nodes> {
    let (at, text) = (text.span().start, text.get_ref());
    if text.count == 0 || text.count > NODES_MAX {
        return source.refuse(
            source.key(at, "count"),
            format!("a machine of {} nodes", text.count),
            "give a count from 1 to 4000000",
        );
    }
    let life = |what, mtbf: Option<Seconds>, shape, light| {
        mtbf.map(|mtbf| source.life(at, what, (mtbf, shape), light))
            .transpose()
    };
    let repair = repair(source, at, text.repair.as_ref())?;
    if text.spares.is_some() && repair.is_none() {
        return source.refuse(
            source.key(at, "spares"),
            "spares without a time of repair",
            "give repair = { median = \"2 h\", sigma = 1.3 }, or leave spares out",
        );
    }
    Ok(Nodes {
        count: text.count,
        fatal: life("nodes", text.mtbf, text.shape, "")?,
        light: life("light faults", text.light_mtbf, text.light_shape, "light-")?,
        repair,
        spares: text.spares,
    })
}

fn group(source: &Source, text: &Spanned<GroupText>, count: u32) -> Result<Group> {
    let (at, text) = (text.span().start, text.get_ref());
    let name = &text.name;
    let life = source.life(at, &format!("group {name}"), (text.mtbf, text.shape), "")?;
    let hits = text.hits.unwrap_or(1.0);
    if !(hits > 0.0 && hits <= 1.0) {
        return source.refuse(
            source.key(at, "hits"),
            format!("group {name}: hits = {hits}"),
            "give the share of members that an event takes, above 0 and at most 1",
        );
    }
    let members = match (&text.nodes, text.size) {
        (None, Some(size)) => {
            let stride = text.stride.unwrap_or(1);
            if size == 0 || stride == 0 || size > count {
                let seen = format!(
                    "group {name}: size {size}, stride {stride} on {}",
                    outlive_base::count(count, "node")
                );
                return source.refuse(
                    source.key(at, "size"),
                    seen,
                    "give a size from 1 to the number of nodes and a stride of at least 1",
                );
            }
            Members::Every(Layout { size, stride })
        }
        (Some(ranges), None) => {
            let mut these = Vec::new();
            let at = source.key(at, "nodes");
            for range in ranges {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
                    (Ok(first), Ok(last)) if first <= last && last < count => {
                        these.extend(first..=last)
                    }
                    (Ok(first), Ok(last)) if first <= last => {
                        let seen =
                            format!("group {name}: node {last} does not exist, there are {count}");
                        return source.refuse(at, seen, "name nodes from 0 to one below the count");
                    }
                    _ => {
                        let seen = format!("group {name}: '{range}' names no nodes");
                        return source.refuse(at, seen, "write nodes = [\"0-63\", \"70\"]");
                    }
                }
            }
            these.sort_unstable();
            these.dedup();
            if these.is_empty() {
                return source.refuse(
                    at,
                    format!("group {name} has no nodes"),
                    "name nodes, or give a size",
                );
            }
            Members::These(these)
        }
        _ => {
            let seen = format!("group {name} says twice or not at all which nodes it has");
            return source.refuse(
                at,
                seen,
                "give either size (all nodes in sets of so many) or nodes (one set)",
            );
        }
    };
    Ok(Group {
        name: name.clone(),
        life,
        hits,
        members,
    })
}

fn scheme(
    source: &Source,
    at: usize,
    text: &LevelText,
    count: u32,
    servers: &[Servers],
) -> Result<Scheme> {
    match text.kind {
        LevelKind::Local => Ok(Scheme::Local),
        LevelKind::Partner => {
            let distance = text.distance.unwrap_or(1);
            if distance == 0 || distance >= count {
                let seen = format!(
                    "a partner {} away, of {count}",
                    outlive_base::count(distance, "node")
                );
                let at = source.key(at, "distance");
                return source.refuse(at, seen, "give a distance from 1 to one below the number of nodes: a node that is its own partner survives nothing");
            }
            Ok(Scheme::Partner { distance })
        }
        LevelKind::Xor | LevelKind::Rs => {
            let size = text.group.unwrap_or(8);
            let stride = text.stride.unwrap_or(1);
            let parity = match text.kind {
                LevelKind::Xor => 1,
                _ => text.parity.unwrap_or(2),
            };
            let fits = u64::from(size.max(1) - 1) * u64::from(stride) < u64::from(count);
            if parity == 0 || size <= parity || stride == 0 || size > count {
                let seen = format!(
                    "sets of {}, {stride} apart, with parity for {parity}",
                    outlive_base::count(size, "node")
                );
                let at = source.key(at, "group");
                return source.refuse(at, seen, "give group above parity and at most the number of nodes, parity and stride at least 1");
            }
            if !fits {
                let seen = format!(
                    "sets of {size} nodes, {stride} apart, on {}: none is whole",
                    outlive_base::count(count, "node")
                );
                let at = source.key(at, "stride");
                return source.refuse(
                    at,
                    seen,
                    "give a smaller stride or group: a set of too few nodes survives nothing",
                );
            }
            Ok(Scheme::Erasure {
                layout: Layout { size, stride },
                parity,
            })
        }
        LevelKind::Shared => {
            let name = text.servers.as_deref().unwrap_or_default();
            let Some(servers) = servers.iter().position(|s| s.name == name) else {
                let seen = format!("a shared level on servers '{name}', which are not described");
                return source.refuse(
                    source.key(at, "servers"),
                    seen,
                    "add [[servers]] with that name, or name one that is there",
                );
            };
            Ok(Scheme::Shared { servers })
        }
    }
}

fn level(
    source: &Source,
    text: &Spanned<LevelText>,
    count: u32,
    servers: &[Servers],
) -> Result<LevelSpec> {
    let (at, text) = (text.span().start, text.get_ref());
    let scheme = scheme(source, at, text, count, servers)?;
    let latency = text.latency.map_or(0.0, |latency| latency.0);
    let price = |fixed: Option<Seconds>, rate: Option<Bandwidth>, names: &str| match (fixed, rate) {
        (Some(fixed), None) => Ok(Price::Fixed(fixed.0)),
        (None, Some(rate)) => Ok(Price::Rate {
            latency,
            bandwidth: rate.0,
        }),
        _ => source.refuse(
            at,
            format!("a level with both or none of {names}"),
            "give one of them: a time whatever the size, or a rate",
        ),
    };
    let write = price(text.cost, text.write, "cost and write")?;
    let read = price(text.restart, text.read, "restart and read")?;
    if write == Price::Fixed(0.0) {
        return source.refuse(
            source.key(at, "cost"),
            "a level that costs nothing",
            "give the time that a checkpoint at it takes",
        );
    }
    let kind = match text.kind {
        LevelKind::Local => "local",
        LevelKind::Partner => "partner",
        LevelKind::Xor => "xor",
        LevelKind::Rs => "rs",
        LevelKind::Shared => text.servers.as_deref().unwrap_or("shared"),
    };
    let name = text.name.clone().unwrap_or_else(|| kind.into());
    Ok(LevelSpec {
        name,
        scheme,
        write,
        read,
        asynchronous: text.asynchronous,
    })
}

/// A job from TOML, for a machine; `file` names it in errors.
///
/// # Errors
/// [`Code::Config`] with line and remedy, as for [`machine`]; more nodes than the machine has.
pub fn job(text: &str, file: &str, machine: &Machine) -> Result<Job> {
    let source = Source { text, file };
    let read: JobText = source.read()?;
    let nodes = *read.nodes.get_ref();
    if nodes == 0 || nodes > machine.nodes.count {
        let seen = format!(
            "a job of {nodes} nodes on a machine of {}",
            machine.nodes.count
        );
        return source.refuse(
            read.nodes.span().start,
            seen,
            "give from 1 to as many as the machine has",
        );
    }
    if read.work.get_ref().0 <= 0.0 {
        return source.refuse(
            read.work.span().start,
            "a job without work",
            "give the time that it computes if nothing fails",
        );
    }
    if read.checkpoint.get_ref().0 <= 0.0 {
        return source.refuse(
            read.checkpoint.span().start,
            "a checkpoint of nothing",
            "give the bytes that each node saves",
        );
    }
    for level in &machine.levels {
        let fits = match level.scheme {
            Scheme::Partner { distance } => distance < nodes,
            // The first set has more members than it may lose.
            Scheme::Erasure { layout, parity } => {
                layout.size <= nodes
                    && u64::from(parity) * u64::from(layout.stride) < u64::from(nodes)
            }
            Scheme::Local | Scheme::Shared { .. } => true,
        };
        if !fits {
            let seen = format!(
                "{}: too few for level {}",
                outlive_base::count(nodes, "node"),
                level.name
            );
            return source.refuse(
                read.nodes.span().start,
                seen,
                "use more nodes, or a smaller group or distance in the machine",
            );
        }
    }
    Ok(Job {
        name: read.name.unwrap_or_else(|| file.to_owned()),
        nodes,
        work: read.work.get_ref().0,
        bytes: read.checkpoint.get_ref().0,
        capture: read.capture.map_or(0.0, |capture| capture.0),
        restart: read.restart.map_or(0.0, |restart| restart.0),
    })
}

#[cfg(test)]
mod tests;
