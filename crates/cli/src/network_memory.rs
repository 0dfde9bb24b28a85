//! `outlive memory`: what clients of a memory server do, as commands.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use outlive_base::{Code, Entity, Error, Result};
use outlive_control::units::{duration_ms, show_bytes, size_bytes};
use outlive_memory::{Client, Exposure, Options, RegionKind, Source, Stat, Transport, resolve};
use outlive_network::JobKey;
use serde::Serialize;

use crate::memory::fits;
use crate::memory_server::key_file;
use crate::output;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outlive memory key heat.key
  outlive memory put --server 10.0.0.5:7070 --job heat --allocate state s.bin
  outlive memory sum --server 10.0.0.5:7070 --job heat parity --length 1GiB \\
      --from 10.0.0.6:4001/state --from 10.0.0.7:4001/state")]
pub struct MemoryOptions {
    #[command(subcommand)]
    command: MemoryCommand,
}

#[derive(Args, Debug)]
struct Where {
    /// The server: HOST:PORT, as it says it when it starts
    #[arg(long, help_heading = "Server", value_name = "AT")]
    server: String,
    #[command(flatten)]
    who: Who,
    /// auto: directly on the server's machine, else TCP; shared: directly or not at all
    #[arg(long, help_heading = "Server", value_name = "WHICH", default_value = "auto", value_parser = ["auto", "shared", "tcp"])]
    transport: String,
    /// How long to wait for others, for a message or for room
    #[arg(
        long,
        help_heading = "Server",
        value_name = "TIME",
        default_value = "30s"
    )]
    timeout: String,
    /// A server that is silent for this long is lost
    #[arg(
        long,
        help_heading = "Server",
        value_name = "TIME",
        default_value = "10s"
    )]
    silence: String,
    /// Encrypt bytes on the network, not only requests
    #[arg(long, help_heading = "Server")]
    encrypt: bool,
}

#[derive(Args, Debug)]
struct Who {
    /// The job whose regions they are
    #[arg(long, help_heading = "Job", value_name = "JOB")]
    job: String,
    /// The file of its key [default: that of the job in the store]
    #[arg(long, help_heading = "Job", value_name = "FILE")]
    key: Option<String>,
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, help_heading = "Job", value_name = "DIR")]
    store: Option<String>,
}

#[derive(Subcommand, Debug)]
enum MemoryCommand {
    /// Make a key file for a job that has none
    Key {
        /// The file, which must not be there yet
        file: PathBuf,
    },
    /// Make a region
    Allocate {
        #[command(flatten)]
        at: Where,
        /// Its name
        name: String,
        /// Its size, for example 64MiB
        size: String,
        /// A ring, for push and pop
        #[arg(long)]
        ring: bool,
    },
    /// Put a file into a region
    Put {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
        /// The file [default: standard input]
        file: Option<PathBuf>,
        /// The first byte of the region
        #[arg(long, value_name = "SIZE", default_value = "0")]
        offset: String,
        /// Make the region first, as large as the file needs it
        #[arg(long)]
        allocate: bool,
    },
    /// Get bytes of a region
    Get {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
        /// Where to write them [default: standard output]
        file: Option<PathBuf>,
        /// The first byte
        #[arg(long, value_name = "SIZE", default_value = "0")]
        offset: String,
        /// How many bytes [default: to the region's end]
        #[arg(long, value_name = "SIZE")]
        length: Option<String>,
    },
    /// Remove a region
    Delete {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
    },
    /// List the job's regions, and what of the server they take
    List {
        #[command(flatten)]
        at: Where,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell what is known of a region: its puts, who writes, what is incomplete
    Stat {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Wait until a region was put, and print how often it was
    Wait {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
        /// Wait for more puts than this [default: for the next one]
        #[arg(long, value_name = "N")]
        after: Option<u64>,
    },
    /// Add a file to a ring, as one message
    Push {
        #[command(flatten)]
        at: Where,
        /// The ring
        name: String,
        /// The file [default: standard input]
        file: Option<PathBuf>,
    },
    /// Take the oldest message of a ring
    Pop {
        #[command(flatten)]
        at: Where,
        /// The ring
        name: String,
        /// Where to write it [default: standard output]
        file: Option<PathBuf>,
    },
    /// Have the server pull from sources and add them up (XOR) in a region
    Sum {
        #[command(flatten)]
        at: Where,
        /// The region
        name: String,
        /// The first byte of the region
        #[arg(long, value_name = "SIZE", default_value = "0")]
        offset: String,
        /// How many bytes [default: to the region's end]
        #[arg(long, value_name = "SIZE")]
        length: Option<String>,
        /// A region of the server, or a buffer that a process exposes:
        /// [HOST:PORT/]NAME[@OFFSET+LENGTH]. May be given several times
        #[arg(long, value_name = "OF", required = true)]
        from: Vec<String>,
    },
    /// Let servers read files of this machine, under their names, until this is ended
    Expose {
        #[command(flatten)]
        who: Who,
        /// Where to listen; port 0 takes a free one
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

#[derive(Serialize)]
struct Shown {
    schema: &'static str,
    server: String,
    direct: bool,
    memory_bytes: u64,
    free_bytes: u64,
    quota_bytes: u64,
    used_bytes: u64,
    regions: Vec<ShownRegion>,
}

#[derive(Serialize)]
struct ShownRegion {
    name: String,
    kind: &'static str,
    bytes: u64,
    puts: u64,
    waiting_bytes: u64,
    writers: u32,
    incomplete: Vec<[u64; 2]>,
}

impl From<Stat> for ShownRegion {
    fn from(stat: Stat) -> ShownRegion {
        ShownRegion {
            name: stat.name,
            kind: word(stat.kind),
            bytes: stat.bytes,
            puts: stat.puts,
            waiting_bytes: stat.waiting,
            writers: stat.writers,
            incomplete: stat.torn.into_iter().map(|(from, to)| [from, to]).collect(),
        }
    }
}

fn word(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Plain => "plain",
        RegionKind::Ring => "ring",
    }
}

impl Who {
    fn key(&self) -> Result<JobKey> {
        JobKey::load(key_file(
            &self.job,
            self.key.as_deref(),
            self.store.as_ref(),
        )?)
    }
}

impl Where {
    fn timeout(&self) -> Result<Duration> {
        Ok(Duration::from_millis(duration_ms(
            "timeout",
            &self.timeout,
        )?))
    }

    fn connect(&self) -> Result<Client> {
        let options = Options {
            transport: match self.transport.as_str() {
                "shared" => Transport::Shared,
                "tcp" => Transport::Tcp,
                _ => Transport::Auto,
            },
            silence: Duration::from_millis(duration_ms("silence", &self.silence)?),
            bound: self.timeout()?,
            encrypt: self.encrypt,
            ..Options::default()
        };
        Client::connect(&self.server, &self.who.job, &self.who.key()?, options)
    }
}

/// `outlive memory`.
///
/// # Errors
/// Those of [`Client`], of files and of the options.
pub fn run(options: &MemoryOptions) -> Result<u8> {
    match &options.command {
        MemoryCommand::Key { file } => JobKey::create(file).map(|_| 0),
        MemoryCommand::Allocate {
            at,
            name,
            size,
            ring,
        } => {
            let kind = if *ring {
                RegionKind::Ring
            } else {
                RegionKind::Plain
            };
            at.connect()?
                .allocate(name, size_bytes("size", size)?, kind)?;
            Ok(0)
        }
        MemoryCommand::Put {
            at,
            name,
            file,
            offset,
            allocate,
        } => {
            let bytes = input(file.as_deref())?;
            let (client, offset) = (at.connect()?, size_bytes("offset", offset)?);
            if *allocate {
                let size = offset.saturating_add(bytes.len() as u64).max(1);
                client.allocate(name, size, RegionKind::Plain)?;
            }
            client.put(name, offset, &bytes)?;
            Ok(0)
        }
        MemoryCommand::Get {
            at,
            name,
            file,
            offset,
            length,
        } => {
            let client = at.connect()?;
            let (offset, length) = stretch(&client, name, offset, length.as_ref())?;
            fits("length", "the bytes", length)?;
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            client.get(name, offset, &mut bytes)?;
            output::to(file.as_deref().unwrap_or(Path::new("-")), &bytes)
        }
        MemoryCommand::Delete { at, name } => at.connect()?.delete(name).map(|()| 0),
        MemoryCommand::List { at, json } => {
            let client = at.connect()?;
            let regions = client.list()?;
            show(at, &client, regions, *json)
        }
        MemoryCommand::Stat { at, name, json } => {
            let client = at.connect()?;
            let region = client.stat(name)?;
            show(at, &client, vec![region], *json)
        }
        MemoryCommand::Wait { at, name, after } => {
            let client = at.connect()?;
            let after = match after {
                Some(after) => *after,
                None => client.stat(name)?.puts,
            };
            output::text(&client.wait(name, after, at.timeout()?)?.to_string())
        }
        MemoryCommand::Push { at, name, file } => {
            let bytes = input(file.as_deref())?;
            at.connect()?.push(name, &bytes, at.timeout()?).map(|()| 0)
        }
        MemoryCommand::Pop { at, name, file } => {
            let bytes = at.connect()?.pop(name, at.timeout()?)?;
            output::to(file.as_deref().unwrap_or(Path::new("-")), &bytes)
        }
        MemoryCommand::Sum {
            at,
            name,
            offset,
            length,
            from,
        } => {
            let client = at.connect()?;
            let (offset, length) = stretch(&client, name, offset, length.as_ref())?;
            let sources = from.iter().map(|text| source(&client, text, length));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            client.sum(name, offset, length, &sources)?;
            Ok(0)
        }
        MemoryCommand::Expose { who, listen, files } => expose(who, *listen, files),
    }
}

fn invalid(option: &str, reason: String, remedy: &str) -> Error {
    let entity = Entity::Option(option.into());
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

fn input(file: Option<&Path>) -> Result<Vec<u8>> {
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map_err(|error| Error::io("standard input", "read", &error))?;
        return Ok(bytes);
    };
    let failed = |error: std::io::Error| Error::io(path, "read", &error);
    let size = std::fs::metadata(path).map_err(failed)?.len();
    fits("file", "the file", size)?;
    std::fs::read(path).map_err(failed)
}

/// The bytes that a command names of a region.
fn stretch(
    client: &Client,
    name: &str,
    offset: &str,
    length: Option<&String>,
) -> Result<(u64, u64)> {
    let offset = size_bytes("offset", offset)?;
    let length = match length {
        Some(text) => size_bytes("length", text)?,
        None => client.stat(name)?.bytes.saturating_sub(offset),
    };
    Ok((offset, length))
}

/// `[HOST:PORT/]NAME[@OFFSET+LENGTH]`. Without a range: of a region all that fits into the sum,
/// of a process as much as the sum has.
fn source(client: &Client, text: &str, length: u64) -> Result<Source> {
    let remedy = "write a region's name, or HOST:PORT/NAME, with @OFFSET+LENGTH for a part of it";
    let (name, range) = match text.rsplit_once('@') {
        Some((name, range)) => (name, Some(range)),
        None => (text, None),
    };
    let (at, name) = match name.split_once('/') {
        // A region's name may have a stroke; a place to connect to has a colon before it.
        Some((address, name)) if address.contains(':') => {
            let first = resolve(address)?.first().copied();
            let known = |it| invalid("from", format!("'{it}' has no address"), remedy);
            (Some(first.ok_or_else(|| known(address))?), name)
        }
        _ => (None, name),
    };
    let (offset, length) = match range {
        Some(range) => {
            let (offset, length) = range
                .split_once('+')
                .ok_or_else(|| invalid("from", format!("'{range}' is no range"), remedy))?;
            (size_bytes("from", offset)?, size_bytes("from", length)?)
        }
        None if at.is_none() => (0, client.stat(name)?.bytes.min(length)),
        None => (0, length),
    };
    Ok(Source {
        at,
        name: name.to_owned(),
        offset,
        length,
    })
}

fn show(at: &Where, client: &Client, regions: Vec<Stat>, json: bool) -> Result<u8> {
    let about = client.about()?;
    if json {
        return output::json(&Shown {
            schema: "outlive.memory/1",
            server: at.server.clone(),
            direct: client.is_direct(),
            memory_bytes: about.memory,
            free_bytes: about.free,
            quota_bytes: about.quota,
            used_bytes: about.used,
            regions: regions.into_iter().map(ShownRegion::from).collect(),
        });
    }
    let heading = ["name", "kind", "size", "puts", "waiting", "incomplete"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for stat in regions {
        let torn = stat.torn.iter().map(|(from, to)| format!("{from}..{to}"));
        let torn = torn.collect::<Vec<_>>().join(" ");
        rows.push(vec![
            stat.name,
            word(stat.kind).into(),
            show_bytes(stat.bytes),
            stat.puts.to_string(),
            show_bytes(stat.waiting),
            torn,
        ]);
    }
    output::text(&output::table(&rows))?;
    output::text(&format!(
        "the job has {} of {}; the server has {} of {} free",
        show_bytes(about.used),
        show_bytes(about.quota),
        show_bytes(about.free),
        show_bytes(about.memory)
    ))
}

fn expose(who: &Who, listen: SocketAddr, files: &[PathBuf]) -> Result<u8> {
    let listen = (listen.ip(), listen.port().into());
    let exposure = Exposure::new(listen, &who.job, &who.key()?)?;
    for path in files {
        let file = std::fs::File::open(path).map_err(|error| Error::io(path, "open", &error))?;
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name else {
            let reason = format!("{} has no name to be read under", path.display());
            return Err(invalid("files", reason, "give files with names in UTF-8"));
        };
        exposure.add(name, Arc::new(file));
    }
    output::text(&exposure.address().to_string())?;
    loop {
        // Its threads serve; a signal ends it.
        std::thread::park();
    }
}
