//! The module's device, `/dev/outlive-minickpt`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use outlive_base::{Code, Entity, Error, Result};

use crate::supervisor::Register;
use crate::sys;

/// Where it is.
pub const PATH: &str = "/dev/outlive-minickpt";
const VERSION: u32 = 1;
const QUERY: u64 = 0x8050_4b40;
const REGISTER: u64 = 0x4018_4b41;
const UNREGISTER: u64 = 0x4004_4b42;
const ACK: u64 = 0x4008_4b43;
const ARM: u64 = 0x4004_4b44;
const MARK: u64 = 0x4010_4b45;
const ATTEMPT: u64 = 0x8004_4b48;
const CLOCK: u64 = 0x8004_4b49;
const LOOK: u64 = 0xc048_4b4a;
const MARKS_AT: u64 = 4096;
/// An image is at most this long, in bytes.
const IMAGE_MAX: u64 = 1 << 30;

/// State of the newest image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There is none.
    Empty,
    /// It is to be restored.
    Ready,
    /// It was dealt with.
    Done,
    /// It is not whole.
    Damaged,
    /// It is of another kernel build.
    Foreign,
    /// Too many panics happened during its restore.
    GivenUp,
}

/// What the module says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Query {
    /// State of the newest image.
    pub state: State,
    /// Its number.
    pub generation: u64,
    /// Where it starts in the area.
    pub image_at: u64,
    /// Its bytes.
    pub image_bytes: u64,
    /// Processes that are kept.
    pub registered: u32,
    /// True if a panic is caught.
    pub armed: bool,
    /// True if kprobes do not fire: what runs on another processor at a panic is lost.
    pub blind: bool,
    /// Panics during the restore of this image.
    pub retries: u32,
    /// Panics since the area was formatted.
    pub panics: u32,
}

/// Points of the last survival, in ms since the panic; 0 if not reached.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Times {
    /// The image was complete.
    pub saved_ms: f64,
    /// The next kernel's clock started.
    pub kernel_ms: f64,
    /// The module was loaded in it.
    pub module_ms: f64,
    /// The protected file system was there.
    pub files_ms: f64,
    /// All processes were rebuilt.
    pub restored_ms: f64,
    /// The next kernel was loaded, the processes registered.
    pub armed_ms: f64,
    /// The first thread ran.
    pub resumed_ms: f64,
}

/// A point to mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mark {
    /// The protected file system is there.
    Files = 4,
    /// All processes are rebuilt.
    Restored = 5,
    /// The next kernel is loaded, the processes are registered.
    Armed = 6,
    /// The first thread runs.
    Resumed = 7,
}

/// What a restore needs of the module.
pub trait Keeper {
    /// What it says of itself.
    ///
    /// # Errors
    /// Of the device.
    fn query(&self) -> Result<Query>;
    /// The bytes of the newest image.
    ///
    /// # Errors
    /// Of the device.
    fn image(&self, query: &Query) -> Result<Vec<u8>>;
    /// The newest image was dealt with: restored or given up.
    ///
    /// # Errors
    /// Of the device.
    fn acknowledge(&self, generation: u64) -> Result<()>;
    /// One more attempt to restore this image failed and left it; how many have. They
    /// are told, not bounded: other than a panic, a failed attempt harms nothing.
    ///
    /// # Errors
    /// Of the device.
    fn attempted(&self) -> Result<u32>;
}

/// The open device.
#[derive(Debug)]
pub struct Device(File);

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn failed(doing: &str, error: &io::Error) -> Error {
    let (code, remedy) = match error.raw_os_error() {
        Some(libc::EINVAL) => (Code::KernelUnready, "use module and command of one release"),
        Some(libc::ENOSPC) => (Code::KernelUnready, "fewer processes: the module keeps 64"),
        Some(libc::EPERM | libc::EACCES) => (Code::Permission, "run it as root"),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => (
            Code::KernelUnready,
            "load the module: outlive minickpt setup says how",
        ),
        _ => (Code::Io, "see the kernel's log"),
    };
    Error::new(
        code,
        Entity::File(PATH.into()),
        format!("{doing}: {error}"),
        remedy,
    )
}

impl Query {
    /// Refuses a kernel that could not save what runs.
    ///
    /// # Errors
    /// [`Code::KernelUnready`].
    pub fn check_sight(&self) -> Result<()> {
        if !self.blind {
            return Ok(());
        }
        Err(Error::new(
            Code::KernelUnready,
            Entity::File(PATH.into()),
            "kprobes are switched off in this kernel: programs that run at a panic would be lost",
            "write 1 to /sys/kernel/debug/kprobes/enabled and to /proc/sys/kernel/ftrace_enabled",
        ))
    }
}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// [`Code::KernelUnready`] if the module is not loaded or of another version.
    pub fn open() -> Result<Device> {
        let file = File::options().read(true).write(true).open(PATH);
        let device = Device(file.map_err(|error| failed("open", &error))?);
        device.query()?;
        Ok(device)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// [`Code::KernelUnready`] for another version.
    pub fn query(&self) -> Result<Query> {
        let mut bytes = [0; 80];
        sys::control(&self.0, QUERY, &mut bytes).map_err(|error| failed("query", &error))?;
        if word(&bytes, 0) != VERSION {
            return Err(failed("query", &io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let state = match word(&bytes, 4) {
            0 => State::Empty,
            1 => State::Ready,
            2 => State::Done,
            4 => State::Foreign,
            5 => State::GivenUp,
            _ => State::Damaged,
        };
        Ok(Query {
            state,
            generation: long(&bytes, 8),
            image_at: long(&bytes, 32),
            image_bytes: long(&bytes, 40),
            registered: word(&bytes, 48),
            armed: word(&bytes, 52) & 1 != 0,
            blind: word(&bytes, 52) & 2 != 0,
            retries: word(&bytes, 56),
            panics: word(&bytes, 60),
        })
    }

    /// The bytes of the newest image.
    ///
    /// # Errors
    /// Of the device.
    pub fn image(&self, query: &Query) -> Result<Vec<u8>> {
        if query.image_bytes > IMAGE_MAX {
            return Err(failed("read", &io::ErrorKind::InvalidData.into()));
        }
        let mut bytes = vec![0; query.image_bytes as usize];
        let read = self.0.read_exact_at(&mut bytes, query.image_at);
        read.map_err(|error| failed("read", &error))?;
        Ok(bytes)
    }

    /// The newest image was dealt with.
    ///
    /// # Errors
    /// Of the device.
    pub fn acknowledge(&self, generation: u64) -> Result<()> {
        let mut bytes = generation.to_le_bytes();
        sys::control(&self.0, ACK, &mut bytes).map_err(|error| failed("acknowledge", &error))
    }

    /// Catches panics from now on.
    ///
    /// # Errors
    /// Of the device.
    pub fn arm(&self) -> Result<()> {
        let mut bytes = 1u32.to_le_bytes();
        sys::control(&self.0, ARM, &mut bytes).map_err(|error| failed("arm", &error))
    }

    /// Marks a point in time, now. A mark is for the report only: a failure is none.
    pub fn mark(&self, mark: Mark) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&(mark as u32).to_le_bytes());
        let _ = sys::control(&self.0, MARK, &mut bytes);
    }

    /// How a special descriptor of this process would be saved: kind, flags, values; `None` if it
    /// would not be.
    ///
    /// # Errors
    /// Of the device.
    pub fn look(&self, fd: i32) -> io::Result<Option<(u32, u32, [u64; 4])>> {
        let mut bytes = [0; 72];
        bytes[..4].copy_from_slice(&fd.to_le_bytes());
        match sys::control(&self.0, LOOK, &mut bytes) {
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => return Ok(None),
            other => other?,
        }
        let value = [24, 32, 40, 48].map(|at| long(&bytes, at));
        Ok(Some((word(&bytes, 16), word(&bytes, 20), value)))
    }

    /// kHz of the time stamp counter as the running kernel knows it.
    pub fn clock_khz(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        // Without it the next kernel measures for itself.
        sys::control(&self.0, CLOCK, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes)).filter(|khz| *khz > 0)
    }

    /// The times of the last survival; `None` if there was none.
    ///
    /// # Errors
    /// Of the device.
    pub fn times(&self) -> Result<Option<Times>> {
        let mut bytes = [0; 160];
        let read = self.0.read_exact_at(&mut bytes, MARKS_AT);
        read.map_err(|error| failed("read", &error))?;
        let (start, khz) = (long(&bytes, 16), long(&bytes, 144));
        if long(&bytes, 8) == 0 || start == 0 || khz == 0 {
            return Ok(None);
        }
        let since = |mark: usize| {
            let ticks = long(&bytes, 16 + mark * 8).saturating_sub(start);
            ticks as f64 / khz as f64
        };
        Ok(Some(Times {
            saved_ms: since(1),
            kernel_ms: since(2),
            module_ms: since(3),
            files_ms: since(4),
            restored_ms: since(5),
            armed_ms: since(6),
            resumed_ms: since(7),
        }))
    }
}

impl Keeper for Device {
    fn query(&self) -> Result<Query> {
        Device::query(self)
    }

    fn image(&self, query: &Query) -> Result<Vec<u8>> {
        Device::image(self, query)
    }

    fn acknowledge(&self, generation: u64) -> Result<()> {
        Device::acknowledge(self, generation)
    }

    fn attempted(&self) -> Result<u32> {
        let mut bytes = [0; 4];
        let counted = sys::control(&self.0, ATTEMPT, &mut bytes);
        counted.map_err(|error| failed("count an attempt", &error))?;
        Ok(u32::from_le_bytes(bytes))
    }
}

impl Register for &Device {
    fn add(&mut self, pid: i32) -> Result<()> {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[4..8].copy_from_slice(&pid.to_le_bytes());
        match sys::control(&self.0, REGISTER, &mut bytes) {
            // After an exec it is still the same process.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other.map_err(|error| failed(&format!("register process {pid}"), &error)),
        }
    }

    fn remove(&mut self, pid: i32) {
        // It has ended: if the module knows no such process, all is well.
        let _ = sys::control(&self.0, UNREGISTER, &mut pid.to_le_bytes());
    }
}
