#![no_main]

#[path = "../vault.rs"]
mod vault;

libfuzzer_sys::fuzz_target!(|input: &[u8]| vault::log(input));
