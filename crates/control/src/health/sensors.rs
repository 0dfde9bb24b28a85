//! The table of sensors.

use core::fmt;
use std::str::FromStr;

use outlive_base::Time;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // `SensorRow::what` says it
pub enum Sensor {
    CpuSteal,
    CpuPressure,
    MemoryPressure,
    IoPressure,
    MemoryAvailable,
    MajorFaults,
    OomKills,
    MemoryCorrupted,
    EccCorrected,
    EccUncorrected,
    MachineChecks,
    Throttling,
    Temperature,
    DiskErrors,
    DiskSmart,
    FilesystemErrors,
    FilesystemReadOnly,
    StorageFree,
    StorageInodes,
    NetworkErrors,
    NetworkDrops,
    NetworkCarrier,
    LinkSymbolErrors,
    LinkDowned,
    ClockUnsynchronised,
    ClockError,
    ClockJump,
}

/// How what is read is compared with the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judged {
    /// As it is; much is bad.
    High,
    /// As it is; little is bad.
    Low,
    /// A counter, by what is added in a second.
    PerSecond,
    /// A counter, by what was added in this time, as far as it was watched.
    Added(Time),
    /// By how far it went from one reading to the next, up or down.
    Jump,
}

impl Judged {
    /// True for what only rises until it is reset.
    pub const fn is_counter(self) -> bool {
        matches!(self, Judged::PerSecond | Judged::Added(_))
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct SensorRow {
    /// Which.
    pub sensor: Sensor,
    /// Its name in settings and JSON.
    pub name: &'static str,
    /// The unit of what is compared with the limits; empty: a number.
    pub unit: &'static str,
    /// How it is judged.
    pub judged: Judged,
    /// From here on a warning, if nothing else is set.
    pub warning: Option<f64>,
    /// From here on failing, if nothing else is set.
    pub failing: Option<f64>,
    /// What it is, for people.
    pub what: &'static str,
    /// Why the limits are what they are.
    pub why: &'static str,
}

const HOUR: Judged = Judged::Added(Time::from_secs(3_600));
const DAY: Judged = Judged::Added(Time::from_secs(86_400));

/// Limits as they are written: warning, failing.
type Pair = (Option<f64>, Option<f64>);

const fn warns(warning: f64) -> Pair {
    (Some(warning), None)
}

const fn both(warning: f64, failing: f64) -> Pair {
    (Some(warning), Some(failing))
}

const fn fails(failing: f64) -> Pair {
    (None, Some(failing))
}

const fn row(
    sensor: Sensor,
    (name, unit): (&'static str, &'static str),
    judged: Judged,
    limits: Pair,
    what: &'static str,
    why: &'static str,
) -> SensorRow {
    SensorRow {
        sensor,
        name,
        unit,
        judged,
        warning: limits.0,
        failing: limits.1,
        what,
        why,
    }
}

/// All sensors, in the order of [`Sensor`].
#[rustfmt::skip] // a table
pub const ALL: [SensorRow; 27] = [
    row(Sensor::CpuSteal, ("cpu-steal", "%"), Judged::PerSecond, both(10.0, 50.0),
        "time that the hypervisor took from the processors",
        "a tenth is the usual alert for a noisy neighbour; at half the node is half a node"),
    row(Sensor::CpuPressure, ("cpu-pressure", "%"), Judged::High, warns(50.0),
        "time in which something that could run waited for a processor (PSI, last minute)",
        "ranks that have a core each do not wait; half the time, and cores are shared"),
    row(Sensor::MemoryPressure, ("memory-pressure", "%"), Judged::High, both(10.0, 60.0),
        "time in which all that could run waited for memory (PSI full, last minute)",
        "systemd-oomd begins to kill at 60 %"),
    row(Sensor::IoPressure, ("io-pressure", "%"), Judged::High, warns(60.0),
        "time in which all that could run waited for input or output (PSI full, last minute)",
        "a checkpoint alone makes pressure for seconds; most of a minute is more than that"),
    row(Sensor::MemoryAvailable, ("memory-available", "%"), Judged::Low, both(5.0, 1.0),
        "memory that programs can still have, of all",
        "below a hundredth the next large allocation is an out-of-memory kill"),
    row(Sensor::MajorFaults, ("major-faults", "per second"), Judged::PerSecond, warns(1_000.0),
        "pages that had to be read from disk before a program went on",
        "the usual alert: programs are being paged, not computing"),
    row(Sensor::OomKills, ("oom-kills", "in 1 h"), HOUR, warns(1.0),
        "processes that the kernel killed for want of memory",
        "each may have been one that the job needs"),
    row(Sensor::MemoryCorrupted, ("memory-corrupted", "KiB"), Judged::High, warns(1.0),
        "memory that the kernel has taken out of use because it is broken",
        "one page is a symptom; the kernel has dealt with it"),
    row(Sensor::EccCorrected, ("ecc-corrected", "in 24 h"), DAY, warns(10.0),
        "memory errors that were corrected, of each module",
        "mcelog's threshold of a module; such modules are far more likely to fail within a month \
         (Schroeder et al., 2009)"),
    row(Sensor::EccUncorrected, ("ecc-uncorrected", ""), Judged::High, fails(1.0),
        "memory errors that could not be corrected, since the driver was loaded",
        "data were lost; the next may take the node"),
    row(Sensor::MachineChecks, ("machine-checks", ""), Judged::High, both(1.0, 10.0),
        "machine-check exceptions that the kernel survived, since it was booted",
        "the hardware interrupted the kernel for an error of its own"),
    row(Sensor::Throttling, ("throttling", "in 1 h"), HOUR, warns(10.0),
        "times at which a processor slowed down for its temperature",
        "one slow node slows down all ranks; a few come with a change of load"),
    row(Sensor::Temperature, ("temperature", "K below critical"), Judged::Low, both(5.0, 0.0),
        "how far a temperature is below its critical limit, as the hardware names it",
        "at the limit hardware switches itself off"),
    row(Sensor::DiskErrors, ("disk-errors", "in 24 h"), DAY, both(1.0, 100.0),
        "commands of a disk that ended in an error",
        "a healthy disk has none"),
    row(Sensor::DiskSmart, ("disk-smart", ""), Judged::High, fails(1.0),
        "critical warnings of an NVMe device (a sum of bits)",
        "the device itself says that it is failing, worn out or read-only"),
    row(Sensor::FilesystemErrors, ("filesystem-errors", ""), Judged::High, warns(1.0),
        "errors that a file system (ext4) has noted since it was checked",
        "it is damaged until it is checked; since when is not known"),
    row(Sensor::FilesystemReadOnly, ("filesystem-read-only", ""), Judged::High, fails(1.0),
        "1: a file system that was made read-only by an error, or that of the node's storage",
        "nothing can be written there"),
    row(Sensor::StorageFree, ("storage-free", "%"), Judged::Low, both(5.0, 1.0),
        "free space where the node's storage lies",
        "the next version may find no room"),
    row(Sensor::StorageInodes, ("storage-inodes", "%"), Judged::Low, both(5.0, 1.0),
        "files that can still be made where the node's storage lies",
        "as for space"),
    row(Sensor::NetworkErrors, ("network-errors", "in 1 h"), HOUR, both(100.0, 100_000.0),
        "packets of an interface that were damaged or could not be sent",
        "a sound link has a handful in its life"),
    row(Sensor::NetworkDrops, ("network-drops", "per second"), Judged::PerSecond, warns(100.0),
        "packets that an interface dropped",
        "some are of no interest to anybody (unknown protocols); a hundred a second cost speed"),
    row(Sensor::NetworkCarrier, ("network-carrier", "in 1 h"), HOUR, both(2.0, 20.0),
        "times at which an interface lost or found its carrier",
        "once down and up again is a cable that was touched; ten times is one that is broken"),
    row(Sensor::LinkSymbolErrors, ("link-symbol-errors", "in 1 h"), HOUR, warns(10.0),
        "symbol errors of an InfiniBand port",
        "ten an hour is what the InfiniBand specification's bit error rate allows"),
    row(Sensor::LinkDowned, ("link-downed", "in 24 h"), DAY, both(1.0, 10.0),
        "times at which an InfiniBand port could not recover its link",
        "each breaks connections"),
    row(Sensor::ClockUnsynchronised, ("clock-unsynchronised", ""), Judged::High, warns(1.0),
        "1: nobody keeps the clock in step with others",
        "logs of several nodes cannot be compared; Outlive's own protocols need no common clock"),
    row(Sensor::ClockError, ("clock-error", "ms"), Judged::High, warns(100.0),
        "by how much the kernel thinks that the clock may be wrong",
        "a tenth of a second is a thousand times what NTP reaches in a local network"),
    row(Sensor::ClockJump, ("clock-jump", "s"), Judged::Jump, warns(0.5),
        "by how much the time of day was set, beside the clock that nobody sets",
        "a clock that is kept in step is slewed, not set"),
];

impl Sensor {
    /// Its row of the table.
    pub const fn kind(self) -> &'static SensorRow {
        &ALL[self as usize]
    }
}

impl fmt::Display for Sensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name)
    }
}

impl FromStr for Sensor {
    type Err = ();

    fn from_str(text: &str) -> Result<Sensor, ()> {
        let found = ALL.iter().find(|kind| kind.name == text);
        found.map(|kind| kind.sensor).ok_or(())
    }
}

/// What was read of a sensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Which.
    pub sensor: Sensor,
    /// Of which part of the machine, for example `eth0`; empty: there is only one.
    pub source: String,
    /// What it says, or why it is not known. Counters as they stand.
    pub value: Result<f64, String>,
}

impl Sample {
    /// A value.
    pub fn of(sensor: Sensor, source: impl Into<String>, value: f64) -> Sample {
        Sample {
            sensor,
            source: source.into(),
            value: Ok(value),
        }
    }

    /// Something that is there and cannot be read.
    pub fn unknown(sensor: Sensor, source: impl Into<String>, why: impl Into<String>) -> Sample {
        Sample {
            sensor,
            source: source.into(),
            value: Err(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_sensors_and_their_limits_make_sense() {
        for (at, kind) in ALL.iter().enumerate() {
            assert_eq!(kind.sensor as usize, at, "{}", kind.name);
            assert_eq!(kind.name.parse(), Ok(kind.sensor));
            let json = serde_json::to_string(&kind.sensor).unwrap();
            assert_eq!(json, format!("\"{}\"", kind.name));
            assert!(kind.warning.is_some() || kind.failing.is_some());
            if let (Some(warning), Some(failing)) = (kind.warning, kind.failing) {
                let worse = match kind.judged {
                    Judged::Low => failing < warning,
                    _ => failing > warning,
                };
                assert!(worse, "{}", kind.name);
            }
        }
    }
}
