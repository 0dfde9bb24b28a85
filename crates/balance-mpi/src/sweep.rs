//! One sweep of pairwise refinement over a transport: a process works through
//! its neighbours by rank of the pair. The lower sends its band; the higher
//! computes, and answers with the moves and the tasks that come; the lower then
//! sends the tasks that go.
//!
//! Invariant: ranks are a total order known to both ends, so nobody waits in a
//! circle.

use outlive_balance::band::{Band, Marks, band};
use outlive_balance::diffusion::Options;
use outlive_balance::refine::{Goal, refine};
use outlive_balance::schedule::rank;
use outlive_base::Result;
use outlive_base::wire::{Reader, WireError, Writer};

use crate::distributed::{BAND, GIVEN, MOVES, average_edge, tag};
use crate::mesh::{Local, Task, damaged};
use crate::transport::Transport;

pub(crate) fn sweep(
    net: &mut dyn Transport,
    local: &mut Local,
    (round, level_max): (u32, f64),
    (speed, background): (f64, f64),
    options: &Options,
) -> Result<()> {
    let me = local.me;
    let seed = options.seed ^ u64::from(round * 64);
    let mut others: Vec<u32> = local.contacts().into_keys().collect();
    others.sort_by_key(|&other| rank(seed, (me, other)));
    let goal = Goal {
        level_max,
        price: options.migration_price * average_edge(local),
        passes: options.passes,
    };
    for other in others {
        let mut mine = half(local, other, options)?;
        mine.band.load += background;
        mine.band.speed = speed;
        let leaving = if me < other {
            net.send(other, tag(round, BAND), &write_band(&mine))?;
            let (_, moves) = net.receive(Some(other), tag(round, MOVES))?;
            let (_, tasks) = net.receive(Some(other), tag(round, GIVEN))?;
            local.read(&tasks)?;
            names(&moves)
        } else {
            let (_, bytes) = net.receive(Some(other), tag(round, BAND))?;
            let theirs = read_band(&bytes).map_err(damaged)?;
            let (coming, going) = decide((other, me), theirs, &mine, &goal);
            net.send(other, tag(round, MOVES), &write_names(&coming))?;
            going
        };
        let gone: Vec<(u64, Task)> = leaving
            .into_iter()
            .filter_map(|name| local.give(name, other).map(|task| (name, task)))
            .collect();
        net.send(other, tag(round, GIVEN), &local.write(&gone))?;
        if me > other {
            let (_, tasks) = net.receive(Some(other), tag(round, GIVEN))?;
            local.read(&tasks)?;
        }
    }
    Ok(())
}

/// A band whose tasks are named by global numbers.
struct Named {
    band: Band,
    names: Vec<u64>,
    to: Vec<u64>,
}

fn half(local: &Local, other: u32, options: &Options) -> Result<Named> {
    let arrays = local.arrays()?;
    let mut marks = Marks::new(arrays.names.len());
    let (mut band, _) = band(
        &arrays.graph,
        &arrays.owner,
        &arrays.home,
        (local.me, other),
        &arrays.own,
        options.band_depth,
        &mut marks,
    );
    band.load = local.load();
    band.count = local.own.len();
    let name = |places: &[u32]| places.iter().map(|&p| arrays.names[p as usize]).collect();
    Ok(Named {
        names: name(&band.tasks),
        to: name(&band.to),
        band,
    })
}

/// Refines; returns the tasks of the lower process that come and own ones that go.
fn decide(pair: (u32, u32), lower: Named, higher: &Named, goal: &Goal) -> (Vec<u64>, Vec<u64>) {
    let mut names: Vec<u64> = lower.names.iter().chain(&higher.names).copied().collect();
    names.extend(lower.to.iter().chain(&higher.to));
    names.sort_unstable();
    names.dedup();
    let number = |all: &[u64]| -> Vec<u32> {
        all.iter()
            .map(|name| names.binary_search(name).unwrap_or(0) as u32)
            .collect()
    };
    let renumbered = |named: &Named| Band {
        tasks: number(&named.names),
        to: number(&named.to),
        ..named.band.clone()
    };
    let (a, b) = (renumbered(&lower), renumbered(higher));
    let (mut coming, mut going) = (Vec::new(), Vec::new());
    if a.tasks.is_empty() || b.tasks.is_empty() {
        return (coming, going);
    }
    for moved in refine(pair, (&a, &b), goal).moves {
        let name = names[moved.task as usize];
        if moved.to == pair.1 {
            coming.push(name);
        } else {
            going.push(name);
        }
    }
    (coming, going)
}

fn write_band(named: &Named) -> Vec<u8> {
    let mut out = Writer::new();
    let band = &named.band;
    out.u64(band.load.to_bits())
        .u64(band.speed.to_bits())
        .u64(band.count as u64);
    out.u32(named.names.len() as u32);
    for (slot, name) in named.names.iter().enumerate() {
        out.u64(*name).u64(band.weights[slot].to_bits());
        out.u32(band.homes[slot]).u64(band.anchors[slot].to_bits());
        let row = band.offsets[slot] as usize..band.offsets[slot + 1] as usize;
        out.u32(row.len() as u32);
        for entry in row {
            out.u64(named.to[entry]).u64(band.edges[entry].to_bits());
        }
    }
    out.into_vec()
}

fn read_band(bytes: &[u8]) -> core::result::Result<Named, WireError> {
    let mut reader = Reader::new(bytes);
    let mut band = Band {
        offsets: vec![0],
        load: f64::from_bits(reader.u64()?),
        speed: f64::from_bits(reader.u64()?),
        count: reader.u64()? as usize,
        ..Band::default()
    };
    let (mut names, mut to) = (Vec::new(), Vec::new());
    for _ in 0..reader.count(32)? {
        names.push(reader.u64()?);
        band.weights.push(f64::from_bits(reader.u64()?));
        band.homes.push(reader.u32()?);
        band.anchors.push(f64::from_bits(reader.u64()?));
        for _ in 0..reader.count(16)? {
            to.push(reader.u64()?);
            band.edges.push(f64::from_bits(reader.u64()?));
        }
        band.offsets.push(to.len() as u32);
    }
    reader.finish()?;
    Ok(Named { band, names, to })
}

fn write_names(names: &[u64]) -> Vec<u8> {
    names.iter().flat_map(|name| name.to_le_bytes()).collect()
}

fn names(bytes: &[u8]) -> Vec<u64> {
    let mut reader = Reader::new(bytes);
    core::iter::from_fn(|| reader.u64().ok()).collect()
}
