//! Which processes are ranks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use outlive_base::control_block::Identity;
use outlive_image::procfs;

/// What a rank's control block is called in its list of mappings.
const BLOCK: &str = "/memfd:outlive-control";

/// What an agent calls itself. It has the control blocks of its ranks mapped as well.
const AGENT: &[u8] = b"outlive:\0agent\0";

/// Which rank a process is: it has its control block mapped. `None` for others, and for a process
/// that may not be looked at. A process that a rank has forked counts as that rank.
pub fn rank_of(pid: i32) -> Option<Identity> {
    if fs::read(format!("/proc/{pid}/cmdline"))
        .ok()?
        .starts_with(AGENT)
    {
        return None;
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.lines().find(|line| line.contains(BLOCK))?;
    let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
    let mut bytes = [0; Identity::BYTES];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, start).ok()?;
    Identity::in_copy(&bytes)
}

/// A process and all that it has begun, by itself or by others, as far as they are on this
/// machine; ascending.
pub fn below(pid: i32) -> Vec<i32> {
    let mut found = BTreeSet::from([pid]);
    let mut next = vec![pid];
    while let Some(pid) = next.pop() {
        let children = procfs::children(pid).unwrap_or_default();
        next.extend(children.into_iter().filter(|child| found.insert(*child)));
    }
    found.into_iter().collect()
}
