//! The C library: `include/outlive.h`, function by function.
//!
//! Nothing panics across the border: what does so within becomes
//! `-OUTLIVE_E_INTERNAL`. Null handles are error 101, so that a program that goes on
//! after a failed `outlive_open` only gets that.

use core::ffi::{CStr, c_char, c_int};
use core::time::Duration;
use outlive_base::{Code, Entity, Error, Result, Survives};
use outlive_capture::region::Element;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::job::restore::Restored;
use crate::job::{DEFAULT_TIMEOUT_MS, Job, Options, Outcome, Waited};

const OK: c_int = 0;
const TAKEN: c_int = 1;
const SKIPPED: c_int = 2;
const FRESH: c_int = 3;
const RESTORED: c_int = 4;
/// A caller's structure cannot be larger than this.
const STRUCT_BYTES_MAX: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
struct COptions {
    size: usize,
    rank: i32,
    ranks: i32,
    timeout_ms: u32,
    flags: u32,
}

#[repr(C)]
struct CStatus {
    size: usize,
    is_protected: i32,
    rank: i32,
    ranks: i32,
    node: i32,
    incarnation: u32,
    regions: u64,
    bytes: u64,
    taken: u64,
    failed: u64,
    blocked_ns: u64,
    version_taken: u64,
    version_surviving: [u64; 5],
    version_restored: u64,
}

#[repr(C)]
struct CLevel {
    size: usize,
    name: [u8; 16],
    survives: i32,
    version: u64,
}

thread_local! {
    static OPEN_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

const fn number(code: Code) -> c_int {
    -(code.number() as c_int)
}

fn guarded(call: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(number(Code::Internal))
}

fn invalid(reason: &str) -> Error {
    Error::new(Code::InvalidArgument, Entity::Call, reason, "see outlive.h")
}

/// Runs a call on a handle.
///
/// # Safety
/// `job` is null or a handle of `outlive_open` that is used by this thread alone.
unsafe fn on_job(job: *mut Job, call: impl FnOnce(&mut Job) -> Result<c_int>) -> c_int {
    // SAFETY: the caller's promise.
    let Some(job) = (unsafe { job.as_mut() }) else {
        return number(Code::NotOpen);
    };
    guarded(|| call(job).unwrap_or_else(|error| number(error.code())))
}

/// # Safety
/// `text` is null or a zero-terminated string.
unsafe fn text<'a>(job: &mut Job, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(job.note(invalid("no name (NULL)")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| job.note(invalid("the name is not UTF-8")))
}

/// # Safety
/// `options` points to a structure of as many bytes as its first field says.
unsafe fn read_options(options: *const COptions) -> Result<Options> {
    let mut read = COptions {
        size: 0,
        rank: -1,
        ranks: 0,
        timeout_ms: 0,
        flags: 0,
    };
    if !options.is_null() {
        // SAFETY: the first field is always there.
        let size = unsafe { (&raw const (*options).size).read() };
        if !(size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
            return Err(invalid("options.size must be sizeof(outlive_options)"));
        }
        let known = size.min(size_of::<COptions>());
        // SAFETY: both have `known` bytes; all fields are plain numbers.
        unsafe {
            core::ptr::copy_nonoverlapping(
                options.cast::<u8>(),
                (&raw mut read).cast::<u8>(),
                known,
            );
        }
        // SAFETY: the caller's structure has `size` bytes, of which we know the first.
        let newer =
            unsafe { core::slice::from_raw_parts(options.cast::<u8>().add(known), size - known) };
        if newer.iter().any(|&byte| byte != 0) || read.flags != 0 {
            return Err(invalid("options that this version does not know"));
        }
    }
    if read.rank < -1 || read.ranks < 0 {
        return Err(invalid("options: rank or ranks is negative"));
    }
    let timeout_ms = match read.timeout_ms {
        0 => DEFAULT_TIMEOUT_MS,
        ms => u64::from(ms),
    };
    // A structure of zeros asks for nothing: rank 0 is meant only beside a number of ranks.
    let given = read.ranks > 0 || read.rank != 0;
    Ok(Options {
        rank: u32::try_from(read.rank).ok().filter(|_| given),
        ranks: u32::try_from(read.ranks).ok().filter(|&ranks| ranks > 0),
        timeout: Duration::from_millis(timeout_ms),
        ..Options::default()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_open(options: *const COptions, job: *mut *mut Job) -> c_int {
    if job.is_null() {
        return number(Code::InvalidArgument);
    }
    guarded(|| {
        // SAFETY: not null, and the caller's promise.
        unsafe { *job = core::ptr::null_mut() };
        // SAFETY: the caller's promise.
        match unsafe { read_options(options) }.and_then(|options| Job::open(&options)) {
            Ok(opened) => {
                // SAFETY: as above.
                unsafe { *job = Box::into_raw(Box::new(opened)) };
                OK
            }
            Err(error) => {
                let code = error.code();
                OPEN_ERROR.with(|slot| *slot.borrow_mut() = Some(error));
                number(code)
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_protect(
    job: *mut Job,
    name: *const c_char,
    data: *mut u8,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promises, in outlive.h.
    unsafe {
        on_job(job, |job| {
            let name = text(job, name)?;
            job.protect(name, data, bytes).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_describe(job: *mut Job, name: *const c_char, element: c_int) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let name = text(job, name)?;
            let known = u32::try_from(element).ok().and_then(Element::of);
            let Some(element) = known else {
                return Err(job.note(Error::new(
                    Code::InvalidArgument,
                    Entity::Region(name.to_owned()),
                    format!("{element} is no type of elements"),
                    "give one of OUTLIVE_FLOAT16, OUTLIVE_BFLOAT16, OUTLIVE_FLOAT32, OUTLIVE_FLOAT64",
                )));
            };
            job.describe(name, element).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_unprotect(job: *mut Job, name: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let name = text(job, name)?;
            job.unprotect(name).map(|()| OK)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_restore(job: *mut Job, version: *mut u64) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            if version.is_null() {
                return Err(job.note(invalid("no place for the version (NULL)")));
            }
            Ok(match job.restore()? {
                Restored::Fresh => FRESH,
                Restored::Version(restored) => {
                    version.write(restored);
                    RESTORED
                }
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_query(job: *mut Job, name: *const c_char, bytes: *mut usize) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let name = text(job, name)?;
            if bytes.is_null() {
                return Err(job.note(invalid("no place for the size (NULL)")));
            }
            Ok(match job.query(name)? {
                None => FRESH,
                Some(found) => {
                    bytes.write(usize::try_from(found).unwrap_or(usize::MAX));
                    OK
                }
            })
        })
    }
}

fn outcome(outcome: Outcome) -> c_int {
    match outcome {
        Outcome::Skipped => SKIPPED,
        Outcome::Taken => TAKEN,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_checkpoint(job: *mut Job, version: u64) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { on_job(job, |job| job.checkpoint(version).map(outcome)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_checkpoint_now(job: *mut Job, version: u64) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { on_job(job, |job| job.checkpoint_now(version).map(outcome)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_wanted(job: *mut Job, version: u64) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { on_job(job, |job| job.wanted(version).map(c_int::from)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_wait(
    job: *mut Job,
    version: u64,
    survives: c_int,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let survives = u8::try_from(survives).ok().and_then(Survives::from_number);
            let Some(survives) = survives else {
                return Err(job.note(invalid("nothing that a version can survive")));
            };
            let timeout = (timeout_ms > 0).then(|| Duration::from_millis(u64::from(timeout_ms)));
            Ok(match job.wait(version, survives, timeout)? {
                Waited::Committed => OK,
                Waited::Unprotected => SKIPPED,
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_route(
    job: *mut Job,
    version: u64,
    name: *const c_char,
    path: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let name = text(job, name)?;
            let routed = job.route(version, name)?;
            let bytes = routed.as_os_str().as_bytes();
            if path.is_null() || bytes.len() >= capacity {
                let reason = format!("the path has {} bytes and a zero", bytes.len());
                return Err(job.note(invalid(&reason)));
            }
            put(bytes, path, capacity);
            Ok(OK)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_status(job: *mut Job, status: *mut CStatus) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let Some(size) = size_said(status.cast()) else {
                return Err(job.note(invalid("status.size must be sizeof(outlive_status_t)")));
            };
            let now = job.status();
            let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
            let told = CStatus {
                size,
                is_protected: i32::from(now.is_protected),
                rank: small(now.rank),
                ranks: small(now.ranks),
                node: small(now.node),
                incarnation: now.incarnation,
                regions: now.regions,
                bytes: now.bytes,
                taken: now.taken,
                failed: now.failed,
                blocked_ns: now.blocked_ns,
                version_taken: or_none(now.version_taken),
                version_surviving: now.version_surviving.map(or_none),
                version_restored: or_none(now.version_restored),
            };
            tell(&told, status, size);
            Ok(OK)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_level(job: *mut Job, index: u32, level: *mut CLevel) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        on_job(job, |job| {
            let Some(size) = size_said(level.cast()) else {
                return Err(job.note(invalid("level.size must be sizeof(outlive_level_t)")));
            };
            let levels = job.levels();
            let Some(found) = levels.get(index as usize) else {
                // The end of a list hides no error that came before it.
                return Ok(number(Code::NotFound));
            };
            let mut name = [0; 16];
            put(found.name.as_bytes(), name.as_mut_ptr().cast(), name.len());
            let told = CLevel {
                size,
                name,
                survives: found.survives as i32,
                version: or_none(found.version),
            };
            tell(&told, level, size);
            Ok(OK)
        })
    }
}

fn or_none(version: Option<u64>) -> u64 {
    version.unwrap_or(u64::MAX)
}

/// The size that a caller has written into a structure that is to be filled.
///
/// # Safety
/// `structure` is null or begins with its size.
unsafe fn size_said(structure: *const usize) -> Option<usize> {
    // SAFETY: not null, and the caller's promise.
    let size = (!structure.is_null()).then(|| unsafe { structure.read() })?;
    (size_of::<usize>()..=STRUCT_BYTES_MAX)
        .contains(&size)
        .then_some(size)
}

/// Fills as much of a caller's structure as it has.
///
/// # Safety
/// `target` has `size` bytes.
unsafe fn tell<T>(told: &T, target: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: both have `known` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping((&raw const *told).cast::<u8>(), target.cast(), known);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_close(job: *mut *mut Job) -> c_int {
    // SAFETY: null, or the caller's promise.
    let Some(slot) = (unsafe { job.as_mut() }) else {
        return OK;
    };
    let handle = core::mem::replace(slot, core::ptr::null_mut());
    if handle.is_null() {
        return OK;
    }
    guarded(|| {
        // SAFETY: a handle of outlive_open that is closed only here, since the
        // caller's copy is null from now on.
        let opened = unsafe { Box::from_raw(handle) };
        match opened.close() {
            Ok(()) => OK,
            Err(error) => {
                let code = error.code();
                OPEN_ERROR.with(|slot| *slot.borrow_mut() = Some(error));
                number(code)
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn outlive_strerror(code: c_int) -> *const c_char {
    static TEXTS: OnceLock<BTreeMap<c_int, CString>> = OnceLock::new();
    let found = catch_unwind(|| {
        let texts = TEXTS.get_or_init(|| {
            Code::ALL
                .iter()
                .filter_map(|code| Some((number(*code), CString::new(code.text()).ok()?)))
                .collect()
        });
        texts.get(&code).map(|text| text.as_ptr())
    });
    match code {
        OK => c"success".as_ptr(),
        TAKEN => c"captured".as_ptr(),
        SKIPPED => c"skipped".as_ptr(),
        FRESH => c"nothing to restore".as_ptr(),
        RESTORED => c"restored".as_ptr(),
        _ => found.ok().flatten().unwrap_or(c"unknown code".as_ptr()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_last_error(
    job: *mut Job,
    text: *mut c_char,
    capacity: usize,
) -> usize {
    let told = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: null or a handle, by the caller's promise.
        match unsafe { job.as_ref() } {
            Some(job) => job.last_error().map(Error::to_string),
            None => OPEN_ERROR.with(|slot| slot.borrow().as_ref().map(Error::to_string)),
        }
        .unwrap_or_default()
    }))
    .unwrap_or_default();
    if !text.is_null() && capacity > 0 {
        // SAFETY: `text` has `capacity` bytes, by the caller's promise.
        unsafe { put(told.as_bytes(), text, capacity) };
    }
    told.len()
}

/// Writes as much as fits, and a zero.
///
/// # Safety
/// `target` has `capacity` bytes, at least 1.
unsafe fn put(bytes: &[u8], target: *mut c_char, capacity: usize) {
    let mut count = bytes.len().min(capacity - 1);
    // Not in the middle of a character.
    while count < bytes.len() && count > 0 && bytes[count] & 0xC0 == 0x80 {
        count -= 1;
    }
    // SAFETY: count + 1 <= capacity.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), target.cast::<u8>(), count);
        target.add(count).write(0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn outlive_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
