//! What this node lacks after it took the place of a lost one: found, made again, and told until it is
//! all there.
//!
//! Of the version that was restored, its own container is written from the slabs (as the incarnation
//! opens), the containers that it keeps for others come from their nodes, and parities are made here.
//! What does not come that way, and what is kept of other versions that are known to be stable, is made of
//! what others have, one copy after the other, as if it had been found missing by a reading before the need.
//!
//! Invariants: a copy is told as lacking until it was seen or read back, or until nobody wants it any
//! more; what fails is tried again, more rarely each time, for as long as it is wanted; while an incarnation
//! is opened nothing is begun.

use std::collections::{BTreeMap, BTreeSet};

use outlive_base::level::StoreKind;
use outlive_base::{ContainerId, Incarnation, Level, NodeId, Time, Version};
use outlive_ledger::Part;

use super::copies::{Brake, CopyId, CopySource, Expected, Progress, Scrubbed};
use super::core::{Core, News};
use super::scrub::{kept, not_mended, reading_of};
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Making, Shell};
use crate::orders::{Notice, Order};
use crate::reprotection::{Lost, Reprotection, Ways};

/// How long a copy that comes by itself is waited for, before it is looked whether it is there.
const COMES_WITHIN: Time = Time::from_secs(60);
/// The pause before another try; doubled each time.
const AGAIN_AFTER: Time = Time::from_secs(1);
/// The longest such pause.
const AGAIN_AFTER_MAX: Time = Time::from_secs(60);

/// Who brings a copy.
enum By {
    /// Somebody else, who tells when it is over; so far it is.
    Other(Progress),
    /// This service, at this time; and the pause after that.
    Look(Time, Time),
}

/// A copy that is not here yet.
struct Lacking {
    bytes: u64,
    by: By,
    /// That it cannot be made was told.
    told: bool,
}

/// What this node lacks.
pub struct Reprotect {
    /// With which incarnation it took the place of a lost node, what was restored, and when.
    taken: Option<(Incarnation, (Incarnation, Version), Time)>,
    /// When all was there again.
    ended: Option<Time>,
    lacking: BTreeMap<CopyId, Lacking>,
    /// Copies that are there again, and their bytes.
    done: (u64, u64),
    ways: Ways,
    under_way: Option<(CopyId, Brake)>,
}

impl Service for Reprotect {
    type Word = Silent;

    fn new(_: Time) -> Reprotect {
        Reprotect {
            taken: None,
            ended: None,
            lacking: BTreeMap::new(),
            done: (0, 0),
            ways: Ways::default(),
            under_way: None,
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Opening => {
                if let Some((_, brake)) = &self.under_way {
                    brake.stop();
                }
            }
            News::Opened {
                restored,
                replaced,
                again,
            } => {
                if let Some(at) = restored.filter(|_| replaced.contains(&core.me())) {
                    self.begin(core, at);
                    self.begin_writing(core, at, again.as_ref());
                    self.tell(core);
                }
            }
            News::Stable { .. } => self.drop_unwanted(core),
            _ => {}
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        match order {
            // The agent before this one was about to.
            Order::LookForLost => {
                if let Some(at) = core.restored().filter(|_| self.taken.is_none()) {
                    self.begin(core, at);
                    self.tell(core);
                }
                None
            }
            Order::Status => {
                self.drop_unwanted(core);
                let said = self.said(core);
                core.note_reprotection(said);
                Some(Order::Status)
            }
            order => Some(order),
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        match &done {
            Done::Protected {
                source,
                version,
                parity,
                result,
            } => {
                let place = parity.map_or(CopySource::Own, CopySource::Parity);
                let copy = CopyId {
                    id: own_id(core, (*source, *version)),
                    place,
                };
                self.came(core, copy, result.is_ok());
            }
            Done::Kept {
                id: Some(id),
                result,
            } => {
                let copy = CopyId {
                    id: *id,
                    place: CopySource::Kept,
                };
                if result.is_ok() {
                    self.came(core, copy, true);
                }
            }
            Done::Scrubbed { copy, outcome } => {
                let mine = self.under_way.take_if(|(asked, _)| asked == copy);
                self.on_looked(core, *copy, outcome, mine.is_some());
                if mine.is_some() {
                    return None;
                }
            }
            _ => {}
        }
        Some(done)
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        self.drop_unwanted(core);
        let Some((due, copy)) = self.next(core).filter(|(due, _)| *due <= core.now()) else {
            return;
        };
        let Some(reading) = reading_of(core, copy, (false, u64::MAX)) else {
            return self.left(core, copy);
        };
        tracing::debug!(?copy, ?due, "looked for, and made again");
        self.under_way = Some((copy, reading.brake.clone()));
        core.begin(Ask::Scrub(Box::new(reading)));
    }

    fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        self.next(core).map(|(due, _)| due)
    }
}

/// The container of this node.
fn own_id<S: Shell>(core: &Core<S>, (incarnation, version): (Incarnation, Version)) -> ContainerId {
    ContainerId {
        incarnation,
        version,
        node: core.me(),
    }
}

impl Reprotect {
    /// Notes what this node is to keep and has lost, of all versions that it knows to be stable: of others
    /// it may know the decision and not the removal.
    fn begin<S: Shell>(&mut self, core: &Core<S>, at: (Incarnation, Version)) {
        let now = core.now();
        // One that was replaced once more while an incarnation was opened in vain has nothing.
        (self.taken, self.ended, self.done) = (Some((core.incarnation(), at, now)), None, (0, 0));
        self.ways = ways(core, at);
        self.lacking.clear();
        let line = core.line();
        let stable: BTreeSet<_> = line.stable.iter().map(|it| (it.0, it.1)).collect();
        for (copy, _) in kept(core) {
            if !stable.contains(&(copy.id.incarnation, copy.id.version)) {
                continue;
            }
            if let Some(bytes) = lost_with_a_node(core, copy) {
                let comes =
                    copy.place == CopySource::Kept && (copy.id.incarnation, copy.id.version) == at;
                let due = if comes { now + COMES_WITHIN } else { now };
                let lacking = Lacking {
                    bytes,
                    by: By::Look(due, AGAIN_AFTER),
                    told: false,
                };
                self.lacking.insert(copy, lacking);
            }
        }
    }

    /// Of the version that was restored the container is written from the slabs, and its parities are
    /// made here: the others still have what they are made of.
    fn begin_writing<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        at: (Incarnation, Version),
        again: Option<&Progress>,
    ) {
        let id = own_id(core, at);
        let mut by_others = |place, progress: &Progress| {
            if let Some(lacking) = self.lacking.get_mut(&CopyId { id, place }) {
                lacking.by = By::Other(progress.clone());
            }
        };
        if let Some(progress) = again {
            by_others(CopySource::Own, progress);
        }
        for level in core.contents().levels_of(at.0, at.1) {
            if let Some(making) = making_of(core, at, level) {
                by_others(CopySource::Parity(level), &making.progress);
                core.begin(Ask::Parity(making));
            }
        }
    }

    /// The copy that is to be looked for next.
    fn next<S: Shell>(&self, core: &Core<S>) -> Option<(Time, CopyId)> {
        if self.under_way.is_some()
            || core.is_opening()
            || core.is_finishing()
            || core.incarnation().0 == 0
        {
            return None;
        }
        let due = self.lacking.iter().filter_map(|(copy, it)| match it.by {
            By::Look(due, _) => Some((due, *copy)),
            By::Other(_) => None,
        });
        // Of those that are due the newest, which is the first that would be restored.
        let now = core.now();
        due.min_by_key(|(due, copy)| (*due.max(&now), std::cmp::Reverse(copy.id), copy.place))
    }

    /// What brings a copy has ended.
    fn came<S: Shell>(&mut self, core: &mut Core<S>, copy: CopyId, is_there: bool) {
        if is_there {
            return self.is_there(core, copy);
        }
        if let Some(lacking) = self.lacking.get_mut(&copy) {
            lacking.by = By::Look(core.now() + AGAIN_AFTER, AGAIN_AFTER);
        }
    }

    fn is_there<S: Shell>(&mut self, core: &mut Core<S>, copy: CopyId) {
        if let Some(lacking) = self.lacking.remove(&copy) {
            self.done = (self.done.0 + 1, self.done.1 + lacking.bytes);
            self.tell(core);
        }
    }

    /// Nobody wants a copy any more.
    fn left<S: Shell>(&mut self, core: &mut Core<S>, copy: CopyId) {
        if self.lacking.remove(&copy).is_some() {
            self.tell(core);
        }
    }

    /// What the records do not name any more.
    fn drop_unwanted<S: Shell>(&mut self, core: &mut Core<S>) {
        if self.lacking.is_empty() {
            return;
        }
        let wanted = kept(core);
        let before = self.lacking.len();
        self.lacking.retain(|copy, _| wanted.contains_key(copy));
        if self.lacking.len() < before {
            self.tell(core);
        }
    }

    /// It was looked for a copy, by this service or by who reads them before the need.
    fn on_looked<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        copy: CopyId,
        outcome: &Scrubbed,
        mine: bool,
    ) {
        let now = core.now();
        let Some(lacking) = self.lacking.get_mut(&copy) else {
            return;
        };
        match outcome {
            Scrubbed::Whole(_) | Scrubbed::There | Scrubbed::Mended { .. } => {
                self.is_there(core, copy);
            }
            // Written from the slabs, it may come a moment later.
            Scrubbed::Gone if mine => self.left(core, copy),
            Scrubbed::Stopped if mine => lacking.by = By::Look(now, AGAIN_AFTER),
            Scrubbed::Gone | Scrubbed::Stopped => {}
            Scrubbed::Unreadable(_) | Scrubbed::Damaged { .. } if !mine => {}
            Scrubbed::Unreadable(error) => {
                tracing::info!(%error, "a lost copy could not be looked for");
                lacking.try_later(now);
            }
            Scrubbed::Damaged { damage, why } => {
                lacking.try_later(now);
                if !std::mem::replace(&mut lacking.told, true) {
                    core.warn_of_copy(copy.place.level().store(), not_mended(damage, why));
                }
            }
        }
    }

    /// What is said of it; nothing if this agent knows of none.
    fn said<S: Shell>(&self, core: &Core<S>) -> Option<Reprotection> {
        let (incarnation, at, began) = self.taken?;
        let under_way = self.lacking.values().map(|it| match &it.by {
            By::Other(progress) => progress.reached().min(it.bytes),
            By::Look(..) => 0,
        });
        let lacks: u64 = self.lacking.values().map(|it| it.bytes).sum();
        let restored = self.lacking.keys();
        let restored = restored.filter(|copy| (copy.id.incarnation, copy.id.version) == at);
        let lost: BTreeSet<Lost> = restored.filter_map(|copy| lost_of(*copy)).collect();
        Some(Reprotection {
            incarnation,
            version: at.1,
            lasted_ms: self.ended.unwrap_or(core.now()).since(began).as_ms() as u64,
            copies: self.done.0,
            copies_total: self.done.0 + self.lacking.len() as u64,
            bytes: self.done.1 + under_way.sum::<u64>(),
            bytes_total: self.done.1 + lacks,
            ways: match lost.is_empty() {
                true => Ways::default(),
                false => self.ways.clone(),
            },
            lost,
        })
    }

    fn tell<S: Shell>(&mut self, core: &mut Core<S>) {
        if self.lacking.is_empty() {
            self.ended.get_or_insert(core.now());
        }
        if let Some(said) = self.said(core) {
            core.tell(&Notice::Reprotection(Box::new(said)));
        }
    }
}

impl Lacking {
    fn try_later(&mut self, now: Time) {
        let pause = match self.by {
            By::Look(_, pause) => pause,
            By::Other(_) => AGAIN_AFTER,
        };
        self.by = By::Look(now + pause, Time(pause.0 * 2).min(AGAIN_AFTER_MAX));
    }
}

const fn lost_of(copy: CopyId) -> Option<Lost> {
    match copy.place {
        CopySource::Own => Some(Lost::Own),
        CopySource::Kept => Some(Lost::Kept(copy.id.node)),
        CopySource::Parity(level) => Some(Lost::Parity(level)),
        CopySource::Shared => None,
    }
}

/// The bytes of a copy that goes with its node; `None`: it does not, or it is nothing.
fn lost_with_a_node<S: Shell>(core: &Core<S>, copy: CopyId) -> Option<u64> {
    if copy.place.level().store() != StoreKind::Node {
        return None;
    }
    let reading = reading_of(core, copy, (false, 0))?;
    match reading.expected {
        Expected::Parity(parity) => Some(parity.length),
        Expected::Container(sealed) => {
            let mut parts = reading.sources.iter();
            let has_ranks = parts.any(|(_, part)| !part.ranks.is_empty());
            has_ranks.then_some(sealed.length)
        }
    }
}

/// How this node's parity of a level is made again; `None`: it has none there.
fn making_of<S: Shell>(
    core: &Core<S>,
    (source, version): (Incarnation, Version),
    level: Level,
) -> Option<Making> {
    // A memory server still has its own.
    if level.store() == StoreKind::Server {
        return None;
    }
    let (group, parts) = core.contents().group(source, version, level, core.me())?;
    let member = |node: &NodeId| parts.iter().find(|part| part.node == *node).cloned();
    let ordered: Option<Vec<Part>> = group.members.iter().map(member).collect();
    Some(Making::new(source, version, level, ordered?, true))
}

/// How those that depend on this node survive, at a version.
fn ways<S: Shell>(core: &Core<S>, (source, version): (Incarnation, Version)) -> Ways {
    let (me, contents) = (core.me(), core.contents());
    let levels = contents.levels_of(source, version);
    let mut ways = Ways {
        nodes: [me].into(),
        shared: levels.iter().any(|it| it.store() == StoreKind::Shared),
        ..Ways::default()
    };
    for &level in &levels {
        let held = contents.held_for_others(source, version, level, me);
        ways.nodes.extend(held.map(|part| part.node));
        let group = contents.group(source, version, level, me);
        ways.nodes
            .extend(group.into_iter().flat_map(|(group, _)| group.members));
    }
    for &node in &ways.nodes {
        for &level in &levels {
            let part = contents.part(source, version, level, node);
            if let Some(part) = part.filter(|part| level.has_partner() && part.holder != node) {
                ways.copies.insert((node, part.holder));
            }
            let known = |it: &outlive_ledger::scheme::Group| {
                it.level == level && it.members.contains(&node)
            };
            if level.members().is_some() && !ways.groups.iter().any(known) {
                let group = contents.group(source, version, level, node);
                ways.groups.extend(group.map(|(group, _)| group));
            }
        }
    }
    ways
}

#[cfg(test)]
mod tests;
