//! What a rank must know, from the environment.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use outlive_base::{Code, Entity, Error, Time};
use outlive_network::JobKey;
use outlive_network::rail::RANKS_MAX;
use outlive_network::session::{Config, MeshOptions};

/// Longest file of addresses that is read: 64 bytes a line for as many ranks as a job may have.
const HOSTS_BYTES_MAX: u64 = 64 * RANKS_MAX as u64;

/// Faults that the library makes for tests, at random calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chaos {
    /// The seed; each rank draws its own sequence.
    pub seed: u64,
    /// One fault in so many calls, on average.
    pub one_in: u64,
}

/// How a rank joins its job.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Rank, addresses and bounds.
    pub options: MeshOptions,
    /// The job's key.
    pub key: JobKey,
    /// The job's name: jobs with one key do not mix.
    pub job: String,
    /// Faults to be made.
    pub chaos: Option<Chaos>,
}

impl Setup {
    /// Reads `OUTLIVE_COMM_*` through `get`:
    ///
    /// | variable | meaning | default |
    /// |---|---|---|
    /// | `RANK` | this process | needed |
    /// | `HOSTS` | file with one `host:port` a line, rank 0 first; `#` begins a comment | needed |
    /// | `KEY` | file with the job's key, 32 bytes, mode 0600 | needed |
    /// | `JOB` | the job's name | `job` |
    /// | `SESSIONS` | 0: bare TCP | 1 |
    /// | `WINDOW_KIB` | replay buffer for each peer | 4096 |
    /// | `HEARTBEAT_MS`, `SILENCE_MS`, `GIVE_UP_S` | bounds of a session | 250, 3000, 300 |
    /// | `CHAOS` | `SEED:N`: breaks connections at one call in N | none |
    ///
    /// # Errors
    /// [`Code::RankUnknown`], [`Code::Config`], or what reading the files says.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Setup, Error> {
        let variable = |name: &str| get(&format!("OUTLIVE_COMM_{name}"));
        let needed = |name: &str| {
            variable(name).ok_or_else(|| {
                wrong(
                    Code::RankUnknown,
                    name,
                    "is not set".into(),
                    "set it for every rank",
                )
            })
        };
        let number = |name: &str, default: u64| match variable(name) {
            None => Ok(default),
            Some(text) => text.trim().parse::<u64>().map_err(|_| {
                wrong(
                    Code::Config,
                    name,
                    format!("'{text}' is no number"),
                    "give a number",
                )
            }),
        };
        let rank = needed("RANK")?;
        let rank = rank.trim().parse::<u32>().map_err(|_| {
            wrong(
                Code::RankUnknown,
                "RANK",
                format!("'{rank}' is no rank"),
                "give a number from 0",
            )
        })?;
        let path = PathBuf::from(needed("HOSTS")?);
        let mut text = String::new();
        let file = std::fs::File::open(&path);
        file.and_then(|file| file.take(HOSTS_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| Error::io(&path, "read", &error))?;
        if text.len() as u64 == HOSTS_BYTES_MAX {
            return Err(wrong(
                Code::Config,
                "HOSTS",
                format!("{} bytes or more", text.len()),
                &format!("give 1 to {RANKS_MAX} lines"),
            ));
        }
        let addresses = hosts(&text)?;
        if rank as usize >= addresses.len() {
            return Err(Error::new(
                Code::RankUnknown,
                Entity::Rank(rank),
                format!(
                    "{} has {}",
                    path.display(),
                    outlive_base::count(addresses.len() as u64, "line")
                ),
                "give every rank its line",
            ));
        }
        let usual = Config::default();
        let window = number("WINDOW_KIB", (usual.window_bytes >> 10) as u64)?;
        let window_bytes = usize::try_from(window.saturating_mul(1024)).unwrap_or(usize::MAX);
        if window_bytes > 1 << 32 {
            return Err(wrong(
                Code::Config,
                "WINDOW_KIB",
                format!("{window} KiB for each peer"),
                "choose at most 4 GiB",
            ));
        }
        let session = Config {
            window_bytes,
            heartbeat: Time::from_ms(number("HEARTBEAT_MS", 250)?),
            silence: Time::from_ms(number("SILENCE_MS", 3000)?),
            give_up: Time::from_secs(number("GIVE_UP_S", 300)?),
            ..usual
        };
        let options = MeshOptions {
            rank,
            addresses,
            session,
            reliable: number("SESSIONS", 1)? != 0,
            inbox_bytes_max: 256 << 20,
            call_timeout: Time::from_secs(3),
        };
        Ok(Setup {
            options,
            key: JobKey::load(needed("KEY")?)?,
            job: variable("JOB").unwrap_or_else(|| "job".into()),
            chaos: variable("CHAOS").as_deref().map(chaos).transpose()?,
        })
    }
}

fn wrong(code: Code, name: &str, reason: String, remedy: &str) -> Error {
    Error::new(
        code,
        Entity::Option(format!("OUTLIVE_COMM_{name}")),
        reason,
        remedy,
    )
}

fn chaos(text: &str) -> Result<Chaos, Error> {
    let parts = text
        .split_once(':')
        .and_then(|(seed, one_in)| Some((seed.parse().ok()?, one_in.parse().ok()?)));
    match parts {
        Some((seed, one_in)) if one_in > 0 => Ok(Chaos { seed, one_in }),
        _ => Err(wrong(
            Code::Config,
            "CHAOS",
            format!("'{text}' is not SEED:N"),
            "give two numbers, N above 0",
        )),
    }
}

fn hosts(text: &str) -> Result<Vec<SocketAddr>, Error> {
    let (mut addresses, mut known) = (Vec::new(), BTreeSet::new());
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let found = line.to_socket_addrs().ok().and_then(|mut all| all.next());
        let found = found.ok_or_else(|| {
            wrong(
                Code::Config,
                "HOSTS",
                format!("'{line}' is no address"),
                "write host:port",
            )
        })?;
        if !known.insert(found) {
            return Err(wrong(
                Code::Config,
                "HOSTS",
                format!("{found} stands there twice"),
                "give every rank a port of its own",
            ));
        }
        addresses.push(found);
    }
    if addresses.is_empty() || addresses.len() > RANKS_MAX as usize {
        return Err(wrong(
            Code::Config,
            "HOSTS",
            format!("{} addresses", addresses.len()),
            &format!("give 1 to {RANKS_MAX} lines"),
        ));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = dir.path().join("hosts");
        std::fs::write(&hosts, "127.0.0.1:7001 # first\n\n127.0.0.1:7002\n").unwrap();
        let key = dir.path().join("key");
        JobKey::create(&key).unwrap();
        let good = [
            ("RANK", "1".to_string()),
            ("HOSTS", hosts.display().to_string()),
            ("KEY", key.display().to_string()),
        ];
        let with = |change: &[(&str, Option<&str>)]| {
            Setup::from_environment(|name| {
                let name = name.strip_prefix("OUTLIVE_COMM_").unwrap();
                match change.iter().find(|(other, _)| *other == name) {
                    Some((_, value)) => value.map(String::from),
                    None => good
                        .iter()
                        .find(|(n, _)| *n == name)
                        .map(|(_, v)| v.clone()),
                }
            })
        };
        let setup = with(&[]).unwrap();
        assert_eq!(setup.options.addresses.len(), 2);
        assert!(setup.options.reliable && setup.chaos.is_none());
        let code = |change: &[(&str, Option<&str>)]| with(change).unwrap_err().code();
        assert_eq!(code(&[("RANK", None)]), Code::RankUnknown);
        assert_eq!(code(&[("RANK", Some("x"))]), Code::RankUnknown);
        assert_eq!(code(&[("RANK", Some("2"))]), Code::RankUnknown);
        assert_eq!(code(&[("HOSTS", Some("/none"))]), Code::NotFound);
        assert_eq!(code(&[("KEY", Some("/none"))]), Code::NotFound);
        assert_eq!(code(&[("GIVE_UP_S", Some("-1"))]), Code::Config);
        assert_eq!(code(&[("WINDOW_KIB", Some("99999999999"))]), Code::Config);
        assert_eq!(code(&[("CHAOS", Some("1:0"))]), Code::Config);
        for text in ["", "nonsense\n", "127.0.0.1:1\n127.0.0.1:1\n"] {
            std::fs::write(&hosts, text).unwrap();
            assert_eq!(code(&[]), Code::Config, "{text:?}");
        }
    }
}
