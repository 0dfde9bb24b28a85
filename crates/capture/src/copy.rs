//! The copy into a slab: all that a program waits for.
//!
//! Large copies use non-temporal stores where the processor has them: the slab is
//! not read again by this core, so its lines need neither be fetched first nor
//! push the program's data out of the cache.

use std::sync::OnceLock;
use std::time::Instant;

/// Copies at or above this many bytes bypass the cache.
pub const STREAM_BYTES_MIN: usize = 256 << 10;
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

/// How large copies are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The C library's memcpy.
    Memcpy,
    /// AVX2, 32-byte non-temporal stores.
    Avx2,
    /// AVX-512, 64-byte non-temporal stores.
    Avx512,
}

impl Method {
    /// All that this processor can do, memcpy first.
    pub fn available() -> Vec<Method> {
        #[allow(unused_mut)]
        let mut methods = vec![Method::Memcpy];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                methods.push(Method::Avx2);
            }
            if std::is_x86_feature_detected!("avx512f") {
                methods.push(Method::Avx512);
            }
        }
        methods
    }

    /// The widest that this processor can do.
    pub fn best() -> Method {
        static BEST: OnceLock<Method> = OnceLock::new();
        *BEST.get_or_init(|| Method::available().pop().unwrap_or(Method::Memcpy))
    }
}

/// Copies `bytes` bytes the best way for their number.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`].
pub unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { copy_by(Method::best(), source, target, bytes) }
}

/// Copies by a given method; small copies always by memcpy.
///
/// # Safety
/// As [`core::ptr::copy_nonoverlapping`]; `method` is one of [`Method::available`].
pub unsafe fn copy_by(method: Method, source: *const u8, target: *mut u8, bytes: usize) {
    if bytes < STREAM_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { core::ptr::copy_nonoverlapping(source, target, bytes) };
    }
    match method {
        // SAFETY: the caller's promise.
        Method::Memcpy => unsafe { core::ptr::copy_nonoverlapping(source, target, bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; the method is available on this processor.
        Method::Avx2 => unsafe { stream::avx2(source, target, bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise; the method is available on this processor.
        Method::Avx512 => unsafe { stream::avx512(source, target, bytes) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        _ => unsafe { core::ptr::copy_nonoverlapping(source, target, bytes) },
    }
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
            unsafe { copy(job.source, job.target, job.bytes) };
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { parallel::copy_all(jobs, threads) };
    }
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

mod parallel {
    use super::{Job, PIECE_BYTES, copy};
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
                unsafe { copy(job.source.add(at), job.target.add(at), bytes) };
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

#[cfg(target_arch = "x86_64")]
mod stream {
    use core::arch::x86_64::*;
    use core::ptr::copy_nonoverlapping;

    macro_rules! streaming {
        ($name:ident, $feature:literal, $width:literal, $load:ident, $store:ident) => {
            /// # Safety
            /// As [`copy_nonoverlapping`]; the processor has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) {
                const WIDTH: usize = $width;
                const STEP: usize = 4 * WIDTH;
                let head = target.align_offset(WIDTH).min(bytes);
                // SAFETY: within the caller's ranges.
                unsafe { copy_nonoverlapping(source, target, head) };
                let mut at = head;
                while bytes - at >= STEP {
                    // SAFETY: STEP bytes are left in both ranges, and the target is
                    // aligned to WIDTH.
                    unsafe {
                        let from = source.add(at);
                        let to = target.add(at);
                        let a = $load(from.cast());
                        let b = $load(from.add(WIDTH).cast());
                        let c = $load(from.add(2 * WIDTH).cast());
                        let d = $load(from.add(3 * WIDTH).cast());
                        $store(to.cast(), a);
                        $store(to.add(WIDTH).cast(), b);
                        $store(to.add(2 * WIDTH).cast(), c);
                        $store(to.add(3 * WIDTH).cast(), d);
                    }
                    at += STEP;
                }
                // Non-temporal stores are ordered before what follows (the slab's
                // state word) only by this.
                _mm_sfence();
                // SAFETY: the rest of the caller's ranges.
                unsafe { copy_nonoverlapping(source.add(at), target.add(at), bytes - at) };
            }
        };
    }

    streaming!(avx2, "avx2", 32, _mm256_loadu_si256, _mm256_stream_si256);
    streaming!(
        avx512,
        "avx512f",
        64,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_copies_exactly_at_any_alignment_and_length() {
        let source: Vec<u8> = (0..(1 << 20) + 999)
            .map(|i: u32| (i * 7 + i / 251) as u8)
            .collect();
        for method in Method::available() {
            for (from, to, bytes) in [
                (0, 0, 1 << 20),
                (1, 3, STREAM_BYTES_MIN),
                (7, 63, STREAM_BYTES_MIN + 1),
                (13, 1, (1 << 20) + 801),
                (0, 5, 100),
                (0, 0, 0),
            ] {
                let mut target = vec![0xEEu8; bytes + 128];
                // SAFETY: both ranges lie within their vectors.
                unsafe {
                    copy_by(
                        method,
                        source[from..].as_ptr(),
                        target[to..].as_mut_ptr(),
                        bytes,
                    );
                };
                assert!(target[..to].iter().all(|&b| b == 0xEE));
                assert_eq!(
                    &target[to..to + bytes],
                    &source[from..from + bytes],
                    "{method:?}"
                );
                assert!(
                    target[to + bytes..].iter().all(|&b| b == 0xEE),
                    "{method:?}"
                );
            }
        }
    }

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
