//! The kill matrix: what is struck x when x how x which protection. What is survivable is written
//! down here, from what the levels promise, and not asked of the code. Each survivable cell goes on
//! with what was stable, each other one either does or is refused with a node that is gone; none
//! ends with other bytes or waits for ever. The nodes and the supervisor are those that run.
//!
//! `OUTLIVE_MATRIX=3` takes every cell three times; else some of them are taken once.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::rng::Sequence;
use outlive_base::{Level, Levels};
use outlive_control::node::Planted;
use outlive_simulator::job::{AfterStrike, Blow, Key, Stage, Strike, Victim, strike, strike_told};

const NODES: u32 = 10;
/// One of so many cells is taken where not all are asked for.
const SAMPLE: u64 = 8;
/// A cell to which the job has not come is tried with another seed, so often at most.
const TRIES: u64 = 4;

type Nodes = BTreeSet<u32>;

/// Each kind of protection alone, and two sets.
const PROTECTIONS: [&[&str]; 9] = [
    &["memory"],
    &["disk"],
    &["partner"],
    &["xor:5"],
    &["rs:3+2"],
    &["memory-server:5"],
    &["shared"],
    &["memory", "disk", "partner"],
    &["memory", "disk", "rs:3+2", "shared"],
];

/// The kinds of victims, as the rows of the table are called.
const VICTIMS: [&str; 10] = [
    "rank",
    "agent",
    "keeper",
    "node",
    "node + partner",
    "two of a group",
    "m of a group",
    "m + 1 of a group",
    "memory server",
    "launcher",
];

fn levels(names: &[&str]) -> Levels {
    let parsed = names.iter().map(|name| name.parse::<Level>());
    parsed.map(|level| level.expect("a level")).collect()
}

/// Members of each group of a level, and how many of them it can lose.
fn group(level: Level) -> Option<(u32, u32)> {
    let number = |text: &str| text.parse::<u32>().expect("a number");
    match level.name().split_once(':')? {
        ("rs", numbers) => {
            let (k, m) = numbers.split_once('+').expect("two numbers");
            Some((number(k) + number(m), number(m)))
        }
        (_, members) => Some((number(members), 1)),
    }
}

/// So many nodes of one group: groups take every so-many-th node.
fn members(count: u32, members: u32, random: &mut Sequence) -> Nodes {
    let groups = NODES / members;
    let (at, first) = (random.below(groups.into()) as u32, random.below(5) as u32);
    let nth = |nth: u32| (first + nth) % members * groups + at;
    (0..count).map(nth).collect()
}

/// The victim of a row at a protection; `None`: there is none.
fn victim(row: &str, levels: Levels, random: &mut Sequence) -> Option<Victim> {
    let node = random.below(NODES.into()) as u32;
    let groups = || levels.iter().filter_map(group);
    let several = |count: u32, of: u32, random: &mut Sequence| {
        Some(Victim::Nodes(members(count, of, random)))
    };
    match row {
        "rank" => Some(Victim::Rank),
        "agent" => Some(Victim::Agent(node)),
        "keeper" => Some(Victim::Keeper(node)),
        "node" => Some(Victim::Nodes([node].into())),
        "node + partner" => Some(Victim::Nodes([node, (node + 1) % NODES].into())),
        "two of a group" => {
            let (of, _) = groups().find(|(_, m)| *m == 1)?;
            several(2, of, random)
        }
        "m of a group" => {
            let (of, m) = groups().find(|(_, m)| *m > 1)?;
            several(m, of, random)
        }
        "m + 1 of a group" => {
            let (of, m) = groups().find(|(_, m)| *m > 1)?;
            several(m + 1, of, random)
        }
        "memory server" => {
            let is_served = |level: Level| level.name().starts_with("memory-server");
            levels.iter().any(is_served).then_some(Victim::Server)
        }
        _ => Some(Victim::Launcher),
    }
}

/// True if a job of these levels comes to the stage.
fn has(levels: Levels, stage: Stage) -> bool {
    let beyond = levels.iter().any(|level| level != Level::MEMORY);
    let again = |level: Level| level == Level::PARTNER || group(level).is_some();
    match stage {
        // With the keeper all that is in memory is gone, and nothing is rebuilt.
        Stage::Redundancy | Stage::Rebuild | Stage::Collection => beyond,
        // Where the storage of a node is gone that was part of it.
        Stage::ReProtection => levels.iter().any(again),
        _ => true,
    }
}

/// All that a cell is: the protection, the row, the stage and the blow.
type Cell = (usize, &'static str, Stage, Blow);

fn cells(seed: u64) -> Vec<Cell> {
    let mut all = Vec::new();
    let mut random = Sequence::new(seed, 0);
    for (at, names) in PROTECTIONS.into_iter().enumerate() {
        let levels = levels(names);
        let rows = VICTIMS.into_iter();
        let rows: Vec<_> = rows
            .filter(|row| victim(row, levels, &mut random).is_some())
            .collect();
        for row in rows {
            for stage in Stage::ALL.into_iter().filter(|stage| has(levels, *stage)) {
                for blow in [Blow::Kill, Blow::Freeze, Blow::Partition] {
                    // A process that talks to its own node alone cannot be cut off.
                    let alone = matches!(row, "rank" | "keeper");
                    if blow != Blow::Partition || !alone {
                        all.push((at, row, stage, blow));
                    }
                }
            }
        }
    }
    all
}

/// What is gone for good.
#[derive(Default, Debug)]
struct Gone {
    /// Nodes whose memory is.
    memory: Nodes,
    /// Nodes whose storage is.
    storage: Nodes,
    /// What the memory server had.
    server: bool,
}

fn gone(strike: &Strike, found: &AfterStrike) -> Gone {
    let mut gone = Gone::default();
    if let Some((node, wiped)) = found.first {
        gone.memory.insert(node);
        gone.storage.extend(wiped.then_some(node));
    }
    match (&strike.victim, strike.blow) {
        (Victim::Keeper(node), Blow::Kill) => {
            gone.memory.insert(*node);
        }
        // One that stands still is missed, and replaced.
        (Victim::Nodes(nodes), Blow::Kill | Blow::Freeze) => {
            gone.memory.extend(nodes);
            gone.storage.extend(nodes);
        }
        // An opening that waits for one that is cut off gives it up; its storage stays.
        (Victim::Nodes(nodes), Blow::Partition) => gone.memory.extend(nodes),
        // Whoever cannot reach it does not wait for it for long.
        (Victim::Server, Blow::Kill | Blow::Partition) => gone.server = true,
        (Victim::Launcher, Blow::Kill) => gone.memory.extend(0..NODES),
        // For less long than anybody misses it, or by nobody who would give it up.
        _ => {}
    }
    gone
}

/// Whether a version that was stable at this level is whole.
fn survives(level: Level, gone: &Gone) -> bool {
    let lost = &gone.storage;
    let of_groups = |(members, tolerated): (u32, u32)| {
        let groups = NODES / members;
        let gone = |group| lost.iter().filter(|node| *node % groups == group).count();
        (0..groups).all(|group| gone(group) as u32 <= tolerated)
    };
    match group(level) {
        Some(_) if gone.server && level.name().starts_with("memory-server") => lost.is_empty(),
        Some(group) => of_groups(group),
        None if level == Level::MEMORY => gone.memory.is_empty(),
        None if level == Level::DISK => lost.is_empty(),
        None if level == Level::PARTNER => lost
            .iter()
            .all(|node| !lost.contains(&((node + 1) % NODES))),
        None => true,
    }
}

/// How many nodes a level promises to lose, whichever they are.
fn promised(level: Level) -> usize {
    match group(level) {
        Some((_, tolerated)) => tolerated as usize,
        None if level == Level::PARTNER => 1,
        None if level == Level::SHARED => NODES as usize,
        None => 0,
    }
}

/// How much a level survives in the worst case: what may take whose place.
fn strength(level: Level) -> usize {
    promised(level) + usize::from(level != Level::MEMORY)
}

/// The newest version that must be restored: stable at a level that survives, and not replaced by a
/// newer one at a level that promises as much.
fn must(found: &AfterStrike, gone: &Gone) -> Option<Key> {
    let newer = |key: Key, level: Level| {
        let better = |(other, at): &&(Key, Level)| *other > key && strength(*at) >= strength(level);
        found.stable.iter().any(|it| better(&it))
    };
    // Of more nodes than a level promises to lose the bytes may be left by luck, and not what was
    // decided of them.
    let is_known =
        |it: &&(Key, Level)| gone.storage.len() <= promised(it.1) || found.recorded.contains(*it);
    let kept = found.stable.iter().filter(is_known);
    let kept = kept.filter(|(key, level)| survives(*level, gone) && !newer(*key, *level));
    kept.map(|(key, _)| *key).max()
}

/// The numbers behind each "node " of a text.
fn nodes_named(text: &str) -> Nodes {
    let words = text.split("node ").skip(1);
    let number = |word: &str| {
        let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    words.filter_map(number).collect()
}

/// What is wrong with what came of a strike; `None`: nothing.
fn wrong(found: &AfterStrike, strike: &Strike) -> Option<String> {
    if let Some(first) = found.violations.first() {
        return Some(first.clone());
    }
    if !found.came {
        return None;
    }
    let gone = gone(strike, found);
    let must = must(found, &gone);
    if let Some(reason) = &found.refused {
        if must.is_some() {
            return Some(format!("{must:?} was to be restored, not: {reason}"));
        }
        let named = nodes_named(reason);
        let all: Nodes = gone.memory.union(&gone.storage).copied().collect();
        let true_cause = !named.is_empty() && named.is_subset(&all);
        return (!true_cause).then(|| format!("not the cause: {reason}"));
    }
    // Without an opening nothing was lost, and the job has come forward.
    let behind = found.opened && found.restored < must;
    behind.then(|| format!("{must:?} was to be restored, not {:?}", found.restored))
}

fn strike_of(cell: &Cell, seed: u64, planted: Option<Planted>) -> Strike {
    let (at, row, stage, blow) = *cell;
    let levels = levels(PROTECTIONS[at]);
    let mut random = Sequence::new(seed, 0x6d61_7472);
    Strike {
        nodes: NODES,
        levels,
        victim: victim(row, levels, &mut random).expect("a victim"),
        stage,
        blow,
        planted,
    }
}

/// What came of the cells that were taken.
#[derive(Default)]
struct Told {
    taken: usize,
    refused: usize,
    opened: usize,
    /// Cells to which no job has come, by protection, row and stage.
    missed: BTreeMap<String, usize>,
}

impl Told {
    fn add(&mut self, other: Told) {
        self.taken += other.taken;
        self.refused += other.refused;
        self.opened += other.opened;
        for (name, count) in other.missed {
            *self.missed.entry(name).or_default() += count;
        }
    }
}

fn take(cell: &Cell, seed: u64, told: &mut Told) {
    told.taken += 1;
    for seed in seed..seed + TRIES {
        let strike_there = strike_of(cell, seed, None);
        let found = strike(seed, &strike_there);
        if let Some(wrong) = wrong(&found, &strike_there) {
            let (_, lines) = strike_told(seed, &strike_there, true);
            let last = lines.len().saturating_sub(200);
            let lines = lines[last..].join("\n");
            panic!("{lines}\n{wrong}, seed {seed}: {strike_there:?}: {found:?}");
        }
        if found.came {
            told.refused += usize::from(found.refused.is_some());
            told.opened += usize::from(found.opened);
            return;
        }
    }
    let (at, row, stage, _) = cell;
    let name = format!("{:?}, {row}, {stage:?}", PROTECTIONS[*at]);
    *told.missed.entry(name).or_default() += 1;
}

#[test]
fn each_cell_ends_with_the_right_bytes_or_its_cause() {
    let first = outlive_base::seed!();
    let mut random = Sequence::new(first, 0x6d74_7278);
    let rounds: Option<usize> = std::env::var("OUTLIVE_MATRIX")
        .ok()
        .map(|it| it.parse().expect("OUTLIVE_MATRIX is a number"));
    let all = cells(first);
    let cells: Vec<Cell> = match rounds {
        Some(rounds) => std::iter::repeat_n(all, rounds).flatten().collect(),
        None => {
            let some = |_: &Cell| random.below(SAMPLE) == 0;
            all.into_iter().filter(some).collect()
        }
    };
    let threads = 2;
    let told = std::thread::scope(|scope| {
        let cells = &cells;
        let one = move |thread: usize| {
            let mut told = Told::default();
            for (nth, cell) in cells.iter().enumerate().skip(thread).step_by(threads) {
                take(cell, first + nth as u64 * TRIES, &mut told);
            }
            told
        };
        let running: Vec<_> = (0..threads)
            .map(|at| scope.spawn(move || one(at)))
            .collect();
        let mut told = Told::default();
        for it in running {
            match it.join() {
                Ok(other) => told.add(other),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        told
    });
    println!(
        "{} cells, {} opened anew, {} refused, {:?} not come to",
        told.taken, told.opened, told.refused, told.missed
    );
    let missed: usize = told.missed.values().sum();
    assert!(missed * 20 <= told.taken, "{:?}", told.missed);
    assert!(told.refused * 50 > told.taken, "{} refused", told.refused);
    // Two of five, of all. A sample has less than a third of its cells once in 25 times.
    let share = if rounds.is_some() { 3 } else { 5 };
    assert!(told.opened * share > told.taken, "{} opened", told.opened);
}

/// Nodes that think that no group survives the loss of two members.
#[test]
fn planted_tolerance_of_one_lost_member_is_caught() {
    let first = outlive_base::seed!();
    let cell = |stage| (4, "m of a group", stage, Blow::Kill);
    let caught = |stage: Stage| {
        let tries = first..first + 5;
        tries.into_iter().any(|seed| {
            let strike_there = strike_of(&cell(stage), seed, Some(Planted::TolerateOneLost));
            wrong(&strike(seed, &strike_there), &strike_there).is_some()
        })
    };
    assert!(caught(Stage::Stable) && caught(Stage::Collection));
}
