//! What a node shows of its log when an incarnation opens: one item a message.

use super::MsgKind;

/// Most decisions that roll forward; older ones stay where they are.
pub(super) const FORWARD_MAX: usize = 64;

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
