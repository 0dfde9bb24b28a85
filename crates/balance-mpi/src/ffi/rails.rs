//! Our own rails from C: meeting, balancing, who failed, leaving.

use core::ffi::{CStr, c_char, c_int};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::rail::tcp::Tcp;

use super::{OptionsC, Queries, ResultC, absent, answer, gather, options_of, result_of};
use crate::rails::{Options, Rails, meet};

/// How long leaving waits for what was said to be sent.
const LEAVE: Duration = Duration::from_secs(5);

/// The other processes, over TCP.
pub struct RailsC {
    rails: Rails<Tcp>,
    failed: Vec<u32>,
}

fn text<'a>(given: *const c_char, what: &str) -> Result<&'a str> {
    if given.is_null() {
        return Err(absent(what));
    }
    // SAFETY: not null, and the caller's promise: a string that ends with zero and
    // lives through this call.
    let text = unsafe { CStr::from_ptr(given) };
    text.to_str().map_err(|_| absent(what))
}

fn status(done: std::thread::Result<Result<()>>) -> c_int {
    let done = done.unwrap_or_else(|_| Err(Error::internal("a panic in outlive_balance")));
    match done {
        Ok(()) => 0,
        Err(error) => answer(&error),
    }
}

/// Meets the others in `folder`; see the header.
///
/// # Safety
/// The strings end with zero; `rails` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_meet(
    folder: *const c_char,
    interface: *const c_char,
    rank: u32,
    size: u32,
    patience_ms: u64,
    rails: *mut *mut RailsC,
) -> c_int {
    let work = || -> Result<()> {
        // SAFETY: the caller's promise; null is refused.
        let place = unsafe { rails.as_mut() }.ok_or_else(|| absent("place for the rails"))?;
        *place = core::ptr::null_mut();
        let folder = Path::new(text(folder, "folder")?);
        let named = match interface.is_null() {
            true => "127.0.0.1",
            false => text(interface, "address")?,
        };
        let interface: IpAddr = named.parse().map_err(|_| {
            Error::new(
                Code::InvalidArgument,
                Entity::Address(named.into()),
                "this is no IP address",
                "give an address of this node that the others reach",
            )
        })?;
        let patience = match patience_ms {
            0 => Options::default().bound,
            ms => Duration::from_millis(ms),
        };
        let silence = outlive_network::rail::tcp::Options::default().silence;
        let rail = meet(folder, interface, (rank, size), (patience, silence))?;
        let rails = Rails::new(rail, Options { bound: patience })?;
        let failed = Vec::new();
        *place = Box::into_raw(Box::new(RailsC { rails, failed }));
        Ok(())
    };
    status(catch_unwind(AssertUnwindSafe(work)))
}

/// Balances over rails; see the header.
///
/// # Safety
/// `rails` comes from [`outlive_balance_meet`]; the rest as for
/// [`outlive_balance_over`](super::outlive_balance_over).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_on_rails(
    rails: *mut RailsC,
    queries: *const Queries,
    options: *const OptionsC,
    result: *mut ResultC,
) -> c_int {
    let work = || -> Result<()> {
        // SAFETY: the caller's promise; null is refused.
        let (result, rails) = unsafe { (result.as_mut(), rails.as_mut()) };
        let result = result.ok_or_else(|| absent("result"))?;
        // SAFETY: all zero is a valid result; what was there is the caller's to free.
        *result = unsafe { core::mem::zeroed() };
        let rails = rails.ok_or_else(|| absent("rails"))?;
        // SAFETY: the caller's promise; null is refused, together with the others.
        let local = gather(unsafe { queries.as_ref() });
        // SAFETY: the caller's promise; null means the defaults.
        let given = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let (options, speed, known) = options_of(&given);
        let local = known.and(local);
        let done =
            rails
                .rails
                .balance_given(local.as_ref(), (speed, given.background), &options)?;
        rails.failed = done.failed;
        *result = result_of(done.outcome);
        Ok(())
    };
    status(catch_unwind(AssertUnwindSafe(work)))
}

/// Which processes failed; see the header.
///
/// # Safety
/// `rails` comes from [`outlive_balance_meet`]; `ranks` has `room` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_failed(
    rails: *const RailsC,
    ranks: *mut u32,
    room: u32,
) -> u32 {
    // SAFETY: the caller's promise; null has no failures.
    let Some(rails) = (unsafe { rails.as_ref() }) else {
        return 0;
    };
    if !ranks.is_null() {
        for (place, rank) in rails.failed.iter().take(room as usize).enumerate() {
            // SAFETY: `place` is below `room`, of which the caller says that it is there.
            unsafe { ranks.add(place).write(*rank) };
        }
    }
    rails.failed.len() as u32
}

/// Leaves; see the header.
///
/// # Safety
/// `rails` is null or comes from [`outlive_balance_meet`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_balance_leave(rails: *mut RailsC) {
    if rails.is_null() {
        return;
    }
    // SAFETY: made by `Box::into_raw` and given back once.
    let rails = unsafe { Box::from_raw(rails) };
    // A panic ends here; what is left of the rails is dropped with it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        rails.rails.leave(LEAVE);
    }));
}
