//! What a node shows of its log when an incarnation opens: one item a message.

use super::Kind;

/// Most decisions that roll forward; older ones stay where they are.
pub(super) const FORWARD_MAX: usize = 64;

/// An item with its place in the list.
pub(super) fn numbered(item: Kind, index: u16) -> Kind {
    match item {
        Kind::ItemCopy {
            source,
            version,
            node,
            ..
        } => Kind::ItemCopy {
            index,
            source,
            version,
            node,
        },
        Kind::ItemPiece {
            level,
            source,
            version,
            ..
        } => Kind::ItemPiece {
            index,
            level,
            source,
            version,
        },
        Kind::ItemCommit {
            level,
            source,
            version,
            by,
            ..
        } => Kind::ItemCommit {
            index,
            level,
            source,
            version,
            by,
        },
        Kind::ItemPrepared {
            level,
            source,
            version,
            ..
        } => Kind::ItemPrepared {
            index,
            level,
            source,
            version,
        },
        Kind::ItemIncarnation {
            number,
            source,
            version,
            ..
        } => Kind::ItemIncarnation {
            index,
            number,
            source,
            version,
        },
        Kind::ItemTrace { number, .. } => Kind::ItemTrace { index, number },
        other => other,
    }
}
