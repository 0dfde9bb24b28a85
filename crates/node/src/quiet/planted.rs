//! A machine made of files, for tests. It refuses what it is told to refuse, lets files vanish, reads
//! back other values than were written, and makes control groups as the kernel does.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::tree::{Tree, names_at, read_at};
use crate::cpus::Cpus;

pub struct Planted {
    dir: tempfile::TempDir,
    /// Writes to these fail.
    pub refused: RefCell<BTreeSet<String>>,
    /// Written to, they read so.
    pub reads_back: RefCell<BTreeMap<String, String>>,
    /// They are gone at the next write to anything.
    pub vanishing: RefCell<BTreeSet<String>>,
    pub writable: Cell<bool>,
}

/// What a new group of cores has in it, in both versions together.
const GROUP: [(&str, &str); 6] = [
    ("cgroup.procs", ""),
    ("cpuset.cpus", ""),
    ("cpuset.mems", ""),
    ("cpuset.cpu_exclusive", "0"),
    ("cpuset.sched_load_balance", "1"),
    ("cpuset.cpus.partition", "member"),
];

const MOUNTS: &str = "\
30 20 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
31 20 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
";

/// Thousands of runs, each of which waits for the disk at each step, are for memory.
pub fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

impl Planted {
    /// Four cores; groups of this version, none for 0.
    pub fn new(version: u32) -> Planted {
        let planted = Planted {
            dir: in_memory(),
            refused: RefCell::default(),
            reads_back: RefCell::default(),
            vanishing: RefCell::default(),
            writable: Cell::new(true),
        };
        for (path, text) in [
            ("sys/devices/system/cpu/present", "0-4"),
            ("sys/devices/system/cpu/online", "0-3"),
            ("proc/irq/default_smp_affinity", "f"),
            ("proc/irq/24/smp_affinity_list", "0-3"),
            ("proc/irq/25/smp_affinity_list", "3"),
            ("proc/irq/26/smp_affinity_list", "0"),
            ("sys/devices/virtual/workqueue/cpumask", "f"),
            (
                "sys/devices/virtual/workqueue/writeback/cpumask",
                "0000000f",
            ),
            ("proc/sys/kernel/watchdog_cpumask", "0-3"),
            ("proc/sys/vm/stat_interval", "1"),
            ("proc/sys/vm/swappiness", "60"),
            ("proc/swaps", "Filename Type\n/dev/sda2 partition\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000"),
            ("sys/kernel/rcu_normal", "0"),
            (
                "sys/devices/system/cpu/cpu3/cpufreq/scaling_available_governors",
                "performance powersave",
            ),
            (
                "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor",
                "powersave",
            ),
            ("sys/devices/system/cpu/cpu3/cpuidle/state0/latency", "1"),
            ("sys/devices/system/cpu/cpu3/cpuidle/state0/disable", "0"),
            ("sys/devices/system/cpu/cpu3/cpuidle/state1/latency", "100"),
            ("sys/devices/system/cpu/cpu3/cpuidle/state1/disable", "0"),
            ("proc/cmdline", "quiet nohz_full=3"),
            ("proc/sys/kernel/random/boot_id", "boot-1"),
        ] {
            planted.plant(path, text);
        }
        if version > 0 {
            let mounts: Vec<&str> = MOUNTS.lines().collect();
            planted.plant("proc/self/mountinfo", mounts[2 - version as usize]);
            let base = ["sys/fs/cgroup/cpuset", "sys/fs/cgroup"][version as usize - 1];
            for (name, text) in GROUP {
                planted.plant(&format!("{base}/{name}"), text);
            }
            planted.plant(&format!("{base}/cpuset.mems"), "0");
            planted.plant(&format!("{base}/cgroup.controllers"), "cpu cpuset io");
            planted.plant(&format!("{base}/cgroup.subtree_control"), "cpu io");
        }
        // Of the kernel: one that can be moved, one that cannot; two programs.
        planted.thread(2, 2, 0, "rcu_preempt", 0x0020_8040, 5, "0-3");
        planted.thread(9, 9, 2, "ksoftirqd/3", 0x0420_8040, 5, "3");
        planted.thread(70, 70, 1, "a (b) c", 0x0040_0000, 50, "0-3");
        planted.thread(70, 71, 1, "worker", 0x0040_0000, 51, "2-3");
        planted.thread(80, 80, 1, "outlive", 0x0040_0000, 90, "0-3");
        planted
    }

    pub fn plant(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    #[allow(clippy::too_many_arguments)]
    pub fn thread(
        &self,
        pid: u32,
        tid: u32,
        parent: u32,
        name: &str,
        flags: u64,
        start: u64,
        allowed: &str,
    ) {
        let base = format!("proc/{pid}/task/{tid}");
        let zeroes = "0 ".repeat(12);
        let stat = format!("{tid} ({name}) S {parent} 0 0 0 0 {flags} {zeroes}{start} 0");
        self.plant(&format!("{base}/stat"), &stat);
        let status = format!("Name:\t{name}\nCpus_allowed_list:\t{allowed}\n");
        self.plant(&format!("{base}/status"), &status);
    }

    pub fn drop_thread(&self, pid: u32) {
        fs::remove_dir_all(self.dir.path().join(format!("proc/{pid}"))).unwrap();
    }

    /// Every file, and its text without blanks at its ends.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        fn walk(base: &Path, at: &Path, found: &mut BTreeMap<String, String>) {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(base).unwrap().display().to_string();
                if path.is_dir() {
                    found.insert(name, String::new());
                    walk(base, &path, found);
                } else {
                    let text = fs::read_to_string(&path).unwrap();
                    found.insert(name, text.trim().to_owned());
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(self.dir.path(), self.dir.path(), &mut found);
        found
    }
}

impl Tree for Planted {
    fn read(&self, path: &str) -> io::Result<String> {
        read_at(&self.dir.path().join(path))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        for path in std::mem::take(&mut *self.vanishing.borrow_mut()) {
            fs::remove_file(self.dir.path().join(path)).unwrap();
        }
        if self.refused.borrow().contains(path) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let to = self.dir.path().join(path);
        let before = fs::read_to_string(&to)?;
        if path.ends_with("cgroup.procs") {
            return Ok(());
        }
        let value = if path.ends_with("subtree_control") {
            let name = &value[1..];
            let mut words: Vec<&str> = before
                .split_whitespace()
                .filter(|word| *word != name)
                .collect();
            words.extend(value.starts_with('+').then_some(name));
            words.join(" ")
        } else {
            value.to_owned()
        };
        let value = self.reads_back.borrow().get(path).cloned().unwrap_or(value);
        fs::write(to, format!("{value}\n"))
    }

    fn names(&self, path: &str) -> Vec<String> {
        names_at(&self.dir.path().join(path))
    }

    fn make(&self, path: &str) -> io::Result<()> {
        if self.refused.borrow().contains(path) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        fs::create_dir(self.dir.path().join(path))?;
        for (name, text) in GROUP {
            self.plant(&format!("{path}/{name}"), text);
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_dir_all(self.dir.path().join(path))
    }

    fn writable(&self, _: &str) -> bool {
        self.writable.get()
    }

    fn confine(&self, pid: u32, tid: u32, cpus: &Cpus) -> io::Result<()> {
        let path = format!("proc/{pid}/task/{tid}/status");
        let text = self.read(&path)?;
        if self.refused.borrow().contains(&path) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let head = text.lines().next().unwrap_or_default();
        let text = format!("{head}\nCpus_allowed_list:\t{cpus}\n");
        fs::write(self.dir.path().join(path), text)
    }
}
