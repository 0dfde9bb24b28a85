//! What a region held, in few bytes.

use outlive_base::Rank;

/// Most regions of a node whose content is compared from version to version: the first ones, rank
/// by rank.
pub const PRINTS_MAX: usize = 4096;

/// The fingerprint of a region at one version: equal content has an equal one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Print {
    /// Whose it is.
    pub rank: Rank,
    /// The region's name.
    pub region: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// The digest of the digests of its frames.
    pub digest: u128,
    /// How many of its numbers are NaN; 0 of a region of which nobody said that it has numbers.
    pub nan: u64,
    /// How many are infinite.
    pub infinite: u64,
}
