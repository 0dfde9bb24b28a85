//! The C interface; `include/outlive_balance.h` is its documentation.
//!
//! Invariants: no panic crosses the border; pointers are read within one call
//! only; lists handed out stay valid until `outlive_balance_free`.

use core::ffi::{c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outlive_balance::diffusion::{Approach, Options};
use outlive_balance::graph::TASKS_MAX;
use outlive_base::{Code, Entity, Error, Result};

use crate::distributed::balance_given;
use crate::outcome::Outcome;
use crate::tasks::{Local, Task};
use crate::transport::Transport;

mod rails;
#[cfg(test)]
mod tests;

/// What the C side supplies to reach other processes. Every function returns 0 or
/// a positive number of its own that says what failed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TransportC {
    /// Handed to every function.
    pub context: *mut c_void,
    /// This process.
    pub rank: u32,
    /// All processes.
    pub size: u32,
    /// Sends a copy of `bytes`.
    pub send: Option<unsafe extern "C" fn(*mut c_void, u32, u32, *const u8, u64) -> c_int>,
    /// Waits for a message with this tag from `*from` (`UINT32_MAX`: anyone); sets
    /// `*from` and `*length`. The bytes are then fetched by `take`.
    pub wait: Option<unsafe extern "C" fn(*mut c_void, *mut u32, u32, *mut u64) -> c_int>,
    /// Copies the message waited for.
    pub take: Option<unsafe extern "C" fn(*mut c_void, *mut u8, u64) -> c_int>,
    /// Gathers one double of each.
    pub all_gather: Option<unsafe extern "C" fn(*mut c_void, f64, *mut f64) -> c_int>,
    /// Exchanges `lengths[p]` bytes with each p; `incoming[p]` is set first, then
    /// called again with room for all of them.
    pub all_to_all: Option<
        unsafe extern "C" fn(*mut c_void, *const u8, *const u64, *mut u8, *mut u64) -> c_int,
    >,
}

struct Foreign(TransportC);

fn checked(status: c_int, doing: &str) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    Err(Error::new(
        Code::Network,
        Entity::Call,
        format!("{doing} failed with {status}"),
        "see the message of the communication library",
    ))
}

/// Of a query function of the program.
fn answered(status: c_int, query: &str) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let remedy = "see what that function of the program says";
    Err(senseless(format!("{query} returned {status}"), remedy))
}

fn senseless(reason: String, remedy: &str) -> Error {
    Error::new(Code::InvalidArgument, Entity::Call, reason, remedy)
}

fn absent(what: &str) -> Error {
    let remedy = "set every member of the structures and every argument that the header asks for";
    senseless(format!("no {what}"), remedy)
}

impl Transport for Foreign {
    fn rank(&self) -> u32 {
        self.0.rank
    }
    fn size(&self) -> u32 {
        self.0.size
    }
    fn send(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        let send = self.0.send.ok_or_else(|| absent("send"))?;
        // SAFETY: the pointer and the length are those of a live slice.
        let status = unsafe { send(self.0.context, to, tag, bytes.as_ptr(), bytes.len() as u64) };
        checked(status, "send")
    }
    fn receive(&mut self, from: Option<u32>, tag: u32) -> Result<(u32, Vec<u8>)> {
        let wait = self.0.wait.ok_or_else(|| absent("wait"))?;
        let take = self.0.take.ok_or_else(|| absent("take"))?;
        let (mut source, mut length) = (from.unwrap_or(u32::MAX), 0u64);
        // SAFETY: both out pointers are to live locals.
        let status = unsafe { wait(self.0.context, &mut source, tag, &mut length) };
        checked(status, "receive")?;
        let mut bytes = vec![0; length as usize];
        // SAFETY: the buffer has exactly `length` bytes.
        let status = unsafe { take(self.0.context, bytes.as_mut_ptr(), length) };
        checked(status, "receive")?;
        Ok((source, bytes))
    }
    fn all_gather(&mut self, value: f64) -> Result<Vec<f64>> {
        let gather = self.0.all_gather.ok_or_else(|| absent("all_gather"))?;
        let mut all = vec![0.0; self.0.size as usize];
        // SAFETY: the array has one place for each process.
        let status = unsafe { gather(self.0.context, value, all.as_mut_ptr()) };
        checked(status, "all-gather")?;
        Ok(all)
    }
    fn all_to_all(&mut self, bytes: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let exchange = self.0.all_to_all.ok_or_else(|| absent("all_to_all"))?;
        let lengths: Vec<u64> = bytes.iter().map(|b| b.len() as u64).collect();
        let flat = bytes.concat();
        let mut incoming = vec![0u64; lengths.len()];
        let context = self.0.context;
        // SAFETY: the first call only fills `incoming`, one place a process.
        let status = unsafe {
            exchange(
                context,
                flat.as_ptr(),
                lengths.as_ptr(),
                core::ptr::null_mut(),
                incoming.as_mut_ptr(),
            )
        };
        checked(status, "all-to-all")?;
        let mut all = vec![0; incoming.iter().sum::<u64>() as usize];
        // SAFETY: `all` has room for what `incoming` announces.
        let status = unsafe {
            exchange(
                context,
                flat.as_ptr(),
                lengths.as_ptr(),
                all.as_mut_ptr(),
                incoming.as_mut_ptr(),
            )
        };
        checked(status, "all-to-all")?;
        let mut rest = all.as_slice();
        let split = |&length: &u64| {
            let (head, tail) = rest.split_at(length as usize);
            rest = tail;
            head.to_vec()
        };
        Ok(incoming.iter().map(split).collect())
    }
}

/// The caller's tasks, in the style of Zoltan's query functions; each returns 0
/// or a positive number of its own.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Queries {
    /// Handed to every function.
    pub context: *mut c_void,
    /// The number of this process's objects.
    pub objects_count: Option<unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int>,
    /// Their global numbers and weights.
    pub objects: Option<unsafe extern "C" fn(*mut c_void, u64, *mut u64, *mut f64) -> c_int>,
    /// The number of edges of each.
    pub edges_count: Option<unsafe extern "C" fn(*mut c_void, u64, *const u64, *mut u32) -> c_int>,
    /// Their other ends and weights, object by object.
    pub edges:
        Option<unsafe extern "C" fn(*mut c_void, u64, *const u64, *mut u64, *mut f64) -> c_int>,
    /// Three coordinates of each; may be absent.
    pub coordinates: Option<unsafe extern "C" fn(*mut c_void, u64, *const u64, *mut f64) -> c_int>,
}

/// How to balance; zero everywhere means the defaults.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct OptionsC {
    /// Imbalance that is good enough; 0: 0.02.
    pub tolerance: f64,
    /// Edge weight that keeping a task is worth, in average edges; 0: 0.1.
    pub migration_price: f64,
    /// This process's speed; 0: 1.
    pub speed: f64,
    /// Load of this process that cannot move.
    pub background: f64,
    /// The same on all processes.
    pub seed: u64,
    /// Not 0: this process ends without objects; its speed and background do not count.
    pub leaving: c_int,
    /// 0: diffusion; 1: a fresh partition under names that keep objects at home; 2: the better
    /// of the two. The same on all processes.
    pub method: c_int,
}

/// The result; free it with `outlive_balance_free`.
#[repr(C)]
pub struct ResultC {
    /// Imbalance before.
    pub imbalance_before: f64,
    /// Imbalance after the moves.
    pub imbalance: f64,
    /// Rounds of flow and selection.
    pub rounds: u32,
    /// Iterations of the diffusion.
    pub iterations: u32,
    /// Objects to send.
    pub exports_count: u64,
    /// Their numbers.
    pub exports: *mut u64,
    /// Where each goes.
    pub exports_to: *mut u32,
    /// Objects to receive.
    pub imports_count: u64,
    /// Their numbers.
    pub imports: *mut u64,
    /// Where each comes from.
    pub imports_from: *mut u32,
    /// Not 0: the partition is a fresh one.
    pub fresh: c_int,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The text of this thread's last error; valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_balance_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// The caller's tasks, or why there are none; also where a query panics.
fn gather(queries: Option<&Queries>) -> Result<Local> {
    let queries = queries.ok_or_else(|| absent("queries"))?;
    let found = catch_unwind(AssertUnwindSafe(|| collect(queries)));
    found.unwrap_or_else(|_| Err(Error::internal("a panic while objects were gathered")))
}

fn collect(queries: &Queries) -> Result<Local> {
    let count_of = queries
        .objects_count
        .ok_or_else(|| absent("objects_count"))?;
    let objects = queries.objects.ok_or_else(|| absent("objects"))?;
    let degrees_of = queries.edges_count.ok_or_else(|| absent("edges_count"))?;
    let edges_of = queries.edges.ok_or_else(|| absent("edges"))?;
    let context = queries.context;
    let mut count = 0u64;
    // SAFETY: the out pointer is to a live local.
    let status = unsafe { count_of(context, &mut count) };
    answered(status, "objects_count")?;
    if count > TASKS_MAX as u64 {
        let reason = format!("objects_count gave {count}");
        return Err(senseless(reason, "give a rank at most 2^32 - 2 objects"));
    }
    let length = count as usize;
    let (mut names, mut weights) = (vec![0u64; length], vec![1.0f64; length]);
    // SAFETY: both arrays have `count` places.
    let status = unsafe { objects(context, count, names.as_mut_ptr(), weights.as_mut_ptr()) };
    answered(status, "objects")?;
    let mut degrees = vec![0u32; length];
    // SAFETY: as above.
    let status = unsafe { degrees_of(context, count, names.as_ptr(), degrees.as_mut_ptr()) };
    answered(status, "edges_count")?;
    let total: usize = degrees.iter().map(|&d| d as usize).sum();
    let (mut to, mut edge_weights) = (vec![0u64; total], vec![1.0f64; total]);
    // SAFETY: both arrays have as many places as the degrees announce.
    let status = unsafe {
        edges_of(
            context,
            count,
            names.as_ptr(),
            to.as_mut_ptr(),
            edge_weights.as_mut_ptr(),
        )
    };
    answered(status, "edges")?;
    let mut at = vec![0.0f64; 3 * length];
    if let Some(coordinates) = queries.coordinates {
        // SAFETY: the array has three places an object.
        let status = unsafe { coordinates(context, count, names.as_ptr(), at.as_mut_ptr()) };
        answered(status, "coordinates")?;
    }
    let mut local = Local::default();
    let mut next = 0;
    for slot in 0..length {
        let row = next..next + degrees[slot] as usize;
        next = row.end;
        let ends = to[row.clone()]
            .iter()
            .copied()
            .zip(edge_weights[row].iter().copied());
        let mut edges: Vec<(u64, f64)> = ends.collect();
        edges.sort_by_key(|edge| edge.0);
        let task = Task {
            weight: weights[slot],
            home: 0,
            at: queries
                .coordinates
                .map(|_| [at[3 * slot], at[3 * slot + 1], at[3 * slot + 2]]),
            edges,
        };
        if local.own.insert(names[slot], task).is_some() {
            let reason = format!("objects gave the number {} twice", names[slot]);
            return Err(senseless(reason, "number each object once over all ranks"));
        }
    }
    Ok(local)
}

/// The options, this process's speed, and why they are refused, if they are.
fn options_of(given: &OptionsC) -> (Options, f64, Result<()>) {
    let (approach, known) = match given.method {
        0 => (Approach::Diffusion, Ok(())),
        1 => (Approach::Scratch, Ok(())),
        2 => (Approach::Auto, Ok(())),
        other => {
            let remedy = "use 0 (diffusion), 1 (scratch) or 2 (auto)";
            let refused = senseless(format!("there is no method {other}"), remedy);
            (Approach::Diffusion, Err(refused))
        }
    };
    let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
    let defaults = Options::default();
    let options = Options {
        approach,
        tolerance: or(given.tolerance, defaults.tolerance),
        migration_price: or(given.migration_price, defaults.migration_price),
        seed: given.seed,
        ..defaults
    };
    let speed = match given.leaving {
        0 => or(given.speed, 1.0),
        _ => 0.0,
    };
    (options, speed, known)
}

fn leak<T>(list: Vec<T>) -> *mut T {
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Keeps an error's text for this thread; its code as C sees it.
fn answer(error: &Error) -> c_int {
    let text = CString::new(error.to_string()).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
    -(c_int::from(error.code().number() as i16))
}

fn result_of(done: Outcome) -> ResultC {
    let (exports, exports_to): (Vec<u64>, Vec<u32>) = done.exports.into_iter().unzip();
    let (imports, imports_from): (Vec<u64>, Vec<u32>) = done.imports.into_iter().unzip();
    ResultC {
        imbalance_before: done.imbalance.0,
        imbalance: done.imbalance.1,
        rounds: done.rounds,
        iterations: done.iterations,
        exports_count: exports.len() as u64,
        exports: leak(exports),
        exports_to: leak(exports_to),
        imports_count: imports.len() as u64,
        imports: leak(imports),
        imports_from: leak(imports_from),
        fresh: c_int::from(done.is_fresh),
    }
}

/// Balances; collective over the transport. Returns 0, or minus the code of
/// `outlive_balance_error`; `result` is then all zero.
///
/// # Safety
/// The pointers are to live objects; the functions of `transport` and `queries`
/// keep what the header asks of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_over(
    transport: *const TransportC,
    queries: *const Queries,
    options: *const OptionsC,
    result: *mut ResultC,
) -> c_int {
    let work = || -> Result<ResultC> {
        // SAFETY: the caller's promise; null is refused.
        let (transport, queries) = unsafe { (transport.as_ref(), queries.as_ref()) };
        let transport = transport.ok_or_else(|| absent("transport"))?;
        // SAFETY: the caller's promise; null means the defaults.
        let given = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let home = transport.rank;
        // What this rank cannot say all must learn, or they would wait for it.
        let local = match result.is_null() {
            true => Err(absent("result")),
            false => gather(queries),
        };
        let local = local.map(|mut local| {
            local.own.values_mut().for_each(|task| task.home = home);
            local
        });
        let (options, speed, known) = options_of(&given);
        let local = known.and(local);
        let mut net = Foreign(*transport);
        let done = balance_given(&mut net, local, (speed, given.background), &options)?;
        Ok(result_of(done))
    };
    let done = catch_unwind(AssertUnwindSafe(work));
    let done = done.unwrap_or_else(|_| Err(Error::internal("a panic in outlive_balance")));
    match (done, result.is_null()) {
        (Ok(done), false) => {
            // SAFETY: not null, and the caller's to be written.
            unsafe { result.write(done) };
            0
        }
        // Without a place for the result `balance` has failed.
        (Ok(_), true) => answer(&absent("result")),
        (Err(error), null) => {
            if !null {
                // SAFETY: not null, and the caller's; all zero is a valid result.
                unsafe { result.write(core::mem::zeroed()) };
            }
            answer(&error)
        }
    }
}

/// Frees the lists of a result and zeroes it; all zero and null are fine.
///
/// # Safety
/// `result` is null or was filled by [`outlive_balance_over`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_free(result: *mut ResultC) {
    // SAFETY: the caller's promise.
    let Some(result) = (unsafe { result.as_mut() }) else {
        return;
    };
    for (list, count) in [
        (result.exports, result.exports_count),
        (result.imports, result.imports_count),
    ] {
        free(list, count);
    }
    for (list, count) in [
        (result.exports_to, result.exports_count),
        (result.imports_from, result.imports_count),
    ] {
        free(list, count);
    }
    // SAFETY: all zero is a valid, empty result.
    *result = unsafe { core::mem::zeroed() };
}

fn free<T>(list: *mut T, count: u64) {
    if !list.is_null() {
        let slice = core::ptr::slice_from_raw_parts_mut(list, count as usize);
        // SAFETY: made by `leak` with this length, and freed once: the caller's
        // result is zeroed afterwards.
        drop(unsafe { Box::from_raw(slice) });
    }
}
