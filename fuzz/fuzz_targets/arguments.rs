#![no_main]

#[path = "../arguments.rs"]
mod arguments;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| arguments::calls(bytes));
