//! Levels with groups: when the containers of all members of this node's group are written,
//! it makes its parity of them.
//!
//! Members tell each other what they have sealed; who misses something asks again. Invariants:
//! a level counts as written here only with its parity; what is gathered is bounded; nothing of
//! an ended incarnation is taken.

use std::collections::BTreeMap;

use outlive_base::{Error, Incarnation, Level, NodeId, Result, Time, Version};
use outlive_ledger::scheme::{Group, groups};
use outlive_ledger::{Parity, Part};
use outlive_protocols::commit::{Command, Why};

use super::shell::{Ask, Making, PeerMessage, Shell};
use super::{Node, Planted};

/// Most versions and levels of which something is gathered at once; the oldest go.
const GATHERED_MAX: usize = 16;
/// How long a member waits before it asks for what it misses; doubled each time.
const ASK_AFTER: Time = Time::from_ms(50);
/// The longest pause between two questions.
const ASK_PAUSE_MAX: Time = Time::from_ms(1600);

/// What is known of the containers of a group.
#[derive(Default)]
struct Sealed {
    parts: BTreeMap<NodeId, Part>,
    /// The parity is being made.
    making: bool,
    /// When to ask for what is missing, and the pause after that; not before this node's own
    /// container is there.
    again: Option<(Time, Time)>,
}

/// What was gathered, by version and level.
#[derive(Default)]
pub(super) struct Gathering(BTreeMap<(Version, Level), Sealed>);

impl Gathering {
    /// Nothing of the ended incarnation counts any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A level of a version has ended, or all of them.
    pub fn end(&mut self, version: Version, level: Option<Level>) {
        self.0
            .retain(|key, _| key.0 != version || level.is_some_and(|level| key.1 != level));
    }

    /// When something is to be asked for.
    pub fn deadline(&self) -> Option<Time> {
        let waiting = self.0.values().filter(|sealed| !sealed.making);
        waiting.filter_map(|sealed| Some(sealed.again?.0)).min()
    }

    fn at(&mut self, version: Version, level: Level) -> &mut Sealed {
        let key = (version, level);
        while self.0.len() >= GATHERED_MAX && !self.0.contains_key(&key) {
            self.0.pop_first();
        }
        self.0.entry(key).or_default()
    }
}

impl<S: Shell> Node<S> {
    /// The groups of a level over the nodes of this job.
    pub(super) fn groups_at(&self, level: Level) -> Result<Vec<Vec<NodeId>>> {
        let members = self.config.iter().flat_map(|config| &config.members);
        let domains: Vec<u32> = members.map(|member| member.domain).collect();
        groups(level, &domains)
    }

    /// The members of this node's group.
    fn group_at(&self, level: Level) -> Result<Vec<NodeId>> {
        let groups = self.groups_at(level)?.into_iter();
        let mut own = groups.filter(|members| members.contains(&self.me));
        own.next()
            .ok_or_else(|| Error::internal(format!("{level} has no group for {}", self.me)))
    }

    /// This node's container of a version is written, for a level with groups.
    pub(super) fn own_sealed(&mut self, version: Version, level: Level, part: Part) {
        if self.is_planted(Planted::PrepareWithoutParity) {
            self.contents
                .add_part(part.id.incarnation, version, level, part);
            return self.prepared(version, level);
        }
        let members = match self.group_at(level) {
            Ok(members) => members,
            Err(error) => return self.parity_failed(version, level, error),
        };
        let sealed = self.gathering.at(version, level);
        sealed.parts.insert(part.node, part.clone());
        sealed.again = Some((self.now + ASK_AFTER, ASK_AFTER));
        for member in members.into_iter().filter(|member| *member != part.node) {
            self.say_sealed(member, version, level, part.clone());
        }
        self.try_parity(version, level);
    }

    fn say_sealed(&mut self, to: NodeId, version: Version, level: Level, part: Part) {
        let message = PeerMessage::Sealed {
            incarnation: self.incarnation,
            version,
            level,
            part,
        };
        self.shell.send(to, &message);
    }

    /// Another member says that its container is written.
    pub(super) fn on_sealed(
        &mut self,
        from: NodeId,
        (incarnation, version): (Incarnation, Version),
        level: Level,
        part: Part,
    ) {
        let here = incarnation == self.incarnation && self.all_levels().contains(level);
        let theirs = part.node == from
            && (part.id.incarnation, part.id.version, part.id.node) == (incarnation, version, from);
        let is_member = self
            .group_at(level)
            .is_ok_and(|group| group.contains(&from));
        // What is over here needs nothing more.
        let over = self
            .contents
            .part(incarnation, version, level, self.me)
            .is_some();
        if here && theirs && is_member && !over && level.members().is_some() {
            self.gathering.at(version, level).parts.insert(from, part);
            self.try_parity(version, level);
        }
    }

    /// Another member misses what this node has sealed.
    pub(super) fn on_sealed_wanted(
        &mut self,
        from: NodeId,
        (incarnation, version): (Incarnation, Version),
        level: Level,
    ) {
        if incarnation != self.incarnation {
            return;
        }
        let gathered = self.gathering.0.get(&(version, level));
        let gathered = gathered.and_then(|sealed| sealed.parts.get(&self.me));
        let known = || self.contents.part(incarnation, version, level, self.me);
        if let Some(part) = gathered.or_else(known).cloned() {
            self.say_sealed(from, version, level, part);
        }
    }

    /// Makes the parity once all containers of the group are there.
    fn try_parity(&mut self, version: Version, level: Level) {
        let Ok(members) = self.group_at(level) else {
            return;
        };
        let sealed = self.gathering.at(version, level);
        let parts: Option<Vec<Part>> = members
            .iter()
            .map(|member| sealed.parts.get(member).cloned())
            .collect();
        let Some(parts) = parts.filter(|_| !sealed.making) else {
            return;
        };
        sealed.making = true;
        let making = Making::new(self.incarnation, version, level, parts, false);
        self.shell.ask(Ask::Parity(making));
    }

    /// Asks for what is missing, where that is due.
    pub(super) fn ask_for_sealed(&mut self) {
        let now = self.now;
        let mut wanted = Vec::new();
        for (&(version, level), sealed) in &mut self.gathering.0 {
            match sealed.again {
                Some((at, pause)) if !sealed.making && at <= now => {
                    let pause = Time(pause.0 * 2).min(ASK_PAUSE_MAX);
                    sealed.again = Some((now + pause, pause));
                    wanted.push((
                        version,
                        level,
                        sealed.parts.keys().copied().collect::<Vec<_>>(),
                    ));
                }
                _ => {}
            }
        }
        for (version, level, there) in wanted {
            let members = self.group_at(level).unwrap_or_default();
            for member in members.into_iter().filter(|member| !there.contains(member)) {
                let message = PeerMessage::SealedWanted {
                    incarnation: self.incarnation,
                    version,
                    level,
                };
                self.shell.send(member, &message);
            }
        }
    }

    /// A parity is written and read back, or failed.
    pub(super) fn on_parity_made(
        &mut self,
        (source, version): (Incarnation, Version),
        level: Level,
        result: Result<Parity>,
    ) {
        if source != self.incarnation {
            return;
        }
        let Some(mut sealed) = self.gathering.0.remove(&(version, level)) else {
            // The level has ended meanwhile.
            return;
        };
        match (result, sealed.parts.remove(&self.me)) {
            (Ok(parity), Some(mut part)) => {
                part.parity = Some(parity);
                self.contents.add_part(source, version, level, part);
                self.prepared(version, level);
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.parity_failed(version, level, error),
        }
    }

    fn parity_failed(&mut self, version: Version, level: Level, error: Error) {
        self.warn_of_copy(level, error);
        self.command(Command::LevelFailed {
            version,
            level,
            why: Why::Partner,
        });
    }

    /// After a node was replaced, it lacks its parities of the restored version: the others
    /// still have what they are made of.
    pub(super) fn make_parity_again(&mut self, source: Incarnation, version: Version) {
        for level in self.contents.levels_of(source, version) {
            if let Some((group, parts)) = self.contents.group(source, version, level, self.me) {
                let member = |node: &NodeId| parts.iter().find(|part| part.node == *node).cloned();
                let ordered: Option<Vec<Part>> = group.members.iter().map(member).collect();
                if let Some(parts) = ordered {
                    let making = Making::new(source, version, level, parts, true);
                    self.shell.ask(Ask::Parity(making));
                }
            }
        }
    }

    /// True if the bytes of every node of a version can be had or made (`Event::Plan`).
    pub(super) fn can_be_made(&mut self, source: Incarnation, version: Version) -> bool {
        let Some(driver) = &self.commit else {
            return false;
        };
        let pieces = driver.machine().pieces(source, version);
        let most = match self.is_planted(Planted::TolerateOneLost) {
            true => 1,
            false => usize::MAX,
        };
        let made = |node: NodeId| {
            let mut levels = self.contents.levels_of(source, version).into_iter();
            levels.any(|level| {
                let group = self.contents.group(source, version, level, node);
                let lost = |group: &Group| {
                    let members = group.members.iter();
                    members.filter(|it| !pieces.whole.contains(it)).count()
                };
                group.is_some_and(|(group, _)| {
                    lost(&group) <= most && is_made(&group, node, level, &pieces)
                })
            })
        };
        let mut nodes = (0..self.nodes()).map(NodeId);
        let all = nodes.all(|node| pieces.whole.contains(&node) || made(node));
        if let Some(opening) = &mut self.opening
            && !all
            && opening
                .short
                .as_ref()
                .is_none_or(|it| (it.0, it.1) <= (source, version))
        {
            opening.short = Some((source, version, pieces));
        }
        all
    }
}

/// True if a group gives back what one of its members has lost.
fn is_made(
    group: &Group,
    node: NodeId,
    level: Level,
    pieces: &outlive_protocols::commit::Pieces,
) -> bool {
    use outlive_ledger::scheme::Piece;
    let have = |piece| match piece {
        Piece::Whole(node) => pieces.whole.contains(&node),
        Piece::Parity(node) => pieces.parity.contains(&(level, node)),
    };
    group.terms(Piece::Whole(node), have).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::still::{Still, alone, part_of};
    use super::*;

    const VERSION: Version = Version(20);
    const AT: (Incarnation, Version) = (Incarnation(1), VERSION);

    fn xor() -> Level {
        Level::xor(3).unwrap()
    }

    /// Node 2 of a job of three, at this level.
    fn node() -> Node<Still> {
        let mut node = alone(2);
        if let Some(config) = &mut node.config {
            config.levels[0].level = xor();
        }
        node
    }

    fn part(node: u32) -> Part {
        part_of(AT, node)
    }

    /// The lengths of the containers of which parities were wanted.
    fn wanted(node: &Node<Still>) -> Vec<Vec<u64>> {
        let making = |ask: &Ask<_>| match ask {
            Ask::Parity(making) => Some(making.group.lengths.clone()),
            _ => None,
        };
        node.shell.asked.iter().filter_map(making).collect()
    }

    fn said(node: &Node<Still>) -> Vec<(u32, bool)> {
        let said = node
            .shell
            .sent
            .iter()
            .filter_map(|(to, message)| match message {
                PeerMessage::Sealed { .. } => Some((to.0, true)),
                PeerMessage::SealedWanted { .. } => Some((to.0, false)),
                _ => None,
            });
        said.collect()
    }

    #[test]
    fn a_parity_is_made_when_all_have_sealed_in_whichever_order() {
        let mut node = node();
        node.on_sealed(NodeId(1), AT, xor(), part(1));
        node.own_sealed(VERSION, xor(), part(2));
        assert_eq!(said(&node), [(0, true), (1, true)]);
        assert!(wanted(&node).is_empty());
        // What is another's, of another start or of no member is nothing.
        node.on_sealed(NodeId(0), AT, xor(), part(1));
        node.on_sealed(NodeId(0), (Incarnation(2), VERSION), xor(), part(0));
        node.on_sealed(NodeId(0), AT, Level::xor(4).unwrap(), part(0));
        assert!(wanted(&node).is_empty());
        node.on_sealed(NodeId(0), AT, xor(), part(0));
        node.on_sealed(NodeId(0), AT, xor(), part(0));
        assert_eq!(wanted(&node), [[4096, 8192, 12288]], "once");
        let parity = Parity {
            length: 8192,
            digest: 5,
        };
        node.on_parity_made(AT, xor(), Ok(parity));
        let known = node.contents.part(AT.0, VERSION, xor(), NodeId(2)).unwrap();
        assert_eq!(known.parity, Some(parity));
        assert_eq!(node.gathering.deadline(), None);
        // Who missed the word gets it still.
        node.on_sealed_wanted(NodeId(0), AT, xor());
        assert_eq!(said(&node).len(), 3);
    }

    #[test]
    fn what_was_lost_is_asked_for_until_the_level_ends() {
        let mut node = node();
        node.own_sealed(VERSION, xor(), part(2));
        node.on_sealed(NodeId(0), AT, xor(), part(0));
        let mut asked = 0;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let at = node.gathering.deadline().unwrap();
            pauses.push(at.since(node.now));
            node.now = at;
            node.ask_for_sealed();
            asked += 1;
            let wanted = said(&node).into_iter().filter(|(_, sealed)| !sealed);
            assert_eq!(wanted.collect::<Vec<_>>(), vec![(1, false); asked]);
        }
        assert!(
            pauses.is_sorted() && pauses[7] == ASK_PAUSE_MAX,
            "{pauses:?}"
        );
        node.gathering.end(VERSION, Some(Level::DISK));
        assert!(node.gathering.deadline().is_some(), "another level");
        node.gathering.end(VERSION, None);
        assert_eq!(node.gathering.deadline(), None);
        // A parity that comes after that is of no level.
        let parity = Parity {
            length: 1,
            digest: 1,
        };
        node.on_parity_made(AT, xor(), Ok(parity));
        assert!(
            node.contents
                .part(AT.0, VERSION, xor(), NodeId(2))
                .is_none()
        );
    }

    #[test]
    fn what_members_say_of_versions_that_never_come_is_bounded() {
        let mut node = node();
        for version in 0..1000 {
            let mut part = part(1);
            part.id.version = Version(version);
            node.on_sealed(NodeId(1), (AT.0, Version(version)), xor(), part);
        }
        assert_eq!(node.gathering.0.len(), GATHERED_MAX);
    }
}
