//! Making changes and undoing them. Each change is in the journal before it is made; undoing asks
//! what is there now, so that it may be cut short anywhere and begun again.

use std::io;

use outlive_base::{Error, Result};

use super::journal::{Account, Entry, Journal, Record};
use super::step::{Item, Rule, Step, What};
use super::threads::{self, Thread};
use super::tree::Tree;
use crate::cpus::Cpus;

/// Called at each point where a run may be cut short; tests cut there.
pub type Trip<'a> = &'a mut dyn FnMut() -> Result<()>;

/// The variable that marks what runs on compute cores; its value is the name of the run.
pub const MARK: &str = "OUTLIVE_QUIET";

/// What became of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Made.
    Made,
    /// It was so already.
    Already,
    /// Refused, and why.
    Refused(String),
}

/// Makes all changes of a plan in turn; what became of each. After a vital one that was refused, the
/// rest of the partition is left out.
///
/// # Errors
/// Those of the journal; a refused change is none.
pub fn make_all(
    tree: &dyn Tree,
    journal: &mut Journal,
    others: &[Account],
    items: &[Item],
    trip: Trip<'_>,
) -> Result<Vec<Fate>> {
    let mut fates: Vec<Fate> = Vec::new();
    let mut broken = false;
    for item in items {
        let refused = matches!(fates.last(), Some(Fate::Refused(_)));
        let fate = match item.rule {
            Rule::Vital | Rule::Part | Rule::IfRefused if broken => {
                Fate::Refused("there is no partition".into())
            }
            Rule::IfRefused if !refused => Fate::Already,
            _ => make(tree, journal, others, &item.step, trip)?,
        };
        broken |= item.rule == Rule::Vital && matches!(fate, Fate::Refused(_));
        fates.push(fate);
    }
    Ok(fates)
}

/// Whether the partition can be entered: nothing vital of it was refused.
pub fn has_partition(items: &[Item], fates: &[Fate]) -> bool {
    let vital = items
        .iter()
        .zip(fates)
        .filter(|(item, _)| item.rule == Rule::Vital);
    let mut vital = vital.peekable();
    vital.peek().is_some() && vital.all(|(_, fate)| !matches!(fate, Fate::Refused(_)))
}

/// Makes one change.
fn make(
    tree: &dyn Tree,
    journal: &mut Journal,
    others: &[Account],
    step: &Step,
    trip: Trip<'_>,
) -> Result<Fate> {
    let what = &step.what;
    let before = match what.now(tree) {
        Ok(before) => before,
        Err(error) => return Ok(Fate::Refused(error.to_string())),
    };
    let mut record = step.clone();
    record.before.clone_from(&before);
    let already = what.same(&before, &step.after);
    if already {
        // Somebody else who runs made it so: it must stay until the last one has ended.
        match others.iter().find_map(|account| same_step(account, what)) {
            Some(entry) => record.before.clone_from(&entry.step.before),
            None => return Ok(Fate::Already),
        }
    }
    journal.note(&Record::Step(record))?;
    trip()?;
    let made = match already {
        true => Ok(()),
        false => what.put(tree, &step.after),
    };
    trip()?;
    // What was written need not be what is there: the kernel may round it, or say why not.
    let now = what.now(tree);
    let took = now.as_deref().unwrap_or(&before).to_owned();
    journal.note(&Record::Done(took.clone()))?;
    trip()?;
    Ok(match made {
        Err(error) => Fate::Refused(error.to_string()),
        Ok(()) if what.same(&took, &step.after) => Fate::Made,
        Ok(()) => Fate::Refused(format!("it reads '{took}' after '{}'", step.after)),
    })
}

/// The newest step of a journal on this setting.
fn same_step<'a>(account: &'a Account, what: &What) -> Option<&'a Entry> {
    let mut entries = account.entries.iter().rev();
    entries.find(|entry| entry.step.what.is(what))
}

/// What undoing has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Undone {
    /// Set to what they were before.
    pub restored: usize,
    /// Somebody else has changed them meanwhile; left alone.
    pub foreign: Vec<String>,
    /// Others that run still need them; the last one undoes them.
    pub handed: usize,
    /// Could not be undone, and why.
    pub stuck: Vec<String>,
}

/// Undoes a journal, the newest change first. `others` are all other journals; the journal itself
/// stays for the caller to remove.
///
/// # Errors
/// Those of `trip` and of other journals; what cannot be undone is told.
pub fn undo(
    tree: &dyn Tree,
    account: &Account,
    others: &[Account],
    trip: Trip<'_>,
) -> Result<Undone> {
    let mut undone = Undone::default();
    release(tree, account, &mut undone);
    trip()?;
    let groups: Vec<&What> = account
        .entries
        .iter()
        .map(|entry| &entry.step.what)
        .filter(|what| matches!(what, What::Group { .. }))
        .collect();
    for entry in account.entries.iter().rev() {
        let what = &entry.step.what;
        // It goes with its group.
        if groups.iter().any(|group| group.holds(what)) {
            continue;
        }
        undo_one(tree, entry, others, &mut undone)?;
        trip()?;
    }
    widen_heirs(tree, account, &mut undone);
    trip()?;
    Ok(undone)
}

fn undo_one(tree: &dyn Tree, entry: &Entry, others: &[Account], undone: &mut Undone) -> Result<()> {
    let (what, before) = (&entry.step.what, &entry.step.before);
    let now = match what.now(tree) {
        Ok(now) => now,
        // Gone, and its change with it.
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => {
            undone.stuck.push(format!("{}: {error}", what.shown()));
            return Ok(());
        }
    };
    let ours = entry.ours();
    if what.same(&now, before) {
        return Ok(());
    }
    if hand_over(entry, &now, others)? {
        undone.handed += 1;
        return Ok(());
    }
    // A change that was cut short may have left any value: it was the newest one.
    if entry.took.is_some() && !what.same(&now, ours) {
        undone.foreign.push(format!(
            "{}: is '{now}', was set to '{ours}', before '{before}'",
            what.shown()
        ));
        return Ok(());
    }
    match what.put(tree, before) {
        Ok(()) => undone.restored += 1,
        Err(error) if gone(&error) => {}
        Err(error) => undone.stuck.push(format!(
            "{}: stays '{now}', before '{before}': {error}",
            what.shown()
        )),
    }
    Ok(())
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Leaves a setting to another run that has built on it, or that needs it as it is.
fn hand_over(entry: &Entry, now: &str, others: &[Account]) -> Result<bool> {
    let (what, ours) = (&entry.step.what, entry.ours());
    for other in others {
        let mut steps = other.entries.iter().enumerate().rev();
        let found = steps.find(|(_, heir)| {
            let built = what.same(&heir.step.before, ours) && !what.same(now, ours);
            let needs = what.same(heir.ours(), ours) && what.same(now, ours);
            heir.step.what.is(what) && (built || needs)
        });
        if let Some((step, _)) = found {
            let before = entry.step.before.clone();
            let inherited = Journal::open(&other.path)
                .and_then(|mut journal| journal.add(&Record::Inherit { step, before }));
            inherited.map_err(|error| Error::io(&other.path, "write", &error))?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the command left running, and what threads that were moved have started since, got their
/// place from them, and no line of the journal has it.
fn widen_heirs(tree: &dyn Tree, account: &Account, undone: &mut Undone) {
    let moved: Vec<(&Entry, u32, u32)> = account
        .entries
        .iter()
        .filter_map(|entry| match &entry.step.what {
            What::Thread { pid, tid, .. } => Some((entry, *pid, *tid)),
            _ => None,
        })
        .collect();
    if moved.is_empty() {
        return;
    }
    let threads = threads::all(tree);
    let parent_of = |pid: u32| {
        threads
            .iter()
            .find(|one| one.pid == pid)
            .map(|one| one.parent)
    };
    for thread in &threads {
        let listed = moved.iter().any(|(_, _, tid)| *tid == thread.tid);
        if listed || thread.kernel || thread.start < account.head.start {
            continue;
        }
        let (mut at, mut steps) = (Some(thread.pid), 0);
        while let Some(pid) = at.filter(|pid| *pid != 0 && steps < 64) {
            let from = moved.iter().find(|(entry, of, _)| {
                let ours = || Cpus::of_list(entry.ours());
                *of == pid && ours().as_ref() == Some(&thread.allowed)
            });
            if let Some((entry, ..)) = from {
                widen(tree, thread, &entry.step.before, undone);
                break;
            }
            at = parent_of(pid);
            steps += 1;
        }
    }
}

/// What the command left running may use all cores again.
fn release(tree: &dyn Tree, account: &Account, undone: &mut Undone) {
    let mark = format!("{MARK}={}", account.head.id);
    let (compute, service) = (&account.head.compute, &account.head.service);
    let (Some(compute), Some(service)) = (Cpus::of_list(compute), Cpus::of_list(service)) else {
        return;
    };
    let all = compute.or(&service).to_string();
    for thread in threads::all(tree) {
        let ours = thread.allowed == compute && thread.start >= account.head.start;
        if ours && !thread.kernel && threads::carries(tree, thread.pid, &mark) {
            widen(tree, &thread, &all, undone);
        }
    }
}

fn widen(tree: &dyn Tree, thread: &Thread, to: &str, undone: &mut Undone) {
    let Some(cpus) = Cpus::of_list(to) else {
        return;
    };
    match tree.confine(thread.pid, thread.tid, &cpus) {
        Ok(()) => undone.restored += 1,
        Err(error) if gone(&error) => {}
        Err(error) => {
            let name = format!("thread {} ({})", thread.tid, thread.name);
            undone
                .stuck
                .push(format!("{name}: stays on {}: {error}", thread.allowed));
        }
    }
}
