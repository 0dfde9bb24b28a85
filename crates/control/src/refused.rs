//! Numbers that a version may not hold: what is wanted of nodes.

use serde::{Deserialize, Serialize};

/// With such numbers in a region of which it was said what numbers it has, a version is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Refused {
    /// NaN.
    pub nan: bool,
    /// Positive and negative infinity.
    pub infinite: bool,
}
