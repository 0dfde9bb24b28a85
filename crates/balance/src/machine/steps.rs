//! The steps of [`Diffusion`]: the tree of checks, the iteration, and what is to
//! be said next.

use super::{Diffusion, Link, Msg, SUMS, Stage, View, at, fresh};
use crate::flow::{TREE_FAN_OUT, Verdict, judge, phase_threshold};
use crate::links::girth;
use outlive_base::machine::{Cx, Peer};
use outlive_base::rng;

impl Diffusion {
    pub(super) fn restart(&mut self, cx: &Cx<Self>) {
        let digest = |seed, peer: &Peer| seed ^ rng::draw(1, u64::from(*peer), 0) as u32;
        let kept = core::mem::take(&mut self.links);
        let links = kept
            .into_iter()
            .filter(|link| !self.absent.contains(&link.to));
        let links: Vec<(Peer, f64)> = links.map(|link| (link.to, link.contact)).collect();
        *self = Diffusion {
            view: View {
                epoch: self.view.epoch,
                absent: self.absent.iter().fold(0, digest),
            },
            absent: core::mem::take(&mut self.absent),
            start_load: self.start_load,
            load: self.start_load,
            speed: self.speed,
            progress: cx.now,
            stage: Stage::Greet,
            links: links
                .into_iter()
                .map(|(to, contact)| fresh(to, contact))
                .collect(),
            own: Some((SUMS, self.start_load, self.speed)),
            ..Diffusion::new(cx.config)
        };
        self.level = self.load / self.speed;
        self.combine(cx);
        self.advance(cx);
    }

    fn place(&self, peer: Peer) -> u32 {
        peer - self.absent.partition_point(|&gone| gone < peer) as u32
    }

    fn peer_at(&self, cx: &Cx<Self>, place: u64) -> Option<Peer> {
        let present = cx.config.size as usize - self.absent.len();
        if place >= present as u64 {
            return None;
        }
        let mut peer = place as u32;
        for &gone in &self.absent {
            if gone <= peer {
                peer += 1;
            }
        }
        Some(peer)
    }

    pub(super) fn child(&self, cx: &Cx<Self>, which: usize) -> Option<Peer> {
        let first = TREE_FAN_OUT as u64 * u64::from(self.place(cx.me)) + 1;
        self.peer_at(cx, first + which as u64)
    }

    pub(super) fn parent(&self, cx: &Cx<Self>) -> Option<Peer> {
        let place = self.place(cx.me);
        if place == 0 {
            None
        } else {
            self.peer_at(cx, u64::from((place - 1) / TREE_FAN_OUT as u32))
        }
    }

    /// The share of this subtree in the current check, when all of it is there.
    pub(super) fn subtree(&self, cx: &Cx<Self>) -> Option<(u32, f64, f64)> {
        let (check, mut first, mut second) = self.own?;
        for which in 0..TREE_FAN_OUT {
            if self.child(cx, which).is_none() {
                continue;
            }
            match self.children[which] {
                Some((said, a, b)) if said == check && check == SUMS => {
                    first += a;
                    second += b;
                }
                Some((said, a, b)) if said == check => {
                    first = first.max(a);
                    second = second.max(b);
                }
                _ => return None,
            }
        }
        Some((check, first, second))
    }

    /// Passes a complete share on, or decides at the root.
    pub(super) fn combine(&mut self, cx: &Cx<Self>) {
        let Some((check, first, second)) = self.subtree(cx) else {
            return;
        };
        if self.parent(cx).is_some() {
            self.up_due = true;
        } else if check == SUMS {
            self.learn(cx, SUMS, first / second, Verdict::Continue);
        } else {
            let options = &cx.config.options;
            let verdict = judge(first, second > 0.0, self.ideal, self.phases, options);
            self.learn(cx, check, self.ideal, verdict);
        }
    }

    pub(super) fn learn(&mut self, cx: &Cx<Self>, check: u32, ideal: f64, verdict: Verdict) {
        if self.own.is_none_or(|own| own.0 != check) || self.verdict.is_some_and(|v| v.0 == check) {
            return;
        }
        if check == SUMS {
            self.ideal = ideal;
            self.threshold = cx.config.options.pair_threshold * ideal;
        }
        self.verdict = Some((check, verdict));
        self.up_due = false;
        for which in 0..TREE_FAN_OUT {
            self.down_due[which] = self.child(cx, which).is_some();
        }
        self.progress = cx.now;
    }

    /// As far as what is known allows.
    pub(super) fn advance(&mut self, cx: &Cx<Self>) {
        if self.stage == Stage::Greet {
            let ready = self.links.iter().all(|link| link.greeted) && self.verdict.is_some();
            if !ready {
                return;
            }
            self.stage = Stage::Iterate;
            self.say_level();
        }
        while self.stage == Stage::Iterate {
            if !self.boundary(cx) || self.stage != Stage::Iterate {
                return;
            }
            if self
                .links
                .iter()
                .any(|link| link.open() && link.level(self.iteration).is_none())
            {
                return;
            }
            // Each level is told before the next replaces it.
            if self.links.iter().any(|link| link.level_due) {
                return;
            }
            self.iterate();
            self.progress = cx.now;
        }
    }

    /// Checks and verdicts before the next iteration; false: must wait.
    fn boundary(&mut self, cx: &Cx<Self>) -> bool {
        let options = &cx.config.options;
        let every = options.check_every.max(1);
        let lag = options.check_lag.min(every);
        if self.iteration >= lag
            && (self.iteration - lag).is_multiple_of(every)
            && lag > 0
            && !self.settle((self.iteration - lag) / every)
        {
            return false;
        }
        if self.stage != Stage::Iterate {
            return true;
        }
        if self.iteration >= options.iterations_max {
            self.end();
            return true;
        }
        if self.iteration.is_multiple_of(every) {
            let check = self.iteration / every;
            if self.own.is_none_or(|own| own.0 != check) {
                let open = self.links.iter().any(Link::open);
                self.own = Some((check, self.level, f64::from(u8::from(open))));
                self.combine(cx);
            }
            if lag == 0 && !self.settle(check) {
                return false;
            }
        }
        true
    }

    /// True while the verdict that takes effect at this iteration is not there: if
    /// it ends the run, nobody will wait for this iteration's level.
    fn held(&self, cx: &Cx<Self>) -> bool {
        let every = cx.config.options.check_every.max(1);
        let lag = cx.config.options.check_lag.min(every);
        let due = self.iteration >= lag && (self.iteration - lag).is_multiple_of(every);
        let check = self.iteration.saturating_sub(lag) / every;
        due && self.settled.is_none_or(|last| last < check)
    }

    /// Obeys the verdict of a check once; false if it is not there yet.
    fn settle(&mut self, check: u32) -> bool {
        if self.settled.is_some_and(|last| check <= last) {
            return true;
        }
        let Some((_, verdict)) = self.verdict.filter(|verdict| verdict.0 == check) else {
            return false;
        };
        self.settled = Some(check);
        match verdict {
            Verdict::Continue => {}
            Verdict::Open => self.open_phase(),
            Verdict::Reached | Verdict::Spent => {
                self.converged = verdict == Verdict::Reached;
                self.end();
            }
        }
        true
    }

    /// Nobody waits for the level after the last iteration.
    fn end(&mut self) {
        self.stage = Stage::Tell(0);
        for link in &mut self.links {
            link.level_due = false;
        }
    }

    fn open_phase(&mut self) {
        self.phases += 1;
        self.threshold = phase_threshold(self.threshold, self.phases);
        self.schedule = self.schedule.restarted();
        for link in &mut self.links {
            link.quiet = 0;
            link.last = 0.0;
        }
        self.say_level();
    }

    pub(super) fn girth(&self) -> f64 {
        girth(
            &self
                .links
                .iter()
                .map(|link| link.contact)
                .collect::<Vec<_>>(),
        )
    }

    fn say_level(&mut self) {
        for link in &mut self.links {
            link.level_due = link.open();
        }
    }

    fn iterate(&mut self) {
        let (momentum, step) = self.schedule.advance();
        for link in &mut self.links {
            let open = link.open();
            let Some(other) = link.level(self.iteration).filter(|_| open) else {
                continue;
            };
            let y = momentum * link.last + step * link.weight * (self.level - other);
            link.last = y;
            link.amount += y;
            self.load -= y;
            link.quiet = if y.abs() < self.threshold {
                link.quiet + 1
            } else {
                0
            };
        }
        self.iteration += 1;
        self.level = self.load / self.speed;
        self.say_level();
    }

    pub(super) fn on_level(&mut self, from: Peer, iteration: u32, level: f64, answer: bool) {
        let current = self.iteration;
        let Ok(slot) = self.links.binary_search_by_key(&from, |link| link.to) else {
            return;
        };
        let link = &mut self.links[slot];
        if iteration >= current {
            link.heard[(iteration & 1) as usize] = Some((iteration, level));
        } else if !answer && at(&link.told, iteration).is_some() {
            link.answer_due = Some(iteration);
        }
    }

    pub(super) fn next_message(&mut self, cx: &Cx<Self>) -> Option<(Peer, Msg)> {
        let view = self.view;
        if self.up_due
            && let (Some(parent), Some((check, first, second))) =
                (self.parent(cx), self.subtree(cx))
        {
            self.up_due = false;
            return Some((
                parent,
                Msg::Up {
                    view,
                    check,
                    first,
                    second,
                },
            ));
        }
        for which in 0..TREE_FAN_OUT {
            if let (true, Some((check, verdict)), Some(child)) =
                (self.down_due[which], self.verdict, self.child(cx, which))
            {
                self.down_due[which] = false;
                let ideal = self.ideal;
                return Some((
                    child,
                    Msg::Down {
                        view,
                        check,
                        ideal,
                        verdict,
                    },
                ));
            }
        }
        self.next_to_neighbour(cx)
    }

    fn next_to_neighbour(&mut self, cx: &Cx<Self>) -> Option<(Peer, Msg)> {
        let view = self.view;
        let (iteration, level, speed) = (self.iteration, self.level, self.speed);
        let greeting = self.links.iter().any(|link| link.hello_due);
        let girths = greeting.then(|| self.girth());
        let may_tell = self.stage != Stage::Greet && !self.held(cx);
        for link in &mut self.links {
            if let (true, Some(girth)) = (link.hello_due, girths) {
                link.hello_due = false;
                let heard = link.greeted;
                return Some((
                    link.to,
                    Msg::Hello {
                        view,
                        girth,
                        speed,
                        heard,
                    },
                ));
            }
            if let Some(iteration) = link.answer_due.take()
                && let Some(level) = at(&link.told, iteration)
            {
                return Some((
                    link.to,
                    Msg::Level {
                        view,
                        iteration,
                        level,
                        answer: true,
                    },
                ));
            }
            if link.level_due && may_tell {
                link.level_due = false;
                link.told[(iteration & 1) as usize] = Some((iteration, level));
                return Some((
                    link.to,
                    Msg::Level {
                        view,
                        iteration,
                        level,
                        answer: false,
                    },
                ));
            }
        }
        None
    }
}
