//! The command `outlive`.
fn main() {}
