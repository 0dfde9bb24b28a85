//! Arguments of the C interface, read from mutated bytes: `fuzz/arguments.rs`.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../fuzz/allocated.rs"]
mod allocated;
#[path = "../../../fuzz/arguments.rs"]
mod arguments;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn no_argument_makes_a_call_panic_or_write_too_far() {
    // Each call with common arguments, and long rows of them.
    let mut good: Vec<Vec<u8>> = (0..12)
        .map(|call| vec![5, 0, 0, 0, 3, b'a', b'b', b'c', 0, 7, 1, call, 40, 2, 9, 9])
        .collect();
    good.push(good.concat());
    good.push((0..=255).collect());
    mutate::run("arguments", good, 6_000, (1 << 20, 4_000), arguments::calls);
}
