//! Cores that are kept quiet while something runs: what the options say of them, the changes, and
//! how a command gets there.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_node::cpus::{Affinity, Cpus};
use outlive_node::quiet::act::{Fate, MARK, has_partition};
use outlive_node::quiet::journal::{Account, Head, JOURNAL, Journal};
use outlive_node::quiet::plan::{self, Others, Plan, Request};
use outlive_node::quiet::step::{Item, Rule};
use outlive_node::quiet::store::{self, Here, Owner, Store};
use outlive_node::quiet::threads;
use outlive_node::quiet::tree::Machine;
use rustix::process::geteuid;

use super::decoupled::Decoupled;
use super::locked::Locked;
use super::{JOURNALS, journals, refuse, tell, trip};
use crate::output;

/// For tests: others are moved, of these processes only.
const ONLY: &str = "OUTLIVE_QUIET_ONLY";

/// Their group of options.
const HEADING: &str = "Quiet cores";

/// Cores that are to be quiet.
#[derive(Args, Debug, Default)]
pub(crate) struct Cores {
    /// Cores for the command alone, as in 1 or 2-7 [default: none]
    #[arg(long, value_name = "CORES", help_heading = HEADING)]
    pub(super) compute: Option<String>,
    /// Cores for everything else [default: all others]
    #[arg(long, value_name = "CORES", help_heading = HEADING, requires = "compute")]
    service: Option<String>,
    /// The command's scheduling class: other, or fifo:N (real time, priority 1 to 99)
    /// [default: other]
    #[arg(long, value_name = "CLASS", value_parser = class, help_heading = HEADING, requires = "compute")]
    class: Option<Class>,
    /// Threads of other programs: move them to service cores (as root), or leave them
    /// [default: move]
    #[arg(long, value_name = "HOW", value_enum, help_heading = HEADING, requires = "compute")]
    others: Option<OthersChoice>,
    /// The command's threads compute; their system calls are carried out by partners on service
    /// cores [default: each thread makes its own]
    #[arg(long, help_heading = HEADING, requires = "compute")]
    decouple: bool,
    /// The command's memory is locked: what it has touched is neither written to swap nor dropped
    /// [default: it is not]
    #[arg(long, help_heading = HEADING, requires = "compute")]
    lock: bool,
    /// Where journals lie [default: /var/lib/outlive/quiet for root, else the user's own]
    #[arg(long, value_name = "DIR", help_heading = HEADING, requires = "compute")]
    journal: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum OthersChoice {
    Move,
    Leave,
}

/// A scheduling class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Other,
    Fifo(i32),
}

fn class(text: &str) -> std::result::Result<Class, String> {
    let priority = || text.strip_prefix("fifo:")?.parse::<i32>().ok();
    match (text, priority()) {
        ("other", _) => Ok(Class::Other),
        (_, Some(priority)) if (1..=99).contains(&priority) => Ok(Class::Fifo(priority)),
        _ => Err("write other, or fifo: and a priority of 1 to 99".to_owned()),
    }
}

impl Cores {
    /// True if there are to be any.
    pub(crate) const fn are_wanted(&self) -> bool {
        self.compute.is_some()
    }

    pub(super) fn journals(&self) -> PathBuf {
        journals(self.journal.as_ref())
    }
}

fn allowed() -> Result<Cpus> {
    let set = Cpus::of_thread(0);
    set.map_err(|error| Error::internal(format!("own affinity: {error}")))
}

/// Runs of whom it is known, or not known otherwise, that they live.
///
/// # Errors
/// Those of the journals; [`Code::JobBusy`] if root's usual directory has some and another one is
/// given: runs that do not see each other cannot hand settings over.
pub(super) fn living(directory: &Path, here: &Here) -> Result<Vec<Account>> {
    let lives = |account: &Account| {
        let owner = store::owner(&Machine, &account.head, here);
        matches!(owner, Owner::Alive | Owner::Elsewhere)
    };
    let mut found = store::look(directory)?;
    found.retain(lives);
    let usual = Path::new(JOURNALS);
    if directory == usual {
        return Ok(found);
    }
    // An ordinary user may not be allowed to see them.
    let mut of_root = store::look(usual).unwrap_or_default();
    of_root.retain(lives);
    match of_root.first().filter(|_| geteuid().is_root()) {
        Some(account) => Err(Error::new(
            Code::JobBusy,
            Entity::Option("journal".into()),
            format!(
                "process {} keeps its journal in {JOURNALS}",
                account.head.pid
            ),
            "leave --journal out, or wait for its end",
        )),
        None => {
            found.extend(of_root);
            Ok(found)
        }
    }
}

/// What is asked for, checked.
pub(super) fn request(options: &Cores, accounts: &[Account]) -> Result<Request> {
    let claimed: Vec<Head> = accounts
        .iter()
        .map(|account| account.head.clone())
        .collect();
    let Some(compute) = &options.compute else {
        let remedy = "name the cores for the command, for example --compute 1";
        return Err(refuse("compute", "is missing", remedy));
    };
    let service = options.service.as_deref();
    let (compute, service) = store::cores(&Machine, &allowed()?, compute, service, &claimed)?;
    let shared = store::shared(accounts);
    let own = std::process::id();
    let start = threads::one(&Machine, own, own).map(|found| found.start);
    // Without it nobody could tell that this process lives.
    let start = start.ok_or_else(|| Error::internal("/proc/self/stat cannot be read"))?;
    let only = std::env::var(ONLY).ok();
    let pids = only.map(|text| text.split(',').filter_map(|pid| pid.parse().ok()).collect());
    Ok(Request {
        id: format!("{own}-{start}"),
        compute,
        service,
        contained: !options.decouple,
        real_time: options.class.unwrap_or(Class::Other) != Class::Other,
        others: match (options.others, pids) {
            (Some(OthersChoice::Leave), _) => Others::Leave,
            (_, Some(pids)) => Others::Only(pids),
            (_, None) => Others::Move,
        },
        root: geteuid().is_root(),
        own,
        shared,
    })
}

fn head(words: &[OsString], request: &Request, here: Here) -> Head {
    let words = words.iter().map(|word| word.to_string_lossy());
    let command: String = words.collect::<Vec<_>>().join(" ");
    let start = request
        .id
        .split_once('-')
        .and_then(|pair| pair.1.parse().ok());
    Head {
        schema: JOURNAL.to_owned(),
        id: request.id.clone(),
        pid: request.own,
        start: start.unwrap_or(0),
        boot: here.boot,
        namespace: here.namespace,
        compute: request.compute.to_string(),
        service: request.service.to_string(),
        command: command.chars().take(200).collect(),
    }
}

/// Cores that are quiet until this goes.
pub(crate) struct Quieted {
    held: Held,
    request: Request,
    group: Option<String>,
    kind: &'static str,
    made: u64,
    class: Class,
    locked: Option<Locked>,
    decoupled: Option<Decoupled>,
}

impl Quieted {
    /// Undoes what dead runs have left, makes the changes and binds this thread to the service cores;
    /// what is refused is said. Signals should wait until it is over.
    ///
    /// # Errors
    /// As those of [`super::run`].
    pub(crate) fn begin(
        options: &Cores,
        words: &[OsString],
        say: &dyn Fn(&str),
    ) -> Result<Quieted> {
        let directory = options.journals();
        let here = Here::of(&Machine);
        let store = Store::open(&directory)?;
        for (head, owner, undone) in store.restore(&Machine, &here, &mut trip())? {
            if owner == Owner::Dead {
                say(&format!(
                    "run {} on cores {} was killed; its changes were undone first",
                    head.id, head.compute
                ));
            }
            tell(&head, &undone);
        }
        let request = request(options, &living(&directory, &here)?)?;
        let locked = options.lock.then(|| Locked::new(words, say)).transpose()?;
        let preload = match &locked {
            Some(locked) => locked.preload(),
            None => std::env::var_os("LD_PRELOAD"),
        };
        let cores = (&request.compute, &request.service);
        let decoupled = options
            .decouple
            .then(|| Decoupled::new(words, cores, preload, say))
            .transpose()?;
        let plan = plan::plan(&Machine, &request);
        plan.notes.iter().for_each(|note| say(note));
        let head = head(words, &request, here);
        confine(&request.service)?;
        let mut held = Held {
            directory,
            store: Some(store),
            head: Some(head.clone()),
            journal: None,
        };
        let fates = held.begin(&head, &request, &plan)?;
        refusals(&plan.items, &fates)
            .iter()
            .for_each(|line| say(line));
        let whole = has_partition(&plan.items, &fates);
        let group = plan.partition.as_ref().filter(|_| whole);
        Ok(Quieted {
            held,
            group: group.map(|(group, _)| group.clone()),
            kind: if whole { kind(&plan) } else { AFFINITY_ALONE },
            made: fates.iter().filter(|fate| **fate == Fate::Made).count() as u64,
            class: options.class.unwrap_or(Class::Other),
            request,
            locked,
            decoupled,
        })
    }

    /// What lets commands begin on the compute cores.
    ///
    /// # Errors
    /// Those of opening the partition's list of members.
    pub(crate) fn entry(&self) -> Result<Entry> {
        let members = self.group.as_ref().map(|group| {
            let path = format!("/{group}/cgroup.procs");
            let opened = OpenOptions::new().write(true).open(&path);
            opened.map_err(|error| Error::io(&path, "open", &error))
        });
        Ok(Entry {
            id: self.request.id.clone(),
            members: members.transpose()?.map(Arc::new),
            cores: self.request.compute.affinity(),
            class: self.class,
            variables: {
                // Of the same name the later counts: it has what the earlier has before it.
                let locked = self.locked.iter().flat_map(|it| it.variables.iter());
                let decoupled = self.decoupled.iter().flat_map(|it| it.variables.iter());
                locked.chain(decoupled).cloned().collect()
            },
        })
    }

    /// What its processes told: of locked memory and of forwarded calls, a line each.
    pub(crate) fn told(&self) -> Vec<String> {
        let locked = self.locked.as_ref().map(Locked::line);
        let decoupled = self.decoupled.as_ref().map(Decoupled::line);
        locked.into_iter().chain(decoupled).collect()
    }

    /// Brings all settings back.
    pub(crate) fn undo(&mut self) {
        self.held.undo();
    }

    /// What was done, in a line.
    pub(crate) fn line(&self) -> String {
        format!(
            "quiet: cores {} for the command ({}), all else on {}; {}",
            self.request.compute,
            self.kind,
            self.request.service,
            count(self.made, "change")
        )
    }
}

/// How commands get to compute cores.
pub(crate) struct Entry {
    id: String,
    members: Option<Arc<File>>,
    cores: Affinity,
    class: Class,
    variables: Vec<(OsString, OsString)>,
}

impl Entry {
    /// Lets this command begin there.
    pub(crate) fn apply(&self, command: &mut Command) {
        let (members, cores, class) = (self.members.clone(), self.cores.clone(), self.class);
        command.env(MARK, &self.id);
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        let prepare = move || prepare(members.as_deref(), &cores, class);
        // SAFETY: `prepare` only makes system calls and allocates nothing.
        unsafe { command.pre_exec(prepare) };
    }
}

/// Changes that are to be undone, whatever happens.
struct Held {
    directory: PathBuf,
    /// With its lock, while changes are made.
    store: Option<Store>,
    head: Option<Head>,
    /// What was changed, should the file be gone when it is needed.
    journal: Option<Journal>,
}

impl Held {
    fn begin(&mut self, head: &Head, request: &Request, plan: &Plan) -> Result<Vec<Fate>> {
        let Some(store) = &self.store else {
            return Err(Error::internal("changes without a lock"));
        };
        let journal = self.journal.insert(store.journal(head)?);
        let fates = store.begin(&Machine, journal, request, plan, &mut trip())?;
        self.store = None;
        Ok(fates)
    }

    fn undo(&mut self) {
        let Some(head) = self.head.take() else {
            return;
        };
        // If making them failed, the lock is held still: a second one would wait for it.
        let store = match self.store.take() {
            Some(store) => Ok(store),
            None => Store::open(&self.directory),
        };
        let known = self.journal.as_ref().and_then(Journal::account);
        let ended = store.and_then(|store| store.end(&Machine, &head.id, known, &mut trip()));
        match ended {
            Ok(undone) => tell(&head, &undone),
            Err(error) => output::error(&error),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.undo();
    }
}

/// Binds this process to the service cores.
fn confine(service: &Cpus) -> Result<()> {
    service.affinity().apply(0).map_err(|error| {
        let reason = format!("cores {service}: the kernel refuses to run there: {error}");
        refuse("service", reason, "choose other cores")
    })
}

/// What a child does before it becomes the command.
fn prepare(members: Option<&File>, cores: &Affinity, class: Class) -> io::Result<()> {
    if let Some(members) = members {
        rustix::io::write(members, b"0")?;
    }
    cores.apply(0)?;
    // Sleeps end when they should, and not up to 50 us later.
    // SAFETY: prctl with plain numbers.
    let slack = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
    if slack != 0 {
        return Err(io::Error::last_os_error());
    }
    if let Class::Fifo(priority) = class {
        // SAFETY: sched_param is plain data, for which all zeroes are valid.
        let mut wanted: libc::sched_param = unsafe { std::mem::zeroed() };
        wanted.sched_priority = priority;
        // SAFETY: the structure lives.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &wanted) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What was refused, by group.
fn refusals(items: &[Item], fates: &[Fate]) -> Vec<String> {
    let mut lines: Vec<(&str, usize, String)> = Vec::new();
    for (n, (item, fate)) in items.iter().zip(fates).enumerate() {
        let Fate::Refused(why) = fate else { continue };
        // What was done instead is told by what comes behind it.
        let instead = items
            .get(n + 1)
            .is_some_and(|next| next.rule == Rule::IfRefused);
        if instead && fates.get(n + 1) == Some(&Fate::Made) {
            continue;
        }
        match lines.iter_mut().find(|line| line.0 == item.group) {
            Some(line) => line.1 += 1,
            None => lines.push((item.group, 1, format!("{}: {why}", item.step.what.shown()))),
        }
    }
    let line = |(group, refused, first): (&str, usize, String)| {
        let all = items.iter().filter(|item| item.group == group).count();
        format!("{group}: {refused} of {all} changes were refused, the first: {first}")
    };
    lines.into_iter().map(line).collect()
}

/// There is no partition; warnings that say why use the same words.
pub(crate) const AFFINITY_ALONE: &str = "affinity alone";

pub(super) fn kind(plan: &Plan) -> &'static str {
    plan.partition
        .as_ref()
        .map_or(AFFINITY_ALONE, |made| made.1)
}
