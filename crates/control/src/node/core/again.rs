//! What is written again as an incarnation opens, because a node was lost.

use outlive_base::{Incarnation, NodeId, Version};
use outlive_protocols::commit::Levels;

use super::Core;
use crate::node::copies::Progress;
use crate::node::shell::{Ask, Shell};

impl<S: Shell> Core<S> {
    /// After a node was replaced, the restored version lacks copies: the new node's
    /// own container, and what the lost node kept for others. The slabs hold the
    /// same bytes, so the same containers are written again.
    ///
    /// How far this node's own is, if it is the one that lacks it.
    pub(super) fn protect_again(
        &mut self,
        source: Incarnation,
        version: Version,
        replaced: &[NodeId],
    ) -> Option<Progress> {
        let mut missing = Vec::new();
        let levels = self.all_levels();
        if replaced.contains(&self.me) {
            let stored = levels.iter().filter(|it| it.store().is_of_nodes());
            missing.extend(stored);
        } else if self
            .partner_at(source, version)
            .is_some_and(|partner| replaced.contains(&partner))
        {
            missing.extend(levels.iter().filter(|it| it.has_partner()));
        }
        missing.retain(|level| {
            levels.contains(*level)
                && self
                    .contents
                    .part(source, version, *level, self.me)
                    .is_some()
        });
        if missing.is_empty() || self.is_empty_at(source, version) {
            return None;
        }
        let levels = Levels::of(&missing);
        let total = self.contents.ranks_of(source, version).unwrap_or(0);
        match self.flush_at(source, version, total) {
            Ok(mut flush) => {
                flush.keep_targets(levels);
                flush.quiet = true;
                let progress = flush.progress.clone();
                let own = levels.iter().any(|it| it.store().is_of_nodes());
                self.shell.ask(Ask::Flush(flush));
                (own && replaced.contains(&self.me)).then_some(progress)
            }
            Err(error) => {
                self.warn(error);
                None
            }
        }
    }
}
