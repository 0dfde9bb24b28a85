//! What a launcher and the process that stands for it on a host say to each other: a line
//! of JSON each, over the pipes of ssh or srun. Lines of others (greetings of a login
//! shell) have not the mark before them and are passed over.

use std::net::SocketAddr;
use std::path::PathBuf;

use outlive_base::{Code, Entity, Error, Rank, Result};
use outlive_control::ended::Ended;
use outlive_control::orders::AgentSpec;
use outlive_control::supervisor::Storage;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::site::Check;

/// Stands before each line.
const MARK: &str = "outlive-host/1 ";
/// Longest line, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;

/// Launcher to host.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum ToHost {
    /// Start the keeper of a slot.
    Begin(Box<Begin>),
    /// End what earlier runs of a job left on this host; answered by [`FromHost::Fenced`].
    Evict(Box<Evict>),
    /// The launcher has read the [`FromHost::Alive`] with this stamp.
    Lease { stamp_ms: u64 },
    /// Watch a rank's process.
    Watch { rank: Rank, pid: u32 },
    /// The command is started anew.
    Part,
    /// SIGKILL to keeper and processes; answered by [`FromHost::Fenced`].
    Fence { pids: Vec<u32> },
    /// SIGKILL to processes.
    Kill { pids: Vec<u32> },
    /// An injection: the node goes, with its storage.
    KillNode { pids: Vec<u32> },
    /// An injection: the keeper goes.
    KillKeeper,
    /// SIGSTOP or SIGCONT.
    Freeze {
        keeper: bool,
        pids: Vec<u32>,
        stop: bool,
    },
    /// End the keeper in order, by SIGKILL after so long.
    Stop { grace_ms: u64 },
}

/// What a host needs to start a node.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Begin {
    /// The agent's; `launcher`, `bind`, `key_file` and `memory_bytes` are found out here.
    pub spec: AgentSpec,
    /// Where the launcher may be reached: the first that answers is taken.
    pub launchers: Vec<SocketAddr>,
    /// The job's number under the key before, whose storage it takes over.
    pub known: Option<u64>,
    /// The bytes of the key's file in hexadecimal digits, if the line keeps secrets; else the
    /// file is read at its path.
    pub key: Option<String>,
    /// Variables that agents are started with, under the same condition.
    #[serde(default)]
    pub credentials: Vec<(String, String)>,
    /// The directory of the socket, on this host.
    pub run_dir: PathBuf,
    /// What the slot's directory is to hold.
    pub storage: Storage,
    /// Silence of the launcher after which everything here ends.
    pub lease_ms: u64,
    /// Versions go to the job's directory, which hosts must see.
    #[serde(default)]
    pub store_shared: bool,
}

/// Whose remains are to end.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Evict {
    pub spec: AgentSpec,
    pub launchers: Vec<SocketAddr>,
    pub run_dir: PathBuf,
}

/// What comes over a line.
#[derive(Debug)]
pub enum Heard {
    /// A word.
    Word(FromHost),
    /// Nothing more will.
    End,
}

/// Host to launcher.
#[derive(Serialize, Deserialize, Debug)]
pub enum FromHost {
    /// The first word: which installation this is.
    Hello {
        /// Version of the product.
        version: String,
        /// XXH3-64 of the program's file.
        program: u64,
    },
    /// The keeper runs.
    Up,
    /// What was asked first is not done, and nothing runs here.
    Refused(Error),
    /// The launcher is not understood: everything here is being ended.
    Failed(Error),
    /// Still here, at this time by the host's own clock.
    Alive {
        /// Milliseconds.
        stamp_ms: u64,
    },
    /// A rank's process ended.
    RankGone {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
        /// How, if the kernel tells.
        ended: Option<Ended>,
    },
    /// The keeper ended.
    KeeperEnded {
        /// How.
        ended: Ended,
    },
    /// What falls short here; it was a look beside the start.
    Short {
        /// What was found.
        found: Vec<Check>,
        /// The host's clock, in milliseconds since 1970.
        unix_ms: f64,
    },
    /// Keeper, agent and the processes named are gone.
    Fenced,
    /// No port of the launcher is reached from here, and an agent waits for a way to it.
    Relay,
}

/// A line, with its end.
///
/// # Errors
/// None that its types can have.
pub(crate) fn write(what: &impl Serialize) -> Result<String> {
    serde_json::to_string(what)
        .map(|text| format!("{MARK}{text}\n"))
        .map_err(|error| Error::internal(format!("word for a host: {error}")))
}

/// What a line says; `None` if it is somebody else's. What a login shell has said before without
/// an end of its line stands before the mark.
///
/// # Errors
/// [`Code::PeerVersion`] if it has the mark and cannot be understood.
pub(crate) fn read<T: DeserializeOwned>(line: &str) -> Result<Option<T>> {
    let Some((_, text)) = line.trim_end().split_once(MARK) else {
        return Ok(None);
    };
    serde_json::from_str(text).map(Some).map_err(|error| {
        Error::new(
            Code::PeerVersion,
            Entity::Call,
            format!("a word of a host is not understood: {error}"),
            "use the same version of outlive on all hosts",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_greetings_are_passed_over() {
        let line = write(&ToHost::Fence { pids: vec![1, 2] }).unwrap();
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
        let back: Option<ToHost> = read(&line).unwrap();
        assert!(matches!(back, Some(ToHost::Fence { pids }) if pids == [1, 2]));
        for other in [
            "Last login: today\n",
            "",
            "outlive-host/2 {}\n",
            "{\"Up\":1}",
        ] {
            assert!(read::<ToHost>(other).unwrap().is_none(), "{other}");
        }
        let after = format!("Welcome! {line}");
        let back: Option<ToHost> = read(&after).unwrap();
        assert!(matches!(back, Some(ToHost::Fence { pids }) if pids == [1, 2]));
        let error = read::<FromHost>("outlive-host/1 {\"Grow\":1}\n").unwrap_err();
        assert_eq!(error.code(), Code::PeerVersion);
    }
}
