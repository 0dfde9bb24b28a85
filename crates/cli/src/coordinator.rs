//! `outlive coordinator`: turns on shared storage, and who takes part in them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use outlive_base::level::StoreKind;
use outlive_base::{Code, Entity, Error, JobName, Result};
use outlive_control::supervisor::Settings as RunSettings;
use outlive_launch::coordinator::{self as place, Invitation, Keys};

use crate::config::{Config, refuse, short};
use crate::options::Settings;
use crate::output;

#[derive(Args, Debug)]
pub struct CoordinatorOptions {
    /// Directory of all jobs [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Address at which jobs of other machines reach it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: std::net::IpAddr,
    /// TCP ports at which they may, for example 20000-20099 [default: any]
    #[arg(long, value_name = "FIRST-LAST")]
    pub ports: Option<String>,
    /// How many machines keep what it knows, 1 or 3: start the same command on each
    #[arg(long, value_name = "N", default_value = "1")]
    pub members: u8,
    /// Write numbers for Prometheus there: a file, or outlive-coordinator.prom in a directory
    /// [default: none]
    #[arg(long, value_name = "PATH")]
    pub metrics: Option<PathBuf>,
    /// Write an invitation to this new file, with which a job of another store takes part under
    /// this name, and end [default: none]
    #[arg(long, value_name = "NAME=FILE", conflicts_with = "withdraw")]
    pub issue: Option<String>,
    /// Withdraw the key of a name: invitations that were issued for it hold no more; and end
    /// [default: none]
    #[arg(long, value_name = "NAME")]
    pub withdraw: Option<String>,
    /// Configuration file, read after the system's and the user's [default: only those]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `outlive coordinator`.
///
/// # Errors
/// [`Code::NotFound`] if there is no such store, or no key in it to withdraw; those of the
/// configuration, of files and of the network.
pub fn coordinator(options: &CoordinatorOptions) -> Result<u8> {
    let flags = Settings {
        store: options.store.clone(),
        ports: options.ports.clone(),
        ..Settings::default()
    };
    let config = Config::load(&flags, options.config.as_deref())?;
    let store = PathBuf::from(config.get("store"));
    let ports = crate::machines::ports(&config)?;
    // A store that is mistyped would be served, and no job would ever come.
    if !store.is_dir() {
        return Err(Error::new(
            Code::NotFound,
            Entity::File(store.display().to_string()),
            "there is no such store",
            "check --store; before its first job, make the directory first (mkdir)",
        ));
    }
    let store = std::fs::canonicalize(&store).unwrap_or(store);
    let say = |text: &str| {
        if !options.quiet {
            output::note(text);
        }
    };
    if let Some(wanted) = &options.issue {
        return issue(&store, wanted, say);
    }
    if let Some(job) = &options.withdraw {
        place::withdraw(&store.join(place::DIR), &JobName::new(job)?)?;
        say(&format!("what was issued for {job} holds no more"));
        return Ok(0);
    }
    let choice = outlive_coordinator::Choice {
        bind: options.bind,
        ports,
        members: options.members,
        metrics: options.metrics.clone(),
    };
    outlive_coordinator::serve(&store, &choice, say)
}

/// Writes an invitation.
fn issue(store: &Path, wanted: &str, say: impl Fn(&str)) -> Result<u8> {
    let named = wanted.split_once('=').filter(|(_, file)| !file.is_empty());
    let Some((job, file)) = named else {
        return Err(Error::new(
            Code::InvalidArgument,
            Entity::Option("issue".into()),
            format!("'{}' names no file", short(wanted)),
            "write NAME=FILE: the name under which the coordinator knows the job, and a new file",
        ));
    };
    let job = JobName::new(job)?;
    let invitation = Invitation {
        key: Keys::make(&store.join(place::DIR))?.of(&job)?,
        address: store.join(place::PUBLIC),
        job,
    };
    invitation.save(Path::new(file))?;
    say(&format!(
        "{file} is for job {} alone: give it to its user, as a file that nobody else can read; \
         outlive run --coordinator {file}",
        invitation.job
    ));
    let hidden = store.ancestors().find(|dir| {
        let meta = std::fs::metadata(dir);
        meta.is_ok_and(|meta| meta.mode() & 0o001 == 0)
    });
    if let Some(dir) = hidden {
        say(&format!(
            "other users do not reach {}: chmod 711 {}",
            invitation.address.display(),
            dir.display()
        ));
    }
    Ok(0)
}

/// The invitation with which a job takes part in the turns of another store.
///
/// # Errors
/// If it cannot be read or is none, or the job would take no turns.
pub fn invitation(config: &Config, run: &RunSettings) -> Result<Option<PathBuf>> {
    let Some(path) = config.path("coordinator") else {
        return Ok(None);
    };
    let is_shared = |kind: StoreKind| matches!(kind, StoreKind::Shared | StoreKind::Server);
    let shared = run.levels.iter().any(|it| is_shared(it.level.store()));
    if !shared || run.auto.is_none() {
        return Err(refuse(
            config,
            "coordinator",
            "there would be no turns: they are for the levels shared and memory-server with \
             --interval auto"
                .to_owned(),
            "add shared to --levels, and leave --every, --interval and /N out",
        ));
    }
    let path = std::path::absolute(&path).map_err(|error| Error::io(&path, "resolve", &error))?;
    Invitation::load(&path).map(|_| Some(path))
}
