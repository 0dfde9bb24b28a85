//! Decoupled threads (FFMK, final report, section 2.3): a program that was not changed computes on
//! its cores, and its system calls are carried out by partners on others.
//!
//! [`LIBRARY`] is what is loaded ahead of the program; [`offered`] says whether this machine has
//! what it needs, [`environment`] tells it where partners run, and [`account`] reads what it told. What
//! forwarding costs is measured by [`cost`].

pub mod cost;

use std::ffi::OsString;
use std::path::Path;

use crate::cpus::Cpus;
use crate::pages::launch::joined;
use crate::placement::{self, Nodes};

/// The library, built from `c/decouple`.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liboutlive_decouple.so"));
/// The name of its file.
pub const LIBRARY_NAME: &str = "liboutlive_decouple.so";
/// Switches the dispatch of a thread (Linux 5.11).
const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
/// The highest core that partners may run on, as the library has it.
pub const CORES_MAX: u32 = 1024;
/// The most groups of cores that the library tells apart.
const GROUPS_MAX: usize = 64;

/// Whether system calls of a program can be turned over to another thread here.
///
/// # Errors
/// In words, what is missing.
pub fn offered() -> Result<(), &'static str> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("threads are decoupled on x86-64 alone");
    }
    // SAFETY: it switches off what is not on, and has plain numbers.
    match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0_u64, 0_u64, 0_u64, 0_u64) } {
        0 => Ok(()),
        _ => Err("the kernel has no dispatch of system calls to programs (Linux 5.11)"),
    }
}

/// The variables to set: partners run on the cores `service`, where there are several NUMA `nodes` near their
/// threads, which are on `compute`; `report` is where processes append what they did; `preload` what the
/// environment has of `LD_PRELOAD`.
pub fn environment(
    library: &Path,
    (compute, service): (&Cpus, &Cpus),
    nodes: &Nodes,
    report: &Path,
    preload: Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let groups = placement::helpers(nodes, compute, service);
    let shown = groups.iter().map(|(here, by)| format!("{here}:{by}"));
    // Where all are as near, or the library has not so many, there is nothing to choose.
    let chosen = groups.iter().any(|(_, by)| by != service);
    let near = match chosen && groups.len() <= GROUPS_MAX {
        true => shown.collect::<Vec<_>>().join(";"),
        false => String::new(),
    };
    vec![
        (
            "LD_PRELOAD".into(),
            joined(preload.as_deref(), library.as_os_str()),
        ),
        (
            "OUTLIVE_DECOUPLE_SERVICE".into(),
            service.to_string().into(),
        ),
        ("OUTLIVE_DECOUPLE_NEAR".into(), near.into()),
        ("OUTLIVE_DECOUPLE_REPORT".into(), report.into()),
    ]
}

/// What processes told when they ended; who was killed told nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Processes.
    pub processes: u64,
    /// Calls that partners made.
    pub forwarded: u64,
    /// Calls that threads made themselves.
    pub in_place: u64,
    /// Partners that were started.
    pub partners: u64,
}

/// Reads the account; lines that are none are left out.
pub fn account(text: &str) -> Account {
    let mut all = Account::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let first = words.next();
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        if let (Some("end"), Some([_, forwarded, in_place, partners])) = (first, numbers.as_deref())
        {
            all.processes += 1;
            all.forwarded = all.forwarded.saturating_add(*forwarded);
            all.in_place = all.in_place.saturating_add(*in_place);
            all.partners = all.partners.saturating_add(*partners);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_told_adds_up_and_damage_does_no_harm() {
        let text = "end 7 10 5 2\nend 8 1 2 0\n";
        let all = Account {
            processes: 2,
            forwarded: 11,
            in_place: 7,
            partners: 2,
        };
        assert_eq!(account(text), all);
        for cut in 0..text.len() {
            assert!(account(&text[..cut]).processes <= 2);
        }
        for bad in ["", "end", "end 1 2 3", "end 1 2 3 -4", "other 1 2 3 4"] {
            assert_eq!(account(bad), Account::default(), "{bad}");
        }
        let most = format!("end 1 {0} 1 1\nend 1 {0} 1 1\n", u64::MAX);
        assert_eq!(account(&most).forwarded, u64::MAX);
    }

    #[test]
    fn what_is_preloaded_already_stays_first() {
        let of = |before: Option<&str>| {
            let before = before.map(OsString::from);
            let cores = (&Cpus::default(), &Cpus::default());
            let library = Path::new("/l.so");
            environment(library, cores, &Nodes::new(), Path::new("/r"), before)[0]
                .1
                .clone()
        };
        assert_eq!(of(None), "/l.so");
        assert_eq!(of(Some("a.so")), "a.so:/l.so");
    }

    #[test]
    fn partners_are_told_which_cores_are_near_if_some_are_not() {
        let cpus = |text: &str| Cpus::of_list(text).unwrap();
        let nodes: Nodes = [(0, cpus("0-3")), (1, cpus("4-7"))].into();
        let near = |nodes: &Nodes, compute: &str, service: &str| {
            let cores = (&cpus(compute), &cpus(service));
            let all = environment(Path::new("/l"), cores, nodes, Path::new("/r"), None);
            let value = |(name, value): (OsString, OsString)| {
                (name == "OUTLIVE_DECOUPLE_NEAR").then_some(value)
            };
            all.into_iter().find_map(value).unwrap()
        };
        assert_eq!(near(&nodes, "1-3,5-7", "0,4"), "1-3:0;5-7:4");
        assert_eq!(near(&nodes, "1-3", "0,4"), "1-3:0", "the one that is near");
        assert_eq!(near(&nodes, "1-3", "0"), "");
        assert_eq!(near(&Nodes::new(), "1-3,5-7", "0,4"), "");
        let many: Nodes = (0..100)
            .map(|node| (node, [2 * node, 2 * node + 1].into_iter().collect()))
            .collect();
        let (even, odd): (Cpus, Cpus) =
            ((0..200).step_by(2).collect(), (1..200).step_by(2).collect());
        assert_eq!(near(&many, &even.to_string(), &odd.to_string()), "");
    }
}
