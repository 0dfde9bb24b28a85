//! Shared memory that MPI libraries leave in `/dev/shm` when their ranks are killed: a
//! restarted job would fill it, 8 MB and more each time.
//!
//! While the command runs, the segments that its processes map are noted, by device and
//! inode, also in the job's directory (`segments.json`): if the launcher is killed, the
//! keepers remove them, or the job's next launcher does.
//!
//! Invariants: removed is only what a process of this job was seen to map, what has the name
//! and the inode that it had then, is the user's own, and is mapped and open nowhere any
//! more; the list is believed only with its checksum. `/proc/PID/maps` of a process that hangs in the kernel may hang whoever reads it, so
//! a thread of its own reads, and nobody waits for it without a bound (P5). What goes wrong
//! leaves segments behind and costs nothing else (P9).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use outlive_base::segments::{DIR, Mapped, is_known, mapped};
use outlive_base::{Code, Result};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::layout::SEGMENTS as FILE;
use crate::sealed::{self, Unsound};
use crate::{input, process};

/// Its schema.
const SCHEMA: &str = "outlive.segments/1";
/// Before the first look after the command was started or a rank opened the library, which
/// is mostly after MPI_Init; the time between two doubles ...
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// ... up to this: windows and spawned processes bring more segments.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long a look, before processes are killed, or a removal after it may hold them up.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long keepers whose launcher was killed wait for the ranks to end. The job's next
/// launcher waits for the keepers.
const LEAVE: Duration = Duration::from_secs(10);
/// Most segments that are remembered.
const NOTED_MAX: usize = 1 << 16;

/// Device and inode.
type Id = (u64, u64);

#[derive(Serialize, Deserialize)]
struct Text {
    schema: String,
    /// The boot and so the machine: elsewhere the numbers mean other files.
    boot: String,
    segments: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    device: u64,
    inode: u64,
    name: String,
}

/// What was seen.
#[derive(Debug)]
struct Noted {
    file: PathBuf,
    found: BTreeMap<Id, String>,
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

/// The segments that a process maps, as they can be found from here.
fn of_process(pid: u32) -> Vec<(Id, String)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let id = |one: &Mapped| (rustix::fs::makedev(one.device.0, one.device.1), one.inode);
    let found = mapped(&maps).map(|one| (id(&one), one.name));
    // In a container with a /dev/shm of its own the name means another file.
    found.filter(|(id, name)| is_still(*id, name)).collect()
}

/// True if this user's file of this name is the one that was meant.
fn is_still(id: Id, name: &str) -> bool {
    fs::symlink_metadata(path_of(name)).is_ok_and(|meta| {
        let own = meta.uid() == rustix::process::geteuid().as_raw();
        own && meta.is_file() && (meta.dev(), meta.ino()) == id
    })
}

/// Those of `names` that some process maps or has open.
fn in_use(wanted: &BTreeMap<Id, String>) -> BTreeSet<Id> {
    let mut used = BTreeSet::new();
    let names: BTreeMap<PathBuf, Id> = wanted.iter().map(|(id, n)| (path_of(n), *id)).collect();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        used.extend(of_process(pid).into_iter().map(|(id, _)| id));
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        let links = open
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok());
        used.extend(links.filter_map(|link| names.get(&link).copied()));
    }
    used
}

impl Noted {
    /// As the file in `dir` says: nothing, if there is none or it is of another start of the machine.
    ///
    /// # Errors
    /// [`Code::Corrupt`] or [`Code::FormatUnknown`] if it is not what was written; those of the file
    /// system.
    fn read(dir: &Path) -> Result<Noted> {
        let file = dir.join(FILE);
        let mut found = BTreeMap::new();
        let text = match input::read(&file, input::TEXT_BYTES_MAX) {
            Err(error) if error.code() == Code::NotFound => return Ok(Noted { file, found }),
            read => read?,
        };
        let text: Text = sealed::parse(&text, SCHEMA).map_err(|why: Unsound| {
            why.of(
                &file,
                format!(
                    "what killed ranks left is not removed: look in {DIR} for files of this user's \
                     MPI that nobody has open (fuser), and remove them"
                ),
            )
        })?;
        if text.boot == boot() {
            let known = text.segments.into_iter();
            let known = known.filter(|entry| is_known(&entry.name)).take(NOTED_MAX);
            found.extend(known.map(|entry| ((entry.device, entry.inode), entry.name)));
        }
        Ok(Noted { file, found })
    }

    /// The same; a file that cannot be believed is told and forgotten, and costs what it named.
    fn load(dir: &Path) -> Noted {
        Noted::read(dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "the list of MPI's shared memory");
            let file = dir.join(FILE);
            // Told once: what is mapped still is noted anew.
            let removed = fs::remove_file(&file);
            tracing::debug!(?removed, "damaged");
            let found = BTreeMap::new();
            Noted { file, found }
        })
    }

    fn save(&self) {
        let segment = |(&(device, inode), name): (&Id, &String)| Entry {
            device,
            inode,
            name: name.clone(),
        };
        let text = Text {
            schema: SCHEMA.to_owned(),
            boot: boot(),
            segments: self.found.iter().map(segment).collect(),
        };
        let written = match self.found.is_empty() {
            true => fs::remove_file(&self.file).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            false => sealed::text(&text)
                .and_then(|text| files::write_atomic(&self.file, &text))
                .map_err(std::io::Error::other),
        };
        if let Err(error) = written {
            tracing::info!(%error, "the list of MPI's shared memory is not written");
        }
    }

    /// Notes what these processes map, and remembers it on disk if it is new.
    fn look(&mut self, pids: impl IntoIterator<Item = u32>) {
        let before = self.found.len();
        for (id, name) in pids.into_iter().flat_map(of_process) {
            if self.found.len() < NOTED_MAX {
                self.found.insert(id, name);
            }
        }
        if self.found.len() > before {
            self.save();
        }
    }

    /// Removes what nobody uses any more; true if nothing is left to remove.
    fn sweep(&mut self) -> bool {
        let before = self.found.len();
        if before == 0 {
            return true;
        }
        self.found.retain(|id, name| is_still(*id, name));
        let used = match self.found.is_empty() {
            true => BTreeSet::new(),
            false => in_use(&self.found),
        };
        self.found.retain(|id, name| {
            if used.contains(id) || !is_still(*id, name) {
                return used.contains(id);
            }
            let removed = fs::remove_file(path_of(name));
            tracing::info!(%name, ?removed, "shared memory of killed ranks");
            false
        });
        if self.found.len() < before {
            self.save();
        }
        self.found.is_empty()
    }
}

/// Removes what an earlier run of the job in `dir` left.
pub(crate) fn sweep(dir: &Path) {
    Noted::load(dir).sweep();
}

/// For a keeper at its end: if its launcher was killed, removes what the ranks leave, once
/// they have ended. Bounded.
pub fn after_launcher(dir: &Path, launcher: Option<u32>) {
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    let Some(launcher) = launcher else {
        return;
    };
    // The signal comes when the thread that started the keeper is gone. Until the others are,
    // its process is still the parent.
    if parent == Some(launcher) && !is_dying(launcher) {
        return;
    }
    // One of the keepers is enough.
    let Ok(file) = File::open(dir.join(FILE)) else {
        return;
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let until = Instant::now() + LEAVE;
    while !Noted::load(dir).sweep() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True if a process has ended, or is about to by SIGKILL: its first thread is exiting or
/// has that signal pending.
fn is_dying(pid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    const KILL: u64 = 1 << 8;
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}"));
    let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else {
        return true;
    };
    let pending = status
        .lines()
        .filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok())
        .any(|signals| signals & KILL != 0);
    // After the name, which may contain anything: state, five numbers, flags.
    let mut rest = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let state = rest.next().unwrap_or("X");
    let flags: u64 = rest
        .nth(5)
        .and_then(|word| word.parse().ok())
        .unwrap_or(PF_EXITING);
    pending || matches!(state, "Z" | "X") || flags & PF_EXITING != 0
}

enum Ask {
    /// Look at the command's processes, all below the launcher but these, and at those.
    Look(BTreeSet<u32>, Vec<u32>, Sender<()>),
    /// The processes have ended.
    Sweep(Sender<()>),
}

/// The handle of the thread that looks and removes.
#[derive(Debug)]
pub(crate) struct Segments {
    to: Sender<Ask>,
    /// The next look, and the time until the one after it; `None`: no command runs.
    next: Option<(Instant, Duration)>,
}

impl Segments {
    /// Starts the thread, after it has removed what an earlier run left.
    pub(crate) fn start(dir: &Path) -> Segments {
        let (to, asks) = unbounded();
        let noted = dir.to_owned();
        let work = move || serve(Noted::load(&noted), &asks);
        let thread = std::thread::Builder::new().name("segments".into());
        if let Err(error) = thread.spawn(work) {
            tracing::info!(%error, "MPI's shared memory is not watched");
        }
        Segments { to, next: None }
    }

    /// The command was started, or a rank of it is known: there may be something new.
    pub(crate) fn command_changed(&mut self) {
        let soon = Instant::now() + FIRST_LOOK;
        let at = self.next.map_or(soon, |(at, _)| at.min(soon));
        self.next = Some((at, FIRST_LOOK));
    }

    /// How long until the next look.
    pub(crate) fn due(&self) -> Option<Duration> {
        let (at, _) = self.next?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Looks if it is time to.
    pub(crate) fn press(&mut self, spared: impl FnOnce() -> (BTreeSet<u32>, Vec<u32>)) {
        if let Some((at, after)) = self.next
            && at <= Instant::now()
        {
            let after = (2 * after).min(LOOK_EVERY);
            self.next = Some((Instant::now() + after, after));
            let (spared, more) = spared();
            drop(self.ask(|done| Ask::Look(spared, more, done)));
        }
    }

    /// Processes are about to be killed: looks once more before, bounded.
    pub(crate) fn before_killing(&self, spared: BTreeSet<u32>, more: Vec<u32>) {
        let done = self.ask(|done| Ask::Look(spared, more, done));
        let _ = done.recv_timeout(PATIENCE);
    }

    /// The command's processes have ended: removes what they left, bounded.
    pub(crate) fn command_ended(&mut self) {
        self.next = None;
        let _ = self.ask(Ask::Sweep).recv_timeout(PATIENCE);
    }

    fn ask(&self, ask: impl FnOnce(Sender<()>) -> Ask) -> Receiver<()> {
        let (done, wait) = bounded(1);
        let _ = self.to.send(ask(done));
        wait
    }
}

fn serve(mut noted: Noted, asks: &Receiver<Ask>) {
    noted.sweep();
    for ask in asks {
        let done = match ask {
            Ask::Look(spared, more, done) => {
                let below = process::descendants(std::process::id(), &spared).unwrap_or_default();
                noted.look(below.into_iter().chain(more));
                done
            }
            Ask::Sweep(done) => {
                noted.sweep();
                done
            }
        };
        let _ = done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in /dev/shm, removed at the end.
    struct Segment(String);

    impl Segment {
        fn make() -> Segment {
            let unique = format!("{}_{:?}", std::process::id(), Instant::now());
            let digits: String = unique.chars().filter(char::is_ascii_digit).collect();
            let segment = Segment(format!("mpich_shm_test{digits}"));
            fs::write(segment.path(), [0; 4096]).unwrap();
            segment
        }
        fn path(&self) -> PathBuf {
            path_of(&self.0)
        }
        fn id(&self) -> Id {
            let meta = fs::metadata(self.path()).unwrap();
            (meta.dev(), meta.ino())
        }
        fn map(&self) -> Mapping {
            use rustix::mm::{MapFlags, ProtFlags, mmap};
            let file = File::open(self.path()).unwrap();
            let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
            // SAFETY: a new mapping of a file that is that long.
            Mapping(unsafe { mmap(null, 4096, ProtFlags::READ, flags, &file, 0) }.unwrap())
        }
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.path());
        }
    }

    struct Mapping(*mut std::ffi::c_void);

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped in `map` with this length; nobody else knows the address.
            unsafe { rustix::mm::munmap(self.0, 4096) }.unwrap();
        }
    }

    #[test]
    fn a_process_that_lives_is_not_dying_and_one_that_was_killed_is() {
        assert!(!is_dying(std::process::id()));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!is_dying(child.id()));
        child.kill().unwrap();
        // From the signal on: pending, exiting, a zombie, gone.
        assert!(is_dying(child.id()));
        child.wait().unwrap();
        assert!(is_dying(child.id()));
    }

    #[test]
    fn what_was_mapped_goes_once_nobody_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, strange) = (Segment::make(), Segment::make());
        let mapping = mine.map();
        let mut noted = Noted::load(dir.path());
        noted.look([std::process::id()]);
        assert_eq!(noted.found.get(&mine.id()), Some(&mine.0));
        assert!(!noted.found.contains_key(&strange.id()), "nobody maps it");
        assert!(!noted.sweep() && mine.path().exists(), "it is mapped");
        // As a keeper or the next launcher finds it.
        drop(mapping);
        let open = File::open(mine.path()).unwrap();
        sweep(dir.path());
        assert!(mine.path().exists(), "it is open");
        drop(open);
        sweep(dir.path());
        assert!(!mine.path().exists() && strange.path().exists());
        assert!(!dir.path().join(FILE).exists(), "nothing is left to say");
    }

    #[test]
    fn a_name_that_is_another_file_now_stays() {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::make();
        let mut noted = Noted::load(dir.path());
        let mapping = segment.map();
        noted.look([std::process::id()]);
        drop(mapping);
        // The first stays open, so that its inode is not given away.
        let _first = File::open(segment.path()).unwrap();
        fs::remove_file(segment.path()).unwrap();
        fs::write(segment.path(), b"of a later job").unwrap();
        noted.sweep();
        assert!(segment.path().exists());
        assert!(noted.found.is_empty());
    }

    #[test]
    fn each_damage_to_the_list_is_told_and_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let (one, other) = (Segment::make(), Segment::make());
        let noted = Noted {
            file: file.clone(),
            found: [&one, &other].map(|it| (it.id(), it.0.clone())).into(),
        };
        noted.save();
        let good = fs::read(&file).unwrap();
        let mut random = outlive_base::rng::Sequence::new(outlive_base::seed!(), 0);
        for bytes in crate::harms::harms(&good, &mut random) {
            fs::write(&file, &bytes).unwrap();
            let error = Noted::read(dir.path()).unwrap_err();
            let known = [Code::Corrupt, Code::FormatUnknown].contains(&error.code());
            assert!(known && error.remedy().contains(DIR), "{error}");
        }
        sweep(dir.path());
        assert!(one.path().exists() && other.path().exists());
        assert!(!file.exists(), "told once");
        // As a version before this one wrote it: nobody maps them.
        let text: Text = serde_json::from_slice(&good).unwrap();
        fs::write(&file, serde_json::to_vec(&text).unwrap()).unwrap();
        sweep(dir.path());
        assert!(!one.path().exists() && !other.path().exists());
    }

    #[test]
    fn a_list_of_another_machine_or_with_other_names_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::make();
        let (device, inode) = segment.id();
        let text = |boot: String, name: &str| {
            let name = name.to_owned();
            let segments = vec![Entry {
                device,
                inode,
                name,
            }];
            let schema = SCHEMA.to_owned();
            let text = Text {
                schema,
                boot,
                segments,
            };
            fs::write(dir.path().join(FILE), serde_json::to_vec(&text).unwrap()).unwrap();
        };
        let roundabout = format!("../shm/{}", segment.0);
        for (boot, name) in [("elsewhere".to_owned(), &segment.0), (boot(), &roundabout)] {
            text(boot, name);
            sweep(dir.path());
            assert!(segment.path().exists());
        }
        text(boot(), &segment.0);
        sweep(dir.path());
        assert!(!segment.path().exists());
    }
}
