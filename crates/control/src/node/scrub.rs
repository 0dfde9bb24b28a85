//! Reading copies before they are needed, one at a time, the one that was read least lately, mending
//! what has rotted, and making again what was lost. Whether a copy is there is looked at more often
//! than it is read: a loss is found soon.
//!
//! Invariants: one copy is read at a time, and none while an incarnation is opened or the job
//! ends; what is read slows down while a version is on its way here; what is damaged is told, once
//! for each copy until it is whole again.

use std::collections::BTreeMap;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Error, Incarnation, Level, Time, Version};
use outlive_ledger::Part;

use super::collection::what_goes;
use super::copies::{Brake, CopyId, CopySource, Expected, Reading, Scrubbed};
use super::core::{Core, News};
use super::service::{Service, Silent};
use super::shell::{Ask, Done, Shell};
use crate::orders::Order;
use crate::scrubbing::{ReadAt, ScrubSetting, ScrubStatus, TOLD_MAX};

/// How often what is kept is listed, of the time after which a copy is read again.
const LISTS_PER_PERIOD: u64 = 8;
/// It is listed so often at least, and at most.
const LISTED_EVERY: (Time, Time) = (Time::from_ms(10), Time::from_secs(60));
/// How long a copy is taken to be there at most, without a look.
const LOOKED_EVERY: Time = Time::from_secs(60);

/// What is known of a copy.
#[derive(Clone, Copy)]
struct Known {
    /// When it was first seen: it was read back when it was written.
    since: Time,
    /// When this agent last read it whole, or had it read back.
    read: Option<Time>,
    /// When that was last tried.
    tried: Option<Time>,
    /// When it was last looked whether it is there.
    looked: Option<Time>,
    /// It was damaged or lost then, and was not mended.
    damaged: bool,
    /// It was not there then.
    gone: bool,
}

impl Known {
    fn new(since: Time, read: Option<Time>) -> Known {
        Known {
            since,
            read,
            tried: None,
            looked: None,
            damaged: false,
            gone: false,
        }
    }

    /// When it is read next.
    fn read_at(&self, every: Time) -> Time {
        self.tried.unwrap_or(self.since) + every
    }

    /// When something is done with it next.
    fn due(&self, every: Time) -> Time {
        let looked = self.looked.max(self.tried).unwrap_or(self.since);
        self.read_at(every).min(looked + LOOKED_EVERY)
    }
}

/// A copy that somebody reads or looks at.
#[derive(Clone)]
struct UnderWay {
    copy: CopyId,
    /// All of it is read.
    whole: bool,
    brake: Brake,
}

/// What is read, and what was.
pub struct Scrub {
    copies: BTreeMap<CopyId, Known>,
    under_way: Option<UnderWay>,
    /// When to look next for what is to be done.
    next: Time,
    /// When what is kept is listed next.
    list_at: Time,
    counts: ScrubStatus,
}

impl Service for Scrub {
    type Word = Silent;

    fn new(now: Time) -> Scrub {
        Scrub {
            copies: BTreeMap::new(),
            under_way: None,
            next: now,
            list_at: now,
            counts: ScrubStatus::default(),
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Opening => self.stop(),
            News::Stable { version, .. } if period(setting(core)).is_some() => {
                self.take_written(core, *version);
            }
            News::Serving => {
                if let Some(UnderWay { brake, .. }) = &self.under_way {
                    brake.pause(!core.may_serve());
                }
                self.next = self.next.min(core.now());
            }
            _ => {}
        }
    }

    fn on_order<S: Shell>(&mut self, core: &mut Core<S>, order: Order) -> Option<Order> {
        match order {
            Order::Finish { .. } => self.stop(),
            Order::Status => {
                let said = self.status(core);
                core.note_scrub(said);
            }
            _ => {}
        }
        Some(order)
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        match done {
            Done::Scrubbed { copy, outcome } => {
                self.on_scrubbed(core, copy, outcome);
                None
            }
            done => Some(done),
        }
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        let setting = setting(core);
        let Some(every) = period(setting) else {
            return;
        };
        self.next = core.now() + listed_every(every);
        if core.is_opening()
            || core.is_finishing()
            || core.incarnation().0 == 0
            || !core.may_serve()
        {
            return;
        }
        // Not after each copy: of many there is much to list.
        if core.now() >= self.list_at {
            self.list_at = self.next;
            self.list(core);
        }
        self.next = self.list_at;
        self.begin_next(core, setting, every);
    }

    fn deadline<S: Shell>(&self, core: &Core<S>) -> Option<Time> {
        period(setting(core))?;
        (self.under_way.is_none() && core.may_serve()).then_some(self.next)
    }

    fn on_look<S: Shell>(&mut self, core: &mut Core<S>) {
        if let Some(UnderWay { brake, .. }) = &self.under_way {
            brake.slow(!core.rounds().is_empty());
        }
    }
}

/// What the job wants; of none nothing.
fn setting<S: Shell>(core: &Core<S>) -> ScrubSetting {
    let none = ScrubSetting {
        every_ms: None,
        bytes_per_s: 0,
    };
    core.config().map_or(none, |config| config.scrub)
}

fn period(setting: ScrubSetting) -> Option<Time> {
    let every = setting.every_ms.filter(|_| setting.bytes_per_s > 0)?;
    Some(Time::from_ms(every.max(1)))
}

fn listed_every(every: Time) -> Time {
    Time(every.0 / LISTS_PER_PERIOD).clamp(LISTED_EVERY.0, LISTED_EVERY.1)
}

impl Scrub {
    fn stop(&self) {
        if let Some(UnderWay { brake, .. }) = &self.under_way {
            brake.stop();
        }
    }

    /// What has just become stable was read back when it was written.
    fn take_written<S: Shell>(&mut self, core: &Core<S>, version: Version) {
        let now = core.now();
        for (copy, _) in kept_of(core, core.incarnation(), version) {
            self.copies
                .entry(copy)
                .or_insert_with(|| Known::new(now, Some(now)));
        }
    }

    /// Takes up what is kept now, and forgets what is not any more.
    fn list<S: Shell>(&mut self, core: &Core<S>) {
        let now = core.now();
        let before = core::mem::take(&mut self.copies);
        for (copy, _) in kept(core) {
            let known = before.get(&copy).copied();
            self.copies
                .insert(copy, known.unwrap_or_else(|| Known::new(now, None)));
        }
    }

    /// Begins with the copy whose time has come, the one that was read or looked at least lately.
    fn begin_next<S: Shell>(&mut self, core: &mut Core<S>, setting: ScrubSetting, every: Time) {
        if self.under_way.is_some() {
            return;
        }
        let (copy, whole, reading) = loop {
            let all = self.copies.iter();
            let first = all.map(|(copy, known)| (known.due(every), *copy)).min();
            let Some((due, copy)) = first else {
                return;
            };
            if due > core.now() {
                self.next = self.next.min(due);
                return;
            }
            let known = self.copies.get(&copy);
            let whole = known.is_none_or(|known| known.read_at(every) <= core.now());
            match reading_of(core, copy, (whole, setting.bytes_per_s)) {
                Some(reading) => break (copy, whole, reading),
                // It is not kept any more.
                None => drop(self.copies.remove(&copy)),
            }
        };
        reading.brake.slow(!core.rounds().is_empty());
        self.under_way = Some(UnderWay {
            copy,
            whole,
            brake: reading.brake.clone(),
        });
        core.begin(Ask::Scrub(Box::new(reading)));
    }

    fn on_scrubbed<S: Shell>(&mut self, core: &mut Core<S>, copy: CopyId, outcome: Scrubbed) {
        let asked = self.under_way.take().filter(|it| it.copy == copy);
        let whole = asked.is_none_or(|it| it.whole);
        let now = core.now();
        self.next = now;
        let Some(known) = self.copies.get_mut(&copy) else {
            return;
        };
        if matches!(outcome, Scrubbed::Stopped) {
            // As if it had not begun; what stopped it is first.
            self.next = now + LISTED_EVERY.0;
            return;
        }
        known.looked = Some(now);
        if whole {
            known.tried = Some(now);
        }
        known.gone = matches!(outcome, Scrubbed::Gone);
        let (error, is_mended) = match outcome {
            Scrubbed::Whole(bytes) => {
                (known.read, known.damaged) = (Some(now), false);
                self.counts.read += 1;
                self.counts.read_bytes += bytes;
                return;
            }
            Scrubbed::There => return,
            Scrubbed::Gone | Scrubbed::Stopped => {
                known.read = None;
                return;
            }
            Scrubbed::Unreadable(error) => {
                tracing::info!(%error, "a copy could not be read before it is needed");
                return;
            }
            Scrubbed::Mended { damage, from } => {
                // What was made was read back.
                (known.read, known.tried, known.damaged) = (Some(now), Some(now), false);
                (mended(&damage, from), true)
            }
            Scrubbed::Damaged { damage, why } => {
                let told = core::mem::replace(&mut known.damaged, true);
                known.read = None;
                if told {
                    return;
                }
                (not_mended(&damage, &why), false)
            }
        };
        self.counts.damaged += 1;
        self.counts.mended += u64::from(is_mended);
        core.warn_of_copy(copy.place.level().store(), error);
    }

    fn status<S: Shell>(&self, core: &Core<S>) -> ScrubStatus {
        let now = core.now();
        let mut versions: BTreeMap<_, (Option<Time>, bool)> = BTreeMap::new();
        for (copy, levels) in kept(core) {
            let known = self.copies.get(&copy);
            let (read, gone) = known.map_or((None, false), |known| (known.read, known.gone));
            for level in levels {
                let key = (copy.id.incarnation, copy.id.version, level);
                let (known, all_gone) = versions.entry(key).or_insert((Some(now), true));
                *known = known.zip(read).map(|(one, other)| one.min(other));
                *all_gone &= gone;
            }
        }
        let newest = versions.into_iter().rev().take(TOLD_MAX);
        let told = newest.map(|((_, version, level), (read, gone))| ReadAt {
            version,
            level,
            ago_ms: read.map(|read| now.since(read).as_ms() as u64),
            gone,
        });
        ScrubStatus {
            versions: told.collect(),
            ..self.counts.clone()
        }
    }
}

/// The copies that this node reads, by the records, with the levels that each of them is for.
fn kept<S: Shell>(core: &Core<S>) -> BTreeMap<CopyId, Vec<Level>> {
    let versions = core.contents().versions().into_iter();
    versions
        .flat_map(|(source, version)| kept_of(core, source, version))
        .collect()
}

/// The same of one version.
fn kept_of<S: Shell>(
    core: &Core<S>,
    source: Incarnation,
    version: Version,
) -> BTreeMap<CopyId, Vec<Level>> {
    let (me, contents) = (core.me(), core.contents());
    let mut kept: BTreeMap<CopyId, Vec<Level>> = BTreeMap::new();
    for level in contents.levels_of(source, version) {
        let mut keep = |part: &Part, place| {
            let id = part.id;
            kept.entry(CopyId { id, place }).or_default().push(level);
        };
        let own = contents.part(source, version, level, me);
        match level.store() {
            StoreKind::Keeper => {}
            StoreKind::Shared => own
                .into_iter()
                .for_each(|part| keep(part, CopySource::Shared)),
            StoreKind::Node | StoreKind::Server => {
                own.into_iter().for_each(|part| keep(part, CopySource::Own));
                // At a memory server one member of a group has it.
                let with = own.filter(|part| level.members().is_some() && part.parity.is_some());
                with.into_iter()
                    .for_each(|part| keep(part, CopySource::Parity(level)));
                let held = contents.held_for_others(source, version, level, me);
                held.for_each(|part| keep(part, CopySource::Kept));
            }
        }
    }
    kept
}

/// How a copy is read and mended; `None` if the records do not name it any more.
fn reading_of<S: Shell>(
    core: &Core<S>,
    copy: CopyId,
    (whole, bytes_per_s): (bool, u64),
) -> Option<Reading> {
    let (source, version, node) = (copy.id.incarnation, copy.id.version, copy.id.node);
    let contents = core.contents();
    let levels = contents.levels_of(source, version);
    let part_at = |level| contents.part(source, version, level, node);
    let expected = match copy.place {
        CopySource::Parity(level) => Expected::Parity(part_at(level)?.parity?),
        CopySource::Shared | CopySource::Kept => {
            Expected::Container(part_at(copy.place.level())?.sealed())
        }
        CopySource::Own => {
            let here = levels.iter().filter(|level| level.store().is_of_nodes());
            let mut parts = here.filter_map(|level| part_at(*level));
            Expected::Container(parts.next()?.sealed())
        }
    };
    let parts = contents.parts_of(source, version, node).into_iter();
    let made_of = levels.iter().filter_map(|&level| {
        let group = contents.group(source, version, level, node)?;
        Some((level, group))
    });
    Some(Reading {
        copy,
        expected,
        whole,
        policy: what_goes(core),
        sources: parts.map(|(level, part)| (level, part.clone())).collect(),
        made_of: made_of.collect(),
        bytes_per_s,
        brake: Brake::default(),
    })
}

const REMEDY: &str = "look at the device that it lies on: bytes change there by themselves";
const LOST: &str = "see who removes files there, or whether the memory server was started anew";

fn remedy(damage: &Error) -> &'static str {
    match damage.code() {
        Code::NotFound => LOST,
        _ => REMEDY,
    }
}

fn mended(damage: &Error, from: Level) -> Error {
    let what = match damage.code() {
        Code::NotFound => "it was made again of what is kept at",
        _ => "it was mended from the copy at",
    };
    let reason = format!("{}; {what} {from}", damage.reason());
    Error::new(
        Code::Corrupt,
        damage.entity().clone(),
        reason,
        remedy(damage),
    )
}

fn not_mended(damage: &Error, why: &[Error]) -> Error {
    let each = why
        .iter()
        .map(|error| format!("{}: {}", error.entity(), error.reason()));
    let why = match why {
        [] => "there is no other copy".to_owned(),
        _ => each.collect::<Vec<_>>().join("; "),
    };
    let reason = format!("{}; it could not be mended: {why}", damage.reason());
    Error::new(
        Code::Corrupt,
        damage.entity().clone(),
        reason,
        remedy(damage),
    )
}

#[cfg(test)]
mod tests;
