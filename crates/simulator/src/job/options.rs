//! The options of a history. All are drawn from the seed, so a seed is a history;
//! all are printed with a failure.

use outlive_base::rng::Sequence;
use outlive_base::{Level, Time};
use outlive_control::node;
use outlive_control::slots::Slots;
use outlive_control::standstill::HangRule;
use outlive_control::supervisor;
use outlive_protocols::commit::{Config, Levels, Planted};

use super::health::Unwell;
use super::launcher;
use super::meetings::Meetings;
use crate::network::LossyOptions;
use crate::world::Faults;

/// What may go wrong in a history, and how large it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, 2 to 9.
    pub nodes: u32,
    /// Which of them is the coordinator; one that has ranks.
    pub coordinator: u32,
    /// Ranks of a node.
    pub ranks: u32,
    /// So many nodes, the last ones, have none.
    pub bare: u32,
    /// The failure domain of each node; empty: each is its own.
    pub domains: Vec<u32>,
    /// Levels in use.
    pub levels: Levels,
    /// Nodes that take turns at a node's second copies.
    pub partners: u32,
    /// The network while there are faults.
    pub net: LossyOptions,
    /// Processes and record disks while there are faults.
    pub faults: Faults,
    /// Containers whose write is torn without an error, per million.
    pub torn: u32,
    /// A copy is read again after so long; `None`: never.
    pub scrub: Option<Time>,
    /// Copies at `shared` are made of containers in node storage.
    pub from_disk: bool,
    /// Such a copy takes so many steps longer at most.
    pub transfer_steps: u32,
    /// And comes no further for longer than anybody waits, per million.
    pub transfer_hangs: u32,
    /// Acts of storage that take up to seconds longer, per million.
    pub slow: u32,
    /// How often, per million, what usually takes a moment takes up to thirty times as long, 0.6 s at
    /// most: captures, answers, rebuilding, restores, removals, removals of processes.
    pub stretch: u32,
    /// To write a copy takes up to so much longer, amid the faults and after them: ranks may fail,
    /// or the job may end, meanwhile.
    pub lasts: (Time, Time),
    /// All levels but the weakest are taken with each so many-th version at least.
    pub sparse: u64,
    /// Words of agents to the launcher at which their connection breaks, per million.
    pub breaks: u32,
    /// Weights of the faults that are drawn at each tick.
    pub weights: Weights,
    /// What ends while something else is under way. Never drawn from a seed.
    pub meetings: Meetings,
    /// Mean time between two drawn faults.
    pub tick: Time,
    /// Faults end here; then the job must make progress again.
    pub heal: Time,
    /// The history ends here.
    pub end: Time,
    /// The programs of a job come to their last version: long after the faults, or amid them.
    pub last: Time,
    /// Agents that end shortly before the job, which is otherwise without faults by then.
    pub late_restarts: u32,
    /// So many versions before the others one rank leaves the job; 0: with them.
    pub early: u64,
    /// Time of a rank's step, at most.
    pub step_max: Time,
    /// The ranks offer each version that is a multiple of this.
    pub stride: u64,
    /// The program forces each so many-th version that it offers; 0: only now and then.
    pub forces: u64,
    /// All levels take part at the pace of one simple policy.
    pub steady: bool,
    /// Nothing fails, all ranks offer the same versions, and none takes so long that a bound
    /// passes: the judge wants each version taken that the program forces.
    pub peace: bool,
    /// Writes to shared storage that appear there after their process has ended, per million.
    pub late: u32,
    /// Versions for which ranks wait once they have captured them, per million.
    pub waits: u32,
    /// Starts of a launcher that finds the job's file gone, or an older one, per million. Never drawn
    /// from a seed.
    pub forgets: u32,
    /// The bound on a commit: shorter than any history, unless a test wants to see who relies
    /// on it.
    pub commit_ms: u64,
    /// A planted protocol fault.
    pub planted: Option<Planted>,
    /// A fault planted in the nodes.
    pub planted_node: Option<node::Planted>,
    /// A fault planted in the supervisor.
    pub planted_supervisor: Option<supervisor::Planted>,
    /// When the job is said to stand still, and what follows; `None`: as by default.
    pub hang: Option<HangRule>,
    /// What a node's sensors say for a while; `None`: all is well.
    pub unwell: Option<Unwell>,
    /// When nodes do what need not be done at once.
    pub slots: Slots,
}

/// Relative weights of faults.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// An agent ends; its keeper starts another.
    pub agent: u32,
    /// A node is lost with everything on it.
    pub node: u32,
    /// A rank ends.
    pub rank: u32,
    /// Some nodes are cut off for a while.
    pub partition: u32,
    /// An agent is frozen for a while.
    pub pause: u32,
    /// A stored record or container is damaged.
    pub damage: u32,
    /// A frozen node is replaced without being killed.
    pub zombie: u32,
    /// All nodes are lost at once, or their storage is purged. Never drawn from a seed.
    pub all: u32,
    /// The launcher ends, and with it all that runs; the next one goes on.
    pub launcher: u32,
    /// As many nodes are lost at once as parities tolerate.
    pub several: u32,
    /// A second process takes itself for a rank that lives.
    pub twin: u32,
    /// All nodes of a failure domain are lost at once.
    pub domain: u32,
    /// The shared directory is full, or out of reach, for a while.
    pub shared: u32,
    /// The memory server is started anew, empty, or is out of reach for a while.
    pub server: u32,
    /// A capture in a node's memory is overwritten, of a version that lies elsewhere too. Never
    /// drawn from a seed.
    pub memory: u32,
    /// So many injections are asked for in each run of the launcher; not drawn at ticks, they have
    /// times of their own.
    pub injection: u32,
}

impl Options {
    /// No node is lost or cut off, and nothing is refused or slow: what ends is a process, which is
    /// started anew, and what is lost was overwritten in memory.
    pub(super) fn keeps_nodes(&self) -> bool {
        let (memory, rank, all) = (self.weights.memory, self.weights.rank, self.weights.sum());
        let overwrites = memory > 0 && all == memory;
        // Of the theme alone: elsewhere the network may be as bad as a node that is lost.
        let begins = self.meetings.begins > 0 && all == rank;
        (overwrites || begins) && self.meetings.node == 0
    }
}

impl Weights {
    /// All of them, in the order of the fields.
    fn each(&self) -> [u32; 15] {
        let Weights {
            agent,
            node,
            rank,
            partition,
            pause,
            damage,
            zombie,
            all,
            launcher,
            several,
            twin,
            domain,
            shared,
            server,
            memory,
            injection: _,
        } = *self;
        [
            agent, node, rank, partition, pause, damage, zombie, all, launcher, several, twin,
            domain, shared, server, memory,
        ]
    }

    /// 0: none is drawn.
    pub(super) fn sum(&self) -> u32 {
        self.each().iter().sum()
    }

    /// One of the faults, by weight: its position in the list of fields.
    pub fn draw(&self, random: &mut Sequence) -> Option<usize> {
        let mut at = random.below(u64::from(self.sum()));
        for (index, weight) in self.each().into_iter().enumerate() {
            if at < u64::from(weight) {
                return Some(index);
            }
            at -= u64::from(weight);
        }
        None
    }
}

/// In three fifths of the histories something, at most so much of it.
fn some(random: &mut Sequence, most: u64) -> u32 {
    let on = random.chance(600_000);
    let value = random.below(most) as u32 + 1;
    if on { value } else { 0 }
}

/// In half of the histories any of the nodes that have ranks, else the one that `outlive run`
/// takes.
fn coordinator(seed: u64, nodes: u32) -> u32 {
    let mut random = Sequence::new(seed, 0x6c65_6164);
    match random.chance(500_000) {
        true => random.below(u64::from(nodes)) as u32,
        false => 0,
    }
}

/// In a quarter of the histories some nodes have no rank.
fn bare(seed: u64, nodes: u32) -> u32 {
    let mut random = Sequence::new(seed, 0x6261_7265);
    match random.chance(250_000) {
        true => 1 + random.below(u64::from(nodes - 1)) as u32,
        false => 0,
    }
}

/// A third of the jobs that have nodes enough keep parities, half of these no second copies.
fn with_parities(seed: u64, nodes: u32, mut levels: Levels, weights: &mut Weights) -> Levels {
    let mut xor = Sequence::new(seed, 0x786f_7221);
    if nodes >= 3 && xor.chance(330_000) {
        let members = 3 + xor.below(u64::from(nodes - 2)) as u16;
        levels = Level::xor(members).map_or(levels, |level| levels.with(level));
        if xor.chance(500_000) {
            levels = levels.without(Level::PARTNER);
        }
    }
    // As many keep parities of which several members may be lost, some of them besides.
    let mut several = Sequence::new(seed, 0x7273_2b21);
    if nodes >= 4 && several.chance(330_000) {
        let lost = 2 + several.below(u64::from(nodes - 3).min(3)) as u16;
        let data = 2 + several.below(u64::from(nodes - 1) - u64::from(lost)) as u16;
        levels = Level::rs(data, lost).map_or(levels, |level| levels.with(level));
        if several.chance(500_000) {
            levels = levels.without(Level::PARTNER);
        }
        weights.several = several.below(4) as u32;
    }
    with_server(seed, nodes, levels, weights)
}

/// A sixth of the jobs that have nodes enough keep parities in a memory server, which fails. In
/// these nothing stands still: a node that was replaced while it did may open late what it had
/// begun, with the parities of before, and the judge would see little else.
fn with_server(seed: u64, nodes: u32, levels: Levels, weights: &mut Weights) -> Levels {
    let mut random = Sequence::new(seed, 0x7365_7276);
    if nodes < 3 || !random.chance(200_000) {
        return levels;
    }
    let members = 3 + random.below(u64::from(nodes - 2)) as u16;
    (weights.pause, weights.zombie, weights.partition) = (0, 0, 0);
    weights.server = 1 + random.below(3) as u32;
    Level::memory_server(members).map_or(levels, |level| levels.with(level))
}

/// In a third of the histories nodes share failure domains, as far as the levels allow.
fn domains(seed: u64, nodes: u32, levels: Levels) -> Vec<u32> {
    let mut random = Sequence::new(seed, 0x646f_6d61);
    if nodes < 3 || !random.chance(330_000) {
        return Vec::new();
    }
    let count = 2 + random.below(u64::from(nodes - 2)) as u32;
    let way = random.below(3);
    let mut domain = |node: u32| match way {
        0 => node % count,
        1 => node * count / nodes,
        _ => random.below(u64::from(count)) as u32,
    };
    let domains: Vec<u32> = (0..nodes).map(&mut domain).collect();
    let one = domains.iter().all(|domain| *domain == domains[0]);
    let laid = |level: Level| outlive_ledger::scheme::groups(level, &domains).is_ok();
    match !one && levels.iter().all(laid) {
        true => domains,
        false => Vec::new(),
    }
}

/// What goes wrong by chance, and how often.
fn weights(random: &mut Sequence, seed: u64) -> Weights {
    Weights {
        agent: some(random, 10),
        node: some(random, 6),
        rank: some(random, 5),
        partition: some(random, 5),
        pause: some(random, 5),
        damage: some(random, 3),
        zombie: some(random, 4),
        all: 0,
        launcher: Sequence::new(seed, 0x6c61_756e).chance(300_000).into(),
        several: 0,
        twin: 2 * u32::from(Sequence::new(seed, 0x7477_696e).chance(200_000)),
        domain: 0,
        shared: 0,
        server: 0,
        memory: 0,
        injection: injections(seed),
    }
}

/// In a fifth of the histories what usually takes a moment takes long now and then.
fn stretch(seed: u64) -> u32 {
    let mut random = Sequence::new(seed, 0x7374_7265);
    match random.chance(200_000) {
        true => 1_000 + some(&mut random, 20_000),
        false => 0,
    }
}

/// In a sixth of the histories one rank leaves the job before the others.
fn early(seed: u64) -> u64 {
    let mut random = Sequence::new(seed, 0x6561_726c);
    match random.chance(170_000) {
        true => 1 + random.below(6),
        false => 0,
    }
}

/// In a quarter of the histories storage is slow now and then.
fn slow(seed: u64) -> u32 {
    let mut random = Sequence::new(seed, 0x736c_6f77);
    match random.chance(250_000) {
        true => 1 + random.below(500_000) as u32,
        false => 0,
    }
}

/// In two thirds of the histories copies are read before they are needed, some of them all the time.
fn scrub(seed: u64) -> Option<Time> {
    let mut random = Sequence::new(seed, 0x7363_7275);
    let on = random.chance(660_000);
    on.then(|| Time::from_ms(50 + random.below(3_000)))
}

/// In a third of the histories ranks wait for some of their versions.
fn waits(seed: u64) -> u32 {
    let mut random = Sequence::new(seed, 0x7761_6974);
    match random.chance(330_000) {
        true => 1 + random.below(500_000) as u32,
        false => 0,
    }
}

/// In a third of the histories the user asks for faults as well.
fn injections(seed: u64) -> u32 {
    let mut random = Sequence::new(seed, 0x696e_6a65);
    match random.chance(330_000) {
        true => 1 + random.below(5) as u32,
        false => 0,
    }
}

impl Options {
    /// Ranks of the job.
    pub fn ranks_total(&self) -> u32 {
        match self.bare {
            0 => self.nodes * self.ranks,
            bare => self.nodes - bare,
        }
    }

    /// The options of a seed.
    pub fn from_seed(seed: u64) -> Options {
        let mut random = Sequence::new(seed, 0x6f70_7473);
        let mut levels = Levels::of(&[Level::MEMORY, Level::DISK, Level::PARTNER]);
        if random.chance(300_000) {
            levels = levels.with(Level::SHARED);
        }
        let net = LossyOptions {
            loss: some(&mut random, 100_000),
            duplicate: some(&mut random, 100_000),
            delay_min: Time(50_000),
            delay_max: Time(100_000 + random.below(5_000_000)),
            straggle: some(&mut random, 20_000),
            straggle_max: Time::from_ms(1500),
        };
        let faults = Faults {
            crash: some(&mut random, 1_500),
            refuse: some(&mut random, 20_000),
            sync_max: Time(100_000 + random.below(8_000_000)),
        };
        let mut weights = weights(&mut random, seed);
        // Of its own sequence, so that the rest of a seed's history stays as it was.
        let mut sparse = Sequence::new(seed, 0x7374_7269);
        let stride = match sparse.chance(300_000) {
            true => 2 + sparse.below(9),
            false => 1,
        };
        let nodes = 2 + random.below(8) as u32;
        let bare = bare(seed, nodes);
        let levels = with_parities(seed, nodes, levels, &mut weights);
        let mut last = Sequence::new(seed, 0x6c61_7374);
        let domains = domains(seed, nodes, levels);
        if !domains.is_empty() {
            weights.domain = Sequence::new(seed, 0x646f_6d62).below(5) as u32;
        }
        if levels.contains(Level::SHARED) {
            weights.shared = Sequence::new(seed, 0x7368_6172).below(5) as u32;
        }
        Options {
            nodes,
            domains,
            coordinator: coordinator(seed, nodes - bare),
            bare,
            ranks: 1 + random.below(2) as u32,
            levels,
            partners: 1 + Sequence::new(seed, 0x7475_726e).below(4) as u32,
            net,
            faults,
            torn: some(&mut random, 100_000),
            scrub: scrub(seed),
            from_disk: false,
            transfer_steps: 0,
            transfer_hangs: 0,
            slow: slow(seed),
            stretch: stretch(seed),
            lasts: (Time::ZERO, Time::ZERO),
            sparse: 2,
            breaks: 300,
            weights,
            meetings: Meetings::default(),
            tick: Time::from_ms(300 + random.below(2000)),
            heal: Time::from_secs(14),
            end: Time::from_secs(30),
            last: match last.chance(250_000) {
                true => Time::from_ms(2_000 + last.below(12_000)),
                false => Time::from_secs(30),
            },
            late_restarts: last.below(4) as u32,
            early: early(seed),
            step_max: Time::from_ms(10 + random.below(100)),
            stride,
            forces: 0,
            steady: false,
            peace: false,
            late: 0,
            forgets: 0,
            waits: waits(seed),
            commit_ms: launcher::BOUNDS.commit_ms,
            planted: None,
            planted_node: None,
            planted_supervisor: None,
            hang: None,
            unwell: None,
            slots: Slots::default(),
        }
        .with_transfers(seed)
        .with_late_writes(seed)
        .with_slots(seed)
    }

    /// The configuration of the machines: the defaults, with bounds short enough
    /// that every one of them passes in a history.
    pub fn config(&self) -> Config {
        Config {
            nodes: self.nodes,
            coordinator: self.coordinator,
            levels: self.levels,
            arm_timeout: Time::from_ms(600),
            commit_timeout: Time::from_ms(self.commit_ms),
            recovery_timeout: Time::from_ms(1500),
            resend: Time::from_ms(15),
            margin: 3,
            planted: self.planted,
            ..Config::default()
        }
    }
}
