//! What waits to be pulled by the driver.
//!
//! Invariants: outputs leave in the order in which they were put in, except that
//! one whose port is busy lets a later one for a free port pass (nothing here
//! depends on an earlier output: what depends on a record is put in only after
//! its `on_done`). A broadcast is one entry with a cursor, not `nodes` entries.
//! Sends are unreliable by contract, so beyond [`SENDS_MAX`] they are dropped and
//! the resend brings them back; events and records are never dropped.

use std::collections::VecDeque;

use outlive_base::machine::{Op, Output, Peer, Ready};

use super::{Commit, Event, Msg, Record};

/// Most sends that wait at one time.
const SENDS_MAX: usize = 1024;

#[derive(Debug)]
enum Waiting {
    Send {
        to: Peer,
        msg: Msg,
    },
    /// To all nodes from `next` on.
    All {
        next: Peer,
        nodes: u32,
        msg: Msg,
    },
    Persist {
        op: Op,
        record: Record,
    },
    Event(Event),
}

/// The queue of outputs, and the messages of this node to itself.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    sends: usize,
    /// Messages from this node to itself; handled before the input's call ends.
    pub to_self: VecDeque<Msg>,
}

impl Outbox {
    pub fn event(&mut self, event: Event) {
        self.waiting.push_back(Waiting::Event(event));
    }

    pub fn persist(&mut self, op: Op, record: Record) {
        self.waiting.push_back(Waiting::Persist { op, record });
    }

    pub fn send(&mut self, me: Peer, to: Peer, msg: Msg) {
        if to == me {
            self.to_self.push_back(msg);
        } else if self.sends < SENDS_MAX {
            self.sends += 1;
            self.waiting.push_back(Waiting::Send { to, msg });
        }
    }

    /// To every node, this one included.
    pub fn send_all(&mut self, nodes: u32, msg: Msg) {
        self.to_self.push_back(msg);
        if self.sends < SENDS_MAX {
            self.sends += 1;
            self.waiting.push_back(Waiting::All {
                next: 0,
                nodes,
                msg,
            });
        }
    }

    /// Forgets messages of an older incarnation; records and events stay.
    pub fn drop_sends(&mut self) {
        self.waiting
            .retain(|one| matches!(one, Waiting::Persist { .. } | Waiting::Event(_)));
        self.sends = 0;
        self.to_self.clear();
    }

    /// The next output for a free port.
    pub fn pull(&mut self, me: Peer, ready: Ready) -> Option<Output<Commit>> {
        let mut at = 0;
        while at < self.waiting.len() {
            match &mut self.waiting[at] {
                Waiting::Send { to, msg } if ready.send => {
                    let output = Output::Send {
                        to: *to,
                        msg: *msg,
                        body: None,
                    };
                    self.take_send(at);
                    return Some(output);
                }
                Waiting::All { next, nodes, msg } if ready.send => {
                    if *next == me {
                        *next += 1;
                    }
                    if *next >= *nodes {
                        self.take_send(at);
                        continue;
                    }
                    let output = Output::Send {
                        to: *next,
                        msg: *msg,
                        body: None,
                    };
                    *next += 1;
                    return Some(output);
                }
                Waiting::Persist { op, record } if ready.persist => {
                    let output = Output::Persist {
                        op: *op,
                        record: *record,
                    };
                    self.waiting.remove(at);
                    return Some(output);
                }
                Waiting::Event(event) => {
                    let output = Output::Event(*event);
                    self.waiting.remove(at);
                    return Some(output);
                }
                _ => at += 1,
            }
        }
        None
    }

    fn take_send(&mut self, at: usize) {
        self.waiting.remove(at);
        self.sends = self.sends.saturating_sub(1);
    }
}
