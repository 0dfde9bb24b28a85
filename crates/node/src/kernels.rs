//! Kernels whose run time shows how much the hardware varies (FFMK, section 2.4): integer and
//! floating-point units, caches and memory, regular and irregular access.
//!
//! Invariant: a kernel's work and its result are the same at every call, on every core.

mod dense;
mod elements;
mod hash;
mod sparse;

use crate::measure::work;

/// A kernel that was built for a working set.
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Its working set, bytes; no more than was asked for.
    pub bytes: u64,
    /// One call; its result, always the same.
    pub call: Box<dyn FnMut() -> f64 + Send>,
}

/// The names of all kernels.
pub const NAMES: [&str; 9] = [
    "fwq",
    "dgemm-naive",
    "dgemm-vector",
    "sha256",
    "stream",
    "capacity",
    "nbody",
    "cg",
    "fem",
];
/// The least working set that every kernel can be built for, bytes.
pub const BYTES_MIN: u64 = 4 << 10;

/// Builds a kernel for a working set of at most `bytes`; `None` for an unknown name.
pub fn build(name: &str, bytes: u64) -> Option<Kernel> {
    let bytes = bytes.max(BYTES_MIN);
    let name = NAMES.into_iter().find(|one| *one == name)?;
    let (bytes, call): (u64, Box<dyn FnMut() -> f64 + Send>) = match name {
        "fwq" => (0, Box::new(|| work(10_000) as f64)),
        "dgemm-naive" => dense::dgemm(bytes, dense::naive),
        "dgemm-vector" => dense::dgemm(bytes, dense::vector),
        "sha256" => hash::sha(bytes),
        "stream" => dense::stream(bytes),
        "capacity" => sparse::capacity(bytes),
        "nbody" => dense::nbody(bytes),
        "cg" => sparse::cg(bytes),
        _ => elements::fem(bytes),
    };
    Some(Kernel { name, bytes, call })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_every_kernel_has_the_same_result_within_its_working_set() {
        for name in NAMES {
            for bytes in [BYTES_MIN, 22_937, 1 << 18] {
                let mut kernel = build(name, bytes).unwrap();
                assert!(kernel.bytes <= bytes, "{name}: {}", kernel.bytes);
                assert!(
                    name == "fwq" || kernel.bytes * 2 > bytes,
                    "{name}: {}",
                    kernel.bytes
                );
                let first = (kernel.call)();
                assert!(first.is_finite() && first != 0.0, "{name}: {first}");
                assert_eq!((kernel.call)().to_bits(), first.to_bits(), "{name}");
            }
        }
        assert!(build("linpack", 1 << 20).is_none());
    }
}
