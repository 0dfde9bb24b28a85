//! The way down: waiting for the result, and whom to turn to when it does not come.
//!
//! An orphan turns to its grandparent, then to the next above, up to the root. If the
//! root is silent too, the places 1, 2, 3... are next in line: every place comes after
//! its ancestors, so the first one alive has none left, and takes the root's place.

use outlive_base::Time;
use outlive_base::machine::Peer;

use super::collective::{ASKED, CLAIMED, Collective, Env, Phase};
use super::gather::limit;
use super::types::*;
use crate::collective::Why;
use crate::collective::fold::NONE;

impl Collective {
    /// Waits for what only comes from above (Bcast).
    pub(super) fn watch(&mut self, env: &mut Env) {
        let above = if self.has(CLAIMED) {
            // Who claimed it before the call was told that it was idle.
            self.send(env, self.above, Verb::Give, NONE);
            Some(self.above)
        } else {
            self.superior(env)
        };
        self.wait_for(env, above, false);
    }

    /// The result is expected from `above`; from nobody means from oneself.
    pub(super) fn wait_for(&mut self, env: &mut Env, above: Option<Peer>, asked: bool) {
        self.phase = Phase::Watch;
        self.heard = env.now;
        self.set(ASKED, asked);
        match above {
            Some(above) => self.above = above,
            None => self.take_over(env),
        }
    }

    pub(super) fn is_ancestor(&self, env: &Env, peer: Peer) -> bool {
        let (ring, plan) = (self.ring(env), &env.config.plan);
        let place = ring.place(peer);
        let mut at = ring.place(env.me);
        // Places grow on the way down.
        while at > place {
            at = plan.parent(at).unwrap_or(0);
        }
        at == place
    }

    /// The nearest above of whom it is not known that it is gone, else the next in line.
    pub(super) fn superior(&self, env: &Env) -> Option<Peer> {
        let place = self.ring(env).place(env.me);
        self.line(env, env.config.plan.parent(place), 1)
    }

    /// From this ancestor upwards, then from this place on.
    fn line(&self, env: &Env, ancestor: Option<u32>, mut candidate: u32) -> Option<Peer> {
        let (ring, plan) = (self.ring(env), &env.config.plan);
        let me = ring.place(env.me);
        let mut next = ancestor;
        while let Some(place) = next {
            if !env.known.gone(ring.rank(place)) {
                return Some(ring.rank(place));
            }
            next = plan.parent(place);
        }
        while candidate < me {
            let peer = ring.rank(candidate);
            if !env.known.gone(peer) && !self.is_ancestor(env, peer) {
                return Some(peer);
            }
            candidate += 1;
        }
        None
    }

    /// The one above is silent: the next.
    pub(super) fn climb(&mut self, env: &mut Env) {
        let (ring, config) = (self.ring(env), env.config);
        self.silent(env, self.above);
        self.set(CLAIMED, false);
        let place = ring.place(self.above);
        let next = if self.is_ancestor(env, self.above) {
            self.line(env, config.plan.parent(place), 1)
        } else {
            self.line(env, None, place + 1)
        };
        // A root that is only late must not be passed over too early: round again.
        let next = next.or_else(|| {
            let early = env.now < self.start + config.patience;
            if early { self.superior(env) } else { None }
        });
        if let Some(next) = next {
            self.send(env, next, Verb::Ask, NONE);
        }
        self.wait_for(env, next, true);
    }

    /// When [`Collective::timeout`] wants to be called.
    pub(super) fn deadline(&self, env_config: &Config) -> Option<Time> {
        let bound = self.start + env_config.bound;
        let due = match self.phase {
            Phase::Watch => {
                let limit = limit(env_config, u64::from(env_config.plan.height()));
                self.heard + part(limit, self.has(ASKED))
            }
            Phase::Gather | Phase::Takeover => {
                let work = self.work.as_deref()?;
                let awaited = work.fold.sources.iter().filter(|source| !source.given);
                let due = awaited.map(|source| source.heard + part(work.limit, source.asked));
                due.min().unwrap_or(Time::NEVER)
            }
            _ => return None,
        };
        Some(due.min(bound))
    }

    /// Asks who was silent for half of the limit; gives up who was for all of it.
    pub(super) fn timeout(&mut self, env: &mut Env) {
        if self.deadline(env.config).is_none_or(|due| env.now < due) {
            return;
        }
        if env.now >= self.start + env.config.bound {
            return self.fail(env, Why::Bound);
        }
        if self.phase == Phase::Watch {
            if self.has(ASKED) {
                self.climb(env);
            } else {
                // Answers are due in the second half, however late this call came.
                self.heard = env.now - Time(limit(env.config, self.levels(env)).0 / 2);
                self.set(ASKED, true);
                self.send(env, self.above, Verb::Ask, NONE);
            }
            return;
        }
        let limit = self.work().limit;
        let mut at = 0;
        while matches!(self.phase, Phase::Gather | Phase::Takeover)
            && at < self.work().fold.sources.len()
        {
            let source = &mut self.work().fold.sources[at];
            if source.given || env.now < source.heard + part(limit, source.asked) {
                at += 1;
            } else if source.asked {
                self.bypass(env, at);
            } else {
                source.asked = true;
                source.heard = env.now - Time(limit.0 / 2);
                let peer = source.peer;
                self.send(env, peer, Verb::Claim, NONE);
                at += 1;
            }
        }
    }

    fn levels(&self, env: &Env) -> u64 {
        u64::from(env.config.plan.height())
    }

    /// The children get what comes down, those known to be silent bequeath to theirs
    /// (Bcast, which has no contributions to tell who is there).
    pub(super) fn bequeath(&mut self, env: &mut Env) {
        let (ring, config) = (self.ring(env), env.config);
        let mut places: Vec<u32> = config.plan.children(ring.place(env.me)).collect();
        if places.is_empty() {
            return;
        }
        places.reverse();
        let mut heirs = Vec::with_capacity(places.len());
        while let Some(place) = places.pop() {
            let peer = ring.rank(place);
            heirs.push(peer);
            if env.known.silent(peer) {
                let children: Vec<u32> = config.plan.children(place).collect();
                places.extend(children.into_iter().rev());
            }
        }
        heirs.retain(|&peer| !env.known.gone(peer));
        let asked = core::mem::take(&mut self.work().heirs);
        for peer in asked {
            if !heirs.contains(&peer) {
                heirs.push(peer);
            }
        }
        self.work().heirs = heirs;
    }
}

/// The whole limit once asked, half of it before.
fn part(limit: Time, asked: bool) -> Time {
    if asked { limit } else { Time(limit.0 / 2) }
}
