//! Drives one machine: feeds inputs, pulls outputs, keeps their order.

use std::collections::VecDeque;

use outlive_base::Time;
use outlive_base::machine::{Cx, Machine, Op, Output, Peer, Ready};

/// A machine with what its driver must remember.
#[derive(Debug)]
pub struct Driver<M: Machine> {
    machine: M,
    config: M::Config,
    me: Peer,
    seed: u64,
}

/// What the agent has to carry out, in this order.
#[derive(Debug)]
pub enum Effect<M: Machine> {
    /// Send.
    Send(Peer, M::Msg),
    /// Make durable, then [`Driver::done`].
    Persist(Op, M::Record),
    /// Act.
    Event(M::Event),
}

impl<M: Machine> Driver<M> {
    /// A machine in the state that its log gives.
    pub fn recover(config: M::Config, me: Peer, seed: u64, now: Time, log: Vec<M::Record>) -> Self {
        let cx = Cx {
            me,
            now,
            config: &config,
            seed,
        };
        let machine = M::recover(&cx, log.into_iter());
        Driver {
            machine,
            config,
            me,
            seed,
        }
    }

    /// Gives it one input and appends what it wants done to `effects`.
    pub fn input(
        &mut self,
        now: Time,
        effects: &mut VecDeque<Effect<M>>,
        input: impl FnOnce(&mut M, &Cx<'_, M>),
    ) {
        let cx = Cx {
            me: self.me,
            now,
            config: &self.config,
            seed: self.seed,
        };
        input(&mut self.machine, &cx);
        while let Some(output) = self.machine.poll(&cx, Ready::ALL) {
            match output {
                Output::Send { to, msg, .. } => effects.push_back(Effect::Send(to, msg)),
                Output::Persist { op, record } => effects.push_back(Effect::Persist(op, record)),
                Output::Event(event) => effects.push_back(Effect::Event(event)),
                // Commit and detector have no bodies.
                Output::Combine { .. } | Output::Retain { .. } | Output::Release { .. } => {}
            }
        }
    }

    /// The machine, for its questions.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// When it wants to be woken.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let cx = Cx {
            me: self.me,
            now,
            config: &self.config,
            seed: self.seed,
        };
        self.machine.deadline(&cx)
    }
}
