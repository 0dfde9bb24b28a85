//! What lay in storage when this agent began.

use outlive_base::{Error, Result};
use outlive_ledger::Record;

/// See the module.
pub(super) struct Found {
    /// The node's records; taken when the job is known.
    records: Option<Result<Vec<Record>>>,
    /// Those that others keep for all.
    kept: Vec<Record>,
    /// What all nodes share could not be read.
    is_shared_unseen: bool,
}

impl Found {
    pub const fn new(
        records: Result<Vec<Record>>,
        kept: Vec<Record>,
        is_shared_unseen: bool,
    ) -> Found {
        Found {
            records: Some(records),
            kept,
            is_shared_unseen,
        }
    }

    /// All records, once; the node's own come first.
    ///
    /// # Errors
    /// The node's own could not be read.
    pub fn take(&mut self) -> Result<Vec<Record>> {
        let own = self.records.take();
        let mut all = own.unwrap_or_else(|| Err(Error::internal("started twice")))?;
        all.append(&mut self.kept);
        Ok(all)
    }

    /// True if there may be decisions that nobody has seen.
    pub const fn is_shared_unseen(&self) -> bool {
        self.is_shared_unseen
    }
}
