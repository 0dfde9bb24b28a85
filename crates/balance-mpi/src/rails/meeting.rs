//! How processes that know nothing of each other but a folder become a rail: each
//! leaves its address there, rank 0 the key as well.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::rail::tcp::{KEY_BYTES, Listener, Options, Tcp};

/// The file with the key.
const KEY: &str = "key";
/// The longest wait: a moment that lies too far ahead is none.
const PATIENCE_MAX: Duration = Duration::from_secs(1 << 30);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// The rail of process `rank` of `size`. All of them call this with one `folder`, on
/// storage that all reach and only this user reads; it must not hold the files of an
/// earlier meeting. `interface` is an address of this process that the others reach.
/// Waits at most `patience` for the others. A host that is silent for `silence` counts
/// as dead.
///
/// # Errors
/// [`Code::InvalidArgument`] for a rank that is not below `size`, [`Code::Config`] if
/// the folder was used before, [`Code::TimedOut`] if others do not come, what the file
/// system or the network refuse.
pub fn meet(
    folder: &Path,
    interface: IpAddr,
    (rank, size): (u32, u32),
    (patience, silence): (Duration, Duration),
) -> Result<Tcp> {
    if rank >= size {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Rank(rank),
            format!("of {}", outlive_base::count(size, "process")),
            "number them from 0",
        ));
    }
    let end = Instant::now() + patience.min(PATIENCE_MAX);
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.map_err(|error| Error::io(folder, "create", &error))?;
    let listener = Listener::bind(SocketAddr::new(interface, 0))?;
    if rank == 0 {
        let mut key = [0; KEY_BYTES];
        let filled = getrandom::fill(&mut key);
        filled.map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
        publish(folder, KEY, &key)?;
    }
    let own = listener.address()?.to_string();
    publish(folder, &name(rank), own.as_bytes())?;
    let mut addresses = Vec::new();
    for other in 0..size {
        let text = read(&folder.join(name(other)), end)?;
        let parsed = core::str::from_utf8(&text)
            .ok()
            .and_then(|t| t.parse().ok());
        addresses.push(parsed.ok_or_else(|| {
            Error::new(
                Code::Corrupt,
                Entity::File(folder.join(name(other)).display().to_string()),
                "this is no address",
                "give each run a folder of its own",
            )
        })?);
    }
    let key = read(&folder.join(KEY), end)?;
    let key = <[u8; KEY_BYTES]>::try_from(key.as_slice());
    let key = key.map_err(|_| {
        Error::new(
            Code::Truncated,
            Entity::File(folder.join(KEY).display().to_string()),
            "this is no key",
            "give each run a folder of its own",
        )
    })?;
    let options = Options {
        silence,
        incarnation: 0,
    };
    let mut rail = Tcp::new(listener, rank, addresses, key, options)?;
    rail.call_all();
    Ok(rail)
}

fn name(rank: u32) -> String {
    format!("address-{rank}")
}

/// Puts a file there, whole or not at all, for this user alone.
fn publish(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    let draft = folder.join(format!("{name}.{}", std::process::id()));
    let failed = |error: &std::io::Error| Error::io(&path, "write", error);
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft);
    file.and_then(|mut file| file.write_all(bytes))
        .map_err(|error| failed(&error))?;
    // A link, unlike renaming, refuses to replace what an earlier run left.
    let linked = fs::hard_link(&draft, &path);
    // A draft that stays is no harm.
    let _ = fs::remove_file(&draft);
    linked.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::new(
            Code::Config,
            Entity::File(path.display().to_string()),
            "it was left by another meeting",
            "give each run a folder of its own",
        ),
        _ => failed(&error),
    })
}

fn read(path: &PathBuf, end: Instant) -> Result<Vec<u8>> {
    loop {
        match fs::read(path) {
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(path, "read", &error));
            }
            Err(_) if Instant::now() >= end => {
                return Err(Error::new(
                    Code::TimedOut,
                    Entity::File(path.display().to_string()),
                    "this process did not come to the meeting",
                    "start all processes, with the same folder and size",
                ));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const SHORT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

    #[test]
    fn who_does_not_come_and_a_used_folder_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let code = |place: (u32, u32)| {
            let met = meet(folder.path(), HERE, place, SHORT);
            met.err().map(|error| error.code())
        };
        assert_eq!(code((3, 3)), Some(Code::InvalidArgument));
        assert_eq!(code((0, 2)), Some(Code::TimedOut));
        assert_eq!(code((0, 2)), Some(Code::Config));
        fs::write(folder.path().join(name(1)), "nowhere").unwrap();
        fs::remove_file(folder.path().join(name(0))).unwrap();
        fs::remove_file(folder.path().join(KEY)).unwrap();
        assert_eq!(code((0, 2)), Some(Code::Corrupt));
    }

    #[test]
    fn the_key_is_for_this_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        meet(folder.path(), HERE, (0, 1), SHORT).map(drop).unwrap();
        let mode = fs::metadata(folder.path().join(KEY)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
}
