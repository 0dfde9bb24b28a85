//! The launcher: opens incarnations, replaces nodes, starts ranks.

use std::collections::BTreeSet;

use outlive_base::{Incarnation, NodeId, Time, Version};
use outlive_protocols::NodeSet;
use outlive_protocols::commit::{Command, Levels, Why};

use super::*;

#[derive(Debug, Default)]
pub(super) struct Launcher {
    /// The last number used.
    pub number: u32,
    /// True until every node is ready.
    pub opening: bool,
    ready: BTreeSet<u32>,
    /// Slots replaced since the last success.
    replaced: BTreeSet<u32>,
    /// The user's word to begin anew, once nothing could be restored.
    fresh: bool,
    /// The newest incarnation in which a version was called stable, 0 if none.
    pub history: u32,
    /// Replaced processes that could not be killed.
    zombies: Vec<Process>,
}

impl Launcher {
    /// True if the user asked to begin anew.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }
}

impl History {
    /// Opens the next incarnation, if none was opened after `after`.
    pub(super) fn open_next(&mut self, world: &mut W, after: u32) {
        if self.launcher.number != after {
            return;
        }
        self.launcher.number += 1;
        self.launcher.opening = true;
        self.launcher.ready.clear();
        self.forced = None;
        self.epoch += 1; // The ranks are ended.
        let number = self.launcher.number;
        for node in 0..self.options.nodes {
            let delay = Time(1000 * self.random.below(20_000));
            world.after(delay, Action::Open { number, node });
        }
        world.after(Time::from_ms(2500), Action::Overdue { number });
    }

    pub(super) fn open_one(&mut self, world: &mut W, number: u32, node: u32) {
        if number != self.launcher.number || !self.launcher.opening {
            return;
        }
        let replaced = NodeSet::of(self.options.nodes, self.launcher.replaced.iter().copied());
        let who = world.at(node);
        if self.home(who).up {
            let fenced = self.launcher.zombies.is_empty();
            let (incarnation, fresh) = (Incarnation(number), self.launcher.fresh);
            let history = Incarnation(self.launcher.history);
            world.command(
                who,
                Command::Open {
                    incarnation,
                    replaced,
                    fenced,
                    fresh,
                    history,
                },
            );
        } else {
            world.after(Time::from_ms(50), Action::Open { number, node });
        }
    }

    pub(super) fn overdue(&mut self, world: &mut W, number: u32) {
        if number == self.launcher.number && self.launcher.opening {
            self.open_next(world, number);
        }
    }

    pub(super) fn open_failed(
        &mut self,
        world: &mut W,
        who: Process,
        number: u32,
        why: Why,
        known: u32,
    ) {
        if self.home(who).lost || world.at(self.home(who).node) != who {
            return;
        }
        if matches!(why, Why::NothingUsable | Why::NoRecord) {
            self.judge.gives_up(world.now);
            // Then the user begins anew.
            self.launcher.fresh = true;
        }
        if why == Why::NoQuorum {
            self.kill_zombies(world);
        }
        if number == self.launcher.number && number >= known {
            world.after(Time::from_ms(30), Action::Next { after: number });
        } else if known > self.launcher.number {
            self.launcher.number = known;
            self.open_next(world, known);
        }
    }

    fn kill_zombies(&mut self, world: &mut W) {
        for zombie in std::mem::take(&mut self.launcher.zombies) {
            for record in world.kill(zombie) {
                self.on_durable(world, zombie, record);
            }
            let home = self.home(zombie);
            home.lost = true;
            home.up = false;
        }
    }

    /// All nodes are ready: the ranks start.
    pub(super) fn node_ready(&mut self, world: &mut W, who: Process, number: u32) {
        let node = self.home(who).node;
        if number != self.launcher.number || world.at(node) != who {
            return;
        }
        self.launcher.ready.insert(node);
        if !self.launcher.opening || self.launcher.ready.len() < self.options.nodes as usize {
            return;
        }
        self.launcher.opening = false;
        self.launcher.replaced.clear();
        if std::mem::take(&mut self.launcher.fresh) {
            self.launcher.history = 0;
        }
        let epoch = self.epoch;
        for node in 0..self.options.nodes {
            let who = world.at(node);
            self.will_learn(world, who);
            for rank in 0..self.ranks_of(node) {
                let delay = Time(self.random.below(self.options.step_max.0));
                world.after(delay, Action::Step { who, rank, epoch });
            }
        }
    }

    /// A restarted agent connects. True if it took part in the open incarnation.
    pub(super) fn launcher_meets(&mut self, world: &mut W, who: Process) -> bool {
        let (number, node) = (self.launcher.number, self.home(who).node);
        if world.at(node) != who {
            return false;
        }
        if self.launcher.opening {
            if !self.launcher.ready.contains(&node) {
                world.after(Time::from_ms(5), Action::Open { number, node });
            }
            return false;
        }
        let known = world.machine(who).map_or(0, |machine| machine.known().0);
        let idle = world.machine(who).is_some_and(|machine| machine.is_idle());
        if idle || known != number {
            // Its record of the incarnation is damaged: only a new one helps.
            world.after(Time::from_ms(20), Action::Next { after: number });
            return false;
        }
        self.home(who).incarnation = number;
        true
    }

    pub(super) fn lose_node(&mut self, world: &mut W, who: Process) {
        for record in world.kill(who) {
            self.on_durable(world, who, record);
        }
        let home = self.home(who);
        home.lost = true;
        home.up = false;
        let delay = Time::from_ms(5 + self.random.below(300));
        world.after(delay, Action::Noticed { who });
    }

    /// The launcher notices a lost (or silent) node: everyone is told, a spare takes
    /// the slot, the next incarnation opens.
    pub(super) fn noticed(&mut self, world: &mut W, who: Process) {
        let node = self.home(who).node;
        if world.at(node) != who {
            return;
        }
        for other in 0..self.options.nodes {
            let there = world.at(other);
            if self.home(there).up && there != who {
                world.command(there, Command::Lost { node: NodeId(node) });
            }
        }
        if !self.home(who).lost {
            self.launcher.zombies.push(who);
        }
        self.wiped(world, who);
        self.launcher.replaced.insert(node);
        self.new_home(world, node);
        let after = self.launcher.number;
        self.open_next(world, after);
    }

    /// The policy: one checkpoint after another.
    pub(super) fn policy(&mut self, world: &mut W) {
        let pause = Time::from_ms(40 + self.random.below(200));
        world.after(pause, Action::Policy);
        if self.launcher.opening {
            return;
        }
        let who = world.at(0);
        if !self.home(who).up {
            return;
        }
        let stride = self.options.stride;
        let ahead = self.furthest(world) + 1 + self.random.below(3 * stride);
        if self.random.chance(80_000) && self.forced.is_none() {
            let version = (ahead + 4 * stride).next_multiple_of(stride);
            self.forced = Some((self.launcher.number, version));
            return;
        }
        if self.forced.is_some_and(|(_, v)| ahead > v + 20 * stride) {
            self.forced = None;
        }
        let levels = if self.random.chance(200_000) {
            Levels::of(&[outlive_base::Level::Memory])
        } else {
            self.options.levels
        };
        world.command(
            who,
            Command::Want {
                at_least: Version(ahead),
                levels,
            },
        );
    }

    /// Faults have ended: the job must have opened and become stable again.
    pub(super) fn final_checks(&mut self, world: &mut W, heal: Time) {
        let bound = Time::from_secs(8);
        let mut wrong = self.overdue_work(world, bound);
        let number = self.launcher.number;
        let stuck = self.launcher.opening;
        let since = heal + Time::from_secs(8);
        if stuck {
            wrong.push(format!("P5: incarnation {number} does not open"));
        }
        if !stuck {
            for level in self.options.levels.iter() {
                if !self.judge.stable_after(since, number, level) {
                    wrong.push(format!(
                        "P5: nothing becomes stable at {level} without faults"
                    ));
                }
            }
        }
        for text in wrong {
            world.note(|| text.clone());
            self.judge.violations.push(text);
        }
    }
}
