//! The C ABI of `include/outlive_sessions.h`.
//!
//! Invariants: no panic crosses it; a null communicator is an error; what a
//! pointer must point to is the caller's promise in the header.

use core::ffi::{c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outlive_base::{Code, Entity, Error};

use crate::state::bytes;
use crate::{ANY_SOURCE, ANY_TAG, Comm, ElementKind, Operator, Request, Setup, Status};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// `outlive_comm_status` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStatus {
    source: c_int,
    tag: c_int,
    bytes: usize,
}

/// `outlive_comm_counts` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CCounts {
    links: u64,
    again: u64,
    silences: u64,
    absences: u64,
    rebirths: u64,
    alive: u64,
}

fn invalid(what: &str) -> Error {
    Error::new(
        Code::InvalidArgument,
        Entity::Call,
        what,
        "see outlive_sessions.h",
    )
}

fn guarded(run: impl FnOnce() -> Result<(), Error>) -> c_int {
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
/// `comm` is null or from `outlive_comm_open` and not closed.
unsafe fn on(comm: *const Comm, run: impl FnOnce(&Comm) -> Result<(), Error>) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { comm.as_ref() };
        run(comm.ok_or_else(|| invalid("the communicator is NULL"))?)
    })
}

fn rank(value: c_int) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| invalid("a negative rank"))
}

fn tag(value: c_int) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| invalid("a negative tag"))
}

fn source(value: c_int) -> Result<u32, Error> {
    if value == -1 {
        Ok(ANY_SOURCE)
    } else {
        rank(value)
    }
}

fn any_tag(value: c_int) -> Result<u32, Error> {
    if value == -1 { Ok(ANY_TAG) } else { tag(value) }
}

/// # Safety
/// `out` is null or writable.
unsafe fn tell(out: *mut CStatus, status: Status) {
    if !out.is_null() {
        let status = CStatus {
            source: status.source as c_int,
            tag: status.tag as c_int,
            bytes: status.bytes,
        };
        // SAFETY: not null, and the caller's promise.
        unsafe { out.write(status) };
    }
}

/// # Safety
/// As [`bytes`], and the memory is the caller's alone.
unsafe fn bytes_mut<'a>(data: *mut c_void, count: usize) -> Result<&'a mut [u8], Error> {
    if count == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || isize::try_from(count).is_err() {
        return Err(invalid("the buffer is NULL or too long"));
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts_mut(data.cast(), count) })
}

/// # Safety
/// As [`bytes`].
unsafe fn given<'a>(data: *const c_void, count: usize) -> Result<&'a [u8], Error> {
    if count > 0 && (data.is_null() || isize::try_from(count).is_err()) {
        return Err(invalid("the buffer is NULL or too long"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { bytes(data.cast(), count) })
}

fn kind(value: c_int) -> Result<ElementKind, Error> {
    match value {
        1 => Ok(ElementKind::F64),
        2 => Ok(ElementKind::I32),
        3 => Ok(ElementKind::I64),
        _ => Err(invalid("an unknown kind of elements")),
    }
}

fn operator(value: c_int) -> Result<Operator, Error> {
    match value {
        1 => Ok(Operator::Sum),
        2 => Ok(Operator::Max),
        3 => Ok(Operator::Min),
        _ => Err(invalid("an unknown operator")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_open(comm: *mut *mut Comm) -> c_int {
    if comm.is_null() {
        return guarded(|| Err(invalid("no place for the communicator (NULL)")));
    }
    guarded(|| {
        // SAFETY: not null, and the caller's promise.
        unsafe { comm.write(core::ptr::null_mut()) };
        let setup = Setup::from_environment(|name| std::env::var(name).ok())?;
        let opened = Comm::open(setup)?;
        // SAFETY: as above.
        unsafe { comm.write(Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_close(comm: *mut Comm) -> c_int {
    guarded(|| {
        if comm.is_null() {
            return Err(invalid("the communicator is NULL"));
        }
        // SAFETY: from outlive_comm_open, and not used again: the caller's promise.
        let comm = unsafe { Box::from_raw(comm) };
        comm.close()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_rank(comm: *const Comm) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(-100, |comm| comm.rank() as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_size(comm: *const Comm) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(-100, |comm| comm.size() as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn outlive_comm_error(_comm: *const Comm) -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_count(comm: *const Comm, counts: *mut CCounts) -> c_int {
    // SAFETY: the caller's promises, here and in all functions below.
    unsafe {
        on(comm, |comm| {
            if counts.is_null() {
                return Err(invalid("no place for the counts (NULL)"));
            }
            let totals = comm.totals();
            counts.write(CCounts {
                links: totals.links,
                again: totals.again,
                silences: totals.silences,
                absences: totals.absences,
                rebirths: totals.rebirths,
                alive: totals.alive,
            });
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_send(
    comm: *const Comm,
    data: *const c_void,
    count: usize,
    to: c_int,
    tag_: c_int,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            comm.send(given(data, count)?, rank(to)?, tag(tag_)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_recv(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    from: c_int,
    tag_: c_int,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let found = comm.recv(bytes_mut(data, count)?, source(from)?, any_tag(tag_)?)?;
            tell(status, found);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_sendrecv(
    comm: *const Comm,
    data: *const c_void,
    count: usize,
    to: c_int,
    out: *mut c_void,
    out_bytes: usize,
    from: c_int,
    tag_: c_int,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let out = bytes_mut(out, out_bytes)?;
            let found = comm.sendrecv(
                given(data, count)?,
                rank(to)?,
                out,
                source(from)?,
                tag(tag_)?,
            )?;
            tell(status, found);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_isend(
    comm: *const Comm,
    data: *const c_void,
    count: usize,
    to: c_int,
    tag_: c_int,
    request: *mut u64,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            if request.is_null() {
                return Err(invalid("no place for the request (NULL)"));
            }
            given(data, count)?;
            request.write(comm.isend(data.cast(), count, rank(to)?, tag(tag_)?)?.0);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_irecv(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    from: c_int,
    tag_: c_int,
    request: *mut u64,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            if request.is_null() {
                return Err(invalid("no place for the request (NULL)"));
            }
            given(data, count)?;
            let begun = comm.irecv(data.cast(), count, source(from)?, any_tag(tag_)?)?;
            request.write(begun.0);
            Ok(())
        })
    }
}

/// # Safety
/// `request` and `status` as in the header.
unsafe fn wait_one(comm: &Comm, request: *mut u64, status: *mut CStatus) -> Result<(), Error> {
    if request.is_null() {
        return Err(invalid("the request is NULL"));
    }
    // SAFETY: not null, and the caller's promise.
    unsafe {
        let number = request.replace(0);
        if number != 0 {
            tell(status, comm.wait(Request(number))?);
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_wait(
    comm: *const Comm,
    request: *mut u64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe { on(comm, |comm| wait_one(comm, request, status)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_waitall(
    comm: *const Comm,
    count: usize,
    requests: *mut u64,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            if count > 0 && requests.is_null() {
                return Err(invalid("the requests are NULL"));
            }
            for index in 0..count {
                wait_one(comm, requests.add(index), core::ptr::null_mut())?;
            }
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_test(
    comm: *const Comm,
    request: *mut u64,
    done: *mut c_int,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            if request.is_null() || done.is_null() {
                return Err(invalid("the request or the flag is NULL"));
            }
            done.write(1);
            if request.read() == 0 {
                return Ok(());
            }
            match comm.test(Request(request.read()))? {
                Some(found) => {
                    request.write(0);
                    tell(status, found);
                }
                None => done.write(0),
            }
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_barrier(comm: *const Comm) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe { on(comm, Comm::barrier) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_bcast(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    root: c_int,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            comm.broadcast(bytes_mut(data, count)?, rank(root)?)
        })
    }
}

/// # Safety
/// `data` has `count` elements of `kind`.
unsafe fn elements<'a>(
    data: *mut c_void,
    count: usize,
    kind: ElementKind,
) -> Result<&'a mut [u8], Error> {
    let count = count.checked_mul(kind.bytes());
    let count = count.ok_or_else(|| invalid("too many elements"))?;
    // SAFETY: the caller's promise.
    unsafe { bytes_mut(data, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_reduce(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    kind_: c_int,
    op: c_int,
    root: c_int,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let kind = kind(kind_)?;
            comm.reduce(
                kind,
                operator(op)?,
                elements(data, count, kind)?,
                rank(root)?,
            )
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_allreduce(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    kind_: c_int,
    op: c_int,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let kind = kind(kind_)?;
            comm.allreduce(kind, operator(op)?, elements(data, count, kind)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_alltoall(
    comm: *const Comm,
    data: *const c_void,
    out: *mut c_void,
    count: usize,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let size = comm.size() as usize;
            let whole = count.checked_mul(size);
            let whole = whole.ok_or_else(|| invalid("too many bytes"))?;
            let parts: Vec<_> = (0..size).map(|rank| (rank * count, count)).collect();
            comm.alltoallv(given(data, whole)?, &parts, bytes_mut(out, whole)?, &parts)
        })
    }
}

/// Offsets and lengths, and the bytes that they span.
///
/// # Safety
/// Both arrays have `size` elements.
unsafe fn parts(
    lengths: *const usize,
    offsets: *const usize,
    size: usize,
) -> Result<(Vec<(usize, usize)>, usize), Error> {
    if lengths.is_null() || offsets.is_null() {
        return Err(invalid("lengths or offsets are NULL"));
    }
    // SAFETY: not null, and the caller's promise.
    let (lengths, offsets) = unsafe {
        (
            core::slice::from_raw_parts(lengths, size),
            core::slice::from_raw_parts(offsets, size),
        )
    };
    let parts: Vec<_> = offsets
        .iter()
        .copied()
        .zip(lengths.iter().copied())
        .collect();
    let ends = parts
        .iter()
        .map(|(offset, length)| offset.checked_add(*length));
    let whole = ends.max().flatten().filter(|_| {
        parts
            .iter()
            .all(|(offset, length)| offset.checked_add(*length).is_some())
    });
    Ok((
        parts,
        whole.ok_or_else(|| invalid("parts beyond the address space"))?,
    ))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_alltoallv(
    comm: *const Comm,
    data: *const c_void,
    lengths: *const usize,
    offsets: *const usize,
    out: *mut c_void,
    out_lengths: *const usize,
    out_offsets: *const usize,
) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe {
        on(comm, |comm| {
            let size = comm.size() as usize;
            let (out_parts, whole) = parts(lengths, offsets, size)?;
            let (in_parts, in_whole) = parts(out_lengths, out_offsets, size)?;
            let body = given(data, whole)?;
            comm.alltoallv(body, &out_parts, bytes_mut(out, in_whole)?, &in_parts)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_break(comm: *const Comm, peer: c_int) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe { on(comm, |comm| comm.break_link(rank(peer)?)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outlive_comm_lose_descriptors(comm: *const Comm) -> c_int {
    // SAFETY: see outlive_comm_count.
    unsafe { on(comm, Comm::lose_descriptors) }
}
