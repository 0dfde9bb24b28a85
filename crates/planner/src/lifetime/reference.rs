//! The evaluation as it was first written, for tests, but for cycles until it settles: every state in a sorted map, pushed one
//! by one until nothing above the slack is left. Slow where stops come often, and blind to what
//! it neglects; where it ends with little neglected it is exact.

mod chain;
mod solve;

pub(super) use solve::expected;
