//! The configuration: defaults < /etc/outlive/config.toml < the user's < `--config`
//! < `OUTLIVE_*` < flag. Every value remembers where it comes from.
//!
//! A file holds the keys at its top, spelled like the flags. What cannot be
//! understood is refused with file and key: a misspelt key must not be silence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};
use serde::Serialize;

use outlive_launch::input;

use crate::options::Settings;
use crate::output;

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// So many letters wrong, missing, added or swapped are taken for a slip.
const MISSPELT_MAX: usize = 2;

/// An option that may also come from a file or a variable.
#[derive(Debug)]
pub struct Key {
    /// Its name: the same on the command line and in a file.
    pub name: &'static str,
    /// Its default; empty: decided from the rest.
    pub default: &'static str,
    /// What decides if nothing is given, for people.
    pub decided: &'static str,
    /// The heading under which the help shows it.
    pub group: &'static str,
}

const fn key(
    group: &'static str,
    name: &'static str,
    default: &'static str,
    decided: &'static str,
) -> Key {
    Key {
        name,
        default,
        decided,
        group,
    }
}

const PLACES: &str = "Where data lies";
const SAVES: &str = "Checkpoints";
const NODES: &str = "Nodes and restarts";
const BOUNDS: &str = "Bounds";
/// Of both powers.
const POWERS: &str = "as the job's last run that gave them; off: time is saved, not energy";
const SEEN: &str = "Faults and reports";

/// All of them.
pub const KEYS: &[Key] = &[
    key(PLACES, "store", "outlive-store", ""),
    key(
        PLACES,
        "node-storage",
        "",
        "nodes/ in the job's directory; with --hosts /var/tmp/outlive-UID",
    ),
    key(
        PLACES,
        "object-store",
        "",
        "none: the level shared lies in the job's directory",
    ),
    key(
        PLACES,
        "memory-server",
        "",
        "none: no level memory-server:G is in use",
    ),
    key(NODES, "emulate-nodes", "1", ""),
    key(NODES, "hosts", "", "none: this machine"),
    key(NODES, "remote-shell", "", "ssh without questions"),
    key(NODES, "remote-executable", "", "the path that it has here"),
    key(
        NODES,
        "network",
        "",
        "the first by which each host reaches this one",
    ),
    key(NODES, "ports", "", "any that is free"),
    key(
        NODES,
        "start",
        "",
        "each for torchrun with several nodes, else once",
    ),
    key(
        NODES,
        "domains",
        "",
        "each node is its own; under Slurm by its leaf switches",
    ),
    key(
        SAVES,
        "levels",
        "",
        "memory,disk; from two nodes on partner too",
    ),
    key(SAVES, "every", "", "none: --interval decides"),
    key(
        SAVES,
        "interval",
        "",
        "auto; with --every none; 10s where a level has /N",
    ),
    key(SAVES, "overhead-max", "", "no bound"),
    key(SAVES, "redo-max", "", "no bound"),
    key(
        SAVES,
        "time-limit",
        "",
        "that of the Slurm job, if it runs in one",
    ),
    key(SAVES, "notice", "", "unknown: one version at SIGUSR1"),
    key(
        SAVES,
        "preempt-signal",
        "",
        "none: SIGTERM ends the job in order at once",
    ),
    key(SAVES, "watts-compute", "", POWERS),
    key(SAVES, "watts-checkpoint", "", POWERS),
    key(
        SAVES,
        "memory",
        "",
        "half of what is available on the machine, divided among its nodes",
    ),
    key(NODES, "spares", "", "1; on one node 0"),
    key(NODES, "max-restarts", "10", ""),
    key(NODES, "on-nothing-usable", "stop", ""),
    key(NODES, "on-hang", "report", ""),
    key(NODES, "backoff", "1s", ""),
    key(NODES, "kill-grace", "2s", ""),
    key(SAVES, "keep", "2", ""),
    key(SAVES, "partners", "1", ""),
    key(SAVES, "shared-from", "disk", ""),
    key(SAVES, "shared-rate", "off", ""),
    key(SAVES, "shared-rate-job", "off", ""),
    key(SAVES, "coordinator", "", "that of the store, if one runs"),
    key(SAVES, "refuse", "off", ""),
    key(SAVES, "scrub-every", "1h", ""),
    key(SAVES, "scrub-rate", "32MiB", ""),
    key(SAVES, "encrypt", "false", ""),
    key(SEEN, "metrics", "", "none"),
    key(SEEN, "health-interval", "10s", ""),
    key(SEEN, "health-limits", "", "those that outlive health shows"),
    key(SEEN, "service-slots", "off", ""),
    key(SEEN, "daemon", "off", ""),
    key(BOUNDS, "heartbeat", "250ms", ""),
    key(BOUNDS, "suspect-timeout", "1s", ""),
    key(BOUNDS, "dead-timeout", "10s", ""),
    key(BOUNDS, "arm-timeout", "2s", ""),
    key(BOUNDS, "commit-timeout", "60s", ""),
    key(BOUNDS, "recovery-timeout", "300s", ""),
    key(BOUNDS, "drain-timeout", "60s", ""),
    key(BOUNDS, "start-timeout", "30s", ""),
    key(
        BOUNDS,
        "hang-timeout",
        "",
        "learnt: ten of the longest pauses between versions, 1min at least",
    ),
    key(
        BOUNDS,
        "join-timeout",
        "",
        "2min, and it is told, whatever on-hang says",
    ),
];

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Built in.
    Default,
    /// A file.
    File(PathBuf),
    /// A variable.
    Variable(String),
    /// The command line.
    Flag,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// All values.
#[derive(Clone, Debug)]
pub struct Config(BTreeMap<&'static str, (String, Origin)>);

impl Config {
    /// The value of a key of [`KEYS`]; empty if it is to be decided from the rest.
    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |(value, _)| value)
    }

    /// A value and where it comes from. Every key has one.
    pub fn with_origin(&self, key: &Key) -> (&str, &Origin) {
        let (value, origin) = &self.0[key.name];
        (value, origin)
    }

    /// The path that a key names, if it names one.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        let path = Some(self.get(key)).filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    }

    /// Reads all sources. `flags` come last.
    ///
    /// # Errors
    /// [`Code::Config`] for files and keys that cannot be understood.
    pub fn load(flags: &Settings, file: Option<&Path>) -> Result<Config> {
        let user = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
        let mut files = vec![(PathBuf::from("/etc/outlive/config.toml"), false)];
        files.extend(user.map(|path| (path.join("outlive/config.toml"), false)));
        files.extend(file.map(|path| (path.to_owned(), true)));
        for (name, meant) in misspelt(std::env::vars_os().map(|(name, _)| name)) {
            output::warn(&format!("the variable {name} is not read: {meant} is"));
        }
        Config::from_sources(flags, &files, |name| std::env::var(name).ok())
    }

    fn from_sources(
        flags: &Settings,
        files: &[(PathBuf, bool)],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Config> {
        let default = |key: &Key| (key.name, (key.default.to_owned(), Origin::Default));
        let mut values: BTreeMap<_, _> = KEYS.iter().map(default).collect();
        for (path, required) in files {
            for (key, value) in read_file(path, *required)? {
                values.insert(key, (value, Origin::File(path.clone())));
            }
        }
        for key in KEYS {
            let name = variable_of(key.name);
            if let Some(value) = variable(&name).filter(|value| !value.is_empty()) {
                values.insert(key.name, (value, Origin::Variable(name)));
            }
        }
        for (key, value) in flags.pairs() {
            if let Some(value) = value {
                if value.trim().is_empty() {
                    return Err(Error::new(
                        Code::InvalidArgument,
                        Entity::Option(key.to_owned()),
                        "a value is missing",
                        "give one, or leave the option out for the default",
                    ));
                }
                values.insert(key, (value.clone(), Origin::Flag));
            }
        }
        Ok(Config(values))
    }

    /// Blames the place where a value comes from for what is wrong with it.
    pub fn blame(&self, key: &str, error: &Error) -> Error {
        match self.0.get(key) {
            Some((_, Origin::File(_) | Origin::Variable(_))) => {
                let (_, origin) = &self.0[key];
                Error::new(
                    Code::Config,
                    Entity::Option(key.to_owned()),
                    format!("{} (from {origin})", error.reason()),
                    error.remedy(),
                )
            }
            _ => error.clone(),
        }
    }
}

/// The variable of a key.
pub fn variable_of(key: &str) -> String {
    format!("OUTLIVE_{}", key.replace('-', "_").to_uppercase())
}

/// Variables that are no option's but nearly, each with the nearest. Others may be another
/// program's, so nothing is said of them.
fn misspelt(names: impl Iterator<Item = std::ffi::OsString>) -> Vec<(String, String)> {
    let known: Vec<String> = KEYS.iter().map(|key| variable_of(key.name)).collect();
    let nearest = |name: &String| {
        let far = |one: &&String| strsim::damerau_levenshtein(name, one);
        let meant = known.iter().min_by_key(far)?;
        (1..=MISSPELT_MAX)
            .contains(&far(&meant))
            .then(|| meant.clone())
    };
    names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("OUTLIVE_"))
        .filter_map(|name| nearest(&name).map(|meant| (name, meant)))
        .collect()
}

impl Settings {
    fn pairs(&self) -> [(&'static str, &Option<String>); 54] {
        [
            ("store", &self.store),
            ("node-storage", &self.node_storage),
            ("object-store", &self.object_store),
            ("memory-server", &self.memory_server),
            ("emulate-nodes", &self.emulate_nodes),
            ("hosts", &self.hosts),
            ("remote-shell", &self.remote_shell),
            ("remote-executable", &self.remote_executable),
            ("network", &self.network),
            ("ports", &self.ports),
            ("start", &self.start),
            ("domains", &self.domains),
            ("levels", &self.levels),
            ("every", &self.every),
            ("interval", &self.interval),
            ("overhead-max", &self.overhead_max),
            ("redo-max", &self.redo_max),
            ("time-limit", &self.time_limit),
            ("notice", &self.notice),
            ("preempt-signal", &self.preempt_signal),
            ("watts-compute", &self.watts_compute),
            ("watts-checkpoint", &self.watts_checkpoint),
            ("memory", &self.memory),
            ("spares", &self.spares),
            ("max-restarts", &self.max_restarts),
            ("on-nothing-usable", &self.on_nothing_usable),
            ("on-hang", &self.on_hang),
            ("backoff", &self.backoff),
            ("kill-grace", &self.kill_grace),
            ("keep", &self.keep),
            ("partners", &self.partners),
            ("shared-from", &self.shared.shared_from),
            ("shared-rate", &self.shared.shared_rate),
            ("shared-rate-job", &self.shared.shared_rate_job),
            ("coordinator", &self.shared.coordinator),
            ("refuse", &self.refuse),
            ("scrub-every", &self.scrub_every),
            ("scrub-rate", &self.scrub_rate),
            ("encrypt", &self.encrypt),
            ("metrics", &self.metrics),
            ("health-interval", &self.health.health_interval),
            ("health-limits", &self.health.health_limits),
            ("service-slots", &self.service.service_slots),
            ("daemon", &self.service.daemon),
            ("heartbeat", &self.heartbeat),
            ("suspect-timeout", &self.suspect_timeout),
            ("dead-timeout", &self.dead_timeout),
            ("arm-timeout", &self.arm_timeout),
            ("commit-timeout", &self.commit_timeout),
            ("recovery-timeout", &self.recovery_timeout),
            ("drain-timeout", &self.drain_timeout),
            ("start-timeout", &self.start_timeout),
            ("hang-timeout", &self.hang_timeout),
            ("join-timeout", &self.join_timeout),
        ]
    }
}

fn read_file(path: &Path, required: bool) -> Result<Vec<(&'static str, String)>> {
    let refuse = |reason: String, remedy: &str| {
        let entity = Entity::File(path.display().to_string());
        Error::new(Code::Config, entity, reason, remedy)
    };
    let absent = |error: &Error| matches!(error.code(), Code::NotFound | Code::Permission);
    let text = match input::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        // A home that this user may not enter holds no settings of this user.
        Err(error) if !required && absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(refuse(error.reason().into(), error.remedy())),
    };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(1, |span| {
            1 + text[..span.start.min(text.len())].matches('\n').count()
        });
        refuse(
            format!("line {at}: {}", error.message()),
            "write TOML: key = \"value\"",
        )
    })?;
    let mut values = Vec::new();
    for (key, value) in table {
        let Some(known) = KEYS.iter().find(|known| known.name == key) else {
            let far = |one: &&Key| strsim::damerau_levenshtein(&key, one.name);
            let near = KEYS.iter().filter(|one| far(one) <= MISSPELT_MAX);
            let remedy = near.min_by_key(far).map_or_else(
                || "outlive config explain lists the keys".to_owned(),
                |near| format!("did you mean {}?", near.name),
            );
            return Err(refuse(format!("the key '{key}' is unknown"), &remedy));
        };
        let value = plain(&value).ok_or_else(|| {
            let remedy = "give a string, a number, true or false, or a list of strings";
            refuse(format!("the value of '{key}' has the wrong kind"), remedy)
        })?;
        values.push((known.name, value));
    }
    Ok(values)
}

fn plain(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(value) => Some(value.to_string()),
        toml::Value::Array(items) => {
            let words: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            Some(words?.join(","))
        }
        _ => None,
    }
}

/// An error of an option, with where its value comes from.
pub fn refuse(config: &Config, key: &str, reason: String, remedy: &str) -> Error {
    let entity = Entity::Option(key.to_owned());
    config.blame(
        key,
        &Error::new(Code::InvalidArgument, entity, reason, remedy),
    )
}

/// A number within bounds.
///
/// # Errors
/// If it is none, or beyond them.
pub fn number(config: &Config, key: &str, least: u32, most: u32) -> Result<u32> {
    let text = config.get(key);
    let value = text.parse().ok().filter(|n| (least..=most).contains(n));
    value.ok_or_else(|| {
        let remedy = format!("give a number from {least} to {most}");
        refuse(
            config,
            key,
            format!("'{}' is out of range", short(text)),
            &remedy,
        )
    })
}

/// The beginning of what was given, for an error.
pub fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever stands in a file of settings.
    #[test]
    fn settings_of_all_kinds_are_understood_or_refused_with_a_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        let bounds = (3 << 20, 4_000);
        crate::fuzzed::run("settings", Vec::new(), 3_000, bounds, |bytes| {
            std::fs::write(&path, bytes).expect("it is written");
            let files = [(path.clone(), true)];
            match Config::from_sources(&Settings::default(), &files, |_| None) {
                Ok(config) => assert!(KEYS.iter().all(|key| config.0.contains_key(key.name))),
                Err(error) => {
                    assert!(matches!(error.code(), Code::Config | Code::InvalidArgument));
                    assert!(!error.reason().is_empty() && !error.remedy().is_empty());
                }
            }
        });
    }

    #[test]
    fn later_sources_win_and_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let system = file("a", "every = 10\nkeep = 3\nspares = 1\nbackoff = \"5s\"\n");
        let user = file(
            "b",
            "keep = 4\nspares = 2\nlevels = [\"memory\", \"shared/4\"]\n",
        );
        let given = file("c", "spares = 3\nencrypt = true\n");
        let flags = Settings {
            backoff: Some("7s".into()),
            ..Settings::default()
        };
        let files = [(system.clone(), false), (user, false), (given, true)];
        let variable = |name: &str| match name {
            "OUTLIVE_BACKOFF" => Some("6s".to_owned()),
            "OUTLIVE_SUSPECT_TIMEOUT" => Some("2s".to_owned()),
            _ => None,
        };
        let config = Config::from_sources(&flags, &files, variable).unwrap();
        let got = |key| (config.get(key), config.0[key].1.to_string());
        assert_eq!(got("every"), ("10", system.display().to_string()));
        assert_eq!(got("keep").0, "4");
        assert_eq!(got("levels").0, "memory,shared/4");
        assert_eq!(got("spares").0, "3");
        assert_eq!(got("encrypt").0, "true");
        assert_eq!(
            got("suspect-timeout"),
            ("2s", "OUTLIVE_SUSPECT_TIMEOUT".into())
        );
        assert_eq!(got("backoff"), ("7s", "command line".into()));
        assert_eq!(got("max-restarts"), ("10", "default".into()));
    }

    #[test]
    fn variables_that_are_nearly_an_option_are_named() {
        let meant = |name: &str| {
            let found = misspelt([name.into()].into_iter());
            found.into_iter().next().map(|(_, meant)| meant)
        };
        assert_eq!(meant("OUTLIVE_LEVEL").as_deref(), Some("OUTLIVE_LEVELS"));
        assert_eq!(meant("OUTLIVE_MEMROY").as_deref(), Some("OUTLIVE_MEMORY"));
        assert_eq!(
            meant("OUTLIVE_DEAD-TIMEOUT").as_deref(),
            Some("OUTLIVE_DEAD_TIMEOUT")
        );
        // What is read elsewhere (docs/reference/environment.md), and others' variables.
        for name in [
            "AGENT",
            "BIN",
            "CHECK_CAPTURES",
            "COLLECTIVES",
            "COMM_RANK",
            "COPY_THREADS",
            "INCARNATION",
            "JOB",
            "LOG",
            "MPI_LIBRARY",
            "NODES",
            "RANK",
            "RECORD",
            "SIZE",
            "LEVELS",
        ] {
            assert_eq!(meant(&format!("OUTLIVE_{name}")), None, "{name}");
        }
        assert_eq!(meant("MEMORI"), None);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        for (text, said) in [
            ("evry = 1", "'evry' is unknown"),
            ("x = = 1", "line 1"),
            ("\n\nkeep = \n", "line 3"),
            ("keep = { a = 1 }", "wrong kind"),
            ("levels = [1]", "wrong kind"),
        ] {
            let path = dir.path().join("c.toml");
            std::fs::write(&path, text).unwrap();
            let result = Config::from_sources(&Settings::default(), &[(path, true)], |_| None);
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::Config);
            assert!(error.reason().contains(said), "{text}: {}", error.reason());
        }
        let missing = [(dir.path().join("none"), true)];
        assert!(Config::from_sources(&Settings::default(), &missing, |_| None).is_err());
        let optional = [(dir.path().join("none"), false)];
        assert!(Config::from_sources(&Settings::default(), &optional, |_| None).is_ok());
    }
}
