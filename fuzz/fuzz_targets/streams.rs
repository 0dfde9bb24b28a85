#![no_main]

#[path = "../outside.rs"]
mod outside;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outside::streams(bytes));
