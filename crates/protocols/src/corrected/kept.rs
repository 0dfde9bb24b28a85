//! Trees that are kept from call to call: grown once by corrected gossip
//! ([`crate::broadcast::spanning`]), used by every broadcast of their root.
//!
//! *Whose trees.* Any process may be the root of a Bcast, and the ways of trees lead away from
//! one root only. So each root has trees of its own, grown when it broadcasts for the
//! second time: results without a root of the caller's all come from one process, and a
//! program has few roots. Until its trees are grown, or when too few are whole, a root
//! corrects its broadcasts as if there were none.
//!
//! *No acknowledgement, no time-out.* A broadcast goes down f + 1 trees at once. In K
//! independent trees a process has children in one only, so f processes that die, or are
//! late, at any moment cut at most f of the f + 1 ways to any other. Whoever has it passes
//! it on down the one tree in which it may have children, whichever way it came. That is
//! f + 1 messages a process, none of which waits for anything. The root alone switches:
//! it names the trees with each broadcast, and leaves out those in which a death is known.
//!
//! *Growing* is timed by the virtual time of the module, as gossip is; there is no common
//! clock. Silence is judged by the process's own: after [`Config::timeout`] without any news
//! who was asked is left out, as elsewhere in this machine; a death that is told, at once.
//!
//! Invariants:
//! - A process forwards over trees of the generation that the message names: the one that
//!   it has, or the one before, which is kept while the next one grows.
//! - The trees only carry. Who is missed by them, because more than f failed or because it
//!   was left out when they grew, asks the root as always, and the root grows them anew.

use std::collections::BTreeMap;

use outlive_base::Time;
use outlive_base::machine::{Cx, Machine as _, Output, Peer, Ready};

use super::{Config, Grow, MODEL, Machine, Msg, Part};
use crate::broadcast::spanning::{self, SpanningTrees, Trees, Way};
use crate::collective::CollectiveKind;

/// Most roots whose trees one process keeps.
pub const ROOTS_MAX: usize = 64;
/// Trees are not grown again before twice as many broadcasts as the last time, up to this
/// power of two.
const BACKOFF_MAX: u32 = 16;

/// The trees of one root at one process.
#[derive(Debug)]
struct Kept {
    config: spanning::Config,
    grower: SpanningTrees,
    /// Virtual time.
    at: Time,
    /// When something last came or went.
    moved: Time,
    /// There may be something to send.
    restless: bool,
    /// The generation before, and who was below this process.
    former: (u32, Vec<Peer>),
    /// The root: broadcasts so far, and the first before which trees may be grown again.
    begun: u32,
    again_at: u32,
    /// The root: somebody had to ask for what went down these trees.
    doubted: bool,
    /// The root: somebody has no room for them.
    given_up: bool,
}

/// Down which trees a broadcast goes, and to whom from here.
#[derive(Debug)]
pub(super) struct Branches {
    pub generation: u32,
    pub trees: Trees,
    /// From the end.
    pub to: Vec<Peer>,
    pub since: Time,
}

/// The trees of all roots at one process.
#[derive(Debug, Default)]
pub(super) struct Forest {
    kept: BTreeMap<Peer, Kept>,
    /// Roots to be told that there is no room for their trees.
    full: Vec<(Peer, u32)>,
}

impl Kept {
    fn new(config: spanning::Config, now: Time) -> Kept {
        Kept {
            config,
            grower: SpanningTrees::default(),
            at: Time::ZERO,
            moved: now,
            restless: false,
            former: (0, Vec::new()),
            begun: 0,
            again_at: 2,
            doubted: false,
            given_up: false,
        }
    }

    fn feed<T>(
        &mut self,
        cx: &Cx<Machine>,
        act: impl FnOnce(&mut SpanningTrees, &Cx<SpanningTrees>) -> T,
    ) -> T {
        let root = u64::from(self.config.ring().root);
        let cx = Cx {
            me: cx.me,
            now: self.at,
            config: &self.config,
            // Trees of different roots, and those grown again, gossip to others.
            seed: outlive_base::rng::draw(cx.seed, root, u64::from(self.grower.generation())),
        };
        act(&mut self.grower, &cx)
    }

    /// Who is below this process in the tree in which it may have children.
    fn children(&self, me: Peer) -> Vec<Peer> {
        let tree = self.config.inner_in(me);
        tree.map_or(Vec::new(), |tree| self.grower.children(tree))
    }

    /// The root: those below it in these trees, each once; the first of each tree first.
    fn below_root(&self, trees: Trees) -> Vec<Peer> {
        let used = (0..self.config.trees()).filter(|tree| trees >> tree & 1 == 1);
        let lists: Vec<Vec<Peer>> = used.map(|tree| self.grower.children(tree)).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut below = Vec::new();
        for nth in 0..longest {
            for &child in lists.iter().filter_map(|list| list.get(nth)) {
                if !below.contains(&child) {
                    below.push(child);
                }
            }
        }
        below
    }

    /// The root: as many whole trees as a broadcast takes.
    fn usable(&self, failures: u32) -> Option<Trees> {
        let mut whole = self.grower.whole(&self.config)?;
        let mut used = 0;
        for _ in 0..=failures {
            if whole == 0 {
                return None;
            }
            let lowest = whole & whole.wrapping_neg();
            (used, whole) = (used | lowest, whole & !lowest);
        }
        Some(used)
    }

    /// The root: grows the trees, if they are of no use and it is time.
    fn plan(&mut self, cx: &Cx<Machine>) {
        if self.begun < self.again_at || self.given_up {
            return;
        }
        let growths = self.grower.generation();
        if growths > 0 && self.grower.whole(&self.config).is_none() {
            return; // They grow.
        }
        self.at = Time::ZERO;
        let command = match growths {
            0 => spanning::Command::Plan,
            _ => spanning::Command::Again,
        };
        self.feed(cx, |grower, cx| grower.on_command(cx, command));
        (self.doubted, self.restless, self.moved) = (false, true, cx.now);
        let pause = 1 << growths.min(BACKOFF_MAX);
        self.again_at = self.begun.saturating_add(pause);
    }

    /// The next message of those that grow, and the virtual time of its arrival.
    fn turn(&mut self, cx: &Cx<Machine>) -> Option<(Peer, spanning::Msg, u32)> {
        while self.restless {
            match self.feed(cx, |grower, cx| grower.poll(cx, Ready::ALL)) {
                Some(Output::Send { to, msg, .. }) => {
                    let arrival = self.at.0.saturating_add(MODEL.delay());
                    self.at = self.at + Time(MODEL.gap);
                    self.moved = cx.now;
                    return Some((to, msg, u32::try_from(arrival).unwrap_or(u32::MAX)));
                }
                Some(_) => {}
                None => match self.grower.gossip_end(self.at) {
                    // Nobody is left to gossip to.
                    Some(end) => self.at = end,
                    None => self.restless = false,
                },
            }
        }
        None
    }

    /// When silence is judged, if anybody is waited for.
    fn deadline(&self, cx: &Cx<Machine>) -> Option<Time> {
        let inner = Cx {
            me: cx.me,
            now: self.at,
            config: &self.config,
            seed: cx.seed,
        };
        let waits = !self.restless && self.grower.deadline(&inner).is_some();
        waits.then_some(self.moved + cx.config.timeout)
    }

    fn timeout(&mut self, cx: &Cx<Machine>) {
        if self.deadline(cx).is_none_or(|due| due > cx.now) {
            return;
        }
        let due = self.feed(cx, |grower, cx| grower.deadline(cx));
        self.at = due.map_or(self.at, |due| self.at.max(due));
        self.feed(cx, SpanningTrees::on_timeout);
        (self.moved, self.restless) = (cx.now, true);
    }
}

impl Forest {
    fn get(&mut self, cx: &Cx<Machine>, dead: &[Peer], root: Peer) -> Option<&mut Kept> {
        cx.config.keep?;
        if !self.kept.contains_key(&root) {
            if self.kept.len() >= ROOTS_MAX {
                // Those of a dead root are kept for what is still under way, if there is room.
                let old = dead.iter().find(|peer| self.kept.contains_key(peer))?;
                self.kept.remove(old);
            }
            let mut kept = Kept::new(cx.config.spanning(root).ok()?, cx.now);
            for &peer in dead {
                let command = spanning::Command::Dead { peer };
                kept.feed(cx, |grower, cx| grower.on_command(cx, command));
            }
            self.kept.insert(root, kept);
        }
        self.kept.get_mut(&root)
    }

    /// The root begins a broadcast: down which trees, if they can serve.
    pub fn begin(&mut self, cx: &Cx<Machine>, dead: &[Peer]) -> Option<Branches> {
        let kept = self.get(cx, dead, cx.me)?;
        kept.begun = kept.begun.saturating_add(1);
        let usable = kept.usable(cx.config.failures);
        let Some(trees) = usable.filter(|_| !kept.doubted) else {
            kept.plan(cx);
            return None;
        };
        let mut to = kept.below_root(trees);
        to.reverse();
        Some(Branches {
            generation: kept.grower.generation(),
            trees,
            to,
            since: cx.now,
        })
    }

    /// A root's: those that are whole.
    pub fn whole(&self, root: Peer) -> Option<Trees> {
        let kept = self.kept.get(&root)?;
        kept.grower.whole(&kept.config)
    }

    /// A broadcast came down these trees of `root`.
    pub fn pass(
        &self,
        cx: &Cx<Machine>,
        (root, generation, trees): (Peer, u32, Trees),
    ) -> Branches {
        let mut to = Vec::new();
        if let Some(kept) = self.kept.get(&root)
            && let Some(own) = kept.config.inner_in(cx.me)
            && trees >> own & 1 == 1
        {
            if generation == kept.grower.generation() {
                to = kept.children(cx.me);
            } else if generation == kept.former.0 {
                to.clone_from(&kept.former.1);
            }
        }
        to.reverse();
        Branches {
            generation,
            trees,
            to,
            since: cx.now,
        }
    }

    /// The root: somebody asked for a result long after it went down its trees.
    pub fn doubt(&mut self, me: Peer) {
        if let Some(kept) = self.kept.get_mut(&me) {
            kept.doubted = true;
        }
    }

    pub fn message(&mut self, cx: &Cx<Machine>, dead: &[Peer], from: Peer, msg: Msg) {
        let Part::Grow { what, tree, at } = msg.part else {
            return;
        };
        let (root, generation) = (msg.root, msg.seq);
        let Some(kept) = self.get(cx, dead, root) else {
            if cx.config.keep.is_some() && !self.full.contains(&(root, generation)) {
                self.full.push((root, generation));
            }
            return;
        };
        if what == Grow::Full {
            kept.given_up |= root == cx.me;
            return;
        }
        let at = Time(u64::from(at));
        let current = kept.grower.generation();
        let newer = generation > current && what.way().is_some() && cx.me != root;
        if newer {
            kept.former = (current, kept.children(cx.me));
            kept.at = at;
        } else if generation != current {
            return; // Of trees that are no more; their time is not ours.
        }
        kept.at = kept.at.max(at);
        let Some(msg) = what.inner(generation, tree, msg.by) else {
            return;
        };
        kept.feed(cx, |grower, cx| grower.on_message(cx, from, msg, None));
        (kept.moved, kept.restless) = (cx.now, true);
    }

    pub fn lost(&mut self, cx: &Cx<Machine>, peer: Peer) {
        self.tell(cx, spanning::Command::Dead { peer });
    }

    pub fn returned(&mut self, cx: &Cx<Machine>, peer: Peer) {
        self.tell(cx, spanning::Command::Returned { peer });
    }

    fn tell(&mut self, cx: &Cx<Machine>, command: spanning::Command) {
        for kept in self.kept.values_mut() {
            kept.feed(cx, |grower, cx| grower.on_command(cx, command));
            (kept.moved, kept.restless) = (cx.now, true);
        }
    }

    /// The next message, if there is one.
    pub fn turn(&mut self, cx: &Cx<Machine>) -> Option<(Peer, Msg)> {
        if let Some((root, generation)) = self.full.pop() {
            let part = Part::Grow {
                what: Grow::Full,
                tree: 0,
                at: 0,
            };
            return Some((root, about(root, generation, 0, part)));
        }
        self.kept.iter_mut().find_map(|(&root, kept)| {
            let (to, msg, at) = kept.turn(cx)?;
            let (what, tree, word) = Grow::of(msg)?;
            let part = Part::Grow { what, tree, at };
            Some((to, about(root, msg.generation(), word, part)))
        })
    }

    pub fn timeout(&mut self, cx: &Cx<Machine>) {
        self.kept.values_mut().for_each(|kept| kept.timeout(cx));
    }

    pub fn deadline(&self, cx: &Cx<Machine>) -> Option<Time> {
        self.kept
            .values()
            .filter_map(|kept| kept.deadline(cx))
            .min()
    }
}

fn about(root: Peer, generation: u32, word: u32, part: Part) -> Msg {
    Msg {
        seq: generation,
        root,
        by: word,
        kind: CollectiveKind::Bcast,
        part,
    }
}

impl Grow {
    /// How an offer came.
    const fn way(self) -> Option<Way> {
        Some(match self {
            Grow::Gossip => Way::Gossip,
            Grow::Leftward => Way::Leftward,
            Grow::Rightward => Way::Rightward,
            _ => return None,
        })
    }

    /// As the trees' own message; `word` is that of [`Msg::by`].
    fn inner(self, generation: u32, tree: u8, word: u32) -> Option<spanning::Msg> {
        let tree = u32::from(tree);
        if let Some(way) = self.way() {
            return Some(spanning::Msg::Offer {
                generation,
                tree,
                way,
                until: Time(u64::from(word)),
            });
        }
        Some(match self {
            Grow::Joined => spanning::Msg::Joined { generation, tree },
            Grow::Complete => spanning::Msg::Complete {
                generation,
                tree,
                hurt: word,
            },
            Grow::Declined => spanning::Msg::Declined { generation, tree },
            Grow::Ask => spanning::Msg::Ask {
                generation,
                tree,
                attempt: 0,
            },
            Grow::Wait => spanning::Msg::Wait { generation, tree },
            _ => return None,
        })
    }

    /// The reverse: what, the tree, and the word. Broadcasts are not among them.
    fn of(msg: spanning::Msg) -> Option<(Grow, u8, u32)> {
        let (what, tree, word) = match msg {
            spanning::Msg::Offer {
                tree, way, until, ..
            } => {
                let what = match way {
                    Way::Gossip => Grow::Gossip,
                    Way::Leftward => Grow::Leftward,
                    Way::Rightward => Grow::Rightward,
                };
                (what, tree, u32::try_from(until.0).unwrap_or(u32::MAX))
            }
            spanning::Msg::Joined { tree, .. } => (Grow::Joined, tree, 0),
            spanning::Msg::Complete { tree, hurt, .. } => (Grow::Complete, tree, hurt),
            spanning::Msg::Declined { tree, .. } => (Grow::Declined, tree, 0),
            spanning::Msg::Ask { tree, .. } => (Grow::Ask, tree, 0),
            spanning::Msg::Wait { tree, .. } => (Grow::Wait, tree, 0),
            spanning::Msg::Data { .. } | spanning::Msg::Acknowledge { .. } => return None,
        };
        // Fewer than 32.
        Some((what, tree as u8, word))
    }
}

impl Config {
    /// The trees of this root.
    pub(super) fn spanning(&self, root: Peer) -> outlive_base::Result<spanning::Config> {
        let keep = self.keep.unwrap_or_default();
        let ring = crate::broadcast::tree::Ring {
            processes: self.processes,
            root,
        };
        // Of virtual time; silence is judged by this machine.
        let timeout = Time(1);
        let checked = spanning::Repair::Checked;
        spanning::Config::new(ring, keep.trees, keep.gossip, checked, timeout)
    }
}
