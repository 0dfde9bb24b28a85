//! Agreement on who is absent: the list that travels with the body of a contribution.
//!
//! [`crate::collective::CollectiveKind::Agree`] (and every Allreduce, Allgather and Barrier) gives the
//! same value and the same list to all processes that live. What it takes from the
//! machine is only the order of unions; the list itself is here, with its bytes.
//!
//! Invariants: ascending, no rank twice; empty (and without memory) if nobody is
//! absent; the bytes of a list are a function of the set.
//!
//! On the wire: a count, then gaps (the first rank, then each rank less the one before,
//! less one), all as LEB128 of at most 5 bytes: 2 bytes for a rank among 10,000.

use outlive_base::machine::Peer;

/// Ranks that did not contribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absent(Vec<Peer>);

impl Absent {
    /// Nobody.
    pub const fn new() -> Absent {
        Absent(Vec::new())
    }
    /// Puts a rank on the list.
    pub fn add(&mut self, peer: Peer) {
        if let Err(at) = self.0.binary_search(&peer) {
            self.0.insert(at, peer);
        }
    }
    /// Puts all of another list on this one.
    pub fn unite(&mut self, other: &Absent) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
        } else if !other.0.is_empty() {
            self.0.extend_from_slice(&other.0);
            self.0.sort_unstable();
            self.0.dedup();
        }
    }
    /// True if `peer` is on the list.
    pub fn contains(&self, peer: Peer) -> bool {
        self.0.binary_search(&peer).is_ok()
    }
    /// True if nobody is absent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The ranks, ascending.
    pub fn as_slice(&self) -> &[Peer] {
        &self.0
    }

    /// Appends the bytes of the list.
    pub fn encode(&self, to: &mut Vec<u8>) {
        put(to, self.0.len() as u32);
        let mut next = 0;
        for &peer in &self.0 {
            put(to, peer - next);
            next = peer.wrapping_add(1);
        }
    }

    /// Reads a list of ranks below `processes` from the front; what follows it is left.
    /// `None` if it is cut off or not as [`Absent::encode`] writes it. Allocates no more
    /// than the bytes there are can hold.
    pub fn decode(from: &mut &[u8], processes: u32) -> Option<Absent> {
        let count = take(from)?;
        if count > processes || count as usize > from.len() {
            return None;
        }
        let mut peers = Vec::with_capacity(count as usize);
        let mut next = 0u32;
        for _ in 0..count {
            let peer = next.checked_add(take(from)?)?;
            if peer >= processes {
                return None;
            }
            peers.push(peer);
            next = peer + 1;
        }
        Some(Absent(peers))
    }
}

impl FromIterator<Peer> for Absent {
    fn from_iter<I: IntoIterator<Item = Peer>>(peers: I) -> Absent {
        let mut peers: Vec<Peer> = peers.into_iter().collect();
        peers.sort_unstable();
        peers.dedup();
        Absent(peers)
    }
}

fn put(to: &mut Vec<u8>, mut word: u32) {
    while word >= 0x80 {
        to.push(word as u8 | 0x80);
        word >>= 7;
    }
    to.push(word as u8);
}

fn take(from: &mut &[u8]) -> Option<u32> {
    let mut word = 0u64;
    for shift in 0..5 {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        word |= u64::from(byte & 0x7f) << (7 * shift);
        if byte & 0x80 == 0 {
            // One way to write each number.
            let shortest = shift == 0 || byte != 0;
            return u32::try_from(word).ok().filter(|_| shortest);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    #[test]
    fn lists_unite_as_sets_and_survive_the_wire() {
        let mut random = Sequence::new(outlive_base::seed!(), 0);
        for _ in 0..300 {
            let processes = 1 + random.below(100_000) as u32;
            let mut draw = |n: u64| -> Vec<u32> {
                let count = random.below(n);
                (0..count)
                    .map(|_| random.below(u64::from(processes)) as u32)
                    .collect()
            };
            let (a, b) = (draw(20), draw(20));
            let mut united: Absent = a.iter().copied().collect();
            united.unite(&b.iter().copied().collect());
            let set: std::collections::BTreeSet<u32> = a.iter().chain(&b).copied().collect();
            assert_eq!(united.as_slice(), set.into_iter().collect::<Vec<_>>());
            let mut bytes = Vec::new();
            united.encode(&mut bytes);
            assert!(bytes.len() <= 1 + 3 * united.as_slice().len());
            bytes.push(9);
            let mut rest = &bytes[..];
            assert_eq!(Absent::decode(&mut rest, processes), Some(united));
            assert_eq!(rest, [9]);
        }
    }

    #[test]
    fn bytes_from_outside_are_refused_without_allocating() {
        let refused = |bytes: &[u8], processes| {
            let mut rest = bytes;
            assert_eq!(Absent::decode(&mut rest, processes), None, "{bytes:?}");
        };
        refused(&[], 4);
        refused(&[1], 4);
        refused(&[1, 4], 4);
        refused(&[2, 3, 0], 4);
        refused(&[5, 0, 0, 0, 0, 0], 4);
        refused(&[0xff, 0xff, 0xff, 0xff, 0x0f], u32::MAX);
        refused(&[0xff, 0xff, 0xff, 0xff, 0x1f], u32::MAX);
        refused(&[1, 0x80, 0x00], 4);
        refused(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f], u32::MAX);
        let all: Absent = (0..4).collect();
        let mut bytes = Vec::new();
        all.encode(&mut bytes);
        assert_eq!(bytes, [4, 0, 0, 0, 0]);
    }
}
