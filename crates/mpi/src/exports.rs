//! The symbols that stand before the native library's.
//!
//! C programs call `MPI_*`. The Fortran layers of Open MPI call `PMPI_*` after they have
//! translated their arguments, so the Fortran names (all manglings, and the entry of the
//! mpi_f08 module) are taken here only to say so, and `PMPI_*` serves such calls; any
//! other `PMPI_*` goes on untouched.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::calls::{self, Args};
use crate::gather::{ALLGATHER, ALLGATHERV, Args as Parted, GATHER, GATHERV, Parts, gather};
use crate::native::{Handle, native, next_symbol};
use crate::start;

thread_local! {
    /// The Fortran layer is calling.
    static FORTRAN: Cell<bool> = const { Cell::new(false) };
}

/// What a call gets that finds no MPI library: MPI_ERR_OTHER of most.
pub(crate) const NO_MPI: c_int = 16;

macro_rules! export {
    ($c:ident, $p:ident, $field:ident, ($($name:ident: $type:ty),*), $serve:expr) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, non_snake_case)]
        pub unsafe extern "C" fn $c($($name: $type),*) -> c_int {
            // SAFETY: the caller's promise, passed on.
            let served: Option<c_int> = unsafe { $serve };
            match (served, native()) {
                (Some(code), _) => code,
                // SAFETY: the native function with the caller's own arguments.
                (None, Some(native)) => unsafe { (native.$field)($($name),*) },
                (None, None) => NO_MPI,
            }
        }
        /// The MPI function of this name under its profiled name: served for the Fortran
        /// layer only.
        ///
        /// # Safety
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $p($($name: $type),*) -> c_int {
            if FORTRAN.with(|fortran| fortran.replace(false)) {
                // SAFETY: the caller's promise, passed on.
                return unsafe { $c($($name),*) };
            }
            match native() {
                // SAFETY: the native function with the caller's own arguments.
                Some(native) => unsafe { (native.$field)($($name),*) },
                None => NO_MPI,
            }
        }
    };
}

unsafe fn initialised(code: c_int) -> Option<c_int> {
    if code == 0
        && let Some(native) = native()
    {
        start::begin(native);
    }
    Some(code)
}

export!(MPI_Init, PMPI_Init, init, (argc: *mut c_int, argv: *mut *mut *mut c_char), {
    match native() {
        Some(native) => initialised((native.init)(argc, argv)),
        None => None,
    }
});
export!(MPI_Init_thread, PMPI_Init_thread, init_thread,
    (argc: *mut c_int, argv: *mut *mut *mut c_char, wanted: c_int, given: *mut c_int), {
    match native() {
        Some(native) => initialised((native.init_thread)(argc, argv, wanted, given)),
        None => None,
    }
});
export!(MPI_Finalize, PMPI_Finalize, finalize, (), {
    match native() {
        Some(native) => start::end(native),
        None => None,
    }
});
export!(MPI_Finalized, PMPI_Finalized, finalized, (flag: *mut c_int), {
    // The native library does not know of an end that was left out.
    start::ended_without_native().then(|| {
        *flag = 1;
        0
    })
});
export!(MPI_Barrier, PMPI_Barrier, barrier, (comm: Handle), calls::barrier(comm));
export!(MPI_Bcast, PMPI_Bcast, bcast,
    (data: *mut c_void, count: c_int, datatype: Handle, root: c_int, comm: Handle),
    calls::bcast(data, count, datatype, root, comm));
export!(MPI_Reduce, PMPI_Reduce, reduce,
    (give: *const c_void, result: *mut c_void, count: c_int, datatype: Handle, op: Handle,
     root: c_int, comm: Handle),
    calls::reduce(Args { give, result, count, datatype, op, root: Some(root) }, comm));
export!(MPI_Allreduce, PMPI_Allreduce, allreduce,
    (give: *const c_void, result: *mut c_void, count: c_int, datatype: Handle, op: Handle,
     comm: Handle),
    calls::reduce(Args { give, result, count, datatype, op, root: None }, comm));

export!(MPI_Gather, PMPI_Gather, gather,
    (give: *const c_void, gives: c_int, given: Handle, result: *mut c_void, takes: c_int,
     taken: Handle, root: c_int, comm: Handle),
    gather(GATHER, Parted { give, gives: gives.into(), given, result,
        parts: Parts::Alike(takes.into()), taken, root: Some(root) }, comm));
export!(MPI_Gatherv, PMPI_Gatherv, gatherv,
    (give: *const c_void, gives: c_int, given: Handle, result: *mut c_void,
     counts: *const c_int, places: *const c_int, taken: Handle, root: c_int, comm: Handle),
    gather(GATHERV, Parted { give, gives: gives.into(), given, result,
        parts: Parts::Each(counts, places), taken, root: Some(root) }, comm));
export!(MPI_Allgather, PMPI_Allgather, allgather,
    (give: *const c_void, gives: c_int, given: Handle, result: *mut c_void, takes: c_int,
     taken: Handle, comm: Handle),
    gather(ALLGATHER, Parted { give, gives: gives.into(), given, result,
        parts: Parts::Alike(takes.into()), taken, root: None }, comm));
export!(MPI_Allgatherv, PMPI_Allgatherv, allgatherv,
    (give: *const c_void, gives: c_int, given: Handle, result: *mut c_void,
     counts: *const c_int, places: *const c_int, taken: Handle, comm: Handle),
    gather(ALLGATHERV, Parted { give, gives: gives.into(), given, result,
        parts: Parts::Each(counts, places), taken, root: None }, comm));

macro_rules! fortran {
    ($([$($mangled:ident = $text:literal),*] $names:tt;)*) => {
        $($(fortran!(@one $mangled, $text, $names);)*)*
    };
    (@one $mangled:ident, $text:literal, ($($name:ident),*)) => {
        /// The Fortran layer's function of this name.
        ///
        /// # Safety
        /// As the MPI standard says.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $mangled($($name: *mut c_void),*) {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let mut next = NEXT.load(Ordering::Relaxed);
            if next.is_null() {
                next = next_symbol($text);
                NEXT.store(next, Ordering::Relaxed);
            }
            if next.is_null() {
                // No Fortran layer behind this one: an error, not a call that did nothing.
                let ierror: Option<*mut c_void> = [$($name),*].into_iter().last();
                if let Some(ierror) = ierror.filter(|ierror| !ierror.is_null()) {
                    // SAFETY: the last argument of each of these is its error code
                    // (MPI 4.1, section 19.1).
                    unsafe { ierror.cast::<c_int>().write(NO_MPI) };
                }
                return;
            }
            FORTRAN.with(|fortran| fortran.set(true));
            // SAFETY: the Fortran layer's own function, with the caller's own arguments:
            // all by reference (MPI 4.1, section 19.1), none beyond these.
            unsafe {
                let next = std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn($(fortran!(@pointer $name)),*),
                >(next);
                next($($name),*);
            }
            FORTRAN.with(|fortran| fortran.set(false));
        }
    };
    (@pointer $name:ident) => { *mut c_void };
}

fortran! {
    [mpi_init = c"mpi_init", mpi_init_ = c"mpi_init_", mpi_init__ = c"mpi_init__",
     MPI_INIT = c"MPI_INIT", ompi_init_f = c"ompi_init_f"] (ierror);
    [mpi_init_thread = c"mpi_init_thread", mpi_init_thread_ = c"mpi_init_thread_",
     mpi_init_thread__ = c"mpi_init_thread__", MPI_INIT_THREAD = c"MPI_INIT_THREAD",
     ompi_init_thread_f = c"ompi_init_thread_f"] (wanted, given, ierror);
    [mpi_finalize = c"mpi_finalize", mpi_finalize_ = c"mpi_finalize_",
     mpi_finalize__ = c"mpi_finalize__", MPI_FINALIZE = c"MPI_FINALIZE",
     ompi_finalize_f = c"ompi_finalize_f"] (ierror);
    [mpi_finalized = c"mpi_finalized", mpi_finalized_ = c"mpi_finalized_",
     mpi_finalized__ = c"mpi_finalized__", MPI_FINALIZED = c"MPI_FINALIZED",
     ompi_finalized_f = c"ompi_finalized_f"] (flag, ierror);
    [mpi_barrier = c"mpi_barrier", mpi_barrier_ = c"mpi_barrier_",
     mpi_barrier__ = c"mpi_barrier__", MPI_BARRIER = c"MPI_BARRIER",
     ompi_barrier_f = c"ompi_barrier_f"] (comm, ierror);
    [mpi_bcast = c"mpi_bcast", mpi_bcast_ = c"mpi_bcast_", mpi_bcast__ = c"mpi_bcast__",
     MPI_BCAST = c"MPI_BCAST", ompi_bcast_f = c"ompi_bcast_f"]
        (data, count, datatype, root, comm, ierror);
    [mpi_reduce = c"mpi_reduce", mpi_reduce_ = c"mpi_reduce_", mpi_reduce__ = c"mpi_reduce__",
     MPI_REDUCE = c"MPI_REDUCE", ompi_reduce_f = c"ompi_reduce_f"]
        (give, result, count, datatype, op, root, comm, ierror);
    [mpi_allreduce = c"mpi_allreduce", mpi_allreduce_ = c"mpi_allreduce_",
     mpi_allreduce__ = c"mpi_allreduce__", MPI_ALLREDUCE = c"MPI_ALLREDUCE",
     ompi_allreduce_f = c"ompi_allreduce_f"]
        (give, result, count, datatype, op, comm, ierror);
    [mpi_gather = c"mpi_gather", mpi_gather_ = c"mpi_gather_", mpi_gather__ = c"mpi_gather__",
     MPI_GATHER = c"MPI_GATHER", ompi_gather_f = c"ompi_gather_f"]
        (give, gives, given, result, takes, taken, root, comm, ierror);
    [mpi_gatherv = c"mpi_gatherv", mpi_gatherv_ = c"mpi_gatherv_",
     mpi_gatherv__ = c"mpi_gatherv__", MPI_GATHERV = c"MPI_GATHERV",
     ompi_gatherv_f = c"ompi_gatherv_f"]
        (give, gives, given, result, counts, places, taken, root, comm, ierror);
    [mpi_allgather = c"mpi_allgather", mpi_allgather_ = c"mpi_allgather_",
     mpi_allgather__ = c"mpi_allgather__", MPI_ALLGATHER = c"MPI_ALLGATHER",
     ompi_allgather_f = c"ompi_allgather_f"]
        (give, gives, given, result, takes, taken, comm, ierror);
    [mpi_allgatherv = c"mpi_allgatherv", mpi_allgatherv_ = c"mpi_allgatherv_",
     mpi_allgatherv__ = c"mpi_allgatherv__", MPI_ALLGATHERV = c"MPI_ALLGATHERV",
     ompi_allgatherv_f = c"ompi_allgatherv_f"]
        (give, gives, given, result, counts, places, taken, comm, ierror);
}
