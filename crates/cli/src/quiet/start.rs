//! `outlive quiet -- COMMAND`: changes, the command, and back.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use outlive_base::{Code, Entity, Error, Result, count};
use outlive_node::pages::program;
use outlive_node::quiet::act::{Fate, MARK, has_partition};
use outlive_node::quiet::cpus::Cpus;
use outlive_node::quiet::journal::{Account, Head, JOURNAL, Journal};
use outlive_node::quiet::plan::{self, Others, Plan, Request};
use outlive_node::quiet::step::{Item, Rule};
use outlive_node::quiet::store::{self, Here, Owner, Store};
use outlive_node::quiet::threads;
use outlive_node::quiet::tree::Machine;
use rustix::process::geteuid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{JOURNALS, OUTPUT, journals, refuse, tell, trip};
use crate::output;
use crate::pages::job::Watch;

/// For tests: others are moved, of these processes only.
const ONLY: &str = "OUTLIVE_QUIET_ONLY";
/// What would end this process without a chance to undo, besides the usual ones.
const SIGNALS: [i32; 3] = [libc::SIGQUIT, libc::SIGUSR2, libc::SIGALRM];

#[derive(Args, Debug)]
pub(super) struct StartOptions {
    /// Cores for the command alone, as in 1 or 2-7
    #[arg(long, value_name = "CORES", required = true)]
    compute: Option<String>,
    /// Cores for everything else [default: all others]
    #[arg(long, value_name = "CORES")]
    service: Option<String>,
    /// The command's scheduling class: other, or fifo:N (real time, priority 1 to 99)
    #[arg(long, value_name = "CLASS", default_value = "other", value_parser = class)]
    class: Class,
    /// Threads of other programs: move them to service cores (as root), or leave them
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OthersChoice::Move)]
    others: OthersChoice,
    /// Where journals lie [default: /var/lib/outlive/quiet for root, else the user's own]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Print every change, and make none
    #[arg(long, help_heading = OUTPUT)]
    dry_run: bool,
    /// Say only what could not be undone
    #[arg(short, long, help_heading = OUTPUT)]
    quiet: bool,
    /// The command, started as it is written
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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

fn allowed() -> Result<Cpus> {
    let set = sched_getaffinity(None);
    let set = set.map_err(|error| Error::internal(format!("own affinity: {error}")))?;
    Ok(Cpus::of_set(&set))
}

/// Runs of whom it is known, or not known otherwise, that they live.
///
/// # Errors
/// Those of the journals; [`Code::JobBusy`] if root's usual directory has some and another one is
/// given: runs that do not see each other cannot hand settings over.
fn living(directory: &Path, here: &Here) -> Result<Vec<Account>> {
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
fn request(options: &StartOptions, accounts: &[Account]) -> Result<Request> {
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
        real_time: options.class != Class::Other,
        others: match (options.others, pids) {
            (OthersChoice::Leave, _) => Others::Leave,
            (OthersChoice::Move, Some(pids)) => Others::Only(pids),
            (OthersChoice::Move, None) => Others::Move,
        },
        root: geteuid().is_root(),
        own,
        shared,
    })
}

pub(super) fn run(options: StartOptions) -> Result<u8> {
    let directory = journals(options.journal.as_ref());
    let here = Here::of(&Machine);
    if options.dry_run {
        return dry_run(&options, &directory, &here);
    }
    find(&options.command)?;
    let say = |what: &str| {
        if !options.quiet {
            output::warn(what);
        }
    };
    // From here on signals wait for the command, or for the end.
    let watch = Watch::and(&SIGNALS)?;
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
    let request = request(&options, &living(&directory, &here)?)?;
    let plan = plan::plan(&Machine, &request);
    plan.notes.iter().for_each(|note| say(note));
    let head = head(&options, &request, here);
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
    // One of the terminal came when there was no command that could get it too.
    if let Some(signal) = watch.told_to_end() {
        held.undo();
        return Ok(128 + signal as u8);
    }
    let whole = has_partition(&plan.items, &fates);
    if !options.quiet {
        let kind = if whole { kind(&plan) } else { ALONE };
        output::note(&line(&request, kind, &fates));
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]).env(MARK, &request.id);
    let group = plan.partition.as_ref().filter(|_| whole);
    let group = group.map(|(group, _)| group.as_str());
    enter(&mut command, group, &request.compute, options.class)?;
    let outcome = watch.run(command, None);
    held.undo();
    Ok(outcome?.ended.exit_status())
}

fn dry_run(options: &StartOptions, directory: &Path, here: &Here) -> Result<u8> {
    let request = request(options, &living(directory, here)?)?;
    let mut plan = plan::plan(&Machine, &request);
    let dead = store::look(directory)?
        .into_iter()
        .filter(|account| store::owner(&Machine, &account.head, here) == Owner::Dead);
    let dead = dead.count();
    if dead > 0 {
        plan.notes.push(format!(
            "runs that were killed have left changes ({dead}): they would be undone first; \
             outlive quiet status shows them"
        ));
    }
    output::text(&text(&request, &plan))
}

fn head(options: &StartOptions, request: &Request, here: Here) -> Head {
    let words = options.command.iter().map(|word| word.to_string_lossy());
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

fn find(command: &[OsString]) -> Result<()> {
    let Some(name) = command.first() else {
        let remedy = "write it behind --, for example: outlive quiet --compute 1 -- ./app";
        return Err(refuse("COMMAND", "is missing", remedy));
    };
    let found = program::find(name).map(drop);
    found.ok_or_else(|| {
        let entity = Entity::File(name.display().to_string());
        let remedy = "check the spelling and PATH, or give the full path; it must be executable";
        let reason = "there is no such program";
        Error::new(Code::CommandFailed, entity, reason, remedy)
    })
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
    sched_setaffinity(None, &service.set()).map_err(|error| {
        let reason = format!("cores {service}: the kernel refuses to run there: {error}");
        refuse("service", reason, "choose other cores")
    })
}

/// What the child does before it becomes the command.
fn enter(command: &mut Command, group: Option<&str>, compute: &Cpus, class: Class) -> Result<()> {
    let members = group.map(|group| {
        let path = format!("/{group}/cgroup.procs");
        let opened = OpenOptions::new().write(true).open(&path);
        opened.map_err(|error| Error::io(&path, "open", &error))
    });
    let members = members.transpose()?;
    let cores = compute.set();
    let prepare = move || prepare(members.as_ref(), &cores, class);
    // SAFETY: `prepare` only makes system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}

fn prepare(members: Option<&File>, cores: &CpuSet, class: Class) -> io::Result<()> {
    if let Some(members) = members {
        rustix::io::write(members, b"0")?;
    }
    sched_setaffinity(None, cores)?;
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

/// There is no partition.
const ALONE: &str = "affinity alone";

fn kind(plan: &Plan) -> &'static str {
    plan.partition.as_ref().map_or(ALONE, |made| made.1)
}

fn line(request: &Request, kind: &str, fates: &[Fate]) -> String {
    let made = fates.iter().filter(|fate| **fate == Fate::Made).count();
    format!(
        "quiet: cores {} for the command ({}), all else on {}; {}",
        request.compute,
        kind,
        request.service,
        count(made as u64, "change")
    )
}

/// What a dry run prints.
fn text(request: &Request, plan: &Plan) -> String {
    let mut lines = vec![format!(
        "cores {} for the command ({}), all else on {}; nothing was changed",
        request.compute,
        kind(plan),
        request.service
    )];
    let mut rows = vec![
        ["SETTING", "BEFORE", "AFTER", "WHY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(plan.items.iter().map(|item| {
        let shown = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        let (before, after) = (shown(&item.step.before), shown(&item.step.after));
        let why = match item.rule {
            Rule::IfRefused => format!("{} (if the one before is refused)", item.why),
            _ => item.why.to_owned(),
        };
        vec![item.step.what.shown(), before, after, why]
    }));
    lines.push(output::table(&rows));
    lines.extend(plan.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}
