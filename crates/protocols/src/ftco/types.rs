//! Configuration and messages of the fault-tolerant collectives.

use outlive_base::Time;
use outlive_base::machine::Peer;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::collective::CollectiveKind;

/// What all instances of one communicator share.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tree, planned once.
    pub plan: Plan,
    /// Silence after which a process is bypassed: its contribution is left out
    /// unless the processes below it still bring theirs. Half of it is the time
    /// after which a silent process is asked.
    pub timeout: Time,
    /// Added to `timeout` for each level of the tree below the process that waits.
    pub timeout_per_level: Time,
    /// Time since the start of a call before which nobody takes the place of a root
    /// that is silent and not known to be dead. At least `timeout`.
    pub patience: Time,
    /// Time since the start of a call for which a process that answers and has not
    /// yet entered the call is waited for.
    pub late: Time,
    /// Time since the start of a call after which it fails (P5).
    pub bound: Time,
    /// Ended collectives whose results are kept for those who come late; at least 2.
    ///
    /// Bcast, Reduce and Gather do not wait for everyone: a process may be far ahead of
    /// others. The layer above puts a Barrier after at most `retained / 2` of these in a
    /// row ([`CollectiveKind::synchronises`]), else orphans may find that what they need is gone.
    pub retained: u32,
    /// How far a sender may be ahead of this process, in collectives, and how many may
    /// be in flight here; what is beyond is dropped or refused.
    pub ahead: u32,
}

impl Config {
    /// Defaults: 2 s (that of ULFM, and of the published figures), 1 ms a level, 4 s
    /// before a root is replaced, 64 results retained.
    pub fn new(plan: Plan) -> Config {
        Config {
            plan,
            timeout: Time::from_secs(2),
            timeout_per_level: Time::from_ms(1),
            patience: Time::from_secs(4),
            late: Time::from_secs(60),
            bound: Time::from_secs(600),
            retained: 64,
            ahead: 1024,
        }
    }
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Verb {
    /// Here is what I and those below me contribute (the body; none in a Bcast whose
    /// data never came).
    Give,
    /// Give me what you have: the process between us is silent, or you are.
    Claim,
    /// Are you there? I wait for the result.
    Ask,
    /// I am in the call and have no answer yet.
    Wait,
    /// I am there, and not yet in the call.
    Idle,
    /// The result (the body; none if a Bcast's data is lost).
    Result,
    /// The result is no longer retained.
    Gone,
    /// I am in another call with this sequence number.
    Mismatch,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Msg {
    /// Sequence number of the collective on its communicator.
    pub seq: u32,
    /// Its root.
    pub root: Peer,
    /// [`Verb::Result`]: who put it together.
    pub by: Peer,
    /// Which collective.
    pub kind: CollectiveKind,
    /// What it says.
    pub verb: Verb,
}

impl Msg {
    /// Bytes on the wire.
    pub const BYTES: usize = 14;

    /// Little-endian: sequence number, root, by, kind, verb.
    pub fn encode(self) -> [u8; Msg::BYTES] {
        let mut bytes = [0; Msg::BYTES];
        bytes[0..4].copy_from_slice(&self.seq.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.by.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes[13] = self.verb as u8;
        bytes
    }

    /// The reverse of [`Msg::encode`]; `None` if a kind or verb is unknown.
    pub fn decode(bytes: [u8; Msg::BYTES]) -> Option<Msg> {
        const VERBS: [Verb; 8] = [
            Verb::Give,
            Verb::Claim,
            Verb::Ask,
            Verb::Wait,
            Verb::Idle,
            Verb::Result,
            Verb::Gone,
            Verb::Mismatch,
        ];
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Msg {
            seq: word(0),
            root: word(4),
            by: word(8),
            kind: CollectiveKind::of(bytes[12])?,
            verb: *VERBS.get(usize::from(bytes[13]))?,
        })
    }
}
