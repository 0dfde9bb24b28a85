//! The C ABI of `include/outlive_memory.h`.
//!
//! Invariants: no panic crosses it; NULL where something must be is an error; what a pointer must
//! point to is the caller's promise in the header.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::JobKey;

use crate::client::{Client, Options, Transport};
use crate::wire::RegionKind;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn invalid(what: &str) -> Error {
    let remedy = "see outlive_memory.h";
    Error::new(Code::InvalidArgument, Entity::Call, what, remedy)
}

fn guarded(run: impl FnOnce() -> Result<()>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(run));
    let result = result.unwrap_or_else(|_| Err(Error::internal("a panic in the library")));
    match result {
        Ok(()) => 0,
        Err(error) => {
            let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
            // The thread may be ending: then nobody asks.
            let _ = LAST.try_with(|last| last.replace(text));
            -c_int::from(error.code().number())
        }
    }
}

/// # Safety
/// `text` is null or a string that ends with zero and lives as long as it is used.
unsafe fn word<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(&format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map_err(|_| invalid(&format!("{what} is not UTF-8")))
}

/// # Safety
/// `memory` is null or from `outlive_memory_open` and not closed; `name` as in [`word`].
unsafe fn on(
    memory: *const Client,
    name: *const c_char,
    run: impl FnOnce(&Client, &str) -> Result<()>,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (client, name) = unsafe { (memory.as_ref(), word(name, "the name")) };
        run(client.ok_or_else(|| invalid("memory is NULL"))?, name?)
    })
}

/// # Safety
/// `data` is null or points to so many bytes that nobody writes to.
unsafe fn input<'a>(data: *const c_void, bytes: usize) -> Result<&'a [u8]> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("data is NULL")),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { core::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// # Safety
/// `to` is null or may be written to.
unsafe fn store<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_open(
    memory: *mut *mut Client,
    address: *const c_char,
    job: *const c_char,
    key_file: *const c_char,
    transport: c_int,
) -> c_int {
    guarded(|| {
        if memory.is_null() {
            return Err(invalid("the place for the handle is NULL"));
        }
        // SAFETY: the caller's promise.
        unsafe { memory.write(core::ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let (address, job, key) = unsafe {
            (
                word(address, "the address")?,
                word(job, "the job")?,
                word(key_file, "the key file")?,
            )
        };
        let options = Options {
            transport: match transport {
                0 => Transport::Auto,
                1 => Transport::Shared,
                2 => Transport::Tcp,
                _ => return Err(invalid("there is no such transport")),
            },
            ..Options::default()
        };
        let client = Client::connect(address, job, &JobKey::load(key)?, options)?;
        // SAFETY: the caller's promise.
        unsafe { memory.write(Box::into_raw(Box::new(client))) };
        Ok(())
    })
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_close(memory: *mut Client) {
    if !memory.is_null() {
        // SAFETY: it came from `outlive_memory_open`, and nobody uses it: the caller's promise.
        let client = unsafe { Box::from_raw(memory) };
        guarded(|| {
            drop(client);
            Ok(())
        });
    }
}

/// See `outlive_memory.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_memory_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_alloc(
    memory: *const Client,
    name: *const c_char,
    bytes: u64,
    ring: c_int,
) -> c_int {
    let kind = if ring == 0 {
        RegionKind::Plain
    } else {
        RegionKind::Ring
    };
    // SAFETY: the caller's promise.
    unsafe {
        on(memory, name, |it, name| {
            it.allocate(name, bytes, kind).map(drop)
        })
    }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_delete(
    memory: *const Client,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on(memory, name, Client::delete) }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_stat(
    memory: *const Client,
    name: *const c_char,
    bytes: *mut u64,
    puts: *mut u64,
) -> c_int {
    let ask = |it: &Client, name: &str| {
        let stat = it.stat(name)?;
        // SAFETY: the caller's promise.
        unsafe {
            store(bytes, stat.bytes);
            store(puts, stat.puts);
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on(memory, name, ask) }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_put(
    memory: *const Client,
    name: *const c_char,
    offset: u64,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on(memory, name, |it, name| {
            it.put(name, offset, input(data, bytes)?)
        })
    }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_get(
    memory: *const Client,
    name: *const c_char,
    offset: u64,
    data: *mut c_void,
    bytes: usize,
) -> c_int {
    let ask = |it: &Client, name: &str| {
        if data.is_null() && bytes > 0 {
            return Err(invalid("data is NULL"));
        }
        let out: &mut [u8] = match bytes {
            0 => &mut [],
            // SAFETY: the caller's promise.
            _ => unsafe { core::slice::from_raw_parts_mut(data.cast(), bytes) },
        };
        it.get(name, offset, out)
    };
    // SAFETY: the caller's promise.
    unsafe { on(memory, name, ask) }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_wait(
    memory: *const Client,
    name: *const c_char,
    after: u64,
    timeout_ms: u32,
    puts: *mut u64,
) -> c_int {
    let ask = |it: &Client, name: &str| {
        let told = it.wait(name, after, ms(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { store(puts, told) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on(memory, name, ask) }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_push(
    memory: *const Client,
    name: *const c_char,
    data: *const c_void,
    bytes: usize,
    timeout_ms: u32,
) -> c_int {
    let bound = ms(timeout_ms);
    // SAFETY: the caller's promise.
    unsafe {
        on(memory, name, |it, name| {
            it.push(name, input(data, bytes)?, bound)
        })
    }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_pop(
    memory: *const Client,
    name: *const c_char,
    data: *mut *mut c_void,
    bytes: *mut usize,
    timeout_ms: u32,
) -> c_int {
    let ask = |it: &Client, name: &str| {
        if data.is_null() || bytes.is_null() {
            return Err(invalid("the place for the message is NULL"));
        }
        let message = it.pop(name, ms(timeout_ms))?.into_boxed_slice();
        // SAFETY: the caller's promise.
        unsafe {
            bytes.write(message.len());
            data.write(Box::into_raw(message).cast());
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on(memory, name, ask) }
}

/// See `outlive_memory.h`.
///
/// # Safety
/// What the header asks of the pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_memory_free(data: *mut c_void, bytes: usize) {
    if !data.is_null() {
        let message = core::ptr::slice_from_raw_parts_mut(data.cast::<u8>(), bytes);
        // SAFETY: it came with these bytes from `outlive_memory_pop`: the caller's promise.
        drop(unsafe { Box::from_raw(message) });
    }
}

fn ms(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}
