//! What a node shows of its log when an incarnation opens: one item a message.

use super::MsgKind;

/// Most decisions that roll forward; older ones stay where they are.
pub(super) const FORWARD_MAX: usize = 64;

/// What was heard of a node's list.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Heard {
    /// The next item.
    pub next: u16,
    digest: u64,
}

impl Heard {
    pub fn take(&mut self, item: &MsgKind) {
        self.next = self.next.saturating_add(1);
        for word in words(item) {
            // FNV-1a by words; turned, so that high bits count for low ones.
            self.digest = (self.digest ^ word).wrapping_mul(0x100_0000_01b3);
            self.digest = self.digest.rotate_left(29);
        }
    }

    /// Of all that was heard. Two lists of the same node have the same one by chance only.
    pub const fn digest(&self) -> u64 {
        self.digest
    }
}

/// What an item says, without its place in the list.
fn words(item: &MsgKind) -> [u64; 5] {
    let level = |level: outlive_base::Level| u64::from(level.code());
    match *item {
        MsgKind::ItemCopy {
            source,
            version,
            node,
            ..
        } => [1, source.0.into(), version.0, node.into(), 0],
        MsgKind::ItemPiece {
            level: at,
            source,
            version,
            ..
        } => [2, source.0.into(), version.0, level(at), 0],
        MsgKind::ItemCommit {
            level: at,
            source,
            version,
            by,
            ..
        } => {
            let by = u64::from(by.incarnation.0) << 32 | u64::from(by.term);
            [3, source.0.into(), version.0, level(at), by]
        }
        MsgKind::ItemPrepared {
            level: at,
            source,
            version,
            ..
        } => [4, source.0.into(), version.0, level(at), 0],
        MsgKind::ItemIncarnation {
            number,
            source,
            version,
            ..
        } => [5, source.0.into(), version.0, number.0.into(), 0],
        MsgKind::ItemTrace { number, .. } => [6, number.0.into(), 0, 0, 0],
        MsgKind::ItemBlind { .. } => [7, 0, 0, 0, 0],
        _ => [0; 5],
    }
}

/// What is said after the last item.
pub(super) fn end(list: &[MsgKind]) -> MsgKind {
    let mut heard = Heard::default();
    list.iter().for_each(|item| heard.take(item));
    MsgKind::ItemEnd {
        index: heard.next,
        digest: heard.digest,
    }
}

/// An item with its place in the list.
pub(super) fn numbered(item: MsgKind, index: u16) -> MsgKind {
    match item {
        MsgKind::ItemCopy {
            source,
            version,
            node,
            ..
        } => MsgKind::ItemCopy {
            index,
            source,
            version,
            node,
        },
        MsgKind::ItemPiece {
            level,
            source,
            version,
            ..
        } => MsgKind::ItemPiece {
            index,
            level,
            source,
            version,
        },
        MsgKind::ItemCommit {
            level,
            source,
            version,
            by,
            ..
        } => MsgKind::ItemCommit {
            index,
            level,
            source,
            version,
            by,
        },
        MsgKind::ItemPrepared {
            level,
            source,
            version,
            ..
        } => MsgKind::ItemPrepared {
            index,
            level,
            source,
            version,
        },
        MsgKind::ItemIncarnation {
            number,
            source,
            version,
            ..
        } => MsgKind::ItemIncarnation {
            index,
            number,
            source,
            version,
        },
        MsgKind::ItemTrace { number, .. } => MsgKind::ItemTrace { index, number },
        MsgKind::ItemBlind { .. } => MsgKind::ItemBlind { index },
        other => other,
    }
}
