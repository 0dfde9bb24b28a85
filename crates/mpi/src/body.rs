//! User buffers as bodies, and the user's operator on bodies.
//!
//! A body holds the packed data (`MPI_Pack`: of a datatype without gaps the bytes
//! themselves, so those are copied directly). Operators run through
//! `MPI_Reduce_local`, on the bytes where the datatype has no gaps, else on unpacked
//! copies with the datatype's own layout.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use outlive_collectives::Operator;
use outlive_network::rail::Content;

use crate::native::{Handle, Native};

/// Longer data are the native library's.
pub(crate) const BYTES_MAX: usize = c_int::MAX as usize - 4096;
/// Datatypes that are remembered.
const NAMED: usize = 32;

thread_local! {
    /// MPI's own datatypes without gaps, and their bytes: no program can free them, so
    /// what was asked once stays true.
    static SIZES: [Cell<(Handle, c_int)>; NAMED] = const { [const { Cell::new((0, 0)) }; NAMED] };
}

fn place(datatype: Handle) -> usize {
    (datatype ^ datatype >> 6 ^ datatype >> 11) % NAMED
}

fn named(datatype: Handle) -> Option<c_int> {
    let (known, size) = SIZES.with(|sizes| sizes[place(datatype)].get());
    (known == datatype && size > 0).then_some(size)
}

/// Remembers a datatype without gaps if it is one of MPI's own.
fn remember(native: &Native, datatype: Handle, size: c_int) {
    let combiner = |datatype| {
        let (mut ints, mut addresses, mut types, mut combiner) = (0, 0, 0, -1);
        // SAFETY: a datatype that MPI knows; pointers to locals.
        let result = unsafe {
            let ask = native.type_envelope;
            ask(
                datatype,
                &mut ints,
                &mut addresses,
                &mut types,
                &mut combiner,
            )
        };
        (result == 0).then_some(combiner)
    };
    let own = combiner(native.constants.byte);
    if own.is_some() && combiner(datatype) == own {
        SIZES.with(|sizes| sizes[place(datatype)].set((datatype, size)));
    }
}

/// A datatype and how many of it.
#[derive(Clone, Copy)]
pub struct Shape {
    native: &'static Native,
    count: c_int,
    datatype: Handle,
    /// Packed bytes of all.
    pub bytes: usize,
    /// Bytes of the data alone: the same on all ranks, however each lays them out.
    pub data_bytes: usize,
    extent: isize,
    true_lower: isize,
    true_extent: isize,
    dense: bool,
    comm: Handle,
}

impl Shape {
    /// Measures `count` of `datatype`; packing is done on `comm`.
    ///
    /// # Errors
    /// MPI's code if the datatype is wrong, 0 if the data are longer than MPI's int.
    pub fn of(
        native: &'static Native,
        count: c_int,
        datatype: Handle,
        comm: Handle,
    ) -> Result<Shape, c_int> {
        if let Some(size) = named(datatype) {
            return Shape::dense(native, count, datatype, size, comm);
        }
        let (mut size, mut packed) = (0, 0);
        let (mut lower, mut extent, mut true_lower, mut true_extent) = (0, 0, 0, 0);
        // SAFETY: pointers to locals; a wrong datatype is MPI's to refuse.
        let result = unsafe {
            match (native.type_size)(datatype, &mut size) {
                0 => match (native.type_extent)(datatype, &mut lower, &mut extent) {
                    0 => (native.type_true_extent)(datatype, &mut true_lower, &mut true_extent),
                    code => code,
                },
                code => code,
            }
        };
        if result != 0 {
            return Err(result);
        }
        let bytes = usize::try_from(i64::from(size) * i64::from(count)).map_err(|_| 0)?;
        if bytes > BYTES_MAX || size < 0 {
            return Err(0);
        }
        let dense =
            lower == 0 && true_lower == 0 && extent == size as isize && true_extent == extent;
        let mut shape = Shape {
            native,
            count,
            datatype,
            bytes,
            data_bytes: bytes,
            extent,
            true_lower,
            true_extent,
            dense,
            comm,
        };
        if dense {
            remember(native, datatype, size);
        } else if bytes > 0 {
            // SAFETY: as above.
            let result = unsafe { (native.pack_size)(count, datatype, comm, &mut packed) };
            if result != 0 {
                return Err(result);
            }
            shape.bytes = packed as usize;
        }
        Ok(shape)
    }

    fn dense(
        native: &'static Native,
        count: c_int,
        datatype: Handle,
        size: c_int,
        comm: Handle,
    ) -> Result<Shape, c_int> {
        let bytes = usize::try_from(i64::from(size) * i64::from(count)).map_err(|_| 0)?;
        if bytes > BYTES_MAX {
            return Err(0);
        }
        Ok(Shape {
            native,
            count,
            datatype,
            bytes,
            data_bytes: bytes,
            extent: size as isize,
            true_lower: 0,
            true_extent: size as isize,
            dense: true,
            comm,
        })
    }

    /// How many of which datatype.
    pub fn what(&self) -> (c_int, Handle) {
        (self.count, self.datatype)
    }

    /// True if the data are their own packed form.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Bytes from one element to the next.
    pub fn extent(&self) -> isize {
        self.extent
    }

    /// The data at `buffer`, packed.
    ///
    /// # Safety
    /// `buffer` holds `count` of the datatype.
    ///
    /// # Errors
    /// MPI's code.
    pub unsafe fn pack(&self, buffer: *const c_void) -> Result<Content, c_int> {
        let mut data = Vec::new();
        // SAFETY: the caller's promise.
        unsafe { self.pack_into(buffer, &mut data) }?;
        Ok(Content::new(data))
    }

    /// As [`Shape::pack`], behind what `all` holds.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn pack_into(&self, buffer: *const c_void, all: &mut Vec<u8>) -> Result<(), c_int> {
        if self.bytes == 0 {
            return Ok(());
        }
        if self.dense {
            // SAFETY: the caller's promise; a dense datatype is its bytes.
            let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), self.bytes) };
            all.extend_from_slice(data);
            return Ok(());
        }
        let (before, mut place) = (all.len(), 0);
        all.resize(before + self.bytes, 0);
        // SAFETY: the caller's promise; the output has the size that MPI asked for.
        let result = unsafe {
            let out = all.as_mut_ptr().add(before).cast();
            let room = self.bytes as c_int;
            (self.native.pack)(
                buffer,
                self.count,
                self.datatype,
                out,
                room,
                &mut place,
                self.comm,
            )
        };
        all.truncate(before + usize::try_from(place).unwrap_or(0));
        if result == 0 { Ok(()) } else { Err(result) }
    }

    /// The packed `data` into `buffer`; false if they have another length.
    ///
    /// # Safety
    /// `buffer` has room for `count` of the datatype.
    pub unsafe fn unpack(&self, data: &[u8], buffer: *mut c_void) -> bool {
        if self.bytes == 0 {
            return data.is_empty();
        }
        if self.dense {
            if data.len() != self.bytes {
                return false;
            }
            // SAFETY: the caller's promise; bodies are memory of our own, apart from it.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.cast(), data.len()) };
            return true;
        }
        let mut place = 0;
        // SAFETY: the caller's promise; MPI reads at most the given length.
        let result = unsafe {
            let (input, length) = (data.as_ptr().cast(), data.len() as c_int);
            let Native { unpack, .. } = self.native;
            unpack(
                input,
                length,
                &mut place,
                buffer,
                self.count,
                self.datatype,
                self.comm,
            )
        };
        result == 0
    }

    /// Room for the data in their own layout: the memory, and where MPI's buffer begins.
    fn room(&self) -> (Vec<u8>, isize) {
        let span = self.true_extent + self.extent.abs() * (self.count as isize - 1).max(0);
        let first = if self.extent < 0 {
            -self.extent * (self.count as isize - 1).max(0)
        } else {
            0
        };
        (
            vec![0; usize::try_from(span).unwrap_or(0)],
            first - self.true_lower,
        )
    }
}

/// The user's operator, for one call.
pub struct Reduction {
    /// What is combined.
    pub shape: Shape,
    /// The operator.
    pub op: Handle,
    /// True if the order of operands does not matter.
    pub commutes: bool,
    /// The call that this is for; frames of others are declined.
    pub call: u32,
}

impl Reduction {
    fn local(&self, left: *const u8, right: *mut u8) -> bool {
        let Shape {
            native,
            count,
            datatype,
            ..
        } = self.shape;
        // SAFETY: both point at `count` of the datatype (see the callers); MPI's operators
        // compute right := left (op) right (MPI 4.1, section 6.9.7).
        unsafe { (native.reduce_local)(left.cast(), right.cast(), count, datatype, self.op) == 0 }
    }

    fn sparse(&self, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool) -> bool {
        let shape = &self.shape;
        let ((mut a, begin), (mut b, _)) = (shape.room(), shape.room());
        let (left, right) = if acc_left {
            (&**acc, arg)
        } else {
            (arg, &**acc)
        };
        let at = |room: &mut Vec<u8>| room.as_mut_ptr().wrapping_offset(begin);
        let (a, b) = (at(&mut a), at(&mut b));
        // SAFETY: both rooms span `count` of the datatype around these addresses.
        let unpacked = unsafe { shape.unpack(left, a.cast()) && shape.unpack(right, b.cast()) };
        if !unpacked || !self.local(a, b) {
            return false;
        }
        // SAFETY: as above.
        match unsafe { shape.pack(b.cast()) } {
            Ok(content) => {
                acc.clear();
                acc.extend_from_slice(&content.bytes);
                true
            }
            Err(_) => false,
        }
    }
}

impl Operator for Reduction {
    fn combine(&mut self, call: u32, acc: &mut Vec<u8>, arg: &[u8], acc_left: bool) -> bool {
        if call != self.call || acc.len() != arg.len() {
            return false;
        }
        if arg.is_empty() {
            return true;
        }
        if !self.shape.dense {
            return self.sparse(acc, arg, acc_left);
        }
        if self.commutes || !acc_left {
            return self.local(arg.as_ptr(), acc.as_mut_ptr());
        }
        let mut right = arg.to_vec();
        let done = self.local(acc.as_ptr(), right.as_mut_ptr());
        *acc = right;
        done
    }
}

/// For collectives that combine nothing but lists of the absent.
pub struct Nothing;

impl Operator for Nothing {
    fn combine(&mut self, _: u32, acc: &mut Vec<u8>, arg: &[u8], _: bool) -> bool {
        acc.is_empty() && arg.is_empty()
    }
}
