//! Levels with groups: when the containers of all members of this node's group are written,
//! it makes its parity of them. At a level of a memory server the group's first member alone has
//! one made, there; the others are done with their containers.
//!
//! Members tell each other what they have sealed; who misses something asks again. Invariants:
//! a level counts as written here only with its parity; what is gathered is bounded; nothing of
//! an ended incarnation is taken.

use std::collections::BTreeMap;

use outlive_base::level::StoreKind;
use outlive_base::{Code, Error, Incarnation, Level, NodeId, Result, Time, Version};
use outlive_ledger::{Parity as Made, Part};
use outlive_protocols::commit::{Command, Why};
use serde::{Deserialize, Serialize};

use super::Planted;
use super::core::{Core, News};
use super::service::{self, Service};
use super::shell::{Ask, Done, Making, Shell};

/// Most versions and levels of which something is gathered at once; the oldest go.
const GATHERED_MAX: usize = 16;
/// How long a member waits before it asks for what it misses; doubled each time.
const ASK_AFTER: Time = Time::from_ms(50);
/// The longest pause between two questions.
const ASK_PAUSE_MAX: Time = Time::from_ms(1600);

/// The container is written, and the parity is not made.
const SEALED: &str = "parity:sealed";

/// What members of a group say to each other of a version, for a level with groups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    /// The open incarnation.
    incarnation: Incarnation,
    /// The version.
    version: Version,
    /// The level.
    level: Level,
    /// The sender's container, which is written; `None`: it misses the receiver's.
    part: Option<Part>,
}

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
pub struct Parity {
    gathered: BTreeMap<(Version, Level), Sealed>,
    /// What was told of a memory server, by level, since a parity was made there: it is told once.
    told: BTreeMap<Level, Code>,
}

impl Service for Parity {
    type Word = Said;
    const NUMBER: u8 = 2;
    const POINTS: &'static [&'static str] = &[SEALED];

    fn new(_: Time) -> Parity {
        Parity {
            gathered: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    fn on_word<S: Shell>(&mut self, core: &mut Core<S>, from: NodeId, said: Said) {
        let Said {
            incarnation,
            version,
            level,
            part,
        } = said;
        if incarnation != core.incarnation() {
            return;
        }
        match part {
            Some(part) => self.on_sealed(core, from, version, level, part),
            None => self.on_wanted(core, from, version, level),
        }
    }

    fn on_news<S: Shell>(&mut self, core: &mut Core<S>, news: &News) {
        match news {
            News::Sealed {
                version,
                level,
                part,
            } => self.own_sealed(core, *version, *level, part.clone()),
            News::Opened { restored, replaced } => {
                self.gathered.clear();
                if let Some((source, version)) = restored.filter(|_| replaced.contains(&core.me()))
                {
                    make_again(core, source, version);
                }
            }
            News::Stable { version, level, .. } => self.end(*version, Some(*level)),
            News::Disarmed(version) => self.end(*version, None),
            News::Aborted(aborted) => self.end(aborted.version, aborted.level),
            _ => {}
        }
    }

    fn on_done<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        done: Done<S::Slab>,
    ) -> Option<Done<S::Slab>> {
        let Done::ParityMade {
            source,
            version,
            level,
            result,
        } = done
        else {
            return Some(done);
        };
        if source == core.incarnation() {
            self.on_made(core, version, level, result);
        }
        None
    }

    fn on_time<S: Shell>(&mut self, core: &mut Core<S>) {
        self.ask_for_missing(core);
    }

    fn deadline<S: Shell>(&self, _: &Core<S>) -> Option<Time> {
        let waiting = self.gathered.values().filter(|sealed| !sealed.making);
        waiting.filter_map(|sealed| Some(sealed.again?.0)).min()
    }
}

impl Parity {
    /// A level of a version has ended, or all of them.
    fn end(&mut self, version: Version, level: Option<Level>) {
        self.gathered
            .retain(|key, _| key.0 != version || level.is_some_and(|level| key.1 != level));
    }

    fn at(&mut self, version: Version, level: Level) -> &mut Sealed {
        let key = (version, level);
        while self.gathered.len() >= GATHERED_MAX && !self.gathered.contains_key(&key) {
            self.gathered.pop_first();
        }
        self.gathered.entry(key).or_default()
    }

    /// This node's container of a version is written.
    fn own_sealed<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        version: Version,
        level: Level,
        part: Part,
    ) {
        if core.has_planted(Planted::PrepareWithoutParity) {
            return core.prepare_with(version, level, part);
        }
        let members = match group_at(core, level) {
            Ok(members) => members,
            Err(error) => return self.failed(core, version, level, error),
        };
        if let Some(maker) = served_by(level, &members).filter(|maker| *maker != part.node) {
            say(core, maker, version, level, Some(part.clone()));
            core.fail_point(SEALED);
            return core.prepare_with(version, level, part);
        }
        let sealed = self.at(version, level);
        sealed.parts.insert(part.node, part.clone());
        sealed.again = Some((core.now() + ASK_AFTER, ASK_AFTER));
        if level.store() != StoreKind::Server {
            for member in members.into_iter().filter(|member| *member != part.node) {
                say(core, member, version, level, Some(part.clone()));
            }
        }
        core.fail_point(SEALED);
        self.try_to_make(core, version, level);
    }

    /// Another member says that its container is written.
    fn on_sealed<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        from: NodeId,
        version: Version,
        level: Level,
        part: Part,
    ) {
        let incarnation = core.incarnation();
        let theirs = part.node == from
            && (part.id.incarnation, part.id.version, part.id.node) == (incarnation, version, from);
        let gathers = |group: &[NodeId]| served_by(level, group).is_none_or(|it| it == core.me());
        let is_member =
            group_at(core, level).is_ok_and(|group| group.contains(&from) && gathers(&group));
        // What is over here needs nothing more.
        let known = core.contents().part(incarnation, version, level, core.me());
        let here = core.all_levels().contains(level) && level.members().is_some();
        if here && theirs && is_member && known.is_none() {
            self.at(version, level).parts.insert(from, part);
            self.try_to_make(core, version, level);
        }
    }

    /// Another member misses what this node has sealed.
    fn on_wanted<S: Shell>(
        &self,
        core: &mut Core<S>,
        from: NodeId,
        version: Version,
        level: Level,
    ) {
        let me = core.me();
        let gathered = self.gathered.get(&(version, level));
        let gathered = gathered.and_then(|sealed| sealed.parts.get(&me));
        let known = || core.contents().part(core.incarnation(), version, level, me);
        if let Some(part) = gathered.or_else(known).cloned() {
            say(core, from, version, level, Some(part));
        }
    }

    /// Makes the parity once all containers of the group are there.
    fn try_to_make<S: Shell>(&mut self, core: &mut Core<S>, version: Version, level: Level) {
        let Ok(members) = group_at(core, level) else {
            return;
        };
        let sealed = self.at(version, level);
        let parts: Option<Vec<Part>> = members
            .iter()
            .map(|member| sealed.parts.get(member).cloned())
            .collect();
        let Some(parts) = parts.filter(|_| !sealed.making) else {
            return;
        };
        sealed.making = true;
        let making = Making::new(core.incarnation(), version, level, parts, false);
        core.begin(Ask::Parity(making));
    }

    /// Asks for what is missing, where that is due.
    fn ask_for_missing<S: Shell>(&mut self, core: &mut Core<S>) {
        let now = core.now();
        for (&(version, level), sealed) in &mut self.gathered {
            let Some((at, pause)) = sealed.again.filter(|_| !sealed.making) else {
                continue;
            };
            if at > now {
                continue;
            }
            let pause = Time(pause.0 * 2).min(ASK_PAUSE_MAX);
            sealed.again = Some((now + pause, pause));
            let members = group_at(core, level).unwrap_or_default().into_iter();
            for member in members.filter(|member| !sealed.parts.contains_key(member)) {
                say(core, member, version, level, None);
            }
        }
    }

    /// A parity is written and read back, or failed.
    fn on_made<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        version: Version,
        level: Level,
        result: Result<Made>,
    ) {
        let Some(mut sealed) = self.gathered.remove(&(version, level)) else {
            // The level has ended meanwhile.
            return;
        };
        match (result, sealed.parts.remove(&core.me())) {
            (Ok(parity), Some(mut part)) => {
                self.told.remove(&level);
                part.parity = Some(parity);
                core.prepare_with(version, level, part);
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.failed(core, version, level, error),
        }
    }

    /// The level is given up for a version. What a memory server fails in, it fails in at each
    /// version: that is told once.
    fn failed<S: Shell>(
        &mut self,
        core: &mut Core<S>,
        version: Version,
        level: Level,
        error: Error,
    ) {
        let code = error.code();
        let served = level.store() == StoreKind::Server;
        if !served || self.told.insert(level, code) != Some(code) {
            core.warn_of_copy(level.store(), error);
        }
        core.command(Command::LevelFailed {
            version,
            level,
            why: Why::Partner,
        });
    }
}

/// The member that has the parity of a group made by a memory server; `None`: each makes its own.
fn served_by(level: Level, members: &[NodeId]) -> Option<NodeId> {
    let first = members.first().copied();
    first.filter(|_| level.store() == StoreKind::Server)
}

/// The members of this node's group.
fn group_at<S: Shell>(core: &Core<S>, level: Level) -> Result<Vec<NodeId>> {
    let me = core.me();
    let mut groups = core.groups_at(level)?.into_iter();
    groups
        .find(|members| members.contains(&me))
        .ok_or_else(|| Error::internal(format!("{level} has no group for {me}")))
}

fn say<S: Shell>(
    core: &mut Core<S>,
    to: NodeId,
    version: Version,
    level: Level,
    part: Option<Part>,
) {
    let said = Said {
        incarnation: core.incarnation(),
        version,
        level,
        part,
    };
    service::say::<Parity, S>(core, to, &said);
}

/// After this node was replaced, it lacks its parities of the restored version: the others
/// still have what they are made of.
fn make_again<S: Shell>(core: &mut Core<S>, source: Incarnation, version: Version) {
    let levels = core.contents().levels_of(source, version).into_iter();
    // A memory server still has its own.
    for level in levels.filter(|level| level.store() != StoreKind::Server) {
        let group = core.contents().group(source, version, level, core.me());
        let Some((group, parts)) = group else {
            continue;
        };
        let member = |node: &NodeId| parts.iter().find(|part| part.node == *node).cloned();
        let ordered: Option<Vec<Part>> = group.members.iter().map(member).collect();
        if let Some(parts) = ordered {
            let making = Making::new(source, version, level, parts, true);
            core.begin(Ask::Parity(making));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::still::{Still, alone_at, one_of, part_of};
    use super::*;
    use crate::node::Node;
    use crate::node::shell::PeerMessage;

    const VERSION: Version = Version(20);
    const AT: (Incarnation, Version) = (Incarnation(1), VERSION);

    fn xor() -> Level {
        Level::xor(3).unwrap()
    }

    /// Node 2 of a job of three, at this level.
    fn node() -> Node<Still> {
        alone_at(2, xor())
    }

    fn part(node: u32) -> Part {
        part_of(AT, node)
    }

    /// A member says that it has sealed this, or, with nothing, what it misses.
    fn hears(
        node: &mut Node<Still>,
        from: u32,
        (incarnation, version): (Incarnation, Version),
        level: Level,
        part: Option<Part>,
    ) {
        let said = Said {
            incarnation,
            version,
            level,
            part,
        };
        let message = PeerMessage::Service {
            service: Parity::NUMBER,
            bytes: postcard::to_allocvec(&said).unwrap(),
        };
        let from = NodeId(from);
        node.on(node.core.now(), Input::Peer { from, message });
    }

    fn seals(node: &mut Node<Still>) {
        let part = part(2);
        let done = Done::LevelDone {
            source: AT.0,
            version: VERSION,
            level: xor(),
            result: Ok(part),
        };
        node.on(node.core.now(), Input::Done(done));
    }

    fn makes(node: &mut Node<Still>, parity: Made) {
        let done = Done::ParityMade {
            source: AT.0,
            version: VERSION,
            level: xor(),
            result: Ok(parity),
        };
        node.on(node.core.now(), Input::Done(done));
    }

    fn deadline(node: &Node<Still>) -> Option<Time> {
        node.services.parity.deadline(&node.core)
    }

    /// The lengths of the containers of which parities were wanted.
    fn wanted(node: &mut Node<Still>) -> Vec<Vec<u64>> {
        let making = |ask: &Ask<_>| match ask {
            Ask::Parity(making) => Some(making.group.lengths.clone()),
            _ => None,
        };
        node.core.shell().asked.iter().filter_map(making).collect()
    }

    /// To whom something was said, and whether that was something sealed.
    fn said(node: &mut Node<Still>) -> Vec<(u32, bool)> {
        let sent = node.core.shell().sent.iter();
        let said = sent.filter_map(|(to, message)| match message {
            PeerMessage::Service { service: 2, bytes } => {
                let said: Said = postcard::from_bytes(bytes).unwrap();
                Some((to.0, said.part.is_some()))
            }
            _ => None,
        });
        said.collect()
    }

    #[test]
    fn a_parity_is_made_when_all_have_sealed_in_whichever_order() {
        let mut node = node();
        hears(&mut node, 1, AT, xor(), Some(part(1)));
        seals(&mut node);
        assert_eq!(said(&mut node), [(0, true), (1, true)]);
        assert!(wanted(&mut node).is_empty());
        // What is another's, of another start or of no member is nothing.
        hears(&mut node, 0, AT, xor(), Some(part(1)));
        let later = (Incarnation(2), VERSION);
        hears(&mut node, 0, later, xor(), Some(part(0)));
        hears(&mut node, 0, AT, Level::xor(4).unwrap(), Some(part(0)));
        assert!(wanted(&mut node).is_empty());
        hears(&mut node, 0, AT, xor(), Some(part(0)));
        hears(&mut node, 0, AT, xor(), Some(part(0)));
        assert_eq!(wanted(&mut node), [[4096, 8192, 12288]], "once");
        let parity = Made {
            length: 8192,
            digest: 5,
        };
        makes(&mut node, parity);
        let known = node.core.contents().part(AT.0, VERSION, xor(), NodeId(2));
        assert_eq!(known.unwrap().parity, Some(parity));
        assert_eq!(deadline(&node), None);
        // Who missed the word gets it still.
        hears(&mut node, 0, AT, xor(), None);
        assert_eq!(said(&mut node).len(), 3);
    }

    #[test]
    fn what_was_lost_is_asked_for_until_the_level_ends() {
        let mut node = node();
        seals(&mut node);
        hears(&mut node, 0, AT, xor(), Some(part(0)));
        let mut asked = 0;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let at = deadline(&node).unwrap();
            pauses.push(at.since(node.core.now()));
            node.on_time(at);
            asked += 1;
            let wanted = said(&mut node).into_iter().filter(|(_, sealed)| !sealed);
            assert_eq!(wanted.collect::<Vec<_>>(), vec![(1, false); asked]);
        }
        assert!(
            pauses.is_sorted() && pauses[7] == ASK_PAUSE_MAX,
            "{pauses:?}"
        );
        let parity = &mut node.services.parity;
        parity.end(VERSION, Some(Level::DISK));
        assert!(deadline(&node).is_some(), "another level");
        node.services.parity.end(VERSION, None);
        assert_eq!(deadline(&node), None);
        // A parity that comes after that is of no level.
        let parity = Made {
            length: 1,
            digest: 1,
        };
        makes(&mut node, parity);
        let known = node.core.contents().part(AT.0, VERSION, xor(), NodeId(2));
        assert!(known.is_none());
    }

    fn served() -> Level {
        Level::memory_server(3).unwrap()
    }

    /// This node's container is written at the level of a memory server.
    fn seals_served(node: &mut Node<Still>, me: u32) {
        let done = Done::LevelDone {
            source: AT.0,
            version: VERSION,
            level: served(),
            result: Ok(part(me)),
        };
        node.on(node.core.now(), Input::Done(done));
    }

    fn made(node: &mut Node<Still>, result: Result<Made>) {
        let done = Done::ParityMade {
            source: AT.0,
            version: VERSION,
            level: served(),
            result,
        };
        node.on(node.core.now(), Input::Done(done));
    }

    #[test]
    fn the_first_of_a_group_has_its_server_make_the_parity() {
        // The others are done with their containers, and say so to it alone.
        let mut other = one_of(3, 2, served());
        seals_served(&mut other, 2);
        assert_eq!(said(&mut other), [(0, true)]);
        let known = |node: &mut Node<Still>, of| {
            let part = node.core.contents().part(AT.0, VERSION, served(), of);
            part.map(|part| part.parity)
        };
        assert_eq!(known(&mut other, NodeId(2)), Some(None));
        hears(&mut other, 0, AT, served(), None);
        assert_eq!(said(&mut other), [(0, true), (0, true)]);
        hears(&mut other, 1, AT, served(), Some(part(1)));
        assert!(other.services.parity.gathered.is_empty());

        let mut first = one_of(3, 0, served());
        hears(&mut first, 1, AT, served(), Some(part(1)));
        seals_served(&mut first, 0);
        assert!(wanted(&mut first).is_empty() && said(&mut first).is_empty());
        assert_eq!(known(&mut first, NodeId(0)), None);
        hears(&mut first, 2, AT, served(), Some(part(2)));
        assert_eq!(wanted(&mut first), [[4096, 8192, 12288]]);
        let parity = Made {
            length: 12288,
            digest: 5,
        };
        made(&mut first, Ok(parity));
        assert_eq!(known(&mut first, NodeId(0)), Some(Some(parity)));
    }

    #[test]
    fn what_a_server_fails_in_is_told_once() {
        let mut first = one_of(3, 0, served());
        let told = |node: &mut Node<Still>| {
            let warned = node.core.shell().told.iter();
            let warning = |notice: &&crate::orders::Notice| {
                matches!(notice, crate::orders::Notice::Warning(_))
            };
            warned.filter(warning).count()
        };
        let lost = |code| {
            let entity = outlive_base::Entity::Address("server".into());
            Error::new(code, entity, "it is lost", "look at it")
        };
        let fails = |node: &mut Node<Still>, code| {
            seals_served(node, 0);
            made(node, Err(lost(code)));
        };
        for _ in 0..3 {
            fails(&mut first, Code::ServerLost);
        }
        assert_eq!(told(&mut first), 1);
        fails(&mut first, Code::NoSpace);
        assert_eq!(told(&mut first), 2);
    }

    #[test]
    fn what_members_say_of_versions_that_never_come_is_bounded() {
        let mut node = node();
        for version in 0..1000 {
            let mut part = part(1);
            part.id.version = Version(version);
            hears(&mut node, 1, (AT.0, Version(version)), xor(), Some(part));
        }
        assert_eq!(node.services.parity.gathered.len(), GATHERED_MAX);
    }
}
