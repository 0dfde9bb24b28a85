//! What a system call costs, as it is and forwarded: the same calls, timed one by one.

use std::fs::File;
use std::os::fd::AsRawFd;

use outlive_base::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::cycles;
use crate::stats::{nearest_rank, sorted};

/// The form of [`Forwarding`].
pub const FORWARDING: &str = "outlive.noise-forward/1";
/// Calls before the clock counts: a thread has its partner by then, which spins.
const WARM: usize = 200;

/// How long a call took, in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Which.
    pub call: String,
    /// Half of them took no longer.
    pub p50_ns: f64,
    /// 99 of a hundred took no longer.
    pub p99_ns: f64,
}

/// Both ways.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Forwarding {
    /// [`FORWARDING`].
    pub schema: String,
    /// The core of the caller.
    pub core: u32,
    /// Cores of its partner.
    pub service: Vec<u32>,
    /// Calls of each kind that were timed.
    pub calls: u64,
    /// By the thread itself.
    pub direct: Vec<Cost>,
    /// By its partner.
    pub forwarded: Vec<Cost>,
}

/// Times `calls` calls each of getpid, a write of one byte to `/dev/null`, a read of one byte from
/// `/dev/zero`, and waking nobody at a futex. What reading the counter costs is a part of it.
///
/// # Errors
/// Devices that cannot be opened; a counter that goes backwards.
pub fn measure(calls: usize) -> Result<Vec<Cost>> {
    let open = |path: &str, write: bool| {
        let opened = File::options().read(!write).write(write).open(path);
        opened.map_err(|error| Error::io(path, "open", &error))
    };
    let (null, zero) = (open("/dev/null", true)?, open("/dev/zero", false)?);
    let scale = cycles::calibrate().ok_or_else(|| Error::internal("the counter went backwards"))?;
    let (mut byte, word) = ([0_u8], 0_u32);
    let (null, zero) = (null.as_raw_fd(), zero.as_raw_fd());
    let mut took = vec![0.0; calls];
    let mut time = |name: &str, call: &mut dyn FnMut()| {
        (0..WARM).for_each(|_| call());
        for slot in &mut took {
            let before = cycles::now();
            call();
            *slot = scale.ns(cycles::now().saturating_sub(before));
        }
        let sorted = sorted(&took);
        let rank = |hundredths| sorted[nearest_rank(calls, hundredths).min(calls - 1)];
        Cost {
            call: name.to_owned(),
            p50_ns: rank(5_000),
            p99_ns: rank(9_900),
        }
    };
    // SAFETY: each call has valid arguments for as long as it takes.
    Ok(vec![
        time("getpid", &mut || unsafe {
            libc::syscall(libc::SYS_getpid);
        }),
        time("write", &mut || unsafe {
            libc::syscall(libc::SYS_write, null, c"x".as_ptr(), 1_usize);
        }),
        time("read", &mut || unsafe {
            libc::syscall(libc::SYS_read, zero, byte.as_mut_ptr(), 1_usize);
        }),
        time("futex", &mut || unsafe {
            libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAKE, 1);
        }),
    ])
}

/// For people.
pub fn text(of: &Forwarding) -> String {
    let mut lines = vec![format!(
        "{} calls of each kind on core {}, partners on {:?}; nanoseconds",
        of.calls, of.core, of.service
    )];
    let head = ["call", "direct p50", "p99", "forwarded p50", "p99", "more"];
    lines.push(row(head.map(str::to_owned)));
    for (direct, forwarded) in of.direct.iter().zip(&of.forwarded) {
        let number = |value: f64| format!("{value:.0}");
        lines.push(row([
            direct.call.clone(),
            number(direct.p50_ns),
            number(direct.p99_ns),
            number(forwarded.p50_ns),
            number(forwarded.p99_ns),
            number(forwarded.p50_ns - direct.p50_ns),
        ]));
    }
    lines.join("\n")
}

fn row(words: [String; 6]) -> String {
    let cells = words.iter().map(|word| format!("{word:<14}"));
    cells.collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_timed_and_shown() {
        let direct = measure(50).unwrap();
        assert_eq!(direct.len(), 4);
        assert!(direct.iter().all(|cost| cost.p50_ns <= cost.p99_ns));
        let of = Forwarding {
            schema: FORWARDING.into(),
            core: 1,
            service: vec![0],
            calls: 50,
            forwarded: direct.clone(),
            direct,
        };
        let shown = text(&of);
        for word in ["getpid", "write", "read", "futex", "more"] {
            assert!(shown.contains(word), "{shown}");
        }
    }
}
