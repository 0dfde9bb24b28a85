//! Events of the kernel's tracer, in an instance of our own: nobody else's trace is touched,
//! and the instance goes when it is dropped. One that a killed process left goes when the next
//! measurement begins: a living one has a file open in its instance, which the kernel then
//! refuses to remove.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where tracefs is mounted.
pub const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The most text of a trace that is read.
pub const BYTES_MAX: u64 = 128 << 20;
/// Memory of the ring, KiB a core; only the measured core records.
const RING_KIB: u32 = 16 << 10;
/// What is recorded; what a kernel lacks is left out.
const EVENTS: [&str; 17] = [
    "sched/sched_switch",
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "irq_vectors/local_timer_entry",
    "irq_vectors/local_timer_exit",
    "irq_vectors/reschedule_entry",
    "irq_vectors/reschedule_exit",
    "irq_vectors/call_function_entry",
    "irq_vectors/call_function_exit",
    "irq_vectors/call_function_single_entry",
    "irq_vectors/call_function_single_exit",
    "irq_vectors/irq_work_entry",
    "irq_vectors/irq_work_exit",
    "timer/hrtimer_expire_entry",
    "timer/hrtimer_expire_exit",
];

/// How the names of our instances begin.
const PREFIX: &str = "outlive-";

/// Removes instances of ours that nobody holds.
fn remove_left(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            // One in use stays: the kernel says that it is busy.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A running trace of one core.
#[derive(Debug)]
pub struct Tracer {
    directory: PathBuf,
    /// Keeps others from taking the instance for one that was left.
    held: Option<fs::File>,
    core: u32,
}

/// What a trace gave.
#[derive(Debug)]
pub struct Recorded {
    /// Its lines.
    pub text: String,
    /// Events that the ring had no room for, or lines beyond what is read: the earliest, or
    /// the last, are missing.
    pub lost: u64,
}

impl Tracer {
    /// Starts to record `core`; the reason in words if that cannot be.
    ///
    /// # Errors
    /// What is missing, and what would help.
    pub fn start(roots: &[&str], core: u32) -> Result<Tracer, String> {
        let mounted = |root: &&&str| Path::new(root).join("instances").is_dir();
        let Some(root) = roots.iter().find(mounted) else {
            let help = "as root: mount -t tracefs tracefs /sys/kernel/tracing";
            return Err(format!("tracefs is not mounted or not readable ({help})"));
        };
        let instances = Path::new(root).join("instances");
        remove_left(&instances);
        let directory = instances.join(format!("{PREFIX}{}-{core}", std::process::id()));
        fs::create_dir(&directory)
            .map_err(|error| format!("{}: {error} (tracing needs root)", directory.display()))?;
        let held = fs::File::open(directory.join("tracing_on")).ok();
        let tracer = Tracer {
            directory,
            held,
            core,
        };
        tracer.arm()?;
        Ok(tracer)
    }

    fn arm(&self) -> Result<(), String> {
        let word = self.core / 32;
        let groups = (0..word).map(|_| ",00000000");
        let mask = format!(
            "{:x}{}",
            1u32 << (self.core % 32),
            groups.collect::<String>()
        );
        self.write("tracing_on", "0")?;
        self.write("trace_clock", "mono")?;
        self.write("buffer_size_kb", &RING_KIB.to_string())?;
        self.write("tracing_cpumask", &mask)?;
        let armed = EVENTS
            .iter()
            .filter(|event| self.write(&format!("events/{event}/enable"), "1").is_ok());
        if armed.count() == 0 {
            return Err("the kernel has none of the events".to_owned());
        }
        self.write("tracing_on", "1")
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Stops and reads.
    ///
    /// # Errors
    /// What could not be read.
    pub fn stop(self) -> Result<Recorded, String> {
        self.write("tracing_on", "0")?;
        let path = self.directory.join("trace");
        let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = fs::File::open(&path).map_err(wrong)?;
        let mut bytes = Vec::new();
        let read = file
            .take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(wrong)?;
        let stats = self
            .directory
            .join(format!("per_cpu/cpu{}/stats", self.core));
        let stats = fs::read_to_string(stats).unwrap_or_default();
        let counts = ["overrun:", "dropped events:"].map(|key| {
            let line = stats.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|count| count.trim().parse::<u64>().ok())
                .unwrap_or(0)
        });
        Ok(Recorded {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            lost: counts.iter().sum::<u64>() + u64::from(read as u64 == BYTES_MAX),
        })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.held = None;
        // In tracefs an instance is removed with all that seems to be in it.
        let _ = fs::write(self.directory.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tracefs_the_reason_and_the_remedy_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let reason = Tracer::start(&[root], 0).unwrap_err();
        assert!(reason.contains("not mounted") && reason.contains("mount -t tracefs"));
        // A directory that has instances and no events is no tracefs either.
        fs::create_dir(dir.path().join("instances")).unwrap();
        let reason = Tracer::start(&[root], 0).unwrap_err();
        assert!(reason.contains("none of the events"), "{reason}");
    }

    #[test]
    fn only_instances_of_ours_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["outlive-7-0", "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_left(dir.path());
        assert!(!dir.path().join("outlive-7-0").exists());
        assert!(dir.path().join("other").exists());
    }
}
