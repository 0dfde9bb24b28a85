//! Threads of the machine and where they may run.

use super::tree::Tree;
use crate::cpus::Cpus;

/// The kernel refuses to move it: it belongs to its core.
const NO_SETAFFINITY: u64 = 0x0400_0000;
/// A thread of the kernel.
const KTHREAD: u64 = 0x0020_0000;

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its own number.
    pub tid: u32,
    /// The parent of its process.
    pub parent: u32,
    /// Its name.
    pub name: String,
    /// When it began, in ticks since the boot: with the number, it names one thread.
    pub start: u64,
    /// Of the kernel.
    pub kernel: bool,
    /// Can be moved.
    pub movable: bool,
    /// Where it may run.
    pub allowed: Cpus,
}

/// One thread; `None` if it has ended.
pub fn one(tree: &dyn Tree, pid: u32, tid: u32) -> Option<Thread> {
    let base = format!("proc/{pid}/task/{tid}");
    let stat = tree.read(&format!("{base}/stat")).ok()?;
    let status = tree.read(&format!("{base}/status")).ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let (head, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let flags = number(6)?;
    Some(Thread {
        pid,
        tid,
        parent: u32::try_from(number(1)?).ok()?,
        name: head.split_once('(')?.1.to_owned(),
        start: number(19)?,
        kernel: flags & KTHREAD != 0,
        movable: flags & NO_SETAFFINITY == 0,
        allowed: Cpus::of_list(list)?,
    })
}

/// All of them.
pub fn all(tree: &dyn Tree) -> Vec<Thread> {
    let numbers = |path: &str| -> Vec<u32> {
        let names = tree.names(path);
        names.iter().filter_map(|name| name.parse().ok()).collect()
    };
    let mut found = Vec::new();
    for pid in numbers("proc") {
        let tids = numbers(&format!("proc/{pid}/task"));
        found.extend(tids.into_iter().filter_map(|tid| one(tree, pid, tid)));
    }
    found
}

/// Whether a process has this variable in its environment.
pub fn carries(tree: &dyn Tree, pid: u32, variable: &str) -> bool {
    let text = tree.read(&format!("proc/{pid}/environ"));
    text.is_ok_and(|text| text.split('\0').any(|one| one == variable))
}
