//! Copies at `shared` that are made of the container in node storage.
//!
//! Shared storage is slow, far, or away for a while. A version whose copy there is read from node
//! storage gives its slots back as soon as it is written there, and an agent that is started anew
//! can go on with it.
//!
//! Invariants: a copy is made this way only of a container that was written and read back here;
//! if that was not, the slots still hold the version, and it is written from them; so many
//! versions wait for it at most, so that a container that has to stay is not one of many.

use outlive_base::Level;
use outlive_base::level::StoreKind;
use outlive_base::{Incarnation, Result, Version};
use outlive_ledger::Part;
use outlive_protocols::commit::{Command, Levels, Why};

use super::{Core, News, Round};
use crate::node::shell::Shell;

/// So many versions are on their way at most; a further one is written from its slots.
const ON_THE_WAY_MAX: usize = 2;

/// Where a round's copy at `shared` comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// The slots, or there is none.
    Slots,
    /// The container, which is not written yet.
    Waits,
    /// The container.
    Container,
}

/// True if a version at these levels has a container in node storage.
fn has_container(levels: Levels) -> bool {
    levels.iter().any(|level| level.store().is_of_nodes())
}

impl<S: Shell> Core<S> {
    fn is_from_disk(&self) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| config.transfer.from_disk)
    }

    /// Bytes a second that this node may write to shared storage; 0: as many as it can.
    pub(in crate::node) fn shared_rate(&self) -> u64 {
        let nodes = self.nodes();
        let config = self.config.as_ref();
        config.map_or(0, |config| config.transfer.rate(nodes))
    }

    /// The levels whose copies may come later than the others of their version.
    pub(super) fn background(&self) -> Levels {
        let levels = self.all_levels();
        match self.is_from_disk() && has_container(levels) {
            true => levels.kept_in(StoreKind::Shared),
            false => Levels::NONE,
        }
    }

    /// Versions whose copies at `shared` are made of containers, and not decided.
    fn on_the_way(&self) -> impl Iterator<Item = Version> {
        let stable = self.line.newest.get(&Level::SHARED).copied();
        let open = move |(version, round): (&Version, &Round)| {
            let decided = stable >= Some((self.open.incarnation(), *version));
            let open = round.through != Through::Slots && !round.void && !decided;
            (open && round.levels.uses(StoreKind::Shared)).then_some(*version)
        };
        self.rounds.iter().filter_map(open)
    }

    /// True while such a version is undecided.
    pub(in crate::node) fn is_transferring(&self) -> bool {
        self.on_the_way().next().is_some()
    }

    /// True if the copy of this version is still wanted.
    pub(in crate::node) fn wants_transfer(&self, version: Version) -> bool {
        self.on_the_way().any(|wanted| wanted == version)
    }

    /// Writes a version that is captured here, once it is known where to: an agent that was
    /// started anew may hear of its levels after the last capture, or with what it says of that.
    pub(super) fn write_told(&mut self, version: Version) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        let levels = round.levels;
        if levels.is_empty() || round.flushing || round.through != Through::Slots {
            return;
        }
        round.flushing = true;
        self.write_captured(version, levels);
    }

    /// A version that is under way goes to these levels too. What is captured is written there at once, or
    /// after what is being written.
    pub(super) fn widen_round(&mut self, version: Version, levels: Levels) {
        let at = (self.open.incarnation(), version);
        let Some(round) = self.rounds.get_mut(&version).filter(|round| !round.void) else {
            return;
        };
        let more = levels.less(round.levels).less(round.ended);
        if more.is_empty() {
            return;
        }
        round.levels = round.levels.or(more);
        self.line.levels.entry(at).or_default().extend(more.iter());
        if !round.told {
            return;
        }
        round.more = round.more.or(more);
        if !round.flushing {
            self.goes_further(version);
        }
    }

    /// Writes what is left of a version that was widened; true if there is something.
    pub(super) fn goes_further(&mut self, version: Version) -> bool {
        let Some(round) = self.rounds.get_mut(&version) else {
            return false;
        };
        let more = core::mem::take(&mut round.more).and(round.levels);
        if more.is_empty() || round.void {
            return false;
        }
        round.flushing = true;
        self.write_captured(version, more);
        true
    }

    /// Writes a version that is captured at these levels, all but what is made of its container.
    fn write_captured(&mut self, version: Version, mut levels: Levels) {
        if self.supply.is_one_slot() {
            // The one slot must be free for the next version: it is no copy to rely on.
            self.levels_failed(version, levels.kept_in(StoreKind::Keeper), Why::NoRoom);
            levels = levels.kept_elsewhere(StoreKind::Keeper);
        }
        let through = levels.uses(StoreKind::Shared)
            && has_container(levels)
            && self.is_from_disk()
            && self.on_the_way().count() < ON_THE_WAY_MAX;
        if let Some(round) = self.rounds.get_mut(&version).filter(|_| through) {
            round.through = Through::Waits;
            levels = levels.kept_elsewhere(StoreKind::Shared);
        }
        self.start_flush(self.open.incarnation(), version, levels);
    }

    /// The container of a version is written.
    pub(super) fn own_written(&mut self, version: Version, part: &Part) {
        let Some(round) = self.rounds.get_mut(&version) else {
            return;
        };
        if round.through == Through::Waits && !round.void {
            round.through = Through::Container;
            self.span_writes(version, Level::SHARED);
            self.news(News::OwnWritten { part: part.clone() });
        }
    }

    /// All has been written from the slots; true if that was not all, for there is no container.
    pub(super) fn goes_straight(&mut self, version: Version) -> bool {
        let waits = |round: &&mut Round| round.through == Through::Waits;
        let Some(round) = self.rounds.get_mut(&version).filter(waits) else {
            return false;
        };
        round.through = Through::Slots;
        let shared = round.levels.kept_in(StoreKind::Shared);
        if round.void || shared.is_empty() {
            return false;
        }
        self.start_flush(self.open.incarnation(), version, shared);
        true
    }

    /// A round lives on of which no slot is left here: an agent before this one had given them
    /// back. What it had not written from them is not written any more.
    pub(super) fn resume_transfer(&mut self, version: Version, levels: Levels) {
        let source = self.open.incarnation();
        if !self.is_from_disk() || !levels.uses(StoreKind::Shared) {
            return self.levels_failed(version, levels, Why::Storage);
        }
        let own = self.own_part(source, version);
        let gone = match own {
            Some(_) => levels.kept_elsewhere(StoreKind::Shared),
            None => levels,
        };
        // Of a level that was prepared the machine knows it, and this is no news.
        self.levels_failed(version, gone, Why::Storage);
        let Some(part) = own else { return };
        self.open_round(version, levels);
        if let Some(round) = self.rounds.get_mut(&version) {
            (round.told, round.through) = (true, Through::Waits);
        }
        self.own_written(version, &part);
    }

    /// Nothing comes of the copy of a version: a newer one is there, or it has ended.
    pub(in crate::node) fn end_transfer(&mut self, version: Version) {
        self.command(Command::LevelFailed {
            version,
            level: Level::SHARED,
            why: Why::Coordinator,
        });
    }

    /// The copy of a version was made of its container, or cannot be.
    pub(in crate::node) fn transferred(
        &mut self,
        at: (Incarnation, Version),
        result: Result<Part>,
    ) {
        self.on_level_done(at.0, at.1, Level::SHARED, result);
    }

    /// What is recorded of this node's container of a version.
    pub(super) fn own_part(&self, source: Incarnation, version: Version) -> Option<Part> {
        let stored = self.all_levels().iter();
        let stored = stored.filter(|level| level.store().is_of_nodes());
        let mut parts = stored.filter_map(|level| {
            let part = self.contents.part(source, version, level, self.me)?;
            Some(part.clone())
        });
        parts.next()
    }
}

#[cfg(test)]
mod tests {
    use outlive_base::{Code, Entity, Error, Time};
    use outlive_protocols::commit::Levels;

    use super::*;
    use crate::node::shell::{Ask, Done, Target};
    use crate::node::still::{Still, alone, part_of};
    use crate::node::{Input, Node};
    use crate::orders::{LevelSetting, Notice};

    const SOURCE: Incarnation = Incarnation(1);
    const LEVELS: [Level; 2] = [Level::DISK, Level::SHARED];

    /// A node without ranks, in a job that keeps its versions on disks and in shared storage.
    fn node() -> Node<Still> {
        let mut node = alone(0);
        let mut config = node.config.clone().unwrap();
        config.levels = LEVELS.map(|level| LevelSetting { level, every: 1 }).into();
        node.configure_alone(config);
        node
    }

    fn captures(node: &mut Node<Still>, version: u64) {
        node.open_round(Version(version), Levels::of(&LEVELS));
        node.all_captured_here(Version(version));
    }

    fn comes(node: &mut Node<Still>, version: u64, result: Result<()>) {
        let part = part_of((SOURCE, Version(version)), 0);
        let (source, version, level) = (SOURCE, Version(version), Level::DISK);
        let level_done = Done::LevelDone {
            source,
            version,
            level,
            result: result.map(|()| part),
        };
        let over = Done::FlushOver { source, version };
        node.on(
            node.now,
            Input::Done(Done::Together(vec![level_done, over])),
        );
    }

    fn transferred(node: &mut Node<Still>, version: u64, result: Result<Option<Part>>) {
        let id = part_of((SOURCE, Version(version)), 0).id;
        node.on(node.now, Input::Done(Done::Transferred { id, result }));
    }

    /// What was asked for: what is written where from slots, and what is transferred.
    fn asked(node: &mut Node<Still>) -> (Vec<(u64, Vec<Target>)>, Vec<u64>) {
        let (mut flushes, mut transfers) = (Vec::new(), Vec::new());
        for ask in &node.shell().asked {
            match ask {
                Ask::Flush(flush) => {
                    flushes.push((flush.captures.version.0, flush.targets.clone()));
                }
                Ask::Transfer(wanted) => transfers.push(wanted.part.id.version.0),
                _ => {}
            }
        }
        (flushes, transfers)
    }

    fn refused() -> Error {
        Error::new(Code::NoSpace, Entity::Node(0), "it is full", "make room")
    }

    fn shared(node: &Node<Still>, version: u64) -> bool {
        let part = node
            .contents
            .part(SOURCE, Version(version), Level::SHARED, node.me);
        part.is_some()
    }

    #[test]
    fn a_copy_is_made_of_the_container_once_that_is_written() {
        let mut node = node();
        captures(&mut node, 7);
        assert_eq!(asked(&mut node), (vec![(7, vec![Target::Disk])], vec![]));
        comes(&mut node, 7, Ok(()));
        assert_eq!(asked(&mut node).1, [7]);
        assert!(!node.rounds[&Version(7)].flushing, "the slots are free");
        assert!(node.is_transferring() && !shared(&node, 7));
        transferred(&mut node, 7, Ok(Some(part_of((SOURCE, Version(7)), 0))));
        assert!(shared(&node, 7));
    }

    #[test]
    fn what_is_on_its_way_or_waits_is_told_until_it_has_ended() {
        let mut node = node();
        let told = |node: &Node<Still>| -> Vec<(u64, bool)> {
            let told = node.status((0, 0)).transfers.into_iter();
            told.map(|it| (it.version.0, it.age_ms.is_some())).collect()
        };
        assert_eq!(told(&node), []);
        for version in [7, 8] {
            captures(&mut node, version);
            comes(&mut node, version, Ok(()));
        }
        assert_eq!(told(&node), [(7, true), (8, false)]);
        transferred(&mut node, 7, Ok(Some(part_of((SOURCE, Version(7)), 0))));
        assert_eq!(told(&node), [(8, true)]);
        let bound = Time::from_ms(node.config.as_ref().unwrap().bounds.commit_ms);
        node.on_time(Time(bound.0 * 2));
        assert_eq!(told(&node), [], "it is given up");
    }

    /// An agent that was started anew hears of a round's levels while it takes its last capture.
    #[test]
    fn what_was_captured_before_its_levels_were_known_is_written_when_they_are() {
        let mut node = node();
        node.open_round(Version(7), Levels::NONE);
        node.all_captured_here(Version(7));
        node.resume_round(Version(7), Levels::of(&LEVELS));
        assert_eq!(asked(&mut node), (vec![(7, vec![Target::Disk])], vec![]));
        node.resume_round(Version(7), Levels::of(&LEVELS));
        assert_eq!(asked(&mut node).0.len(), 1, "said twice, written once");
    }

    #[test]
    fn without_a_container_it_is_written_from_the_slots() {
        let mut node = node();
        captures(&mut node, 7);
        comes(&mut node, 7, Err(refused()));
        let flushes = vec![(7, vec![Target::Disk]), (7, vec![Target::Shared])];
        assert_eq!(asked(&mut node), (flushes, vec![]));
        assert!(node.rounds[&Version(7)].flushing && !node.is_transferring());
    }

    #[test]
    fn one_at_a_time_and_no_more_than_two_wait() {
        let mut node = node();
        for version in [7, 8, 9] {
            captures(&mut node, version);
            comes(&mut node, version, Ok(()));
        }
        let (flushes, transfers) = asked(&mut node);
        assert_eq!(flushes[2], (9, vec![Target::Disk, Target::Shared]));
        assert_eq!(transfers, [7]);
        transferred(&mut node, 7, Err(refused()));
        assert_eq!(asked(&mut node).1, [7, 8]);
        // A newer one is there by then: this one is of no use, and others hear that.
        node.on_stable(Version(9), Level::SHARED);
        node.on_time(node.now);
        let wanted = node.shell().asked.iter().find_map(|ask| match ask {
            Ask::Transfer(wanted) if wanted.part.id.version == Version(8) => Some(wanted),
            _ => None,
        });
        assert!(wanted.unwrap().brake.is_stopped());
    }

    #[test]
    fn what_comes_no_further_is_given_up_and_told() {
        let mut node = node();
        captures(&mut node, 7);
        comes(&mut node, 7, Ok(()));
        let (brake, progress) = match node.shell().asked.last() {
            Some(Ask::Transfer(wanted)) => (wanted.brake.clone(), wanted.progress.clone()),
            _ => panic!("no transfer"),
        };
        let bound = Time::from_ms(node.config.as_ref().unwrap().bounds.commit_ms);
        let told = |node: &mut Node<Still>| {
            let told = node.shell().told.iter();
            told.filter(|notice| matches!(notice, Notice::Warning(_)))
                .count()
        };
        for turn in 1..=3 {
            progress.add(4096);
            node.on_time(Time(bound.0 * turn));
            assert!(!brake.is_stopped(), "it comes further");
        }
        node.on_time(Time(bound.0 * 4));
        assert!(brake.is_stopped() && told(&mut node) == 1);
        node.on_time(Time(bound.0 * 9));
        transferred(&mut node, 7, Ok(None));
        assert_eq!(told(&mut node), 1, "once");
    }

    #[test]
    fn an_agent_that_is_started_anew_goes_on_with_a_container_whose_slots_are_gone() {
        let mut node = node();
        let part = part_of((SOURCE, Version(7)), 0);
        node.contents
            .add_part(SOURCE, Version(7), Level::DISK, part);
        node.resume_transfer(Version(7), Levels::of(&LEVELS));
        node.on_time(node.now);
        assert_eq!(asked(&mut node).1, [7]);
        // Of a version of which nothing is recorded here nothing is begun.
        node.resume_transfer(Version(6), Levels::of(&LEVELS));
        assert!(!node.rounds.contains_key(&Version(6)));
    }
}
