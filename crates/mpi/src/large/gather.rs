//! The large-count forms of MPI_Gather(v) and MPI_Allgather(v).
//!
//! The layer carries out what it can of either form alike. Else the native library's form is
//! called; where it has none (Open MPI before 6), counts that fit an int are given to the
//! other form, and longer parts of equal length travel as one element of a longer datatype.
//! Counts of a rank's own above an int are then an error (MPI_ERR_OTHER).

use std::ffi::{c_int, c_void};

use super::{Long, small};
use crate::exports::NO_MPI;
use crate::gather::{ALLGATHER, ALLGATHERV, Args, GATHER, GATHERV, Parts, gather};
use crate::native::{Count, Handle, Native, native};

/// Counts and places as ints; `None` if one is larger. Null where they mean nothing.
///
/// # Safety
/// The arrays have `ranks` entries each, or are null.
unsafe fn ints(
    counts: *const Count,
    places: *const isize,
    ranks: usize,
) -> Option<(Vec<c_int>, Vec<c_int>)> {
    if counts.is_null() || places.is_null() {
        return Some((Vec::new(), Vec::new()));
    }
    // SAFETY: the caller's promise.
    let (counts, places) = unsafe {
        let counts = std::slice::from_raw_parts(counts, ranks);
        (counts, std::slice::from_raw_parts(places, ranks))
    };
    let counts: Option<Vec<c_int>> = counts.iter().copied().map(small).collect();
    let places = places.iter().map(|place| c_int::try_from(*place).ok());
    Some((counts?, places.collect::<Option<_>>()?))
}

/// How many entries the arrays of counts have here: none where they mean nothing.
fn entries(native: &Native, root: Option<c_int>, comm: Handle) -> usize {
    let (mut size, mut me) = (0, 0);
    // SAFETY: the program's communicator, pointers to locals.
    let known = unsafe {
        (native.comm_size)(comm, &mut size) == 0 && (native.comm_rank)(comm, &mut me) == 0
    };
    let due = known && root.is_none_or(|root| root == me);
    if due {
        usize::try_from(size).unwrap_or(0)
    } else {
        0
    }
}

/// Equal parts over a library without large counts: `call` gets counts and datatypes.
fn alike(
    native: &'static Native,
    args: &Args,
    takes: Count,
    call: impl Fn(c_int, Handle, c_int, Handle) -> c_int,
) -> c_int {
    if let (Some(gives), Some(takes)) = (small(args.gives), small(takes)) {
        return call(gives, args.given, takes, args.taken);
    }
    let in_place = args.give as usize == native.constants.in_place;
    let given = match in_place {
        true => None,
        false => Some(Long::of(native, args.gives, args.given)),
    };
    // Elsewhere than at a root its count and datatype mean nothing.
    let taken = (takes > 0).then(|| Long::of(native, takes, args.taken));
    match (given.transpose(), taken.transpose()) {
        (Ok(given), Ok(taken)) => {
            let given = given.as_ref().map_or(args.given, |long| long.datatype);
            let taken = taken.as_ref().map_or(args.taken, |long| long.datatype);
            call(1, given, 1, taken)
        }
        (Err(code), _) | (_, Err(code)) => code,
    }
}

/// The MPI function of this name.
///
/// # Safety
/// As the MPI standard says.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Gather_c(
    give: *const c_void,
    gives: Count,
    given: Handle,
    result: *mut c_void,
    takes: Count,
    taken: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    let Some(native) = native() else {
        return NO_MPI;
    };
    let args = Args {
        give,
        gives,
        given,
        result,
        parts: Parts::Alike(takes),
        taken,
        root: Some(root),
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        match (gather(GATHER, args, comm), native.gather_c) {
            (Some(code), _) => code,
            (None, Some(whole)) => whole(give, gives, given, result, takes, taken, root, comm),
            (None, None) => alike(native, &args, takes, |gives, given, takes, taken| {
                (native.gather)(give, gives, given, result, takes, taken, root, comm)
            }),
        }
    }
}

/// The MPI function of this name.
///
/// # Safety
/// As the MPI standard says.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allgather_c(
    give: *const c_void,
    gives: Count,
    given: Handle,
    result: *mut c_void,
    takes: Count,
    taken: Handle,
    comm: Handle,
) -> c_int {
    let Some(native) = native() else {
        return NO_MPI;
    };
    let args = Args {
        give,
        gives,
        given,
        result,
        parts: Parts::Alike(takes),
        taken,
        root: None,
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        match (gather(ALLGATHER, args, comm), native.allgather_c) {
            (Some(code), _) => code,
            (None, Some(whole)) => whole(give, gives, given, result, takes, taken, comm),
            (None, None) => alike(native, &args, takes, |gives, given, takes, taken| {
                (native.allgather)(give, gives, given, result, takes, taken, comm)
            }),
        }
    }
}

/// The MPI function of this name.
///
/// # Safety
/// As the MPI standard says.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Gatherv_c(
    give: *const c_void,
    gives: Count,
    given: Handle,
    result: *mut c_void,
    counts: *const Count,
    places: *const isize,
    taken: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    let Some(native) = native() else {
        return NO_MPI;
    };
    let args = Args {
        give,
        gives,
        given,
        result,
        parts: Parts::EachLarge(counts, places),
        taken,
        root: Some(root),
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        if let Some(code) = gather(GATHERV, args, comm) {
            return code;
        }
        if let Some(whole) = native.gatherv_c {
            return whole(
                give, gives, given, result, counts, places, taken, root, comm,
            );
        }
        let each = ints(counts, places, entries(native, Some(root), comm));
        let (Some((counts, places)), Some(gives)) = (each, small(gives)) else {
            return native.constants.err_other;
        };
        let (counts, places) = (counts.as_ptr(), places.as_ptr());
        (native.gatherv)(
            give, gives, given, result, counts, places, taken, root, comm,
        )
    }
}

/// The MPI function of this name.
///
/// # Safety
/// As the MPI standard says.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allgatherv_c(
    give: *const c_void,
    gives: Count,
    given: Handle,
    result: *mut c_void,
    counts: *const Count,
    places: *const isize,
    taken: Handle,
    comm: Handle,
) -> c_int {
    let Some(native) = native() else {
        return NO_MPI;
    };
    let args = Args {
        give,
        gives,
        given,
        result,
        parts: Parts::EachLarge(counts, places),
        taken,
        root: None,
    };
    // SAFETY: the caller's own arguments.
    unsafe {
        if let Some(code) = gather(ALLGATHERV, args, comm) {
            return code;
        }
        if let Some(whole) = native.allgatherv_c {
            return whole(give, gives, given, result, counts, places, taken, comm);
        }
        let each = ints(counts, places, entries(native, None, comm));
        let (Some((counts, places)), Some(gives)) = (each, small(gives)) else {
            return native.constants.err_other;
        };
        let (counts, places) = (counts.as_ptr(), places.as_ptr());
        (native.allgatherv)(give, gives, given, result, counts, places, taken, comm)
    }
}
