//! `outlive run`: from options to a [`Run`]. Everything is checked before anything
//! is started or written.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use outlive_base::levels::LEVELS_MAX;
use outlive_base::{Code, Entity, Error, JobName, Level, Ports, Result};
use outlive_control::orders::{Bounds, LevelSetting, Policy};
use outlive_control::standstill::HangRule;
use outlive_control::supervisor::Settings;
use outlive_control::{inject, units};
use outlive_launch::hosts::slurm;
use outlive_launch::timeline::Timeline;
use outlive_launch::{Machines, Run, driver};
use outlive_vault::groups;

use crate::collectives;
use crate::config::{Config, number, refuse, short};
use crate::machines;
use crate::options::RunOptions;
use crate::quiet;
use crate::reproducible;

mod start;
#[cfg(test)]
mod tests;
mod wishes;

use wishes::{preempt_signal, slurm_left_ms, wishes};

/// Most emulated nodes: a keeper, an agent and a share of memory each.
const NODES_MAX: u32 = 1_024;
/// Least staging memory of a node, in bytes.
const MEMORY_MIN: u64 = 1 << 20;

/// Between two checkpoints, where neither a time nor a number of versions is given, but which
/// of them go to which level.
const INTERVAL_MS: u64 = 10_000;
/// What the interval is where the policy decides.
const AUTO: &str = "auto";

/// Failure domains: each node is its own, whatever is known of switches.
const OWN: &str = "own";

/// Dead-timeouts for which ranks may seem to wait for a machine that theirs does not reach.
const APART_DEADS: u64 = 2;

/// The shortest standstill: milliseconds, and heartbeats, which tell of versions.
const HANG_MIN: (u64, u64) = (1_000, 4);

/// How much longer than its lease a host may take to end what it runs, in milliseconds.
const LEASE_MORE_MS: u64 = 2_000;

const fn levels_by(nodes: u32) -> &'static str {
    match nodes {
        1 => "memory,disk",
        _ => "memory,disk,partner",
    }
}

const fn spares_by(nodes: u32) -> u32 {
    if nodes == 1 { 0 } else { 1 }
}

/// The value of an option that was not given and has no default of its own; `None` if it
/// has none then.
///
/// # Errors
/// If a value from which it is decided is not understood.
pub fn decided(config: &Config, key: &str) -> Result<Option<String>> {
    let (nodes, spares, _) = nodes(config)?;
    let on_hosts = !config.get("hosts").is_empty();
    Ok(match key {
        "node-storage" if on_hosts => Some(machines::storage()),
        "node-storage" => Some(format!("{}/JOB/nodes", config.get("store"))),
        // Slurm's switches are asked for when a job begins.
        "domains" if config.get("hosts") == slurm::NAME => None,
        "domains" => {
            let each: Vec<String> = (0..nodes).map(|node| node.to_string()).collect();
            Some(each.join(",")).filter(|text| text.len() <= 40)
        }
        "levels" => Some(levels_by(nodes).to_owned()),
        // Levels that this number of nodes cannot have are refused when it runs.
        "interval" => match policy(config, &levels(config, nodes).unwrap_or_default())? {
            Decides::Policy => Some(AUTO.to_owned()),
            Decides::Owner(policy) => policy.interval_ms.map(|ms| format!("{}s", ms / 1000)),
        },
        "time-limit" => slurm_left_ms().map(|ms| units::show_ms(ms as f64)),
        "memory" if on_hosts && config.get("memory").is_empty() => None,
        "memory" => Some(units::show_bytes(memory(config, nodes)?)),
        "spares" => Some(spares.to_string()),
        _ => None,
    })
}

/// Runs the job; the exit status.
pub fn run(mut options: RunOptions) -> Result<u8> {
    let (cores, silent) = (std::mem::take(&mut options.cores), options.quiet);
    let (report, mut job) = (options.report.clone(), options.job.clone());
    let mut nodes = 0;
    let begun = Config::load(&options.settings, options.config.as_deref())
        .and_then(|config| plan(&config, options))
        .and_then(|run| {
            nodes = run.settings.nodes;
            job = Some(run.settings.job.to_string());
            quiet::within(&cores, silent, run)
        });
    if let (Err(error), Some(path)) = (&begun, &report) {
        // If that cannot be written either, the first error is what to say.
        let job = job.unwrap_or_default();
        let _ = driver::report_refusal(path, &job, nodes, error);
    }
    begun
}

pub fn plan(config: &Config, options: RunOptions) -> Result<Run> {
    let (nodes, spares, hosts) = nodes(config)?;
    let job = match &options.job {
        Some(name) => JobName::new(name.clone())?,
        None if hosts.is_some() => {
            return Err(Error::new(
                Code::InvalidArgument,
                Entity::Option("job".to_owned()),
                "a job on several machines needs a name",
                "give --job NAME: it keeps data on each of them, which later runs find by it",
            ));
        }
        None => fresh_name(&options.command)?,
    };
    let mut settings = Settings::new(job, nodes);
    settings.spares = spares;
    settings.max_restarts = number(config, "max-restarts", 0, 1_000_000)?;
    settings.anew_if_nothing = match config.get("on-nothing-usable") {
        "stop" => false,
        "fresh" => true,
        other => {
            let reason = format!("'{}' is neither stop nor fresh", short(other));
            let remedy = "give stop, or fresh to begin anew without being asked";
            return Err(refuse(config, "on-nothing-usable", reason, remedy));
        }
    };
    settings.backoff_ms = time(config, "backoff", 0)?;
    settings.kill_grace_ms = time(config, "kill-grace", 0)?;
    settings.start_ms = time(config, "start-timeout", 100)?;
    settings.keep = number(config, "keep", 1, 1_000_000)?;
    crate::copies::apply(config, &mut settings)?;
    settings.bounds = bounds(config)?;
    settings.hang = hang(config, &settings.bounds)?;
    settings.levels = levels(config, nodes)?;
    settings.domains = domains(config, nodes, &settings.levels)?;
    match policy(config, &settings.levels)? {
        Decides::Owner(policy) => settings.policy = policy,
        Decides::Policy => {
            settings.auto = Some(wishes(config, &settings.bounds)?);
            settings.preempt_signal = preempt_signal(config)?;
        }
    }
    settings.fresh = options.fresh;
    for text in &options.inject {
        settings.injections.push(inject::parse(text, nodes)?);
    }
    let node_storage = match (config.get("node-storage"), &hosts) {
        ("", None) => None,
        ("", Some(_)) => Some(machines::storage()),
        (path, _) => Some(path.to_owned()),
    };
    let memory_bytes = match (config.get("memory"), &hosts) {
        // Each host has its own.
        ("", Some(_)) => 0,
        (_, Some(_)) => memory(config, 1)?,
        (_, None) => memory(config, nodes)?,
    };
    if hosts.is_some() {
        settings.storage_stays = false;
        // Ranks use the network that the agents use.
        settings.apart_ms = Some(APART_DEADS * settings.bounds.dead_ms);
        // A host that cannot be reached is fenced when its lease has run out.
        settings.fence_ms = settings
            .fence_ms
            .max(settings.bounds.silence_ms() + LEASE_MORE_MS);
    }
    let mut environment = collectives::environment(&options)?;
    let is_set = |name: &str| std::env::var_os(name).is_some();
    environment.extend(reproducible::environment(&options, is_set));
    let ports = hosts.as_ref().map_or(Ports::ANY, |hosts| hosts.ports);
    environment.extend(collectives::ports(ports, is_set));
    let each = start::each(config, &options.command, nodes, hosts.is_some())?;
    let named = options.job.is_some();
    Ok(Run {
        object_store: crate::objects::wanted(config, &settings.levels, named)?,
        memory_server: crate::objects::memory_server(config, &settings.levels, named)?,
        coordinator: crate::coordinator::invitation(config, &settings)?,
        settings,
        store: PathBuf::from(config.get("store")),
        node_storage: node_storage.map(PathBuf::from),
        unnamed: !named,
        hosts,
        memory_bytes,
        encrypt: boolean(config, "encrypt")?,
        health: crate::health::settings(config)?,
        service: crate::slots::settings(config)?,
        report: options.report,
        metrics: config.path("metrics"),
        executable: PathBuf::from("/proc/self/exe"),
        environment,
        prepare: None,
        each,
        words: options.command,
        timeline: Timeline::new(options.quiet, options.verbose),
    })
}

/// Number of nodes and of spares, and the machines if they are such.
fn nodes(config: &Config) -> Result<(u32, u32, Option<Machines>)> {
    let emulated = number(config, "emulate-nodes", 1, NODES_MAX)?;
    let given = config.get("spares");
    let hosts = config.get("hosts");
    if hosts.is_empty() {
        for key in ["remote-shell", "remote-executable", "network", "ports"] {
            if !config.get(key).is_empty() {
                let reason = "says how hosts are reached, and none are given".to_owned();
                return Err(refuse(
                    config,
                    key,
                    reason,
                    "give --hosts FILE, or leave it out",
                ));
            }
        }
        let spares = match given {
            "" => spares_by(emulated),
            _ => number(config, "spares", 0, 1_000_000)?,
        };
        return Ok((emulated, spares, None));
    }
    if emulated > 1 {
        let reason = "the nodes are hosts, or parts of this machine".to_owned();
        return Err(refuse(
            config,
            "emulate-nodes",
            reason,
            "give it or --hosts",
        ));
    }
    let source = machines::source(config, hosts)?;
    let count = u32::try_from(source.hosts().len()).unwrap_or(u32::MAX);
    let spares = match given {
        "" => spares_by(count),
        _ => number(config, "spares", 0, 1_000_000)?,
    };
    if spares >= count {
        let reason = format!(
            "of {} none is left to compute",
            outlive_base::count(count, "host")
        );
        return Err(refuse(
            config,
            "spares",
            reason,
            "give fewer spares or more hosts",
        ));
    }
    let machines = Machines {
        source,
        network: machines::network(config)?,
        ports: machines::ports(config)?,
        executable: machines::executable(config),
    };
    Ok((count - spares, spares, Some(machines)))
}

fn time(config: &Config, key: &str, least_ms: u64) -> Result<u64> {
    let blamed = |error: Error| config.blame(key, &error);
    let ms = units::duration_ms(key, config.get(key)).map_err(blamed)?;
    if ms < least_ms {
        let reason = format!("{ms} ms is too short");
        let remedy = format!("give at least {least_ms} ms");
        return Err(refuse(config, key, reason, &remedy));
    }
    Ok(ms)
}

fn boolean(config: &Config, key: &str) -> Result<bool> {
    match config.get(key) {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        other => Err(refuse(
            config,
            key,
            format!("'{}' is neither true nor false", short(other)),
            "give true or false",
        )),
    }
}

fn bounds(config: &Config) -> Result<Bounds> {
    let bounds = Bounds {
        heartbeat_ms: time(config, "heartbeat", 10)?,
        suspect_ms: time(config, "suspect-timeout", 50)?,
        dead_ms: time(config, "dead-timeout", 100)?,
        arm_ms: time(config, "arm-timeout", 10)?,
        commit_ms: time(config, "commit-timeout", 10)?,
        recovery_ms: time(config, "recovery-timeout", 100)?,
        drain_ms: time(config, "drain-timeout", 0)?,
    };
    if bounds.suspect_ms < 2 * bounds.heartbeat_ms {
        let reason = "is less than two heartbeats".to_owned();
        let remedy = "raise it or shorten --heartbeat";
        return Err(refuse(config, "suspect-timeout", reason, remedy));
    }
    if bounds.dead_ms < bounds.suspect_ms {
        let reason = "is shorter than --suspect-timeout".to_owned();
        return Err(refuse(config, "dead-timeout", reason, "raise it"));
    }
    Ok(bounds)
}

/// What is a standstill, and what follows.
fn hang(config: &Config, bounds: &Bounds) -> Result<HangRule> {
    let on = config.get("on-hang").parse();
    let least_ms = HANG_MIN.0.max(HANG_MIN.1 * bounds.heartbeat_ms);
    let rule = HangRule::default();
    let join_given = !config.get("join-timeout").is_empty();
    Ok(HangRule {
        join_given,
        join_ms: match join_given {
            true => time(config, "join-timeout", least_ms)?,
            false => rule.join_ms,
        },
        on: on.map_err(|error| config.blame("on-hang", &error))?,
        bound_ms: match config.get("hang-timeout") {
            "" => None,
            _ => Some(time(config, "hang-timeout", least_ms)?),
        },
        ..rule
    })
}

/// `memory,disk,shared/4`: every level at most once, ascending in the result.
fn levels(config: &Config, nodes: u32) -> Result<Vec<LevelSetting>> {
    let text = match config.get("levels") {
        "" => levels_by(nodes),
        text => text,
    };
    let mut levels: Vec<LevelSetting> = Vec::new();
    for word in text.split(',') {
        let (name, every) = word.trim().split_once('/').unwrap_or((word.trim(), "1"));
        let level: Level = short(name).parse().map_err(|error: Error| {
            refuse(config, "levels", error.reason().to_owned(), error.remedy())
        })?;
        let every = every.parse().ok().filter(|n| *n >= 1).ok_or_else(|| {
            let reason = format!("'{}' has no number from 1 after '/'", short(word));
            refuse(config, "levels", reason, "write for example shared/4")
        })?;
        if levels.iter().any(|other| other.level == level) {
            let reason = format!("'{name}' is given twice");
            return Err(refuse(config, "levels", reason, "give each level once"));
        }
        if level.has_partner() && nodes == 1 {
            let reason = "the level partner needs two nodes".to_owned();
            let remedy = "use shared, or --emulate-nodes 2";
            return Err(refuse(config, "levels", reason, remedy));
        }
        levels.push(LevelSetting { level, every });
    }
    if levels.len() > LEVELS_MAX {
        let reason = format!("{} levels, at most {LEVELS_MAX}", levels.len());
        return Err(refuse(config, "levels", reason, "leave some out"));
    }
    levels.sort_by_key(|setting| setting.level);
    Ok(levels)
}

/// `0,0,1,1`: a number for each node; nodes with the same number may fail together. Empty where
/// the owner says nothing: then the source of machines may know more.
fn domains(config: &Config, nodes: u32, levels: &[LevelSetting]) -> Result<Vec<u32>> {
    let text = config.get("domains");
    if text.is_empty() || text == OWN {
        let own: Vec<u32> = (0..nodes).collect();
        has_groups(config, &own, levels)?;
        return Ok(if text == OWN { own } else { Vec::new() });
    }
    let numbers: Option<Vec<u32>> = text
        .split(',')
        .map(|word| word.trim().parse().ok())
        .collect();
    let domains = numbers.filter(|numbers| numbers.len() == nodes as usize);
    let Some(domains) = domains else {
        let reason = format!(
            "'{}' does not name the domain of each of {}",
            short(text),
            outlive_base::count(nodes, "node")
        );
        return Err(refuse(
            config,
            "domains",
            reason,
            "write for example 0,0,1,1, or own",
        ));
    };
    let one = domains.iter().all(|domain| *domain == domains[0]);
    if one && levels.iter().any(|setting| setting.level.has_partner()) {
        let reason = "all nodes are in one failure domain: no partner lies outside".to_owned();
        let remedy = "give two domains, or --levels without partner";
        return Err(refuse(config, "domains", reason, remedy));
    }
    has_groups(config, &domains, levels)?;
    Ok(domains)
}

/// True if each level can lay its groups over these nodes.
fn has_groups(config: &Config, domains: &[u32], levels: &[LevelSetting]) -> Result<()> {
    for setting in levels {
        groups(setting.level, domains)
            .map_err(|error| refuse(config, "levels", error.reason().to_owned(), error.remedy()))?;
    }
    Ok(())
}

/// Who decides when a checkpoint is wanted.
enum Decides {
    /// Costs and failures.
    Policy,
    /// What was given.
    Owner(Policy),
}

fn policy(config: &Config, levels: &[LevelSetting]) -> Result<Decides> {
    let every = match config.get("every") {
        "" => None,
        _ => Some(u64::from(number(config, "every", 1, u32::MAX)?)),
    };
    let by_hand = levels.iter().find(|setting| setting.every != 1);
    let auto = match (config.get("interval"), by_hand, every) {
        (AUTO, Some(setting), _) => {
            let level = setting.level.name();
            let reason = format!("auto decides which versions go to {level}");
            let remedy = format!("leave /{} out, or give a time", setting.every);
            return Err(refuse(config, "interval", reason, &remedy));
        }
        (AUTO, None, Some(_)) => {
            let reason = "auto decides when, and so does --every".to_owned();
            return Err(refuse(config, "interval", reason, "give one of them"));
        }
        (AUTO, None, None) | ("", None, None) => true,
        _ => false,
    };
    if auto {
        return Ok(Decides::Policy);
    }
    for key in wishes::AUTO_ONLY {
        if !config.get(key).is_empty() {
            let reason = "only --interval auto can keep to it".to_owned();
            let remedy = "leave --every, the interval and /N of levels out, or this";
            return Err(refuse(config, key, reason, remedy));
        }
    }
    let interval_ms = match config.get("interval") {
        "" if every.is_none() => Some(INTERVAL_MS),
        "" => None,
        _ => Some(time(config, "interval", 1)?),
    };
    Ok(Decides::Owner(Policy { every, interval_ms }))
}

fn memory(config: &Config, nodes: u32) -> Result<u64> {
    let text = config.get("memory");
    if text.is_empty() {
        let available = outlive_launch::sys::available_memory().unwrap_or(1 << 30);
        return Ok((available / 2 / u64::from(nodes)).max(MEMORY_MIN));
    }
    let blamed = |error: Error| config.blame("memory", &error);
    let bytes = units::size_bytes("memory", text).map_err(blamed)?;
    if bytes < MEMORY_MIN {
        let reason = format!("{} is too little", units::show_bytes(bytes));
        let remedy = "give two slots of a node's ranks, at least 1MiB";
        return Err(refuse(config, "memory", reason, remedy));
    }
    Ok(bytes)
}

/// `<program>-<time>-<pid>`.
fn fresh_name(command: &[std::ffi::OsString]) -> Result<JobName> {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = program
        .map(|name| {
            name.to_string_lossy()
                .chars()
                .filter(allowed)
                .take(24)
                .collect()
        })
        .unwrap_or_default();
    let name = name.trim_start_matches(['.', '-']);
    let name = if name.is_empty() { "job" } else { name };
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    JobName::new(format!("{name}-{seconds}-{}", std::process::id()))
}
