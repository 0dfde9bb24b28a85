//! The directory of journals: who claims which cores, and what a dead run left to undo. Changes are
//! made and undone under its lock, one run at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use rustix::fs::{FlockOperation, flock};

use super::act::{self, Fate, Trip, Undone};
use super::journal::{self, Account, Head, JOURNAL, Journal};
use super::plan::{self, Plan, Request};
use super::step::What;
use super::threads;
use super::tree::Tree;
use crate::cpus::Cpus;

/// How long another run may make its changes: tries, and what lies between.
const LOCK_TRIES: u32 = 600;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Rounds in which threads that started meanwhile are moved too.
const LATE_ROUNDS: u32 = 3;

/// This boot and the space of its process numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Here {
    /// The boot's name.
    pub boot: String,
    /// Where numbers of processes count.
    pub namespace: String,
}

impl Here {
    /// Those of this process.
    pub fn of(tree: &dyn Tree) -> Here {
        let boot = tree.read("proc/sys/kernel/random/boot_id");
        let namespace = fs::read_link("/proc/self/ns/pid");
        Here {
            boot: boot.unwrap_or_default().trim().to_owned(),
            namespace: namespace.unwrap_or_default().display().to_string(),
        }
    }
}

/// What is known of who wrote a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Lives.
    Alive,
    /// Has ended without undoing.
    Dead,
    /// Of an earlier boot: its changes are gone.
    Rebooted,
    /// In another container: it cannot be seen from here, and counts as living.
    Elsewhere,
}

/// What became of a run's owner.
pub fn owner(tree: &dyn Tree, head: &Head, here: &Here) -> Owner {
    if head.boot != here.boot {
        return Owner::Rebooted;
    }
    if head.namespace != here.namespace {
        return Owner::Elsewhere;
    }
    match threads::one(tree, head.pid, head.pid) {
        Some(found) if found.start == head.start => Owner::Alive,
        _ => Owner::Dead,
    }
}

/// What these runs have changed.
pub fn shared(accounts: &[Account]) -> Vec<What> {
    let entries = accounts.iter().flat_map(|account| &account.entries);
    entries.map(|entry| entry.step.what.clone()).collect()
}

/// The directory, with its lock.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: File,
}

fn all(directory: &Path) -> Result<(Vec<Account>, Vec<PathBuf>)> {
    journal::all(directory).map_err(|(path, error)| match error.kind() {
        std::io::ErrorKind::InvalidData => Error::new(
            Code::Corrupt,
            Entity::File(path.display().to_string()),
            "its first line is damaged: whose changes these are is not known",
            "its lines say what each setting was before: set them by hand, then remove the file",
        ),
        _ => Error::io(&path, "read", &error),
    })
}

/// Reads all journals without a lock, for those who only look.
///
/// # Errors
/// Those of the file system; [`Code::FormatUnknown`]; [`Code::Corrupt`].
pub fn look(directory: &Path) -> Result<Vec<Account>> {
    let (accounts, _) = all(directory)?;
    match accounts
        .iter()
        .find(|account| account.head.schema != JOURNAL)
    {
        Some(account) => Err(Error::new(
            Code::FormatUnknown,
            Entity::File(account.path.display().to_string()),
            format!("its form is '{}'", account.head.schema),
            "restore it with the version that wrote it",
        )),
        None => Ok(accounts),
    }
}

impl Store {
    /// Opens the directory, which is made if it is not there, and waits for its lock.
    ///
    /// # Errors
    /// Those of the file system; [`Code::Permission`] if others could write journals there;
    /// [`Code::JobBusy`] if another run does not give the lock away.
    pub fn open(directory: &Path) -> Result<Store> {
        let failed = |doing, error: &std::io::Error| Error::io(directory, doing, error);
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(directory);
        made.map_err(|error| failed("create", &error))?;
        let about = fs::metadata(directory).map_err(|error| failed("read", &error))?;
        let own = rustix::process::geteuid().as_raw();
        if about.uid() != own || about.mode() & 0o022 != 0 {
            let reason = "others could write journals there, which are done as this user";
            let remedy = "give a directory of this user's that nobody else may write (--journal)";
            let entity = Entity::File(directory.display().to_string());
            return Err(Error::new(Code::Permission, entity, reason, remedy));
        }
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(0o644);
        let lock = options.open(&path);
        let lock = lock.map_err(|error| Error::io(&path, "open", &error))?;
        for _ in 0..LOCK_TRIES {
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Store {
                    directory: directory.to_owned(),
                    _lock: lock,
                });
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        let seconds = (LOCK_PAUSE * LOCK_TRIES).as_secs();
        Err(Error::new(
            Code::JobBusy,
            Entity::File(path.display().to_string()),
            format!("another outlive quiet has changed settings for {seconds} s"),
            "wait for its end, or look why it hangs",
        ))
    }

    /// All journals. Files without a whole first line, and no other, go: nothing was changed.
    ///
    /// # Errors
    /// As [`look`].
    pub fn accounts(&self) -> Result<Vec<Account>> {
        let accounts = look(&self.directory)?;
        let (_, empty) = all(&self.directory)?;
        for path in empty {
            fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", &error))?;
        }
        Ok(accounts)
    }

    /// Begins the journal of a run. Whoever has it can undo the run without the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn journal(&self, head: &Head) -> Result<Journal> {
        let created = Journal::create(&self.directory, head);
        created.map_err(|error| Error::io(&self.directory, "write a journal", &error))
    }

    /// Begins a run: all its changes. What became of each.
    ///
    /// # Errors
    /// Those of the journal; what was changed until then is in it.
    pub fn begin(
        &self,
        tree: &dyn Tree,
        journal: &mut Journal,
        request: &Request,
        plan: &Plan,
        trip: Trip<'_>,
    ) -> Result<Vec<Fate>> {
        let own = journal.account().map(|account| account.head.id.clone());
        let mut others = self.accounts()?;
        others.retain(|account| Some(&account.head.id) != own.as_ref());
        trip()?;
        let fates = act::make_all(tree, journal, &others, &plan.items, trip)?;
        for _ in 0..LATE_ROUNDS {
            let mut late = plan::late(tree, request);
            // What was refused once is refused again.
            late.retain(|item| !plan.items.iter().any(|of| of.step.what.is(&item.step.what)));
            if late.is_empty() {
                break;
            }
            act::make_all(tree, journal, &others, &late, trip)?;
        }
        Ok(fates)
    }

    /// Undoes a run; its journal goes if nothing is left of it. `known`: what the run itself knows
    /// of what it has changed, if its file is gone or damaged.
    ///
    /// # Errors
    /// Those of journals; what cannot be undone is told.
    pub fn end(
        &self,
        tree: &dyn Tree,
        id: &str,
        known: Option<&Account>,
        trip: Trip<'_>,
    ) -> Result<Undone> {
        let (own, others): (Vec<Account>, Vec<Account>) = self
            .accounts()?
            .into_iter()
            .partition(|account| account.head.id == id);
        // The file has what others have added to it.
        let whole = |account: &Account| {
            let steps = known.map_or(0, |known| known.entries.len());
            !account.damaged && account.entries.len() >= steps
        };
        let mut own = own.into_iter().next();
        if !own.as_ref().is_some_and(whole) {
            own = known.cloned().or(own);
        }
        let Some(own) = own else {
            return Ok(Undone::default());
        };
        let mut undone = act::undo(tree, &own, &others, trip)?;
        if own.damaged {
            undone.stuck.push(format!(
                "lines of {} are damaged: what they changed is not known; remove it when all is as \
                 it should be",
                own.path.display()
            ));
        }
        if undone.stuck.is_empty() {
            self.forget(&own)?;
        }
        Ok(undone)
    }

    fn forget(&self, account: &Account) -> Result<()> {
        let removed = match fs::remove_file(&account.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let removed = removed.and_then(|()| File::open(&self.directory)?.sync_all());
        removed.map_err(|error| Error::io(&account.path, "remove", &error))
    }

    /// Undoes what dead runs have left, the newest first; journals of an earlier boot go.
    ///
    /// # Errors
    /// As [`Store::end`].
    pub fn restore(
        &self,
        tree: &dyn Tree,
        here: &Here,
        trip: Trip<'_>,
    ) -> Result<Vec<(Head, Owner, Undone)>> {
        let mut accounts = self.accounts()?;
        accounts.sort_by_key(|account| std::cmp::Reverse(account.head.start));
        let mut done = Vec::new();
        for account in accounts {
            let owner = owner(tree, &account.head, here);
            let undone = match owner {
                Owner::Alive | Owner::Elsewhere => continue,
                Owner::Rebooted => {
                    self.forget(&account)?;
                    Undone::default()
                }
                Owner::Dead => self.end(tree, &account.head.id, None, trip)?,
            };
            done.push((account.head, owner, undone));
        }
        Ok(done)
    }
}

/// The cores of a run, checked against the machine, the process and other runs.
///
/// # Errors
/// [`Code::InvalidArgument`] for cores that are not there, offline, not allowed, or if none is left
/// for the rest; [`Code::JobBusy`] if another run has them.
pub fn cores(
    tree: &dyn Tree,
    allowed: &Cpus,
    compute: &str,
    service: Option<&str>,
    claimed: &[Head],
) -> Result<(Cpus, Cpus)> {
    let refuse = |option: &str, reason: String, remedy: String| {
        let entity = Entity::Option(option.into());
        Error::new(Code::InvalidArgument, entity, reason, remedy)
    };
    let read = |name: &str| {
        let path = format!("sys/devices/system/cpu/{name}");
        let text = tree.read(&path);
        let text = text.map_err(|error| Error::io(format!("/{path}"), "read", &error))?;
        Cpus::of_list(&text).ok_or_else(|| Error::internal(format!("/{path}: '{text}'")))
    };
    let (present, online) = (read("present")?, read("online")?);
    let usable = online.and(allowed);
    let parse = |option: &str, text: &str| {
        let cores = Cpus::of_list(text).filter(|cores| !cores.is_empty());
        let cores = cores.ok_or_else(|| {
            let reason = format!("'{text}' is no list of cores");
            refuse(
                option,
                reason,
                "write numbers and ranges, as in 0-2,5".into(),
            )
        })?;
        for core in cores.iter() {
            let one = Cpus::of_list(&core.to_string()).unwrap_or_default();
            let missing = |set: &Cpus| one.and(set).is_empty();
            let (reason, remedy) = if missing(&present) {
                ("does not exist", format!("choose among {present}"))
            } else if missing(&online) {
                (
                    "is offline",
                    format!("choose among {online}, or switch it on"),
                )
            } else if missing(allowed) {
                let remedy = format!(
                    "choose among {usable}, or widen the container, cpuset or taskset that holds \
                     this process"
                );
                ("is not among the cores that this process may use", remedy)
            } else {
                continue;
            };
            return Err(refuse(option, format!("core {core} {reason}"), remedy));
        }
        Ok(cores)
    };
    let compute = parse("compute", compute)?;
    let mut free = usable.without(&compute);
    for other in claimed {
        let theirs = Cpus::of_list(&other.compute).unwrap_or_default();
        let wanted = match service {
            Some(text) => parse("service", text)?.or(&compute),
            None => compute.clone(),
        };
        let both = wanted.and(&theirs);
        if !both.is_empty() {
            return Err(Error::new(
                Code::JobBusy,
                Entity::Option("compute".into()),
                format!(
                    "core {both} belongs to another outlive quiet, process {} ({}), on cores {}",
                    other.pid, other.command, other.compute
                ),
                "choose other cores, or wait for its end; outlive quiet status shows all",
            ));
        }
        free = free.without(&theirs);
    }
    let service = match service {
        Some(text) => parse("service", text)?,
        None if free.is_empty() => {
            let reason = format!("takes all cores ({usable}): none is left for everything else");
            let remedy = "leave one core or more to the rest of the system";
            return Err(refuse("compute", reason, remedy.into()));
        }
        None => free,
    };
    let both = service.and(&compute);
    match both.is_empty() {
        true => Ok((compute, service)),
        false => Err(refuse(
            "service",
            format!("core {both} is a compute core too"),
            "give each core one duty".into(),
        )),
    }
}
