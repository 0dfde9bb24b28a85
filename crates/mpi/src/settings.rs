//! What the environment asks for.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `OUTLIVE_COLLECTIVES` | `ftco`, `native` | `ftco` |
//! | `OUTLIVE_COLLECTIVES_RAIL` | `mpi`, `tcp`, `auto` | `auto` |
//! | `OUTLIVE_COLLECTIVES_BOUND_MS` | longest wait of one collective | 3 600 000 |
//! | `OUTLIVE_COLLECTIVES_TIMEOUT_MS` | silence after which a process that is not known to be dead is bypassed; 0: never | 0 |
//! | `OUTLIVE_COLLECTIVES_SILENCE_MS` | TCP: a host that does not answer for so long is dead | 10 000 |
//! | `OUTLIVE_COLLECTIVES_INTERFACE` | TCP: the address to listen at | the loopback if all ranks share the host name, else the host's |
//! | `OUTLIVE_COLLECTIVES_VERBOSE` | `1`: rank 0 says on stderr what it does | |

use std::net::IpAddr;
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result, Time};

/// Which collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Fault-tolerant collective operations.
    Ftco,
    /// The native library's own.
    Native,
}

/// What frames travel on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailKind {
    /// The job's own MPI messages.
    Mpi,
    /// Our own TCP connections.
    Tcp,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Which collectives.
    pub mode: Mode,
    /// What frames travel on; `None`: MPI's messages.
    pub rail: Option<RailKind>,
    /// Longest wait of one collective.
    pub bound: Time,
    /// Silence after which a process is bypassed; `None`: never.
    pub timeout: Option<Time>,
    /// TCP: silence of a host after which it is dead.
    pub silence: Duration,
    /// TCP: where to listen.
    pub interface: Option<IpAddr>,
    /// Say on stderr what happens.
    pub verbose: bool,
}

fn refuse(name: &str, value: &str, remedy: &str) -> Error {
    let reason = format!("'{}'", value.chars().take(60).collect::<String>());
    Error::new(
        Code::Config,
        Entity::Option(name.to_owned()),
        reason,
        remedy,
    )
}

impl Settings {
    /// From variables, as `get` gives them.
    ///
    /// # Errors
    /// [`Code::Config`] if a value cannot be understood.
    pub fn from(get: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let get = |name: &str| {
            let full = format!("OUTLIVE_COLLECTIVES{name}");
            get(&full)
                .filter(|value| !value.is_empty())
                .map(|value| (full, value))
        };
        let number = |name: &str, least: u64| match get(name) {
            None => Ok(None),
            Some((full, value)) => match value.parse::<u64>() {
                Ok(number) if number >= least => Ok(Some(number)),
                _ => Err(refuse(&full, &value, "give a whole number of milliseconds")),
            },
        };
        Ok(Settings {
            mode: match get("") {
                None => Mode::Ftco,
                Some((full, value)) => mode(&value).ok_or_else(|| {
                    let remedy = "give ftco or native";
                    refuse(&full, &value, remedy)
                })?,
            },
            rail: match get("_RAIL") {
                None => None,
                Some((full, value)) => match value.as_str() {
                    "mpi" => Some(RailKind::Mpi),
                    "tcp" => Some(RailKind::Tcp),
                    "auto" => None,
                    _ => return Err(refuse(&full, &value, "give mpi, tcp or auto")),
                },
            },
            bound: Time::from_ms(number("_BOUND_MS", 1)?.unwrap_or(3_600_000)),
            timeout: number("_TIMEOUT_MS", 0)?
                .filter(|ms| *ms > 0)
                .map(Time::from_ms),
            silence: Duration::from_millis(number("_SILENCE_MS", 100)?.unwrap_or(10_000)),
            interface: match get("_INTERFACE") {
                None => None,
                Some((full, value)) => match value.parse() {
                    Ok(address) => Some(address),
                    Err(_) => return Err(refuse(&full, &value, "give an IP address of this node")),
                },
            },
            verbose: get("_VERBOSE").is_some_and(|(_, value)| value == "1"),
        })
    }
}

/// The mode of this name.
pub fn mode(name: &str) -> Option<Mode> {
    Some(match name {
        "ftco" => Mode::Ftco,
        "native" => Mode::Native,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings> {
        Settings::from(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn values_are_taken_or_refused_by_name() {
        let plain = with(&[]).expect("defaults");
        assert_eq!((plain.mode, plain.rail), (Mode::Ftco, None));
        assert_eq!(plain.timeout, None);
        let some = with(&[
            ("OUTLIVE_COLLECTIVES", "native"),
            ("OUTLIVE_COLLECTIVES_RAIL", "tcp"),
            ("OUTLIVE_COLLECTIVES_TIMEOUT_MS", "250"),
        ])
        .expect("good");
        assert_eq!((some.mode, some.rail), (Mode::Native, Some(RailKind::Tcp)));
        assert_eq!(some.timeout, Some(Time::from_ms(250)));
        for (name, value) in [
            ("OUTLIVE_COLLECTIVES", "corrected-tree"),
            ("OUTLIVE_COLLECTIVES_RAIL", "ucx"),
            ("OUTLIVE_COLLECTIVES_BOUND_MS", "0"),
            ("OUTLIVE_COLLECTIVES_INTERFACE", "eth0"),
        ] {
            let error = with(&[(name, value)]).expect_err(name);
            assert_eq!(error.code(), Code::Config);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
