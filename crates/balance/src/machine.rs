//! Diffusion as a protocol between neighbours: [`crate::flow::diffuse`], bit for
//! bit, without anyone who knows more than its neighbours.
//!
//! A process greets its neighbours, then iterates in step with them: it sends its
//! level (load over speed) over each open link and goes on when it has theirs. A
//! pair stops without a word when both ends see its flow stay below the
//! threshold. Sums and the global check run on a tree of the present
//! processes; the iteration goes on while a verdict is on its way, and waits for
//! it only at the iteration where it takes effect.
//!
//! Messages may be lost, doubled and reordered: whoever waits longer than
//! `resend` says again what it said last; a neighbour that is one step ahead
//! answers with what is missed (answers are never answered). Nothing moves before
//! the end, so when a process fails, all who learn of it start over without it;
//! messages carry a digest of the absent, so that runs with different knowledge
//! cannot mix.
//!
//! Invariants: the flows of the two ends of a link are exactly opposite; state
//! is one link record a neighbour and the list of the absent; at most
//! `iterations_max` iterations.

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine, Op, Output, Peer, Ready};

use crate::flow::{FlowOptions, QUIET, Schedule, TREE_FAN_OUT, Verdict, link_weight};

/// What all processes share.
#[derive(Clone, Debug)]
pub struct Config {
    /// Processes of the job, absent ones included.
    pub size: u32,
    /// How to diffuse; a `check_lag` of 0 makes every check a barrier.
    pub options: FlowOptions,
    /// How long to wait before saying something again.
    pub resend: Time,
}

/// Which run a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    epoch: u32,
    absent: u32,
}

impl View {
    /// As two words, for the wire.
    pub fn words(self) -> (u32, u32) {
        (self.epoch, self.absent)
    }
    /// The inverse of [`View::words`].
    pub fn from_words(epoch: u32, absent: u32) -> View {
        View { epoch, absent }
    }
}

/// A message; 32 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Msg {
    /// The first words to a neighbour.
    Hello {
        /// The run.
        view: View,
        /// The girth of the sender.
        girth: f64,
        /// Its speed.
        speed: f64,
        /// True if the receiver's greeting has arrived.
        heard: bool,
    },
    /// The sender's level after an iteration.
    Level {
        /// The run.
        view: View,
        /// The iteration, from 0.
        iteration: u32,
        /// Load over speed.
        level: f64,
        /// True if this answers a repetition.
        answer: bool,
    },
    /// Towards the root: the sums (check [`SUMS`]), or the largest level and
    /// whether a pair is open, of the sender's subtree.
    Up {
        /// The run.
        view: View,
        /// The check.
        check: u32,
        /// Load, or level.
        first: f64,
        /// Speed, or 1 if a pair is open.
        second: f64,
    },
    /// From the root: the ideal level (check [`SUMS`]) or a verdict.
    Down {
        /// The run.
        view: View,
        /// The check.
        check: u32,
        /// The ideal level.
        ideal: f64,
        /// The verdict.
        verdict: Verdict,
    },
}

/// The number of the check that gathers the sums.
pub const SUMS: u32 = u32::MAX;

/// What the layer above asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Begin a run; joining and leaving happen between runs.
    Start {
        /// The number of the run, rising.
        epoch: u32,
        /// The load of this process.
        load: f64,
        /// Its speed, above zero.
        speed: f64,
        /// Neighbours, ascending, with the contact of each; symmetric.
        neighbours: Vec<(Peer, f64)>,
        /// Absent processes, ascending; the same list at all.
        absent: Vec<Peer>,
    },
    /// A process failed: start over without it.
    Failed(Peer),
}

/// What the layer above is told, at the end of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event {
    /// Load that should go to a neighbour (below zero: come from it).
    Flow {
        /// The neighbour.
        to: Peer,
        /// The load.
        amount: f64,
    },
    /// The run is over; all flows were told.
    Done {
        /// Iterations run.
        iterations: u32,
        /// True if the goal was reached.
        converged: bool,
    },
}

#[derive(Clone, Debug)]
struct Link {
    to: Peer,
    contact: f64,
    weight: f64,
    last: f64,
    amount: f64,
    /// Levels of the neighbour, with their iterations; the slot is the parity.
    heard: [Option<(u32, f64)>; 2],
    /// The levels told last, likewise.
    told: [Option<(u32, f64)>; 2],
    quiet: u32,
    greeted: bool,
    hello_due: bool,
    level_due: bool,
    answer_due: Option<u32>,
}

impl Link {
    fn open(&self) -> bool {
        self.quiet < QUIET
    }

    fn level(&self, iteration: u32) -> Option<f64> {
        at(&self.heard, iteration)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Greet,
    Iterate,
    Tell(u32),
    Over,
}

/// One process. See the module's rules.
#[derive(Clone, Debug)]
pub struct Diffusion {
    stage: Stage,
    view: View,
    links: Vec<Link>,
    absent: Vec<Peer>,
    start_load: f64,
    load: f64,
    speed: f64,
    ideal: f64,
    threshold: f64,
    schedule: Schedule,
    phases: u32,
    iteration: u32,
    level: f64,
    converged: bool,
    /// The last check whose verdict is known, with it.
    verdict: Option<(u32, Verdict)>,
    /// The last check whose verdict was carried out.
    settled: Option<u32>,
    /// What each child said last, and whether it awaits the verdict.
    children: [Option<(u32, f64, f64)>; TREE_FAN_OUT],
    down_due: [bool; TREE_FAN_OUT],
    /// The check that this process has taken part in last and its own share.
    own: Option<(u32, f64, f64)>,
    up_due: bool,
    progress: Time,
}

/// The level of an iteration, if it is one of the two kept.
fn at(kept: &[Option<(u32, f64)>; 2], iteration: u32) -> Option<f64> {
    let slot = kept[(iteration & 1) as usize].filter(|slot| slot.0 == iteration);
    slot.map(|slot| slot.1)
}

fn fresh(to: Peer, contact: f64) -> Link {
    Link {
        to,
        contact,
        weight: 0.0,
        last: 0.0,
        amount: 0.0,
        heard: [None; 2],
        told: [None; 2],
        quiet: 0,
        greeted: false,
        hello_due: true,
        level_due: false,
        answer_due: None,
    }
}

impl Diffusion {
    /// A process before its first run.
    pub fn new(config: &Config) -> Diffusion {
        Diffusion {
            stage: Stage::Idle,
            view: View {
                epoch: 0,
                absent: 0,
            },
            links: Vec::new(),
            absent: Vec::new(),
            start_load: 0.0,
            load: 0.0,
            speed: 1.0,
            ideal: 0.0,
            threshold: 0.0,
            schedule: Schedule::new(config.options.scheme, config.options.degree_max),
            phases: 1,
            iteration: 0,
            level: 0.0,
            converged: false,
            verdict: None,
            settled: None,
            children: [None; TREE_FAN_OUT],
            down_due: [false; TREE_FAN_OUT],
            own: None,
            up_due: false,
            progress: Time::ZERO,
        }
    }

    /// True once the run is over and all was told.
    pub fn over(&self) -> bool {
        self.stage == Stage::Over
    }
}

impl Machine for Diffusion {
    type Config = Config;
    type Msg = Msg;
    type Command = Command;
    type Record = ();
    type Event = Event;

    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Msg, _: Option<Body>) {
        let (Msg::Hello { view, .. }
        | Msg::Level { view, .. }
        | Msg::Up { view, .. }
        | Msg::Down { view, .. }) = msg;
        if view != self.view || self.stage == Stage::Idle {
            return;
        }
        match msg {
            Msg::Hello {
                girth: other,
                speed,
                heard,
                ..
            } => {
                let own = self.girth();
                let Ok(slot) = self.links.binary_search_by_key(&from, |link| link.to) else {
                    return;
                };
                let speeds = (self.speed, speed);
                let link = &mut self.links[slot];
                link.weight = link_weight(link.contact, speeds, (own, other));
                link.greeted = true;
                link.hello_due |= !heard;
            }
            Msg::Level {
                iteration,
                level,
                answer,
                ..
            } => self.on_level(from, iteration, level, answer),
            Msg::Up {
                check,
                first,
                second,
                ..
            } => {
                for which in 0..TREE_FAN_OUT {
                    if self.child(cx, which) == Some(from) {
                        self.children[which] = Some((check, first, second));
                        self.down_due[which] =
                            self.verdict.is_some_and(|verdict| verdict.0 == check);
                    }
                }
                if self.verdict.is_none_or(|verdict| verdict.0 != check) {
                    self.combine(cx);
                }
            }
            Msg::Down {
                check,
                ideal,
                verdict,
                ..
            } => {
                if self.parent(cx) == Some(from) {
                    self.learn(cx, check, ideal, verdict);
                }
            }
        }
        self.advance(cx);
    }

    fn on_command(&mut self, cx: &Cx<Self>, command: Command) {
        match command {
            Command::Start {
                epoch,
                load,
                speed,
                neighbours,
                absent,
            } => {
                self.view.epoch = epoch;
                self.start_load = load;
                self.speed = speed;
                self.absent = absent;
                self.links = neighbours
                    .into_iter()
                    .map(|(to, contact)| fresh(to, contact))
                    .collect();
                self.restart(cx);
            }
            Command::Failed(peer) => {
                if let Err(place) = self.absent.binary_search(&peer) {
                    self.absent.insert(place, peer);
                    if self.stage != Stage::Idle {
                        self.restart(cx);
                    }
                }
            }
        }
    }

    fn on_timeout(&mut self, cx: &Cx<Self>) {
        self.progress = cx.now;
        match self.stage {
            Stage::Greet => self
                .links
                .iter_mut()
                .for_each(|link| link.hello_due |= !link.greeted),
            Stage::Iterate => self
                .links
                .iter_mut()
                .for_each(|link| link.level_due |= link.open()),
            _ => {}
        }
        let waiting = self
            .own
            .is_some_and(|own| self.verdict.is_none_or(|v| v.0 != own.0));
        self.up_due |= waiting && self.parent(cx).is_some() && self.subtree(cx).is_some();
    }

    fn on_done(&mut self, _: &Cx<Self>, _: Op, _: Result<(), Fault>) {}

    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>> {
        if ready.send {
            for _ in 0..2 {
                if let Some((to, msg)) = self.next_message(cx) {
                    return Some(Output::Send {
                        to,
                        msg,
                        body: None,
                    });
                }
                // All was told: the next iteration may begin, and have its say.
                self.advance(cx);
            }
        }
        if let Stage::Tell(next) = self.stage {
            if let Some(link) = self.links.get(next as usize) {
                self.stage = Stage::Tell(next + 1);
                let (to, amount) = (link.to, link.amount);
                return Some(Output::Event(Event::Flow { to, amount }));
            }
            self.stage = Stage::Over;
            let (iterations, converged) = (self.iteration, self.converged);
            return Some(Output::Event(Event::Done {
                iterations,
                converged,
            }));
        }
        None
    }

    fn deadline(&self, cx: &Cx<Self>) -> Option<Time> {
        match self.stage {
            Stage::Greet | Stage::Iterate => Some(self.progress + cx.config.resend),
            _ => None,
        }
    }

    fn recover(cx: &Cx<Self>, _: impl Iterator<Item = ()>) -> Diffusion {
        Diffusion::new(cx.config)
    }
}

mod steps;
#[cfg(test)]
mod tests;
