//! Programs start under protection, and come back after their kernel died.

use std::fs::File;
use std::path::{Path, PathBuf};

use outlive_base::{Code, Entity, Error, Result};
use outlive_image::model::Image;
use outlive_image::partial;
use outlive_image::restore::{self, Options, Restored};
use outlive_image::source::Contents;
use outlive_node::cpus::Cpus;
use outlive_node::placement::{self, Decision, Placement};
use serde::Serialize;

use crate::area::{self, Death};
use crate::device::{Device, Keeper, Mark, Query, State};
use crate::filter;
use crate::journal::Journal;
use crate::launch;
use crate::losses;
use crate::supervisor::files::{self, Files};
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
    /// What cannot be brought up now is lost, although a later attempt might do better.
    pub now: bool,
}

impl Next {
    fn load(&self, clock_khz: Option<u32>) -> Result<()> {
        match &self.files {
            Some((kernel, initrd)) => {
                let loaded = warm::load(kernel, initrd, self.line.as_deref(), clock_khz)?;
                if let Some(why) = loaded.slow {
                    eprintln!("outlive: the next kernel is loaded by kexec_file_load: {why}");
                }
                Ok(())
            }
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
    (fork, special, files): (crate::supervisor::Fork, filter::Special, Files),
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
        files,
    })
}

/// Runs a program under protection to its end. Without a device (`native`) its memory
/// stands in files as well, but nothing catches a panic: for measurements.
///
/// # Errors
/// Of the launch, of the placement or of the supervisor.
pub fn run(
    policy: &Policy,
    placement: Placement,
    native: bool,
    next: &Next,
    words: &[String],
) -> Result<Ended> {
    if native {
        let cpus = place(policy, placement)?;
        // Nothing survives a panic, so nothing is refused for its sake.
        let policy = Policy {
            files: Files::Lose,
            ..policy.clone()
        };
        return supervise(&policy, cpus.as_ref(), &mut Native, words);
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
    query.check_sight()?;
    let policy = &seen(&device, policy)?;
    if !policy.dax {
        return Err(Error::new(
            Code::KernelUnready,
            Entity::File(policy.memory.display().to_string()),
            "the directory is not on a DAX file system: its memory would be lost in a panic",
            "mount the persistent memory with -o dax=always, or measure with --native",
        ));
    }
    let cpus = place(policy, placement)?;
    if query.registered == 0 {
        // Nothing runs from it and nothing waits to be restored: what programs left that
        // ended with their machine would only take room.
        sweep(&policy.memory).map_err(|error| Error::io(&policy.memory, "sweep", &error))?;
    }
    next.load(device.clock_khz())?;
    let loaded = std::fs::read_to_string("/sys/kernel/kexec_crash_loaded").unwrap_or_default();
    if loaded.trim() != "1" {
        return Err(Error::new(
            Code::KernelUnready,
            Entity::File("/sys/kernel/kexec_crash_loaded".into()),
            "no next kernel is loaded: a panic would end in an ordinary boot",
            "give --kernel and --initrd",
        ));
    }
    if policy.files == Files::Through {
        for (fd, name) in files::inherited() {
            eprintln!(
                "outlive: descriptor {fd} is {name}, opened without O_DSYNC: what is not synced \
                 when the kernel dies is lost; let the program open it, or use chattr +S"
            );
        }
    }
    device.arm()?;
    // This start has clocks of its own.
    let _ = std::fs::remove_file(policy.memory.join("clocks"));
    if let Err(error) = sys::keep_clocks(0, 0) {
        eprintln!("outlive: no time namespace ({error}): CLOCK_MONOTONIC will start again");
    }
    supervise(policy, cpus.as_ref(), &mut &device, words)
}

/// The policy for a kernel of which the module may not know all descriptors.
fn seen(device: &Device, policy: &Policy) -> Result<Policy> {
    let mut policy = policy.clone();
    let unseen = crate::kept::unseen(device);
    let unseen = unseen.map_err(|error| Error::io(crate::device::PATH, "look", &error))?;
    if let (Some(kind), filter::Special::Refuse) = (unseen, policy.special) {
        eprintln!("outlive: the module does not know this kernel's {kind}: it is refused");
        policy.special = filter::Special::RefuseAll;
    }
    Ok(policy)
}

/// The CPUs that the program shall keep to, if not all.
fn place(policy: &Policy, placement: Placement) -> Result<Option<Cpus>> {
    let root = Path::new(placement::SYSFS);
    match placement::of_program(placement, root, &policy.memory)? {
        Decision::Leave => Ok(None),
        Decision::Tell(what) => {
            eprintln!("outlive: {what}");
            Ok(None)
        }
        Decision::Pin(cpus) => Ok(Some(cpus)),
    }
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
    cpus: Option<&Cpus>,
    register: &mut dyn crate::supervisor::Register,
    words: &[String],
) -> Result<Ended> {
    let mut supervisor = Supervisor::new(policy.clone(), register)?;
    launch::start_on(&mut supervisor, policy, cpus, words)?;
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
    /// Descriptors on which each call now fails with EBADF, a line each.
    pub gone: Vec<String>,
    /// Why nothing was restored, if so.
    pub error: Option<String>,
    /// The image waits for another attempt.
    pub waits: bool,
    /// Attempts that failed and left the image.
    pub attempts: u32,
}

/// Why nothing was restored.
#[derive(Debug)]
enum Fault {
    /// The image itself: no later attempt can do better.
    Image(Error),
    /// The machine as it is now: a file system that is not mounted, a missing file, no
    /// memory, a number that is taken.
    Now(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Now(error)
    }
}

/// Tries to bring the newest image up. One that cannot be repaired is given up, so that the
/// next panic gets an image of its own; any other failure leaves it and is counted.
fn attempt<T>(
    keeper: &dyn Keeper,
    said: &mut Report,
    revive: impl FnOnce(&Query, &mut Report) -> std::result::Result<T, Fault>,
) -> Result<T> {
    let query = keeper.query()?;
    if matches!(query.state, State::Empty | State::Done) {
        return Err(nothing());
    }
    let error = match revive(&query, said) {
        Ok(revived) => return Ok(revived),
        Err(Fault::Image(error)) => {
            // It failed for what is said below; a damaged superblock is empty by now.
            if query.generation > 0
                && let Err(error) = keeper.acknowledge(query.generation)
            {
                eprintln!("outlive: {error}");
            }
            error
        }
        Err(Fault::Now(error)) => {
            said.waits = true;
            let counted = match keeper.attempted() {
                Ok(attempts) => {
                    said.attempts = attempts;
                    format!("attempt {attempts}")
                }
                Err(_) => "an attempt".to_owned(),
            };
            Error::new(
                error.code(),
                error.entity().clone(),
                format!(
                    "{} ({counted} to restore image {}, which still waits)",
                    error.reason(),
                    query.generation
                ),
                format!(
                    "{}; then run outlive minickpt restore again, or give the image up \
                     with restore --discard",
                    error.remedy()
                ),
            )
        }
    };
    said.error = Some(error.to_string());
    Err(error)
}

fn nothing() -> Error {
    Error::new(
        Code::NotFound,
        Entity::File(crate::device::PATH.into()),
        "there is no image that waits to be restored",
        "nothing is to be done: start the program with outlive minickpt run",
    )
}

/// Gives up the image that waits; its number.
///
/// # Errors
/// [`Code::NotFound`] if there is none.
pub fn discard() -> Result<u64> {
    let device = Device::open()?;
    let query = device.query()?;
    if query.generation == 0 || matches!(query.state, State::Empty | State::Done) {
        return Err(nothing());
    }
    device.acknowledge(query.generation)?;
    Ok(query.generation)
}

/// Restores what the newest image holds, and supervises it to its end. `report` is called
/// once it is known what comes of it.
///
/// # Errors
/// [`Code::NotFound`] if there is nothing to restore. [`Code::Corrupt`],
/// [`Code::ImageForeign`]: the image is given up, and the machine goes on with an ordinary
/// boot. Any other leaves the image: it can be tried again.
pub fn restore(policy: &Policy, next: &Next, mut report: impl FnMut(&Report)) -> Result<Ended> {
    let device = Device::open()?;
    let policy = &seen(&device, policy)?;
    device.mark(Mark::Files);
    let mut said = Report::default();
    let mut register = &device;
    let revived = attempt(&device, &mut said, |query, said| {
        revive(&device, query, policy, next, &mut register, said)
    });
    report(&said);
    for error in losses::told(&said.death.lost, &said.gone) {
        eprintln!("outlive: {error}");
    }
    let mut supervisor = revived?;
    if let Err(error) = query_again(&device) {
        eprintln!("outlive: {error}");
    }
    sys::stand_aside();
    device.mark(Mark::Resumed);
    supervisor.start()?;
    let status = supervisor.run()?;
    Ok(Ended {
        status,
        counts: supervisor.counts,
    })
}

/// The programs go on either way; but that the next panic would end them is told.
fn query_again(device: &Device) -> Result<()> {
    device.query()?.check_sight()
}

/// Everything up to the moment before the first thread runs.
fn revive<'a>(
    device: &Device,
    query: &Query,
    policy: &Policy,
    next: &Next,
    register: &'a mut dyn crate::supervisor::Register,
    said: &mut Report,
) -> std::result::Result<Supervisor<'a>, Fault> {
    let mut image = read(device, query, policy, said)?;
    let (restored, lost) = rebuild(policy, &mut image, next.now)?;
    said.death.lost.extend(lost);
    device.mark(Mark::Restored);
    said.gone = restored.gone.clone();
    let taken = take_over(device, query, policy, next, register, (&image, &restored));
    match taken {
        Ok(mut supervisor) => {
            if image
                .processes
                .iter()
                .all(|process| process.pid != said.death.first)
            {
                supervisor.first_is_lost();
            }
            device.mark(Mark::Armed);
            said.processes = image.processes.len();
            let threads = image.processes.iter().map(|process| process.threads.len());
            said.threads = threads.sum();
            Ok(supervisor)
        }
        Err(error) => {
            restored.kill();
            Err(Fault::Now(error))
        }
    }
}

/// Arms the machine again around restored processes.
fn take_over<'a>(
    device: &Device,
    query: &Query,
    policy: &Policy,
    next: &Next,
    register: &'a mut dyn crate::supervisor::Register,
    (image, restored): (&Image, &Restored),
) -> Result<Supervisor<'a>> {
    let mut supervisor = Supervisor::new(policy.clone(), register)?;
    next.load(device.clock_khz())?;
    supervisor.resume(image, restored)?;
    device.arm()?;
    device.acknowledge(query.generation)?;
    // Not before: until then another attempt may need what is in the journal. From now on
    // nobody does: all threads are at calls that they will make again, or behind them.
    if let Err(error) = supervisor.forget_calls() {
        eprintln!("outlive: {error}");
    }
    Ok(supervisor)
}

/// The image as it can be brought up on this kernel.
fn read(
    keeper: &dyn Keeper,
    query: &Query,
    policy: &Policy,
    said: &mut Report,
) -> std::result::Result<Image, Fault> {
    if query.state == State::GivenUp {
        return Err(Fault::Image(Error::new(
            Code::Corrupt,
            Entity::File(crate::device::PATH.into()),
            format!(
                "the kernel died {} while this image was restored",
                outlive_base::count(query.retries, "time")
            ),
            "start the program again",
        )));
    }
    if query.state == State::Damaged {
        let what = match query.generation {
            0 => "the area's first page does not match its checksum: its images are lost".into(),
            number => format!("image {number} does not match its checksums"),
        };
        return Err(Fault::Image(Error::new(
            Code::Corrupt,
            Entity::File(crate::device::PATH.into()),
            what,
            "boot as usual and start the program again: nothing was restored",
        )));
    }
    let bytes = keeper.image(query)?;
    let judged = |error: Error| match error.code() {
        // A command of the module's release can read it.
        Code::FormatUnknown => Fault::Now(error),
        _ => Fault::Image(error),
    };
    let (release, crc, special) = restore::running_kernel()?;
    let build = std::fs::read_to_string("/proc/sys/kernel/version")
        .map_err(|error| Error::io("/proc/sys/kernel/version", "read", &error))?;
    let kernel = (release.as_str(), build.trim(), crc);
    said.death = area::death(&bytes).map_err(judged)?;
    if !policy.dax && said.death.is_of(kernel) {
        return Err(Fault::Now(Error::new(
            Code::KernelUnready,
            Entity::File(policy.memory.display().to_string()),
            "the directory is not on a DAX file system: the memory of the programs is not here",
            "mount the persistent memory where it was, with -o dax=always",
        )));
    }
    let noted = Journal::noted(&policy.memory);
    let decoded = area::decode(&bytes, kernel, &special, &noted);
    let (death, image) = decoded.map_err(judged)?;
    said.death = death;
    Ok(image)
}

/// A process that cannot be brought up is lost alone.
fn rebuild(
    policy: &Policy,
    image: &mut Image,
    now: bool,
) -> std::result::Result<(Restored, Vec<(i32, String)>), Fault> {
    keep_clocks(policy, image);
    let options = Options {
        numbers: true,
        synchronous: policy.dax,
        filter: filter::program(policy.special, policy.files),
        keep_gate: true,
        ..Options::default()
    };
    let restored = partial::restore(image, &Contents::none(), &options, now);
    restored.map_err(|error| match error.code() {
        Code::Corrupt | Code::ImageForeign => Fault::Image(error),
        _ => Fault::Now(error),
    })
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
mod tests;
