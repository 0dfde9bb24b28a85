//! Diffusion balancing over a transport: what each process runs.
//!
//! A round is: loads known, two flows by [`outlive_balance::machine`], selection,
//! handing over, then one sweep of pairwise refinement by rank of the pair. The
//! kernels are those of the sequential reference. Deviations, for simplicity: loads, cuts
//! and largest contacts are gathered on all processes (8 bytes a process each),
//! pairs are refined whether or not their border changed, and owners of ghosts are
//! refreshed after the sweep and not within it.
//!
//! Invariants: every task has one owner at every moment in which no message of
//! the handing over is under way; a digest of the numbers and weights of all tasks is
//! compared at the end.

use std::collections::BTreeMap;

use outlive_balance::borders::border;
use outlive_balance::diffusion::{Approach, Options, Progress};
use outlive_balance::flow::{self, FlowOptions, Scheme, Verdict};
use outlive_balance::machine::{Command, Config, Diffusion, Event, Msg, View};
use outlive_balance::outline::{Cuts, Ground};
use outlive_balance::select::{Outflow, Scratch, View as SelectView, centre, select};
use outlive_base::machine::{Cx, Machine, Output, Peer, Ready};
use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{Code, Entity, Error, Result, Time, rng};

use crate::gathered;
use crate::leaving;
use crate::outcome::Outcome;
use crate::tasks::{DIGEST_MASK, Local, alike, damaged};
use crate::transport::Transport;

mod sweep;

/// The part of a tag that names the kind of message; the rest is the round.
const KINDS: u32 = 8;
pub(crate) const FLOW: u32 = 0;
pub(crate) const CENTRE: u32 = 1;
pub(crate) const BAND: u32 = 2;
pub(crate) const MOVES: u32 = 3;
pub(crate) const GIVEN: u32 = 4;
/// The second flow of a round.
pub(crate) const NARROW: u32 = 5;

pub(crate) fn tag(round: u32, kind: u32) -> u32 {
    round * KINDS + kind
}

/// Balances; collective. By [`Approach`] one process may compute for all, if the graph is small
/// enough for it ([`gathered::TASKS_MAX`]). `own` is this process's speed and its background, load that
/// cannot move. A process of speed 0 leaves: it takes part in the call, ends without
/// tasks, and its background does not count. `local.own` is this process's tasks; owners
/// are looked up.
///
/// # Errors
/// Bad weights or speeds, no process that stays, options that differ between processes,
/// tasks that two have, edges to tasks that no process has, the transport's. Bad input at
/// one process is an error at all.
pub fn balance(
    net: &mut dyn Transport,
    local: Local,
    own: (f64, f64),
    options: &Options,
) -> Result<Outcome> {
    balance_given(net, Ok(local), own, options)
}

/// [`balance`] where this process may have failed to gather its tasks: all refuse then,
/// and nobody waits for it.
///
/// # Errors
/// The given one, and those of [`balance`].
pub fn balance_given(
    net: &mut dyn Transport,
    given: Result<Local>,
    (speed, background): (f64, f64),
    options: &Options,
) -> Result<Outcome> {
    let me = net.rank();
    let (mut local, fault) = match given {
        Err(error) => (Local::default(), Some(error)),
        Ok(local) => {
            let local = Local { me, ..local };
            let senseless = options.check().err().map(|e| e.at(Entity::Rank(me)));
            let fault = local.fault(speed, background).or(senseless);
            (local, fault)
        }
    };
    alike(net, fault, digest_of(options))?;
    local.refresh(net)?;
    local.check_borders(net)?;
    let speeds = net.all_gather(speed)?;
    let stays = leaving::who_stays(&speeds)?;
    let background = if speed > 0.0 { background } else { 0.0 };
    let before = digest(net, &local)?;
    if options.approach != Approach::Diffusion {
        let own = (speeds.as_slice(), background, before);
        if let Some(outcome) = gathered::balance(net, &local, own, options)? {
            return Ok(outcome);
        }
    }
    let ground = ground(net, &local)?;
    leaving::hand_over(net, &mut local, &stays)?;
    let mut outcome = Outcome::default();
    let mut progress = Progress::default();
    loop {
        let loads = net.all_gather(background + local.load())?;
        let ideal = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
        if !ideal.is_finite() {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Call,
                "the loads of all ranks, or their speeds, add up to infinity",
                "use smaller numbers: only their ratios count",
            ));
        }
        let staying = loads.iter().zip(&speeds).filter(|(_, speed)| **speed > 0.0);
        let levels = staying.map(|(load, speed)| load / speed);
        let level_max = levels.fold(0.0, f64::max);
        let imbalance = if ideal > 0.0 {
            level_max / ideal - 1.0
        } else {
            0.0
        };
        if outcome.rounds == 0 {
            outcome.imbalance.0 = imbalance;
        }
        outcome.imbalance.1 = imbalance;
        if !progress.goes_on(imbalance, options) {
            break;
        }
        if outcome.rounds > 0 {
            // Owners were told as of the last handing over; the sweep moved more.
            local.refresh(net)?;
        }
        outcome.rounds += 1;
        let round = outcome.rounds;
        let (links, cuts) = links(net, &local, &stays, (&ground, options))?;
        let slack = options.tolerance * options.slack;
        let load = flow::with_slack(background + local.load(), ideal * speed, slack);
        let own = (speed, load);
        let (mut flows, iterations) = diffuse(net, (round, FLOW), own, (&links, &stays), options)?;
        outcome.iterations += iterations;
        if options.narrow {
            let narrow = flows.iter().map(|&(to, amount)| {
                let contact = links.get(&to).copied().unwrap_or(1.0);
                (to, flow::narrowed(contact, amount, ideal))
            });
            let narrow = narrow.collect();
            let (again, iterations) =
                diffuse(net, (round, NARROW), own, (&narrow, &stays), options)?;
            flows = again;
            outcome.iterations += iterations;
        }
        hand_over(net, &mut local, round, (&links, &cuts), &flows, options)?;
        local.refresh(net)?;
        let limit = ideal * (1.0 + options.tolerance);
        sweep::sweep(
            net,
            &mut local,
            (round, limit),
            (speed, background),
            &cuts,
            options,
        )?;
    }
    if digest(net, &local)? != before {
        return Err(Error::internal("a task was lost or doubled"));
    }
    lists(net, &local, outcome)
}

/// A digest of the tasks of all processes. Collective.
fn digest(net: &mut dyn Transport, local: &Local) -> Result<u64> {
    let all = net.all_gather(local.digest() as f64)?;
    let sum = all
        .into_iter()
        .fold(0u64, |sum, one| sum.wrapping_add(one as u64));
    Ok(sum & DIGEST_MASK)
}

/// A digest of the options: processes with different ones would wait for each other in
/// different places.
fn digest_of(options: &Options) -> u64 {
    // The text of a float is exact.
    let text = format!("{options:?}");
    let next = |sum, byte: u8| rng::draw(sum, u64::from(byte), 0);
    text.bytes().fold(0, next) & DIGEST_MASK
}

/// What all processes together know of the space that the tasks lie in. Collective.
fn ground(net: &mut dyn Transport, local: &Local) -> Result<Ground> {
    let edges = local.own.values().flat_map(|task| &task.edges);
    let edges = net.all_gather(edges.map(|edge| edge.1).sum())?;
    let tasks = net.all_gather(local.own.len() as f64)?;
    let mut axes = 0;
    for axis in 0..3 {
        let mut places = local.own.values().map(|task| task.at.map(|at| at[axis]));
        // One number for each: where its tasks are, or that they differ, or lie nowhere.
        let place = match places.next() {
            None => f64::INFINITY,
            Some(None) => f64::NEG_INFINITY,
            Some(Some(first)) => match places.all(|place| place == Some(first)) {
                true => first,
                false => f64::NAN,
            },
        };
        let mut all = net.all_gather(place)?;
        all.retain(|place| *place != f64::INFINITY);
        if all.contains(&f64::NEG_INFINITY) {
            axes = 0;
            break;
        }
        axes += u32::from(all.iter().any(|place| *place != all[0]));
    }
    let count = tasks.iter().sum::<f64>() as usize;
    Ok(Ground::new(edges.iter().sum(), axes, count, tasks.len()))
}

/// Neighbours with contacts, and bridges as in the reference
/// ([`outlive_balance::links::Links::of_tasks`]): a process without any neighbour is
/// tied to those before and after it, and so is the lowest of every further component;
/// only those that stay count. With what every process cuts.
fn links(
    net: &mut dyn Transport,
    local: &Local,
    stays: &[bool],
    (ground, options): (&Ground, &Options),
) -> Result<(BTreeMap<u32, f64>, Cuts)> {
    let mut links = local.contacts();
    let counts = net.all_gather(local.own.len() as f64)?;
    let cubes: Vec<f64> = counts
        .into_iter()
        .map(|n| ground.cube(n as usize))
        .collect();
    let limits = (options.ragged, options.compact);
    let cuts = Cuts::new(net.all_gather(links.values().sum())?, &cubes, limits);
    let largest = links.values().copied().fold(0.0, f64::max);
    let contact = net.all_gather(largest)?;
    let mut component = components(net, &links)?;
    let staying: Vec<usize> = (0..stays.len()).filter(|&p| stays[p]).collect();
    for (slot, &process) in staying.iter().enumerate() {
        let before = slot.checked_sub(1).map(|slot| staying[slot]);
        let apart = before.filter(|&b| component[b] != component[process]);
        let lonely = contact[process] == 0.0;
        // A chain of lonely processes would name each of its links twice.
        let after = staying.get(slot + 1).copied();
        let after = after.filter(|&after| lonely && contact[after] > 0.0);
        let back = if lonely { before } else { apart };
        for other in back.into_iter().chain(after) {
            let weight = match contact[process].max(contact[other]) {
                0.0 => 1.0,
                weight => weight,
            };
            for (me, to) in [(process, other), (other, process)] {
                if me == local.me as usize {
                    links.entry(to as u32).or_insert(weight);
                }
            }
            let (old, new) = (component[process], component[other]);
            component
                .iter_mut()
                .filter(|c| **c == old)
                .for_each(|c| *c = new);
        }
    }
    Ok((links, cuts))
}

/// The component of every process, named by its lowest one. Collective: each takes the
/// lowest name among its neighbours, and the name of that one, until nothing changes.
fn components(net: &mut dyn Transport, links: &BTreeMap<u32, f64>) -> Result<Vec<u32>> {
    let me = net.rank() as usize;
    let mut names: Vec<u32> = (0..net.size()).collect();
    loop {
        let near = links.keys().map(|&to| names[to as usize]);
        let lowest = near.fold(names[me], u32::min);
        let own = names[lowest as usize].min(lowest);
        let all = net.all_gather(f64::from(own))?;
        let all: Vec<u32> = all.into_iter().map(|name| name as u32).collect();
        if all == names {
            return Ok(names);
        }
        names = all;
    }
}

fn diffuse(
    net: &mut dyn Transport,
    (round, kind): (u32, u32),
    (speed, load): (f64, f64),
    (links, stays): (&BTreeMap<u32, f64>, &[bool]),
    options: &Options,
) -> Result<(Vec<(Peer, f64)>, u32)> {
    if !stays[net.rank() as usize] {
        return Ok((Vec::new(), 0));
    }
    let config = Config {
        size: net.size(),
        options: FlowOptions {
            tolerance: options.tolerance * options.flow.tolerance,
            scheme: match options.flow.scheme {
                Scheme::Adaptive { .. } => Scheme::Adaptive {
                    gamma: flow::gamma_estimate(net.size() as usize),
                },
                other => other,
            },
            ..options.flow
        },
        resend: Time::NEVER,
    };
    let cx = Cx {
        me: net.rank(),
        now: Time::ZERO,
        config: &config,
        seed: 0,
    };
    let mut machine = Diffusion::new(&config);
    let neighbours = links.iter().map(|(&to, &contact)| (to, contact)).collect();
    let command = Command::Start {
        epoch: tag(round, kind),
        load,
        speed,
        neighbours,
        absent: (0..net.size()).filter(|p| !stays[*p as usize]).collect(),
    };
    machine.on_command(&cx, command);
    let mut flows = Vec::new();
    loop {
        while let Some(output) = machine.poll(&cx, Ready::ALL) {
            match output {
                Output::Send { to, msg, .. } => net.send(to, tag(round, kind), &encode(&msg))?,
                Output::Event(Event::Flow { to, amount }) => flows.push((to, amount)),
                Output::Event(Event::Done { iterations, .. }) => return Ok((flows, iterations)),
                _ => {}
            }
        }
        let (from, bytes) = net.receive(None, tag(round, kind))?;
        let msg = decode(&bytes).map_err(damaged)?;
        machine.on_message(&cx, from, msg, None);
    }
}

fn hand_over(
    net: &mut dyn Transport,
    local: &mut Local,
    round: u32,
    (links, cuts): (&BTreeMap<u32, f64>, &Cuts),
    flows: &[(Peer, f64)],
    options: &Options,
) -> Result<()> {
    let arrays = local.arrays()?;
    let own_centre = centre(&arrays.graph, &arrays.own);
    let mut out = Writer::new();
    for value in own_centre.iter().flatten() {
        out.u64(value.to_bits());
    }
    for &to in links.keys() {
        net.send(to, tag(round, CENTRE), out.as_slice())?;
    }
    let edge = average_edge(local);
    let mut outflows = Vec::new();
    for &(to, amount) in flows {
        let (_, bytes) = net.receive(Some(to), tag(round, CENTRE))?;
        let mut reader = Reader::new(&bytes);
        let centre = match bytes.len() {
            24 => Some(
                [reader.u64(), reader.u64(), reader.u64()].map(|v| f64::from_bits(v.unwrap_or(0))),
            ),
            _ => None,
        };
        if amount > 0.0 {
            outflows.push(Outflow {
                to,
                amount,
                centre,
                lean: cuts.lean(local.me, to),
                shape: match cuts.ragged_pair(local.me, to) {
                    true => options.shape * edge,
                    false => 0.0,
                },
            });
        }
    }
    let border = border(&arrays.graph, &arrays.owner, &arrays.own);
    let view = SelectView {
        graph: &arrays.graph,
        owner: &arrays.owner,
        home: &arrays.home,
        border: &border,
        centre: own_centre,
        edge,
        price: options.migration_price * edge,
        me: local.me,
        leaving: false,
    };
    let mut scratch = Scratch::new(arrays.names.len());
    let (moves, _) = select(&view, &arrays.own, outflows, &mut scratch);
    let mut leaving: BTreeMap<u32, Vec<(u64, crate::tasks::Task)>> = BTreeMap::new();
    for moved in moves {
        let name = arrays.names[moved.task as usize];
        if let Some(task) = local.give(name, moved.to) {
            leaving.entry(moved.to).or_default().push((name, task));
        }
    }
    for &to in links.keys() {
        let bytes = local.write(leaving.get(&to).map_or(&[][..], Vec::as_slice));
        net.send(to, tag(round, GIVEN), &bytes)?;
    }
    for &from in links.keys() {
        let (_, bytes) = net.receive(Some(from), tag(round, GIVEN))?;
        local.read(&bytes)?;
    }
    Ok(())
}

pub(crate) fn average_edge(local: &Local) -> f64 {
    let (mut sum, mut count) = (0.0, 0usize);
    for (_, weight) in local.own.values().flat_map(|task| &task.edges) {
        sum += weight;
        count += 1;
    }
    if count == 0 { 1.0 } else { sum / count as f64 }
}

fn lists(net: &mut dyn Transport, local: &Local, mut outcome: Outcome) -> Result<Outcome> {
    let mut homes: Vec<Writer> = (0..net.size()).map(|_| Writer::new()).collect();
    for (name, task) in &local.own {
        if task.home != local.me {
            outcome.imports.push((*name, task.home));
            homes[task.home as usize].u64(*name);
        }
    }
    let all = net.all_to_all(homes.into_iter().map(Writer::into_vec).collect())?;
    for (process, bytes) in all.iter().enumerate() {
        let mut reader = Reader::new(bytes);
        while let Ok(name) = reader.u64() {
            outcome.exports.push((name, process as u32));
        }
    }
    outcome.exports.sort_unstable();
    Ok(outcome)
}

fn encode(msg: &Msg) -> Vec<u8> {
    let mut out = Writer::new();
    let (kind, view) = match *msg {
        Msg::Hello { view, .. } => (0, view),
        Msg::Level { view, .. } => (1, view),
        Msg::Up { view, .. } => (2, view),
        Msg::Down { view, .. } => (3, view),
    };
    let (epoch, absent) = view.words();
    out.u8(kind).u32(epoch).u32(absent);
    match *msg {
        Msg::Hello {
            girth,
            speed,
            heard,
            ..
        } => {
            out.u64(girth.to_bits())
                .u64(speed.to_bits())
                .u8(u8::from(heard));
        }
        Msg::Level {
            iteration,
            level,
            answer,
            ..
        } => {
            out.u32(iteration).u64(level.to_bits()).u8(u8::from(answer));
        }
        Msg::Up {
            check,
            first,
            second,
            ..
        } => {
            out.u32(check).u64(first.to_bits()).u64(second.to_bits());
        }
        Msg::Down {
            check,
            ideal,
            verdict,
            ..
        } => {
            out.u32(check).u64(ideal.to_bits()).u8(verdict as u8);
        }
    }
    out.into_vec()
}

fn decode(bytes: &[u8]) -> core::result::Result<Msg, WireError> {
    let mut reader = Reader::new(bytes);
    let kind = reader.u8()?;
    let view = View::from_words(reader.u32()?, reader.u32()?);
    let real = |reader: &mut Reader| reader.u64().map(f64::from_bits);
    let msg = match kind {
        0 => Msg::Hello {
            view,
            girth: real(&mut reader)?,
            speed: real(&mut reader)?,
            heard: reader.u8()? != 0,
        },
        1 => Msg::Level {
            view,
            iteration: reader.u32()?,
            level: real(&mut reader)?,
            answer: reader.u8()? != 0,
        },
        2 => Msg::Up {
            view,
            check: reader.u32()?,
            first: real(&mut reader)?,
            second: real(&mut reader)?,
        },
        3 => Msg::Down {
            view,
            check: reader.u32()?,
            ideal: real(&mut reader)?,
            verdict: match reader.u8()? {
                0 => Verdict::Continue,
                1 => Verdict::Open,
                2 => Verdict::Reached,
                3 => Verdict::Spent,
                _ => return Err(WireError::Value("verdict")),
            },
        },
        _ => return Err(WireError::Value("kind of message")),
    };
    reader.finish()?;
    Ok(msg)
}

#[cfg(test)]
mod tests;
