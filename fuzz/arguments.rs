//! Arguments of the C interface: whatever a program passes that the header allows, a call gives a
//! code that the header names, writes no byte beyond what it was given, and never panics. Calls and
//! arguments are read from bytes.
#![allow(dead_code, clippy::unwrap_used)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

// So that it is linked: its functions are declared below, as C programs see them.
use outlive as _;

type Job = c_void;

// What a C program sees of the library; the types are those of `outlive.h`.
unsafe extern "C" {
    fn outlive_open(options: *const u8, job: *mut *mut Job) -> c_int;
    fn outlive_protect(job: *mut Job, name: *const c_char, data: *mut u8, bytes: usize) -> c_int;
    fn outlive_unprotect(job: *mut Job, name: *const c_char) -> c_int;
    fn outlive_restore(job: *mut Job, version: *mut u64) -> c_int;
    fn outlive_query(job: *mut Job, name: *const c_char, bytes: *mut usize) -> c_int;
    fn outlive_checkpoint(job: *mut Job, version: u64) -> c_int;
    fn outlive_checkpoint_now(job: *mut Job, version: u64) -> c_int;
    fn outlive_wanted(job: *mut Job, version: u64) -> c_int;
    fn outlive_wait(job: *mut Job, version: u64, survives: c_int, timeout_ms: u32) -> c_int;
    fn outlive_route(
        job: *mut Job,
        version: u64,
        name: *const c_char,
        path: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn outlive_status(job: *mut Job, status: *mut u8) -> c_int;
    fn outlive_level(job: *mut Job, index: u32, level: *mut u8) -> c_int;
    fn outlive_close(job: *mut *mut Job) -> c_int;
    fn outlive_strerror(code: c_int) -> *const c_char;
    fn outlive_last_error(job: *mut Job, text: *mut c_char, capacity: usize) -> usize;
}

/// Takes arguments from bytes; zeroes when they are used up.
struct Given<'a>(&'a [u8]);

impl Given<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            2 => 1 << (self.byte() % 64),
            _ => (0..8).fold(0, |sum, _| sum << 8 | u64::from(self.byte())),
        }
    }

    /// A string as C has it, or none: any bytes, also such as are no UTF-8, and long ones.
    fn text(&mut self) -> Option<CString> {
        let length = match self.byte() {
            0 => return None,
            byte @ 1..=200 => usize::from(byte % 12),
            byte => usize::from(byte) * 20,
        };
        let bytes = (0..length).map(|at| match self.byte() {
            0 => b'a' + (at % 26) as u8,
            byte => byte,
        });
        Some(CString::new(bytes.collect::<Vec<u8>>()).unwrap())
    }
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref()
        .map_or(core::ptr::null(), |text| text.as_ptr())
}

/// Memory of which the call may write `size` bytes; the rest must stay.
struct Guarded {
    bytes: Vec<u8>,
    size: usize,
}

const GUARD: u8 = 0xA7;

impl Guarded {
    fn new(size: usize) -> Guarded {
        let bytes = vec![GUARD; size + 64];
        Guarded { bytes, size }
    }

    /// One that begins with its size, if there is room for that.
    fn sized(size: usize, said: usize) -> Guarded {
        let mut guarded = Guarded::new(size.max(8));
        guarded.bytes[..8].copy_from_slice(&said.to_ne_bytes());
        guarded
    }

    fn at(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn check(&self, call: &str) {
        let kept = self.bytes[self.size..].iter().all(|byte| *byte == GUARD);
        assert!(kept, "{call} writes beyond {} bytes", self.size);
    }
}

/// Structures begin with their size, which is true or out of bounds: more than is there is a
/// program's lie, which no library can see.
fn structure(given: &mut Given<'_>) -> Guarded {
    let real = [8, 12, 16, 24, 40, 64, 136, 144, 160, 512][usize::from(given.byte() % 10)];
    let said = match given.byte() {
        0..=200 => real,
        201..=225 => usize::from(given.byte() % 8),
        _ => 4097 + given.byte() as usize,
    };
    Guarded::sized(real, said)
}

fn judged(call: &str, code: c_int) {
    // SAFETY: any number may be asked for.
    let text = unsafe { CStr::from_ptr(outlive_strerror(code)) };
    let text = text.to_str().unwrap();
    assert!(!text.is_empty(), "{call} gives {code}");
    assert!(code < 0 || code <= 4, "{call} gives {code}");
    // -500 and the like are errors; an internal one is a panic that was caught, or worse.
    assert!(!text.contains("internal"), "{call}: {text}");
}

/// A program's calls. Its regions are two buffers that live as long as the job.
pub fn calls(bytes: &[u8]) {
    let mut given = Given(bytes);
    let mut memory = [vec![1u8; 5000], vec![2u8; 64]];
    let mut job: *mut Job = core::ptr::null_mut();
    let options = structure(&mut given);
    let mut options = options;
    if given.byte() < 200 {
        options.bytes[8..options.size].fill(0);
    }
    let at = match given.byte() {
        0..=60 => core::ptr::null(),
        _ => options.at().cast_const(),
    };
    // SAFETY: null, or as many bytes as it says, or a number that is refused.
    judged("open", unsafe { outlive_open(at, &raw mut job) });
    for _ in 0..40 {
        if given.0.is_empty() {
            break;
        }
        one(&mut given, job, &mut memory);
    }
    // SAFETY: a handle or null; it is null afterwards, so that a second time does nothing.
    unsafe {
        judged("close", outlive_close(&raw mut job));
        assert!(job.is_null());
        judged("close", outlive_close(&raw mut job));
    }
}

fn one(given: &mut Given<'_>, job: *mut Job, memory: &mut [Vec<u8>; 2]) {
    let name = given.text();
    let name = pointer(&name);
    let version = given.number();
    let some = given.byte() != 0;
    // SAFETY: `job` is null or open and used here alone; strings end with a zero; memory has the
    // size that is said; regions live longer than the job.
    let (call, code) = unsafe {
        match given.byte() % 12 {
            0 => {
                let region = &mut memory[usize::from(given.byte() % 2)];
                let bytes = (given.number() as usize).min(region.len());
                let at = if some {
                    region.as_mut_ptr()
                } else {
                    core::ptr::null_mut()
                };
                ("protect", outlive_protect(job, name, at, bytes))
            }
            1 => ("unprotect", outlive_unprotect(job, name)),
            2 => {
                let mut found = 0;
                let at = if some {
                    &raw mut found
                } else {
                    core::ptr::null_mut()
                };
                ("restore", outlive_restore(job, at))
            }
            3 => {
                let mut found = 0;
                let at = if some {
                    &raw mut found
                } else {
                    core::ptr::null_mut()
                };
                ("query", outlive_query(job, name, at))
            }
            4 => ("checkpoint", outlive_checkpoint(job, version)),
            5 => ("checkpoint_now", outlive_checkpoint_now(job, version)),
            6 => ("wanted", outlive_wanted(job, version)),
            7 => {
                let survives = given.number() as c_int;
                (
                    "wait",
                    outlive_wait(job, version, survives, given.byte().into()),
                )
            }
            8 => {
                let mut path = Guarded::new(usize::from(given.byte()) * 2);
                let (at, size) = (path.at().cast(), path.size);
                let at = if some { at } else { core::ptr::null_mut() };
                let code = outlive_route(job, version, name, at, size);
                path.check("route");
                ("route", code)
            }
            9 => {
                let mut status = structure(given);
                let code = outlive_status(job, status.at());
                status.check("status");
                ("status", code)
            }
            10 => {
                let mut level = structure(given);
                let code = outlive_level(job, version as u32, level.at());
                level.check("level");
                ("level", code)
            }
            _ => {
                let mut text = Guarded::new(usize::from(given.byte()));
                let (at, size) = (text.at().cast(), text.size);
                let at = if some { at } else { core::ptr::null_mut() };
                let length = outlive_last_error(job, at, size);
                text.check("last_error");
                let there = some && size > 0;
                let said = || CStr::from_bytes_until_nul(&text.bytes[..size]).unwrap();
                assert!(!there || said().to_bytes().len() <= length);
                ("last_error", 0)
            }
        }
    };
    judged(call, code);
}
