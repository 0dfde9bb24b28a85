//! Who is silent or dead, as far as one process knows: O(faults), not O(processes).

use outlive_base::machine::Peer;

/// How sure it is. The order matters: later is surer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Doubt {
    /// It did not answer in time: it is not waited for as a contributor.
    Silent,
    /// Its place as a root was taken: it is not asked for a result either.
    Passed,
    /// The driver knows that it is dead.
    Dead,
}

/// The set, ascending.
#[derive(Debug, Default)]
pub(super) struct Known(Vec<(Peer, Doubt)>);

impl Known {
    /// Notes it; never makes it less sure.
    pub fn mark(&mut self, peer: Peer, doubt: Doubt) {
        match self.0.binary_search_by_key(&peer, |&(peer, _)| peer) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(doubt),
            Err(at) => self.0.insert(at, (peer, doubt)),
        }
    }
    /// It was heard: forgotten, unless the driver said that it is dead.
    pub fn heard(&mut self, peer: Peer) {
        if !self.0.is_empty() {
            self.0
                .retain(|&(other, doubt)| other != peer || doubt == Doubt::Dead);
        }
    }
    /// The driver says that it is there again.
    pub fn returned(&mut self, peer: Peer) {
        self.0.retain(|&(other, _)| other != peer);
    }
    fn doubt(&self, peer: Peer) -> Option<Doubt> {
        let at = self.0.binary_search_by_key(&peer, |&(peer, _)| peer).ok()?;
        Some(self.0[at].1)
    }
    /// True if it is not waited for as a contributor.
    pub fn silent(&self, peer: Peer) -> bool {
        !self.0.is_empty() && self.doubt(peer).is_some()
    }
    /// True if it is not asked for a result.
    pub fn gone(&self, peer: Peer) -> bool {
        !self.0.is_empty() && self.doubt(peer) >= Some(Doubt::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_grows_and_only_the_driver_takes_death_back() {
        let mut known = Known::default();
        known.mark(7, Doubt::Silent);
        assert!(known.silent(7) && !known.gone(7) && !known.silent(8));
        known.mark(7, Doubt::Passed);
        known.mark(7, Doubt::Silent);
        assert!(known.gone(7));
        known.heard(7);
        assert!(!known.silent(7));
        known.mark(7, Doubt::Dead);
        known.heard(7);
        assert!(known.gone(7));
        known.returned(7);
        assert!(!known.silent(7));
    }
}
