//! Balancing over our own rails: TCP between the processes of the job, or threads. No
//! MPI, and a process that fails does not end the others.
//!
//! A balancing is one or more *attempts*. In an attempt the processes of the agreed
//! membership run [`crate::distributed`]; nothing real moves before its end, so an
//! attempt that is given up costs time and nothing else. Whoever learns of a death
//! gives the attempt up. Then all agree ([`CollectiveKind::Agree`]) on whether everyone got
//! through and on who failed, and either return or begin again from what they had,
//! without the failed: with their tasks the edges to them go, for a task lives and
//! dies with its process.
//!
//! Invariants:
//! - All processes that return from one balancing return the same verdict, the same
//!   list of failed ones and outcomes of the same attempt, also those that die
//!   afterwards: nobody returns before everyone who lives has confirmed the verdict.
//! - After that nobody needs a process that has returned: the confirmation is said by
//!   each to each, not relayed.
//! - A process that is slow is waited for (up to [`Options::bound`]), never judged.
//! - Frames of an attempt that is over are dropped.
//!
//! Cost without failures: beside the balancing itself one agreement (up and down a
//! tree) and one message of 64 bytes from each to each; each process keeps a
//! connection to each other, by which it learns of deaths. Meant for thousands of
//! processes, not for hundreds of thousands.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outlive_balance::diffusion;
use outlive_base::{Code, Entity, Error, Result, Time};
use outlive_collectives::Operator;
use outlive_collectives::engine::{Bounds, Engine, Start};
use outlive_network::rail::{Content, Frame, Key, News, Rail};
use outlive_protocols::broadcast::LogP;
use outlive_protocols::broadcast::tree::{Order, Shape};
use outlive_protocols::collective::{Call, CollectiveKind, Command, Event};
use outlive_protocols::ftco::{Config, Machine, Plan};

use crate::distributed;
use crate::outcome::Outcome;
use crate::tasks::Local;

mod attempt;
mod meeting;
mod verdict;

use attempt::Attempt;
pub use meeting::meet;
use verdict::{Union, Verdict, Vote};

/// The protocol numbers of this rail's frames.
const COLLECTIVE: u8 = 1;
const WORDS: u8 = 2;
/// The communicator of the agreements; those of attempts are numbered from 1.
const AGREEMENTS: u64 = 0;
/// How long a wait sleeps when nothing wakes it.
const NAP: Time = Time::from_ms(50);

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The longest wait for another process that is not known to be dead: it bounds
    /// how much later than others a process may call. Then the call fails.
    pub bound: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bound: Duration::from_secs(600),
        }
    }
}

/// What is said outside of collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Word {
    /// Part of an attempt, with a tag.
    Data,
    /// The sender gave the attempt up.
    Quit,
    /// The sender knows the verdict on the attempt.
    Confirm,
}

/// A word of an attempt that nobody took yet.
struct Mail {
    attempt: u32,
    from: u32,
    tag: u32,
    bytes: Vec<u8>,
}

/// What a balancing with failures came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Survived {
    /// As over any transport; processes are numbered as on the rail.
    pub outcome: Outcome,
    /// All processes that failed or left so far, ascending: the same at all. What they
    /// had is gone and in no list.
    pub failed: Vec<u32>,
    /// Attempts, 1 without failures.
    pub attempts: u32,
}

/// The balancing end of a rail.
pub struct Rails<R: Rail> {
    rail: R,
    engine: Engine<Machine>,
    options: Options,
    /// Processes known here to have failed or left.
    gone: BTreeSet<u32>,
    /// Those of them that all agreed on.
    agreed: BTreeSet<u32>,
    /// The attempt under way or the last one; the first is 1.
    attempt: u32,
    /// Agreements so far.
    agreements: u32,
    /// The latest attempt that someone gave up.
    quit: u32,
    /// The latest attempt whose verdict each process confirmed.
    confirmed: Vec<u32>,
    mail: VecDeque<Mail>,
    /// An agreement failed here: what the others did is not known.
    closed: bool,
}

/// Why a wait ended without what was waited for.
#[derive(Debug)]
enum Stop {
    /// A death or another's giving up: the attempt is over.
    Abandoned,
    /// An error of this process's own.
    Error(Error),
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        match stop {
            Stop::Error(error) => error,
            // Never seen outside: the attempt's end is agreed on first.
            Stop::Abandoned => Error::new(
                Code::RankLost,
                Entity::Call,
                "a process failed during the balancing",
                "call again",
            ),
        }
    }
}

impl<R: Rail> Rails<R> {
    /// Balancing over `rail`, which is this object's alone from now on. All processes
    /// of the rail take part in every balancing.
    ///
    /// # Errors
    /// None in practice: those of planning a tree.
    pub fn new(rail: R, options: Options) -> Result<Rails<R>> {
        let mut rails = Rails {
            engine: Engine::new(0, Bounds::default()),
            options,
            gone: BTreeSet::new(),
            agreed: BTreeSet::new(),
            attempt: 0,
            agreements: 0,
            quit: 0,
            confirmed: vec![0; rail.size() as usize],
            mail: VecDeque::new(),
            closed: false,
            rail,
        };
        let all: Vec<u32> = (0..rails.rail.size()).collect();
        rails.open(AGREEMENTS, all)?;
        Ok(rails)
    }

    /// This process.
    pub fn me(&self) -> u32 {
        self.rail.me()
    }

    /// All processes, failed ones included.
    pub fn size(&self) -> u32 {
        self.rail.size()
    }

    /// Balances among the processes that live; collective. See
    /// [`distributed::balance`] for the arguments; an edge to a task that nobody has is
    /// dropped once a process has failed, and refused before.
    ///
    /// # Errors
    /// Bad weights or speeds at any process: an error at all. [`Code::RankLost`] where
    /// the others went on without this process. [`Code::TimedOut`] after
    /// [`Options::bound`]; the rails are of no use then.
    pub fn balance(
        &mut self,
        local: &Local,
        own: (f64, f64),
        options: &diffusion::Options,
    ) -> Result<Survived> {
        self.balance_given(Ok(local), own, options)
    }

    /// [`Rails::balance`] where this process may have failed to gather its tasks: all
    /// refuse then.
    ///
    /// # Errors
    /// The given one, and those of [`Rails::balance`].
    pub fn balance_given(
        &mut self,
        given: core::result::Result<&Local, &Error>,
        own: (f64, f64),
        options: &diffusion::Options,
    ) -> Result<Survived> {
        if self.closed {
            return Err(self.unusable());
        }
        let first = self.attempt + 1;
        loop {
            self.attempt += 1;
            self.forget_old();
            let tried = self.try_once(given, own, options);
            let (vote, outcome) = match tried {
                Ok(outcome) => (Vote::Done, Ok(outcome)),
                Err(Stop::Abandoned) => (Vote::Again, Err(None)),
                Err(Stop::Error(error)) => (Vote::Refuse, Err(Some(error))),
            };
            // What the input lacks all find out together; anything else the others would
            // wait for in vain.
            let together = match &outcome {
                Ok(_) => true,
                Err(error) => error
                    .as_ref()
                    .is_some_and(|error| error.code() == Code::InvalidArgument),
            };
            if !together {
                self.tell_all(Word::Quit);
            }
            let verdict = self.agree(vote).inspect_err(|_| self.closed = true)?;
            self.agreed.extend(&verdict.failed);
            for &process in &verdict.failed {
                self.bury(process);
            }
            if self.agreed.contains(&self.me()) {
                self.closed = true;
                return Err(self.expelled());
            }
            match (verdict.vote, outcome) {
                (Vote::Again, _) => {}
                (Vote::Done, Ok(mut outcome)) => {
                    self.confirm()?;
                    self.real_ranks(&mut outcome);
                    return Ok(Survived {
                        outcome,
                        failed: self.agreed.iter().copied().collect(),
                        attempts: self.attempt + 1 - first,
                    });
                }
                (_, outcome) => {
                    self.confirm()?;
                    let own = outcome.err().flatten();
                    return Err(own.unwrap_or_else(|| verdict.refusal()));
                }
            }
        }
    }

    /// Leaves the job: the others count this process as gone from their next balancing.
    /// Waits at most `bound` for what was said to be sent.
    pub fn leave(mut self, bound: Duration) {
        self.rail.leave(bound);
    }

    /// One attempt among the agreed members.
    fn try_once(
        &mut self,
        given: core::result::Result<&Local, &Error>,
        own: (f64, f64),
        options: &diffusion::Options,
    ) -> core::result::Result<Outcome, Stop> {
        let members: Vec<u32> = self.members();
        let after_failure = !self.agreed.is_empty();
        let mut attempt = Attempt::new(self, members).map_err(Stop::Error)?;
        let me = attempt.me();
        let mut given = given.cloned().map_err(Error::clone);
        if let Ok(local) = &mut given {
            local.me = me;
            local.own.values_mut().for_each(|task| task.home = me);
        }
        let work = || {
            if after_failure {
                // Collective: who has nothing to say takes part all the same.
                match &mut given {
                    Ok(local) => local.drop_lost(&mut attempt)?,
                    Err(_) => Local::default().drop_lost(&mut attempt)?,
                }
            }
            distributed::balance_given(&mut attempt, given, own, options)
        };
        let done = work();
        match (done, attempt.abandoned()) {
            (_, true) => Err(Stop::Abandoned),
            (Ok(outcome), false) => Ok(outcome),
            (Err(error), false) => Err(Stop::Error(error)),
        }
    }

    fn members(&self) -> Vec<u32> {
        let all = 0..self.rail.size();
        all.filter(|rank| !self.agreed.contains(rank)).collect()
    }

    /// From places among the members to ranks. Nobody failed since the attempt began.
    fn real_ranks(&self, outcome: &mut Outcome) {
        let members = self.members();
        for list in [&mut outcome.exports, &mut outcome.imports] {
            for entry in list {
                entry.1 = members[entry.1 as usize];
            }
        }
    }

    /// A machine for the collectives of one communicator.
    fn open(&mut self, comm: u64, members: Vec<u32>) -> Result<()> {
        let model = LogP {
            latency: 2,
            overhead: 1,
            gap: 1,
        };
        let count = members.len() as u32;
        let plan = Plan::new(Shape::Binomial, Order::InOrder, count, &model)?;
        let bound = Time::from(self.options.bound);
        let mut config = Config::new(plan);
        // Late is not dead: only a known death ends the waiting before the bound.
        (config.timeout, config.patience) = (bound, bound + bound);
        (config.late, config.bound) = (bound, bound);
        let me = members.iter().position(|&member| member == self.rail.me());
        let start = Start {
            key: key(comm, COLLECTIVE),
            me: me.unwrap_or(0) as u32,
            members: members.into(),
            machine: Machine::new(),
            config: Arc::new(config),
            seed: comm,
        };
        self.engine.start(&self.rail, start);
        Ok(())
    }

    /// Runs a collective of `comm` to its end, or until `stop` says that it has none.
    /// The result's bytes, and the places of the absent.
    fn collective(
        &mut self,
        (comm, number, kind): (u64, u32, CollectiveKind),
        value: Vec<u8>,
        op: &mut dyn Operator,
        stop: impl Fn(&Rails<R>) -> bool,
    ) -> core::result::Result<(Vec<u8>, Vec<u32>), Stop> {
        let key = key(comm, COLLECTIVE);
        let content = Some((number, Content::new(value)));
        let make = |value| {
            Command::Start(Call {
                kind,
                root: 0,
                value,
                ordered: true,
            })
        };
        self.engine.command(&self.rail, key, content, make);
        loop {
            self.pump(comm, Some(&mut *op));
            while let Some((event, content)) = self.engine.event(key) {
                match (event, content) {
                    (Event::Done { seq, .. }, Some(content)) if seq == number => {
                        let bytes = content.bytes.to_vec();
                        return Ok((bytes, content.absent.to_vec()));
                    }
                    (Event::Failed { seq, why }, _) if seq == number => {
                        return Err(Stop::Error(self.silent(format!("{why:?}"))));
                    }
                    _ => {}
                }
            }
            if stop(self) {
                return Err(Stop::Abandoned);
            }
            let nap = self.rail.now() + NAP;
            let until = self.engine.deadline().map_or(nap, |at| at.min(nap));
            self.rail.wait(until);
        }
    }

    /// All agree on how the attempt ended and who failed.
    fn agree(&mut self, vote: Vote) -> Result<Verdict> {
        let own = Verdict {
            vote,
            failed: self.gone.iter().copied().collect(),
            refuser: (vote == Vote::Refuse).then(|| self.me()),
        };
        let number = self.agreements;
        self.agreements += 1;
        let call = (AGREEMENTS, number, CollectiveKind::Agree);
        let (bytes, absent) = self.collective(call, own.encode(), &mut Union, |_| false)?;
        let mut verdict = Verdict::decode(&bytes)
            .ok_or_else(|| Error::internal("a verdict that cannot be read"))?;
        let fresh = |rank: &u32| !self.agreed.contains(rank);
        verdict.failed.extend(absent);
        verdict.failed.sort_unstable();
        verdict.failed.dedup();
        verdict.failed.retain(fresh);
        if verdict.vote == Vote::Done && !verdict.failed.is_empty() {
            verdict.vote = Vote::Again;
        }
        Ok(verdict)
    }

    /// Nobody goes on before everyone who lives knows the verdict.
    fn confirm(&mut self) -> Result<()> {
        self.tell_all(Word::Confirm);
        let end = self.rail.now() + Time::from(self.options.bound);
        loop {
            self.pump(AGREEMENTS, None);
            let missing = (0..self.rail.size()).find(|&rank| {
                let known = self.confirmed[rank as usize] >= self.attempt;
                rank != self.rail.me() && !known && !self.gone.contains(&rank)
            });
            if missing.is_none() && self.rail.flushed() {
                return Ok(());
            }
            if self.rail.now() >= end {
                self.closed = true;
                return Err(self.silent(format!("rank {missing:?} does not confirm")));
            }
            self.rail.wait(self.rail.now() + NAP);
        }
    }

    fn say(&mut self, to: u32, word: Word, tag: u32, bytes: Vec<u8>) {
        let mut msg = [0; 32];
        msg[..4].copy_from_slice(&self.attempt.to_le_bytes());
        msg[4..8].copy_from_slice(&tag.to_le_bytes());
        msg[8] = word as u8;
        let key = key(AGREEMENTS, WORDS);
        let body = Some(Content::new(bytes));
        self.rail.send(to, Frame { key, msg, body });
    }

    fn tell_all(&mut self, word: Word) {
        for to in 0..self.rail.size() {
            if to != self.rail.me() && !self.gone.contains(&to) {
                self.say(to, word, 0, Vec::new());
            }
        }
    }

    /// Takes in what arrived and lets the collectives go on.
    fn pump(&mut self, comm: u64, op: Option<&mut dyn Operator>) {
        while let Some((from, frame)) = self.rail.receive() {
            match frame.key.protocol {
                COLLECTIVE => self.engine.deliver(&self.rail, from, frame),
                WORDS => self.hear(from, frame),
                _ => {}
            }
        }
        while let Some(news) = self.rail.news() {
            // Who left for good is counted like the dead.
            let (News::Dead(gone) | News::Left(gone)) = news;
            self.bury(gone);
        }
        let current = key(comm, COLLECTIVE);
        self.engine.pump(&mut self.rail, current, op);
    }

    fn bury(&mut self, process: u32) {
        if process != self.rail.me() && self.gone.insert(process) {
            self.engine.death(&self.rail, process);
        }
    }

    fn hear(&mut self, from: u32, frame: Frame) {
        let word = |at: usize| {
            let four = [0, 1, 2, 3].map(|i| frame.msg[at + i]);
            u32::from_le_bytes(four)
        };
        let (attempt, tag) = (word(0), word(4));
        match frame.msg[8] {
            k if k == Word::Data as u8 && attempt >= self.attempt => {
                let bytes = frame.body.map(|content| content.bytes);
                let bytes = bytes.map_or(Vec::new(), Arc::unwrap_or_clone);
                self.mail.push_back(Mail {
                    attempt,
                    from,
                    tag,
                    bytes,
                });
            }
            k if k == Word::Quit as u8 => self.quit = self.quit.max(attempt),
            k if k == Word::Confirm as u8 => {
                let known = &mut self.confirmed[from as usize];
                *known = attempt.max(*known);
            }
            _ => {}
        }
    }

    fn forget_old(&mut self) {
        let now = self.attempt;
        self.mail.retain(|mail| mail.attempt >= now);
        if now > 1 {
            self.engine.finish(key(u64::from(now - 1), COLLECTIVE));
        }
    }

    /// True if the attempt under way cannot end well.
    fn hopeless(&self) -> bool {
        self.quit >= self.attempt || self.gone.iter().any(|rank| !self.agreed.contains(rank))
    }

    fn silent(&self, what: String) -> Error {
        Error::new(
            Code::TimedOut,
            Entity::Call,
            format!("no answer within {:?}: {what}", self.options.bound),
            "see which process does not call, or allow a longer wait",
        )
    }

    fn expelled(&self) -> Error {
        Error::new(
            Code::RankLost,
            Entity::Rank(self.rail.me()),
            "the others could not reach this process and went on without it",
            "restart the process and meet again",
        )
    }

    fn unusable(&self) -> Error {
        Error::new(
            Code::RankLost,
            Entity::Rank(self.rail.me()),
            "these rails broke in an earlier call",
            "close them and meet again",
        )
    }
}

fn key(comm: u64, protocol: u8) -> Key {
    Key {
        comm,
        sequence: 0,
        incarnation: 0,
        protocol,
    }
}

#[cfg(test)]
mod tests;
