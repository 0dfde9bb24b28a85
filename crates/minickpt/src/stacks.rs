//! Stacks of threads, mapped ahead of their threads.
//!
//! A thread's birth begins with a mapping for its stack, which costs the supervisor two
//! lists of calls. A program that makes one thread after the other gets its stacks several
//! at a time; what the next call is given is there already, and costs one stop. Nobody may
//! touch them until the program makes them writable. Stacks that were not given out when
//! the kernel died stay behind as inaccessible mappings: at most [`AHEAD_MAX`] less one.

use std::cell::{Cell, RefCell};

use outlive_image::calls::reg;

/// The most that are made at a time.
pub(crate) const AHEAD_MAX: usize = 16;

/// The stacks that wait for the threads of one process.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// Lengths and addresses.
    ready: RefCell<Vec<(u64, u64)>>,
    /// How many were made at the last time.
    made: Cell<usize>,
}

/// True if a mmap(2) with these arguments makes what the C library makes for a thread.
pub(crate) fn is_stack(arguments: &[u64; 6]) -> bool {
    let [address, _, protection, flags, _, _] = *arguments;
    let stack = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK) as u64;
    address == 0 && protection == libc::PROT_NONE as u64 && flags == stack
}

impl Stacks {
    /// One that is ready, for the mmap(2) with these registers.
    pub(crate) fn take(&self, registers: &[u64]) -> Option<u64> {
        let places = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9];
        let arguments = places.map(|place| registers[place]);
        if !is_stack(&arguments) {
            return None;
        }
        let mut ready = self.ready.borrow_mut();
        let place = ready.iter().position(|(bytes, _)| *bytes == arguments[1])?;
        Some(ready.remove(place).1)
    }

    /// How many to make now: twice as many as before, so that a program with one thread
    /// more pays for no other.
    pub(crate) fn next(&self) -> usize {
        let next = (self.made.get() * 2).clamp(1, AHEAD_MAX);
        self.made.set(next);
        next
    }

    /// Keeps what was made ahead.
    pub(crate) fn keep(&self, length: u64, addresses: &[u64]) {
        let new = addresses.iter().map(|address| (length, *address));
        // The first that was made is the first that is given.
        self.ready.borrow_mut().extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK) as u64;
    const NONE: u64 = u32::MAX as u64;

    fn registers(length: u64, protection: u64, flags: u64) -> Vec<u64> {
        let mut registers = vec![0; 27];
        registers[reg::RSI] = length;
        registers[reg::RDX] = protection;
        registers[reg::R10] = flags;
        registers[reg::R8] = NONE;
        registers
    }

    #[test]
    fn a_stack_is_given_once_and_by_its_length() {
        let stacks = Stacks::default();
        stacks.keep(8 << 20, &[1 << 30, 2 << 30]);
        assert_eq!(stacks.take(&registers(4 << 20, 0, STACK)), None);
        assert_eq!(stacks.take(&registers(8 << 20, 3, STACK)), None);
        let other = STACK | libc::MAP_FIXED as u64;
        assert_eq!(stacks.take(&registers(8 << 20, 0, other)), None);
        let wanted = registers(8 << 20, 0, STACK);
        assert_eq!(stacks.take(&wanted), Some(1 << 30));
        assert_eq!(stacks.take(&wanted), Some(2 << 30));
        assert_eq!(stacks.take(&wanted), None);
    }

    #[test]
    fn they_become_more_up_to_a_bound() {
        let stacks = Stacks::default();
        let made: Vec<usize> = (0..7).map(|_| stacks.next()).collect();
        assert_eq!(made, [1, 2, 4, 8, 16, 16, 16]);
    }
}
