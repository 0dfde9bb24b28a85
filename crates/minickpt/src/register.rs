//! Who is told what of protected programs: the module, and the user's report.

/// How often the supervisor was called, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Counts {
    /// mmap
    pub map: u64,
    /// munmap
    pub unmap: u64,
    /// mremap
    pub remap: u64,
    /// madvise
    pub advise: u64,
    /// mprotect to writable
    pub protect: u64,
    /// Threads born.
    pub threads: u64,
    /// Processes born.
    pub processes: u64,
    /// Programs started by exec.
    pub programs: u64,
    /// Signals that went through.
    pub signals: u64,
}

/// Is told of processes that come and go, so that the module can keep them.
pub trait Register {
    /// A process whose memory is protected from now on.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn add(&mut self, pid: i32) -> outlive_base::Result<()>;
    /// A process that ended.
    fn remove(&mut self, pid: i32);
}

/// No module: for measurements and tests.
#[derive(Debug)]
pub struct Native;

impl Register for Native {
    fn add(&mut self, _pid: i32) -> outlive_base::Result<()> {
        Ok(())
    }
    fn remove(&mut self, _pid: i32) {}
}
