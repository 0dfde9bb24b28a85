//! Huge pages for programs that were not changed (HPC-Colony, section 2.1).
//!
//! [`LIBRARY`] is what is loaded ahead of a program; [`launch`] makes the environment for it and
//! tells which programs take it. [`machine`] says what the machine offers, [`process`] what of a
//! process is huge, [`journal`] what the library told of itself. [`kernels`] and [`misses`] are
//! what a comparison runs, and [`compare`] judges it. [`launch`], [`journal`] and [`compare`]
//! have no input or output.

pub mod compare;
pub mod journal;
pub mod kernels;
pub mod launch;
pub mod machine;
pub mod misses;
pub mod process;
pub mod program;

/// The library, built from `c/pages.c`.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liboutlive_pages.so"));
/// The name of its file.
pub const LIBRARY_NAME: &str = "liboutlive_pages.so";
