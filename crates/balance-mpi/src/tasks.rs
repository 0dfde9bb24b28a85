//! What one process knows: its own tasks with their edges, and who owns the tasks
//! at the other ends (ghosts).
//!
//! Invariants: a task is in `own` of exactly one process (tasks are handed over
//! whole, by one message); `owner` holds every task that an own task's edge leads
//! to. Owners of ghosts may be out of date within a sweep; [`Local::refresh`] asks
//! a directory, spread over all processes by task number, for the truth.

use std::collections::BTreeMap;

use outlive_balance::{BalanceError, Graph};
use outlive_base::rng;
use outlive_base::wire::{Reader, WireError, Writer};
use outlive_base::{Code, Entity, Error, Result};

use crate::transport::Transport;

/// A task with what travels with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    /// Its load.
    pub weight: f64,
    /// The process it belonged to when the balancing began.
    pub home: u32,
    /// Where it is, if coordinates are used.
    pub at: Option<[f64; 3]>,
    /// Neighbours by global number, ascending, with edge weights.
    pub edges: Vec<(u64, f64)>,
}

/// The tasks of one process and what it knows of others.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// This process.
    pub me: u32,
    /// Own tasks by global number.
    pub own: BTreeMap<u64, Task>,
    /// The process of every own task's neighbours.
    pub owner: BTreeMap<u64, u32>,
    /// The process of tasks handed over since the last refresh.
    pub given: BTreeMap<u64, u32>,
}

/// A [`Local`] as arrays: numbers are places in `names`, ascending by global
/// number, so that ties break as in a global graph.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Global numbers of own tasks and ghosts.
    pub names: Vec<u64>,
    /// The graph; ghosts have no edges of their own.
    pub graph: Graph,
    /// The process of each.
    pub owner: Vec<u32>,
    /// The home of each; of ghosts their owner.
    pub home: Vec<u32>,
    /// The places of own tasks.
    pub own: Vec<u32>,
}

/// What the directory told.
struct Found {
    /// The process of every ghost; none if nobody has it.
    owners: BTreeMap<u64, Option<u32>>,
    /// A task of this process's part of the directory that two processes have.
    doubled: Option<(u64, (u32, u32))>,
}

impl Local {
    /// The sum of the weights of own tasks, in order of number.
    pub fn load(&self) -> f64 {
        self.own.values().map(|task| task.weight).sum()
    }

    /// Neighbour processes with the edge weight between them and this one.
    pub fn contacts(&self) -> BTreeMap<u32, f64> {
        let mut borders = Vec::new();
        for (name, task) in &self.own {
            for (to, weight) in &task.edges {
                let process = self.owner_of(*to);
                if process != self.me {
                    borders.push((*name.min(to), *name.max(to), process, *weight));
                }
            }
        }
        // In an order that both ends know: the sums must have the same bits.
        borders.sort_by_key(|&(low, high, process, _)| (low, high, process));
        let mut contacts = BTreeMap::new();
        for (_, _, process, weight) in borders {
            *contacts.entry(process).or_insert(0.0) += weight;
        }
        contacts
    }

    fn owner_of(&self, task: u64) -> u32 {
        if self.own.contains_key(&task) {
            return self.me;
        }
        self.owner.get(&task).copied().unwrap_or(self.me)
    }

    /// As arrays.
    ///
    /// # Errors
    /// More tasks than a graph can hold, or weights that are not above zero.
    pub fn arrays(&self) -> core::result::Result<Arrays, BalanceError> {
        let mut names: Vec<u64> = self.own.keys().copied().collect();
        names.extend(
            self.own
                .values()
                .flat_map(|task| task.edges.iter().map(|edge| edge.0)),
        );
        names.sort_unstable();
        names.dedup();
        let (mut offsets, mut to, mut edges) = (vec![0], Vec::new(), Vec::new());
        let (mut weights, mut owner, mut home) = (Vec::new(), Vec::new(), Vec::new());
        let (mut own, mut coordinates) = (Vec::new(), Vec::new());
        for (place, name) in names.iter().enumerate() {
            if let Some(task) = self.own.get(name) {
                for (other, weight) in &task.edges {
                    to.push(names.binary_search(other).unwrap_or(0) as u32);
                    edges.push(*weight);
                }
                own.push(place as u32);
                weights.push(task.weight);
                home.push(task.home);
                coordinates.push(task.at);
                owner.push(self.me);
            } else {
                weights.push(1.0);
                home.push(self.owner_of(*name));
                coordinates.push(Some([0.0; 3]));
                owner.push(self.owner_of(*name));
            }
            offsets.push(to.len());
        }
        let mut graph = Graph::directed(offsets, to, edges, weights)?;
        let coordinates: Option<Vec<[f64; 3]>> = coordinates.into_iter().collect();
        if let Some(coordinates) = coordinates {
            graph = graph.with_coordinates(coordinates)?;
        }
        Ok(Arrays {
            names,
            graph,
            owner,
            home,
            own,
        })
    }

    /// Takes a task out, to hand it over.
    pub fn give(&mut self, name: u64, to: u32) -> Option<Task> {
        let task = self.own.remove(&name)?;
        self.owner.insert(name, to);
        self.given.insert(name, to);
        Some(task)
    }

    /// Writes tasks with the owners of their neighbours.
    pub fn write(&self, tasks: &[(u64, Task)]) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(tasks.len() as u32);
        for (name, task) in tasks {
            out.u64(*name).u64(task.weight.to_bits()).u32(task.home);
            out.u8(u8::from(task.at.is_some()));
            for value in task.at.iter().flatten() {
                out.u64(value.to_bits());
            }
            out.u32(task.edges.len() as u32);
            for (to, weight) in &task.edges {
                out.u64(*to).u64(weight.to_bits()).u32(self.owner_of(*to));
            }
        }
        out.into_vec()
    }

    /// Takes tasks in that [`Local::write`] wrote elsewhere; returns how many.
    ///
    /// # Errors
    /// Bytes that are no such list.
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize> {
        self.read_inner(bytes).map_err(damaged)
    }

    fn read_inner(&mut self, bytes: &[u8]) -> core::result::Result<usize, WireError> {
        let mut reader = Reader::new(bytes);
        let count = reader.count(25)?;
        for _ in 0..count {
            let name = reader.u64()?;
            let weight = f64::from_bits(reader.u64()?);
            let home = reader.u32()?;
            let at = match reader.u8()? {
                0 => None,
                _ => Some([reader.u64()?, reader.u64()?, reader.u64()?].map(f64::from_bits)),
            };
            let mut edges = Vec::new();
            for _ in 0..reader.count(20)? {
                let to = reader.u64()?;
                edges.push((to, f64::from_bits(reader.u64()?)));
                let process = reader.u32()?;
                if !self.own.contains_key(&to) && !self.owner.contains_key(&to) {
                    self.owner.insert(to, process);
                }
            }
            self.own.insert(
                name,
                Task {
                    weight,
                    home,
                    at,
                    edges,
                },
            );
            self.given.remove(&name);
        }
        reader.finish()?;
        Ok(count)
    }

    /// Learns the owners of all ghosts from the directory. Collective.
    ///
    /// # Errors
    /// The transport's; an edge to a task that no process has; a task that two have.
    pub fn refresh(&mut self, net: &mut dyn Transport) -> Result<()> {
        let found = self.look_up(net)?;
        self.owner.clear();
        self.given.clear();
        let refuse = |rank: u32, reason: String, remedy: &str| {
            Error::new(Code::InvalidArgument, Entity::Rank(rank), reason, remedy)
        };
        let mut fault = found.doubled.map(|(name, ranks)| {
            let reason = format!("it has task {name}, and so has rank {}", ranks.0);
            refuse(ranks.1, reason, "number each object once over all ranks")
        });
        for (name, process) in found.owners {
            match process {
                Some(process) => {
                    self.owner.insert(name, process);
                }
                None => {
                    let reason = format!("an edge leads to task {name}, which no process has");
                    let remedy = "list edges between existing tasks only";
                    fault = fault.or(Some(refuse(self.me, reason, remedy)));
                }
            }
        }
        together(net, fault)
    }

    /// Drops the edges to tasks that no process has: they went with a process that
    /// failed. Collective.
    ///
    /// # Errors
    /// The transport's.
    pub fn drop_lost(&mut self, net: &mut dyn Transport) -> Result<()> {
        let owners = self.look_up(net)?.owners;
        let lost = |name: &u64| owners.get(name).is_some_and(Option::is_none);
        for task in self.own.values_mut() {
            task.edges.retain(|edge| !lost(&edge.0));
        }
        Ok(())
    }

    /// The process of every ghost, as the directory knows it. Collective.
    fn look_up(&self, net: &mut dyn Transport) -> Result<Found> {
        let size = net.size();
        let at = |name: u64| rng::below(rng::draw(7, name, 0), u64::from(size)) as usize;
        let mut told: Vec<Writer> = (0..size).map(|_| Writer::new()).collect();
        for name in self.own.keys() {
            told[at(*name)].u64(*name);
        }
        let told = net.all_to_all(told.into_iter().map(Writer::into_vec).collect())?;
        let mut directory = BTreeMap::new();
        let mut doubled = None;
        for (process, bytes) in told.iter().enumerate() {
            for name in bytes.chunks_exact(8).map(word) {
                if let Some(first) = directory.insert(name, process as u32) {
                    doubled = doubled.or(Some((name, (first, process as u32))));
                }
            }
        }
        let ends = self
            .own
            .values()
            .flat_map(|task| task.edges.iter().map(|edge| edge.0));
        let mut ghosts: Vec<u64> = ends.filter(|end| !self.own.contains_key(end)).collect();
        ghosts.sort_unstable();
        ghosts.dedup();
        let mut asked: Vec<Writer> = (0..size).map(|_| Writer::new()).collect();
        for name in &ghosts {
            asked[at(*name)].u64(*name);
        }
        let asked = net.all_to_all(asked.into_iter().map(Writer::into_vec).collect())?;
        let answer = |bytes: &Vec<u8>| {
            let mut out = Writer::new();
            for name in bytes.chunks_exact(8) {
                out.u32(directory.get(&word(name)).copied().unwrap_or(u32::MAX));
            }
            out.into_vec()
        };
        let answers = net.all_to_all(asked.iter().map(answer).collect())?;
        let mut next = vec![0usize; size as usize];
        let mut owners = BTreeMap::new();
        for name in ghosts {
            let place = at(name);
            let four = answers[place].chunks_exact(4).nth(next[place]);
            next[place] += 1;
            let process = four.map(|four| word(four) as u32);
            owners.insert(name, process.filter(|&process| process < size));
        }
        Ok(Found { owners, doubled })
    }

    /// What is wrong with what the caller gave, as far as this process alone can tell.
    pub(crate) fn fault(&self, speed: f64, background: f64) -> Option<Error> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let numbers = "give finite weights above zero";
        let refuse = |reason: String, remedy: &str| {
            let entity = Entity::Rank(self.me);
            Some(Error::new(Code::InvalidArgument, entity, reason, remedy))
        };
        if !(speed.is_finite() && speed >= 0.0) {
            let remedy = "give a finite speed above zero, or 0 to leave";
            return refuse(format!("its speed is {speed}"), remedy);
        }
        if !(background.is_finite() && background >= 0.0) {
            let remedy = "give a finite load, 0 if there is none";
            return refuse(format!("its background load is {background}"), remedy);
        }
        for (name, task) in &self.own {
            if !positive(task.weight) {
                return refuse(format!("task {name} has weight {}", task.weight), numbers);
            }
            if let Some(value) = task.at.iter().flatten().find(|value| !value.is_finite()) {
                let remedy = "give finite coordinates, or none";
                return refuse(format!("task {name} has a coordinate of {value}"), remedy);
            }
            if let Some((to, weight)) = task.edges.iter().find(|edge| !positive(edge.1)) {
                let what = format!("the edge from task {name} to task {to} has weight {weight}");
                return refuse(what, numbers);
            }
            if task.edges.iter().any(|edge| edge.0 == *name) {
                let remedy = "drop the loop: a task talks to itself for free";
                return refuse(format!("task {name} is its own neighbour"), remedy);
            }
            if let Some(two) = task.edges.windows(2).find(|two| two[0].0 >= two[1].0) {
                let what = format!("task {name} lists its neighbour {} twice", two[1].0);
                return refuse(what, "merge the two entries into one weight");
            }
        }
        None
    }

    /// A number that changes if a task of all processes is lost, doubled or another:
    /// the sum of the hashes of the own ones, to be added to those of the others. Of 52
    /// bits, which a double holds.
    pub(crate) fn digest(&self) -> u64 {
        let hash = |(name, task): (&u64, &Task)| rng::draw(9, *name, task.weight.to_bits());
        let sum = self.own.iter().map(hash).fold(0, u64::wrapping_add);
        sum & DIGEST_MASK
    }

    /// Checks that both ends of every border list the same edges. Collective.
    ///
    /// # Errors
    /// An edge that only one end lists, or with another weight.
    pub fn check_borders(&self, net: &mut dyn Transport) -> Result<()> {
        // A sum of hashes of the edges that leave to each process; equal from both
        // sides unless an edge is missing or differs.
        let mut sums = vec![0u64; net.size() as usize];
        let mut within = true;
        for (name, task) in &self.own {
            for (to, weight) in &task.edges {
                let edge = rng::draw(weight.to_bits(), *name.min(to), *name.max(to));
                match self.own.get(to) {
                    Some(near) => within &= near.edges.contains(&(*name, *weight)),
                    None => {
                        let process = self.owner_of(*to) as usize;
                        sums[process] = sums[process].wrapping_add(edge);
                    }
                }
            }
        }
        let told = net.all_to_all(sums.iter().map(|sum| sum.to_le_bytes().to_vec()).collect())?;
        let same = sums
            .iter()
            .zip(&told)
            .all(|(sum, bytes)| *sum == word(bytes));
        let found = (!within || !same).then(|| {
            Error::new(
                Code::InvalidArgument,
                Entity::Rank(self.me),
                "an edge is listed at one end only, or with two weights",
                "list each edge at both ends with the same weight",
            )
        });
        together(net, found)
    }
}

/// The bits of a digest: as many as a double holds.
pub(crate) const DIGEST_MASK: u64 = (1 << 52) - 1;

/// Collective: an error on one process is an error on all.
pub(crate) fn together(net: &mut dyn Transport, found: Option<Error>) -> Result<()> {
    alike(net, found, 0)
}

/// Collective: an error on one process is an error on all, and so is it if one gives
/// another `digest` (at most [`DIGEST_MASK`]) of what all must give alike.
pub(crate) fn alike(net: &mut dyn Transport, found: Option<Error>, digest: u64) -> Result<()> {
    let own = match found {
        None => digest as f64,
        Some(_) => -1.0,
    };
    let all = net.all_gather(own)?;
    if let Some(error) = found {
        return Err(error);
    }
    let refuse = |rank: usize, reason: &str, remedy: &str| {
        let entity = Entity::Rank(rank as u32);
        Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
    };
    if let Some(rank) = all.iter().position(|&said| said < 0.0) {
        let reason = "its part of the task graph was refused";
        return refuse(rank, reason, "see the error of that rank");
    }
    match all.iter().position(|&said| said != all[0]) {
        None => Ok(()),
        Some(rank) => {
            let reason = "it gave other options than rank 0";
            refuse(
                rank,
                reason,
                "give all ranks the same options and the same seed",
            )
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// A message of a neighbour that cannot be understood.
pub(crate) fn damaged(error: WireError) -> Error {
    Error::new(
        Code::Corrupt,
        Entity::Call,
        format!("a neighbour's message {error}"),
        "run one version of the library on all processes",
    )
}
