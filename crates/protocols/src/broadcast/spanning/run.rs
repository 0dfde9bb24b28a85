//! Broadcasts over the trees: data down, acknowledgements up, and another tree after a
//! failure.

use std::collections::BTreeMap;

use outlive_base::machine::{Body, Cx, Peer};

use super::types::{Event, Msg, Trees};
use super::{Patience, Running, Say, SpanningTrees, State, bit};

impl SpanningTrees {
    /// The root: the next broadcast, if none is under way.
    pub(super) fn next(&mut self, cx: &Cx<Self>) {
        while self.planned && self.running.is_none() {
            let Some(body) = self.queue.pop_front() else {
                return;
            };
            let number = self.delivered + 1;
            self.running = Some(Running {
                attempt: 0,
                number,
                tree: self.tree,
                from: cx.me,
                body,
                held: body.is_some(),
                to_send: Vec::new(),
                waiting: BTreeMap::new(),
                acknowledged: false,
                patience: Patience::default(),
                hurt: 0,
            });
            self.send(cx);
        }
        self.resume(cx);
    }

    /// The root: a broadcast that waited for new trees.
    fn resume(&mut self, cx: &Cx<Self>) {
        if self.planned && self.running.as_ref().is_some_and(|r| r.attempt == 0) {
            self.send(cx);
        }
    }

    /// The root: sends the running broadcast over a whole tree. Without one the trees are
    /// grown again first.
    fn send(&mut self, cx: &Cx<Self>) {
        let config = cx.config;
        let whole = |tree: &u32| self.hurt & bit(*tree) == 0;
        let Some(tree) = (0..config.trees)
            .map(|step| (self.tree + step) % config.trees)
            .find(whole)
        else {
            return self.exhausted(cx);
        };
        if tree != self.tree {
            self.tree = tree;
            self.event(Event::Switched { to: tree });
        }
        self.attempt += 1;
        let (attempt, children) = (self.attempt, self.children(tree));
        let Some(running) = &mut self.running else {
            return;
        };
        running.attempt = attempt;
        running.tree = tree;
        running.start(cx, children);
        let (number, body) = (running.number, running.body);
        if number > self.delivered {
            self.delivered = number;
            self.event(Event::Delivered {
                number,
                tree,
                missed: 0,
                body,
            });
        }
        self.check_acknowledged(cx);
    }

    fn exhausted(&mut self, cx: &Cx<Self>) {
        let again = self.generation < cx.config.generations_max;
        if again {
            if let Some(running) = &mut self.running {
                running.attempt = 0;
                running.acknowledged = true; // Nobody is waited for until it is resumed.
            }
            self.event(Event::Exhausted);
            return self.plan(cx);
        }
        if let Some(running) = self.running.take() {
            // At the root it counts as delivered also if it never was sent.
            self.delivered = self.delivered.max(running.number);
            let number = running.number;
            self.event(Event::Failed { number });
            if let Some(body) = running.body {
                self.say.push_back(Say::Release(body));
            }
            self.next(cx);
        }
    }

    pub(super) fn on_data(
        &mut self,
        cx: &Cx<Self>,
        from: Peer,
        (attempt, number, tree): (u32, u32, u32),
        body: Option<Body>,
    ) {
        if attempt <= self.attempt || cx.me == cx.config.ring.root {
            return; // Of an attempt that the root has given up.
        }
        self.attempt = attempt;
        if let Some(running) = self.running.take()
            && running.held
            && let Some(body) = running.body
        {
            self.say.push_back(Say::Release(body));
        }
        let children = self.children(tree);
        let held = body.is_some() && !children.is_empty();
        if held && let Some(body) = body {
            self.say.push_back(Say::Retain(body));
        }
        if number > self.delivered {
            let missed = number - self.delivered - 1;
            self.delivered = number;
            self.event(Event::Delivered {
                number,
                tree,
                missed,
                body,
            });
        }
        let mut running = Running {
            attempt,
            number,
            tree,
            from,
            body,
            held,
            to_send: Vec::new(),
            waiting: BTreeMap::new(),
            acknowledged: false,
            patience: Patience::default(),
            hurt: 0,
        };
        running.start(cx, children);
        self.running = Some(running);
        self.check_acknowledged(cx);
    }

    pub(super) fn forward(&mut self, cx: &Cx<Self>) -> Option<(Peer, Msg, Option<Body>)> {
        let running = self.running.as_mut()?;
        let to = running.to_send.pop()?;
        running.patience.since = cx.now;
        let msg = Msg::Data {
            generation: self.generation,
            attempt: running.attempt,
            number: running.number,
            tree: running.tree,
        };
        let body = running.body;
        // The root may have to send it again.
        if running.to_send.is_empty() && running.held && cx.me != cx.config.ring.root {
            running.held = false;
            body.iter()
                .for_each(|&body| self.say.push_back(Say::Release(body)));
        }
        Some((to, msg, body))
    }

    pub(super) fn on_acknowledge(&mut self, cx: &Cx<Self>, from: Peer, attempt: u32, hurt: Trees) {
        let Some(tree) = self
            .running
            .as_ref()
            .filter(|r| r.attempt == attempt)
            .map(|r| r.tree)
        else {
            return;
        };
        self.heard(tree, from);
        if let Some(running) = &mut self.running
            && running.waiting.remove(&from).is_some()
        {
            running.hurt |= hurt;
            self.check_acknowledged(cx);
        }
    }

    /// If all below have acknowledged, the parent is told; at the root the broadcast is
    /// complete or goes over another tree.
    pub(super) fn check_acknowledged(&mut self, cx: &Cx<Self>) {
        let Some(running) = &mut self.running else {
            return;
        };
        if running.acknowledged || !running.waiting.is_empty() {
            return;
        }
        running.acknowledged = true;
        if cx.me != cx.config.ring.root {
            let msg = Msg::Acknowledge {
                generation: self.generation,
                attempt: running.attempt,
                hurt: running.hurt,
            };
            self.outbox.push_back((running.from, msg));
            return;
        }
        let (number, tree, body) = (running.number, running.tree, running.body);
        self.hurt |= running.hurt;
        if self.hurt & bit(tree) != 0 {
            return self.send(cx);
        }
        self.running = None;
        self.event(Event::Completed { number, tree });
        if let Some(body) = body {
            self.say.push_back(Say::Release(body));
        }
        // With nobody below, as many broadcasts follow each other as are queued.
        self.next(cx);
    }

    pub(super) fn on_ask(&mut self, cx: &Cx<Self>, from: Peer, tree: u32, attempt: u32) {
        let generation = self.generation;
        let wait = Msg::Wait { generation, tree };
        if attempt > 0 {
            let running = self.running.as_ref().filter(|r| r.attempt == attempt);
            let answer = match running {
                Some(running) if running.acknowledged => Msg::Acknowledge {
                    generation,
                    attempt,
                    hurt: running.hurt,
                },
                None if self.attempt > attempt => return, // Nobody waits for it any more.
                _ => wait,
            };
            return self.outbox.push_front((from, answer));
        }
        let grown = self.inner.iter().find(|inner| inner.tree == tree);
        let answer = match self.parent(tree) {
            _ if cx.me == cx.config.ring.root => Msg::Declined { generation, tree },
            None => wait, // The offer is still on its way.
            Some(parent) if parent != from => Msg::Declined { generation, tree },
            Some(_) => match grown {
                Some(inner) if !inner.complete => wait,
                _ => Msg::Complete {
                    generation,
                    tree,
                    hurt: grown.map_or(0, |inner| inner.hurt),
                },
            },
        };
        // Before questions of its own: who asks waits for no longer than a time-out.
        self.outbox.push_front((from, answer));
    }

    /// Asks those that have not acknowledged, and drops those that stay silent.
    pub(super) fn running_timeout(&mut self, cx: &Cx<Self>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let waits = !running.acknowledged && running.to_send.is_empty();
        if !waits || cx.now < running.patience.end(cx.config) {
            return;
        }
        let (tree, attempt) = (running.tree, running.attempt);
        let generation = self.generation;
        let mut silent = Vec::new();
        for (&to, answered) in &mut running.waiting {
            if running.patience.asked && !*answered {
                silent.push(to);
                continue;
            }
            *answered = false;
            let ask = Msg::Ask {
                generation,
                tree,
                attempt,
            };
            self.outbox.push_back((to, ask));
        }
        running.patience = Patience {
            since: cx.now,
            asked: true,
        };
        for who in silent {
            running.waiting.remove(&who);
            running.hurt |= cx.config.inner_in(who).map_or(0, bit);
            for inner in &mut self.inner {
                // The root may have it as a child in several trees.
                if let Some(child) = inner.children.get_mut(&who)
                    && matches!(child.state, State::Joined | State::Complete)
                {
                    child.state = State::Dead;
                }
            }
        }
        self.check_acknowledged(cx);
    }
}

impl Running {
    fn start(&mut self, cx: &Cx<SpanningTrees>, children: Vec<Peer>) {
        self.waiting = children.iter().map(|&who| (who, false)).collect();
        // Sent to from the end.
        self.to_send = children;
        self.to_send.reverse();
        self.acknowledged = false;
        self.hurt = 0;
        self.patience = Patience {
            since: cx.now,
            asked: false,
        };
    }
}
