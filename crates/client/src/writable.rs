//! Whether memory can be written, before it is: a restore into a read-only page would end
//! the program by a signal, half of its state replaced.
//!
//! The kernel's list of the process's mappings tells it. It is read once a restore, before
//! the first byte is changed. If it cannot be read, nothing is refused.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// The place of the first of these ranges of which a byte cannot be written.
pub fn first_that_is_not(targets: &[(*mut u8, usize)]) -> Option<usize> {
    let maps = File::open("/proc/self/maps").ok()?;
    let mut left: Vec<(usize, usize, usize)> = targets
        .iter()
        .enumerate()
        .filter(|(_, (_, bytes))| *bytes > 0)
        .map(|(at, (data, bytes))| {
            let start = data.addr();
            (start, start.saturating_add(*bytes), at)
        })
        .collect();
    left.sort_unstable();
    // Both ascend, so one pass is enough: `left[next..]` is not covered yet. Regions may
    // overlap, so each is followed until it is covered.
    let mut open: Vec<(usize, usize, usize)> = Vec::new();
    let mut next = 0;
    for line in BufReader::new(maps).lines() {
        let line = line.ok()?;
        let (from, to) = range(&line)?;
        let writable = line.split(' ').nth(1)?.as_bytes().get(1) == Some(&b'w');
        while next < left.len() && left[next].0 < to {
            open.push(left[next]);
            next += 1;
        }
        let gap = |&(start, _, _): &(usize, usize, usize)| start < from || !writable;
        if let Some((_, _, at)) = open.iter().copied().find(|one| gap(one)) {
            return Some(at);
        }
        open.retain_mut(|(start, end, _)| {
            *start = to;
            *end > to
        });
        if open.is_empty() && next == left.len() {
            return None;
        }
    }
    open.first().or(left.get(next)).map(|&(_, _, at)| at)
}

fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    const PAGE: usize = 4096;

    #[test]
    fn every_byte_of_every_range_is_looked_at() {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base: *mut u8 = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                8 * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .unwrap()
        .cast();
        let page = |number: usize| base.wrapping_add(number * PAGE);
        let whole = (base, 8 * PAGE);
        let mut stack = [0u8; 3];
        let fine = [(stack.as_mut_ptr(), 3), whole, (page(3), 1), (base, 0)];
        assert_eq!(first_that_is_not(&fine), None);
        // SAFETY: pages of the mapping above, which nobody uses.
        unsafe {
            rustix::mm::mprotect(page(4).cast(), PAGE, MprotectFlags::READ).unwrap();
            rustix::mm::munmap(page(6).cast(), PAGE).unwrap();
        }
        assert_eq!(first_that_is_not(&[(page(0), 4 * PAGE)]), None);
        assert_eq!(
            first_that_is_not(&[(page(5), PAGE), (page(3), PAGE + 1)]),
            Some(1)
        );
        assert_eq!(first_that_is_not(&[(page(4).wrapping_add(9), 1)]), Some(0));
        assert_eq!(first_that_is_not(&[(page(5), PAGE + 1)]), Some(0));
        assert_eq!(first_that_is_not(&[(page(6), 1)]), Some(0));
        assert_eq!(first_that_is_not(&[(page(7), PAGE)]), None);
        assert_eq!(first_that_is_not(&[whole]), Some(0));
        assert_eq!(
            first_that_is_not(&[(core::ptr::without_provenance_mut(usize::MAX - PAGE), 1)]),
            Some(0)
        );
        // SAFETY: what is left of the mapping.
        unsafe { rustix::mm::munmap(base.cast(), 8 * PAGE).unwrap() };
    }
}
