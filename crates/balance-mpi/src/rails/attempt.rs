//! One attempt as a transport: its processes are the agreed members, renumbered.
//!
//! Invariant: after the first stop every call fails at once, so that the balancing
//! unwinds to its caller, which agrees with the others on what comes next.

use outlive_base::wire::Reader;
use outlive_base::{Error, Result, Time};
use outlive_collectives::Operator;
use outlive_network::rail::Rail;
use outlive_protocols::collective::CollectiveKind;

use super::{Rails, Stop, Word};
use crate::transport::Transport;

/// Bytes of one value in an all-gather: rank and value.
const VALUE_BYTES: usize = 12;

pub(super) struct Attempt<'a, R: Rail> {
    rails: &'a mut Rails<R>,
    members: Vec<u32>,
    me: u32,
    /// Collectives so far.
    calls: u32,
    abandoned: bool,
}

/// Appends.
struct Append;

impl Operator for Append {
    fn combine(&mut self, _: u32, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool) -> bool {
        if acc_left {
            acc.extend_from_slice(arg);
        } else {
            let right = core::mem::replace(acc, arg.to_vec());
            acc.extend(right);
        }
        true
    }
}

impl<'a, R: Rail> Attempt<'a, R> {
    pub(super) fn new(rails: &'a mut Rails<R>, members: Vec<u32>) -> Result<Attempt<'a, R>> {
        let place = members.iter().position(|&rank| rank == rails.me());
        let me = place.ok_or_else(|| rails.expelled())? as u32;
        rails.open(u64::from(rails.attempt), members.clone())?;
        Ok(Attempt {
            rails,
            members,
            me,
            calls: 0,
            abandoned: false,
        })
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    pub(super) fn abandoned(&self) -> bool {
        self.abandoned
    }

    fn stop(&mut self, stop: Stop) -> Error {
        self.abandoned |= matches!(stop, Stop::Abandoned);
        stop.into()
    }

    fn check(&mut self) -> Result<()> {
        match self.abandoned || self.rails.hopeless() {
            true => Err(self.stop(Stop::Abandoned)),
            false => Ok(()),
        }
    }

    fn taken(&mut self, from: Option<u32>, tag: u32) -> Option<(u32, Vec<u8>)> {
        let (attempt, mail) = (self.rails.attempt, &mut self.rails.mail);
        let place = mail.iter().position(|mail| {
            let wanted = from.is_none_or(|from| from == mail.from);
            mail.attempt == attempt && mail.tag == tag && wanted
        })?;
        let mail = mail.remove(place)?;
        let from = self.members.binary_search(&mail.from).ok()? as u32;
        Some((from, mail.bytes))
    }
}

impl<R: Rail> Transport for Attempt<'_, R> {
    fn rank(&self) -> u32 {
        self.me
    }

    fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let real = self.members[to as usize];
        if to == self.me {
            let (attempt, from, bytes) = (self.rails.attempt, real, bytes.to_vec());
            let own = super::Mail {
                attempt,
                from,
                tag,
                bytes,
            };
            self.rails.mail.push_back(own);
        } else {
            self.rails.say(real, Word::Data, tag, bytes.to_vec());
        }
        Ok(())
    }

    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
        let from = from.map(|place| self.members[place as usize]);
        let end = self.rails.rail.now() + Time::from(self.rails.options.bound);
        loop {
            if let Some(found) = self.taken(from, tag) {
                return Ok(found);
            }
            self.check()?;
            self.rails.pump(u64::from(self.rails.attempt), None);
            if let Some(found) = self.taken(from, tag) {
                return Ok(found);
            }
            self.check()?;
            let now = self.rails.rail.now();
            if now >= end {
                let error = self.rails.silent(format!("from rank {from:?}"));
                return Err(self.stop(Stop::Error(error)));
            }
            self.rails.rail.wait(now + super::NAP);
        }
    }

    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>> {
        self.check()?;
        let mut own = self.me.to_le_bytes().to_vec();
        own.extend(value.to_bits().to_le_bytes());
        let call = (
            u64::from(self.rails.attempt),
            self.calls,
            CollectiveKind::Allgather,
        );
        self.calls += 1;
        let done = self
            .rails
            .collective(call, own, &mut Append, |rails| rails.hopeless());
        let (bytes, absent) = done.map_err(|stop| self.stop(stop))?;
        let mut all = vec![None; self.members.len()];
        for entry in bytes.chunks_exact(VALUE_BYTES) {
            let mut reader = Reader::new(entry);
            if let (Ok(rank), Ok(bits)) = (reader.u32(), reader.u64())
                && let Some(slot) = all.get_mut(rank as usize)
            {
                *slot = Some(f64::from_bits(bits));
            }
        }
        for place in absent {
            if let Some(&rank) = self.members.get(place as usize) {
                self.rails.bury(rank);
            }
        }
        let all: Option<Vec<f64>> = all.into_iter().collect();
        all.ok_or_else(|| self.stop(Stop::Abandoned))
    }
}
