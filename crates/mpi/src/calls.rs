//! Collectives, from MPI's arguments to a result; those with a part of every rank are in
//! [`crate::gather`].
//!
//! Invariants: a call that is not ours (intercommunicator, one process, processes of
//! another world, data longer than MPI's int counts in bytes, before initialisation or
//! after finalisation) goes to the native library with its arguments untouched; whether
//! it does depends on nothing that differs between the ranks of a communicator.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use outlive_collectives::Operator;
use outlive_network::rail::Content;
use outlive_protocols::collective::{Call, CollectiveKind, Why};

use crate::body::{Nothing, Reduction, Shape};
use crate::comms::Comm;
use crate::layer::{Layer, Outcome, layer};
use crate::native::{Handle, Native};
use crate::pair::{Pair, Reduce};

thread_local! {
    /// Calls of MPI within this layer's own calls go to the native library.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Option<Inside> {
        DEPTH.with(|depth| {
            if depth.get() > 0 {
                return None;
            }
            depth.set(1);
            Some(Inside)
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(0));
    }
}

/// A call on a communicator that is ours.
pub(crate) struct Ours {
    pub(crate) layer: &'static Layer,
    pub(crate) native: &'static Native,
    pub(crate) comm: Arc<Comm>,
    _inside: Inside,
}

pub(crate) fn ours(comm: Handle) -> Option<Ours> {
    let layer = layer()?;
    let inside = Inside::enter()?;
    let comm = layer.comms.get(layer.native.clean(comm))?;
    comm.ours.then_some(Ours {
        layer,
        native: layer.native,
        comm,
        _inside: inside,
    })
}

impl Ours {
    /// Hands an error to the communicator's handler, as MPI does, and returns it.
    pub(crate) fn end(&self, code: c_int) -> c_int {
        if code != 0 {
            // SAFETY: a live communicator; the handler is the program's own.
            unsafe { (self.native.comm_call_errhandler)(self.comm.handle, code) };
        }
        code
    }

    pub(crate) fn why(&self, why: Why) -> c_int {
        let constants = &self.native.constants;
        match why {
            Why::Argument => constants.err_root,
            _ => constants.err_other,
        }
    }

    /// An error that must be told before anything is sent.
    pub(crate) fn refused(&self, root: Option<c_int>) -> Option<c_int> {
        let size = self.comm.members.len() as c_int;
        if root.is_some_and(|root| root < 0 || root >= size) {
            return Some(self.native.constants.err_root);
        }
        let mut revoked = 0;
        if self.layer.ulfm
            && let Some(is_revoked) = self.native.is_revoked
        {
            // SAFETY: a live communicator, a pointer to a local.
            unsafe { is_revoked(self.comm.handle, &mut revoked) };
        }
        (revoked != 0).then_some(self.native.constants.err_revoked)
    }

    /// Runs a call with `bytes` of data, as every rank counts them; `operator` makes the
    /// operator of the call with this number.
    pub(crate) fn run<O: Operator>(
        &self,
        call: Call,
        bytes: usize,
        value: Option<Content>,
        operator: impl FnOnce(u32) -> O,
    ) -> Result<Outcome, Why> {
        let Ours { layer, comm, .. } = self;
        let family = layer.family(&call, bytes);
        let number = layer.number(comm, &call, family)?;
        layer.run(comm, call, family, value, &mut operator(number))
    }

    fn call(&self, kind: CollectiveKind, root: c_int, ordered: bool) -> Call {
        Call {
            kind,
            root: root as u32,
            value: None,
            ordered,
        }
    }
}

/// MPI_Barrier; `None` if the call is not ours.
pub fn barrier(comm: Handle) -> Option<c_int> {
    let ours = ours(comm)?;
    if let Some(code) = ours.refused(None) {
        return Some(ours.end(code));
    }
    if let Some(pair) = Pair::of(ours.layer, &ours.comm) {
        return Some(ours.end(pair.barrier()));
    }
    let call = ours.call(CollectiveKind::Barrier, 0, false);
    let ended = ours.run(call, 0, Some(Content::default()), |_| Nothing);
    Some(ours.end(ended.map_or_else(|why| ours.why(why), |_| 0)))
}

/// MPI_Bcast; `None` if the call is not ours.
///
/// # Safety
/// As MPI_Bcast.
pub unsafe fn bcast(
    data: *mut c_void,
    count: c_int,
    datatype: Handle,
    root: c_int,
    comm: Handle,
) -> Option<c_int> {
    let ours = ours(comm)?;
    if let Some(code) = ours.refused(Some(root)) {
        return Some(ours.end(code));
    }
    let datatype = ours.native.clean(datatype);
    let shape = match Shape::of(ours.native, count, datatype, ours.comm.handle) {
        Ok(shape) => shape,
        Err(0) => return None,
        Err(code) => return Some(ours.end(code)),
    };
    if let Some(pair) = Pair::of(ours.layer, &ours.comm) {
        // SAFETY: the caller's promise.
        let code = unsafe { pair.bcast(data, &shape, root) };
        let failed = ours.native.constants.err_failed;
        return Some(ours.end(if code == -1 { failed } else { code }));
    }
    let giving = root == ours.comm.me as c_int;
    // SAFETY: the caller's promise.
    let value = match giving.then(|| unsafe { shape.pack(data) }).transpose() {
        Ok(value) => value,
        Err(code) => return Some(ours.end(code)),
    };
    let call = ours.call(CollectiveKind::Bcast, root, false);
    let ended = ours.run(call, shape.data_bytes, value, |_| Nothing);
    let code = match ended {
        Err(why) => ours.why(why),
        Ok(_) if giving => 0,
        Ok(outcome) => match outcome.content {
            // SAFETY: the caller's promise.
            Some(content) if unsafe { shape.unpack(&content.bytes, data) } => 0,
            Some(_) => ours.native.constants.err_other,
            None => ours.native.constants.err_failed,
        },
    };
    Some(ours.end(code))
}

/// The arguments of MPI_Reduce; `root` is `None` for MPI_Allreduce.
#[derive(Clone, Copy)]
pub struct Args {
    /// The operand, or MPI_IN_PLACE.
    pub give: *const c_void,
    /// Where the result goes.
    pub result: *mut c_void,
    /// How many.
    pub count: c_int,
    /// Of what.
    pub datatype: Handle,
    /// The operator.
    pub op: Handle,
    /// The root of a reduce.
    pub root: Option<c_int>,
}

/// MPI_Reduce and MPI_Allreduce; `None` if the call is not ours.
///
/// # Safety
/// As MPI_Reduce.
pub unsafe fn reduce(args: Args, comm: Handle) -> Option<c_int> {
    let ours = ours(comm)?;
    if let Some(code) = ours.refused(args.root) {
        return Some(ours.end(code));
    }
    let native = ours.native;
    let (datatype, op) = (native.clean(args.datatype), native.clean(args.op));
    let in_place = args.give as usize == native.constants.in_place;
    let give = if in_place {
        args.result.cast_const()
    } else {
        args.give
    };
    let shape = match Shape::of(native, args.count, datatype, ours.comm.handle) {
        Ok(shape) => shape,
        Err(0) => return None,
        Err(code) => return Some(ours.end(code)),
    };
    let mut commutes = 0;
    // SAFETY: a pointer to a local; a wrong operator is MPI's to refuse.
    let known = unsafe { (native.op_commutative)(op, &mut commutes) };
    if known != 0 {
        return Some(ours.end(known));
    }
    let commutes = commutes != 0;
    if let Some(pair) = Pair::of(ours.layer, &ours.comm)
        && shape.is_dense()
    {
        let what = Reduce {
            give,
            result: args.result,
            count: args.count,
            datatype,
            bytes: shape.bytes,
            op,
            commutes,
            root: args.root,
        };
        // SAFETY: the caller's promise.
        let code = unsafe { pair.reduce(what) };
        return Some(ours.end(code));
    }
    // SAFETY: the caller's promise.
    let value = match unsafe { shape.pack(give) } {
        Ok(value) => value,
        Err(code) => return Some(ours.end(code)),
    };
    // The tree is in the order of ranks only from rank 0: others turn it.
    let call = match args.root {
        Some(root) if commutes || root == 0 => ours.call(CollectiveKind::Reduce, root, !commutes),
        _ => ours.call(CollectiveKind::Allreduce, 0, !commutes),
    };
    let ended = ours.run(call, shape.data_bytes, Some(value), |call| Reduction {
        shape,
        op,
        commutes,
        call,
    });
    let code = match ended {
        Err(why) => ours.why(why),
        Ok(outcome) => {
            let due = args.root.is_none_or(|root| root == ours.comm.me as c_int);
            match outcome.content {
                _ if !due => 0,
                // SAFETY: the caller's promise.
                Some(content) if unsafe { shape.unpack(&content.bytes, args.result) } => 0,
                _ => native.constants.err_other,
            }
        }
    };
    Some(ours.end(code))
}
