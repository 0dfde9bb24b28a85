//! Mutated inputs for the parsers of this crate, which no other can call: `fuzz/mutate.rs`.

#[path = "../../../fuzz/allocated.rs"]
mod allocated;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

pub use mutate::run;
