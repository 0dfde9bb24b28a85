//! Whether the module reads special descriptors as they are.
//!
//! Their structures are private to the kernel, and the module knows them only as they are in the
//! kernels that it was tested with. So before anybody relies on them some are made here, with
//! numbers that nothing has by chance, and compared with what the module sees.

use std::io;

use outlive_image::kernel_state;
use outlive_image::model::OpenFile;

use crate::device::Device;

const COUNT: u64 = 0x0012_3456;
const PERIOD_NS: u64 = 7_000_000_003;
const LEFT_NS: u64 = 3_000_000_000_000;
const SIGNALS: u64 = 0b10_1010_0001 << 20;
const DATA: u64 = 0x1357_9bdf_0246_8ace;

/// Closed when it is dropped.
struct Own(i32);

impl Drop for Own {
    fn drop(&mut self) {
        outlive_image::sys::close(self.0);
    }
}

/// The kind that the module does not read as it is, if there is one.
///
/// # Errors
/// One of them cannot be made.
pub fn unseen(device: &Device) -> io::Result<Option<&'static str>> {
    let event = Own(outlive_image::sys::event(COUNT)?);
    if device.look(event.0)? != Some((1, 0, [COUNT, 0, 0, 0])) {
        return Ok(Some("eventfd"));
    }
    let one = Own(kernel_state::semaphore(COUNT)?);
    if device.look(one.0)? != Some((1, 0, [COUNT, 1, 0, 0])) {
        return Ok(Some("eventfd"));
    }
    let timer = Own(kernel_state::timer(&OpenFile::Timer {
        clock: libc::CLOCK_MONOTONIC,
        flags: 0,
        interval_ns: PERIOD_NS,
        next_ns: LEFT_NS,
        expired: 0,
    })?);
    let seen = device.look(timer.0)?;
    let sees = seen.is_some_and(|(kind, flags, [clock, period, left, ticks])| {
        (kind, flags, period, ticks) == (2, 0, PERIOD_NS, 0)
            && clock == libc::CLOCK_MONOTONIC as u64
            && left <= LEFT_NS
            && left > LEFT_NS / 2
    });
    if !sees {
        return Ok(Some("timerfd"));
    }
    let signals = Own(kernel_state::signals(SIGNALS)?);
    if device
        .look(signals.0)?
        .map(|(kind, flags, value)| (kind, flags, !value[0]))
        != Some((5, 0, SIGNALS))
    {
        return Ok(Some("signalfd"));
    }
    let epoll = Own(kernel_state::epoll()?);
    let events = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
    kernel_state::watch(epoll.0, event.0, events, DATA)?;
    // The kernel adds two that are always told.
    let all = events | libc::EPOLLERR as u32 | libc::EPOLLHUP as u32;
    let value = [1, u64::from(all), DATA, event.0 as u64];
    if device.look(epoll.0)? != Some((3, 0, value)) {
        return Ok(Some("epoll"));
    }
    Ok(None)
}
