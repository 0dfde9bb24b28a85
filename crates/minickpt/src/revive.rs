//! Programs start under protection, and come back after their kernel died.

use std::fs::File;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::model::Image;
use outlive_image::restore::{self, Options, Restored};
use outlive_image::source::Contents;
use serde::Serialize;

use crate::area::{self, Death};
use crate::device::{Device, Mark, State};
use crate::filter;
use crate::journal::Journal;
use crate::launch;
use crate::supervisor::{Counts, Native, Policy, Supervisor};
use crate::sys;
use crate::warm;

/// The next kernel, if the caller has one to load.
#[derive(Clone, Debug, Default)]
pub struct Next {
    /// The kernel and its initramfs.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Its boot line; computed if absent.
    pub line: Option<String>,
}

impl Next {
    fn load(&self) -> Result<()> {
        match &self.files {
            Some((kernel, initrd)) => warm::load(kernel, initrd, self.line.as_deref()).map(drop),
            None => Ok(()),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    /// The wait status of the first process.
    pub status: i32,
    /// How often the supervisor was called.
    pub counts: Counts,
}

impl Ended {
    /// The exit code of a shell: 128 + n for signal n.
    pub fn exit_code(&self) -> u8 {
        if libc::WIFSIGNALED(self.status) {
            128u8.wrapping_add(libc::WTERMSIG(self.status) as u8)
        } else {
            libc::WEXITSTATUS(self.status) as u8
        }
    }
}

/// A policy for a directory; whether it is on DAX is found out.
///
/// # Errors
/// The directory cannot be made or written to.
pub fn policy(
    memory: &Path,
    fork: crate::supervisor::Fork,
    special: filter::Special,
) -> Result<Policy> {
    std::fs::create_dir_all(memory).map_err(|error| Error::io(memory, "make", &error))?;
    let probe = memory.join("probe");
    let failed = |error| Error::io(&probe, "write", &error);
    let options = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&probe);
    let file = options.map_err(failed)?;
    file.set_len(4096).map_err(failed)?;
    let dax = sys::is_dax(&file);
    std::fs::remove_file(&probe).map_err(failed)?;
    // Names in the image are absolute.
    let memory = memory.canonicalize().map_err(failed)?;
    Ok(Policy {
        memory,
        dax,
        fork,
        special,
    })
}

/// Runs a program under protection to its end. Without a device (`native`) its memory
/// stands in files as well, but nothing catches a panic: for measurements.
///
/// # Errors
/// Of the launch or of the supervisor.
pub fn run(policy: &Policy, native: bool, next: &Next, words: &[String]) -> Result<Ended> {
    if native {
        return supervise(policy, &mut Native, words);
    }
    let device = Device::open()?;
    let query = device.query()?;
    if query.state == State::Ready {
        return Err(Error::new(
            Code::JobBusy,
            Entity::File(crate::device::PATH.into()),
            format!("image {} waits to be restored", query.generation),
            "run outlive minickpt restore first, or give it up with restore --discard",
        ));
    }
    if !policy.dax {
        return Err(Error::new(
            Code::KernelUnready,
            Entity::File(policy.memory.display().to_string()),
            "the directory is not on a DAX file system: its memory would be lost in a panic",
            "mount the persistent memory with -o dax=always, or measure with --native",
        ));
    }
    if query.registered == 0 {
        // Nothing runs from it and nothing waits to be restored: what programs left that
        // ended with their machine would only take room.
        sweep(&policy.memory).map_err(|error| Error::io(&policy.memory, "sweep", &error))?;
    }
    next.load()?;
    let loaded = std::fs::read_to_string("/sys/kernel/kexec_crash_loaded").unwrap_or_default();
    if loaded.trim() != "1" {
        return Err(Error::new(
            Code::KernelUnready,
            Entity::File("/sys/kernel/kexec_crash_loaded".into()),
            "no next kernel is loaded: a panic would end in an ordinary boot",
            "give --kernel and --initrd",
        ));
    }
    device.arm()?;
    // This start has clocks of its own.
    let _ = std::fs::remove_file(policy.memory.join("clocks"));
    if let Err(error) = sys::keep_clocks(0, 0) {
        eprintln!("outlive: no time namespace ({error}): CLOCK_MONOTONIC will start again");
    }
    supervise(policy, &mut &device, words)
}

/// Removes the memory of programs (`pPID-N`, `shared-N`); nothing else.
fn sweep(memory: &Path) -> std::io::Result<()> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    for entry in std::fs::read_dir(memory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let parts = name.split_once('-').unwrap_or((&name, ""));
        match parts {
            ("shared", number) if digits(number) => std::fs::remove_file(entry.path())?,
            (start, number) if digits(number) && start.strip_prefix('p').is_some_and(digits) => {
                std::fs::remove_dir_all(entry.path())?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn supervise(
    policy: &Policy,
    register: &mut dyn crate::supervisor::Register,
    words: &[String],
) -> Result<Ended> {
    let mut supervisor = Supervisor::new(policy.clone(), register)?;
    launch::start(&mut supervisor, policy, words)?;
    sys::stand_aside();
    let status = supervisor.run()?;
    Ok(Ended {
        status,
        counts: supervisor.counts,
    })
}

/// What came of a restore, kept beside the memory as `last.json` by the caller.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// The death that was survived, or not.
    pub death: Death,
    /// Processes and threads that run again.
    pub processes: usize,
    /// Threads of them.
    pub threads: usize,
    /// Why nothing was restored, if so.
    pub error: Option<String>,
}

/// Restores what the newest image holds, and supervises it to its end. `report` is called
/// once it is known what comes of it.
///
/// # Errors
/// [`Code::NotFound`] if there is nothing to restore, [`Code::Corrupt`],
/// [`Code::ImageForeign`]; the image is then given up, and the machine goes on with an
/// ordinary boot.
pub fn restore(policy: &Policy, next: &Next, mut report: impl FnMut(&Report)) -> Result<Ended> {
    let device = Device::open()?;
    device.mark(Mark::Files);
    let query = device.query()?;
    if matches!(query.state, State::Empty | State::Done) {
        return Err(Error::new(
            Code::NotFound,
            Entity::File(crate::device::PATH.into()),
            "there is no image that waits to be restored",
            "nothing is to be done: start the program with outlive minickpt run",
        ));
    }
    let mut said = Report::default();
    let rebuilt = rebuild(&device, policy, &mut said);
    let (image, restored) = match rebuilt {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            said.error = Some(error.to_string());
            report(&said);
            // Given up: the next panic gets an image of its own.
            device.acknowledge(query.generation)?;
            return Err(error);
        }
    };
    device.mark(Mark::Restored);
    let mut register = &device;
    let mut supervisor = Supervisor::new(policy.clone(), &mut register)?;
    next.load()?;
    supervisor.resume(&image, &restored)?;
    device.arm()?;
    device.acknowledge(query.generation)?;
    device.mark(Mark::Armed);
    said.processes = image.processes.len();
    said.threads = image
        .processes
        .iter()
        .map(|process| process.threads.len())
        .sum();
    report(&said);
    sys::stand_aside();
    device.mark(Mark::Resumed);
    supervisor.start()?;
    let status = supervisor.run()?;
    Ok(Ended {
        status,
        counts: supervisor.counts,
    })
}

fn rebuild(device: &Device, policy: &Policy, said: &mut Report) -> Result<(Image, Restored)> {
    let query = device.query()?;
    if query.state == State::GivenUp {
        return Err(Error::new(
            Code::Corrupt,
            Entity::File(crate::device::PATH.into()),
            format!(
                "the kernel died {} times while this image was restored",
                query.retries
            ),
            "start the program again",
        ));
    }
    let bytes = device.image(&query)?;
    said.death = area::death(&bytes).unwrap_or_default();
    let (release, crc, special) = restore::running_kernel()?;
    let build = std::fs::read_to_string("/proc/sys/kernel/version")
        .map_err(|error| Error::io("/proc/sys/kernel/version", "read", &error))?;
    let pending = Journal::pending(&policy.memory);
    let kernel = (release.as_str(), build.trim(), crc);
    let (death, mut image) = area::decode(&bytes, kernel, &special, pending.as_ref())?;
    said.death = death;
    keep_clocks(policy, &mut image);
    let options = Options {
        numbers: true,
        synchronous: policy.dax,
        filter: filter::program(policy.special),
        keep_gate: true,
        ..Options::default()
    };
    let restored = restore::restore(&image, &Contents::none(), &options)?;
    Ok((image, restored))
}

/// The clocks of the programs go on from where they were. The file `clocks` holds how far
/// they already were ahead of their kernel's.
fn keep_clocks(policy: &Policy, image: &mut Image) {
    let path = policy.memory.join("clocks");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut ahead = text
        .split_whitespace()
        .filter_map(|word| word.parse::<u64>().ok());
    image.monotonic_ns += ahead.next().unwrap_or(0);
    image.boottime_ns += ahead.next().unwrap_or(0);
    let now = |clock| outlive_image::sys::clock_ns(clock);
    let ahead = [
        image
            .monotonic_ns
            .saturating_sub(now(libc::CLOCK_MONOTONIC)),
        image.boottime_ns.saturating_sub(now(libc::CLOCK_BOOTTIME)),
    ];
    if let Err(error) = sys::keep_clocks(image.monotonic_ns, image.boottime_ns) {
        eprintln!("outlive: no time namespace ({error}): CLOCK_MONOTONIC starts again");
        return;
    }
    let written = File::create(&path).and_then(|mut file| {
        use std::io::Write;
        write!(file, "{} {}", ahead[0], ahead[1])?;
        file.sync_all()
    });
    if let Err(error) = written {
        eprintln!("outlive: {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_memory_of_programs_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["p12-1", "p-1", "p1-x", "data-1"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["shared-3", "shared-x", "journal", "last.json"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        sweep(dir.path()).unwrap();
        let names = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(
            names,
            ["data-1", "journal", "last.json", "p-1", "p1-x", "shared-x"]
        );
    }
}
