//! Bringing the local ranks' bytes of a version back into memory: from the slots
//! that still hold it, the node's disk, the partner or shared storage, the first
//! that verifies (P2).

use std::sync::Arc;
use std::time::{Duration, Instant};

use outlive_base::level::{Scheme, StoreKind};
use outlive_base::{Code, ContainerId, Entity, Error, Level, NodeId, Rank, Result, Version};
use outlive_capture::slab::Slab;
use outlive_control::node::overwritten;
use outlive_control::node::shell::{Rebuild, Rebuilt};
use outlive_ledger::scheme::Piece;
use outlive_vault::{
    Container, ContainerHead, Pace, Part, RankEntry, ReadError, Sealed, Sink, Vault, of_received,
    receive,
};

use crate::memory::Memory;
use crate::parity::Remote;
use crate::peers::{StreamReply, StreamRequest, connection_lost, open_stream, read_reply};
use crate::places::Places;
use crate::slabs::Slabs;

/// How long a copy that others hold is asked for, if no other can be used: an agent is
/// started anew in less.
const PEER_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PEER_AGAIN: Duration = Duration::from_millis(20);

/// Bytes moved, and the slabs that hold them.
type Fetched = (u64, Vec<(Rank, Memory)>);

/// What to rebuild, and where this node's things are.
pub struct Rebuilding {
    /// What.
    pub wanted: Rebuild<Memory>,
    /// Where.
    pub places: Arc<Places>,
}

impl Rebuilding {
    /// Tries each copy in turn.
    pub fn run(mut self) -> Result<Rebuilt<Memory>> {
        self.wanted.unused.clear();
        let until = Instant::now() + PEER_PATIENCE;
        let mut rejected = Vec::new();
        let mut left: Vec<&(Level, Part)> = self.wanted.parts.iter().collect();
        loop {
            let mut away = Vec::new();
            for &copy in &left {
                let (level, part) = copy;
                match self.fetch(*level, part) {
                    Ok((bytes, slabs)) => {
                        return Ok(Rebuilt {
                            level: *level,
                            bytes,
                            slabs,
                            rejected,
                        });
                    }
                    Err(error) if is_away(&error) && Instant::now() < until => away.push(copy),
                    Err(error) => {
                        tracing::info!(%error, %level, "a copy cannot be used");
                        rejected.push(error);
                    }
                }
            }
            if away.is_empty() {
                break;
            }
            left = away;
            std::thread::sleep(PEER_AGAIN);
        }
        // The copy in memory is tried by itself: others may follow.
        if matches!(self.wanted.parts[..], [(level, _)] if level.store() == StoreKind::Keeper)
            && let Some(error) = rejected.pop()
        {
            return Err(error);
        }
        Err(failed(self.wanted.version, self.is_blind(), &rejected))
    }

    /// True if a copy may lie in the shared directory, and not even its list can be read: a file
    /// in it that cannot be is one copy less, and no more.
    fn is_blind(&self) -> bool {
        let mut levels = self.wanted.parts.iter().map(|(level, _)| *level);
        levels.any(|level| level.store() == StoreKind::Shared)
            && self.places.shared.found().is_err()
    }

    fn fetch(&self, level: Level, part: &Part) -> Result<Fetched> {
        let sealed = Sealed {
            id: part.id,
            length: part.length,
            digest: part.digest,
        };
        match (level.store(), level.scheme()) {
            (StoreKind::Keeper, _) => self.check_memory(&sealed).map(|()| (0, Vec::new())),
            (StoreKind::Shared, _) => self.read(&self.places.shared, &sealed),
            (StoreKind::Node, Scheme::Single) => self.read(&self.places.store, &sealed),
            (StoreKind::Node, Scheme::Copies) => self.receive_from(part.holder, &sealed),
            (StoreKind::Node | StoreKind::Server, _) => self.make(level, &sealed),
        }
    }

    fn check_memory(&self, expected: &Sealed) -> Result<()> {
        let found = match &self.wanted.in_memory {
            Some(captures) => {
                for (rank, memory) in &captures.slabs {
                    self.check_head(*rank, &memory.slab)?;
                }
                self.places.layout(captures)?.seal()
            }
            None => {
                return Err(Error::new(
                    Code::NotFound,
                    outlive_base::Entity::Node(self.places.node.0),
                    "the slots hold other versions",
                    "nothing: the next copy is tried",
                ));
            }
        };
        if found == *expected {
            return Ok(());
        }
        Err(Error::new(
            Code::Corrupt,
            outlive_base::Entity::Node(self.places.node.0),
            "staging memory does not match its digest",
            "check the node's memory; the next copy is tried",
        ))
    }

    /// The digest covers table and data of a slab, not its head, by which the rank knows
    /// that it is its own.
    fn check_head(&self, rank: Rank, slab: &Slab) -> Result<()> {
        let damaged = |reason: &str| {
            let reason = format!("its capture in staging memory is damaged: {reason}");
            overwritten(outlive_base::Entity::Rank(rank.0), &reason)
        };
        let head = slab.head().map_err(|error| damaged(&error.to_string()))?;
        let id = head.id;
        let ours = id.job == self.places.job_hash
            && (id.rank, id.ranks) == (rank, self.wanted.ranks_total)
            && (id.incarnation, head.version) == (self.wanted.source, self.wanted.version);
        if !ours || !head.state.is_complete() {
            return Err(damaged("its head is another's"));
        }
        let regions = slab.regions();
        regions
            .map(drop)
            .map_err(|error| damaged(&error.to_string()))
    }

    fn read(&self, vault: &Vault, sealed: &Sealed) -> Result<Fetched> {
        let key = vault.container_key(sealed.id);
        let container = Container::open_sealed(&**vault.store(), &key, sealed)?;
        let mut intake = Intake::new(self);
        intake.head(container.head())?;
        let ranks: Vec<RankEntry<'_>> = container.ranks().collect();
        intake.plan(&ranks)?;
        for entry in &ranks {
            // Read in no order: all of the rank's memory must be there.
            if let Some(pace) = intake.pace(entry.rank) {
                pace.wait(entry.data_bytes)?;
            }
            let data = intake.rank(entry.rank, entry.table, entry.data_bytes)?;
            container.read_rank(entry.rank, data)?;
        }
        Ok((sealed.length, intake.finish()?))
    }

    /// Makes the container of what the others of the group have.
    fn make(&self, level: Level, sealed: &Sealed) -> Result<Fetched> {
        let missing = || {
            Error::new(
                Code::NotFound,
                outlive_base::Entity::Node(self.places.node.0),
                format!("nothing is known of its group at {level}"),
                "the next copy is tried",
            )
        };
        let (group, parts) = self.wanted.made_of.get(&level).ok_or_else(missing)?;
        let mut pieces = Remote {
            places: &self.places,
            level,
            parts,
            committed: true,
        };
        let me = self.places.node;
        let have = |piece: Piece| group.is_beside(piece, me);
        let want = Piece::Whole(me);
        outlive_vault::make(group, want, sealed.length, &have, &mut pieces, &mut |sum| {
            let mut intake = Intake::new(self);
            let received = receive(sum, Some(sealed), &mut intake);
            received.map_err(of_received)?;
            Ok((sealed.length, intake.finish()?))
        })
    }

    fn receive_from(&self, holder: NodeId, sealed: &Sealed) -> Result<Fetched> {
        let request = StreamRequest::Fetch { id: sealed.id };
        let mut stream = open_stream(&self.places.endpoint, holder, &request)?;
        match read_reply(&mut stream, holder)? {
            StreamReply::Coming { .. } => {}
            StreamReply::Refused(error) => return Err(error),
            StreamReply::Stored { .. } | StreamReply::Working | StreamReply::Shown { .. } => {
                return Err(Error::internal("an odd answer on a stream"));
            }
        }
        let mut intake = Intake::new(self);
        receive(&mut stream, Some(sealed), &mut intake).map_err(|error| match error {
            ReadError::Lost { source, .. } => {
                let doing = format!("while it sent {}", sealed.id);
                connection_lost(holder, &doing, &source)
            }
            error => error.into(),
        })?;
        Ok((sealed.length, intake.finish()?))
    }
}

/// A holder does not answer: its agent may be being started anew. One whose node was lost is
/// replaced by a node that does, and has nothing.
fn is_away(error: &Error) -> bool {
    use outlive_base::Code::{AgentTimeout, AgentUnreachable, Network};
    matches!(error.code(), Network | AgentUnreachable | AgentTimeout)
}

/// No copy could be read. One that is away may come back, and is no reason to go further back.
fn failed(version: Version, is_blind: bool, rejected: &[Error]) -> Error {
    let (code, remedy) = match is_blind {
        _ if rejected.iter().any(is_away) => (
            Code::AgentUnreachable,
            "look at the network between the nodes",
        ),
        true => (Code::Io, "make the shared directory readable here"),
        false => (Code::NoValidCheckpoint, "an older version is taken"),
    };
    let reason = match rejected {
        [] => "no copy is known".into(),
        some => reasons(some),
    };
    Error::new(code, Entity::Version(version.0), reason, remedy)
}

fn reasons(errors: &[Error]) -> String {
    let each = errors
        .iter()
        .map(|error| format!("{}: {}", error.entity(), error.reason()));
    each.collect::<Vec<_>>().join("; ")
}

/// New slabs that take a container's ranks.
struct Intake<'a> {
    rebuild: &'a Rebuilding,
    slabs: Option<Slabs>,
}

impl<'a> Intake<'a> {
    const fn new(rebuild: &'a Rebuilding) -> Intake<'a> {
        Intake {
            rebuild,
            slabs: None,
        }
    }

    fn finish(self) -> Result<Vec<(Rank, Memory)>> {
        self.slabs.map_or(Ok(Vec::new()), Slabs::finish)
    }
}

impl Sink for Intake<'_> {
    fn head(&mut self, head: &ContainerHead) -> Result<()> {
        let wanted = ContainerId {
            incarnation: self.rebuild.wanted.source,
            version: self.rebuild.wanted.version,
            node: self.rebuild.places.node,
        };
        if head.id != wanted
            || head.job_hash != self.rebuild.places.job_hash
            || head.ranks_total != self.rebuild.wanted.ranks_total
        {
            return Err(Error::new(
                Code::Corrupt,
                outlive_base::Entity::Node(self.rebuild.places.node.0),
                format!("the container says that it is {}, wanted {wanted}", head.id),
                "the next copy is tried",
            ));
        }
        Ok(())
    }

    fn plan(&mut self, ranks: &[RankEntry<'_>]) -> Result<()> {
        self.slabs = Some(Slabs::begin(
            &self.rebuild.places,
            &self.rebuild.wanted,
            ranks,
        )?);
        Ok(())
    }

    fn pace(&self, rank: Rank) -> Option<Arc<Pace>> {
        self.slabs.as_ref().and_then(|slabs| slabs.pace(rank))
    }

    fn rank(&mut self, rank: Rank, _table: &[u8], _data_bytes: u64) -> Result<&mut [u8]> {
        let slabs = self.slabs.as_mut();
        slabs
            .ok_or_else(|| Error::internal("a rank before the plan"))?
            .data(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_away_is_not_gone() {
        let no = |code| Error::new(code, Entity::Node(1), "no", "none");
        let code = |is_blind, errors: &[Error]| failed(Version(4), is_blind, errors).code();
        assert_eq!(code(false, &[]), Code::NoValidCheckpoint);
        let gone = [no(Code::NotFound), no(Code::Corrupt)];
        assert_eq!(code(false, &gone), Code::NoValidCheckpoint);
        assert_eq!(code(true, &gone), Code::Io);
        for away in [Code::Network, Code::AgentUnreachable, Code::AgentTimeout] {
            let errors = [no(Code::NotFound), no(away)];
            assert_eq!(code(true, &errors), Code::AgentUnreachable);
        }
    }
}
