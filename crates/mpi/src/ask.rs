//! What a program may ask: `outlive_mpi.h`.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use outlive_base::Code;

use crate::layer::layer;
use crate::native::Handle;

fn fail(code: Code) -> c_int {
    -c_int::from(code.number())
}

/// # Safety
/// `ranks` has room for `capacity` ints, or is null and `capacity` 0.
unsafe fn give(list: &[u32], ranks: *mut c_int, capacity: c_int) -> c_int {
    let Ok(room) = usize::try_from(capacity) else {
        return fail(Code::InvalidArgument);
    };
    if !ranks.is_null() {
        for (place, rank) in list.iter().take(room).enumerate() {
            // SAFETY: `place` is below the capacity.
            unsafe { *ranks.add(place) = *rank as c_int };
        }
    }
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_mpi_active() -> c_int {
    c_int::from(layer().is_some())
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_mpi_absent(
    comm: Handle,
    ranks: *mut c_int,
    capacity: c_int,
) -> c_int {
    let Some(layer) = layer() else {
        return fail(Code::NotOpen);
    };
    let found = layer.comms.get(layer.native.clean(comm));
    let Some(comm) = found.filter(|comm| comm.ours) else {
        return fail(Code::NotOpen);
    };
    let absent = Arc::clone(&comm.absent.lock().unwrap_or_else(PoisonError::into_inner));
    // SAFETY: the caller's promise.
    unsafe { give(&absent, ranks, capacity) }
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_mpi_dead(ranks: *mut c_int, capacity: c_int) -> c_int {
    let Some(layer) = layer() else {
        return fail(Code::NotOpen);
    };
    // A result does not wait for the news of a death: what has arrived is taken in now.
    layer.ask_failures();
    // SAFETY: the caller's promise.
    unsafe { give(&layer.dead(), ranks, capacity) }
}
