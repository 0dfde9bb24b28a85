//! Blocking point-to-point calls, in which a process answers those who need it.
//!
//! Invariants: where nobody can need an answer the native call is made with the program's
//! own arguments. Elsewhere the native call that does not block is made in its place, over
//! and over; codes, statuses and what becomes of the requests are as if it had blocked
//! (`tests/mpi/test_requests.py` compares).

use std::ffi::{c_int, c_void};

use crate::calls::Inside;
use crate::exports::NO_MPI;
use crate::layer::{Layer, layer};
use crate::native::{Handle, Native, native};

/// Rounds of a waiting call between two rounds of the layer's own progress.
const ROUNDS: u32 = 16;

/// The layer, where a waiting process may be needed by ranks that are later than it, or by
/// orphans of a death.
fn needed() -> Option<(&'static Layer, Inside)> {
    let layer = layer().filter(|layer| layer.can.tells_deaths)?;
    Some((layer, Inside::enter()?))
}

/// Asks `done` until it says so or fails.
fn poll(layer: &Layer, mut done: impl FnMut(&mut c_int) -> c_int) -> c_int {
    let (mut flag, mut round) = (0, 0u32);
    loop {
        let code = done(&mut flag);
        if code != 0 || flag != 0 {
            return code;
        }
        round = round.wrapping_add(1);
        if round.is_multiple_of(ROUNDS) {
            layer.progress();
            std::thread::yield_now();
        }
    }
}

/// The end of a call that its non-blocking twin makes, or `None` for the native one.
fn by_twin(mut twin: impl FnMut(&'static Native, &mut c_int) -> c_int) -> Option<c_int> {
    let (layer, _inside) = needed()?;
    Some(poll(layer, |flag| twin(layer.native, flag)))
}

/// MPI_Waitall, one request after the other; under ULFM by `MPI_Testall`, for there one that
/// failed may never be complete.
///
/// Not by `MPI_Testall` everywhere: MPICH 5.0's fails with requests of persistent
/// collectives, and its `MPI_Request_get_status` takes the status of other persistent ones.
/// A program's own error handler hears of each request that fails instead of once of all.
unsafe fn all(count: c_int, requests: *mut Handle, statuses: *mut c_void) -> Option<c_int> {
    let (layer, _inside) = needed()?;
    let native = layer.native;
    if layer.ulfm {
        // SAFETY: the caller's own requests and statuses.
        let testall =
            |flag: &mut c_int| unsafe { (native.testall)(count, requests, flag, statuses) };
        return Some(poll(layer, testall));
    }
    let (constants, layout) = (&native.constants, native.layout());
    // Nothing to wait for, or nonsense: the native library says so.
    let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
    let ignored = statuses as usize == constants.statuses_ignore;
    let mut codes = Vec::new();
    for at in 0..count {
        // SAFETY: `count` requests, and as many statuses unless they are ignored.
        let (request, status) = unsafe {
            let request = requests.byte_add(at * layout.handle);
            let status = statuses.wrapping_byte_add(at * layout.status);
            (
                request,
                if ignored {
                    constants.status_ignore as *mut c_void
                } else {
                    status
                },
            )
        };
        // SAFETY: as above.
        let code = poll(layer, |flag| unsafe {
            (native.test)(request, flag, status)
        });
        if code != 0 && codes.is_empty() {
            codes.resize(count, 0);
        }
        if code != 0 {
            codes[at] = code;
        }
    }
    if codes.is_empty() {
        return Some(0);
    }
    if !ignored {
        for (at, code) in codes.iter().enumerate() {
            let place = statuses.wrapping_byte_add(at * layout.status + layout.error);
            // SAFETY: the error field of one of the caller's statuses.
            unsafe { place.cast::<c_int>().write(*code) };
        }
    }
    Some(constants.err_in_status)
}

/// A blocking call as its non-blocking twin, begun by `begin`, and a wait.
///
/// # Safety
/// `status` is a status of MPI's, or what stands for none.
pub(crate) unsafe fn wait_for(
    status: *mut c_void,
    begin: impl FnOnce(&'static Native, &mut Handle) -> c_int,
) -> Option<c_int> {
    let native = needed()?.0.native;
    let mut request = native.constants.request_null;
    let begun = begin(native, &mut request);
    if begun != 0 {
        return Some(begun);
    }
    // SAFETY: a live request; the status is the caller's own.
    Some(unsafe { MPI_Wait(&mut request, status) })
}

macro_rules! blocking {
    ($c:ident, $field:ident, ($($name:ident: $type:ty),*), $serve:expr) => {
        /// The MPI function of this name: blocks, and answers those who need it meanwhile.
        ///
        /// # Safety
        /// As the MPI standard says.
        #[allow(non_snake_case, unused_unsafe)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $c($($name: $type),*) -> c_int {
            // SAFETY: the caller's own arguments, in use until the call ends.
            let served: Option<c_int> = unsafe { $serve };
            match (served, native()) {
                (Some(code), _) => code,
                // SAFETY: the native function with the caller's own arguments.
                (None, Some(native)) => unsafe { (native.$field)($($name),*) },
                (None, None) => NO_MPI,
            }
        }
    };
}

/// `MPI_STATUS_IGNORE` of the library in use.
pub(crate) fn ignored() -> *mut c_void {
    native().map_or(std::ptr::null_mut(), |native| {
        native.constants.status_ignore as *mut c_void
    })
}

blocking!(MPI_Wait, wait, (request: *mut Handle, status: *mut c_void),
    by_twin(|native, flag| (native.test)(request, flag, status)));
blocking!(MPI_Waitall, waitall, (count: c_int, requests: *mut Handle, statuses: *mut c_void),
    all(count, requests, statuses));
blocking!(MPI_Waitany, waitany,
    (count: c_int, requests: *mut Handle, index: *mut c_int, status: *mut c_void),
    by_twin(|native, flag| (native.testany)(count, requests, index, flag, status)));
blocking!(MPI_Waitsome, waitsome,
(count: c_int, requests: *mut Handle, done: *mut c_int, indices: *mut c_int,
 statuses: *mut c_void),
by_twin(|native, flag| {
    let code = (native.testsome)(count, requests, done, indices, statuses);
    // None complete yet; none active is `MPI_UNDEFINED`.
    *flag = c_int::from(*done != 0);
    code
}));
blocking!(MPI_Probe, probe, (source: c_int, tag: c_int, comm: Handle, status: *mut c_void),
    by_twin(|native, flag| (native.iprobe)(source, tag, comm, flag, status)));
blocking!(MPI_Mprobe, mprobe,
    (source: c_int, tag: c_int, comm: Handle, message: *mut Handle, status: *mut c_void),
    by_twin(|native, flag| (native.improbe)(source, tag, comm, flag, message, status)));
blocking!(MPI_Recv, recv,
(data: *mut c_void, count: c_int, datatype: Handle, source: c_int, tag: c_int,
 comm: Handle, status: *mut c_void),
wait_for(status, |native, request| {
    (native.irecv)(data, count, datatype, source, tag, comm, request)
}));
blocking!(MPI_Send, send,
(data: *const c_void, count: c_int, datatype: Handle, to: c_int, tag: c_int, comm: Handle),
wait_for(ignored(), |native, request| {
    (native.isend)(data, count, datatype, to, tag, comm, request)
}));
blocking!(MPI_Ssend, ssend,
(data: *const c_void, count: c_int, datatype: Handle, to: c_int, tag: c_int, comm: Handle),
wait_for(ignored(), |native, request| {
    (native.issend)(data, count, datatype, to, tag, comm, request)
}));
blocking!(MPI_Sendrecv, sendrecv,
    (give: *const c_void, gives: c_int, given: Handle, to: c_int, tag: c_int,
     take: *mut c_void, takes: c_int, taken: Handle, from: c_int, its: c_int,
     comm: Handle, status: *mut c_void),
    both(status,
        |native, request| (native.irecv)(take, takes, taken, from, its, comm, request),
        |native, request| (native.isend)(give, gives, given, to, tag, comm, request)));

/// A receive and a send at once; the first code that is an error, the receive's before.
///
/// # Safety
/// `status` is a status of MPI's, or what stands for none.
pub(crate) unsafe fn both(
    status: *mut c_void,
    receive: impl FnOnce(&'static Native, &mut Handle) -> c_int,
    send: impl FnOnce(&'static Native, &mut Handle) -> c_int,
) -> Option<c_int> {
    let native = needed()?.0.native;
    let none = native.constants.request_null;
    let (mut take, mut give) = (none, none);
    let begun = receive(native, &mut take);
    if begun != 0 {
        return Some(begun);
    }
    let sent = match send(native, &mut give) {
        // SAFETY: live requests; the status is the caller's own.
        0 => unsafe { MPI_Wait(&mut give, ignored()) },
        code => code,
    };
    // SAFETY: as above.
    let came = unsafe { MPI_Wait(&mut take, status) };
    Some(if came != 0 { came } else { sent })
}
