//! `outlive.balance`: the balancer on arrays, and between processes over a
//! communicator of mpi4py or anything with the same few methods.

use outlive_balance::diffusion::Approach;
use outlive_balance::replay::{self, Figures, Method, Settings};
use outlive_balance::{Graph, Processes, command, diffusion};
use outlive_balance_mpi::distributed;
use outlive_balance_mpi::outcome::Outcome;
use outlive_balance_mpi::tasks::{Local, Task};
use outlive_balance_mpi::transport::Transport;
use outlive_base::{Code, Entity, Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::raise;

/// Numbers of eight or four bytes in native order, as NumPy's `tobytes` gives them.
fn words<const N: usize, T>(bytes: &[u8], word: fn([u8; N]) -> T) -> Vec<T> {
    let all = bytes.chunks_exact(N);
    all.filter_map(|one| one.try_into().ok().map(word))
        .collect()
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    words(bytes, f64::from_ne_bytes)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    words(bytes, u64::from_ne_bytes)
}

fn parts(bytes: &[u8]) -> Vec<u32> {
    words(bytes, u32::from_ne_bytes)
}

fn triples(bytes: &[u8]) -> Vec<[f64; 3]> {
    let all = floats(bytes);
    all.chunks_exact(3)
        .map(|at| [at[0], at[1], at[2]])
        .collect()
}

/// A task graph, as `outlive.balance` hands it over.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Arrays {
    offsets: Vec<u8>,
    others: Vec<u8>,
    edges: Vec<u8>,
    weights: Vec<u8>,
    coordinates: Option<Vec<u8>>,
}

impl Arrays {
    fn offsets(&self) -> Vec<usize> {
        numbers(&self.offsets)
            .into_iter()
            .map(|o| o as usize)
            .collect()
    }

    fn graph(&self) -> Result<Graph> {
        let (edges, weights) = (floats(&self.edges), floats(&self.weights));
        let graph = Graph::new(self.offsets(), parts(&self.others), edges, weights)?;
        Ok(match &self.coordinates {
            Some(coordinates) => graph.with_coordinates(triples(coordinates))?,
            None => graph,
        })
    }
}

/// What the caller may choose.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Choice {
    method: String,
    tolerance: f64,
    migration_price: f64,
    /// For the tree of domains: the methods from the leaves up.
    levels: Vec<String>,
    group: usize,
    fan_out: usize,
    seed: u64,
}

impl Choice {
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::default();
        settings.hybrid.levels = command::levels(&self.levels)?;
        settings.hybrid.group = self.group;
        settings.hybrid.fan_out = self.fan_out;
        settings.diffusion.tolerance = self.tolerance;
        settings.diffusion.migration_price = self.migration_price;
        settings.diffusion.seed = self.seed;
        settings.diffusion.approach = match command::method(&self.method)? {
            Method::Scratch => Approach::Scratch,
            Method::Auto => Approach::Auto,
            _ => Approach::Diffusion,
        };
        Ok(settings)
    }
}

/// Seconds since some moment.
fn clock() -> f64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

fn balance_arrays(
    arrays: &Arrays,
    (speeds, background): (&[u8], &[u8]),
    start: Option<&[u8]>,
    choice: &Choice,
) -> Result<(Vec<u32>, Figures)> {
    let graph = arrays.graph()?;
    let processes = Processes::new(floats(speeds), floats(background))?;
    let method = command::method(&choice.method)?;
    let start = match start {
        Some(start) => parts(start),
        None => replay::initial(&graph, &processes)?,
    };
    let settings = choice.settings()?;
    Ok(replay::step(
        method, &graph, &processes, &start, &settings, &clock,
    )?)
}

/// Balances a whole graph; see `outlive.balance.balance`.
#[pyfunction]
pub fn balance<'py>(
    py: Python<'py>,
    arrays: Arrays,
    speeds: &[u8],
    background: &[u8],
    start: Option<&[u8]>,
    choice: Choice,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyDict>)> {
    let done = py.detach(|| balance_arrays(&arrays, (speeds, background), start, &choice));
    let (parts, figures) = done.map_err(|error| raise(py, &error))?;
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_ne_bytes()).collect();
    let out = PyDict::new(py);
    for (name, value) in [
        ("imbalance_before", figures.imbalance_before),
        ("imbalance", figures.imbalance),
        ("migration", figures.migration),
        ("migration_total", figures.migration_total),
        ("edge_cut_max", figures.edge_cut_max),
        ("edge_cut_total", figures.edge_cut_total),
        ("volume_total", figures.volume_total),
        ("seconds_max_per_process", figures.seconds_max_per_process),
        ("iterations", figures.iterations),
        ("memory_bytes_max", figures.memory_bytes_max),
        ("fresh", figures.fresh),
    ] {
        out.set_item(name, value)?;
    }
    Ok((PyBytes::new(py, &bytes), out))
}

/// Messages over a communicator of Python's.
struct Communicator<'py> {
    comm: Bound<'py, PyAny>,
    rank: u32,
    size: u32,
    /// Sends that may not have left yet, with what they send.
    requests: Vec<Bound<'py, PyAny>>,
    /// The first exception of the communicator.
    raised: Option<PyErr>,
}

impl<'py> Communicator<'py> {
    fn new(comm: Bound<'py, PyAny>) -> PyResult<Communicator<'py>> {
        Ok(Communicator {
            rank: comm.call_method0("Get_rank")?.extract()?,
            size: comm.call_method0("Get_size")?.extract()?,
            comm,
            requests: Vec::new(),
            raised: None,
        })
    }

    /// Keeps an exception for the caller, who gets it as it was raised.
    fn heard<T>(&mut self, result: PyResult<T>) -> Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            self.raised.get_or_insert(error);
            let remedy = "see the exception of the communicator";
            Error::new(Code::Network, Entity::Call, text, remedy)
        })
    }

    fn named(&self, pairs: &[(&str, u32)]) -> PyResult<Bound<'py, PyDict>> {
        let named = PyDict::new(self.comm.py());
        for (name, value) in pairs {
            named.set_item(name, value)?;
        }
        Ok(named)
    }

    fn isend(&self, to: u32, tag: u32, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let message = (self.rank, PyBytes::new(self.comm.py(), bytes));
        let named = self.named(&[("dest", to), ("tag", tag)])?;
        self.comm.call_method("isend", (message,), Some(&named))
    }

    fn recv(&self, from: Option<u32>, tag: u32) -> PyResult<(u32, Vec<u8>)> {
        let named = self.named(&[("tag", tag)])?;
        if let Some(from) = from {
            named.set_item("source", from)?;
        }
        self.comm.call_method("recv", (), Some(&named))?.extract()
    }

    fn alltoall(&self, bytes: &[Vec<u8>]) -> PyResult<Vec<Vec<u8>>> {
        let each = bytes.iter().map(|one| PyBytes::new(self.comm.py(), one));
        let each: Vec<_> = each.collect();
        self.comm.call_method1("alltoall", (each,))?.extract()
    }

    /// Waits until every message has left.
    fn finish(&mut self) -> PyResult<()> {
        for request in self.requests.drain(..) {
            request.call_method0("wait")?;
        }
        Ok(())
    }
}

impl Transport for Communicator<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.size
    }
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        let request = self.isend(to, tag, bytes);
        let request = self.heard(request)?;
        self.requests.push(request);
        Ok(())
    }
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
        let message = self.recv(from, tag);
        self.heard(message)
    }
    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>> {
        let all = self.comm.call_method1("allgather", (value,));
        let all = all.and_then(|all| all.extract());
        self.heard(all)
    }
    fn all_to_all(&mut self, bytes: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let all = self.alltoall(&bytes);
        self.heard(all)
    }
}

fn local(names: &[u64], arrays: &Arrays, rank: u32) -> Result<Local> {
    let odd = |what: &str| {
        let remedy = "give one offset more than objects, and a weight for each";
        Error::new(Code::InvalidArgument, Entity::Rank(rank), what, remedy)
    };
    let (offsets, others) = (arrays.offsets(), numbers(&arrays.others));
    let (edges, weights) = (floats(&arrays.edges), floats(&arrays.weights));
    let coordinates = arrays.coordinates.as_deref().map(triples);
    let fits = offsets.len() == names.len() + 1
        && weights.len() == names.len()
        && edges.len() == others.len()
        && offsets.last() == Some(&others.len())
        && offsets.first() == Some(&0)
        && offsets.is_sorted()
        && coordinates
            .as_ref()
            .is_none_or(|all| all.len() == names.len());
    if !fits {
        return Err(odd("the arrays do not fit each other"));
    }
    let mut local = Local::default();
    for (slot, &name) in names.iter().enumerate() {
        let row = offsets[slot]..offsets[slot + 1];
        let ends = others[row.clone()].iter().copied();
        let mut ends: Vec<(u64, f64)> = ends.zip(edges[row].iter().copied()).collect();
        ends.sort_by_key(|end| end.0);
        if ends.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(odd("an edge is listed twice"));
        }
        let task = Task {
            weight: weights[slot],
            home: rank,
            at: coordinates.as_ref().map(|all| all[slot]),
            edges: ends,
        };
        if local.own.insert(name, task).is_some() {
            return Err(odd("a number is given twice"));
        }
    }
    Ok(local)
}

/// (task, process) pairs as NumPy can read them.
type Pairs<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Exports, imports, imbalance before and after, rounds, iterations, whether it is fresh.
type Exchanged<'py> = (Pairs<'py>, Pairs<'py>, (f64, f64), (u32, u32, bool));

fn pairs<'py>(py: Python<'py>, all: &[(u64, u32)]) -> Pairs<'py> {
    let names: Vec<u8> = all.iter().flat_map(|pair| pair.0.to_ne_bytes()).collect();
    let ranks: Vec<u8> = all.iter().flat_map(|pair| pair.1.to_ne_bytes()).collect();
    (PyBytes::new(py, &names), PyBytes::new(py, &ranks))
}

/// Balances; an exception of the communicator comes through as it was raised.
fn over(
    net: &mut Communicator<'_>,
    given: Result<Local>,
    own: (f64, f64),
    options: &diffusion::Options,
) -> PyResult<Outcome> {
    let py = net.comm.py();
    let result = distributed::balance_given(net, given, own, options);
    let outcome = match (result, net.raised.take()) {
        (_, Some(exception)) => return Err(exception),
        (Err(error), None) => return Err(raise(py, &error)),
        (Ok(outcome), None) => outcome,
    };
    net.finish()?;
    Ok(outcome)
}

/// Takes part in a balancing as one that cannot: all others refuse, too.
#[pyfunction]
pub fn balance_refused(comm: Bound<'_, PyAny>, reason: String) -> PyResult<()> {
    let mut net = Communicator::new(comm)?;
    let entity = Entity::Rank(net.rank);
    let remedy = "see the exception of that rank";
    let error = Error::new(Code::InvalidArgument, entity, reason, remedy);
    over(
        &mut net,
        Err(error),
        (1.0, 0.0),
        &diffusion::Options::default(),
    )
    .map(drop)
}

/// Balances between processes; see `outlive.balance.exchange`.
#[pyfunction]
pub fn balance_over<'py>(
    comm: Bound<'py, PyAny>,
    names: &[u8],
    arrays: Arrays,
    speed: f64,
    background: f64,
    choice: Choice,
) -> PyResult<Exchanged<'py>> {
    let py = comm.py();
    let mut net = Communicator::new(comm)?;
    // What one process refuses, all must: nobody may wait for it.
    let made = choice.settings().and_then(|settings| {
        let local = local(&numbers(names), &arrays, net.rank)?;
        Ok((local, settings.diffusion))
    });
    let (given, options) = match made {
        Ok((local, options)) => (Ok(local), options),
        Err(error) => (Err(error), diffusion::Options::default()),
    };
    let outcome = over(&mut net, given, (speed, background), &options)?;
    Ok((
        pairs(py, &outcome.exports),
        pairs(py, &outcome.imports),
        outcome.imbalance,
        (outcome.rounds, outcome.iterations, outcome.is_fresh),
    ))
}
