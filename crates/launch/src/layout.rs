//! What lies in a job's directory, `STORE/JOB`, beside what its nodes share: each name once. The nodes'
//! directories and the shared one are the vault's to lay out (`outlive_vault::Directory`).

/// The job's key: who can read it is of the job.
pub const KEY: &str = "key";

/// The number of a job that was found in an object store by one that did not know it: beside the
/// key, which is another one here.
pub(crate) const IDENTITY: &str = "identity";

/// What every start must agree with: nodes, where they lie, levels.
pub const JOB: &str = "job.json";

/// Where the level shared lies, of a job with an object store: [`JOB`] may be lost, and the next
/// run must not take a directory in its place.
pub(crate) const REMEMBERED: &str = "object-store";

/// What the last run came to.
pub const REPORT: &str = "report.json";

/// Held by whoever changes the job.
pub const LOCK: &str = "lock";

/// Held by a run and all its keepers and agents: free when the last of them has ended.
pub(crate) const NODES_LOCK: &str = "nodes.lock";

/// On a host: which process stands for the launcher there.
pub(crate) const HOST: &str = "host";

/// On a host that reaches no port of the launcher: where a relay is waited for.
pub(crate) const RELAY: &str = "relay.sock";

/// Where a launcher notes the shared memory that its ranks map.
pub(crate) const SEGMENTS: &str = "segments.json";

/// The mark of a job that is being deleted.
pub(crate) const DELETING: &str = "deleting";

/// The directories of all node slots, where they lie in the job's own.
pub const NODES: &str = "nodes";
