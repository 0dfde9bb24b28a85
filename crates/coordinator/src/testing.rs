//! What tests of several files need.

use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use outlive_base::{JobName, Time};
use outlive_control::turns::{Ask, Batch, Need, Tier, Word};

use crate::Types;

#[path = "../../launch/src/harms.rs"]
mod harms;

pub(crate) use harms::harms;

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Where the job of [`entry`] writes.
pub(crate) const TIER: &str = "nfs:10.0.0.1";

/// An entry in which a job says something.
pub(crate) fn entry(term: u64, index: u64) -> Entry<Types> {
    let tier = Tier::of(TIER);
    let ask = match index % 3 {
        0 => Ask::Join {
            job: JobName::new("job").expect("a name"),
            tier,
            need: Need {
                nodes: 4,
                mtbf_ms: 100_000,
                write_ms: 2_000,
            },
            since_ms: 30_000,
            writing_ms: None,
        },
        1 => Ask::Offer {
            tier,
            sequence: index as u32,
        },
        _ => Ask::Ended { tier },
    };
    let batch = Batch {
        at: Time::from_secs(index),
        words: vec![Word::Heard(1, ask)],
    };
    Entry {
        log_id: LogId::new(CommittedLeaderId::new(term, 1), index),
        payload: EntryPayload::Normal(batch),
    }
}
