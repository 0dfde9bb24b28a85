//! The one form in which every protocol is written, for simulation and for real.
//!
//! A [`Machine`] owns no clock, socket, file, thread or random source. A driver
//! feeds it messages, commands, time-outs and completions, and *pulls* its next
//! output with [`Machine::poll`] when a port is free: some protocols decide each
//! send from what they have just heard, so nothing is queued ahead.
//!
//! Rules for drivers: outputs are carried out in the order in which they were
//! pulled; [`Machine::poll`] is called again after every input until it returns
//! `None`; [`Machine::deadline`] is read again after every input and poll.
//!
//! Rules for machines: an output that depends on a [`Output::Persist`] is
//! withheld until its [`Machine::on_done`]; no state grows with the number of
//! processes unless the protocol's documentation says so and why.

use core::fmt::Debug;

use crate::time::Time;

/// A process as a protocol sees it.
pub type Peer = u32;

/// The number of an operation whose completion is reported back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Op(pub u32);

/// A handle into the driver's reference-counted arena of longer data: payloads,
/// lists of the dead, logged messages. In simulation it may be a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Body(pub u32);

/// Why an operation did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The medium refused it (full, no permission, damaged).
    Storage,
    /// It was not carried out within its bound.
    Timeout,
    /// The driver is shutting down.
    Closed,
}

/// Which ports can take an output now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// A message may be sent.
    pub send: bool,
    /// A record may be persisted.
    pub persist: bool,
}

impl Ready {
    /// Every port is free.
    pub const ALL: Ready = Ready {
        send: true,
        persist: true,
    };
}

/// What a machine may know of its surroundings during one call.
#[derive(Debug)]
pub struct Cx<'a, M: Machine> {
    /// This process.
    pub me: Peer,
    /// The driver's monotonic clock.
    pub now: Time,
    /// The configuration that all instances share.
    pub config: &'a M::Config,
    /// The seed of the random source.
    pub seed: u64,
}

impl<M: Machine> Cx<'_, M> {
    /// The `draw`-th random value of this instance: the machine keeps the
    /// counter, so that the same history draws the same values (P8).
    pub fn random(&self, draw: u64) -> u64 {
        crate::rng::draw(self.seed, u64::from(self.me), draw)
    }
}

impl<M: Machine> Clone for Cx<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for Cx<'_, M> {}

/// What a machine asks of its driver.
#[derive(Debug)]
pub enum Output<M: Machine> {
    /// Send a message; unreliable unless the driver promises more.
    Send {
        /// The receiver.
        to: Peer,
        /// The message.
        msg: M::Msg,
        /// Longer data that travels with it.
        body: Option<Body>,
    },
    /// Make a record durable, then report `op` through [`Machine::on_done`].
    Persist {
        /// The operation.
        op: Op,
        /// The record.
        record: M::Record,
    },
    /// Combine two bodies with the caller's operator, then report `op`.
    Combine {
        /// The operation.
        op: Op,
        /// The body that receives the result.
        acc: Body,
        /// The other operand.
        arg: Body,
        /// True if `acc` stands to the left of `arg` (operators need not commute).
        acc_left: bool,
    },
    /// Keep a body alive beyond the call that brought it.
    Retain {
        /// The body.
        body: Body,
    },
    /// Let a retained body go.
    Release {
        /// The body.
        body: Body,
    },
    /// Tell the layer above.
    Event(M::Event),
}

/// A protocol as a pure state machine. See the module's rules.
pub trait Machine: Sized {
    /// Shared by all instances; never stored in `self`.
    type Config: Debug;
    /// Small and fixed, at most [`MESSAGE_BYTES_MAX`] bytes; longer data is a [`Body`].
    type Msg: Copy + Debug + PartialEq;
    /// What the layer above may ask.
    type Command: Debug;
    /// What must survive a crash.
    type Record: Clone + Debug + PartialEq;
    /// What the layer above is told.
    type Event: Debug + PartialEq;

    /// A message arrived.
    fn on_message(&mut self, cx: &Cx<Self>, from: Peer, msg: Self::Msg, body: Option<Body>);
    /// The layer above asks for something.
    fn on_command(&mut self, cx: &Cx<Self>, command: Self::Command);
    /// The deadline has passed.
    fn on_timeout(&mut self, cx: &Cx<Self>);
    /// An operation ended.
    fn on_done(&mut self, cx: &Cx<Self>, op: Op, result: Result<(), Fault>);
    /// The next output, if there is one for a port that is ready.
    fn poll(&mut self, cx: &Cx<Self>, ready: Ready) -> Option<Output<Self>>;
    /// When [`Machine::on_timeout`] wants to be called, if at all.
    fn deadline(&self, cx: &Cx<Self>) -> Option<Time>;
    /// The state after a crash, from the records that reached the disk.
    fn recover(cx: &Cx<Self>, log: impl Iterator<Item = Self::Record>) -> Self;
}

/// The largest message of a machine, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 32;
