//! What a program links: Rust API, C ABI, Fortran module, C++ header.
