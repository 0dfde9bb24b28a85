//! Levels: how a version is protected. A level is a *protection*, a scheme over a store; it is
//! its own description and stands in no table of a job.
//!
//! Invariants: a level fits a byte, so that messages of protocols stay small; the order of
//! levels is the order in which copies are tried, nearest first, and says nothing of what they
//! survive: that is [`Level::tolerance`], which is a partial order.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Entity, Error, Result};

/// What keeps the bytes of a level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum StoreKind {
    /// Staging memory that a node's keeper owns: survives ranks and agents.
    Keeper = 0,
    /// Storage of the nodes.
    Node = 1,
    /// A directory that all nodes share.
    Shared = 2,
    /// Containers in the storage of the nodes, and their parities in the memory of a server.
    Server = 3,
}

impl StoreKind {
    /// True if each node keeps its own container in its storage.
    pub const fn is_of_nodes(self) -> bool {
        matches!(self, StoreKind::Node | StoreKind::Server)
    }
}

/// How bytes are laid out over the members of a group. Numbers are those of records
/// (`docs/format.md`, "Protection").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum Scheme {
    /// Each node's bytes once.
    Single = 0,
    /// A parity segment at each member of a group, of the others' bytes (RAID 5, as SCR's and
    /// DEEP-ER's XOR levels: deep-er, section III-D2). Over [`StoreKind::Server`]: one parity of
    /// all members, at the server (NAM XOR: deep-er, section III-D).
    Xor = 1,
    /// Several parities at each member of a group, by a Reed-Solomon code (as SCR's RS level;
    /// `outlive_ledger::scheme` has the code).
    ReedSolomon = 2,
    /// The bytes again at another node (Buddy: deep-er, section III-D1).
    Copies = 3,
}

/// A scheme with its numbers, over a store: what records and files say of a level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Protection {
    /// What keeps the bytes.
    pub store: StoreKind,
    /// How they are laid out.
    pub scheme: Scheme,
    /// Members of a group that hold bytes of which one parity is made; 1 without parity.
    pub k: u16,
    /// Members of a group that may be lost.
    pub m: u16,
}

/// How many failure domains may be lost, whichever they are, without losing a version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Count {
    /// At most so many.
    Some(u16),
    /// All.
    All,
}

/// What may be lost, by kind. Neither of two levels need tolerate more than the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tolerance {
    /// Nodes of which memory alone is lost.
    pub memory: Count,
    /// Failure domains of which storage is lost as well.
    pub storage: Count,
    /// What outside of the nodes must not be lost.
    pub outside: Option<StoreKind>,
}

impl Tolerance {
    /// True if whatever the other survives, this survives too.
    pub fn covers(self, other: Tolerance) -> bool {
        let outside = self.outside.is_none() || self.outside == other.outside;
        self.memory >= other.memory && self.storage >= other.storage && outside
    }
}

/// What a program wants a version to survive. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Survives {
    /// The end of a process: a rank or an agent.
    Process = 1,
    /// A node that starts again, with its storage.
    NodeCrash = 2,
    /// A node that does not come back.
    NodeLoss = 3,
    /// All nodes of one failure domain.
    Domain = 4,
    /// All nodes.
    AllNodes = 5,
}

impl Survives {
    /// All of them, the weakest first.
    pub const ALL: [Survives; 5] = [
        Survives::Process,
        Survives::NodeCrash,
        Survives::NodeLoss,
        Survives::Domain,
        Survives::AllNodes,
    ];

    /// The name in messages and options.
    pub const fn name(self) -> &'static str {
        match self {
            Survives::Process => "process",
            Survives::NodeCrash => "node-crash",
            Survives::NodeLoss => "node-loss",
            Survives::Domain => "domain",
            Survives::AllNodes => "all-nodes",
        }
    }

    /// The inverse of `self as u8`.
    pub fn from_number(number: u8) -> Option<Survives> {
        Survives::ALL.into_iter().find(|it| *it as u8 == number)
    }
}

impl fmt::Display for Survives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Survives {
    type Err = Error;
    fn from_str(text: &str) -> Result<Survives> {
        let found = Survives::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                Entity::Option("survives".into()),
                format!("'{text}' is nothing that a version can survive"),
                "use process, node-crash, node-loss, domain or all-nodes",
            )
        })
    }
}

/// A checkpoint level (ffmk, section 3.5; deep-er, section III-D): what a version is kept as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

/// Fewest members of an XOR group: with two the parity is a copy, which `partner` is.
pub const XOR_MEMBERS_MIN: u16 = 3;
/// Most members of an XOR group.
pub const XOR_MEMBERS_MAX: u16 = 32;
/// Fewest members of a Reed-Solomon group that are not parity: with one it would be copies.
pub const RS_DATA_MIN: u16 = 2;
/// Most of them that a level names.
pub const RS_DATA_MAX: u16 = 32;
/// Fewest members of a Reed-Solomon group that may be lost: one is what XOR survives.
pub const RS_LOST_MIN: u16 = 2;
/// Most of them.
pub const RS_LOST_MAX: u16 = 4;

/// The code of an XOR group of no members; that of g members is g more.
const XOR: u8 = 0x20;
/// The same of a group whose parity lies in a memory server.
const SERVER: u8 = 0xB0;
/// The code of the first Reed-Solomon level. Those of a k follow each other, by m.
const RS: u8 = 0x50;
/// Choices of m for each k.
const RS_LOST: u8 = (RS_LOST_MAX - RS_LOST_MIN + 1) as u8;
/// The code of the last of them.
const RS_LAST: u8 = RS + RS_LOST * (RS_DATA_MAX - RS_DATA_MIN + 1) as u8 - 1;

static XOR_NAMES: [&str; 30] = [
    "xor:3", "xor:4", "xor:5", "xor:6", "xor:7", "xor:8", "xor:9", "xor:10", "xor:11", "xor:12",
    "xor:13", "xor:14", "xor:15", "xor:16", "xor:17", "xor:18", "xor:19", "xor:20", "xor:21",
    "xor:22", "xor:23", "xor:24", "xor:25", "xor:26", "xor:27", "xor:28", "xor:29", "xor:30",
    "xor:31", "xor:32",
];

/// A name of each number of members, from the fewest.
macro_rules! server_names {
    ($($members:literal)*) => { [$(concat!("memory-server:", $members)),*] };
}

static SERVER_NAMES: [&str; 30] = server_names!(
    3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
);

/// The names of each k, by m.
macro_rules! rs_names {
    ($($k:literal)*) => {
        [$([
            concat!("rs:", $k, "+2"),
            concat!("rs:", $k, "+3"),
            concat!("rs:", $k, "+4"),
        ]),*]
    };
}

static RS_NAMES: [[&str; RS_LOST as usize]; 31] = rs_names!(
    2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
);

impl Level {
    /// Staging memory of the node. Survives ranks and agents.
    pub const MEMORY: Level = Level(0);
    /// A container in the node's own storage. Survives a node that starts again.
    pub const DISK: Level = Level(1);
    /// A second container in another failure domain (Buddy). Survives a lost domain.
    pub const PARTNER: Level = Level(2);
    /// A container in the directory that all nodes share. Survives all nodes.
    pub const SHARED: Level = Level(0xE0);

    /// The levels that need no number, nearest first.
    pub const PLAIN: [Level; 4] = [Level::MEMORY, Level::DISK, Level::PARTNER, Level::SHARED];
    /// No level comes before it.
    pub const FIRST: Level = Level::MEMORY;
    /// No level comes after it.
    pub const LAST: Level = Level(u8::MAX);

    /// Parity over groups of `members` nodes. `None` if they are too few or too many.
    pub const fn xor(members: u16) -> Option<Level> {
        match members {
            XOR_MEMBERS_MIN..=XOR_MEMBERS_MAX => Some(Level(XOR + members as u8)),
            _ => None,
        }
    }

    /// One parity of each group of `members` nodes, made and kept by a memory server. `None` if
    /// they are too few or too many.
    pub const fn memory_server(members: u16) -> Option<Level> {
        match members {
            XOR_MEMBERS_MIN..=XOR_MEMBERS_MAX => Some(Level(SERVER + members as u8)),
            _ => None,
        }
    }

    /// The members of a group of the code of such a level.
    const fn server_of(code: u8) -> Option<u16> {
        const FIRST: u8 = SERVER + XOR_MEMBERS_MIN as u8;
        const LAST: u8 = SERVER + XOR_MEMBERS_MAX as u8;
        match code {
            FIRST..=LAST => Some((code - SERVER) as u16),
            _ => None,
        }
    }

    /// Reed-Solomon parities over groups of `k + m` nodes, of which `m` may be lost. `None` if
    /// either is too small or too large.
    pub const fn rs(k: u16, m: u16) -> Option<Level> {
        match (k, m) {
            (RS_DATA_MIN..=RS_DATA_MAX, RS_LOST_MIN..=RS_LOST_MAX) => {
                let (k, m) = ((k - RS_DATA_MIN) as u8, (m - RS_LOST_MIN) as u8);
                Some(Level(RS + k * RS_LOST + m))
            }
            _ => None,
        }
    }

    /// The k and m of the code of a Reed-Solomon level, from the smallest of each.
    const fn rs_of(code: u8) -> Option<(u8, u8)> {
        match code {
            RS..=RS_LAST => Some(((code - RS) / RS_LOST, (code - RS) % RS_LOST)),
            _ => None,
        }
    }

    /// The level as a byte, between processes of one build.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The inverse of [`Level::code`].
    pub fn from_code(code: u8) -> Option<Level> {
        let members = u16::from(code.wrapping_sub(XOR));
        let plain = Level::PLAIN.into_iter().find(|level| level.0 == code);
        let rs = || Level::rs_of(code).map(|_| Level(code));
        let server = || Level::server_of(code).map(|_| Level(code));
        plain
            .or_else(|| Level::xor(members))
            .or_else(rs)
            .or_else(server)
    }

    /// Store, scheme and numbers.
    pub const fn protection(self) -> Protection {
        let (store, scheme, k, m) = match self {
            Level::MEMORY => (StoreKind::Keeper, Scheme::Single, 1, 0),
            Level::DISK => (StoreKind::Node, Scheme::Single, 1, 0),
            Level::PARTNER => (StoreKind::Node, Scheme::Copies, 1, 1),
            Level::SHARED => (StoreKind::Shared, Scheme::Single, 1, 0),
            Level(code) => match Level::rs_of(code) {
                Some((k, m)) => {
                    let (k, m) = (k as u16 + RS_DATA_MIN, m as u16 + RS_LOST_MIN);
                    (StoreKind::Node, Scheme::ReedSolomon, k, m)
                }
                None => match Level::server_of(code) {
                    Some(members) => (StoreKind::Server, Scheme::Xor, members, 1),
                    None => (StoreKind::Node, Scheme::Xor, (code - XOR) as u16 - 1, 1),
                },
            },
        };
        Protection {
            store,
            scheme,
            k,
            m,
        }
    }

    /// The inverse of [`Level::protection`]; `None` for one that this version does not know.
    pub fn of(protection: Protection) -> Option<Level> {
        let xor = Level::xor(protection.k.saturating_add(1));
        let rs = Level::rs(protection.k, protection.m);
        let server = Level::memory_server(protection.k);
        let mut known = Level::PLAIN.into_iter().chain(xor).chain(rs).chain(server);
        known.find(|level| level.protection() == protection)
    }

    /// What keeps its bytes.
    pub const fn store(self) -> StoreKind {
        self.protection().store
    }

    /// How its bytes are laid out.
    pub const fn scheme(self) -> Scheme {
        self.protection().scheme
    }

    /// Nodes of a group over which parity is made; `None` if there is none.
    pub const fn members(self) -> Option<u16> {
        let Protection {
            store,
            scheme,
            k,
            m,
        } = self.protection();
        match (store, scheme) {
            // Of what the server keeps no member stores anything.
            (StoreKind::Server, _) => Some(k),
            (_, Scheme::Xor | Scheme::ReedSolomon) => Some(k + m),
            (_, Scheme::Single | Scheme::Copies) => None,
        }
    }

    /// The name used on the command line, in records and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::MEMORY => "memory",
            Level::DISK => "disk",
            Level::PARTNER => "partner",
            Level::SHARED => "shared",
            Level(code) => match Level::rs_of(code) {
                Some((k, m)) => RS_NAMES[usize::from(k)][usize::from(m)],
                None => {
                    let (names, first) = match Level::server_of(code) {
                        Some(_) => (&SERVER_NAMES, SERVER),
                        None => (&XOR_NAMES, XOR),
                    };
                    let nth = code.wrapping_sub(first + XOR_MEMBERS_MIN as u8);
                    names.get(usize::from(nth)).copied().unwrap_or("?")
                }
            },
        }
    }

    /// What may be lost.
    pub const fn tolerance(self) -> Tolerance {
        let Protection { store, m, .. } = self.protection();
        let (memory, storage, outside) = match store {
            StoreKind::Keeper => (Count::Some(0), Count::Some(0), None),
            StoreKind::Node => (Count::All, Count::Some(m), None),
            StoreKind::Shared => (Count::All, Count::All, Some(StoreKind::Shared)),
            StoreKind::Server => (Count::All, Count::Some(m), Some(StoreKind::Server)),
        };
        Tolerance {
            memory,
            storage,
            outside,
        }
    }

    /// True if a version at this level survives whatever one at `other` does, as far as both
    /// promise it: the order by which a newer version takes an older one's place (P3).
    pub fn covers(self, other: Level) -> bool {
        // Without its server it is what the containers of the nodes are.
        let is_served = self.store() == StoreKind::Server;
        let alone = is_served && Level::DISK.tolerance().covers(other.tolerance());
        alone || self.tolerance().covers(other.tolerance())
    }

    /// The most that a program may count on.
    pub const fn survives(self) -> Survives {
        let Protection { store, m, .. } = self.protection();
        match (store, m) {
            (StoreKind::Keeper, _) => Survives::Process,
            (StoreKind::Node, 0) => Survives::NodeCrash,
            // Copies and groups are laid over failure domains.
            (StoreKind::Node | StoreKind::Server, _) => Survives::Domain,
            (StoreKind::Shared, _) => Survives::AllNodes,
        }
    }

    /// True if the bytes of each node are kept by another node as well, its partner.
    pub const fn has_partner(self) -> bool {
        matches!(self.scheme(), Scheme::Copies)
    }

    /// True if it survives a node that does not come back.
    pub fn outlives_a_node(self) -> bool {
        self.survives() >= Survives::NodeLoss
    }

    /// How many failure domains may be lost, whichever they are, without losing
    /// a version committed at this level: the `f` of the commit rule.
    pub const fn domains_tolerated(self, nodes: u32) -> u32 {
        match self.tolerance().storage {
            Count::Some(domains) => domains as u32,
            Count::All => nodes,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Level {
    type Err = Error;
    fn from_str(text: &str) -> Result<Level> {
        let plain = Level::PLAIN.into_iter().find(|level| level.name() == text);
        let xor = || {
            let nth = XOR_NAMES.iter().position(|name| *name == text)?;
            Level::xor(XOR_MEMBERS_MIN + nth as u16)
        };
        let rs = || {
            let mut names = RS_NAMES.iter().enumerate();
            names.find_map(|(k, names)| {
                let m = names.iter().position(|name| *name == text)?;
                Level::rs(RS_DATA_MIN + k as u16, RS_LOST_MIN + m as u16)
            })
        };
        let server = || {
            let nth = SERVER_NAMES.iter().position(|name| *name == text)?;
            Level::memory_server(XOR_MEMBERS_MIN + nth as u16)
        };
        let known = plain.or_else(xor).or_else(rs).or_else(server);
        known.ok_or_else(|| {
            // Who asks for one lost member alone means another level.
            let one_lost = || {
                let k = text.strip_prefix("rs:")?.strip_suffix("+1")?;
                Level::xor(k.parse::<u16>().ok()?.checked_add(1)?)
            };
            let (reason, remedy) = match one_lost() {
                Some(xor) => (
                    format!("'{text}' is no checkpoint level: {xor} survives one lost node"),
                    format!("use {xor}; the M of rs:K+M is 2 to 4"),
                ),
                None => (
                    format!("'{text}' is no checkpoint level"),
                    "use memory, disk, partner, xor:G (one parity over groups of G nodes, 3 to \
                     32), rs:K+M (M parities over groups of K + M nodes, K from 2 to 32 and M \
                     from 2 to 4), memory-server:G (one parity over groups of G nodes in a \
                     memory server, 3 to 32) or shared, separated by commas"
                        .to_owned(),
                ),
            };
            Error::new(
                Code::InvalidArgument,
                Entity::Option("level".into()),
                reason,
                remedy,
            )
        })
    }
}

impl Serialize for Level {
    fn serialize<S: serde::Serializer>(&self, out: S) -> core::result::Result<S::Ok, S::Error> {
        match out.is_human_readable() {
            true => out.serialize_str(self.name()),
            false => out.serialize_u8(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> core::result::Result<Level, D::Error> {
        use serde::de::Error as _;
        if !input.is_human_readable() {
            let code = u8::deserialize(input)?;
            return Level::from_code(code).ok_or_else(|| D::Error::custom("level"));
        }
        let text = <std::borrow::Cow<'de, str>>::deserialize(input)?;
        text.parse()
            .map_err(|error: Error| D::Error::custom(error.reason()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Level> {
        let xor = (0..100).filter_map(Level::xor);
        let rs = (0..100).flat_map(|k| (0..10).filter_map(move |m| Level::rs(k, m)));
        let server = (0..100).filter_map(Level::memory_server);
        Level::PLAIN.into_iter().chain(xor).chain(rs).chain(server)
    }

    #[test]
    fn every_level_is_its_own_description() {
        assert_eq!(all().count(), 34 + 93 + 30);
        let codes: std::collections::BTreeSet<u8> = all().map(Level::code).collect();
        assert_eq!(codes.len(), 34 + 93 + 30, "no two alike");
        for level in all() {
            assert_eq!(Level::from_code(level.code()), Some(level));
            assert_eq!(Level::of(level.protection()), Some(level));
            assert_eq!(level.name().parse::<Level>(), Ok(level));
            assert_eq!(level.has_partner(), level == Level::PARTNER, "{level}");
            assert!((Level::FIRST..=Level::LAST).contains(&level));
        }
        let unknown = (0..=u8::MAX).filter(|code| Level::from_code(*code).is_none());
        assert_eq!(unknown.count(), 256 - 34 - 93 - 30);
        for text in [
            "",
            "xor",
            "xor:2",
            "xor:33",
            "xor:04",
            "Memory",
            "rs",
            "rs:4",
            "rs:1+2",
            "rs:33+2",
            "rs:4+5",
            "rs:04+2",
            "rs:4+",
            "rs4+2",
            "memory-server",
            "memory-server:2",
            "memory-server:33",
            "memory-server:04",
            "memory-server4",
        ] {
            assert!(text.parse::<Level>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_level_of_one_parity_is_called_by_its_name() {
        let error = "rs:4+1".parse::<Level>().unwrap_err();
        assert!(error.reason().contains("xor:5 survives one"), "{error}");
        assert!(error.remedy().contains("use xor:5"), "{error}");
        for text in ["rs:1+1", "rs:32+1", "rs:x+1", "rs:65535+1"] {
            let error = text.parse::<Level>().unwrap_err();
            assert!(error.remedy().contains("rs:K+M (M parities"), "{error}");
        }
        let (rs, wide) = (Level::rs(4, 2).unwrap(), Level::rs(32, 4).unwrap());
        assert_eq!((rs.name(), rs.members()), ("rs:4+2", Some(6)));
        assert_eq!((wide.name(), wide.members()), ("rs:32+4", Some(36)));
        assert_eq!(rs.domains_tolerated(9), 2);
        assert_eq!(rs.survives(), Survives::Domain);
    }

    #[test]
    fn the_order_of_tolerance_is_partial() {
        let (memory, disk, partner, shared) =
            (Level::MEMORY, Level::DISK, Level::PARTNER, Level::SHARED);
        let xor = Level::xor(4).unwrap();
        for level in all() {
            assert!(level.covers(level), "{level}");
            assert_eq!(level.covers(memory), level != shared, "{level}");
        }
        assert!(disk.covers(memory) && !memory.covers(disk));
        assert!(partner.covers(disk) && !disk.covers(partner));
        assert!(xor.covers(partner) && partner.covers(xor));
        let (two, three) = (Level::rs(8, 2).unwrap(), Level::rs(2, 3).unwrap());
        assert!(two.covers(xor) && !xor.covers(two));
        assert!(three.covers(two) && !two.covers(three));
        for other in [memory, disk, partner, xor, two, three] {
            assert!(!other.covers(shared) && !shared.covers(other), "{other}");
        }
        assert_eq!(xor.survives(), Survives::Domain);
        // Its server may be lost, and then it is as good as the nodes' own containers.
        let server = Level::memory_server(4).unwrap();
        assert!(server.covers(disk) && !disk.covers(server));
        assert!(partner.covers(server) && xor.covers(server) && two.covers(server));
        for other in [partner, xor, two, shared] {
            assert!(!server.covers(other), "{other}");
        }
        assert!(Level::memory_server(8).unwrap().covers(server));
        assert_eq!(server.survives(), Survives::Domain);
        assert_eq!(server.members(), Some(4));
        assert_eq!(server.domains_tolerated(9), 1);
        assert_eq!(
            (disk.domains_tolerated(5), xor.domains_tolerated(5)),
            (0, 1)
        );
        assert_eq!(shared.domains_tolerated(5), 5);
    }
}
