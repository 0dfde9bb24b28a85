//! What the environment asks for.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `OUTLIVE_COLLECTIVES` | `ftco`, `corrected-tree`, `corrected-gossip`, `native` | `ftco` |
//! | `OUTLIVE_COLLECTIVES_RAIL` | `mpi`, `tcp`, `ucx`, `auto` | `auto` |
//! | `OUTLIVE_COLLECTIVES_BOUND_MS` | longest wait of one collective | 3 600 000 |
//! | `OUTLIVE_COLLECTIVES_TIMEOUT_MS` | silence after which a process that is not known to be dead is bypassed; 0: never | 0 |
//! | `OUTLIVE_COLLECTIVES_SILENCE_MS` | TCP, UCX: a host that does not answer for so long is dead | 10 000 |
//! | `OUTLIVE_COLLECTIVES_INTERFACE` | TCP, UCX: the address to listen at | the loopback if all ranks share the host name, else the host's |
//! | `OUTLIVE_COLLECTIVES_UCX_LIBRARY` | UCX: its `libucp.so.0` | what the MPI library loaded, else the system's |
//! | `OUTLIVE_COLLECTIVES_FAILURES` | corrected: f, the failures tolerated | 1 |
//! | `OUTLIVE_COLLECTIVES_MTBF_S` | or f from this mean time between failures of the job, | |
//! | `OUTLIVE_COLLECTIVES_DURATION_S` | the time that it runs, | |
//! | `OUTLIVE_COLLECTIVES_RISK` | and the probability of more ([`outlive_planner::tolerance`]) | 1e-6 |
//! | `OUTLIVE_COLLECTIVES_PACE_US` | corrected: between two corrections of a process | 50 |
//! | `OUTLIVE_COLLECTIVES_TREES` | corrected: spanning trees that are kept from call to call; 0: none | f + 2 for `corrected-gossip`, else 0 |
//! | `OUTLIVE_COLLECTIVES_CORRECTED_BYTES` | corrected: longer data go over the tree of `ftco` | 65 536 |
//! | `OUTLIVE_COLLECTIVES_SHARED_MEMORY` | `on`, `off`: pairs on one host talk through it | `on` |
//! | `OUTLIVE_COLLECTIVES_REPRODUCIBLE` | `on`, `off`: operands are combined in one order, whichever arrives first | `off` |
//! | `OUTLIVE_COLLECTIVES_VERBOSE` | `1`: rank 0 says on stderr what it does | |

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Ports, Result, Time};
use outlive_protocols::broadcast::spanning::TREES_MAX;

use outlive_planner::tolerance;

/// Which collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Fault-tolerant collective operations.
    Ftco,
    /// Up-correction, and broadcast by a corrected tree.
    CorrectedTree,
    /// Up-correction, and broadcast by corrected gossip.
    CorrectedGossip,
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
    /// Our own connections over UCX.
    Ucx,
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
    /// TCP, UCX: silence of a host after which it is dead.
    pub silence: Duration,
    /// TCP, UCX: where to listen.
    pub interface: Option<IpAddr>,
    /// TCP: the ports to listen at.
    pub ports: Ports,
    /// UCX: its library.
    pub ucx_library: Option<PathBuf>,
    /// Corrected: how many failures are tolerated.
    pub failures: u32,
    /// Corrected: between two corrections of a process.
    pub pace: Time,
    /// Corrected: spanning trees that are kept; 0: none.
    pub trees: u32,
    /// Corrected: longer data go over the tree.
    pub corrected_bytes: usize,
    /// Pairs on one host talk through shared memory.
    pub shared_memory: bool,
    /// Operands are combined in an order that no time decides.
    pub reproducible: bool,
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
        let whole = |name: &str, least: u64, unit: &str| match get(name) {
            None => Ok(None),
            Some((full, value)) => match value.parse::<u64>() {
                Ok(number) if number >= least => Ok(Some(number)),
                _ => Err(refuse(&full, &value, &format!("give a whole number{unit}"))),
            },
        };
        let number = |name, least| whole(name, least, " of milliseconds");
        let switch = |name: &str, without: bool| match get(name) {
            None => Ok(without),
            Some((full, value)) => match value.as_str() {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(refuse(&full, &value, "give on or off")),
            },
        };
        let most = u64::from(u32::MAX);
        let derived = derived(&get)?;
        let mut settings = Settings {
            mode: match get("") {
                None => Mode::Ftco,
                Some((full, value)) => mode(&value).ok_or_else(|| {
                    let remedy = "give ftco, corrected-tree, corrected-gossip or native";
                    refuse(&full, &value, remedy)
                })?,
            },
            rail: match get("_RAIL") {
                None => None,
                Some((full, value)) => match value.as_str() {
                    "mpi" => Some(RailKind::Mpi),
                    "tcp" => Some(RailKind::Tcp),
                    "ucx" => Some(RailKind::Ucx),
                    "auto" => None,
                    _ => return Err(refuse(&full, &value, "give mpi, tcp, ucx or auto")),
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
            ports: match get("_PORTS") {
                None => Ports::ANY,
                Some((full, value)) => match value.parse() {
                    Ok(ports) => ports,
                    Err(_) => return Err(refuse(&full, &value, "write for example 20000-20099")),
                },
            },
            ucx_library: get("_UCX_LIBRARY").map(|(_, value)| PathBuf::from(value)),
            failures: match whole("_FAILURES", 0, "")? {
                Some(f) => f.min(most) as u32,
                None => 1,
            },
            pace: Time(
                1000 * whole("_PACE_US", 0, " of microseconds")?
                    .unwrap_or(50)
                    .min(most),
            ),
            trees: 0,
            corrected_bytes: whole("_CORRECTED_BYTES", 0, " of bytes")?.unwrap_or(65_536) as usize,
            shared_memory: switch("_SHARED_MEMORY", true)?,
            reproducible: switch("_REPRODUCIBLE", false)?,
            verbose: get("_VERBOSE").is_some_and(|(_, value)| value == "1"),
        };
        settings.failures = derived.unwrap_or(settings.failures);
        let given = whole("_TREES", 0, "")?.zip(get("_TREES"));
        settings.trees = settings.kept_trees(given)?;
        Ok(settings)
    }

    /// How many trees are kept, if this number was given for them.
    fn kept_trees(&self, given: Option<(u64, (String, String))>) -> Result<u32> {
        let least = u64::from(self.failures) + 1;
        let most = u64::from(TREES_MAX);
        match given {
            Some((0, _)) => Ok(0),
            Some((trees, _)) if (least..=most).contains(&trees) => Ok(trees as u32),
            Some((_, (full, value))) => {
                let remedy = format!("give 0, or f + 1 = {least} to {most}");
                Err(refuse(&full, &value, &remedy))
            }
            // One more than are used at once: a death costs no new growth.
            None if self.mode == Mode::CorrectedGossip && least <= most => {
                Ok(most.min(least + 1) as u32)
            }
            None => Ok(0),
        }
    }

    /// Which collectives, in words.
    pub fn says(&self) -> String {
        let name = match self.mode {
            Mode::Ftco => "ftco",
            Mode::CorrectedTree => "corrected-tree",
            Mode::CorrectedGossip => "corrected-gossip",
            Mode::Native => "native",
        };
        match self.mode {
            Mode::Ftco | Mode::Native => name.to_owned(),
            _ if self.trees > 0 => {
                format!(
                    "{name}, f = {}, {} kept,",
                    self.failures,
                    outlive_base::count(self.trees, "tree")
                )
            }
            _ => format!("{name}, f = {},", self.failures),
        }
    }

    /// A number that differs, nearly always, where ranks would not understand each other.
    pub fn fingerprint(&self) -> u32 {
        let Settings {
            mode,
            rail,
            failures,
            trees,
            corrected_bytes,
            shared_memory,
            reproducible,
            ..
        } = self;
        let text = format!(
            "{mode:?} {rail:?} {failures} {trees} {corrected_bytes} {shared_memory} {reproducible}"
        );
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        text.bytes().fold(0x811c_9dc5, hash)
    }
}

/// f from a mean time between failures, if one is given.
fn derived(get: &impl Fn(&str) -> Option<(String, String)>) -> Result<Option<u32>> {
    let real = |name: &str| match get(name) {
        None => Ok(None),
        Some((full, value)) => match value.parse::<f64>() {
            Ok(number) => Ok(Some((full, number))),
            Err(_) => Err(refuse(&full, &value, "give a number")),
        },
    };
    let (mtbf, duration, risk) = (real("_MTBF_S")?, real("_DURATION_S")?, real("_RISK")?);
    let (mtbf, duration) = match (mtbf, duration, risk.clone()) {
        (Some((_, mtbf)), Some((_, duration)), _) => (mtbf, duration),
        (None, None, None) => return Ok(None),
        (Some((full, _)), None, _) | (None, Some((full, _)), _) | (None, None, Some((full, _))) => {
            let remedy = "give both OUTLIVE_COLLECTIVES_MTBF_S and OUTLIVE_COLLECTIVES_DURATION_S";
            return Err(refuse(&full, "alone", remedy));
        }
    };
    if let Some((full, value)) = get("_FAILURES") {
        return Err(refuse(
            &full,
            &value,
            "give this, or a mean time between failures",
        ));
    }
    let risk = risk.map_or(tolerance::RISK, |(_, risk)| risk);
    tolerance::failures(mtbf, duration, risk).map(Some)
}

/// The mode of this name.
pub fn mode(name: &str) -> Option<Mode> {
    Some(match name {
        "ftco" => Mode::Ftco,
        "corrected-tree" => Mode::CorrectedTree,
        "corrected-gossip" => Mode::CorrectedGossip,
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
        let ucx = with(&[
            ("OUTLIVE_COLLECTIVES_RAIL", "ucx"),
            (
                "OUTLIVE_COLLECTIVES_UCX_LIBRARY",
                "/opt/ucx/lib/libucp.so.0",
            ),
        ])
        .expect("good");
        assert_eq!(ucx.rail, Some(RailKind::Ucx));
        let library = Some(PathBuf::from("/opt/ucx/lib/libucp.so.0"));
        assert_eq!(ucx.ucx_library, library);
        for (name, value) in [
            ("OUTLIVE_COLLECTIVES", "corrected"),
            ("OUTLIVE_COLLECTIVES_RAIL", "pigeon"),
            ("OUTLIVE_COLLECTIVES_SHARED_MEMORY", "maybe"),
            ("OUTLIVE_COLLECTIVES_FAILURES", "-1"),
            ("OUTLIVE_COLLECTIVES_PACE_US", "slow"),
            ("OUTLIVE_COLLECTIVES_CORRECTED_BYTES", "64K"),
            ("OUTLIVE_COLLECTIVES_MTBF_S", "3600"),
            ("OUTLIVE_COLLECTIVES_DURATION_S", "an hour"),
            ("OUTLIVE_COLLECTIVES_RISK", "1e-3"),
            ("OUTLIVE_COLLECTIVES_BOUND_MS", "0"),
            ("OUTLIVE_COLLECTIVES_INTERFACE", "eth0"),
        ] {
            let error = with(&[(name, value)]).expect_err(name);
            assert_eq!(error.code(), Code::Config);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn trees_are_kept_for_gossip_or_where_they_are_asked_for() {
        let gossip = ("OUTLIVE_COLLECTIVES", "corrected-gossip");
        let tree = ("OUTLIVE_COLLECTIVES", "corrected-tree");
        let f = |f| ("OUTLIVE_COLLECTIVES_FAILURES", f);
        let trees = |trees| ("OUTLIVE_COLLECTIVES_TREES", trees);
        let kept = |pairs: &[_]| with(pairs).expect("good").trees;
        assert_eq!(kept(&[]), 0);
        assert_eq!((kept(&[tree]), kept(&[gossip])), (0, 3));
        assert_eq!((kept(&[gossip, f("0")]), kept(&[gossip, f("4")])), (2, 6));
        assert_eq!(
            (kept(&[gossip, f("31")]), kept(&[gossip, f("32")])),
            (32, 0)
        );
        assert_eq!(kept(&[tree, trees("2")]), 2);
        assert_eq!(kept(&[gossip, trees("0")]), 0);
        for wrong in ["1", "33", "-1", "many"] {
            let error = with(&[gossip, trees(wrong)]).expect_err(wrong);
            assert!(error.to_string().contains("_TREES"), "{error}");
        }
        let (one, other) = (with(&[gossip]), with(&[gossip, trees("0")]));
        let print = |settings: Result<Settings>| settings.expect("good").fingerprint();
        assert_ne!(print(one), print(other));
    }

    #[test]
    fn f_is_given_or_derived_and_not_both() {
        let mtbf = ("OUTLIVE_COLLECTIVES_MTBF_S", "86400");
        let hour = ("OUTLIVE_COLLECTIVES_DURATION_S", "3600");
        let f = ("OUTLIVE_COLLECTIVES_FAILURES", "7");
        let risk = ("OUTLIVE_COLLECTIVES_RISK", "0.5");
        assert_eq!(with(&[]).expect("default").failures, 1);
        assert_eq!(with(&[f]).expect("good").failures, 7);
        assert_eq!(with(&[mtbf, hour]).expect("good").failures, 3);
        assert_eq!(with(&[mtbf, hour, risk]).expect("good").failures, 0);
        let both = with(&[mtbf, hour, f]).expect_err("one or the other");
        assert!(both.to_string().contains("_FAILURES"), "{both}");
        let (one, other) = (with(&[f]).expect("good"), with(&[]).expect("default"));
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.fingerprint(), with(&[f]).expect("good").fingerprint());
    }
}
