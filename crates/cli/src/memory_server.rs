//! `outlive memory-server`: a process that owns memory on the network.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_control::units::{duration_ms, show_bytes, size_bytes};
use outlive_launch::sys;
use outlive_memory::{Key, Rights, Server, ServerOptions};
use outlive_network::JobKey;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::config::Config;
use crate::options::Settings;
use crate::output;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive memory-server --memory 64GiB --listen 10.0.0.5:7070 --job heat
  outlive memory-server --memory 8G --job a=a.key --job b=b.key --quota b=2G")]
pub struct MemoryServerOptions {
    /// Memory that it owns, for example 64GiB
    #[arg(long, value_name = "SIZE")]
    memory: String,
    /// Where to listen; port 0 takes a free one
    #[arg(
        long,
        help_heading = "Connections",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:0"
    )]
    listen: SocketAddr,
    /// A job that may use it, and the file of its key [default: that of the job in the store].
    /// May be given several times
    #[arg(
        help_heading = "Jobs",
        long = "job",
        value_name = "NAME[=FILE]",
        required = true
    )]
    jobs: Vec<String>,
    /// Memory that a job may have [default: all]. May be given several times
    #[arg(help_heading = "Jobs", long = "quota", value_name = "NAME=SIZE")]
    quotas: Vec<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, help_heading = "Jobs", value_name = "DIR")]
    store: Option<String>,
    /// Take memory from the machine when a region needs it, and not all of it at once
    #[arg(long)]
    unreserved: bool,
    /// auto: clients of this machine reach the memory directly; tcp: they do not either
    #[arg(long, help_heading = "Connections", value_name = "WHICH", default_value = "auto", value_parser = ["auto", "tcp"])]
    transport: String,
    /// Connections at once, in equal shares for all jobs
    #[arg(
        long,
        help_heading = "Connections",
        value_name = "N",
        default_value_t = 1024
    )]
    connections: usize,
    /// A peer that moves no byte for this long, where it should, is lost
    #[arg(
        long,
        help_heading = "Connections",
        value_name = "TIME",
        default_value = "10s"
    )]
    silence: String,
    /// How long a part of a region may be held by one who reads or writes it, and a second more
    /// for each mebibyte
    #[arg(
        long,
        help_heading = "Connections",
        value_name = "TIME",
        default_value = "30s"
    )]
    hold: String,
    /// Say as JSON where it listens
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Started {
    schema: &'static str,
    address: String,
    memory_bytes: u64,
    reserved: bool,
    jobs: Vec<StartedJob>,
}

#[derive(Serialize)]
struct StartedJob {
    name: String,
    quota_bytes: Option<u64>,
}

/// The file of a job's key: the one that is given, or that of the job in the store.
///
/// # Errors
/// Those of the configuration.
pub fn key_file(job: &str, given: Option<&str>, store: Option<&String>) -> Result<PathBuf> {
    if let Some(file) = given {
        return Ok(file.into());
    }
    let flags = Settings {
        store: store.cloned(),
        ..Settings::default()
    };
    let config = Config::load(&flags, None)?;
    Ok(PathBuf::from(config.get("store"))
        .join(job)
        .join(outlive_launch::layout::KEY))
}

/// `outlive memory-server`.
///
/// # Errors
/// Those of [`Server::start`], of the key files and of the options.
pub fn run(options: &MemoryServerOptions) -> Result<u8> {
    // Regions and connections are descriptors.
    sys::raise_limit();
    let signals = sys::signals().map_err(|error| Error::internal(format!("signals: {error}")))?;
    let mut wanted = ServerOptions::new(size_bytes("memory", &options.memory)?);
    wanted.listen = options.listen;
    wanted.reserved = !options.unreserved;
    wanted.shared = options.transport == "auto";
    wanted.connections_max = options.connections;
    wanted.silence = time("silence", &options.silence)?;
    wanted.hold = time("hold", &options.hold)?;
    wanted.jobs = rights(options)?;
    let server = Server::start(&wanted)?;
    say(options, &wanted, &server)?;
    loop {
        match poll(&mut [PollFd::new(&signals, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::internal(format!("poll: {error}"))),
        }
        while let Some(caught) = sys::next_signal(signals.as_fd()) {
            if [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].contains(&caught.signal) {
                server.stop();
                output::note("the memory server has ended; its clients were told");
                return Ok(0);
            }
        }
    }
}

fn time(option: &str, text: &str) -> Result<std::time::Duration> {
    let ms = duration_ms(option, text)?;
    if ms == 0 {
        let entity = Entity::Option(option.into());
        let remedy = "give at least 1ms";
        return Err(Error::new(
            Code::InvalidArgument,
            entity,
            "is no time",
            remedy,
        ));
    }
    Ok(std::time::Duration::from_millis(ms))
}

/// A key that was named must be there. That of a job in the store comes when the job first runs.
fn key(job: &str, file: Option<&str>, store: Option<&String>) -> Result<Key> {
    let path = key_file(job, file, store)?;
    match (JobKey::load(&path), file) {
        (Ok(key), Some(_)) => Ok(key.into()),
        (Ok(_), None) => Ok(Key::File(path)),
        (Err(error), None) if error.code() == Code::NotFound => Ok(Key::File(path)),
        (Err(error), _) => Err(error),
    }
}

fn rights(options: &MemoryServerOptions) -> Result<Vec<Rights>> {
    let mut all = Vec::new();
    for job in &options.jobs {
        let (name, file) = match job.split_once('=') {
            Some((name, file)) => (name, Some(file)),
            None => (job.as_str(), None),
        };
        all.push(Rights {
            job: name.to_owned(),
            key: key(name, file, options.store.as_ref())?,
            quota: None,
        });
    }
    for quota in &options.quotas {
        let refuse = |reason: &str| {
            let entity = Entity::Option("quota".into());
            let reason = format!("'{quota}' {reason}");
            let remedy = "write NAME=SIZE, for a job that --job names";
            Err(Error::new(Code::InvalidArgument, entity, reason, remedy))
        };
        let Some((name, size)) = quota.rsplit_once('=') else {
            return refuse("names no size");
        };
        let Some(job) = all.iter_mut().find(|rights| rights.job == name) else {
            return refuse("is for a job that is not served");
        };
        job.quota = Some(size_bytes("quota", size)?);
    }
    Ok(all)
}

/// The line that says where it is, once it can be used.
fn say(options: &MemoryServerOptions, wanted: &ServerOptions, server: &Server) -> Result<u8> {
    let address = server.address().to_string();
    if options.json {
        let jobs = wanted.jobs.iter().map(|rights| StartedJob {
            name: rights.job.clone(),
            quota_bytes: rights.quota,
        });
        return output::json(&Started {
            schema: "outlive.memory-server/1",
            address,
            memory_bytes: wanted.memory,
            reserved: wanted.reserved,
            jobs: jobs.collect(),
        });
    }
    output::text(&format!(
        "memory server {address}: {} for {}",
        show_bytes(wanted.memory),
        count(wanted.jobs.len() as u64, "job")
    ))
}
