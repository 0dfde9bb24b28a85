//! The way up: waiting for those below, bypassing the silent, taking the root's place.

use outlive_base::Time;
use outlive_base::machine::{Body, Peer};

use super::collective::{CLAIMED, COMBINING, Collective, DECIDING, Env, MISMATCHED, Phase};
use super::known::Doubt;
use super::types::*;
use crate::collective::fold::{Fold, NONE, Source};
use crate::collective::{Event, Why};

impl Collective {
    /// Waits for the children.
    pub(super) fn gather(&mut self, env: &mut Env) {
        self.phase = Phase::Gather;
        let (ring, plan) = (self.ring(env), &env.config.plan);
        let place = ring.place(env.me);
        let mut places: Vec<u32> = plan.children(place).collect();
        if places.is_empty() {
            return self.gathered(env, self.own);
        }
        places.sort_unstable();
        let levels = u64::from(plan.height_at(place));
        self.work().limit = limit(env.config, levels);
        let sources = self.expand(env, &places, false);
        self.work().fold = Fold::new(sources, NONE);
        self.advance(env);
    }

    /// Entries for these places, those who are known to be silent replaced by their
    /// children, who are told whom to give to.
    fn expand(&mut self, env: &mut Env, places: &[u32], claim: bool) -> Vec<Source> {
        let ring = self.ring(env);
        let mut sources = Vec::with_capacity(places.len());
        let mut stack: Vec<(u32, bool)> = places.iter().rev().map(|&p| (p, claim)).collect();
        while let Some((place, claim)) = stack.pop() {
            let peer = ring.rank(place);
            let early = self.take_early(peer);
            if early.is_none() && env.known.silent(peer) {
                self.work().absent.push(peer);
                let mut children: Vec<u32> = env.config.plan.children(place).collect();
                children.sort_unstable();
                stack.extend(children.into_iter().rev().map(|child| (child, true)));
                continue;
            }
            let mut source = Source::awaited(peer, env.now, claim);
            if let Some(body) = early {
                source.given = true;
                source.body = body;
            } else if claim {
                self.send(env, peer, Verb::Claim, NONE);
            }
            sources.push(source);
        }
        sources
    }

    fn take_early(&mut self, peer: Peer) -> Option<u32> {
        let early = &mut self.work.as_mut()?.early;
        let at = early.iter().position(|&(other, _)| other == peer)?;
        Some(early.swap_remove(at).1)
    }

    /// The one at `at` is silent: its children take its place.
    pub(super) fn bypass(&mut self, env: &mut Env, at: usize) {
        let peer = self.work().fold.sources[at].peer;
        self.silent(env, peer);
        let place = self.ring(env).place(peer);
        let sources = self.expand(env, &[place], true);
        self.work().fold.replace(at, sources);
        self.advance(env);
    }

    /// All below have given or are known to be silent.
    pub(super) fn gathered(&mut self, env: &mut Env, value: u32) {
        if let Some(work) = &mut self.work {
            let sources = core::mem::take(&mut work.fold).sources;
            for peer in core::mem::take(&mut work.absent) {
                if value != NONE {
                    let body = Body(value);
                    env.event(Event::Absent { body, peer });
                }
            }
            self.inherit(env, &sources);
        }
        if self.phase == Phase::Takeover {
            self.result = value;
            return self.set(DECIDING, true);
        }
        self.acc = value;
        if env.me == self.root {
            self.result = value;
            self.set(DECIDING, true);
        } else {
            self.give(env);
        }
    }

    /// This process puts the result together. Not before everything that has arrived is
    /// taken in: while it was away, another may have done so in its place.
    pub(super) fn decide(&mut self, env: &mut Env) {
        if !self.has(DECIDING) {
            return;
        }
        self.set(DECIDING, false);
        let alone = self
            .work
            .as_deref()
            .is_none_or(|work| work.heirs.is_empty());
        if self.has(MISMATCHED) && alone {
            return self.fail(env, Why::Mismatch);
        }
        if self.phase == Phase::Takeover {
            // Whoever was passed over and lives is told, too.
            let ring = self.ring(env);
            for place in 0..ring.place(env.me) {
                self.heir(ring.rank(place));
            }
        }
        self.by = env.me;
        self.done(env);
    }

    /// The result that was about to be decided is not wanted any more.
    pub(super) fn undecide(&mut self, env: &mut Env) {
        if self.has(DECIDING) {
            self.set(DECIDING, false);
            if self.result != self.acc && self.result != self.own {
                env.release(self.result);
            }
            self.result = NONE;
        }
    }

    fn give(&mut self, env: &mut Env) {
        let to = if self.has(CLAIMED) {
            Some(self.above)
        } else {
            self.superior(env)
        };
        if let Some(to) = to {
            self.send(env, to, Verb::Give, self.acc);
        }
        if self.kind.down() {
            self.wait_for(env, to, false);
        } else {
            self.by = self.root;
            self.done(env);
        }
    }

    /// All who come before this process are silent: it takes the root's place, and those
    /// below the silent ones give to it.
    pub(super) fn take_over(&mut self, env: &mut Env) {
        if self.has(COMBINING) {
            // An old fold is still at work; asked for again at the next deadline.
            self.heard = env.now;
            return;
        }
        self.phase = Phase::Takeover;
        let (ring, config) = (self.ring(env), env.config);
        let me = ring.place(env.me);
        let mut places = Vec::new();
        for place in 0..me {
            let peer = ring.rank(place);
            env.known.mark(peer, Doubt::Passed);
            self.work().absent.push(peer);
            places.extend(config.plan.children(place).filter(|&child| child > me));
        }
        places.sort_unstable();
        self.work().limit = limit(config, u64::from(config.plan.height()));
        let sources = self.expand(env, &places, true);
        self.work().fold = Fold::new(sources, NONE);
        self.advance(env);
    }

    /// One who comes before this process lives after all.
    pub(super) fn step_back(&mut self, env: &mut Env) {
        self.undecide(env);
        self.drop_fold(env);
        self.phase = Phase::Watch;
    }
}

/// Silence that is borne with this many levels below.
pub(super) fn limit(config: &Config, levels: u64) -> Time {
    config.timeout + Time(config.timeout_per_level.0.saturating_mul(levels))
}
