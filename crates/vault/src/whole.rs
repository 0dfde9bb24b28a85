//! Whether what a version needs is there, as far as names, lengths, headers and indexes tell.

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::{Level, NodeId};
use outlive_ledger::scheme::Piece;

use crate::catalogue::Catalogue;
use crate::entry::{CopyState, Entry, PartState};
use crate::inventory::Inventory;

impl Catalogue {
    /// The places that were looked at.
    pub fn inventories(&self) -> &[Inventory] {
        &self.inventories
    }

    /// The first node whose bytes of the version are nowhere: neither in a copy that can be opened
    /// nor in what its groups have. `None`: the version can be read.
    pub fn missing_from(&self, entry: &Entry) -> Option<NodeId> {
        let mut parts = entry.parts.iter();
        let lacking = parts.find(|state| !self.has_copy(state) && !made_of_groups(entry, state));
        lacking.map(|state| state.part.node)
    }

    /// True if every copy and parity that the version needs for what `level` promises is there and
    /// can be opened.
    pub fn keeps(&self, entry: &Entry, level: Level) -> bool {
        level.store() != StoreKind::Keeper
            && entry.parts.iter().all(|state| match level.scheme() {
                // One parity of a group may serve all of its members, and bear one's name.
                Scheme::Xor | Scheme::ReedSolomon => {
                    let node = state.part.node;
                    let mut groups = entry.groups_of(node).filter(|it| it.level == level);
                    let parity = groups.any(|group| group.has_parity(node));
                    self.has_own(state) && (!parity || self.has_all(state, level))
                }
                // The node's own copy may have been in memory alone; if it is not, it counts.
                Scheme::Copies => {
                    let owned = !state.copies.iter().any(CopyState::is_own) || self.has_own(state);
                    owned && self.has_all(state, level)
                }
                Scheme::Single => self.has_all(state, level),
            })
    }

    /// True if the node's own container is there, where it has bytes.
    fn has_own(&self, state: &PartState) -> bool {
        state.part.ranks.is_empty() || self.are_there(state, CopyState::is_own)
    }

    /// True if all copies that a level alone calls for are there, one at least.
    fn has_all(&self, state: &PartState, level: Level) -> bool {
        // A node without ranks has no bytes to lose, but may keep a parity of others'.
        let is_called_for = match level.members() {
            Some(_) => state.part.parity.is_some(),
            None => !state.part.ranks.is_empty(),
        };
        !is_called_for || self.are_there(state, |copy| copy.level == level)
    }

    /// True if all copies of a kind are there, one at least.
    fn are_there(&self, state: &PartState, is_of_kind: impl Fn(&CopyState) -> bool) -> bool {
        let of_kind = |copy: &&CopyState| is_of_kind(copy);
        let mut copies = state.copies.iter().filter(of_kind).peekable();
        copies.peek().is_some() && copies.all(|copy| self.check(copy, &state.part, false).is_ok())
    }

    fn has_copy(&self, state: &PartState) -> bool {
        if state.part.ranks.is_empty() {
            return true;
        }
        let whole = |copy: &&CopyState| copy.level.members().is_none();
        let mut copies = state.copies.iter().filter(whole);
        copies.any(|copy| self.check(copy, &state.part, false).is_ok())
    }
}

fn made_of_groups(entry: &Entry, state: &PartState) -> bool {
    let want = Piece::Whole(state.part.node);
    entry.groups_of(state.part.node).any(|group| {
        let have = |piece| entry.piece(group.level, piece).is_some();
        group.terms(want, have).is_some()
    })
}
