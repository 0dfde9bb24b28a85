//! Some nodes are lost at once, with all that they stored, from a job that is otherwise without
//! faults: what the nodes that are left then restore, or why nothing.

use std::collections::BTreeSet;

use outlive_base::rng::Sequence;
use outlive_base::{Level, Levels, Time};
use outlive_control::node;
use outlive_ledger::Record;

use super::*;
use crate::network::LossyOptions;
use crate::world::Faults;

/// Until versions are stable at all levels, and until the job has opened again, at most.
const BOUND: Time = Time::from_secs(60);
/// Between that and the loss, at most, in microseconds: amid whatever the job does.
const LATER_US: u64 = 400_000;

/// Which nodes are lost from which job.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Nodes of the job.
    pub nodes: u32,
    /// Its levels.
    pub levels: Levels,
    /// The nodes that are lost.
    pub lost: BTreeSet<u32>,
    /// The launcher ends as well, and with it all that is in memory.
    pub launcher: bool,
    /// A fault planted in the nodes.
    pub planted: Option<node::Planted>,
}

/// What came of a loss.
#[derive(Clone, Debug, Default)]
pub struct AfterLoss {
    /// What had been declared stable before, by level.
    pub stable: BTreeSet<(Key, Level)>,
    /// What is committed by the records that were left when the job opened, by level.
    pub recorded: BTreeSet<(Key, Level)>,
    /// What the next incarnation restored.
    pub restored: Option<Key>,
    /// Why nothing could be restored.
    pub refused: Option<String>,
    /// What the judge found; empty is good.
    pub violations: Vec<String>,
}

/// The job of a seed, and what becomes of it.
pub fn lose(seed: u64, loss: &Loss) -> AfterLoss {
    let mut job = Job::new(seed, options(seed, loss));
    job.begin_all();
    let enough = |job: &Job| loss.levels.iter().all(|level| job.is_stable_at(level));
    job.run_until(enough, "nothing becomes stable");
    let later = job.now + Time(1_000 * job.random.below(LATER_US));
    while job.now < later && job.one_more() {}
    let stable = job.judge.all_stable();
    job.lose_all_of(loss);
    let left = |job: &Job| job.judge.committed_at(|node| !loss.lost.contains(&node));
    let over = |job: &Job| job.judge.opened_count() > 1 || job.nothing.is_some();
    job.run_until(over, "the job does not open");
    let mut recorded = left(&job);
    recorded.extend(job.shared.records.iter().filter_map(committed));
    AfterLoss {
        stable,
        recorded,
        restored: job.judge.newest_opening().filter(|_| job.nothing.is_none()),
        refused: job.nothing,
        violations: job.judge.violations,
    }
}

fn options(seed: u64, loss: &Loss) -> Options {
    let mut random = Sequence::new(seed, 0x6c6f_7373);
    Options {
        nodes: loss.nodes,
        coordinator: random.below(u64::from(loss.nodes)) as u32,
        levels: loss.levels,
        planted_node: loss.planted,
        ..without_faults(seed)
    }
}

/// A job without faults, of one rank on each node.
pub(super) fn without_faults(seed: u64) -> Options {
    Options {
        ranks: 1,
        bare: 0,
        partners: 1,
        domains: Vec::new(),
        net: LossyOptions::CALM,
        faults: Faults {
            crash: 0,
            refuse: 0,
            ..Options::from_seed(seed).faults
        },
        torn: 0,
        scrub: None,
        slow: 0,
        transfer_hangs: 0,
        late: 0,
        waits: 0,
        weights: Weights::default(),
        step_max: Time::from_ms(20),
        stride: 1,
        ..Options::from_seed(seed)
    }
}

pub(super) fn committed(record: &Record) -> Option<(Key, Level)> {
    match record {
        Record::Commit {
            incarnation,
            version,
            level,
            ..
        } => Some(((incarnation.0, version.0), *level)),
        _ => None,
    }
}

impl Job {
    pub(super) fn is_stable_at(&self, level: Level) -> bool {
        let all = self.judge.all_stable();
        all.into_iter().any(|(_, at)| at == level)
    }

    pub(super) fn one_more(&mut self) -> bool {
        let next = self.queue.pop();
        let more = next.is_some();
        if let Some((at, what)) = next {
            self.happen(at, what);
        }
        more
    }

    /// Until it is so; that it never is, is a violation.
    pub(super) fn run_until(&mut self, is_so: impl Fn(&Job) -> bool, otherwise: &str) {
        let end = self.now + BOUND;
        while !is_so(self) {
            if self.now > end || !self.one_more() {
                return self.wrong(format!("P5: {otherwise}"));
            }
        }
    }

    fn lose_all_of(&mut self, loss: &Loss) {
        self.note(|| format!("lost: {loss:?}"));
        for node in &loss.lost {
            let who = self.at(*node);
            self.ranks_fall(*node, false);
            self.kill_all_of(who);
            self.wiped(who);
        }
        if loss.launcher {
            self.next_run();
        } else if loss.lost.is_empty() {
            self.rank_fails();
        }
    }
}
