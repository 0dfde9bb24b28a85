//! Errors that reach a user: a stable code, the affected entity, the reason and
//! a remedy. The same code appears in C, Fortran, Python, JSON and on the
//! terminal.
//!
//! Codes are grouped by the largest entity affected, as in UCX: 1xx the call, 2xx
//! a rank, 3xx a node or agent, 4xx storage, 5xx the job, 6xx configuration, 9xx
//! ourselves. A code, once published, keeps its number and meaning.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The result of an operation whose error may reach a user.
pub type Result<T> = core::result::Result<T, Error>;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// A stable error code. C callers get its negative; terminals show `OL-403`.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(into = "u16", try_from = "u16")]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// All codes, ascending.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            /// A short lower-case phrase for the code.
            pub const fn text(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
            /// The code with this number.
            pub const fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// An argument is out of its range or contradicts another.
    InvalidArgument = 100, "invalid argument";
    /// The handle was closed or never opened.
    NotOpen = 101, "not open";
    /// A version that is not larger than the one before.
    VersionOrder = 102, "version out of order";
    /// A region that the program protects is not in the checkpoint.
    RegionMissing = 103, "region missing from the checkpoint";
    /// A region has another size in the checkpoint.
    RegionSize = 104, "region has another size in the checkpoint";
    /// A region of the checkpoint is not protected by the program.
    RegionUnclaimed = 105, "region of the checkpoint not protected";
    /// The time given to a wait has passed.
    TimedOut = 106, "timed out";
    /// A routed file was announced and not written.
    RouteMissing = 107, "routed file missing";
    /// The operation needs an agent and the program runs without one.
    Unprotected = 108, "not started under outlive run";
    /// A value of the state cannot be stored (Python).
    Unserializable = 109, "value cannot be stored";
    /// A process does or holds what cannot be kept over a dump or a kernel's death.
    Unsupported = 110, "process cannot be kept";

    /// Rank or size cannot be found or is impossible.
    RankUnknown = 200, "rank unknown";
    /// The job has another number of ranks than the checkpoint.
    RankCount = 201, "another number of ranks";
    /// A rank ended or was killed.
    RankLost = 202, "rank lost";
    /// A rank makes no progress.
    RankHung = 203, "rank hangs";
    /// A program wrote over the memory that it shares with its agent.
    SharedMemory = 204, "shared memory overwritten";
    /// A region that used to change does not any more.
    RegionUnchanged = 205, "region does not change any more";
    /// A region holds NaN or infinity.
    RegionNotFinite = 206, "region holds NaN or infinity";
    /// A region was written to while it was captured.
    RegionTorn = 207, "region written to while it was captured";

    /// The node's agent cannot be reached.
    AgentUnreachable = 300, "agent unreachable";
    /// The node's agent did not answer within the bound.
    AgentTimeout = 301, "agent did not answer in time";
    /// The node's memory budget cannot hold two slots.
    MemoryBudget = 302, "memory budget too small";
    /// A node was lost with everything on it.
    NodeLost = 303, "node lost";
    /// A node is silent.
    NodeSilent = 304, "node silent";
    /// A peer speaks another protocol version.
    PeerVersion = 305, "peer speaks another version";
    /// A peer does not hold the job's key.
    KeyMismatch = 306, "peer does not hold the job's key";
    /// A network address is in use.
    AddressInUse = 307, "address in use";
    /// A network operation failed.
    Network = 308, "network failure";
    /// The kernel or its boot line lacks what surviving a panic needs.
    KernelUnready = 309, "kernel not prepared";
    /// A memory server was lost, or cannot be reached.
    ServerLost = 310, "memory server lost";
    /// A machine has less than a job needs.
    MachineShort = 311, "machine falls short";

    /// An input or output operation failed.
    Io = 400, "input/output failure";
    /// No space is left, or a quota is exhausted.
    NoSpace = 401, "no space left";
    /// Permission is missing.
    Permission = 402, "permission denied";
    /// Stored bytes do not match their checksum.
    Corrupt = 403, "stored bytes are damaged";
    /// A file or directory does not exist.
    NotFound = 404, "not found";
    /// A file ends early.
    Truncated = 405, "file cut off";
    /// A file was written by a newer or unknown format.
    FormatUnknown = 406, "format unknown";
    /// A process image was made under another build of the kernel.
    ImageForeign = 407, "image of another kernel";
    /// A store does not keep to what decisions depend on.
    StoreUnfit = 408, "store cannot be relied on";
    /// A region of a memory server was written in part only.
    Incomplete = 409, "region is incomplete";

    /// No committed version can be rebuilt.
    NoValidCheckpoint = 500, "no valid checkpoint";
    /// A version was aborted.
    CommitAborted = 501, "version aborted";
    /// The job is already running elsewhere.
    JobBusy = 502, "job already running";
    /// All permitted restarts were used.
    RestartsExhausted = 503, "restarts exhausted";
    /// A node was lost and no spare is left.
    NoSpare = 504, "no spare node left";
    /// The command cannot be started.
    CommandFailed = 505, "command cannot be started";
    /// The command ended with a failure on every start.
    DiesAtOnce = 506, "job dies at once on every start";
    /// The membership cannot be decided safely.
    NoQuorum = 507, "membership cannot be decided";
    /// The ranks live and come no further.
    NoProgress = 508, "job makes no progress";
    /// The command runs, and ranks do not join.
    NotJoined = 509, "ranks do not join";

    /// A configuration file or variable cannot be understood.
    Config = 600, "configuration not understood";

    /// A fault of ours.
    Internal = 900, "internal fault";
}

impl Code {
    /// The number.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The exit status of `outlive` for an error of this code. A job that dies at once on
    /// every start ends with its program's own status instead.
    pub const fn exit_status(self) -> u8 {
        match self {
            Code::InvalidArgument => 64,
            Code::Corrupt
            | Code::Truncated
            | Code::Incomplete
            | Code::FormatUnknown
            | Code::ImageForeign
            | Code::RankCount => 65,
            Code::Io | Code::NoSpace | Code::Permission | Code::NotFound | Code::StoreUnfit => 74,
            Code::JobBusy | Code::AddressInUse => 75,
            Code::Config | Code::MemoryBudget => 78,
            Code::RestartsExhausted => 79,
            Code::DiesAtOnce => 1,
            Code::NoValidCheckpoint => 80,
            Code::NoProgress | Code::NotJoined => 81,
            Code::CommandFailed => 127,
            Code::Internal => 70,
            _ => 69,
        }
    }
}

impl From<Code> for u16 {
    fn from(code: Code) -> u16 {
        code.number()
    }
}

impl TryFrom<u16> for Code {
    type Error = String;
    fn try_from(number: u16) -> core::result::Result<Code, String> {
        Code::from_number(number).ok_or_else(|| format!("unknown code {number}"))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OL-{}", self.number())
    }
}

/// What an error is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entity {
    /// The caller's own arguments or the whole program.
    Call,
    /// A command-line option or configuration key.
    Option(String),
    /// A named region.
    Region(String),
    /// A rank.
    Rank(u32),
    /// A node slot.
    Node(u32),
    /// A file or directory.
    File(String),
    /// A network address.
    Address(String),
    /// A version.
    Version(u64),
    /// The job.
    Job(String),
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entity::Call => f.write_str("call"),
            Entity::Option(name) => write!(f, "option {name}"),
            Entity::Region(name) => write!(f, "region '{name}'"),
            Entity::Rank(rank) => write!(f, "rank {rank}"),
            Entity::Node(node) => write!(f, "node {node}"),
            Entity::File(path) => f.write_str(path),
            Entity::Address(address) => f.write_str(address),
            Entity::Version(version) => write!(f, "version {version}"),
            Entity::Job(name) => write!(f, "job {name}"),
        }
    }
}

/// An error as a user meets it. Small to move: one pointer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Inner {
    code: Code,
    entity: Entity,
    reason: String,
    remedy: String,
}

impl Error {
    /// A new error. `reason` says what was seen, `remedy` what to do.
    pub fn new(
        code: Code,
        entity: Entity,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Error {
        Error(Box::new(Inner {
            code,
            entity,
            reason: reason.into(),
            remedy: remedy.into(),
        }))
    }

    /// An input/output error on `path`, with the code that its kind deserves. That a server was
    /// lost on which the bytes lie stays what it is: no device is to blame.
    pub fn io(path: impl AsRef<std::path::Path>, doing: &str, source: &std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        let inner = source.get_ref().and_then(|it| it.downcast_ref::<Error>());
        if let Some(lost) = inner.filter(|it| it.code() == Code::ServerLost) {
            return lost.clone();
        }
        let path = path.as_ref().display().to_string();
        let of_objects = path.contains("://");
        let (code, remedy) = match source.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => (
                Code::NoSpace,
                "free space there, raise the quota or choose another directory",
            ),
            K::PermissionDenied if of_objects => (
                Code::Permission,
                "check the credentials in the environment of outlive run, and what they allow",
            ),
            K::PermissionDenied | K::ReadOnlyFilesystem => (
                Code::Permission,
                "make it writable for this user or choose another directory",
            ),
            K::NotFound | K::NotADirectory => (Code::NotFound, "check the path"),
            K::UnexpectedEof => (
                Code::Truncated,
                "use another copy: see outlive checkpoints verify",
            ),
            _ if of_objects => (
                Code::Io,
                "check the server and the way to it; the next version is tried again",
            ),
            _ => (Code::Io, "check the device and the system log"),
        };
        Error::new(
            code,
            Entity::File(path),
            format!("{doing}: {source}"),
            remedy,
        )
    }

    /// A fault of ours: never the user's doing.
    pub fn internal(reason: impl Into<String>) -> Error {
        Error::new(
            Code::Internal,
            Entity::Call,
            reason,
            "please report this with the log",
        )
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// What is affected.
    pub fn entity(&self) -> &Entity {
        &self.0.entity
    }
    /// What was seen.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }
    /// What to do.
    pub fn remedy(&self) -> &str {
        &self.0.remedy
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            code,
            entity,
            reason,
            remedy,
        } = &*self.0;
        write!(f, "{code} {}: {entity}: {reason}; {remedy}", code.text())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_are_unique_and_ascending() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(*code));
        }
        assert!(Code::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Code::from_number(1), None);
    }

    #[test]
    fn an_error_shows_code_entity_reason_and_remedy() {
        let error = Error::io("/x", "create", &std::io::Error::from_raw_os_error(28));
        assert_eq!(error.code(), Code::NoSpace);
        let shown = error.to_string();
        assert!(
            shown.starts_with("OL-401 no space left: /x: create"),
            "{shown}"
        );
        assert!(shown.contains("free space"));
    }

    #[test]
    fn a_lost_server_is_no_faulty_device() {
        let of = |code| Error::new(code, Entity::Address("a:1".into()), "gone", "look at it");
        let lost = of(Code::ServerLost);
        let io = |inner: &Error| Error::io("/x", "read", &std::io::Error::other(inner.clone()));
        assert_eq!(io(&lost), lost);
        assert_eq!(io(&of(Code::Corrupt)).code(), Code::Io);
    }
}
