//! The copy into a slab: all that a program waits for.
//!
//! It is the C library's memcpy, which bypasses the cache by itself for large
//! copies. Loops of AVX2 and AVX-512 non-temporal stores were written and measured
//! against it (glibc 2.36, 256 and 512 MiB into a populated slab, in turns, medians of
//! 11, on a busy two-core machine): they took 1.12 to 1.32 times as long, so they are
//! not here. Further threads help only where cores are idle; the default is one.

use core::ptr::copy_nonoverlapping;
use std::time::Instant;

/// Most threads of one copy.
pub const THREADS_MAX: usize = 64;
/// A thread is worth starting for at least this many bytes.
const BYTES_PER_THREAD_MIN: usize = 8 << 20;
/// Unit in which threads share the work.
const PIECE_BYTES: usize = 2 << 20;

/// One source and its place.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Where the bytes are.
    pub source: *const u8,
    /// Where they go.
    pub target: *mut u8,
    /// How many.
    pub bytes: usize,
}

/// Copies all jobs with up to `threads` threads, this one included; returns the
/// nanoseconds that it took. Helper threads block all signals, so that a handler of
/// the program never runs on them. If none can be started, this thread does all.
///
/// # Safety
/// Each job as [`core::ptr::copy_nonoverlapping`]; targets do not overlap.
pub unsafe fn copy_all(jobs: &[Job], threads: usize) -> u64 {
    let start = Instant::now();
    let total: usize = jobs
        .iter()
        .map(|job| job.bytes)
        .fold(0, usize::saturating_add);
    let threads = threads
        .clamp(1, THREADS_MAX)
        .min((total / BYTES_PER_THREAD_MIN).max(1));
    if threads == 1 {
        for job in jobs {
            // SAFETY: the caller's promise.
            unsafe { copy_nonoverlapping(job.source, job.target, job.bytes) };
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { parallel::copy_all(jobs, threads) };
    }
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

mod parallel {
    use super::{Job, PIECE_BYTES};
    use core::ptr::copy_nonoverlapping;
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    struct Pieces<'a> {
        jobs: &'a [Job],
        /// Number of the first piece of each job.
        first: Vec<usize>,
        next: AtomicUsize,
        count: usize,
    }

    // SAFETY: threads take distinct pieces, which do not overlap.
    unsafe impl Sync for Pieces<'_> {}

    impl Pieces<'_> {
        /// # Safety
        /// The jobs are valid copies.
        unsafe fn work(&self) {
            loop {
                let piece = self.next.fetch_add(1, Relaxed);
                if piece >= self.count {
                    return;
                }
                let index = self.first.partition_point(|&first| first <= piece) - 1;
                let job = self.jobs[index];
                let at = (piece - self.first[index]) * PIECE_BYTES;
                let bytes = PIECE_BYTES.min(job.bytes - at);
                // SAFETY: a part of a valid copy.
                unsafe { copy_nonoverlapping(job.source.add(at), job.target.add(at), bytes) };
            }
        }
    }

    /// # Safety
    /// As [`super::copy_all`].
    pub(super) unsafe fn copy_all(jobs: &[Job], threads: usize) {
        let mut count = 0;
        let mut first = Vec::with_capacity(jobs.len());
        for job in jobs {
            first.push(count);
            count += job.bytes.div_ceil(PIECE_BYTES);
        }
        let pieces = Pieces {
            jobs,
            first,
            next: AtomicUsize::new(0),
            count,
        };
        let mask = SignalMask::block_all();
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // SAFETY: the caller's promise.
                let helper = std::thread::Builder::new()
                    .name("outlive-copy".into())
                    .stack_size(64 << 10)
                    .spawn_scoped(scope, || unsafe { pieces.work() });
                if helper.is_err() {
                    break;
                }
            }
            drop(mask);
            // SAFETY: the caller's promise.
            unsafe { pieces.work() };
        });
    }

    /// Blocks all signals of this thread; the mask returns on drop.
    struct SignalMask(libc::sigset_t);

    impl SignalMask {
        fn block_all() -> SignalMask {
            // SAFETY: sigset_t is plain data; both calls only write to it and to the
            // thread's own mask.
            unsafe {
                let mut all = core::mem::zeroed();
                let mut old = core::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
                SignalMask(old)
            }
        }
    }

    impl Drop for SignalMask {
        fn drop(&mut self) {
            // SAFETY: restores the mask that block_all found.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_copy_what_one_thread_copies() {
        let sizes = [0usize, 1, 5 << 20, (9 << 20) + 17, 4096, 3 << 20];
        let sources: Vec<Vec<u8>> = sizes
            .iter()
            .map(|&n| (0..n).map(|i| (i * 31 + n) as u8).collect())
            .collect();
        for threads in [1, 2, 3, 1000] {
            let mut targets: Vec<Vec<u8>> = sizes.iter().map(|&n| vec![0; n]).collect();
            let jobs: Vec<Job> = sources
                .iter()
                .zip(&mut targets)
                .map(|(s, t)| Job {
                    source: s.as_ptr(),
                    target: t.as_mut_ptr(),
                    bytes: s.len(),
                })
                .collect();
            // SAFETY: the jobs cover whole, distinct vectors.
            unsafe { copy_all(&jobs, threads) };
            assert!(sources == targets, "{threads} threads");
        }
    }
}
