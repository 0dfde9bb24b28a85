//! Faults asked for with `--inject`: `[VERB:]TARGET:NUMBER@WHEN[,OPTION=VALUE...]`.
//!
//! | part | values |
//! |---|---|
//! | VERB | none (kill), `freeze`, `partition`, `slow`, `corrupt`, `full` |
//! | TARGET | `node`, `rank`, `agent`, `keeper` |
//! | WHEN | `version=40`, a time since the first start (`5s`), `phase=commit:send` |
//! | OPTION | `for=20s`, `rate=10MiB`, `level=disk`, `nth=2` |
//!
//! Everything that cannot happen is refused here, before anything starts.

use core::fmt;

use crate::node::fail_points;
use outlive_base::{Code, Entity, Error, Level, NodeId, Rank, Result, Version};

use crate::units;

/// Default of `rate=` for `slow:`, in bytes a second.
pub const SLOW_RATE_DEFAULT: u64 = 10 << 20;

/// Who is hit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// A node: keeper, agent, ranks and, when killed, its storage.
    Node(NodeId),
    /// A rank.
    Rank(Rank),
    /// The agent of a node.
    Agent(NodeId),
    /// The keeper of a node.
    Keeper(NodeId),
}

/// What happens to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SIGKILL; a node's storage is removed too.
    Kill,
    /// SIGSTOP, and SIGCONT after `for_ms` if given.
    Freeze {
        /// How long, in milliseconds; `None`: for ever.
        for_ms: Option<u64>,
    },
    /// The agent drops all traffic.
    Partition {
        /// How long, in milliseconds; `None`: for ever.
        for_ms: Option<u64>,
    },
    /// Disk and streams become slow.
    Slow {
        /// Bytes a second.
        rate: u64,
        /// How long, in milliseconds; `None`: for ever.
        for_ms: Option<u64>,
    },
    /// A bit flips in the newest container at this level.
    Corrupt {
        /// The level.
        level: Level,
    },
    /// Writes to node storage report that no space is left.
    Full {
        /// How long, in milliseconds; `None`: for ever.
        for_ms: Option<u64>,
    },
}

/// When it happens. Each injection happens once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum When {
    /// When the target offers this version.
    Version(Version),
    /// So many milliseconds after COMMAND was first started.
    AfterMs(u64),
    /// When the agent comes to a named point for the n-th time.
    Phase {
        /// One of [`fail_points`].
        point: String,
        /// From 1.
        nth: u32,
    },
}

/// One `--inject`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Injection {
    /// Who.
    pub target: Target,
    /// What.
    pub verb: Verb,
    /// When.
    pub when: When,
    /// As written, for the report.
    pub text: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Node(node) => write!(f, "node:{}", node.0),
            Target::Rank(rank) => write!(f, "rank:{}", rank.0),
            Target::Agent(node) => write!(f, "agent:{}", node.0),
            Target::Keeper(node) => write!(f, "keeper:{}", node.0),
        }
    }
}

/// The options after the first comma.
#[derive(Default)]
struct Extra {
    for_ms: Option<u64>,
    rate: Option<u64>,
    level: Option<Level>,
    nth: Option<u32>,
}

/// Parses one injection for a job of `nodes` nodes.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the part that is wrong or impossible.
pub fn parse(text: &str, nodes: u32) -> Result<Injection> {
    let bad = |reason: String| refuse(text, reason);
    if text.len() > 200 {
        return Err(bad("is longer than 200 characters".into()));
    }
    let (what, rest) = text
        .split_once('@')
        .ok_or_else(|| bad("has no '@' and time or version".into()))?;
    let mut parts = rest.split(',');
    let when_text = parts.next().unwrap_or_default();
    let extra = options(text, parts)?;
    let (verb_name, target_text) = match what.split(':').count() {
        2 => ("", what),
        3 => what.split_once(':').unwrap_or_default(),
        _ => return Err(bad("does not begin with TARGET:NUMBER".into())),
    };
    let target = target(text, target_text, nodes)?;
    let when = when(text, when_text, &extra)?;
    let verb = verb(text, verb_name, target, &extra)?;
    if matches!((&when, target), (When::Phase { .. }, Target::Rank(_))) {
        return Err(bad("names a phase, which only agents have".into()));
    }
    Ok(Injection {
        target,
        verb,
        when,
        text: text.to_owned(),
    })
}

fn options<'a>(text: &str, parts: impl Iterator<Item = &'a str>) -> Result<Extra> {
    let mut extra = Extra::default();
    for part in parts {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| refuse(text, format!("has '{part}' where OPTION=VALUE belongs")))?;
        match name {
            "for" => extra.for_ms = Some(units::duration_ms("inject", value)?),
            "rate" => extra.rate = Some(units::size_bytes("inject", value)?),
            "level" => extra.level = Some(value.parse()?),
            "nth" => {
                let nth = value.parse().ok().filter(|n| *n >= 1);
                extra.nth = Some(nth.ok_or_else(|| {
                    refuse(text, format!("has nth={value}, which is no number from 1"))
                })?);
            }
            _ => return Err(refuse(text, format!("has the unknown option '{name}'"))),
        }
    }
    Ok(extra)
}

fn target(text: &str, target: &str, nodes: u32) -> Result<Target> {
    let (kind, number) = target.split_once(':').unwrap_or_default();
    let number: u32 = number
        .parse()
        .map_err(|_| refuse(text, format!("has '{number}' where a number belongs")))?;
    if kind != "rank" && number >= nodes {
        return Err(refuse(
            text,
            format!(
                "names node {number}, but the nodes are 0 to {}",
                nodes.max(1) - 1
            ),
        ));
    }
    match kind {
        "node" => Ok(Target::Node(NodeId(number))),
        "rank" => Ok(Target::Rank(Rank(number))),
        "agent" => Ok(Target::Agent(NodeId(number))),
        "keeper" => Ok(Target::Keeper(NodeId(number))),
        _ => Err(refuse(text, format!("has the unknown target '{kind}'"))),
    }
}

fn when(text: &str, when: &str, extra: &Extra) -> Result<When> {
    if let Some(version) = when.strip_prefix("version=") {
        let version = version.parse().ok().filter(|v| *v <= Version::MAX.0);
        return version
            .map(|v| When::Version(Version(v)))
            .ok_or_else(|| refuse(text, "has no version number after 'version='".into()));
    }
    if let Some(point) = when.strip_prefix("phase=") {
        let known = fail_points();
        if !known.contains(&point) {
            let known = known.join(", ");
            return Err(refuse(text, format!("names none of the points {known}")));
        }
        return Ok(When::Phase {
            point: point.to_owned(),
            nth: extra.nth.unwrap_or(1),
        });
    }
    // What is almost a version: said before it is called no duration.
    let (name, number) = when.split_once('=').unwrap_or(("version", when));
    if number.parse::<u64>().is_ok() && "version".starts_with(name) && number != "0" {
        let shown: String = text.chars().take(80).collect();
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("inject".into()),
            format!("'{shown}' has '{when}' where a version or a time belongs"),
            format!("write @version={number} for a version, @{number}s for a time"),
        ));
    }
    units::duration_ms("inject", when)
        .map(When::AfterMs)
        .map_err(|_| {
            refuse(
                text,
                format!("has '{when}' where a version or a time belongs"),
            )
        })
}

fn verb(text: &str, name: &str, target: Target, extra: &Extra) -> Result<Verb> {
    let for_ms = extra.for_ms;
    let verb = match name {
        "" | "kill" => Verb::Kill,
        "freeze" => Verb::Freeze { for_ms },
        "partition" => Verb::Partition { for_ms },
        "slow" => Verb::Slow {
            rate: extra.rate.unwrap_or(SLOW_RATE_DEFAULT),
            for_ms,
        },
        "corrupt" => Verb::Corrupt {
            level: extra.level.unwrap_or(Level::DISK),
        },
        "full" => Verb::Full { for_ms },
        _ => return Err(refuse(text, format!("has the unknown verb '{name}'"))),
    };
    let processes_only = matches!(verb, Verb::Kill | Verb::Freeze { .. });
    if !processes_only && !matches!(target, Target::Node(_)) {
        return Err(refuse(text, format!("can {name} only a node")));
    }
    let unused = [
        (
            "for",
            for_ms.is_some() && matches!(verb, Verb::Kill | Verb::Corrupt { .. }),
        ),
        (
            "rate",
            extra.rate.is_some() && !matches!(verb, Verb::Slow { .. }),
        ),
        (
            "level",
            extra.level.is_some() && !matches!(verb, Verb::Corrupt { .. }),
        ),
        ("nth", extra.nth.is_some() && !text.contains("@phase=")),
    ];
    match unused.iter().find(|(_, unused)| *unused) {
        Some((option, _)) => Err(refuse(
            text,
            format!("has '{option}', which has no use here"),
        )),
        None => Ok(verb),
    }
}

fn refuse(text: &str, reason: String) -> Error {
    let shown: String = text.chars().take(80).collect();
    Error::new(
        Code::InvalidArgument,
        Entity::Option("inject".into()),
        format!("'{shown}' {reason}"),
        "write for example rank:3@version=40, node:2@10s or freeze:node:1@5s,for=2s",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_form_parses() {
        let node = |n| Target::Node(NodeId(n));
        for (text, target, verb, when) in [
            (
                "rank:3@version=40",
                Target::Rank(Rank(3)),
                Verb::Kill,
                When::Version(Version(40)),
            ),
            (
                "node:2@version=60",
                node(2),
                Verb::Kill,
                When::Version(Version(60)),
            ),
            (
                "agent:1@5s",
                Target::Agent(NodeId(1)),
                Verb::Kill,
                When::AfterMs(5_000),
            ),
            (
                "keeper:1@3s",
                Target::Keeper(NodeId(1)),
                Verb::Kill,
                When::AfterMs(3_000),
            ),
            (
                "freeze:node:2@version=30",
                node(2),
                Verb::Freeze { for_ms: None },
                When::Version(Version(30)),
            ),
            (
                "freeze:rank:1@2s,for=1s",
                Target::Rank(Rank(1)),
                Verb::Freeze {
                    for_ms: Some(1_000),
                },
                When::AfterMs(2_000),
            ),
            (
                "partition:node:2@5s,for=20s",
                node(2),
                Verb::Partition {
                    for_ms: Some(20_000),
                },
                When::AfterMs(5_000),
            ),
            (
                "slow:node:1@1s,rate=1MiB",
                node(1),
                Verb::Slow {
                    rate: 1 << 20,
                    for_ms: None,
                },
                When::AfterMs(1_000),
            ),
            (
                "corrupt:node:1@version=50",
                node(1),
                Verb::Corrupt { level: Level::DISK },
                When::Version(Version(50)),
            ),
            (
                "full:node:1@version=20",
                node(1),
                Verb::Full { for_ms: None },
                When::Version(Version(20)),
            ),
            (
                "node:2@phase=commit:send,nth=2",
                node(2),
                Verb::Kill,
                When::Phase {
                    point: "commit:send".into(),
                    nth: 2,
                },
            ),
        ] {
            let parsed = parse(text, 4).unwrap();
            assert_eq!(
                (parsed.target, parsed.verb, parsed.when),
                (target, verb, when),
                "{text}"
            );
        }
    }

    #[test]
    fn the_impossible_is_refused() {
        for text in [
            "",
            "node:2",
            "node:9@5s",
            "node:x@5s",
            "node@5s",
            "a:b:c:d@5s",
            "planet:1@5s",
            "melt:node:1@5s",
            "node:1@version=x",
            "node:1@version=18446744073709551615",
            "node:1@soon",
            "node:1@5s,for=2s",
            "node:1@5s,nth=2",
            "rank:1@phase=commit:send",
            "partition:rank:1@5s",
            "corrupt:node:1@5s,level=tape",
            "slow:node:1@5s,rate",
            "node:1@phase=",
            "node:1@phase=commit:sent",
            "node:1@phase=commit:send,nth=0",
        ] {
            let error = parse(text, 4).expect_err(text);
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }
}
