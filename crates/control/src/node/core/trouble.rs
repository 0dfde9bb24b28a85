//! What storage refuses: each trouble is told once, until it is over.

use outlive_base::{Code, Error, Result};

/// See the module.
#[derive(Default)]
pub(super) struct Trouble {
    /// What is wrong with the node's storage, until it takes a container again.
    of_storage: Option<Code>,
    /// The last record could not be written.
    is_record_refused: bool,
    /// What was said of the last record was said by shared storage.
    is_by_shared: bool,
    /// And it refused because another run of the job has decided there since.
    is_superseded: bool,
}

impl Trouble {
    /// Node storage refuses something; true if that is news.
    pub fn is_news(&mut self, code: Code) -> bool {
        self.of_storage.replace(code) != Some(code)
    }

    /// Node storage takes containers.
    pub const fn storage_works(&mut self) {
        self.of_storage = None;
    }

    /// What became of a record; the trouble with it, which may be one that did not keep it from
    /// being written.
    pub fn after_record<'a>(
        &mut self,
        result: &'a Result<Option<Error>>,
        by_shared: bool,
    ) -> Option<&'a Error> {
        let busy = |error: &Error| error.code() == Code::JobBusy;
        let trouble = result.as_ref().map_or_else(Some, Option::as_ref);
        self.is_by_shared = by_shared;
        self.is_superseded = by_shared && result.as_ref().is_err_and(busy);
        self.is_record_refused = trouble.is_some();
        trouble
    }

    /// True if the last record could be written at this node. What shared storage refuses ends its
    /// own level, and no other.
    pub const fn is_writable(&self) -> bool {
        !self.is_record_refused || self.is_by_shared
    }

    /// True if the last record was one for shared storage.
    pub const fn is_by_shared(&self) -> bool {
        self.is_by_shared
    }

    /// True if shared storage refused it for another run of the job.
    pub const fn is_superseded(&self) -> bool {
        self.is_superseded
    }
}
