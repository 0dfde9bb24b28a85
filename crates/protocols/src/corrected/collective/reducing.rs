//! The reduce inside a collective: its messages, its silent, its end.

use outlive_base::Time;
use outlive_base::machine::{Body, Cx, Fault, Machine as _, Op, Output, Peer, Ready};

use super::{Collective, Env, Part};
use crate::collective::fold::NONE;
use crate::collective::{Call, CollectiveKind, Command, Event, Why};
use crate::reduce::{self, Reduce};

/// What one who is awaited said when it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::corrected) enum Answer {
    None,
    /// It is in the call.
    Entered,
    NotEntered,
}

#[derive(Debug)]
pub(in crate::corrected) struct Reducing {
    machine: Reduce,
    config: reduce::Config,
}

impl Collective {
    pub fn begin_reduce(&mut self, env: &mut Env) {
        let Ok(config) = env.config().reduce(self.root) else {
            return self.fail(env, Why::Argument);
        };
        let machine = Reduce::new();
        self.reduce = Some(Box::new(Reducing { machine, config }));
        let call = Call {
            kind: CollectiveKind::Reduce,
            root: self.root,
            value: Some(Body(self.own)),
            ordered: false,
        };
        // First what came, also from those who are dead by now: it counts.
        for (from, msg, body) in std::mem::take(&mut self.early) {
            self.adopt(env, from, msg, body);
        }
        let mut out: Vec<Peer> = env.dead.to_vec();
        out.extend(&self.gone);
        self.reducing(env, |machine, cx| {
            for peer in out {
                machine.on_command(cx, Command::Dead { peer });
            }
            machine.on_command(cx, Command::Start(call));
        });
    }

    /// Feeds the reduce a message whose body is kept already.
    fn adopt(&mut self, env: &mut Env, from: Peer, msg: reduce::Msg, body: u32) {
        let kept = (body != NONE).then_some(Body(body));
        let before = env.out.len();
        self.reducing(env, |machine, cx| machine.on_message(cx, from, msg, kept));
        env.hand_over(before, body);
    }

    /// Feeds the reduce, and carries on what it says.
    pub fn reducing(&mut self, env: &mut Env, feed: impl FnOnce(&mut Reduce, &Cx<Reduce>)) {
        let Some(mut inner) = self.reduce.take() else {
            return;
        };
        let Cx { me, now, seed, .. } = *env.cx;
        let Reducing { machine, config } = &mut *inner;
        let cx = Cx {
            me,
            now,
            config,
            seed,
        };
        feed(machine, &cx);
        let ended = self.drain(env, machine, &cx);
        match ended {
            None => self.reduce = Some(inner),
            Some(ended) => {
                let kept = ended.unwrap_or(None);
                machine.retire(kept);
                self.drain(env, machine, &cx);
                self.reduced(env, ended);
            }
        }
    }

    /// What the reduce says, on its way out. Its end, if it has come to it.
    fn drain(
        &self,
        env: &mut Env,
        machine: &mut Reduce,
        cx: &Cx<Reduce>,
    ) -> Option<Result<Option<Body>, Why>> {
        let mut ended = None;
        while let Some(output) = machine.poll(cx, Ready::ALL) {
            let out = match output {
                Output::Send { to, msg, body } => {
                    let msg = self.msg(Part::Reduce(msg));
                    env.sends.push_back(Output::Send { to, msg, body });
                    continue;
                }
                Output::Release { body } => {
                    env.sends.push_back(Output::Release { body });
                    continue;
                }
                Output::Event(Event::Done { value, .. }) => {
                    ended = Some(Ok(value));
                    continue;
                }
                Output::Event(Event::Failed { why, .. }) => {
                    ended = Some(Err(why));
                    continue;
                }
                Output::Event(Event::Silent { peer, .. }) => Output::Event(Event::Silent {
                    seq: self.seq,
                    peer,
                }),
                Output::Event(event) => Output::Event(event),
                Output::Retain { body } => Output::Retain { body },
                Output::Combine {
                    acc, arg, acc_left, ..
                } => Output::Combine {
                    op: Op(self.seq << 1),
                    acc,
                    arg,
                    acc_left,
                },
                Output::Persist { .. } => continue, // It persists nothing.
            };
            env.out.push_back(out);
        }
        ended
    }

    fn reduced(&mut self, env: &mut Env, ended: Result<Option<Body>, Why>) {
        let at_root = self.root == env.cx.me;
        match ended {
            Ok(value) if at_root => {
                self.decide(env, value.map_or(NONE, |body| body.0), env.cx.me);
                if self.kind.down() {
                    self.begin_spread(env);
                }
            }
            Ok(_) if !self.kind.down() => self.decide(env, NONE, self.root),
            Ok(_) => {}
            Err(Why::TooMany) => self.collect(env),
            Err(why) => self.quit(env, why),
        }
    }

    /// The reduce is needed no more.
    pub fn drop_reduce(&mut self, env: &mut Env) {
        for (.., body) in std::mem::take(&mut self.early) {
            env.release(body);
        }
        if let Some(mut inner) = self.reduce.take() {
            let Cx { me, now, seed, .. } = *env.cx;
            let Reducing { machine, config } = &mut *inner;
            machine.retire(None);
            let cx = Cx {
                me,
                now,
                config,
                seed,
            };
            self.drain(env, machine, &cx);
        }
    }

    pub fn combined(&mut self, env: &mut Env, gathering: bool, result: Result<(), Fault>) {
        if gathering {
            self.gathered(env, result.is_ok());
        } else {
            self.reducing(env, |machine, cx| machine.on_done(cx, Op(0), result));
        }
    }

    pub fn reduce_message(
        &mut self,
        env: &mut Env,
        from: Peer,
        msg: reduce::Msg,
        body: Option<Body>,
    ) {
        if !self.entered() && !self.has && !self.sealed {
            let again =
                |&(peer, m, _): &(Peer, reduce::Msg, u32)| (peer, m.step) == (from, msg.step);
            let full = self.early.len() > env.config().processes as usize;
            if !full && !self.early.iter().any(again) {
                let body = env.retain(body);
                self.early.push((from, msg, body));
            }
            return;
        }
        self.reducing(env, |machine, cx| machine.on_message(cx, from, msg, body));
    }

    /// Those whose operand or part of the reduce is awaited are asked; who did not answer the last
    /// time is passed over.
    pub fn probe(&mut self, env: &mut Env) {
        if env.cx.now < self.probe_at {
            return;
        }
        let reducing = self.reduce.iter().flat_map(|inner| inner.machine.awaited());
        let awaited: Vec<Peer> = reducing.chain(self.ungathered()).collect();
        let probed = std::mem::take(&mut self.probed);
        let too_late = env.cx.now >= self.start + env.config().late;
        self.probe_at = env.cx.now + Time((env.config().timeout.0 / 2).max(1));
        for peer in awaited {
            let last = probed.iter().find(|(other, _)| *other == peer);
            let silent = match last {
                Some((_, Answer::None)) => true,
                Some((_, Answer::NotEntered)) => too_late,
                Some((_, Answer::Entered)) | None => false,
            };
            if silent {
                self.pass_over(env, peer, true);
            } else if !self.passed(env, peer) {
                self.probed.push((peer, Answer::None));
                self.send(env, peer, Part::Ask(false), NONE);
            }
        }
    }
}
