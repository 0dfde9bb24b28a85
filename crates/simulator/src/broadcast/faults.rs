//! Who fails, and when.

use std::collections::BTreeSet;

use outlive_base::machine::Peer;
use outlive_base::rng::Sequence;
use outlive_base::{Result, Time};
use outlive_protocols::broadcast::tree::Ring;

use super::refuse;
use crate::logp::Death;

/// How many fail at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// So many.
    Number(u32),
    /// So many of a million processes, rounded down.
    PerMillion(u32),
}

/// When those that fail at random die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Before the start.
    Before,
    /// At any time of a calm run, or between any two sends.
    During,
    /// When all is over.
    After,
}

/// Who fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Dead before the start.
    pub dead: Vec<Peer>,
    /// Who dies when, besides: for scenarios made by hand.
    pub named: Vec<(Peer, Death)>,
    /// How many more are drawn.
    pub random: Quantity,
    /// The root may be among them, if they die during the run.
    pub root_too: bool,
    /// When these die.
    pub moment: Moment,
}

/// Deaths between two sends come after at most so many.
const SENDS_MAX: u64 = 16;

impl Faults {
    /// Nobody fails.
    pub const fn none() -> Faults {
        Faults {
            dead: Vec::new(),
            named: Vec::new(),
            random: Quantity::Number(0),
            root_too: false,
            moment: Moment::Before,
        }
    }

    /// How many are drawn.
    pub fn drawn(&self, ring: Ring) -> u32 {
        match self.random {
            Quantity::Number(number) => number,
            Quantity::PerMillion(part) => {
                (u64::from(ring.processes) * u64::from(part) / 1_000_000) as u32
            }
        }
    }

    /// How many fail at most.
    pub fn most(&self, ring: Ring) -> u32 {
        self.drawn(ring).saturating_add(self.dead.len() as u32)
    }

    fn may_fail(&self, ring: Ring, who: Peer) -> bool {
        who != ring.root || (self.root_too && self.moment == Moment::During)
    }

    /// # Errors
    /// `InvalidArgument` if one of the dead is no rank or the root, or if more are to
    /// fail than there are others.
    pub(super) fn check(&self, ring: Ring) -> Result<()> {
        let processes = ring.processes;
        let all = self
            .dead
            .iter()
            .chain(self.named.iter().map(|named| &named.0));
        if let Some(who) = all.clone().find(|&&who| who >= processes) {
            let reason = format!("rank {who} of {processes} processes");
            return refuse("dead", reason, "give ranks below the number of processes");
        }
        if self.dead.contains(&ring.root) {
            let reason = format!(
                "the root, rank {}, is dead and had the message alone",
                ring.root
            );
            return refuse("dead", reason, "leave the root out, or give another --root");
        }
        let named: BTreeSet<Peer> = all.copied().collect();
        let others = u64::from(processes.saturating_sub(1));
        if named.len() as u64 + u64::from(self.drawn(ring)) > others {
            let reason = format!(
                "{} named and {} drawn of {others} that may fail (the root does not)",
                named.len(),
                self.drawn(ring)
            );
            return refuse("faults", reason, "give fewer");
        }
        Ok(())
    }

    /// The deaths of a run whose calm form ends at `horizon`.
    pub fn draw(&self, ring: Ring, seed: u64, horizon: u64) -> Vec<(Peer, Death)> {
        let mut taken: BTreeSet<Peer> = self.dead.iter().copied().collect();
        let before = Death::At(Time::ZERO);
        let mut deaths: Vec<(Peer, Death)> = taken.iter().map(|&who| (who, before)).collect();
        deaths.extend_from_slice(&self.named);
        taken.extend(self.named.iter().map(|named| named.0));
        let mut random = Sequence::new(seed, 0x6661_756c_7473);
        let count = self.drawn(ring);
        let free = ring.processes - 1 - taken.len() as u32;
        if count == 0 {
            return deaths;
        }
        let victims: Vec<Peer> = if count > free / 2 {
            // Dense: the first of a shuffle.
            let others =
                (0..ring.processes).filter(|who| self.may_fail(ring, *who) && !taken.contains(who));
            let mut others: Vec<Peer> = others.collect();
            for at in 0..count as usize {
                let with = at + random.below((others.len() - at) as u64) as usize;
                others.swap(at, with);
            }
            others.truncate(count as usize);
            others
        } else {
            let mut victims = Vec::new();
            while victims.len() < count as usize {
                let who = random.below(u64::from(ring.processes)) as Peer;
                if self.may_fail(ring, who) && taken.insert(who) {
                    victims.push(who);
                }
            }
            victims
        };
        for who in victims {
            let death = match self.moment {
                Moment::Before => before,
                Moment::During if random.chance(500_000) => {
                    Death::AfterSends(1 + random.below(SENDS_MAX) as u32)
                }
                Moment::During => Death::At(Time(random.below(horizon + 1))),
                Moment::After => Death::At(Time(u64::MAX - 1)),
            };
            deaths.push((who, death));
        }
        deaths
    }
}
