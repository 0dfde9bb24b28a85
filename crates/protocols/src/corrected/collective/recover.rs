//! What correction does not mend: a root that died, and more failures than f.
//!
//! A process that waits asks the root, or, if that is dead, the lowest rank that lives,
//! which claims the operands of all. Whoever has the result gives that instead, and it
//! becomes everyone's. Whoever has not is *sealed*: from then on it takes a result from
//! claimants only. So when all who live have answered without a result, none will ever
//! turn up, and the claimant decides. If the claimant dies, the next one claims and finds
//! its decision wherever it arrived.

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Machine as _, Op, Output, Peer};

use super::reducing::Answer;
use super::{Collective, Env, Machine, Part};
use crate::collective::fold::{Fold, NONE, Source, Step};
use crate::collective::{CollectiveKind, Command, Event, Why};

/// Operands on their way to the claimant.
#[derive(Debug)]
pub(in crate::corrected) struct Gather {
    fold: Fold,
    /// Everyone that was claimed, ascending.
    claimed: Vec<Peer>,
    absent: Vec<Peer>,
    combining: bool,
}

impl Collective {
    /// True if the result is to come from elsewhere.
    pub fn waiting(&self, env: &Env) -> bool {
        self.entered()
            && !self.ended()
            && !self.has
            && self.kind.down()
            && self.gather.is_none()
            && (self.root != env.cx.me || self.sealed)
    }

    /// True if nothing is expected of `peer` in this call.
    pub fn passed(&self, env: &Env, peer: Peer) -> bool {
        env.dead.binary_search(&peer).is_ok() || self.gone.contains(&peer)
    }

    fn first(&self, env: &Env) -> Peer {
        let mut ranks = 0..env.config().processes;
        let found = ranks.find(|&rank| rank == env.cx.me || !self.passed(env, rank));
        found.unwrap_or(env.cx.me)
    }

    /// `peer` is dead.
    pub fn lost(&mut self, env: &mut Env, peer: Peer) {
        self.reducing(env, |machine, cx| {
            machine.on_command(cx, Command::Dead { peer });
        });
        self.ungiven(env, peer);
        if self.asked.is_some_and(|(asked, ..)| asked == peer) {
            // Who follows may be dead as well: it is not asked as seldom as one that
            // was heard again and again.
            self.ask_every = env.config().ask;
            self.ask_at = env.cx.now + self.ask_every;
        }
        self.without_root(env);
    }

    /// `peer` is passed over in this call only.
    pub fn pass_over(&mut self, env: &mut Env, peer: Peer, silent: bool) {
        if self.passed(env, peer) {
            return;
        }
        self.gone.push(peer);
        if silent {
            let seq = self.seq;
            env.event(Event::Silent { seq, peer });
        }
        self.lost(env, peer);
    }

    /// If the root is dead, the lowest rank that lives is asked, at once.
    pub fn without_root(&mut self, env: &mut Env) {
        if !self.waiting(env) || !self.passed(env, self.root) {
            return;
        }
        let first = self.first(env);
        if self.asked.is_none_or(|(peer, ..)| peer != first) {
            self.ask(env);
        }
    }

    pub fn ask(&mut self, env: &mut Env) {
        let dead = self.passed(env, self.root);
        let to = if dead { self.first(env) } else { self.root };
        if to == env.cx.me {
            return self.collect(env);
        }
        self.asked = Some((to, env.cx.now, false));
        self.send(env, to, Part::Ask(dead), NONE);
    }

    /// When the one that was asked is passed over, unless it answers.
    pub fn ask_due(&self, cx: &Cx<Machine>) -> Option<Time> {
        let (_, at, answered) = self.asked?;
        let least = self.start + cx.config.patience;
        (!answered).then(|| (at + cx.config.timeout).max(least))
    }

    pub fn asked_by(&mut self, env: &mut Env, from: Peer, dead: bool) {
        if self.has && self.kind.down() {
            if self.missed(env.cx) {
                env.forest.doubt(env.cx.me);
            }
            return self.result_to(env, from);
        }
        self.send(env, from, Part::Wait(self.entered()), NONE);
        if dead && self.root != env.cx.me {
            if !self.passed(env, self.root) {
                self.gone.push(self.root);
                let root = self.root;
                self.ungiven(env, root);
            }
            if self.first(env) == env.cx.me {
                self.collect(env);
            }
        }
    }

    pub fn waits(&mut self, from: Peer, entered: bool) {
        let probed = self.probed.iter_mut().find(|(peer, _)| *peer == from);
        if let Some((_, answer)) = probed {
            *answer = if entered {
                Answer::Entered
            } else {
                Answer::NotEntered
            };
        }
        if let Some((peer, _, answered)) = &mut self.asked
            && *peer == from
        {
            *answered = true;
        }
    }

    fn result_to(&self, env: &mut Env, to: Peer) {
        self.send(env, to, Part::Result(self.lost), self.value);
    }

    /// Claims the operands of all.
    pub fn collect(&mut self, env: &mut Env) {
        if self.has || self.ended() || self.gather.is_some() {
            return;
        }
        if !self.entered() && self.kind.up() {
            self.due = true;
            return;
        }
        self.sealed = true;
        self.drop_reduce(env);
        if !self.entered() {
            self.start = env.cx.now;
        }
        self.probed.clear();
        self.probe_at = env.cx.now + Time(env.config().timeout.0 / 2);
        let (me, now) = (env.cx.me, env.cx.now);
        let own = if self.kind.up() { self.own } else { NONE };
        let (mut sources, mut claimed, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for peer in 0..env.config().processes {
            let mut source = Source::awaited(peer, now, true);
            if peer == me {
                (source.given, source.body) = (true, own);
            } else if self.passed(env, peer) {
                absent.push(peer);
                continue;
            } else {
                self.send(env, peer, Part::Claim, NONE);
                claimed.push(peer);
            }
            sources.push(source);
        }
        self.gather = Some(Box::new(Gather {
            fold: Fold::new(sources, own),
            claimed,
            absent,
            combining: false,
        }));
        self.fold(env);
    }

    pub fn drop_gather(&mut self, env: &mut Env) {
        if let Some(gather) = self.gather.take() {
            for body in gather.fold.bodies() {
                env.release(body);
            }
        }
    }

    /// `from` puts the result together.
    pub fn claimed(&mut self, env: &mut Env, from: Peer) {
        if self.passed(env, from) {
            return;
        }
        if self.has && self.kind.down() {
            return self.result_to(env, from);
        }
        if self.gather.is_some() {
            if env.cx.me < from {
                return; // It has a claim from here.
            }
            self.drop_gather(env);
        }
        if self.kind.down() {
            self.sealed = true;
            self.drop_reduce(env);
        }
        if self.entered() || !self.kind.up() {
            return self.give(env, from);
        }
        self.claimants.push(from);
        self.send(env, from, Part::Wait(false), NONE);
    }

    /// The operand goes to one who claimed it.
    pub fn give(&mut self, env: &mut Env, to: Peer) {
        let own = if self.kind.up() { self.own } else { NONE };
        self.send(env, to, Part::Give, own);
        // It is heard of by now; if it dies the next one is asked.
        self.asked = Some((to, env.cx.now, true));
    }

    pub fn given(&mut self, env: &mut Env, from: Peer, body: Option<Body>) {
        let Some(gather) = &mut self.gather else {
            if self.has && self.kind.down() {
                self.result_to(env, from); // Left out for its silence.
            }
            return;
        };
        if let Some(at) = gather.fold.awaited(from) {
            let body = env.retain(body);
            let source = &mut gather.fold.sources[at];
            (source.given, source.body) = (true, body);
            self.fold(env);
        }
    }

    /// Nothing comes from `peer`.
    fn ungiven(&mut self, env: &mut Env, peer: Peer) {
        if let Some(gather) = &mut self.gather
            && let Some(at) = gather.fold.awaited(peer)
        {
            gather.fold.replace(at, Vec::new());
            gather.absent.push(peer);
            self.fold(env);
        }
    }

    fn fold(&mut self, env: &mut Env) {
        let Some(gather) = &mut self.gather else {
            return;
        };
        if gather.combining {
            return;
        }
        match gather.fold.step(NONE) {
            Step::Waiting => {}
            Step::Combine { acc, arg, acc_left } => {
                gather.combining = true;
                env.out.push_back(Output::Combine {
                    op: Op(self.seq << 1 | 1),
                    acc: Body(acc),
                    arg: Body(arg),
                    acc_left,
                });
            }
            Step::Value(value) => self.collected(env, value),
        }
    }

    pub fn gathered(&mut self, env: &mut Env, good: bool) {
        let Some(gather) = &mut self.gather else {
            return;
        };
        gather.combining = false;
        if !good {
            return self.fail(env, Why::Operator);
        }
        if let Some(body) = gather.fold.combined() {
            env.release(body);
        }
        self.fold(env);
    }

    fn collected(&mut self, env: &mut Env, value: u32) {
        let Some(gather) = self.gather.take() else {
            return;
        };
        if value != NONE {
            for &peer in &gather.absent {
                let body = Body(value);
                env.event(Event::Absent { body, peer });
            }
        }
        self.lost = self.kind == CollectiveKind::Bcast;
        self.decide(env, value, env.cx.me);
        if self.kind.down() {
            self.tell(env, &gather.claimed);
        }
    }

    fn tell(&self, env: &mut Env, claimed: &[Peer]) {
        for &peer in claimed {
            if env.dead.binary_search(&peer).is_err() {
                self.result_to(env, peer);
            }
        }
    }

    /// A result from one who was asked, claims, or was claimed.
    pub fn result(
        &mut self,
        env: &mut Env,
        from: Peer,
        (lost, by): (bool, Peer),
        body: Option<Body>,
    ) {
        if self.has || !self.kind.down() {
            if self.has && self.by != by {
                let seq = self.seq;
                env.event(Event::Diverged { seq, peer: from });
            }
            return;
        }
        let value = env.retain(body);
        let gather = self.gather.take();
        self.drop_reduce(env);
        self.lost = lost;
        self.decide(env, value, by);
        if let Some(gather) = gather {
            for body in gather.fold.bodies() {
                env.release(body);
            }
            let others: Vec<Peer> = gather
                .claimed
                .into_iter()
                .filter(|&one| one != from)
                .collect();
            self.tell(env, &others);
        }
    }

    /// Those whose operands are awaited here.
    pub fn ungathered(&self) -> impl Iterator<Item = Peer> + '_ {
        let sources = self.gather.iter().flat_map(|gather| &gather.fold.sources);
        sources
            .filter(|source| !source.given)
            .map(|source| source.peer)
    }
}
