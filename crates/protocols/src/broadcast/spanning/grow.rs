//! How the trees grow: gossip, offers along the ring, answers.

use outlive_base::machine::{Body, Cx, Peer};
use outlive_base::{Time, rng};

use super::types::{Config, Event, Msg, Repair, Trees, Way};
use super::{Child, Inner, Patience, Say, SpanningTrees, State, bit};

type Send = (Peer, Msg, Option<Body>);

impl Inner {
    fn new(tree: u32) -> Inner {
        Inner {
            tree,
            left: Default::default(),
            right: Default::default(),
            drawn: 0,
            children: Default::default(),
            offered: false,
            complete: false,
            patience: Patience::default(),
            hurt: 0,
        }
    }

    /// Who is known to be dead is not waited for.
    fn offer(&mut self, to: Peer, dead: bool) {
        let child = Child {
            state: if dead { State::Dead } else { State::Offered },
            nth: self.children.len() as u32,
            answered: false,
        };
        self.children.entry(to).or_insert(child);
    }

    fn open(&self) -> impl Iterator<Item = (&Peer, &Child)> {
        let open = |child: &Child| matches!(child.state, State::Offered | State::Joined);
        self.children.iter().filter(move |(_, child)| open(child))
    }

    /// The next place on the ring that is offered the tree, and how.
    fn correct(&mut self, config: &Config, place: u32) -> Option<(u32, Way)> {
        let needed = config.needed();
        let others = config.ring.processes - 1;
        let (left, right) = (
            self.left.done(needed, others),
            self.right.done(needed, others),
        );
        let all_round = self.left.sent.saturating_add(self.right.sent) >= others;
        if left && right || all_round {
            return None;
        }
        if !left && (right || self.left.sent <= self.right.sent) {
            self.left.sent += 1;
            return Some((config.ring.left(place, self.left.sent), Way::Leftward));
        }
        self.right.sent += 1;
        Some((config.ring.right(place, self.right.sent), Way::Rightward))
    }
}

impl SpanningTrees {
    /// New trees: what was known of the old ones is forgotten.
    pub(super) fn begin(&mut self, cx: &Cx<Self>, generation: u32, until: Time) {
        self.generation = generation;
        self.until = until;
        self.parents = vec![None; cx.config.trees as usize];
        self.inner.clear();
        self.outbox.clear();
        self.join = None;
        if cx.me != cx.config.ring.root
            && let Some(running) = self.running.take()
            && running.held
            && let Some(body) = running.body
        {
            self.say.push_back(Say::Release(body));
        }
    }

    /// The root begins to grow the trees.
    pub(super) fn plan(&mut self, cx: &Cx<Self>) {
        let until = Time(cx.now.0.saturating_add(cx.config.gossip.0));
        self.begin(cx, self.generation + 1, until);
        self.planned = false;
        self.hurt = 0;
        self.inner = (0..cx.config.trees).map(Inner::new).collect();
    }

    pub(super) fn on_offer(&mut self, cx: &Cx<Self>, from: Peer, tree: u32, way: Way) {
        let generation = self.generation;
        let own = cx.config.inner_in(cx.me);
        let inner = own.is_none_or(|own| own == tree);
        if own.is_none() || self.parent(tree).is_some_and(|parent| parent != from) {
            self.outbox
                .push_back((from, Msg::Declined { generation, tree }));
        } else if self.parent(tree).is_none() {
            self.parents[tree as usize] = Some(from);
            let takes_part = match cx.config.repair {
                Repair::Checked => way == Way::Gossip && cx.now <= self.until,
                Repair::FailureProof(_) => true,
            };
            if inner && takes_part {
                self.inner.push(Inner::new(tree));
                self.join = Some(from);
            } else {
                let complete = Msg::Complete {
                    generation,
                    tree,
                    hurt: 0,
                };
                self.outbox.push_back((from, complete));
            }
        }
        if !inner || way == Way::Gossip {
            return;
        }
        let ring = cx.config.ring;
        let (me, from) = (ring.place(cx.me), ring.place(from));
        let needed = cx.config.needed();
        if let Some(inner) = self.inner.iter_mut().find(|inner| inner.tree == tree) {
            match way {
                Way::Rightward => inner.left.hear(ring.left(me, from), needed),
                _ => inner.right.hear(ring.left(from, me), needed),
            }
        }
    }

    /// An answer to an offer.
    pub(super) fn on_answer(
        &mut self,
        cx: &Cx<Self>,
        from: Peer,
        tree: u32,
        state: State,
        hurt: Trees,
    ) {
        let Some((inner, child)) = self.child(tree, from) else {
            return;
        };
        // A repeated answer must not take the later one back.
        let state = match (child.state, state) {
            (State::Complete, State::Joined) => State::Complete,
            (_, state) => state,
        };
        let answered = true;
        let heard = Child {
            state,
            answered,
            ..child
        };
        inner.children.insert(from, heard);
        inner.hurt |= hurt;
        self.check_complete(cx, tree);
    }

    /// If all offers in a tree are answered, the parent is told.
    pub(super) fn check_complete(&mut self, cx: &Cx<Self>, tree: u32) {
        let Some(inner) = self.inner.iter_mut().find(|inner| inner.tree == tree) else {
            return;
        };
        if inner.complete || !inner.offered || inner.open().next().is_some() {
            return;
        }
        inner.complete = true;
        let (generation, hurt) = (self.generation, inner.hurt);
        if cx.me != cx.config.ring.root {
            if let Some(parent) = self.parent(tree) {
                let complete = Msg::Complete {
                    generation,
                    tree,
                    hurt,
                };
                self.outbox.push_back((parent, complete));
            }
            return;
        }
        self.hurt |= hurt;
        if self.inner.iter().all(|inner| inner.complete) {
            self.planned = true;
            self.event(Event::Planned {
                generation,
                hurt: self.hurt,
            });
            self.next(cx);
        }
    }

    pub(super) fn joining(&mut self, cx: &Cx<Self>) -> Option<Send> {
        let to = self.join.take()?;
        let tree = cx.config.inner_in(cx.me)?;
        let generation = self.generation;
        Some((to, Msg::Joined { generation, tree }, None))
    }

    /// An offer to one drawn at random among those that may have children in the tree and
    /// have none from here.
    pub(super) fn gossip(&mut self, cx: &Cx<Self>) -> Option<Send> {
        if cx.now >= self.until {
            return None;
        }
        let (config, ring) = (cx.config, cx.config.ring);
        for _ in 0..self.inner.len() {
            self.turn = (self.turn + 1) % self.inner.len();
            let inner = &mut self.inner[self.turn];
            let tree = inner.tree;
            let members = config.members(tree);
            let others = members - u32::from(cx.me != ring.root);
            if inner.drawn >= others {
                continue;
            }
            let drawn = rng::below(cx.random(self.draws), u64::from(members)) as u32;
            self.draws += 1;
            // From there on the first that is new; there is one, for not all were drawn.
            let from_there = (0..members).map(|step| config.member(tree, (drawn + step) % members));
            let new = |who: &Peer| *who != cx.me && !inner.children.contains_key(who);
            let Some(to) = from_there.map(|place| ring.rank(place)).find(new) else {
                continue;
            };
            inner.drawn += 1;
            inner.offer(to, self.gone.contains(&to));
            let msg = Msg::Offer {
                generation: self.generation,
                tree,
                way: Way::Gossip,
                until: self.until,
            };
            return Some((to, msg, None));
        }
        None
    }

    /// An offer along the ring.
    pub(super) fn correct(&mut self, cx: &Cx<Self>) -> Option<Send> {
        if cx.now < self.until {
            return None;
        }
        let ring = cx.config.ring;
        let me = ring.place(cx.me);
        for _ in 0..self.inner.len() {
            self.turn = (self.turn + 1) % self.inner.len();
            let inner = &mut self.inner[self.turn];
            if inner.offered {
                continue;
            }
            let Some((place, way)) = inner.correct(cx.config, me) else {
                continue;
            };
            let to = ring.rank(place);
            inner.offer(to, self.gone.contains(&to));
            let msg = Msg::Offer {
                generation: self.generation,
                tree: inner.tree,
                way,
                until: self.until,
            };
            return Some((to, msg, None));
        }
        None
    }

    /// After the last offer the wait for answers begins; true if it was sent in a tree.
    pub(super) fn all_offered(&mut self, cx: &Cx<Self>) -> bool {
        if cx.now < self.until {
            return false;
        }
        let mut ended = Vec::new();
        for inner in self.inner.iter_mut().filter(|inner| !inner.offered) {
            inner.offered = true;
            inner.patience.since = cx.now;
            ended.push(inner.tree);
        }
        for &tree in &ended {
            self.check_complete(cx, tree);
        }
        !ended.is_empty()
    }

    /// Asks those that have not answered their offer, and drops those that stay silent.
    pub(super) fn growth_timeout(&mut self, cx: &Cx<Self>) {
        let mut ended = Vec::new();
        for inner in &mut self.inner {
            let waits = inner.offered && !inner.complete;
            if !waits || cx.now < inner.patience.end(cx.config) {
                continue;
            }
            let (tree, asked) = (inner.tree, inner.patience.asked);
            for (&to, child) in &mut inner.children {
                if !matches!(child.state, State::Offered | State::Joined) {
                    continue;
                }
                if asked && !child.answered {
                    // Who never joined has never forwarded: nothing is lost with it.
                    if child.state == State::Joined {
                        inner.hurt |= bit(tree);
                    }
                    child.state = State::Dead;
                    continue;
                }
                child.answered = false;
                let ask = Msg::Ask {
                    generation: self.generation,
                    tree,
                    attempt: 0,
                };
                self.outbox.push_back((to, ask));
            }
            inner.patience = Patience {
                since: cx.now,
                asked: true,
            };
            ended.push(tree);
        }
        for tree in ended {
            self.check_complete(cx, tree);
        }
    }
}
