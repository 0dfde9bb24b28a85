//! Processes that leave (speed 0) hand over all they have before the rounds begin, as in
//! the reference ([`outlive_balance::diffusion`]): layer by layer from the border inwards,
//! each task to the staying process that it is tied to most; what is tied to none goes to
//! the next one in number. Unlike there, those that leave do so at once, so a task does
//! not follow one of another process that leaves too.

use std::collections::BTreeMap;

use outlive_base::wire::Writer;
use outlive_base::{Code, Entity, Error, Result};

use crate::tasks::{Local, Task};
use crate::transport::Transport;

/// Which processes stay; at least one.
///
/// # Errors
/// If none does.
pub(crate) fn who_stays(speeds: &[f64]) -> Result<Vec<bool>> {
    let stays: Vec<bool> = speeds.iter().map(|speed| *speed > 0.0).collect();
    match stays.contains(&true) {
        true => Ok(stays),
        false => Err(Error::new(
            Code::InvalidArgument,
            Entity::Call,
            "all processes want to leave",
            "let one stay that takes the tasks",
        )),
    }
}

/// Empties the processes that leave. Collective if there are any.
pub(crate) fn hand_over(net: &mut dyn Transport, local: &mut Local, stays: &[bool]) -> Result<()> {
    if !stays.contains(&false) {
        return Ok(());
    }
    let mut going: Vec<Vec<(u64, Task)>> = vec![Vec::new(); stays.len()];
    if !stays[local.me as usize] {
        for (name, to) in destinations(local, stays) {
            if let Some(task) = local.give(name, to) {
                going[to as usize].push((name, task));
            }
        }
    }
    let write = |tasks: &Vec<(u64, Task)>| match tasks.is_empty() {
        true => Writer::new().into_vec(),
        false => local.write(tasks),
    };
    let coming = net.all_to_all(going.iter().map(write).collect())?;
    for bytes in coming.iter().filter(|bytes| !bytes.is_empty()) {
        local.read(bytes)?;
    }
    local.refresh(net)
}

/// Where each own task goes.
fn destinations(local: &Local, stays: &[bool]) -> BTreeMap<u64, u32> {
    let mut found: BTreeMap<u64, u32> = BTreeMap::new();
    let mut inwards: Vec<u64> = local.own.keys().copied().collect();
    while !inwards.is_empty() {
        let layer: Vec<(u64, u32)> = inwards
            .iter()
            .filter_map(|name| Some((*name, strongest(local, *name, &found, stays)?)))
            .collect();
        if layer.is_empty() {
            let to = next(local.me, stays);
            found.extend(inwards.iter().map(|name| (*name, to)));
            break;
        }
        found.extend(layer);
        inwards.retain(|name| !found.contains_key(name));
    }
    found
}

/// The staying process that most edge weight of a task leads to; the lowest of equals.
fn strongest(local: &Local, name: u64, found: &BTreeMap<u64, u32>, stays: &[bool]) -> Option<u32> {
    let mut ties: BTreeMap<u32, f64> = BTreeMap::new();
    for (other, weight) in &local.own.get(&name)?.edges {
        let process = found.get(other).or_else(|| local.owner.get(other));
        if let Some(process) = process.filter(|process| stays[**process as usize]) {
            *ties.entry(*process).or_default() += weight;
        }
    }
    let best = ties
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    best.map(|tie| tie.0)
}

/// The next staying process in number.
fn next(me: u32, stays: &[bool]) -> u32 {
    let count = stays.len() as u32;
    let after = (1..=count).map(|step| (me + step) % count);
    after
        .into_iter()
        .find(|process| stays[*process as usize])
        .unwrap_or(me)
}
