//! `outlive doctor`: what this machine offers, or all hosts of a job. Each check is small,
//! changes nothing that lasts and says what to do.

mod hosts;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::{NodeId, Result};
use outlive_control::units::show_bytes;
use outlive_launch::{shared, store};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::options::Settings;
use crate::output;
use outlive_launch::sys::available_memory;

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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Grade {
    Ok,
    Warn,
    Fail,
}

#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Check {
    name: String,
    grade: Grade,
    found: String,
    remedy: String,
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
        return outlive_launch::hosts::preflight::answer(hosts::look);
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
        kernel(),
        memfd(),
        capture(),
        memory(),
        shared_memory(),
        space(&store),
        direct(&store),
        locks(&store),
        sockets(),
        loopback(),
        descriptors(),
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

fn worst(checks: &[Check]) -> Grade {
    let grades = checks.iter().map(|check| check.grade);
    grades.max().unwrap_or(Grade::Ok)
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

fn check(name: &str, grade: Grade, found: impl Into<String>, remedy: &str) -> Check {
    Check {
        name: name.to_owned(),
        grade,
        found: found.into(),
        remedy: if grade == Grade::Ok {
            String::new()
        } else {
            remedy.to_owned()
        },
    }
}

fn kernel() -> Check {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let me = std::process::id();
    let (grade, what) = match outlive_launch::process::open_pid(me) {
        Some(_) => (Grade::Ok, "process descriptors work"),
        None => (Grade::Fail, "no process descriptors (pidfd)"),
    };
    let remedy = "use Linux 5.4 or later, or allow pidfd_open in the container";
    check("kernel", grade, format!("Linux {release}; {what}"), remedy)
}

fn memfd() -> Check {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("outlive-doctor", flags) {
        Ok(_) => check("staging", Grade::Ok, "sealed memory files work", ""),
        Err(error) => check(
            "staging",
            Grade::Fail,
            format!("no memory files: {error}"),
            "use Linux 3.17 or later, or allow memfd_create in the container",
        ),
    }
}

fn capture() -> Check {
    let root = rustix::process::geteuid().is_root();
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
        .is_ok_and(|text| text.trim() == "1");
    let device = rustix::fs::access(
        "/dev/userfaultfd",
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
    );
    if root || allowed || device.is_ok() {
        return check(
            "capture",
            Grade::Ok,
            "write-protected capture is possible",
            "",
        );
    }
    check(
        "capture",
        Grade::Warn,
        "eager copy only: the kernel's own writes into protected pages would fail",
        "for shorter pauses: sysctl vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd",
    )
}

fn memory() -> Check {
    let Some(available) = available_memory() else {
        let remedy = "mount /proc, or give --memory";
        return check("memory", Grade::Warn, "unknown", remedy);
    };
    let found = format!(
        "{} available: staging may take {}, so a job's state up to {} has its two slots",
        show_bytes(available),
        show_bytes(available / 2),
        show_bytes(available / 4)
    );
    let grade = if available < 256 << 20 {
        Grade::Warn
    } else {
        Grade::Ok
    };
    check(
        "memory",
        grade,
        found,
        "free memory, or give --memory with what two slots need",
    )
}

fn shared_memory() -> Check {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let grade = if free < 64 << 20 {
                Grade::Warn
            } else {
                Grade::Ok
            };
            let remedy = "MPI libraries need it; remove old files there or mount it larger";
            check(
                "/dev/shm",
                grade,
                format!("{} free", show_bytes(free)),
                remedy,
            )
        }
        Err(error) => {
            let remedy = "MPI libraries need it: mount a tmpfs there";
            check("/dev/shm", Grade::Warn, error.to_string(), remedy)
        }
    }
}

/// The nearest directory that exists, for checks before the store is made.
fn existing(path: &Path) -> PathBuf {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = full.ancestors().find(|path| path.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn space(store: &Path) -> Check {
    let dir = existing(store);
    match rustix::fs::statvfs(&dir) {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let grade = if free < 1 << 30 {
                Grade::Warn
            } else {
                Grade::Ok
            };
            let found = format!("{} free in {}", show_bytes(free), dir.display());
            check(
                "space",
                grade,
                found,
                "free space or choose another --store",
            )
        }
        Err(error) => {
            let remedy = "choose another --store";
            check(
                "space",
                Grade::Fail,
                format!("{}: {error}", dir.display()),
                remedy,
            )
        }
    }
}

/// A file in the store's directory that has no name and so leaves nothing behind,
/// or a named one that is removed at once.
fn scratch(dir: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = flags | OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(dir, unnamed, mode).or_else(|_| {
        let name = dir.join(format!(".outlive-doctor-{}", std::process::id()));
        let named = flags | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&name, named, mode);
        let _ = std::fs::remove_file(&name);
        file
    })
}

fn direct(store: &Path) -> Check {
    let dir = existing(store);
    if let Err(error) = scratch(&dir, OFlags::empty()) {
        let found = format!("{} cannot be written: {error}", dir.display());
        let remedy = "make it writable for this user, or choose another --store";
        return check("store", Grade::Fail, found, remedy);
    }
    match scratch(&dir, OFlags::DIRECT) {
        Ok(_) => check(
            "store",
            Grade::Ok,
            "writable, past the page cache (O_DIRECT)",
            "",
        ),
        Err(_) => check(
            "store",
            Grade::Warn,
            "writable, but not past the page cache (O_DIRECT)",
            "checkpoints work; a local ext4 or xfs writes them faster",
        ),
    }
}

fn locks(store: &Path) -> Check {
    let locked = scratch(&existing(store), OFlags::empty())
        .and_then(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive));
    match locked {
        Ok(()) => check("locks", Grade::Ok, "file locks work", ""),
        Err(error) => check(
            "locks",
            Grade::Fail,
            format!("no file locks in the store: {error}"),
            "choose a --store whose file system has flock",
        ),
    }
}

fn sockets() -> Check {
    match store::run_dir(0) {
        Ok(dir) => {
            // Only made for this check.
            let _ = std::fs::remove_dir(&dir);
            let socket = dir.join(format!("agent-{}.sock", NodeId(0).0));
            let base = socket
                .ancestors()
                .nth(2)
                .unwrap_or(&dir)
                .display()
                .to_string();
            check("sockets", Grade::Ok, format!("in {base}"), "")
        }
        Err(error) => check("sockets", Grade::Fail, error.to_string(), error.remedy()),
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

fn descriptors() -> Check {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let enough = limit.is_none_or(|limit| limit >= 1_024);
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let grade = if enough { Grade::Ok } else { Grade::Warn };
    check(
        "descriptors",
        grade,
        format!("limit {shown}"),
        "ulimit -n 4096",
    )
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
