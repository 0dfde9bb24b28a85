//! The level `memory-server`: the server of the job pulls the containers of a group from its nodes
//! and keeps their parity.
//!
//! Invariant: a server's loss is told by one node.

use std::net::SocketAddr;
use std::sync::Arc;

use outlive_base::level::StoreKind;
use outlive_base::{Code, ContainerId, Entity, Error, Level, Result};
use outlive_control::node::shell::Making;
use outlive_ledger::{GcPolicy, Parity, Part, Record, Rules};
use outlive_memory::Source;
use outlive_vault::{Inventory, ParityHead};

use crate::peers::{StreamReply, StreamRequest, odd, open_stream, read_reply};
use crate::places::Places;
use crate::served::Served;

/// The memory server of the job.
///
/// # Errors
/// [`Code::Config`] if it has none.
pub fn served_at(places: &Places) -> Result<&Served> {
    places.served.as_ref().ok_or_else(|| {
        Error::new(
            Code::Config,
            Entity::Option("memory-server".into()),
            "the job has no memory server",
            "say where it is: --memory-server HOST:PORT",
        )
    })
}

/// Has the server make the parity of a group.
pub fn make(places: &Arc<Places>, making: &Making) -> Result<Parity> {
    let served = served_at(places)?;
    let source = |part: &Part| {
        let address = match part.node == places.node {
            true => served.show(&places.store, part.id, part.length)?,
            false => shown_by(places, part)?,
        };
        Ok(Source {
            at: Some(address),
            name: part.id.to_string(),
            offset: 0,
            length: part.length,
        })
    };
    let sources = making.parts.iter().map(source);
    let sources = sources.collect::<Result<Vec<Source>>>()?;
    let head = ParityHead {
        job_hash: places.job_hash,
        id: ContainerId {
            incarnation: making.source,
            version: making.version,
            node: places.node,
        },
        level: making.group.level,
        members: making.parts.iter().map(Part::sealed).collect(),
    };
    let mut own = making.parts.iter().filter(|part| part.node == places.node);
    let recorded = own.next().and_then(|part| part.parity);
    let wanted = (making.group.parity_bytes(), recorded);
    served.parities().make(&head, wanted, &sources)
}

/// Where another member of the group shows its container.
fn shown_by(places: &Places, part: &Part) -> Result<SocketAddr> {
    let (node, id, length) = (part.node, part.id, part.length);
    let request = StreamRequest::Show { id, length };
    let mut stream = open_stream(&places.endpoint, node, &request)?;
    match read_reply(&mut stream, node)? {
        StreamReply::Shown { address } => Ok(address),
        StreamReply::Refused(error) => Err(error),
        _ => Err(odd()),
    }
}

/// The parities at the server that bear this node's name; why it cannot be asked, if it is this
/// node that tells, and a version whose container lies here has parities there.
pub fn look(places: &Places, here: &Inventory) -> (Vec<(ContainerId, Level)>, Option<Error>) {
    let Some(served) = &places.served else {
        return (Vec::new(), None);
    };
    match served.parities().found() {
        Ok(mut found) => {
            found.retain(|(id, _)| id.node == places.node);
            (found, None)
        }
        Err(error) => {
            tracing::info!(%error, "the memory server is not looked at");
            let kept = |at| {
                let mut ids = here.copies.iter().map(|found| found.id);
                ids.any(|id| (id.incarnation, id.version) == at)
            };
            // Records stay longer than what they are of.
            let of_server = |record: &Record| match *record {
                Record::Commit {
                    level,
                    incarnation,
                    version,
                    ..
                } => level.store() == StoreKind::Server && kept((incarnation, version)),
                _ => false,
            };
            let missed = served.tells && here.records.iter().any(of_server);
            (Vec::new(), missed.then_some(error))
        }
    }
}

/// Removes what may go of this node's at the server.
pub fn collect(places: &Places, policy: &GcPolicy) -> Result<()> {
    let served = served_at(places)?;
    let mut found = served.parities().found()?;
    found.retain(|(id, _)| id.node == places.node);
    if found.is_empty() {
        return Ok(());
    }
    let records = places.store.records().scan()?.records;
    let rules = Rules::new(records.iter(), policy);
    let buried = |wanted: ContainerId| {
        let mut tombs = records.iter();
        tombs.any(|record| matches!(record, Record::Tombstone { id, .. } if *id == wanted))
    };
    // Whoever misses the parity of a committed version must find why.
    found.retain(|(id, level)| {
        let at = (id.incarnation, id.version);
        rules.may_go(at, *level) && (buried(*id) || !rules.is_committed(at))
    });
    served.parities().forget(&found)
}
