//! `outlive doctor --hosts`: what each host of a job offers, whether all are one cluster, and
//! whether they reach each other.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outlive_base::{Error, Result, count};
use outlive_control::units::duration_ms;
use outlive_launch::hosts::looks;
use outlive_launch::hosts::preflight::{self, Answer, PEERS, Request};
use outlive_launch::site::{Check, Grade, check, existing, worst};
use outlive_launch::sys;
use serde::Serialize;

use super::DoctorOptions;
use super::{status, word};
use crate::config::Config;
use crate::{machines, output};

/// Names of hosts that stand beside a finding; the others are counted.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Findings {
    schema: &'static str,
    grade: Grade,
    hosts: Vec<OfHost>,
    /// What was found on this machine for all of them.
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct OfHost {
    host: String,
    grade: Grade,
    checks: Vec<Check>,
}

/// A file that shows each host whether it sees this store; removed at the end, also by a signal.
/// What SIGKILL leaves goes the next time.
struct Token(PathBuf, String);

const TOKEN: &str = ".outlive-doctor-";

impl Token {
    fn leave(store: &Path) -> Result<Token> {
        let dir = existing(store);
        Token::sweep(&dir);
        let path = dir.join(format!("{TOKEN}{}", std::process::id()));
        sys::remove_when_ended(&path).map_err(|error| Error::io(&path, "name", &error))?;
        let mut bytes = [0_u8; 16];
        let random = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        random.map_err(|error| Error::internal(format!("random bytes: {error}")))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = fs::File::create_new(&path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let token = Token(path, text);
        match written {
            Ok(()) => Ok(token),
            Err(error) => Err(Error::io(&token.0, "write", &error)),
        }
    }
}

impl Token {
    /// Removes those of processes of this machine that live no more.
    fn sweep(dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(TOKEN));
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Asks all hosts: 0 if nothing fails, else 69.
pub fn run(options: &DoctorOptions, config: &Config) -> Result<u8> {
    let within = Duration::from_millis(duration_ms("within", &options.within)?);
    let source = machines::source(config, config.get("hosts"))?;
    let store = std::path::absolute(config.get("store"))
        .map_err(|error| Error::io(config.get("store"), "find", &error))?;
    let node_storage = match config.get("node-storage") {
        "" => machines::storage(),
        given => given.to_owned(),
    };
    let token = Token::leave(&store)?;
    let request = Request {
        source: &*source,
        executable: machines::executable(config),
        network: machines::network(config)?,
        ports: machines::ports(config)?,
        store,
        node_storage: node_storage.into(),
        token: (token.0.clone(), token.1.clone()),
        within,
    };
    let answers = preflight::examine::<Vec<Check>>(&request)?;
    let names = source.hosts().iter().map(|host| host.name.clone());
    let hosts: Vec<OfHost> = names.zip(answers).map(OfHost::new).collect();
    // Agents have their credentials from this machine.
    let checks: Vec<Check> = super::object_store(config).into_iter().collect();
    let grade = hosts.iter().map(|host| host.grade).max();
    let grade = grade.unwrap_or(Grade::Ok).max(worst(&checks));
    if options.json {
        output::json(&Findings {
            schema: "outlive.doctor-hosts/1",
            grade,
            hosts,
            checks,
        })?;
    } else {
        output::text(&text(&hosts, &checks))?;
    }
    Ok(status(grade))
}

/// What asks for a remedy, each with the hosts where it was found; then how many hosts there are.
fn text(hosts: &[OfHost], here: &[Check]) -> String {
    let bad_here = here.iter().filter(|check| check.grade != Grade::Ok);
    let mut found: Vec<(&Check, Vec<&str>)> = bad_here
        .map(|check| (check, vec!["this machine"]))
        .collect();
    for host in hosts {
        for bad in host.checks.iter().filter(|check| check.grade != Grade::Ok) {
            let same = |known: &&mut (&Check, Vec<&str>)| *known.0 == *bad;
            match found.iter_mut().find(same) {
                Some((_, names)) => names.push(&host.host),
                None => found.push((bad, vec![&host.host])),
            }
        }
    }
    // The worst first.
    found.sort_by_key(|(check, _)| std::cmp::Reverse(check.grade));
    let mut lines = Vec::new();
    for (check, names) in found {
        let Check { name, found, .. } = check;
        lines.push(format!(
            "{}  {name:<14} {}: {found}",
            word(check.grade),
            some(&names)
        ));
        lines.push(format!("      {:<14} remedy: {}", "", check.remedy));
    }
    let of = |grade| hosts.iter().filter(|host| host.grade == grade).count();
    lines.push(format!(
        "{}: {} well, {} with warnings, {} that cannot be used so",
        count(hosts.len() as u64, "host"),
        of(Grade::Ok),
        of(Grade::Warn),
        of(Grade::Fail)
    ));
    lines.join("\n")
}

fn some(names: &[&str]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    match more {
        0 => shown,
        _ => format!("{shown} and {more} more"),
    }
}

impl OfHost {
    fn new((host, answer): (String, std::result::Result<Answer<Vec<Check>>, String>)) -> OfHost {
        let checks = match answer {
            Err(why) => vec![check(
                "answer",
                Grade::Fail,
                why,
                "see that the command that connects works without a question (ssh HOST true, srun \
                 -w HOST true) and finds outlive there (to a job's hosts outlive run brings it over \
                 ssh; this command changes nothing there); --within gives more time",
            )],
            Ok(answer) => all(answer),
        };
        OfHost {
            host,
            grade: worst(&checks),
            checks,
        }
    }
}

fn all(answer: Answer<Vec<Check>>) -> Vec<Check> {
    let mut checks = vec![build(&answer), way(&answer), others(&answer)];
    checks.extend(answer.clock.map(looks::clock));
    checks.extend(answer.what);
    checks
}

fn build(answer: &Answer<Vec<Check>>) -> Check {
    let version = &answer.version;
    match answer.same_build {
        true => check(
            "program",
            Grade::Ok,
            format!("version {version}, this build"),
            "",
        ),
        false => check(
            "program",
            Grade::Fail,
            format!("version {version}, another build than here"),
            "install the same build on all hosts, or give --remote-executable",
        ),
    }
}

fn way(answer: &Answer<Vec<Check>>) -> Check {
    match &answer.way {
        Ok((here, own)) => check(
            "way here",
            Grade::Ok,
            format!("from {own} to {}", here.ip()),
            "",
        ),
        Err(why) => check(
            "way here",
            Grade::Warn,
            why,
            "outlive speaks to this host over the connection that starts it there; mpirun, which does \
             not, wants hosts to connect to this machine, at any port or at those of --ports, or \
             another way by --network",
        ),
    }
}

fn others(answer: &Answer<Vec<Check>>) -> Check {
    let remedy = "let hosts connect to each other by TCP, at any port or at those of --ports, or \
                  choose the network that does by --network";
    match (&answer.unreached, answer.tried) {
        (None, 0) => check("other hosts", Grade::Ok, "not tried", ""),
        (None, _) => check("other hosts", Grade::Fail, "no answer in time", remedy),
        (Some(none), tried) if none.is_empty() => {
            let found = format!(
                "reaches {} (of those that follow, at most {PEERS})",
                count(tried as u64, "other")
            );
            check("other hosts", Grade::Ok, found, "")
        }
        (Some(unreached), _) => {
            let words = unreached
                .iter()
                .map(|(name, why)| format!("{name} ({why})"));
            let found = format!("does not reach {}", words.collect::<Vec<_>>().join(", "));
            check("other hosts", Grade::Fail, found, remedy)
        }
    }
}
