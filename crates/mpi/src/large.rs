//! The large-count forms (`MPI_Bcast_c`) of what this layer serves.
//!
//! A count that fits an int is a call of the other form. A larger one is the native
//! library's; where that has no such forms (Open MPI before 6), the call is divided or its
//! datatype made longer, for a program may find these names here and not look further
//! (mpi4py does).

mod gather;

use std::ffi::{c_int, c_void};

use crate::exports::{MPI_Allreduce, MPI_Bcast, MPI_Reduce, NO_MPI};
use crate::native::{Count, Family, Handle, Native, native};
use crate::waits::{MPI_Recv, MPI_Send, MPI_Sendrecv, MPI_Ssend, both, ignored, wait_for};

/// Elements of a part of what is divided.
const PART: Count = 1 << 30;

fn small(count: Count) -> Option<c_int> {
    c_int::try_from(count).ok()
}

/// A datatype of `count` elements, more than an int counts.
struct Long {
    native: &'static Native,
    datatype: Handle,
}

impl Long {
    fn of(native: &'static Native, count: Count, element: Handle) -> Result<Long, c_int> {
        let parts = c_int::try_from(count / PART).map_err(|_| native.constants.err_other)?;
        let (mut lower, mut extent) = (0, 0);
        let (mut part, mut whole) = (0, 0);
        let rest = (count % PART) as c_int;
        // SAFETY: the program's datatype and pointers to locals; datatypes in use by another
        // one may be freed.
        let code = unsafe {
            let all = |codes: &[c_int]| codes.iter().copied().find(|code| *code != 0);
            let made = all(&[
                (native.type_extent)(element, &mut lower, &mut extent),
                (native.type_contiguous)(PART as c_int, element, &mut part),
            ]);
            made.or_else(|| {
                let starts = [0, parts as isize * PART as isize * extent];
                let types = pair(native, part, element);
                let counts = [parts, rest];
                all(&[
                    (native.type_struct)(
                        2,
                        counts.as_ptr(),
                        starts.as_ptr(),
                        types.as_ptr(),
                        &mut whole,
                    ),
                    (native.type_free)(&mut part),
                    (native.type_commit)(&mut whole),
                ])
            })
        };
        match code {
            None => Ok(Long {
                native,
                datatype: whole,
            }),
            Some(code) => Err(code),
        }
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        // SAFETY: made above and freed once.
        unsafe { (self.native.type_free)(&mut self.datatype) };
    }
}

/// Two handles as an array of the library's own.
fn pair(native: &Native, first: Handle, second: Handle) -> [Handle; 2] {
    match native.family {
        Family::Mpich => [first & 0xffff_ffff | second << 32, 0],
        Family::OpenMpi | Family::Standard => [first, second],
    }
}

/// `each` with the offset in bytes and the number of elements of every part.
fn parts(
    native: &Native,
    count: Count,
    element: Handle,
    mut each: impl FnMut(isize, c_int) -> c_int,
) -> c_int {
    let (mut lower, mut extent) = (0, 0);
    // SAFETY: the program's datatype and pointers to locals.
    let known = unsafe { (native.type_extent)(element, &mut lower, &mut extent) };
    if known != 0 {
        return known;
    }
    let mut done = 0;
    while done < count {
        let now = PART.min(count - done);
        let code = each(done as isize * extent, now as c_int);
        if code != 0 {
            return code;
        }
        done += now;
    }
    0
}

macro_rules! large {
    ($c:ident, ($($name:ident: $type:ty),*), $native:ident, $count:expr,
     $short:expr, $whole:expr, $divided:expr) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        /// As the MPI standard says.
        #[allow(non_snake_case, unused_unsafe)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $c($($name: $type),*) -> c_int {
            let Some($native) = native() else {
                return NO_MPI;
            };
            // SAFETY: the caller's own arguments.
            unsafe {
                if $count {
                    return $short;
                }
                let whole: Option<c_int> = $whole;
                whole.unwrap_or_else(|| $divided.unwrap_or_else(|code: c_int| code))
            }
        }
    };
}

large!(MPI_Bcast_c, (data: *mut c_void, count: Count, datatype: Handle, root: c_int, comm: Handle),
native, small(count).is_some(),
MPI_Bcast(data, count as c_int, datatype, root, comm),
native.bcast_c.map(|bcast| bcast(data, count, datatype, root, comm)),
Ok(parts(native, count, datatype, |at, some| {
    MPI_Bcast(data.wrapping_byte_offset(at), some, datatype, root, comm)
})));
large!(MPI_Reduce_c,
(give: *const c_void, result: *mut c_void, count: Count, datatype: Handle, op: Handle,
 root: c_int, comm: Handle),
native, small(count).is_some(),
MPI_Reduce(give, result, count as c_int, datatype, op, root, comm),
native.reduce_c.map(|reduce| reduce(give, result, count, datatype, op, root, comm)),
Ok(parts(native, count, datatype, |at, some| {
    let (give, result) = (operand(native, give, at), result.wrapping_byte_offset(at));
    MPI_Reduce(give, result, some, datatype, op, root, comm)
})));
large!(MPI_Allreduce_c,
(give: *const c_void, result: *mut c_void, count: Count, datatype: Handle, op: Handle,
 comm: Handle),
native, small(count).is_some(),
MPI_Allreduce(give, result, count as c_int, datatype, op, comm),
native.allreduce_c.map(|reduce| reduce(give, result, count, datatype, op, comm)),
Ok(parts(native, count, datatype, |at, some| {
    let (give, result) = (operand(native, give, at), result.wrapping_byte_offset(at));
    MPI_Allreduce(give, result, some, datatype, op, comm)
})));

/// The operand from `at` on, which may be MPI_IN_PLACE.
fn operand(native: &Native, give: *const c_void, at: isize) -> *const c_void {
    if give as usize == native.constants.in_place {
        give
    } else {
        give.wrapping_byte_offset(at)
    }
}

large!(MPI_Send_c,
    (data: *const c_void, count: Count, datatype: Handle, to: c_int, tag: c_int, comm: Handle),
    native, small(count).is_some(),
    MPI_Send(data, count as c_int, datatype, to, tag, comm),
    native.send_c.zip(native.isend_c).map(|(send, isend)| {
        wait_for(ignored(), |_, request| isend(data, count, datatype, to, tag, comm, request))
            .unwrap_or_else(|| send(data, count, datatype, to, tag, comm))
    }),
    Long::of(native, count, datatype)
        .map(|long| MPI_Send(data, 1, long.datatype, to, tag, comm)));
large!(MPI_Ssend_c,
    (data: *const c_void, count: Count, datatype: Handle, to: c_int, tag: c_int, comm: Handle),
    native, small(count).is_some(),
    MPI_Ssend(data, count as c_int, datatype, to, tag, comm),
    native.ssend_c.zip(native.issend_c).map(|(send, issend)| {
        wait_for(ignored(), |_, request| issend(data, count, datatype, to, tag, comm, request))
            .unwrap_or_else(|| send(data, count, datatype, to, tag, comm))
    }),
    Long::of(native, count, datatype)
        .map(|long| MPI_Ssend(data, 1, long.datatype, to, tag, comm)));
large!(MPI_Recv_c,
    (data: *mut c_void, count: Count, datatype: Handle, source: c_int, tag: c_int,
     comm: Handle, status: *mut c_void),
    native, small(count).is_some(),
    MPI_Recv(data, count as c_int, datatype, source, tag, comm, status),
    native.recv_c.zip(native.irecv_c).map(|(recv, irecv)| {
        wait_for(status, |_, request| irecv(data, count, datatype, source, tag, comm, request))
            .unwrap_or_else(|| recv(data, count, datatype, source, tag, comm, status))
    }),
    Long::of(native, count, datatype)
        .map(|long| MPI_Recv(data, 1, long.datatype, source, tag, comm, status)));
large!(MPI_Sendrecv_c,
(give: *const c_void, gives: Count, given: Handle, to: c_int, tag: c_int,
 take: *mut c_void, takes: Count, taken: Handle, from: c_int, its: c_int,
 comm: Handle, status: *mut c_void),
native, small(gives).is_some() && small(takes).is_some(),
MPI_Sendrecv(
    give, gives as c_int, given, to, tag, take, takes as c_int, taken, from, its, comm, status,
),
native.sendrecv_c.zip(native.isend_c.zip(native.irecv_c)).map(|(swap, (isend, irecv))| {
    both(
        status,
        |_, request| irecv(take, takes, taken, from, its, comm, request),
        |_, request| isend(give, gives, given, to, tag, comm, request),
    )
    .unwrap_or_else(|| {
        swap(give, gives, given, to, tag, take, takes, taken, from, its, comm, status)
    })
}),
Long::of(native, gives, given).and_then(|give_type| {
    let take_type = Long::of(native, takes, taken)?;
    Ok(MPI_Sendrecv(
        give, 1, give_type.datatype, to, tag, take, 1, take_type.datatype, from, its, comm,
        status,
    ))
}));
