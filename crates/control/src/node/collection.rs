//! What is removed, and when: once for all levels of a version that became stable.

use std::collections::BTreeSet;

use outlive_base::level::StoreKind;
use outlive_base::{Incarnation, Result, Time, Version};
use outlive_ledger::GcPolicy;

use super::Planted;
use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::{Ask, Collected, Done, Shell};

/// How long a collection waits for the other levels of a version.
const COLLECT_AFTER: Time = Time::from_secs(1);

/// The collection that is due, under way, or over and not heard of yet.
pub struct Collection {
    /// A version became stable: what it replaces is removed when all its levels are
    /// decided, or some time after this.
    due: Option<(Version, Time)>,
    under_way: bool,
    /// What was found that ended while an incarnation was opening.
    late: Option<Result<Collected>>,
}

impl Service for Collection {
    type Word = Silent;

    fn new(_: Time) -> Collection {
        Collection {
            due: None,
            under_way: false,
            late: None,
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match *news {
            News::Stable {
                version,
                level,
                newest: true,
            } => {
                let alone = core.config().is_none_or(|config| config.levels.len() <= 1);
                // The memory has its slots; what else the level leaves behind is a record each.
                if level.store() != StoreKind::Keeper || alone {
                    let since = self.due.map_or(core.now(), |(_, since)| since);
                    self.due = Some((version, since));
                }
                self.try_to_begin(core);
            }
            News::Aborted(_) | News::Released => self.try_to_begin(core),
            _ => {}
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        match done {
            Done::Collected { result } => {
                self.on_collected(core, result);
                None
            }
            done => Some(done),
        }
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        self.try_to_begin(core);
    }
}

impl Collection {
    /// Not while an incarnation is opening: the coordinator then sends the other nodes the
    /// records of what it has found, and must have their contents.
    fn try_to_begin<S: Shell>(&mut self, core: &mut Core<S>) {
        if core.is_opening() {
            return;
        }
        if let Some(result) = self.late.take() {
            self.on_collected(core, result);
        }
        let Some((version, since)) = self.due else {
            return;
        };
        let young = core.now().since(since) < COLLECT_AFTER;
        if self.under_way || core.rounds().contains_key(&version) && young {
            return;
        }
        self.due = None;
        self.under_way = true;
        let policy = what_goes(core);
        let shared = core.is_coordinator();
        core.begin(Ask::Collect { policy, shared });
    }

    fn on_collected<S: Shell>(&mut self, core: &mut Core<S>, result: Result<Collected>) {
        if core.is_opening() {
            // It was under way when the incarnation before ended.
            self.late = Some(result);
            return;
        }
        self.under_way = false;
        match result {
            Ok(report) => {
                let mine = report.removed.iter().filter(|id| id.node == core.me());
                let copies = mine.map(|id| (id.incarnation, id.version));
                // Versions in memory alone never have copies that are removed.
                let gone: BTreeSet<_> = copies.chain(report.forgotten).collect();
                for (source, version) in gone {
                    core.forget(source, version);
                }
            }
            Err(error) => core.warn_of_copy(StoreKind::Node, error),
        }
    }
}

/// What a newer stable version of at least the same tolerance replaces.
pub(super) fn what_goes<S: Shell>(core: &Core<S>) -> GcPolicy {
    let keep = core.config().map_or(1, |config| config.keep.max(1));
    let incarnation = core.incarnation();
    let rounds = core.rounds().keys().map(|&version| (incarnation, version));
    let line = core.line();
    // Until a version of this incarnation is stable, ranks may still restore.
    let mine = |stable: &(Incarnation, _, _)| stable.0 == incarnation;
    let over = line.stable.iter().any(mine);
    let restored = core.restored().filter(|_| !over);
    // The commit machine may still be asked for the decision on some.
    let machine = core.machine();
    let versions = core.contents().versions().into_iter();
    let asked = versions.filter(|&(source, version)| {
        machine.is_none_or(|machine| !machine.may_forget(source, version))
    });
    let mut stable = line.stable.clone();
    if core.has_planted(Planted::CollectEarly) {
        let levels = core.all_levels();
        let each = |(source, version)| levels.iter().map(move |level| (source, version, level));
        stable.extend(rounds.clone().flat_map(each));
    }
    GcPolicy {
        stable,
        keep: keep as usize,
        in_use: rounds.chain(restored).chain(asked).collect(),
        levels: line.levels.clone(),
        used: core.all_levels(),
    }
}
