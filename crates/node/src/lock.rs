//! Memory that stays in memory: pages of a program that was not changed are neither written to swap nor dropped
//! with the files that they are of, so that nothing has to bring them back while it computes.
//!
//! [`LIBRARY`] is what is loaded ahead of the program; [`lift`] sees to the limit, [`environment`] tells the library
//! where it reports, and [`account`] reads that.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use rustix::thread::CapabilitySet;

/// The library, built from `c/lock.c`.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liboutlive_lock.so"));
/// The name of its file.
pub const LIBRARY_NAME: &str = "liboutlive_lock.so";

/// Lifts the limit of locked memory of this process, as far as it may. The limit that is then left, bytes; `None` if
/// there is none. Under a limit a program whose memory is locked could map no more than that.
///
/// # Errors
/// What the kernel has against it.
pub fn lift() -> io::Result<Option<u64>> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure lives.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let all = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure lives, and is only read.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) } == 0 {
        return Ok(None);
    }
    // Who has this has no limit, whatever is set.
    let may = rustix::thread::capabilities(None)?.effective;
    let limited = limit.rlim_max != libc::RLIM_INFINITY && !may.contains(CapabilitySet::IPC_LOCK);
    Ok(limited.then_some(limit.rlim_max))
}

/// The variables to set: `report` is where processes append whether they are locked; `preload` what stands before
/// the library in `LD_PRELOAD`.
pub fn environment(
    library: &Path,
    report: &Path,
    preload: Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let preload = crate::pages::launch::joined(preload.as_deref(), library.as_os_str());
    vec![
        ("LD_PRELOAD".into(), preload),
        ("OUTLIVE_LOCK_REPORT".into(), report.into()),
    ]
}

/// What processes told when they began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Those whose memory is locked.
    pub locked: u64,
    /// Those of which it could not be.
    pub refused: u64,
    /// Why, of one of them (errno).
    pub error: Option<i32>,
}

/// Reads the account; lines that are none are left out.
pub fn account(text: &str) -> Account {
    let mut all = Account::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["lock", pid, error] = words[..] else {
            continue;
        };
        match (pid.parse::<u32>(), error.parse::<i32>()) {
            (Ok(_), Ok(0)) => all.locked += 1,
            (Ok(_), Ok(error)) if error > 0 => {
                all.refused += 1;
                all.error = Some(error);
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_told_adds_up_and_damage_does_no_harm() {
        let text = "lock 7 0\nlock 8 12\nlock 9 0\n";
        let all = Account {
            locked: 2,
            refused: 1,
            error: Some(12),
        };
        assert_eq!(account(text), all);
        for cut in 0..text.len() {
            let part = account(&text[..cut]);
            assert!(part.locked + part.refused <= 3, "{cut}");
        }
        for bad in [
            "",
            "lock",
            "lock 1",
            "lock 1 -1",
            "lock x 0",
            "end 1 0",
            "lock 1 0 0",
        ] {
            assert_eq!(account(bad), Account::default(), "{bad}");
        }
    }

    #[test]
    fn what_is_preloaded_already_stays_first() {
        let made = environment(Path::new("/l.so"), Path::new("/r"), Some("a.so".into()));
        assert_eq!(made[0].1, "a.so:/l.so");
    }
}
