//! What is seen of a run from outside, and the promises that must hold of it.

use std::collections::BTreeSet;

use outlive_base::Time;
use outlive_base::machine::{Body, Peer};
use outlive_protocols::broadcast::spanning::{Config, Event, Msg, SpanningTrees, Trees, Way};
use outlive_protocols::broadcast::tree::Ring;

use super::{Grows, One, Parameters};
use crate::logp::Host;
use crate::plot::{self, Arrow};

pub(super) struct Watch {
    pub(super) bytes: u64,
    pub(super) ring: Ring,
    pub(super) count: usize,
    /// When each process had each broadcast; 2^64 - 1: never.
    pub(super) had: Vec<Vec<u64>>,
    pub(super) completed: Vec<Option<u64>>,
    pub(super) tree: Vec<u32>,
    pub(super) messages: Vec<u64>,
    /// When the first trees were complete, and which of the last were hurt then.
    pub(super) planned: Option<(u64, Trees)>,
    pub(super) plan_messages: u64,
    pub(super) switches: u32,
    pub(super) generations: u32,
    /// In which generation and tree each process last forwarded data.
    pub(super) forwarded: Vec<(u32, u32)>,
    pub(super) held: Vec<i64>,
    pub(super) current: usize,
    pub(super) violation: Option<String>,
    /// Every message, if asked for.
    pub(super) arrows: Option<Vec<Arrow>>,
}

/// Colour and meaning of the messages in a picture.
pub(super) const LEGEND: [(&str, &str); 5] = [
    ("#1f6fb4", "gossip"),
    ("#2a8f3c", "offers along the ring"),
    ("#c9c9c9", "answers"),
    ("#111111", "broadcasts"),
    ("#d1610d", "acknowledgements"),
];

const fn kind(msg: &Msg) -> usize {
    match msg {
        Msg::Offer {
            way: Way::Gossip, ..
        } => 0,
        Msg::Offer { .. } => 1,
        Msg::Data { .. } => 3,
        Msg::Acknowledge { .. } => 4,
        _ => 2,
    }
}

impl Watch {
    pub(super) fn new(parameters: &Parameters) -> Watch {
        let (count, broadcasts) = (
            parameters.ring.processes as usize,
            parameters.broadcasts as usize,
        );
        Watch {
            bytes: parameters.bytes,
            ring: parameters.ring,
            count,
            had: vec![vec![u64::MAX; count]; broadcasts],
            completed: vec![None; broadcasts],
            tree: vec![0; broadcasts],
            messages: vec![0; broadcasts],
            planned: None,
            plan_messages: 0,
            switches: 0,
            generations: 1,
            forwarded: vec![(0, 0); count],
            held: vec![0; count],
            current: 0,
            violation: None,
            arrows: None,
        }
    }

    fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn delivered(&mut self, who: Peer, now: Time, number: u32, missed: u32, body: Option<Body>) {
        let at = number as usize;
        if missed > 0 || (at > 1 && self.had[at - 2][who as usize] == u64::MAX) {
            self.violated(format!("rank {who} got broadcast {number} out of turn"));
        }
        if body != Some(Body(number)) {
            self.violated(format!("rank {who} got {body:?} as broadcast {number}"));
        }
        if self.had[at - 1][who as usize] != u64::MAX {
            self.violated(format!("rank {who} got broadcast {number} twice"));
        }
        self.had[at - 1][who as usize] = now.0;
    }
}

impl<M: Grows> Host<M> for Watch {
    fn on_event(&mut self, who: Peer, now: Time, event: Event) {
        match event {
            Event::Planned { hurt, .. } => {
                let first = self.planned.map_or(now.0, |planned| planned.0);
                self.planned = Some((first, hurt));
            }
            Event::Delivered {
                number,
                missed,
                body,
                ..
            } => self.delivered(who, now, number, missed, body),
            Event::Completed { number, tree } => {
                self.completed[number as usize - 1] = Some(now.0);
                self.tree[number as usize - 1] = tree;
            }
            Event::Switched { to } => {
                self.switches += 1;
                self.tree[self.current] = to;
            }
            Event::Exhausted => self.generations += 1,
            Event::Failed { number } => self.violated(format!("broadcast {number} was given up")),
            Event::Refused => self.violated("a broadcast was refused".into()),
        }
    }

    fn retain(&mut self, who: Peer, _: Body, keep: bool) {
        self.held[who as usize] += if keep { 1 } else { -1 };
    }

    fn on_receive(&mut self, from: Peer, to: Peer, msg: &Msg, now: Time) {
        if let Some(arrows) = &mut self.arrows {
            plot::received(arrows, from, to, kind(msg), now.0);
        }
    }

    fn on_send(&mut self, from: Peer, to: Peer, msg: &Msg, now: Time) {
        if let Some(arrows) = &mut self.arrows {
            arrows.push(Arrow {
                from,
                to,
                kind: kind(msg),
                start: now.0,
                end: None,
            });
        }
        match *msg {
            Msg::Data {
                generation,
                tree,
                number,
                ..
            } => {
                let before = self.forwarded[from as usize];
                if from != self.ring.root && before.0 == generation && before.1 != tree {
                    self.violated(format!(
                        "rank {from} has children in trees {} and {tree}",
                        before.1
                    ));
                }
                self.forwarded[from as usize] = (generation, tree);
                self.current = number as usize - 1;
                self.messages[self.current] += 1;
            }
            Msg::Acknowledge { .. } => self.messages[self.current] += 1,
            Msg::Ask { attempt, .. } if attempt > 0 => self.messages[self.current] += 1,
            _ => self.plan_messages += 1,
        }
    }

    fn bytes(&self, msg: &Msg, _: Option<Body>) -> u64 {
        match msg {
            Msg::Data { .. } => self.bytes,
            _ => 1,
        }
    }
}

impl Watch {
    pub(super) fn one(&self, at: usize, dead: &[Peer]) -> One {
        let had = &self.had[at];
        let began = had[self.ring.root as usize];
        let live = |who: &usize| dead.binary_search(&(*who as Peer)).is_err();
        let times = (0..self.count).filter(live).map(|who| had[who]);
        let (mut last, mut missed) = (began, 0);
        for time in times {
            if time == u64::MAX {
                missed += 1;
            } else {
                last = last.max(time);
            }
        }
        One {
            number: at as u32 + 1,
            tree: self.tree[at],
            colouring_time: last.saturating_sub(began),
            completion: self.completed[at].map(|time| time - began),
            messages: self.messages[at],
            uncoloured_live: missed,
        }
    }

    pub(super) fn promises(&mut self, all: &[One], dead: &[Peer], forest: &Forest) {
        for one in all {
            let number = one.number;
            if one.uncoloured_live > 0 {
                let missed = one.uncoloured_live;
                self.violated(format!("{missed} live processes miss broadcast {number}"));
            }
            match one.completion {
                None => self.violated(format!("broadcast {number} was not completed")),
                Some(time) if one.colouring_time > time => {
                    self.violated(format!("broadcast {number} was called complete too early"));
                }
                Some(_) => {}
            }
        }
        for who in 0..self.count {
            let live = dead.binary_search(&(who as Peer)).is_err();
            if live && self.held[who] != 0 {
                self.violated(format!("rank {who} holds {} bodies", self.held[who]));
            }
        }
        if let Some(what) = &forest.violation {
            self.violated(what.clone());
        }
    }
}

/// The trees of the last generation, as the processes' parents show them.
pub(super) struct Forest {
    pub(super) heights: Vec<u32>,
    pub(super) children_max: u32,
    pub(super) lacking: Trees,
    pub(super) violation: Option<String>,
}

impl Forest {
    /// Every live process must be in every tree that is not `hurt`, and its ways from the
    /// root must have no process in common: the definition of independent trees.
    pub(super) fn of(
        config: &Config,
        machines: &[&SpanningTrees],
        dead: &[Peer],
        hurt: Trees,
    ) -> Forest {
        let (root, trees) = (config.ring().root, config.trees());
        let generation = machines[root as usize].generation();
        let mut forest = Forest {
            heights: vec![0; trees as usize],
            children_max: 0,
            lacking: 0,
            violation: None,
        };
        for (who, machine) in machines.iter().enumerate() {
            let who = who as Peer;
            if who == root || dead.binary_search(&who).is_ok() {
                continue;
            }
            let mut on_ways = BTreeSet::new();
            for tree in 0..trees {
                match way(machines, root, generation, who, tree) {
                    Err(what) => {
                        forest.lacking |= 1 << tree;
                        if hurt >> tree & 1 == 0 {
                            forest.violation.get_or_insert(what);
                        }
                    }
                    Ok(way) => {
                        let height = &mut forest.heights[tree as usize];
                        *height = (*height).max(way.len() as u32 + 1);
                        if way.iter().any(|&on| !on_ways.insert(on)) {
                            let what = format!("two ways to rank {who} share a process");
                            forest.violation.get_or_insert(what);
                        }
                    }
                }
                let children = machine.children(tree).len() as u32;
                forest.children_max = forest.children_max.max(children);
            }
        }
        forest
    }
}

/// Who is between a process and the root in a tree.
fn way(
    machines: &[&SpanningTrees],
    root: Peer,
    generation: u32,
    who: Peer,
    tree: u32,
) -> std::result::Result<Vec<Peer>, String> {
    let (mut way, mut at) = (Vec::new(), who);
    loop {
        let machine = machines[at as usize];
        let parent = machine.parent(tree);
        let Some(parent) = parent.filter(|_| machine.generation() == generation) else {
            return Err(format!("rank {at} has no parent in tree {tree}"));
        };
        if parent == root {
            return Ok(way);
        }
        way.push(parent);
        at = parent;
        if way.len() > machines.len() {
            return Err(format!("tree {tree} goes round in circles at rank {who}"));
        }
    }
}
