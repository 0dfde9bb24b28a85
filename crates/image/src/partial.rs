//! A restore in which a process that cannot be brought up ends alone.
//!
//! Nothing runs before all are there, so one that fails costs no more than another beginning
//! without it: what was built is ended, its memory unharmed.

use outlive_base::Result;

use crate::blame::{Blamed, may_pass};
use crate::model::{Ended, Image};
use crate::restore::{self, Options, Restored};
use crate::source::Contents;

/// Brings up what can be: processes that cannot are taken out of the image, and their parents
/// told as of a kill. Gives those with the reason.
///
/// What a later attempt may do better is an error, unless `now` is set; so is that nothing can be
/// brought up. The image is then as it was.
///
/// # Errors
/// As [`restore::restore`].
pub fn restore(
    image: &mut Image,
    contents: &Contents,
    options: &Options,
    now: bool,
) -> Result<(Restored, Vec<(i32, String)>)> {
    let mut rest = image.clone();
    let mut lost = Vec::new();
    loop {
        let error = match restore::attempt(&rest, contents, options)? {
            Ok(restored) => {
                *image = rest;
                return Ok((restored, lost));
            }
            Err(error) => error,
        };
        let blamed = Blamed::of(&error).filter(|_| now || !may_pass(&error));
        let gone: Vec<i32> = blamed.map_or(Vec::new(), |blamed| blamed.pids.clone());
        if !take_out(&mut rest, &gone) {
            return Err(restore::wrap("restore", &error));
        }
        lost.extend(gone.iter().map(|pid| (*pid, reason(&error))));
    }
}

/// Why a process could not be brought up.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("its number, or that of a thread, is another's by now: {error}")
        }
        _ => error.to_string(),
    }
}

/// Takes processes out of an image; false if it would then have none, or the same ones.
fn take_out(image: &mut Image, gone: &[i32]) -> bool {
    let is_gone = |pid: i32| gone.contains(&pid);
    let all = image.processes.len();
    let left = image.processes.iter().filter(|p| !is_gone(p.pid)).count();
    if left == 0 || left == all {
        return false;
    }
    let (out, rest) = std::mem::take(&mut image.processes)
        .into_iter()
        .partition(|process| is_gone(process.pid));
    image.processes = rest;
    image.ended.extend(out.into_iter().map(|process| Ended {
        pid: process.pid,
        ppid: process.ppid,
        exit_signal: process.exit_signal,
        status: libc::SIGKILL,
    }));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Process;

    #[test]
    fn one_that_is_taken_out_was_killed_for_its_parent() {
        let process = |pid, ppid| Process {
            pid,
            ppid,
            exit_signal: 17,
            ..Process::default()
        };
        let mut image = Image {
            processes: vec![process(7, 1), process(8, 7), process(9, 8)],
            ..Image::default()
        };
        assert!(!take_out(&mut image, &[]) && !take_out(&mut image, &[7, 8, 9]));
        assert!(take_out(&mut image, &[8]));
        let left: Vec<i32> = image.processes.iter().map(|p| p.pid).collect();
        assert_eq!(left, [7, 9]);
        let told = Ended {
            pid: 8,
            ppid: 7,
            exit_signal: 17,
            status: libc::SIGKILL,
        };
        assert_eq!(image.ended, [told]);
        assert!(!take_out(&mut image, &[8]), "it is gone already");
    }
}
