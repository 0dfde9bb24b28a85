//! `outlive doctor`: what this machine offers, or all hosts of a job. Each check is small,
//! changes nothing that lasts and says what to do.

mod hosts;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use clap::Args;
use outlive_base::Result;
use outlive_launch::shared;
use outlive_launch::site::{self, Check, Grade, check, worst};
use serde::Serialize;

use crate::config::Config;
use crate::options::Settings;
use crate::output;

#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// The object store of a job: written to, and a decision made there [default: from the
    /// configuration]
    #[arg(long, value_name = "URL")]
    pub object_store: Option<String>,
    /// Check all hosts of this file, or those of the batch job of Slurm or PBS, and the ways between
    /// them [default: from the configuration; else this machine alone]
    #[arg(long, value_name = "FILE|slurm|pbs", help_heading = "Hosts")]
    pub hosts: Option<String>,
    /// With --hosts: directory on each of them for its own data [default: from the configuration]
    #[arg(long, value_name = "DIR", help_heading = "Hosts")]
    pub node_storage: Option<String>,
    /// With --hosts: the command that runs another on a host, which follows it [default: ssh]
    #[arg(long, value_name = "COMMAND", help_heading = "How they are reached")]
    pub remote_shell: Option<String>,
    /// With --hosts: where outlive lies on them [default: where this one does]
    #[arg(long, value_name = "PATH", help_heading = "How they are reached")]
    pub remote_executable: Option<String>,
    /// With --hosts: the network between them, for example 10.1.0.0/16 [default: any]
    #[arg(long, value_name = "NETWORK", help_heading = "Hosts")]
    pub network: Option<String>,
    /// With --hosts: the TCP ports that are open between them, for example 20000-20099
    /// [default: any]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Hosts")]
    pub ports: Option<String>,
    /// With --hosts: how long an answer is waited for
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        help_heading = "How they are reached"
    )]
    pub within: String,
    /// Stands on a host for who asks (started by it)
    #[arg(long, hide = true)]
    pub answer: bool,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Findings {
    schema: &'static str,
    grade: Grade,
    checks: Vec<Check>,
}

/// `outlive doctor`: 0 if nothing fails, else 69.
pub fn run(options: &DoctorOptions) -> Result<u8> {
    if options.answer {
        return outlive_launch::hosts::preflight::answer(outlive_launch::hosts::looks::look);
    }
    let flags = Settings {
        store: options.store.clone(),
        object_store: options.object_store.clone(),
        hosts: options.hosts.clone(),
        node_storage: options.node_storage.clone(),
        remote_shell: options.remote_shell.clone(),
        remote_executable: options.remote_executable.clone(),
        network: options.network.clone(),
        ports: options.ports.clone(),
        ..Settings::default()
    };
    let config = Config::load(&flags, options.config.as_deref())?;
    if !config.get("hosts").is_empty() {
        return hosts::run(options, &config);
    }
    let store = PathBuf::from(config.get("store"));
    let mut checks = vec![
        site::kernel(),
        site::memfd(),
        site::capture(),
        site::memory(),
        site::shared_memory(),
        site::space(&store),
        site::direct(&store),
        site::locks(&store),
        site::sockets(),
        loopback(),
        site::descriptors(),
        mpirun(),
        clock(),
    ];
    checks.extend(object_store(&config));
    let grade = worst(&checks);
    let status = status(grade);
    if options.json {
        output::json(&Findings {
            schema: "outlive.doctor/1",
            grade,
            checks,
        })?;
        return Ok(status);
    }
    let mut lines = Vec::new();
    for check in &checks {
        let word = word(check.grade);
        lines.push(format!("{word}  {:<14} {}", check.name, check.found));
        if check.grade != Grade::Ok {
            lines.push(format!("      {:<14} remedy: {}", "", check.remedy));
        }
    }
    output::text(&lines.join("\n"))?;
    Ok(status)
}

/// The object store, if there is one: it is written to, and a decision is made there.
fn object_store(config: &Config) -> Option<Check> {
    let text = Some(config.get("object-store")).filter(|text| !text.is_empty())?;
    let tried = text.parse().and_then(|place| shared::try_out(&place));
    Some(match tried {
        Ok(()) => check("object store", Grade::Ok, text, ""),
        Err(error) => {
            let found = format!("{}: {}", error.entity(), error.reason());
            check("object store", Grade::Fail, found, error.remedy())
        }
    })
}

const fn status(grade: Grade) -> u8 {
    match grade {
        Grade::Fail => 69,
        Grade::Ok | Grade::Warn => 0,
    }
}

const fn word(grade: Grade) -> &'static str {
    match grade {
        Grade::Ok => "ok  ",
        Grade::Warn => "warn",
        Grade::Fail => "FAIL",
    }
}

fn loopback() -> Check {
    let talk = || -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut one = TcpStream::connect(listener.local_addr()?)?;
        let (mut two, _) = listener.accept()?;
        one.write_all(b"x")?;
        two.read_exact(&mut [0])
    };
    match talk() {
        Ok(()) => check("network", Grade::Ok, "TCP on the loopback works", ""),
        Err(error) => check(
            "network",
            Grade::Fail,
            format!("no TCP on the loopback: {error}"),
            "bring the interface lo up, or allow it in the container",
        ),
    }
}

fn mpirun() -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["mpirun", "mpiexec", "srun"];
    let mut dirs = std::env::split_paths(&path);
    let found = dirs.find_map(|dir| {
        let mut programs = names.iter().map(|name| dir.join(name));
        programs.find(|program| rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok())
    });
    match found {
        Some(program) => check("launcher", Grade::Ok, program.display().to_string(), ""),
        None => check(
            "launcher",
            Grade::Warn,
            "no mpirun, mpiexec or srun in PATH",
            "needed only for MPI programs: install one, or give its full path",
        ),
    }
}

fn clock() -> Check {
    let before = std::time::Instant::now();
    let calls = 1_000;
    for _ in 0..calls {
        std::hint::black_box(std::time::Instant::now());
    }
    let ns = before.elapsed().as_nanos() as f64 / f64::from(calls);
    let grade = if ns < 1_000.0 { Grade::Ok } else { Grade::Warn };
    let remedy = "the kernel's clock source is slow (see current_clocksource): prefer tsc";
    check(
        "clock",
        grade,
        format!("monotonic, {ns:.0} ns a reading"),
        remedy,
    )
}
