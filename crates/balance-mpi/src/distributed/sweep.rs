//! One sweep of pairwise refinement over a transport: a process works through
//! its neighbours by rank of the pair. The lower sends its band; the higher
//! computes, and answers with the moves and the tasks that come; the lower then
//! sends the tasks that go.
//!
//! Invariant: ranks are a total order known to both ends, so nobody waits in a
//! circle.

use outlive_balance::band::{Band, Marks, Outline, band};
use outlive_balance::diffusion::Options;
use outlive_balance::outline::{Cuts, outline};
use outlive_balance::refine::{Goal, refine};
use outlive_balance::schedule::rank;
use outlive_balance::select::centre;
use outlive_base::Result;
use outlive_base::wire::{Reader, WireError, Writer};

use super::{BAND, GIVEN, MOVES, average_edge, tag};
use crate::tasks::{Local, Task, damaged};
use crate::transport::Transport;

pub(crate) fn sweep(
    net: &mut dyn Transport,
    local: &mut Local,
    (round, level_max): (u32, f64),
    (speed, background): (f64, f64),
    cuts: &Cuts,
    options: &Options,
) -> Result<()> {
    let me = local.me;
    let seed = options.seed ^ u64::from(round * 64);
    let mut others: Vec<u32> = local.contacts().into_keys().collect();
    others.sort_by_key(|&other| rank(seed, (me, other)));
    let edge = average_edge(local);
    let goal = Goal {
        level_max,
        edge,
        price: options.migration_price * edge,
        passes: options.passes,
        shape: options.shape * edge,
    };
    for other in others {
        let mut mine = half(local, other, cuts, options)?;
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

fn half(local: &Local, other: u32, cuts: &Cuts, options: &Options) -> Result<Named> {
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
    if cuts.ragged_pair(local.me, other) {
        let pair = (local.me, other);
        let (mut outline, _) = outline(&arrays.graph, &arrays.owner, pair, &band.tasks);
        outline.weight = cuts.weight(local.me);
        outline.reach = cuts.reach(local.me);
        outline.centre = centre(&arrays.graph, &arrays.own);
        band.outline = Some(outline);
    }
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
    out.u8(u8::from(band.outline.is_some()));
    if let Some(outline) = &band.outline {
        write_outline(&mut out, outline);
    }
    out.into_vec()
}

/// The weight and the reach; the edge weight to third processes, one a task; the centre and the places,
/// if they are known, after a byte that says so.
fn write_outline(out: &mut Writer, outline: &Outline) {
    out.u64(outline.weight.to_bits());
    out.u64(outline.reach.to_bits());
    for third in &outline.thirds {
        out.u64(third.to_bits());
    }
    let places = outline.centre.iter().chain(&outline.at);
    let is_known = outline.centre.is_some() && outline.at.len() == outline.thirds.len();
    out.u8(u8::from(is_known));
    for value in places.filter(|_| is_known).flatten() {
        out.u64(value.to_bits());
    }
}

fn read_outline(reader: &mut Reader<'_>, tasks: usize) -> core::result::Result<Outline, WireError> {
    let mut real = || reader.u64().map(f64::from_bits);
    let mut outline = Outline {
        weight: real()?,
        reach: real()?,
        ..Outline::default()
    };
    for _ in 0..tasks {
        outline.thirds.push(real()?);
    }
    if reader.u8()? != 0 {
        let mut real = || reader.u64().map(f64::from_bits);
        outline.centre = Some([real()?, real()?, real()?]);
        for _ in 0..tasks {
            outline.at.push([real()?, real()?, real()?]);
        }
    }
    Ok(outline)
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
    if reader.u8()? != 0 {
        band.outline = Some(read_outline(&mut reader, names.len())?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_arrives_as_it_left_with_and_without_an_outline() {
        let outline = |at: Vec<[f64; 3]>| Outline {
            weight: 27.0,
            reach: 0.25,
            centre: (!at.is_empty()).then_some([0.5, -1.0, 2.0]),
            thirds: vec![1.5, 0.0],
            at,
        };
        let places = vec![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
        for outline in [None, Some(outline(Vec::new())), Some(outline(places))] {
            let band = Band {
                weights: vec![1.0, 2.0],
                homes: vec![0, 1],
                anchors: vec![3.0, 4.0],
                offsets: vec![0, 1, 3],
                edges: vec![1.0, 2.0, 3.0],
                load: 3.0,
                speed: 1.0,
                count: 2,
                outline,
                ..Band::default()
            };
            let named = Named {
                band: band.clone(),
                names: vec![7, 1 << 40],
                to: vec![9, 7, 9],
            };
            let bytes = write_band(&named);
            let read = read_band(&bytes).unwrap();
            assert_eq!(read.band, band);
            assert_eq!((read.names, read.to), (named.names, named.to));
            for length in 0..bytes.len() {
                assert!(read_band(&bytes[..length]).is_err(), "{length}");
            }
        }
    }
}
