//! Who is connected to whom: verdicts on callers, replacement, calling again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use outlive_base::{NodeId, rng};

use super::{Conversation, Reactor};
use crate::event::{DownReason, Event};
use crate::link::Link;
use crate::wire::{Hello, Purpose, Verdict};

/// What the loop knows of a peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Its control connection.
    pub(super) link: Option<u64>,
    /// The call in the making.
    pub(super) call: Option<u64>,
    /// The newest epoch met.
    pub(super) epoch: Option<u64>,
    /// This epoch and older ones were forgotten by the caller.
    forgotten_through: Option<u64>,
    /// The last control connection, as both ends name it; 0 for none.
    pub(super) last: u64,
    /// Calls in vain since the last lasting connection.
    pub(super) attempts: u32,
    pub(super) retry_at: Option<Instant>,
    pub(super) told_unreachable: bool,
}

/// What the verdict on a caller's control connection depends on.
#[derive(Clone, Copy, Debug)]
struct Standing {
    me: NodeId,
    /// The newest epoch of the caller that was met.
    epoch: Option<u64>,
    forgotten_through: Option<u64>,
    /// The standing connection: (epoch, id, this end called).
    link: Option<(u64, u64, bool)>,
    /// This end's own call has reached the peer.
    calling: bool,
}

/// Whether a caller that holds the key is accepted.
///
/// Two peers that call each other at once must keep the same one of the two
/// connections, and a peer that lost a connection which still looks alive here
/// must get through. `last` tells the two cases apart: it is the last connection
/// that the caller knows of.
fn judge(standing: &Standing, caller: &Hello, last: u64) -> Verdict {
    let Hello {
        identity, wanted, ..
    } = *caller;
    if wanted != standing.me || identity.peer == standing.me {
        return Verdict::WrongPeer;
    }
    if standing.epoch.is_some_and(|known| identity.epoch < known)
        || standing
            .forgotten_through
            .is_some_and(|gone| identity.epoch <= gone)
    {
        return Verdict::Stale;
    }
    match standing.link {
        Some((epoch, ..)) if identity.epoch > epoch => Verdict::Accept,
        // It called before and calls again: it has given the first up.
        Some((_, _, false)) => Verdict::Accept,
        // It knows of the connection that this end made, and calls nevertheless.
        Some((_, id, true)) if last == id => Verdict::Accept,
        Some(_) => Verdict::Duplicate,
        // Both call: the call of the smaller node number stands.
        None if standing.calling && standing.me < identity.peer => Verdict::Duplicate,
        None => Verdict::Accept,
    }
}

/// The delay before call number `attempts` (from 1): doubling, bounded, and
/// spread by a quarter so that peers do not call in step.
fn backoff(attempts: u32, min: Duration, max: Duration, random: u64) -> Duration {
    let doubled = min
        .saturating_mul(1 << attempts.saturating_sub(1).min(20))
        .min(max);
    let quarter = doubled / 4;
    let nanos = u64::try_from(quarter.as_nanos()).unwrap_or(u64::MAX);
    doubled - quarter + Duration::from_nanos(rng::below(random, nanos.saturating_mul(2)))
}

impl Reactor {
    /// The newest epoch of a peer that the caller has forgotten, and not taken back since.
    fn forgotten_through(&self, peer: NodeId) -> Option<u64> {
        let desk = self.shared.desk();
        let forgotten = desk.peers.get(&peer).is_some_and(|desk| desk.forgotten);
        let known = self.peers.get(&peer).filter(|_| forgotten);
        known.and_then(|known| known.forgotten_through)
    }

    pub(super) fn is_forgotten(&self, peer: NodeId, epoch: u64) -> bool {
        let gone = self.forgotten_through(peer);
        gone.is_some_and(|gone| epoch <= gone)
    }

    pub(super) fn verdict(&mut self, caller: &Hello, purpose: Purpose, last: u64) -> Verdict {
        let peer = caller.identity.peer;
        let forgotten_through = self.forgotten_through(peer);
        let entry = self.peers.entry(peer).or_default();
        let slot = |token: &u64| self.slots.get(token);
        let mut standing = Standing {
            me: self.me.identity.peer,
            epoch: entry.epoch,
            forgotten_through,
            link: None,
            calling: false,
        };
        if purpose == Purpose::Control {
            if let Some(Conversation::Link(link)) = entry.link.as_ref().and_then(slot) {
                standing.link = Some((link.identity.epoch, link.id, link.called));
            }
            if let Some(Conversation::Shake(shake)) = entry.call.as_ref().and_then(slot) {
                standing.calling = !shake.connecting;
            }
        }
        judge(&standing, caller, last)
    }

    /// A control connection stands.
    pub(super) fn install(&mut self, token: u64, link: Link, announced: u16) {
        let identity = link.identity;
        let entry = self.peers.entry(identity.peer).or_default();
        if entry.call == Some(token) {
            entry.call = None;
        }
        if entry.epoch.is_some_and(|known| identity.epoch < known) {
            // The address still leads to an older life of the peer.
            entry.attempts = u32::MAX;
            return self.plan_call(identity.peer);
        }
        let newer = entry.epoch.is_some_and(|known| identity.epoch > known);
        if newer {
            self.drop_parked(identity.peer, identity.epoch);
        }
        let entry = self.peers.entry(identity.peer).or_default();
        entry.epoch = Some(identity.epoch);
        entry.last = link.id;
        entry.retry_at = None;
        entry.told_unreachable = false;
        let call = entry.call.take();
        let old = entry.link.replace(token);
        if let Some(call) = call {
            self.slots.remove(&call);
        }
        if let Some(Conversation::Link(old)) = old.and_then(|old| self.slots.remove(&old)) {
            let peer = old.identity;
            self.pending.push_back(Event::Down {
                peer,
                reason: DownReason::Replaced,
            });
        }
        let addr = match link.called {
            true => link.addr,
            false => SocketAddr::new(link.addr.ip(), announced),
        };
        let mut desk = self.shared.desk();
        let entry = desk.peers.entry(identity.peer).or_default();
        entry.linked = Some(identity.epoch);
        if newer && !entry.renewed {
            entry.clear_queue();
        }
        entry.renewed = false;
        if !entry.address_given || (newer && !link.called) {
            entry.address = Some(addr);
        }
        drop(desk);
        self.pending.push_back(Event::Up { identity, addr });
        self.slots.insert(token, Conversation::Link(Box::new(link)));
        self.look_after(identity.peer);
    }

    /// A control connection has ended. Its slot is out already.
    pub(super) fn link_down(&mut self, link: &Link, reason: DownReason) {
        let identity = link.identity;
        self.pending.push_back(Event::Down {
            peer: identity,
            reason,
        });
        let entry = self.peers.entry(identity.peer).or_default();
        entry.link = None;
        if link.since.elapsed() > self.options.backoff_max {
            entry.attempts = 0;
        }
        let mut desk = self.shared.desk();
        let entry = desk.peers.entry(identity.peer).or_default();
        entry.linked = None;
        if entry.address.is_none() {
            entry.clear_queue();
        }
        drop(desk);
        self.plan_call(identity.peer);
    }

    /// Plans the next call of a peer that is wanted.
    pub(super) fn plan_call(&mut self, peer: NodeId) {
        let (min, max) = (self.options.backoff_min, self.options.backoff_max);
        let entry = self.peers.entry(peer).or_default();
        entry.attempts = entry.attempts.saturating_add(1);
        let seed = self.me.identity.epoch ^ u64::from(self.me.identity.peer.0);
        let random = rng::draw(seed, u64::from(peer.0), u64::from(entry.attempts));
        let at = Instant::now() + backoff(entry.attempts, min, max.max(min), random);
        entry.retry_at = Some(at);
        self.soon(at);
    }

    /// Does for a peer what is due: sends, or calls.
    pub(super) fn look_after(&mut self, peer: NodeId) {
        if self.isolated {
            return;
        }
        let entry = self.peers.entry(peer).or_default();
        if let Some(token) = entry.link {
            if let Some(Conversation::Link(link)) = self.slots.remove(&token) {
                self.pump(token, link);
            }
            return;
        }
        if entry.call.is_some() || entry.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        entry.retry_at = None;
        let desk = self.shared.desk();
        let address = desk
            .peers
            .get(&peer)
            .filter(|d| d.wanted)
            .and_then(|d| d.address);
        drop(desk);
        if let (Some(address), None) = (address, self.stopping) {
            let call = self.call(peer, address);
            self.peers.entry(peer).or_default().call = call;
        }
    }

    /// Closes what there is with a peer, unless it is with epoch `unless` or a newer.
    pub(super) fn on_forget(&mut self, peer: NodeId, unless: u64) {
        self.drop_parked(peer, unless);
        let entry = self.peers.entry(peer).or_default();
        let link = entry.link.and_then(|token| self.slots.get(&token));
        if let Some(Conversation::Link(link)) = link
            && link.identity.epoch >= unless
        {
            return;
        }
        entry.forgotten_through = entry.epoch;
        entry.retry_at = None;
        entry.attempts = 0;
        let gone = [entry.link.take(), entry.call.take()];
        gone.into_iter()
            .flatten()
            .for_each(|token| drop(self.slots.remove(&token)));
        // It may have come up while the caller gave it up.
        if let Some(desk) = self.shared.desk().peers.get_mut(&peer) {
            desk.linked = None;
            desk.renewed = true;
        }
        // Nothing of it is told any more.
        let of_peer = |event: &Event| match event {
            Event::Up { identity, .. } => identity.peer == peer,
            Event::Message { from, .. } | Event::Stream { from, .. } => from.peer == peer,
            Event::Down { peer: gone, .. } => gone.peer == peer,
            Event::Refused { .. } => false,
        };
        self.pending.retain(|event| !of_peer(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    fn caller(node: u32, epoch: u64) -> Hello {
        Hello {
            identity: Identity {
                peer: NodeId(node),
                epoch,
            },
            wanted: NodeId(5),
            port: 1,
        }
    }

    fn standing() -> Standing {
        Standing {
            me: NodeId(5),
            epoch: Some(3),
            forgotten_through: None,
            link: None,
            calling: false,
        }
    }

    #[test]
    fn callers_at_once_agree_on_one_connection() {
        let calling = Standing {
            calling: true,
            ..standing()
        };
        // Node 5 calls 4 and 6 while they call it: the smaller number's call stands.
        assert_eq!(judge(&calling, &caller(4, 3), 0), Verdict::Accept);
        assert_eq!(judge(&calling, &caller(6, 3), 0), Verdict::Duplicate);
        let stands = Standing {
            link: Some((3, 77, true)),
            ..standing()
        };
        assert_eq!(
            judge(&stands, &caller(6, 3), 0),
            Verdict::Duplicate,
            "called before it knew"
        );
        assert_eq!(
            judge(&stands, &caller(6, 3), 77),
            Verdict::Accept,
            "has lost it"
        );
        let called = Standing {
            link: Some((3, 77, false)),
            ..standing()
        };
        assert_eq!(
            judge(&called, &caller(6, 3), 0),
            Verdict::Accept,
            "calls anew"
        );
    }

    #[test]
    fn newer_epochs_replace_and_older_or_forgotten_ones_are_refused() {
        let stands = Standing {
            link: Some((3, 77, true)),
            calling: true,
            ..standing()
        };
        assert_eq!(judge(&stands, &caller(6, 4), 0), Verdict::Accept);
        assert_eq!(judge(&stands, &caller(6, 2), 77), Verdict::Stale);
        let gone = Standing {
            forgotten_through: Some(3),
            ..standing()
        };
        assert_eq!(judge(&gone, &caller(6, 3), 0), Verdict::Stale);
        assert_eq!(judge(&gone, &caller(6, 4), 0), Verdict::Accept);
        let lost = Hello {
            wanted: NodeId(9),
            ..caller(6, 3)
        };
        assert_eq!(judge(&standing(), &lost, 0), Verdict::WrongPeer);
        assert_eq!(judge(&standing(), &caller(5, 3), 0), Verdict::WrongPeer);
    }

    #[test]
    fn delays_grow_and_stay_bounded() {
        let (min, max) = (Duration::from_millis(20), Duration::from_secs(1));
        let mut last = Duration::ZERO;
        for attempts in [1, 2, 3, 6, 20, u32::MAX] {
            let delay = backoff(attempts, min, max, u64::MAX / 2);
            assert!(
                delay >= last && delay <= max * 5 / 4,
                "{attempts}: {delay:?}"
            );
            last = delay;
        }
        assert!(backoff(1, min, max, 0) >= min * 3 / 4);
        assert!(last >= max * 9 / 10);
    }
}
